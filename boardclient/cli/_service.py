"""The commands with an embedded service: `serve` runs it, or a recording; `demo` is a tour of the client with it."""

from __future__ import annotations

import asyncio
import random
import shlex
from collections.abc import Container
from datetime import datetime
from typing import TYPE_CHECKING

import click

from boardclient.cli._app import Group, Number, WholeNumber
from boardclient.cli._output import note, out

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, Board
    from boardclient.events import Event
    from boardclient.testing import BoardService, Call, ReplayService

commands = Group("service")

_FIRST_ERROR_STATUS = 400
_URGENT = "label-urgent"
_CARDS_SHOWN = 6
_CARDS_UNTIL_EXPIRY = 25

_chance = random.random


class _Share(Container[int]):
    """Contains each number with the probability `share`."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __contains__(self, number: object) -> bool:
        return _chance() < self._share


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
@click.option(
    "--replay",
    "recording",
    type=click.Path(),
    metavar="FILE",
    help="Serve what boardclient.testing.record has written to this file, or an HTTP archive (HAR).",
)
def serve(
    port: int,
    members: tuple[str, ...],
    redirect_uri: str,
    token_lifetime: float | None,
    latency: float,
    fail: float,
    rate_limit: float | None,
    recording: str | None,
) -> None:
    """Run the embedded service in memory until SIGINT or SIGTERM, for trials and development.

    The printed environment has the client's identifier and secret, and the address of a page on which one of the members gives
    consent: boardclient login signs in there. Boards and cards have pages at their addresses, which show changes as they happen.

    \b
    Examples:
      boardclient serve --port 8080
      boardclient serve --token-lifetime 60 --latency 0.2 --fail 0.05 --rate-limit 20
      boardclient serve --replay calls.har
    """
    from boardclient.cli._output import UsageError
    from boardclient.cli._running import reported, run_until_signal
    from boardclient.testing import BoardService

    async def work() -> None:
        service: BoardService | ReplayService
        if recording is not None:
            if token_lifetime or latency or fail or rate_limit:
                raise UsageError("--replay can't be combined with --token-lifetime, --latency, --fail or --rate-limit")
            service, words = _replay_service(recording, port), f"Replaying {recording}"
        else:
            service = BoardService(
                port=port,
                members=members,
                redirect_uri=redirect_uri,
                token_lifetime=token_lifetime,
                latency=latency,
                on_call=_log,
            )
            _add_faults(service, fail, rate_limit)
            words = f"Serving the members {', '.join(member.name for member in service.members)}"
        try:
            await _serve(service, words)
        except OSError as error:
            raise UsageError(f"can't listen on port {port}: {error.strerror}") from None

    with reported():
        run_until_signal(work)


def _add_faults(service: BoardService, fail: float, rate_limit: float | None) -> None:
    from boardclient.testing import faults

    # Half of the failures happen before the request is carried out, half after it: a client can't tell which.
    for fault in (faults.status(503, commit=True), faults.status(503)):
        share = fail / 2 if fault.commit else fail / (2 - fail)
        service.faults.planned.append(faults.Planned(fault=fault, operation=None, calls=_Share(share), times=None))
    if rate_limit is not None:
        service.faults.rate_limit = faults.rate_limit(rate_limit, burst=max(1, int(rate_limit)), retry_after=1)


def _replay_service(recording: str, port: int) -> ReplayService:
    """Return a service that replays a file.

    Raises:
        UsageError: the file can't be read, or is no recording.
    """
    from boardclient.cli._output import UsageError
    from boardclient.testing import replay

    try:
        service = replay(recording, strict=False, repeats=True, port=port)
    except OSError as error:
        raise UsageError(f"can't read {recording}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    service.on_request = _write
    return service


async def _serve(service: BoardService | ReplayService, words: str) -> None:
    """Run a service until cancelled, and print the environment for its clients.

    Its credentials are made for this run and are of no use elsewhere, so they may be printed.

    Raises:
        OSError: the port is in use.
    """
    async with service:
        for name, value in service.environment.items():
            print(f"export {name}={shlex.quote(value)}")
        print(end="", flush=True)
        note(f"{words} until SIGINT or SIGTERM.")
        note("Set the environment above in another terminal.")
        await asyncio.Event().wait()


def _log(call: Call) -> None:
    """Print a line for a request, without query and body, which hold credentials."""
    fault = "" if call.fault is None else f"  ({type(call.fault).__name__})"
    _write(call.method, call.path, call.status, f"{call.operation}{fault}")


def _write(method: str, path: str, status: int | None, more: str) -> None:
    is_bad = status is None or status >= _FIRST_ERROR_STATUS
    shown = "no response" if status is None else str(status)
    line = f"{datetime.now():%H:%M:%S}  {method:6} {path}  {shown}  {more}"
    note(line.rstrip(), fg="red" if is_bad else None)


class _Consent:
    """Stands for an application whose user consents at once."""

    def __init__(self, service: BoardService) -> None:
        self.asked = 0
        self._service = service
        self._created = 0

    async def authorize(self, request: AuthorizationRequest) -> str:
        """Return an authorization code."""
        self.asked += 1
        return self._service.new_code()

    def expire_midway(self, event: Event) -> None:
        """Expire all tokens once some cards of the import were created."""
        if getattr(event, "operation", "") == "cards.create" and getattr(event, "status", None) == 200:
            self._created += 1
            if self._created == _CARDS_UNTIL_EXPIRY:
                self._service.rules.expire_tokens()


@commands.command("demo")
def demo() -> None:
    """Run a tour of a few seconds with an embedded service: a board, an import, moves, labels.

    The token expires during the import.
    """
    from boardclient.cli._running import reported, run_until_signal
    from boardclient.testing import BoardService

    async def work() -> None:
        async with BoardService(port=0) as service:
            consent = _Consent(service)
            credentials = service.oauth_credentials(authorize=consent.authorize)
            async with service.session(credentials, observers=[consent.expire_midway]) as session:
                await _tour(service, session, consent)

    with reported():
        run_until_signal(work)


async def _tour(service: BoardService, session: AsyncSession, consent: _Consent) -> None:
    """Fill a board from the shipped file, change it and draw it."""
    from importlib.resources import as_file, files

    from boardclient.cli import _drawing, _importing

    out(f"An embedded service runs at {service.base_url}; it is gone when this ends.")
    board = await session.boards.create("Demo", default_lists=True)
    await session.lists.create("Icebox", board_id=board.id, pos="bottom")
    out(f"Board {board.name} ({board.id}) has four lists. Importing the shipped cards:")
    asked = consent.asked
    with as_file(files("boardclient.cli") / "data" / "cards.csv") as path, path.open("rb") as file:
        await _importing.import_file(session, file, board.id)
    out(
        f"After {_CARDS_UNTIL_EXPIRY} cards the access token expired. For all requests that met a 401 the application was asked"
        f" for {consent.asked - asked} new code{'s' * (consent.asked - asked != 1)}.",
    )
    for text in await _change(session, board):
        out(text)
    lists, cards = await session.boards.lists(board.id), await session.boards.cards(board.id)
    _drawing.draw(lists, cards, cards_per_list=_CARDS_SHOWN)


async def _change(session: AsyncSession, board: Board) -> list[str]:
    """Move, label and delete some cards, archive a list, and return what was done."""
    list_ids = {item.name: item.id for item in await session.boards.lists(board.id)}
    cards = await session.boards.cards(board.id)
    waiting = [card for card in cards if card.list_id == list_ids["To Do"]]
    moved, labelled, deleted = waiting[:5], waiting[5:8], waiting[8]
    await asyncio.gather(*(session.cards.move(card.id, list_id=list_ids["Doing"]) for card in moved))
    await asyncio.gather(*(session.cards.add_label(card.id, _URGENT) for card in labelled))
    await session.cards.delete(deleted.id)
    await session.lists.archive(list_ids["Icebox"])
    return [
        f"Moved {len(moved)} cards from To Do to Doing.",
        f"Labelled {len(labelled)} cards as {_URGENT}.",
        f"Deleted the card {deleted.name!r}.",
        "Archived the list Icebox.",
    ]
