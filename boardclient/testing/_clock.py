"""The clock of the service, which tests can move forward."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import attrs


@attrs.frozen(eq=False)
class _Sleeper:
    wakes_at: float
    future: asyncio.Future[None]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@attrs.define(eq=False)
class ServiceClock:
    """The service's time. Owned by the service; `advance` may be called from any thread.

    `real` returns the time in seconds, and `wait` sleeps for a number of seconds.
    """

    real: Callable[[], float]
    wait: Callable[[float], Awaitable[object]]
    _ahead: float = attrs.field(init=False, default=0.0)
    _sleepers: set[_Sleeper] = attrs.field(init=False, factory=set)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)

    def __call__(self) -> float:
        """Return the service's time in seconds. Only differences have a meaning."""
        return self.real() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and end the sleeps whose time has come.

        Raises:
            ValueError: `seconds` is negative or not a number.
        """
        if not seconds >= 0:
            raise ValueError(f"the service's clock moves forward only, not by {seconds!r} seconds")
        with self._lock:
            self._ahead += seconds
            now = self()
            due = [sleeper for sleeper in self._sleepers if sleeper.wakes_at <= now]
        for sleeper in sorted(due, key=lambda sleeper: sleeper.wakes_at):
            with contextlib.suppress(RuntimeError):  # the sleeper's loop is closed
                sleeper.future.get_loop().call_soon_threadsafe(_wake, sleeper.future)

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock, in real time or by `advance`."""
        sleeper = _Sleeper(self() + seconds, asyncio.get_running_loop().create_future())
        with self._lock:
            self._sleepers.add(sleeper)
        waiting = asyncio.ensure_future(self._wait(seconds))
        try:
            await asyncio.wait({waiting, sleeper.future}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sleepers.discard(sleeper)
            waiting.cancel()

    async def _wait(self, seconds: float) -> None:
        await self.wait(seconds)
