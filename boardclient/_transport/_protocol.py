"""The protocol of a session's own connections. It handles four faults of connections for both transports."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

FIELD_BYTES: Final = 2**16
"""The longest header field that is read: aiohttp refuses 8 KiB, which some services' cookies and policies exceed."""
_READ_BYTES: Final = 2**16
_END_OF_HEAD: Final = b"\r\n\r\n"
_BODILESS: Final = (b" 204 ", b" 304 ")
_HAS_POLL: Final = hasattr(select, "poll")
_ENDS: Final = 0 if not _HAS_POLL else select.POLLIN | getattr(select, "POLLRDHUP", 0)


class Protocol(ResponseHandler):
    """Parses the responses of one connection. Owned by its connector.

    Beyond aiohttp's own:

    - A connection that has input while it is idle is not used again: the peer closed it, or sent what was not asked for
      (https://www.rfc-editor.org/rfc/rfc9112#section-9.2).
    - The body under way ends with an error when parsing fails in a later packet or the connection is reset. aiohttp's parser
      drops the body then, and its reader waits forever (related: https://github.com/aio-libs/aiohttp/issues/10355).
    - A response that is whole counts, whatever follows it in its packet: some services send a body with 204, or more than the
      Content-Length says. aiohttp's parser drops the response with the rest.
    - A response that the peer sent before it stopped reading the request is read, though writing fails.
    - Closing does not wait for the peer: a graceful end of TLS takes up to 30 s (asyncio's `ssl_shutdown_timeout`), and what is
      not yet written of an ended call must not be sent.
    """

    _input: select.poll | None = None
    _packet = b""
    """What is being parsed."""

    def expect_response(self) -> None:
        """Parse what comes next as a response, whose body is unpacked elsewhere."""
        self.set_response_params(
            read_until_eof=True, auto_decompress=False, max_line_size=FIELD_BYTES, max_field_size=FIELD_BYTES
        )

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes."""
        self._packet = data
        ResponseHandler.data_received(self, data)
        self._packet = b""

    def is_connected(self) -> bool:
        """Return True if a request can be written. The pool asks before it hands out an idle connection."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        # What can change while a connection is idle; aiohttp asked for all of `should_close` when the last response had ended.
        if self._buffer or self._tail or self._should_close or self._exception is not None:
            return False
        return not self._has_input()

    def _has_input(self) -> bool:
        """Return True if the system holds an end or bytes that the loop has not read yet."""
        return bool(self._state())

    def has_ended(self) -> bool:
        """Return True if the system knows of an end. Bytes are none: TLS 1.3 sends tickets to a new connection."""
        state = self._state()
        return bool(state) and any(events & ~select.POLLIN for _, events in state)

    def _state(self) -> list[tuple[int, int]]:
        """Return what the system says of the socket, nothing where it is quiet."""
        if self._input is None:
            if self.transport is None or not _HAS_POLL:  # pragma: no cover -- Windows has no poll
                return []
            self._input = select.poll()
            self._input.register(self.transport.get_extra_info("socket").fileno(), _ENDS)
        return self._input.poll(0)

    def set_exception(  # pyright: ignore[reportIncompatibleMethodOverride] -- aiohttp passes the cause by position
        self, exc: BaseException, *cause: BaseException
    ) -> None:
        """End the response that is waited for, and the body under way."""
        if isinstance(exc, HttpProcessingError):
            self._read_before_junk()
        if isinstance(exc, OSError):  # aiohttp's writer of a large body reports here that it can't write
            self._read_rest()
        super().set_exception(exc, *cause)
        self._end_body()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the response and the body. One without a length is whole only if the connection was closed in order."""
        if exc is not None:
            self._read_rest()
            self._end_body()
        self._input = None
        super().connection_lost(exc)

    def _read_before_junk(self) -> None:
        """Read the whole response that a packet begins with, if no HTTP follows it."""
        packet, self._packet = self._packet, b""  # it is tried once
        head, end, rest = packet.partition(_END_OF_HEAD)
        if not packet.startswith(b"HTTP/") or not end or len(self):
            return
        fields = head.lower().split(b"\r\n")
        lengths = [value for name, _, value in (field.partition(b":") for field in fields) if name == b"content-length"]
        body = b""
        if packet[8:13] not in _BODILESS:
            if len(lengths) != 1 or not lengths[0].strip().isdigit() or b"\r\ntransfer-encoding" in head.lower():
                return
            body = rest[: int(lengths[0])]
        self.expect_response()
        ResponseHandler.data_received(self, head + end + body)

    def _end_body(self) -> None:
        body = self._payload
        if body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError("the connection failed within the body"))

    def _read_rest(self) -> None:
        """Read what the system still holds for a connection that can't be written to. TLS can't be read here."""
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
