"""The rows of the file of an import, as checked drafts. No network I/O.

They are read lazily. Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row
is a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import attrs

from boardclient import CardDraft, Position
from boardclient.cli._files._cells import Cells, NumberedCells
from boardclient.cli._files._csv import Header, csv_records
from boardclient.cli._files._date_formats import read_by_formats
from boardclient.cli._files._encodings import flaw
from boardclient.cli._files._jsonl import json_records
from boardclient.cli._files._layout import COLUMNS, Layout, Problem, plain
from boardclient.cli._names import Names
from boardclient.cli._output import UsageError, quoted
from boardclient.models import is_visible, read_date

_ENGINE = "needs --engine dask: there is a job for each board and account"
_UNSEEN = " \t\r\n\x1a"
"""What stands in an empty cell, or at the end of a file of DOS."""
_OTHER_DATES = "; --date-format reads other forms, like %d.%m.%Y"


Place: TypeAlias = tuple[str, str | None]
"""The identifier of a board, and the account that creates the cards, None for that of the environment."""


@attrs.frozen
class ImportBoard:
    """A board that rows may name, and its lists."""

    board_id: str
    lists: Names


class FileRow(NamedTuple):
    """A row's number, the draft that was made from it, and where the card belongs."""

    number: int
    draft: CardDraft
    place: Place


Rows: TypeAlias = Iterator[FileRow | Problem]


def read(file: BinaryIO, boards: Mapping[str | None, ImportBoard], layout: Layout) -> Rows:
    """Return the rows of `file`, or their problems, from the start.

    `boards` are those that rows name; None stands for the others. Only one row is held in memory. After a problem that makes the
    rest unreadable, such as a bad header or an unclosed quote, the iteration ends.
    """

    def look(record: NumberedCells) -> Sequence[FileRow | Problem]:
        number, cells, names = record
        return check(number, cells, boards, layout, names)

    if layout.form == "csv":
        return csv_records(file, layout, look, lambda header: _Quick(header, boards, layout).maker)
    found = json_records(file, layout)
    return chain.from_iterable([record] if isinstance(record, Problem) else look(record) for record in found)


_file_row = cast("Callable[[tuple[int, CardDraft, Place]], FileRow]", partial(tuple.__new__, FileRow))
"""Makes a row, in a third of the time of its own class."""
_MOST_KEPT = 1000
"""How many dates are kept: those of a file come again."""


class _Quick:
    """Makes the rows in which nothing is wrong or special, in a third of the time. It takes the others for None."""

    def __init__(self, header: Header, boards: Mapping[str | None, ImportBoard], layout: Layout) -> None:
        columns = header.columns
        self._words, self._layout, self._width = header.words, layout, len(columns)
        board = boards.get(None)
        # Which board a row is for, and what stands below no name, is asked anew for each row: no short way serves these files.
        self._is_able = board is not None and not (header.nameless or "board" in columns or "account" in columns)
        self._board, self._place = board, ("" if board is None else board.board_id, None)
        # A column that is not there is read from behind the last one, where an empty cell is added.
        where = [columns.index(column) if column in columns else -1 for column in COLUMNS]
        self._name, self._desc, self._due, self._pos, self._list, self._reference = where
        self._dates: dict[str, datetime | None] = {"": None}
        self._lists: dict[str, str] = {}

    @property
    def maker(self) -> Callable[[int, list[str]], FileRow | None] | None:
        """What makes a row of its number and cells, or None if each row of the file needs a closer look."""
        return self._make if self._is_able else None

    def _make(self, number: int, cells: list[str]) -> FileRow | None:
        """Return a row, or None if a closer look has to be taken."""
        if len(cells) != self._width or self._is_special(cells):
            return None
        cells = [*cells, ""]
        name, due, pos, named = cells[self._name], cells[self._due], cells[self._pos], cells[self._list]
        # Most names begin with a letter or digit, which is asked much faster than what is visible in any script.
        if not ((name[:1].isascii() and name[:1].isalnum()) or is_visible(name)):
            return None
        try:
            position = _pos(pos) if pos else None
            due_at = self._dates[due] if due in self._dates else self._date(due)
            list_id = self._lists.get(named) or self._list_id(named)
        except (ValueError, UsageError):
            return None
        draft = CardDraft(name, list_id, cells[self._desc] or None, due_at, position, cells[self._reference] or None)
        return _file_row((number, draft, self._place))

    def _is_special(self, cells: list[str]) -> bool:
        """Return True if cells may hold what is refused or taken away, or if the row may be a header again."""
        text = "".join(cells)  # one search of the row is faster than one of each cell
        if "\x1b" in text or "\0" in text or ("'" in text and any(cell[:1] == "'" for cell in cells)):
            return True
        first = cells[0]
        return (first.strip() if first.isascii() else plain(first)).casefold() in self._words or first[:1] in _MARKS

    def _date(self, text: str) -> datetime | None:
        # All at once, since only a bound is needed: the dates of a file come in groups.
        if len(self._dates) > _MOST_KEPT:
            self._dates = {"": None}
        due = self._dates[text] = _due(text, self._layout, None)
        return due

    def _list_id(self, named: str) -> str:
        found = self._lists[named] = _list_id(named or None, self._layout, self._board) or ""
        return found


