"""What an exception of aiohttp's means, in words that hold nothing of the request. No I/O."""

from __future__ import annotations

import os
from typing import Final

import aiohttp
import aiohttp.http

from boardclient._transport._decoding import DecodingError
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
    (aiohttp.ClientConnectorDNSError, "the host name does not resolve"),
    (aiohttp.ClientConnectorSSLError, "TLS failed"),
    (aiohttp.ServerFingerprintMismatch, "the certificate's fingerprint is another"),
    (aiohttp.ClientHttpProxyError, "the proxy refused"),
    (aiohttp.ServerDisconnectedError, "the connection was closed before the answer"),
    (aiohttp.ClientPayloadError, "the answer broke off or could not be unpacked"),
    (DecodingError, "the answer broke off or could not be unpacked"),
    (aiohttp.ClientResponseError, "the answer is not HTTP"),
    (aiohttp.http.HttpProcessingError, "the answer is not HTTP"),
    (TimeoutError, "a timeout of the connection passed"),
)


def failure_of(error: Exception, stage: str, *, may_be_second: bool = False) -> TransportFailure:
    """Say what an exception means at a stage of the request.

    `may_be_second`: aiohttp may have sent the request before, on a kept-alive connection that then broke.
    """
    why = next((words for kind, words in _WHY if isinstance(error, kind)), "the exchange failed")
    system = getattr(error, "errno", None)
    if isinstance(system, int) and system > 0:
        why = f"{why} ({os.strerror(system)})"
    elif why == "the exchange failed":
        why = f"{why} ({type(error).__name__})"
    if (stage == "connect" or isinstance(error, _UNSENT_ERRORS)) and not may_be_second:
        return TransportFailure("connect", Effect.NOT_SENT, f"no connection: {why}")
    sending = stage == "send" and isinstance(error, OSError) and not isinstance(error, TimeoutError)
    return TransportFailure("send" if sending else "receive", Effect.UNKNOWN, why)
