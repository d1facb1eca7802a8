"""Send one request, read its answer whole, release the connection, say what failed: the one client-side module with aiohttp.

Failures are handed up as values, never raised: the frames here hold credentials, and an exception of aiohttp's prints URLs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from io import BytesIO
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

import aiohttp
import attrs
from multidict import CIMultiDict
from yarl import URL

from boardclient._flights import Flight
from boardclient._operations import Answer
from boardclient.errors import Effect, Phase

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than servers' own (5 s and more), so that no request meets a connection that the server is about to close."""

_LARGE_BODY_BYTES: Final = 2**20  # aiohttp warns of larger ones in one piece, and sends a file in pieces

_FLIGHT: Final[ContextVar[Flight | None]] = ContextVar("boardclient_flight", default=None)
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)  # the session's deadline is the only one


@attrs.frozen
class Failure:
    """No whole answer: how far the exchange got, what it may have done, and why in words without any address."""

    phase: Phase
    effect: Effect
    why: str


@attrs.frozen(kw_only=True)
class Settings:
    """How requests leave; the same for the service and the token exchange."""

    max_connections: int = 100
    trust_env: bool = False
    ssl: SSLContext | bool | aiohttp.Fingerprint | None = None
    proxy: str | None = attrs.field(default=None, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    user_agent: str = ""
    allow_insecure: bool = False
    max_answer_bytes: int = 256 * 2**20

    def __attrs_post_init__(self) -> None:
        if self.ssl is False and not self.allow_insecure:
            raise ValueError("ssl=False turns certificate checks off: it needs allow_insecure=True")
        if self.max_connections < 1 or self.max_answer_bytes < 1:
            raise ValueError("max_connections and max_answer_bytes must be at least 1")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str) or not (name + value).isprintable():
                raise ValueError("headers must be printable strings")
        if not self.user_agent.isprintable():
            raise ValueError("user_agent must be printable")


class _Connector(aiohttp.TCPConnector):
    """A pool that tells a call when it has its connection: until then nothing was sent. Owned by its `Pool`."""

    def __init__(self, limit: int, ssl: SSLContext | bool | aiohttp.Fingerprint) -> None:
        self._process = os.getpid()
        super().__init__(limit=limit, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=ssl)

    def abandon(self) -> None:
        """Count as closed, and leave the connections to the loop or process that they belong to."""
        self._closed = True

    def __del__(self, *held: object) -> None:
        # A forked child shares the selector with its parent: closing connections here would deafen the parent's.
        if self._process == os.getpid():
            super().__del__()

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        flight = _FLIGHT.get()
        if flight is None:
            return await super().connect(req, traces, timeout)
        flight.stage = "connect"
        connection = await super().connect(req, traces, timeout)
        flight.stage = "send"
        return connection


