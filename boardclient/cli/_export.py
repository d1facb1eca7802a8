"""The command `export`: writes the cards of a board in the format that an import reads.

Cards that an import could not read back unchanged are named instead.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from boardclient.cli._app import Group, board_argument, timezone_option
from boardclient.cli._output import local, note, plural

if TYPE_CHECKING:
    from boardclient import BoardList, Card
    from boardclient.cli._names import Names
    from boardclient.cli._rows import Format
    from boardclient.cli._running import Client

commands = Group("export")

Cells = Mapping[str, str | None]


@commands.command("export")
@board_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl"]),
    help="The file format.",
    show_default="the extension of --output, or csv",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The file to write. An existing file is replaced.",
    show_default="stdout",
)
@click.option("--archived", "with_archived", is_flag=True, help="Also write the cards of archived lists.")
@click.option(
    "--delimiter", default=",", show_default=True, metavar="CHAR", help="The separator of the cells in CSV, such as a semicolon."
)
@click.option("--bom", is_flag=True, help="Begin with the mark by which Excel recognises UTF-8.")
@timezone_option
def export(board: str, form: str | None, output: Path | None, zone: str | None, **options: Any) -> None:
    """Write the cards of a board in the format that import reads, in UTF-8.

    The columns are name, desc, due, pos, list, reference. list is the list's name if it is unique on the board, otherwise its
    identifier, which is of no use on another board. reference is the card's identifier. pos is written if it is top or bottom,
    not if it is a number, which can't be set. JSON Lines omit fields that a card does not have.

    In CSV a text that a spreadsheet would take for a formula begins with an apostrophe, which import takes away.

    Left out are cards of archived lists, and cards that import could not read back, which are named on stderr: those whose list
    is not shown, without a name, or with a due date or description of another type than documented.

    The file is either complete or unchanged: the cards are written to a new file beside it, which then replaces it.

    \b
    Exit codes:
      0  every card was written
      1  some cards were left out and named, or the service failed, or the disk is full
      2  bad usage
      4  no credentials, or the service refuses them

    \b
    Examples:
      boardclient export Roadmap --output cards.csv
      boardclient export Roadmap --output for-excel.csv --delimiter ";" --bom
      boardclient export Roadmap --format jsonl | wc -l
    """
    from boardclient.cli import _rows
    from boardclient.cli._names import Finder
    from boardclient.cli._running import reported, with_session

    with reported():
        chosen_zone = None if zone is None else _rows.zone_of(zone)
        chosen = choose_format({"csv": _rows.Format.CSV, "jsonl": _rows.Format.JSON_LINES}[form] if form else None, output)
        _rows.check_delimiter(options["delimiter"])

    async def work(client: Client) -> None:
        finder = Finder(client, board)
        with finder.advising():
            await _export(client, finder.board_id(), chosen, output, chosen_zone, **options)

    with_session(work)


async def _export(
    client: Client,
    board_id: str,
    form: Format,
    output: Path | None,
    zone: tzinfo | None,
    *,
    with_archived: bool,
    delimiter: str,
    bom: bool,
) -> None:
    """Read the board and write its cards.

    Raises:
        UsageError: the output can't be written.
        IncompleteError: some cards could not be written in the format that import reads.
        BoardClientError: the board could not be read.
    """
    from boardclient.cli._output import IncompleteError

    cards = await client.session.boards.cards(board_id)
    lists = await client.session.boards.lists(board_id)  # after the cards, so that the list of each card is known
    left_out: list[LeftOut] = []
    with _opened(output) as file:
        file.write("\ufeff" * bom)
        write(rows_of(cards, lists, zone, with_archived=with_archived), left_out.append, form, file, delimiter)
    strays = [item for item in left_out if item.why is not None]
    for item in strays:
        note(f"card {item.card.name!r} ({item.card.id}): left out: {item.why}", fg="red")
    if archived := len(left_out) - len(strays):
        note(f"cards of archived lists that are left out: {archived} (--archived writes them)")
    if strays:
        raise IncompleteError(f"{plural(len(strays), 'card')} could not be written as import reads them")


class LeftOut(NamedTuple):
    """A card that is not written. `why` is None if its list is archived."""

    card: Card
    why: str | None = None


def choose_format(said: Format | None, output: Path | None) -> Format:
    """Return the format that --format or the extension of the output names. CSV by default.

    Raises:
        UsageError: they name different formats, so that `import` would misread the file, or the extension names none.
    """
    from boardclient.cli import _rows
    from boardclient.cli._output import UsageError

    if output is None:
        return said or _rows.Format.CSV
    try:
        by_name = _rows.format_of(output)
    except UsageError:
        if said is None:
            raise
        return said
    if said not in (None, by_name):
        raise UsageError(f"{output}: the extension means {by_name.value}, but --format is different: change one of them")
    return by_name


def rows_of(
    cards: Iterable[Card], lists: Sequence[BoardList], zone: tzinfo | None = None, *, with_archived: bool
) -> Iterator[Cells | LeftOut]:
    """Yield the cells of each card, or why it is left out, in the listing's order."""
    from boardclient.cli._names import of_lists

    names, by_id = of_lists(lists), {item.id: item for item in lists}
    for card in cards:
        card_list = None if card.list_id is None else by_id.get(card.list_id)
        if card_list is None:
            yield LeftOut(card, "the service does not show which of the board's lists it is in")
        elif card_list.closed and not with_archived:
            yield LeftOut(card)
        else:
            cells = _cells(card, names.name_of(card_list.id), zone)
            problem = _problem(card, cells, names)
            yield cells if problem is None else LeftOut(card, problem)


