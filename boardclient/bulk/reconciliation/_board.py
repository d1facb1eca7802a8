"""The board of a run: its lists, and listings of its cards (4.4, 4.5)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Container

from boardclient import _operations as operations
from boardclient.bulk._ledger import Ledger
from boardclient.bulk.reconciliation._listing import IdSet, Listing
from boardclient.bulk.reconciliation._reader import Reader
from boardclient.models import Card


class RunBoard:
    """Reads the board of a run. Owned by a reconciler.

    Args:
        reader: What reads it.
        board_id: Its identifier. None if the run has no board: then nothing is read.
        ledger: What knows the cards of the baseline and the confirmed ones.
        settle_seconds: For how many seconds a created card may be missing from the listing.
    """

    def __init__(self, reader: Reader, board_id: str | None, ledger: Ledger, settle_seconds: float) -> None:
        self.board_id = board_id
        self.lists: frozenset[str] | None = None
        """Its lists, None if they are not known."""
        self.open_lists: frozenset[str] | None = None
        """Those whose cards are listed."""
        self.created_at = -math.inf
        """When the run last created a card, on the loop's clock. Minus infinity if it has created none."""
        self._reader = reader
        self._ledger = ledger
        self._settle_seconds = settle_seconds
        self._baseline: IdSet | None = None

    async def prepare(self, *, reads_cards: bool) -> None:
        """Read the lists, and the cards that exist before the first row.

        The cards are read only if `reads_cards` is set and the ledger is new.

        Raises:
            BoardClientError: the board could not be read.
        """
        if self.board_id is None:
            return
        lists = await self._reader.call(operations.BOARD_LISTS.request(self.board_id))
        self.lists = frozenset(item.id for item in lists)
        self.open_lists = frozenset(item.id for item in lists if not item.closed)
        self._baseline = await self._ledger.baseline()
        if reads_cards and self._baseline is None and self._ledger.is_new:
            ids = [card.id async for card in self._cards(self.board_id)]
            await self._ledger.set_baseline(ids)
            self._baseline = IdSet(ids)

    async def listing(self, samples: Container[str], look: Callable[[Card], Card] | None = None) -> Listing:
        """Read the cards. If some are missing that may be too new to be listed, wait and read them again.

        `samples` and `look` are those of a `Listing`.

        Raises:
            BoardClientError: the board could not be read.
        """
        confirmed = await self._ledger.confirmed()
        listing = await self._read(confirmed, samples, look)
        wait = self.created_at + self._settle_seconds - asyncio.get_running_loop().time()
        if listing.missing and wait > 0:
            await asyncio.sleep(wait)
            listing = await self._read(confirmed, samples, look)
        return listing

    async def _read(self, confirmed: IdSet, samples: Container[str], look: Callable[[Card], Card] | None) -> Listing:
        listing = Listing(self._baseline, confirmed, samples, look)
        if self.board_id is not None:
            async for card in self._cards(self.board_id):
                listing.add(card)
        return listing

    async def _cards(self, board_id: str) -> AsyncIterator[Card]:
        """Yield the cards of the board, and let other tasks run in between."""
        for cards in await self._reader.call(operations.CARDS_IN_SLICES.request(board_id)):
            for card in cards:
                yield card
            await asyncio.sleep(0)
