"""The calls in flight of a session, with their deadlines and histories.

State changes here are synchronous. One timer per session serves all deadlines, for half a microsecond per call; a timer per call
costs five to nine. It interrupts a call by cancelling its task, and the call turns the cancellation into the right error.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import weakref
from asyncio import current_task, get_running_loop
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from boardclient._activities import Activity
from boardclient._pipeline._guards import guarded
from boardclient._pipeline._options import CallOptions
from boardclient._transport import Progress
from boardclient.credentials import Credentials
from boardclient.errors import Attempt, BoardClientError, DeadlineError, Effect, SessionClosedError

INSIST_SECONDS: Final = 0.5
"""How long application code, such as a limiter's `__aexit__`, may delay a cancellation before the task is cancelled again."""

InterruptionReason: TypeAlias = Literal["deadline", "closed", "withdrawn"]


class CallWithdrawn(BoardClientError):  # noqa: N818 -- withdrawing is no failure
    """A bulk run withdrew a call that had not been sent. Never raised to applications."""


class HasLine(Protocol):
    """A request that errors can name."""

    @property
    def line(self) -> str:
        """The method and the path, such as "POST /1/cards"."""
        ...


class Interruption:
    """Ends a call early by cancelling its task. Owned by the call."""

    def __init__(self, reason: InterruptionReason, task: asyncio.Task[object]) -> None:
        self.reason: InterruptionReason = reason
        self.error: BoardClientError | None = None
        """The error of the call, once it was made."""
        self._task = task
        self._cancellations = 0

    def cancel(self) -> None:
        """Cancel the task, and again every `INSIST_SECONDS`.

        Application code may swallow a cancellation, or hang.
        """
        self._cancellations += 1
        self._again = self._task.get_loop().call_later(INSIST_SECONDS, self.cancel)
        self._task.cancel()

    def take_back(self) -> None:
        """Undo the cancellations. Those of others remain."""
        self._again.cancel()
        for _ in range(self._cancellations):
            self._task.uncancel()
        self._cancellations = 0


