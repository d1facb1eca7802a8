"""The connections of a session's own pool: which one a request gets, how long an idle one is kept, and who waits for one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import re
import select
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from ssl import SSLContext
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from boardclient._base._fifo import Fifo
from boardclient._transport._reader import BUFFER_BYTES, ResponseReader
from boardclient._transport._tls_ends import E, UnreadRecords, silent
from boardclient._transport._values import Progress, UsedConnection

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest, ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

KEEP_ALIVE_SECONDS: Final = 4.0
"""How long an idle connection is kept. Servers keep them for 5 s or more, so few requests meet one that is being closed."""

NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""Turns aiohttp's timers off, which cost each request 6 microseconds. The deadline of the call applies instead."""

PROGRESS: Final[ContextVar[Progress | None]] = ContextVar("boardclient_progress", default=None)
"""The progress of the request that the current task sends through `ClientSession`."""

_READ_BYTES: Final = 2**16
_ITERATIONS_OF_AN_END: Final = 4
_HAS_POLL: Final = hasattr(select, "poll")
_INPUT: Final = 0 if not _HAS_POLL else select.POLLIN | getattr(select, "POLLRDHUP", 0)
_IDLE_LIMIT: Final = re.compile(r"timeout\s*=\s*\"?(\d{1,6})", re.ASCII | re.IGNORECASE)
"""The parameter of `Keep-Alive` (https://www.rfc-editor.org/rfc/rfc2068#section-19.7.1.1)."""
_MARGIN_SECONDS: Final = 1.0
"""How much earlier than announced a connection is given up, but at most half of the time: the request has to arrive before."""


