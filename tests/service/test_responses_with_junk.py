"""Responses that are whole, with bytes behind them that are not HTTP, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from boardclient import AsyncSession, StaticCredentials
from boardclient._transport._connections import Protocol
from boardclient._transport._pool import Pool

_CASES = [
    (b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}", (204, b"")),
    (b"HTTP/1.1 204 No Content\r\n\r\n<p>deleted</p>", (204, b"")),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n{}", (200, b"")),
    (b'HTTP/1.1 200 OK\r\ncontent-length:  2 \r\n\r\n{}{"more": 1}', (200, b"{}")),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", "receive"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\njunk", "receive"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", "receive"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}junk", "receive"),
    (b"HTTP/1.1 200 OK\r\nA\x00: b\r\nContent-Length: 2\r\n\r\n{}junk", "receive"),
    (b"HTTP/1.1 200 OK\r\nA\x00: b\r\nContent-Length: 9\r\n\r\n{}", "receive"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", "receive"),
    (b"junk", "receive"),
]


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize(("answer", "expected"), _CASES)
async def test_a_response_that_is_whole_counts(
    answer: bytes, expected: Any, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a packet holds behind a whole response neither spoils it nor reaches the next request, and is tried once."""
    tried = Mock(side_effect=Protocol._read_before_junk, autospec=True)
    monkeypatch.setattr(Protocol, "_read_before_junk", lambda self: tried(self))
    monkeypatch.setattr(Pool, "_may_be_direct", is_direct)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        for _ in range(2):
            try:
                response = await session.request("DELETE", "/1/cards/c")
            except Exception as error:
                outcome: object = getattr(error, "phase", error)
            else:
                outcome = response.status, response.body
            assert outcome == expected
    assert tried.call_count < 10  # not up to the limit of recursion


@pytest.mark.parametrize("is_direct", [True, False])
async def test_long_header_fields_are_read(is_direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field of 60 KB is no fault of the response."""
    monkeypatch.setattr(Pool, "_may_be_direct", is_direct)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: " + b"a" * 60_000 + b"\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        response = await session.request("GET", "/1/cards/c")
    assert (response.status, len(response.headers["Set-Cookie"])) == (200, 60_000)


@pytest.mark.parametrize("is_direct", [True, False])
async def test_a_trailer_stays_with_its_response(is_direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that ends a chunked response is no header of the next response on its connection."""
    monkeypatch.setattr(Pool, "_may_be_direct", is_direct)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nContent-Encoding: gzip\r\n\r\n"
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        for response in (chunked, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        responses = [await session.request("GET", "/1/cards/c") for _ in range(2)]
    assert [response.body for response in responses] == [b"{}", b"[]"]
    assert (list(responses[1].headers), served) == (["Content-Length"], 1)
