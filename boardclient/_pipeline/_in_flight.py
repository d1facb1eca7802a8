"""The state of a call from beginning to end, and the calls of a session.

State changes here are synchronous. One timer per session serves all deadlines, for half a microsecond per call; a timer per call
costs five to nine. It interrupts a call by cancelling its task, and the call turns the cancellation into the right error.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
import weakref
from asyncio import current_task, get_running_loop
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from boardclient._activities import Activity, ShownHeaders
from boardclient._pipeline._calls import CallOptions, CallWithdrawn
from boardclient._statuses import status_of
from boardclient._transport import Progress, RawResponse, TransportResult
from boardclient.credentials import Credentials
from boardclient.errors import Attempt, BoardClientError, DeadlineError, Effect, SessionClosedError

INSIST_SECONDS: Final = 0.5
"""How long application code, such as a limiter's `__aexit__`, may delay a cancellation before the task is cancelled again."""

InterruptionReason: TypeAlias = Literal["deadline", "closed", "withdrawn"]


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


class CallContext:
    """The state of one call. Owned by the call, and registered in its session's `InFlightCalls`.

    One is made for each call, so fields that few calls change are class-level defaults.
    """

    deadline = math.inf
    """When the call times out, on the loop's clock. Infinite without a deadline and while it is suspended."""
    seconds_left = math.inf
    """The seconds that were left when the deadline was last suspended."""
    started = 0.0
    """When the current attempt began, by `time.time`."""
    last_error: BoardClientError | None = None
    options = CallOptions()
    """The options that differ from the session's."""
    activity: Activity | None = None
    """The call as instruments see it, None if nothing follows it."""
    attempt_activity: Activity | None = None
    """The current attempt as instruments see it."""
    waits_for: Callable[[], str] | None = None
    """Returns what the call waits for outside the transport, in words. None if it does not wait."""
    is_renewed = False
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
        self.progress = Progress()
        self.attempts: tuple[Attempt, ...] = ()
        self.is_recorded = False
        """Whether an attempt that succeeds is recorded too: something needs to know of it, or one before it has failed."""
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
        return Effect.worst([self.progress.effect_under_way, *(attempt.effect for attempt in self.attempts)])

    @property
    def rejected_credentials(self) -> list[Credentials]:
        """The credentials that are redacted besides those which signed the request."""
        return [] if self.rejected is None else [self.rejected]

    # --- attempts

    def begin_attempt(self, call: Activity) -> Mapping[str, str]:
        """Notify the instruments of an attempt. Return the headers that they add to it."""
        self.attempt_activity = attempt = Activity(
            kind="attempt",
            operation=call.operation,
            instruments=call.instruments,
            call_id=call.call_id,
            account=call.account,
            parent=call,
            method=call.method,
            path=call.path,
            root=call.root,
            template=call.template,
            number=len(self.attempts) + 1,
        ).begin()
        return attempt.headers

    def note_result(self, result: TransportResult, outcome: object) -> Attempt:
        """Record the result of an attempt. `outcome` is its value or its error."""
        activity = self.attempt_activity
        if not isinstance(result, RawResponse):
            return self.record(outcome, result.effect)
        if activity is not None:
            signed_with, others, headers = self.credentials, self.rejected_credentials, result.headers
            assert signed_with is not None  # noqa: S101 -- only signed requests have responses
            activity.http_version = self.progress.http_version
            activity.response_headers = ShownHeaders(lambda: signed_with.redact_headers(headers, *others))
        return self.record(outcome, status_of(result.status).effect, result.status)

    def record(self, outcome: object, effect: Effect, status: int | None = None, started: float | None = None) -> Attempt:
        """Add an attempt to the history, for instruments too. It began now or when `started` says, by `time.time`."""
        began = self.started if started is None else started
        raised = outcome if isinstance(outcome, BaseException) else None
        error = self.last_error = raised if isinstance(raised, BoardClientError) else None
        attempt = Attempt(
            number=len(self.attempts) + 1,
            started_at=datetime.fromtimestamp(began, UTC),
            seconds=max(0.0, time.time() - began),
            effect=effect,
            why="success" if raised is None else "the call was cancelled" if error is None else error.message,
            status=status,
        )
        self.attempts += (attempt,)
        self.is_recorded = True
        activity, self.attempt_activity = self.attempt_activity, None
        if activity is not None:
            _end_attempt(activity, attempt, raised)
        return attempt

    def note_pause(self, seconds: float) -> None:
        """Record the pause in seconds that follows the last attempt."""
        *before, last = self.attempts
        self.attempts = (*before, attrs.evolve(last, pause_seconds=seconds))

    # --- ending early

    def interrupt(self, reason: InterruptionReason) -> None:
        """End the call early, unless it is being ended already."""
        if self.interruption is None:
            self.may_send = False
            self.deadline = math.inf
            self.interruption = Interruption(reason, self.task)
            self.interruption.cancel()

    def is_cancelled(self) -> bool:
        """Return True if the task was cancelled during the call."""
        return self.task.cancelling() > self._cancelling

    def withdraw(self) -> None:
        """End the call if its current attempt is neither sent nor queued for writing."""
        if self.progress.effect_under_way is Effect.NOT_SENT and self.progress.stage != "write":
            self.interrupt("withdrawn")

    def end_early(self, host: str = "the service", raised: BaseException | None = None) -> BoardClientError | None:
        """Return the error of an interrupted call, or None if `raised` ended it. An attempt in flight is recorded."""
        interruption, error = self.interruption, None
        if interruption is not None:
            interruption.take_back()
            if not self.is_cancelled():
                error = self._error_of(interruption.reason, host)
        if self.progress.stage != "idle":
            self.record(error or raised or asyncio.CancelledError(), self.progress.effect_under_way)
            self.progress.stage = "idle"
        if error is not None:
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

    def _waited_for(self, host: str) -> str:
        if self.waits_for is not None:
            return self.waits_for()
        if self.progress.stage == "idle":
            return ""
        return f"a connection to {host}" if self.progress.stage == "connect" else f"the response of {host}"

    def release(self) -> None:
        """Drop the credentials and the error at the end of the call.

        A frame of an exception may keep the context, and so may the connection that the call opened: asyncio keeps the context
        variables of whatever added a reader.
        """
        self.credentials = self.rejected = self.last_error = self.interruption = None


