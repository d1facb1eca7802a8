"""The cards of a listing (4.4), sorted by what is known of their origin. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable
from itertools import groupby
from typing import NamedTuple

import attrs

from boardclient.bulk._content import FIELDS
from boardclient.models import Card


class Extent(NamedTuple):
    """How many cards a listing showed, in total and in the list of one row.

    The latter is -1 if it showed none of the list, or does not show lists at all.
    """

    total: int
    of_list: int


class IdSet:
    """A set of identifiers that takes eight bytes each, for millions of them.

    It keeps hashes, which differ between processes, so it must not be stored.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._hashes = array("q", map(hash, ids))
        self._is_sorted = False
        self._repeated = 0

    def add(self, identifier: str) -> None:
        """Add an identifier."""
        self._hashes.append(hash(identifier))
        self._is_sorted = False

    def __len__(self) -> int:
        self._sort()
        return len(self._hashes)

    def _sort(self) -> None:
        if not self._is_sorted:
            added = len(self._hashes)
            self._hashes = array("q", (value for value, _ in groupby(sorted(self._hashes))))
            self._repeated += added - len(self._hashes)
            self._is_sorted = True

    @property
    def repeated(self) -> int:
        """How often an identifier was added that the set had already."""
        self._sort()
        return self._repeated

    def find(self, identifier: str) -> int | None:
        """Return the position of an identifier, or None if the set does not hold it."""
        self._sort()
        wanted = hash(identifier)
        place = bisect_left(self._hashes, wanted)
        return place if place < len(self._hashes) and self._hashes[place] == wanted else None

    def __contains__(self, identifier: str) -> bool:
        return self.find(identifier) is not None


class SeenIds:
    """Identifiers that were seen, for millions of them: it keeps hashes in an open table, 12 to 24 bytes each."""

    def __init__(self) -> None:
        self._table = array("q", bytes(8 * 64))
        self._number = 0

    def add(self, identifier: str) -> bool:
        """Add an identifier. Return False if it was seen before."""
        table = self._table
        if not _place(table, hash(identifier) or 1):
            return False
        self._number += 1
        if 3 * self._number > 2 * len(table):
            self._table = array("q", bytes(2 * table.itemsize * len(table)))
            for seen in table:
                if seen:
                    _place(self._table, seen)
        return True


def _place(table: array[int], value: int) -> bool:
    """Put a number other than 0 into an open table, and return False if it is there already."""
    mask = len(table) - 1
    place = value & mask
    while (found := table[place]) != value:
        if not found:
            table[place] = value
            return True
        place = (place + 1) & mask
    return False


class Listing:
    """A listing of a board, read card by card. Owned by one reading.

    `baseline` are the cards that existed before the run, or None if unknown, and `confirmed` those known to belong to rows.
    `samples` are the identifiers of confirmed cards to keep as they are listed.
    """

    def __init__(self, baseline: IdSet | None, confirmed: IdSet, samples: Container[str] = ()) -> None:
        self.has_baseline = baseline is not None
        self._baseline = IdSet() if baseline is None else baseline
        self._confirmed = confirmed
        self._wanted = samples
        self._seen_baseline = bytearray(len(self._baseline))
        self._seen_confirmed = bytearray(len(confirmed))
        self._by_list: Counter[str] = Counter()
        self._confirmed_hashes = array("q")
        self._others: dict[str, Card] = {}
        self.count = 0
        """How many cards are listed."""
        self.reused = confirmed.repeated
        """How many rows were confirmed with a card that is another row's, or that existed before the run and is listed."""
        self.samples: dict[str, Card] = {}
        """The listed cards that were asked for as samples, by identifier."""
        self.fields: set[str] = set()
        """The fields that at least one card shows."""

    def add(self, card: Card) -> None:
        """Take note of a card of the board; a listing may show a card twice."""
        if len(self.fields) < len(FIELDS):
            self.fields.update(field for field in FIELDS if getattr(card, field) is not None)
        if (place := self._confirmed.find(card.id)) is not None:
            is_new = not self._seen_confirmed[place]
            self._seen_confirmed[place] = 1
            self.reused += is_new and card.id in self._baseline
            self._confirmed_hashes.append(_look(card))
            if card.id in self._wanted:
                self.samples[card.id] = attrs.evolve(card, extra={})
        elif (place := self._baseline.find(card.id)) is not None:
            is_new = not self._seen_baseline[place]
            self._seen_baseline[place] = 1
        else:
            is_new = card.id not in self._others
            self._others[card.id] = attrs.evolve(card, extra={})
        if is_new:
            self.count += 1
            if card.list_id is not None:
                self._by_list[card.list_id] += 1

    @property
    def unaccounted(self) -> list[Card]:
        """The cards that are neither in the baseline nor confirmed."""
        return [*self._others.values()]

    @property
    def confirmed(self) -> int:
        """How many confirmed cards are listed."""
        return sum(self._seen_confirmed)

    def lacks(self, card_id: str) -> bool:
        """Return True for a confirmed card that is not listed."""
        place = self._confirmed.find(card_id)
        return place is not None and not self._seen_confirmed[place]

    @property
    def missing(self) -> int:
        """How many confirmed cards are not listed."""
        return len(self._seen_confirmed) - self.confirmed

    def extent(self, list_id: str) -> Extent:
        """Return how many cards are listed, and how many of them in a list."""
        return Extent(self.count, self._by_list.get(list_id, -1))

    def has_grown(self, since: Extent) -> bool:
        """Return True if this listing proves that an earlier one was not cut off.

        `since` is the size of the earlier one. A service that cuts listings, or each list, off there would show no more now.
        """
        return self.count > since.total and max(self._by_list.values(), default=0) > since.of_list

    def copies(self) -> dict[str, int]:
        """Return how many confirmed cards look like each unaccounted one, by its id, if any does.

        Cards without names look like no other.
        """
        looks = {card.id: _look(card) for card in self._others.values() if card.name is not None}
        wanted = set(looks.values())
        counts = Counter(look for look in self._confirmed_hashes if look in wanted) if wanted else Counter[int]()
        return {card_id: counts[look] for card_id, look in looks.items() if look in counts}


def _look(card: Card) -> int:
    return hash((card.name, card.desc or None, card.list_id, card.due))
