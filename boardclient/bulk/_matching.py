"""Matches rows in doubt with the cards of a board. No I/O. The rules are in docs/design/reconciliation.md.

A row counts as absent only if no card of unknown origin could be its card.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from boardclient.bulk._likeness import (
    DateRule,
    TextRule,
    bare,
    fit_often,
    has_pieces,
    is_beginning,
    learn_dates,
    learn_text,
    tidy,
    without_ellipsis,
)
from boardclient.models import Card, CardDraft

_MOST_PAIRS: Final = 200_000
"""The largest number of pairs of a row and a card that are compared one by one, which takes about a second."""
_MOST_LOOKS: Final = 2000
"""The largest number of texts that are searched for the pieces of one row. Of more, any may be the row's: the search would block
the event loop for seconds."""
_TELLING: Final = 8
"""The least number of letters and digits by which a description alone identifies a renamed card."""


@attrs.frozen
class Content:
    """The fields by which cards are compared. An absent description equals an empty one; `due` is in UTC."""

    name: str
    desc: str
    list_id: str | None
    due: datetime | None

    @classmethod
    def of(cls, draft: CardDraft, desc: str | None = None) -> Content:
        """Return the content of a draft. `desc` is the description as sent, with its marker, if that differs."""
        due = None if draft.due is None else draft.due.astimezone(UTC)
        return cls(draft.name, (draft.desc if desc is None else desc) or "", draft.list_id, due)


def digest(draft: CardDraft) -> bytes:
    """Return a digest of 16 bytes over every field of a draft that is sent."""
    due = None if draft.due is None else draft.due.astimezone(UTC).isoformat()
    parts = (draft.name, draft.desc, draft.list_id, due, draft.pos)
    text = "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@attrs.frozen(kw_only=True)
class Shown:
    """How a service shows cards in its listing, as far as it is known.

    `has_lists` says whether lists distinguish cards. Texts of a kind never seen may be shown in any known way.
    """

    name: TextRule
    desc: TextRule
    due: DateRule
    has_lists: bool

    is_learned: bool
    """Whether it was learned from at least one card. Without one, no text proves that a card belongs to others."""

    @classmethod
    def learn(cls, samples: Sequence[tuple[Content, Card]], fields: Container[str]) -> Shown:
        """Learn from what was sent and the cards it made. `fields` are those that the listing shows."""
        return cls(
            is_learned=bool(samples),
            name=_learn([(sent.name, card.name) for sent, card in samples], is_shown="name" in fields),
            desc=_learn([(sent.desc, _desc(sent, card)) for sent, card in samples], is_shown="desc" in fields),
            due=learn_dates([(sent.due, card.due) for sent, card in samples]) if "due" in fields else DateRule(),
            has_lists="list_id" in fields and fit_often((sent.list_id, card.list_id) for sent, card in samples),
        )

    def predicts(self, row: Content) -> bool:
        """Return True if it is known how the card of a row is shown."""
        return (
            self.name.predicts(row.name)
            and (not self.desc.is_usable or self.desc.predicts(row.desc))
            and (not self.due.is_usable or self.due.shown(row.due) is not None)
        )

    def fine(self, content: Content | Card) -> Hashable:
        """Return a key that is equal for a row and its card if `predicts` holds."""
        due = content.due if isinstance(content, Card) and content.due is not None else self.due.shown(content.due)
        return (
            self.name.form(content.name or "") if self.name.is_usable else None,
            self.desc.form(content.desc or "") if self.desc.is_usable else None,
            content.list_id if self.has_lists else None,
            due if self.due.is_usable else None,
        )

    def coarse(self, content: Content | Card) -> Hashable:
        """Return a key that is equal for a row and its card in any form but a cut one."""
        return (
            bare(self.name.form(content.name or "")) if self.name.is_usable else None,
            bare(self.desc.form(content.desc or "")) if self.desc.is_usable else None,
            content.list_id if self.has_lists else None,
        )

    def tells(self, row: Content) -> bool:
        """Return True if the listing shows a text that identifies a row's card."""
        return self.name.is_usable or (self.desc.is_usable and len(bare(row.desc)) >= _TELLING)

    def may_be(self, row: Content, card: Card) -> bool:
        """Return True if a card with the same coarse key may be the row's."""
        names = row.name, card.name or ""
        descs = row.desc, card.desc or ""
        is_due = not self.due.is_usable or card.due in self.due.possible(row.due)
        return is_due and _agree(self.name, *names) and _agree(self.desc, *descs)


