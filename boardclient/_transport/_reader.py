"""Reads responses: what came over a connection, or why there is none, in words that show no part of the request."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import sys
from abc import abstractmethod
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final, Protocol

import aiohttp
import aiohttp.http
from aiohttp.http_exceptions import LineTooLong
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict

from boardclient._base._redaction import without_frames
from boardclient._transport._tls_ends import SilentEnd
from boardclient._transport._values import TransportFailure
from boardclient.errors import Effect

FIELD_BYTES: Final = 2**16
"""The longest header field that is accepted. aiohttp's default is 8 KiB, which some services' cookies and policies exceed."""
MOST_FIELDS: Final = 1000
"""The most header fields that are accepted. aiohttp's default is 128."""
BUFFER_BYTES: Final = 2**18
_PAUSE_BYTES: Final = 2**19
"""A connection is paused when so much of a body was received and not taken."""
_SWITCHING: Final = 101


# --- what came over a connection


class RefusedError(aiohttp.http.HttpProcessingError):
    """The response is beyond a limit, no HTTP, or it is ambiguous where it ends. `why` says it in words."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Owner(Protocol):
    """The connection that a reader reads, as its connector knows it."""

    awaits_response: bool
    has_surplus: bool
    is_heard: bool

    def data_received(self, data: bytes) -> None:
        """Take what comes without a request."""

    @abstractmethod
    def unread_bytes(self) -> Iterator[bytes]:
        """Read what the system still holds when the connection has failed."""

    @abstractmethod
    def named(self, exc: Exception | None) -> Exception | None:
        """Return what ended the connection, by what it means."""

    def connection_lost(self, exc: Exception | None) -> None:
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
                raise RefusedError(_LONG_FIELD)
        except HttpParserUpgrade:
            self.can_be_kept = False
        except (HttpParserError, RefusedError) as error:
            self.can_be_kept = False
            if had_head and self.is_complete:  # this follows the response, and is no part of it
                self._owner.has_surplus = True
            else:
                self._fail(_refusal_in(error) or aiohttp.http.HttpProcessingError())
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
                self._fail(self._owner.named(exc) or aiohttp.ServerDisconnectedError())
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
        self._owner.is_heard = True
        if self.is_complete:
            self.can_be_kept, self._owner.has_surplus = False, True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._quiet = 0
        self._fields.append((name.decode(), value.decode("utf-8", "surrogateescape")))
        if len(name) + len(value) > FIELD_BYTES:
            raise RefusedError(_LONG_FIELD)
        if len(self._fields) > MOST_FIELDS:
            raise RefusedError(f"it has more than {MOST_FIELDS} header fields")

    def on_headers_complete(self) -> None:
        """Take the head, unless it is that of an interim response."""
        if self.is_complete:
            return
        headers = CIMultiDict(self._fields)
        self._fields.clear()
        status = self._parser.get_status_code()
        if status < 200 and status != _SWITCHING:
            if status < 100:  # no interim response either, so nothing need follow (RFC 9110, section 15)
                raise RefusedError(f"its status is {status}")
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
        # llhttp does not take tabs for white space here.
        if [coding.strip(" ").lower() for coding in headers.getall("Transfer-Encoding")] != ["chunked"]:
            raise RefusedError(NOT_CHUNKED)  # what was not asked for can't be decoded
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


# --- why there is no response

_LONG_FIELD: Final = f"a header field is longer than {FIELD_BYTES // 2**10} KiB"
NOT_CHUNKED: Final = "its Transfer-Encoding is not chunked"
_UNWRITTEN: Final = "the connection was closed before the request was written"
_UNSENT_ERRORS: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)
_WHY: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.ClientConnectorDNSError, "does not resolve, check the address and the network"),
    (aiohttp.ServerFingerprintMismatch, "the certificate's fingerprint is another, check the one in ssl="),
    (aiohttp.ClientProxyConnectionError, "the proxy can't be reached, check proxy= or the proxy of the environment"),
    (aiohttp.ClientHttpProxyError, "the proxy refused, check proxy= or the proxy of the environment"),
    (aiohttp.ClientConnectionResetError, "the connection was closed while the request was written"),
    (ssl.SSLCertVerificationError, "the certificate was refused"),
    (ssl.SSLError, "TLS failed"),
    (aiohttp.ServerDisconnectedError, "the connection was closed before the response"),
    (aiohttp.ClientPayloadError, "the response broke off or could not be unpacked"),
    (aiohttp.ClientResponseError, "the response is not HTTP"),
    (aiohttp.http.HttpProcessingError, "the response is not HTTP"),
    (ConnectionRefusedError, "the connection was refused, check the host and port and that the service runs"),
    (TimeoutError, "a timeout of the connection passed"),
)
_SILENT: Final = ", right after the TLS handshake: the peer may want a client certificate, give ssl= a context with one"
_HANDSHAKE_ENDED: Final = (
    "the connection was closed within the TLS handshake: the peer may want a client certificate, give ssl= a context with one, "
    "or the port speaks no TLS"
)
_CLOSED_ERRORS: Final = (
    aiohttp.ClientConnectionResetError,
    aiohttp.ServerDisconnectedError,
    ConnectionResetError,
    BrokenPipeError,
)
_NO_CERTIFICATE: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "wants",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "may want",
    "SSLV3_ALERT_BAD_CERTIFICATE": "may want",
}
"""OpenSSL's reasons for the alerts of a peer that got no client certificate: in TLS 1.3 (RFC 8446, section 6.2), and before."""
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
"""OpenSSL's reasons for bytes that are no TLS: https://docs.openssl.org/3.0/man7/ossl-guide-tls-introduction/."""
_BELOW: Final = frozenset({"boardclient", "aiohttp", "aiosignal", "aiohappyeyeballs", "async_timeout", "uvloop"})
"""The packages whose frames are not those of an application: this one, and what carries out requests."""
_NAMELESS: Final = "the exchange failed"
_UNPRINTABLE: Final = re.compile(r"[^ -~]")
_WRAPPED_TIMES: Final = 4


