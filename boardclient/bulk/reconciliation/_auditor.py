"""The comparison of a listing with the ledger, at the end of a run. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from boardclient.bulk._results import BulkAudit
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._listing import Listing
from boardclient.bulk.reconciliation._matching import resembling
from boardclient.bulk.reconciliation._missing import Missing
from boardclient.bulk.reconciliation._row_markers import RowMarkers
from boardclient.bulk.reconciliation._samples import Sample
from boardclient.bulk.reconciliation._shown import Shown
from boardclient.models import Card, CardDraft

_NAMED: Final = 1000
"""The largest number of cards in each tuple of an audit, and of refused rows that are remembered."""
_HINT: Final = (
    "the listing shows nothing that tells some unexpected cards from those of rows: they may be somebody else's, or second cards,"
    " which a proxy makes that repeats requests; markers tell them apart"
)


class Auditor:
    """Remembers the rows whose cards an audit looks for, and makes the audit. Owned by a reconciler."""

    def __init__(self, markers: RowMarkers) -> None:
        self.doubted: list[Row] = []
        """The rows that were in doubt when the board was read."""
        self.unresolved: list[Row] = []
        """Those whose cards may still exist or not."""
        self.recovered = 0
        """How many cards were recognised without a response."""
        self._refused: list[Row] = []
        self._markers = markers

    def note_refused(self, row: Row) -> None:
        """Note that a row was refused. The audit looks for its card all the same."""
        if len(self._refused) < _NAMED:
            self._refused.append(row)

    def audit(
        self,
        listing: Listing,
        missing: Missing,
        samples: Sequence[Sample],
        shown: Shown,
        *,
        renamed: set[str],
        unproven: Iterable[CardDraft],
    ) -> BulkAudit:
        """Compare a listing with the ledger.

        Args:
            listing: The listing.
            missing: The confirmed cards that it lacks.
            samples: Its samples.
            shown: The rules learned from them.
            renamed: The identifiers of cards that may be renamed ones of rows that were sent again.
            unproven: The drafts of the rows that were sent again without proof.
        """
        # Without a baseline it is not known which of the others existed before.
        others, copies = listing.unaccounted, listing.copies() if listing.has_baseline else []
        doubted = self._alike(others, self.doubted, samples, shown)
        unresolved = self._alike(others, self.unresolved + self._refused, samples, shown)
        doubted |= self._markers.cards_of_run(others)  # also second cards that people have renamed
        certain = {card.id for card in copies if shown.tells(card)} | (doubted - unresolved)
        possible = {card.id for card in copies} - certain
        suspected = unresolved | possible | renamed
        twice = [card for card in others if card.id in certain]
        others = [card for card in others if card.id not in certain] if listing.has_baseline else []
        return BulkAudit(
            confirmed=listing.confirmed,
            recovered=self.recovered,
            lost=missing.deleted,
            hidden=missing.hidden,
            reused=listing.reused,
            duplicated=tuple(twice[:_NAMED]),
            unexpected=tuple(others[:_NAMED]),
            resembling=tuple(card for card in others if card.id in suspected)[:_NAMED],
            hint=_HINT if possible else None,
            unproven=tuple(unproven),
        )

    def _alike(self, cards: Sequence[Card], rows: Sequence[Row], samples: Sequence[Sample], shown: Shown) -> set[str]:
        """Return the identifiers of the cards that may belong to one of the rows."""
        found = self._markers.cards_of(rows, cards)
        if not self._markers.are_listed(samples):
            found |= {card.id for card in resembling([*map(shown.plain, cards)], [row.draft.name for row in rows])}
        return found