def _cells(card: Card, list_: str, zone: tzinfo | None) -> Cells:
    return {
        "name": card.name,
        "desc": card.desc,
        "due": None if card.due is None else local(card.due, zone).isoformat(),
        "pos": str(card.pos) if card.pos in ("top", "bottom") else None,
        "list": list_,
        "reference": card.id,
    }


def _problem(card: Card, cells: Cells, names: Names) -> str | None:
    """Return why an import would not read the cells as the same card, or None."""
    from boardclient.cli import _rows

    for column in ("desc", "due"):  # the names are the same in the service's JSON
        if cells[column] is None and card.extra.get(column) is not None:
            return f"its {column} has a type that can't be written"
    found = next(iter(_rows.check(0, cells, names, None, _rows.Layout())))
    return f"its {found.column} {found.message}" if isinstance(found, _rows.Problem) else None


def write(
    rows: Iterable[Cells | LeftOut], leave_out: Callable[[LeftOut], None], form: Format, file: TextIO, delimiter: str = ","
) -> None:
    """Write the rows that have cells, and pass the others to `leave_out`. `file` must not translate line ends."""
    from boardclient.cli import _rows

    table: csv.DictWriter[str] = csv.DictWriter(
        file, _rows.COLUMNS, delimiter=delimiter
    )  # rows end in \r\n, so cells with \r or \n are quoted
    is_csv = form is _rows.Format.CSV
    if is_csv:
        table.writeheader()
    for row in rows:
        if isinstance(row, LeftOut):
            leave_out(row)
        elif is_csv:
            table.writerow({column: f"'{cell}" if cell and _rows.FORMULA.match(cell) else cell for column, cell in row.items()})
        else:
            said = {column: value for column, value in row.items() if value is not None}
            file.write(json.dumps(said, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Open the output, in UTF-8 whatever the terminal's encoding is. Standard output stays open."""
    from boardclient.cli._output import OUTPUT_ERRORS, IncompleteError, UsageError

    if path is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="")
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        with _replaced(path) as file:
            yield file
    except OSError as error:
        kind = IncompleteError if error.errno in OUTPUT_ERRORS else UsageError
        raise kind(f"{path}: {error.strerror}") from None


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """Write a file beside `path`, which replaces it once it is complete and on disk.

    After an error `path` is unchanged. If it is not a regular file, such as a pipe, it is written directly.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    target = path.resolve()  # a symbolic link is kept
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with beside.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
