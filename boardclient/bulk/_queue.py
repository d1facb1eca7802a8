"""The queue of a run's results."""

from __future__ import annotations

import asyncio
from collections import deque

from boardclient.bulk._results import CardResult, ResultValues, make_result


class ResultQueue:
    """Results in the order of completion. Any number of tasks may take them.

    Owned by a run, which closes the queue after the last result.
    """

    def __init__(self) -> None:
        self.untaken: deque[ResultValues] = deque()
        self.waiters = 0
        """How many tasks wait in `freed`."""
        self._freed = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, result: ResultValues) -> None:
        """Add a result."""
        if not self.untaken:
            self._changed.set()
        self.untaken.append(result)

    def close(self) -> None:
        """Close the queue: after the last result `wait` returns False."""
        self._is_closed = True
        self._changed.set()

    async def wait(self) -> bool:
        """Wait for a result and return True, or return False if no more will come."""
        while not self.untaken:
            if self._is_closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def freed(self) -> None:
        """Wait until a result is taken or a row has ended."""
        self._freed.clear()
        self.waiters += 1
        try:
            await self._freed.wait()
        finally:
            self.waiters -= 1

    def note_freed(self) -> None:
        """Resume the tasks that wait in `freed`. Nothing has to be done if there are no `waiters`."""
        self._freed.set()

    def take(self) -> CardResult:
        """Remove and return the oldest result. The queue must not be empty."""
        if self.waiters:
            self.note_freed()
        return make_result(*self.untaken.popleft())

    def take_all(self) -> list[CardResult]:
        """Remove and return all results."""
        results = [make_result(*values) for values in self.untaken]
        self.discard_all()
        return results

    def discard_all(self) -> None:
        """Remove all results."""
        self.note_freed()
        self.untaken.clear()
