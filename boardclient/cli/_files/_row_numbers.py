"""The numbers of rows in a file, beside their positions in its journal.

A journal knows a row without a reference by its position among the rows. A person knows it by its number in the file, which has a
header and maybe empty rows. The numbers are kept in a small file beside the journal, of which they are no part: without them a
row is named by its position, and said to be.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from boardclient.cli._output import UsageError, quoted

if TYPE_CHECKING:
    from pathlib import Path


def _path(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}-rows")


class RowNumbers:
    """Numbers of rows by position. `starts` are those at which they do not simply follow on: the first row, and after gaps."""

    def __init__(self, starts: Sequence[tuple[int, int]] = (), count: int = 0) -> None:
        self.starts = [*starts]
        self.count = count

    def add(self, number: int) -> None:
        """Add the number of the next row."""
        # Only where the row does not simply follow: a file of a million rows without gaps takes one pair.
        if not self.starts or number - self.count != self.starts[-1][1] - self.starts[-1][0]:
            self.starts.append((self.count, number))
        self.count += 1

    def write(self, journal: Path) -> None:
        """Keep the numbers beside a journal.

        Raises:
            OSError: the file can't be written.
        """
        from boardclient.credentials._profiles import replace_file

        replace_file(_path(journal), json.dumps({"starts": self.starts, "count": self.count}).encode())

    @classmethod
    def read(cls, journal: Path) -> RowNumbers | None:
        """Return the numbers that are kept beside a journal, or None."""
        # Anything may be in a file beside the journal. Without numbers a row is named by its position, and nothing is lost.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(_path(journal).read_bytes())
            return cls([(int(position), int(number)) for position, number in kept["starts"]], int(kept["count"]))
        return None

    def number_of(self, position: int) -> int | None:
        """Return the number of the row at a position, or None."""
        start = bisect_right(self.starts, position, key=lambda start: start[0]) - 1
        if start < 0 or position >= self.count:
            return None
        return position - self.starts[start][0] + self.starts[start][1]

    def position_of(self, number: int) -> int | None:
        """Return the position of a row, or None if no row has this number."""
        start = bisect_right(self.starts, number, key=lambda start: start[1]) - 1
        if start < 0:
            return None
        position = number - self.starts[start][1] + self.starts[start][0]
        return position if self.number_of(position) == number else None


class NamedRow(NamedTuple):
    """A row as a person names it: `words` for it, the `key` that its journal or ledger has, and what JSON shows."""

    key: int | str
    words: str
    shown: int | str


def name_of(key: int | str, numbers: RowNumbers | None) -> str:
    """Return what a person calls the row with this key."""
    if isinstance(key, str):
        return f"reference {key!r}"
    number = None if numbers is None else numbers.number_of(key)
    return f"position {key}" if number is None else f"row {number}"


def by_number(number: int, numbers: RowNumbers | None) -> NamedRow:
    """Return the row with a number in the file.

    Raises:
        UsageError: the file has none, or its numbers are not known.
    """
    if numbers is None:
        raise UsageError("the numbers of the file's rows are not known here: give --position, from 0, or --reference")
    position = numbers.position_of(number)
    if position is None:
        raise UsageError(f"the file had no row {number}: its rows were {_spans(numbers)}")
    return NamedRow(position, f"row {number}", number)


def _spans(numbers: RowNumbers) -> str:
    ends: Sequence[int] = [position for position, _ in numbers.starts[1:]] + [numbers.count]
    spans = [(number, number + end - position - 1) for (position, number), end in zip(numbers.starts, ends, strict=True)]
    return ", ".join(f"{first} to {last}" for first, last in spans)


def by_text(text: str, numbers: RowNumbers | None, *, is_reference: bool) -> NamedRow:
    """Return the row that a person means by a text, which is a reference or the number of a row in the file.

    Raises:
        UsageError: it may be either, or the file has no such row.
    """
    is_number = text.isascii() and text.isdecimal() and str(int(text)) == text  # unlike "01" and "²"
    if not is_number:
        return NamedRow(text, f"reference {text!r}", text)
    is_row = numbers is not None and numbers.position_of(int(text)) is not None
    if is_reference and (is_row or numbers is None):
        raise UsageError(f"{text} is a reference, and may be the number of a row: give --reference {text} or --row {text}")
    return NamedRow(text, f"reference {text!r}", text) if is_reference else by_number(int(text), numbers)


def resolution_of(row: NamedRow, name: str | None, card_id: str | None, *, is_resolved_now: bool) -> str:
    """Return words for what a row has now."""
    who = row.words if name is None else f"{row.words}, {quoted(name)},"
    what = "as absent: the next import sends it" if card_id is None else f"with the card {card_id}"
    return f"{who} {'is' if is_resolved_now else 'was'} settled {'' if is_resolved_now else 'before '}{what}"
