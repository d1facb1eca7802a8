"""Recognises what a file is: the encoding, the format, the separator and the ends of lines. `_rows` reads the rows by it."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import attrs

from boardclient.cli._files._encodings import damage_of, encoding_of, flaw, is_encoded, label_of, likely, opened
from boardclient.cli._files._layout import IMPORTED, SEPARATORS, Layout, Problem, plain, problem_lines
from boardclient.cli._output import UsageError, plural, quoted

_WORKBOOK = "a workbook: save it as CSV"
_KINDS = (
    (b"\xd0\xcf\x11\xe0", _WORKBOOK),
    (b"\x1f\x8b", "compressed by gzip: gunzip -c FILE | boardclient import - …"),
    (b"BZh", "compressed by bzip2: bunzip2 -c FILE | boardclient import - …"),
    (b"\xfd7zXZ\0", "compressed by xz: xz -dc FILE | boardclient import - …"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: zstd -dc FILE | boardclient import - …"),
    (b"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip: unpack it"),
    (b"%PDF-", "a PDF document: export the table as CSV"),
    (b"PAR1", "a Parquet file: save it as CSV"),
    (b"SQLite format 3\0", "a database of SQLite: sqlite3 -csv -header FILE 'select …' | boardclient import - …"),
)
"""How files begin that are no text, and what is said of them."""
_MARKUP = re.compile(r"\s*<(?:!doctype html|html|\?xml|table|\w+ xmlns)\b", re.IGNORECASE)
_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""
_NAMES_SHOWN = 3
_FIRST_LINES = 64
"""How many lines show the separator."""
_PART_BYTES = 2**20
_FOR_EXCEL = re.compile(r'"?sep=([^"\w\s]|\t)"?\s*', re.IGNORECASE)
"""The line that names the separator for Excel."""


def recognise(file: BinaryIO, layout: Layout) -> Layout:
    """Return the layout with the encoding and the format of the file, and the separator of its first lines.

    Raises:
        UsageError: it is not a text file, or not text in its encoding.
    """
    if kind := _kind_of(file):
        raise UsageError(f"the file is {kind}; nothing was sent")
    # The limit is that of the process: an application that has raised it keeps its own.
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    encoding = encoding_of(file, layout.encoding)
    if not is_encoded(file, encoding):
        raise _not_text(file, attrs.evolve(layout, encoding=encoding), is_named=layout.encoding is not None)
    return _formed(file, attrs.evolve(layout, encoding=encoding))


def _kind_of(file: BinaryIO) -> str | None:
    """Return what a file is that is no text, with what to do, or None."""
    file.seek(0)
    begin = file.read(16)
    if begin.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _kind_of_zip(file)
    return next((kind for mark, kind in _KINDS if begin.startswith(mark)), None)


def _kind_of_zip(file: BinaryIO) -> str:
    import zipfile

    names: list[str] = []
    with contextlib.suppress(zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        # Workbooks are zip archives: only the names in them tell one from an archive of CSV files.
        names = zipfile.ZipFile(file).namelist()
    if not names:
        return "a zip archive that can't be read, as damaged workbooks are: save it as CSV"
    if any(name.startswith(("xl/", "Index/")) or name == "content.xml" for name in names):  # Excel, Numbers, LibreOffice
        return _WORKBOOK
    return f"a zip archive (with {quoted(names[0])}): unpack it"


def _formed(file: BinaryIO, layout: Layout) -> Layout:
    sample = [*itertools.islice(lines(file, layout), _FIRST_LINES)]
    first = next(filter(str.strip, sample), "")
    if _MARKUP.match(first):
        raise UsageError("the file is a page of HTML or XML, not CSV: export or save it as CSV; nothing was sent")
    is_told = layout.delimiter is not None or not layout.has_header
    # An option that is for CSV alone makes a brace at the beginning a cell, unless it really is an object.
    if _is_object(first) if is_told else first.lstrip().startswith(("{", "[")):
        if is_told:
            raise UsageError("--delimiter and --no-header are for CSV: the file is JSON Lines, whose rows name their columns")
        return attrs.evolve(layout, form="jsonl")
    layout = attrs.evolve(layout, delimiter=layout.delimiter or _separator_of(sample, layout))
    is_mixed = _has_lone_returns(file, layout.encoding or "utf-8") and _has_line_feeds(file, layout)
    return attrs.evolve(layout, newline="\n" if is_mixed else "")


def _is_object(line: str) -> bool:
    """Return True if a line is one of JSON Lines. A cell may begin with a brace as well."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _separator_of(sample: Sequence[str], layout: Layout) -> str:
    """Return what separates the cells of a file's first lines."""
    if sample and (told := _FOR_EXCEL.fullmatch(sample[0])):
        return told[1]
    # By all of the first lines: a header with commas in its names says little in a file with semicolons.
    return max(SEPARATORS, key=lambda mark: _fit(sample, mark, layout))


