"""Reads whole bodies: decoded, up to a limit, and in small steps.

aiohttp accepts half a gzip stream if the `Content-Length` is right. A gzip member ends in a checksum and a length
(https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1), so a body that breaks off is noticed here.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import aiohttp
from multidict import MultiMapping

from boardclient._transport._values import SUCCESSES, RawResponse, TransportFailure, TransportResult
from boardclient.errors import Effect

_STEP_BYTES: Final = 2**18
"""How many bytes are decoded at once. A small body may decode to gigabytes, and decoding blocks the event loop."""
_STEP_MEMBERS: Final = 64
"""How many gzip members are decoded at once. Each takes some microseconds, also an empty one."""
_REST_SECONDS: Final = 0.5
"""How long the rest of a body that is not needed is waited for, so that its connection can be used again."""


class Body(Protocol):
    async def readany(self) -> bytes: ...

    def at_eof(self) -> bool: ...


async def read_whole(status: int, headers: MultiMapping[str], content: Body, limit: int, needs_body: bool) -> TransportResult:
    """Read and decode a body of at most `limit` bytes.

    Of a status that is no success, or if a success does not need its body, the part that can be read is enough.
    """
    if needs_body or status not in SUCCESSES:
        return await _read_whole(status, headers, content, limit, is_needed=status in SUCCESSES)
    try:
        async with asyncio.timeout(_REST_SECONDS):
            return await _read_whole(status, headers, content, limit, is_needed=False)
    except TimeoutError:
        return RawResponse(status, headers, b"")


async def _read_whole(status: int, headers: MultiMapping[str], content: Body, limit: int, *, is_needed: bool) -> TransportResult:
    coding = headers.get("Content-Encoding", "").strip().lower()
    if is_needed and (package := _missing_package(coding)) is not None:
        return TransportFailure("receive", Effect.DONE, f"the response is encoded as {coding}, which needs the package {package}")
    whole = io.BytesIO()  # it grows without being copied, while joining many parts would take a millisecond a MiB in one step
    try:
        await _decode(content, _decoder_of(coding), limit, whole)
    except Exception:
        if is_needed:
            raise
    if whole.tell() > limit:
        if is_needed:
            return TransportFailure("receive", Effect.DONE, f"the response is larger than {limit} bytes")
        whole.truncate(limit)
    return RawResponse(status, headers, whole.getvalue())


async def _decode(content: Body, decoder: _Decoder | None, limit: int, whole: io.BytesIO) -> None:
    """Add a decoded body to `whole` until it ends, or is larger than `limit`.

    Raises:
        Exception: it breaks off, or can't be decoded. `whole` has what came before.
    """
    size, is_first = 0, True
    while is_first or not content.at_eof():
        is_first = False
        raw = await content.readany()
        for piece in [raw] if decoder is None else decoder.feed(raw):
            size += whole.write(piece)
            if size > limit:
                return
            if decoder is not None and len(piece) in {0, _STEP_BYTES}:
                await asyncio.sleep(0)  # other tasks run while a body decodes to much more, or to nothing
    if decoder is not None and not decoder.is_complete:
        raise aiohttp.ClientPayloadError


class _Decoder:
    def __init__(self, new_member: Callable[[bytes], Any]) -> None:
        self._new_member = new_member
        self._member: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes, and yield the result in small pieces, an empty one after some work without a large one."""
        members = 0
        try:
            while data:
                if self._member is None or self._member.eof:
                    self._member = self._new_member(data)
                    members += 1
                    if not members % _STEP_MEMBERS:
                        yield b""
                while True:
                    piece = self._member.decompress(data, _STEP_BYTES)
                    data = getattr(self._member, "unconsumed_tail", b"")  # some keep it themselves
                    if piece:
                        yield piece
                    if self._member.eof or not (piece or data):
                        break
                data = self._member.unused_data if self._member.eof else b""
        except Exception as error:  # each library has its own
            raise aiohttp.ClientPayloadError from error

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


class _Brotli:
    """A decompressor of `br` with the methods of zlib's. The package's own keeps what it has not decoded yet."""

    unused_data = b""

    def __init__(self, library: Any) -> None:
        self._decompressor = library.Decompressor()

    def decompress(self, data: bytes, limit: int) -> bytes:
        return bytes(self._decompressor.process(data, output_buffer_limit=limit))

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.is_finished())


_CODINGS: Final[dict[str, Callable[[bytes], Any]]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "br": lambda _: _Brotli(_library_of("br")),
    "zstd": lambda _: _library_of("zstd").ZstdDecompressor(),
}
_PACKAGES: Final = {
    "br": ("Brotli", "brotlicffi", "brotli"),
    "zstd": ("backports.zstd", "compression.zstd", "backports.zstd"),
}
"""What is not asked for, and sent all the same: the package that decodes it, and the modules, of which one is enough."""


def _library_of(coding: str) -> Any:
    """Return the module that decodes `br` or `zstd`, None if it is not installed or can't decode in steps."""
    for name in _PACKAGES[coding][1:]:
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        if coding == "zstd" or hasattr(library.Decompressor, "can_accept_more_data"):  # Brotli has limits from 1.2 on
            return library
    return None


def _missing_package(coding: str) -> str | None:
    """Return the package that a body can't be decoded without, or None if nothing is missing."""
    return _PACKAGES[coding][0] if coding in _PACKAGES and _library_of(coding) is None else None


def _decoder_of(coding: str) -> _Decoder | None:
    """Return the decoder of a body, or None if it stays as it is."""
    if coding not in _CODINGS or _missing_package(coding) is not None:
        return None
    return _Decoder(_CODINGS[coding])
