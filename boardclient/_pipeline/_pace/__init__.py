"""`Pace`, which finds a service's limit by itself, and the protocols of limiters.

`_refusals` finds the rate, and `_permits` decides by it when attempts may start. This module makes them wait.
"""

from __future__ import annotations

import asyncio
import copy
import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from boardclient._base._redaction import takes_secrets
from boardclient._pipeline._pace._evidence import Evidence
from boardclient._pipeline._pace._permits import REST_SECONDS, Permits
from boardclient._pipeline._pace._phases import HIGHEST, LONGEST_WAIT_SECONDS
from boardclient._pipeline._pace._timing import PacedAttempt

if TYPE_CHECKING:
    from boardclient._pipeline._pace._shared import SharedPermits

__all__ = ["LONGEST_WAIT_SECONDS", "Limiter", "Pace"]

_Waiter = asyncio.Future[PacedAttempt]


class Limiter(AbstractAsyncContextManager[object, "bool | None"], Protocol):
    """An asynchronous context manager that is entered around each attempt.

    `Pace` and `aiolimiter.AsyncLimiter` are limiters. One with a method `report(status, retry_after, seconds)` also receives the
    result of each attempt, as `Pace.report` does: inside its block, and in the task that entered it.
    """


@takes_secrets  # a URL with a password is refused
class Pace:
    """A limiter that finds a service's limit by itself, and stays just below it.

    No limits are documented (interface 8). A pace begins with 16 attempts in flight, and allows more while nothing is refused
    and responses do not become slower. After a refusal with status 429 it measures how much the service accepts, and from then on
    probes for more from time to time. While refusals continue, all attempts wait as long as `Retry-After` says; without it, one
    attempt at a time is made. Refusals that are as frequent at a lower rate do not slow it down, nor does a single one.

    Pass one pace as `limiter=` to all sessions, calls and bulk runs that use the same credentials, so that they share what it has
    found. Waiting attempts start in the order in which they came. A pace does not repeat refused calls; the retry policy does.

    It can be made anywhere, serves one event loop at a time, and need not be closed. docs/design/pace.md describes its rules.

    ```python
    pace = Pace()
    async with AsyncSession.from_env(limiter=pace) as session:
        await session.members.me()
    ```

    Args:
        max_in_flight: The largest number of attempts in flight. 1000 by default.
        shared: The path of a SQLite file, or `postgresql://…` without a password, through which the paces of several processes
            are one. PostgreSQL needs the extra `postgres`. It may be the ledger of `boardclient.distributed`. None, the
            default: the pace is this process's alone.
        account: What the paces that are one have in common, if processes use several credentials. "" by default.

    Raises:
        ValueError: `max_in_flight` is out of range, or `shared` can't be used.
        JournalError: the file of `shared` is on a network file system. `async with` raises it if the database can't be reached at
            first. Later, attempts wait until it can.
    """

    def __init__(
        self,
        *,
        max_in_flight: int = 1000,
        shared: str | os.PathLike[str] | None = None,
        account: str = "",
    ) -> None:
        if not isinstance(max_in_flight, int) or isinstance(max_in_flight, bool) or max_in_flight < 1:
            raise ValueError("max_in_flight must be a whole number of at least 1")
        self._clock: Callable[[], float] = time.monotonic
        self._permits: Permits | SharedPermits = Permits.begin(None, max_in_flight)
        if shared is not None:
            self._permits = self._share(shared, account, max_in_flight)
        self._earlier: list[PacedAttempt] = []
        """Attempts in flight that were not limited."""
        self._entered: dict[asyncio.Task[Any] | None, PacedAttempt] = {}
        self._waiters: deque[_Waiter] = deque()
        self._rested: _Waiter | None = None
        """The one that waits, if it came when nothing had been in flight for a moment."""
        self._active_at = -math.inf
        """When the last attempt ended, on the clock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    @classmethod
    def after_refusal(
        cls,
        workers: int,
        *,
        concurrency: int,
        sent: int,
        in_flight: int,
        began: float,
        retry_after: float | None,
        clock: Callable[[], float],
    ) -> Pace:
        """Return a pace for workers that were not limited until their first refusal.

        Args:
            workers: How many attempts may be in flight at most.
            concurrency: How many may be in flight now.
            sent: How many attempts have ended, including the refused one.
            in_flight: How many have not. `report_earlier` has to be called once for each of them.
            began: The time on the clock at which the first one started.
            retry_after: The seconds that the refusal asks for, None if it names none.
            clock: A monotonic clock in seconds.
        """
        pace = cls(max_in_flight=workers)
        # Only here can a clock be given, since the workers have measured on theirs: two clocks can't be compared.
        pace._clock = clock
        pace._permits = permits = Permits.begin(None, workers, concurrency)
        evidence = Evidence()
        evidence.begin(0, began)
        pace._earlier = permits.take_over(sent, evidence, clock(), retry_after, in_flight=in_flight)
        return pace

    def _share(self, ledger: str | os.PathLike[str], account: str, most: int) -> SharedPermits:
        from boardclient._pipeline._pace._shared import SharedPermits  # few programs share a pace

        return SharedPermits(
            ledger,
            account,
            most,
            clock=lambda: self._clock(),
            waiting=lambda: len(self._waiters),
            is_rested=lambda: bool(self._waiters) and self._waiters[0] is self._rested,
            wake=self._grant_permits,
            fail=self._fail,
        )

    # --- what it found

    @property
    def rate(self) -> float | None:
        """The current rate in starts per second.

        It is None while only the attempts in flight are limited.
        """
        rate = self._permits.rate
        return rate if rate < HIGHEST else None

    @property
    def limit(self) -> float | None:
        """The service's limit in requests per second, or None until one was measured."""
        return self._permits.limit

    @property
    def in_flight(self) -> int:
        """The number of attempts in flight."""
        return self._permits.in_flight

    @property
    def workers(self) -> int:
        """How many attempts may be in flight now. It changes with rate and latency."""
        return self._permits.concurrency

    @property
    def asked_seconds(self) -> float | None:
        """The seconds for which the service still asks to wait, or None."""
        seconds = self._permits.asked_until - self._clock()
        return seconds if seconds > 0 else None

    @property
    def held_seconds(self) -> float | None:
        """The seconds for which refusals still hold all attempts, or None."""
        seconds = self._permits.paused_until - self._clock()
        return seconds if seconds > 0 else None

    def __repr__(self) -> str:
        rate = "" if self.rate is None else f"{self.rate:.3g}/s, "
        limit = "no limit met" if self.limit is None else f"limit about {self.limit:.3g}/s"
        waiting = sum(not waiter.done() for waiter in self._waiters)
        return f"<Pace {rate}{limit}, {self.in_flight} of {self.workers} in flight, {waiting} waiting>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a Pace can't be pickled: build one in each process")

    # --- permits to start

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # Tests and scripts run one event loop after another, and a timer of a loop that is closed never fires.
        if loop is not self._loop:
            self._move(loop)
        now = self._clock()
        # Nobody waits and nothing has to: as most attempts, without a future and a turn of the loop.
        if not self._waiters and self._permits.next_start() <= now:
            attempt = self._permits.start(now)
        else:
            attempt = await self._permit(loop, now)
        task = asyncio.current_task(loop)
        entered = self._entered
        if entered:
            attempt.outer = entered.get(task)
        entered[task] = attempt
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        attempt = self._entered.pop(task, None)
        if attempt is None:
            raise RuntimeError("a Pace must be left by the task that entered it")
        # A task may be inside twice, such as by a bulk run and a session with the same pace.
        if attempt.outer is not None:
            self._entered[task] = attempt.outer
        self._permits.end(attempt)
        self._active_at = self._clock()
        if self._waiters:
            self._grant_permits()

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Receive the result of the attempt that the current task is making.

        Args:
            status: The status of the response, or None without a response.
            retry_after: The seconds for which the service asked to wait, or None. Used while it continues to refuse (429, 503).
            seconds: The duration of the attempt in seconds.

        Raises:
            RuntimeError: the current task is not inside an `async with` block of this pace.
        """
        attempt = self._entered.get(asyncio.current_task())
        if attempt is None:
            raise RuntimeError("report must be called inside the Pace's `async with` block, by the task that entered it")
        self._permits.report(attempt, self._clock(), status, retry_after, seconds)

    def report_earlier(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Receive the result of an attempt that `after_refusal` took over."""
        attempt = self._earlier.pop()
        self._permits.report(attempt, self._clock(), status, retry_after, seconds)
        self._permits.end(attempt)
        if self._waiters:
            self._grant_permits()

    async def _permit(self, loop: asyncio.AbstractEventLoop, now: float) -> PacedAttempt:
        waiter: _Waiter = loop.create_future()
        self._rested = waiter if not self._waiters and now - self._active_at > REST_SECONDS else None
        self._waiters.append(waiter)
        self._grant_permits()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # It was granted and then cancelled, before it ran: without this its place would be lost for ever.
                self._permits.cancel(waiter.result())
            self._grant_permits()
            raise

    def _grant_permits(self) -> None:
        """Start the waiting attempts that are due, and set the timer for the next one."""
        permits, waiters, now = self._permits, self._waiters, self._clock()
        while waiters:
            if waiters[0].done():  # it was cancelled
                waiters.popleft()
                continue
            due = permits.next_start()
            if due > now and len(waiters) == 1:
                due = min(due, permits.lone_start(is_rested=waiters[0] is self._rested))
            if due > now:
                break
            waiters.popleft().set_result(permits.start(now))
        else:
            due = math.inf
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due < math.inf and self._loop is not None:
            self._timer = self._loop.call_later(due - now, self._on_timer)

    def _fail(self, error: Exception) -> None:
        for waiter in self._waiters:
            if not waiter.done():  # pragma: no branch -- one that was cancelled, and has not left the queue yet
                waiter.set_exception(copy.copy(error))

    def _on_timer(self) -> None:
        self._timer = None
        self._grant_permits()

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the pace to another event loop, and forget the attempts of a closed one."""
        if self._loop is not None and not self._loop.is_closed() and (self._entered or self._waiters):
            raise RuntimeError("this Pace is in use on another event loop: it serves one loop at a time, build one for each")
        for attempt in self._entered.values():
            inner: PacedAttempt | None = attempt
            while inner is not None:
                self._permits.end(inner)
                inner = inner.outer
        self._entered.clear()
        self._waiters.clear()
        self._timer, self._due = None, math.inf
        self._loop, self._clock = loop, loop.time
