"""What was sent for a row, its marker, and what a card shows, as they are compared; large sets of identifiers. No I/O.

There is one notion of equality. A card equals a row if it shows its name, and shows each other field that was sent as it was
sent, as far as the listing shows that field at all. Fields that were not sent are not compared. Texts may differ in blanks at
their ends, line ends, HTML escapes and Unicode composition (NFC), dates in fractions of a second.
"""

from __future__ import annotations

import hmac
import html
import re
import secrets
import unicodedata
from array import array
from collections.abc import Container, Hashable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple

from boardclient.models import Card, CardDraft

FIELDS: Final = ("name", "list_id", "desc", "due")
"""The fields that are compared. `pos` is none of them: its stored form is not shown (interface 2.3)."""

REMOVABLE: Final = frozenset({"desc", "due"})
"""The fields that a person can remove from a card."""

_MOST_ESCAPES: Final = 3
"""How often a text may have been escaped. More would let a text of `&amp;amp;amp;…` take quadratic time."""
_REFERENCES: Final = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&#x27;": "'", "&#34;": '"', "&amp;": "&"}
_NO_REFERENCES: Final = ("& ", "&\n", "&\t", "&<", "&;")
_REFERENCE: Final = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
"""What `html.unescape` replaces: https://github.com/python/cpython/blob/v3.13.0/Lib/html/__init__.py#L121."""
_LONG: Final = 2**14
"""A text of so many characters is long."""
_ENDS: Final = 2**12
"""How many characters at each end of a description are looked through for markers, which stand at its ends."""
_TOKEN: Final = re.compile(r"[^\s\[\]]+")
_LETTERS: Final = "bcdfghjklmnpqrst"
"""The letters of secret markers, of which each stands for four bits."""
_SECRET: Final = re.compile(f"bc[{_LETTERS}]{{16}}(?:[{_LETTERS}]{{4}})?")
MARKER_LENGTH: Final = 22
_OLD_LENGTH: Final = 18
"""The length of a secret marker that names no job, as versions until 0.1 made them."""
_PROBES: Final = 2**24
"""How many numbers probes may have: six letters stand for one."""
_FROM_HEX: Final = str.maketrans("0123456789abcdef", _LETTERS)
_TO_HEX: Final = str.maketrans(_LETTERS, "0123456789abcdef")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MOST_LATEST: Final = 2**16
"""How many identifiers a set keeps as they are: 8 MiB of them. Looking one up there takes a third of the time."""


# --- identifiers


class IdSet:
    """A set of identifiers or hashes, for millions of them.

    The latest are kept as they are. When these are too many, all of them become hashes of 12 to 24 bytes each.
    Hashes differ between processes, so it must not be stored.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._latest: set[str | int] = set()
        self._table: array[int] | None = None
        """An open table of the hashes of the others, if there are any."""
        self._number = 0
        """How many it has: numbers other than 0, which marks a free slot."""
        self.repeated: int = sum(not self.add(identifier) for identifier in ids)
        """How many of `ids` were given before."""

    def add(self, identifier: str | int) -> bool:
        """Add an identifier. Return False if the set had it."""
        latest = self._latest
        if identifier in latest or (self._table is not None and self._table[_slot(self._table, _hash(identifier))]):
            return False
        # As it is: a hash costs three times as much to look up, and most runs never fill this set.
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
            self._table[_slot(self._table, value)] = value
        self._latest = set()

    def __contains__(self, identifier: str | int) -> bool:
        return identifier in self._latest or (
            self._table is not None and bool(self._table[_slot(self._table, _hash(identifier))])
        )

    def __len__(self) -> int:
        return self._number + len(self._latest)


def _hash(identifier: str | int) -> int:
    return hash(identifier) or 1


def _slot(table: array[int], value: int) -> int:
    """Return the slot of a number other than 0 in an open table, or the free one that it would get."""
    # The length is a power of two, and a third is free, so that the search always ends.
    mask = len(table) - 1
    slot = value & mask
    while (found := table[slot]) and found != value:
        slot = (slot + 1) & mask
    return slot


# --- contents


def normal(text: str) -> str:
    """Return the form in which two equal texts are the same."""
    return _normal(text) if len(text) <= _LONG else _normal_of_long(text)


def _normal(text: str) -> str:
    for _ in range(_MOST_ESCAPES if "&" in text else 0):
        before, text = text, _unescaped(text)
        if text == before:
            break
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        # Databases and macOS compose or decompose accents, and a reader sees the same text.
        text = unicodedata.normalize("NFC", text)
    return text.strip()


_normal_of_long: Final = lru_cache(maxsize=64)(_normal)
"""It takes milliseconds for a text of a megabyte, and a run asks for the same texts again and again while it looks for rows."""


def _unescaped(text: str) -> str:
    """Return the text as `html.unescape` does, without calling a function for each of the usual references."""
    if text.count("&") != sum(map(text.count, (*_REFERENCES, *_NO_REFERENCES))):
        return _REFERENCE.sub(lambda found: _character(found[0]), text)
    for reference, character in _REFERENCES.items():  # `&amp;` is the last, so that what it leaves is not undone as well
        text = text.replace(reference, character)
    return text


_character: Final = lru_cache(maxsize=2**12)(html.unescape)


def _whole_seconds(due: datetime) -> int:
    return (due - _EPOCH) // _SECOND


class Content(NamedTuple):
    """What was sent for a row, in the form in which it is compared. It holds what JSON holds.

    Attributes:
        name: The name, which is always sent.
        list_id: The list, which is always sent.
        desc: The description, or None if none was sent.
        due: The date in whole seconds since 1970, or None if none was sent.
    """

    name: str
    list_id: str
    desc: str | None = None
    due: int | None = None

    @classmethod
    def of(cls, draft: CardDraft, desc: str | None = None) -> Content:
        """Return the content of a draft. `desc` is the description that was sent, if that is not the draft's own."""
        if desc is None:
            desc = draft.desc
        return cls(
            normal(draft.name),
            draft.list_id,
            None if desc is None else normal(desc),
            None if draft.due is None else _whole_seconds(draft.due),
        )

    @classmethod
    def of_card(cls, card: Card) -> Content:
        """Return what a card shows. A text that it does not show is empty."""
        due = None if card.due is None else _whole_seconds(card.due)
        return cls(normal(card.name or ""), card.list_id or "", normal(card.desc or ""), due)


