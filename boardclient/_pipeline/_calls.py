"""One call from its beginning to its end, its options, and the calls of a session.

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
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs

from boardclient._base._activities import Activity
from boardclient._base._guards import GuardedLimiter
from boardclient._interface._operations import Request
from boardclient._interface._responses import status_of
from boardclient._transport._order import WriteOrder
from boardclient._transport._values import Progress, RawResponse, Stage, TransportResult, UsedConnection
from boardclient.credentials import Credentials
from boardclient.errors import ApiError, Attempt, BoardClientError, DeadlineError, Effect, SessionClosedError

INSIST_SECONDS: Final = 0.5
"""How long application code, such as a limiter's `__aexit__`, may delay a cancellation before the task is cancelled again."""

InterruptionReason: TypeAlias = Literal["deadline", "closed", "withdrawn"]


class CallWithdrawn(BoardClientError):  # noqa: N818 -- withdrawing is no failure
    """A bulk run withdrew a call that had not been sent, which applications never see."""


@attrs.define(eq=False)
class CallOptions:
    """Options of one call that differ from its session's. The object may be reused after the call.

    Args:
        limiter: The limiter of the attempts, in place of the session's. None, the default, keeps the session's.
        is_of_run: If True, the retry policy leaves to the bulk run what the run alone may decide: creations that may have been
            done, and responses that ask for fewer requests. What a policy's `retry_error_callback` returns does not count.
            Waiting for the limiter and for credentials does not count towards the deadline. False by default.
        is_single: If True, nothing follows the first request of a run's call: no renewal of credentials, no retry. False by
            default.
        may_send: Asked right before each request is written. If it returns False, the call fails, and has sent nothing. None, the
            default: it may be written.
        order: The order in which the request is written among others. None, the default: it does not matter.
        history: Receives the attempts of a call that succeeded. It stays empty if the first attempt succeeded, unless the call
            is observed.

    Attributes:
        connection: The connection that the last response of the call came over, None if there was none.
        response_number: Which of the connection's responses it was, counted from 1.
    """

    limiter: GuardedLimiter | None = None
    is_of_run: bool = attrs.field(default=False, kw_only=True)
    is_single: bool = attrs.field(default=False, kw_only=True)
    may_send: Callable[[], bool] | None = attrs.field(default=None, kw_only=True)
    order: WriteOrder | None = attrs.field(default=None, kw_only=True)
    history: list[Attempt] = attrs.field(factory=list, kw_only=True)
    connection: UsedConnection | None = attrs.field(default=None, init=False)
    response_number: int = attrs.field(default=0, init=False)


_NO_OPTIONS: Final = CallOptions()


class Paced(Protocol):
    """What has a pace for the calls that a task makes, and repeats those that 429 refuses: `AsyncSession.map`."""

    def begin(self, call: CallContext, parts: object) -> bool:
        """Note that a call begins. Return True if the pace is the call's, and not a bulk run's or that of another session."""
        ...

    def end(self, call: object, error: BaseException | None) -> None:
        """Note that a call has ended."""
        ...

    def limiter(self, call: object, inner: GuardedLimiter | None) -> GuardedLimiter | None:
        """Return the limiter of an attempt: the pace, and what limits calls besides."""
        ...

    def record_refusal(self, call: object, refusal: ApiError, seconds: float) -> float | None:
        """Record a refusal with 429, and return the seconds until the call may be made again. None if it took too long.

        `seconds` have passed since the call was first refused.
        """
        ...


PACED: Final[ContextVar[Paced | None]] = ContextVar("boardclient_paced", default=None)
"""What has a pace for the calls of the current task, or None."""