_MARKS = frozenset({"\ufeff", "\ufffe"})
"""The mark of a file, with which one begins that was joined to another."""


def named_boards(file: BinaryIO, layout: Layout) -> dict[str, None]:
    """Return what the rows of a file have in the column `board`, each once."""
    records: Iterator[NumberedCells | Problem]
    records = csv_records(file, layout, lambda record: [record]) if layout.form == "csv" else json_records(file, layout)
    found = (record for record in records if not isinstance(record, Problem))
    return {board: None for _, cells, _ in found if (board := cells.get("board")) is not None and not flaw(board)}


def check(
    number: int, cells: Cells, boards: Mapping[str | None, ImportBoard], layout: Layout, names: Mapping[str, str] = {}
) -> Sequence[FileRow | Problem]:
    """Return the row that is made from these cells, or the problem of each of them.

    `names` are the columns as the file names them.
    """
    get = cells.get
    board = boards.get(get("board"))
    is_placed = layout.has_places or not ("board" in cells or "account" in cells)
    if board is not None and is_placed and not flaw("".join(cells.values())):  # which is faster than each by itself
        try:
            name, due, pos, list_id = [make(get(column), layout, board) for column, make in _MAKERS.items()]
        except (ValueError, UsageError):
            pass  # it is said below, with all else that is wrong
        else:
            draft = CardDraft(name, list_id, get("desc"), due, pos, get("reference"))
            return [FileRow(number, draft, (board.board_id, get("account")))]
    return [*_problems(number, cells, board, layout, names)]


def _problems(
    number: int, cells: Cells, board: ImportBoard | None, layout: Layout, names: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield what is wrong with each cell."""
    flaws = {column: found[0] for column, cell in cells.items() if (found := flaw(cell))}
    wrong = dict(flaws)
    if not layout.has_places:
        wrong |= {column: _ENGINE for column in ("board", "account") if column in cells}
    if "board" in wrong:
        board = None
    elif board is None:
        wrong["board"] = "is missing, and no --board is given"
    for column, make in _MAKERS.items():
        try:
            if column not in wrong:
                make(cells.get(column), layout, board)
        except (ValueError, UsageError) as error:
            wrong[column] = str(error)
    for column, message in wrong.items():
        is_hidden = column in {"name", "list"} or column in flaws or column not in cells
        shown = None if is_hidden else quoted(cells[column])
        yield Problem(number, names.get(column, column), message, shown)


def _name(cell: str | None, *_: object) -> str:
    if cell is None or not is_visible(cell):
        raise ValueError("has no visible character" if cell and cell.strip(_UNSEEN) else "is missing")
    return cell


def _due(cell: str | None, layout: Layout, _: object) -> datetime | None:
    if cell is None or not layout.date_formats:
        try:
            return None if cell is None else read_date(cell.strip(), layout.zone)
        except ValueError as error:
            raise ValueError(f"{error}{_OTHER_DATES}") from None
    return read_by_formats(cell.strip(), layout.date_formats, layout.zone)


def _pos(cell: str | None, *_: object) -> Position | None:
    try:
        return None if cell is None else Position(cell.strip().lower())
    except ValueError:
        raise ValueError('is neither "top" nor "bottom"') from None


def _list_id(cell: str | None, layout: Layout, board: ImportBoard | None) -> str | None:
    named = layout.default_list if cell is None else cell
    if board is not None and named is None:
        raise ValueError("is missing, and no --list is given")
    return None if board is None or named is None else board.lists.find(named)


_MAKERS: Mapping[str, Callable[[str | None, Layout, ImportBoard | None], Any]] = {
    "name": _name,
    "due": _due,
    "pos": _pos,
    "list": _list_id,
}
"""What makes the value of a card from the cell of a column."""
