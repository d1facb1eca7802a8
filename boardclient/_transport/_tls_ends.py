"""How connections over TLS end: what the peer has said before, and what it may mean if it has said nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import aiohttp

E = TypeVar("E", bound=BaseException)

_READ_BYTES: Final = 2**16


class UnreadRecords:
    """What the socket of a connection holds that asyncio's TLS has not read. Owned by its `Protocol`.

    A failure to write ends a connection before the event loop has read what came before: the response of a peer that did not wait
    for the whole request, or the alert that says why it refused. asyncio's TLS passes an end on when the socket is closed, so
    this reads first. On uvloop it can't, and what came is lost.

    Args:
        transport: the transport over TLS.
        receive: reads the records from the socket.
    """

    def __init__(self, transport: asyncio.BaseTransport, receive: Callable[[], Iterator[bytes]]) -> None:
        self._receive: Final = receive
        self._ssl: Final[ssl.SSLObject] = transport.get_extra_info("ssl_object")
        self._decrypted: Final[list[bytes]] = []
        self._alert: ssl.SSLError | None = None
        tls: Any = getattr(transport, "_ssl_protocol", None)
        self._records: ssl.MemoryBIO | None = getattr(tls, "_incoming", None)
        if self._records is not None:
            tls.connection_lost = lambda exc: self._end(tls, exc)

    def _end(self, tls: Any, error: BaseException | None) -> None:
        del tls.connection_lost  # the method of its class is back
        reason, self._records = self.decrypt(error), None
        tls.connection_lost(reason)

    def decrypt(self, error: E | None) -> E | ssl.SSLError | None:
        """Read what the socket holds, and return what ended the connection: the alert of the peer, or else the system's error."""
        if self._alert is not None or self._records is None or not isinstance(error, OSError):
            return self._alert or error
        try:
            for records in self._receive():
                self._records.write(records)
            while data := self._ssl.read(_READ_BYTES):
                self._decrypted.append(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as alert:  # which is read once
            self._alert = alert
        return self._alert or error

    def take(self) -> Iterator[bytes]:
        """Return what came of the response, in parts, each once."""
        while self._decrypted:
            yield self._decrypted.pop(0)


class SilentEnd(Exception):  # noqa: N818 -- not raised itself
    """The peer ended a connection over TLS on which no byte of a response came.

    So it is in TLS 1.3 where a client certificate is missing, and the alert is lost with a reset, or not sent at all: a server on
    asyncio sends none.
    """


class SilentCloseError(SilentEnd, aiohttp.ServerDisconnectedError):
    """It ended in order."""


class SilentResetError(SilentEnd, ConnectionResetError):
    """It was reset, or could not be written to."""


def silent(error: E | None) -> E | SilentEnd | None:
    """Return the end of a silent connection as an error of its own, unless it says more, as an alert does."""
    if error is None:
        return SilentCloseError()
    if isinstance(error, ConnectionError) and not isinstance(error, SilentEnd | aiohttp.ClientError):
        return SilentResetError(*error.args)
    return error
