"""How many requests a run or a map sends at a time, and where each waits for the pace, a connection and the limiter."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from types import TracebackType
from typing import Final

from boardclient._base._fifo import FifoSemaphore
from boardclient._base._guards import GuardedLimiter
from boardclient._pipeline._calls import CallWithdrawn
from boardclient._pipeline._pace import Limiter, Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._hold import Hold, retry_after_of
from boardclient.errors import ApiError, BoardClientError, Effect

_FIRST_WORKERS: Final = 32
"""How many requests a run sends at a time at first. With 16, each cost this process a sixth more at a fast service."""
_FASTER: Final = 1.05
"""The number doubles when the rate has risen by this factor, measured over at least as many requests."""
_SHORTEST_ROUND_SECONDS: Final = 0.02
_QUEUED_SECONDS: Final = 0.02
"""Attempts that a shared pace will start within this time wait in its queue, the others in the run's own."""


class Concurrency:
    """How many calls are made at a time, and at what pace. Owned by a run or a map.

    There is no pace of its own until a call is first refused. If it `grows`, there are few workers at first, and twice
    as many each time that makes it faster.
    """

    def __init__(self, limiter: Limiter | None, most: int, *, grows: bool) -> None:
        self.pace: Pace | None = None
        self._session_pace = limiter if isinstance(limiter, Pace) else None
        self._most = most
        # A session's pace finds the number by itself, and would only be slowed down by a second search.
        self._needed = min(_FIRST_WORKERS, most) if grows and self._session_pace is None else most
        self.earlier: set[object] = set()
        """The calls in flight that are not limited, since they were begun before the first refusal."""
        self._best_rate = 0.0
        self._round: tuple[int, float] | None = None
        """How many requests had ended when the rate was last measured, and when."""
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    @property
    def held_seconds(self) -> float | None:
        """For how long no request is started because of refusals, or None if some are."""
        pace = self.pace or self._session_pace
        return None if pace is None else pace.held_seconds

    @property
    def asked_seconds(self) -> float:
        """For how long the service asks to start no request."""
        pace = self.pace or self._session_pace
        return 0.0 if pace is None else pace.asked_seconds or 0.0

    def workers_needed(self, ended: int) -> int:
        """Return how many workers are needed after so many requests. With a pace all are, and the pace decides."""
        if self.pace is not None or self._needed == self._most:
            return self._most
        now = self._clock()
        before, since = self._round = self._round or (ended, now)
        # A round has as many requests as workers, so that its rate is that of all of them.
        if ended - before >= self._needed and now - since >= _SHORTEST_ROUND_SECONDS:
            self._round, rate = (ended, now), (ended - before) / (now - since)
            if rate >= _FASTER * self._best_rate:
                self._best_rate, self._needed = rate, min(self._most, 2 * self._needed)
        return self._needed

    def record_refusal(self, sent: int, refusal: BoardClientError, others: Iterable[object]) -> None:
        """Record a refusal after so many requests. From now on there is a pace, unless the session has one.

        `others` are the calls in flight. For each of them `end_earlier` has to be called.
        """
        # The first refusal alone: what the service limits is the pace's affair from then on.
        if self.pace is None and self._session_pace is None:
            # They run without the pace, which has to know of their results, or it would take them for free capacity.
            self.earlier = set(others)
            self.pace = Pace.after_refusal(
                self._most,
                concurrency=self.workers_needed(sent),
                sent=sent,
                in_flight=len(self.earlier),
                began=self._began,
                retry_after=retry_after_of(refusal),
                clock=self._clock,
            )

    def end_earlier(self, call: object, error: BaseException | None, status: int | None = None) -> None:
        """Tell the pace how a call has ended that was begun before the first refusal. `status` is that of a success."""
        if call in self.earlier:
            assert self.pace is not None  # noqa: S101 -- there are no such calls without it
            self.earlier.discard(call)
            status, asked = (error.status, error.retry_after) if isinstance(error, ApiError) else (status, None)
            self.pace.report_earlier(status, asked, math.nan)


class Turns(Concurrency):
    """What the requests of a run share with each other and with the session: paces, connections, the limiter. Owned by the run.

    Other calls use the session's limiter as well, so no more requests of a run wait in it than it is about to serve. The others
    wait in `queue`.
    """

    def __init__(self, pipeline: Pipeline, workers: int, hold: Hold, *, grows: bool) -> None:
        self._limiter = limiter = pipeline.limiter
        super().__init__(limiter, workers, grows=grows)
        self.slots = pipeline.slots
        self.limiter = None if limiter is None else GuardedLimiter(limiter)
        self.hold = hold
        self.waiting = 0
        """How many requests wait for their turns."""

    @cached_property
    def queue(self) -> FifoSemaphore:
        """Where the requests stand that wait for the session's limiter and are not in its queue yet."""
        return FifoSemaphore(lambda: _most_queued(self._limiter))

    def must_wait(self) -> bool:
        """Whether a request may have to wait."""
        return self.pace is not None or self.limiter is not None or self.slots.wanted > self.slots.number


class Turn:
    """Where a request waits for a permit of the run, as the limiter of its call. `begin` is called when it has one."""

    def __init__(self, turns: Turns, begin: Callable[[], object]) -> None:
        self._turns = turns
        self._begin = begin
        self._pace: Pace | None = None
        self._entered = contextlib.AsyncExitStack()

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass the result of an attempt to the run's pace and the session's limiter."""
        if self._pace is not None:
            self._pace.report(status, retry_after, seconds)
        if self._turns.limiter is not None:
            self._turns.limiter.report(status, retry_after, seconds)

    async def __aenter__(self) -> None:
        turns = self._turns
        turns.waiting += 1
        try:
            async with contextlib.AsyncExitStack() as entered:
                if turns.pace is not None:
                    self._pace = await entered.enter_async_context(turns.pace)
                if turns.slots.wanted > turns.slots.number:
                    await turns.slots.enter()
                    entered.callback(turns.slots.leave)
                # The session's limiter comes last, since other calls queue behind what waits in it.
                if turns.limiter is not None:
                    await turns.queue.enter()
                    try:
                        await entered.enter_async_context(turns.limiter)
                    finally:
                        turns.queue.leave()
                if not turns.hold.lets_through():
                    raise CallWithdrawn("the run was held while the request waited for its turn", Effect.NOT_SENT)
                self._begin()
                self._entered = entered.pop_all()
        finally:
            turns.waiting -= 1

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pace = None
        await self._entered.__aexit__(exc_type, exc, traceback)


def _most_queued(limiter: Limiter | None) -> int:
    if not isinstance(limiter, Pace):
        return 1
    return limiter.workers if limiter.rate is None else 1 + int(limiter.rate * _QUEUED_SECONDS)