class CallContext(Progress):
    """The state of one call and of its current request."""

    request: Request[Any] | None
    task: asyncio.Task[object]
    began: float
    """When the call began, on the loop's clock."""
    seconds: float | None
    """The timeout."""
    options: CallOptions
    """The options that differ from the session's."""
    cancelled_before: int
    """How often the task had been cancelled when the call began."""
    notes_success: bool = False
    """Whether a success is recorded as an attempt too. It is not if nothing follows the call, and it succeeds at once."""
    activity: Activity | None = None
    """The call as instruments see it, None if nothing follows it."""
    may_continue: bool = True
    """Whether the call may continue. False after an interruption and once the session is closed."""
    deadline: float = math.inf
    """When the call times out, on the loop's clock. Infinite without a deadline and while it is suspended."""
    seconds_left: float = math.inf
    """The seconds that were left when the deadline was last suspended."""
    started: float = 0.0
    """When the current attempt began, by `time.perf_counter`: the clock of the day may be set meanwhile."""
    attempts: tuple[Attempt, ...] = ()
    interruption: InterruptionReason | None = None
    """Why the call is ended early, or None."""
    last_error: BoardClientError | None = None
    attempt_activity: Activity | None = None
    """The current attempt as instruments see it."""
    waits_for: str | Callable[[], str] | None = None
    """What the call waits for outside the transport, in words, or a function that returns it. None if it does not wait."""
    paced: Paced | None = None
    """What has a pace for the call besides the session's limiter, or None."""
    refused_at: float | None = None
    """When the call was first refused that `paced` repeats, on the loop's clock."""
    has_tried_renewal: bool = False
    """Whether the call has asked for credentials in place of rejected ones, which it does once."""
    credentials: Credentials | None = None
    """The credentials with which the last request was signed."""
    used: tuple[Credentials, ...] = ()
    """The credentials of the attempts in the history, which are redacted from all that comes later."""
    cancellations: int = 0
    """How often the call has cancelled its task."""
    next_cancellation: asyncio.TimerHandle | None = None
    """The timer of the next one, once there was one."""

    @property
    def line(self) -> str:
        return _line_of(self.request)

    @property
    def needs_body(self) -> bool:
        """Whether the operation needs the body of a success. A form does."""
        return self.request is None or self.request.operation.needs_body

    @property
    def remaining_seconds(self) -> float | None:
        return None if self.seconds is None else self.deadline - self.task.get_loop().time()

    @property
    def seconds_since_beginning(self) -> float:
        return self.task.get_loop().time() - self.began

    @property
    def effect(self) -> Effect:
        """The worst effect of all attempts, including the current one."""
        return Effect.worst([self.effect_under_way, *(attempt.effect for attempt in self.attempts)])

    # --- attempts

    def begin_attempt(self, call: Activity) -> Mapping[str, str]:
        """Notify the instruments of an attempt, and return the headers that they add to it."""
        self.attempt_activity = call.attempt(len(self.attempts) + 1).begin()
        return self.attempt_activity.headers

    def begin_sending(self, stage: Stage = "send") -> None:
        """Note that the request is handed over or written now, or raise if its options say that it may not be."""
        if self.options.may_send is not None and not self.options.may_send():
            self.stage = "connect"  # nothing was sent
            raise ConnectionError("the request may not be sent any more")
        self.stage: Stage = stage  # with its type again, which checkers would infer otherwise

    def record_result(self, result: TransportResult, outcome: object) -> Attempt:
        """Record the result of an attempt, whose `outcome` is its value or its error."""
        activity = self.attempt_activity
        assert self.credentials is not None  # noqa: S101 -- only signed requests have results
        if self.credentials not in self.used:
            self.used += (self.credentials,)
        if not isinstance(result, RawResponse):
            return self.record(outcome, result.effect)
        if activity is not None:
            activity.http_version = self.http_version
            activity.response_headers = self.credentials.redact_headers(result.headers, *self.used)
        return self.record(outcome, status_of(result.status).effect, result.status)

    def record(self, outcome: object, effect: Effect, status: int | None = None, started: float | None = None) -> Attempt:
        """Add an attempt, which began at `started` if that is given, to the history and end it for instruments."""
        seconds = time.perf_counter() - (self.started if started is None else started)
        raised = outcome if isinstance(outcome, BaseException) else None
        error = self.last_error = raised if isinstance(raised, BoardClientError) else None
        attempt = Attempt(
            number=len(self.attempts) + 1,
            started_at=datetime.fromtimestamp(time.time() - seconds, UTC),
            seconds=seconds,
            effect=effect,
            why="success" if raised is None else "the call was cancelled" if error is None else error.message,
            status=status,
        )
        self.attempts += (attempt,)
        self.notes_success, self.stage = True, "idle"
        activity, self.attempt_activity = self.attempt_activity, None
        if activity is not None:
            _end_attempt(activity, attempt, raised)
        return attempt

    def record_pause(self, seconds: float) -> None:
        *before, last = self.attempts
        self.attempts = (*before, attrs.evolve(last, pause_seconds=seconds))

    # --- ending early

    def interrupt(self, reason: InterruptionReason) -> None:
        """End the call early by cancelling its task, unless it is being ended already."""
        if self.interruption is None:
            self.may_continue = False
            self.notes_success = True
            self.deadline = math.inf
            self.interruption = reason
            self._cancel()

    def _cancel(self) -> None:
        """Cancel the task, and again every `INSIST_SECONDS`: application code may swallow a cancellation, or hang."""
        self.cancellations += 1
        self.next_cancellation = self.task.get_loop().call_later(INSIST_SECONDS, self._cancel)
        self.task.cancel()

    def is_cancelled(self) -> bool:
        return self.task.cancelling() > self.cancelled_before

    def withdraw(self) -> None:
        """End the call if its current attempt is neither sent nor queued for writing."""
        if self.effect_under_way is Effect.NOT_SENT and self.stage != "write":
            self.interrupt("withdrawn")

    def end(self, host: str, raised: BaseException | None = None) -> BoardClientError | None:
        """Record the attempt in flight, and return the error of an interrupted call, None if `raised` ended it."""
        error = None
        # The cancellations of the call are taken back. If the task was cancelled by others as well, theirs counts: the caller
        # wants the task to end, and would not if it got an error in its place.
        if self.interruption is not None and self.next_cancellation is not None:
            self.next_cancellation.cancel()
            for _ in range(self.cancellations):  # those of others remain
                self.task.uncancel()
            if not self.is_cancelled():
                error = self._error_of(self.interruption, host)
        if self.stage != "idle":
            self.record(error or raised or asyncio.CancelledError(), self.effect_under_way)
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
            return self.waits_for if isinstance(self.waits_for, str) else self.waits_for()
        if self.stage == "idle":
            return ""
        return f"a connection to {host}" if self.stage == "connect" else f"the response of {host}"

    def release(self) -> None:
        """Drop the credentials and the error, since frames of exceptions and readers of asyncio may keep the context."""
        self.credentials, self.used, self.last_error = None, (), None