class CallContext(Progress):
    """The state of one call. Owned by the call, and registered in its session's `InFlightCalls`.

    One is made for each call, so fields that few calls change are class-level defaults. A field that each call reads several
    times is set: Python 3.11 reads a class-level default four times as slowly as a field.
    """

    deadline = math.inf
    """When the call times out, on the loop's clock. Infinite without a deadline and while it is suspended."""
    seconds_left = math.inf
    """The seconds that were left when the deadline was last suspended."""
    started = 0.0
    """When the current attempt began, by `time.time`."""
    attempts: tuple[Attempt, ...] = ()
    last_error: BoardClientError | None = None
    options = CallOptions()
    """The options that differ from the session's."""
    activity: Activity | None = None
    """The call as instruments see it."""
    attempt_activity: Activity | None = None
    """The current attempt as instruments see it."""
    waits_for: Callable[[], str] | None = None
    """Returns what the call waits for outside the transport, in words. None if it does not wait."""
    is_renewed = False
    returns_error = False
    """Whether an exception is the call's value: a policy's callback returned it."""
    credentials: Credentials | None = None
    """The credentials with which the last request was signed."""
    rejected: Credentials | None = None
    """The credentials that the service refused with 401, which are redacted from later responses too."""
    interruption: Interruption | None = None
    """What ends the call early, or None."""
    may_send = True
    """Whether another request may be sent. False after an interruption and once the session is closed."""

    def __init__(self, request: HasLine, task: asyncio.Task[object], began: float, seconds: float | None) -> None:
        self.request = request
        self.task = task
        self.seconds = seconds
        self.is_tracked = False
        """Whether the call's attempts are tracked: something needs its successes, or one of them has failed."""
        self._began = began
        self._cancelling = task.cancelling()

    @property
    def line(self) -> str:
        """The method and the path, as errors name the call."""
        return self.request.line

    @property
    def remaining_seconds(self) -> float | None:
        """The seconds until the deadline, or None without one."""
        return None if self.seconds is None else self.deadline - self.task.get_loop().time()

    @property
    def seconds_since_beginning(self) -> float:
        """The seconds since the call began."""
        return self.task.get_loop().time() - self._began

    @property
    def effect(self) -> Effect:
        """The worst effect of all attempts, including the current one."""
        return Effect.worst([self.effect_under_way, *(attempt.effect for attempt in self.attempts)])

    def interrupt(self, reason: InterruptionReason) -> None:
        """End the call early, unless it is being ended already."""
        if self.interruption is None:
            self.is_tracked = True
            self.may_send = False
            self.deadline = math.inf
            self.interruption = Interruption(reason, self.task)
            self.interruption.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether the task was cancelled during the call, by the session or by others."""
        return self.task.cancelling() > self._cancelling

    def withdraw(self) -> None:
        """End the call if its current attempt is neither sent nor queued for writing."""
        if self.effect_under_way is Effect.NOT_SENT and self.stage != "write":
            self.interrupt("withdrawn")

    def interruption_error(self, host: str = "the service") -> BoardClientError | None:
        """Return the error of an interrupted call, or None if the caller cancelled it.

        An attempt that was in flight is recorded in the history.
        """
        interruption = self.interruption
        if interruption is None:
            return None
        if interruption.error is not None:
            return interruption.error
        interruption.take_back()
        if self.is_cancelled:
            return None
        error = interruption.error = self._error_of(interruption.reason, host)
        if self.stage != "idle":
            self.record(self.started, error, None, self.effect_under_way)
            self.stage = "idle"
        error.attempts = self.attempts
        return error

    def _error_of(self, reason: InterruptionReason, host: str) -> BoardClientError:
        if reason == "deadline":
            words = f"{self.line}: the deadline of {self.seconds:g} s passed"
            if waited_for := self._waited_for(host):
                words += f", waiting for {waited_for}"
            return DeadlineError(words, "deadline", self.line, self.effect)
        if reason == "closed":
            return SessionClosedError(f"{self.line}: the session was closed during the call", self.effect)
        return CallWithdrawn(f"{self.line}: the call was withdrawn", self.effect)

    def release(self) -> None:
        """Drop the credentials and the error at the end of the call.

        A frame of an exception may keep the context, and so may the connection that the call opened: asyncio keeps the context
        variables of whatever added a reader.
        """
        self.credentials = self.rejected = self.last_error = self._ended_by = None

    def _waited_for(self, host: str) -> str:
        if self.waits_for is not None:
            return guarded("waiting_for of the credentials", self.waits_for) or "credentials"
        if self.stage == "idle":
            return ""
        return f"a connection to {host}" if self.stage == "connect" else f"the response of {host}"

    def record(self, started: float, outcome: object, status: int | None, effect: Effect) -> Attempt:
        """Add an attempt to the history and return it. `started` is by `time.time`."""
        self.last_error = outcome if isinstance(outcome, BoardClientError) else None
        attempt = Attempt(
            number=len(self.attempts) + 1,
            started_at=utc(started),
            seconds=max(0.0, time.time() - started),
            effect=effect,
            why="success" if self.last_error is None else self.last_error.message,
            status=status,
        )
        self.attempts += (attempt,)
        self.is_tracked = True
        return attempt

    def note_pause(self, seconds: float) -> None:
        """Record the pause in seconds that follows the last attempt."""
        *before, last = self.attempts
        self.attempts = (*before, attrs.evolve(last, pause_seconds=seconds))


def utc(seconds: float) -> datetime:
    """Return seconds since the epoch as an aware date-time."""
    return datetime.fromtimestamp(seconds, UTC)


_process = object()
"""Identity of the current process, replaced by an `os.register_at_fork` hook; cheaper than `os.getpid()` on each call.

Forks that bypass Python's hooks are not detected."""
_all: Final[weakref.WeakSet[InFlightCalls]] = weakref.WeakSet()


def _note_fork() -> None:
    global _process
    _process = object()
    for calls in _all:
        calls._open_on = None


if hasattr(os, "register_at_fork"):  # pragma: no branch -- Windows has no fork
    os.register_at_fork(after_in_child=_note_fork)


