"""The lines of a JSON Lines file as records."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, cast

from boardclient.cli._files._cells import MARKED, Cells, NumberedCells
from boardclient.cli._files._columns import column_problems, lacking
from boardclient.cli._files._layout import IMPORTED, Layout, Problem, plain
from boardclient.cli._files._recognise import lines
from boardclient.cli._output import quoted

_CUT = "ends within a value"
_LARGEST = 2**28
"""The largest file in bytes that is read as a whole, to say what it is."""
_HOLDERS = ("cards", "issues", "tasks", "tickets", "stories", "items", "rows", "records", "results", "entries", "values")
"""What other tools call the array of rows in the one object of their export."""
_OUTER = ("data", "result", "response", "board", "project", "export", "lists", "boards", "columns", "sections", "groups")
"""What may be around it."""


class _Doubled:
    """A JSON object that has a key twice."""

    def __init__(self, key: str) -> None:
        self.key = key


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | _Doubled:
    # json keeps the last of two values in silence, and a row would lose one of its texts.
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(Counter(key for key, _ in pairs).most_common(1)[0][0])


_decode = json.JSONDecoder(object_pairs_hook=_object).decode


def _json_object(line: str) -> dict[str, object] | str:
    """Return the object of a line, or why it is none."""
    if line.startswith("\ufeff"):
        return MARKED
    try:
        value = _decode(line)
    except json.JSONDecodeError as error:
        # A value that continues in the next line is one object over several lines, which needs another advice.
        return _CUT if error.pos >= len(line.rstrip()) else f"is not JSON: {error}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    if isinstance(value, _Doubled):
        return f"has the key {quoted(value.key)} more than once"
    return value if isinstance(value, dict) else f"is not a JSON object; {_one_line('.[]' if isinstance(value, list) else '.')}"


def _one_line(path: str) -> str:
    of = "" if path == "." else " of an array"
    return f"each line must be one object (jq -c {shlex.quote(path)} FILE makes such lines{of})"


def _path_of_rows(value: object) -> str | None:
    """Return where the rows are in the object of another tool's export, as jq names it, or None."""
    if not isinstance(value, dict):
        return None
    # In the order of the words, not of the keys: "cards" is surer than "items" wherever it stands.
    for key in (key for holder in _HOLDERS for key in value if key.casefold() == holder):
        if isinstance(rows := value[key], list) and all(isinstance(row, dict) for row in rows):
            return f".{key}[]"
    for key in (key for key in value if key.casefold() in _OUTER):
        inner = value[key]
        part, step = (inner[0], "[]") if isinstance(inner, list) and inner else (inner, "")
        if path := _path_of_rows(part):
            return f".{key}{step}{path}"
    return None


def _whole_path(file: BinaryIO, layout: Layout) -> str:
    """Return by which path jq makes rows of a file whose first line is no whole value."""
    # It is read as a whole only to word an advice, which is not worth gigabytes of memory.
    if os.fstat(file.fileno()).st_size > _LARGEST:
        return ".[]"
    try:
        value = json.loads("".join(lines(file, layout)))
    except (ValueError, RecursionError):
        return "."
    return ".[]" if isinstance(value, list) else _path_of_rows(value) or "."


def json_records(file: BinaryIO, layout: Layout) -> Iterator[NumberedCells | Problem]:
    reader = _Reader(layout)
    for number, line in enumerate(lines(file, layout), 1 + layout.skipped_lines):
        value = _json_object(line) if line.strip() else ""
        if isinstance(value, dict):
            yield from reader.records(number, value)
            if reader.is_foreign:
                return
        elif value:
            is_first = reader.first is None
            about = f"; {_one_line(_whole_path(file, layout) if is_first else '.')}" if value is _CUT else ""
            yield Problem(number, None, value + about)
            if is_first and value is _CUT:  # the rest belongs to it
                return
    yield from reader.lacking()


class _Reader:
    """Makes records of objects. The columns are found anew only where the keys are others than those of the row before."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._missing = set(layout.columns)
        self._keys: list[str] | None = None
        self._columns: list[tuple[str, str]] = []
        self.first: tuple[int, list[str]] | None = None
        """The number of the first row, and its keys."""
        self.is_foreign = False
        """Whether an object is the export of another tool, which holds rows."""

    def records(self, number: int, value: dict[str, object]) -> Iterator[NumberedCells | Problem]:
        """Yield the record of an object, or what is wrong with it."""
        # Rows of one export have the same keys, and comparing them is far cheaper than looking for columns.
        problems = [] if [*value] == self._keys else [*self._column_problems(number, value)]
        for column, name in self._columns:
            if column in IMPORTED and not (value[name] is None or isinstance(value[name], str)):
                problems.append(Problem(number, name, "must be a string or null"))
        yield from problems
        if not problems:
            # An empty description is a value in JSON. An empty date, position, list or reference counts as absent.
            named = self._columns
            cells = {column: text for column, name in named if (text := value[name]) or (text == "" and column == "desc")}
            yield number, cast("Cells", cells), dict(named)

    def _column_problems(self, number: int, value: dict[str, object]) -> Iterator[Problem]:
        """Find the columns of an object with other keys, and yield what is wrong with them."""
        self._keys, self._columns = None, []
        if path := _path_of_rows(value):
            self.is_foreign = True
            yield Problem(number, None, f"is an export that holds its rows inside; {_one_line(path)}")
            return
        there = list(map(plain, value))
        self.first = self.first or (number, there)
        self._missing.difference_update(there)
        self._columns = [(column, name) for name in value if (column := self._layout.column(name)) is not None]
        problems = [*column_problems(number, self._columns, self._layout, there)]
        self._keys = None if problems else [*value]
        yield from problems

    def lacking(self) -> Iterator[Problem]:
        """Yield the names that no row has."""
        if self.first is not None:
            number, there = self.first
            yield from lacking(number, [name for name in self._layout.columns if name in self._missing], there)
