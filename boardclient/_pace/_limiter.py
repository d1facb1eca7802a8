"""What limits the attempts of a call: the protocols that `Pace`, a fixed concurrency and any aiolimiter fit."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Limiter(AbstractAsyncContextManager[object, "bool | None"], Protocol):
    """An async context manager that is entered around each attempt. `aiolimiter.AsyncLimiter` fits."""


class ReportingLimiter(Limiter, Protocol):
    """A limiter that also receives the result of each attempt, from within its block and by the same task."""

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> object:
        """Take the result of the attempt.

        `status` is None where no response came. `retry_after` is in seconds, None where the service named none. `seconds` is
        how long the attempt took.
        """
        ...
