"""Checks once per process that aiohttp works as `DirectTransport` needs. No network I/O.

A list of known versions would have to name each new one first. Instead, requests are sent through the real code to a transport
that responds at once with canned bytes, so that no step has to wait. If a step waits, raises or gives another result than
expected, all requests take `ClientSessionTransport`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from boardclient._transport._connections import Connector, Protocol
from boardclient._transport._direct import DirectTransport
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._values import Progress, RawResponse, Settings, TransportFailure, TransportResult
from boardclient._transport._writes import is_given_up

_URL: Final = "http://127.0.0.1:9/1/probe"
_REQUEST: Final = b"POST /1/probe HTTP/1.1\r\nHost: 127.0.0.1:9\r\nAccept: application/json\r\n"
_END: Final = b"Content-Length: 2\r\n\r\n{}"
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
_CHUNKED: Final = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
_PAUSING: Final = bytes(2**19 + 1)
"""A body that pauses its connection, since it is larger than what the StreamReader holds."""
_OPEN: Final = b"HTTP/1.1 200 OK\r\n\r\n["

_logger: Final = logging.getLogger("boardclient.transport")


class _Canned(asyncio.Transport):
    """A transport that responds to each request as soon as it is written."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__({"socket": end})
        self.responses: list[Callable[[Protocol], None]] = []
        self.written = b""
        self.protocol: Any = None
        self.is_paused = False
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written = bytes(data)
        self.responses.pop(0)(self.protocol)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


def _feeds(*packets: bytes) -> Callable[[Protocol], None]:
    def respond(protocol: Protocol) -> None:
        for packet in packets:
            protocol.data_received(packet)

    return respond


def _feeds_then_resets(*packets: bytes) -> Callable[[Protocol], None]:
    def respond(protocol: Protocol) -> None:
        _feeds(*packets)(protocol)
        protocol.connection_lost(ConnectionResetError())

    return respond


_CASES: Final[tuple[tuple[Callable[[Protocol], None], tuple[int, bytes] | None], ...]] = (
    (_feeds(_OK), (200, b"[]")),
    (_feeds(b"HTTP/1.1 100 Continue\r\n\r\n", _OK[:-1], _OK[-1:]), (200, b"[]")),
    (_feeds(_CHUNKED, b"1\r\n[\r\n", b"1\r\n]\r\n0\r\n\r\n"), (201, b"[]")),
    (_feeds(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_PAUSING), _PAUSING), (200, _PAUSING)),
    (_feeds(_CHUNKED, b"zz\r\n"), None),
    (_feeds_then_resets(_OPEN), None),
    (_feeds(b"not HTTP\r\n\r\n"), None),
)


def _try_case(direct: DirectTransport, connector: Connector, case: int) -> bool:
    respond, expected = _CASES[case]
    plan = direct.plan("POST", _URL, b"{}", "application/json")
    if plan is None:
        return False
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        transport = _Canned(ours)
        transport.responses = [respond, respond]
        protocol = transport.protocol = cast("Protocol", connector._factory())
        protocol.connection_made(transport)
        connector._acquired.add(protocol)
        waiting = connector.queue.wait()
        waiting.send(None)
        connector._release(plan[0].connection_key, protocol)
        with contextlib.suppress(StopIteration):
            waiting.send(None)  # a RuntimeError unless the release has resumed it
        if is_given_up(protocol):  # reads the future on which aiohttp waits
            return False
        for _ in range(2 if expected else 1):  # a connection that can be reused serves a second request
            outcome = _finished(direct, plan)
            if not transport.written.startswith(_REQUEST) or not transport.written.endswith(_END):
                return False
            if expected is None:
                return isinstance(outcome, TransportFailure) and not protocol.is_connected()
            if not isinstance(outcome, RawResponse) or (outcome.status, outcome.body) != expected or transport.is_paused:
                return False
        if case:
            theirs.close()
        else:
            protocol.data_received(b"H")  # which might be the start of a response, but there is no request
        is_noticed = not protocol.is_connected()
        protocol.close()
        return is_noticed


def _finished(direct: DirectTransport, plan: Any) -> TransportResult | None:
    """Return the result of a request, or None if it has to wait."""
    steps = direct.round_trip(plan[0], plan[1], Progress())
    try:
        steps.send(None)
    except StopIteration as end:
        return cast("TransportResult", end.value)
    steps.close()
    return None


_verdicts: Final[list[str]] = []


def fault() -> str:
    """Return why `DirectTransport` can't be used with this aiohttp, or "" if it can.

    The first call needs a running event loop.
    """
    if not _verdicts:
        _verdicts.append(_fault())
        if _verdicts[0]:  # else the pool logs which transport requests take
            _logger.debug("requests can't go over aiohttp's connections directly: %s", _verdicts[0])
    return _verdicts[0]


def _fault() -> str:
    try:
        connector = Connector(1, True)
        direct = DirectTransport(connector, RequestHeaders(Settings()), 2**20)
        try:
            for case in range(len(_CASES)):
                if not _try_case(direct, connector, case):
                    return f"case {case} of the probe gave another result"
        finally:
            connector.abandon()
    except Exception as error:
        return f"the probe raised {type(error).__name__}"
    return ""
