"""Responses with bytes that are not HTTP, with long fields and with trailers, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from session_helpers import transport_settings

from boardclient import AsyncSession, Effect, StaticCredentials, TransportError
from boardclient._transport._choice import TransportChoice
from boardclient._transport._values import Progress

_JUNK = [
    b"HTTP/1.1 204 No Content\r\n\r\n<p>deleted</p>",
    b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{"more": 1}',
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\njunk",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}junk",
    b"HTTP/1.1 200 OK\r\nA\x00: b\r\nContent-Length: 2\r\n\r\n{}",
    b"junk",
]


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("answer", _JUNK)
async def test_junk_is_an_error_and_reaches_no_other_request(
    answer: bytes, is_direct: bool, raw_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet that is not HTTP, in part or as a whole, ends its request with an unknown effect, and no request after it."""
    monkeypatch.setattr(TransportChoice, "_may_be_direct", is_direct)
    answers = iter([answer, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(answers))
        await writer.drain()
        writer.close()

    async with raw_server.run(serve) as url, AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        with pytest.raises(TransportError) as caught:
            await session.request("DELETE", "/1/cards/c")
        assert (caught.value.phase, caught.value.effect) == ("receive", Effect.UNKNOWN)
        assert (await session.request("DELETE", "/1/cards/c")).body == b"{}"


@pytest.mark.parametrize("is_direct", [True, False])
async def test_a_trailer_stays_with_its_response(is_direct: bool, raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that ends a chunked response is no header of the next response on its connection."""
    monkeypatch.setattr(TransportChoice, "_may_be_direct", is_direct)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nContent-Encoding: gzip\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in (chunked, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
        await reader.read()

    async with raw_server.run(serve) as url, AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        responses = [await session.request("GET", "/1/cards/c") for _ in range(2)]
    assert [response.body for response in responses] == [b"{}", b"[]"]
    assert (list(responses[1].headers), raw_server.served) == (["Content-Length"], 1)


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_AMBIGUOUS = [
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n Content-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n 3\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    _CHUNKED + b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    _CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    _CHUNKED + b"2\r\n{}\n0\r\n\r\n",
    _CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    _CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    _CHUNKED + b"fffffffffffffffff2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 " + b"x" * 2**20,
    _CHUNKED + b"2;" + b"x" * 2**20,
]


async def _sent(answer: bytes, raw_server: Any) -> tuple[list[object], int]:
    """Return what becomes of two requests that are answered so, and the number of connections that they took."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)

    async with raw_server.run(handler) as url:
        pool = TransportChoice(transport_settings(max_connections=1))
        async with asyncio.timeout(60):
            outcomes: list[object] = [await pool.send("GET", f"{url}/1/cards/c", None, Progress()) for _ in range(2)]
        await pool.aclose()
    return outcomes, raw_server.served


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize("answer", _AMBIGUOUS, ids=range(len(_AMBIGUOUS)))
async def test_a_response_that_ends_at_no_certain_place_is_refused(answer: bytes, raw_server: Any) -> None:
    """Of a framing that recipients understand in different ways, or that never ends, nothing is taken."""
    outcomes, served = await _sent(answer, raw_server)
    assert [getattr(one, "effect", one) for one in outcomes] == [Effect.UNKNOWN] * 2
    assert served == 2


@pytest.mark.parametrize("transport_kind", ["direct"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", 1),
        (_CHUNKED + b"2  \r\n{}\r\n0\r\n\r\n", 1),
        (_CHUNKED + b'2;name="value"\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n', 1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked \r\n\r\n2\r\n{}\r\n0\r\n\r\n", 1),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}", 1),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 2),
        (b"HTTP/1.1 200 OK\r\nX: caf\xe9\r\nContent-Length: 2\r\n\r\n{}", 1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" * 2, 2),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n", 2),
    ],
)
async def test_what_is_unusual_but_not_ambiguous_is_accepted(answer: bytes, connections: int, raw_server: Any) -> None:
    """As aiohttp does. After a response of HTTP/1.0 that is chunked, and before one too many, the connection is closed."""
    outcomes, served = await _sent(answer, raw_server)
    assert [getattr(one, "body", one) for one in outcomes] == [b"{}", b"{}"]
    assert served == connections
