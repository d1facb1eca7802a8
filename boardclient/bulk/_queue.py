"""The queue of a run's results."""

from __future__ import annotations

import asyncio
from collections import deque

from boardclient.bulk._results import CardResult


class ResultQueue:
    """Results in the order of completion. Any number of tasks may take them.

    Owned by a run, which closes the queue after the last result.
    """

    def __init__(self) -> None:
        self.untaken: deque[CardResult] = deque()
        self.freed = asyncio.Event()
        """Set when a result was taken or a row has ended. The task that waits for it clears it."""
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, result: CardResult) -> None:
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

    def take(self) -> CardResult:
        """Remove and return the oldest result. The queue must not be empty."""
        self.freed.set()
        return self.untaken.popleft()

    def take_all(self) -> list[CardResult]:
        """Remove and return all results."""
        self.freed.set()
        results = list(self.untaken)
        self.untaken.clear()
        return results
