"""Reads the file of an import, CSV or JSON Lines, lazily into checked drafts. No network I/O.

Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a line.
"""

import csv
import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import PurePath
from typing import BinaryIO

import attrs

from boardclient import BoardList, CardDraft, Position
from boardclient.cli._errors import FileError, UsageError

COLUMNS = ("name", "desc", "due", "pos", "list", "reference")

_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""

_SHOWN_LENGTH = 60
"""How many characters of a wrong value a message shows."""
_MOST_NAMES = 8
"""How many lists a message names."""

_BOM = b"\xef\xbb\xbf"


class Format(enum.Enum):
    """The formats of files."""

    CSV = "CSV"
    JSON_LINES = "JSON Lines"


_SUFFIXES = {".csv": Format.CSV, ".jsonl": Format.JSON_LINES, ".ndjson": Format.JSON_LINES}


@attrs.frozen
class Problem:
    """One error in a row. `column` is None if it concerns the whole row."""

    row: int
    column: str | None
    message: str

    def __str__(self) -> str:
        place = f"row {self.row}" if self.column is None else f"row {self.row}, column {self.column}"
        return f"{place}: {self.message}"


@attrs.frozen
class FileRow:
    """A row's number, and the draft that was made from it."""

    number: int
    draft: CardDraft


class ListIndex:
    """Finds the lists of a board by identifier or name."""

    def __init__(self, lists: Iterable[BoardList]) -> None:
        self._ids: set[str] = set()
        self._open: dict[str, list[str]] = {}
        self._archived: set[str] = set()
        for item in lists:
            self._ids.add(item.id)
            if item.closed:
                self._archived.update([item.name] if item.name is not None else [])
            elif item.name is not None:
                self._open.setdefault(item.name, []).append(item.id)

    def find(self, value: str) -> str:
        """Return the identifier of the list with this identifier or name. Archived lists have no names here.

        Raises:
            ValueError: no list of the board matches, or several do.
        """
        named = self._open.get(value, [])
        shown = _shown(value)
        if value in self._ids:
            if any(other != value for other in named):
                raise ValueError(f"{shown} is ambiguous: the identifier of one list and the name of another")
            return value
        if len(named) > 1:
            raise ValueError(f"{shown} is ambiguous: {len(named)} lists of the board have this name; use an identifier")
        if not named:
            hint = " (name an archived list by its identifier)" if value in self._archived else ""
            raise ValueError(
                f"{shown} is neither the identifier nor the name of an open list of the board{hint or self._names()}"
            )
        return named[0]

    def _names(self) -> str:
        """Return the names of the open lists in words, if they are few."""
        names = ", ".join(map(_shown, self._open))
        return f", which are {names}" if 0 < len(self._open) <= _MOST_NAMES else ""

    def name_of(self, item: BoardList) -> str:
        """Return a list's name if it is unique on the board, otherwise its identifier.

        A name is preferred because it can be used on another board as well.
        """
        try:
            is_enough = item.name and self.find(item.name) == item.id
        except ValueError:
            is_enough = False
        return item.name if item.name and is_enough else item.id


@attrs.frozen(kw_only=True)
class Layout:
    """How to read a file: separator, names of columns, time zone.

    `columns` maps names in the file to our columns, or to None to ignore them. Other names are columns themselves.
    """

    delimiter: str = ","
    columns: Mapping[str, str | None] = attrs.field(factory=dict)
    zone: tzinfo | None = None

    def column(self, name: str) -> str | None:
        """Return the column for a name in the file, or None to ignore it."""
        return self.columns.get(name, name)


PLAIN = Layout()


