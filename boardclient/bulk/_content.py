"""What is sent for a row, and which cards equal it. No I/O.

There is one notion of equality. A card equals a row if it shows its name, and shows each other field that was sent as it was
sent, as far as the listing shows that field at all. Fields that were not sent are not compared. Texts may differ in blanks at
their ends, line ends, HTML escapes and Unicode composition (NFC), dates in fractions of a second.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Container, Hashable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple

from boardclient.models import Card, CardDraft

FIELDS: Final = ("name", "list_id", "desc", "due")
"""The fields that are compared. `pos` is none of them: its stored form is not shown (interface 2.3)."""

_MOST_ESCAPES: Final = 3
"""How often a text may have been escaped. More would let a text of `&amp;amp;amp;…` take quadratic time."""
_LINE_END: Final = re.compile(r"\r\n?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


def normal(text: str) -> str:
    """Return the form in which two equal texts are the same."""
    if "&" in text:
        for _ in range(_MOST_ESCAPES):
            text = html.unescape(text)
    if "\r" in text:
        text = _LINE_END.sub("\n", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.strip()


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
                index.setdefault(_values(_content_of(card), fields), []).append(card)
        return self._indexes[fields].get(_values(row, fields), ())


def _content_of(card: Card) -> Content:
    """Return what a card shows, in the form in which it is compared."""
    due = None if card.due is None else _whole_seconds(card.due)
    return Content(normal(card.name or ""), card.list_id or "", normal(card.desc or ""), due)


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


def _part(text: str | None) -> str:
    return "-" if text is None else f"{len(text)}:{text}"
