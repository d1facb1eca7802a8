"""Which cards of a board are those of rows in doubt (interface 4.4). No I/O.

A card counts as a row's if it is exactly what was sent, as far as the listing shows it, and nobody else's: not there before the
run, and not known as another row's. Rows of equal content are interchangeable.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

import attrs

from boardclient.models import Card, CardDraft

_MARKER: Final = re.compile(r"\[([^\[\]\s]+)\]")
_SHOWN: Final = ("desc", "list_id", "due")


@attrs.frozen
class Content:
    """What a card is compared by. A description that is absent and an empty one are alike."""

    name: str
    desc: str | None
    list_id: str | None
    due: datetime | None

    @classmethod
    def of(cls, value: CardDraft | Card) -> Content:
        """Take the content of a draft or a card; a card needs a name."""
        return cls(value.name or "", value.desc or None, value.list_id, value.due)

    def shown(self, fields: Iterable[str]) -> Hashable:
        """Return what is left to compare where a listing shows only these fields besides the name."""
        return (self.name, *(getattr(self, field) for field in fields))


def digest(draft: CardDraft) -> bytes:
    """Return 16 bytes that stand for all that is sent of a draft."""
    due = None if draft.due is None else draft.due.astimezone(UTC).isoformat()
    parts = (draft.name, draft.desc, draft.list_id, due, draft.pos)
    text = "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class IdSet:
    """A set of identifiers in eight bytes each, for millions of them. It lives as long as its process only."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._hashes = array("q", map(hash, ids))
        self._is_sorted = False

    def add(self, identifier: str) -> None:
        """Add an identifier."""
        self._hashes.append(hash(identifier))
        self._is_sorted = False

    def __len__(self) -> int:
        self._sort()
        return len(self._hashes)

    def _sort(self) -> None:
        if not self._is_sorted:
            self._hashes = array("q", (value for value, _ in groupby(sorted(self._hashes))))
            self._is_sorted = True

    def find(self, identifier: str) -> int | None:
        """Return the place of an identifier, None where it isn't there."""
        self._sort()
        wanted = hash(identifier)
        place = bisect_left(self._hashes, wanted)
        return place if place < len(self._hashes) and self._hashes[place] == wanted else None

    def __contains__(self, identifier: str) -> bool:
        return self.find(identifier) is not None


def matching(draft: CardDraft, cards: Iterable[Card]) -> list[Card]:
    """Return the cards of a board that are exactly what the draft says, as far as the listing shows it."""
    listed = list(cards)
    listing = Listing(IdSet(), IdSet())
    for card in listed:
        listing.add(card)
    wanted = Content.of(draft).shown(listing.shown)
    return [card for card in listed if card.name is not None and Content.of(card).shown(listing.shown) == wanted]


def secret_marker(secret: bytes, seq: int) -> str:
    """Make the marker of a row: 16 characters that nobody can guess, the same in each run of a journal."""
    digest = hmac.digest(secret, str(seq).encode(), "sha256")
    return "bc:" + base64.b32encode(digest[:10]).decode().lower()


def check_marker(text: object) -> str:
    """Return a caller's marker if it can be found again.

    Raises:
        TypeError, ValueError: it is no text, empty, or holds a space or a bracket.
    """
    if not isinstance(text, str):
        raise TypeError(f"marker must return a string, not {type(text).__name__}")
    if not _MARKER.fullmatch(f"[{text}]"):
        raise ValueError("marker must return a text without spaces and brackets, and not an empty one")
    return text


def markers(card: Card) -> list[str]:
    """Return what may be markers in a card's description."""
    return _MARKER.findall(card.desc or "")


def with_marker(desc: str | None, marker: str) -> str:
    """Return the description with the marker on a line of its own at its end."""
    return f"{desc}\n\n[{marker}]" if desc else f"[{marker}]"


