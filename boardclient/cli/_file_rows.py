"""The rows of files: those of an import, CSV or JSON Lines, as checked drafts, and cards as those of an export. No network I/O.

An import is read lazily, and an export is written as an import reads it. What files have that were cut or joined is refused: NUL
characters, marks of files and headers between rows.

Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a line.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import attrs

from boardclient import Card, CardDraft, Position
from boardclient.cli._layout import COLUMNS, IMPORTED, Layout, Problem, flaw, lines, plain
from boardclient.cli._names import Names, did_you_mean
from boardclient.cli._output import UsageError, local, plural, quoted

_FORMULA = re.compile("'*[=+@\t\r\ufeff-]")
"""The beginning of a cell that would be taken for a formula, or for the mark of a file, after apostrophes. An export puts one
before it, and an import takes one away (https://owasp.org/www-community/attacks/CSV_Injection)."""

_VISIBLE = re.compile(r"[^\s\x00-\x1f]")
"""What a name needs. Files of DOS end with a control character."""
_ONE_LINE = "each line must be one object (jq -c '.[]' FILE makes such lines of an array)"
_CUT = f"ends within a value; {_ONE_LINE}"
_JOINED = "so several files were joined"
_MARKED = f"begins with the mark of a file, {_JOINED}; take the mark out"
_ENGINE = "needs --engine dask: there is a job for each board and account"
_OTHER_DATES = "; --date-format reads other forms, like %d.%m.%Y"


Place: TypeAlias = tuple[str, str | None]
"""The identifier of a board, and the account that creates the cards, None for that of the environment."""


@attrs.frozen
class Board:
    """A board that rows may name, and its lists."""

    board_id: str
    lists: Names


class FileRow(NamedTuple):
    """A row's number, the draft that was made from it, and where the card belongs."""

    number: int
    draft: CardDraft
    place: Place


Rows: TypeAlias = Iterator[FileRow | Problem]


def parse_due(text: str, zone: tzinfo | None = None, date_format: str | None = None) -> datetime:
    """Parse a date or date-time, which is ISO 8601 or of the given `strptime` format.

    Without an offset it is in `zone`, by default that of this machine. A plain date means midnight.

    Raises:
        ValueError: it is not a date-time, or is outside of the years 1 to 9999 in UTC.
    """
    try:
        due = datetime.fromisoformat(text) if date_format is None else datetime.strptime(text, date_format)
    except (ValueError, re.error):  # re.error: a directive that comes twice
        if date_format is None:
            raise ValueError("is not an ISO 8601 date such as 2027-01-31 or 2027-01-31T17:00:00+01:00") from None
        hint = ", or no date" if "%" in date_format else ", which is not like %d.%m.%Y"
        raise ValueError(f"is not of the form {date_format}{hint}") from None
    try:
        if due.utcoffset() is None:
            due = due.astimezone() if zone is None else due.replace(tzinfo=zone)
        if not 1 < due.year < 9999:
            due.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError("is outside of the years 1 to 9999 in UTC") from None
    return due


Cells: TypeAlias = Mapping[str, str]
_Record: TypeAlias = tuple[int, Cells, Mapping[str, str]]
"""The number of a row, its cells by our columns, and the columns as the file names them."""


def read(file: BinaryIO, boards: Mapping[str | None, Board], layout: Layout) -> Rows:
    """Yield each row of `file`, or its problems, from the start. `boards` are those that rows name; None stands for the others.

    Only one row is held in memory. After a problem that makes the rest unreadable, such as a bad header or an unclosed quote, the
    iteration ends.
    """
    for record in _records(file, layout):
        if isinstance(record, Problem):
            yield record
        else:
            number, cells, names = record
            yield from check(number, cells, boards, layout, names)


def named_boards(file: BinaryIO, layout: Layout) -> dict[str, None]:
    """Return what the rows of a file have in the column `board`, each once."""
    records = (record for record in _records(file, layout) if not isinstance(record, Problem))
    return {board: None for _, cells, _ in records if (board := cells.get("board")) is not None and not flaw(board)}


def _records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    return _csv_records(file, layout) if layout.form == "csv" else _json_records(file, layout)


def _csv_records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    header: _Header | None = None
    for number, cells in _csv_rows(file, layout):
        if isinstance(cells, str):
            yield Problem(number, None, cells)
            return
        if not any(cells):
            continue
        if header is None and (cells[0].lower() == "sep=" or not any(map(str.strip, cells))):  # "sep=" is for Excel alone
            continue
        if header is None:
            header = _Header(cells, layout)
            problems = list(header.problems(number))
            yield from problems
            if problems:
                return
        elif message := header.misfit(cells):
            yield Problem(number, None, message)
        else:
            if "'" in "".join(cells):
                cells = [cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell for cell in cells]
            columns = zip(header.columns, cells, strict=False)
            yield number, {column: cell for column, cell in columns if column and cell}, header.names
    if header is None:
        yield Problem(1, None, "the file is empty; the first row must name the columns")


def _csv_rows(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the cells of each row with its number, or at the end why the rest can't be read."""
    number = 0
    try:
        for number, cells in enumerate(csv.reader(lines(file, layout), strict=True, delimiter=layout.delimiter), 1):
            yield number, cells
    except csv.Error as error:
        yield number + 1, f"is malformed CSV: {str(error).partition(' - ')[0]}"


class _Header:
    """The header of a CSV file, and whether other rows fit it. `names` are the columns as the file names them."""

    def __init__(self, cells: Sequence[str], layout: Layout) -> None:
        self.columns = [layout.column(cell) for cell in cells]
        self._named = [(column, cell.strip()) for column, cell in zip(self.columns, cells, strict=True) if column]
        self.names = dict(self._named)
        self._there = [plain(cell) for cell in cells if cell.strip()]
        self._words = {word.casefold() for word in (*self._there, *layout.columns, *IMPORTED)}
        self._nameless = [place for place, column in enumerate(self.columns) if column == ""]
        self._layout = layout

    def problems(self, number: int) -> Iterator[Problem]:
        """Yield what is wrong with the header."""
        yield from _column_problems(number, self._named, self._layout, self._there)
        yield from _lacking(number, self._layout.columns, self._there)
        if "list" not in self.names and self._layout.default_list is None:
            yield Problem(number, None, "there is no column list; give --list for all rows")

    def misfit(self, cells: Sequence[str]) -> str | None:
        """Return why a row can't be one of this file, or None."""
        if cells[0].startswith(("\ufeff", "\ufffe")):
            return _MARKED
        if self._is_header(cells):
            return f"is a header again, {_JOINED}; take it out"
        nameless = [cells[place] for place in self._nameless if place < len(cells)] if self._nameless else []
        if any(nameless) or any(cells[len(self.columns) :]):
            return f"has cells without a column; the header names {plural(len(self.names), 'column')}"
        return None

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Return True if all cells name columns. One that does so alone may be a card, unless it is all of the header."""
        words = []
        for cell in cells:
            if word := plain(cell):
                if word.casefold() not in self._words:  # as is the first cell of most rows
                    return False
                words.append(word)
        return "name" in map(self._layout.column, words) and (len(words) > 1 or words == self._there)


def _column_problems(number: int, named: Sequence[tuple[str, str]], layout: Layout, there: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with columns, each beside its name in the file. `there` are all names."""
    unknown = [name for column, name in named if column not in IMPORTED]
    columns = Counter(column for column, _ in named)
    if "name" not in columns and "name" not in layout.columns.values() and (unknown or layout.form == "csv"):
        names, option = ", ".join(map(quoted, there)), shlex.quote(f"name={[*unknown, *there][0]}")
        yield Problem(number, None, f"there is no column name, only {names}; give for example --map {option} --skip '*'")
    elif unknown:
        names, option = ", ".join(map(quoted, unknown)), shlex.quote(f"desc={unknown[0]}")
        also = f"the columns are {', '.join(IMPORTED)}"
        yield Problem(number, None, f"unknown: {names}; {also} (--map {option} reads one of them so, --skip '*' ignores all)")
    for column, count in columns.items():
        if count > 1:
            yield Problem(number, dict(named)[column], "is named more than once")


def _lacking(number: int, wanted: Iterable[str], there: Sequence[str]) -> Iterator[Problem]:
    """Yield the names of `--map` and `--skip` that the file does not have."""
    for name in wanted:
        if name not in there and name != "*":
            columns = f"the file has no column {quoted(name)} to map or skip, only {', '.join(map(quoted, there))}"
            yield Problem(number, None, columns + did_you_mean(name, there))


class _Doubled:
    """A JSON object that has a key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | _Doubled:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(Counter(key for key, _ in pairs).most_common(1)[0][0])


_decode = json.JSONDecoder(object_pairs_hook=_object).decode


def _json_object(line: str) -> dict[str, object] | str:
    """Return the object of a line, or why it is none."""
    if line.startswith("\ufeff"):
        return _MARKED
    try:
        value = _decode(line)
    except json.JSONDecodeError as error:
        return _CUT if error.pos >= len(line.rstrip()) else f"is not JSON: {error}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    if isinstance(value, _Doubled):
        return f"has the key {quoted(value.key)} more than once"
    return value if isinstance(value, dict) else f"is not a JSON object; {_ONE_LINE}"


def _json_records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    first: tuple[int, list[str]] | None = None
    missing = set(layout.columns)
    keys: list[str] | None = None
    columns: list[tuple[str, str]] = []
    for number, line in enumerate(lines(file, layout), 1):
        value = _json_object(line) if line.strip() else ""
        if isinstance(value, dict):
            problems: list[Problem] = []
            if [*value] != keys:  # else its columns are those of the row before, with which nothing is wrong
                there = list(map(plain, value))
                first = first or (number, there)
                missing.difference_update(there)
                columns = [(column, name) for name in value if (column := layout.column(name)) is not None]
                problems += _column_problems(number, columns, layout, there)
                keys = None if problems else [*value]
            for column, name in columns:
                if column in IMPORTED and not (value[name] is None or isinstance(value[name], str)):
                    problems.append(Problem(number, name, "must be a string or null"))
            yield from problems
            if not problems:
                # An empty description is a value in JSON. An empty date, position, list or reference counts as absent.
                cells = {column: text for column, name in columns if (text := value[name]) or (text == "" and column == "desc")}
                yield number, cast("Cells", cells), dict(columns)
        elif value:
            yield Problem(number, None, value)
            if first is None and value is _CUT:  # the rest belongs to it
                return
    if first is not None:
        yield from _lacking(first[0], [name for name in layout.columns if name in missing], first[1])


def check(
    number: int, cells: Cells, boards: Mapping[str | None, Board], layout: Layout, names: Mapping[str, str] = {}
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


def _problems(number: int, cells: Cells, board: Board | None, layout: Layout, names: Mapping[str, str]) -> Iterator[Problem]:
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
    if not (cell and (cell[0].isalnum() or _VISIBLE.search(cell))):
        raise ValueError("is missing")
    return cell


def _due(cell: str | None, layout: Layout, _: object) -> datetime | None:
    try:
        return None if cell is None else parse_due(cell, layout.zone, layout.date_format)
    except ValueError as error:
        raise ValueError(f"{error}{'' if layout.date_format else _OTHER_DATES}") from None


def _pos(cell: str | None, *_: object) -> Position | None:
    try:
        return None if cell is None else Position(cell.strip().lower())
    except ValueError:
        raise ValueError('is neither "top" nor "bottom"') from None


def _list_id(cell: str | None, layout: Layout, board: Board | None) -> str | None:
    named = layout.default_list if cell is None else cell
    if board is not None and named is None:
        raise ValueError("is missing, and no --list is given")
    return None if board is None or named is None else board.lists.find(named)


_MAKERS: Mapping[str, Callable[[str | None, Layout, Board | None], Any]] = {
    "name": _name,
    "due": _due,
    "pos": _pos,
    "list": _list_id,
}
"""What makes the value of a card from the cell of a column."""


class CardFile:
    """The cards of a board that an import reads back unchanged. Owned by an export."""

    def __init__(self, lists: Names, layout: Layout, delimiter: str) -> None:
        self.number = 0
        """How many cards were written."""
        self.shortened = 0
        """Of how many the date leaves a part out."""
        self._lists, self._layout = lists, layout
        self._boards: Mapping[str | None, Board] = {None: Board("", lists)}
        self._text = io.StringIO(newline="")
        self._table = csv.writer(self._text, delimiter=delimiter)  # rows end in \r\n, so cells with \r or \n are quoted
        self._table.writerow(COLUMNS)

    def add(self, card: Card) -> str | None:
        """Write a card, or return why an import would not read it as the same one."""
        if card.list_id not in self._lists.names:
            return "the service does not show which of the board's lists it is in"
        cells = self._cells(card)
        for column in ("desc", "due"):  # the names are the same in the service's JSON
            if column not in cells and card.extra.get(column) is not None:
                return f"its {column} has a type that can't be written"
        found = check(0, cells, self._boards, self._layout)[0]
        if isinstance(found, Problem):
            return f"its {found.column} {found.message}"
        self.number += 1
        self.shortened += found.draft.due != card.due
        row = [cells.get(column, "") for column in COLUMNS]
        self._table.writerow([f"'{cell}" if _FORMULA.match(cell) else cell for cell in row])
        return None

    def _cells(self, card: Card) -> Cells:
        cells = {"name": card.name, "desc": card.desc, "list": self._lists.name_of(card.list_id or ""), "reference": card.id}
        if card.due is not None:
            moment, date_format = local(card.due, self._layout.zone), self._layout.date_format
            cells["due"] = moment.isoformat() if date_format is None else moment.strftime(date_format)
        if card.pos in ("top", "bottom"):
            cells["pos"] = str(card.pos)
        return {column: cell for column, cell in cells.items() if cell is not None}

    @property
    def text(self) -> str:
        return self._text.getvalue()
