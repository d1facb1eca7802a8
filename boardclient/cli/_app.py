"""The commands of the command line: what is read from the caller, what is called, what is printed."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

from boardclient import AsyncSession, Position, __version__
from boardclient.cli import _app_files as _files
from boardclient.cli import _demo, _render, _rows, _settings
from boardclient.cli._errors import UsageError
from boardclient.cli._running import reported, with_session
from boardclient.cli._signals import run_until_signal

# Each paragraph is one line: typer wraps it to the terminal, and a newline of ours would break it elsewhere.
_EPILOG = "\n\n".join(
    (
        "[bold]Try it[/bold] without a service: boardclient demo",
        "[bold]Examples[/bold]:",
        "boardclient board create Roadmap --default-lists",
        'boardclient import cards.csv --board BOARD_ID --list "To Do"',
        "boardclient board show BOARD_ID",
        (
            "[bold]Environment[/bold]: BOARDCLIENT_BASE_URL (the service's address), BOARDCLIENT_TOKEN (the access token), "
            "BOARDCLIENT_KEY (the API key, where one is used), BOARDCLIENT_AUTH_URL (where tokens are exchanged). "
            "Credentials are never options: options show in process lists."
        ),
        (
            "[bold]Exit codes[/bold]: 0 done; 1 the service or the way to it failed; 2 bad usage, configuration or file; "
            "130, 143 ended by SIGINT, SIGTERM."
        ),
    )
)
app = typer.Typer(
    name="boardclient",
    help="Work with boards, lists and cards of a board service.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
board_app = typer.Typer(no_args_is_help=True, help="Create and show boards.")
list_app = typer.Typer(no_args_is_help=True, help="Create and archive lists.")
card_app = typer.Typer(no_args_is_help=True, help="Create, read, move, label and delete cards.")
app.add_typer(board_app, name="board")
app.add_typer(list_app, name="list")
app.add_typer(card_app, name="card")

BoardOption = Annotated[str, typer.Option("--board", metavar="BOARD_ID", help="The board's identifier.")]
ListOption = Annotated[str, typer.Option("--list", metavar="LIST_ID", help="The list's identifier.")]
CardArgument = Annotated[str, typer.Argument(metavar="CARD_ID", help="The card's identifier.")]


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with these arguments and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(get_command(app).main(args=None if argv is None else list(argv), prog_name="boardclient"))


def _show_version(wanted: bool) -> None:
    if wanted:
        _render.line(_render.output(), __version__)
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    base_url: Annotated[str | None, typer.Option(help="The service's address, before BOARDCLIENT_BASE_URL.")] = None,
    auth_url: Annotated[str | None, typer.Option(help="Where tokens are exchanged, before BOARDCLIENT_AUTH_URL.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for a call, all its attempts together.")] = 30.0,
    allow_insecure: Annotated[bool, typer.Option("--allow-insecure", help="Allow http to hosts other than this one.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = _settings.Options(base_url=base_url, auth_url=auth_url, timeout_seconds=timeout, allow_insecure=allow_insecure)


@app.command()
def demo() -> None:
    """Show it all in seconds: an own service, a board, an import, moves, labels."""
    with reported():
        run_until_signal(_demo.demo)


@app.command(epilog="[bold]Example[/bold]: boardclient serve --port 8080")
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Run the embedded service in memory, to try things out, until SIGINT or SIGTERM."""

    async def work() -> None:
        try:
            await _demo.serve(port)
        except OSError as error:
            raise UsageError(f"can't listen on port {port}: {error.strerror}") from None

    with reported():
        run_until_signal(work)


@app.command()
def whoami(context: typer.Context) -> None:
    """Show the member whose token is used."""

    async def work(session: AsyncSession) -> None:
        member = await session.members.me()
        extra = {name: value for name, value in member.extra.items() if isinstance(value, str | int | float)}
        _render.details(_render.output(), "member", {"id": member.id, **extra})

    with_session(context, work, writes=False)


@board_app.command("create", epilog="[bold]Example[/bold]: boardclient board create Roadmap --default-lists")
def board_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The board's name.")],
    default_lists: Annotated[
        bool | None,
        typer.Option("--default-lists/--no-default-lists", help="Create To Do, Doing and Done.", show_default="not said"),
    ] = None,
    organization: Annotated[
        str | None, typer.Option("--organization", metavar="ID", help="The organization that it belongs to.")
    ] = None,
) -> None:
    """Create a board."""

    async def work(session: AsyncSession) -> None:
        board = await session.boards.create(name, default_lists=default_lists, organization_id=organization)
        _render.details(_render.output(), "board created", {"id": board.id, "name": board.name, "url": board.url})

    with_session(context, work, writes=True)


