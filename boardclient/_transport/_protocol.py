"""The protocol of a session's own connections: aiohttp's, with four faults of connections handled here for both transports."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

_READ_BYTES: Final = 2**16
_HAS_POLL: Final = hasattr(select, "poll")
_ENDS: Final = 0 if not _HAS_POLL else select.POLLIN | getattr(select, "POLLRDHUP", 0)


class Protocol(ResponseHandler):
    """Parses the responses of one connection. Owned by its connector.

    Beyond aiohttp's own:

    - A connection that has input while it is idle is not used again: the peer closed it, or sent what was not asked for
      (https://www.rfc-editor.org/rfc/rfc9112#section-9.2).
    - The body under way ends with an error when parsing fails in a later packet or the connection is reset. aiohttp's parser
      drops the body then, and its reader waits forever (related: https://github.com/aio-libs/aiohttp/issues/10355).
    - A response that the peer sent before it stopped reading the request is read, though writing fails.
    - Closing does not wait for the peer: a graceful end of TLS takes up to 30 s (asyncio's `ssl_shutdown_timeout`), and what is
      not yet written of an ended call must not be sent.
    """

    _input: select.poll | None = None

    def is_connected(self) -> bool:
        """Return True if a request can be written; the pool asks before it hands out an idle connection."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        # What can change while a connection is idle; aiohttp asked for all of `should_close` when the last response had ended.
        if self._buffer or self._tail or self._should_close or self._exception is not None:
            return False
        return not self._has_input()

    def _has_input(self) -> bool:
        """Return True if the system knows of an end or of bytes that the loop has not read yet."""
        if self._input is None:
            if self.transport is None or not _HAS_POLL:  # pragma: no cover -- Windows has no poll
                return False
            self._input = select.poll()
            self._input.register(self.transport.get_extra_info("socket").fileno(), _ENDS)
        return bool(self._input.poll(0))

    def set_exception(  # pyright: ignore[reportIncompatibleMethodOverride] -- aiohttp passes the cause by position
        self, exc: BaseException, *cause: BaseException
    ) -> None:
        """End the response that is waited for, and the body under way."""
        if isinstance(exc, OSError):  # aiohttp's writer of a large body reports here that it can't write
            self._read_rest()
        super().set_exception(exc, *cause)
        self._end_body()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the response and the body; one without a length is whole only if the connection was closed in order."""
        if exc is not None:
            self._read_rest()
            self._end_body()
        self._input = None
        super().connection_lost(exc)

    def _end_body(self) -> None:
        body = self._payload
        if body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError("the connection failed within the body"))

    def _read_rest(self) -> None:
        """Read what the system still holds for a connection that can't be written to any more; TLS bytes can't be read here."""
        transport = self.transport
        if transport is None or not _HAS_POLL or transport.get_extra_info("ssl_object") is not None:
            return
        socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError):
            while self._has_input() and (data := os.read(socket.fileno(), _READ_BYTES)):
                self.data_received(data)

    def close(self) -> None:
        """Close at once; TLS is told goodbye if nothing else waits to be written."""
        transport = self.transport
        if transport is not None and not transport.get_write_buffer_size():
            transport.close()
        self.abort()