def _end_attempt(activity: Activity, attempt: Attempt, error: BaseException | None) -> None:
    """End the activity of an attempt, whose call takes over status, headers and the worst effect."""
    call = activity.parent
    assert call is not None  # noqa: S101 -- an attempt is a part of its call
    activity.status, activity.effect = attempt.status, attempt.effect
    activity.why, activity.seconds = attempt.why, attempt.seconds
    call.number, call.status, call.response_headers = activity.number, attempt.status, activity.response_headers
    call.effect = attempt.effect if attempt.effect is Effect.DONE else Effect.worst([call.effect, attempt.effect])
    activity.end(error)


_OUTSIDE: Final = "a session must be used within an asyncio task, such as that of asyncio.run(main())"
_all: Final[weakref.WeakSet[InFlightCalls]] = weakref.WeakSet()


def _after_fork() -> None:  # pragma: no cover -- it runs in children, which tests/service/test_session_lifetime.py forks
    """Have the next call of each session check its process. A fork that bypasses Python's hooks does not call this."""
    for calls in _all:
        calls._open_on = None


if hasattr(os, "register_at_fork"):  # pragma: no branch -- Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


def _line_of(request: Request[Any] | None) -> str:
    """Return the method and the path of a request, or of a form (None), whose URL errors do not show."""
    return "POST" if request is None else request.line


