"""Responses in torn packets, whole and damaged: no call outlives its connection, and no damaged body is taken for a whole one."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import socket
import struct
import zlib
from typing import Any

import aiohttp
import pytest
from session_helpers import transport_settings

from boardclient._transport._choice import TransportChoice
from boardclient._transport._values import Progress, RawResponse, TransportFailure

BODY = b'[{"id": "5f1a0c2e9b7d4e0012ab34cd", "name": "a card"}]' * 40
CASES = 150


def _framed(generator: random.Random) -> tuple[bytes, bool]:
    """Return the bytes of a response to the GET, and whether it ends with its connection."""
    coding, packed = generator.choice([(b"", BODY), (b"gzip", gzip.compress(BODY)), (b"deflate", zlib.compress(BODY))])
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Encoding: %s\r\n" % coding if coding else b"")
    framing = generator.choice(["length", "chunked", "end"])
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed, False
    if framing == "end":
        return head + b"Connection: close\r\n\r\n" + packed, True
    chunks = b""
    while packed:
        size = generator.randint(1, len(packed))
        chunks += b"%x\r\n%s\r\n" % (size, packed[:size])
        packed = packed[size:]
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", False


def _damaged(generator: random.Random, response: bytes) -> bytes:
    """Cut a response short, or change, drop or repeat some of its bytes."""
    at = generator.randrange(len(response))
    size = generator.randint(1, 8)
    kind = generator.choice(["cut", "change", "drop", "repeat"])
    if kind == "cut":
        return response[:at]
    middle = {"change": generator.randbytes(size), "drop": b"", "repeat": response[at : at + size] * 2}[kind]
    return response[:at] + middle + response[at + size :]


def _torn(generator: random.Random, response: bytes) -> list[bytes]:
    cuts = sorted({0, len(response), *(generator.randrange(len(response) + 1) for _ in range(generator.randint(0, 6)))})
    return [response[start:end] for start, end in itertools.pairwise(cuts)]


@pytest.mark.full
@pytest.mark.parametrize(("is_damaged", "is_lent"), [(False, False), (False, True), (True, False)])
async def test_responses_in_torn_packets(raw_server: Any, is_damaged: bool, is_lent: bool) -> None:
    """A whole response is read as it was sent; a damaged one is an error or another status, and never waited for in vain."""
    generator = random.Random(f"{is_damaged} {is_lent}")
    packets: list[bytes] = []
    ends = resets = False

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for packet in packets:
                writer.write(packet)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if resets:
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if ends:
                return

    async with raw_server.run(handler) as url, aiohttp.ClientSession() as http:
        pool = TransportChoice(transport_settings(max_connections=2), http if is_lent else None)
        for case in range(CASES):
            response, ends = _framed(generator)
            resets = False
            if is_damaged:
                response, ends, resets = _damaged(generator, response), True, generator.random() < 0.3
            packets = _torn(generator, response)
            try:
                async with asyncio.timeout(60):
                    outcome = await pool.send("GET", f"{url}/1/x", None, Progress())
            except TimeoutError:
                pytest.fail(f"case {case} hangs: {packets}")
            if not is_damaged:
                assert isinstance(outcome, RawResponse), packets
                assert outcome.body == BODY
            else:
                assert isinstance(outcome, RawResponse | TransportFailure)
        await pool.aclose()


@pytest.mark.parametrize("coding", ["", "gzip", "deflate"])
@pytest.mark.parametrize("framing", ["length", "chunked", "reset"])
async def test_a_response_that_is_cut_short_anywhere(raw_server: Any, coding: str, framing: str) -> None:
    """Wherever a response is cut, it is an error and not a shorter body; no connection is kept for it."""
    packed = {"": BODY[:60], "gzip": gzip.compress(BODY[:60]), "deflate": zlib.compress(BODY[:60])}[coding]
    head = b"HTTP/1.1 200 OK\r\n" + (f"Content-Encoding: {coding}\r\n".encode() if coding else b"")
    if framing == "length":
        whole = head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed
    elif framing == "chunked":
        whole = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
    else:
        whole = head + b"\r\n" + packed
    cut = 0

    async def handler(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole[:cut])
        await writer.drain()
        if framing == "reset":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with raw_server.run(handler) as url:
        pool = TransportChoice(transport_settings(max_connections=1))
        for end in range(0, len(whole), 3):
            cut = end
            async with asyncio.timeout(60):
                outcome = await pool.send("GET", f"{url}/1/x", None, Progress())
            assert isinstance(outcome, TransportFailure), whole[:cut]
        await pool.aclose()
