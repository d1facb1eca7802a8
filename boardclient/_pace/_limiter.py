"""The protocols of limiters. `Pace`, a fixed concurrency and any aiolimiter fit."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Limiter(AbstractAsyncContextManager[object, "bool | None"], Protocol):
    """An async context manager that is entered around each attempt. `aiolimiter.AsyncLimiter` fits."""


class ReportingLimiter(Limiter, Protocol):
    """A limiter that also gets each result, within its block and from the same task."""

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> object:
        """Take the result of the attempt.

        `status` is None where no response came. `retry_after` is in seconds, None where the service named none. `seconds` is
        how long the attempt took.
        """
        ...
