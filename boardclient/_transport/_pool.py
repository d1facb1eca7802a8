"""The connections of a session, the choice of a transport for each request, and the transport over these connections.

`DirectTransport` costs less than half of `ClientSession.request`. The pool, TLS and the parser are aiohttp's. The head is written
here, with the headers that aiohttp would send. Requests out of the ordinary, and sessions with instruments, take
`ClientSessionTransport`. docs/design/transport.md describes the design.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from boardclient._transport._client_session import (
    OWN_INNER_REQUEST,
    OWN_REQUEST,
    SESSION_CLASS,
    ClientSessionTransport,
    OutgoingRequest,
    ShownResponse,
)
from boardclient._transport._connections import (
    FIELD_BYTES,
    KEEP_ALIVE_SECONDS,
    MOST_FIELDS,
    NO_TIMEOUT,
    Connector,
    Protocol,
    missing_parts,
)
from boardclient._transport._outcomes import failure_of, read_whole
from boardclient._transport._values import (
    FRAMING,
    LARGE_BODY_BYTES,
    Progress,
    RawResponse,
    RequestHeaders,
    Settings,
    TransportResult,
    can_add,
    with_fields,
)

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey

K = TypeVar("K")
V = TypeVar("V")

_logger: Final = logging.getLogger("boardclient.transport")

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_MOST_KEPT: Final = 64
_AT_HAND_BYTES: Final = 2**16
"""Up to this size a fully received body is taken from the StreamReader's buffer, since `read()` would resume the parser first,
for 2 microseconds. It is far below the size at which aiohttp pauses a connection."""
_PLAIN_ORIGIN: Final = re.compile(r"https?://[\w.\-:\[\]]+", re.ASCII)
_PLAIN_TARGET: Final = re.compile(r'/[!"$-~]*(?<!\?)')
"""A target that aiohttp sends unchanged: ASCII without spaces, control characters, a fragment or an empty query."""


class Pool:
    """The connections of a session, which closes them unless they are those of an application's `ClientSession`."""

    _may_be_direct: ClassVar[bool] = True
    """Whether `DirectTransport` may be used. Tests and benchmarks turn it off."""

    def __init__(self, settings: Settings, lent: aiohttp.ClientSession | None = None) -> None:
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
    ) -> Awaitable[TransportResult]:
        """Send one request once, and return its whole response or the failure.

        `headers` are sent with this request only, and replace the session's own of the same name. After a cancellation,
        `progress` says how far the request got.
        """
        self.sent += 1
        if self._made_by is not SESSION_CLASS["__init__"]:
            self._open()
        direct, plan = self._direct, None
        # As `is_wrapped`, without calling a function for each request.
        if direct is not None and SESSION_CLASS["_request"] is OWN_INNER_REQUEST and SESSION_CLASS["request"] is OWN_REQUEST:
            plan = direct.plan(method, url, body, content_type, headers)
        if direct is not None and plan is not None:
            return direct.round_trip(plan[0], plan[1], progress)
        general = self._unproxied if self._unproxied is not None and url.startswith("http:") else self._general
        return cast("ClientSessionTransport", general).round_trip(method, url, body, progress, content_type, headers)

    def _open(self) -> None:
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
        """How many requests can be in flight at a time."""
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
        """Close the connections if they are the session's own."""
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
        """The name of the transport that requests take now."""
        return ClientSessionTransport.__name__ if self._direct is None else DirectTransport.__name__

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        if self._connector is None:
            return f"0/{self.settings.max_connections} connections"
        return f"{len(self._connector._acquired)}/{self.settings.max_connections} connections, {self.transport_name}"


def _connector(settings: Settings) -> aiohttp.TCPConnector:
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


# --- the transport over these connections


class Prototype(aiohttp.ClientRequest):
    """The common part of the requests with one method and content type to one origin, which the connector gets for each."""

    def __init__(self, method: str, origin: str, headers: CIMultiDict[str], has_body: bool) -> None:
        super().__init__(method, URL(origin, encoded=True), headers=headers)
        if has_body:
            self.headers.pop("Content-Length", None)  # aiohttp computed it for no body
        elif method in self.POST_METHODS:
            self.headers.setdefault("Content-Type", "application/octet-stream")  # as aiohttp does
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        self.head: Final = " HTTP/1.1\r\n" + "".join(lines)

    @cached_property
    def connection_key(self) -> ConnectionKey:  # pyright: ignore[reportIncompatibleMethodOverride] -- a property computed once
        """The key of the connections in the pool."""
        return super().connection_key


