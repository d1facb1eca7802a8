"""The rows on their way to the workers. They are taken as needed, admitted in batches and kept for later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from boardclient.bulk._input import Input
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._queue import ResultQueue
from boardclient.bulk._rows import Row

_MOST_AHEAD: Final = 256
"""How many rows are put on record together at most: the price of a commit hardly depends on their number."""


class Backlog:
    """Rows that wait to be sent. Owned by a run.

    Of rows that are being sent and results that nobody has taken there are at most two for each worker, so that a consumer that
    is slow slows the workers down; those that were in doubt may come on top. A ledger that puts rows on record gets the next ones
    while workers are busy with earlier ones, and more at a time where workers have to wait for it.
    """

    def __init__(self, rows: Input, ledger: Ledger, workers: int, results: ResultQueue) -> None:
        self._input = rows
        self._ledger = ledger
        self._results = results
        self._workers = workers
        self._ahead = 0 if ledger.batch == 1 else ledger.batch
        """How many rows are put on record together, ahead of their sending; 0 where none is put on record."""
        self._ready: asyncio.Queue[Row] = asyncio.Queue()
        self._later: dict[Row, asyncio.TimerHandle] = {}
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._under_way = 0
        self.is_exhausted = False

    @property
    def capacity(self) -> int:
        """How many more rows may be taken from the input."""
        return 2 * self._workers - self._under_way - len(self._results.untaken)

    @property
    def _is_crowded(self) -> bool:
        """Whether rows that are on record wait until results are taken."""
        return self._ahead > 0 and len(self._results.untaken) >= self._workers

    def take_at_once(self) -> Row | None:
        """Return a new row, or one that waits, if that needs no waiting. It is None where `next` is to be awaited.

        Most rows of a synchronous input without a journal go this way: two tasks less to wake for each card.
        """
        if not (self._ready.empty() or self._is_crowded):
            waiting = self._ready.get_nowait()
            self._weigh()
            return waiting
        if self._ahead or self.capacity <= 0:
            return None
        row = self._input.next_at_once()
        if row is not None:
            self._under_way += 1
        return row

    async def next(self) -> Row:
        """Return the next row to be sent, as soon as there is one."""
        self._waiting += 1
        self._weigh()
        try:
            while self._is_crowded:
                await self._change()
            return await self._ready.get()
        finally:
            self._waiting -= 1

    def _weigh(self) -> None:
        """Want rows while more workers wait than rows are ready, or half a batch is left."""
        if self._ready.qsize() < max(self._waiting, self._ahead // 2):
            self._wanted.set()
        else:
            self._wanted.clear()

    async def take(self) -> Sequence[Row]:
        """Return new rows once a worker waits for one, none at the end of the input.

        They count as under way, and those that are to be sent are on record.
        """
        await self._wanted.wait()
        if self._ahead:
            rows = await self._take_ahead()
        else:
            while self.capacity <= 0:
                await self._change()
            rows = await self._input.take(min(self.capacity, max(1, self._waiting - self._ready.qsize())))
        self.is_exhausted = not rows
        self._under_way += len(rows)
        return rows

    async def _take_ahead(self) -> Sequence[Row]:
        while self._is_crowded:
            await self._change()
        rows = await self._input.take(self._ahead)
        if rows:
            await self._ledger.admit(rows)
        if self._waiting > self._ready.qsize() and len(rows) == self._ahead:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        return rows

    def begin(self) -> None:
        """Count a row as under way."""
        self._under_way += 1

    def put(self, row: Row) -> None:
        """Let a row that is under way be sent."""
        self._ready.put_nowait(row)
        self._weigh()

    def put_later(self, row: Row, seconds: float) -> None:
        """Let a row be sent again after a pause. No worker waits for it."""
        self._later[row] = asyncio.get_running_loop().call_later(seconds, self._ripen, row)

    def _ripen(self, row: Row) -> None:
        del self._later[row]
        self.put(row)

    def end(self) -> None:
        """Count a row as no longer under way."""
        self._under_way -= 1
        self._results.freed.set()

    async def drained(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await self._change()

    async def _change(self) -> None:
        """Wait until a row is no longer under way, or a result was taken."""
        self._results.freed.clear()
        await self._results.freed.wait()

    def give_up(self) -> list[Row]:
        """Take back the rows that wait to be sent; they are no longer under way."""
        rows = list(self._later)
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        while not self._ready.empty():
            rows.append(self._ready.get_nowait())
        for _ in rows:
            self.end()
        return rows