class InFlightCalls:
    """The calls in flight of a session and its views, in one event loop and process."""

    def __init__(self) -> None:
        self._under_way: set[CallContext] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open_on: asyncio.AbstractEventLoop | None = None
        """The loop on which calls are accepted. None before the first call, after closing and in a forked process."""
        self._process = 0
        """The process of the first call."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = math.inf
        self._drained: asyncio.Event | None = None
        self.is_closed: bool = False
        _all.add(self)

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, request: Request[Any] | None, seconds: float | None, options: CallOptions | None = None) -> CallContext:
        """Register a call of the current task, with `seconds` until its deadline, or raise if the session can't be used here."""
        try:
            loop = get_running_loop()
        except RuntimeError:
            raise RuntimeError(_OUTSIDE) from None
        task = current_task(loop)
        if task is None:
            raise RuntimeError(_OUTSIDE)
        if loop is not self._open_on:
            self._bind(loop, request)
        now = loop.time()
        context = CallContext(request, task, now, seconds, options or _NO_OPTIONS, task.cancelling())
        context.order = context.options.order
        if seconds is not None:
            deadline = context.deadline = now + seconds
            if deadline < self._wake_at:
                self._schedule(deadline)
        self._under_way.add(context)
        return context

    def withdraw(self, options: Collection[CallOptions]) -> None:
        for context in self._under_way:
            if context.options in options:
                context.withdraw()

    def suspend(self, context: CallContext) -> None:
        """Suspend the deadline of a call, if it is one of a bulk run or a map."""
        if context.options.is_of_run or context.paced is not None:
            context.seconds_left = context.deadline - context.task.get_loop().time()
            context.deadline = math.inf

    def resume(self, context: CallContext) -> None:
        """Resume the deadline of a suspended call, unless the call is being ended."""
        if context.deadline < math.inf or context.seconds is None or context.interruption is not None:
            return
        context.deadline = context.task.get_loop().time() + context.seconds_left
        if context.deadline < self._wake_at:
            self._schedule(context.deadline)

    def end(self, context: CallContext) -> None:
        self._under_way.discard(context)
        if self._drained is not None and not self._under_way:
            self._drained.set()

    def _bind(self, loop: asyncio.AbstractEventLoop, request: Request[Any] | None) -> None:
        """Bind the session to the loop and process of its first call, or raise."""
        if self.is_closed:
            raise SessionClosedError(f"{_line_of(request)}: the session is closed")
        # A child shares the sockets of its parent: both would read the responses of one connection.
        if self._loop is not None and self._process != os.getpid():
            raise RuntimeError("this AsyncSession was used before the process forked: build one in each process")
        if self._loop is not None:
            raise RuntimeError("this AsyncSession belongs to another event loop: build one for each loop")
        self._loop = self._open_on = loop
        self._process = os.getpid()

    @property
    def is_on_own_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop() and self._process == os.getpid()

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
        """End all calls but those of the current task, and return the event that is set once they have ended, if any."""
        self.is_closed = True
        self._open_on = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None or not self.is_on_own_loop:
            return None
        # Three cases: nothing is in flight, other tasks are and can be waited for, or the closing task itself is within a call,
        # which would wait for its own end.
        mine = asyncio.current_task()
        others = [context for context in self._under_way if context.task is not mine]
        for context in self._under_way:
            context.may_continue = False
        for context in others:
            context.interrupt("closed")
        if not others or len(others) < len(self._under_way):
            return None
        self._drained = self._drained or asyncio.Event()
        return self._drained
