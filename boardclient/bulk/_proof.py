"""A listing of a board, and what equality and markers prove about its cards (4.4). No I/O.

The rules are in docs/design/proof.md.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import attrs

from boardclient.bulk._life import Extent, Row
from boardclient.bulk._recognition import FIELDS, Content, EqualCards, IdSet, RowMarkers, normal, shown_fields
from boardclient.models import Card, CardDraft

_SAMPLES_AT_EACH_END: Final = 32
"""How many of the first and of the last rows of each list are kept as samples."""


# --- a listing


class Missing(NamedTuple):
    """The confirmed cards that a listing lacks.

    `deleted` are the identifiers of those that are deleted, `hidden` the number of those that exist, or may. `is_incomplete` says
    that one of them may be on the board, in a list that is open, so that the listing may be cut off.
    """

    deleted: frozenset[str] = frozenset()
    hidden: int = 0
    is_incomplete: bool = False


class Listing:
    """A listing of a board, read card by card. Owned by one reading.

    `baseline` are the cards that existed before the run, or None if unknown, and `confirmed` those known to belong to rows.
    `samples` are the identifiers of cards to keep as they are listed. `is_recycled` tells which cards with known identifiers to
    keep: a service may give the identifier of a deleted card again. `probes` are the cards of probes, which are nobody's.
    """

    def __init__(
        self,
        baseline: IdSet | None,
        confirmed: IdSet,
        samples: Container[str] = (),
        is_recycled: Callable[[Card], bool] | None = None,
        probes: IdSet | None = None,
    ) -> None:
        self.has_baseline = baseline is not None
        self.count = 0
        """How many cards are listed."""
        self.confirmed = 0
        """How many confirmed cards are listed."""
        self.reused = confirmed.repeated
        """How many rows were confirmed with a card that is another row's."""
        self.unaccounted: list[Card] = []
        """The cards that are neither in the baseline nor confirmed, nor those of probes."""
        self.recycled: list[Card] = []
        """The cards that `is_recycled` keeps."""
        self.samples: dict[str, Card] = {}
        """The listed cards that were asked for as samples, by identifier."""
        self.fields: set[str] = set()
        """The fields that at least one card shows."""
        self._baseline = IdSet() if baseline is None else baseline
        self._all_confirmed = confirmed
        self._wanted = samples
        self._is_recycled = is_recycled
        self._probes = IdSet() if probes is None else probes
        self._seen = IdSet()
        self._by_list: Counter[str] = Counter()
        self._appearances = array("q")
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
        if card.id in self._wanted:
            self.samples[card.id] = attrs.evolve(card, extra={})
        if card.id in self._all_confirmed:
            self.confirmed += 1
            self._appearances.append(appearance(card))
        elif card.id not in self._baseline and card.id not in self._probes:
            self.unaccounted.append(attrs.evolve(card, extra={}))
            return
        if self._is_recycled is not None and self._is_recycled(card):
            self.recycled.append(attrs.evolve(card, extra={}))

    def has_row(self, card_id: str) -> bool:
        """Return True if a card was known to belong to a row."""
        return card_id in self._all_confirmed

    def lacks(self, card_id: str) -> bool:
        """Return True for a confirmed card that is not listed."""
        return card_id in self._all_confirmed and card_id not in self._seen

    def shows(self, card_id: str) -> bool:
        """Return True for a card that is listed."""
        return card_id in self._seen

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
        appearances = {card.id: appearance(card) for card in self.unaccounted if card.name is not None}
        counts = Counter(filter(set(appearances.values()).__contains__, self._appearances))
        return {card_id: counts[seen] for card_id, seen in appearances.items() if seen in counts}


def appearance(card: Card | CardDraft) -> int:
    """Return a hash of what a card shows, or of what a draft sends."""
    return hash((card.name, card.desc or None, card.list_id, card.due))


# --- what it proves


class Claim(NamedTuple):
    """A row in doubt: what was sent for it, and after how many readings."""

    content: Content
    digest: bytes
    since: int


def find_equal(
    claims: Mapping[int, Claim], cards: EqualCards, listed_in: Mapping[str, int]
) -> tuple[dict[int, Card], dict[int, list[Card]]]:
    """Return the card of each row, by its place, that equals what was sent and can be no other's.

    The second result has, for each other row, the cards that equal it, if there are any. Rows that are the same share equal
    cards, as long as there are no more cards than rows. `listed_in` says in which reading of the board each card was listed
    first: a card belongs to no row that was sent later.
    """
    groups: defaultdict[Content, list[int]] = defaultdict(list)
    for place, claim in claims.items():
        groups[claim.content].append(place)
    equal: dict[Content, list[Card]] = {}
    for content, places in groups.items():
        since = min(claims[place].since for place in places)
        equal[content] = [card for card in cards.to(content) if listed_in[card.id] > since]
    claimed = Counter(card.id for some in equal.values() for card in some)
    found: dict[int, Card] = {}
    unclear: dict[int, list[Card]] = {}
    for content, places in groups.items():
        shared = equal[content]
        are_same = len({claims[place].digest for place in places}) == 1
        if are_same and len(shared) <= len(places) and all(claimed[card.id] == 1 for card in shared):
            found.update(zip(places, shared, strict=False))
        else:
            unclear.update(dict.fromkeys(places, shared))
    return found, unclear


