"""The markers of a run's rows: which one each row has, and which cards show them. No I/O."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from boardclient.bulk._content import digest
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._likeness import bare, is_rule, tidy
from boardclient.bulk.reconciliation._listing import IdSet
from boardclient.bulk.reconciliation._markers import check_marker, markers, normal, secret_marker, with_marker
from boardclient.bulk.reconciliation._matching import MatchResult
from boardclient.bulk.reconciliation._samples import Sample
from boardclient.bulk.reconciliation._shown import Content
from boardclient.models import Card, CardDraft

Marking: TypeAlias = bool | Callable[[CardDraft], str] | None
"""The option `marker`: a function of the caller that makes them, True for secret ones, otherwise there are none."""


_PIECE: Final = 6
"""How many characters of a secret marker show whose card it is. Equal pieces of two markers are one in a billion."""
_END: Final = 100
"""In how many letters, digits or words at each end of a description parts of markers are looked for."""
_WORD: Final = re.compile(r"[^\W_]+")


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
        self._made = IdSet()
        """The secret markers of this run."""

    def of(self, row: Row) -> str | None:
        """Return the marker of a row, or None if rows have no markers.

        Raises:
            TypeError, ValueError: the caller's function returned an unusable marker.
            Exception: any error that the caller's function raises.
        """
        if row.marker is None and callable(self._marking):
            row.marker = check_marker(self._marking(row.draft))
        elif row.marker is None and self._marking:
            row.marker = secret_marker(self._secret, row.seq)
            self._made.add(row.marker)
        return row.marker

    def description(self, row: Row) -> str | None:
        """Return the description to send for a row, with its marker if there is one. It raises what `of` raises."""
        marker = self.of(row)
        return row.draft.desc if marker is None else with_marker(row.draft.desc, marker)

    def content(self, row: Row) -> Content:
        """Return what is sent for a row. It raises what `of` raises."""
        return Content.of(row.draft, self.description(row))

    # --- the cards of a listing

    def are_listed(self, samples: Sequence[Sample]) -> bool:
        """Return True if the listing shows the markers of known cards. People may have edited a few descriptions."""
        shown = self._shown(samples)
        return any(shown) and is_rule(shown)

    def are_always_listed(self, samples: Sequence[Sample]) -> bool:
        """Return True if the listing shows the markers of all known cards.

        A card without one belongs to others then.
        """
        shown = self._shown(samples)
        return any(shown) and all(shown)

    def _shown(self, samples: Sequence[Sample]) -> list[bool]:
        if not self.are_used:
            return []
        return [normal(sample.marker or "") in markers(sample.card.desc) for sample in samples]

    def cards_of(self, rows: Iterable[Row], cards: Iterable[Card]) -> set[str]:
        """Return the identifiers of the cards that have the marker of one of the rows."""
        return self._cards_with({normal(self.of(row) or "") for row in rows}, cards)

    def cards_of_run(self, cards: Iterable[Card]) -> set[str]:
        """Return the identifiers of the cards that have a secret marker of this run."""
        return self._cards_with(self._made, cards)

    def _cards_with(self, wanted: IdSet | set[str], cards: Iterable[Card]) -> set[str]:
        if not self.are_used:
            return set()
        return {card.id for card in cards if any(marker in wanted for marker in markers(card.desc))}

    def match(self, rows: Collection[Row], cards: Iterable[Card], result: MatchResult) -> None:
        """Match rows with the cards that have their markers."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        drafts = [row.draft for row in rows]
        for place, row in enumerate(rows):
            places[normal(self.of(row) or "")].append(place)
        marked: defaultdict[str, list[Card]] = defaultdict(list)
        for card in cards:
            held = markers(card.desc) & places.keys()
            free = next((marker for marker in sorted(held) if len(marked[marker]) < len(places[marker])), None)
            if free is not None:
                marked[free].append(card)
        for marker, found in marked.items():
            alike: set[Hashable] = {digest(drafts[place]) for place in places[marker]}
            if len(found) == len(places[marker]) or len(alike) == 1:
                result.found.update(zip(places[marker], found, strict=False))
            else:
                result.unclear.update(dict.fromkeys(places[marker], "rows of other content have the same marker"))

    def match_remains(self, rows: Mapping[int, Row], cards: Iterable[Card], result: MatchResult) -> None:
        """Leave rows unclear whose markers are shown in part, or joined with other text.

        Services mask numbers, and put other characters between words.
        """
        places: defaultdict[str, list[int]] = defaultdict(list)
        lengths: set[int] = set()
        for place, row in rows.items():
            units = self._units(self.of(row) or "")
            length = _PIECE if self.are_secret else len(units)
            lengths.add(length)
            for piece in _pieces(units, {length}):
                places[piece].append(place)
        for card in cards:
            units = self._units(card.desc or "")
            for piece in (_pieces(units[:_END], lengths) | _pieces(units[-_END:], lengths)) & places.keys():
                why = f"the card {card.id} may be the row's: it shows a part of its marker"
                result.unclear.update(dict.fromkeys(places[piece], why))

    def _units(self, text: str) -> Sequence[str]:
        """Return the parts that markers consist of.

        They are characters if the markers are secret, words if the caller made them.
        """
        return bare(text) if self.are_secret else _WORD.findall(tidy(text))


def _pieces(units: Sequence[str], lengths: Iterable[int]) -> set[str]:
    return {" ".join(units[start : start + length]) for length in lengths for start in range(len(units) - length + 1) if length}
