"""The results of a run on their way to whoever takes them."""

from __future__ import annotations

import asyncio
from collections import deque

from boardclient.bulk._results import CardResult


class Outbox:
    """Results that wait to be taken, by any number of tasks. Owned by a run, which closes it after the last result."""

    def __init__(self) -> None:
        self.untaken: deque[CardResult] = deque()
        self.freed = asyncio.Event()
        """Set whenever there may be room for further rows; whoever waits for that clears it."""
        self._stirred = asyncio.Event()
        self._is_closed = False

    def put(self, result: CardResult) -> None:
        """Let somebody take a result."""
        self.untaken.append(result)
        self._stirred.set()

    def close(self) -> None:
        """Let whoever waits, now or later, meet the end after the last result."""
        self._is_closed = True
        self._stirred.set()

    async def wait(self) -> bool:
        """Wait until there is a result to be taken; return False where none will come any more."""
        while not self.untaken:
            if self._is_closed:
                return False
            self._stirred.clear()
            await self._stirred.wait()
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
