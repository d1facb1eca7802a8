"""Reads a whole body up to a limit, and decodes it by its content coding.

aiohttp accepts half a gzip stream if the `Content-Length` is right. A gzip member ends in a checksum and a length
(https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1), so a body that breaks off is noticed here.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from multidict import MultiMapping

from boardclient._transport._values import RawResponse, TransportFailure, TransportResult
from boardclient.errors import Effect

_STEP_BYTES: Final = 2**18
"""How many bytes are decoded at once. A small body may decode to gigabytes, and decoding blocks the event loop."""


class DecodingError(Exception):
    """The body is damaged."""


class Content(Protocol):
    """A body that is being received, such as an `aiohttp.StreamReader`."""

    async def readany(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        ...

    def at_eof(self) -> bool:
        """Return True if all bytes were read."""
        ...


async def read_whole(status: int, headers: MultiMapping[str], content: Content, limit: int) -> TransportResult:
    """Read and decode a body of at most `limit` bytes, and of a status that is no success the part that can be read."""
    is_success = 200 <= status < 300
    chunks: list[bytes] = []
    size = 0
    try:
        decoder = _decoder_of(headers)
        is_first = True
        while size <= limit and (is_first or not content.at_eof()):
            is_first = False
            raw = await content.readany()
            for piece in [raw] if decoder is None else decoder.feed(raw):
                chunks.append(piece)
                size += len(piece)
                if size > limit:
                    break
                if len(piece) > len(raw):
                    await asyncio.sleep(0)  # other tasks run while a body decodes to much more
        if size <= limit and not (decoder is None or decoder.is_complete):
            raise DecodingError
    except Exception:
        if is_success:
            raise
    if size > limit:
        if is_success:
            return TransportFailure("receive", Effect.DONE, f"the response is larger than {limit} bytes")
        chunks[-1] = chunks[-1][: limit - size]
    return RawResponse(status, headers, b"".join(chunks))


class _Decoder:
    """Decodes one content coding of one body."""

    def __init__(self, new_member: Callable[[bytes], Any]) -> None:
        self._new_member = new_member
        self._member: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes, and yield the result in small pieces."""
        try:
            while data:
                if self._member is None or self._member.eof:
                    self._member = self._new_member(data)
                while True:
                    piece = self._member.decompress(data, _STEP_BYTES)
                    data = self._member.unconsumed_tail
                    if piece:
                        yield piece
                    if self._member.eof or not (piece or data):
                        break
                data = self._member.unused_data if self._member.eof else b""
        except zlib.error as error:
            raise DecodingError from error

    @property
    def is_complete(self) -> bool:
        """Whether the body may end here: it is empty or its last member has ended."""
        return self._member is None or bool(self._member.eof)


def _inflate(first: bytes) -> Any:
    """Return a decompressor of `deflate`, whose zlib header some senders omit (RFC 9110, section 8.4.1.2)."""
    is_zlib = first[0] & 0xF == zlib.DEFLATED
    return zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _gunzip(_: bytes) -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


_CODINGS: Final[dict[str, Callable[[bytes], Any]]] = {"gzip": _gunzip, "x-gzip": _gunzip, "deflate": _inflate}


def _decoder_of(headers: MultiMapping[str]) -> _Decoder | None:
    """Return the decoder of a body, or None if it stays as it is."""
    coding = _CODINGS.get(headers.get("Content-Encoding", "").strip().lower())
    return None if coding is None else _Decoder(coding)
