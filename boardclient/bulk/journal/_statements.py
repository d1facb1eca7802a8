"""SQL statements for many values at once."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Each statement releases the GIL, and the event loop's thread may keep it for 5 ms (`sys.getswitchinterval`), so a batch takes
# as few statements as possible. There are few sizes, so that prepared statements are reused. A row has at most four parameters,
# which stays below the 999 of old SQLite versions (https://www.sqlite.org/limits.html, section 9).
_CHUNKS: Final = (128, 64, 32, 16, 8, 4, 2, 1)


def insert(connection: sqlite3.Connection, head: str, values: Sequence[tuple[object, ...]]) -> None:
    """Insert tuples. `head` is the statement up to VALUES."""
    for part in _chunks(values):
        connection.execute(_with_values(head, len(part), len(part[0])), list(chain.from_iterable(part)))


def select_each(connection: sqlite3.Connection, head: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    """Run a statement that ends in IN with the values, and return the rows."""
    found: list[tuple[Any, ...]] = []
    for part in _chunks(padded(values)):
        found += connection.execute(f"{head} ({','.join('?' * len(part))})", list(part)).fetchall()
    return found


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split a sequence into chunks of few different lengths."""
    start = 0
    for size in _CHUNKS:
        while len(values) - start >= size:
            yield values[start : start + size]
            start += size


def padded(values: Sequence[T]) -> Sequence[T]:
    """Repeat the last value until few chunks hold all values.

    For statements that may run twice for a value.
    """
    count = len(values)
    if not count:
        return values
    whole = 1 << (count - 1).bit_length() if count < _CHUNKS[0] else count + -count % _CHUNKS[0]
    return [*values, *(values[-1],) * (whole - count)]


@functools.cache
def _with_values(head: str, rows: int, columns: int) -> str:
    group = f"({','.join('?' * columns)})"
    return f"{head} VALUES {','.join([group] * rows)}"
