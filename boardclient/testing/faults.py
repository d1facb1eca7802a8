"""The faults of the embedded service. `Faults` plans which calls get them.

To commit means to carry out what a request asks for. A fault can be applied before or after it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs
from aiohttp import web

from boardclient.testing._oauth import Answer

__all__ = [
    "Fault",
    "Stage",
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


@attrs.define(eq=False)
class Stage:
    """One request that waits for its response, as a fault sees it. Owned by the handler of the request."""

    request: web.BaseRequest = attrs.field(repr=False)
    commit_with: Callable[[], Answer]
    on_status: Callable[[int], None]
    sleep: Callable[[float], Awaitable[object]]
    """Waits for a number of seconds on the service's clock."""
    response: web.StreamResponse = attrs.field(init=False, factory=web.Response)
    _outcome: Answer | None = attrs.field(init=False, default=None)

    def commit(self) -> Answer:
        """Carry out the request, and return its response. Calling it again changes nothing."""
        if self._outcome is None:
            # Once, whatever a fault does with the response: a card that was created twice would be the fault's own.
            self._outcome = self.commit_with()
        return self._outcome

    def encode(self, response: Answer) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a response."""
        text = response.body if isinstance(response.body, str) else json.dumps(response.body)
        return text.encode(), {"Content-Type": f"{response.content_type}; charset=utf-8", **response.headers}

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response.

        Args:
            status: The HTTP status.
            body: The body, b"" by default.
            headers: Header fields. None (default): those that HTTP requires.
        """
        self.response = web.Response(status=status, body=body, headers=headers)
        self.on_status(status)
        await self.response.prepare(self.request)
        await self.response.write_eof()

    async def reply_answer(self) -> None:
        """Carry out the request, and send its response."""
        outcome = self.commit()
        await self.reply(outcome.status, *self.encode(outcome))

    async def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response.

        Args:
            status: The HTTP status.
            length: The bytes of the body that follows, as `Content-Length` announces them.
            headers: Further header fields.
        """
        self.response = web.StreamResponse(status=status, headers=headers)
        self.response.content_length = length
        self.on_status(status)
        await self.response.prepare(self.request)

    async def write(self, part: bytes) -> None:
        """Send a part of the body, after `begin`."""
        await self.response.write(part)

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self.request.transport is not None:
            self.request.transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, with `reset` by a TCP RST."""
        transport = self.request.transport
        if transport is None:
            return
        if reset:
            sock = transport.get_extra_info("socket")
            # A linger time of 0 makes the system send a RST in place of a FIN (socket(7)).
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def hang(self) -> None:
        """Wait until the service closes."""
        await asyncio.Event().wait()


class Fault(Protocol):
    """What happens to a call in place of its response. Applications can write their own."""

    async def play(self, stage: Stage) -> None:
        """Send a response through the stage, or do not."""
        ...


def _headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})


@attrs.frozen
class status:  # noqa: N801 -- as it is used: `faults.status()`
    """Respond with a status.

    Args:
        code: The status, from 200 to 999.
        headers: The headers. None by default.
        body: The body, b"" by default.
        commit: Whether to commit first. False by default.

    Raises:
        TypeError, ValueError: `code` is not a whole number, or not the status of a response.
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
class drop:  # noqa: N801 -- as it is used: `faults.drop()`
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
class delay_answer:  # noqa: N801 -- as it is used: `faults.delay_answer()`
    """Commit at once, and respond after a delay in seconds."""

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Commit, wait, and send the response."""
        stage.commit()
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen
class delay_commit:  # noqa: N801 -- as it is used: `faults.delay_commit()`
    """Commit and respond after a delay in seconds.

    It commits even if the client has closed the connection by then.
    """

    seconds: float

    async def play(self, stage: Stage) -> None:
        """Wait, commit, and send the response."""
        await stage.sleep(self.seconds)
        await stage.reply_answer()


@attrs.frozen(kw_only=True)
class hang:  # noqa: N801 -- as it is used: `faults.hang()`
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
class truncated:  # noqa: N801 -- as it is used: `faults.truncated()`
    """Commit, send half of the body, and close the connection."""

    async def play(self, stage: Stage) -> None:
        """Commit, announce the whole body, send half of it, and close the connection."""
        response = stage.commit()
        body, headers = stage.encode(response)
        await stage.begin(response.status, len(body), headers)
        # The length that was announced stays that of the whole body: only so a client can tell that a part is missing.
        await stage.write(body[: len(body) // 2])
        stage.close()


@attrs.frozen
class slow_body:  # noqa: N801 -- as it is used: `faults.slow_body()`
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
class rate_limit:  # noqa: N801 -- as it is used: `faults.rate_limit()`
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


def _response(code: int, headers: dict[str, str], body: bytes, *, commit: bool) -> status:
    return status(code, headers, body, commit=commit)


def foreign_body(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    *,
    commit: bool = True,
    headers: Mapping[str, str] | None = None,
) -> status:
    """Return a fault that responds with another body.

    Args:
        body: The body.
        content_type: The content type. `application/json` by default.
        status: The status. 200 by default.
        commit: Whether to commit first. True by default.
        headers: Other headers, such as `Content-Encoding`. None by default.
    """
    return _response(status, {"Content-Type": content_type, **(headers or {})}, body, commit=commit)


def redirect(location: str, code: int = 307) -> status:
    """Return a fault that responds with a redirect and does not commit.

    Args:
        location: The `Location` header.
        code: The status. 307 by default.
    """
    return status(code, {"Location": location})
