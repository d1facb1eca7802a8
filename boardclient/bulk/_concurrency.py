"""How many requests a run or a map sends at a time, and what each waits for: outages, consent, 429, limiters, connections.

`Concurrency` says how many. A `Hold` stops all of them but one while nothing gets through. With its `Turn` each waits for the
run's pace, a connection and the session's limiter. Each wait is bounded, but for consent.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from types import TracebackType
from typing import Final, Literal, TypeAlias

from boardclient._base._fifo import FifoSemaphore
from boardclient._base._guards import GuardedLimiter
from boardclient._interface._responses import ends_run, is_throttling
from boardclient._pipeline._calls import CallWithdrawn
from boardclient._pipeline._pace import LONGEST_WAIT_SECONDS, Limiter, Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient.errors import ApiError, BoardClientError, ConsentRequired, Effect

HoldReason: TypeAlias = Literal["outage", "consent"]

PATIENCE_SECONDS: Final = LONGEST_WAIT_SECONDS
"""How long a run is held by requests that can't be sent, and how long a row or a read may be refused with 429."""
_REFUSED_PATIENCE_SECONDS: Final = 60.0
"""How long refusals hold a run."""
_UNKNOWN_PATIENCE_SECONDS: Final = 30.0
"""How long failures of unknown effect hold a run. It is short because each try leaves a row in doubt."""
_NEW_SERVICE_PATIENCE_SECONDS: Final = 15.0
"""How long a run waits for a service that has accepted nothing yet, whose address may be wrong, if no timeout is shorter."""
_SERIES: Final = 5
"""How many failures without an acceptance between them are an outage, if the requests were sent."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_LONGEST_REFUSED_PAUSE_SECONDS: Final = 1.0
"""The same while requests are refused: a response comes soon, and each try is another row."""
_CONSENT_PAUSE_SECONDS: Final = 0.25
"""The pause between two attempts to obtain a token. It is short because they send no request."""
_FIRST_WORKERS: Final = 32
"""How many requests a run sends at a time at first. With 16, each cost this process a sixth more at a fast service."""
_FASTER: Final = 1.05
"""The number doubles when the rate has risen by this factor, measured over at least as many requests."""
_SHORTEST_ROUND_SECONDS: Final = 0.02
_QUEUED_SECONDS: Final = 0.02
"""Attempts that a shared pace will start within this time wait in its queue, the others in the run's own."""


