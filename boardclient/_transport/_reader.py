"""Reads responses: what came over a connection, the whole body, decoded and up to a limit, or why there is none.

aiohttp accepts half a gzip stream if the `Content-Length` is right. A gzip member ends in a checksum and a length
(https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1), so a body that breaks off is noticed here. No words show a part of the
request.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
import ssl
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, Protocol

import aiohttp
import aiohttp.http
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict, MultiMapping

from boardclient._transport._values import SUCCESSES, RawResponse, TransportFailure, TransportResult
from boardclient.errors import Effect

FIELD_BYTES: Final = 2**16
"""The longest header field that is accepted. aiohttp's default is 8 KiB, which some services' cookies and policies exceed."""
MOST_FIELDS: Final = 1000
"""The most header fields that are accepted. aiohttp's default is 128."""
BUFFER_BYTES: Final = 2**18
_PAUSE_BYTES: Final = 2**19
"""A connection is paused when so much of a body was received and not taken."""
_SWITCHING: Final = 101
_STEP_BYTES: Final = 2**18
"""How many bytes are decoded at once. A small body may decode to gigabytes, and decoding blocks the event loop."""
_STEP_MEMBERS: Final = 64
"""How many gzip members are decoded at once. Each takes some microseconds, also an empty one."""
_REST_SECONDS: Final = 0.5
"""How long the rest of a body that is not needed is waited for, so that its connection can be used again."""


# --- what came over a connection


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


# --- the whole body


class Body(Protocol):
    async def readany(self) -> bytes: ...

    def at_eof(self) -> bool: ...


async def read_whole(status: int, headers: MultiMapping[str], content: Body, limit: int, needs_body: bool) -> TransportResult:
    """Read and decode a body of at most `limit` bytes.

    Of a status that is no success, or if a success does not need its body, the part that can be read is enough.
    """
    if needs_body or status not in SUCCESSES:
        return await _read_whole(status, headers, content, limit, is_needed=status in SUCCESSES)
    try:
        async with asyncio.timeout(_REST_SECONDS):
            return await _read_whole(status, headers, content, limit, is_needed=False)
    except TimeoutError:
        return RawResponse(status, headers, b"")


async def _read_whole(status: int, headers: MultiMapping[str], content: Body, limit: int, *, is_needed: bool) -> TransportResult:
    whole = io.BytesIO()  # it grows without being copied, while joining many parts would take a millisecond a MiB in one step
    size = 0
    try:
        decoder = _decoder_of(headers)
        is_first = True
        while size <= limit and (is_first or not content.at_eof()):
            is_first = False
            raw = await content.readany()
            for piece in [raw] if decoder is None else decoder.feed(raw):
                size += whole.write(piece)
                if size > limit:
                    break
                if decoder is not None and len(piece) in {0, _STEP_BYTES}:
                    await asyncio.sleep(0)  # other tasks run while a body decodes to much more, or to nothing
        if size <= limit and not (decoder is None or decoder.is_complete):
            raise aiohttp.ClientPayloadError
    except Exception:
        if is_needed:
            raise
    if size > limit:
        if is_needed:
            return TransportFailure("receive", Effect.DONE, f"the response is larger than {limit} bytes")
        whole.truncate(limit)
    return RawResponse(status, headers, whole.getvalue())


