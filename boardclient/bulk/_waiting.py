"""What the requests of a run wait for: outages, missing consent, refusals with 429, limiters and connections.

Each wait is bounded, but for consent.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from boardclient._pace import Growth, Limiter, Pace
from boardclient._pipeline._calls import CallWithdrawn, ConnectionSlots, FifoSemaphore
from boardclient._pipeline._guards import GuardedLimiter
from boardclient._statuses import ends_run, is_throttling
from boardclient.bulk._life import Row
from boardclient.errors import ApiError, BoardClientError, ConsentRequired, Effect

HoldReason: TypeAlias = Literal["outage", "consent"]

PATIENCE_SECONDS: Final = 300.0
"""How long a run is held by requests that can't be sent, and how long a row or a read may be refused with 429."""
_REFUSED_PATIENCE_SECONDS: Final = 60.0
"""How long refusals hold a run."""
_UNKNOWN_PATIENCE_SECONDS: Final = 30.0
"""How long failures of unknown effect hold a run. It is short because each try leaves a row in doubt."""
_FIRST_PATIENCE_SECONDS: Final = 15.0
"""The longest time until the service accepts a first request. Its address may be wrong."""
_SERIES: Final = 5
"""How many failures without an acceptance between them are an outage, if the requests were sent."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_LONGEST_REFUSED_PAUSE_SECONDS: Final = 1.0
"""The same while requests are refused: a response comes soon, and each try is another row."""
_CONSENT_PAUSE_SECONDS: Final = 0.25
"""The pause between two attempts to obtain a token. It is short because they send no request."""
_FIRST_PUT_OFF_SECONDS: Final = 0.05
"""The pause before a row that could not be sent is tried again. It doubles each time, up to 128 times its length."""
_MOST_PUT_OFF: Final = 20
"""How often a row may be put off while others are accepted, before the time since it was first put off counts."""
_QUEUED_SECONDS: Final = 0.02
"""Attempts that a shared pace will start within this time wait in its queue, the others in the run's own."""


