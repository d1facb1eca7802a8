"""The cards of a listing (4.4), sorted by what is known of their origin. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import groupby
from typing import Final, NamedTuple

import attrs

from boardclient.models import Card

_LIKELY_LIMITS: Final = frozenset(digit * 10**zeros for zeros in range(1, 7) for digit in (5, 10, 20, 25))
"""Likely maximum lengths of a listing: 50, 100, 200, 250, 500, 1000, …"""
FIELDS: Final = ("name", "desc", "list_id", "due")


def find_limit(count: int) -> str | None:
    """Return why a listing of `count` cards may be cut off, None if it need not be."""
    if count not in _LIKELY_LIMITS:
        return None
    return f"the listing shows exactly {count:,} cards, which may be all that it ever shows"


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


class Listing:
    """A listing of a board, read card by card. Owned by one reconciliation or audit.

    `baseline` are the cards that existed before the run, or None if unknown, and `confirmed` those known to belong to rows.
    `samples` are the identifiers of confirmed cards to keep as they are listed. `look` returns a card without what may differ
    between cards that were sent alike.
    """

    def __init__(
        self,
        baseline: IdSet | None,
        confirmed: IdSet,
        samples: Container[str] = (),
        look: Callable[[Card], Card] | None = None,
    ) -> None:
        self.has_baseline = baseline is not None
        self._baseline = IdSet() if baseline is None else baseline
        self._confirmed = confirmed
        self._wanted = samples
        self._look = look
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
            self._confirmed_hashes.append(self._content_hash(card))
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

    @property
    def shows_baseline(self) -> bool:
        """Whether any card of the baseline is listed."""
        return any(self._seen_baseline)

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

    def lacks_evidence(self, recognised: int) -> str | None:
        """Return why no card of the run is known to be listed. It is None if one is.

        `recognised` is how many rows in doubt were found.
        """
        # A listing of the oldest cards shows none of the run's once it is full. On a board that was empty it shows the first.
        was_empty = self.has_baseline and not len(self._baseline)
        if self.confirmed or (was_empty and self.count == recognised):
            return None
        return "no card was confirmed yet, so that nothing shows whether the listing is complete"

    def copies(self) -> list[Card]:
        """Return the unaccounted cards that look exactly like a confirmed one."""
        hashes = set(self._confirmed_hashes) if self._others else set()
        return [card for card in self._others.values() if self._content_hash(card) in hashes]

    def _content_hash(self, card: Card) -> int:
        if self._look is not None:
            card = self._look(card)
        return hash((card.name, card.desc or None, card.list_id, card.due))
