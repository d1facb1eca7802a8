"""The connections of a session, and which transport each request takes."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, ClassVar, Final

import aiohttp

from boardclient._transport import _direct
from boardclient._transport._client_session import ClientSessionTransport
from boardclient._transport._connections import NO_TIMEOUT, Connector
from boardclient._transport._direct import DirectTransport
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._progress import Progress
from boardclient._transport._settings import Settings
from boardclient._transport._values import TransportResult


class Pool:
    """The connections of a session: its own, made at first use and closed with it, or an application's, which is only used."""

    _may_be_direct: ClassVar[bool] = True
    """Tests and benchmarks turn it off, to see `ClientSessionTransport` where the direct one would be taken."""

    def __init__(self, settings: Settings, lent: aiohttp.ClientSession | None = None) -> None:
        self._settings = settings
        self._lent = lent
        self._http: aiohttp.ClientSession | None = None
        self._general: ClientSessionTransport | None = None
        self._direct: DirectTransport | None = None
        self._headers: Final = RequestHeaders(settings)

    @property
    def is_lent(self) -> bool:
        """Whether the connections are an application's."""
        return self._lent is not None

    def _open(self) -> ClientSessionTransport:
        """Make the connections' owner, and choose the transports over it."""
        limit = self._settings.max_answer_bytes
        http = self._lent
        if http is None:
            _keep_receive_buffers()
            http, connector = _own_session(self._settings)
            if _direct.serves(http, self._headers.copy(None)):
                self._direct = DirectTransport(connector, self._headers, limit)
        self._http, self._general = http, ClientSessionTransport(http, self._headers, limit, is_lent=self.is_lent)
        return self._general

    def send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        progress: Progress,
        content_type: str = "application/json",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Coroutine[Any, Any, TransportResult]:
        """Send one request once; return its whole response or why there is none.

        `headers` are sent with this request only, in place of the session's own of the same name. After a cancellation `progress`
        says how far the request got.
        """
        general, direct = self._general or self._open(), self._direct
        if direct is not None and self._may_be_direct and _direct.is_undisturbed():
            plan = direct.plan(method, url, body, content_type, headers)
            if plan is not None:
                return direct.round_trip(*plan, progress)
        return general.round_trip(method, url, body, progress, content_type, headers)

    async def aclose(self) -> None:
        """Close the connections if they are the session's own."""
        http = self._forget()
        if http is not None and not self.is_lent:
            await http.close()

    def abandon(self) -> None:
        """Forget the connections without a loop to close them on."""
        http = self._forget()
        if http is not None and isinstance(http.connector, Connector):
            http.connector.abandon()

    def _forget(self) -> aiohttp.ClientSession | None:
        http, self._http, self._general, self._direct = self._http, None, None, None
        return http

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        connector = None if self._http is None else self._http.connector
        return f"{0 if connector is None else len(connector._acquired)}/{self._settings.max_connections} connections"


def _own_session(settings: Settings) -> tuple[aiohttp.ClientSession, Connector]:
    connector = Connector(settings.max_connections, True if settings.ssl is None else settings.ssl)
    http = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=NO_TIMEOUT,
        trust_env=settings.trust_env,
        proxy=settings.proxy,
    )
    # aiohttp repeats GET, PUT and DELETE by itself on a broken kept-alive connection; repeating is the caller's policy's.
    http._retry_connection = False
    return http, connector


@cache
def _keep_receive_buffers() -> None:
    """Keep glibc from giving asyncio's 256 KiB receive buffers back to the kernel after each answer.

    One large allocation, freed, raises its threshold for mmap: 16 microseconds per request on plain http.
    """
    bytes(2**20)