class Hold:
    """Holds a run while nothing gets through. One request is tried at a time, after growing pauses. Owned by the run.

    It begins with a request that could not be sent, with five failures and no acceptance between them, or with missing consent.
    It ends when a request is accepted. `timeout` is the deadline of a call in seconds, or None. `changed` is called when the hold
    begins, ends, changes its reason, or lets a request be tried.
    """

    def __init__(self, timeout: float | None, changed: Callable[[], object]) -> None:
        self.reason: HoldReason | None = None
        """Why requests wait, or None if they do not."""
        self.is_due = False
        """Whether the next request may be tried."""
        self.is_disturbed = True
        """Whether `note_success` must be called after the next success."""
        self.accepted_at = -math.inf
        """When the service last accepted a request after it had refused or failed another, on the loop's clock."""
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._first_patience = min(_FIRST_PATIENCE_SECONDS, math.inf if timeout is None else timeout)
        self._has_contact = False
        self._failures = 0
        self._failing_since: float | None = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._longest_pause = _LONGEST_PAUSE_SECONDS
        self._tries: set[object] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    def note_success(self) -> None:
        """Note that a request was accepted, and end the hold."""
        self.accepted_at = self._loop.time()
        self._note_contact(is_disturbed=False)

    def _note_contact(self, *, is_disturbed: bool) -> None:
        self._has_contact, self.is_disturbed = True, is_disturbed
        self._failures, self._failing_since, self._pause = 0, None, _FIRST_PAUSE_SECONDS
        self.end()

    def note_failure(self, error: BoardClientError, *, failures: int = _SERIES) -> bool:
        """Note a failure. Return False if waiting does not help, or was tried for too long.

        A request that was not sent begins a hold at once, others do after `failures` of them.
        """
        if ends_run(error) and not isinstance(error, ConsentRequired):
            return False
        self.is_disturbed = True
        if isinstance(error, ConsentRequired):
            self._begin("consent")
            return True
        if is_throttling(error):
            self._note_contact(is_disturbed=True)
            return False
        self._failures += 1
        if error.effect is not Effect.NOT_SENT and self._failures < failures:
            return True
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience(error):
            return False
        self._longest_pause = _LONGEST_REFUSED_PAUSE_SECONDS if error.effect is Effect.REJECTED else _LONGEST_PAUSE_SECONDS
        self._begin("outage")
        return True

    def _patience(self, error: BoardClientError) -> float:
        patience = {Effect.NOT_SENT: PATIENCE_SECONDS, Effect.REJECTED: _REFUSED_PATIENCE_SECONDS}
        found = patience.get(error.effect, _UNKNOWN_PATIENCE_SECONDS)
        return found if self._has_contact else min(found, self._first_patience)

    def may_send(self, request: object) -> bool:
        """Return True if a request may be sent: there is no hold, or it is one that is tried."""
        return self.reason is None or request in self._tries

    def try_one(self, request: object) -> None:
        """Let a request be tried during the hold. Another is due after a pause, whatever becomes of it."""
        self._tries.add(request)
        self._schedule()

    async def acquire(self) -> None:
        """Wait until the current task may send."""
        while not self.may_send(asyncio.current_task()):
            if self.is_due:
                self.try_one(asyncio.current_task())
            else:
                self._moved.clear()
                await self._moved.wait()

    def release(self, request: object = None) -> None:
        """Note that a request, or the one of the current task, has ended."""
        self._tries.discard(request or asyncio.current_task())

    def end(self) -> None:
        """End the hold, and let all requests be sent."""
        if self.reason is None:
            return
        self.reason, self.is_due = None, False
        self._tries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._move()

    def _begin(self, reason: HoldReason) -> None:
        """Begin a hold, or change the reason of the current one."""
        if self.reason == reason:
            return
        if self.reason is None:
            self._schedule(reason)
        self.reason = reason
        self._move()

    def _schedule(self, reason: HoldReason | None = None) -> None:
        """Let one request be tried after a pause, which doubles with each try in an outage."""
        self.is_due = False
        pause = _CONSENT_PAUSE_SECONDS
        if (reason or self.reason) == "outage":
            pause, self._pause = min(self._pause, self._longest_pause), min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self.is_due = None, True
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._changed()


def pause_before(row: Row, failure: BoardClientError, hold: Hold) -> float | None:
    """Return the seconds until a row is sent again that was refused with 429 or not sent. None if that took too long."""
    now = asyncio.get_running_loop().time()
    if row.put_off_at is None:
        row.put_off_at = now
    row.put_off += 1
    if hold.reason == "consent":
        return 0.0
    if hold.reason == "outage":  # its end is the run's affair
        return _FIRST_PUT_OFF_SECONDS * 2.0 ** min(row.put_off - 1, 7)
    pause = (failure.retry_after or 0.0) if isinstance(failure, ApiError) else 0.0
    # At a slow service any row may be refused for long. It is the row itself only if it is refused again and again.
    is_unlucky = row.put_off < _MOST_PUT_OFF
    since = max(row.put_off_at, hold.accepted_at) if is_unlucky else row.put_off_at
    return pause if now + pause - since < PATIENCE_SECONDS else None


