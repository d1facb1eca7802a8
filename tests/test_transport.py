"""What an exception of aiohttp's means, what settings allow, and pools that are never opened. No sockets."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from session_helpers import transport_settings
from yarl import URL

from boardclient import Effect
from boardclient._interface._operations import words_of
from boardclient._transport._choice import TransportChoice
from boardclient._transport._reader import failure_of
from boardclient._transport._tls_ends import UnreadRecords

SECRET = "t0ken-in-the-address"
KEY: Any = SimpleNamespace(host="h", port=1, ssl=True, is_ssl=True)
INFO: Any = SimpleNamespace(real_url=URL(f"https://h/1/x?token={SECRET}"), headers={})
REFUSED = OSError(111, f"refused {SECRET}")
TRUST = ", check the host, or give ssl= a context that trusts its issuer"


@pytest.mark.parametrize(
    ("error", "stage", "expected"),
    [
        (aiohttp.ClientConnectorError(KEY, REFUSED), "connect", ("connect", Effect.NOT_SENT)),
        (aiohttp.ClientConnectorDNSError(KEY, REFUSED), "connect", ("connect", Effect.NOT_SENT)),
        (aiohttp.ClientConnectorSSLError(KEY, REFUSED), "handed", ("connect", Effect.NOT_SENT)),
        (aiohttp.ClientConnectorCertificateError(KEY, ssl.CertificateError(SECRET)), "handed", ("connect", Effect.NOT_SENT)),
        (aiohttp.ConnectionTimeoutError(SECRET), "handed", ("connect", Effect.NOT_SENT)),
        (aiohttp.ServerFingerprintMismatch(b"a", b"b", "h", 1), "handed", ("connect", Effect.NOT_SENT)),
        (aiohttp.ClientHttpProxyError(INFO, (), status=407, message=SECRET), "handed", ("connect", Effect.NOT_SENT)),
        (aiohttp.InvalidURL(INFO.real_url), "handed", ("connect", Effect.NOT_SENT)),
        (ValueError(SECRET), "connect", ("connect", Effect.NOT_SENT)),
        (aiohttp.ClientConnectionError(SECRET), "handed", ("receive", Effect.UNKNOWN)),
        (aiohttp.ServerDisconnectedError(SECRET), "send", ("receive", Effect.UNKNOWN)),
        (aiohttp.ClientOSError(32, SECRET), "send", ("send", Effect.UNKNOWN)),
        (aiohttp.ClientOSError(104, SECRET), "receive", ("receive", Effect.UNKNOWN)),
        (aiohttp.ServerTimeoutError(SECRET), "send", ("receive", Effect.UNKNOWN)),
        (TimeoutError(SECRET), "receive", ("receive", Effect.UNKNOWN)),
        (aiohttp.ClientPayloadError(SECRET), "receive", ("receive", Effect.UNKNOWN)),
        (aiohttp.ClientResponseError(INFO, (), status=400, message=SECRET), "send", ("receive", Effect.UNKNOWN)),
        (RuntimeError(SECRET), "handed", ("receive", Effect.UNKNOWN)),
    ],
)
def test_what_an_exception_means(error: Exception, stage: str, expected: tuple[str, Effect]) -> None:
    """Only what proves that nothing was sent is NOT_SENT, and no word of the exception's own gets out."""
    failure = failure_of(error, stage)
    assert (failure.phase, failure.effect) == expected
    assert SECRET not in failure.why
    assert "http" not in failure.why


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            aiohttp.ClientConnectorError(KEY, REFUSED),
            "the connection was refused, check the host and port and that the service runs",
        ),
        (
            aiohttp.ClientConnectorCertificateError(KEY, ssl.CertificateError("x")),
            f"the certificate was refused{TRUST}",
        ),
        (RuntimeError("x"), "the exchange failed (RuntimeError)"),
        (aiohttp.ClientOSError(-2, "x"), "the exchange failed (ClientOSError)"),
        (aiohttp.ServerDisconnectedError(), "the connection was closed before the response"),
        (aiohttp.ClientConnectionResetError(), "the connection was closed while the request was written"),
    ],
)
def test_why_in_words(error: Exception, why: str) -> None:
    """The reason is in words, with the system's own where it gave a number."""
    assert failure_of(error, "receive").why == why


