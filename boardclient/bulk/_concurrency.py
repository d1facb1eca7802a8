"""The limiter that a run has besides its session's.

It is a fixed concurrency, or a pace that finds the limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from boardclient._pace import Pace
from boardclient._pipeline._calls import CallRunner
from boardclient._statuses import status_of
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._tally import Tally


class FixedConcurrency:
    """Limits nothing until the service first refuses a request with 429. From then on it is a `Pace`. Owned by a run.

    The fixed number of workers is the limit until then. `sent` returns the number of requests sent so far, as the tally counts
    them.
    """

    def __init__(self, workers: int, sent: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._sent = sent
        self._clock = clock
        self._pace: Pace | None = None
        self._paced: set[asyncio.Task[Any] | None] = set()
        self._began = clock()
        self.needs_every_result = False
        """Whether successes must be reported as well, which is so once there is a pace."""

    @property
    def held_until(self) -> float | None:
        """The time on the clock until which the service asked for a pause, or None."""
        return None if self._pace is None else self._pace.held_until

    async def __aenter__(self) -> None:
        if self._pace is not None:
            await self._pace.__aenter__()
            self._paced.add(asyncio.current_task())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pace is not None and (task := asyncio.current_task()) in self._paced:
            self._paced.discard(task)
            await self._pace.__aexit__(exc_type, exc, traceback)

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass the result of an attempt to the pace, or make one after a refusal.

        Attempts that began before the pace was made are not passed: it knows of them already.
        """
        if self._pace is not None:
            if asyncio.current_task() in self._paced:
                self._pace.report(status, retry_after, seconds)
        elif status is not None and status_of(status).is_throttling:
            self._pace = Pace.after_refusal(
                self._workers, sent=self._sent() + 1, began=self._began, retry_after=retry_after, clock=self._clock
            )
            self.needs_every_result = True


def make_limiter(caller: CallRunner, options: BulkOptions, tally: Tally) -> Pace | FixedConcurrency | None:
    """Return the limiter of a run besides the session's.

    It is None if the session's is itself a `Pace`.
    """
    if isinstance(caller.limiter, Pace):
        return None
    if options.concurrency is None:
        return Pace(max_in_flight=options.workers)
    return FixedConcurrency(options.workers, lambda: tally.requests)