def layout(*, delimiter: str, renamed: Iterable[str], left_out: Iterable[str], timezone: str | None) -> Layout:
    """Return the layout for the options. `renamed` has texts such as `name=Title`.

    Raises:
        UsageError: an option has a wrong value.
    """
    columns: dict[str, str | None] = dict.fromkeys(left_out)
    for text in renamed:
        column, mark, name = text.partition("=")
        if not mark or column not in COLUMNS or not name:
            raise UsageError(f"--map {_shown(text)}: must be COLUMN=NAME, where COLUMN is one of {', '.join(COLUMNS)}")
        columns[name] = column
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(f"--delimiter {_shown(delimiter)}: must be one character other than a quote")
    return Layout(delimiter=delimiter, columns=columns, zone=None if timezone is None else zone_of(timezone))


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database.

    Raises:
        UsageError: there is no such zone.
    """
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # OSError: a name such as ".." is read as a path
        raise UsageError(f"--timezone {_shown(name)}: no such time zone; names are like Europe/Berlin or UTC") from None


def detect(path: PurePath) -> Format:
    """Return the format for a file's extension.

    Raises:
        FileError: the extension is none of .csv, .jsonl and .ndjson.
    """
    try:
        return _SUFFIXES[path.suffix.lower()]
    except KeyError:
        raise FileError(f"{path}: the extension must be one of {', '.join(_SUFFIXES)}, which names the format") from None


def parse_due(text: str, zone: tzinfo | None = None) -> datetime:
    """Parse an ISO 8601 date-time.

    Without an offset it is in `zone`. A plain date means midnight.

    Raises:
        ValueError: it is not a date-time, has no offset although there is no zone, or is outside of the years 1 to 9999 in UTC.
    """
    try:
        due = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{_shown(text)} is not an ISO 8601 date-time such as 2027-01-31T17:00:00+01:00") from None
    if due.utcoffset() is None and zone is not None:
        due = due.replace(tzinfo=zone)
    if due.utcoffset() is None:
        raise ValueError(
            f"{_shown(text)} has no offset from UTC; add one, as in 2027-01-31T17:00:00+01:00 or with Z, or give --timezone"
        )
    try:
        due.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{_shown(text)} is outside of the years 1 to 9999 in UTC") from None
    return due


def read(
    file: BinaryIO, form: Format, lists: ListIndex, default_list_id: str | None, layout: Layout = PLAIN
) -> Iterator[FileRow | Problem]:
    """Yield each row of `file`, or its problems, from the start.

    Only one row is held in memory. After a problem that makes the rest unreadable, such as a bad header or an unclosed quote, the
    iteration ends.
    """
    file.seek(0)
    records = _csv_records(file, default_list_id, layout) if form is Format.CSV else _json_records(file, layout)
    for record in records:
        if isinstance(record, Problem):
            yield record
        else:
            yield from check(*record, lists, default_list_id, layout.zone)


def _without_bom(file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(file):
        yield line.removeprefix(_BOM) if number == 0 else line


_Record = tuple[int, Mapping[str, object]]


def _csv_records(file: BinaryIO, default_list_id: str | None, layout: Layout) -> Iterator[_Record | Problem]:
    header: list[str | None] | None = None
    for row in _csv_rows(file, layout.delimiter):
        if isinstance(row, Problem):  # nothing follows it
            yield row
            header = header or []
            continue
        number, cells = row
        if header is None:
            header = [layout.column(cell.strip()) for cell in cells]
            problems = list(_header_problems([column for column in header if column is not None], default_list_id))
            yield from problems
            if problems:
                return
        elif len(cells) > len(header):
            yield Problem(number, None, f"has {len(cells)} cells, the header names {len(header)} columns")
        elif cells:
            yield number, {column: cell or None for column, cell in zip(header, cells, strict=False) if column is not None}
    if header is None:
        yield Problem(1, None, "the file is empty; the first row must name the columns")


def _csv_rows(file: BinaryIO, delimiter: str) -> Iterator[tuple[int, list[str]] | Problem]:
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    # Bytes that are not UTF-8 are kept as surrogates, so that the check of a cell can name its column.
    reader = csv.reader(
        (line.decode("utf-8", "surrogateescape") for line in _without_bom(file)), strict=True, delimiter=delimiter
    )
    number = 0
    while True:
        number += 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Problem(number, None, f"is malformed CSV: {str(error).partition(' - ')[0]}")
            return
        if cells is None:
            return
        yield number, cells


def _header_problems(header: list[str], default_list_id: str | None) -> Iterator[Problem]:
    if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), None)):
        yield Problem(1, None, f"the columns seem to be separated by {other!r}; give --delimiter {_quoted(other)}")
        return
    for column, count in Counter(header).items():
        if not _is_text(column):
            yield Problem(1, None, "the header is not UTF-8: save the file in this encoding")
        elif column not in COLUMNS:
            yield Problem(1, column, _unknown_column())
        elif count > 1:
            yield Problem(1, column, "is named more than once")
    if "name" not in header:
        yield Problem(1, "name", "is required and not in the header")
    if "list" not in header and default_list_id is None:
        yield Problem(1, "list", "is not in the header; give --list for all rows")


def _quoted(delimiter: str) -> str:
    return "$'\\t'" if delimiter == "\t" else f'"{delimiter}"'


def _unknown_column() -> str:
    return f"is unknown; the columns are {', '.join(COLUMNS)} (use --map to rename it, or --skip to ignore it)"


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object, including repeated names."""


