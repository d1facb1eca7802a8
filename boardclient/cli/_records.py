"""The commands that make one or two calls and print a record: whoami, board, list, card."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._app import Group, board_argument, board_option, json_option, timezone_option, yes_option
from boardclient.cli._output import local, note, quoted, show

if TYPE_CHECKING:
    from boardclient.cli._names import Finder
    from boardclient.events import Event

commands = Group("records")

_BOARD = ("id", "name", "url", "prefs")
_LIST = ("id", "name", "board_id", "pos", "subscribed", "closed")
_CARD = ("id", "name", "desc", "url", "list_id", "due", "pos")


def _record(model: Any, names: tuple[str, ...], zone: tzinfo | None = None) -> dict[str, Any]:
    """Return these fields of a model, with dates in a zone."""
    record = {name: getattr(model, name) for name in names}
    if record.get("due") is not None:
        record["due"] = local(record["due"], zone).isoformat()
    if record.get("prefs") is not None:
        record["prefs"] = {name: value for name, value in record["prefs"].to_dict().items() if name != "extra"}
    return record


def _call(
    title: str,
    work: Callable[[Finder], Awaitable[Mapping[str, Any]]],
    fields: tuple[str, ...] | None,
    *,
    board: str | None = None,
    writes: bool = True,
) -> None:
    """Make calls with a `Finder` for what the user names, and print the record that they return."""
    from boardclient.cli._names import Finder
    from boardclient.cli._running import Client, with_session

    async def called(client: Client) -> None:
        finder = Finder(client, board or "")
        with finder.advising():
            record = await work(finder)
        show(title, record, fields)

    with_session(called, writes=writes)


@commands.command("whoami")
@json_option()
def whoami(fields: tuple[str, ...] | None) -> None:
    """Show the member whose token is used, with all fields that the service sends."""

    async def work(finder: Finder) -> Mapping[str, Any]:
        member = await finder.client.session.members.me()
        return {"id": member.id, **member.extra}

    _call("member", work, fields, writes=False)


@commands.group("board")
def board_group() -> None:
    """Create and show boards."""


@board_group.command("create")
@click.argument("name", metavar="NAME", help="The board's name.")
@click.option(
    "--default-lists/--no-default-lists", default=None, help="Create To Do, Doing and Done.", show_default="the service decides"
)
@click.option("--organization", metavar="ID", help="The organization that it belongs to.")
@json_option(*_BOARD)
def board_create(name: str, default_lists: bool | None, organization: str | None, fields: tuple[str, ...] | None) -> None:
    """Create a board. Later commands on this machine know it by its name, too.

    Example:  boardclient board create Roadmap --default-lists
    """
    from boardclient.cli._names import learn

    async def work(finder: Finder) -> Mapping[str, Any]:
        board = await finder.client.session.boards.create(name, default_lists=default_lists, organization_id=organization)
        learn(finder.client, board.id, name)
        return _record(board, _BOARD)

    _call("board created", work, fields)


@board_group.command("show")
@board_argument
@timezone_option
@json_option("id", "lists", "cards")
def board_show(board: str, zone: tzinfo | None, fields: tuple[str, ...] | None) -> None:
    """Draw a board: its lists side by side with their cards, and the identifiers of both.

    Into a pipe it prints a line for each card with tabs: list, name of the list, card, name of the card, due date. A list without
    cards has a line of its own.

    Example:  boardclient board show Roadmap --json | jq '.cards[].name'
    """
    import sys

    from boardclient.cli._names import Finder
    from boardclient.cli._running import Client, with_session

    async def work(client: Client) -> None:
        from boardclient.cli import _drawing

        finder = Finder(client, board)
        board_id = finder.board_id()
        with finder.advising():
            lists, cards = await client.session.boards.lists(board_id), await client.session.boards.cards(board_id)
        if fields is not None:
            shown = {
                "id": board_id,
                "lists": [_record(item, _LIST) for item in lists],
                "cards": [_record(card, _CARD, zone) for card in cards],
            }
            show("", shown, fields)
        elif sys.stdout.isatty():
            _drawing.draw(lists, cards, zone=zone)
        else:
            _drawing.print_lines(lists, cards, zone=zone)

    with_session(work)


@board_group.command("list")
@json_option("id", "name")
def board_list(fields: tuple[str, ...] | None) -> None:
    """Show the boards that this machine knows by name. The interface has no operation that lists all boards."""
    from boardclient.cli._output import out_json, out_table
    from boardclient.cli._running import without_session

    async def work(settings: Any) -> None:
        boards = [{"id": board, "name": name} for board, name in settings.profile.boards.items()]
        if fields is not None:
            out_json([{name: item[name] for name in fields or ("id", "name")} for item in boards])
            return
        out_table([(item["id"], item["name"]) for item in boards], "id", "name")

    without_session(work)


@board_group.command("name")
@click.argument("board_id", metavar="BOARD_ID", help="The board's identifier.")
@click.argument("name", metavar="NAME", help="The name by which commands on this machine know it.")
@json_option("id", "name")
def board_name(board_id: str, name: str, fields: tuple[str, ...] | None) -> None:
    """Let commands on this machine know a board by a name. Nothing is sent."""
    from boardclient.cli._running import without_session

    async def work(settings: Any) -> None:
        settings.profile.boards[board_id] = name
        settings.profiles.write()
        show("board named", {"id": board_id, "name": name}, fields)

    without_session(work)


@commands.group("list")
def list_group() -> None:
    """Create and archive lists."""


@list_group.command("create")
@click.argument("name", metavar="NAME", help="The list's name.")
@board_option("The board that gets the list.", required=True)
@click.option("--pos", metavar="POS", help="The position: top, bottom, or another value that the service accepts.")
@json_option(*_LIST)
def list_create(name: str, board: str, pos: str | None, fields: tuple[str, ...] | None) -> None:
    """Create a list on a board.

    Example:  boardclient list create "In review" --board Roadmap --pos bottom
    """

    async def work(finder: Finder) -> Mapping[str, Any]:
        return _record(await finder.client.session.lists.create(name, board_id=finder.board_id(), pos=pos), _LIST)

    _call("list created", work, fields, board=board)


@list_group.command("archive")
@click.argument("list_", metavar="LIST", help="An identifier, or a name with --board.")
@board_option("The board on which to look for a name.")
@yes_option
@json_option(*_LIST)
def list_archive(list_: str, board: str | None, yes: bool, fields: tuple[str, ...] | None) -> None:
    """Archive a list. The service documents no way to undo this, so it asks first."""
    from boardclient.cli._running import confirm

    async def work(finder: Finder) -> Mapping[str, Any]:
        list_id = await finder.list_id(list_)
        confirm(f"Archive the list {_shown(list_, list_id)}? The service documents no way to undo this.", yes=yes)
        return _record(await finder.client.session.lists.archive(list_id), _LIST)

    _call("list archived", work, fields, board=board)


def _shown(value: str, identifier: str) -> str:
    return quoted(value) if value == identifier else f"{quoted(value)} ({identifier})"


@commands.group("card")
def card_group() -> None:
    """Create, read, move, label and delete cards."""


_card_argument = click.argument("card", metavar="CARD", help="An identifier, or a name with --board.")
_card_board = board_option("The board on which to look for names.")


_into_list = click.option(
    "--list", "list_", metavar="LIST", required=True, help="The list that gets the card: an identifier, or a name with --board."
)


class _WaitingTold:
    """Says that a creation waits for the time at which its card must be on the board."""

    def __init__(self) -> None:
        self._said: object = None

    def __call__(self, event: Event) -> None:
        until = getattr(event, "wait_ends_at", None)
        if until is not None and until != self._said:
            self._said = until
            note(f"the response was lost: the board is read at {until.astimezone():%H:%M:%S} to find the card")


@card_group.command("create")
@click.argument("name", metavar="NAME", help="The card's name.")
@_into_list
@_card_board
@click.option("--desc", metavar="TEXT", help="The description.")
@click.option("--due", metavar="TIME", help="The due date, such as 2027-01-31 or 2027-01-31T17:00:00+01:00.")
@timezone_option
@click.option("--pos", type=click.Choice(["top", "bottom"]), help="The position in the list.")
@json_option(*_CARD)
def card_create(
    name: str,
    list_: str,
    board: str | None,
    desc: str | None,
    due: str | None,
    zone: tzinfo | None,
    pos: str | None,
    fields: tuple[str, ...] | None,
) -> None:
    """Create a card in a list. With --board it is looked up there if the response is lost, and not created twice.

    Example:  boardclient card create "Book the room" --board Roadmap --list "To Do" --due 2027-01-31
    """
    from boardclient.cli._errors import UsageError
    from boardclient.cli._rows import parse_due

    async def work(finder: Finder) -> Mapping[str, Any]:
        try:
            due_at = None if due is None else parse_due(due, zone)
        except ValueError as error:
            raise UsageError(f"--due {quoted(due or '')}: {error}") from None
        list_id = await finder.list_id(list_)
        create = finder.client.session.with_options(observers=[_WaitingTold()]).cards.create
        card = await create(name, list_id=list_id, desc=desc, due=due_at, pos=pos, board_id=finder.board_id() or None)
        return _record(card, _CARD, zone)

    _call("card created", work, fields, board=board)


@card_group.command("get")
@_card_argument
@_card_board
@timezone_option
@json_option(*_CARD)
def card_get(card: str, board: str | None, zone: tzinfo | None, fields: tuple[str, ...] | None) -> None:
    """Show a card."""

    async def work(finder: Finder) -> Mapping[str, Any]:
        return _record(await finder.client.session.cards.get(await finder.card_id(card)), _CARD, zone)

    _call("card", work, fields, board=board, writes=False)


@card_group.command("delete")
@_card_argument
@_card_board
@yes_option
@json_option("id")
def card_delete(card: str, board: str | None, yes: bool, fields: tuple[str, ...] | None) -> None:
    """Delete a card for good. It asks first."""
    from boardclient.cli._running import confirm

    async def work(finder: Finder) -> Mapping[str, Any]:
        card_id = await finder.card_id(card)
        confirm(f"Delete the card {_shown(card, card_id)} for good?", yes=yes)
        await finder.client.session.cards.delete(card_id)
        return {"id": card_id}

    _call("card deleted", work, fields, board=board)


@card_group.command("move")
@_card_argument
@_into_list
@_card_board
@json_option("id", "list_id")
def card_move(card: str, list_: str, board: str | None, fields: tuple[str, ...] | None) -> None:
    """Move a card to another list.

    Example:  boardclient card move "Book the room" --board Roadmap --list Done
    """

    async def work(finder: Finder) -> Mapping[str, Any]:
        card_id, list_id = await finder.card_id(card), await finder.list_id(list_)
        await finder.client.session.cards.move(card_id, list_id=list_id)
        return {"id": card_id, "list_id": list_id}

    _call("card moved", work, fields, board=board)


@card_group.command("label")
@_card_argument
@click.argument("label", metavar="LABEL_ID", help="The label's identifier.")
@_card_board
@json_option("id", "label")
def card_label(card: str, label: str, board: str | None, fields: tuple[str, ...] | None) -> None:
    """Attach a label to a card."""

    async def work(finder: Finder) -> Mapping[str, Any]:
        card_id = await finder.card_id(card)
        await finder.client.session.cards.add_label(card_id, label)
        return {"id": card_id, "label": label}

    _call("label attached", work, fields, board=board)
