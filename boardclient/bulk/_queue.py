"""The results of a run until they are taken."""

from __future__ import annotations

import asyncio
from collections import deque

from boardclient.bulk._results import CardResult


class ResultQueue:
    """Results in the order of completion, taken by any number of tasks. Owned by a run, which closes it after the last one."""

    def __init__(self) -> None:
        self.untaken: deque[CardResult] = deque()
        self.freed = asyncio.Event()
        """Set when further rows may be taken. The task that waits for it clears it."""
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, result: CardResult) -> None:
        """Add a result."""
        self.untaken.append(result)
        self._changed.set()

    def close(self) -> None:
        """Let `wait` return False after the last result."""
        self._is_closed = True
        self._changed.set()

    async def wait(self) -> bool:
        """Wait until there is a result to be taken. Return False where none will come any more."""
        while not self.untaken:
            if self._is_closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def take(self) -> CardResult:
        """Take the oldest result; there is one."""
        self.freed.set()
        return self.untaken.popleft()

    def take_all(self) -> list[CardResult]:
        """Take what there is."""
        self.freed.set()
        results = list(self.untaken)
        self.untaken.clear()
        return results
