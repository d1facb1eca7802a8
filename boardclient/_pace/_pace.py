"""Pace: the limiter that finds a service's limit by itself. `_controller` decides; this module makes attempts wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from boardclient._pace._controller import Controller
from boardclient._pace._phases import HIGHEST, LOWEST
from boardclient._pace._search import Attempt

_Waiter = asyncio.Future[Attempt]


class Pace:
    """Find the limit of a service from its responses, and stay just below it. The service shows none (section 8).

    It starts with 16 attempts in flight and allows more as long as nothing is refused and responses don't get slower. After a
    refusal it measures how much the service accepts, and probes for more from time to time. While refusals continue, all attempts
    wait as long as `Retry-After` says, or ask one at a time. Refusals that come as often at a lower rate don't slow it down.

    Pass one as `limiter=` to the sessions, calls and bulk runs that use the same credential: they share what it found. Waiting
    attempts start in the order in which they came. To wait before a refused call is repeated is the caller's part.

    It can be built anywhere, serves one event loop at a time, and needs no closing.

    Args:
        start_rate: the starts a second to begin with, doubled every 0.6 s until the first refusal. None, the default, limits only
            the attempts in flight until then.
        max_in_flight: the most attempts at a time, 1000 by default.
        clock: a function that returns seconds and does not go back, `time.monotonic` by default.

    Raises:
        ValueError: `start_rate` or `max_in_flight` is out of its range.
    """

    def __init__(
        self, *, start_rate: float | None = None, max_in_flight: int = 1000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if start_rate is not None and not LOWEST <= start_rate <= HIGHEST:
            raise ValueError(f"start_rate must be from {LOWEST:g} to {HIGHEST:g} starts a second")
        if not isinstance(max_in_flight, int) or isinstance(max_in_flight, bool) or max_in_flight < 1:
            raise ValueError("max_in_flight must be a whole number from 1 on")
        self._clock = clock
        self._controller = Controller(start_rate, max_in_flight)
        self._held: dict[asyncio.Task[Any] | None, Attempt] = {}
        self._waiters: deque[_Waiter] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    @classmethod
    def after_refusal(
        cls, workers: int, *, sent: int, began: float, retry_after: float | None, clock: Callable[[], float]
    ) -> Pace:
        """Return a pace for workers that nothing has limited until they were refused.

        `sent` is the number of attempts that have ended, the refused one included, `began` the moment of the first one.
        """
        pace = cls(max_in_flight=workers, clock=clock)
        pace._controller = Controller(None, workers, places=workers)
        pace._controller.take_over(sent, began, clock(), retry_after)
        return pace

    # --- what it found

    @property
    def rate(self) -> float | None:
        """The starts a second that are allowed now.

        None while only the attempts in flight are limited.
        """
        rate = self._controller.rate
        return rate if rate < HIGHEST else None

    @property
    def limit(self) -> float | None:
        """The service's limit in requests a second as far as it is known. It is None as long as none was measured."""
        return self._controller.limit

    @property
    def in_flight(self) -> int:
        """The number of attempts under way."""
        return self._controller.in_flight

    @property
    def workers(self) -> int:
        """The number of tasks that are of use now: as many attempts may be in flight. It changes with rate and latency."""
        return self._controller.places

    @property
    def held_until(self) -> float | None:
        """The moment on the clock until which refusals keep all attempts from starting. It is None if there is none."""
        until = self._controller.held_until
        return until if until > self._clock() else None

    @property
    def needs_every_result(self) -> bool:
        """Return True: it needs the results of successful attempts as well."""
        return True

    def __repr__(self) -> str:
        rate = "" if self.rate is None else f"{self.rate:.3g}/s, "
        limit = "no limit met" if self.limit is None else f"limit about {self.limit:.3g}/s"
        waiting = sum(not waiter.done() for waiter in self._waiters)
        return f"<Pace {rate}{limit}, {self.in_flight} of {self.workers} in flight, {waiting} waiting>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a Pace can't be pickled: build one in each process")

    # --- turns

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move(loop)
        now = self._clock()
        if not self._waiters and self._controller.next_start() <= now:
            attempt = self._controller.start(now)
        else:
            attempt = await self._turn(loop)
        task = asyncio.current_task(loop)
        held = self._held
        if held:
            attempt.outer = held.get(task)
        held[task] = attempt
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        attempt = self._held.pop(task, None)
        if attempt is None:
            raise RuntimeError("a Pace is left by the task that entered it")
        if attempt.outer is not None:
            self._held[task] = attempt.outer
        self._controller.end(attempt)
        if self._waiters:
            self._give_turns()

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Take the result of the attempt that the running task has entered.

        `status` is None where no response came; `retry_after`, in seconds, counts for 429 only; `seconds` is how long it took.

        Raises:
            RuntimeError: the running task is not within an `async with` block of this pace.
        """
        attempt = self._held.get(asyncio.current_task())
        if attempt is None:
            raise RuntimeError("a Pace is told of a response from within its `async with` block, by the same task")
        self._controller.report(attempt, self._clock(), status, retry_after, seconds)

    async def _turn(self, loop: asyncio.AbstractEventLoop) -> Attempt:
        """Wait for a turn; a cancellation gives back one that has already come."""
        waiter: _Waiter = loop.create_future()
        self._waiters.append(waiter)
        self._give_turns()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._controller.cancel(waiter.result())
            self._give_turns()
            raise

    def _give_turns(self) -> None:
        """Start the waiting attempts that are due, and set the timer for the next one."""
        controller, waiters, now = self._controller, self._waiters, self._clock()
        while waiters:
            if waiters[0].done():  # cancelled while it waited
                waiters.popleft()
                continue
            due = controller.next_start()
            if due > now:
                break
            waiters.popleft().set_result(controller.start(now))
        else:
            due = math.inf
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due < math.inf and self._loop is not None:
            self._timer = self._loop.call_later(due - now, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._give_turns()

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to another event loop, and forget what a closed one left behind."""
        if self._loop is not None and not self._loop.is_closed() and (self._held or self._waiters):
            raise RuntimeError("this Pace is in use on another event loop: it serves one loop at a time, build one for each")
        for attempt in self._held.values():
            inner: Attempt | None = attempt
            while inner is not None:
                self._controller.end(inner)
                inner = inner.outer
        self._held.clear()
        self._waiters.clear()
        self._timer, self._due = None, math.inf
        self._loop = loop