class Turns:
    """The run's own pace, and the connections that it shares with other runs, which rows wait for. Owned by the run.

    A run has no pace until it is first refused with 429. If it `grows`, it has fewer workers at first, and more while that makes
    it faster. Waiting here does not count towards a deadline.
    """

    def __init__(self, workers: int, slots: ConnectionSlots, *, makes_pace: bool, grows: bool) -> None:
        self.pace: Pace | None = None
        self._workers = workers
        self._growth = Growth(workers) if grows and makes_pace else None
        self._slots = slots
        self._makes_pace = makes_pace
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    @property
    def must_wait(self) -> bool:
        """Whether a row may have to wait."""
        return self.pace is not None or self._slots.wanted > self._slots.number

    def places(self, ended: int) -> int:
        """Return how many workers the run needs after so many requests. With a pace it needs all, and the pace decides."""
        if self.pace is not None or self._growth is None:
            return self._workers
        return self._growth.look(self._clock(), ended)

    async def enter(self) -> Turn:
        """Wait for the pace and a connection. The request ends with `Turn.leave`."""
        pace = self.pace
        if pace is not None:
            await pace.__aenter__()
        if self._slots.wanted <= self._slots.number:
            return Turn(pace, None, self._clock)
        try:
            await self._slots.enter()
        except BaseException:
            if pace is not None:
                await pace.__aexit__(None, None, None)
            raise
        return Turn(pace, self._slots, self._clock)

    def note_refusal(self, sent: int, retry_after: float | None) -> None:
        """Note a 429 of a run that has no pace, after so many requests. From now on it has one."""
        if self.pace is None and self._makes_pace:
            self.pace = Pace.after_refusal(
                self._workers,
                places=self.places(sent),
                sent=sent,
                began=self._began,
                retry_after=retry_after,
                clock=self._clock,
            )


class Turn:
    """What a row waited for, until its request has ended. It belongs to the task that entered it."""

    __slots__ = ("_clock", "_pace", "_slots", "_started")

    def __init__(self, pace: Pace | None, slots: ConnectionSlots | None, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._slots = slots
        self._clock = clock
        self._started = clock()

    async def leave(self, failure: BoardClientError | None) -> None:
        """End the turn after a request, which failed or not."""
        if self._pace is not None:
            if failure is None:
                self._pace.report(200, None, self._clock() - self._started)
            elif failure.effect is not Effect.NOT_SENT:
                status = failure.status if isinstance(failure, ApiError) else None
                asked = failure.retry_after if isinstance(failure, ApiError) and is_throttling(failure) else None
                self._pace.report(status, asked, failure.attempts[-1].seconds if failure.attempts else 0.0)
        await self.give_back()

    async def give_back(self) -> None:
        """End the turn without a request."""
        if self._slots is not None:
            self._slots.leave()
        if self._pace is not None:
            await self._pace.__aexit__(None, None, None)


class SharedLimiter:
    """The session's limiter, as the requests of a run enter it. One for each worker.

    Other calls of the session use it as well, so no more requests of a run wait in its queue than it is about to serve. The
    others wait in `queue`, which the workers of a run share.
    """

    def __init__(self, limiter: Limiter, queue: FifoSemaphore, hold: Hold | None = None) -> None:
        self._limiter = GuardedLimiter(limiter)
        self._queue = queue
        self._hold = hold
        self.row: object = None
        """What is sent now. If a hold begins while it waits here, it is withdrawn."""

    @property
    def is_reporting(self) -> bool:
        """Whether the limiter has a `report` method."""
        return self._limiter.is_reporting

    def must_be_entered(self) -> bool:
        """Return True."""
        return True

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass the result of an attempt to the limiter."""
        self._limiter.report(status, retry_after, seconds)

    async def __aenter__(self) -> None:
        await self._queue.enter()
        try:
            await self._limiter.__aenter__()
        finally:
            self._queue.leave()
        if self._hold is not None and not self._hold.may_send(self.row):
            await self._limiter.__aexit__(None, None, None)
            raise CallWithdrawn("the run was held while the request waited for the limiter", Effect.NOT_SENT)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._limiter.__aexit__(exc_type, exc, traceback)


def queue_before(limiter: Limiter) -> FifoSemaphore:
    """Return the queue of a run before a limiter of its session."""

    def most() -> int:
        if not isinstance(limiter, Pace):
            return 1
        return limiter.workers if limiter.rate is None else 1 + int(limiter.rate * _QUEUED_SECONDS)

    return FifoSemaphore(most)


def is_held(*limiters: Any) -> bool:
    """Return True if a pace starts no request because the service asked for a pause."""
    return any(getattr(limiter, "held_until", None) is not None for limiter in limiters)