def _fit(sample: Sequence[str], mark: str, layout: Layout) -> tuple[int, int, int, int]:
    """Return how well a separator fits: columns that we know, rows as wide as the first, rows that are divided, all columns."""
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # it is named when the rows are read
        rows += (cells for cells in csv.reader(sample, delimiter=mark) if any(map(str.strip, cells)))
    if not rows or len(rows[0]) == 1:
        return 0, 0, 0, 0
    first, *others = rows
    known = sum(plain(cell) in layout.columns or plain(cell).casefold() in IMPORTED for cell in first) if layout.has_header else 0
    as_wide = sum(len(cells) >= len(first) and not any(cells[len(first) :]) for cells in others)
    return known, as_wide, sum(len(cells) > 1 for cells in others), len(first)


def _has_lone_returns(file: BinaryIO, encoding: str) -> bool:
    """Return False if no CR stands without LF, as in most files."""
    if encoding.startswith(("utf-16", "utf-32")):  # whose bytes say nothing by themselves
        return True
    file.seek(0)
    before = b""
    while part := file.read(_PART_BYTES):
        if part.count(b"\r") + before.count(b"\r") != (before + part).count(b"\r\n") + part.endswith(b"\r"):
            return True
        before = b"\r" if part.endswith(b"\r") else b""
    return bool(before)


def _has_line_feeds(file: BinaryIO, layout: Layout) -> bool:
    """Return True if lines end with LF or CRLF, so that a CR alone belongs to its cell."""
    last = ""

    def noted() -> Iterator[str]:
        nonlocal last
        for line in lines(file, layout):
            last = line
            yield line

    with contextlib.suppress(csv.Error):
        for _ in csv.reader(noted(), delimiter=layout.delimiter or ","):
            if last.endswith("\n"):
                return True
    return False


def lines(file: BinaryIO, layout: Layout) -> Iterator[str]:
    """Yield the lines of a file with their ends, without its mark and those that are skipped."""
    with opened(file, layout.encoding or "utf-8", layout.newline) as text:
        # Here, since a name that begins with the mark of a file would equal no column.
        first = text.readline().removeprefix("\ufeff")
        for _ in range(layout.skipped_lines):
            first = text.readline()
        yield first
        yield from text


def is_for_excel(cells: Sequence[str], delimiter: str) -> bool:
    """Return True if the cells are those of the line that names the separator for Excel."""
    return _FOR_EXCEL.fullmatch(delimiter.join(cells)) is not None


def _not_text(file: BinaryIO, layout: Layout, *, is_named: bool) -> UsageError:
    """Return the error that names what is not of the encoding and, unless the user has named it, shows the names in others."""
    encoding = layout.encoding or ""
    problems, sound = [], 0
    for number, column, text in _texts(file, layout):
        if damage := damage_of(text, encoding):
            problems.append(Problem(number, column, *damage))
        else:
            sound += not text.isascii()
    readings = [
        f"--encoding {name} reads {', '.join(map(quoted, names))}"
        for name in (() if is_named else likely(file))
        if (names := _first_names(file, attrs.evolve(layout, encoding=name)))
    ]
    message = f"the file is not text in {label_of(encoding)}; nothing was sent"
    if not is_named:
        hint = f" ({plural(sound, 'other text')} of it can be read, so it may be damaged)" if sound else ""
        message += f". Give its encoding (--encoding NAME), or mend it{hint}"
    return UsageError(message, [*problem_lines(problems), *readings])


def _texts(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, str | None, str]]:
    """Yield the texts of a file that may be damaged: each line of JSON, otherwise each cell, with its row and column."""
    header: list[str | None] = []
    with contextlib.suppress(csv.Error, UnicodeError):
        layout = _formed(file, layout)
        first = 1 + layout.skipped_lines
        if layout.form == "jsonl":
            yield from ((number, None, line) for number, line in enumerate(lines(file, layout), first))
            return
        for number, cells in enumerate(csv.reader(lines(file, layout), delimiter=layout.delimiter or ","), first):
            if not layout.has_header:
                header = [str(place) for place, _ in enumerate(cells, 1)]
            yield from zip(itertools.repeat(number), [*header, *[None] * len(cells)], cells, strict=False)
            header = header or ([None if flaw(cell) else cell.strip() for cell in cells] if any(cells) else [])


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
