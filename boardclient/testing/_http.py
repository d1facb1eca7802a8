"""HTTP of the service: a server on a loopback port, one response, and a clock that tests move. The only user of aiohttp here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import attrs
from aiohttp import web

from boardclient.testing._oauth import Answer

_HOST = "127.0.0.1"
_BACKSTOP_SECONDS = 0.05


@attrs.define(kw_only=True, eq=False, repr=False)
class LoopbackServer(ABC):
    """A server on 127.0.0.1 that runs for one block.

    `async with` runs it in the running event loop, `with` in a thread. A closed server can be entered again, on the same port.

    Args:
        port: The port. 0, the default, means any free port.
        keepalive_timeout: The seconds for which an idle connection is kept. 75 by default.
    """

    port: int = 0
    keepalive_timeout: float = 75.0
    _tasks: set[asyncio.Task[object]] = attrs.field(init=False, factory=set)
    _transports: weakref.WeakSet[asyncio.Transport] = attrs.field(init=False, factory=weakref.WeakSet)
    _server: web.Server | None = attrs.field(init=False, default=None)
    _listener: asyncio.Server | None = attrs.field(init=False, default=None)
    _thread: tuple[threading.Thread, Callable[[], object]] | None = attrs.field(init=False, default=None)

    @abstractmethod
    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request, and return its response, which may have been sent already."""

    @property
    def base_url(self) -> str:
        """The address of the resource operations. Its port is known once the server runs."""
        return f"http://{_HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        started: Future[Callable[[], object]] = Future()
        thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="board-service", daemon=True)
        thread.start()
        try:
            self._thread = thread, started.result()
        except Exception:
            thread.join()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._thread is not None:
            thread, end = self._thread
            self._thread = None
            end()
            thread.join()

    async def _run(self, started: Future[Callable[[], object]]) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            await self.start()
        except Exception as error:  # raised in the thread of the caller
            started.set_exception(error)
            return
        started.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        await self.stop()

    async def start(self) -> None:
        """Start listening.

        Raises:
            RuntimeError: the server is already running.
            OSError: the port is in use.
        """
        if self._server is not None:
            raise RuntimeError("this service is already running: stop it first, or make another one")
        server = web.Server(self._handle, access_log=None, keepalive_timeout=self.keepalive_timeout)
        self._listener = await asyncio.get_running_loop().create_server(server, _HOST, self.port)
        self._server = server
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and all connections at once.

        Requests that hang are cancelled. Calling it again does nothing.
        """
        server, listener = self._server, self._listener
        if server is None or listener is None:
            return
        self._server = self._listener = None
        listener.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._transports.update(connection.transport for connection in server.connections if connection.transport is not None)
        server.pre_shutdown()
        await server.shutdown(_BACKSTOP_SECONDS)
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None and request.transport is not None  # noqa: S101, PT018 -- for the type checker: a request has both
        self._tasks.add(task)
        self._transports.add(request.transport)
        try:
            return await self._respond(request)
        finally:
            self._tasks.discard(task)


@attrs.define(eq=False)
class HttpStage:
    """One request and its response: what a `faults.Stage` is over HTTP. Owned by the handler of the request."""

    request: web.BaseRequest
    wait: Callable[[float], Awaitable[object]]
    response: web.StreamResponse = attrs.field(init=False, factory=web.Response)
    commit_with: Callable[[], Answer] = attrs.field(init=False)
    on_status: Callable[[int], None] = attrs.field(init=False)
    on_settled: Callable[[], None] = attrs.field(init=False, default=lambda: None)
    has_begun: bool = attrs.field(init=False, default=False)
    is_hanging: bool = attrs.field(init=False, default=False)
    _outcome: Answer | None = attrs.field(init=False, default=None)

    @property
    def is_settled(self) -> bool:
        """Whether the request was carried out, or never will be."""
        return self._outcome is not None or self.is_hanging

    def commit(self) -> Answer:
        """Carry out the request, and return its response. Calling it again changes nothing."""
        if self._outcome is None:
            self._outcome = self.commit_with()
            self.on_settled()
        return self._outcome

    def encode(self, response: Answer) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a response."""
        text = response.body if isinstance(response.body, str) else json.dumps(response.body)
        return text.encode(), {"Content-Type": f"{response.content_type}; charset=utf-8", **response.headers}

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response."""
        response = web.Response(status=status, body=body, headers=headers)
        self.response = response
        self.has_begun = True
        self.on_status(status)
        await response.prepare(self.request)
        await response.write_eof()

    async def reply_answer(self) -> None:
        """Carry out the request, and send its response."""
        outcome = self.commit()
        await self.reply(outcome.status, *self.encode(outcome))

    async def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response whose body has `length` bytes."""
        self.response = web.StreamResponse(status=status, headers=headers)
        self.response.content_length = length
        self.has_begun = True
        self.on_status(status)
        await self.response.prepare(self.request)

    async def write(self, part: bytes) -> None:
        """Send a part of the body, after `begin`."""
        await self.response.write(part)

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self.request.transport is not None:
            self.request.transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, with `reset` by a TCP RST."""
        transport = self.request.transport
        if transport is None:
            return
        if reset:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds on the service's clock."""
        await self.wait(seconds)

    async def hang(self) -> None:
        """Wait until the service closes."""
        self.is_hanging = True
        self.on_settled()
        await asyncio.Event().wait()


