"""The connections of a session, and the choice of a transport for each request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Final

import aiohttp
import attrs

from boardclient._transport import _direct, _probe
from boardclient._transport._client_session import ClientSessionTransport
from boardclient._transport._connections import FIELD_BYTES, NO_TIMEOUT, Connector
from boardclient._transport._direct import DirectTransport
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._instruments import SESSION_CLASS, Traces, is_wrapped
from boardclient._transport._requests import OutgoingRequest
from boardclient._transport._shown import secrets_of
from boardclient._transport._shown_response import ShownResponse
from boardclient._transport._values import Progress, Settings, TransportResult

_logger: Final = logging.getLogger("boardclient.transport")


@attrs.frozen(eq=False)
class _Transports:
    """The transports over one `ClientSession`. `made_by` is the `ClientSession.__init__` that made it."""

    http: aiohttp.ClientSession
    general: ClientSessionTransport
    direct: DirectTransport | None
    made_by: object
    is_traced: bool
    """Whether the session has trace configs. It can't gain any later: instruments add theirs in `__init__`."""


class Pool:
    """The connections of a session. It closes them, unless they are those of an application's `ClientSession`."""

    _may_be_direct: ClassVar[bool] = True
    """Whether `DirectTransport` may be used. Tests and benchmarks turn it off."""
    relay: ClassVar[Callable[..., Awaitable[TransportResult]] | None] = None
    """What the requests of all pools pass through: the recorders and replays of `testing`. It calls `send` with `is_relayed`."""

    def __init__(self, settings: Settings, lent: aiohttp.ClientSession | None = None) -> None:
        if not isinstance(lent, aiohttp.ClientSession | None):
            raise TypeError(f"http must be an aiohttp.ClientSession, not {type(lent).__name__}")
        self.settings = settings
        self._lent = lent
        self.sent = 0
        """How many requests were sent or attempted."""
        self._connector: Connector | None = None
        self._sessions: list[aiohttp.ClientSession] = []
        self._usual: _Transports | None = None
        self._unproxied: _Transports | None = None
        self._headers: Final = RequestHeaders(settings)
        self._avoids_proxy = settings.trust_env and not settings.allow_insecure and lent is None

    @property
    def is_lent(self) -> bool:
        """Whether the connections are those of an application's `ClientSession`."""
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
        is_relayed: bool = False,
    ) -> Awaitable[TransportResult]:
        """Send one request once, and return its whole response or the failure.

        `headers` are sent with this request only, and replace the session's own of the same name. After a cancellation,
        `progress` says how far the request got.
        """
        if self.relay is not None and not is_relayed:
            return self.relay(self, method, url, body, progress, content_type, headers)
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
                    return direct.round_trip(plan[0], plan[1], progress)
                sent = self._headers.copy(None if body is None else content_type, headers)
                traces = Traces(transports.http, method, url, sent, secrets_of(url, body, content_type))
                return direct.traced_round_trip(traces, method, url, body, progress, content_type)
        return transports.general.round_trip(method, url, body, progress, content_type, headers)

    def _open(self) -> _Transports:
        """Make the transports. After `ClientSession` was patched, make new ones.

        The connections are kept.
        """
        if self._avoids_proxy:
            self._unproxied = self._transports(trust_env=False)
        self._usual = self._transports(trust_env=self.settings.trust_env)
        _logger.debug("requests take %s", self.transport_name)
        return self._usual

    def _transports(self, *, trust_env: bool) -> _Transports:
        limit = self.settings.max_answer_bytes
        http, direct = self._lent, None
        if http is None:
            if self._connector is None:
                _keep_receive_buffers()
                self._connector = _connector(self.settings)
            http = _own_session(self._connector, trust_env=trust_env, proxy=self.settings.proxy)
            self._sessions.append(http)
            if not _probe.fault() and _direct.serves(http, self._headers.copy(None)):
                direct = DirectTransport(self._connector, self._headers, limit)
        general = ClientSessionTransport(http, self._headers, limit, is_lent=self.is_lent)
        return _Transports(http, general, direct, SESSION_CLASS["__init__"], bool(getattr(http, "trace_configs", None)))

    @property
    def max_connections(self) -> int:
        """How many requests can be in flight at a time."""
        connector = None if self._lent is None else self._lent.connector
        limits = () if connector is None else (connector.limit, connector.limit_per_host)
        return min([self.settings.max_connections, *(limit for limit in limits if limit)])

    @property
    def connections(self) -> tuple[int, int, int]:
        """The numbers of open connections, of idle ones, and of waiting requests."""
        connector: Any = self._connector if self._lent is None else self._lent.connector
        idle, waiting = (sum(map(len, list(getattr(connector, name, {}).values()))) for name in ("_conns", "_waiters"))
        if self._connector is not None:
            waiting += len(self._connector.queue)
        return len(getattr(connector, "_acquired", ())) + idle, idle, waiting

    async def aclose(self) -> None:
        """Close the connections if they are the session's own."""
        sessions = self._forget()
        for http in sessions:
            await http.close()

    def abandon(self) -> None:
        """Forget the connections without closing them.

        They belong to another event loop or process.
        """
        if self._connector is not None:
            self._connector.abandon()
        self._forget()

    def _forget(self) -> list[aiohttp.ClientSession]:
        sessions, self._sessions = self._sessions, []
        self._connector = self._usual = self._unproxied = None
        return sessions

    @property
    def transport_name(self) -> str:
        """The name of the transport that requests take now."""
        usual = self._usual
        is_direct = usual is not None and usual.direct is not None and self._may_be_direct
        return DirectTransport.__name__ if is_direct else ClientSessionTransport.__name__

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        if self._connector is None:
            return f"0/{self.settings.max_connections} connections"
        return f"{len(self._connector._acquired)}/{self.settings.max_connections} connections, {self.transport_name}"


def _connector(settings: Settings) -> Connector:
    ssl = True if settings.ssl is None else settings.ssl
    return Connector(settings.max_connections, ssl, is_known=not _probe.fault())


def _own_session(connector: Connector, *, trust_env: bool, proxy: str | None) -> aiohttp.ClientSession:
    http = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        request_class=OutgoingRequest,
        response_class=ShownResponse,
        timeout=NO_TIMEOUT,
        trust_env=trust_env,
        proxy=proxy,
        max_line_size=FIELD_BYTES,
        max_field_size=FIELD_BYTES,
    )
    # Only the caller's policy may repeat requests. aiohttp would repeat GET, PUT and DELETE when a kept-alive connection breaks
    # (https://github.com/aio-libs/aiohttp/issues/10790).
    http._retry_connection = False
    return http


@cache
def _keep_receive_buffers() -> None:
    """Make glibc keep asyncio's receive buffers instead of returning them each time.

    They have 256 KiB. Freeing one larger allocation raises the threshold from which glibc uses mmap (M_MMAP_THRESHOLD in
    https://man7.org/linux/man-pages/man3/mallopt.3.html). This saves 16 microseconds per request over plain http.
    """
    bytes(2**20)
