"""What became of rows in doubt: the board is read, once for all of them, and says which exist (interface 4.4, 4.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeAlias

from boardclient import _operations as operations
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._matching import Content, IdSet, Listing, check_marker, digest, markers, secret_marker, with_marker
from boardclient.bulk._reader import Reader
from boardclient.bulk._results import FATAL, BulkAudit
from boardclient.bulk._rows import Row
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card, CardDraft

_ADVICE: Final = "look at the board for them, and give the next import a new journal and marker=True"
_NAMED: Final = 1000
"""How many cards of a kind an audit names."""

Marking: TypeAlias = bool | Callable[[CardDraft], str] | None


class Finding(NamedTuple):
    """What a listing says of a row in doubt: the card where there is one, why nothing can be said, or that it is absent."""

    row: Row
    card: Card | None = None
    error: BoardClientError | None = None


class Reconciler:
    """Recognises the cards of a run on its board. Owned by the run.

    By content, cards are recognised that are exactly what was sent and were not there before; by marker, those whose description
    holds the text that was put there.
    """

    def __init__(self, caller: Reader, board_id: str | None, ledger: Ledger, marking: Marking) -> None:
        self._caller = caller
        self._board_id = board_id
        self._ledger = ledger
        self._marking = marking
        self._baseline: IdSet | None = None
        self._lists: frozenset[str] | None = None
        self._is_changed = False
        self._doubted: list[Row] = []
        self._recovered = 0

    async def prepare(self, *, reads_cards: bool) -> None:
        """Read the lists of the board and, before the first row of a ledger, the cards that are there."""
        if self._board_id is None:
            return
        self._lists = frozenset(item.id for item in await self._caller.call(operations.BOARD_LISTS.request(self._board_id)))
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
        """Return what the description of a row's card holds, None where rows have no markers."""
        if row.marker is None and callable(self._marking):
            row.marker = check_marker(self._marking(row.draft))
        elif row.marker is None and self._marking:
            row.marker = secret_marker(self._ledger.secret, row.seq)
        return row.marker

    def note_created(self, row: Row, card: Card) -> None:
        """Take note of what the service made of a card: if another than was sent, its content can't tell whose it is."""
        draft = row.draft
        is_kept = (
            card.name in (draft.name, None)
            and card.desc in (draft.desc or "", None)
            and card.list_id in (draft.list_id, None)
            and card.due in (draft.due, None)
        )
        if not (is_kept or self._marking):
            self._is_changed = True

    async def settle(self, rows: Sequence[Row]) -> list[Finding]:
        """Read the board and say of each row what became of it.

        Nothing else of the run may be under way: a card that is being created would be taken for one of these.
        """
        if self._is_changed:
            return _unsettled(rows, f"the service changes what cards say, so that they are not recognised: {_ADVICE}")
        if not self._marking and self._baseline is None:
            return _unsettled(rows, f"the journal was begun without knowing which cards were there before: {_ADVICE}")
        try:
            listing = await self._listing(await self._ledger.confirmed())
        except FATAL:
            raise
        except BoardClientError as error:
            return _unsettled(rows, f"the board could not be read: {error.message}")
        self._doubted += rows
        verdict = listing.compare(
            [self._wanted(row, listing) for row in rows],
            lambda card: self._keys(card, listing),
            [digest(row.draft) for row in rows],
        )
        self._recovered += len(verdict.found)
        settled = [Finding(rows[place], card) for place, card in verdict.found.items()]
        settled += _unsettled([rows[place] for place in verdict.unclear], "the board shows no difference to others that exist")
        absent = [rows[place] for place in verdict.absent]
        if verdict.proves_nothing is not None:
            return settled + _unsettled(absent, verdict.proves_nothing)
        return settled + [Finding(row) for row in absent]

    async def audit(self) -> BulkAudit:
        """Read the board once more and compare it with what is known."""
        confirmed = await self._ledger.confirmed()
        listing = await self._listing(confirmed)
        doubted = {self._wanted(row, listing) for row in self._doubted}
        verdict = listing.compare([], lambda card: ())
        twice = [card for card in verdict.unexpected if not doubted.isdisjoint(self._keys(card, listing))]
        # Without a baseline nobody knows which of the others were there before.
        others = [] if self._baseline is None else [card for card in verdict.unexpected if card not in twice]
        return BulkAudit(
            confirmed=len(confirmed) - verdict.missing,
            recovered=self._recovered,
            lost=verdict.missing,
            duplicated=tuple(twice[:_NAMED]),
            unexpected=tuple(others[:_NAMED]),
        )

    async def _listing(self, confirmed: IdSet) -> Listing:
        listing = Listing(self._baseline or IdSet(), confirmed)
        if self._board_id is not None:
            async for card in self._cards(self._board_id):
                listing.add(card)
        return listing

    async def _cards(self, board_id: str) -> AsyncIterator[Card]:
        """Yield the cards of the board, decoded slice by slice, and let other tasks run in between."""
        for cards in await self._caller.call(operations.CARDS_IN_SLICES.request(board_id)):
            for card in cards:
                yield card
            await asyncio.sleep(0)

    def _wanted(self, row: Row, listing: Listing) -> Hashable:
        return self._marker(row) if self._marking else Content.of(row.draft).shown(listing.shown)

    def _keys(self, card: Card, listing: Listing) -> Sequence[Hashable]:
        return markers(card) if self._marking else (Content.of(card).shown(listing.shown),)


def _unsettled(rows: Sequence[Row], why: str) -> list[Finding]:
    return [Finding(row, error=BoardClientError(f"whether the card exists is not known: {why}", Effect.UNKNOWN)) for row in rows]
