"""The faults of the embedded service, and the plan of which calls get them.

To commit means to carry out what a request asks for. A fault can be applied before or after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import ClassVar, Protocol, TypeAlias

import attrs

from boardclient.testing._http import Stage
from boardclient.testing._rules import OPERATIONS, UNKNOWN

__all__ = [
    "DelayAnswer",
    "DelayCommit",
    "Drop",
    "Fault",
    "Faults",
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


class Fault(Protocol):
    """What happens to a call in place of its response. Applications can write their own."""

    async def play(self, stage: Stage) -> None:
        """Send a response through the stage, or do not."""
        ...


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})


@attrs.frozen
class Status:
    """Respond with a status.

    Args:
        code: The status, from 200 to 999.
        headers: The headers. None by default.
        body: The body, b"" by default.
        commit: Whether to commit first. False by default.

    Raises:
        TypeError, ValueError: `code` is no whole number, or no status of a response.
    """

    code: int
    headers: dict[str, str] = attrs.field(default=None, converter=_headers)
    body: bytes = attrs.field(default=b"", repr=False)
    commit: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.code, int):
            raise TypeError(f"a status is a whole number, not {self.code!r}")
        if not 200 <= self.code <= 999:  # below are interim ones, after which clients wait for the response
            raise ValueError(f"a response has a status from 200 to 999, not {self.code}")

    async def play(self, stage: Stage) -> None:
        """Commit if `commit` is set, and send the status."""
        if self.commit:
            stage.commit()
        await stage.reply(self.code, self.body, self.headers)


@attrs.frozen(kw_only=True)
class Drop:
    """Close the connection without a response.

    Args:
        commit: Whether to commit first. False by default.
        reset: Whether to close it with a TCP RST. False by default.
    """

    commit: bool = False
    reset: bool = False

    async def play(self, stage: Stage) -> None:
        """Commit if `commit` is set, and close the connection."""
        if self.commit:
            stage.commit()
        stage.abort(reset=self.reset)


@attrs.frozen
class DelayAnswer:
    """Commit at once, and respond after a delay in seconds."""

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Commit, wait, and send the response."""
        stage.commit()
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen
class DelayCommit:
    """Commit and respond after a delay in seconds.

    It commits even if the client has closed the connection by then.
    """

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Wait, commit, and send the response."""
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen(kw_only=True)
class Hang:
    """Do not respond.

    Args:
        commit: Whether to commit first. False by default.
        seconds: The seconds after which to close the connection. None, the default, means when the service closes.
    """

    commit: bool = False
    seconds: float | None = None

    async def play(self, stage: Stage) -> None:
        """Commit if `commit` is set, then wait until the service closes or time is up."""
        if self.commit:
            stage.commit()
        if self.seconds is None:
            await stage.hang()
        else:
            await stage.sleep(self.seconds)
            stage.abort()


@attrs.frozen
class Truncated:
    """Commit, send half of the body, and close the connection."""

    async def play(self, stage: Stage) -> None:
        """Commit, announce the whole body, send half of it, and close the connection."""
        response = stage.commit()
        body, headers = stage.encode(response)
        await stage.begin(response.status, len(body), headers)
        await stage.write(body[: len(body) // 2])
        stage.close()


@attrs.frozen
class SlowBody:
    """Commit, and send the body byte by byte.

    Args:
        seconds_per_byte: The seconds before each byte.
    """

    seconds_per_byte: float

    async def play(self, stage: Stage) -> None:
        """Commit, then send the body byte by byte."""
        response = stage.commit()
        body, headers = stage.encode(response)
        await stage.begin(response.status, len(body), headers)
        for index in range(len(body)):
            await stage.sleep(self.seconds_per_byte)
            await stage.write(body[index : index + 1])


@attrs.frozen
class RateLimit:
    """Refuse calls beyond a rate with 429: a token bucket, for `Faults.rate_limit`.

    Args:
        per_second: How many calls it allows per second.
        burst: How many calls it allows at once. By default those of a second, and at least 1.
        retry_after: The value of the `Retry-After` header, sent unchanged. None, the default, means no header.
    """

    per_second: float
    burst: int = attrs.field(default=attrs.Factory(lambda self: max(1, int(self.per_second)), takes_self=True))
    retry_after: str | float | None = None

    async def play(self, stage: Stage) -> None:
        """Refuse the call with 429."""
        headers = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after}"}
        await stage.reply(429, b"", headers)


def foreign_body(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    *,
    commit: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Status:
    """Return a fault that responds with another body.

    Args:
        body: The body.
        content_type: The content type. `application/json` by default.
        status: The status. 200 by default.
        commit: Whether to commit first. True by default.
        headers: Other headers, such as `Content-Encoding`. None by default.
    """
    return Status(status, {"Content-Type": content_type, **(headers or {})}, body, commit=commit)


def redirect(location: str, code: int = 307) -> Status:
    """Return a fault that responds with a redirect and does not commit.

    Args:
        location: The `Location` header.
        code: The status. 307 by default.
    """
    return Status(code, {"Location": location})


status: TypeAlias = Status
drop: TypeAlias = Drop
delay_answer: TypeAlias = DelayAnswer
delay_commit: TypeAlias = DelayCommit
hang: TypeAlias = Hang
truncated: TypeAlias = Truncated
slow_body: TypeAlias = SlowBody
rate_limit: TypeAlias = RateLimit


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

    status: ClassVar[type[Status]] = Status
    drop: ClassVar[type[Drop]] = Drop
    delay_answer: ClassVar[type[DelayAnswer]] = DelayAnswer
    delay_commit: ClassVar[type[DelayCommit]] = DelayCommit
    hang: ClassVar[type[Hang]] = Hang
    truncated: ClassVar[type[Truncated]] = Truncated
    foreign_body: ClassVar[Callable[..., Status]] = staticmethod(foreign_body)
    slow_body: ClassVar[type[SlowBody]] = SlowBody
    redirect: ClassVar[Callable[..., Status]] = staticmethod(redirect)

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
            ValueError: the service has no such operation, or `call` or `times` is less than 1.
            TypeError: `call` or `times` is no whole number, or `fault` is no fault but what makes one.
        """
        if isinstance(fault, type) or not callable(getattr(fault, "play", None)):
            raise TypeError(f"expected a fault such as faults.drop(), not {fault!r}")
        if operation is not None and operation not in OPERATIONS | {UNKNOWN}:
            raise ValueError(f"{operation!r} is not an operation of the service: use one of {', '.join(sorted(OPERATIONS))}")
        calls = call if call is None or isinstance(call, range) else frozenset({call} if isinstance(call, int | str) else call)
        for number in (1 if times is None else times, *(calls[:1] if isinstance(calls, range) else calls or ())):
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"call and times must be whole numbers, not {number!r}")
            if number < 1:
                raise ValueError(f"call and times count from 1: with {number} no call gets the fault")
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
