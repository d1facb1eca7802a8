"""How the bulk runs of a session share the connections of its pool."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class FifoSemaphore:
    """A first-in, first-out semaphore whose size may change: `most` returns it."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._served = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait until fewer than `most()` tasks have entered."""
        if not self._waiters and self._served < self._most():
            self._served += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Leave, and let waiting tasks enter."""
        self._served -= 1
        while self._waiters and self._served < self._most():
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._served += 1
                waiter.set_result(None)


class ConnectionSlots(FifoSemaphore):
    """A slot for each connection of a pool, for bulk runs. Owned by the session.

    A row takes a slot before its deadline starts, so that waiting for a connection does not count towards the deadline.
    """

    def __init__(self, number: int) -> None:
        super().__init__(lambda: number)
        self.number = number
        self.wanted = 0
        """The largest number of requests that the open runs may have in flight together."""
