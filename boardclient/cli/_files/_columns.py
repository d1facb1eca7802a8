"""What is wrong with the names of a file's columns, and what to give for them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from boardclient.cli._files._layout import IMPORTED, Layout, Problem
from boardclient.cli._names import did_you_mean
from boardclient.cli._output import quoted


def column_problems(number: int, named: Sequence[tuple[str, str]], layout: Layout, there: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with columns, each beside its name in the file. `there` are all names."""
    unknown = [name for column, name in named if column not in IMPORTED]
    columns = Counter(column for column, _ in named)
    if "name" not in columns and "name" not in layout.columns.values() and (unknown or layout.form == "csv"):
        names, option = ", ".join(map(quoted, there)), shlex.quote(f"name={[*unknown, *there][0]}")
        yield Problem(number, None, f"there is no column name, only {names}; give for example --map {option} --skip '*'")
    elif unknown:
        names, option = ", ".join(map(quoted, unknown)), shlex.quote(f"desc={unknown[0]}")
        also = f"the columns are {', '.join(IMPORTED)}"
        yield Problem(number, None, f"unknown: {names}; {also} (--map {option} reads one of them so, --skip '*' ignores all)")
    for column, count in columns.items():
        if count > 1:
            yield Problem(number, dict(named)[column], "is named more than once")


def lacking(number: int, wanted: Iterable[str], there: Sequence[str]) -> Iterator[Problem]:
    """Yield the names of `--map` and `--skip` that the file does not have."""
    for name in wanted:
        if name not in there and name != "*":
            columns = f"the file has no column {quoted(name)} to map or skip, only {', '.join(map(quoted, there))}"
            yield Problem(number, None, columns + did_you_mean(name, there))