async def read_body(request: web.BaseRequest, limit: int) -> bytes | None:
    """Read the body of a request. Return None if it is longer than `limit` bytes.

    A client that expects `100 Continue` gets it (RFC 9110, section 10.1.1), unless the body is too long. The server reads and
    discards an unread rest for a while after the response: otherwise the connection would be reset, and the client might lose the
    response (RFC 9112, section 9.6).
    """
    if (request.content_length or 0) > limit:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts = bytearray()
    async for part in request.content.iter_any():
        parts += part
        if len(parts) > limit:
            return None
    return bytes(parts)


@attrs.frozen(eq=False)
class _Sleeper:
    wakes_at: float
    future: asyncio.Future[None]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@attrs.define(eq=False)
class ServiceClock:
    """The service's time. Owned by the service; `advance` may be called from any thread.

    `real` returns the time in seconds, and `wait` sleeps for a number of seconds.
    """

    real: Callable[[], float]
    wait: Callable[[float], Awaitable[object]]
    _ahead: float = attrs.field(init=False, default=0.0)
    _sleepers: set[_Sleeper] = attrs.field(init=False, factory=set)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)

    def __call__(self) -> float:
        """Return the service's time in seconds. Only differences have a meaning."""
        return self.real() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and end the sleeps whose time has come.

        Raises:
            ValueError: `seconds` is negative or not a number.
        """
        if not seconds >= 0:
            raise ValueError(f"the service's clock moves forward only, not by {seconds!r} seconds")
        with self._lock:
            self._ahead += seconds
            now = self()
            due = [sleeper for sleeper in self._sleepers if sleeper.wakes_at <= now]
        for sleeper in sorted(due, key=lambda sleeper: sleeper.wakes_at):
            with contextlib.suppress(RuntimeError):  # the sleeper's loop is closed
                sleeper.future.get_loop().call_soon_threadsafe(_wake, sleeper.future)

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock, in real time or by `advance`."""
        sleeper = _Sleeper(self() + seconds, asyncio.get_running_loop().create_future())
        with self._lock:
            self._sleepers.add(sleeper)
        waiting = asyncio.ensure_future(self._wait(seconds))
        try:
            await asyncio.wait({waiting, sleeper.future}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sleepers.discard(sleeper)
            waiting.cancel()

    async def _wait(self, seconds: float) -> None:
        await self.wait(seconds)
