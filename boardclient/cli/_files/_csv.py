"""The rows of a CSV file as records. A file that was cut or joined is refused."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from boardclient.cli._files._cells import FORMULA, JOINED, MARKED, Record
from boardclient.cli._files._columns import column_problems, lacking
from boardclient.cli._files._layout import IMPORTED, Layout, Problem, plain
from boardclient.cli._files._recognise import lines
from boardclient.cli._output import plural


def csv_records(file: BinaryIO, layout: Layout) -> Iterator[Record | Problem]:
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
                cells = [cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell for cell in cells]
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
        yield from column_problems(number, self._named, self._layout, self._there)
        yield from lacking(number, self._layout.columns, self._there)
        if "list" not in self.names and self._layout.default_list is None:
            yield Problem(number, None, "there is no column list; give --list for all rows")

    def misfit(self, cells: Sequence[str]) -> str | None:
        """Return why a row can't be one of this file, or None."""
        if cells[0].startswith(("\ufeff", "\ufffe")):
            return MARKED
        if self._is_header(cells):
            return f"is a header again, {JOINED}; take it out"
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
