"""The rows that wait to be sent. They are taken from the input on demand, and logged in batches."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from boardclient.bulk._input import Input
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._queue import ResultQueue
from boardclient.bulk._rows import Row

_MOST_AHEAD: Final = 256
"""The largest number of rows logged in one commit, whose cost hardly depends on their number."""
_STEPS: Final = 10
"""How often the loop runs before an input counts as one that has to be waited for."""


class _ReadyRows(asyncio.Queue[Row]):
    """Rows in the order in which they are sent. Those that were put off come first, the longest waiting one before the others."""

    def _init(self, maxsize: int) -> None:
        self.rows: deque[Row] = deque()
        self._queue = self.rows

    def put_all(self, rows: Sequence[Row], waiting: int) -> None:
        """Add new rows at the end. At most `waiting` tasks wait in `get`."""
        for row in rows[:waiting]:
            self.put_nowait(row)  # this wakes one of them
        self._queue.extend(rows[waiting:])

    def _put(self, item: Row) -> None:
        if item.put_off_at is None:
            self._queue.append(item)
            return
        place = 0
        for row in self._queue:
            if row.put_off_at is None or row.put_off_at > item.put_off_at:
                break
            place += 1
        self._queue.insert(place, item)


class Backlog:
    """Rows that wait to be sent. Owned by a run.

    Rows in flight and untaken results together number at most two per worker, so a slow consumer slows the workers down. Rows
    that were in doubt are not counted. With a journal the next batch is logged while the workers send the last one; the batch
    doubles when workers have to wait for it. A row is under way from when it is taken until it has a result or is in doubt.

    While rows are in doubt, `doubted`, the row that was taken last is kept back until there is another: its card can show that a
    listing without theirs was complete.
    """

    def __init__(self, rows: Input, ledger: Ledger, workers: int, results: ResultQueue, doubted: Sequence[Row]) -> None:
        self._input = rows
        self._doubted = doubted
        self._kept: Row | None = None
        """A row that is kept back. It does not count as under way."""
        self._ledger = ledger
        self._results = results
        self._most = 2 * workers
        self._ahead = ledger.batch
        """How many rows are logged together before they are sent; 0 without a journal."""
        self._most_untaken = workers if self._ahead else sys.maxsize
        self._ready = _ReadyRows()
        self._later: dict[Row, asyncio.TimerHandle] = {}
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._under_way = 0
        self.is_exhausted = False

    @property
    def capacity(self) -> int:
        """How many more rows may be taken from the input."""
        return self._most - self._under_way - len(self._results.untaken)

    @property
    def _awaits_consumer(self) -> bool:
        """Whether logged rows wait until results are taken. With those in flight they are at most two per worker."""
        return len(self._results.untaken) > self._most_untaken

    def take_at_once(self) -> Row | None:
        """Return the next row if one is available without waiting, otherwise None.

        After None, await `next`. Most rows of a synchronous input without a journal are taken here: that wakes two tasks fewer
        per card.
        """
        row: Row | None
        ready = self._ready.rows
        if ready and len(self._results.untaken) <= self._most_untaken:
            row = ready.popleft()
            if self._waiting:
                self._update_demand()
            elif len(ready) < self._ahead >> 1:
                self._wanted.set()
        elif (
            self._ahead
            or self._under_way + len(self._results.untaken) >= self._most
            or (row := self._input.next_at_once()) is None
        ):
            return None
        else:
            self._under_way += 1
        if self._doubted:
            return self._keep_last(row) or self.take_at_once()
        return row

    async def next(self) -> Row:
        """Wait for the next row to send, and return it."""
        self._waiting += 1
        try:
            while True:
                self._update_demand()
                while self._awaits_consumer:
                    await self._results.freed()
                row = await self._ready.get()
                passed = self._keep_last(row) if self._doubted else row
                if passed is not None:
                    return passed
        finally:
            self._waiting -= 1

    def _keep_last(self, row: Row) -> Row | None:
        """Keep a new row back. Return the one that was kept until now."""
        if row.is_never_kept:
            return row
        kept, self._kept = self._kept, row
        if kept is None:
            self.end()
        return kept

    def _update_demand(self) -> None:
        """Request rows if fewer are ready than workers wait, or under half a batch."""
        if len(self._ready.rows) < max(self._waiting, self._ahead // 2):
            self._wanted.set()
        else:
            self._wanted.clear()

    async def take(self) -> Sequence[Row]:
        """Wait until a worker needs a row, and return new rows. An empty result means the end of the input.

        The rows count as under way. With a journal, those to be sent are logged on return.
        """
        await self._wanted.wait()
        if self._doubted:
            self._results.note_freed()  # for `idle`
        if self._ahead:
            rows = await self._take_ahead()
        else:
            while self.capacity <= 0:
                await self._results.freed()
            rows = await self._input.take(min(self.capacity, max(1, self._waiting - len(self._ready.rows))))
        self.is_exhausted = not (rows or self._input.was_interrupted)
        self._under_way += len(rows)
        return rows

    async def _take_ahead(self) -> Sequence[Row]:
        while self._awaits_consumer:
            await self._results.freed()
        rows = await self._input.take(self._ahead)
        if rows:
            await self._ledger.admit(rows)
        if self._waiting > len(self._ready.rows) and len(rows) == self._ahead:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        return rows

    def begin(self) -> None:
        """Count a row as under way."""
        self._under_way += 1

    def put(self, row: Row) -> None:
        """Make a row that is under way available to the workers."""
        self._ready.put_nowait(row)
        self._update_demand()

    def put_all(self, rows: Sequence[Row]) -> None:
        """Make new rows that are under way available to the workers."""
        self._ready.put_all(rows, self._waiting)
        self._update_demand()

    def send(self, rows: Iterable[Row]) -> None:
        """Let rows be sent that are not under way, even while others are in doubt."""
        for row in rows:
            row.is_never_kept = True
            self.begin()
            self.put(row)

    def keep(self, row: Row) -> None:
        """Keep a row back until it is taken by `take_kept`."""
        self._kept = row

    def take_kept(self) -> list[Row]:
        """Return the row that was kept back, if any."""
        kept, self._kept = self._kept, None
        return [] if kept is None else [kept]

    def put_later(self, row: Row, seconds: float) -> None:
        """Make a row available again after a pause in seconds. No worker is blocked meanwhile."""
        self._later[row] = asyncio.get_running_loop().call_later(seconds, self._put_delayed, row)

    def _put_delayed(self, row: Row) -> None:
        del self._later[row]
        self.put(row)

    def end(self) -> None:
        """Count a row as no longer under way."""
        self._under_way -= 1
        if self._results.waiters:
            self._results.note_freed()

    async def drained(self) -> None:
        """Wait until no row is under way."""
        while self._under_way:
            await self._results.freed()

    async def idle(self) -> None:
        """Wait until nothing is under way and the next row has to be waited for."""
        steps = 0
        while steps < _STEPS:
            if self._under_way or not self._input.is_waiting:
                steps = 0
                await self._results.freed()
            else:
                steps += 1
                await asyncio.sleep(0)

    def give_up(self) -> list[Row]:
        """Remove the rows that wait to be sent, and return them. They are no longer under way."""
        rows = list(self._later)
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        rows += self._ready.rows
        self._ready.rows.clear()
        for _ in rows:
            self.end()
        return rows + self.take_kept()
