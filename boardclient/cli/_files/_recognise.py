"""Recognises what a file is: the encoding, the format and the separator that spreadsheets write. `_rows` reads the rows by it."""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Iterator
from typing import BinaryIO

import attrs

from boardclient.cli._files._encodings import damage_of, encoding_of, flaw, is_encoded, label_of, likely, opened
from boardclient.cli._files._layout import SEPARATORS, Layout, Problem, problem_lines
from boardclient.cli._output import UsageError, plural, quoted

_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How files of Excel and LibreOffice begin."""
_CELL_LIMIT = 16 * 2**20
"""The largest cell in bytes. It is enough for any description, but a missing quote does not read a huge file into one cell. The
csv module's default is 128 KiB."""
_NAMES_SHOWN = 3


def recognise(file: BinaryIO, layout: Layout) -> Layout:
    """Return the layout with the encoding and the format of the file, and the separator of its header.

    Raises:
        UsageError: it is a workbook, or not text in its encoding.
    """
    file.seek(0)
    if file.read(4) in _WORKBOOKS:
        raise UsageError("the file is a workbook: save it as CSV")
    csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
    encoding = encoding_of(file, layout.encoding)
    if not is_encoded(file, encoding):
        raise _not_text(file, attrs.evolve(layout, encoding=encoding), is_named=layout.encoding is not None)
    return _formed(file, attrs.evolve(layout, encoding=encoding))


def _formed(file: BinaryIO, layout: Layout) -> Layout:
    first = next(filter(str.strip, lines(file, layout)), "")
    if first.lstrip().startswith(("{", "[")):
        return attrs.evolve(layout, form="jsonl")
    with contextlib.suppress(csv.Error):  # it is named when the rows are read
        delimiter = max(SEPARATORS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), ())))
        layout = attrs.evolve(layout, delimiter=delimiter)
    return layout


def lines(file: BinaryIO, layout: Layout) -> Iterator[str]:
    """Yield the lines of a file with their ends, without its mark."""
    with opened(file, layout.encoding or "utf-8") as text:
        yield text.readline().removeprefix("\ufeff")
        yield from text


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
        if layout.form == "jsonl":
            yield from ((number, None, line) for number, line in enumerate(lines(file, layout), 1))
            return
        for number, cells in enumerate(csv.reader(lines(file, layout), delimiter=layout.delimiter), 1):
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
