"""Guarded calls of code that applications supply. Its errors are logged and do not change the result of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar, cast

from boardclient.events import Event, Observer

if TYPE_CHECKING:
    from boardclient._pace import Limiter

T = TypeVar("T")

_logger: Final = logging.getLogger("boardclient")


def log_failure(what: str) -> None:
    """Log the exception being handled. `what` names the code that raised it."""
    _logger.exception("%s failed", what)


def guarded(what: str, function: Callable[..., T], *arguments: object) -> T | None:
    """Call a function and return its value, or None if it raises. `what` is its name in the log."""
    try:
        return function(*arguments)
    except (Exception, asyncio.CancelledError):  # a plain function can't be cancelled, so the function itself raised this
        log_failure(what)
    return None


def notify_all(observers: Iterable[Observer], event: Event) -> None:
    """Pass an event to each observer."""
    for observer in observers:
        try:
            observer(event)
        except (Exception, asyncio.CancelledError):  # nothing cancels a task within a plain function
            log_failure("an observer")


class GuardedLimiter:
    """Wraps an application's limiter. Errors on leaving it and in its `report` are logged.

    Errors on entering it are raised to the caller, since nothing has been sent.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._report = getattr(limiter, "report", None)

    @property
    def is_idle(self) -> bool:
        """Whether attempts may skip the limiter now.

        They may while its `needs_every_result` is False.
        """
        return not getattr(self._limiter, "needs_every_result", True)

    @property
    def is_reporting(self) -> bool:
        """Whether the limiter has a `report` method."""
        return self._report is not None

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass the result of an attempt to the limiter's `report`, if it has one."""
        if self._report is not None:
            guarded("a limiter's report", self._report, status, retry_after, seconds)

    async def __aenter__(self) -> None:
        await type(self._limiter).__aenter__(self._limiter)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The return value is ignored: True would swallow a cancellation.
        task = cast("asyncio.Task[object]", asyncio.current_task())  # a call always runs in a task
        cancelling = task.cancelling()
        try:
            await type(self._limiter).__aexit__(self._limiter, exc_type, exc, traceback)
        except asyncio.CancelledError:
            if task.cancelling() > cancelling:
                raise
            log_failure("leaving a limiter")  # the limiter raised it: this task was not cancelled meanwhile
        except Exception:
            log_failure("leaving a limiter")
