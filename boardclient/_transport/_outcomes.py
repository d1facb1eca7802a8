"""The outcome of a request: its whole body, decoded and up to a limit, or what an exception of aiohttp means.

aiohttp accepts half a gzip stream if the `Content-Length` is right. A gzip member ends in a checksum and a length
(https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1), so a body that breaks off is noticed here. No words show a part of the
request.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import aiohttp
import aiohttp.http
from multidict import MultiMapping

from boardclient._transport._values import SUCCESSES, RawResponse, TransportFailure, TransportResult
from boardclient.errors import Effect

_STEP_BYTES: Final = 2**18
"""How many bytes are decoded at once. A small body may decode to gigabytes, and decoding blocks the event loop."""


_STEP_MEMBERS: Final = 64
"""How many gzip members are decoded at once. Each takes some microseconds, also an empty one."""
_REST_SECONDS: Final = 0.5
"""How long the rest of a body that is not needed is waited for, so that its connection can be used again."""


class Body(Protocol):
    async def readany(self) -> bytes: ...

    def at_eof(self) -> bool: ...


class DecodingError(Exception):
    """The body is damaged."""


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
    chunks: list[bytes] = []
    size = 0
    try:
        decoder = _decoder_of(headers)
        is_first = True
        while size <= limit and (is_first or not content.at_eof()):
            is_first = False
            raw = await content.readany()
            for piece in [raw] if decoder is None else decoder.feed(raw):
                chunks.append(piece)
                size += len(piece)
                if size > limit:
                    break
                if decoder is not None and len(piece) in {0, _STEP_BYTES}:
                    await asyncio.sleep(0)  # other tasks run while a body decodes to much more, or to nothing
        if size <= limit and not (decoder is None or decoder.is_complete):
            raise DecodingError
    except Exception:
        if is_needed:
            raise
    if size > limit:
        if is_needed:
            return TransportFailure("receive", Effect.DONE, f"the response is larger than {limit} bytes")
        chunks[-1] = chunks[-1][: limit - size]
    return RawResponse(status, headers, b"".join(chunks))


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
            raise DecodingError from error

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


# --- failures

_UNSENT_ERRORS: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)
_WHY: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.ClientConnectorCertificateError, "the certificate was refused"),
    (aiohttp.ClientConnectorDNSError, "the host name does not resolve, check the address and the network"),
    (aiohttp.ClientConnectorSSLError, "TLS failed"),
    (aiohttp.ServerFingerprintMismatch, "the certificate's fingerprint is another, check the one in ssl="),
    (aiohttp.ClientProxyConnectionError, "the proxy can't be reached, check proxy= or the proxy of the environment"),
    (aiohttp.ClientHttpProxyError, "the proxy refused, check proxy= or the proxy of the environment"),
    (ssl.SSLCertVerificationError, "the certificate was refused"),
    (ssl.SSLError, "TLS failed"),
    (aiohttp.ServerDisconnectedError, "the connection was closed before the response"),
    (aiohttp.ClientPayloadError, "the response broke off or could not be unpacked"),
    (DecodingError, "the response broke off or could not be unpacked"),
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
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{why} (status {error.status})"
    if tls is not None:
        return f"{why}{_words_of_tls(tls)}{_advice_for_tls(tls)}"
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
    verified = getattr(error, "verify_message", None)
    reason = getattr(error, "reason", None)
    words = verified if isinstance(verified, str) and verified else str(reason or "").replace("_", " ").lower()
    return f" ({_UNPRINTABLE.sub('?', words)[:200]})" if words else ""


def _advice_for_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ", check the host, or give ssl= a context that trusts its issuer"
    return ", the port may speak plain http" if getattr(error, "reason", None) in _NO_TLS else ""