@board_app.command("show", epilog="[bold]Example[/bold]: boardclient board show BOARD_ID")
def board_show(
    context: typer.Context, board_id: Annotated[str, typer.Argument(metavar="BOARD_ID", help="The board's identifier.")]
) -> None:
    """Draw a board: its lists side by side with their cards."""

    async def work(session: AsyncSession) -> None:
        lists, cards = await session.boards.lists(board_id), await session.boards.cards(board_id)
        _render.output().print(_render.board(lists, cards))

    with_session(context, work, writes=False)


@list_app.command("create", epilog='[bold]Example[/bold]: boardclient list create "In review" --board BOARD_ID --pos bottom')
def list_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The list's name.")],
    board: BoardOption,
    pos: Annotated[
        str | None, typer.Option(help="The position in the board: top, bottom, or what else the service knows.")
    ] = None,
) -> None:
    """Create a list on a board."""

    async def work(session: AsyncSession) -> None:
        item = await session.lists.create(name, board_id=board, pos=pos)
        _render.details(
            _render.output(), "list created", {"id": item.id, "name": item.name, "board": item.board_id, "pos": item.pos}
        )

    with_session(context, work, writes=True)


@list_app.command("archive")
def list_archive(
    context: typer.Context, list_id: Annotated[str, typer.Argument(metavar="LIST_ID", help="The list's identifier.")]
) -> None:
    """Archive a list; no way back is documented."""

    async def work(session: AsyncSession) -> None:
        item = await session.lists.archive(list_id)
        _render.details(_render.output(), "list archived", {"id": item.id, "name": item.name})

    with_session(context, work, writes=True)


@card_app.command(
    "create",
    epilog='[bold]Example[/bold]: boardclient card create "Book the room" --list LIST_ID --due 2027-01-31T17:00:00+01:00',
)
def card_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The card's name.")],
    list_id: ListOption,
    desc: Annotated[str | None, typer.Option(help="The description.")] = None,
    due: Annotated[str | None, typer.Option(help="The due date: ISO 8601 with an offset.")] = None,
    pos: Annotated[Position | None, typer.Option(help="The position in the list.")] = None,
) -> None:
    """Create a card in a list."""

    async def work(session: AsyncSession) -> None:
        due_at = None if due is None else _rows.parse_due(due)
        card = await session.cards.create(name, list_id=list_id, desc=desc, due=due_at, pos=pos)
        _render.details(_render.output(), "card created", _render.card_fields(card))

    with_session(context, work, writes=True)


@card_app.command("get")
def card_get(context: typer.Context, card_id: CardArgument) -> None:
    """Show a card."""

    async def work(session: AsyncSession) -> None:
        _render.details(_render.output(), "card", _render.card_fields(await session.cards.get(card_id)))

    with_session(context, work, writes=False)


@card_app.command("delete")
def card_delete(context: typer.Context, card_id: CardArgument) -> None:
    """Delete a card for good."""

    async def work(session: AsyncSession) -> None:
        await session.cards.delete(card_id)
        _render.details(_render.output(), "card deleted", {"id": card_id})

    with_session(context, work, writes=True)


@card_app.command("move")
def card_move(context: typer.Context, card_id: CardArgument, list_id: ListOption) -> None:
    """Move a card to another list."""

    async def work(session: AsyncSession) -> None:
        await session.cards.move(card_id, list_id=list_id)
        _render.details(_render.output(), "card moved", {"id": card_id, "list": list_id})

    with_session(context, work, writes=True)


@card_app.command("label")
def card_label(
    context: typer.Context,
    card_id: CardArgument,
    label_id: Annotated[str, typer.Argument(metavar="LABEL_ID", help="The label's identifier.")],
) -> None:
    """Attach a label to a card."""

    async def work(session: AsyncSession) -> None:
        await session.cards.add_label(card_id, label_id)
        _render.details(_render.output(), "label attached", {"card": card_id, "label": label_id})

    with_session(context, work, writes=True)


_files.add_to(app)
