"""Decides for all rows in doubt together whether their cards exist (4.4).

The rules are in docs/design/reconciliation.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import attrs

from boardclient._statuses import RUN_ENDING_ERRORS
from boardclient.bulk._content import digest
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._results import BulkAudit
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._auditor import Auditor
from boardclient.bulk.reconciliation._board import RunBoard
from boardclient.bulk.reconciliation._learning import Learning
from boardclient.bulk.reconciliation._listing import Listing, find_limit
from boardclient.bulk.reconciliation._matching import MatchResult, match, recognise
from boardclient.bulk.reconciliation._missing import Missing, MissingCards
from boardclient.bulk.reconciliation._reader import Reader
from boardclient.bulk.reconciliation._renamed import RenamedCards
from boardclient.bulk.reconciliation._row_markers import Marking, RowMarkers
from boardclient.bulk.reconciliation._samples import Sample
from boardclient.bulk.reconciliation._shown import Shown
from boardclient.bulk.reconciliation._unproven import UnprovenRows
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card

_NO_BASELINE: Final = (
    "the journal does not have the cards that existed before its first row: look for the card on the board, and give the next"
    " import a new journal and marker=True"
)


_UNMARKED: Final = "a card that looks like the row's shows no marker, and may belong to others"
_OTHERS: Final = (
    "earlier runs left other rows in doubt, and the listing does not show all that was sent: import them together with this one"
)
_MOST_UNKNOWN: Final = 1000
"""How many rows that stayed unknown are matched again, since the cards of later rows may be theirs."""


class RowFinding(NamedTuple):
    """What a listing says about a row in doubt.

    `card` is set if the card exists, `error` if that is not known. `is_open` means that the card is not listed, and that only a
    later listing can prove that it does not exist. If none of them is set, it does not exist.
    """

    row: Row
    card: Card | None = None
    error: BoardClientError | None = None
    is_open: bool = False


@attrs.frozen
class _LastListing:
    """What the last listing for rows in doubt says about those that it lacks.

    Attributes:
        no_evidence: Why nothing shows that the listing is complete, or None.
        limit: Why it may be cut off at its length, or None.
        shows_baseline: Whether it shows any card that existed before the run.
    """

    no_evidence: str | None = None
    limit: str | None = None
    shows_baseline: bool = False


class Reconciler:
    """Recognises the cards of a run on its board. Owned by the run.

    `settle_seconds` is how long a created card may be missing from the listing.
    """

    def __init__(
        self, reader: Reader, board_id: str | None, ledger: Ledger, marking: Marking, settle_seconds: float = 0.0
    ) -> None:
        self._ledger = ledger
        self._board = RunBoard(reader, board_id, ledger, settle_seconds)
        self._markers = RowMarkers(marking, ledger.secret)
        self._learning = Learning(ledger, self._markers)
        self._auditor = Auditor(self._markers)
        self._missing = MissingCards(reader, ledger)
        self._unproven, self._renamed = UnprovenRows(ledger), RenamedCards(ledger)
        self._first_seq = math.inf
        """The number of the first row whose card is known."""
        self._last = _LastListing()

    async def prepare(self, *, reads_cards: bool) -> None:
        """Read the board's lists, and the cards that exist before the first row.

        The cards are read only if `reads_cards` is set and the ledger is new.

        Raises:
            BoardClientError: the board could not be read.
        """
        await self._board.prepare(reads_cards=reads_cards)

    def problem(self, row: Row) -> BoardClientError | None:
        """Return why a row can't be sent, or None if it can or was sent before."""
        lists, list_id = self._board.lists, row.draft.list_id
        if lists is None or list_id in lists or row.sends or row.action == "doubtful":
            return None
        return BoardClientError(f"the list {list_id} is not on the board {self._board.board_id}: nothing was sent")

    def description(self, row: Row) -> str | None:
        """Return the description to send for a row, with its marker if there is one.

        Raises:
            TypeError, ValueError: the caller's function returned an unusable marker.
            Exception: any error that the caller's function raises.
        """
        return self._markers.description(row)

    def note_created(self, row: Row, card_id: str) -> None:
        """Note that the card of a row was created just now."""
        self._board.created_at = asyncio.get_running_loop().time()
        self.note_known(row, card_id)

    def note_known(self, row: Row, card_id: str) -> None:
        """Note the card of a row, which an earlier run may have created."""
        if row.seq < self._first_seq:
            self._first_seq = row.seq
        if self._markers.are_secret:
            self._markers.of(row)
        self._learning.samples.add(card_id, row)

    def note_refused(self, row: Row) -> None:
        """Note that a row was refused. The audit looks for its card all the same."""
        self._auditor.note_refused(row)

    # --- rows in doubt

    async def settle(self, rows: Sequence[Row]) -> list[RowFinding]:
        """Read the board, and return a finding for each row.

        No other row may be in flight, since a card that is being created could be taken for that of a row in doubt.

        Raises:
            BoardClientError: an error that ends the run. If the board can't be read for another reason, the findings say so.
        """
        try:
            listing = await self._listing()
        except RUN_ENDING_ERRORS:
            raise
        except BoardClientError as error:
            self._auditor.unresolved += rows
            return [_unknown(row, f"the board could not be read: {error.message}") for row in rows]
        self._auditor.doubted += rows
        samples, shown = await self._learning.learn(listing)
        has_others = bool(listing.unaccounted) and bool(await self._ledger.other_doubts())
        result = self._match(rows, listing, samples, shown, has_others=has_others)
        self._auditor.recovered += len(result.found)
        for place, card in result.found.items():
            self._learning.note_found(card.id, rows[place])
        findings = [RowFinding(rows[place], card) for place, card in result.found.items()]
        findings += [_unknown(rows[place], why) for place, why in result.unclear.items()]
        absent = [rows[place] for place in result.absent]
        missing = await self._look_for_missing(listing)
        if missing.is_incomplete:
            total = listing.confirmed + missing.deleted + missing.hidden
            why = f"the listing lacks {missing.hidden} of {total} cards that were confirmed: it is not complete"
            findings += [_unknown(row, why) for row in absent]
        else:
            await self._renamed.note([self._markers.content(row) for row in absent], result.left_over, shown)
            findings += [self._absence(row, listing) for row in absent]
        self._last = _LastListing(listing.lacks_evidence(len(result.found)), find_limit(listing.count), listing.shows_baseline)
        self._auditor.unresolved += [finding.row for finding in findings if finding.error is not None]
        return findings

    def _match(
        self, rows: Sequence[Row], listing: Listing, samples: Sequence[Sample], shown: Shown, *, has_others: bool
    ) -> MatchResult:
        """Match rows with cards.

        Rows that stayed unknown before may have some of the cards. So may those of earlier runs that are not in the input, if
        `has_others` is set.
        """
        known = {id(row) for row in rows}
        unknown = [row for row in self._auditor.unresolved[-_MOST_UNKNOWN:] if id(row) not in known]
        every = [*rows, *unknown]
        sent = [self._markers.content(row) for row in every] + [sample.sent for sample in samples]
        is_vague = has_others and not shown.shows_all(sent)
        result = self._match_all(every, listing, samples, shown, is_vague=is_vague)
        result.keep(len(rows))
        return result

    def _match_all(
        self, rows: Sequence[Row], listing: Listing, samples: Sequence[Sample], shown: Shown, *, is_vague: bool
    ) -> MatchResult:
        """Match rows with cards by their markers, the others by what was sent.

        With `is_vague` set, what was sent is not enough to find a row.
        """
        cards, places = listing.unaccounted, [*range(len(rows))]
        result = MatchResult()
        if self._markers.are_used:
            self._markers.match(rows, cards, result)
            given = {card.id for card in result.found.values()}
            cards = [card for card in cards if card.id not in given]
            if self._markers.are_listed(samples):
                self._markers.match_remains({place: rows[place] for place in places if place not in result.found}, cards, result)
            if self._markers.are_always_listed(samples):
                cards = []  # cards without a marker belong to others
            places = [place for place in places if place not in result.found and place not in result.unclear]
        if cards and not listing.has_baseline:
            result.unclear.update(dict.fromkeys(places, _NO_BASELINE))
            return result
        by_content = self._match_contents([rows[place] for place in places], cards, shown)
        if self._markers.are_listed(samples):
            by_content.doubt(_UNMARKED)
        if is_vague:
            by_content.doubt(_OTHERS)
        result.found.update((places[place], card) for place, card in by_content.found.items())
        result.unclear.update((places[place], why) for place, why in by_content.unclear.items())
        result.absent = [places[place] for place in by_content.absent]
        result.left_over = by_content.left_over
        return result

    def _match_contents(self, rows: Sequence[Row], cards: Sequence[Card], shown: Shown) -> MatchResult:
        contents, digests = [self._markers.content(row) for row in rows], [digest(row.draft) for row in rows]
        result = match(contents, digests, cards, shown)
        if self._learning.kept is not None:
            recognise(contents, digests, result, self._learning.kept.shown)
        return result

    def _absence(self, row: Row, listing: Listing) -> RowFinding:
        """Return a finding for a row that is not listed: absent, open or unknown.

        It is absent if an earlier listing lacked it too, and this one shows more cards.
        """
        list_id, open_lists = row.draft.list_id, self._board.open_lists
        if open_lists is not None and list_id not in open_lists:
            return _unknown(row, f"the list {list_id} was archived or removed, so its cards may not be listed")
        if row.absent_at is not None and listing.has_grown(row.absent_at):
            row.absent_at = None
            return RowFinding(row)
        extent = listing.extent(list_id)
        row.absent_at = extent if row.absent_at is None else min(row.absent_at, extent)
        return RowFinding(row, is_open=True)

    def choose(self, rows: Sequence[Row]) -> Row | str:
        """Choose the row to send again without proof, or say why none may be sent.

        `rows` are those of the last reconciliation that are still open.
        """
        if self._last.no_evidence is not None:
            return self._last.no_evidence
        return self._unproven.choose(rows, self._last.limit, self._is_outside)

    def _is_outside(self, row: Row) -> bool:
        """Return True if a listing of the oldest or newest cards lacks a row first."""
        is_first = row.seq <= self._first_seq and not self._last.shows_baseline
        return is_first or row.doubted_at >= self._board.created_at

    async def note_unproven(self, row: Row) -> None:
        """Note that a row is sent again now without proof.

        Raises:
            JournalError: the journal can't be written. The row must not be sent.
        """
        await self._unproven.add(row)

    def give_up(self, rows: Sequence[Row], why: str) -> list[RowFinding]:
        """Return findings for rows that stay open, which say why they may exist."""
        self._auditor.unresolved += rows
        return [_unknown(row, why) for row in rows]

    # --- the audit

    async def audit(self) -> BulkAudit:
        """Read the board again, and compare it with the ledger.

        Raises:
            BoardClientError: the board could not be read.
        """
        listing = await self._listing()
        samples, shown = await self._learning.learn(listing)
        if listing.unaccounted and shown.changes_looks:
            listing = await self._listing(shown.look)
        missing = await self._look_for_missing(listing)
        return self._auditor.audit(listing, missing, samples, shown, renamed=self._renamed.ids, unproven=self._unproven)

    # --- the board

    async def _listing(self, look: Callable[[Card], Card] | None = None) -> Listing:
        """Read the board, and forget the unproven rows that are proven by it."""
        listing = await self._board.listing(self._learning.known_ids, look)
        await self._unproven.review(listing)
        return listing

    async def _look_for_missing(self, listing: Listing) -> Missing:
        return await self._missing.look(listing, self._learning.known_ids, self._board.open_lists)


def _unknown(row: Row, why: str) -> RowFinding:
    return RowFinding(row, error=BoardClientError(f"whether the card exists is not known: {why}", Effect.UNKNOWN))
