"""Chooses the transport of each request, and opens and closes what both transports need.

Requests out of the ordinary, and sessions with instruments, take `ClientSessionTransport`. docs/design/transport.md describes the
design.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, Final, cast

import aiohttp

from boardclient._transport._client_session import (
    OWN_INNER_REQUEST,
    OWN_REQUEST,
    SESSION_CLASS,
    ClientSessionTransport,
    OutgoingRequest,
    ShownResponse,
)
from boardclient._transport._connection_pool import KEEP_ALIVE_SECONDS, NO_TIMEOUT, Connector, missing_parts
from boardclient._transport._direct import DirectTransport
from boardclient._transport._reader import FIELD_BYTES, MOST_FIELDS
from boardclient._transport._values import FRAMING, Progress, RequestHeaders, TransportResult, TransportSettings

_logger: Final = logging.getLogger("boardclient.transport")


class TransportChoice:
    """The connections of a session, which closes them unless they are those of an application's `ClientSession`."""

    _may_be_direct: ClassVar[bool] = True
    """Whether `DirectTransport` may be used. Tests and benchmarks turn it off."""

    def __init__(self, settings: TransportSettings, lent: aiohttp.ClientSession | None = None) -> None:
        if not isinstance(lent, aiohttp.ClientSession | None):
            raise TypeError(f"http must be an aiohttp.ClientSession, not {type(lent).__name__}")
        self.settings = settings
        self._lent = lent
        self.sent: int = 0
        """How many requests were sent or attempted."""
        self._connector: aiohttp.TCPConnector | None = None
        self._sessions: list[aiohttp.ClientSession] = []
        self._general: ClientSessionTransport | None = None
        self._unproxied: ClientSessionTransport | None = None
        self._direct: DirectTransport | None = None
        self._made_by: object = None
        """The `ClientSession.__init__` that made the sessions."""
        self._headers: Final = RequestHeaders(settings)

    @property
    def is_lent(self) -> bool:
        return self._lent is not None

    def send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        progress: Progress,
        content_type: str = "application/json",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Awaitable[TransportResult]:
        """Send one request once, and return its whole response or the failure.

        `headers` are sent with this request only, and replace the session's own of the same name. After a cancellation,
        `progress` says how far the request got.
        """
        self.sent += 1
        if self._made_by is not SESSION_CLASS["__init__"]:
            self._make_transports()
        # Direct if neither the session nor an instrument that was installed meanwhile, nor the request itself, needs
        # `ClientSession`. The condition is `is_wrapped`, without calling a function for each request.
        direct = self._direct
        if direct is not None and SESSION_CLASS["_request"] is OWN_INNER_REQUEST and SESSION_CLASS["request"] is OWN_REQUEST:
            found = direct.prepared(method, url, body, content_type, headers)
            if found is not None:
                return direct.round_trip(found[0], found[1], progress)
        general = self._unproxied if self._unproxied is not None and url.startswith("http:") else self._general
        return cast("ClientSessionTransport", general).round_trip(method, url, body, progress, content_type, headers)

    def _make_transports(self) -> None:
        """Make the transports, with the first request and once an instrument has replaced `ClientSession.__init__`."""
        settings, trusts = self.settings, self.settings.trust_env
        self._made_by, self._direct = SESSION_CLASS["__init__"], None
        if self._lent is None:
            connector = self._connector = self._connector or _connector(settings)
            http = self._session(connector, trust_env=trusts)
            if trusts and not settings.allow_insecure:  # else a proxy of the environment would get what is not encrypted
                unproxied = self._session(connector, trust_env=False)
                self._unproxied = ClientSessionTransport(unproxied, self._headers, settings.max_answer_bytes, is_lent=False)
            if self._may_be_direct and isinstance(connector, Connector) and _is_plain(http, self._headers.copy(None)):
                self._direct = DirectTransport(connector, self._headers, settings.max_answer_bytes)
        else:
            http = self._lent
        self._general = ClientSessionTransport(http, self._headers, settings.max_answer_bytes, is_lent=self.is_lent)
        _logger.debug("requests take %s", self.transport_name)

    def _session(self, connector: aiohttp.TCPConnector, *, trust_env: bool) -> aiohttp.ClientSession:
        http = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=OutgoingRequest,
            response_class=ShownResponse,
            timeout=NO_TIMEOUT,
            trust_env=trust_env,
            proxy=self.settings.proxy,
            max_line_size=FIELD_BYTES,
            max_field_size=FIELD_BYTES,
            max_headers=MOST_FIELDS,
        )
        # Only the caller's policy may repeat requests. aiohttp would repeat GET, PUT and DELETE when a kept-alive connection
        # breaks (https://github.com/aio-libs/aiohttp/issues/10790).
        http._retry_connection = False
        self._sessions.append(http)
        return http

    @property
    def max_connections(self) -> int:
        connector = None if self._lent is None else self._lent.connector
        limits = () if connector is None else (connector.limit, connector.limit_per_host)
        return min([self.settings.max_connections, *(limit for limit in limits if limit)])

    @property
    def connections(self) -> tuple[int, int, int]:
        """The numbers of open connections, of idle ones, and of waiting requests."""
        connector: Any = self._connector if self._lent is None else self._lent.connector
        idle, waiting = (sum(map(len, list(getattr(connector, name, {}).values()))) for name in ("_conns", "_waiters"))
        if isinstance(self._connector, Connector):
            waiting += len(self._connector.queue)
        return len(getattr(connector, "_acquired", ())) + idle, idle, waiting

    async def aclose(self) -> None:
        sessions = self._forget()
        for http in sessions:
            await http.close()

    def abandon(self) -> None:
        """Forget the connections without closing them, since they belong to another event loop or process."""
        if self._connector is not None:
            self._connector._closed = True  # its connections are not closed
        self._forget()

    def _forget(self) -> list[aiohttp.ClientSession]:
        sessions, self._sessions = self._sessions, []
        self._connector = self._general = self._unproxied = self._direct = self._made_by = None
        return sessions

    @property
    def transport_name(self) -> str:
        return ClientSessionTransport.__name__ if self._direct is None else DirectTransport.__name__

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        if self._connector is None:
            return f"0/{self.settings.max_connections} connections"
        return f"{len(self._connector._acquired)}/{self.settings.max_connections} connections, {self.transport_name}"


def _connector(settings: TransportSettings) -> aiohttp.TCPConnector:
    ssl = True if settings.ssl is None else settings.ssl
    connector = Connector(settings.max_connections, ssl)
    missing = missing_parts(connector)
    if not missing:
        return connector
    _logger.warning("requests take aiohttp's ClientSession: this aiohttp lacks %s", ", ".join(missing))
    return aiohttp.TCPConnector(limit=settings.max_connections, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=ssl)


def _is_plain(http: aiohttp.ClientSession, headers: Mapping[str, str]) -> bool:
    """Return True if a session sends what `DirectTransport` does, without proxy, instruments and headers that frame messages."""
    return (
        FRAMING.isdisjoint(name.lower() for name in headers)
        and not (http.trust_env or http._default_proxy)
        and not (http._middlewares or http.headers or http._default_auth or http.trace_configs)
        and (http._request_class, http._response_class) == (OutgoingRequest, ShownResponse)
    )
