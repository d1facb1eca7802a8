"""Probes: temporary cards at the end of lists, which make the next listing longer where no card of the run does (4.4).

The engine sends a probe as it sends a row. A probe is a card of nobody: it has no result, and is deleted at the end.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Final

from boardclient.bulk._content import FIELDS, Content, markers, secret_marker, with_marker
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import Row
from boardclient.bulk._proof._board import Listing, RunBoard
from boardclient.models import Card, CardDraft

_logger: Final = logging.getLogger("boardclient")

MOST_PROBES: Final = 5
"""How many probes are sent for a row, at most, each time it was sent itself."""
_NAME: Final = "{marker} temporary card, deleted soon"
_TEXT: Final = "boardclient has created this card to see that the board lists every card, and deletes it again."


class Probes:
    """The probes of a run, and those that earlier runs have left. Owned by its reconciler."""

    def __init__(self, board: RunBoard, ledger: Ledger) -> None:
        self.there: dict[str, Row] = {}
        """Those that are on the board, by their cards."""
        self.left: dict[str, Card] = {}
        """The cards that can't be deleted."""
        self._board = board
        self._ledger = ledger
        self.unseen: dict[str, Row] = {}
        """Those that may be on the board, by their markers: their responses did not come."""
        self._looked_for: set[str] = set()
        """The markers of those of them that no listing has shown since."""
        self._markers: set[str] = set()
        self._shown: dict[str, Card] = {}
        """What the responses showed of the cards."""
        self._listed: dict[str, Card] = {}
        """What the listings of this run showed first of the cards that it has sent."""

    async def load(self) -> None:
        """Find out which probes earlier runs have left. They are deleted by this one, even if it sends none."""
        for number, list_id, card_id in await self._ledger.probes():
            probe = self._made(number, list_id)
            if card_id is None:
                self.record_sent(probe, None)
            else:
                self._add(card_id, probe)

    def cards_left(self) -> tuple[Card, ...]:
        """Return the cards that can't be deleted."""
        return tuple(self.left.values())

    async def make(self, list_id: str) -> Row:
        """Make a probe for a list, which is logged."""
        return self._made(await self._ledger.log_probe(list_id), list_id)

    def _made(self, number: int, list_id: str) -> Row:
        marker = secret_marker(self._ledger.secret, number)
        probe = Row(number, CardDraft(_NAME.format(marker=marker), list_id, desc=_TEXT, pos="bottom"))
        probe.is_probe, probe.marker = True, marker
        self._markers.add(marker)
        return probe

    def record_sent(self, probe: Row, card: Card | None) -> None:
        """Record the response to a probe's request, or that it did not come, so that the probe may be on the board."""
        if card is None:
            self.unseen[probe.marker or ""] = probe
        else:
            self._shown[card.id] = card
            self._add(card.id, probe)

    def _add(self, card_id: str, probe: Row) -> None:
        self.there[card_id] = probe
        if not self._board.probes:  # the ledger looks there for each card of the run, and most runs have no probes
            self._ledger.older.append(self._board.probes)
        self._board.probes.add(card_id)

    def recognise(self, listing: Listing) -> None:
        """Find the probes whose responses did not come by their markers, and take their cards out of the unaccounted ones.

        A card that people have copied is not told from its copy, so neither of them is deleted.
        """
        shown: defaultdict[str, list[Card]] = defaultdict(list)
        for card in [*listing.unaccounted, *listing.recycled] if self.unseen else ():
            for marker in (markers(card.name) | markers(card.desc)) & self.unseen.keys():
                shown[marker].append(card)
        for marker, cards in shown.items():
            if len(cards) == 1:
                (card,), probe = cards, self.unseen.pop(marker)
                self._add(card.id, probe)
                self._ledger.record_probe(probe.seq, card.id)
                listing.samples[card.id] = card
                if card in listing.unaccounted:
                    listing.unaccounted.remove(card)
            else:
                self.left.update({card.id: card for card in cards})
        self._looked_for = set(self.unseen)
        for card_id, probe in self.there.items():
            if probe.sent_as and card_id in listing.samples:
                self._listed.setdefault(card_id, listing.samples[card_id])

    def copies(self, cards: Iterable[Card]) -> set[str]:
        """Return the identifiers of the cards that show the marker of a probe in their name and in their description."""
        some = cards if self._markers else ()
        return {card.id for card in some if markers(card.name) & markers(card.desc) & self._markers}

    @property
    def is_to_be_removed(self) -> bool:
        """Whether one is on the board that can be deleted, as far as is known."""
        return bool(self.there.keys() - self.left.keys())

    async def remove(self, *, is_patient: bool = True) -> None:
        """Delete the probes that are on the board, unless people have changed them.

        If the run `is_patient`, it waits while the service fails.
        """
        for card_id, probe in [*self.there.items()]:
            if card_id in self.left:
                continue
            why = await self._board.remove(card_id, partial(self._is_as_sent, probe), is_patient=is_patient)
            if why is None:
                del self.there[card_id]
                self._ledger.record_probe(probe.seq, None)
            else:
                self.left[card_id] = Card(card_id, probe.draft.name, list_id=probe.draft.list_id)
                _logger.warning("the temporary card %s was not deleted: %s", card_id, why)

    def warn_of_unseen(self) -> None:
        """Log a warning for each probe that may be on the board, if no later run knows of it."""
        for marker in self.unseen.keys() - self._looked_for:
            name = self.unseen[marker].draft.name
            _logger.warning("the temporary card %r may be on the board: the response to its request did not come", name)

    def _is_as_sent(self, probe: Row, card: Card) -> bool:
        """Return True if a card shows nothing but what was sent for a probe, or what the response to its request showed.

        A service or an automation may show a text in another way: it counts if it has the marker, and is as it was listed first.
        """
        known = [Content.of(probe.draft, with_marker(probe.draft.desc, probe.marker or ""))]
        known += [Content.of_card(self._shown[card.id])] if card.id in self._shown else []
        now, listed = Content.of_card(card), Content.of_card(self._listed.get(card.id, Card(card.id)))

        def is_own(field: str) -> bool:
            value = getattr(now, field)
            is_marked = isinstance(value, str) and probe.marker in markers(value)
            return any(value == getattr(content, field) for content in [*known, *([listed] if is_marked else [])])

        return all(is_own(field) for field in FIELDS if getattr(card, field) is not None)