@pytest.mark.parametrize("stage", ["connect", "write"])
@pytest.mark.parametrize(
    "error", [aiohttp.ClientConnectionResetError(), aiohttp.ServerDisconnectedError(), ConnectionResetError(), BrokenPipeError()]
)
def test_a_connection_that_ends_before_the_request_is_written(error: Exception, stage: str) -> None:
    """Nothing was sent, and the words say so, whatever aiohttp or the system calls it."""
    failure = failure_of(error, stage)
    assert (failure.effect, failure.why) == (Effect.NOT_SENT, "the connection was closed before the request was written")


def tls(kind: type[ssl.SSLError], reason: str, verified: str = "") -> ssl.SSLError:
    error = kind(1, "[SSL] secret words")
    error.reason = reason
    if verified:
        error.verify_message = verified  # type: ignore[attr-defined]  # -- set by OpenSSL
    return error


def wrapped(error: ssl.SSLError) -> aiohttp.ClientOSError:
    outer = aiohttp.ClientOSError(*error.args)
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (tls(ssl.SSLError, "WRONG_VERSION_NUMBER"), "TLS failed (wrong version number), the port may speak plain http"),
        (
            tls(ssl.SSLCertVerificationError, "CERTIFICATE_VERIFY_FAILED", "self-signed certificate"),
            f"the certificate was refused (self-signed certificate){TRUST}",
        ),
        (
            tls(ssl.SSLError, "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            "TLS failed (tlsv13 alert certificate required), the peer wants a client certificate: give ssl= a context with one",
        ),
        (
            tls(ssl.SSLError, "SSLV3_ALERT_HANDSHAKE_FAILURE"),
            "TLS failed (sslv3 alert handshake failure), the peer may want a client certificate: give ssl= a context with one",
        ),
        (tls(ssl.SSLError, "bad\r\nwords"), "TLS failed (bad??words)"),
    ],
)
def test_a_tls_error_has_the_words_of_openssl(error: ssl.SSLError, words: str) -> None:
    """A TLS error is reported in OpenSSL's words, since its number is OpenSSL's and not the system's."""
    assert words_of(failure_of(error, "connect"), "board.example") == f"no connection to board.example: {words}"
    assert failure_of(wrapped(error), "receive").why == words


def test_a_transport_that_keeps_its_tls_to_itself() -> None:
    """On uvloop nothing is read after a failure to write, and the error stays what it was."""
    error = ConnectionResetError()
    assert UnreadRecords(Mock(spec=["get_extra_info"]), list).decrypt(error) is error  # type: ignore[arg-type]  # -- reads nothing


def _opened(pool: TransportChoice) -> aiohttp.ClientSession:
    """Return the session of a pool that is opened."""
    pool._make_transports()
    (http,) = pool._sessions
    return http


async def test_a_forked_copy_leaves_the_connections_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector that is collected in another process than its own closes nothing, though it holds connections."""
    pool = TransportChoice(transport_settings())
    http = _opened(pool)
    connector: Any = http.connector
    connector._conns["h"] = object()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        connector.__del__()
    assert not connector.closed
    connector._conns.clear()
    await http.close()


async def test_an_unclosed_connector_closes_its_connections() -> None:
    """A connector that is collected with idle connections closes them and says so, one without any says nothing."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    said: list[str] = []
    pool = TransportChoice(transport_settings())
    http = _opened(pool)
    connector: Any = http.connector
    connector._conns["h"] = idle = deque[Any]()
    connector.__del__()
    assert (connector.closed, said) == (False, [])
    idle.append((protocol := Mock(closed=None), 0.0))
    with pytest.warns(ResourceWarning, match="Unclosed connector"):
        connector.__del__()
    assert (connector.closed, said) == (True, ["Unclosed connector"])
    protocol.close.assert_called_once_with()
    await http.close()
