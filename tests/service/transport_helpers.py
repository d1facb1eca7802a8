"""What the tests of both transports share."""

from __future__ import annotations

import asyncio

from boardclient._transport._choice import TransportChoice
from boardclient._transport._values import Progress, RawResponse, TransportFailure

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def send(pool: TransportChoice, method: str, url: str, body: bytes | None = None) -> RawResponse | TransportFailure:
    return await pool.send(method, url, body, Progress())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read a request whole, by its Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)
