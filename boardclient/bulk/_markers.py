"""Markers: short codes in descriptions by which a run recognises its cards. No I/O."""

from __future__ import annotations

import hmac
import html
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from boardclient.bulk._content import Content, digest
from boardclient.bulk._life import Row
from boardclient.bulk._listing import IdSet
from boardclient.models import Card, CardDraft

Marking: TypeAlias = bool | Callable[[CardDraft], str] | None
"""The option `marker`: a function of the caller that makes them, True for secret ones, otherwise there are none."""

_TOKEN: Final = re.compile(r"[^\s\[\]]+")
_LETTERS: Final = "bcdfghjklmnpqrst"
"""The letters of secret markers, of which each stands for four bits."""
_SECRET: Final = re.compile(f"bc[{_LETTERS}]{{16}}")


_FROM_HEX: Final = str.maketrans("0123456789abcdef", _LETTERS)


def secret_marker(secret: bytes, seq: int) -> str:
    """Return the marker of a row, 18 letters.

    It can't be guessed without the secret, and is the same in each run with one journal. All have the same shape, and none has
    punctuation, digits or vowels: a service or an automation that changes such texts changes each marker or none.
    """
    code = hmac.digest(secret, str(seq).encode(), "sha256")[:8].hex()
    return "bc" + code.translate(_FROM_HEX)


def check_marker(text: object) -> str:
    """Return a marker that the caller's function made, if it is usable.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty, or has a space or a square bracket.
    """
    if not isinstance(text, str):
        raise TypeError(f"marker must return a string, not {type(text).__name__}")
    if not _TOKEN.fullmatch(text):
        raise ValueError("marker must return a non-empty text without spaces and brackets")
    return text


def markers(desc: str | None) -> set[str]:
    """Return the words of a description that may be markers, without case."""
    if not desc:
        return set()
    text = html.unescape(desc).casefold()
    return {*_TOKEN.findall(text), *_SECRET.findall(text)}


def with_marker(desc: str | None, marker: str) -> str:
    """Return a description between two copies of its marker, each on its own line.

    The first copy survives if a service cuts off the end of long descriptions, the second if it cuts off the beginning.
    """
    return f"[{marker}]\n\n{desc}\n\n[{marker}]" if desc else f"[{marker}]"


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
        """The markers of the rows of this run, eight bytes each."""

    def of(self, row: Row) -> str | None:
        """Return the marker of a row, or None if rows have no markers.

        Raises:
            TypeError, ValueError: the caller's function returned an unusable marker.
            Exception: any error that the caller's function raises.
        """
        if row.marker is None and self._marking:
            made = self._marking(row.draft) if callable(self._marking) else secret_marker(self._secret, row.seq)
            row.marker = check_marker(made)
            self._made.add(row.marker.casefold())
        return row.marker

    def know(self, seqs: Iterable[int]) -> None:
        """Note that cards may show the secret markers of rows that are not in the input, by their numbers."""
        for seq in seqs if self.are_secret else ():
            self._made.add(secret_marker(self._secret, seq))

    def description(self, row: Row) -> str | None:
        """Return the description to send for a row, with its marker if there is one. It raises what `of` raises."""
        marker = self.of(row)
        return row.draft.desc if marker is None else with_marker(row.draft.desc, marker)

    def content(self, row: Row) -> Content:
        """Return what is sent for a row. It raises what `of` raises."""
        return Content.of(row.draft, self.description(row))

    def is_shown(self, row: Row, card: Card) -> bool:
        """Return True if a card shows the marker of a row."""
        return (self.of(row) or "").casefold() in markers(card.desc)

    def secret_of(self, rows: Iterable[Row]) -> set[str]:
        """Return the markers of rows that no other card shows unless its description was copied."""
        return {self.of(row) or "" for row in rows} if self.are_secret else set()

    def cards_of_rows(self, cards: Iterable[Card]) -> set[str]:
        """Return the ids of the cards that show the marker of any row that has one."""
        return self._cards_with(self._made, cards)

    def cards_of(self, rows: Iterable[Row], cards: Iterable[Card]) -> set[str]:
        """Return the ids of the cards that show the marker of one of these rows."""
        return self._cards_with({(self.of(row) or "").casefold() for row in rows}, cards)

    def _cards_with(self, wanted: IdSet | set[str], cards: Iterable[Card]) -> set[str]:
        if not self.are_used:
            return set()
        return {card.id for card in cards if any(marker in wanted for marker in markers(card.desc))}

    def match(self, rows: Sequence[Row], cards: Iterable[Card]) -> tuple[dict[int, Card], dict[int, list[Card]]]:
        """Return the card of each row, by its place, that shows its marker.

        The second result are the cards of rows for which that is not clear. If rows share a marker, it is clear only if they are
        equal or have as many cards.
        """
        if not self.are_used:
            return {}, {}
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            places[(self.of(row) or "").casefold()].append(place)
        marked: defaultdict[str, list[Card]] = defaultdict(list)
        # Automations copy descriptions into cards of their own: one with the name of a row is rather its card.
        names = {row.draft.name for row in rows}
        for card in sorted(cards, key=lambda card: card.name not in names):
            held = markers(card.desc) & places.keys()
            free = next((marker for marker in sorted(held) if len(marked[marker]) < len(places[marker])), None)
            if free is not None:
                marked[free].append(card)
        found: dict[int, Card] = {}
        unclear: dict[int, list[Card]] = {}
        for marker, given in marked.items():
            if len(given) == len(places[marker]) or len({digest(rows[place].draft) for place in places[marker]}) == 1:
                found.update(zip(places[marker], given, strict=False))
            else:
                unclear.update(dict.fromkeys(places[marker], given))
        return found, unclear