def _learn(pairs: Sequence[tuple[str, str | None]], *, is_shown: bool) -> TextRule:
    if not is_shown:
        return TextRule()
    return learn_text(pairs) if pairs else TextRule(level=0)


def _desc(sent: Content, card: Card) -> str | None:
    return card.desc if card.desc is not None or sent.desc else ""


def _agree(rule: TextRule, sent: str, shown: str) -> bool:
    if not rule.is_usable:
        return True
    if rule.predicts(sent):
        return rule.form(sent) == rule.form(shown)
    return bool(bare(sent)) or tidy(sent) == tidy(shown)


@attrs.define(kw_only=True)
class MatchResult:
    """What a listing says about rows in doubt, which are named by their index.

    Attributes:
        found: The cards of the rows that exist.
        absent: The rows that none of the cards can be.
        unclear: Why nothing is known about each of the other rows.
        left_over: The cards that were matched with no row.
    """

    found: dict[int, Card] = attrs.field(factory=dict)
    absent: list[int] = attrs.field(factory=list)
    unclear: dict[int, str] = attrs.field(factory=dict)
    left_over: list[Card] = attrs.field(factory=list)


def match(rows: Sequence[Content], wholes: Sequence[Hashable], cards: Sequence[Card], shown: Shown) -> MatchResult:
    """Match rows in doubt with cards, each card with at most one row.

    `wholes` has a digest of everything that was sent for each row: rows with equal digests are interchangeable.
    """
    result = MatchResult()
    looks: defaultdict[Hashable, list[Card]] = defaultdict(list)
    for card in cards:
        if card.name is not None or not shown.name.is_usable:
            looks[shown.coarse(card)].append(card)
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[shown.coarse(row)].append(place)
    for look, places in groups.items():
        if look in looks and all(shown.tells(rows[place]) for place in places):
            _assign(_Group(rows, wholes, shown, places, looks[look]), result)
    given = {card.id for card in result.found.values()}
    result.left_over = [card for card in cards if card.id not in given]
    suspects = Suspects(result.left_over, shown)
    for place, row in enumerate(rows):
        if place in result.found or place in result.unclear:
            continue
        if (card_id := suspects.find(row)) is not None:
            result.unclear[place] = f"the card {card_id} may be the row's: it may be shown in another form, or have been changed"
        else:
            result.absent.append(place)
    return result


@attrs.frozen
class _Group:
    """Rows and cards with one coarse key."""

    rows: Sequence[Content]
    wholes: Sequence[Hashable]
    shown: Shown
    places: list[int]
    cards: list[Card]

    def is_uniform(self) -> bool:
        return len({self.wholes[place] for place in self.places}) == 1

    def possible(self) -> dict[int, list[Card]]:
        """Return, for each row, the cards that may be its own."""
        return {place: [card for card in self.cards if self.shown.may_be(self.rows[place], card)] for place in self.places}


_AMBIGUOUS: Final = "the board does not distinguish it from other rows, some of which exist"


def _assign(group: _Group, result: MatchResult) -> None:
    """Match the rows of a group with its cards."""
    if group.is_uniform():
        first = group.rows[group.places[0]]
        result.found.update(zip(group.places, [card for card in group.cards if group.shown.may_be(first, card)], strict=False))
    elif not group.shown.name.is_usable:
        result.unclear.update(dict.fromkeys(group.places, _AMBIGUOUS))
    elif all(group.shown.predicts(group.rows[place]) for place in group.places):
        _assign_predicted(group, result)
    elif len(group.places) * len(group.cards) <= _MOST_PAIRS:
        _assign_possible(group, result)
    else:
        result.unclear.update(dict.fromkeys(group.places, _AMBIGUOUS))


def _assign_predicted(group: _Group, result: MatchResult) -> None:
    """Match rows with cards if it is known how each row is shown."""
    cards: defaultdict[Hashable, list[Card]] = defaultdict(list)
    for card in group.cards:
        cards[group.shown.fine(card)].append(card)
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place in group.places:
        places[group.shown.fine(group.rows[place])].append(place)
    for look, alike in places.items():
        _share(attrs.evolve(group, places=alike, cards=cards[look]), result)


def _share(group: _Group, result: MatchResult) -> None:
    """Match rows with cards if any of the cards may be any of the rows."""
    if len(group.cards) >= len(group.places) or group.is_uniform():
        result.found.update(zip(group.places, group.cards, strict=False))
    elif group.cards:
        result.unclear.update(dict.fromkeys(group.places, _AMBIGUOUS))


