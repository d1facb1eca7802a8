"""Writes the cards of a board in the format that an import reads.

Cards that an import could not read back unchanged are named instead.
"""

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import attrs

from boardclient import AsyncSession, BoardList, Card, Position
from boardclient.cli import _rows
from boardclient.cli._errors import OUTPUT_ERRORS, FileError, IncompleteError, UsageError
from boardclient.cli._rows import COLUMNS, Format, ListIndex, Problem
from boardclient.cli._text import note

Cells = Mapping[str, str | None]

_POSITIONS = frozenset(Position)


@attrs.frozen(kw_only=True)
class ExportOptions:
    """The options of `export`. Without an output path, cards are written to standard output."""

    board_id: str
    form: Format
    output: Path | None = None
    with_archived: bool = False


@attrs.frozen
class LeftOut:
    """A card that is not written. `why` is None if its list is archived."""

    card: Card
    why: str | None = None


def choose_format(said: Format | None, output: Path | None) -> Format:
    """Return the format that --format or the extension of the output names. CSV by default.

    Raises:
        UsageError: they name different formats, so that `import` would misread the file.
        FileError: the extension is unknown, and --format is not given.
    """
    if output is None:
        return said or Format.CSV
    try:
        by_name = _rows.detect(output)
    except FileError:
        if said is None:
            raise
        return said
    if said not in (None, by_name):
        raise UsageError(f"{output}: the extension means {by_name.value}, but --format is different: change one of them")
    return by_name


async def export(session: AsyncSession, options: ExportOptions) -> None:
    """Read the board and write its cards.

    Raises:
        FileError: the output can't be written.
        IncompleteError: some cards could not be written in the format that import reads.
        BoardClientError: the board could not be read.
    """
    cards = await session.boards.cards(options.board_id)
    lists = await session.boards.lists(options.board_id)  # after the cards, so that the list of each card is known
    left_out: list[LeftOut] = []
    with _opened(options.output) as file:
        write(rows_of(cards, lists, with_archived=options.with_archived), left_out.append, options.form, file)
    strays = [item for item in left_out if item.why is not None]
    for item in strays:
        note(f"card {item.card.name!r} ({item.card.id}): left out: {item.why}", fg="red")
    if archived := len(left_out) - len(strays):
        note(f"cards of archived lists that are left out: {archived} (--archived writes them)")
    if strays:
        raise IncompleteError(f"{len(strays)} card{'s' * (len(strays) > 1)} could not be written as import reads them")


def rows_of(cards: Iterable[Card], lists: Sequence[BoardList], *, with_archived: bool) -> Iterator[Cells | LeftOut]:
    """Yield the cells of each card, or why it is left out, in the listing's order."""
    index, by_id = ListIndex(lists), {item.id: item for item in lists}
    for card in cards:
        card_list = None if card.list_id is None else by_id.get(card.list_id)
        if card_list is None:
            yield LeftOut(card, "the service does not show which of the board's lists it is in")
        elif card_list.closed and not with_archived:
            yield LeftOut(card)
        else:
            cells = _cells(card, index.name_of(card_list))
            problem = _problem(card, cells, index)
            yield cells if problem is None else LeftOut(card, problem)


def _cells(card: Card, list_: str) -> Cells:
    return {
        "name": card.name,
        "desc": card.desc,
        "due": None if card.due is None else card.due.isoformat(),
        "pos": str(card.pos) if card.pos in _POSITIONS else None,
        "list": list_,
        "reference": card.id,
    }


def _problem(card: Card, cells: Cells, index: ListIndex) -> str | None:
    """Return why an import would not read the cells as the same card, or None."""
    for column in ("desc", "due"):  # the names are the same in the service's JSON
        if cells[column] is None and card.extra.get(column) is not None:
            return f"its {column} has a type that can't be written"
    found = next(iter(_rows.check(0, cells, index, None)))
    return f"its {found.column} {found.message}" if isinstance(found, Problem) else None


def write(rows: Iterable[Cells | LeftOut], leave_out: Callable[[LeftOut], None], form: Format, file: TextIO) -> None:
    """Write the rows that have cells, and pass the others to `leave_out`. `file` must not translate line ends."""
    table: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS)  # rows end in \r\n, so cells with \r or \n are quoted
    if form is Format.CSV:
        table.writeheader()
    for row in rows:
        if isinstance(row, LeftOut):
            leave_out(row)
        elif form is Format.CSV:
            table.writerow(row)
        else:
            said = {column: value for column, value in row.items() if value is not None}
            file.write(json.dumps(said, ensure_ascii=False) + "\n")


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Open the output, in UTF-8 whatever the terminal's encoding is. Standard output stays open."""
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
        kind = IncompleteError if error.errno in OUTPUT_ERRORS else FileError
        raise kind(f"{path}: {error.strerror}") from None


@contextmanager
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