def failure_of(
    error: Exception, stage: str, *, may_be_second: bool = False, cause: Exception | None = None, is_first: bool = False
) -> TransportFailure:
    """Return the failure that an exception means at a stage of a request, which aiohttp may have sent before.

    `cause` is what code of the application raised, if it did. `is_first` says that the request is the first of a TLS connection.
    """
    is_unsent = stage in {"connect", "write"} or isinstance(error, _UNSENT_ERRORS)
    is_closed = _is_closed(error) and _tls_error_in(error) is None
    why = _UNWRITTEN if is_unsent and is_closed and not isinstance(error, aiohttp.ClientConnectorError) else _words_for(error)
    if is_closed and (is_first or _is_silent(error)):
        why += _SILENT
    if cause is not None:
        why = f"the application's own code raised {type(cause).__name__}, see the cause"
    if is_unsent and not may_be_second:
        return TransportFailure("connect", Effect.NOT_SENT, why, cause=cause)
    sending = stage == "send" and isinstance(error, OSError) and not isinstance(error, TimeoutError)
    return TransportFailure("send" if sending else "receive", Effect.UNKNOWN, why, cause=cause)


def application_error_in(error: Exception) -> Exception | None:
    """Return what code of the application raised below aiohttp, with the frames of that code only. None if something else did.

    `error` is what aiohttp raised: that, or its own exception for an `OSError`.
    """
    raised = error.__cause__ if isinstance(error, aiohttp.ClientOSError) and isinstance(error.__cause__, OSError) else error
    frames, first = raised.__traceback__, None
    while frames is not None:
        root = frames.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if root in _BELOW:
            first = None
        elif root not in sys.stdlib_module_names:
            first = first or frames
        frames = frames.tb_next
    if first is None or not isinstance(raised, Exception) or isinstance(raised, aiohttp.ClientError):
        return None
    for linked in (raised.__cause__, raised.__context__):
        if linked is not None:
            without_frames(linked)  # those of aiohttp hold the signed request
    if isinstance(raised.__context__, aiohttp.ClientError):
        raised.__context__ = None
    if isinstance(raised.__cause__, aiohttp.ClientError):
        raised.__cause__ = None
    return raised.with_traceback(first)


