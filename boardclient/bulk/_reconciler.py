"""Decides for all rows in doubt together whether their cards exist (4.4).

The rules are in docs/design/proof.md.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from boardclient._statuses import ends_run
from boardclient.bulk._audit import RowsOfRun, make_audit
from boardclient.bulk._board import Reader, RunBoard
from boardclient.bulk._content import EqualCards, digest
from boardclient.bulk._ledger import Doubt, Ledger
from boardclient.bulk._life import Row
from boardclient.bulk._listing import Extent, Listing
from boardclient.bulk._markers import Marking, RowMarkers
from boardclient.bulk._proof import Claim, Evidence, Samples, Suspects, find_equal, words
from boardclient.bulk._results import BulkAudit
from boardclient.errors import BoardClientError, Effect, JournalError
from boardclient.models import Card

_FACT: Final = "listings that lacked rows in doubt"
"""The name under which the ledger keeps how long they were, by the number of the row."""
_MOST_NAMED: Final = 100
"""How many cards are kept for a row that may be its."""
_NO_BASELINE: Final = (
    "the journal does not have the cards that existed before its first row: look for the card on the board, and give the next"
    " import a new journal and marker=True"
)


class RowFinding(NamedTuple):
    """What a listing says about a row in doubt.

    `card` is set if the card exists, `error` if that is not known. `is_open` means that the card is not listed, and that only a
    later listing can prove that it does not exist. If none of them is set, it does not exist.
    """

    row: Row
    card: Card | None = None
    error: BoardClientError | None = None
    is_open: bool = False


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
        self._samples = Samples()
        self._rows = RowsOfRun()
        self._named: set[str] = set()
        """The identifiers of the cards that the errors of unknown rows name."""
        self._has_named: set[int] = set()
        """The numbers of these rows."""
        self._kept: dict[int, Extent] = {}
        """How long listings of earlier runs were that lacked rows which those left in doubt, by the number of the row."""
        self._read_at: list[float] = []
        """When the board was read, on the loop's clock."""
        self._listed_in: dict[str, int] = {}
        """In which of these readings each unaccounted card was listed first, from 1."""

    async def prepare(self, *, reads_cards: bool) -> None:
        """Read the board's lists, and the cards that exist before the first row.

        The cards are read only if `reads_cards` is set and the ledger is new.

        Raises:
            BoardClientError: the board could not be read.
            JournalError: the journal can't be written, or what earlier runs have kept can't be read.
        """
        await self._board.prepare(reads_cards=reads_cards)
        kept = _load(self._ledger.facts.get(_FACT))
        if kept:  # no longer true once a row is sent again
            await self._ledger.set_fact(_FACT, "{}")
        self._kept = kept if reads_cards else {}

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
        if self._markers.are_secret:
            self._markers.of(row)
        self._samples.add(card_id, row)

    def note_refused(self, row: Row) -> None:
        """Note that a row was refused. The audit looks for its card all the same."""
        self._rows.refused.append(row)

    # --- rows in doubt

    async def reconcile(self, rows: Sequence[Row]) -> list[RowFinding]:
        """Read the board, and return a finding for each row.

        No other row may be in flight, since a card that is being created could be taken for that of a row in doubt.

        Raises:
            BoardClientError: an error that ends the run. If the board can't be read for another reason, the findings say so.
        """
        try:
            listing = await self._listing()
            await self._board.read_lists()  # after the cards, so that they were listed if it is open
            missing = await self._board.look_for_missing(listing, self._samples.ids)
        except BoardClientError as error:
            if ends_run(error):
                raise
            return self.give_up(rows, f"the board could not be read: {error.message}")
        why = None
        if missing.is_incomplete:
            total = listing.confirmed + missing.deleted + missing.hidden
            why = f"the listing lacks {missing.hidden} of {total} cards that were confirmed: it is not complete"
        findings = await self._judge(rows, listing, why)
        self._rows.recovered += [finding.row for finding in findings if finding.card is not None]
        self._rows.unknown += [finding.row for finding in findings if finding.error is not None]
        for row, card, *_ in findings:
            if card is not None:
                self._samples.add(card.id, row)
        await self._keep_extents(findings)
        return findings

    async def _listing(self) -> Listing:
        """Read the cards, and note in which reading each was listed first."""
        listing = await self._board.listing(self._samples.ids)
        self._read_at.append(asyncio.get_running_loop().time())
        for card in listing.unaccounted:
            self._listed_in.setdefault(card.id, len(self._read_at))
        return listing

    def _since(self, row: Row) -> int:
        """Return how often the board had been read before a row was last sent: none is in flight while it is read."""
        return bisect_left(self._read_at, row.doubted_at)

    async def _judge(self, rows: Sequence[Row], listing: Listing, incomplete: str | None) -> list[RowFinding]:
        """Return a finding for each row, knowing that unknown rows and those of earlier runs may have some of the cards."""
        cards, known = listing.unaccounted, {id(row) for row in rows}
        every = [*rows, *(row for row in self._rows.unknown if id(row) not in known)]
        others = await self._ledger.other_doubts() if cards else ()
        self._markers.know(doubt.seq for doubt in others)
        evidence = Evidence(self._samples, listing, self._markers)
        found, unclear = self._markers.match(every, cards)
        if listing.has_baseline:
            left = [place for place in range(len(every)) if place not in found and place not in unclear]
            left += range(len(every), len(every) + len(others))
            given = {card.id for card in found.values()}
            free = EqualCards([card for card in cards if card.id not in given], listing.fields)
            equal, equally = self._find_equal(
                [every[place] for place in left if place < len(every)], others, free, listing.copies(), evidence
            )
            found.update((left[place], card) for place, card in equal.items())
            unclear.update((left[place], some) for place, some in equally.items())
        given = {card.id for card in found.values()} | self._markers.cards_of_rows(cards)
        suspects = Suspects([card for card in cards if card.id not in given], self._listed_in, evidence)
        remains = {place: row for place, row in enumerate(rows) if place not in found}
        partly = self._markers.match_remains(remains, suspects.cards)
        findings = [RowFinding(rows[place], card) for place, card in found.items() if place < len(rows)]
        resembling: dict[int, Sequence[Card]] = {}
        lists: dict[int, Sequence[Card]] = {}  # most rows have the same
        for place, row in remains.items():
            equals = unclear.get(place, [])
            possible = self._suspects_of(row, suspects, [*equals, *partly.get(place, ())])
            if not (equals or possible):
                findings.append(self._absence(row, listing, evidence) if incomplete is None else _unknown(row, incomplete))
            elif not listing.has_baseline:
                findings.append(_unknown(row, _NO_BASELINE))
            else:
                resembling[row.seq] = possible[:_MOST_NAMED]
                lists[id(possible)] = possible
                self._has_named.add(row.seq)
                findings.append(_unknown(row, _why(possible, is_equal=bool(equals))))
        self._named.update(card.id for possible in lists.values() for card in possible)
        if resembling:
            await self._ledger.note_resembling(resembling)
        return findings

    def _suspects_of(self, row: Row, suspects: Suspects, likely: Sequence[Card]) -> Sequence[Card]:
        return suspects.of(self._markers.content(row), self._since(row), likely, row.draft.desc)

    def _find_equal(
        self, rows: Sequence[Row], others: Sequence[Doubt], cards: EqualCards, copies: Container[str], evidence: Evidence
    ) -> tuple[dict[int, Card], dict[int, list[Card]]]:
        """Find rows by what was sent, as `find_equal` does, where that proves something."""
        claims = [Claim(self._markers.content(row), digest(row.draft), self._since(row)) for row in rows]
        claims += [Claim(doubt.content, b"%d" % doubt.seq, 0) for doubt in others]
        found, unclear = find_equal(claims, cards, self._listed_in)
        for place, row in enumerate(rows):
            card, draft = found.get(place), row.draft
            if card is None:
                continue
            # It may equal the row only in what was sent, but another row's card in everything.
            is_copy = card.id in copies and bool((card.desc and draft.desc is None) or (card.due and draft.due is None))
            if is_copy or not evidence.shows_as_sent(draft.list_id):
                unclear[place] = [found.pop(place)]
        return found, unclear

    def _absence(self, row: Row, listing: Listing, evidence: Evidence) -> RowFinding:
        """Return a finding for a row that is not listed, which is absent if an earlier, shorter listing lacked it too."""
        list_id, open_lists = row.draft.list_id, self._board.open_lists
        if open_lists is not None and list_id not in open_lists:
            return _unknown(row, f"the list {list_id} was archived or removed, so its cards may not be listed")
        before = row.absent_at
        if before is None and not row.sends:
            before = self._kept.get(row.seq)
        if before is not None and listing.has_grown(before):
            if not evidence.has_sample(list_id):
                return _unknown(row, f"no other card of this run is listed in {list_id}, so its cards may not be listed")
            row.absent_at = None
            return RowFinding(row)
        extent = listing.extent(list_id)
        row.absent_at = extent if before is None else min(before, extent)
        return RowFinding(row, is_open=True)

    async def _keep_extents(self, findings: Sequence[RowFinding]) -> None:
        """Keep for later runs how long the listing was that lacks open rows, and forget it of rows that may be sent now."""
        extents = {row.seq: row.absent_at for row, _, _, is_open in findings if is_open}
        text = json.dumps(extents)
        if text != self._ledger.facts.get(_FACT, "{}"):
            await self._ledger.set_fact(_FACT, text)

    def give_up(self, rows: Sequence[Row], why: str) -> list[RowFinding]:
        """Return findings for rows that stay open, which say why they may exist."""
        self._rows.unknown += rows
        return [_unknown(row, why) for row in rows]

    # --- the audit

    async def audit(self) -> BulkAudit:
        """Read the board again, and compare it with the ledger.

        Raises:
            BoardClientError: the board could not be read.
        """
        listing = await self._listing()
        missing = await self._board.look_for_missing(listing, self._samples.ids)
        evidence = Evidence(self._samples, listing, self._markers)
        return make_audit(
            self._rows,
            self._samples,
            listing,
            missing,
            evidence=evidence,
            markers=self._markers,
            suspected=self._suspected(listing, evidence),
        )

    def _suspected(self, listing: Listing, evidence: Evidence) -> set[str]:
        """Return the ids of the cards that the errors of unknown rows name, or of those listed now if one names none."""
        known = self._markers.cards_of_rows(listing.unaccounted)
        suspects = Suspects([card for card in listing.unaccounted if card.id not in known], self._listed_in, evidence)
        unnamed = [row for row in self._rows.unknown if row.seq not in self._has_named]
        partly = self._markers.match_remains(dict(enumerate(unnamed)), suspects.cards)
        found = set(self._named)
        lists = {
            id(some): some
            for some in (self._suspects_of(row, suspects, partly.get(place, ())) for place, row in enumerate(unnamed))
        }
        return found.union(*({card.id for card in some} for some in lists.values()))


def _why(cards: Sequence[Card], *, is_equal: bool) -> str:
    some = words(cards)
    if is_equal:
        return f"{some} may be its own or that of another row or of others, which nothing tells apart"
    return f"{some} may be its own: no row is known to have created {'it' if len(cards) == 1 else 'them'}"


def _load(text: str | None) -> dict[int, Extent]:
    try:
        return {int(seq): Extent(*extent) for seq, extent in json.loads(text or "{}").items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise JournalError(f"the journal is damaged ({_FACT}): restore it from a copy") from error


def _unknown(row: Row, why: str) -> RowFinding:
    return RowFinding(row, error=BoardClientError(f"whether the card exists is not known: {why}", Effect.UNKNOWN))
