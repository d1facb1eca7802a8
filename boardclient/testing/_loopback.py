"""A server on a loopback port, in the running loop or in a thread of its own."""

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
    """Listen on 127.0.0.1 for the time of a block.

    `async with` runs it on the running loop, plain `with` in a thread. A closed server may be entered again, on the same port.

    Attributes:
        port: the port; 0 takes a free one.
        keepalive_timeout: seconds for which an idle connection is kept.
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
        """Serve one request. Return the response, which may be sent already."""

    @property
    def base_url(self) -> str:
        """Where the resource operations are; known once the server runs."""
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
        except Exception as error:  # the caller waits for the result, whatever it is
            started.set_exception(error)
            return
        started.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        await self.stop()

    async def start(self) -> None:
        """Listen.

        Raises:
            RuntimeError: the server runs already.
            OSError: the port is taken.
        """
        if self._server is not None:
            raise RuntimeError("this service runs already")
        server = web.Server(self._handle, access_log=None, keepalive_timeout=self.keepalive_timeout)
        self._listener = await asyncio.get_running_loop().create_server(server, _HOST, self.port)
        self._server = server
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and every connection, at once, whatever hangs.

        A second call changes nothing.
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
