"""The lines of a JSON Lines file as records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, cast

from boardclient.cli._files._cells import MARKED, Cells, Record
from boardclient.cli._files._columns import column_problems, lacking
from boardclient.cli._files._layout import IMPORTED, Layout, Problem, plain
from boardclient.cli._files._recognise import lines
from boardclient.cli._output import quoted

_ONE_LINE = "each line must be one object (jq -c '.[]' FILE makes such lines of an array)"
_CUT = f"ends within a value; {_ONE_LINE}"


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
        return MARKED
    try:
        value = _decode(line)
    except json.JSONDecodeError as error:
        return _CUT if error.pos >= len(line.rstrip()) else f"is not JSON: {error}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    if isinstance(value, _Doubled):
        return f"has the key {quoted(value.key)} more than once"
    return value if isinstance(value, dict) else f"is not a JSON object; {_ONE_LINE}"


def json_records(file: BinaryIO, layout: Layout) -> Iterator[Record | Problem]:
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
                problems += column_problems(number, columns, layout, there)
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
        yield from lacking(first[0], [name for name in layout.columns if name in missing], first[1])
