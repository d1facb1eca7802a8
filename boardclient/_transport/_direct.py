"""The transport over the pool's connections. It costs less than half of `ClientSession.request`.

The pool, TLS and the parser are aiohttp's. The head is written here, with the headers that aiohttp would send. What this needs
beyond aiohttp's documented interface is checked once per process by `_probe`. Requests out of the ordinary take
`ClientSessionTransport`. The design is described in docs/design/transport.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import aiohttp

from boardclient._transport._connections import Connector
from boardclient._transport._failures import failure_of
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._instruments import Traces
from boardclient._transport._reading import read_whole
from boardclient._transport._requests import LARGE_BODY_BYTES, OutgoingRequest, Prototype
from boardclient._transport._shown_response import ShownResponse
from boardclient._transport._values import Progress, RawResponse, TransportResult
from boardclient._transport._writes import Writes

K = TypeVar("K")
V = TypeVar("V")
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_FRAMING: Final = frozenset({"connection", "content-length", "cookie", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
_MOST_KEPT: Final = 64
_AT_HAND_BYTES: Final = 2**16
"""Up to this size a fully received body is taken from the StreamReader's buffer, since `read()` would resume the parser first,
for 2 microseconds. It is far below the size at which aiohttp pauses a connection."""
_PLAIN_ORIGIN: Final = re.compile(r"https?://[\w.\-:\[\]]+", re.ASCII)
_PLAIN_TARGET: Final = re.compile(r'/[!"$-~]*(?<!\?)')
"""A target that aiohttp sends unchanged: ASCII without spaces, control characters, a fragment or an empty query."""
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~\w]+", re.ASCII)
_VALUE: Final = re.compile(r"[!-~](?:[ !-~]*[!-~])?", re.ASCII)
"""The value of a field, printable ASCII only. For names and values see https://www.rfc-editor.org/rfc/rfc9110#section-5.1 and
#section-5.5."""


def serves(http: aiohttp.ClientSession, headers: Mapping[str, str]) -> bool:
    """Return True if `DirectTransport` sends the same requests as this session would.

    It does not with a proxy, with headers that frame a message, or if an instrument has changed the session.
    """
    return (
        _FRAMING.isdisjoint(name.lower() for name in headers)
        and not (http.trust_env or http._default_proxy)
        and not (http._middlewares or http.headers or http._default_auth)
        and (http._request_class, http._response_class) == (OutgoingRequest, ShownResponse)
    )


class DirectTransport:
    """Sends requests over the connections of a pool of our own. Owned by its `Pool`."""

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
        self, method: str, url: str, body: bytes | None, content_type: str, headers: Mapping[str, str] | None = None
    ) -> tuple[Prototype, bytes] | None:
        """Return the prototype to connect with and the bytes to write.

        Return None for a request that needs `ClientSessionTransport`.
        """
        key = (method, url, None if body is None else content_type)
        prepared = self._heads.get(key) or self._head(*key)
        if prepared is None:
            return None
        prototype, head = prepared
        if headers:
            if not all(_can_add(prototype, *field) for field in headers.items()):
                return None
            head += "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
        if body is None:
            return prototype, head + b"\r\n"
        if len(body) > LARGE_BODY_BYTES:
            return None
        return prototype, b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, method: str, url: str, content_type: str | None) -> tuple[Prototype, bytes] | None:
        """Return the head of the requests for a URL.

        It is cached unless the URL has a query, which may hold credentials.
        """
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

    async def round_trip(self, prototype: Prototype, wire: bytes, progress: Progress, traces: Any = ()) -> TransportResult:
        """Send one request once, and return its response or the failure."""
        progress.stage = "connect"
        connector, key = self._connector, prototype.connection_key
        protocol: Any = None
        outcome: TransportResult
        try:
            if len(self._acquired) >= self._queue.limit:
                await self._queue.wait(traces)
            protocol = None if traces else connector.take(key)
            if protocol is None:
                protocol = await connector.acquire(prototype, traces)
            transport = protocol.transport
            if len(self._acquired) > 1:
                self._writes.add(protocol, wire, progress)
            else:  # the only request: waiting for others would cost an iteration of the event loop
                progress.stage = "send"
                protocol.write(wire)
            message, content = await protocol.read()
            while message.code < 200 and (message.code == 100 or message.code > 101):
                message, content = await protocol.read()
            progress.stage = "receive"
            progress.http_version = message.version
            is_complete = content.is_eof()
            if (
                is_complete
                and 0 < content.total_bytes <= self._at_hand
                and content.exception() is None
                and "Content-Encoding" not in message.headers
            ):
                outcome = RawResponse(message.code, message.headers, b"".join(content._buffer))
            else:
                outcome = await read_whole(message.code, message.headers, content, self._limit)
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

    async def traced_round_trip(
        self, traces: Traces, method: str, url: str, body: bytes | None, progress: Progress, content_type: str
    ) -> TransportResult:
        """Send a request that `plan` accepts, with trace signals.

        Headers that the handlers of the signals add are sent with it.
        """
        outcome: TransportResult
        try:
            await traces.start()
            plan = self.plan(method, url, body, content_type, self._addable(traces.headers, method, url, body, content_type))
            assert plan is not None  # noqa: S101 -- the pool has planned it before
            outcome = await self.round_trip(*plan, progress, traces.signals)
        except asyncio.CancelledError as cancellation:
            await traces.end(cancellation)
            raise
        await traces.end(outcome)
        return outcome

    def _addable(
        self, headers: Mapping[str, str], method: str, url: str, body: bytes | None, content_type: str
    ) -> dict[str, str]:
        """Return the headers that instruments added and that can be sent. Others are dropped: they can't end a call."""
        plan = self.plan(method, url, body, content_type)
        return {name: value for name, value in headers.items() if plan is not None and _can_add(plan[0], name, value)}


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Cache a value for the next requests. The cache is bounded, since paths hold ever new identifiers."""
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


def _can_add(prototype: Prototype, name: str, value: str) -> bool:
    """Return True if a header can be added to the head of one request.

    It must be well-formed, must not frame the message, and must not be there already.
    """
    is_well_formed = _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None
    return is_well_formed and name not in prototype.headers and name.lower() not in _FRAMING
