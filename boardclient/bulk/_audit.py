"""The comparison of the board with the ledger, at the end of a run. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final

import attrs

from boardclient.bulk._board import Missing
from boardclient.bulk._content import EqualCards
from boardclient.bulk._life import Row
from boardclient.bulk._listing import Listing
from boardclient.bulk._markers import RowMarkers
from boardclient.bulk._proof import Evidence, Samples
from boardclient.bulk._results import BulkAudit
from boardclient.models import Card

_NAMED: Final = 1000
"""The largest number of cards in each tuple of an audit, and of refused rows that are remembered."""


@attrs.define
class RowsOfRun:
    """What a run remembers of its rows for its audit. Owned by its reconciler."""

    recovered: list[Row] = attrs.field(factory=list)
    """Those whose cards were found on the board."""
    unknown: list[Row] = attrs.field(factory=list)
    """Those whose cards may exist or not."""
    refused: deque[Row] = attrs.field(factory=lambda: deque(maxlen=_NAMED))
    """Some that were refused. A faulty service may have created their cards all the same."""


def make_audit(
    rows: RowsOfRun,
    samples: Samples,
    listing: Listing,
    missing: Missing,
    *,
    evidence: Evidence,
    markers: RowMarkers,
    suspected: Collection[str],
) -> BulkAudit:
    """Compare a listing with what is known of the rows. `suspected` are the cards that may belong to unknown rows."""
    others = listing.unaccounted
    equal = EqualCards(others if listing.has_baseline else [], listing.fields)

    def cards_of(some: Iterable[Row]) -> set[str]:
        return {card.id for row in some for card in equal.to(markers.content(row))}

    # Without a baseline, it is not known which cards existed before, unless they show a marker.
    rows_with = chain((row for _, row in samples), rows.recovered)
    second_cards = markers.cards_of_rows(others) | (cards_of(rows_with) if others else set())
    if listing.has_baseline:
        # What looks like a row's card may be that of an equal row which is unknown. If many look like it, looks say nothing,
        # unless cards are shown as they were sent.
        copies = listing.copies()
        second_cards |= {
            card.id
            for card in others
            if card.id not in suspected
            and (copies.get(card.id) == 1 or (card.id in copies and evidence.shows_as_sent(card.list_id)))
        }
    rows_without = [*rows.unknown, *rows.refused] if others else []
    possible = cards_of(rows_without) | markers.cards_of(rows_without, others)
    second_cards -= possible
    unexpected = [card for card in others if card.id not in second_cards] if listing.has_baseline else []
    duplicated = [card for card in others if card.id in second_cards]
    return BulkAudit(
        confirmed=listing.confirmed,
        recovered=len(rows.recovered),
        lost=missing.deleted,
        hidden=missing.hidden,
        reused=listing.reused,
        duplicated=tuple(duplicated[:_NAMED]),
        unexpected=tuple(unexpected[:_NAMED]),
        resembling=_named(chain(unexpected, duplicated), possible.union(suspected)),
        unproven=tuple(row.draft for row in rows.unknown[:_NAMED]),
    )


def _named(cards: Iterable[Card], ids: Collection[str]) -> tuple[Card, ...]:
    return tuple(card for card in cards if card.id in ids)[:_NAMED]
