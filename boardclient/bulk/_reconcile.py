"""Reads the board once for all rows in doubt, to see which cards exist (4.4).

The rules are in docs/design/reconciliation.md.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from boardclient import _operations as operations
from boardclient._statuses import RUN_ENDING_ERRORS
from boardclient.bulk._kept import FACT as KEPT
from boardclient.bulk._kept import KeptRules
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._likeness import is_rule
from boardclient.bulk._listing import IdSet, Listing, find_limit
from boardclient.bulk._markers import check_marker, markers, normal, secret_marker, with_marker
from boardclient.bulk._matching import MatchResult, match, recognise, resembling
from boardclient.bulk._missing import Missing, MissingCards
from boardclient.bulk._reader import Reader
from boardclient.bulk._renamed import RenamedCards
from boardclient.bulk._results import BulkAudit
from boardclient.bulk._rows import Row
from boardclient.bulk._samples import SAMPLES, Sample, Samples
from boardclient.bulk._shown import Content, Shown, digest
from boardclient.bulk._unproven import UnprovenRows
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card, CardDraft

_NAMED: Final = 1000
"""The largest number of cards in each tuple of an audit."""
_FEW: Final = 64
"""From about so many samples the rules are learned that are only kept."""
_NO_BASELINE: Final = (
    "the journal does not have the cards that existed before its first row: look for the card on the board, and give the next"
    " import a new journal and marker=True"
)
_HINT: Final = (
    "the listing shows nothing that tells some unexpected cards from those of rows: they may be somebody else's, or second cards,"
    " which a proxy makes that repeats requests; markers tell them apart"
)

Marking: TypeAlias = bool | Callable[[CardDraft], str] | None


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
        self._reader = reader
        self._board_id = board_id
        self._ledger = ledger
        self._marking = marking
        self._settle_seconds = settle_seconds
        self._baseline: IdSet | None = None
        self._lists: frozenset[str] | None = None
        self._open_lists: frozenset[str] | None = None
        self._samples = Samples()
        self._created_at = 0.0
        self._first_seq = math.inf
        self._doubted: list[Row] = []
        self._unresolved: list[Row] = []
        self._refused: list[Row] = []
        self._recovered = 0
        self._found: deque[tuple[str, Row]] = deque(maxlen=SAMPLES)
        """Rows that were found without a response. Nothing is learned from them."""
        self._missing = MissingCards(reader, ledger)
        self._unproven, self._renamed = UnprovenRows(ledger), RenamedCards(ledger)
        self._own_markers = IdSet()
        self._kept = KeptRules.load(ledger.facts.get(KEPT))
        self._no_evidence: str | None = None
        self._limit: str | None = None
        self._shows_baseline = False

    async def prepare(self, *, reads_cards: bool) -> None:
        """Read the board's lists, and the cards that exist before the first row.

        The cards are read only if `reads_cards` is set and the ledger is new.

        Raises:
            BoardClientError: the board could not be read.
        """
        if self._board_id is None:
            return
        lists = await self._reader.call(operations.BOARD_LISTS.request(self._board_id))
        self._lists = frozenset(item.id for item in lists)
        self._open_lists = frozenset(item.id for item in lists if not item.closed)
        self._baseline = await self._ledger.baseline()
        if reads_cards and self._baseline is None and self._ledger.is_new:
            ids = [card.id async for card in self._cards(self._board_id)]
            await self._ledger.set_baseline(ids)
            self._baseline = IdSet(ids)

    def problem(self, row: Row) -> BoardClientError | None:
        """Return why a row can't be sent, or None if it can or was sent before."""
        list_id = row.draft.list_id
        if self._lists is None or list_id in self._lists or row.sends or row.action == "doubtful":
            return None
        return BoardClientError(f"the list {list_id} is not on the board {self._board_id}: nothing was sent")

    def description(self, row: Row) -> str | None:
        """Return the description to send for a row, with its marker if there is one.

        Raises:
            TypeError, ValueError: the caller's function returned an unusable marker.
            Exception: any error that the caller's function raises.
        """
        marker = self._marker(row)
        return row.draft.desc if marker is None else with_marker(row.draft.desc, marker)

    def _marker(self, row: Row) -> str | None:
        """Return the marker of a row, or None if rows have no markers."""
        if row.marker is None and callable(self._marking):
            row.marker = check_marker(self._marking(row.draft))
        elif row.marker is None and self._marking:
            row.marker = secret_marker(self._ledger.secret, row.seq)
            self._own_markers.add(row.marker)
        return row.marker

    def note_created(self, row: Row, card_id: str) -> None:
        """Note that the card of a row was created just now."""
        self._created_at = asyncio.get_running_loop().time()
        self.note_known(row, card_id)

    def note_known(self, row: Row, card_id: str) -> None:
        """Note the card of a row, which an earlier run may have created."""
        self._first_seq = min(self._first_seq, row.seq)
        if self._marking and not callable(self._marking):
            self._marker(row)
        self._samples.add(card_id, row)

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
            self._unresolved += rows
            return _unsettled(rows, f"the board could not be read: {error.message}")
        self._doubted += rows
        samples, shown = await self._learn(listing)
        result = self._match(rows, listing, samples, shown)
        self._recovered += len(result.found)
        findings = [RowFinding(rows[place], card) for place, card in result.found.items()]
        self._found += [(card.id, rows[place]) for place, card in result.found.items()]
        for place, why in result.unclear.items():
            findings += _unsettled([rows[place]], why)
        absent = [rows[place] for place in result.absent]
        missing = await self._look_for_missing(listing)
        if missing.is_incomplete:
            total = listing.confirmed + missing.deleted + missing.hidden
            why = f"the listing lacks {missing.hidden} of {total} cards that were confirmed: it is not complete"
            findings += _unsettled(absent, why)
        else:
            await self._renamed.note(self._contents(absent), result.left_over, shown)
            findings += [self._absence(row, listing) for row in absent]
        self._no_evidence = listing.lacks_evidence(len(result.found))
        self._limit, self._shows_baseline = find_limit(listing.count), listing.shows_baseline
        self._unresolved += [finding.row for finding in findings if finding.error is not None]
        return findings

    def choose(self, rows: Sequence[Row]) -> Row | str:
        """Choose the row to send again without proof, or say why none may be sent.

        `rows` are those of the last reconciliation that are still open.
        """
        if self._no_evidence is not None:
            return self._no_evidence
        return self._unproven.choose(rows, self._limit, self._is_outside)

    def _is_outside(self, row: Row) -> bool:
        """Return True if a listing of the oldest or newest cards lacks a row first."""
        return row.doubted_at >= self._created_at or (not self._shows_baseline and row.seq <= self._first_seq)

    async def note_unproven(self, row: Row) -> None:
        """Note that a row is sent again now without proof.

        Raises:
            JournalError: the journal can't be written. The row must not be sent.
        """
        await self._unproven.add(row)

    def give_up(self, rows: Sequence[Row], why: str) -> list[RowFinding]:
        """Return findings for rows that stay open, which say why they may exist."""
        self._unresolved += rows
        return _unsettled(rows, why)

    def note_refused(self, row: Row) -> None:
        """Note that a row was refused. The audit looks for its card all the same."""
        if len(self._refused) < _NAMED:
            self._refused.append(row)

    async def _look_for_missing(self, listing: Listing) -> Missing:
        known = (card_id for card_id, _ in chain(self._samples, self._found))
        return await self._missing.look(listing, known, self._open_lists)

    def _absence(self, row: Row, listing: Listing) -> RowFinding:
        """Return a finding for a row that is not listed: absent, open or unknown.

        It is absent if an earlier listing lacked it too, and this one shows more cards.
        """
        list_id = row.draft.list_id
        if self._open_lists is not None and list_id not in self._open_lists:
            return _unsettled([row], f"the list {list_id} was archived or removed, so its cards may not be listed")[0]
        if row.absent_at is not None and listing.has_grown(row.absent_at):
            row.absent_at = None
            return RowFinding(row)
        extent = listing.extent(list_id)
        row.absent_at = extent if row.absent_at is None else min(row.absent_at, extent)
        return RowFinding(row, is_open=True)

    async def audit(self) -> BulkAudit:
        """Read the board again, and compare it with the ledger.

        Raises:
            BoardClientError: the board could not be read.
        """
        listing = await self._listing()
        samples, shown = await self._learn(listing)
        if listing.unaccounted and shown.changes_looks:
            listing = await self._listing(shown.look)
        missing = await self._look_for_missing(listing)
        # Without a baseline it is not known which of the others existed before.
        others, copies = listing.unaccounted, listing.copies() if self._baseline is not None else []
        doubted = self._alike(others, self._doubted, samples, shown)
        unresolved = self._alike(others, self._unresolved + self._refused, samples, shown)
        doubted |= self._with_markers(others, self._own_markers)  # also second cards that people have renamed
        certain = {card.id for card in copies if shown.tells(card)} | (doubted - unresolved)
        possible = {card.id for card in copies} - certain
        suspected = unresolved | possible | self._renamed.ids
        twice = [card for card in others if card.id in certain]
        others = [] if self._baseline is None else [card for card in others if card.id not in certain]
        return BulkAudit(
            confirmed=listing.confirmed,
            recovered=self._recovered,
            lost=missing.deleted,
            hidden=missing.hidden,
            reused=listing.reused,
            duplicated=tuple(twice[:_NAMED]),
            unexpected=tuple(others[:_NAMED]),
            resembling=tuple(card for card in others if card.id in suspected)[:_NAMED],
            hint=_HINT if possible else None,
            unproven=tuple(self._unproven),
        )

    def _alike(self, cards: Sequence[Card], rows: Sequence[Row], samples: Sequence[Sample], shown: Shown) -> set[str]:
        """Return the identifiers of the cards that may belong to one of the rows."""
        found = self._with_markers(cards, {normal(self._marker(row) or "") for row in rows})
        if not (self._marking and _markers_work(samples)):
            found |= {card.id for card in resembling([*map(shown.plain, cards)], [row.draft.name for row in rows])}
        return found

    def _with_markers(self, cards: Sequence[Card], wanted: IdSet | set[str]) -> set[str]:
        """Return the identifiers of the cards that have one of the markers."""
        return {card.id for card in cards if any(marker in wanted for marker in markers(card.desc))} if self._marking else set()

    async def _listing(self, look: Callable[[Card], Card] | None = None) -> Listing:
        """Read the board. If cards are missing that may be too new to be listed, wait and read it again."""
        confirmed = await self._ledger.confirmed()
        samples = {card_id for card_id, _ in chain(self._samples, self._found)}
        listing = await self._read(confirmed, samples, look)
        wait = self._created_at + self._settle_seconds - asyncio.get_running_loop().time()
        if listing.missing and self._created_at and wait > 0:
            await asyncio.sleep(wait)
            listing = await self._read(confirmed, samples, look)
        return listing

    async def _read(self, confirmed: IdSet, samples: set[str], look: Callable[[Card], Card] | None) -> Listing:
        listing = Listing(self._baseline, confirmed, samples, look)
        if self._board_id is not None:
            async for card in self._cards(self._board_id):
                listing.add(card)
        await self._unproven.review(listing)
        return listing

    async def _cards(self, board_id: str) -> AsyncIterator[Card]:
        """Yield the cards of the board, and let other tasks run in between."""
        for cards in await self._reader.call(operations.CARDS_IN_SLICES.request(board_id)):
            for card in cards:
                yield card
            await asyncio.sleep(0)

    # --- the rows and cards of a listing

    async def _learn(self, listing: Listing) -> tuple[list[Sample], Shown]:
        """Return the samples of a listing and what they teach, which is kept."""
        samples = self._sent(listing)
        if not listing.unaccounted:
            samples = samples[:: max(1, len(samples) // _FEW)]  # they decide nothing, and take 50 microseconds each
        pairs = [(sample.sent, sample.card) for sample in samples]
        shown = Shown.learn(pairs, listing.fields)
        old = self._kept
        if old is not None and not old.shown.fits(pairs):
            old = None  # the service has changed
        if samples and (old is None or len(samples) >= old.samples):
            old = KeptRules.of(shown, len(samples))
        if old != self._kept:
            self._kept = old
            await self._ledger.set_fact(KEPT, "" if old is None else old.dump())
        return samples, shown

    def _match(self, rows: Sequence[Row], listing: Listing, samples: Sequence[Sample], shown: Shown) -> MatchResult:
        cards, places = listing.unaccounted, [*range(len(rows))]
        result = MatchResult()
        if self._marking:
            self._match_markers(rows, cards, result)
            given = {card.id for card in result.found.values()}
            cards = [card for card in cards if card.id not in given]
            places = [place for place in places if place not in result.found and place not in result.unclear]
            if _markers_work(samples):
                cards = []  # cards without a marker belong to others
        if cards and not listing.has_baseline:
            result.unclear.update(dict.fromkeys(places, _NO_BASELINE))
            return result
        by_content = self._match_contents([rows[place] for place in places], cards, shown)
        result.found.update((places[place], card) for place, card in by_content.found.items())
        result.unclear.update((places[place], why) for place, why in by_content.unclear.items())
        result.absent = [places[place] for place in by_content.absent]
        result.left_over = by_content.left_over
        return result

    def _match_contents(self, rows: Sequence[Row], cards: Sequence[Card], shown: Shown) -> MatchResult:
        contents, digests = self._contents(rows), [digest(row.draft) for row in rows]
        result = match(contents, digests, cards, shown)
        if self._kept is not None:
            recognise(contents, digests, result, self._kept.shown)
        return result

    def _contents(self, rows: Iterable[Row]) -> list[Content]:
        return [Content.of(row.draft, self.description(row)) for row in rows]

    def _sent(self, listing: Listing) -> list[Sample]:
        """Return the samples that are listed."""
        return [
            Sample(Content.of(row.draft, self.description(row)), listing.samples[card_id], row.marker)
            for card_id, row in self._samples
            if card_id in listing.samples
        ]

    def _match_markers(self, rows: Sequence[Row], cards: Iterable[Card], result: MatchResult) -> None:
        """Match rows with the cards that have their markers."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            places[normal(self._marker(row) or "")].append(place)
        marked: defaultdict[str, list[Card]] = defaultdict(list)
        for card in cards:
            held = markers(card.desc) & places.keys()
            free = next((marker for marker in sorted(held) if len(marked[marker]) < len(places[marker])), None)
            if free is not None:
                marked[free].append(card)
        for marker, found in marked.items():
            alike: set[Hashable] = {digest(rows[place].draft) for place in places[marker]}
            if len(found) == len(places[marker]) or len(alike) == 1:
                result.found.update(zip(places[marker], found, strict=False))
            else:
                result.unclear.update(dict.fromkeys(places[marker], "rows of other content have the same marker"))


def _markers_work(samples: Sequence[Sample]) -> bool:
    """Return True if the listing shows the markers of known cards. People may have edited a few descriptions."""
    held = [normal(marker or "") in markers(card.desc) for _, card, marker in samples]
    return any(held) and is_rule(held)


def _unsettled(rows: Sequence[Row], why: str) -> list[RowFinding]:
    return [
        RowFinding(row, error=BoardClientError(f"whether the card exists is not known: {why}", Effect.UNKNOWN)) for row in rows
    ]
