"""Tasks that wait for something to be free, first in, first out, which survives the cancellation of any of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

_MOST_GONE: Final = 64


class Fifo:
    """The tasks that wait. Each step costs the same, however many wait and were cancelled.

    `resume` hands something over to the task that has waited longest. A task that is cancelled after that, before it has run
    again, calls the function that it gave to `wait`, so that nothing that was handed over is lost.
    """

    def __init__(self) -> None:
        self._entries: Final[deque[asyncio.Future[None]]] = deque()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    async def wait(self, give_back: Callable[[], object]) -> None:
        """Wait until this task is resumed."""
        entry = asyncio.get_running_loop().create_future()
        self._entries.append(entry)
        self._waiting += 1
        try:
            await entry
        except BaseException:
            # It was resumed before it was cancelled, so what it was given has to go to the next one.
            if not entry.cancelled():
                give_back()
                raise
            self._waiting -= 1
            if len(self._entries) > 2 * self._waiting + _MOST_GONE:  # else cancelled entries would add up while nothing is free
                waiting = [one for one in self._entries if not one.done()]
                self._entries.clear()
                self._entries.extend(waiting)
            raise

    def resume(self) -> bool:
        """Resume the task that has waited longest, and return False if none waits."""
        while self._entries:
            entry = self._entries.popleft()
            if not entry.done():  # else its task was cancelled, and has not run since
                self._waiting -= 1
                entry.set_result(None)
                return True
        return False


class FifoSemaphore:
    """A first-in, first-out semaphore whose size may change: `most` returns it."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._served = 0
        self._waiting = Fifo()

    async def enter(self) -> None:
        if self._waiting or self._served >= self._most():
            await self._waiting.wait(self.leave)
        else:
            self._served += 1

    def leave(self) -> None:
        self._served -= 1
        while self._served < self._most() and self._waiting.resume():
            self._served += 1