class Hold:
    """Holds a run while nothing gets through. One request is tried at a time, after growing pauses. Owned by the run.

    It begins with a read that failed, a request that could not be sent, five failures and no acceptance between them, or missing
    consent. It ends when a request is accepted, or refused with 429. Nothing is tried for as long as `Retry-After` asks.
    `timeout` is the deadline of a call in seconds, or None. Missing consent holds the run without limit. `changed` is called when
    the hold begins, ends, changes its reason, or lets a request be tried.
    """

    def __init__(self, timeout: float | None, changed: Callable[[], object], *, waits_for_consent: bool) -> None:
        self.reason: HoldReason | None = None
        """Why requests wait, or None if they do not."""
        self.is_due = False
        """Whether the next request may be tried."""
        self.is_disturbed = True
        """Whether `record_success` must be called after the next success."""
        self.accepted_at = -math.inf
        """When the service last accepted a request after it had refused or failed another, on the loop's clock."""
        self.failure: BoardClientError | None = None
        """How the last request has failed, None once one was accepted."""
        self._changed = changed
        self._waits_for_consent = waits_for_consent
        self._loop = asyncio.get_running_loop()
        self._new_service_patience = min(_NEW_SERVICE_PATIENCE_SECONDS, math.inf if timeout is None else timeout)
        self._has_contact = False
        self._refuses = False
        """Whether the last request to create a card was refused: that the board can be read is no end of the outage then."""
        self._failures = 0
        self._failing_since: float | None = None
        self._asked_until = -math.inf
        """Until when, on the loop's clock, the service asks to send nothing."""
        self._pause = _FIRST_PAUSE_SECONDS
        self._longest_pause = _LONGEST_PAUSE_SECONDS
        self._tries: set[object] = set()
        """The tasks whose requests are tried."""
        self._timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    def record_success(self, *, is_read: bool = False) -> None:
        """Record that a request was accepted, and end the hold."""
        # A board that can be read while cards are refused is no end of an outage.
        if is_read and self._refuses:
            self._has_contact = True
            return
        self.accepted_at, self.failure = self._loop.time(), None
        self._record_contact(is_disturbed=False)

    def _record_contact(self, *, is_disturbed: bool) -> None:
        self._has_contact, self._refuses, self.is_disturbed = True, False, is_disturbed
        # The pause begins anew as well: the next outage has nothing to do with this one.
        self._failures, self._failing_since, self._pause = 0, None, _FIRST_PAUSE_SECONDS
        self._asked_until = -math.inf
        self.end()

    def record_failure(self, error: BoardClientError, *, is_read: bool = False) -> bool:
        """Record a failure. Return False if waiting does not help, or was tried for too long.

        A request that was not sent begins a hold at once, and so does the failure of a read. Others do after five of them.
        """
        if ends_run(error) and not (isinstance(error, ConsentRequired) and self._waits_for(error)):
            return False
        self.is_disturbed, self.failure = True, error
        if isinstance(error, ConsentRequired):
            self._begin("consent")
            return True
        # A service that answers 429 works: the pace waits for it, and not the hold.
        if is_throttling(error):
            self._record_contact(is_disturbed=True)
            return True
        self._failures += 1
        if not is_read:
            self._refuses = error.effect is Effect.REJECTED
        now = self._loop.time()
        if (asked := retry_after_of(error)) is not None:
            self._asked_until = now + asked
        # A single failure may be that of its row. Only a series of them says something about the service.
        if error.effect is not Effect.NOT_SENT and self._failures < _SERIES and not is_read:
            return True
        if self._failing_since is None:
            self._failing_since = now
        self._longest_pause = _LONGEST_REFUSED_PAUSE_SECONDS if error.effect is Effect.REJECTED else _LONGEST_PAUSE_SECONDS
        if now - self._failing_since >= self._patience(error, is_read=is_read) or self.asked_seconds > PATIENCE_SECONDS:
            return False
        self._begin("outage")
        return True

    def _waits_for(self, error: ConsentRequired) -> bool:
        """Return True if the run waits until a user signs in: not for one who has signed out while it was under way."""
        return self._waits_for_consent and not (error.is_signed_out and self._has_contact)

    def _patience(self, error: BoardClientError, *, is_read: bool) -> float:
        # A read whose response was lost can be repeated as if it had not been sent.
        effect = Effect.NOT_SENT if is_read and error.effect is Effect.UNKNOWN else error.effect
        patience = {Effect.NOT_SENT: PATIENCE_SECONDS, Effect.REJECTED: _REFUSED_PATIENCE_SECONDS}
        found = patience.get(effect, _UNKNOWN_PATIENCE_SECONDS)
        # A service that has never responded is rather a wrong address than an outage.
        return found if self._has_contact else min(found, self._new_service_patience)

    @property
    def asked_seconds(self) -> float:
        """For how long the service asks to send nothing."""
        return max(0.0, self._asked_until - self._loop.time())

    def lets_through(self) -> bool:
        """Return True if the current task's request may be sent: there is no hold, or it is one that is tried."""
        return self.reason is None or asyncio.current_task() in self._tries

    def try_one(self) -> None:
        """Let the current task try a request during the hold. Another is due after a pause, whatever becomes of it."""
        self._tries.add(asyncio.current_task())
        self._schedule()

    async def acquire(self) -> None:
        """Wait until the current task may send."""
        while not self.lets_through():
            if self.is_due:
                self.try_one()
            else:
                self._moved.clear()
                await self._moved.wait()

    def release(self) -> None:
        """Note that the request of the current task has ended."""
        self._tries.discard(asyncio.current_task())

    def end(self) -> None:
        """End the hold, and let all requests be sent."""
        if self.reason is None:
            return
        self.reason, self.is_due = None, False
        # Those that are in flight are ordinary requests from now on.
        self._tries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._move()

    def _begin(self, reason: HoldReason) -> None:
        """Begin a hold, or change the reason of the current one."""
        if self.reason == reason:
            return
        before, self.reason = self.reason, reason
        # Otherwise a timer runs already, and a second one would let two requests be tried.
        if before is None:
            self._schedule()
        self._move()

    def _schedule(self) -> None:
        """Let one request be tried after a pause, which doubles with each try in an outage."""
        self.is_due = False
        pause = _CONSENT_PAUSE_SECONDS
        if self.reason == "outage":
            pause, self._pause = min(self._pause, self._longest_pause), min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        if seconds := self.asked_seconds:  # by the response to the last try
            self._timer = self._loop.call_later(seconds, self._on_timer)
            return
        self._timer, self.is_due = None, True
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._changed()


def retry_after_of(error: BoardClientError) -> float | None:
    """Return the seconds for which the service asked to wait, or None."""
    return error.retry_after if isinstance(error, ApiError) else None


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