def _end_attempt(activity: Activity, attempt: Attempt, error: BaseException | None) -> None:
    """End the activity of an attempt, whose call takes over status, headers and the worst effect."""
    call = activity.parent
    assert call is not None  # noqa: S101 -- an attempt is a part of its call
    activity.status, activity.effect = attempt.status, attempt.effect
    activity.why, activity.seconds = attempt.why, attempt.seconds
    call.number, call.status, call.response_headers = activity.number, attempt.status, activity.response_headers
    call.effect = attempt.effect if attempt.effect is Effect.DONE else Effect.worst([call.effect, attempt.effect])
    activity.end(error)


_SHALLOW_FRAMES: Final = 100
"""A stack of fewer frames is not measured: the least limit that programs set is several times as much."""
_FRAMES_OF_A_CALL: Final = 100
"""More than a call needs, with a new TLS connection and a log record of its failure."""


def _has_room() -> bool:
    """Return True if a call can't exceed the recursion limit, which would lose the connection and the request's effect."""
    try:
        sys._getframe(_SHALLOW_FRAMES)
    except ValueError:
        return True
    try:
        _descend(_FRAMES_OF_A_CALL)
    except RecursionError:
        return False
    return True


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)


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
        try:
            task = current_task()
        except RuntimeError:
            task = None
        if task is None:
            raise RuntimeError("a session must be used within an asyncio task, such as that of asyncio.run(main())")
        loop = get_running_loop()
        if loop is not self._open_on:
            self._bind(loop, request)
        if not _has_room():
            raise BoardClientError(f"{request.line}: nothing was sent: the stack is nearly full (see sys.getrecursionlimit)")
        now = loop.time()
        context = CallContext(request, task, now, seconds)
        if options is not None:
            context.options = options
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
        if self._loop is not None and self._process is not _process:
            raise RuntimeError("this AsyncSession was used before the process forked: build one in each process")
        if self._loop is not None:
            raise RuntimeError("this AsyncSession belongs to another event loop: build one for each loop")
        self._loop = self._open_on = loop
        self._process = _process

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
