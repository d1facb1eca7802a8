"""What stands around code that may do anything: an application's functions and limiters, and waits that must not be left.

It may raise, hang, swallow a cancellation or return anything. A function that is notified is `guarded`, one that returns
something is `supplied`, and what must be completed runs in a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import attrs

from boardclient.errors import ConsentRequired, CredentialError, SessionClosedError

T = TypeVar("T")

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
"""Makes a task and owns it, as `Exchange.spawn` does."""

SUPPLIED_SECONDS: Final = 30.0
"""How long a step at a store, or `parse_token`, may take."""
_logger: Final = logging.getLogger("boardclient")


def check_notified(function: object, name: str) -> None:
    """Check a function of an application that is called and not awaited. Errors call it `name`.

    Raises:
        TypeError: it can't be called, or calling it only makes a coroutine or a generator, which nothing would run.
    """
    if not callable(function):
        raise TypeError(f"{name} must be callable")
    for one in (function, type(function).__call__):  # of an object, its class's method is called
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one):
            raise TypeError(f"{name} must be a plain function: it is called, and what it returns is not awaited or iterated")


def log_failure(what: str) -> None:
    """Log the exception being handled, with the name of the code that raised it."""
    _logger.exception("%s failed", what)


def guarded(what: str, function: Callable[..., T], *arguments: object) -> T | None:
    """Call a function of an application and return its value, or log what it raises and return None."""
    try:
        return function(*arguments)
    except (Exception, asyncio.CancelledError):  # a plain function can't be cancelled, so the function itself raised this
        log_failure(what)
    return None


class GuardedLimiter:
    """Wraps an application's limiter, and logs what it raises on leaving and in its `report`."""

    def __init__(self, limiter: AbstractAsyncContextManager[object, bool | None]) -> None:
        if not hasattr(type(limiter), "__aenter__"):
            raise TypeError(f"limiter must be an async context manager, such as Pace(), not {type(limiter).__name__}")
        self._limiter = limiter
        self._report = getattr(limiter, "report", None)
        if self._report is not None:
            check_notified(self._report, "a limiter's report")

    @property
    def held_seconds(self) -> float | None:
        """For how long refusals hold all attempts, None if they do not, or the limiter is no `Pace`."""
        seconds = guarded("a limiter's held_seconds", getattr, self._limiter, "held_seconds", None)
        # Another limiter may use the name for something else.
        return seconds if isinstance(seconds, float) else None

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        if self._report is not None:
            guarded("a limiter's report", self._report, status, retry_after, seconds)

    async def __aenter__(self) -> None:
        # On the class, as `async with` looks it up: an object may have an attribute of that name.
        await type(self._limiter).__aenter__(self._limiter)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The return value is ignored: True would swallow a cancellation. The frames are removed, which hold the signed request.
        task = cast("asyncio.Task[object]", asyncio.current_task())  # a call always runs in a task
        cancelling = task.cancelling()
        try:
            await type(self._limiter).__aexit__(self._limiter, exc_type, exc and exc.with_traceback(None), None)
        except asyncio.CancelledError:
            if task.cancelling() > cancelling:
                raise
            log_failure("leaving a limiter")  # the limiter raised it: this task was not cancelled meanwhile
        except Exception:
            log_failure("leaving a limiter")


class Overtaken(Exception):  # noqa: N818 -- it is raised to end a wait, and no failure
    """The task that a guarded call was to end with has ended first."""


@attrs.frozen
class Outcome(Generic[T]):
    """What a function returned or raised."""

    # asyncio prints results of tasks in debug mode, and this one may be a token.
    value: T | None = attrs.field(default=None, repr=False)
    error: BaseException | None = attrs.field(default=None, repr=False)


async def _outcome_of(caught: type[BaseException], function: Callable[..., object], *arguments: object) -> Outcome[Any]:
    try:
        value = function(*arguments)
        return Outcome(await value if inspect.isawaitable(value) else value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except caught as error:
        return Outcome(error=error)


def begin_in_task(spawn: Spawn, function: Callable[..., Awaitable[T]], *arguments: object) -> asyncio.Task[Outcome[T]]:
    """Run a function in a task that `spawn` makes and owns. Any number of callers may wait for its `result_of`.

    Raises:
        SessionClosedError: the session is closed.
    """
    return spawn(_outcome_of(Exception, function, *arguments))


async def result_of(task: asyncio.Task[Outcome[T]]) -> T:
    """Wait for what `begin_in_task` runs, which continues if the caller is cancelled.

    Raises:
        SessionClosedError: the session was closed meanwhile.
    """
    await asyncio.wait({task})
    if task.cancelled():
        raise SessionClosedError("the session was closed during the exchange")
    outcome = task.result()
    if outcome.error is not None:
        raise outcome.error
    return cast("T", outcome.value)


async def run_in_task(spawn: Spawn, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run a function as `begin_in_task` does, and wait for its result.

    Raises:
        SessionClosedError: the session is closed, or was closed meanwhile.
    """
    return await result_of(begin_in_task(spawn, function, *arguments))


async def supplied(
    name: str,
    function: Callable[..., object],
    *arguments: object,
    is_valid: Callable[[Any], bool],
    expected: str,
    seconds: float = SUPPLIED_SECONDS,
    grace_seconds: float = 0.0,
    until: asyncio.Task[None] | None = None,
) -> Any:
    """Call an application's function, async or not, which may do anything.

    Raises:
        CredentialError: it raised, took longer than `seconds`, or returned something else than `expected`. What it raised is the
            cause. The message and cause of a `CredentialError` are kept.
        Overtaken: the task `until` ended first.
    """
    # BaseException: also a CancelledError that the application raised itself
    task = asyncio.create_task(_outcome_of(BaseException, function, *arguments))
    del arguments  # one may be a token, and the frame stays with an error
    try:
        await asyncio.wait({task, *([until] if until else [])}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=grace_seconds)
        raise
    finally:
        task.cancel()  # it is not waited for: it may ignore this
    # Four ends: another task was faster, it took too long, it raised, or it returned, perhaps something else than it should.
    if not task.done():
        if until is not None and until.done():
            raise Overtaken
        raise CredentialError(f"{name} did not return within {seconds:g} s")
    outcome = task.result()
    if outcome.error is not None:
        failure = _supplied_failure(name, outcome.error)
    elif is_valid(outcome.value):
        return outcome.value
    else:
        failure = CredentialError(f"{name} returned {type(outcome.value).__name__}, not {expected}")
    del outcome, task  # the value may be a token
    raise failure


def _supplied_failure(name: str, error: BaseException) -> CredentialError:
    if isinstance(error, ConsentRequired):
        return error
    is_told = isinstance(error, CredentialError)
    failure = CredentialError(str(error) if is_told else f"{name} raised {type(error).__name__}")
    failure.__cause__ = error.__cause__ if is_told else error
    return failure


async def wait_to_end(task: asyncio.Future[Any], *, cancels: bool = False) -> None:
    """Wait until a task or future is done, and raise its error. A cancellation of the caller is raised afterwards.

    With `cancels` it also cancels the task.
    """
    cancellation: asyncio.CancelledError | None = None
    # As often as it takes, since a caller may be cancelled again while it waits.
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
            if cancels:
                task.cancel()
    if cancellation is not None:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # retrieved, so that asyncio does not log it
        raise cancellation
    if not task.cancelled():  # before it began
        task.result()