class Pool:
    """The connections of a session: its own, made at first use and closed with it, or an application's, which is only used."""

    def __init__(self, settings: Settings, lent: aiohttp.ClientSession | None = None) -> None:
        self._settings = settings
        self._lent = lent
        self._http = lent
        agent = " ".join(filter(None, (f"boardclient/{_version()}", settings.user_agent)))
        self._bare: Final[CIMultiDict[str]] = CIMultiDict(
            {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": agent}
        )
        self._bare.update(settings.headers)
        self._headers: Final[dict[str, CIMultiDict[str]]] = {}

    @property
    def is_lent(self) -> bool:
        """Tell whether the connections are an application's."""
        return self._lent is not None

    def _open(self) -> aiohttp.ClientSession:
        settings = self._settings
        # One large allocation raises glibc's threshold for mmap, so that asyncio's 256 KiB receive buffers are no longer given
        # back to the kernel after each answer: 16 microseconds per request on plain http.
        bytes(2**20)
        connector = _Connector(settings.max_connections, True if settings.ssl is None else settings.ssl)
        http = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_NO_TIMEOUT,
            trust_env=settings.trust_env,
            proxy=settings.proxy,
        )
        # aiohttp repeats GET, PUT and DELETE by itself on a broken kept-alive connection; repeating is the caller's policy's.
        http._retry_connection = False
        return http

    async def send(
        self, method: str, url: str, body: bytes | None, flight: Flight, content_type: str = "application/json"
    ) -> Answer | Failure:
        """Send one request once and return its whole answer, or how it failed; a cancellation leaves the flight's stage."""
        http = self._http
        if http is None:
            http = self._http = self._open()
        token = _FLIGHT.set(flight)
        flight.stage = "handed"
        try:
            async with http.request(
                method,
                URL(url, encoded=True),
                data=body if body is None or len(body) <= _LARGE_BODY_BYTES else BytesIO(body),
                headers=self._bare if body is None else self._typed(content_type),
                allow_redirects=False,
                auto_decompress=True,
                raise_for_status=False,
                timeout=_NO_TIMEOUT,
            ) as response:
                flight.stage = "receive"
                outcome = await self._read(response)
        except Exception as error:  # whatever it is, it may print the URL: only its kind leaves this frame
            outcome = _failure(error, flight.stage)
        finally:
            _FLIGHT.reset(token)
        flight.stage = "idle"
        return outcome

    def _typed(self, content_type: str) -> CIMultiDict[str]:
        headers = self._headers.get(content_type)
        if headers is None:
            headers = self._headers[content_type] = self._bare.copy()
            headers["Content-Type"] = content_type
        return headers

    async def _read(self, response: aiohttp.ClientResponse) -> Answer | Failure:
        """Read the body up to the bound, counted unpacked; a refusal keeps what was read of it."""
        limit = self._settings.max_answer_bytes
        headers = CIMultiDict(response.headers)
        length = response.content_length
        if length is not None and length <= limit and "Content-Encoding" not in headers:
            return Answer(response.status, headers, await response.read())
        chunks: list[bytes] = []
        size = 0
        while chunk := await response.content.readany():
            size += len(chunk)
            chunks.append(chunk)
            if size > limit:
                response.close()
                chunks[-1] = chunk[: limit - size]
                return _oversized(response.status, headers, chunks, limit)
        return Answer(response.status, headers, b"".join(chunks))

    async def aclose(self) -> None:
        """Close the connections if they are the session's own."""
        http, self._http = self._http, None
        if http is not None and not self.is_lent:
            await http.close()

    def abandon(self) -> None:
        """Forget the connections without a loop to close them on."""
        http, self._http = self._http, None
        if http is not None and isinstance(http.connector, _Connector):
            http.connector.abandon()

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        open_connections = (
            len(self._http.connector._acquired) if self._http is not None and self._http.connector is not None else 0
        )
        return f"{open_connections}/{self._settings.max_connections} connections"


def _oversized(status: int, headers: CIMultiDict[str], chunks: list[bytes], limit: int) -> Answer | Failure:
    """Refuse a success that is too large; of any other answer the status counts, and the beginning is enough."""
    if 200 <= status < 300:
        return Failure("receive", Effect.DONE, f"the answer is larger than {limit} bytes")
    return Answer(status, headers, b"".join(chunks))


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
    (aiohttp.ClientResponseError, "the answer is not HTTP"),
    (TimeoutError, "a timeout of the connection passed"),
)


def _failure(error: Exception, stage: str) -> Failure:
    """Say what an exception of aiohttp's means, in words that hold nothing of the request."""
    why = next((words for kind, words in _WHY if isinstance(error, kind)), "the exchange failed")
    system = getattr(error, "errno", None)
    if isinstance(system, int) and system > 0:
        why = f"{why} ({os.strerror(system)})"
    elif why == "the exchange failed":
        why = f"{why} ({type(error).__name__})"
    if stage == "connect" or isinstance(error, _UNSENT_ERRORS):
        return Failure("connect", Effect.NOT_SENT, f"no connection: {why}")
    sending = stage == "send" and isinstance(error, OSError) and not isinstance(error, TimeoutError)
    return Failure("send" if sending else "receive", Effect.UNKNOWN, why)


def _version() -> str:
    from importlib.metadata import version

    return version("boardclient")