def _assign_possible(group: _Group, result: MatchResult) -> None:
    """Match rows with cards if it is not known how each row is shown. Rows with cards in common are matched together."""
    possible = group.possible()
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for place, cards in possible.items():
        for card in cards:
            rows_of[card.id].append(place)
    open_places = {place for place, cards in possible.items() if cards}
    while open_places:
        part, queue = set[int](), [min(open_places)]
        while queue:
            place = queue.pop()
            if place not in part:
                part.add(place)
                queue += [other for card in possible[place] for other in rows_of[card.id]]
        open_places -= part
        places = sorted(part)
        given = _matched(places, possible)
        if len(given) == len(places):
            result.found.update(given)
        else:
            few = {card.id: card for place in places for card in possible[place]}
            _share(attrs.evolve(group, places=places, cards=[*few.values()][: len(places) - 1]), result)


def _matched(places: Sequence[int], possible: dict[int, list[Card]]) -> dict[int, Card]:
    """Match as many rows as possible with a card each, by Kuhn's algorithm."""
    owner: dict[str, int] = {}
    cards = {card.id: card for place in places for card in possible[place]}
    for start in places:
        # Each entry of the path is a row and an iterator over the cards that it has not tried.
        path, tried, taken = [(start, iter(possible[start]))], set[str](), list[str]()
        while path:
            card = next((card for card in path[-1][1] if card.id not in tried), None)
            if card is None:
                path.pop()
                del taken[-1:]
                continue
            tried.add(card.id)
            taken.append(card.id)
            if card.id not in owner:
                owner.update((card_id, row) for card_id, (row, _) in zip(taken, path, strict=True))
                break
            path.append((owner[card.id], iter(possible[owner[card.id]])))
    return {place: cards[card_id] for card_id, place in owner.items()}


class Suspects:
    """Cards of unknown origin, indexed by the texts by which a row is looked up."""

    def __init__(self, cards: Iterable[Card], shown: Shown) -> None:
        self._shown = shown
        self._names: dict[str, str] = {}
        self._descs: dict[str, str] = {}
        self._lengths: Counter[int] = Counter()
        self._desc_lengths: Counter[int] = Counter()
        self._nameless: str | None = None
        self._any: str | None = None
        for card in cards:
            self._any = self._any or card.id
            if card.name is None:
                self._nameless = self._nameless or card.id
            for text, index, lengths in (
                (card.name, self._names, self._lengths),
                (card.desc, self._descs, self._desc_lengths),
            ):
                if text is not None:
                    for look in {bare(text), bare(without_ellipsis(text))}:
                        index.setdefault(look, card.id)
                        lengths[len(look)] += 1

    def find(self, row: Content) -> str | None:
        """Return the identifier of a card that may be the row's, or None if none may be."""
        if self._any is None:
            return None
        shown, desc = self._shown, bare(row.desc)
        if len(desc) >= _TELLING and desc in self._descs:
            return self._descs[desc]  # it may have been renamed
        if not shown.is_learned:
            return self._any
        if shown.name.is_usable:
            return self._nameless or _like(shown.name, row.name, self._names, self._lengths)
        if shown.desc.is_usable and desc:
            return _like(shown.desc, row.desc, self._descs, self._desc_lengths)
        return self._any


def _like(rule: TextRule, sent: str, looks: dict[str, str], lengths: Iterable[int]) -> str | None:
    """Return the identifier of a card whose text may be what was sent, or None."""
    whole = bare(sent)
    if whole in looks:
        return looks[whole]
    if rule.may_cut(sent):
        for length in lengths:
            if whole[:length] in looks and is_beginning(whole, whole[:length]):
                return looks[whole[:length]]
    pieces = rule.pieces(sent)
    if pieces is not None and len(looks) > _MOST_LOOKS:
        return next(iter(looks.values()))
    return None if pieces is None else next((looks[look] for look in looks if has_pieces(look, pieces)), None)


def resembling(cards: Iterable[Card], names: Iterable[str]) -> list[Card]:
    """Return the cards whose name may be one of `names`.

    A name may be cut off. A card without a name may have any.
    """
    wanted = {bare(name) for name in names}
    looks = {card.id: {bare(text), bare(without_ellipsis(text))} for card in cards if (text := card.name) is not None}
    beginnings: set[str] = set(wanted)
    for length in {len(look) for found in looks.values() for look in found}:
        beginnings.update(name[:length] for name in wanted if is_beginning(name, name[:length]))
    return [card for card in cards if wanted and (card.id not in looks or not looks[card.id].isdisjoint(beginnings))]
