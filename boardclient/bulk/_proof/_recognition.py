"""By what cards are recognised as those of rows: markers, and what was sent for them. No I/O.

The rules are in docs/design/proof.md.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import attrs

from boardclient.bulk._content import (
    FIELDS,
    MARKER_LENGTH,
    Content,
    EqualCards,
    IdSet,
    check_marker,
    digest,
    job_marker,
    markers,
    normal,
    probe_number,
    secret_marker,
    with_job,
    with_marker,
)
from boardclient.bulk._ledger import Doubt
from boardclient.bulk._life import Row
from boardclient.bulk._proof._board import Listing, appearance
from boardclient.models import Card, CardDraft

Marking: TypeAlias = bool | Callable[[CardDraft], str] | None
"""The option `marker`: a function of the caller that makes them, True for secret ones, otherwise there are none."""

_SAMPLES_AT_EACH_END: Final = 32
"""How many of the first and of the last rows of each list are kept as samples."""


@attrs.define
class Matches:
    """The card of each row that was recognised, and for others the cards of which it is not clear whose they are.

    Rows of earlier runs that are not in the input are known by what is left of them.
    """

    found: dict[Row | Doubt, Card] = attrs.field(factory=dict)
    unclear: dict[Row | Doubt, Sequence[Card]] = attrs.field(factory=dict)

    def __contains__(self, row: Row) -> bool:
        return row in self.found or row in self.unclear

    def __or__(self, other: Matches) -> Matches:
        return Matches(self.found | other.found, self.unclear | other.unclear)

    @property
    def card_ids(self) -> set[str]:
        """The identifiers of the cards that are rows'."""
        return {card.id for card in self.found.values()}

    def without(self, cards: Iterable[Card]) -> list[Card]:
        """Return those of some cards that are no row's."""
        owned = self.card_ids
        return [card for card in cards if card.id not in owned]


# --- markers


class RowMarkers:
    """Gives rows their markers, and recognises cards by them. Owned by a reconciler.

    Args:
        marking: What makes the markers.
        secret: The secret from which those with `marking=True` are derived.
    """

    def __init__(self, marking: Marking, secret: bytes) -> None:
        self.are_used = bool(marking)
        self.are_secret = self.are_used and not callable(marking)
        self._marking = marking
        self._secret = secret
        self._job = job_marker(secret)
        self._made = IdSet()
        """The markers that cards of rows may show."""

    def of(self, row: Row) -> str | None:
        """Return the marker of a row, or None if rows have no markers.

        Raises:
            TypeError, ValueError: the caller's function returned an unusable marker.
            Exception: any error that the caller's function raises.
        """
        if row.marker is None and self._marking:
            if callable(self._marking):
                made = self._marking(row.draft)
            else:
                # The first number of a row, under which an earlier run has sent it: the marker must be the same in each.
                made = secret_marker(self._secret, row.seq if row.first_seq is None else row.first_seq)
            # Kept on the row: the caller's function may return another text the next time.
            row.marker = check_marker(made)
            self._made.add(row.marker.casefold())
        return row.marker

    def _shown_as(self, row: Row) -> str:
        """Return the marker of a row without case, "" if rows have none."""
        return (self.of(row) or "").casefold()

    def know(self, doubts: Iterable[Doubt]) -> None:
        """Note that cards may show the secret markers of rows that are not in the input."""
        for marker in self._of_doubts(doubts):
            self._made.add(marker)

    def _of_doubts(self, doubts: Iterable[Doubt]) -> set[str]:
        return {secret_marker(self._secret, doubt.seq) for doubt in doubts} if self.are_secret else set()

    def description(self, row: Row) -> str | None:
        """Return the description to send for a row, with its marker if there is one. It raises what `of` raises."""
        marker = self.of(row)
        return row.draft.desc if marker is None else with_marker(row.draft.desc, marker)

    def content(self, row: Row) -> Content:
        """Return what is sent for a row. It raises what `of` raises."""
        return Content.of(row.draft, self.description(row))

    def shown(self, card: Card) -> set[str]:
        """Return the words of a card's description that may be markers, without case."""
        return with_job(markers(card.desc), self._job) if self.are_secret else markers(card.desc)

    def is_shown(self, row: Row, card: Card) -> bool:
        return self._shown_as(row) in self.shown(card)

    def shows_another(self, row: Row, card: Card) -> bool:
        """Return True if a card shows a secret marker of the job, and not that of a row."""
        shown = [word for word in markers(card.desc) if word.startswith(self._job)] if self.are_secret else []
        return bool(shown) and self._shown_as(row) not in shown

    def unmade(self, cards: Iterable[Card]) -> dict[str, str]:
        """Return the secret markers of the job that cards show and no known row has, and the cards."""
        if not self.are_secret:
            return {}
        return {
            word: card.id
            for card in cards
            for word in markers(card.desc)
            if word.startswith(self._job)
            and len(word) == MARKER_LENGTH
            and word not in self._made
            and probe_number(self._secret, word) is None
        }

    def of_all(self, rows: Iterable[Row]) -> set[str]:
        """Return the markers of rows, without case."""
        return {self._shown_as(row) for row in rows} if self.are_used else set()

    def cards_of_rows(self, cards: Iterable[Card]) -> set[str]:
        """Return the ids of the cards that show the marker of any row that has one."""
        return self._cards_with(self._made, cards)

    def cards_of(self, rows: Iterable[Row], cards: Iterable[Card]) -> set[str]:
        """Return the ids of the cards that show the marker of one of these rows."""
        return self._cards_with(self.of_all(rows), cards)

    def cards_of_doubts(self, doubts: Iterable[Doubt], cards: Iterable[Card]) -> set[str]:
        """Return the ids of the cards that show the marker of one of these rows, which are not in the input."""
        return self._cards_with(self._of_doubts(doubts), cards)

    def _cards_with(self, wanted: IdSet | set[str], cards: Iterable[Card]) -> set[str]:
        if not self.are_used:
            return set()
        return {card.id for card in cards if any(marker in wanted for marker in self.shown(card))}

    def match(self, rows: Sequence[Row], cards: Iterable[Card]) -> Matches:
        """Return the card of each row that shows its marker.

        If rows share a marker, it is clear whose a card is only if they are equal or have as many cards. A card with the markers
        of several rows is that of the one whose name it has. A marker that others know, since the caller's function made it, may
        be mentioned in any description: it proves together with the name of its row.
        """
        matches = Matches()
        if not self.are_used:
            return matches
        marked: defaultdict[str, _MarkedRows] = defaultdict(_MarkedRows)
        for row in rows:
            group = marked[self._shown_as(row)]
            group.rows.append(row)
            group.names.add(normal(row.draft.name))
        named = {row.named for row in rows}
        showing = [_MarkedCard.of(card, shown, marked) for card in cards if (shown := self.shown(card) & marked.keys())]
        # Descriptions are copied into other cards: one that a response named, or with the name of the row, is rather its own.
        for one in sorted(showing, key=lambda one: (one.card.id not in named, not one.has_name)):
            for marker in one.markers:
                marked[marker].add(one.card, is_proof=len(one.markers) == 1 and (one.has_name or self.are_secret))
        for group in marked.values():
            group.decide(matches)
        return matches