@attrs.frozen(kw_only=True)
class Verdict:
    """What a listing says of rows in doubt, by their places: the cards of those found, and those that are absent.

    `unclear` are rows of which some exist, and the listing doesn't show which. `proves_nothing` says why the absent ones may
    exist all the same, None where they don't. `unexpected` are cards that are nobody's, `missing` counts confirmed cards that the
    listing lacks.
    """

    found: dict[int, Card]
    absent: list[int]
    unclear: list[int]
    proves_nothing: str | None
    unexpected: list[Card]
    missing: int


class Listing:
    """A listing as it is read, card by card, and compared with rows in doubt at its end. Owned by one reconciliation."""

    def __init__(self, baseline: IdSet, confirmed: IdSet) -> None:
        self._baseline = baseline
        self._confirmed = confirmed
        self._seen_baseline = bytearray(len(baseline))
        self._seen_confirmed = bytearray(len(confirmed))
        self._others: dict[str, Card] = {}
        self._is_shown = dict.fromkeys(_SHOWN, False)
        self._nameless = 0

    def add(self, card: Card) -> None:
        """Take note of a card of the board."""
        for field in _SHOWN:
            self._is_shown[field] = self._is_shown[field] or getattr(card, field) is not None
        if (place := self._confirmed.find(card.id)) is not None:
            self._seen_confirmed[place] = 1
        elif (place := self._baseline.find(card.id)) is not None:
            self._seen_baseline[place] = 1
        elif card.name is None:
            self._nameless += 1
        else:
            self._others[card.id] = attrs.evolve(card, extra={})  # a listing may show a card twice

    @property
    def shown(self) -> tuple[str, ...]:
        """What the listing shows of cards besides their names: what none of them has it may not show at all."""
        return tuple(field for field in _SHOWN if self._is_shown[field])

    def compare(
        self, wanted: Sequence[Hashable], keys: Callable[[Card], Sequence[Hashable]], wholes: Sequence[Hashable] | None = None
    ) -> Verdict:
        """Give each row in doubt a card of its own, as far as there are: one that has the row's key among its keys.

        `wholes` are the rows as they were sent: those of equal keys are interchangeable only where they are equal altogether.
        """
        places: defaultdict[Hashable, list[int]] = defaultdict(list)
        for place, key in enumerate(wanted):
            places[key].append(place)
        cards: defaultdict[Hashable, list[Card]] = defaultdict(list)
        unexpected: list[Card] = []
        for card in self._others.values():
            key = next((key for key in keys(card) if len(cards[key]) < len(places.get(key, ()))), None)
            (unexpected if key is None else cards[key]).append(card)
        found: dict[int, Card] = {}
        absent: list[int] = []
        unclear: list[int] = []
        for key, rows in places.items():
            is_clear = wholes is None or len({wholes[place] for place in rows}) == 1
            if is_clear or len(cards[key]) in {0, len(rows)}:
                found.update(zip(rows, cards[key], strict=False))
                absent += rows[len(cards[key]) :]
            else:
                unclear += rows
        return Verdict(
            found=found,
            absent=absent,
            unclear=unclear,
            proves_nothing=self._doubt(unexpected),
            unexpected=unexpected,
            missing=len(self._seen_confirmed) - sum(self._seen_confirmed),
        )

    def _doubt(self, unexpected: Sequence[Card]) -> str | None:
        """Say why the listing may be incomplete, None where there is proof of the contrary."""
        confirmed, seen = len(self._seen_confirmed), sum(self._seen_confirmed)
        if seen < confirmed:
            return f"the listing lacks {confirmed - seen} of {confirmed} cards that were confirmed: it is not complete"
        if self._nameless:
            return f"the listing shows {self._nameless} cards without a name"
        if not confirmed and unexpected:
            return "no card was confirmed yet, and the board holds cards of unknown origin: the listing may be incomplete"
        if not confirmed and sum(self._seen_baseline) < len(self._seen_baseline):
            return "no card was confirmed yet, and the listing lacks cards that were there before: it may be incomplete"
        return None
