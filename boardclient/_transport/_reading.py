"""Reads a whole body, up to a limit, for both transports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler

from boardclient._transport._connections import Protocol
from boardclient._transport._decoding import decoder_of
from boardclient._transport._values import RawResponse, TransportFailure, TransportResult
from boardclient.errors import Effect

_WATCH_SECONDS: Final = 0.5
_MEBIBYTE: Final = 2**20
_MOST_MAPPED_BYTES: Final = 2**25 - 2**16
"""glibc's thresholds follow no larger allocation (M_MMAP_THRESHOLD)."""


async def read_whole(status: int, headers: Mapping[str, str], content: StreamReader | _AtHand, limit: int) -> TransportResult:
    """Read and decode a body of at most `limit` bytes, counted after decoding.

    A success with a larger body is a `TransportFailure`. Of any other response with a larger body, the first `limit` bytes are
    returned. `content` is not read to its end in either case.

    Raises:
        aiohttp.ClientError: the body ended early.
        DecodingError: the body is damaged.
    """
    decoder = decoder_of(headers.get("Content-Encoding"))
    chunks: list[bytes] = []
    size = 0
    is_first = True
    while size <= limit and (is_first or not content.at_eof()):
        is_first = False
        raw = await content.readany()
        for piece in (raw,) if decoder is None else decoder.feed(raw):
            chunks.append(piece)
            size += len(piece)
            if size > limit:
                break
            if decoder is not None and len(piece) > len(raw):
                await asyncio.sleep(0)  # other tasks run while a body decodes to much more
    if size <= limit:
        if decoder is not None and not decoder.is_complete:
            raise aiohttp.ClientPayloadError
        if size > _MEBIBYTE:
            _keep_memory(size // _MEBIBYTE + 1)
        return RawResponse(status, headers, b"".join(chunks))
    if 200 <= status < 300:
        return TransportFailure("receive", Effect.DONE, f"the response is larger than {limit} bytes")
    chunks[-1] = chunks[-1][: limit - size]
    return RawResponse(status, headers, b"".join(chunks))


@cache
def _keep_memory(mebibytes: int) -> None:
    """Make glibc keep the memory of a body of this size for the next one.

    It returns the end of its heap to the system once that has twice the size of the largest allocation that was mapped and freed
    (M_TRIM_THRESHOLD in https://man7.org/linux/man-pages/man3/mallopt.3.html). The chunks of a large body, the body itself and
    the texts of its values exceed this by little, and each page that is asked for again costs a page fault. Freeing an
    allocation that is a quarter larger than the body prevents this. It is never written to, so it needs no memory itself.
    """
    with contextlib.suppress(MemoryError):  # the body was received: it must not be lost for this
        bytes(min(mebibytes * _MEBIBYTE * 5 // 4, _MOST_MAPPED_BYTES))


class _AtHand:
    """A body that was already read, as a `StreamReader` to `read_whole`."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def readany(self) -> bytes:
        return self._body

    def at_eof(self) -> bool:
        return True


async def unpack_whole(status: int, headers: Mapping[str, str], body: bytes, limit: int) -> TransportResult:
    """Do as `read_whole` with an encoded body that was already read."""
    return await read_whole(status, headers, _AtHand(body), limit)


@contextlib.contextmanager
def watched(response: aiohttp.ClientResponse) -> Iterator[None]:
    """End the reading of a body if its connection fails, on an application's session.

    aiohttp's reader would wait forever (see `Protocol`, which does not need this). The session may have any connector, so only
    those attributes of its connection are used that all of aiohttp's have.
    """
    content, connection = response.content, response.connection
    protocol = None if connection is None else connection.protocol
    if content.is_eof() or isinstance(protocol, Protocol) or not isinstance(protocol, ResponseHandler):
        yield
        return
    watch = asyncio.get_running_loop().create_task(_end_with_connection(content, protocol))
    try:
        yield
    finally:
        watch.cancel()


async def _end_with_connection(content: StreamReader, protocol: ResponseHandler) -> None:
    # A connection that is closing may still end the body in order, so that `is_connected` says too little.
    while protocol.exception() is None and protocol.transport is not None:  # noqa: ASYNC110 -- aiohttp has no signal for it
        await asyncio.sleep(_WATCH_SECONDS)
    if not content.is_eof():
        content.set_exception(aiohttp.ClientPayloadError("the connection failed within the body"))