class _Decoder:
    def __init__(self, new_member: Callable[[bytes], Any]) -> None:
        self._new_member = new_member
        self._member: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes, and yield the result in small pieces, an empty one after some work without a large one."""
        members = 0
        try:
            while data:
                if self._member is None or self._member.eof:
                    self._member = self._new_member(data)
                    members += 1
                    if not members % _STEP_MEMBERS:
                        yield b""
                while True:
                    piece = self._member.decompress(data, _STEP_BYTES)
                    data = self._member.unconsumed_tail
                    if piece:
                        yield piece
                    if self._member.eof or not (piece or data):
                        break
                data = self._member.unused_data if self._member.eof else b""
        except zlib.error as error:
            raise aiohttp.ClientPayloadError from error

    @property
    def is_complete(self) -> bool:
        """Whether the body may end here: it is empty or its last member has ended."""
        return self._member is None or bool(self._member.eof)


def _inflate(first: bytes) -> Any:
    """Return a decompressor of `deflate`, whose zlib header some senders omit (RFC 9110, section 8.4.1.2)."""
    is_zlib = first[0] & 0xF == zlib.DEFLATED
    return zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _gunzip(_: bytes) -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


_CODINGS: Final[dict[str, Callable[[bytes], Any]]] = {"gzip": _gunzip, "x-gzip": _gunzip, "deflate": _inflate}


def _decoder_of(headers: MultiMapping[str]) -> _Decoder | None:
    """Return the decoder of a body, or None if it stays as it is."""
    coding = _CODINGS.get(headers.get("Content-Encoding", "").strip().lower())
    return None if coding is None else _Decoder(coding)


# --- why there is no response

_UNSENT_ERRORS: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)
_WHY: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.ClientConnectorDNSError, "the host name does not resolve, check the address and the network"),
    (aiohttp.ServerFingerprintMismatch, "the certificate's fingerprint is another, check the one in ssl="),
    (aiohttp.ClientProxyConnectionError, "the proxy can't be reached, check proxy= or the proxy of the environment"),
    (aiohttp.ClientHttpProxyError, "the proxy refused, check proxy= or the proxy of the environment"),
    (ssl.SSLCertVerificationError, "the certificate was refused"),
    (ssl.SSLError, "TLS failed"),
    (aiohttp.ServerDisconnectedError, "the connection was closed before the response"),
    (aiohttp.ClientPayloadError, "the response broke off or could not be unpacked"),
    (aiohttp.ClientResponseError, "the response is not HTTP"),
    (aiohttp.http.HttpProcessingError, "the response is not HTTP"),
    (ConnectionRefusedError, "the connection was refused, check the host and port and that the service runs"),
    (TimeoutError, "a timeout of the connection passed"),
)
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
"""OpenSSL's reasons for bytes that are no TLS: https://docs.openssl.org/3.0/man7/ossl-guide-tls-introduction/."""
_UNPRINTABLE: Final = re.compile(r"[^ -~]")
_WRAPPED_TIMES: Final = 4


def failure_of(error: Exception, stage: str, *, may_be_second: bool = False) -> TransportFailure:
    """Return the failure that an exception means at a stage of a request, which aiohttp may have sent before."""
    why = _words_for(error)
    if (stage in {"connect", "write"} or isinstance(error, _UNSENT_ERRORS)) and not may_be_second:
        return TransportFailure("connect", Effect.NOT_SENT, why)
    sending = stage == "send" and isinstance(error, OSError) and not isinstance(error, TimeoutError)
    return TransportFailure("send" if sending else "receive", Effect.UNKNOWN, why)


def _words_for(error: Exception) -> str:
    """Return the words for an exception, with the reason that system or TLS gives."""
    tls = _tls_error_in(error)
    system = getattr(error, "errno", None)
    cause = tls or (ConnectionRefusedError() if system == errno.ECONNREFUSED else error)
    why = next((words for kind, words in _WHY if isinstance(error, kind)), "")
    why = why or next((words for kind, words in _WHY if isinstance(cause, kind)), "the exchange failed")
    if isinstance(error, aiohttp.ClientHttpProxyError) and error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"the proxy wants credentials (status {error.status}), give them in proxy="
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{why} (status {error.status})"
    if tls is not None:
        return f"{why}{_words_of_tls(tls)}"
    if isinstance(error, aiohttp.ClientConnectorDNSError) or isinstance(cause, ConnectionRefusedError):
        return why
    if isinstance(system, int) and system > 0:
        return f"{why} ({os.strerror(system)})"
    return f"{why} ({type(error).__name__})" if why == "the exchange failed" else why


def _tls_error_in(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that aiohttp wrapped, or None."""
    for _ in range(_WRAPPED_TIMES):  # aiohttp's TLS errors are subclasses of SSLError as well
        if isinstance(error, ssl.SSLError) and not isinstance(error, aiohttp.ClientError):
            return error
        error = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or getattr(error, "__cause__", None)
    return None


def _words_of_tls(error: ssl.SSLError) -> str:
    """Return the reason that TLS gives, and what helps."""
    verified, reason = getattr(error, "verify_message", None), getattr(error, "reason", None)
    words = verified if isinstance(verified, str) and verified else str(reason or "").replace("_", " ").lower()
    shown = f" ({_UNPRINTABLE.sub('?', words)[:200]})" if words else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{shown}, check the host, or give ssl= a context that trusts its issuer"
    return f"{shown}, the port may speak plain http" if reason in _NO_TLS else shown