class DirectTransport:
    """Sends requests over the connections of a pool of our own."""

    def __init__(self, connector: Connector, headers: RequestHeaders, limit: int) -> None:
        self._connector = connector
        self._acquired: Final = connector._acquired
        self._queue: Final = connector.queue
        self._headers = headers
        self._limit = limit
        self._at_hand = min(limit, _AT_HAND_BYTES)
        self._writes: Final = Writes()
        self._prototypes: Final[dict[tuple[str, str, str | None], Prototype]] = {}
        self._heads: Final[dict[tuple[str, str, str | None], tuple[Prototype, bytes]]] = {}

    def plan(
        self, method: str, url: str, body: bytes | None, content_type: str, headers: Mapping[str, str] | None
    ) -> tuple[Prototype, bytes] | None:
        """Return the prototype to connect with and the bytes to write, or None if `ClientSessionTransport` is needed."""
        key = (method, url, None if body is None else content_type)
        prepared = self._heads.get(key) or self._head(*key)
        if prepared is None:
            return None
        prototype, head = prepared
        if headers:
            fields = with_fields(CIMultiDict(), headers)
            if not all(can_add(prototype.headers, *field) for field in fields.items()):
                return None
            head += "".join([f"{name}: {value}\r\n" for name, value in fields.items()]).encode()
        if body is None:
            return prototype, head + b"\r\n"
        if len(body) > LARGE_BODY_BYTES:
            return None
        return prototype, b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, method: str, url: str, content_type: str | None) -> tuple[Prototype, bytes] | None:
        """Return the head of the requests for a URL, cached unless a query may hold credentials."""
        start = url.find("/", 8)  # after "https://"
        if _PLAIN_TARGET.fullmatch(url, start) is None:
            return None
        key = (method, url[:start], content_type)
        prototype = self._prototypes.get(key) or self._prototype(*key)
        if prototype is None:
            return None
        prepared = prototype, f"{method} {url[start:]}{prototype.head}".encode()
        if "?" not in url:
            _keep(self._heads, (method, url, content_type), prepared)
        return prepared

    def _prototype(self, method: str, origin: str, content_type: str | None) -> Prototype | None:
        if method not in _METHODS or _PLAIN_ORIGIN.fullmatch(origin) is None:
            return None
        try:
            prototype = Prototype(method, origin, self._headers.copy(content_type), content_type is not None)
        except ValueError:  # ClientSessionTransport reports what is wrong with it
            return None
        _keep(self._prototypes, (method, origin, content_type), prototype)
        return prototype

    async def round_trip(self, prototype: Prototype, wire: bytes, progress: Progress) -> TransportResult:
        """Send one request once, and return its response or the failure."""
        progress.stage, progress.connection = "connect", None
        connector, key = self._connector, prototype.connection_key
        protocol: Any = None
        outcome: TransportResult
        try:
            if len(self._acquired) >= self._queue.limit:
                await self._queue.wait()
            protocol = connector.take(key)
            if protocol is None:
                protocol = await connector.acquire(prototype)
            transport = protocol.transport
            if len(self._acquired) > 1:
                self._writes.add(protocol, wire, progress)
            else:  # the only request: waiting for others would cost an iteration of the event loop
                progress.begin_sending()
                protocol.write(wire)
            message, content = await protocol.read()
            while message.code < 200 and (message.code == 100 or message.code > 101):
                message, content = await protocol.read()
            progress.stage = "receive"
            progress.http_version = message.version
            protocol.note_response(message.headers, progress)
            is_complete = content.is_eof()
            if (
                is_complete
                and 0 < content.total_bytes <= self._at_hand
                and content.exception() is None
                and "Content-Encoding" not in message.headers
            ):
                outcome = RawResponse(message.code, message.headers, b"".join(content._buffer))
            else:
                outcome = await read_whole(message.code, message.headers, content, self._limit, progress.needs_body)
                is_complete = content.is_eof()
            if is_complete and not transport.get_write_buffer_size():  # else something remains to be read or written
                connector.give_back(key, protocol)
                protocol = None
        except Exception as error:  # it may hold the URL, so only a TransportFailure leaves this frame
            outcome = failure_of(error, progress.stage)
        finally:
            if protocol is not None:
                connector.discard(key, protocol)
        progress.stage = "idle"
        return outcome


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Cache a value for the next requests, with a bound since paths hold ever new identifiers."""
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


class Writes:
    """The requests to write once the other callbacks of this iteration have run. Owned by its `DirectTransport`.

    Python code runs slower right after a system call, so the calls of many tasks are faster without system calls in between. A
    request is not written if its call is cancelled, or its connection ends, before that.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Protocol, bytes, Progress]] = []

    def add(self, protocol: Protocol, wire: bytes, progress: Progress) -> None:
        """Write a request in the next iteration, until which its stage is "write"."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        progress.stage = "write"
        self._waiting.append((protocol, wire, progress))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for protocol, wire, progress in waiting:
            transport = protocol.transport
            if transport is None or transport.is_closing() or is_given_up(protocol):
                continue
            if not protocol.can_be_written():  # nothing is sent: the call ends with NOT_SENT
                transport.abort()
                continue
            if protocol.has_unread_records():
                self.add(protocol, wire, progress)
                continue
            try:
                progress.begin_sending()
                protocol.write(wire)
            except Exception:  # a guarded request, or a foreign transport: the other requests must still be written
                transport.abort()


def is_given_up(protocol: Protocol) -> bool:
    """Return True if the task that waits for the response was cancelled, though it has not run since."""
    waiter = protocol._waiter
    return waiter is not None and waiter.cancelled()