class ConnectionQueue:
    """The requests that wait for a connection, first in, first out. Owned by its `Connector`.

    It replaces aiohttp's own queue (`BaseConnector.connect`), in which calls may wait until their deadlines although connections
    are free:

    - A request that begins right after a response takes its connection before those that wait. So callers that make one call
      after another leave no connection to the others.
    - If a request is cancelled after it was resumed and before it runs, nothing resumes the next one.

    `acquired` are the connections in use, those that are being opened included; `most` is the largest number of them.
    """

    def __init__(self, acquired: Sized, most: int) -> None:
        self._acquired: Final = acquired
        self._most: Final = most
        self._waiting: Final = Fifo()
        self._resumed = 0
        """How many requests were resumed and have not acquired their connection yet."""
        self.limit = most
        """The number of connections in use from which on a request has to wait. It is 0 while others wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, traces: Sequence[Trace] = ()) -> None:
        """Wait for a free connection, which the caller acquires at once."""
        for trace in traces:
            await trace.send_connection_queued_start()
        try:
            if len(self._acquired) < self.limit:  # while traces were notified one has become free
                self._resumed += 1
            else:
                self.limit = 0
                await self._waiting.wait(self._count_out)
            try:
                for trace in traces:
                    await trace.send_connection_queued_end()
            finally:
                self._count_out()
        except BaseException:
            self.resume()
            raise
        self._update_limit()

    def resume(self) -> None:
        while len(self._acquired) + self._resumed < self._most and self._waiting.resume():
            self._resumed += 1
        self._update_limit()

    def _count_out(self) -> None:
        """Note that a request which was resumed acquires its connection now, or has ended."""
        self._resumed -= 1

    def _update_limit(self) -> None:
        self.limit = 0 if self._waiting else self._most - self._resumed


class Connector(aiohttp.TCPConnector):
    """Provides the connections of a pool to both transports, and checks them."""

    def __init__(self, limit: int, ssl: SSLContext | bool | aiohttp.Fingerprint) -> None:
        self._process = os.getpid()
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=ssl)
        self.queue: Final = ConnectionQueue(self._acquired, limit)
        self.buffer: Final = memoryview(bytearray(BUFFER_BYTES))
        """What the connections read into. Each takes what it has read at once."""
        factory = functools.partial(Protocol, loop=self._loop, connector=weakref.ref(self))
        self._factory = cast("functools.partial[ResponseHandler]", factory)

    def __del__(self, *_: object) -> None:
        # After a fork, parent and child share the epoll instance: closing here would unregister the parent's connections
        # (https://man7.org/linux/man-pages/man7/epoll.7.html).
        if self._process == os.getpid() and not self._closed and any(self._conns.values()):
            super().__del__()

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        """Return a connection for a request of `ClientSession`, once there is one."""
        progress = PROGRESS.get()
        if progress is not None:
            progress.stage = "connect"
        if len(self._acquired) >= self.queue.limit:
            await self.queue.wait(traces)
        connection = await self._connect(req, traces, timeout)
        cast("Protocol", connection.protocol).read_by_aiohttp()
        return connection

    async def _connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        """Return a connection, which may be new, after the caller has waited in the queue."""
        connection = await super().connect(req, traces, timeout)
        try:
            await cast("Protocol", connection.protocol).check_unused()
        except BaseException:
            connection.close()
            raise
        return connection

    def _release_waiter(self) -> None:
        """Resume requests that wait, whenever aiohttp releases a connection."""
        if not self.queue.limit:
            self.queue.resume()
        super()._release_waiter()

    def take(self, key: ConnectionKey) -> Any:
        """Acquire the next idle connection that can be used, as `connect` does for three times the cost, or return None."""
        idle = self._conns.get(key)
        if not idle:
            return None
        protocol, since = idle[0]
        if monotonic() - since > KEEP_ALIVE_SECONDS or not protocol.is_connected():
            return None  # `acquire` closes it
        idle.popleft()  # if it is empty now it stays: the connection comes back soon
        self._acquired.add(protocol)
        return protocol

    async def acquire(self, request: ClientRequest) -> Any:
        """Acquire a connection, which may be a new one, and return its protocol."""
        connection = await self._connect(request, [], NO_TIMEOUT)
        protocol: Any = connection.protocol
        connection._protocol = None  # else the connection would be closed with this object
        return protocol

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        """Keep a connection, or close it, and take what comes from now on for the response to no request."""
        used = cast("Protocol", protocol)
        used.has_surplus = used.has_surplus or bool(used._buffer)
        used._parser = None
        used.awaits_response = False
        super()._release(key, protocol, should_close=should_close)

    def give_back(self, key: ConnectionKey, protocol: ResponseHandler) -> None:
        """Keep a connection for the next request. `take` sees whether it can be used by then."""
        # The short way needs what the long one would set up: a timer that closes idle connections, started by the first release.
        if self._closed or self._cleanup_handle is None:
            self._release(key, protocol)
        else:  # what `_release` does then
            cast("Protocol", protocol).awaits_response = False
            self._acquired.discard(protocol)
            self._conns[key].append((protocol, monotonic()))
            if not self.queue.limit:
                self.queue.resume()

    def discard(self, key: ConnectionKey, protocol: ResponseHandler) -> None:
        self._release(key, protocol, should_close=True)


_USED: Final = {
    "TCPConnector": ("_acquired", "_cleanup_handle", "_closed", "_conns", "_factory", "_loop", "_release", "_release_waiter"),
    "ResponseHandler": (
        *("_buffer", "_parser", "_payload", "_should_close", "_tail"),
        *("abort", "connection_lost", "data_received", "set_exception"),
    ),
}
"""What is used of aiohttp's classes, most of it beyond its documentation. `tests/service` shows that it works as it is used."""


def missing_parts(connector: aiohttp.TCPConnector) -> list[str]:
    """Return the names of what this aiohttp lacks, without which requests take `ClientSession`."""
    objects = (connector, ResponseHandler(asyncio.get_running_loop()))
    return [
        f"{kind}.{name}"
        for (kind, used), one in zip(_USED.items(), objects, strict=True)
        for name in used
        if not hasattr(one, name)
    ]


