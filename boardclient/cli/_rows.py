"""Reads the file of an import, CSV or JSON Lines, lazily into checked drafts. No network I/O.

What spreadsheets write is recognised: the separator, UTF-16 and Windows-1252, and empty rows and columns.

Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a line.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import BinaryIO, TypeAlias

import attrs

from boardclient import CardDraft, Position
from boardclient.cli._errors import UsageError
from boardclient.cli._names import Names, did_you_mean
from boardclient.cli._output import LINES, quoted

COLUMNS: tuple[str, ...] = ("name", "desc", "due", "pos", "list", "reference")
"""The columns of files that are imported and exported."""
IMPORTED: tuple[str, ...] = (*COLUMNS, "board", "account")
"""The columns of files that are imported. The last two need an engine."""
FORMULA = re.compile(r"'*[=+@\t\r-]")
"""The beginning of a cell that a spreadsheet would take for a formula, after apostrophes. An export puts one before it, and an
import takes one away (https://owasp.org/www-community/attacks/CSV_Injection)."""

_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How files of Excel and LibreOffice begin."""
_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ENCODING = "is neither UTF-8 nor Windows-1252: save the file as UTF-8"
_UNKNOWN = f"the columns are {', '.join(IMPORTED)} (--map COLUMN=NAME renames one, --skip NAME ignores it)"
_ENGINE = "needs --engine dask: there is a job for each board and account"
_OTHER_DATES = "; --date-format reads other forms, like %d.%m.%Y"
_ROWS_NAMED = 5


@attrs.frozen
class Problem:
    """One error in a row. `column` is as the file names it, None if the whole row is wrong; `value` is what the cell holds."""

    number: int
    column: str | None
    message: str
    value: str | None = None


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    """Return a line for all rows with the same error, for the first of these."""
    kinds: dict[tuple[str | None, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.column, problem.message), []).append(problem)
    lines = []
    for (column, message), some in kinds.items():
        numbers = ", ".join(str(problem.number) for problem in some[:_ROWS_NAMED])
        more = f" and {len(some) - _ROWS_NAMED:,} more" if len(some) > _ROWS_NAMED else ""
        place = f"row{'s' * (len(some) > 1)} {numbers}{more}{'' if column is None else f', column {column}'}"
        shown = "" if some[0].value is None else f"{quoted(some[0].value)}{' and others' if len(some) > 1 else ''}: "
        lines.append(f"{place}: {shown}{message}")
    return [*lines[:LINES], *([f"and {len(lines) - LINES:,} more kinds of mistakes"] if len(lines) > LINES else [])]


Place: TypeAlias = tuple[str, str | None]
"""The identifier of a board, and the account that creates the cards, None for that of the environment."""


@attrs.frozen
class Board:
    """A board that rows may name, and its lists."""

    board_id: str
    lists: Names


@attrs.frozen
class FileRow:
    """A row's number, the draft that was made from it, and where the card belongs."""

    number: int
    draft: CardDraft
    place: Place


Rows: TypeAlias = Iterator[FileRow | Problem]


@attrs.frozen(kw_only=True)
class Layout:
    """How to read a file: "csv" or "jsonl", encoding, separator, names of columns, dates.

    `columns` maps names in the file to our columns, or to None to ignore them. Other names are columns themselves. `default_list`
    is the list of rows that name none. `has_places` says that rows may name a board and an account.
    """

    form: str = "csv"
    encoding: str = "utf-8"
    delimiter: str = ","
    columns: Mapping[str, str | None] = attrs.field(factory=dict)
    zone: tzinfo | None = None
    date_format: str | None = None
    default_list: str | None = None
    has_places: bool = False

    def column(self, name: str) -> str | None:
        """Return the column for a name in the file, or None to ignore it. The case of our own names does not matter."""
        plain = name.strip()
        if plain in self.columns:
            return self.columns[plain]
        return folded if (folded := plain.casefold()) in IMPORTED else plain

    @property
    def difference(self) -> str:
        """What is read otherwise than as plain UTF-8 with commas, in words. "" if nothing is."""
        words = [{"utf-16": "UTF-16", "cp1252": "Windows-1252"}.get(self.encoding)]
        if self.delimiter != ",":
            words.append(f"cells separated by {_SEPARATORS.get(self.delimiter, repr(self.delimiter))}")
        return ", ".join(filter(None, words))


def recognise(file: BinaryIO, layout: Layout) -> Layout:
    """Return the layout with the encoding and the format of the file, and the separator of its header.

    Raises:
        UsageError: it is a workbook.
    """
    file.seek(0)
    if file.read(4) in _WORKBOOKS:
        raise UsageError("the file is a workbook: save it as CSV")
    layout, first = attrs.evolve(layout, encoding=_encoding(file)), ""
    with contextlib.suppress(UnicodeError):  # it is named when the rows are read
        first = next(filter(str.strip, _lines(file, layout)), "")
    if first.lstrip().startswith(("{", "[")):
        return attrs.evolve(layout, form="jsonl")
    delimiter = max(_SEPARATORS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), ())))
    return attrs.evolve(layout, delimiter=delimiter)


