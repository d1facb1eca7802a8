"""The commands that serve: an embedded service (`serve`, and `demo` as a tour of it), and tools for agents (`mcp`)."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from boardclient.cli._app import Group, Number, WholeNumber, json_option, option, timezone_option
from boardclient.cli._output import UsageError, note, out, plural, show

if TYPE_CHECKING:
    from boardclient import AuthorizationRequest
    from boardclient.cli._running import Client
    from boardclient.testing import Call

commands = Group("service")

_FIRST_ERROR_STATUS = 400
_SETTINGS = ("BASE_URL", "AUTH_URL", "AUTHORIZE_URL", "KEY", "TOKEN", "CLIENT_ID", "CLIENT_SECRET", "REDIRECT_URI")
_ENVIRONMENT = tuple(f"BOARDCLIENT_{name}" for name in _SETTINGS)
_MEMBERS = ("Ada Lovelace", "Alan Turing")
_CARDS_SHOWN = 1  # so that all fits the 24 lines of a terminal
_CARDS_UNTIL_EXPIRY = 25
_LOST = 100


@commands.runs("serve", needs="nothing")
async def serve(
    port: int = option(type=WholeNumber(0, 65535), default=0, metavar="N", show_default="any free one"),
    redirect_uri: str = option(default="http://127.0.0.1:8000/callback", metavar="URI", show_default=True),
    fields: tuple[str, ...] | None = json_option(*_ENVIRONMENT),
) -> None:
    """Run the embedded service in memory until SIGINT or SIGTERM, for trials and development.

    The printed environment has the client's identifier and secret, and the address of a page on which one of the members gives
    consent: boardclient login signs in there.

    Faults, limits and tokens that end are those of boardclient.testing.BoardService, which tests start by themselves.

    Example:  boardclient serve --port 8080

    Args:
        port: The port on 127.0.0.1.
        redirect_uri: Where the consent page sends the browser back to.
    """
    import asyncio
    import os

    from boardclient.testing import BoardService

    service = BoardService(port=port, redirect_uri=redirect_uri, members=_MEMBERS, on_call=_log)
    async with contextlib.AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(service)
        except OSError as error:
            # asyncio's own words say the address again.
            raise UsageError(f"can't listen on port {port}: {os.strerror(error.errno or 0)}") from None
        # The credentials are made for this run and are of no use elsewhere, so they may be printed.
        if fields is not None:
            show("", service.environment, fields)
        for name, value in service.environment.items() if fields is None else ():
            # By `print`, not `out`: a shell reads these lines, and escaped characters would be others there.
            print(f"export {name}={shlex.quote(value)}")
        print(end="", flush=True)
        note(f"Serving the members {', '.join(_MEMBERS)} until SIGINT or SIGTERM.")
        note("Set the environment above in another terminal.")
        await asyncio.Event().wait()


def _log(call: Call) -> None:
    """Print a line for a request, without query and body, which hold credentials."""
    is_bad = call.status is None or call.status >= _FIRST_ERROR_STATUS
    line = f"{datetime.now():%H:%M:%S}  {call.method:6} {call.path}  {call.status or 'no response'}  {call.operation}"
    note(line, fg="red" if is_bad else None)


@commands.runs("demo", needs="nothing")
async def demo(fields: tuple[str, ...] | None = json_option(takes_any=True)) -> None:
    """Import cards into an embedded service, whose token expires and which loses a response meanwhile, and draw the board."""
    from importlib.resources import as_file, files

    from boardclient.cli import _drawing
    from boardclient.cli._commands._import_check import import_file
    from boardclient.cli._commands._import_command import import_
    from boardclient.cli._commands._import_options import ImportOptions
    from boardclient.cli._running import Client, load
    from boardclient.testing import BoardService, faults

    asked, created = list[object](), itertools.count(1)
    tell = out if fields is None else note
    as_json = [] if fields is None else [f"--json={','.join(fields)}"]

    async def authorize(request: AuthorizationRequest) -> str:
        """Stand for an application whose user consents at once."""
        asked.append(request)
        return service.new_code()

    def expire_midway(call: Call) -> None:
        if call.operation == "cards.create" and next(created) == _CARDS_UNTIL_EXPIRY:
            service.rules.expire_tokens()

    async with (
        BoardService(port=0, on_call=expire_midway) as service,
        service.session(service.oauth_credentials(authorize=authorize)) as session,
    ):
        service.faults.add(faults.drop(commit=True), "cards.create", call=_LOST)
        tell(f"An embedded service runs at {service.base_url}; it is gone when this ends.")
        board = await session.boards.create("Demo", default_lists=True)
        await session.lists.create("Icebox", board_id=board.id, pos="bottom")
        tell(f"Board {board.name} ({board.id}) has four lists. Importing the shipped cards:")
        with as_file(files("boardclient.cli") / "data" / "cards.csv") as path, path.open("rb") as file:
            options = ImportOptions(**import_.make_context("import", ["-", "--board", board.id, "--settle=0", *as_json]).params)
            await import_file(Client(session, load(base_url=service.base_url), board.id), file, options)
        renewed = plural(len(asked) - 1, "new code")
        tell(f"After {_CARDS_UNTIL_EXPIRY} cards the token expired. For all 401s the application was asked for {renewed}.")
        tell(f"The response to request {_LOST} was lost: its card was found, and is there once.")
        if fields is None:
            lists, cards = await session.boards.lists(board.id), await session.boards.cards(board.id)
            _drawing.draw(lists, cards, cards_per_list=_CARDS_SHOWN)


@commands.runs("mcp")
async def mcp(
    client: Client,
    ledger: str | None = option(metavar="PLACE", show_default="mcp.ledger in the folder of the profiles"),
    allow_delete: bool = option(is_flag=True),
    settle: float | None = option(type=Number(min=0), metavar="SECONDS", show_default="twice the timeout"),
    zone: tzinfo | None = timezone_option,
) -> None:
    """Serve the operations as tools for agents, by the Model Context Protocol over standard input and output.

    Each creation has a reference: a call that is tried again, also after a restart, makes no second card. A host, such as an
    editor, starts the command by itself: docs/agents.md shows its configuration.

    Args:
        ledger: Where the references of created cards are kept: a path, or postgresql://…
        allow_delete: Offer the tools whose effect nothing brings back: they delete cards, and archive lists.
        settle: How long the service may take to list a card whose response was lost.
    """
    import atexit
    import gc

    from boardclient.cli._running import kept_ledger
    from boardclient.integrations.mcp import make_server

    place = ledger or kept_ledger("mcp.ledger")
    # The interpreter's last collection takes half a second with so many modules, and hosts wait for the end.
    atexit.register(gc.freeze)
    server = make_server(
        client.session, place, allow_delete=allow_delete, settle=settle, zone=zone, secrets=client.settings.shared_secrets
    )
    await server.run_stdio_async()
