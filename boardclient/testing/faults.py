"""Faults as values, and the plan that decides which call meets which fault. A fault acts on a `Stage`, without sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol

import attrs

from boardclient.testing._answers import Answer
from boardclient.testing._rules import OPERATIONS, UNKNOWN


class Stage(Protocol):
    """One request that waits for its answer, as a fault sees it."""

    def commit(self) -> Answer:
        """Let the service do what the request asks for; a second call changes nothing."""
        ...

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        ...

    async def reply_answer(self) -> None:
        """Commit, and send what the service says."""
        ...

    async def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer whose body has `length` bytes."""
        ...

    async def write(self, part: bytes) -> None:
        """Send a part of the body of an answer that was begun."""
        ...

    def close(self) -> None:
        """Close the connection after what was sent."""
        ...

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once; with `reset` by a TCP reset."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the service's own sleep."""
        ...

    async def hang(self) -> None:
        """Wait until the service closes."""
        ...

    def encode(self, answer: Answer) -> tuple[bytes, dict[str, str]]:
        """Give the bytes and the headers of an answer."""
        ...


class Fault(Protocol):
    """What happens to a call in place of its answer. An application's own faults fit too."""

    async def play(self, stage: Stage) -> None:
        """Answer, or do not."""
        ...


@attrs.frozen(kw_only=True)
class Status:
    """A status of the test's choice."""

    code: int
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    commit: bool = False

    async def play(self, stage: Stage) -> None:
        """Send the status, after the commit where there is one."""
        if self.commit:
            stage.commit()
        await stage.reply(self.code, self.body, self.headers)


@attrs.frozen(kw_only=True)
class Drop:
    """A connection that is closed without an answer."""

    commit: bool = False
    reset: bool = False

    async def play(self, stage: Stage) -> None:
        """Close the connection, after the commit where there is one."""
        if self.commit:
            stage.commit()
        stage.abort(reset=self.reset)


@attrs.frozen(kw_only=True)
class DelayAnswer:
    """An answer that comes later than its commit."""

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Commit, wait, answer."""
        stage.commit()
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen(kw_only=True)
class DelayCommit:
    """A commit that comes later, whether or not the client is still there."""

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Wait, commit, answer."""
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen(kw_only=True)
class Hang:
    """An answer that never comes.

    After `seconds`, where they are given, the connection is closed instead.
    """

    commit: bool = False
    seconds: float | None = None

    async def play(self, stage: Stage) -> None:
        """Commit where asked for, then wait until the service closes or the time is over."""
        if self.commit:
            stage.commit()
        if self.seconds is None:
            await stage.hang()
        else:
            await stage.sleep(self.seconds)
            stage.abort()


