"""How the workers of a run take turns: at once where their number is the caller's choice, or as a pace lets them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from boardclient._pace import Pace
from boardclient._pipeline._options import CallRunner, Turns
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._tally import Tally

_SLOWEST_START: Final = 1.0


class FixedTurns:
    """Let a fixed number of workers go at once until the service refuses something; from then on a `Pace` leads them.

    Until then nobody needs to enter it. `sent` tells how many requests have left. Owned by a run.
    """

    def __init__(self, workers: int, sent: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._sent = sent
        self._clock = clock
        self._pace: Pace | None = None
        self._paced: set[asyncio.Task[Any] | None] = set()
        self._started = clock()
        self.needs_every_result = False
        """Whether it is to hear of successes too: once a pace leads."""

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
        """Take note of an answer."""
        if self._pace is None and status == 429:
            rate = self._sent() / max(self._clock() - self._started, 0.001)
            self._pace = Pace(
                start_rate=min(max(rate / 2, _SLOWEST_START), 10_000.0), max_in_flight=self._workers, clock=self._clock
            )
            self.needs_every_result = True
        elif self._pace is not None and asyncio.current_task() in self._paced:
            self._pace.report(status, retry_after, seconds)


def make_turns(caller: CallRunner, options: BulkOptions, tally: Tally) -> Turns | None:
    """Return what the attempts of a run wait for besides the session's own limiter, which may be a pace itself."""
    if isinstance(caller.limiter, Pace):
        return None
    if options.concurrency is None:
        return Pace(max_in_flight=options.workers)
    return FixedTurns(options.workers, lambda: tally.requests)
