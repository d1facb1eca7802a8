"""The rows of a CSV file as records. A file that was cut or joined is refused."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from boardclient.cli._files._cells import JOINED, MARKED, Cells, NumberedCells, is_defused
from boardclient.cli._files._columns import column_problems, lacking, list_problem
from boardclient.cli._files._layout import IMPORTED, Layout, Problem, plain
from boardclient.cli._files._recognise import is_for_excel, lines
from boardclient.cli._output import plural

T = TypeVar("T")
_RETURN = "\ud800"
"""Stands for a CR within a cell while the csv module reads, which takes each for the end of a line. No file holds it: a lone
surrogate is not of any encoding."""


def csv_records(
    file: BinaryIO,
    layout: Layout,
    look: Callable[[NumberedCells], Iterable[T]],
    quick: Callable[[Header], Callable[[int, list[str]], T | None] | None] | None = None,
) -> Iterator[Problem | T]:
    """Yield what `look` makes of the records of a file, or what is wrong with it.

    `quick` gets the header, and returns what makes a row of a number and cells at once, or None if all rows need a closer look.
    What it returns may be None for a row that needs one.
    """
    header: Header | None = None
    make: Callable[[int, list[str]], T | None] | None = None
    for number, cells in _csv_rows(file, layout):
        # After an unclosed quote the rest of the file is one cell, so that no later row can be told.
        if isinstance(cells, str):
            yield Problem(number, None, cells)
            return
        if make is not None and (made := make(number, cells)) is not None:
            yield made
            continue
        # Spreadsheets leave rows of empty cells at the end of a file.
        if not any(cells):
            continue
        if header is None:
            if _is_before_header(cells, layout):
                continue
            header = Header(cells, layout) if layout.has_header else _Numbers(cells, layout)
            problems = list(header.problems(number))
            yield from problems
            if problems:
                return
            make = None if quick is None else quick(header)
            if layout.has_header:
                continue
        if message := header.misfit(cells):
            yield Problem(number, None, message)
        else:
            yield from look((number, header.named(cells), header.names))
    if header is None and layout.has_header:
        yield Problem(1 + layout.skipped_lines, None, "the file is empty; the first row must name the columns")


def _is_before_header(cells: Sequence[str], layout: Layout) -> bool:
    """Return True for a row of blanks, or for the one that tells Excel the delimiter: the header comes after them."""
    return not any(map(str.strip, cells)) or is_for_excel(cells, layout.delimiter or ",")


def _csv_rows(file: BinaryIO, layout: Layout) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the cells of each row with its number, or at the end why the rest can't be read."""
    number = layout.skipped_lines
    has_returns, held = False, ""

    def kept(lines: Iterator[str]) -> Iterator[str]:
        nonlocal has_returns, held
        for line in lines:
            body = line.rstrip("\r\n")
            # The reader asks for another line within a cell alone: the end of the last one is a part of that cell.
            text, held = f"{held}{body}", line[len(body) :]
            has_returns = has_returns or "\r" in text
            yield text.replace("\r", _RETURN)

    given = lines(file, layout)
    try:
        # Strict, or a stray quote would join cells: https://docs.python.org/3/library/csv.html#csv.Dialect.strict.
        rows = csv.reader(kept(given) if layout.newline else given, strict=True, delimiter=layout.delimiter or ",")
        for cells in rows:
            number += 1
            held = ""
            yield number, [cell.replace(_RETURN, "\r") for cell in cells] if has_returns else cells
    except csv.Error as error:
        yield number + 1, f"is malformed CSV: {str(error).partition(' - ')[0]}"


class Header:
    """The header of a CSV file, and whether other rows fit it. `names` are the columns as the file names them."""

    def __init__(self, cells: Sequence[str], layout: Layout) -> None:
        self.columns = [layout.column(cell) for cell in cells]
        self._named = [(column, cell.strip()) for column, cell in zip(self.columns, cells, strict=True) if column]
        self.names = dict(self._named)
        self._there = [plain(cell) for cell in cells if cell.strip()]
        self.words = {word.casefold() for word in (*self._there, *layout.columns, *IMPORTED)}
        self.nameless = [place for place, column in enumerate(self.columns) if column == ""]
        self._layout = layout

    def problems(self, number: int) -> Iterator[Problem]:
        """Yield what is wrong with the header."""
        yield from column_problems(number, self._named, self._layout, self._there)
        yield from lacking(number, self._layout.columns, self._there)
        if "list" not in self.names and self._layout.default_list is None:
            yield list_problem(number, self._layout, self._there)

    def misfit(self, cells: Sequence[str]) -> str | None:
        """Return why a row can't be one of this file, or None."""
        if cells[0].startswith(("\ufeff", "\ufffe")):
            return MARKED
        if self._is_header(cells):
            return f"is a header again, {JOINED}; take it out"
        nameless = [cells[place] for place in self.nameless if place < len(cells)] if self.nameless else []
        if any(nameless) or any(cells[len(self.columns) :]):
            return f"has cells without a column; {self._width}"
        return None

    def named(self, cells: Sequence[str]) -> Cells:
        """Return the cells of a row that are not empty, by their columns."""
        if "'" in "".join(cells):  # one search of the row is faster than a look at each cell, and finds nothing in most files
            cells = [cell[1:] if is_defused(cell) else cell for cell in cells]
        # The last cells of a row may be missing: spreadsheets leave empty ones out at the end.
        columns = zip(self.columns, cells, strict=False)
        return {column: cell for column, cell in columns if column and cell}

    @property
    def _width(self) -> str:
        return f"the header names {plural(len(self.names), 'column')}"

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Return True if all cells name columns. One that does so alone may be a card, unless it is all of the header."""
        words = []
        for cell in cells:
            if word := plain(cell):
                if word.casefold() not in self.words:  # as is the first cell of most rows
                    return False
                words.append(word)
        return "name" in map(self._layout.column, words) and (len(words) > 1 or words == self._there)


class _Numbers(Header):
    """What stands for the header of a file without one: the numbers of the columns in its first row."""

    def __init__(self, cells: Sequence[str], layout: Layout) -> None:
        super().__init__([str(place) for place, _ in enumerate(cells, 1)], layout)
        self.words = set()

    @property
    def _width(self) -> str:
        return f"the first row has {plural(len(self.columns), 'cell')}"