class _MarkedCard(NamedTuple):
    """A card that shows markers of rows, and those of them by which it may be a row's."""

    card: Card
    markers: set[str]
    has_name: bool
    """Whether it has the name of such a row."""

    @classmethod
    def of(cls, card: Card, shown: set[str], marked: Mapping[str, _MarkedRows]) -> _MarkedCard:
        # A card that was copied has the markers of its original, and people give the copy another name.
        name = normal(card.name or "")
        own = {marker for marker in shown if name in marked[marker].names}
        return cls(card, own or shown, bool(own))


@attrs.define
class _MarkedRows:
    """The rows with one marker, and the cards that show it."""

    rows: list[Row] = attrs.field(factory=list)
    names: set[str] = attrs.field(factory=set)
    _own: list[Card] = attrs.field(factory=list, init=False)
    _shared: list[Card] = attrs.field(factory=list, init=False)
    """Those that may also be another's."""

    def add(self, card: Card, *, is_proof: bool) -> None:
        if not is_proof:
            self._shared.append(card)
        # More cards than rows can't all be rows' own: what is too many is a copy.
        elif len(self._own) < len(self.rows):
            self._own.append(card)

    def decide(self, matches: Matches) -> None:
        """Give the rows their cards, or say that these may be theirs."""
        cards = [*self._own, *self._shared]
        if not cards:
            return
        # Rows that are the same in all may share their cards in any way: each gets one, and no result is untrue.
        if len(self._own) == len(self.rows) or not (self._shared or _differ(digest(row.draft) for row in self.rows)):
            matches.found.update(zip(self.rows, self._own, strict=False))
        else:
            matches.unclear.update(dict.fromkeys(self.rows, cards))


# --- equality and evidence


class Sought(NamedTuple):
    """A row in doubt: what was sent for it, and after how many readings."""

    row: Row | Doubt
    content: Content
    digest: bytes
    readings: int


def find_equal(sought: Iterable[Sought], cards: EqualCards, listed_in: Mapping[str, int]) -> Matches:
    """Return the card of each row that equals what was sent and can be no other's.

    Rows that are the same share equal cards, as long as there are no more cards than rows. `listed_in` says in which reading of
    the board each card was listed first: a card belongs to no row that was sent later.
    """
    sought_by: defaultdict[Content, list[Sought]] = defaultdict(list)
    for one in sought:
        sought_by[one.content].append(one)
    equal: dict[Content, list[Card]] = {}
    for content, some in sought_by.items():
        readings = min(one.readings for one in some)
        # A card that was listed before the last request ended can't be that request's.
        equal[content] = [card for card in cards.to(content) if listed_in[card.id] > readings]
    times_equal = Counter(card.id for shared in equal.values() for card in shared)
    matches = Matches()
    for content, some in sought_by.items():
        rows, shared = [one.row for one in some], equal[content]
        # With a card too many, one of them is other people's, and nothing says which.
        is_alone = len(shared) <= len(rows) and all(times_equal[card.id] == 1 for card in shared)
        if is_alone and not _differ(one.digest for one in some):
            matches.found.update(zip(rows, shared, strict=False))
        else:
            matches.unclear.update(dict.fromkeys(rows, shared))
    return matches