def _json_records(file: BinaryIO, layout: Layout) -> Iterator[_Record | Problem]:
    for number, line in enumerate(_without_bom(file), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"), object_pairs_hook=_Pairs)
        except UnicodeDecodeError:
            yield Problem(number, None, "is not UTF-8: save the file in this encoding")
            continue
        except json.JSONDecodeError as error:
            yield Problem(number, None, f"is not JSON: {error.msg} (character {error.pos + 1})")
            continue
        except (ValueError, RecursionError):
            yield Problem(number, None, "is not JSON that can be read: a number or the nesting is too large")
            continue
        if not isinstance(value, _Pairs):
            yield Problem(number, None, "is not a JSON object")
            continue
        value = _Pairs((column, cell) for name, cell in value if (column := layout.column(name)) is not None)
        problems = list(_member_problems(number, value))
        yield from problems
        if not problems:
            # An empty description is a value in JSON. An empty date, position, list or reference counts as absent.
            yield number, {column: None if cell == "" and column != "desc" else cell for column, cell in value}


def _member_problems(number: int, members: _Pairs) -> Iterator[Problem]:
    for column, count in Counter(column for column, _ in members).items():
        if column not in COLUMNS:
            yield Problem(number, _shown(column), _unknown_column())
        elif count > 1:
            yield Problem(number, column, "is named more than once")
    for column, value in members:
        if column in COLUMNS and not isinstance(value, str | None):
            yield Problem(number, column, "must be a string or null")


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_LENGTH else f"{value[:_SHOWN_LENGTH]}…")


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def check(
    number: int,
    values: Mapping[str, object],
    lists: ListIndex,
    default_list_id: str | None,
    zone: tzinfo | None = None,
) -> Iterator[FileRow | Problem]:
    """Yield the row that is made from these cells, or the problem of each of them.

    None means that a cell is absent.
    """
    cells = {column: value for column, value in values.items() if isinstance(value, str)}
    broken = [column for column, value in cells.items() if not _is_text(value)]
    problems = [Problem(number, column, "is not UTF-8: save the file in this encoding") for column in broken]
    cells = {column: value for column, value in cells.items() if column not in broken}
    name, due, pos, list_id = cells.get("name", ""), None, None, default_list_id
    if not name.strip() and "name" not in broken:
        problems.append(Problem(number, "name", "is missing"))
    try:
        due = parse_due(cells["due"], zone) if "due" in cells else None
    except ValueError as error:
        problems.append(Problem(number, "due", str(error)))
    try:
        pos = Position(cells["pos"]) if "pos" in cells else None
    except ValueError:
        problems.append(Problem(number, "pos", f'{_shown(cells["pos"])} is neither "top" nor "bottom"'))
    try:
        list_id = lists.find(cells["list"]) if "list" in cells else default_list_id
    except ValueError as error:
        problems.append(Problem(number, "list", str(error)))
    if list_id is None and "list" not in cells and "list" not in broken:
        problems.append(Problem(number, "list", "is missing, and no --list is given"))
    if problems or list_id is None:
        yield from problems
        return
    reference = cells.get("reference")
    yield FileRow(number, CardDraft(name=name, list_id=list_id, desc=cells.get("desc"), due=due, pos=pos, reference=reference))