@attrs.frozen(kw_only=True)
class Truncated:
    """An answer that ends in the middle of its body."""

    body: bytes | None = None

    async def play(self, stage: Stage) -> None:
        """Commit, announce the whole body, send half of it, close."""
        answer = stage.commit()
        body, headers = stage.encode(answer)
        body = body if self.body is None else self.body
        await stage.begin(answer.status, len(body), headers)
        await stage.write(body[: len(body) // 2])
        stage.close()


@attrs.frozen(kw_only=True)
class ForeignBody:
    """An answer with bytes of the test's choice."""

    body: bytes = attrs.field(repr=False)
    content_type: str = "application/json"
    status: int = 200
    commit: bool = True
    headers: Mapping[str, str] = attrs.field(factory=dict)

    async def play(self, stage: Stage) -> None:
        """Send the bytes, after the commit where there is one."""
        if self.commit:
            stage.commit()
        await stage.reply(self.status, self.body, {"Content-Type": self.content_type, **self.headers})


@attrs.frozen(kw_only=True)
class SlowBody:
    """An answer whose body trickles."""

    seconds_per_byte: float

    async def play(self, stage: Stage) -> None:
        """Commit, then send the body byte by byte."""
        answer = stage.commit()
        body, headers = stage.encode(answer)
        await stage.begin(answer.status, len(body), headers)
        for index in range(len(body)):
            await stage.sleep(self.seconds_per_byte)
            await stage.write(body[index : index + 1])


@attrs.frozen(kw_only=True)
class RateLimit:
    """A limit that the service enforces with 429 and announces nowhere.

    `retry_after` is sent as it is.
    """

    per_second: float
    burst: int = 1
    retry_after: str | float | None = None

    async def play(self, stage: Stage) -> None:
        """Refuse the call."""
        headers = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after}"}
        await stage.reply(429, b"", headers)


def status(code: int, headers: Mapping[str, str] | None = None, body: bytes = b"", *, commit: bool = False) -> Status:
    """Answer with a status; with `commit` after having done what was asked."""
    return Status(code=code, headers=dict(headers or {}), body=body, commit=commit)


def drop(*, commit: bool = False, reset: bool = False) -> Drop:
    """Close the connection without an answer, before or after the commit."""
    return Drop(commit=commit, reset=reset)


def delay_answer(seconds: float) -> DelayAnswer:
    """Commit at once, and answer later."""
    return DelayAnswer(seconds=seconds)


def delay_commit(seconds: float) -> DelayCommit:
    """Commit and answer later, even when the client is gone by then."""
    return DelayCommit(seconds=seconds)


def hang(*, commit: bool = False, seconds: float | None = None) -> Hang:
    """Never answer.

    Close the connection after `seconds`, by default when the service closes.
    """
    return Hang(commit=commit, seconds=seconds)


def truncated(body: bytes | None = None) -> Truncated:
    """Commit, then send half of the announced body and close."""
    return Truncated(body=body)


def foreign_body(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    *,
    commit: bool = True,
    headers: Mapping[str, str] | None = None,
) -> ForeignBody:
    """Send these bytes in place of the answer.

    `headers` may say that they are packed.
    """
    return ForeignBody(body=body, content_type=content_type, status=status, commit=commit, headers=dict(headers or {}))


def slow_body(seconds_per_byte: float) -> SlowBody:
    """Commit, then send the body byte by byte."""
    return SlowBody(seconds_per_byte=seconds_per_byte)


def redirect(location: str, code: int = 307) -> Status:
    """Point to another address, and do nothing."""
    return Status(code=code, headers={"Location": location})


def rate_limit(per_second: float, burst: int = 1, retry_after: str | float | None = None) -> RateLimit:
    """Describe a limit for `Faults.rate_limit`."""
    return RateLimit(per_second=per_second, burst=burst, retry_after=retry_after)


@attrs.define(kw_only=True, eq=False)
class Planned:
    """One entry of the plan; `hits` counts the calls that met it."""

    fault: Fault
    operation: str | None
    calls: Container[int] | None
    times: int | None
    hits: int = 0

    def fits(self, operation: str, number: int) -> bool:
        """Return whether a call meets the fault."""
        if self.times is not None and self.hits >= self.times:
            return False
        return self.operation in (None, operation) and (self.calls is None or number in self.calls)


@attrs.define(eq=False)
class Faults:
    """The plan of a service: which call meets which fault. Owned by the service; the first entry that fits a call is the one."""

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
        """Let calls meet a fault.

        Those of one operation or of all, of these numbers or of all, at most `times` of them.

        Calls are counted per operation, from 1; with `operation` None, `call=1` is the first call of each operation.

        Raises:
            ValueError: the service has no such operation.
        """
        if operation is not None and operation not in OPERATIONS | {UNKNOWN}:
            raise ValueError(f"{operation!r} is no operation of the service; known are {', '.join(sorted(OPERATIONS))}")
        calls = call if call is None or isinstance(call, range) else frozenset({call} if isinstance(call, int) else call)
        planned = Planned(fault=fault, operation=operation, calls=calls, times=times)
        self.planned.append(planned)
        return planned

    def remove(self, planned: Planned) -> None:
        """Take one entry off the plan."""
        self.planned.remove(planned)

    def clear(self) -> None:
        """Forget the plan and the limit."""
        self.planned.clear()
        self._limit = None

    @property
    def rate_limit(self) -> RateLimit | None:
        """The limit that the service enforces; setting it fills the bucket."""
        return self._limit

    @rate_limit.setter
    def rate_limit(self, limit: RateLimit | None) -> None:
        self._limit = limit
        self._level = 0.0 if limit is None else float(limit.burst)
        self._filled_at = self.clock()

    def meet(self, operation: str, number: int) -> Fault | None:
        """Return the fault that a call meets, a planned one or the limit, and count it."""
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
