"""Responses with bytes that are not HTTP, with long fields and with trailers, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from boardclient import AsyncSession, Effect, StaticCredentials, TransportError
from boardclient._transport._pool import Pool

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
    answer: bytes, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet that is not HTTP, in part or as a whole, ends its request with an unknown effect, and no request after it."""
    monkeypatch.setattr(Pool, "_may_be_direct", is_direct)
    answers = iter([answer, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(answers))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncSession(StaticCredentials("t"), url, retry=None) as session:
        with pytest.raises(TransportError) as caught:
            await session.request("DELETE", "/1/cards/c")
        assert (caught.value.phase, caught.value.effect) == ("receive", Effect.UNKNOWN)
        assert (await session.request("DELETE", "/1/cards/c")).body == b"{}"


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
