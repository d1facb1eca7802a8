"""The connector of a session's own pool."""

from __future__ import annotations

import functools
import os
from contextvars import ContextVar
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, cast

import aiohttp

from boardclient._transport._progress import Progress
from boardclient._transport._protocol import Protocol

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

KEEP_ALIVE_SECONDS: Final = 4.0
"""How long an idle connection is kept. Servers keep them for 5 s or more, so few requests meet one that is being closed."""

NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""Turns aiohttp's timers off, which cost each request 6 microseconds. The deadline of the call applies instead."""

PROGRESS: Final[ContextVar[Progress | None]] = ContextVar("boardclient_progress", default=None)
"""The progress of the request that the current task sends through `ClientSession`."""


class Connector(aiohttp.TCPConnector):
    """A connector that reports when a request has its connection. Until then nothing was sent. Owned by its `Pool`."""

    def __init__(self, limit: int, ssl: SSLContext | bool | aiohttp.Fingerprint, *, has_own_protocol: bool = True) -> None:
        self._process = os.getpid()
        super().__init__(limit=limit, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=ssl)
        if has_own_protocol:
            self._factory = cast("functools.partial[ResponseHandler]", functools.partial(Protocol, loop=self._loop))

    def abandon(self) -> None:
        """Mark the connector as closed without closing its connections.

        They belong to another event loop or process.
        """
        self._closed = True

    def __del__(self, *held: object) -> None:
        # After a fork, parent and child share the epoll instance: closing here would unregister the parent's connections
        # (https://man7.org/linux/man-pages/man7/epoll.7.html).
        if self._process == os.getpid():
            super().__del__()

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        progress = PROGRESS.get()
        if progress is None:
            return await super().connect(req, traces, timeout)
        progress.stage = "connect"
        connection = await super().connect(req, traces, timeout)
        progress.stage = "send"
        return connection
