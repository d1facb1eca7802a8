"""How the file of an import is to be read: its encoding, format, separator and columns. `_rows` reads the rows by it.

What spreadsheets write is recognised: the separator and UTF-16. An encoding is never guessed.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import BinaryIO

import attrs

from boardclient.cli._file import _encodings
from boardclient.cli._output import LINES, UsageError, plural, quoted

COLUMNS: tuple[str, ...] = ("name", "desc", "due", "pos", "list", "reference")
"""The columns of files that are imported and exported."""
IMPORTED: tuple[str, ...] = (*COLUMNS, "board", "account")
"""The columns of files that are imported. The last two need an engine."""

_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How files of Excel and LibreOffice begin."""
_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ROWS_NAMED = 5
_NAMES_SHOWN = 3


@attrs.frozen
class Problem:
    """One error in a row. `column` is as the file names it, None if the whole row is wrong; `shown` is what is wrong in it."""

    number: int
    column: str | None
    message: str
    shown: str | None = None


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    """Return a line for all rows with the same error, for the first of these."""
    kinds: dict[tuple[str | None, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.column, problem.message), []).append(problem)
    lines = []
    for (column, message), some in kinds.items():
        numbers = [*dict.fromkeys(str(problem.number) for problem in some)]
        more = f" and {len(numbers) - _ROWS_NAMED:,} more" if len(numbers) > _ROWS_NAMED else ""
        rows = f"row{'s' * (len(numbers) > 1)} {', '.join(numbers[:_ROWS_NAMED])}{more}"
        place = f"{rows}{'' if column is None else f', column {column}'}"
        shown = "" if some[0].shown is None else f"{some[0].shown}{' and others' if len(some) > 1 else ''}: "
        lines.append(f"{place}: {shown}{message}")
    return [*lines[:LINES], *([f"and {len(lines) - LINES:,} more kinds of mistakes"] if len(lines) > LINES else [])]


def plain(name: str) -> str:
    """Return the name of a column in the form in which names are compared. macOS writes accents as characters of their own."""
    return unicodedata.normalize("NFC", name.strip())


def _plain_keys(columns: Mapping[str, str | None]) -> dict[str, str | None]:
    return {plain(name): column for name, column in columns.items()}


@attrs.frozen(kw_only=True)
class Layout:
    """How to read a file: "csv" or "jsonl", encoding, separator, names of columns, dates.

    `encoding` is that which the user has named. `columns` maps names in the file to our columns, or to None to ignore them; "*"
    stands for all other names that are no columns themselves. `default_list` is the list of rows that name none. `has_places`
    says that rows may name a board and an account.
    """

    form: str = "csv"
    encoding: str | None = None
    delimiter: str = ","
    columns: Mapping[str, str | None] = attrs.field(factory=dict, converter=_plain_keys)
    zone: tzinfo | None = None
    date_format: str | None = None
    default_list: str | None = None
    has_places: bool = False

    def column(self, name: str) -> str | None:
        """Return the column for a name in the file, or None to ignore it. The case of our own names does not matter."""
        name = plain(name)
        if name in self.columns:
            return self.columns[name]
        folded = name.casefold()
        if "*" in self.columns and (folded in self.columns.values() or folded not in (IMPORTED if self.has_places else COLUMNS)):
            return None
        return folded if folded in IMPORTED else name

    @property
    def difference(self) -> str:
        """What is read otherwise than as plain UTF-8 with commas, in words. "" if nothing is."""
        words = [] if self.encoding in (None, "utf-8") else [_encodings.label(self.encoding)]
        if self.delimiter != ",":
            words.append(f"cells separated by {_SEPARATORS.get(self.delimiter, repr(self.delimiter))}")
        return ", ".join(words)


def recognise(file: BinaryIO, layout: Layout) -> Layout:
    """Return the layout with the encoding and the format of the file, and the separator of its header.

    Raises:
        UsageError: it is a workbook, or not text in its encoding.
    """
    file.seek(0)
    if file.read(4) in _WORKBOOKS:
        raise UsageError("the file is a workbook: save it as CSV")
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    encoding = _encodings.encoding_of(file, layout.encoding)
    if not _encodings.is_encoded(file, encoding):
        raise _not_text(file, attrs.evolve(layout, encoding=encoding), is_named=layout.encoding is not None)
    return _formed(file, attrs.evolve(layout, encoding=encoding))


def _formed(file: BinaryIO, layout: Layout) -> Layout:
    first = next(filter(str.strip, lines(file, layout)), "")
    if first.lstrip().startswith(("{", "[")):
        return attrs.evolve(layout, form="jsonl")
    with contextlib.suppress(csv.Error):  # it is named when the rows are read
        delimiter = max(_SEPARATORS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), ())))
        layout = attrs.evolve(layout, delimiter=delimiter)
    return layout


def lines(file: BinaryIO, layout: Layout) -> Iterator[str]:
    """Yield the lines of a file with their ends."""
    return _encodings.lines(file, layout.encoding or "utf-8")


def _not_text(file: BinaryIO, layout: Layout, *, is_named: bool) -> UsageError:
    """Return the error that names what is not of the encoding and, unless the user has named it, shows the names in others."""
    encoding = layout.encoding or ""
    problems, sound = [], 0
    for number, column, text in _texts(file, layout):
        if damage := _encodings.damage(text, encoding):
            problems.append(Problem(number, column, *damage))
        else:
            sound += not text.isascii()
    readings = [
        f"--encoding {name} reads {', '.join(map(quoted, names))}"
        for name in (() if is_named else _encodings.likely(file))
        if (names := _first_names(file, attrs.evolve(layout, encoding=name)))
    ]
    message = f"the file is not text in {_encodings.label(encoding)}; nothing was sent"
    if not is_named:
        hint = f" ({plural(sound, 'other text')} of it can be read, so it may be damaged)" if sound else ""
        message += f". Give its encoding (--encoding NAME), or mend it{hint}"
    return UsageError(message, [*problem_lines(problems), *readings])


def _texts(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, str | None, str]]:
    """Yield the texts of a file that may be damaged: each line of JSON, otherwise each cell, with its row and column."""
    header: list[str | None] = []
    with contextlib.suppress(csv.Error, UnicodeError):
        layout = _formed(file, layout)
        if layout.form == "jsonl":
            yield from ((number, None, line) for number, line in enumerate(lines(file, layout), 1))
            return
        for number, cells in enumerate(csv.reader(lines(file, layout), delimiter=layout.delimiter), 1):
            yield from zip(itertools.repeat(number), [*header, *[None] * len(cells)], cells, strict=False)
            header = header or ([None if _encodings.flaw(cell) else cell.strip() for cell in cells] if any(cells) else [])


def _first_names(file: BinaryIO, layout: Layout) -> list[str]:
    """Return some texts in which encodings differ, names if there are any, otherwise some names."""
    for is_ascii, is_name in itertools.product((False, True), (True, False)):
        found = (
            text.strip()
            for _, column, text in _texts(file, layout)
            if text.strip() and (layout.column(column or "") == "name") >= is_name and text.isascii() <= is_ascii
        )
        if some := list(itertools.islice(found, _NAMES_SHOWN)):
            return some
    return []
