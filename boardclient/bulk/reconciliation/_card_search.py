"""The search for a single card whose creation is in doubt. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

from boardclient.bulk.reconciliation._likeness import tidy
from boardclient.bulk.reconciliation._listing import FIELDS, find_limit
from boardclient.bulk.reconciliation._matching import Suspects
from boardclient.bulk.reconciliation._shown import Content, Shown
from boardclient.models import Card, CardDraft

_WORD: Final = re.compile(r"[^\W_]+")


class FoundCards(list[Card]):
    """The cards that show exactly what was sent. If there are none, those that may be the card.

    Attributes:
        is_exact: True if the listed cards show exactly what was sent.
        alike: The other cards that may be the one: shown in another form, moved or renamed.
        doubt: Why the card may exist although it is not listed, or None if there is no reason to think so.
    """

    def __init__(self, exact: Sequence[Card], alike: Sequence[Card], doubt: str | None) -> None:
        super().__init__(exact or alike)
        self.is_exact = bool(exact)
        self.alike = [*alike]
        self.doubt = doubt


def find_cards(draft: CardDraft, cards: Sequence[Card]) -> FoundCards:
    """Return the cards of a board that may have been made from a draft.

    A field that no card shows is not compared.
    """
    row = Content.of(draft)
    fields = [field for field in FIELDS if any(getattr(card, field) is not None for card in cards)]
    sent = {"name": row.name, "desc": row.desc, "list_id": row.list_id, "due": row.due}

    def is_exact(card: Card) -> bool:
        shown = {"name": card.name, "desc": card.desc or "", "list_id": card.list_id, "due": card.due}
        return all(sent[field] == shown[field] for field in fields)

    exact = [card for card in cards if fields and is_exact(card)]
    # Nothing can be learned from one listing, so any known way of changing texts is taken to be possible.
    rule = attrs.evolve(Shown.learn([], fields), is_learned=True)
    others = [card for card in cards if not (fields and is_exact(card))]
    words = _words(row.name)

    def is_alike(card: Card) -> bool:
        return (words in _words(card.name or "") and words.strip() != "") or Suspects([card], rule).find(row) is not None

    alike = [card for card in others if is_alike(card)]
    return FoundCards(exact, alike, _doubt(len(cards), fields))


def _doubt(count: int, fields: Sequence[str]) -> str | None:
    if not count:
        return None
    if "name" not in fields:
        return "the listing shows no names"
    return find_limit(count)


def _words(text: str) -> str:
    """Return the words of a text between spaces. Services put other words before and after names."""
    return f" {' '.join(_WORD.findall(tidy(text)))} "
