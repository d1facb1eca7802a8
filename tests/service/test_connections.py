"""Connections that end: before a request, within a response, while a body is sent, and when a call is given up."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import struct
import sys
import time
import zlib
from typing import Any
from unittest.mock import Mock

import aiohttp
import brotli  # type: ignore[import-untyped]  # -- it has no types
import pytest
from transport_helpers import OK
from waiting import SECONDS, until

from boardclient import Effect
from boardclient._transport._choice import TransportChoice
from boardclient._transport._connection_pool import Protocol
from boardclient._transport._values import Progress, RawResponse, TransportFailure, TransportResult

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BROKE = TransportFailure("receive", Effect.UNKNOWN, "the response broke off or could not be unpacked")


async def send(pool: TransportChoice, method: str, url: str, body: bytes | None = None) -> TransportResult:
    async with asyncio.timeout(60):
        return await pool.send(method, url, body, Progress())


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection by a reset, not in order."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# --- before the request


async def test_a_connection_that_the_system_knows_to_be_closed(open_pool: Any, raw_server: Any, contexts: Any) -> None:
    """A request is not written to a kept-alive connection whose end has arrived but was not read yet."""
    closed = asyncio.Event()

    async def handler(reader: Any, writer: Any) -> None:
        await head_of(reader)
        writer.write(OK)
        if raw_server.served == 1:
            writer.close()
            writer.transport.abort()
            closed.set()
            return
        await reader.read()

    async with raw_server.run(handler, contexts[0]) as url:
        pool = open_pool(**contexts[1])
        assert isinstance(await send(pool, "GET", f"{url}/1/x"), RawResponse)
        await closed.wait()
        assert isinstance(await send(pool, "POST", f"{url}/1/x"), RawResponse)
    assert raw_server.served == 2


@pytest.mark.parametrize(
    ("announced", "seconds", "is_reused"),
    [
        ("timeout=1", 0.4, True),
        ("timeout=1", 0.6, False),
        ("max=99, Timeout = 3", 1.9, True),
        ("max=99, Timeout = 3", 2.1, False),
        ("timeout=0", 0.0, False),
        ("timeout=60", 3.0, True),
        ("timeout=soon", 3.0, True),
    ],
)
async def test_a_connection_is_not_used_longer_than_its_peer_keeps_it(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, announced: str, seconds: float, is_reused: bool
) -> None:
    """`Keep-Alive: timeout=N` says when an idle connection is closed; a request that comes a little earlier takes another one."""

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await head_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: %s\r\nContent-Length: 2\r\n\r\n{}" % announced.encode())

    now = time.monotonic()
    monkeypatch.setattr("boardclient._transport._connection_pool.monotonic", lambda: now)
    async with raw_server.run(handler) as url:
        pool = open_pool()
        for _ in range(3):
            assert isinstance(await send(pool, "POST", f"{url}/1/x"), RawResponse)
            now += seconds
    assert raw_server.served == (1 if is_reused else 3)


# --- connections that can't be trusted


async def test_responses_name_their_connection_in_order(open_pool: Any, raw_server: Any) -> None:
    """Each response says over which connection it came and as which one, refusals too; a failure names none."""

    async def handler(reader: Any, writer: Any) -> None:
        for answer in (OK, b"HTTP/1.1 100 Continue\r\n\r\n" + OK.replace(b"200", b"404")):
            await head_of(reader)
            writer.write(answer)
        await head_of(reader)
        writer.close()

    async with raw_server.run(handler) as url:
        pool, seen = open_pool(), list[Any]()
        for _ in range(4):
            progress = Progress()
            outcome = await pool.send("GET", f"{url}/1/x", None, progress)
            seen.append((outcome.status, progress.connection, progress.response_number))
    first, last = seen[0][1], seen[3][1]
    assert [(status, number) for status, _, number in seen if status] == [(200, 1), (404, 2), (200, 1)]
    assert [connection for _, connection, _ in seen] == [first, first, None, last]
    assert None is not first is not last


@pytest.mark.parametrize("is_in_flight", [False, True])
async def test_a_connection_that_is_not_trusted_is_closed(
    open_pool: Any, raw_server: Any, contexts: Any, is_in_flight: bool
) -> None:
    """No request gets it any more, and one in flight ends with an unknown effect."""
    arrived = asyncio.Event()

    async def handler(reader: Any, writer: Any) -> None:
        await head_of(reader)
        writer.write(OK)
        await head_of(reader)
        arrived.set()
        await reader.read()

    async with raw_server.run(handler, contexts[0]) as url:
        pool, progress = open_pool(**contexts[1]), Progress()
        assert isinstance(await pool.send("POST", f"{url}/1/x", b"{}", progress), RawResponse)
        connection = progress.connection
        assert connection is not None
        if is_in_flight:
            call = asyncio.ensure_future(send(pool, "POST", f"{url}/1/x", b"{}"))
            await arrived.wait()
        assert connection.distrust()
        if is_in_flight:
            outcome = await call
            assert isinstance(outcome, TransportFailure)
            assert outcome.effect is Effect.UNKNOWN
        assert connection.distrust()
        assert isinstance(await send(pool, "POST", f"{url}/1/x", b"{}"), RawResponse)
    assert raw_server.served == 2


async def test_the_connections_of_a_lent_session_are_not_known(open_pool: Any, raw_server: Any) -> None:
    """All its responses seem to come over one connection, and distrusting that closes none."""

    async def handler(reader: Any, writer: Any) -> None:
        await head_of(reader)
        writer.write(OK)
        writer.close()

    async with raw_server.run(handler) as url, aiohttp.ClientSession() as http:
        pool, seen = open_pool(http), set[Any]()
        for number in (1, 2):
            progress = Progress()
            assert isinstance(await pool.send("GET", f"{url}/1/x", None, progress), RawResponse)
            seen.add(progress.connection)
            assert (progress.response_number, progress.connection and progress.connection.distrust()) == (number, False)
    assert (len(seen), raw_server.served) == (1, 2)


# --- within the response

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_reset_within_a_body_without_length(open_pool: Any, raw_server: Any) -> None:
    """A body that ends with its connection is whole only if the connection was closed in order."""

    async def handler(reader: Any, writer: Any) -> None:
        await head_of(reader)
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n[{"id": "1"}]')
        await writer.drain()
        await until_read.wait()
        reset(writer)

    until_read = asyncio.Event()
    async with raw_server.run(handler) as url:
        pool = open_pool()
        under_way = asyncio.ensure_future(send(pool, "GET", f"{url}/1/x"))
        await until(lambda: under_way.done() or any(map(_is_read, _acquired(pool))))
        until_read.set()
        outcome = await under_way
    assert isinstance(outcome, TransportFailure)
    assert (outcome.phase, outcome.effect) == ("receive", Effect.UNKNOWN)


def _is_read(protocol: Any) -> bool:
    """Return True once the head of a response was read."""
    reader = getattr(protocol, "reader", None)
    return bool(getattr(protocol, "_payload", None) if reader is None else reader.has_head)


def _acquired(pool: Any) -> list[Any]:
    return [] if pool._connector is None else list(pool._connector._acquired)


def _packed(coding: str, body: bytes) -> bytes:
    if coding == "members":
        return gzip.compress(body[:100]) + gzip.compress(body[100:])
    if coding == "br":
        return bytes(brotli.compress(body))
    if coding in {"zstd", "frames"}:
        return zstd.compress(body[:100]) + zstd.compress(body[100:]) if coding == "frames" else zstd.compress(body)
    if coding == "raw deflate":
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(body) + packer.flush()
    return zlib.compress(body) if coding == "deflate" else gzip.compress(body)


@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize(
    "coding",
    [
        "gzip",
        "x-gzip",
        "deflate",
        "raw deflate",
        "members",
        "br",
        "zstd",
        "frames",
    ],
)
async def test_a_packed_body_is_unpacked_or_refused(open_pool: Any, raw_server: Any, coding: str, is_torn: bool) -> None:
    """A encoded body is decoded whatever packets it comes in; where it ends early it is an error, though its length is right."""
    body = b"".join(b'[{"id": "%d"}]' % number for number in range(500))
    whole = _packed(coding, body)
    name = {"raw deflate": "deflate", "members": "gzip", "frames": "zstd"}.get(coding, coding)
    cuts = [len(whole), len(whole) // 2, len(whole) - 1, 1, 0]
    parts = iter([whole[:cut] for cut in cuts] + [whole[:-9] + b"#" * 9])

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await head_of(reader)
            part = next(parts)
            wire = b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s" % (name.encode(), len(part), part)
            for piece in [wire[at : at + 7] for at in range(0, len(wire), 7)] if is_torn else [wire]:
                writer.write(piece)
                await asyncio.sleep(0)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        results = [await send(pool, "GET", f"{url}/1/x") for _ in range(len(cuts) + 1)]
    assert isinstance(results[0], RawResponse)
    assert results[0].body == body
    assert results[1:4] == [BROKE] * 3
    assert isinstance(results[4], RawResponse)
    if coding not in {"raw deflate", "br", "zstd", "frames"}:  # which have no checksum
        assert results[5] == BROKE


@pytest.mark.full
@pytest.mark.parametrize(
    ("members", "size", "least_turns"),
    [([bytes(64 * 2**20)], 64 * 2**20, 200), ([*[b""] * 2000, b"{}"], 2, 30)],
    ids=["a large body", "many members that give nothing"],
)
async def test_unpacking_lets_others_run(
    open_pool: Any, raw_server: Any, members: list[bytes], size: int, least_turns: int
) -> None:
    """What takes long to unpack is unpacked in steps, between which other tasks run, and stops at the bound."""
    packed = b"".join(map(gzip.compress, members))

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await head_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(packed), packed))

    async with raw_server.run(handler) as url, asyncio.timeout(SECONDS):
        under_way = asyncio.ensure_future(send(open_pool(), "GET", f"{url}/1/x"))
        turns = 0
        while not under_way.done():
            await asyncio.sleep(0)
            turns += 1
        outcome = await under_way
        assert isinstance(outcome, RawResponse)
        assert (len(outcome.body), turns > least_turns) == (size, True)
        refused = await send(open_pool(max_answer_bytes=size - 1), "GET", f"{url}/1/x")
    assert isinstance(refused, TransportFailure)
    assert "larger" in refused.why


@pytest.mark.full
async def test_a_body_that_comes_faster_than_it_is_decoded_is_awaited(open_pool: Any, raw_server: Any, contexts: Any) -> None:
    """The connection is paused meanwhile, so that memory is bounded, and serves on."""
    body = gzip.compress(bytes(2**26)) + gzip.compress(random.Random(1).randbytes(2**22))

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await head_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with raw_server.run(handler, contexts[0]) as url, asyncio.timeout(SECONDS):
        pool = open_pool(**contexts[1])
        for _ in range(2):
            under_way = asyncio.ensure_future(send(pool, "GET", f"{url}/1/x"))
            most = 0
            while not under_way.done():
                await asyncio.sleep(0)
                most = max([most, *(one.reader.size for one in _acquired(pool) if getattr(one, "reader", None) is not None)])
            outcome = await under_way
            assert isinstance(outcome, RawResponse)
            assert len(outcome.body) == 2**26 + 2**22
            assert most < 2**20
    assert raw_server.served == 1


# --- while a body is sent


@pytest.mark.full
@pytest.mark.parametrize("read_bytes", [0, 2**18, 2**19])
@pytest.mark.parametrize("size", [2**20, 3 * 2**20, 30 * 2**20])
async def test_an_early_response_to_a_large_body(
    open_pool: Any, raw_server: Any, contexts: Any, size: int, read_bytes: int
) -> None:
    """A refusal that comes while the body is sent is reported as that status, also where the peer then stops reading."""

    async def handler(reader: Any, writer: Any) -> None:
        await head_of(reader)
        await reader.readexactly(read_bytes)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()

    async with raw_server.run(handler, contexts[0]) as url:
        for _ in range(10):
            outcome = await send(open_pool(**contexts[1]), "POST", f"{url}/1/x", b"x" * size)
            assert isinstance(outcome, RawResponse), outcome
            assert (outcome.status, outcome.body) == (413, b"no")


# --- calls that are given up


async def test_a_call_that_is_given_up_closes_its_connection(open_pool: Any, raw_server: Any, contexts: Any) -> None:
    """A cancelled call ends its connection at once, whatever the peer does, and nothing more of its body is sent."""
    received = 0
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def handler(reader: Any, writer: Any) -> None:
        nonlocal received
        received += len(await head_of(reader))
        waiting.set()
        await given_up.wait()
        while data := await reader.read(2**16):
            received += len(data)
        ended.set()

    given_up = asyncio.Event()
    async with raw_server.run(handler, contexts[0]) as url:
        pool = open_pool(**contexts[1])
        under_way = asyncio.ensure_future(send(pool, "POST", f"{url}/1/x", b"x" * 15 * 2**20))
        await waiting.wait()
        transports = [one.transport for one in _acquired(pool)]
        under_way.cancel()
        await asyncio.wait([under_way])
        assert transports
        assert all(transport.is_closing() and not transport.get_write_buffer_size() for transport in transports)
        assert not _acquired(pool)
        given_up.set()
        async with asyncio.timeout(60):
            await ended.wait()
    assert received < 14 * 2**20


# --- sessions of an application's own


async def _used_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.parametrize(("method", "effect"), [("DELETE", Effect.UNKNOWN), ("PUT", Effect.UNKNOWN), ("POST", Effect.NOT_SENT)])
async def test_a_refused_connection_of_a_lent_session(open_pool: Any, method: str, effect: Effect) -> None:
    """What aiohttp may have sent before, on a connection that broke, is not reported as not sent."""
    url = f"http://127.0.0.1:{await _used_port()}/1/x"
    async with aiohttp.ClientSession() as http:
        lent = await send(open_pool(http), method, url)
    own = await send(open_pool(), method, url)
    assert isinstance(lent, TransportFailure)
    assert isinstance(own, TransportFailure)
    assert (lent.effect, own.effect) == (effect, Effect.NOT_SENT)


async def test_a_closed_lent_session(open_pool: Any) -> None:
    """Nothing is sent through a session that its application closed."""
    async with aiohttp.ClientSession() as http:
        pool = open_pool(http)
    outcome = await send(pool, "DELETE", "http://127.0.0.1:1/1/x")
    assert isinstance(outcome, TransportFailure)
    assert (outcome.effect, outcome.is_closed) == (Effect.NOT_SENT, True)


async def test_a_request_of_the_pools_session_that_is_no_call(open_pool: Any, raw_server: Any) -> None:
    """What else is sent through the session of a pool is sent as it is."""
    seen: list[bytes] = []

    async def handler(reader: Any, writer: Any) -> None:
        seen.append(await head_of(reader))
        writer.write(OK)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        pool._make_transports()
        async with pool._sessions[0].get(f"{url}/1/x?y=z") as response:
            assert await response.read() == b"{}"
    assert seen[0].startswith(b"GET /1/x?y=z HTTP/1.1\r\n")


async def test_the_rest_of_a_connection_is_read() -> None:
    """A response that the system holds when a connection fails is taken as it came."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(OK)
        protocol = Protocol(asyncio.get_running_loop())
        protocol.connection_made(Mock(get_extra_info={"socket": ours}.get))
        protocol.set_response_params()
        protocol.connection_lost(BrokenPipeError())
        head, _ = await protocol.read()
        assert head.code == 200


async def test_the_rest_of_a_connection_of_our_own_is_read() -> None:
    """So it is by the reader of `DirectTransport`, and only for a request that was written."""
    for is_written in (True, False):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(OK)
            protocol = Protocol(asyncio.get_running_loop())
            protocol.connection_made(transport := Mock(get_extra_info={"socket": ours}.get))
            reader = protocol.read_directly(memoryview(bytearray(2**10)))
            response = reader.begin()
            protocol.awaits_response = is_written
            transport.set_protocol.call_args.args[0].connection_lost(BrokenPipeError())
            await response
            assert (reader.is_complete, isinstance(reader.error, BrokenPipeError)) == (is_written, not is_written)
