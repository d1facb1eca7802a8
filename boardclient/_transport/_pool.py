"""The connections of a session, and which transport each request takes."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, ClassVar, Final

import aiohttp
import attrs

from boardclient._transport import _direct, _probe
from boardclient._transport._client_session import ClientSessionTransport
from boardclient._transport._connections import NO_TIMEOUT, Connector
from boardclient._transport._direct import DirectTransport
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._instruments import SESSION_CLASS, Traces, is_wrapped
from boardclient._transport._progress import Progress
from boardclient._transport._protocol import FIELD_BYTES
from boardclient._transport._requests import SignedRequest
from boardclient._transport._settings import Settings
from boardclient._transport._values import TransportResult

_logger: Final = logging.getLogger("boardclient.transport")


@attrs.frozen
class _Transports:
    """The transports over one `ClientSession`, as it was made when `made_by` made it."""

    http: aiohttp.ClientSession
    general: ClientSessionTransport
    direct: DirectTransport | None
    made_by: object
    is_traced: bool
    """Whether the session has trace configs: instruments add theirs in `__init__`, and nobody else has the session."""


class Pool:
    """The connections of a session. It owns and closes them, or uses an application's session."""

    _may_be_direct: ClassVar[bool] = True
    """Tests and benchmarks turn it off, to see `ClientSessionTransport` where the direct one would be taken."""

    def __init__(self, settings: Settings, lent: aiohttp.ClientSession | None = None) -> None:
        self._settings = settings
        self._lent = lent
        self.sent = 0
        """How many requests were sent, or tried."""
        self._connector: Connector | None = None
        self._sessions: list[aiohttp.ClientSession] = []
        self._usual: _Transports | None = None
        self._unproxied: _Transports | None = None
        self._headers: Final = RequestHeaders(settings)
        self._avoids_proxy = settings.trust_env and not settings.allow_insecure and lent is None

    @property
    def is_lent(self) -> bool:
        """Whether the connections are an application's."""
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
    ) -> Coroutine[Any, Any, TransportResult]:
        """Send one request once; return its whole response or why there is none.

        `headers` are sent with this request only, in place of the session's own of the same name. After a cancellation `progress`
        says how far the request got.
        """
        self.sent += 1
        transports = self._usual
        if transports is None or transports.made_by is not SESSION_CLASS["__init__"]:
            transports = self._open()
        if self._avoids_proxy and url.startswith("http:") and self._unproxied is not None:
            transports = self._unproxied
        direct = transports.direct
        if direct is not None and self._may_be_direct and not is_wrapped():
            plan = direct.plan(method, url, body, content_type, headers)
            if plan is not None:
                if not transports.is_traced:
                    return direct.round_trip(*plan, progress)
                traces = Traces(transports.http, method, url, self._headers.copy(None if body is None else content_type, headers))
                return direct.traced_round_trip(traces, method, url, body, progress, content_type)
        return transports.general.round_trip(method, url, body, progress, content_type, headers)

    def _open(self) -> _Transports:
        """Make the transports, and again where instruments changed how sessions are made. The connections stay."""
        if self._avoids_proxy:
            self._unproxied = self._transports(trust_env=False)
        self._usual = self._transports(trust_env=self._settings.trust_env)
        _logger.debug("requests take %s", self.transport_name)
        return self._usual

    def _transports(self, *, trust_env: bool) -> _Transports:
        limit = self._settings.max_answer_bytes
        http, direct = self._lent, None
        if http is None:
            if self._connector is None:
                _keep_receive_buffers()
                self._connector = _connector(self._settings)
            http = _own_session(self._connector, trust_env=trust_env, proxy=self._settings.proxy)
            self._sessions.append(http)
            if not _probe.fault() and _direct.serves(http, self._headers.copy(None)):
                direct = DirectTransport(self._connector, self._headers, limit)
        general = ClientSessionTransport(http, self._headers, limit, is_lent=self.is_lent)
        return _Transports(http, general, direct, SESSION_CLASS["__init__"], bool(getattr(http, "trace_configs", None)))

    @property
    def max_connections(self) -> int:
        """How many requests can be in flight at a time; aiohttp takes 0 for no limit."""
        connector = None if self._lent is None else self._lent.connector
        limits = () if connector is None else (connector.limit, connector.limit_per_host)
        return min([self._settings.max_connections, *(limit for limit in limits if limit)])

    @property
    def connections(self) -> tuple[int, int, int]:
        """How many connections are open, how many of them are idle, and how many wait."""
        connector: Any = self._connector if self._lent is None else self._lent.connector
        idle, waiting = (sum(map(len, list(getattr(connector, name, {}).values()))) for name in ("_conns", "_waiters"))
        return len(getattr(connector, "_acquired", ())) + idle, idle, waiting

    async def aclose(self) -> None:
        """Close the connections if they are the session's own."""
        sessions = self._forget()
        for http in sessions:
            await http.close()

    def abandon(self) -> None:
        """Forget the connections without a loop to close them on."""
        if self._connector is not None:
            self._connector.abandon()
        self._forget()

    def _forget(self) -> list[aiohttp.ClientSession]:
        sessions, self._sessions = self._sessions, []
        self._connector = self._usual = self._unproxied = None
        return sessions

    @property
    def transport_name(self) -> str:
        """What requests take now."""
        usual = self._usual
        is_direct = usual is not None and usual.direct is not None and self._may_be_direct
        return DirectTransport.__name__ if is_direct else ClientSessionTransport.__name__

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        if self._connector is None:
            return f"0/{self._settings.max_connections} connections"
        return f"{len(self._connector._acquired)}/{self._settings.max_connections} connections, {self.transport_name}"


def _connector(settings: Settings) -> Connector:
    ssl = True if settings.ssl is None else settings.ssl
    return Connector(settings.max_connections, ssl, has_own_protocol=not _probe.fault())


def _own_session(connector: Connector, *, trust_env: bool, proxy: str | None) -> aiohttp.ClientSession:
    http = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        request_class=SignedRequest,
        timeout=NO_TIMEOUT,
        trust_env=trust_env,
        proxy=proxy,
        max_line_size=FIELD_BYTES,
        max_field_size=FIELD_BYTES,
    )
    # aiohttp repeats GET, PUT and DELETE by itself on a broken kept-alive connection; repeating is the caller's policy's.
    http._retry_connection = False
    return http


@cache
def _keep_receive_buffers() -> None:
    """Keep glibc from returning asyncio's receive buffers after each response. They have 256 KiB.

    One large allocation, freed, raises its threshold for mmap: 16 microseconds per request on plain http.
    """
    bytes(2**20)
