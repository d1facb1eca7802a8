"""Reads the file of an import, CSV or JSON Lines, lazily into checked drafts. No network I/O.

What spreadsheets write is recognised: the separator, UTF-16 and Windows-1252, the line `sep=;`, and empty rows and columns.

Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a line.
"""

from __future__ import annotations

import codecs
import csv
import enum
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import PurePath
from typing import BinaryIO, TypeAlias

import attrs

from boardclient import CardDraft, Position
from boardclient.cli._names import Names
from boardclient.cli._output import UsageError, quoted

COLUMNS = ("name", "desc", "due", "pos", "list", "reference")

_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""
_SEPARATORS = ",;\t|"
_SEPARATOR_NAMES = {"\t": "tabs", ";": "semicolons", "|": "bars"}
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)
"""The line by which Excel learns the separator."""
FORMULA = re.compile(r"'*[=+@\t\r-]")
"""The beginning of a cell that a spreadsheet would take for a formula, after apostrophes. An export puts one before it, and an
import takes one away (https://owasp.org/www-community/attacks/CSV_Injection)."""
_ENCODING = "is neither UTF-8 nor Windows-1252: save the file as UTF-8"
_ROWS_NAMED = 5
_BLOCK_BYTES = 2**20


class Format(enum.Enum):
    """The formats of files."""

    CSV = "CSV"
    JSON_LINES = "JSON Lines"


_SUFFIXES = {
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".txt": Format.CSV,
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
}


@attrs.frozen
class Problem:
    """One error in a row. `column` is as the file names it, None if the whole row is wrong; `value` is what the cell holds."""

    row: int
    column: str | None
    message: str
    value: str | None = None


class Problems:
    """The errors of a file, in one line for all rows with the same error. Owned by one check."""

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[tuple[str | None, str], tuple[list[int], str | None]] = {}
        self._sizes: Counter[tuple[str | None, str]] = Counter()

    def add(self, problem: Problem) -> None:
        """Add an error."""
        kind = (problem.column, problem.message)
        rows, _ = self._kinds.setdefault(kind, ([], problem.value))
        if len(rows) < _ROWS_NAMED:
            rows.append(problem.row)
        self._sizes[kind] += 1
        self.count += 1

    def lines(self, most: int) -> list[str]:
        """Return up to `most` lines, and another one if there are more."""
        lines = []
        for (column, message), (rows, value) in list(self._kinds.items())[:most]:
            size = self._sizes[column, message]
            place = f"row {rows[0]}" if size == 1 else f"rows {', '.join(map(str, rows))}"
            place += f" and {size - len(rows):,} more" if size > len(rows) else ""
            place += "" if column is None else f", column {column}"
            shown = "" if value is None else f"{quoted(value)}{' and others' if size > 1 else ''}: "
            lines.append(f"{place}: {shown}{message}")
        return [*lines, *([f"and {len(self._kinds) - most:,} more kinds of mistakes"] if len(self._kinds) > most else [])]


@attrs.frozen
class FileRow:
    """A row's number, and the draft that was made from it."""

    number: int
    draft: CardDraft


@attrs.frozen(kw_only=True)
class Layout:
    """How to read a file: format, encoding, separator, names of columns, dates.

    `columns` maps names in the file to our columns, or to None to ignore them. Other names are columns themselves.
    """

    form: Format = Format.CSV
    encoding: str = "utf-8"
    delimiter: str = ","
    columns: Mapping[str, str | None] = attrs.field(factory=dict)
    zone: tzinfo | None = None
    date_format: str | None = None

    def column(self, name: str) -> str | None:
        """Return the column for a name in the file, or None to ignore it. The case of our own names does not matter."""
        plain = name.strip()
        if plain in self.columns:
            return self.columns[plain]
        return folded if (folded := plain.casefold()) in COLUMNS else plain

    @property
    def difference(self) -> str:
        """What is read otherwise than as plain UTF-8 with commas, in words. "" if nothing is."""
        words = [{"utf-16": "UTF-16", "cp1252": "Windows-1252"}.get(self.encoding, "")]
        words.append(f"cells separated by {_SEPARATOR_NAMES.get(self.delimiter, '')}" * (self.delimiter in _SEPARATOR_NAMES))
        return ", ".join(filter(None, words))


