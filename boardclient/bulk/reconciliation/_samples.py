"""Rows whose cards are known, which show what the service does to texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._shown import Content
from boardclient.models import Card

SAMPLES: Final = 512
"""How many of the first and of the last confirmed rows are kept as samples."""


class Samples:
    """Some of the rows whose cards are known: the first and the last ones of a run. Owned by a reconciler."""

    def __init__(self) -> None:
        self._first: list[tuple[str, Row]] = []
        self._last: deque[tuple[str, Row]] = deque(maxlen=SAMPLES)

    def add(self, card_id: str, row: Row) -> None:
        """Add a row whose card is known."""
        if len(self._first) < SAMPLES:
            self._first.append((card_id, row))
        else:
            self._last.append((card_id, row))

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return chain(self._first, self._last)


class Sample(NamedTuple):
    """What was sent for a row, its card as listed, and its marker if it has one."""

    sent: Content
    card: Card
    marker: str | None
