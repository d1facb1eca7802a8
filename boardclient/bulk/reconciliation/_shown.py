"""What is sent for a row, and how the service shows it. No I/O."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from boardclient.bulk.reconciliation._likeness import DateRule, TextRule, bare, fit_often, is_rule, learn_dates, learn_text, tidy
from boardclient.models import Card, CardDraft

TELLING: Final = 8
"""The least number of letters and digits by which a description alone identifies a renamed card."""

_CHECKED: Final = 64
"""About how many samples are compared with rules."""


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

    def without_name(self) -> Shown:
        """Return the same rules, but with names that do not distinguish cards."""
        return attrs.evolve(self, name=TextRule())

    def plain(self, card: Card) -> Card:
        """Return a card without what the service puts around its texts."""
        if self.name.affixes is None and self.desc.affixes is None:
            return card
        return attrs.evolve(card, name=self.name.plain(card.name), desc=self.desc.plain(card.desc), extra={})

    @property
    def changes_looks(self) -> bool:
        """Whether cards that were sent alike may look different in the listing."""
        return self.is_learned and not (self.name.is_usable and self.name.affixes is self.desc.affixes is None)

    def look(self, card: Card) -> Card:
        """Return a card without what may differ between cards that were sent alike."""
        card = self.plain(card)
        return card if self.name.is_usable else attrs.evolve(card, name=None, extra={})

    def fits(self, samples: Sequence[tuple[Content, Card]]) -> bool:
        """Return True if these rules explain all but a few of the cards. People may have changed the others."""
        some = samples[:: max(1, len(samples) // _CHECKED)]
        plain = [(sent, self.plain(card)) for sent, card in some]
        fits = [self.coarse(sent) == self.coarse(card) and self.may_be(sent, card) for sent, card in plain]
        return is_rule(fits)

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

    def tells(self, content: Content | Card) -> bool:
        """Return True if the listing shows a text that identifies a card."""
        return self.name.is_usable or (self.desc.is_usable and len(bare(content.desc or "")) >= TELLING)

    def shows_all(self, sent: Sequence[Content]) -> bool:
        """Return True if a listing shows each field that was sent, in any form. Names are always sent."""
        return (
            self.name.is_usable
            and (self.desc.is_usable or not any(content.desc for content in sent))
            and (self.due.is_usable or not any(content.due for content in sent))
            and (self.has_lists or len({content.list_id for content in sent}) <= 1)
        )

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