def _encoding(file: BinaryIO) -> str:
    """Return the encoding of a file. Lines that are not UTF-8 are Windows-1252, unless others are UTF-8: then it is damaged."""
    file.seek(0)
    if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    file.seek(0)
    are_utf_8 = {_is_utf_8(line) for line in file if not line.isascii()}
    return "cp1252" if are_utf_8 == {False} else "utf-8"


def _is_utf_8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _lines(file: BinaryIO, layout: Layout) -> Iterator[str]:
    """Yield the lines with their ends. Bytes that are not of the encoding become surrogates, so that a check can name them."""
    # Python's "utf-16" takes no surrogateescape; a lone surrogate in it is one anyway.
    errors = "surrogatepass" if layout.encoding == "utf-16" else "surrogateescape"
    encoding = "utf-8-sig" if layout.encoding == "utf-8" else layout.encoding
    with open(os.dup(file.fileno()), encoding=encoding, errors=errors, newline="") as text:
        text.seek(0)
        yield from text


def parse_due(text: str, zone: tzinfo | None = None, date_format: str | None = None) -> datetime:
    """Parse a date or date-time, which is ISO 8601 or of the given `strptime` format.

    Without an offset it is in `zone`, by default that of this machine. A plain date means midnight.

    Raises:
        ValueError: it is not a date-time, or is outside of the years 1 to 9999 in UTC.
    """
    try:
        due = datetime.fromisoformat(text) if date_format is None else datetime.strptime(text, date_format)
    except (ValueError, re.error):  # re.error: a directive that comes twice
        if date_format is not None:
            raise ValueError(
                f"is not of the form {date_format}{'' if '%' in date_format else ', which is not like %d.%m.%Y'}"
            ) from None
        raise ValueError("is not an ISO 8601 date such as 2027-01-31 or 2027-01-31T17:00:00+01:00") from None
    try:
        if due.utcoffset() is None:
            due = due.astimezone() if zone is None else due.replace(tzinfo=zone)
        due.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError("is outside of the years 1 to 9999 in UTC") from None
    return due


Cells: TypeAlias = Mapping[str, object]
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
    return {board: None for _, cells, _ in records if isinstance(board := cells.get("board"), str) and _is_text(board)}


def _records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    return _csv_records(file, layout) if layout.form == "csv" else _json_records(file, layout)


def _csv_records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    header: list[str | None] = []
    names: dict[str, str] = {}
    for number, cells in _csv_rows(file, layout):
        if isinstance(cells, str):
            yield Problem(number, None, cells)
            return
        if not any(cells) or (not header and cells[0].lower() == "sep="):  # a line for Excel alone
            continue
        if not header:
            header = [layout.column(cell) for cell in cells]
            named = [(column, cell.strip()) for column, cell in zip(header, cells, strict=True) if column]
            names = dict(named)
            there = [cell.strip() for cell in cells if cell.strip()]
            problems = [*_header_problems(number, named, layout), *_lacking(number, layout.columns, there)]
            yield from problems if all(map(_is_text, cells)) else [Problem(number, None, _ENCODING)]
            if problems:
                return
        elif any(cells[len(header) :]) or any(cell for column, cell in zip(header, cells, strict=False) if column == ""):
            yield Problem(number, None, f"has cells without a column; the header names {len(names)} columns")
        else:
            yield number, {column: _unescaped(cell) or None for column, cell in zip(header, cells, strict=False) if column}, names
    if not header:
        yield Problem(1, None, "the file is empty; the first row must name the columns")