def columns_of(renamed: Iterable[str], left_out: Iterable[str]) -> dict[str, str | None]:
    """Return the columns by their names in the file, for the options --map and --skip.

    Raises:
        UsageError: an option has a wrong value.
    """
    columns: dict[str, str | None] = dict.fromkeys(left_out)
    for text in renamed:
        column, mark, name = text.partition("=")
        if not mark or column not in COLUMNS or not name.strip():
            raise UsageError(f"--map {quoted(text)}: must be COLUMN=NAME, where COLUMN is one of {', '.join(COLUMNS)}")
        columns[name.strip()] = column
    return columns


def check_delimiter(delimiter: str) -> None:
    """Check the option --delimiter.

    Raises:
        UsageError: it is no single character that can separate cells.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(f"--delimiter {quoted(delimiter)}: must be one character other than a quote")


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database.

    Raises:
        UsageError: there is no such zone.
    """
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # OSError: a name such as ".." is read as a path
        raise UsageError(f"--timezone {quoted(name)}: no such time zone; names are like Europe/Berlin or UTC") from None


def format_of(path: PurePath) -> Format:
    """Return the format for a file's extension.

    Raises:
        UsageError: the extension is none of those that name a format.
    """
    try:
        return _SUFFIXES[path.suffix.lower()]
    except KeyError:
        hint = "save it as CSV" if path.suffix.lower() in {".xlsx", ".xls", ".ods"} else "give --format"
        raise UsageError(f"{path}: the extension must be one of {', '.join(_SUFFIXES)}, which names the format; {hint}") from None


def recognise(file: BinaryIO, layout: Layout, *, delimiter: str | None = None) -> Layout:
    """Return the layout with the encoding of the file, and the separator of its header unless `delimiter` is given.

    Bytes that are not UTF-8 are Windows-1252, unless others are UTF-8 that is not ASCII: then the file is UTF-8, and damaged.
    """
    layout = attrs.evolve(layout, encoding=_encoding(file))
    if delimiter is None and layout.form is Format.CSV:
        first = next(filter(str.strip, _lines(file, layout.encoding)), "")
        said = _SEPARATOR_LINE.fullmatch(first)
        delimiter = said[1] if said else max(_SEPARATORS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), ())))
    return attrs.evolve(layout, delimiter=delimiter or ",")


def _encoding(file: BinaryIO) -> str:
    file.seek(0)
    start = file.read(4)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    file.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    has_others = has_utf_8 = False
    for block in iter(partial(file.read, _BLOCK_BYTES), b""):
        text = decoder.decode(block).removeprefix("\ufeff")
        if not text.isascii():
            has_others = has_others or not _is_text(text)
            has_utf_8 = has_utf_8 or any(character > "\x7f" and _is_text(character) for character in text)
    is_cp1252 = has_others and not has_utf_8 and not start.startswith(codecs.BOM_UTF8)
    return "cp1252" if is_cp1252 else "utf-8"


def _lines(file: BinaryIO, encoding: str) -> Iterator[str]:
    """Yield the lines with their ends. Bytes that are not of the encoding become surrogates, so that a check can name them."""
    file.seek(0)
    # Python's "utf-16" takes no surrogateescape; a lone surrogate in it is one anyway.
    errors = "surrogatepass" if encoding == "utf-16" else "surrogateescape"
    text = io.TextIOWrapper(file, "utf-8-sig" if encoding == "utf-8" else encoding, errors, newline="")
    try:
        for line in text:  # noqa: UP028 -- `yield from` would close the file with this generator
            yield line
    finally:
        if not file.closed:  # as when an import is stopped, and its iterator is left alone
            text.detach()  # or it would close the file


