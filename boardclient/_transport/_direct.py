"""The transport that writes requests itself, over the connections of a pool of our own.

It costs less than half of `ClientSession.request`. Connecting, TLS and the pool are aiohttp's. The head is written here, with
the headers that aiohttp would send, and `ResponseReader` reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from boardclient._transport._bodies import read_whole
from boardclient._transport._connection_pool import Connector
from boardclient._transport._reader import ResponseReader, failure_of
from boardclient._transport._values import (
    LARGE_BODY_BYTES,
    Progress,
    RawResponse,
    RequestHeaders,
    TransportResult,
    can_add,
    with_fields,
)

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey

    from boardclient._transport._order import WritePlace

K = TypeVar("K")
V = TypeVar("V")

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_MOST_KEPT: Final = 64
_PLAIN_ORIGIN: Final = re.compile(r"https?://[\w.\-:\[\]]+", re.ASCII)
_PLAIN: Final = bytes({*range(0x21, 0x7F)} - set(b"#"))
"""What a target consists of that aiohttp sends unchanged: no space, no control character, no fragment."""


class Prototype(aiohttp.ClientRequest):
    """The common part of the requests with one method and content type to one origin, which the connector gets for each."""

    def __init__(self, method: str, origin: str, headers: CIMultiDict[str], has_body: bool) -> None:
        super().__init__(method, URL(origin, encoded=True), headers=headers)
        if has_body:
            self.headers.pop("Content-Length", None)  # aiohttp computed it for no body
        elif method in self.POST_METHODS:
            self.headers.setdefault("Content-Type", "application/octet-stream")  # as aiohttp does
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        self.head: Final = f" HTTP/1.1\r\n{''.join(lines)}".encode()

    @cached_property
    def connection_key(self) -> ConnectionKey:  # pyright: ignore[reportIncompatibleMethodOverride] -- a property computed once
        return super().connection_key


class DirectTransport:
    def __init__(self, connector: Connector, headers: RequestHeaders, limit: int) -> None:
        self._connector = connector
        self._acquired: Final = connector._acquired
        self._queue: Final = connector.queue
        self._headers = headers
        self._limit = limit
        self._writes: Final = Writes()
        self._prototypes: Final[dict[tuple[str, str, str | None], Prototype]] = {}
        self._heads: Final[dict[tuple[str, str, str | None], tuple[Prototype, bytes]]] = {}

    def prepared(
        self, method: str, url: str, body: bytes | None, content_type: str, headers: Mapping[str, str] | None
    ) -> tuple[Prototype, bytes] | None:
        """Return the prototype to connect with and the bytes to write, or None if `ClientSessionTransport` is needed."""
        key = (method, url, None if body is None else content_type)
        prepared = self._heads.get(key) or self._head(*key)
        # Left to `ClientSessionTransport`: methods and addresses that aiohttp would change, headers that frame a message or are
        # there already, and bodies that have to be written in pieces with flow control.
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
        line = f"{method} {url[start:]}".encode(errors="surrogatepass")
        # Without a regular expression, which takes twice as long for a query with credentials. aiohttp drops an empty query.
        if start < 0 or url.endswith("?") or line.translate(None, _PLAIN) != b" ":
            return None
        key = (method, url[:start], content_type)
        prototype = self._prototypes.get(key) or self._prototype(*key)
        if prototype is None:
            return None
        prepared = prototype, line + prototype.head
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
        progress.stage, progress.connection = "connect", None
        connector, key = self._connector, prototype.connection_key
        protocol: Any = None
        outcome: TransportResult
        place = None if progress.order is None else progress.order.enter()
        try:
            # It waits if all connections are in use. Then it takes an idle one, for a third of what aiohttp asks, or a new one.
            if len(self._acquired) >= self._queue.limit:
                await self._queue.wait()
            protocol = connector.take(key)
            if protocol is None:
                protocol = await connector.acquire(prototype)
            if place is not None and not place.is_due(is_fresh=not protocol.responses):
                await _wait_for_place(place, protocol)
            transport, reader = protocol.transport, protocol.reader or protocol.read_directly(connector.buffer)
            response = reader.begin()
            if len(self._acquired) > 1:
                self._writes.add(protocol, wire, progress)
            else:  # the only request: waiting for others would cost an iteration of the event loop
                progress.begin_sending()
                reader.write(wire)
            if place is not None:
                place.note_written(is_fresh=not protocol.responses)
            await response
            if reader.has_head:
                progress.stage = "receive"
                progress.http_version, headers = reader.http_version, reader.headers
                protocol.count_response(headers, progress)
                if _is_whole(reader, self._limit):
                    outcome = RawResponse(reader.status, headers, reader.take())
                else:
                    outcome = await read_whole(reader.status, headers, reader, self._limit, progress.needs_body)
                if _can_be_kept(reader, transport):
                    connector.give_back(key, protocol)
                    protocol = None
            else:  # asyncio's error is not raised, since others hold it, and it would hold this frame
                outcome = failure_of(reader.error, progress.stage)
        except Exception as error:  # it may hold the URL, so only a TransportFailure leaves this frame
            error.__traceback__ = None
            outcome = failure_of(error, progress.stage)
        finally:
            if place is not None:
                place.end()
            if protocol is not None:
                connector.discard(key, protocol)
        progress.stage = "idle"
        return outcome


async def _wait_for_place(place: WritePlace, protocol: Any) -> None:
    """Wait until a request may be written.

    Raises:
        aiohttp.ClientConnectionResetError: its connection was lost meanwhile.
    """
    await place.wait(is_fresh=not protocol.responses)
    if not protocol.can_be_written():
        raise aiohttp.ClientConnectionResetError


def _is_whole(reader: ResponseReader, limit: int) -> bool:
    """Return True for a whole body without a coding, taken as it is. Others are read in parts: no limit is passed, others run."""
    return reader.is_complete and reader.size <= limit and "Content-Encoding" not in reader.headers


def _can_be_kept(reader: ResponseReader, transport: asyncio.WriteTransport) -> bool:
    """Return True if nothing remains to be read or written on a connection, and the peer does not close it."""
    return reader.is_complete and reader.can_be_kept and not transport.get_write_buffer_size()


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
        self._waiting: list[tuple[Any, bytes, Progress]] = []

    def add(self, protocol: Any, wire: bytes, progress: Progress) -> None:
        """Write a request in the next iteration, until which its stage is "write"."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        progress.stage = "write"
        self._waiting.append((protocol, wire, progress))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        is_held = False
        for protocol, wire, progress in waiting:
            if protocol.reader.progress.done():  # the call was cancelled, though it has not run since, or the connection was lost
                continue
            if protocol.has_unread_records() or (is_held and progress.order is not None):  # none overtakes one that is held
                is_held = True
                self.add(protocol, wire, progress)
                continue
            try:
                if not protocol.can_be_written():
                    raise aiohttp.ClientConnectionResetError
                progress.begin_sending()
                protocol.reader.write(wire)
            except Exception:  # also a guarded request, or a foreign transport: the other requests must still be written
                protocol.abort()