def _csv_rows(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the cells of each row with its number, or at the end why the rest can't be read."""
    number = 0
    try:
        for number, cells in enumerate(csv.reader(_lines(file, layout), strict=True, delimiter=layout.delimiter), 1):
            yield number, cells
    except csv.Error as error:
        yield number + 1, f"is malformed CSV: {str(error).partition(' - ')[0]}"
    except UnicodeError:
        yield number + 1, "is cut off, or not UTF-16: save the file again"


def _unescaped(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _header_problems(number: int, named: Sequence[tuple[str, str]], layout: Layout) -> Iterator[Problem]:
    yield from _column_problems(number, named)
    columns = {column for column, _ in named}
    if "name" not in columns:
        yield Problem(number, None, "there is no column name; --map name=NAME reads it from another one")
    if "list" not in columns and layout.default_list is None:
        yield Problem(number, None, "there is no column list; give --list for all rows")


def _column_problems(number: int, named: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Yield what is wrong with columns, each beside its name in the file."""
    if unknown := [quoted(name) for column, name in named if column not in IMPORTED]:
        yield Problem(number, None, f"unknown: {', '.join(unknown)}; {_UNKNOWN}")
    for column, count in Counter(column for column, _ in named).items():
        if count > 1:
            yield Problem(number, dict(named)[column], "is named more than once")


def _lacking(number: int, wanted: Iterable[str], there: Sequence[str]) -> Iterator[Problem]:
    """Yield the names of `--map` and `--skip` that the file does not have."""
    for name in wanted:
        if name not in there:
            columns = f"the file has no column {quoted(name)} to map or skip, only {', '.join(map(quoted, there))}"
            yield Problem(number, None, columns + did_you_mean(name, there))


def _json_records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    first: tuple[int, list[str]] | None = None
    missing = dict.fromkeys(layout.columns)
    for number, line in enumerate(_lines(file, layout), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Problem(number, None, f"is not JSON: {error}")
            continue
        if not isinstance(value, dict):
            yield Problem(number, None, "is not a JSON object")
            continue
        first = first or (number, list(value))
        missing = {name: None for name in missing if name not in map(str.strip, value)}
        named = [(column, name) for name in value if (column := layout.column(name)) is not None]
        problems = list(_column_problems(number, named))
        for column, name in named:
            if column in IMPORTED and not isinstance(value[name], str | None):
                problems.append(Problem(number, name, "must be a string or null"))
        yield from problems
        if not problems:
            # An empty description is a value in JSON. An empty date, position, list or reference counts as absent.
            cells = {column: None if value[name] == "" and column != "desc" else value[name] for column, name in named}
            yield number, cells, dict(named)
    if first is not None:
        yield from _lacking(first[0], missing, first[1])


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def check(
    number: int, values: Cells, boards: Mapping[str | None, Board], layout: Layout, names: Mapping[str, str] = {}
) -> Iterator[FileRow | Problem]:
    """Yield the row that is made from these cells, or the problem of each of them.

    None means that a cell is absent. `names` are the columns as the file names them.
    """
    cells = {column: value for column, value in values.items() if isinstance(value, str)}
    wrong: dict[str, str] = {column: _ENCODING for column, value in cells.items() if not _is_text(value)}
    if not layout.has_places:
        wrong |= {column: _ENGINE for column in ("board", "account") if column in cells}
    board = None if "board" in wrong else boards.get(cells.get("board"))
    due, pos, list_id = None, None, None
    if not cells.get("name", "").strip():
        wrong["name"] = "is missing"
    try:
        due = parse_due(cells["due"], layout.zone, layout.date_format) if "due" in cells else None
    except ValueError as error:
        wrong.setdefault("due", f"{error}{'' if layout.date_format else _OTHER_DATES}")
    try:
        pos = Position(cells["pos"].strip().lower()) if "pos" in cells else None
    except ValueError:
        wrong.setdefault("pos", 'is neither "top" nor "bottom"')
    if board is None:
        wrong.setdefault("board", "is missing, and no --board is given")
    else:
        try:
            named = cells.get("list", layout.default_list)
            list_id = None if named is None else board.lists.find(named)
        except UsageError as error:
            wrong.setdefault("list", str(error))
        if list_id is None:
            wrong.setdefault("list", "is missing, and no --list is given")
    if wrong or board is None or list_id is None:
        hidden = {"name", "list"} | {column for column, message in wrong.items() if message is _ENCODING}
        yield from (
            Problem(number, names.get(column, column), message, None if column in hidden else cells.get(column))
            for column, message in wrong.items()
        )
        return
    reference = cells.get("reference")
    draft = CardDraft(name=cells["name"], list_id=list_id, desc=cells.get("desc"), due=due, pos=pos, reference=reference)
    yield FileRow(number, draft, (board.board_id, cells.get("account")))