class InFlightCalls:
    """The calls in flight of a session and its views, in one event loop and process."""

    def __init__(self) -> None:
        self._under_way: set[CallContext] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open_on: asyncio.AbstractEventLoop | None = None
        """The loop on which calls are accepted. None before the first call, after closing and in a forked process."""
        self._process = _process
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = math.inf
        self._drained: asyncio.Event | None = None
        self.is_closed = False
        _all.add(self)

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, request: HasLine, seconds: float | None, options: CallOptions | None = None) -> CallContext:
        """Register a call of the current task. `seconds` is the time until its deadline, None for none.

        Raises:
            SessionClosedError: the session is closed.
            RuntimeError: the session belongs to another event loop or process, or there is no current task.
        """
        loop = get_running_loop()
        if loop is not self._open_on:
            self._bind(loop, request)
        task = current_task(loop)
        if task is None:
            raise RuntimeError("a session must be used from within an asyncio task")
        now = loop.time()
        context = CallContext(request, task, now, seconds)
        if options is not None:
            context.options = options
            if options.activity is not None:
                context.activity, context.is_tracked = options.activity, True
        self._under_way.add(context)
        if seconds is not None:
            deadline = context.deadline = now + seconds
            if deadline < self._wake_at:
                self._schedule(deadline)
        return context

    def withdraw(self, options: Collection[CallOptions]) -> None:
        """Withdraw the calls with these options that have not been sent."""
        for context in self._under_way:
            if context.options in options:
                context.withdraw()

    def suspend(self, context: CallContext) -> None:
        """Suspend the deadline of a call, unless its waits count."""
        if not context.options.waits_count:
            context.seconds_left = context.deadline - context.task.get_loop().time()
            context.deadline = math.inf

    def resume(self, context: CallContext) -> None:
        """Resume the deadline of a suspended call, unless the call is being ended."""
        if context.options.waits_count or context.interruption is not None:
            return
        context.deadline = context.task.get_loop().time() + context.seconds_left
        if context.deadline < self._wake_at:
            self._schedule(context.deadline)

    def end(self, context: CallContext) -> None:
        """Remove a call that has ended."""
        self._under_way.discard(context)
        if self._drained is not None and not self._under_way:
            self._drained.set()

    def _bind(self, loop: asyncio.AbstractEventLoop, request: HasLine) -> None:
        """Bind the session to the loop and process of its first call, or raise."""
        if self.is_closed:
            raise SessionClosedError(f"{request.line}: the session is closed")
        if self._loop is None:
            self._loop, self._process = loop, _process
        elif self._process is not _process:
            raise RuntimeError("this AsyncSession was used before the process forked: build one in each process")
        elif self._loop is not loop:
            raise RuntimeError("this AsyncSession belongs to another event loop: build one for each loop")
        self._open_on = loop

    @property
    def is_on_own_loop(self) -> bool:
        """Whether the running event loop and process are the session's own."""
        return self._loop is asyncio.get_running_loop() and self._process is _process

    def _schedule(self, moment: float) -> None:
        assert self._loop is not None  # noqa: S101 -- bound by begin
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(moment, self._sweep)
        self._wake_at = moment

    def _sweep(self) -> None:
        """Interrupt the calls whose deadlines have passed, and set the next timer."""
        assert self._loop is not None  # noqa: S101 -- bound by begin
        now = self._loop.time()
        self._timer, self._wake_at = None, math.inf
        for context in self._under_way:
            if context.deadline <= now:
                context.interrupt("deadline")
        following = min((context.deadline for context in self._under_way), default=math.inf)
        if following < math.inf:
            self._schedule(following)

    def close(self) -> asyncio.Event | None:
        """End all calls but those of the current task, and refuse new ones.

        Return the event that is set once they have ended, or None if there is nothing to wait for.
        """
        self.is_closed, self._open_on = True, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None or not self.is_on_own_loop:
            return None
        mine = asyncio.current_task()
        others = [context for context in self._under_way if context.task is not mine]
        for context in self._under_way:
            context.may_send = False
        for context in others:
            context.interrupt("closed")
        if not others or len(others) < len(self._under_way):
            return None
        self._drained = self._drained or asyncio.Event()
        return self._drained