class Protocol(UsedConnection, ResponseHandler):
    """Parses the responses of one connection. Owned by its connector.

    It differs from aiohttp's protocol in this:

    - A connection that has input without a request gets none: the peer closed it, or sent a response to no request
      (https://www.rfc-editor.org/rfc/rfc9112#section-9.2).
    - An idle connection is used no longer than its peer has announced to keep it.
    - If parsing fails in a later packet, or the connection is reset, the body being read ends with an error. aiohttp's parser
      drops the body then, and its reader waits forever (related: https://github.com/aio-libs/aiohttp/issues/10355).
    - If writing the request fails because the peer closed the connection, a response that it sent before is still read.
    - Closing does not wait for the peer. A graceful TLS shutdown takes up to 30 s (`ssl_shutdown_timeout` in
      https://docs.python.org/3/library/asyncio-eventloop.html), and the unsent rest of an ended call must not be sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connector: Callable[[], Connector | None] = lambda: None) -> None:
        super().__init__(loop)
        self._connector = connector
        # All attributes from the start: instances that get more later no longer share their keys, and are slower to read.
        self._unread: Callable[[int], list[tuple[int, int]]] = _no_input
        """Return the poll events of input that was not read yet: bytes, or an end of file. The argument is how long to wait."""
        self._is_tls = False
        self.reader: ResponseReader | None = None
        """What reads the responses, None for aiohttp's parser."""
        self.awaits_response: bool = True
        """Whether what comes is a response. False while the connection is idle, and until the request that gets it is written."""
        self._records: UnreadRecords | None = None
        self.is_heard: bool = False
        """Whether any part of a response came over it."""
        self._ended_by: BaseException | None = None
        """The error that ended the connection, such as an alert of TLS."""
        self._usable_until = math.inf
        """When the peer may close the idle connection, as it has announced."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unread = _input_check(transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._records = UnreadRecords(transport, self._receive) if self._is_tls else None

    def data_received(self, data: bytes) -> None:
        """Read a part of a response, or keep what is a response to no request from the parser."""
        if data and not self.awaits_response:  # a body that is read passes none, also when the next request has the connection
            self._parser = None  # aiohttp adds it to `_tail` then
            self.has_surplus = self.has_surplus or bool(data.strip(b"\r\n"))  # empty lines are none (RFC 9112, 2.2)
        self.is_heard = True
        super().data_received(data)

    def read_directly(self, buffer: memoryview) -> ResponseReader:
        """Leave the responses to a reader of our own, until `read_by_aiohttp`."""
        assert self.transport is not None  # noqa: S101 -- the connection was acquired just now
        self.reader = reader = ResponseReader(self, self.transport, buffer)
        self.transport.set_protocol(reader)
        return reader

    def read_by_aiohttp(self) -> None:
        """Leave the responses to aiohttp's parser."""
        if self.reader is not None and self.transport is not None:
            self.reader = None
            self.transport.set_protocol(self)

    def count_response(self, headers: Mapping[str, str], progress: Progress) -> None:
        """Count a response, and note how long its peer keeps the connection."""
        self.responses += 1
        progress.connection, progress.response_number = self, self.responses
        announced = headers.get("Keep-Alive")
        if announced is not None and (limit := _IDLE_LIMIT.search(announced)) is not None:
            seconds = float(limit[1])
            self._usable_until = monotonic() + seconds - min(_MARGIN_SECONDS, seconds / 2)

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes over it any more."""
        return self.transport is None or self.transport.is_closing()

    def use_next(self) -> bool | None:
        """Let the next request have it. Return False while another one has it, and None if it is closed."""
        if not (self.is_connected() or self.awaits_response):
            return None
        connector = self._connector()
        for idle in () if connector is None else connector._conns.values():  # of each origin, the first is used next
            for place, (protocol, _) in enumerate(idle):
                if protocol is self:
                    idle.rotate(-place)
                    return True
        return False

    def distrust(self) -> bool:
        self._should_close = True
        if self.transport is not None:
            self.transport.abort()
        return True

    def is_connected(self) -> bool:
        """Return True if a request can be written to an idle connection, which aiohttp's connector asks too."""
        return self.can_be_written() and not (self._buffer or self._should_close or self.has_unread_records())

    def can_be_written(self) -> bool:
        """Return True if a request can be written to the connection, new or not, unless it `has_unread_records`."""
        transport = self.transport
        if transport is None or transport.is_closing() or self._tail:
            return False
        return monotonic() < self._usable_until and (self._is_tls or not self._unread(0))

    def has_unread_records(self) -> bool:
        """Return True if TLS records were received that the event loop has not read yet.

        No request is written before it has read them. They may be a response to no request, or session tickets, which a server
        may send at any time (https://www.rfc-editor.org/rfc/rfc8446#section-4.6.1).
        """
        return self._is_tls and bool(self._unread(0))

    async def check_unused(self) -> None:
        """Raise an exception if no request may be written, after the event loop has read what was received."""
        self.awaits_response = False
        while self.can_be_written():
            if not self.has_unread_records():
                return
            await asyncio.sleep(0)
        # asyncio passes the reason on some iterations later: https://github.com/python/cpython/blob/v3.13.0/Lib/asyncio/sslproto.py
        for _ in range(_ITERATIONS_OF_AN_END if self.is_closed else 0):
            if self._ended_by is None:
                await asyncio.sleep(0)
        raise aiohttp.ClientConnectionResetError from self._ended_by

    def set_exception(  # pyright: ignore[reportIncompatibleMethodOverride] -- aiohttp passes the cause by position
        self, exc: BaseException, *cause: BaseException
    ) -> None:
        """End the response that is awaited, and the body that is being read."""
        if isinstance(exc, HttpProcessingError):
            transport, self.transport = self.transport, None  # aiohttp closes it each time that it parses, see `close`
            if transport is not None:
                transport.abort()  # while it closes, TLS would pass on more bytes, which fail too
        elif isinstance(exc, OSError):  # aiohttp's writer of large bodies reports here that it can't write
            exc = self.named(exc) or exc
            self._read_rest()
        super().set_exception(exc, *cause)
        self._end_body()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the response and the body, which without a length is complete only if there was no error."""
        if exc is not None:
            self._read_rest()
            self._end_body()
        self._ended_by = exc = self.named(exc)
        super().connection_lost(exc)

    def named(self, exc: E | None) -> E | Exception | None:
        """Return what ended the connection: what the peer has said, or that it has said nothing since the handshake of TLS."""
        if self._records is None:
            return exc
        reason = self._records.decrypt(exc)
        return reason if self.is_heard else silent(reason)

    def _end_body(self) -> None:
        body = self._payload
        if body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError("the connection failed within the body"))

    def _read_rest(self) -> None:
        for data in self.unread_bytes():
            self.data_received(data)

    def unread_bytes(self) -> Iterator[bytes]:
        """Read what came over the connection, though it can't be written to."""
        return self._receive() if self._records is None else self._records.take()

    def _receive(self) -> Iterator[bytes]:
        transport = self.transport
        if transport is None or not _HAS_POLL:
            return
        socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError):
            while self._unread(0) and (data := os.read(socket.fileno(), _READ_BYTES)):
                yield data

    def close(self) -> None:
        """Close at once, with TLS's close_notify alert if nothing else waits to be written."""
        transport = self.transport
        # Closing a TLS transport twice takes its connection from it: nothing could abort that any more
        # (https://github.com/python/cpython/blob/v3.13.0/Lib/asyncio/sslproto.py#L107).
        if transport is not None and not transport.is_closing() and not transport.get_write_buffer_size():
            transport.close()
        self.abort()