def _differ(digests: Iterable[bytes]) -> bool:
    return len(set(digests)) > 1


class Appearances:
    """What known cards look like, as hashes. Owned by a reconciler."""

    def __init__(self) -> None:
        self._sent = array("q")
        """Of what was sent for the rows whose cards are known."""
        self._noted, self._new = IdSet(), array("q")
        """Of each identifier with what was sent for its row, or what the card showed at the start."""

    def record(self, card_id: str, card: Card | CardDraft) -> None:
        """Note what a known card looks like, or what was sent for its row."""
        self._new.append(hash((card_id, appearance(card))))

    def record_row(self, card_id: str, draft: CardDraft) -> None:
        """Note the card of a row, and what was sent for it."""
        self._sent.append(appearance(draft))
        self.record(card_id, draft)

    def has(self, card_id: str, card: Card | CardDraft) -> bool:
        """Return True if this was noted: few runs ask, so the set is made only then."""
        # As a set only now: building it costs more than all that most runs ask of it.
        while self._new:
            self._noted.add(self._new.pop())
        return hash((card_id, appearance(card))) in self._noted

    def sent_like(self, cards: Iterable[Card]) -> set[str]:
        """Return the identifiers of the cards that look exactly like what was sent for a row whose card is known."""
        looks = {card.id: appearance(card) for card in cards}
        sent = set(filter(set(looks.values()).__contains__, self._sent))
        return {card_id for card_id, look in looks.items() if look in sent}


class Samples:
    """Rows whose cards are known: the first and the last ones of each list. Owned by a reconciler."""

    def __init__(self) -> None:
        self._of_list: dict[str, tuple[list[tuple[str, Row]], deque[tuple[str, Row]]]] = {}

    def add(self, card_id: str, row: Row) -> None:
        some = self._of_list.get(row.draft.list_id)
        if some is None:
            some = self._of_list[row.draft.list_id] = ([], deque(maxlen=_SAMPLES_AT_EACH_END))
        # The last ones show that late cards are listed, the first ones that early cards still are.
        some[len(some[0]) >= _SAMPLES_AT_EACH_END].append((card_id, row))

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return chain.from_iterable(chain(*some) for some in self._of_list.values())

    @property
    def ids(self) -> set[str]:
        """The identifiers of their cards."""
        return {card_id for card_id, _ in self}


class Evidence:
    """What the samples of a listing show about the lists to which they were sent.

    A listed probe is a later card of its list, too, and shows with secret markers whether descriptions keep them. It says nothing
    about equality, or the markers of a caller's function.
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
        sent_with = _fields_of(content for row, content, _ in sent if not row.is_probe)
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
                # One that people have changed meanwhile proves nothing against the others, so one equal card is enough.
                if EqualCards([card], self.fields).to(content):
                    self._equal.add(content.list_id)
            if markers.are_secret or not row.is_probe:
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
        """Return True if each sample shows its own marker, and none is of this list."""
        return self.is_marked and list_id not in self._marked

    def is_longer(self, row: Content) -> bool:
        """Return True if the description of a row is longer than that of each sample of its list: a limit may have dropped it."""
        return len(row.desc or "") > self._longest.get(row.list_id, 0)


def _fields_of(contents: Iterable[Content]) -> set[str]:
    """Return the fields with which at least one was sent."""
    return {field for content in contents for field in FIELDS if getattr(content, field) is not None}


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

    def of(self, row: Content, readings: int, own_desc: str | None) -> Sequence[Card]:
        """Return the cards that may belong to a row, which was last sent after `readings` readings.

        Where every sample shows its marker, people may have replaced the row's by a description. Such a card has another one than
        `own_desc`, and the row's name, or a name that shows nothing. A card without a description may be the row's only if the
        row's was longer than those of the samples.
        """
        is_marked, may_lack = self._evidence.shows_markers(row.list_id), self._evidence.is_longer(row)
        if not (is_marked and self._evidence.shows_names):
            return self._listed_after(readings, are_described=is_marked and not may_lack)
        # A card with exactly the row's own text was sent without a marker, so it is other people's.
        own = normal(own_desc or "")
        return [
            card
            for card in self._named.get(row.name, ())
            if self._listed_in[card.id] > readings and (may_lack if not card.desc else normal(card.desc) != own)
        ]

    def _listed_after(self, readings: int, *, are_described: bool) -> Sequence[Card]:
        """Return the same list each time, since many rows have it."""
        if (readings, are_described) not in self._later:
            cards = [card for card in self._cards if self._listed_in[card.id] > readings and (card.desc or not are_described)]
            self._later[readings, are_described] = cards
        return self._later[readings, are_described]
