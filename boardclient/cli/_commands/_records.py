"""The commands that make one or two calls and print what they got: whoami, board, list, card, export."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._app import (
    FilePath,
    Group,
    argument,
    board_argument,
    board_option,
    name_argument,
    option,
    timezone_option,
    yes_option,
)
from boardclient.cli._output import CommandError, UsageError, in_words, local, note, out, plural, quoted, show, show_all

if TYPE_CHECKING:
    from pathlib import Path

    from boardclient.cli._running import Client, CommandSettings
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


def _shown(value: str, identifier: str) -> str:
    return quoted(value) if value == identifier else f"{quoted(value)} ({identifier})"


@commands.runs("whoami", "member")
async def whoami(client: Client) -> Mapping[str, Any]:
    """Show the member whose token is used, with all fields that the service sends, but for what equals a credential."""
    member = await client.session.members.me()
    return client.session.redacted({"id": member.id, **member.extra}, *client.settings.shared_secrets)


board_group = commands.part("board")


@board_group.runs("create", "board created", *_BOARD, writes=True)
async def board_create(
    client: Client,
    name: str = name_argument,
    default_lists: bool | None = option("--default-lists/--no-default-lists", default=None, show_default="the service decides"),
    organization: str | None = option(metavar="ID"),
) -> Mapping[str, Any]:
    """Create a board. Later commands on this machine know it by its name, too.

    Example:  boardclient board create Roadmap --default-lists

    Args:
        name: The board's name.
        default_lists: Create To Do, Doing and Done.
        organization: The organization that it belongs to.
    """
    board = await client.session.boards.create(name, default_lists=default_lists, organization_id=organization)
    try:
        client.settings.learn(board.id, name)
    except ValueError as error:  # the board exists, whether this machine can keep its name or not
        note(f"boardclient: {error}")
    return _record(board, _BOARD)


@board_group.runs("show", None, "id", "lists", "cards", board=board_argument)
async def board_show(client: Client, fields: tuple[str, ...] | None, zone: tzinfo | None = timezone_option) -> None:
    """Draw a board: its lists side by side with their cards, and the identifiers of both.

    Into a pipe it prints a line for each card with tabs: list, name of the list, card, name of the card, due date. A list without
    cards has a line of its own.

    Example:  boardclient board show Roadmap --json | jq '.cards[].name'
    """
    # Imported late: rich takes a while, and most commands draw nothing.
    from boardclient.cli import _drawing

    board_id = client.board_id()
    lists, cards = await client.session.boards.lists(board_id), await client.session.boards.cards(board_id)
    if fields is not None:
        shown_lists, shown_cards = [_record(item, _LIST) for item in lists], [_record(card, _CARD, zone) for card in cards]
        show("", {"id": board_id, "lists": shown_lists, "cards": shown_cards}, fields)
    # A pipe gets lines with tabs, which cut and awk read, and no frames of a width that it does not have.
    elif sys.stdout.isatty():
        _drawing.draw(lists, cards, zone=zone)
    else:
        _drawing.print_lines(lists, cards, zone=zone)


@board_group.runs("list", None, "id", "name", needs="settings")
async def board_list(settings: CommandSettings, fields: tuple[str, ...] | None) -> None:
    """Show the boards that this machine knows by name. The interface has no operation that lists all boards."""
    if settings.profiles.problem:
        raise UsageError(settings.profiles.problem)
    show_all([{"id": board, "name": name} for board, name in settings.profile.boards.items()], ("id", "name"), fields)


@board_group.runs("name", "board named", "id", "name", needs="settings")
async def board_name(
    settings: CommandSettings, board_id: str = argument("BOARD_ID"), name: str = argument("NAME")
) -> Mapping[str, Any]:
    """Let commands on this machine know a board by a name. Nothing is sent, but to look for the identifier in an address.

    Args:
        board_id: The board's identifier, or the address of its page.
        name: The name by which commands on this machine know it.
    """
    from boardclient.cli._addresses import identifier_in, is_address

    # Only an address needs the service, so that this works without credentials for an identifier.
    if is_address(board_id):
        async with settings.session(settings.credentials()) as session:
            board_id = await identifier_in(board_id, "board", session.boards.lists)
    settings.learn(board_id, name)
    return {"id": board_id, "name": name}


list_group = commands.part("list")
_gets_list = board_option("The board that gets the list.", required=True)
_has_list = board_option("The board on which to look for a name.")


@list_group.runs("create", "list created", *_LIST, board=_gets_list, writes=True)
async def list_create(client: Client, name: str = name_argument, pos: str | None = option(metavar="POS")) -> Mapping[str, Any]:
    """Create a list on a board.

    Example:  boardclient list create "In review" --board Roadmap --pos bottom

    Args:
        name: The list's name.
        pos: The position: top, bottom, or another value that the service accepts.
    """
    return _record(await client.session.lists.create(name, board_id=client.board_id(), pos=pos), _LIST)


@list_group.runs("archive", "list archived", *_LIST, board=_has_list, writes=True)
async def list_archive(client: Client, list_: str = argument("LIST"), yes: bool = yes_option) -> Mapping[str, Any]:
    """Archive a list. The service documents no way to undo this, so it asks first.

    Args:
        list_: An identifier, or a name with --board.
    """
    # The prompt names what is archived: a name may be that of another list than the user thinks.
    list_id = await client.list_id(list_)
    client.confirm(f"Archive the list {_shown(list_, list_id)}? The service documents no way to undo this.", yes=yes)
    return _record(await client.session.lists.archive(list_id), _LIST)


card_group = commands.part("card")


def _note_of_doubt() -> Callable[[Event], None]:
    """Return an observer that tells why a card is in doubt, and until when the command waits, once for each time."""
    from boardclient.errors import Effect
    from boardclient.events import BulkProgress, ResponseReceived

    # Progress comes with each reading of the board, and the same words several times say nothing new.
    note_once = functools.cache(note)
    # With a reference, a call may wait for a card of which it has sent nothing itself.
    causes = ["an earlier call has sent the card"]

    def tell(event: Event) -> None:
        if isinstance(event, ResponseReceived) and event.effect is Effect.UNKNOWN and event.operation == "cards.create":
            causes.append("the response was lost" if event.status is None else f"the service responded with {event.status}")
        elif isinstance(event, BulkProgress) and event.wait_ends_at is not None and event.in_doubt:
            until = f"{event.wait_ends_at.astimezone():%H:%M:%S}"
            note_once(f"{causes[-1]}: the board is read at {until} to find the card")

    return tell


_card = argument("CARD", help="An identifier, or a name with --board.")
_has_card = board_option("The board on which to look for names.")
_into_list = option(metavar="LIST", required=True, help="The list that gets the card: an identifier, or a name with --board.")


@card_group.runs("create", "card created", *_CARD, "problem", board=_has_card, writes=True)
async def card_create(
    client: Client,
    name: str = name_argument,
    list_: str = _into_list,
    desc: str | None = option(metavar="TEXT"),
    due: str | None = option(metavar="TIME"),
    zone: tzinfo | None = timezone_option,
    pos: str | None = option(type=click.Choice(["top", "bottom"])),
    reference: str | None = option(metavar="R"),
    ledger: str | None = option(metavar="PLACE", show_default="cards.ledger in the folder of the profiles"),
) -> Mapping[str, Any]:
    """Create a card in a list. With --board it is looked up there if the response is lost, and not created twice.

    With --reference the same line again, in whatever process, shows the same card.

    \b
    Examples:
      boardclient card create "Book the room" --board Roadmap --list "To Do" --due 2027-01-31
      boardclient card create "Fix the login" --board Roadmap --list "To Do" --reference ticket-4711

    Args:
        name: The card's name.
        desc: The description.
        due: The due date, such as 2027-01-31 or 2027-01-31T17:00:00+01:00.
        pos: The position in the list.
        reference: What the card is for: the same reference never gets two. It needs --board.
        ledger: Where references are kept: a file, or postgresql://… without a password.
    """
    from boardclient.cli._running import kept_ledger
    from boardclient.models import read_date

    # Checked before anything is sent: a ledger that is not used would be taken for a record of the card.
    if reference is None and ledger is not None:
        raise UsageError("--ledger needs --reference")
    if reference is not None and not client.board_id():
        raise UsageError("--reference needs --board")
    if reference is not None and ledger is None:
        ledger = str(kept_ledger("cards.ledger"))
    try:
        due_at = None if due is None else read_date(due, zone)
    except ValueError as error:
        raise UsageError(f"--due {quoted(due or '')} {error}") from None
    # After the date, so that a mistake in it costs no request.
    list_id = await client.list_id(list_)
    create = client.session.with_options(observers=[_note_of_doubt()]).cards.create
    place: dict[str, Any] = {"board_id": client.board_id() or None, "reference": reference, "ledger": ledger}
    card = await create(name, list_id=list_id, desc=desc, due=due_at, pos=pos, **place)
    record = _record(card, _CARD, zone)
    # The card is created, whatever this says: a failure here would let scripts create it again.
    if card.problem is not None:
        record["problem"] = f"the card exists, and can't be read now: {in_words(card.problem)}"
    return record


@card_group.runs("get", "card", *_CARD, board=_has_card)
async def card_get(client: Client, card: str = _card, zone: tzinfo | None = timezone_option) -> Mapping[str, Any]:
    """Show a card."""
    return _record(await client.session.cards.get(await client.card_id(card)), _CARD, zone)


@card_group.runs("delete", "card deleted", "id", board=_has_card, writes=True)
async def card_delete(client: Client, card: str = _card, yes: bool = yes_option) -> Mapping[str, Any]:
    """Delete a card for good. It asks first."""
    card_id = await client.card_id(card)
    client.confirm(f"Delete the card {_shown(card, card_id)} for good?", yes=yes)
    await client.session.cards.delete(card_id)
    return {"id": card_id}


@card_group.runs("move", "card moved", "id", "list_id", board=_has_card, writes=True)
async def card_move(client: Client, card: str = _card, list_: str = _into_list) -> Mapping[str, Any]:
    """Move a card to another list.

    Example:  boardclient card move "Book the room" --board Roadmap --list Done
    """
    card_id, list_id = await client.card_id(card), await client.list_id(list_)
    await client.session.cards.move(card_id, list_id=list_id)
    return {"id": card_id, "list_id": list_id}


@card_group.runs("label", "label attached", "id", "label", board=_has_card, writes=True)
async def card_label(client: Client, card: str = _card, label: str = argument("LABEL_ID")) -> Mapping[str, Any]:
    """Attach a label to a card.

    Args:
        label: The label's identifier.
    """
    card_id = await client.card_id(card)
    await client.session.cards.add_label(card_id, label)
    return {"id": card_id, "label": label}


def _put(data: bytes, output: Path | None) -> None:
    """Write a file, or to stdout."""
    from boardclient._base._environment import reason_of
    from boardclient.credentials._profiles import replace_file

    if output is not None:
        try:
            # In one step: a full disk or a signal leaves the earlier file, and no half one.
            replace_file(output, data)
        except OSError as error:
            raise UsageError(f"can't write {output}: {reason_of(error)}") from None
    elif sys.stdout.isatty():
        # A name may hold sequences that steer a terminal, so lines go through `out`, which shows them as text.
        for line in data.decode().replace("\r\n", "\n").rstrip("\n").split("\n"):
            out(line)
    else:
        click.echo(data, nl=False)


_EXPORTED = ("path", "cards", "left_out", "archived", "shortened")


@commands.runs("export", None, *_EXPORTED, board=board_argument)
async def export(
    client: Client,
    fields: tuple[str, ...] | None,
    output: Path | None = option(type=FilePath(), metavar="PATH", show_default="stdout"),
    delimiter: str = option(type=click.Choice([",", ";", "\t", "|"]), default=",", metavar="CHAR", show_default=True),
    bom: bool = option(is_flag=True),
    date_format: str | None = option(metavar="PATTERN", show_default="ISO 8601"),
    zone: tzinfo | None = timezone_option,
) -> None:
    """Write the cards of a board as CSV in UTF-8, which import reads.

    The columns are name, desc, due, pos, list, id. list is the list's name if it is unique on the board, otherwise its
    identifier, which is of no use on another board. id is the card's identifier: an import takes it for the reference of the
    row in its journal, and does not send it. pos is written if it is top or bottom, not if it is a number, which can't be set.

    due has the offset of --timezone, by default that of this machine, so the moment stays the same wherever it is read. With
    --date-format, give import the same format and zone. Dates of which it leaves a part out, such as the time, are counted.

    A text that a spreadsheet would take for a formula begins with an apostrophe, which import takes away.

    Left out are cards of archived lists, and cards that import could not read back, which are named on stderr: those whose list
    is not shown, without a name, or with a due date or description of another type than documented.

    The file is either complete or unchanged: the cards are written to a new file beside it, which then replaces it.

    \b
    Exit codes:
      0  every card was written
      1  some cards were left out and named, or the service failed
      2  bad usage, or the file can't be written
      4  no credentials, or the service refuses them

    \b
    Examples:
      boardclient export Roadmap --output cards.csv
      boardclient export Roadmap --output for-excel.csv --delimiter ";" --bom --date-format "%d.%m.%Y %H:%M"
      boardclient export Roadmap | wc -l

    Args:
        output: The file to write or replace.
        delimiter: The separator of the cells: comma, semicolon, tab or bar.
        bom: Begin with the mark by which Excel recognises UTF-8.
        date_format: The form of due dates as for strftime, such as %d.%m.%Y.
    """
    from boardclient.cli._files._date_formats import check_formats
    from boardclient.cli._files._export import CardFile
    from boardclient.cli._files._layout import Layout
    from boardclient.cli._names import of_lists

    if fields is not None and output is None:
        raise UsageError("--json tells what was written to a file: give --output, or use: boardclient board show BOARD --json")
    date_formats = [] if date_format is None else [date_format]
    # Before the board is read, which may take long, and for nothing.
    check_formats(date_formats, zone)
    board_id = client.board_id()
    cards = await client.session.boards.cards(board_id)
    lists = await client.session.boards.lists(board_id)  # last, so that the list of each card is known
    archived = {item.id for item in lists if item.closed}
    written, strays = CardFile(of_lists(lists), Layout(zone=zone, date_formats=date_formats), delimiter), list[str]()
    for card in cards:
        if card.list_id not in archived and (problem := written.add(card)):
            strays.append(f"card {card.name!r} ({card.id}): left out: {problem}")
    # Joined before it is written: a card that can't be written must not leave a file that looks whole.
    data = ("\ufeff" * bom + written.text).encode()
    _put(data, output)
    # Each card is counted once, so that the sums agree with what the board has.
    left = len(cards) - written.number - len(strays)
    if fields is not None:
        counts = {"cards": written.number, "left_out": len(strays), "archived": left, "shortened": written.shortened}
        show("", {"path": str(output), **counts}, fields)
    for stray in strays:
        note(stray, fg="red")
    if left:
        note(f"cards of archived lists that are left out: {left}")
    if written.shortened:
        note(f"due dates of which {date_format} leaves a part out: {written.shortened}")
    if strays:
        raise CommandError(f"{plural(len(strays), 'card')} could not be written as import reads them")
