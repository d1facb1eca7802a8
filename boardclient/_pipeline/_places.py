"""How the bulk runs of a session share out the connections of its pool."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Line:
    """A queue of tasks that serves at most so many at a time, in their order."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._served = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait until the running task is served."""
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
        """Let the next be served."""
        self._served -= 1
        while self._waiters and self._served < self._most():
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._served += 1
                waiter.set_result(None)


class Places(Line):
    """The connections of a pool as its bulk runs share them. Owned by the session.

    A row takes its place before its time begins, so that it does not wait for a connection within it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(lambda: number)
        self.number = number
        self.wanted = 0
        """How many requests the open runs have in flight at most."""

    @property
    def is_scarce(self) -> bool:
        """Whether a request may have to wait for its place."""
        return self.wanted > self.number
