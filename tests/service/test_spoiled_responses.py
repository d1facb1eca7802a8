"""A peer that cuts, delays, repeats and spoils responses at every position: outcomes stay true, and with their requests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import re
import socket
import ssl
import struct
from typing import Any

import attrs
import pytest
from session_helpers import transport_settings

from boardclient import Effect
from boardclient._transport._choice import TransportChoice
from boardclient._transport._values import Progress, RawResponse, TransportFailure

_STEP = int(os.environ.get("SPOILED_STEP", "29"))
"""Every position with SPOILED_STEP=1, which takes minutes."""
_ID = re.compile(rb"[0-9a-f]{24}")
FAULTS = ("cut", "reset", "delay", "spoil", "drop", "insert", "repeat", "again")
_BURST = b"\x00\r\n7f 0;HTTP/1.1 \xff{"


def body_of(identifier: bytes) -> bytes:
    return b'{"id": "%s"}' % identifier


def recorded(framing: str, identifier: bytes) -> bytes:
    """Return the response to a request, as it would be without a fault."""
    body = body_of(identifier)
    packed = gzip.compress(body, mtime=0) if "gzip" in framing else body
    head = b"HTTP/1.1 %s\r\nX-Request: 1\r\n" % (b"429 Too Many" if framing == "refusal" else b"200 OK")
    if "gzip" in framing:
        head += b"Content-Encoding: gzip\r\n"
    if "chunked" in framing:
        chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in (packed[:9], packed[9:]))
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Sum: 1\r\n\r\n"
    if "end" in framing:
        return head + b"Connection: close\r\n\r\n" + packed
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" if framing == "interim" else b""
    return interim + head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed


FRAMINGS = ("length", "chunked", "end", "gzip", "gzip chunked", "gzip end", "interim", "refusal")


@attrs.define
class Peer:
    """A server that plays one fault at one position of the response to each second request of a connection."""

    framing: str
    fault: str
    at: int = 0
    received: set[bytes] = attrs.field(factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
                identifier = await reader.readexactly(length)
                self.received.add(identifier)
                response = recorded(self.framing, identifier)
                if number % 2:
                    if not await self._play(response, reader, writer):
                        return
                else:
                    writer.write(response)
                    if "end" in self.framing:
                        return
                number += 1

    async def _play(self, response: bytes, reader: Any, writer: Any) -> bool:
        """Send a response with the fault, and return whether the connection stays open."""
        before, after = response[: self.at], response[self.at :]
        size = 1 + self.at % 7
        spoiled = {
            "cut": before,
            "reset": before,
            "delay": response,
            "spoil": before + bytes(byte ^ (1 + self.at % 255) for byte in after[:size]) + after[size:],
            "drop": before + after[size:],
            "insert": before + _BURST[: size * 2] + after,
            "repeat": before + after[:size] + after,
            "again": response + response,
        }[self.fault]
        if self.fault == "delay":
            for piece in (before, after):
                writer.write(piece)
                await _turns(4)
            return "end" not in self.framing
        writer.write(spoiled)
        await _turns(20)
        if self.fault == "reset":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return self.fault == "again" and "end" not in self.framing


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def check(peer: Peer, identifier: bytes, outcome: RawResponse | TransportFailure) -> None:
    """Fail if an outcome is not true."""
    case = f"{peer.framing}, {peer.fault} at {peer.at}: {outcome}"
    if isinstance(outcome, TransportFailure):
        assert outcome.effect is not Effect.DONE, case
        assert outcome.effect is not Effect.NOT_SENT or identifier not in peer.received, case
        return
    assert identifier in peer.received, case
    others = {*_ID.findall(outcome.body)} & (peer.received - {identifier})
    assert not others, case
    if 200 <= outcome.status < 300 and (
        peer.fault in {"delay", "again"} or (peer.fault in {"cut", "reset"} and peer.framing != "end")
    ):
        assert outcome.body == body_of(identifier), case


async def attacked(url: str, pool: TransportChoice, peer: Peer, number: int) -> None:
    """Send requests one after another from some tasks at once, and check each outcome."""

    async def call(name: int) -> None:
        for step in range(4):
            identifier = hashlib.sha256(b"%d %d %d" % (peer.at, name, step)).hexdigest()[:24].encode()
            outcome = await pool.send("POST", f"{url}/1/cards", identifier, Progress())
            check(peer, identifier, outcome)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(call, range(number)))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_spoiled_response_has_no_wrong_effect_and_is_no_other_requests(
    raw_server: Any, contexts: Any, framing: str, fault: str
) -> None:
    """Each request gets its own whole response, or a failure whose effect is true, and none waits in vain."""
    peer = Peer(framing, fault)
    async with raw_server.run(peer.serve, contexts[0]) as url:
        for at in range(0, len(recorded(framing, b"0" * 24)) + 1, _STEP):
            peer.at = at
            pool = TransportChoice(transport_settings(max_connections=2, **contexts[1]))
            await attacked(url, pool, peer, 3)
            assert pool._connector is not None
            assert not pool._connector._acquired
            await pool.aclose()
