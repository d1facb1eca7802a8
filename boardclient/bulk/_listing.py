"""The cards of a listing (4.4), sorted by what is known of their origin. No I/O."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import chain
from typing import Final, NamedTuple

import attrs

from boardclient.bulk._content import FIELDS, shown_fields
from boardclient.models import Card, CardDraft

_MOST_LATEST: Final = 2**16
"""How many identifiers a set keeps as they are: 8 MiB of them. Looking one up there takes a third of the time."""


class Extent(NamedTuple):
    """How many cards a listing showed, in total and in the list of one row.

    The latter is -1 if it showed none of the list, or does not show lists at all.
    """

    total: int
    of_list: int


class Missing(NamedTuple):
    """How many confirmed cards a listing lacks.

    `deleted` are those that are deleted, `hidden` those that exist, or may. `is_incomplete` says that one of them may be on the
    board, in a list that is open, so that the listing may be cut off.
    """

    deleted: int = 0
    hidden: int = 0
    is_incomplete: bool = False


class IdSet:
    """A set of identifiers or hashes, for millions of them: the latest as they are, the others as hashes of 12 to 24 bytes each.

    Hashes differ between processes, so it must not be stored.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._latest: set[str | int] = set()
        self._table: array[int] | None = None
        """An open table of the hashes of the others, if there are any."""
        self._number = 0
        """How many it has: numbers other than 0, which marks a free place."""
        self.taken: IdSet | None = None
        """Others that can't be added."""
        self.repeated: int = sum(not self.add(identifier) for identifier in ids)
        """How many of `ids` were given before."""

    def add(self, identifier: str | int) -> bool:
        """Add an identifier. Return False if the set had it, or it is taken."""
        latest = self._latest
        if identifier in latest or (self._table is not None and self._table[_place(self._table, _hash(identifier))]):
            return False
        if self.taken is not None and identifier in self.taken:
            return False
        latest.add(identifier)
        if len(latest) > _MOST_LATEST:
            self._hash_latest()
        return True

    def _hash_latest(self) -> None:
        """Move the latest identifiers to the table, which is at most two thirds full afterwards."""
        self._number += len(self._latest)
        before: Iterable[int] = ()
        if self._table is None or 3 * self._number > 2 * len(self._table):
            before, self._table = self._table or (), array("q", bytes(8 << (3 * self._number // 2).bit_length()))
        for value in chain(filter(None, before), map(_hash, self._latest)):
            self._table[_place(self._table, value)] = value
        self._latest = set()

    def __contains__(self, identifier: str | int) -> bool:
        return identifier in self._latest or (
            self._table is not None and bool(self._table[_place(self._table, _hash(identifier))])
        )

    def __len__(self) -> int:
        return self._number + len(self._latest)


def _hash(identifier: str | int) -> int:
    return hash(identifier) or 1


def _place(table: array[int], value: int) -> int:
    """Return the place of a number other than 0 in an open table, or the free one that it would get."""
    mask = len(table) - 1
    place = value & mask
    while (found := table[place]) and found != value:
        place = (place + 1) & mask
    return place


class Listing:
    """A listing of a board, read card by card. Owned by one reading.

    `baseline` are the cards that existed before the run, or None if unknown, and `confirmed` those known to belong to rows.
    `samples` are the identifiers of confirmed cards to keep as they are listed. `is_doubted` tells which of these cards to
    keep since they may be others by now: a service may give the identifier of a deleted card again.
    """

    def __init__(
        self,
        baseline: IdSet | None,
        confirmed: IdSet,
        samples: Container[str] = (),
        is_doubted: Callable[[Card], bool] | None = None,
    ) -> None:
        self.has_baseline = baseline is not None
        self.count = 0
        """How many cards are listed."""
        self.confirmed = 0
        """How many confirmed cards are listed."""
        self.reused = confirmed.repeated
        """How many rows were confirmed with a card that is another row's."""
        self.unaccounted: list[Card] = []
        """The cards that are neither in the baseline nor confirmed."""
        self.doubted: list[Card] = []
        """The cards in the baseline or confirmed that `is_doubted` keeps."""
        self.samples: dict[str, Card] = {}
        """The listed cards that were asked for as samples, by identifier."""
        self.fields: set[str] = set()
        """The fields that at least one card shows."""
        self._baseline = IdSet() if baseline is None else baseline
        self._all_confirmed = confirmed
        self._wanted = samples
        self._is_doubted = is_doubted
        self._seen = IdSet()
        self._by_list: Counter[str] = Counter()
        self._looks = array("q")
        """What the confirmed cards look like."""

    def add(self, card: Card) -> None:
        """Take note of a card of the board; a listing may show a card twice."""
        if not self._seen.add(card.id):
            return
        self.count += 1
        if card.list_id is not None:
            self._by_list[card.list_id] += 1
        if len(self.fields) < len(FIELDS):
            self.fields |= shown_fields([card])
        was_there = card.id in self._baseline
        if card.id in self._all_confirmed:
            self.confirmed += 1
            self._looks.append(look(card))
            if card.id in self._wanted:
                self.samples[card.id] = attrs.evolve(card, extra={})
        elif not was_there:
            self.unaccounted.append(attrs.evolve(card, extra={}))
            return
        if self._is_doubted is not None and self._is_doubted(card):
            self.doubted.append(attrs.evolve(card, extra={}))

    def has_row(self, card_id: str) -> bool:
        """Return True if a card was known to belong to a row."""
        return card_id in self._all_confirmed

    def lacks(self, card_id: str) -> bool:
        """Return True for a confirmed card that is not listed."""
        return card_id in self._all_confirmed and card_id not in self._seen

    @property
    def missing(self) -> int:
        """How many confirmed cards are not listed."""
        return len(self._all_confirmed) - self.confirmed

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
        looks = {card.id: look(card) for card in self.unaccounted if card.name is not None}
        counts = Counter(filter(set(looks.values()).__contains__, self._looks))
        return {card_id: counts[seen] for card_id, seen in looks.items() if seen in counts}


def look(card: Card | CardDraft) -> int:
    """Return a hash of what a card shows, or of what a draft sends."""
    return hash((card.name, card.desc or None, card.list_id, card.due))