def discard_unread(connector: object, host: str | None, port: int | None) -> bool:
    """Close the idle connections of an application's connector to a host that hold bytes which no request has asked for.

    Return whether others are left, so that the next request may not be the first of its connection.

    aiohttp would take them for the response to the next request (RFC 9112, section 9.2). Where this connector has no list of idle
    connections, or the system no `poll`, nothing is known and nothing is closed.
    """
    idle: Mapping[Any, Any] = getattr(connector, "_conns", {})
    is_one_left = False
    for key in [key for key in idle if (key.host, key.port) == (host, port)]:
        for protocol, _ in idle[key]:
            transport = protocol.transport
            if transport is not None and (protocol._tail or protocol._buffer or _input_check(transport)(0)):
                transport.abort()
                protocol.close()
            else:
                is_one_left = True
    return is_one_left


def _no_input(_: int) -> list[tuple[int, int]]:
    return []


def _input_check(transport: asyncio.BaseTransport) -> Callable[[int], list[tuple[int, int]]]:
    """Return a function that asks the system for input of a connection, in less than a microsecond."""
    socket = transport.get_extra_info("socket")
    if socket is None or not _HAS_POLL:  # Windows has no poll
        return _no_input
    unread = select.poll()
    unread.register(socket.fileno(), _INPUT)
    return unread.poll
