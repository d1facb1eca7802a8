"""A server on a loopback port, in the running event loop or in its own thread."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import attrs
from aiohttp import web

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
