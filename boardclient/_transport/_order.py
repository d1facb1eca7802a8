"""The order in which requests are written."""

from __future__ import annotations

import asyncio
from typing import Final


class WriteOrder:
    """Lets requests be written in the order in which they ask for a connection, whichever gets one first.

    Nobody waits for a response, with one exception: a service may accept a new connection later than it reads from those that it
    has. So a connection that was used before waits until what was written to new ones is answered. The queue for connections is
    first in, first out, so the request that others wait for always gets one.
    """

    def __init__(self) -> None:
        self._entered = 0
        self._next = 0
        """The number of the request that may be written."""
        self._fresh = 0
        """How many requests were written to new connections and are not answered."""
        self._passed: Final = set[int]()
        """The numbers of later ones that have ended."""
        self._waiting: Final[dict[int, asyncio.Future[None]]] = {}

    def enter(self) -> WritePlace:
        """Return the place of a request, which must be ended."""
        number, self._entered = self._entered, self._entered + 1
        return WritePlace(self, number)

    def is_due(self, number: int, *, is_fresh: bool) -> bool:
        return number == self._next and (is_fresh or not self._fresh)

    async def wait(self, number: int, *, is_fresh: bool) -> None:
        while not self.is_due(number, is_fresh=is_fresh):
            turn = self._waiting[number] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                del self._waiting[number]

    def pass_on(self, number: int) -> None:
        if number != self._next:
            self._passed.add(number)
            return
        self._next += 1
        while self._next in self._passed:
            self._passed.discard(self._next)
            self._next += 1
        self._wake()

    def count_fresh(self, change: int) -> None:
        self._fresh += change
        if not self._fresh:
            self._wake()

    def _wake(self) -> None:
        turn = self._waiting.get(self._next)
        if turn is not None and not turn.done():
            turn.set_result(None)


class WritePlace:
    """The place of one request in an order."""

    __slots__ = ("_has_passed", "_is_fresh", "_number", "_order")

    def __init__(self, order: WriteOrder, number: int) -> None:
        self._order, self._number = order, number
        self._has_passed = self._is_fresh = False

    def is_due(self, *, is_fresh: bool) -> bool:
        """Return True if the request may be written now, to a connection that is new or not."""
        return self._order.is_due(self._number, is_fresh=is_fresh)

    async def wait(self, *, is_fresh: bool) -> None:
        """Wait until it may be written."""
        await self._order.wait(self._number, is_fresh=is_fresh)

    def note_written(self, *, is_fresh: bool) -> None:
        """Let the next request be written, since this one was."""
        self._has_passed, self._is_fresh = True, is_fresh
        if is_fresh:
            self._order.count_fresh(1)
        self._order.pass_on(self._number)

    def end(self) -> None:
        """Note that the request is answered, or has ended without."""
        if not self._has_passed:
            self._has_passed = True
            self._order.pass_on(self._number)
        if self._is_fresh:
            self._is_fresh = False
            self._order.count_fresh(-1)