def parse_due(text: str, zone: tzinfo | None = None, date_format: str | None = None) -> datetime:
    """Parse a date or date-time, which is ISO 8601 or of the given `strptime` format.

    Without an offset it is in `zone`, by default that of this machine. A plain date means midnight.

    Raises:
        ValueError: it is not a date-time, or is outside of the years 1 to 9999 in UTC.
    """
    try:
        due = datetime.fromisoformat(text) if date_format is None else datetime.strptime(text, date_format)
    except ValueError:
        if date_format is not None:
            raise ValueError(f"is not of the form {date_format}") from None
        raise ValueError(
            "is not an ISO 8601 date such as 2027-01-31 or 2027-01-31T17:00:00+01:00; --date-format reads others, like %d.%m.%Y"
        ) from None
    try:
        if due.utcoffset() is None:
            due = due.astimezone() if zone is None else due.replace(tzinfo=zone)
        due.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise ValueError("is outside of the years 1 to 9999 in UTC") from None
    return due


def read(file: BinaryIO, lists: Names, default_list_id: str | None, layout: Layout) -> Iterator[FileRow | Problem]:
    """Yield each row of `file`, or its problems, from the start.

    Only one row is held in memory. After a problem that makes the rest unreadable, such as a bad header or an unclosed quote, the
    iteration ends.
    """
    records = _csv_records if layout.form is Format.CSV else _json_records
    for record in records(file, default_list_id, layout):
        if isinstance(record, Problem):
            yield record
        else:
            number, cells, names = record
            yield from check(number, cells, lists, default_list_id, layout, names)


Cells: TypeAlias = Mapping[str, object]
_Record: TypeAlias = tuple[int, Cells, Mapping[str, str]]
"""The number of a row, its cells by our columns, and the columns as the file names them."""


def _csv_records(file: BinaryIO, default_list_id: str | None, layout: Layout) -> Iterator[_Record | Problem]:
    header: list[str | None] | None = None
    names: dict[str, str] = {}
    for row in _csv_rows(file, layout):
        if isinstance(row, Problem):  # nothing follows it
            yield row
            header = header or []
            continue
        number, cells = row
        if not any(cells):
            continue
        if header is None:
            header = [layout.column(cell) for cell in cells]
            names = {column: cell.strip() for column, cell in zip(header, cells, strict=True) if column}
            problems = list(_header_problems(number, header, names, default_list_id))
            yield from problems
            if problems:
                return
        elif any(cells[len(header) :]) or any(cell for column, cell in zip(header, cells, strict=False) if column == ""):
            yield Problem(number, None, f"has cells without a column; the header names {len(names)} columns")
        else:
            yield number, {column: _unescaped(cell) or None for column, cell in zip(header, cells, strict=False) if column}, names
    if header is None:
        yield Problem(1, None, "the file is empty; the first row must name the columns")


def _unescaped(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _csv_rows(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, list[str]] | Problem]:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    lines = _lines(file, layout.encoding)
    number = 0
    if layout.form is Format.CSV and _SEPARATOR_LINE.fullmatch(next(_lines(file, layout.encoding), "")):
        lines = _lines(file, layout.encoding)
        next(lines)
        number = 1
    reader = csv.reader(lines, strict=True, delimiter=layout.delimiter)
    while True:
        number += 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Problem(number, None, f"is malformed CSV: {str(error).partition(' - ')[0]}")
            return
        except UnicodeError:
            yield Problem(number, None, "is cut off, or not UTF-16: save the file again")
            return
        if cells is None:
            return
        yield number, cells


def _header_problems(
    number: int, header: list[str | None], names: Mapping[str, str], default_list_id: str | None
) -> Iterator[Problem]:
    known = [column for column in header if column]
    if not all(map(_is_text, known)):
        yield Problem(number, None, _ENCODING)
        return
    unknown = [quoted(name) for column, name in names.items() if column not in COLUMNS]
    if unknown:
        yield Problem(number, None, _unknown_columns(unknown))
    for column, count in Counter(known).items():
        if count > 1:
            yield Problem(number, names[column], "is named more than once")
    if "name" not in known:
        yield Problem(number, None, "there is no column name; --map name=NAME reads it from another one")
    if "list" not in known and default_list_id is None:
        yield Problem(number, None, "there is no column list; give --list for all rows")


