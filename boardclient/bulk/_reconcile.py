"""What became of rows in doubt. The board is read, once for all of them, and says which exist (interface 4.4, 4.5)."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from boardclient import _operations as operations
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._listing import IdSet, Listing, find_limit
from boardclient.bulk._markers import check_marker, markers, normal, secret_marker, with_marker
from boardclient.bulk._matching import Content, MatchResult, Shown, digest, match, resembling
from boardclient.bulk._reader import Reader
from boardclient.bulk._results import FATAL, BulkAudit
from boardclient.bulk._rows import Row
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card, CardDraft

_NAMED: Final = 1000
"""How many cards of a kind an audit names."""
_SAMPLES: Final = 512
"""How many of the first and of the last confirmed rows are kept to learn from."""
_MISFITS: Final = 4
"""One card in so many may lack its marker: people edit descriptions."""
_NO_BASELINE: Final = (
    "the journal was begun without knowing which cards were there before: look at the board for it, and give the next import a"
    " new journal and marker=True"
)

Marking: TypeAlias = bool | Callable[[CardDraft], str] | None


class RowFinding(NamedTuple):
    """What a listing says of a row in doubt. The card where there is one, why nothing can be said, or that it is absent.

    `is_open` is set where the row is to be asked for again, once others were created.
    """

    row: Row
    card: Card | None = None
    error: BoardClientError | None = None
    is_open: bool = False


class Samples:
    """Some of the rows whose cards are known: the first and the last of a run. Owned by a reconciler."""

    def __init__(self) -> None:
        self._first: list[tuple[str, Row]] = []
        self._last: deque[tuple[str, Row]] = deque(maxlen=_SAMPLES)

    def add(self, card_id: str, row: Row) -> None:
        """Keep a row whose card is known."""
        if len(self._first) < _SAMPLES:
            self._first.append((card_id, row))
        else:
            self._last.append((card_id, row))

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return chain(self._first, self._last)


class Reconciler:
    """Recognises the cards of a run on its board. Owned by the run.

    `settle_seconds` is how long a card that was created may be missing from the listing.
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
        self._samples = Samples()
        self._created_at = 0.0
        self._first_seq = math.inf
        self._doubted: list[Row] = []
        self._unresolved: list[Row] = []
        self._recovered = 0
        self._probes = 1

    async def prepare(self, *, reads_cards: bool) -> None:
        """Read the board's lists, and its cards before the first row of a ledger."""
        if self._board_id is None:
            return
        self._lists = frozenset(item.id for item in await self._reader.call(operations.BOARD_LISTS.request(self._board_id)))
        self._baseline = await self._ledger.baseline()
        if reads_cards and self._baseline is None and self._ledger.is_new:
            ids = [card.id async for card in self._cards(self._board_id)]
            await self._ledger.set_baseline(ids)
            self._baseline = IdSet(ids)

    def problem(self, row: Row) -> BoardClientError | None:
        """Say why a row is not sent, None where it may be, or was sent before."""
        list_id = row.draft.list_id
        if self._lists is None or list_id in self._lists or row.sends or row.standing == "doubtful":
            return None
        return BoardClientError(f"the list {list_id} is not on the board {self._board_id}: nothing was sent")

    def description(self, row: Row) -> str | None:
        """Return the description to send for a row.

        Raises:
            TypeError, ValueError: the caller's marker can't be used; or whatever the caller's function raises.
        """
        marker = self._marker(row)
        return row.draft.desc if marker is None else with_marker(row.draft.desc, marker)

    def _marker(self, row: Row) -> str | None:
        """Return what the description of a row's card holds. It is None where rows have no markers."""
        if row.marker is None and callable(self._marking):
            row.marker = check_marker(self._marking(row.draft))
        elif row.marker is None and self._marking:
            row.marker = secret_marker(self._ledger.secret, row.seq)
        return row.marker

    def note_created(self, row: Row, card_id: str) -> None:
        """Take note of a row whose card was created now."""
        self._created_at = asyncio.get_running_loop().time()
        self.note_known(row, card_id)

    def note_known(self, row: Row, card_id: str) -> None:
        """Take note of a row whose card is known, be it from an earlier run."""
        self._first_seq = min(self._first_seq, row.seq)
        self._samples.add(card_id, row)

    async def settle(self, rows: Sequence[Row]) -> list[RowFinding]:
        """Read the board and say of each row what became of it.

        Nothing else of the run may be under way: a card that is being created would be taken for one of these.
        """
        try:
            listing = await self._listing()
        except FATAL:
            raise
        except BoardClientError as error:
            self._unresolved += rows
            return _unsettled(rows, f"the board could not be read: {error.message}")
        self._doubted += rows
        result = self._match(rows, listing)
        self._recovered += len(result.found)
        findings = [RowFinding(rows[place], card) for place, card in result.found.items()]
        for place, why in result.unclear.items():
            findings += _unsettled([rows[place]], why)
        absent = [rows[place] for place in result.absent]
        why_not = listing.incompleteness(len(result.found))
        findings += self._absent(absent, listing) if why_not is None else _unsettled(absent, why_not)
        self._unresolved += [finding.row for finding in findings if finding.error is not None]
        return findings

    def _absent(self, absent: Sequence[Row], listing: Listing) -> list[RowFinding]:
        """Say which rows that are not listed may be sent again. At first few without listed neighbours are.

        A listing of the oldest cards that has just become full lacks whatever was created last, one of the newest whatever was
        created first. What was created last is sent again one by one, until a card of those is listed.
        """
        is_late = {row: row.doubted_at >= self._created_at for row in absent}
        is_early = {row: not listing.shows_baseline and row.seq <= self._first_seq for row in absent}
        limit = find_limit(listing.count)
        if limit is not None:
            outside = [row for row in absent if is_late[row] or is_early[row]]
            within = [row for row in absent if row not in outside]
            return [RowFinding(row) for row in within] + _unsettled(outside, limit)
        late = [row for row in absent if is_late[row]]
        later = set(late[self._probes :])
        self._probes = 2 * self._probes if later else 1
        return [RowFinding(row, is_open=row in later) for row in absent]

    async def audit(self) -> BulkAudit:
        """Read the board once more and compare it with what is known."""
        listing = await self._listing()
        others = listing.unaccounted
        copies = {card.id for card in listing.copies()} if self._baseline is not None else set[str]()
        doubted = self._alike(others, self._doubted, listing)
        unresolved = self._alike(others, self._unresolved, listing)
        twice = [card for card in others if card.id in copies or card.id in doubted - unresolved]
        # Without a baseline nobody knows which of the others were there before.
        others = [] if self._baseline is None else [card for card in others if card not in twice]
        return BulkAudit(
            confirmed=listing.confirmed,
            recovered=self._recovered,
            lost=listing.missing,
            duplicated=tuple(twice[:_NAMED]),
            unexpected=tuple(others[:_NAMED]),
            resembling=tuple(card for card in others if card.id in unresolved)[:_NAMED],
        )

    def _alike(self, cards: Sequence[Card], rows: Sequence[Row], listing: Listing) -> set[str]:
        """Return the identifiers of the cards that may be one of the rows."""
        if not (self._marking and _markers_work(self._sent(listing))):
            return {card.id for card in resembling(cards, [row.draft.name for row in rows])}
        wanted = {normal(self._marker(row) or "") for row in rows}
        return {card.id for card in cards if not wanted.isdisjoint(markers(card.desc))}

    async def _listing(self) -> Listing:
        """Read the board, once more where it lacks cards that may be too new."""
        confirmed = await self._ledger.confirmed()
        samples = dict(self._samples)
        listing = await self._read(confirmed, samples)
        wait = self._created_at + self._settle_seconds - asyncio.get_running_loop().time()
        if listing.missing and self._created_at and wait > 0:
            await asyncio.sleep(wait)
            listing = await self._read(confirmed, samples)
        return listing

    async def _read(self, confirmed: IdSet, samples: dict[str, Row]) -> Listing:
        listing = Listing(self._baseline, confirmed, samples)
        if self._board_id is not None:
            async for card in self._cards(self._board_id):
                listing.add(card)
        return listing

    async def _cards(self, board_id: str) -> AsyncIterator[Card]:
        """Yield the cards of the board, slice by slice. Other tasks run in between."""
        for cards in await self._reader.call(operations.CARDS_IN_SLICES.request(board_id)):
            for card in cards:
                yield card
            await asyncio.sleep(0)

    # --- the rows and cards of a listing

    def _match(self, rows: Sequence[Row], listing: Listing) -> MatchResult:
        samples = self._sent(listing)
        cards, places = listing.unaccounted, [*range(len(rows))]
        result = MatchResult()
        if self._marking:
            self._match_markers(rows, cards, result)
            given = {card.id for card in result.found.values()}
            cards = [card for card in cards if card.id not in given]
            places = [place for place in places if place not in result.found and place not in result.unclear]
            if _markers_work(samples):
                cards = []  # cards without a marker belong to others
        contents = [Content.of(rows[place].draft, self.description(rows[place])) for place in places]
        shown = Shown.learn([(sent, card) for sent, card, _ in samples], listing.fields)
        by_content = match(contents, [digest(rows[place].draft) for place in places], cards, shown)
        if cards and not listing.has_baseline:
            result.unclear.update(dict.fromkeys(places, _NO_BASELINE))
            return result
        result.found.update((places[place], card) for place, card in by_content.found.items())
        result.unclear.update((places[place], why) for place, why in by_content.unclear.items())
        result.absent = [places[place] for place in by_content.absent]
        return result

    def _sent(self, listing: Listing) -> list[tuple[Content, Card, str | None]]:
        """Return what was sent of the samples that are listed, their cards and markers."""
        found = []
        for card_id, row in self._samples:
            if card_id in listing.samples:
                found.append((Content.of(row.draft, self.description(row)), listing.samples[card_id], row.marker))
        return found

    def _match_markers(self, rows: Sequence[Row], cards: Iterable[Card], result: MatchResult) -> None:
        """Give rows the cards that hold their markers."""
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


def _markers_work(samples: Sequence[tuple[Content, Card, str | None]]) -> bool:
    """Return True if the listing shows the markers of the cards that are known."""
    held = [normal(marker or "") in markers(card.desc) for _, card, marker in samples]
    return any(held) and held.count(False) * _MISFITS <= len(held)


def _unsettled(rows: Sequence[Row], why: str) -> list[RowFinding]:
    return [
        RowFinding(row, error=BoardClientError(f"whether the card exists is not known: {why}", Effect.UNKNOWN)) for row in rows
    ]
