"""The protocols of limiters, and how long they wait."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

LONGEST_WAIT_SECONDS: Final = 300.0
"""The longest time that a `Retry-After` is waited for. A bulk run that is asked to wait longer ends."""


class Limiter(AbstractAsyncContextManager[object, "bool | None"], Protocol):
    """An asynchronous context manager that is entered around each attempt.

    `Pace` and `aiolimiter.AsyncLimiter` are limiters.
    """


class ReportingLimiter(Limiter, Protocol):
    """A limiter that also receives the result of each attempt.

    `report` is called inside the limiter's block, by the task that entered it.
    """

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> object:
        """Receive the result of an attempt.

        Args:
            status: The status of the response, or None without a response.
            retry_after: The seconds for which the service asked to wait, or None.
            seconds: The duration of the attempt in seconds.
        """
        ...
