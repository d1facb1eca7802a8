"""The faults of the embedded service, and the plan of which calls get them.

To commit means to carry out what a request asks for. A fault can be applied before or after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping

import attrs

from boardclient.testing._fault_kinds import (
    DelayAnswer,
    DelayCommit,
    Drop,
    Fault,
    ForeignBody,
    Hang,
    RateLimit,
    SlowBody,
    Stage,
    Status,
    Truncated,
)
from boardclient.testing._rules import OPERATIONS, UNKNOWN

__all__ = [
    "DelayAnswer",
    "DelayCommit",
    "Drop",
    "Fault",
    "Faults",
    "ForeignBody",
    "Hang",
    "Planned",
    "RateLimit",
    "SlowBody",
    "Stage",
    "Status",
    "Truncated",
    "delay_answer",
    "delay_commit",
    "drop",
    "foreign_body",
    "hang",
    "rate_limit",
    "redirect",
    "slow_body",
    "status",
    "truncated",
]


def status(code: int, headers: Mapping[str, str] | None = None, body: bytes = b"", *, commit: bool = False) -> Status:
    """Return a fault that responds with a status.

    Args:
        code: The status.
        headers: The headers. None by default.
        body: The body. Empty by default.
        commit: Whether to commit first. False by default.
    """
    return Status(code=code, headers=dict(headers or {}), body=body, commit=commit)


def drop(*, commit: bool = False, reset: bool = False) -> Drop:
    """Return a fault that closes the connection without a response.

    Args:
        commit: Whether to commit first. False by default.
        reset: Whether to close it with a TCP RST. False by default.
    """
    return Drop(commit=commit, reset=reset)


def delay_answer(seconds: float) -> DelayAnswer:
    """Return a fault that commits at once, and responds after a delay in seconds."""
    return DelayAnswer(seconds=seconds)


def delay_commit(seconds: float) -> DelayCommit:
    """Return a fault that commits and responds after a delay in seconds.

    It commits even if the client has closed the connection by then.
    """
    return DelayCommit(seconds=seconds)


def hang(*, commit: bool = False, seconds: float | None = None) -> Hang:
    """Return a fault that does not respond.

    Args:
        commit: Whether to commit first. False by default.
        seconds: The seconds after which to close the connection. None, the default, means when the service closes.
    """
    return Hang(commit=commit, seconds=seconds)


def truncated(body: bytes | None = None) -> Truncated:
    """Return a fault that commits, sends half of the body, and closes the connection.

    Args:
        body: The body. None, the default, means that of the response.
    """
    return Truncated(body=body)


def foreign_body(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    *,
    commit: bool = True,
    headers: Mapping[str, str] | None = None,
) -> ForeignBody:
    """Return a fault that responds with another body.

    Args:
        body: The body.
        content_type: The content type. `application/json` by default.
        status: The status. 200 by default.
        commit: Whether to commit first. True by default.
        headers: Other headers, such as `Content-Encoding`. None by default.
    """
    return ForeignBody(body=body, content_type=content_type, status=status, commit=commit, headers=dict(headers or {}))


def slow_body(seconds_per_byte: float) -> SlowBody:
    """Return a fault that commits, and sends the body byte by byte.

    Args:
        seconds_per_byte: The seconds before each byte.
    """
    return SlowBody(seconds_per_byte=seconds_per_byte)


def redirect(location: str, code: int = 307) -> Status:
    """Return a fault that responds with a redirect and does not commit.

    Args:
        location: The `Location` header.
        code: The status. 307 by default.
    """
    return Status(code=code, headers={"Location": location})


def rate_limit(per_second: float, burst: int = 1, retry_after: str | float | None = None) -> RateLimit:
    """Return a rate limit for `Faults.rate_limit`, a token bucket.

    Args:
        per_second: How many calls it allows per second.
        burst: How many calls it allows at once. 1 by default.
        retry_after: The value of the `Retry-After` header, sent unchanged. None, the default, means no header.
    """
    return RateLimit(per_second=per_second, burst=burst, retry_after=retry_after)


@attrs.define(kw_only=True, eq=False)
class Planned:
    """One entry of a plan. `hits` counts the calls that got the fault."""

    fault: Fault
    operation: str | None
    calls: Container[int] | None
    times: int | None
    hits: int = 0

    def fits(self, operation: str, number: int) -> bool:
        """Return True if a call gets the fault."""
        if self.times is not None and self.hits >= self.times:
            return False
        return self.operation in (None, operation) and (self.calls is None or number in self.calls)


@attrs.define(eq=False)
class Faults:
    """The plan of which calls get which faults. Owned by the service.

    A call gets the fault of the first entry that fits. If none fits, the rate limit applies.
    """

    clock: Callable[[], float] = time.monotonic
    planned: list[Planned] = attrs.field(init=False, factory=list)
    _limit: RateLimit | None = attrs.field(init=False, default=None)
    _level: float = attrs.field(init=False, default=0.0)
    _filled_at: float = attrs.field(init=False, default=0.0)

    status = staticmethod(status)
    drop = staticmethod(drop)
    delay_answer = staticmethod(delay_answer)
    delay_commit = staticmethod(delay_commit)
    hang = staticmethod(hang)
    truncated = staticmethod(truncated)
    foreign_body = staticmethod(foreign_body)
    slow_body = staticmethod(slow_body)
    redirect = staticmethod(redirect)

    def add(
        self,
        fault: Fault,
        operation: str | None = None,
        *,
        call: int | Iterable[int] | None = None,
        times: int | None = None,
    ) -> Planned:
        """Apply a fault to future calls, and return the entry of the plan.

        Args:
            fault: The fault, such as `faults.status(503)`.
            operation: The operation whose calls get it, such as "cards.create". None, the default, means all operations.
            call: The number, or numbers, of the calls that get it. Calls are counted for each operation, from 1. None, the
                default, means all calls.
            times: The largest number of calls that get it. None, the default, means any number.

        Raises:
            ValueError: the service has no such operation.
        """
        if operation is not None and operation not in OPERATIONS | {UNKNOWN}:
            raise ValueError(f"{operation!r} is not an operation of the service: use one of {', '.join(sorted(OPERATIONS))}")
        calls = call if call is None or isinstance(call, range) else frozenset({call} if isinstance(call, int) else call)
        planned = Planned(fault=fault, operation=operation, calls=calls, times=times)
        self.planned.append(planned)
        return planned

    def remove(self, planned: Planned) -> None:
        """Remove an entry from the plan.

        Raises:
            ValueError: it is not in the plan.
        """
        self.planned.remove(planned)

    def clear(self) -> None:
        """Remove all entries and the rate limit."""
        self.planned.clear()
        self._limit = None

    @property
    def rate_limit(self) -> RateLimit | None:
        """The rate limit that the service enforces, or None. Setting it fills the bucket."""
        return self._limit

    @rate_limit.setter
    def rate_limit(self, limit: RateLimit | None) -> None:
        self._limit = limit
        self._level = 0.0 if limit is None else float(limit.burst)
        self._filled_at = self.clock()

    def meet(self, operation: str, number: int) -> Fault | None:
        """Return the fault that a call gets, or None, and count the call."""
        for planned in self.planned:
            if planned.fits(operation, number):
                planned.hits += 1
                return planned.fault
        limit = self._limit
        if limit is None:
            return None
        now = self.clock()
        self._level = min(float(limit.burst), self._level + (now - self._filled_at) * limit.per_second)
        self._filled_at = now
        if self._level < 1.0:
            return limit
        self._level -= 1.0
        return None
