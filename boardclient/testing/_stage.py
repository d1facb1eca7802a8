"""The I/O of one response, which a fault may delay, split or cut off."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping

import attrs
from aiohttp import web

from boardclient.testing._answers import Answer


@attrs.define(eq=False)
class HttpStage:
    """One request and its response: what a `faults.Stage` is over HTTP. Owned by the handler of the request."""

    request: web.BaseRequest
    wait: Callable[[float], Awaitable[object]]
    response: web.StreamResponse = attrs.field(init=False, factory=web.Response)
    commit_with: Callable[[], Answer] = attrs.field(init=False)
    on_status: Callable[[int], None] = attrs.field(init=False)
    on_settled: Callable[[], None] = attrs.field(init=False, default=lambda: None)
    has_begun: bool = attrs.field(init=False, default=False)
    is_hanging: bool = attrs.field(init=False, default=False)
    _outcome: Answer | None = attrs.field(init=False, default=None)

    @property
    def is_settled(self) -> bool:
        """Whether the request was carried out, or never will be."""
        return self._outcome is not None or self.is_hanging

    def commit(self) -> Answer:
        """Carry out the request, and return its response. Calling it again changes nothing."""
        if self._outcome is None:
            self._outcome = self.commit_with()
            self.on_settled()
        return self._outcome

    def encode(self, response: Answer) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a response."""
        text = response.body if isinstance(response.body, str) else json.dumps(response.body)
        return text.encode(), {"Content-Type": f"{response.content_type}; charset=utf-8", **response.headers}

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response."""
        response = web.Response(status=status, body=body, headers=headers)
        self.response = response
        self.has_begun = True
        self.on_status(status)
        await response.prepare(self.request)
        await response.write_eof()

    async def reply_answer(self) -> None:
        """Carry out the request, and send its response."""
        outcome = self.commit()
        await self.reply(outcome.status, *self.encode(outcome))

    async def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response whose body has `length` bytes."""
        self.response = web.StreamResponse(status=status, headers=headers)
        self.response.content_length = length
        self.has_begun = True
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
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds on the service's clock."""
        await self.wait(seconds)

    async def hang(self) -> None:
        """Wait until the service closes."""
        self.is_hanging = True
        self.on_settled()
        await asyncio.Event().wait()


async def read_body(request: web.BaseRequest, limit: int) -> bytes | None:
    """Read the body of a request. Return None if it is longer than `limit` bytes.

    A client that expects `100 Continue` gets it (RFC 9110, section 10.1.1), unless the body is too long. The server reads and
    discards an unread rest for a while after the response: otherwise the connection would be reset, and the client might lose the
    response (RFC 9112, section 9.6).
    """
    if (request.content_length or 0) > limit:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts = bytearray()
    async for part in request.content.iter_any():
        parts += part
        if len(parts) > limit:
            return None
    return bytes(parts)
