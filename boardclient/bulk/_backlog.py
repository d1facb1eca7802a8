"""The rows on their way to the workers: taken from the input as they are asked for, admitted in batches, kept for later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row, Source


class _Places:
    """Places for rows, which one task at most waits for. Owned by a backlog."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._freed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until there is a free one."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()

    def take(self, most: int = 1) -> int:
        """Take so many of those that are free, and return how many it were."""
        count = min(most, self.free)
        self.free -= count
        return count

    def give_back(self, count: int = 1) -> None:
        """Give places back."""
        self.free += count
        self._freed.set()


class Backlog:
    """Rows that wait to be sent. Owned by a run.

    A row takes a place before it is pulled, which is given back when its result is taken: as many results as there are workers
    may wait, and a consumer that is slow slows the workers down.
    """

    def __init__(self, source: Source, ledger: Ledger, workers: int) -> None:
        self._source = source
        self._ledger = ledger
        self._ready: asyncio.Queue[Row] = asyncio.Queue()
        self._later: dict[Row, asyncio.TimerHandle] = {}
        self._places = _Places(2 * workers)
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._under_way = 0
        self.is_exhausted = False

    def take_at_once(self) -> Row | None:
        """Return a new row, or one that waits, if that needs no waiting; None where `next` is to be awaited.

        Most rows of a synchronous input without a journal go this way: two tasks less to wake for each card.
        """
        if not self._ready.empty():
            return self._ready.get_nowait()
        if self.is_exhausted or self._ledger.batch > 1 or not self._source.is_synchronous or not self._places.free:
            return None
        row = self._source.take_one()
        if row is None:
            self.is_exhausted = True
            return None
        self._places.take()
        self.begin()
        return row

    async def next(self) -> Row:
        """Return the next row to be sent, as soon as there is one."""
        self._waiting += 1
        self._weigh()
        try:
            return await self._ready.get()
        finally:
            self._waiting -= 1

    def _weigh(self) -> None:
        """Want rows as long as more workers wait than rows."""
        if self._waiting > self._ready.qsize():
            self._wanted.set()
        else:
            self._wanted.clear()

    async def take(self) -> Sequence[Row]:
        """Return new rows once a worker waits for one and there is a place for it, none at the end of the input.

        They count as under way, and those that are to be sent are on record.
        """
        await self._wanted.wait()
        await self._places.wait()
        count = self._places.take(max(self._ledger.batch, self._waiting - self._ready.qsize()))
        try:
            rows = await self._source.take(count)
            self._places.give_back(count - len(rows))
            count = len(rows)
            if rows:
                await self._ledger.admit(rows)
        except BaseException:
            self._places.give_back(count)
            raise
        self.is_exhausted = not rows
        for _ in rows:
            self.begin()
        return rows

    def begin(self) -> None:
        """Count a row as under way."""
        self._under_way += 1
        self._idle.clear()

    def put(self, row: Row) -> None:
        """Let a row that is under way be sent."""
        self._ready.put_nowait(row)
        self._weigh()

    def put_later(self, row: Row, seconds: float) -> None:
        """Let a row that is under way be sent after a pause, which keeps no worker waiting."""
        self._later[row] = asyncio.get_running_loop().call_later(seconds, self._ripen, row)

    def _ripen(self, row: Row) -> None:
        del self._later[row]
        self.put(row)

    def end(self) -> None:
        """Count a row as no longer under way."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def leave(self) -> None:
        """Give back the place of a row whose result was taken, or that is set aside."""
        self._places.give_back()

    async def drained(self) -> None:
        """Wait until nothing is under way."""
        await self._idle.wait()

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
