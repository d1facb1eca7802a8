"""Matches rows in doubt with the cards of a board. No I/O. The rules are in docs/design/reconciliation.md.

A row counts as absent only if no card of unknown origin could be its card.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import attrs

from boardclient.bulk.reconciliation._likeness import (
    TextRule,
    bare,
    has_pieces,
    is_beginning,
    untagged,
    without_ellipsis,
    without_number,
)
from boardclient.bulk.reconciliation._shown import TELLING, Content, Shown
from boardclient.models import Card

_MOST_PAIRS: Final = 200_000
"""The largest number of pairs of a row and a card that are compared one by one, which takes about a second."""
_MOST_LOOKS: Final = 2000
"""The largest number of texts that are searched for the pieces of one row. Of more, any may be the row's: the search would block
the event loop for seconds."""


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

    def keep(self, count: int) -> None:
        """Remove the results of rows from this index on."""
        self.found = {place: card for place, card in self.found.items() if place < count}
        self.unclear = {place: why for place, why in self.unclear.items() if place < count}
        self.absent = [place for place in self.absent if place < count]

    def doubt(self, why: str) -> None:
        """Turn the rows that were found into unclear ones."""
        self.unclear.update(dict.fromkeys(self.found, why))
        self.found.clear()


def match(rows: Sequence[Content], wholes: Sequence[Hashable], cards: Sequence[Card], shown: Shown) -> MatchResult:
    """Match rows in doubt with cards, each card with at most one row.

    `wholes` has a digest of everything that was sent for each row: rows with equal digests are interchangeable.
    """
    result = MatchResult()
    looks: defaultdict[Hashable, list[Card]] = defaultdict(list)
    listed = {card.id: card for card in cards}
    plain = [shown.plain(card) for card in cards]
    for card in plain:
        if card.name is not None or not shown.name.is_usable:
            looks[shown.coarse(card)].append(card)
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[shown.coarse(row)].append(place)
    for look, places in groups.items():
        if look in looks and all(shown.tells(rows[place]) for place in places):
            _assign(_Group(rows, wholes, shown, places, looks[look]), result)
    result.found = {place: listed[card.id] for place, card in result.found.items()}
    given = {card.id for card in result.found.values()}
    result.left_over = [card for card in cards if card.id not in given]
    suspects = Suspects([card for card in plain if card.id not in given], shown)
    for place, row in enumerate(rows):
        if place in result.found or place in result.unclear:
            continue
        if (card_id := suspects.find(row)) is not None:
            result.unclear[place] = f"the card {card_id} may be the row's: it may be shown in another form, or have been changed"
        else:
            result.absent.append(place)
    return result


def recognise(rows: Sequence[Content], wholes: Sequence[Hashable], result: MatchResult, kept: Shown) -> None:
    """Match rows that are unclear with cards that are left over.

    The rules of how cards are shown were learned by an earlier run. The service may have changed since, so they never prove
    that a row is absent.
    """
    places = sorted(result.unclear)
    found = match([rows[place] for place in places], [wholes[place] for place in places], result.left_over, kept).found
    for number, card in found.items():
        result.found[places[number]] = card
        del result.unclear[places[number]]
    given = {card.id for card in found.values()}
    result.left_over = [card for card in result.left_over if card.id not in given]


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
        self._undescribed: str | None = None
        self._any: str | None = None
        self._nameless_rule = shown.without_name()
        self._rests: dict[Hashable, str] = {}
        for card in cards:
            self._any = self._any or card.id
            self._rests.setdefault(_rest(card, self._nameless_rule), card.id)
            if card.name is None:
                self._nameless = self._nameless or card.id
            if card.desc is None and shown.desc.affixes is not None:
                self._undescribed = self._undescribed or card.id
            for text, index, lengths in (
                (card.name, self._names, self._lengths),
                (card.desc, self._descs, self._desc_lengths),
            ):
                if text is not None:
                    for look in {bare(text), bare(without_ellipsis(text)), bare(without_number(text)), untagged(text)}:
                        index.setdefault(look, card.id)
                        lengths[len(look)] += 1

    def find(self, row: Content) -> str | None:
        """Return the identifier of a card that may be the row's, or None if none may be."""
        if self._any is None:
            return None
        shown, desc = self._shown, bare(row.desc)
        if len(desc) >= TELLING and desc in self._descs:
            return self._descs[desc]  # it may have been renamed
        if desc and (renamed := self._find_renamed(row)) is not None:
            return renamed
        if not shown.is_learned:
            return self._any
        if shown.name.is_usable:
            return self._nameless or _like(shown.name, row.name, self._names, self._lengths)
        if shown.desc.is_usable and desc:
            return self._undescribed or _like(shown.desc, row.desc, self._descs, self._desc_lengths)
        return self._any

    def _find_renamed(self, row: Content) -> str | None:
        """Return the id of a card that equals a row in all but the name."""
        rests = _rests(row, self._nameless_rule) if self._nameless_rule.desc.is_usable else ()
        return next((self._rests[rest] for rest in rests if rest in self._rests), None)


def _like(rule: TextRule, sent: str, looks: dict[str, str], lengths: Iterable[int]) -> str | None:
    """Return the identifier of a card whose text may be what was sent, or None."""
    whole = bare(sent)
    for look in (whole, untagged(sent), *rule.beginnings(sent)):
        if look in looks:
            return looks[look]
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


def find_renamed(rows: Iterable[Content], cards: Iterable[Card], shown: Shown) -> set[str]:
    """Return the ids of the cards that equal a row in all but the name."""
    rule = shown.without_name()
    # A description of a kind that was never seen may be shown in any form.
    vague = attrs.evolve(rule, desc=TextRule())
    rests: set[Hashable] = set()
    for row in rows:
        rests |= _rests(row, rule if rule.desc.predicts(row.desc) else vague)
    if not rests:
        return set()
    return {card.id for card in map(shown.plain, cards) if _rest(card, rule) in rests or _rest(card, vague) in rests}


def _rest(card: Card, rule: Shown) -> Hashable:
    return rule.coarse(card), card.due if rule.due.is_usable else None


def _rests(row: Content, rule: Shown) -> set[Hashable]:
    """Return the values that `_rest` may have for the card of a row."""
    look = rule.coarse(row)
    return {(look, due) for due in (rule.due.possible(row.due) if rule.due.is_usable else {None})}
