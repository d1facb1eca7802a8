"""Both transports over real sockets: the same bytes leave, the same outcomes come back, and connections are shared."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from typing import Any

import aiohttp
import pytest
from transport_helpers import OK, read_request, send
from waiting import SECONDS, until

from boardclient import Effect
from boardclient._transport._choice import TransportChoice
from boardclient._transport._connection_pool import Connector
from boardclient._transport._values import Progress, RawResponse, TransportFailure

# --- the same bytes leave


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "boards.example:80", "Accept": "text/plain", "accept-encoding": "identity"},
        {"X-Own": "ü ok", "user-agent": "mine", "Authorization": "Bearer t", "Content-Type": "text/x"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "body", [None, b"", b'{"name": "x"}', b"y" * 3000, b"z" * (2**20 + 1)], ids=lambda body: str(len(body or ""))
)
async def test_the_same_bytes_leave(
    open_pool: Any,
    raw_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    headers: Any,
    method: str,
    body: bytes | None,
) -> None:
    """Whatever the method, body and headers, the server sees no difference."""
    seen: list[bytes] = []

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    async with raw_server.run(handler) as url:
        for target in ("/1/cards", "//base/../1/a%20b?x=[]{}|^`\"<>'&y=%E2%82%AC"):
            for is_direct in (True, False):
                monkeypatch.setattr(TransportChoice, "_may_be_direct", is_direct)
                assert isinstance(await send(open_pool(headers=headers), method, url + target, body), RawResponse)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]


# --- the same outcomes come back

JSON = b'{"id": "c"}'
PACKED = gzip.compress(JSON * 9)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ANSWERS: dict[str, tuple[bytes, object, bool]] = {
    # name: the bytes of the response, what becomes of it, whether the connection serves on
    "plain": (OK, (200, b"{}"), True),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, b""), True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b""), True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", (304, b""), True),
    "chunked": (CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", (200, b"{}"), True),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", (200, b"{}"), True),
    "after 100 and 103": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, (200, b"{}"), True),
    "packed": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(PACKED), PACKED),
        (200, JSON * 9),
        True,
    ),
    "closing": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}"), False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", (200, b"{}"), False),
    "upgraded": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc", (101, b""), False),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\n{}", (200, b"{}"), False),
    "error": (b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad", (500, b"bad"), True),
    "redirect": (b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", (307, b""), True),
    "nothing": (b"", "the connection was closed before the response", False),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "the connection was closed before the response", False),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "the response broke off or could not be unpacked", False),
    "half a chunk": (CHUNKED + b"5\r\n{}", "the response broke off or could not be unpacked", False),
    "a bad chunk": (CHUNKED + b"x\r\n{}", None, False),
    "badly packed": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
        "the response broke off or could not be unpacked",
        False,
    ),
    "not HTTP": (b"220 mail.example ready\r\n\r\n", "the response is not HTTP", False),
    "a long header": (b"HTTP/1.1 200 OK\r\nX: %s\r\n\r\n" % (b"x" * 70_000), "the response is not HTTP", False),
    "many headers": (b"HTTP/1.1 200 OK\r\n%s\r\n" % (b"X: y\r\n" * 1001), "the response is not HTTP", False),
    "a bad length": (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "the response is not HTTP", False),
    "too large": (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, "the response is larger than 100 bytes", True),
    "far too large": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + b"x" * 101,
        "the response is larger than 100 bytes",
        False,
    ),
    "129 headers": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%s\r\n{}" % (b"X: y\r\n" * 129), (200, b"{}"), True),
    "packed in another way": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, br\r\nContent-Length: 2\r\n\r\n{}",
        (200, b"{}"),
        True,
    ),
    "a badly packed 401": (
        b"HTTP/1.1 401 No\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
        (401, b""),
        True,
    ),
    "a 429 with half a body": (b"HTTP/1.1 429 No\r\nContent-Length: 9\r\n\r\nsl", (429, b"sl"), False),
    "a 503 with half a chunk": (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nno", (503, b"no"), False),
    "a large error": (b"HTTP/1.1 400 No\r\nContent-Length: 999\r\n\r\n" + b"x" * 101, (400, b"x" * 100), False),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("torn", [False, True])
async def test_the_same_outcomes_come_back(open_pool: Any, raw_server: Any, name: str, torn: bool) -> None:
    """Whatever the server answers, in one piece or byte by byte, both transports make the same of it and of the connection."""
    answer, expected, stays = ANSWERS[name]
    size = max(1, len(answer) // 1000) if torn else len(answer) + 1

    async def handler(reader: Any, writer: Any) -> None:
        while await read_request(reader):
            for piece in [answer[at : at + size] for at in range(0, len(answer), size)]:
                writer.write(piece)
                await asyncio.sleep(0)
            await writer.drain()
            if not stays and not name.startswith(("far", "a large")):
                return

    async with raw_server.run(handler) as url:
        pool = open_pool(max_answer_bytes=100)
        outcome = await send(pool, "GET", f"{url}/1/x")
        if isinstance(outcome, RawResponse):
            status, body = expected  # type: ignore[misc]  # -- a pair for each response
            assert (outcome.status, outcome.body) == (status, outcome.body if body is None else body)
        else:
            assert expected is None or outcome.why.startswith(str(expected))
            assert (outcome.phase, outcome.effect) == ("receive", Effect.DONE if "larger" in outcome.why else Effect.UNKNOWN)
        await send(pool, "GET", f"{url}/1/x")
        if torn and name in {"too large", "a badly packed 401"}:
            return  # where it was refused depends on the pieces
        assert raw_server.served == (1 if stays else 2)


async def test_a_header_is_sent_once(open_pool: Any, raw_server: Any) -> None:
    """Of headers whose names differ in their case only the last one is sent, by both transports."""

    async def handler(reader: Any, writer: Any) -> None:
        heads.append((await read_request(reader)).split(b"\r\n")[1:])
        writer.write(OK)

    heads: list[list[bytes]] = []
    async with raw_server.run(handler) as url:
        pool = open_pool(headers={"X-Source": "a", "x-source": "b"})
        await pool.send("GET", f"{url}/1/x", None, Progress(), headers={"X-Trace": "1", "x-trace": "2"})
    named = [line.lower() for line in heads[0] if line.lower().startswith((b"x-source", b"x-trace"))]
    assert named == [b"x-source: b", b"x-trace: 2"]


# --- connections


async def after_stray_bytes(pool: Any, raw_server: Any, stray: bytes) -> object:
    """Return the outcome of a request after bytes have come on the idle connection of the one before."""
    release = asyncio.Event()
    there = asyncio.Event()

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)
            if raw_server.served == 1:
                await release.wait()
                writer.write(stray)
                await writer.drain()
                there.set()

    async with raw_server.run(handler) as url, asyncio.timeout(60):
        assert isinstance(await send(pool, "GET", f"{url}/1/x"), RawResponse)
        release.set()
        await there.wait()
        ((protocol, _),) = next(iter(pool._connector._conns.values()))
        await until(lambda: protocol._buffer or protocol._tail)
        return await send(pool, "GET", f"{url}/1/x")


@pytest.mark.parametrize("stray", [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen", b"HTTP/1.1 2", b"\r\n", b"?"])
async def test_an_unrequested_response_ends_its_connection(open_pool: Any, raw_server: Any, stray: bytes) -> None:
    """What comes on an idle connection is no part of the next response, which comes on another connection."""
    outcome = await after_stray_bytes(open_pool(), raw_server, stray)
    assert isinstance(outcome, RawResponse)
    assert (outcome.body, raw_server.served) == (b"{}", 2)


@pytest.mark.parametrize("body", [b"{}", bytes(2**21)], ids=len)
@pytest.mark.parametrize("is_read", [False, True])
async def test_what_a_new_connection_brings_is_no_response(
    open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch, is_read: bool, body: bytes
) -> None:
    """What a peer sends before a request, such as a refusal of the connection, answers none: nothing is sent."""
    connect = aiohttp.TCPConnector.connect

    async def connect_and_wait(self: Any, *args: Any) -> Any:
        connection: Any = await connect(self, *args)
        if not is_read:
            connection.transport.pause_reading()
        await written.wait()
        await until(lambda: not is_read or connection.protocol._tail)
        return connection

    async def handler(reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 503 Too Many\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        written.set()
        with contextlib.suppress(ConnectionResetError):  # as the client closes with unread bytes
            received.append(await reader.read())
        closed.set()

    received: list[bytes] = []
    written, closed = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect_and_wait)
    async with raw_server.run(handler) as url, asyncio.timeout(60):
        outcome = await send(open_pool(), "POST", f"{url}/1/x", body)
        await closed.wait()
    assert isinstance(outcome, TransportFailure)
    assert outcome.effect is Effect.NOT_SENT
    assert not any(received)


@pytest.mark.parametrize("size", [0, 2**20])
async def test_cancelled_anywhere(open_pool: Any, raw_server: Any, size: int) -> None:
    """A request that is cancelled at any step gives its connection back, and nothing of it reaches the next one."""

    async def handler(reader: Any, writer: Any) -> None:
        while True:
            request = await read_request(reader)
            target = request.split(b" ")[1]
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(target))
            await asyncio.sleep(0)
            writer.write(target)

    async with raw_server.run(handler) as url, asyncio.timeout(SECONDS):
        pool = open_pool()
        steps = 0
        outcome: object = None
        while not isinstance(outcome, RawResponse):
            task = asyncio.ensure_future(send(pool, "POST", f"{url}/cancelled", b"x" * size))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            following = await send(pool, "POST", f"{url}/following", b"y")
            assert isinstance(following, RawResponse)
            assert following.body == b"/following"
            steps += 1
    assert steps > 5


async def test_both_transports_share_connections(open_pool: Any, raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is out of the ordinary uses the connection of the others."""

    async def handler(reader: Any, writer: Any) -> None:
        while await read_request(reader):
            writer.write(OK)

    async with raw_server.run(handler) as url:
        pool = open_pool()
        for target in ("/1/x", "/1/x?", "/1/x", "/1/x#y"):
            assert isinstance(await send(pool, "GET", url + target), RawResponse)
        assert isinstance(pool._connector, Connector)
    assert raw_server.served == 1


# --- header fields of a single request


@pytest.mark.parametrize("extra", [{"X": "a\r\nY: b"}, {"X: y": "z"}, {"X": ""}, {"Content-Length": "7"}, {"X": " a"}])
@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
async def test_a_malformed_field_is_left_to_aiohttp(open_pool: Any, extra: Any, exchanges: list[str]) -> None:
    """A field that could change how the request is framed is never written by us."""
    pool = open_pool()
    for headers in ({"X": "y"}, extra):
        await pool.send("GET", "http://127.0.0.1:1/1/x", None, Progress(), headers=headers)
    assert exchanges == ["direct", "public"]
