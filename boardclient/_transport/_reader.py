"""Reads the responses of one connection for `DirectTransport`, each whole, with llhttp."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator
from typing import Final, Protocol

import aiohttp
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict

FIELD_BYTES: Final = 2**16
"""The longest header field that is accepted. aiohttp's default is 8 KiB, which some services' cookies and policies exceed."""
MOST_FIELDS: Final = 1000
"""The most header fields that are accepted. aiohttp's default is 128."""
BUFFER_BYTES: Final = 2**18
_PAUSE_BYTES: Final = 2**19
"""A connection is paused when so much of a body was received and not taken."""
_SWITCHING: Final = 101


class _RefusedError(Exception):
    """The response is beyond a limit, or it is ambiguous where it ends."""


class Owner(Protocol):
    """The connection that a reader reads, as its connector knows it."""

    awaits_response: bool
    has_surplus: bool

    def data_received(self, data: bytes) -> None:
        """Take what comes without a request."""

    @abstractmethod
    def unread_bytes(self) -> Iterator[bytes]:
        """Read what the system still holds when the connection has failed."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take the end of the connection."""


class ResponseReader(asyncio.BufferedProtocol):
    """Reads what the peer sends on a connection as the response to the request that was written. Owned by its connection.

    asyncio reads into one buffer that all connections of a pool share: for an ordinary protocol it allocates 256 KiB for each
    read. What comes without a request is passed to the owner, which writes no request from then on.
    """

    status: int
    headers: CIMultiDict[str]
    http_version: tuple[int, int] | None = None

    def __init__(self, owner: Owner, transport: asyncio.Transport, buffer: memoryview) -> None:
        self._owner = owner
        self._transport = transport
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser(self)
        self._fields: list[tuple[str, str]] = []
        self._chunks: list[bytes] = []
        self._quiet = 0
        """How many bytes came since the last field or part of a body."""
        self._is_strict = True
        self.begin()

    def begin(self) -> asyncio.Future[None]:
        """Prepare for the response to the next request, and return what is done once its head is there, or none will come."""
        if self._is_strict:  # lines may end in LF (RFC 9112, 2.2), and spaces may follow the size of a chunk, as aiohttp accepts
            self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
            self._is_strict = False
        self.error: Exception | None = None
        self.has_head: bool = False
        self.is_complete: bool = False
        self.can_be_kept: bool = False
        """Whether the connection can get another request once the response is complete."""
        self._is_paused = False
        self._chunks.clear()
        self._fields.clear()
        self.size = 0
        self.progress: asyncio.Future[None] = self._loop.create_future()
        """Done once there is more of the response than the last time, or none will come."""
        return self.progress

    def write(self, wire: bytes) -> None:
        """Write a request, and read what comes from now on as its response."""
        self._owner.awaits_response = True
        self._transport.write(wire)

    # --- the body

    def take(self) -> bytes:
        """Return what was received of the body since the last time."""
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.size = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return body

    async def readany(self) -> bytes:
        """Wait for the next part of the body, and return it: empty at the end, or raise the error that ended it."""
        while not (self._chunks or self.is_complete):
            if self.error is not None:
                raise self.error
            self.progress = self._loop.create_future()
            await self.progress
        return self.take()

    def at_eof(self) -> bool:
        return self.is_complete and not self._chunks

    # --- what asyncio calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.feed(self._buffer[:nbytes])

    def feed(self, data: memoryview | bytes) -> None:
        if not self._owner.awaits_response:
            self._owner.data_received(bytes(data))
            return
        had_head = self.has_head
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
            if self._quiet > FIELD_BYTES + BUFFER_BYTES:
                raise _RefusedError
        except HttpParserUpgrade:
            self.can_be_kept = False
        except (HttpParserError, _RefusedError):
            self.can_be_kept = False
            if had_head and self.is_complete:  # this follows the response, and is no part of it
                self._owner.has_surplus = True
            else:
                self._fail(aiohttp.http.HttpProcessingError())
        if self.has_head and not self.progress.done():
            self.progress.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response, which without a length is complete only if the connection ended in order."""
        if not self.is_complete and self.error is None:
            if exc is not None:
                for data in self._owner.unread_bytes():
                    self.feed(data)
            elif self.has_head:
                self.is_complete = not ("Content-Length" in self.headers or "Transfer-Encoding" in self.headers)
            if not self.is_complete and self.error is None:
                self._fail(exc or aiohttp.ServerDisconnectedError())
            if not self.progress.done():
                self.progress.set_result(None)
        self._owner.connection_lost(exc)

    def _fail(self, error: Exception) -> None:
        self.is_complete = False
        self.error = aiohttp.ClientPayloadError() if self.has_head else error
        if not self.progress.done():
            self.progress.set_result(None)

    # --- what the parser calls

    def on_message_begin(self) -> None:
        """Begin a response, or note that one more follows that no request has asked for."""
        self._quiet = 0
        if self.is_complete:
            self.can_be_kept, self._owner.has_surplus = False, True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._quiet = 0
        self._fields.append((name.decode(), value.decode("utf-8", "surrogateescape")))
        if len(name) + len(value) > FIELD_BYTES or len(self._fields) > MOST_FIELDS:
            raise _RefusedError

    def on_headers_complete(self) -> None:
        """Take the head, unless it is that of an interim response."""
        if self.is_complete:
            return
        headers = CIMultiDict(self._fields)
        self._fields.clear()
        status = self._parser.get_status_code()
        if status < 200 and status != _SWITCHING:
            return
        self.status, self.headers = status, headers
        # A connection that was kept without a word of it is one of HTTP/1.1 (RFC 9112, 9.3). Asking takes half a microsecond.
        if self.http_version is None or "Connection" in headers:
            version = self._parser.get_http_version()
            self.http_version = (int(version[0]), int(version[2]))
        if "Transfer-Encoding" in headers:
            self._see_coding(headers)
        self.has_head = True

    def _see_coding(self, headers: CIMultiDict[str]) -> None:
        """Prepare for chunks, or raise an exception if it is ambiguous where the response ends (RFC 9112, section 6.3)."""
        if [coding.strip().lower() for coding in headers.getall("Transfer-Encoding")] != ["chunked"]:
            raise _RefusedError  # what was not asked for can't be decoded
        self._is_strict = True  # what frames chunks ends in CRLF (7.1)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=False)

    def on_body(self, body: bytes) -> None:
        self._quiet = 0
        if self.is_complete:
            return
        self._chunks.append(body)
        self.size += len(body)
        if self.size > _PAUSE_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End the response, unless it was an interim one."""
        if self.has_head:
            # HTTP/1.0 knows no chunks: such a framing is faulty (RFC 9112, 6.1).
            is_sound = not self._is_strict or self.http_version != (1, 0)
            self.can_be_kept = is_sound and not self.is_complete and self._parser.should_keep_alive()
            self.is_complete = True