def shown_fields(cards: Iterable[Card]) -> set[str]:
    """Return the fields that at least one card shows."""
    shown: set[str] = set()
    for card in cards:
        shown.update(field for field in FIELDS if getattr(card, field) is not None)
        if len(shown) == len(FIELDS):
            break
    return shown


class EqualCards:
    """Some cards of a listing, looked up by what was sent. Each look-up takes the same time, however many cards there are.

    `shown` are the fields that the listing shows; by default those that these cards show.
    """

    def __init__(self, cards: Iterable[Card], shown: Container[str] | None = None) -> None:
        self._cards = [card for card in cards if card.name is not None]
        self._shown = shown_fields(self._cards) if shown is None else shown
        self._indexes: dict[tuple[str, ...], dict[Hashable, list[Card]]] = {}

    def to(self, row: Content) -> Sequence[Card]:
        """Return the cards that equal a row."""
        if not self._cards:
            return ()
        fields = tuple(field for field in FIELDS if field in self._shown and getattr(row, field) is not None)
        if fields not in self._indexes:
            index = self._indexes[fields] = {}
            for card in self._cards:
                index.setdefault(_values(Content.of_card(card), fields), []).append(card)
        return self._indexes[fields].get(_values(row, fields), ())


def _values(content: Content, fields: Iterable[str]) -> Hashable:
    return tuple([getattr(content, field) for field in fields])


def digest(draft: CardDraft) -> bytes:
    """Return a digest of 16 bytes over every field of a draft that is sent. Only rows that are the same in all have the same."""
    name, desc, list_id = draft.name, draft.desc, draft.list_id
    if draft.due is None and draft.pos is None:  # as most drafts are: a digest is made for each row of a run with a journal
        rest = "--"
    else:
        # The `isoformat` of datetime itself: a subclass may write dates in another form.
        rest = _part(None if draft.due is None else datetime.isoformat(draft.due.astimezone(UTC))) + _part(draft.pos)
    text = f"{len(name)}:{name}{'-' if desc is None else f'{len(desc)}:{desc}'}{len(list_id)}:{list_id}{rest}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _part(value: str | float | None) -> str:
    if isinstance(value, str):
        return f"{len(value)}:{value}"
    return "-" if value is None else f"#{float(value) + 0.0!r}"  # -0.0, which equals 0.0, becomes 0.0


# --- markers, which are short codes in descriptions


def secret_marker(secret: bytes, seq: int) -> str:
    """Return the marker of a row, 22 letters: two of all markers, six of the job, fourteen of the row.

    It can't be guessed without the secret, and is the same in each run with one journal. All have the same shape, and none has
    punctuation, digits or vowels: a service or an automation that changes such texts changes each marker or none.
    """
    return job_marker(secret) + _code(secret, str(seq), 7)


def job_marker(secret: bytes) -> str:
    """Return the beginning of all markers of a job, eight letters."""
    return "bc" + _code(secret, "job", 3)


def probe_marker(secret: bytes, number: int) -> str:
    """Return the marker of a probe. The six letters after those of the job are its number, and the last eight prove it."""
    return job_marker(secret) + f"{number:06x}".translate(_FROM_HEX) + _code(secret, f"probe {number}", 4)


def probe_number(secret: bytes, marker: str) -> int | None:
    """Return the number of a probe by its marker, or None if it is none of this job."""
    letters = marker[8:14]
    if len(letters) < 6 or not all(letter in _LETTERS for letter in letters):
        return None
    number = int(letters.translate(_TO_HEX), 16)
    return number if marker == probe_marker(secret, number) else None


def new_probe_number() -> int:
    """Return a number that hardly any other probe has."""
    return secrets.randbelow(_PROBES)


def _code(secret: bytes, text: str, size: int) -> str:
    return hmac.digest(secret, text.encode(), "sha256")[:size].hex().translate(_FROM_HEX)


def with_job(shown: set[str], job: str) -> set[str]:
    """Return words with those that earlier markers of a job would be today: they named no job, and one letter pair more."""
    old = [word for word in shown if len(word) == _OLD_LENGTH and word.startswith("bc")]
    return shown | {job + word[2:-2] for word in old} if old else shown


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
    """Return the words of a description that may be markers, without case: of a long one those of its beginning and its end."""
    if not desc:
        return set()
    if len(desc) > 2 * _ENDS:
        # With a blank between them, or the two ends could make a marker that nobody has written.
        desc = f"{desc[:_ENDS]} {desc[-_ENDS:]}"
    text = html.unescape(desc).casefold()
    secret = _SECRET.findall(text)
    return {*_TOKEN.findall(text), *secret, *(word[:_OLD_LENGTH] for word in secret)}


def with_marker(desc: str | None, marker: str) -> str:
    """Return a description between two copies of its marker, each on its own line.

    The first copy survives if a service cuts off the end of long descriptions, the second if it cuts off the beginning.
    """
    # On lines of their own and in brackets: what people write beside them stays apart from the marker.
    return f"[{marker}]\n\n{desc}\n\n[{marker}]" if desc else f"[{marker}]"
