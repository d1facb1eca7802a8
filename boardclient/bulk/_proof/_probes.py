"""Probes: temporary cards at the end of lists, which make the next listing longer where no card of the run does (4.4).

The engine sends a probe as it sends a row. A probe is a card of nobody: it has no result, and is deleted at the end. Its marker
has its number, so that each run of its job knows it.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

from boardclient.bulk._content import (
    FIELDS,
    Content,
    job_marker,
    markers,
    new_probe_number,
    normal,
    probe_marker,
    probe_number,
    with_marker,
)
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import Extent, Row
from boardclient.bulk._proof._board import CHANGED, Listing, RunBoard
from boardclient.models import Card, CardDraft

_logger: Final = logging.getLogger("boardclient")

_MOST_PROBES: Final = 5
"""How many probes are sent for a row, at most, each time it was sent itself: one, unless its own response is lost."""
_NAME: Final = "{marker} temporary card, deleted soon"
_TEXT: Final = "boardclient has created this card to see that the board lists every card, and deletes it again."
_ANY_LIST: Final = "-"
"""Stands for the list to which an earlier run has sent a probe: a listing need not show one, or a usable one (interface 2.3)."""
_ANY_NAME: Final = re.compile(r"\b(bc[b-t]{16,20}) temporary card, deleted soon")
_LONGEST_NAME: Final = 2**12
"""How many characters a name may have that is one, with what a service adds. Cards of people may have names of a megabyte."""


class Probes:
    """The probes of a run, and those that earlier runs have left. Owned by its reconciler."""

    def __init__(self, board: RunBoard, ledger: Ledger) -> None:
        self.there: dict[str, Row] = {}
        """Those that are on the board, by their cards."""
        self._lists: dict[str, str | None] = {}
        """The lists that were shown for those of earlier runs, by their cards."""
        self.left: dict[str, Card] = {}
        """The cards that can't be deleted."""
        self._board = board
        self._ledger = ledger
        self._job = job_marker(ledger.secret)
        self.unseen: dict[str, Row] = {}
        """Those that may be on the board, by their markers: their responses did not come."""
        self._looked_for: set[str] = set()
        """The markers of those of them that no listing has shown since."""
        self._known: set[str] = set()
        """The markers of those whose cards are known."""
        self._shown: dict[str, Card] = {}
        """What the responses showed of the cards."""
        self._listed: dict[str, Card] = {}
        """What the listings of this run showed first of the cards that it has sent."""
        self._count = 0
        """How many cards were listed last."""
        self._spent: dict[str, int] = {}
        """The number of the request of the latest probe that was listed, by its list: it has proven what it can."""
        self._closed: set[str] = set()
        """The lists to which none is sent any more: one was refused, or the listing shows it and is no longer, or lacks it."""
        self._is_stuck = False
        """Whether the service does not delete one."""

    def cards_left(self) -> tuple[Card, ...]:
        """Return the cards that can't be deleted."""
        return tuple(self.left.values())

    # --- sending

    def lists_for(self, rows: Iterable[Row]) -> set[str]:
        """Return the lists of rows to which a probe is to be sent: one to each, and a second only if the board has shrunk."""
        if self._is_stuck:
            return set()
        return {
            list_id
            for row in rows
            if row.probes < _MOST_PROBES
            and (list_id := row.draft.list_id) not in self._closed
            and row.sent_as > self._spent.get(list_id, -1)
            and (self._board.open_lists is None or list_id in self._board.open_lists)
        }

    def make(self, list_id: str) -> Row:
        """Make a probe for a list."""
        probe = self._made(new_probe_number(), list_id)
        probe.absent_from = Extent(self._count, -1)
        return probe

    def _made(self, number: int, list_id: str) -> Row:
        marker = probe_marker(self._ledger.secret, number)
        probe = Row(-1 - number, CardDraft(_NAME.format(marker=marker), list_id, desc=_TEXT, pos="bottom"))
        probe.is_probe, probe.marker = True, marker
        return probe

    def record_sent(self, probe: Row, card: Card | None) -> None:
        """Record the response to a probe's request, or that it did not come, so that the probe may be on the board."""
        if card is None:
            self.unseen[probe.marker or ""] = probe
        else:
            self._shown[card.id] = card
            self._add(card.id, probe)

    def record_refused(self, probe: Row) -> None:
        """Record that a probe was refused: none is sent to its list any more."""
        self._closed.add(probe.draft.list_id)

    def _add(self, card_id: str, probe: Row) -> None:
        self.there[card_id] = probe
        self._known.add(probe.marker or "")
        if not self._board.probes:  # the ledger looks there for each card of the run, and most runs have no probes
            self._ledger.older.append(self._board.probes)
        self._board.probes.add(card_id)

    # --- listings

    def is_one(self, card: Card) -> bool:
        """Return True if a card with a known identifier is a probe of the job by now, whose card is not known."""
        return any(map(self._is_new, self._of_job(card.name)))

    def _of_job(self, text: str | None) -> set[str]:
        """Return the markers of the job in a text."""
        is_there = text is not None and self._job in text.casefold()
        return {marker for marker in markers(text) if marker.startswith(self._job)} if is_there else set()

    def _is_new(self, marker: str) -> bool:
        return marker in self.unseen or (marker not in self._known and probe_number(self._ledger.secret, marker) is not None)

    async def recognise(self, listing: Listing) -> None:
        """Find the probes of the job by their markers, and take their cards out of the unaccounted ones.

        Those whose responses did not come are among them, and those of earlier runs. A card that people have copied is not told
        from its copy, so neither of them is deleted.
        """
        shown: defaultdict[str, list[Card]] = defaultdict(list)
        for card in [*listing.unaccounted, *listing.recycled]:
            for marker in self._of_job(card.name) | self._of_job(card.desc):
                if self._is_new(marker):
                    shown[marker].append(card)
        for marker, cards in shown.items():
            probe = self.unseen.get(marker)
            # Deleting either could delete what people have made of the copy.
            if len(cards) > 1:
                self.left.update({card.id: card for card in cards})
                continue
            (card,) = cards
            if probe is None:
                probe = self._made(probe_number(self._ledger.secret, marker) or 0, _ANY_LIST)
                self._lists[card.id] = card.list_id
            self.unseen.pop(marker, None)
            self._add(card.id, probe)
            if card in listing.recycled:  # the card that had its identifier is gone, so that the listing need not be longer
                probe.absent_from = None
            listing.samples[card.id] = card
            if card in listing.unaccounted:
                listing.unaccounted.remove(card)
        self._looked_for = set(self.unseen)
        await self._judge(listing)
        self._count = listing.count

    async def _judge(self, listing: Listing) -> None:
        """Note what the probes of this run have proven. One is vain that is on the board and not listed, or adds nothing."""
        for card_id, probe in [*self.there.items()]:
            if not probe.sent_as:
                continue
            if card_id in listing.samples:
                self._listed.setdefault(card_id, listing.samples[card_id])
            if probe.absent_from is None:
                continue
            before, probe.absent_from, list_id = probe.absent_from.total, None, probe.draft.list_id
            if not listing.shows(card_id):
                # It is there and not listed, so no probe can make the listing of this list longer.
                if await self._board.is_gone(card_id):  # others have deleted it
                    del self.there[card_id]
                else:
                    self._closed.add(list_id)
            # A service that cuts its listings off at this number shows no card more, whatever is sent.
            elif listing.count == before:
                self._closed.add(list_id)
            elif listing.count > before:
                self._spent[list_id] = max(probe.sent_as, self._spent.get(list_id, -1))

    def copies(self, cards: Iterable[Card], names: Collection[str]) -> set[str]:
        """Return the identifiers of the cards with the name and the text of a probe, of this job or another.

        They are nobody's, unless a row in doubt has the name. `names` are those of the rows in doubt.
        """
        return {card.id for card in cards if _is_like_a_probe(card) and normal(card.name or "") not in names}

    # --- deletion

    @property
    def is_to_be_removed(self) -> bool:
        """Whether one is on the board that can be deleted, as far as is known."""
        return bool(self.there.keys() - self.left.keys())

    @property
    def is_earlier_to_be_removed(self) -> bool:
        """Whether one of an earlier run is on the board that can be deleted, as far as is known."""
        return any(not probe.sent_as and card_id not in self.left for card_id, probe in self.there.items())

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
            else:
                self._is_stuck = self._is_stuck or why != CHANGED
                list_id = self._lists.get(card_id, probe.draft.list_id)
                self.left[card_id] = Card(card_id, probe.draft.name, list_id=list_id)
                _logger.warning("the temporary card %s was not deleted: %s", card_id, why)

    def warn_of_unseen(self) -> None:
        """Log a warning for each probe that may be on the board, if no later run knows of it."""
        for marker in self.unseen.keys() - self._looked_for:
            name = self.unseen[marker].draft.name
            _logger.warning("the temporary card %r may be on the board: the response to its request did not come", name)

    def _is_as_sent(self, probe: Row, card: Card) -> bool:
        """Return True if a card shows nothing but what was sent for a probe, or what the response to its request showed.

        A service or an automation may show a text in another way: it counts if it has the marker, and is as it was listed first.
        The list of one of an earlier run says nothing, since it is not known to which it was sent.
        """
        fields = [field for field in FIELDS if field != "list_id" or card.id not in self._lists]
        known = [Content.of(probe.draft, with_marker(probe.draft.desc, probe.marker or ""))]
        known += [Content.of_card(self._shown[card.id])] if card.id in self._shown else []
        now, listed = Content.of_card(card), Content.of_card(self._listed.get(card.id, Card(card.id)))

        def is_own(field: str) -> bool:
            value = getattr(now, field)
            is_marked = isinstance(value, str) and probe.marker in markers(value)
            return any(value == getattr(content, field) for content in [*known, *([listed] if is_marked else [])])

        return all(is_own(field) for field in fields if getattr(card, field) is not None)


def _is_like_a_probe(card: Card) -> bool:
    name = card.name or ""
    named = _ANY_NAME.search(name.casefold()) if len(name) <= _LONGEST_NAME else None  # names may hold a megabyte
    if named is None:
        return False
    return card.desc is None or (_TEXT in normal(card.desc) and named.group(1) in markers(card.desc))
