"""What an exception of aiohttp means, in words that show no part of the request. No I/O."""

from __future__ import annotations

import errno
import os
import re
import ssl
from typing import Final

import aiohttp
import aiohttp.http

from boardclient._transport._reading import DecodingError
from boardclient._transport._values import TransportFailure
from boardclient.errors import Effect

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
        return TransportFailure("connect", Effect.NOT_SENT, f"no connection: {why}")
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
