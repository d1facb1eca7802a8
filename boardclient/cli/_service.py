"""The commands with an embedded service: `serve` runs it, and `demo` is a tour of the client with it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from boardclient.cli._app import Group, Number, WholeNumber
from boardclient.cli._output import note, out, plural

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest
    from boardclient.events import Event
    from boardclient.testing import BoardService, Call
    from boardclient.testing.faults import Stage

commands = Group("service")

_FIRST_ERROR_STATUS = 400
_URGENT = "label-urgent"
_CARDS_SHOWN = 6
_CARDS_UNTIL_EXPIRY = 25


@commands.command("serve")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1.",
    show_default="0, which means any free port",
)
@click.option(
    "--member",
    "members",
    multiple=True,
    default=["Ada Lovelace", "Alan Turing"],
    metavar="NAME",
    show_default=True,
    help="A member who can sign in. Repeatable.",
)
@click.option(
    "--redirect-uri",
    default="http://127.0.0.1:8000/callback",
    metavar="URI",
    show_default=True,
    help="Where the consent page sends the browser back to.",
)
@click.option(
    "--token-lifetime",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="How long a token is accepted.",
    show_default="until the service ends",
)
@click.option("--latency", type=Number(min=0), default=0.0, metavar="SECONDS", help="How long each response is delayed.")
@click.option(
    "--fail",
    type=Number(0, 1),
    default=0.0,
    metavar="SHARE",
    help="The share of requests that get a 503, half of them after they were carried out.",
)
@click.option(
    "--rate-limit",
    type=Number(min=0, min_open=True),
    metavar="N",
    help="Requests per second. Further ones get a 429.",
    show_default="none",
)
def serve(
    port: int,
    members: tuple[str, ...],
    redirect_uri: str,
    token_lifetime: float | None,
    latency: float,
    fail: float,
    rate_limit: float | None,
) -> None:
    """Run the embedded service in memory until SIGINT or SIGTERM, for trials and development.

    The printed environment has the client's identifier and secret, and the address of a page on which one of the members gives
    consent: boardclient login signs in there.

    \b
    Examples:
      boardclient serve --port 8080
      boardclient serve --token-lifetime 60 --latency 0.2 --fail 0.05 --rate-limit 20
    """
    from boardclient.cli._output import UsageError
    from boardclient.cli._running import reported, run_until_signal
    from boardclient.testing import BoardService, faults

    async def work() -> None:
        service = BoardService(
            port=port,
            members=members,
            redirect_uri=redirect_uri,
            token_lifetime=token_lifetime,
            latency=latency,
            on_call=_log,
        )
        if fail:
            service.faults.add(_Fails(fail))
        if rate_limit is not None:
            service.faults.rate_limit = faults.rate_limit(rate_limit, burst=max(1, int(rate_limit)), retry_after=1)
        async with contextlib.AsyncExitStack() as opened:
            try:
                await opened.enter_async_context(service)
            except OSError as error:
                raise UsageError(f"can't listen on port {port}: {error.strerror}") from None
            # The credentials are made for this run and are of no use elsewhere, so they may be printed.
            for name, value in service.environment.items():
                print(f"export {name}={shlex.quote(value)}")
            print(end="", flush=True)
            note(f"Serving the members {', '.join(member.name for member in service.members)} until SIGINT or SIGTERM.")
            note("Set the environment above in another terminal.")
            await asyncio.Event().wait()

    with reported():
        run_until_signal(work)


class _Fails:
    """A fault of a share of the requests. Half of them were carried out: a client can't tell which."""

    def __init__(self, share: float) -> None:
        self._share = share

    async def play(self, stage: Stage) -> None:
        """Respond with 503, or as if there were no fault."""
        chance = random.random()  # noqa: S311 -- it decides nothing secret
        if chance < self._share / 2:
            stage.commit()
        await (stage.reply(503) if chance < self._share else stage.reply_answer())


def _log(call: Call) -> None:
    """Print a line for a request, without query and body, which hold credentials."""
    is_bad = call.status is None or call.status >= _FIRST_ERROR_STATUS
    line = f"{datetime.now():%H:%M:%S}  {call.method:6} {call.path}  {call.status or 'no response'}  {call.operation}"
    note(line, fg="red" if is_bad else None)


@commands.command("demo")
def demo() -> None:
    """Run a tour of a few seconds with an embedded service: a board, an import, moves, labels.

    The token expires during the import.
    """
    from boardclient.cli._running import reported, run_until_signal
    from boardclient.testing import BoardService

    async def work() -> None:
        async with BoardService(port=0) as service:
            asked, created = list[object](), itertools.count(1)

            async def authorize(request: AuthorizationRequest) -> str:
                """Stand for an application whose user consents at once."""
                asked.append(request)
                return service.new_code()

            def expire_midway(event: Event) -> None:
                is_created = getattr(event, "operation", "") == "cards.create" and getattr(event, "status", None) == 200
                if is_created and next(created) == _CARDS_UNTIL_EXPIRY:
                    service.rules.expire_tokens()

            credentials = service.oauth_credentials(authorize=authorize)
            async with service.session(credentials, observers=[expire_midway]) as session:
                await _tour(service, session, asked)

    with reported():
        run_until_signal(work)


async def _tour(service: BoardService, session: AsyncSession, asked: Sequence[object]) -> None:
    """Fill a board from the shipped file, change it and draw it."""
    from importlib.resources import as_file, files

    from boardclient.cli import _drawing, _importing

    out(f"An embedded service runs at {service.base_url}; it is gone when this ends.")
    board = await session.boards.create("Demo", default_lists=True)
    await session.lists.create("Icebox", board_id=board.id, pos="bottom")
    out(f"Board {board.name} ({board.id}) has four lists. Importing the shipped cards:")
    before = len(asked)
    with as_file(files("boardclient.cli") / "data" / "cards.csv") as path, path.open("rb") as file:
        await _importing.import_file(session, file, board.id, _importing.ImportOptions())
    out(
        f"After {_CARDS_UNTIL_EXPIRY} cards the access token expired. For all requests that met a 401 the application was asked"
        f" for {plural(len(asked) - before, 'new code')}.",
    )
    list_ids = {item.name: item.id for item in await session.boards.lists(board.id)}
    waiting = [card for card in await session.boards.cards(board.id) if card.list_id == list_ids["To Do"]]
    await asyncio.gather(*(session.cards.move(card.id, list_id=list_ids["Doing"]) for card in waiting[:5]))
    out("Moved 5 cards from To Do to Doing.")
    await asyncio.gather(*(session.cards.add_label(card.id, _URGENT) for card in waiting[5:8]))
    out(f"Labelled 3 cards as {_URGENT}.")
    await session.cards.delete(waiting[8].id)
    out(f"Deleted the card {waiting[8].name!r}.")
    await session.lists.archive(list_ids["Icebox"])
    out("Archived the list Icebox.")
    _drawing.draw(await session.boards.lists(board.id), await session.boards.cards(board.id), cards_per_list=_CARDS_SHOWN)