def _words_for(error: Exception) -> str:
    """Return the words for an exception, with the reason that system or TLS gives."""
    tls = _tls_error_in(error)
    if tls is not None and isinstance(error, _CLOSED_ERRORS):
        error = tls
    system = getattr(error, "errno", None)
    cause = tls or (ConnectionRefusedError() if system == errno.ECONNREFUSED else error)
    # aiohttp's own class says most; what is below it counts where that one says nothing.
    why = _why(error) or _why(cause) or _NAMELESS
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return _words_of_proxy(error, why)
    if (refusal := _refusal_in(error)) is not None:
        return f"{why}: {refusal.why}"
    if tls is not None:
        return f"{why}{_words_of_tls(tls)}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the host name {error.host} {why}"  # which may be the proxy's
    if isinstance(cause, ConnectionRefusedError):
        return why
    if isinstance(system, int) and system > 0:
        return f"{why} ({os.strerror(system)})"
    return f"{why} ({type(error).__name__})" if why == _NAMELESS else why


def _words_of_proxy(error: aiohttp.ClientHttpProxyError, why: str) -> str:
    if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"the proxy wants credentials (status {error.status}), give them in proxy="
    return f"{why} (status {error.status})"


def _is_closed(error: Exception) -> bool:
    return isinstance(error, _CLOSED_ERRORS) or getattr(error, "errno", None) in {errno.ECONNRESET, errno.EPIPE}


def _why(error: BaseException) -> str | None:
    if type(error) is aiohttp.ClientConnectorError and isinstance(error.os_error, ConnectionResetError):
        return _HANDSHAKE_ENDED
    return next((words for kind, words in _WHY if isinstance(error, kind)), None)


def _tls_error_in(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that aiohttp wrapped, or None."""
    for _ in range(_WRAPPED_TIMES):  # aiohttp's TLS errors are subclasses of SSLError as well
        if isinstance(error, ssl.SSLError) and not isinstance(error, aiohttp.ClientError):
            return error
        error = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or getattr(error, "__cause__", None)
    return None


def _is_silent(error: BaseException | None) -> bool:
    """Return True for the end of a connection over TLS without a word, which aiohttp may have wrapped."""
    while error is not None and not isinstance(error, SilentEnd):
        error = error.__cause__
    return error is not None


def _refusal_in(error: BaseException | None) -> RefusedError | None:
    """Return why a response was refused, also where a parser or `ClientSession` has raised another exception from it."""
    for _ in range(_WRAPPED_TIMES):
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, LineTooLong):
            return RefusedError("a line of its head is longer than the ClientSession accepts, see its max_field_size")
        error = getattr(error, "__cause__", None) or getattr(error, "__context__", None)
    return None


def _words_of_tls(error: ssl.SSLError) -> str:
    """Return the reason that TLS gives, and what helps."""
    verified, reason = getattr(error, "verify_message", None), getattr(error, "reason", None)
    words = verified if isinstance(verified, str) and verified else str(reason or "").replace("_", " ").lower()
    shown = f" ({_UNPRINTABLE.sub('?', words)[:200]})" if words else ""
    if reason in _NO_CERTIFICATE:
        return f"{shown}, the peer {_NO_CERTIFICATE[reason]} a client certificate: give ssl= a context with one"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{shown}, check the host, or give ssl= a context that trusts its issuer"
    return f"{shown}, the port may speak plain http" if reason in _NO_TLS else shown
