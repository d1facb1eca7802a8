"""Which card is whose: what equality proves about rows in doubt. No I/O.

The rules are in docs/design/proof.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from boardclient.bulk._content import Content, EqualCards, normal
from boardclient.bulk._life import Row
from boardclient.bulk._listing import Listing
from boardclient.bulk._markers import RowMarkers
from boardclient.models import Card

_SAMPLES: Final = 32
"""How many of the first and of the last rows of each list are kept as samples."""


class Claim(NamedTuple):
    """A row in doubt: what was sent for it, and after how many readings."""

    content: Content
    digest: bytes
    since: int


def find_equal(
    claims: Sequence[Claim], cards: EqualCards, listed_in: Mapping[str, int]
) -> tuple[dict[int, Card], dict[int, list[Card]]]:
    """Return the card of each row, by its place, that can be no other's.

    It equals what was sent. The second result are the cards that equal rows of which more than one row or card may be meant. Rows
    that are the same share equal cards, as long as there are no more cards than rows. `listed_in` says in which reading of
    the board each card was listed first: a card belongs to no row that was sent later.
    """
    groups: defaultdict[Content, list[int]] = defaultdict(list)
    for place, claim in enumerate(claims):
        groups[claim.content].append(place)
    equal: dict[Content, list[Card]] = {}
    claimed: Counter[str] = Counter()
    for content, places in groups.items():
        since = min(claims[place].since for place in places)
        equal[content] = [card for card in cards.to(content) if listed_in[card.id] > since]
        claimed.update(card.id for card in equal[content])
    found: dict[int, Card] = {}
    unclear: dict[int, list[Card]] = {}
    for content, places in groups.items():
        shared = equal[content]
        are_same = len({claims[place].digest for place in places}) == 1
        if not (are_same and len(shared) <= len(places) and all(claimed[card.id] == 1 for card in shared)):
            unclear.update(dict.fromkeys(places, shared))
            continue
        shared = sorted(shared, key=lambda card: listed_in[card.id])
        for place in sorted(places, key=lambda place: -claims[place].since):
            if shared and listed_in[shared[-1].id] > claims[place].since:
                found[place] = shared.pop()
    return found, unclear


class Samples:
    """Rows whose cards are known: the first and the last ones of each list. Owned by a reconciler."""

    def __init__(self) -> None:
        self._of_list: dict[str, tuple[list[tuple[str, Row]], deque[tuple[str, Row]]]] = {}

    def add(self, card_id: str, row: Row) -> None:
        """Add a row whose card is known."""
        some = self._of_list.get(row.draft.list_id)
        if some is None:
            some = self._of_list[row.draft.list_id] = ([], deque(maxlen=_SAMPLES))
        some[len(some[0]) >= _SAMPLES].append((card_id, row))

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return chain.from_iterable(chain(*some) for some in self._of_list.values())

    @property
    def ids(self) -> set[str]:
        """The identifiers of their cards."""
        return {card_id for card_id, _ in self}


class Evidence:
    """What the samples of a listing show about the lists to which they were sent."""

    def __init__(self, samples: Samples, listing: Listing, markers: RowMarkers) -> None:
        self._lists: set[str] = set()
        """The lists of which samples are listed."""
        self._equal: set[str] = set()
        """Those of which a sample equals what was sent."""
        self._renamed: set[str] = set()
        """Those of which a sample has another name than was sent."""
        is_marked = markers.are_used
        for card_id, row in samples:
            card = listing.samples.get(card_id)
            if card is None:
                continue
            content = markers.content(row)
            self._lists.add(content.list_id)
            if EqualCards([card], listing.fields).to(content):
                self._equal.add(content.list_id)
            if normal(card.name or "") != content.name:
                self._renamed.add(content.list_id)
            is_marked = is_marked and markers.is_shown(row, card)
        self._is_marked = is_marked

    def has_sample(self, list_id: str) -> bool:
        """Return True if a card that was sent to this list is listed."""
        return list_id in self._lists

    def shows_markers(self, list_id: str) -> bool:
        """Return True if each sample shows its own marker, one of this list too."""
        return self._is_marked and self.has_sample(list_id)

    def shows_names(self, list_id: str) -> bool:
        """Return True if the names of all samples of this list are shown as they were sent."""
        return list_id not in self._renamed

    def shows_as_sent(self, list_id: str | None) -> bool:
        """Return False if every sample of this list differs from what was sent.

        Equal cards belong to others then. None means any list.
        """
        if list_id is None:
            return bool(self._equal or not self._lists)
        return list_id in self._equal or not self.has_sample(list_id)


class Suspects:
    """The cards that may belong to rows without one. Owned by one reading.

    No row is known to have created them. Those that can't belong to a row were listed before it was sent, or show no marker where
    every sample shows its own.
    """

    def __init__(self, cards: Sequence[Card], listed_in: Mapping[str, int], evidence: Evidence) -> None:
        self._listed_in = listed_in
        self._evidence = evidence
        self._later: dict[tuple[int, bool], Sequence[Card]] = {}
        self.cards = cards
        self._named: defaultdict[str, list[Card]] = defaultdict(list)
        for card in cards:
            self._named[normal(card.name or "")].append(card)

    def of(self, row: Content, since: int, likely: Sequence[Card], own_desc: str | None) -> Sequence[Card]:
        """Return the cards that may belong to a row, those in `likely` before others.

        The row was last sent after `since` readings. People may have replaced a marker by another description than the row's own.
        Then the card has the row's name, or a name that shows nothing.
        """
        extra, some = [*likely], self._listed_after(since, are_described=False)
        if self._evidence.shows_markers(row.list_id):
            own = normal(own_desc or "")
            extra += [card for card in self._named.get(row.name, ()) if card.desc and normal(card.desc) != own]
            some = [] if self._evidence.shows_names(row.list_id) else self._listed_after(since, are_described=True)
        before = {card.id: card for card in extra if self._listed_in[card.id] > since}
        return [*before.values(), *(card for card in some if card.id not in before)] if before else some

    def _listed_after(self, since: int, *, are_described: bool) -> Sequence[Card]:
        """Return the same list each time, since many rows have it."""
        if (since, are_described) not in self._later:
            self._later[since, are_described] = [
                card for card in self.cards if self._listed_in[card.id] > since and (card.desc or not are_described)
            ]
        return self._later[since, are_described]


def words(cards: Sequence[Card]) -> str:
    """Return the ids of cards for a message, the first of many."""
    some = ", ".join(card.id for card in cards[:5])
    more = f" and {len(cards) - 5:,} more" if len(cards) > 5 else ""
    return f"the card {some}" if len(cards) == 1 else f"the cards {some}{more}"
