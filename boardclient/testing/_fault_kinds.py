"""What a fault is, and the kinds that the embedded service knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from boardclient.testing._answers import Answer


class Stage(Protocol):
    """One request that waits for its response, as a fault sees it."""

    def commit(self) -> Answer:
        """Carry out the request, and return its response. Calling it again changes nothing."""
        ...

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response.

        Args:
            status: The HTTP status.
            body: The body, b"" by default.
            headers: Header fields. None (default): those that HTTP requires.
        """
        ...

    async def reply_answer(self) -> None:
        """Carry out the request, and send its response."""
        ...

    async def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response.

        Args:
            status: The HTTP status.
            length: The bytes of the body that follows, as `Content-Length` announces them.
            headers: Further header fields.
        """
        ...

    async def write(self, part: bytes) -> None:
        """Send a part of the body, after `begin`."""
        ...

    def close(self) -> None:
        """Close the connection once everything is written."""
        ...

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, with `reset` by a TCP RST."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds on the service's clock."""
        ...

    async def hang(self) -> None:
        """Wait until the service closes."""
        ...

    def encode(self, response: Answer) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a response."""
        ...


class Fault(Protocol):
    """What happens to a call in place of its response. Applications can write their own."""

    async def play(self, stage: Stage) -> None:
        """Send a response through the stage, or do not."""
        ...


@attrs.frozen(kw_only=True)
class Status:
    """A response with another status. See `status`."""

    code: int
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    commit: bool = False

    async def play(self, stage: Stage) -> None:
        """Commit if `commit` is set, and send the status."""
        if self.commit:
            stage.commit()
        await stage.reply(self.code, self.body, self.headers)


@attrs.frozen(kw_only=True)
class Drop:
    """A connection that is closed without a response. See `drop`."""

    commit: bool = False
    reset: bool = False

    async def play(self, stage: Stage) -> None:
        """Commit if `commit` is set, and close the connection."""
        if self.commit:
            stage.commit()
        stage.abort(reset=self.reset)


@attrs.frozen(kw_only=True)
class DelayAnswer:
    """A response that is delayed after the commit. See `delay_answer`."""

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Commit, wait, and send the response."""
        stage.commit()
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen(kw_only=True)
class DelayCommit:
    """A commit that is delayed. See `delay_commit`."""

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Wait, commit, and send the response."""
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen(kw_only=True)
class Hang:
    """A request without a response. See `hang`."""

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


@attrs.frozen(kw_only=True)
class Truncated:
    """A response that ends in the middle of its body. See `truncated`."""

    body: bytes | None = None

    async def play(self, stage: Stage) -> None:
        """Commit, announce the whole body, send half of it, and close the connection."""
        response = stage.commit()
        body, headers = stage.encode(response)
        body = body if self.body is None else self.body
        await stage.begin(response.status, len(body), headers)
        await stage.write(body[: len(body) // 2])
        stage.close()


@attrs.frozen(kw_only=True)
class ForeignBody:
    """A response with another body. See `foreign_body`."""

    body: bytes = attrs.field(repr=False)
    content_type: str = "application/json"
    status: int = 200
    commit: bool = True
    headers: Mapping[str, str] = attrs.field(factory=dict)

    async def play(self, stage: Stage) -> None:
        """Commit if `commit` is set, and send the body."""
        if self.commit:
            stage.commit()
        await stage.reply(self.status, self.body, {"Content-Type": self.content_type, **self.headers})


@attrs.frozen(kw_only=True)
class SlowBody:
    """A response whose body is sent slowly. See `slow_body`."""

    seconds_per_byte: float

    async def play(self, stage: Stage) -> None:
        """Commit, then send the body byte by byte."""
        response = stage.commit()
        body, headers = stage.encode(response)
        await stage.begin(response.status, len(body), headers)
        for index in range(len(body)):
            await stage.sleep(self.seconds_per_byte)
            await stage.write(body[index : index + 1])


@attrs.frozen(kw_only=True)
class RateLimit:
    """A rate limit that the service enforces with 429. See `rate_limit`."""

    per_second: float
    burst: int = 1
    retry_after: str | float | None = None

    async def play(self, stage: Stage) -> None:
        """Refuse the call with 429."""
        headers = {} if self.retry_after is None else {"Retry-After": f"{self.retry_after}"}
        await stage.reply(429, b"", headers)
