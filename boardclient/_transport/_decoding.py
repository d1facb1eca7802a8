"""Decodes bodies by content coding, in steps of bounded size. No I/O.

aiohttp accepts a truncated gzip stream if the `Content-Length` is right. A gzip member ends in a checksum and a length
(https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1), so `Decoder.is_complete` can report it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

_STEP_BYTES: Final = 2**18
"""How many bytes are decoded at once. A small body may decode to gigabytes, and decoding blocks the event loop."""


class DecodingError(Exception):
    """The body is damaged."""


class _Member(Protocol):
    """A decompressor of one member of a body, such as `zlib.decompressobj()` returns."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decoder:
    """Decodes one body. Owned by its reader."""

    def __init__(self, new_member: Callable[[bytes], _Member]) -> None:
        self._new_member = new_member
        self._member: _Member | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes of the body, and yield the result in small pieces.

        Raises:
            DecodingError: the bytes are not encoded as the header says.
        """
        try:
            while data:
                if self._member is None or self._member.eof:
                    self._member = self._new_member(data)
                yield from _steps(self._member, data)
                data = self._member.unused_data if self._member.eof else b""
        except Exception as error:  # each library raises errors of its own
            raise DecodingError from error

    @property
    def is_complete(self) -> bool:
        """Whether the body may end here: it is empty or its last member has ended."""
        return self._member is None or self._member.eof


def _steps(member: _Member, data: bytes) -> Iterator[bytes]:
    while True:
        piece = member.decompress(data, _STEP_BYTES)
        data = getattr(member, "unconsumed_tail", b"")
        if piece:
            yield piece
        if member.eof or not (piece or data):
            return


def _inflate(first: bytes) -> _Member:
    """Return a decompressor of `deflate`, with or without zlib's header.

    Some senders omit it: https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1.2.
    """
    is_zlib = first[0] & 0xF == zlib.DEFLATED
    return zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _gunzip(_: bytes) -> _Member:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


class _Brotli:
    """A decompressor of Brotli, over the packages that aiohttp uses too."""

    unused_data = b""

    def __init__(self, _: bytes) -> None:
        import brotli  # type: ignore[import-not-found,import-untyped,unused-ignore]  # -- an optional package without types

        self._unpacker: Any = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._unpacker.is_finished())

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        unpacked: bytes = self._unpacker.process(data, output_buffer_limit=max_length)
        return unpacked


def _unzstd(_: bytes) -> _Member:
    from backports.zstd import ZstdDecompressor  # type: ignore[import-not-found,unused-ignore]  # -- an optional package

    member: _Member = ZstdDecompressor()
    return member


_CODINGS: Final[dict[str, Callable[[bytes], _Member]]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "br": _Brotli,
    "zstd": _unzstd,
}


def decoder_of(coding: str | None) -> Decoder | None:
    """Return a decoder for a `Content-Encoding`, or None if the body stays as it is.

    It does without the header and with an unknown coding.
    """
    new_member = None if coding is None else _CODINGS.get(coding.strip().lower())
    return None if new_member is None else Decoder(new_member)
