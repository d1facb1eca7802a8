"""Finds references that come twice in a file, in eight bytes of memory for each."""

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise

from boardclient.cli._rows import FileRow, Problem

_BUCKETS = 256


class References:
    """The hashes of a file's references. Owned by one check of the file."""

    def __init__(self) -> None:
        # One bucket is sorted after the other, so that sorting needs little additional memory.
        self._buckets = [array("q") for _ in range(_BUCKETS)]

    def add(self, reference: str) -> None:
        """Add the reference of a row."""
        value = hash(reference)
        self._buckets[value % _BUCKETS].append(value)

    def suspects(self) -> frozenset[int]:
        """Return the hashes that came more than once. Different references may share one."""
        return frozenset(value for bucket in self._buckets for value, other in pairwise(sorted(bucket)) if value == other)


def repeated_references(rows: Iterable[FileRow | Problem], suspects: frozenset[int]) -> Iterator[Problem | None]:
    """Yield for each row the problem of a repeated reference, or None."""
    first: dict[str, int] = {}
    for row in rows:
        problem = None
        if isinstance(row, FileRow) and (reference := row.draft.reference) is not None and hash(reference) in suspects:
            before = first.setdefault(reference, row.number)
            if before != row.number:
                problem = Problem(row.number, "reference", f"is also that of row {before}; each row needs its own")
        yield problem
