"""Calls of what applications supply. What it raises is logged, and neither ends a call nor loses its result."""

from __future__ import annotations

import asyncio
import copy
import logging
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, TypeVar, cast

from boardclient._pace import Limiter
from boardclient.errors import CredentialError
from boardclient.events import Event, Observer

T = TypeVar("T")

_logger: Final = logging.getLogger("boardclient")
_raised: Final[weakref.WeakSet[CredentialError]] = weakref.WeakSet()
"""Errors of providers that a call has raised already."""


def log_failure(what: str) -> None:
    """Log the exception that is handled; `what` is the name of what raised it."""
    _logger.exception("%s failed", what)


def guarded(what: str, function: Callable[..., T], *arguments: object) -> T | None:
    """Return what the function returns, None where it raises. `what` is its name in the log."""
    try:
        return function(*arguments)
    except (Exception, asyncio.CancelledError):  # nothing cancels a task within a plain function
        log_failure(what)
    return None


def notify_all(observers: Iterable[Observer], event: Event) -> None:
    """Pass an event to every observer."""
    for observer in observers:
        guarded("an observer", observer, event)


def own_error(error: CredentialError) -> CredentialError:
    """Return a provider's error, or a copy where another call has it. Each call writes its own history into its error."""
    if error not in _raised:
        _raised.add(error)
        return error.with_traceback(None)
    try:
        copied = copy.copy(error)
        copied.message, copied.effect, copied.attempts = str(error), error.effect, ()
    except Exception:  # a subclass that can't be copied
        copied = CredentialError(f"the provider raised {type(error).__name__}")
    copied.__cause__ = error.__cause__
    return copied


class GuardedLimiter:
    """An application's limiter. Its errors at the end of a turn do not change the result.

    What entering raises is the caller's: without a turn nothing is sent.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._report = getattr(limiter, "report", None)

    @property
    def is_idle(self) -> bool:
        """Whether attempts can skip it now and need not report. The limiter says so by `needs_every_result`."""
        return not getattr(self._limiter, "needs_every_result", True)

    @property
    def is_reporting(self) -> bool:
        """Whether it receives the results of attempts."""
        return self._report is not None

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass on the result of an attempt."""
        if self._report is not None:
            guarded("a limiter's report", self._report, status, retry_after, seconds)

    async def __aenter__(self) -> None:
        await type(self._limiter).__aenter__(self._limiter)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A limiter that returns True would swallow a cancellation, and one that raises would replace the outcome.
        task = cast("asyncio.Task[object]", asyncio.current_task())  # a call runs in one
        cancelling = task.cancelling()
        try:
            await type(self._limiter).__aexit__(self._limiter, exc_type, exc, traceback)
        except asyncio.CancelledError:
            if task.cancelling() > cancelling:
                raise
            log_failure("leaving a limiter")  # it raises a cancellation that is not this task's
        except Exception:
            log_failure("leaving a limiter")
