"""The connections of a session's own pool. They are kept for some seconds, and not across a fork."""

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
"""Shorter than servers' own (5 s and more), so that few requests meet a connection that the server is about to close."""

NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""The deadline of the call is the only one: a timer of aiohttp's own costs each request 6 microseconds."""

PROGRESS: Final[ContextVar[Progress | None]] = ContextVar("boardclient_progress", default=None)
"""Where a request through `ClientSession` reports how far it is."""


class Connector(aiohttp.TCPConnector):
    """A pool of connections that reports when a request has its own. Until then nothing was sent. Owned by its `Pool`."""

    def __init__(self, limit: int, ssl: SSLContext | bool | aiohttp.Fingerprint, *, has_own_protocol: bool = True) -> None:
        self._process = os.getpid()
        super().__init__(limit=limit, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=ssl)
        if has_own_protocol:
            self._factory = cast("functools.partial[ResponseHandler]", functools.partial(Protocol, loop=self._loop))

    def abandon(self) -> None:
        """Count as closed, and leave the connections to their loop or process."""
        self._closed = True

    def __del__(self, *held: object) -> None:
        # A forked child shares the selector with its parent: closing connections here would deafen the parent's.
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