class Samples:
    """Rows whose cards are known: the first and the last ones of each list. Owned by a reconciler."""

    def __init__(self) -> None:
        self._of_list: dict[str, tuple[list[tuple[str, Row]], deque[tuple[str, Row]]]] = {}

    def add(self, card_id: str, row: Row) -> None:
        """Add a row whose card is known."""
        some = self._of_list.get(row.draft.list_id)
        if some is None:
            some = self._of_list[row.draft.list_id] = ([], deque(maxlen=_SAMPLES_AT_EACH_END))
        some[len(some[0]) >= _SAMPLES_AT_EACH_END].append((card_id, row))

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return chain.from_iterable(chain(*some) for some in self._of_list.values())

    @property
    def ids(self) -> set[str]:
        """The identifiers of their cards."""
        return {card_id for card_id, _ in self}


class Evidence:
    """What the samples of a listing show about the lists to which they were sent.

    Probes, too, show what comes later in a list and, with secret markers, whether descriptions keep them. They say nothing about
    rows that are known by what they say.
    """

    def __init__(self, samples: Samples, listing: Listing, markers: RowMarkers, probes: Iterable[tuple[str, Row]] = ()) -> None:
        self._latest: dict[str, int] = {}
        """The lists of which samples are listed, with the number of the last request among these."""
        self._lists: set[str] = set()
        """Those of which samples are listed that are rows."""
        self._marked: set[str] = set()
        """Those of which samples are listed that have markers of the same kind as rows."""
        self._equal: set[str] = set()
        """Those of which a sample equals what was sent."""
        self._longest: dict[str, int] = {}
        """The length of the longest description that was sent for a sample of each list."""
        self.shows_names = True
        """Whether the names of all samples are shown as they were sent."""
        self.is_marked = markers.are_used
        """Whether each sample shows its own marker."""
        sent = [
            (row, markers.content(row), card)
            for card_id, row in chain(samples, probes)
            if (card := listing.samples.get(card_id)) is not None
        ]
        of_rows = [content for row, content, _ in sent if not row.is_probe]
        sent_with = {field for field in FIELDS if any(getattr(content, field) is not None for content in of_rows)}
        if sent:
            sent_with.add("list_id")  # each card has a list: if no card shows it, a probe proves that as well
        self.fields = {*FIELDS} - (sent_with - listing.fields)
        """The fields that are compared: all but those that no card shows, though a sample was sent with them."""
        self.awaits_lists = "list_id" in self.fields - listing.fields
        """Whether no card shows its list, and no sample has shown that none does."""
        for row, content, card in sent:
            self._latest[content.list_id] = max(row.sent_as, self._latest.get(content.list_id, 0))
            if not row.is_probe:
                self._lists.add(content.list_id)
                if EqualCards([card], self.fields).to(content):
                    self._equal.add(content.list_id)
            elif not markers.are_secret:
                continue
            self._marked.add(content.list_id)
            self._longest[content.list_id] = max(len(content.desc or ""), self._longest.get(content.list_id, 0))
            self.shows_names = self.shows_names and normal(card.name or "") == content.name
            self.is_marked = self.is_marked and markers.is_shown(row, card)

    def has_later_sample(self, row: Row) -> bool:
        """Return True if a card is listed that was sent to a row's list after the row."""
        return self._latest.get(row.draft.list_id, 0) > row.sent_as

    def shows_as_sent(self, list_id: str | None) -> bool:
        """Return False if every sample of this list differs from what was sent: equal cards belong to others then.

        None means any list.
        """
        if list_id is None:
            return bool(self._equal or not self._lists)
        return list_id in self._equal or list_id not in self._lists

    def shows_markers(self, list_id: str) -> bool:
        """Return True if each sample shows its own marker, one of this list too."""
        return self.is_marked and list_id in self._marked

    def lacks_markers(self, list_id: str) -> bool:
        """Return True if only a sample of this list is missing that shows its own marker."""
        return self.is_marked and list_id not in self._marked

    def is_longer(self, row: Content) -> bool:
        """Return True if the description of a row is longer than that of each sample of its list: a limit may have dropped it."""
        return len(row.desc or "") > self._longest.get(row.list_id, 0)


class Suspects:
    """Cards that may belong to rows for which none was recognised: no row is known to have created them. Owned by one reading."""

    def __init__(self, cards: Sequence[Card], listed_in: Mapping[str, int], evidence: Evidence) -> None:
        self._cards = cards
        self._named: defaultdict[str, list[Card]] = defaultdict(list)
        for card in cards:
            self._named[normal(card.name or "")].append(card)
        self._listed_in = listed_in
        self._evidence = evidence
        self._later: dict[tuple[int, bool], Sequence[Card]] = {}

    def of(self, row: Content, since: int, own_desc: str | None) -> Sequence[Card]:
        """Return the cards that may belong to a row, which was last sent after `since` readings.

        Where every sample shows its marker, people may have replaced the row's by a description. Such a card has another one than
        `own_desc`, and the row's name, or a name that shows nothing. A card without a description may be the row's only if the
        row's was longer than those of the samples.
        """
        is_marked, may_lack = self._evidence.shows_markers(row.list_id), self._evidence.is_longer(row)
        if not (is_marked and self._evidence.shows_names):
            return self._listed_after(since, are_described=is_marked and not may_lack)
        own = normal(own_desc or "")
        return [
            card
            for card in self._named.get(row.name, ())
            if self._listed_in[card.id] > since and (may_lack if not card.desc else normal(card.desc) != own)
        ]

    def _listed_after(self, since: int, *, are_described: bool) -> Sequence[Card]:
        """Return the same list each time, since many rows have it."""
        if (since, are_described) not in self._later:
            cards = [card for card in self._cards if self._listed_in[card.id] > since and (card.desc or not are_described)]
            self._later[since, are_described] = cards
        return self._later[since, are_described]
