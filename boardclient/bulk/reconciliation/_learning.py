"""What a run learns from its known cards: how the service shows what is sent."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Final

from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._kept_rules import FACT, KeptRules
from boardclient.bulk.reconciliation._listing import Listing
from boardclient.bulk.reconciliation._row_markers import RowMarkers
from boardclient.bulk.reconciliation._samples import SAMPLES, Sample, Samples
from boardclient.bulk.reconciliation._shown import Shown

_FEW: Final = 64
"""About how many samples are enough for rules that are only kept for later runs."""


class Learning:
    """Learns how cards are shown, and keeps it in the ledger for later runs. Owned by a reconciler."""

    def __init__(self, ledger: Ledger, markers: RowMarkers) -> None:
        self._ledger = ledger
        self._markers = markers
        self.samples = Samples()
        """Rows whose cards a response named."""
        self._found: deque[tuple[str, Row]] = deque(maxlen=SAMPLES)
        """Rows that were found without a response. Nothing is learned from them."""
        self.kept = KeptRules.load(ledger.facts.get(FACT))
        """What earlier listings taught, also those of earlier runs. None if nothing is known."""

    def note_found(self, card_id: str, row: Row) -> None:
        """Note the card of a row that was recognised in a listing."""
        self._found.append((card_id, row))

    @property
    def known_ids(self) -> set[str]:
        """The identifiers of cards whose rows are remembered."""
        return {card_id for card_id, _ in chain(self.samples, self._found)}

    async def learn(self, listing: Listing) -> tuple[list[Sample], Shown]:
        """Return the samples of a listing and the rules learned from them.

        The rules are kept in the ledger on return.

        Raises:
            JournalError: the journal can't be written.
        """
        samples = [
            Sample(self._markers.content(row), listing.samples[card_id], row.marker)
            for card_id, row in self.samples
            if card_id in listing.samples
        ]
        if not listing.unaccounted:
            samples = samples[:: max(1, len(samples) // _FEW)]  # rules decide nothing now, and a sample takes 50 microseconds
        pairs = [(sample.sent, sample.card) for sample in samples]
        shown = Shown.learn(pairs, listing.fields)
        kept = self.kept
        if kept is not None and not kept.shown.fits(pairs):
            kept = None  # the service has changed
        if samples and (kept is None or len(samples) >= kept.samples):
            kept = KeptRules.of(shown, len(samples))
        if kept != self.kept:
            self.kept = kept
            await self._ledger.set_fact(FACT, "" if kept is None else kept.dump())
        return samples, shown