def _unknown_columns(names: Iterable[str]) -> str:
    shown = ", ".join(names)
    return f"unknown: {shown}; the columns are {', '.join(COLUMNS)} (--map COLUMN=NAME renames one, --skip NAME ignores it)"


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object, including repeated names."""


def _json_records(file: BinaryIO, default_list_id: str | None, layout: Layout) -> Iterator[_Record | Problem]:
    for number, line in enumerate(_lines(file, layout.encoding), 1):
        if not line.strip():
            continue
        if not _is_text(line):
            yield Problem(number, None, _ENCODING)
            continue
        try:
            value = json.loads(line, object_pairs_hook=_Pairs)
        except json.JSONDecodeError as error:
            yield Problem(number, None, f"is not JSON: {error.msg} (character {error.pos + 1})")
            continue
        except (ValueError, RecursionError):
            yield Problem(number, None, "is not JSON that can be read: a number or the nesting is too large")
            continue
        if not isinstance(value, _Pairs):
            yield Problem(number, None, "is not a JSON object")
            continue
        members = [(column, name, cell) for name, cell in value if (column := layout.column(name)) is not None]
        problems = list(_member_problems(number, members))
        yield from problems
        if not problems:
            # An empty description is a value in JSON. An empty date, position, list or reference counts as absent.
            cells = {column: None if cell == "" and column != "desc" else cell for column, _, cell in members}
            yield number, cells, {column: name for column, name, _ in members}


def _member_problems(number: int, members: list[tuple[str, str, object]]) -> Iterator[Problem]:
    if unknown := [quoted(name) for column, name, _ in members if column not in COLUMNS]:
        yield Problem(number, None, _unknown_columns(unknown))
    for column, count in Counter(column for column, _, _ in members).items():
        if count > 1:
            yield Problem(number, column, "is named more than once")
    for column, name, value in members:
        if column in COLUMNS and not isinstance(value, str | None):
            yield Problem(number, name, "must be a string or null")


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def check(
    number: int,
    values: Cells,
    lists: Names,
    default_list_id: str | None,
    layout: Layout,
    names: Mapping[str, str] = {},
) -> Iterator[FileRow | Problem]:
    """Yield the row that is made from these cells, or the problem of each of them.

    None means that a cell is absent. `names` are the columns as the file names them.
    """
    problems: list[Problem] = []

    def wrong(column: str, message: str) -> None:
        problems.append(Problem(number, names.get(column, column), message, cells.get(column)))

    cells = {column: value for column, value in values.items() if isinstance(value, str)}
    broken = [column for column, value in cells.items() if not _is_text(value)]
    for column in broken:
        del cells[column]
        wrong(column, _ENCODING)
    due, pos, list_id = None, None, default_list_id
    if not cells.get("name", "").strip() and "name" not in broken:
        cells.pop("name", None)
        wrong("name", "is missing")
    if "due" in cells:
        try:
            due = parse_due(cells["due"], layout.zone, layout.date_format)
        except ValueError as error:
            wrong("due", str(error))
    if "pos" in cells:
        try:
            pos = Position(cells["pos"].strip().lower())
        except ValueError:
            wrong("pos", 'is neither "top" nor "bottom"')
    if "list" in cells:
        try:
            list_id = lists.find(cells["list"])
        except ValueError as error:
            problems.append(Problem(number, names.get("list", "list"), str(error)))
    elif list_id is None and "list" not in broken:
        wrong("list", "is missing, and no --list is given")
    if problems or list_id is None:
        yield from problems
        return
    reference = cells.get("reference")
    yield FileRow(
        number, CardDraft(name=cells["name"], list_id=list_id, desc=cells.get("desc"), due=due, pos=pos, reference=reference)
    )
