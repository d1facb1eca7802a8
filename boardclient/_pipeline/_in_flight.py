"""The calls under way: their deadlines, their histories, and their end when the session closes.

State changes here are synchronous. One timer per session looks after all deadlines (half a microsecond per call, where a timer
per call costs five to nine): it interrupts a call by cancelling its task, and the call turns that into the error it stands for.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from datetime import UTC, datetime

import attrs

from boardclient._pipeline._options import CallOptions
from boardclient._transport import Progress
from boardclient.errors import Attempt, BoardClientError, DeadlineError, Effect, SessionClosedError


class CallContext(Progress):
    """One call under way, from its first attempt to its last. Owned by the call, known to its session's `InFlightCalls`.

    What few calls ever change is the class's: a context is made for each call.
    """

    left = math.inf
    """The seconds left when the deadline was last made to stand still."""
    last_error: BoardClientError | None = None
    renewed = False
    started = 0.0
    """When the attempt under way began, on `time.time`."""
    _interruption: type[DeadlineError | SessionClosedError] | None = None

    def __init__(
        self,
        line: str,
        task: asyncio.Task[object],
        loop: asyncio.AbstractEventLoop,
        seconds: float | None,
        options: CallOptions | None,
    ) -> None:
        self.line = line
        self.options = options
        """What it brings along as part of a bulk run."""
        self.task = task
        self.loop = loop
        self.deadline = math.inf if seconds is None else loop.time() + seconds
        self.attempts: list[Attempt] = []
        self._seconds = seconds
        self._cancelling = task.cancelling()

    @property
    def is_interrupted(self) -> bool:
        """Tell whether the call is being ended."""
        return self._interruption is not None

    @property
    def remaining_seconds(self) -> float | None:
        """Return the seconds left until the deadline, None without one."""
        return None if self._seconds is None else self.deadline - self.loop.time()

    @property
    def effect(self) -> Effect:
        """Return the worst of what the attempts may have done, the one under way included."""
        return Effect.worst([self.effect_under_way, *(attempt.effect for attempt in self.attempts)])

    def interrupt(self, interruption: type[DeadlineError | SessionClosedError]) -> None:
        """End the call by cancelling its task, once."""
        if self._interruption is None:
            self._interruption = interruption
            self.deadline = math.inf
            self.task.cancel()

    def interruption_error(self) -> BoardClientError | None:
        """Return the error of an interrupted call, None where a cancellation is the caller's own.

        An attempt that was under way goes into the history with it.
        """
        if self._interruption is None or self.task.uncancel() > self._cancelling:
            return None
        error: BoardClientError
        if self._interruption is SessionClosedError:
            error = SessionClosedError(f"{self.line}: the session was closed during the call", self.effect)
        else:
            error = DeadlineError(f"{self.line}: the deadline of {self._seconds:g} s passed", "deadline", self.line, self.effect)
        if self.stage != "idle":
            self.record(self.started, error, None, self.effect_under_way)
        error.attempts = tuple(self.attempts)
        return error

    def record(self, started: float, outcome: object, status: int | None, effect: Effect) -> Attempt:
        """Add an attempt to the history; `started` is on `time.time`."""
        self.last_error = outcome if isinstance(outcome, BoardClientError) else None
        why = "success" if self.last_error is None else self.last_error.message
        attempt = Attempt(
            number=len(self.attempts) + 1,
            started_at=utc(started),
            seconds=max(0.0, time.time() - started),
            effect=effect,
            why=why,
            status=status,
        )
        self.attempts.append(attempt)
        return attempt

    def note_pause(self, seconds: float) -> None:
        """Write the pause that follows the last attempt into the history."""
        self.attempts[-1] = attrs.evolve(self.attempts[-1], pause_seconds=seconds)


def utc(seconds: float) -> datetime:
    """Return seconds since the epoch as an aware date-time."""
    return datetime.fromtimestamp(seconds, UTC)


_process = object()
"""Stands for this process, and is another after a fork that Python is told of, as it is of its own; asking the system for the
number of the process costs each call a sixth of a microsecond."""


def _become_another_process() -> None:
    global _process
    _process = object()


if hasattr(os, "register_at_fork"):  # pragma: no branch -- Windows has no fork
    os.register_at_fork(after_in_child=_become_another_process)


class InFlightCalls:
    """The calls under way of a session and all its views, on the one loop and in the one process where it was first used."""

    def __init__(self) -> None:
        self._under_way: set[CallContext] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = _process
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = math.inf
        self._drained: asyncio.Event | None = None
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, line: str, seconds: float | None, options: CallOptions | None = None) -> CallContext:
        """Register a call of the running task.

        Raises:
            SessionClosedError: the session was closed.
            RuntimeError: this is another loop or process than the session's own.
        """
        if self.is_closed:
            raise SessionClosedError(f"{line}: the session is closed")
        loop = asyncio.get_running_loop()
        if loop is not self._loop or _process is not self._process:
            self._bind(loop)
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a session is used from within an asyncio task")
        context = CallContext(line, task, loop, seconds, options)
        self._under_way.add(context)
        if context.deadline < self._wake_at:
            self._schedule(context.deadline)
        return context

    def suspend(self, context: CallContext) -> None:
        """Let the deadline of a call stand still."""
        context.left = context.deadline - context.loop.time()
        context.deadline = math.inf

    def resume(self, context: CallContext) -> None:
        """Let the deadline of a suspended call go on, unless the call is being ended."""
        if context.is_interrupted:
            return
        context.deadline = context.loop.time() + context.left
        if context.deadline < self._wake_at:
            self._schedule(context.deadline)

    def end(self, context: CallContext) -> None:
        """Forget a call that is over."""
        self._under_way.discard(context)
        if self._drained is not None and not self._under_way:
            self._drained.set()

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Settle where the session is used, at its first call."""
        if self._loop is None:
            self._loop, self._process = loop, _process
        elif self._process is not _process:
            raise RuntimeError("this AsyncSession was used before the process forked: build one in each process")
        else:
            raise RuntimeError("this AsyncSession belongs to another event loop: build one for each loop")

    @property
    def is_at_home(self) -> bool:
        """Tell whether the running loop and process are those that the session was used on."""
        return self._loop is asyncio.get_running_loop() and self._process is _process

    def _schedule(self, moment: float) -> None:
        assert self._loop is not None  # noqa: S101 -- bound by begin
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(moment, self._sweep)
        self._wake_at = moment

    def _sweep(self) -> None:
        """Interrupt every call whose deadline has passed, and sleep until the next one."""
        assert self._loop is not None  # noqa: S101 -- bound by begin
        now = self._loop.time()
        self._timer, self._wake_at = None, math.inf
        for context in self._under_way:
            if context.deadline <= now:
                context.interrupt(DeadlineError)
        following = min((context.deadline for context in self._under_way), default=math.inf)
        if following < math.inf:
            self._schedule(following)

    def close(self) -> asyncio.Event | None:
        """End every call under way but those of the running task; return what to wait for until they are over."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None or not self.is_at_home:
            return None
        mine = asyncio.current_task()
        others = [context for context in self._under_way if context.task is not mine]
        for context in others:
            context.interrupt(SessionClosedError)
        if not others or len(others) < len(self._under_way):
            return None
        self._drained = self._drained or asyncio.Event()
        return self._drained
