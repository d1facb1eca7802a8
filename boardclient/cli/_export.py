"""The cards of a board in the form that an import reads. What it could not read back as it was is named, not written."""

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
from boardclient.cli._errors import FileError, IncompleteError, UsageError
from boardclient.cli._rows import COLUMNS, Format, ListIndex, Problem
from boardclient.cli._text import note

Cells = Mapping[str, str | None]

_POSITIONS = frozenset(Position)


@attrs.frozen(kw_only=True)
class ExportOptions:
    """Hold what the caller of `export` asked for.

    Without a path the cards go to standard output.
    """

    board_id: str
    form: Format
    output: Path | None = None
    with_archived: bool = False


@attrs.frozen
class LeftOut:
    """Name a card that is not written, and why: None where its list is archived."""

    card: Card
    why: str | None = None


def choose_format(said: Format | None, output: Path | None) -> Format:
    """Return the format that the caller named or the extension of the output. CSV by default.

    Raises:
        UsageError: nothing says it, or the two contradict each other, so that `import` would read the file as what it is not.
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
        raise UsageError(f"{output}: the extension says {by_name.value}, --format something else")
    return by_name


async def export(session: AsyncSession, options: ExportOptions) -> None:
    """Read the board and write its cards.

    Raises:
        FileError: the output can't be written.
        IncompleteError: some cards were left out that should not be.
        BoardClientError: the board could not be read.
    """
    cards = await session.boards.cards(options.board_id)
    lists = await session.boards.lists(options.board_id)  # after the cards, so that none is in a list of later
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
    """Yield the cells of each card, in the order of the listing, or why it has none."""
    index, homes = ListIndex(lists), {item.id: item for item in lists}
    for card in cards:
        home = None if card.list_id is None else homes.get(card.list_id)
        if home is None:
            yield LeftOut(card, "the service does not show which of the board's lists it is in")
        elif home.closed and not with_archived:
            yield LeftOut(card)
        else:
            cells = _cells(card, index.name_of(home))
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
    """Return why an import would not read the cells as the card, None if it would."""
    for column in ("desc", "due"):  # which are called the same by the service
        if cells[column] is None and card.extra.get(column) is not None:
            return f"its {column} is of a kind that can't be written"
    found = next(iter(_rows.check(0, cells, index, None)))
    return f"its {found.column} {found.message}" if isinstance(found, Problem) else None


def write(rows: Iterable[Cells | LeftOut], leave_out: Callable[[LeftOut], None], form: Format, file: TextIO) -> None:
    """Write the rows that have cells; `file` must not change line ends."""
    table: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS)  # whose rows end in \r\n: a cell that holds either is quoted
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
    """Open what is written to, in UTF-8 whatever the terminal's encoding is.

    Standard output stays open.
    """
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
        raise FileError(f"{path}: {error.strerror}") from None


@contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """Write a file beside `path` that replaces it once it is complete and on disk.

    An error leaves `path` as it was.

    What is no regular file, as a pipe, is written to as it is.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    target = path.resolve()  # a link stays one
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
