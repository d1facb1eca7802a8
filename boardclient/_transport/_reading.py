"""Read an answer whole, up to a bound: the same for both ways."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import StreamReader

from boardclient._transport._values import RawResponse, TransportFailure, TransportResult
from boardclient.errors import Effect


async def read_whole(status: int, headers: Mapping[str, str], content: StreamReader, limit: int) -> TransportResult:
    """Read the body up to the bound, counted unpacked; where it is larger, `content` is left in the middle.

    A success that is too large is refused; of any other answer the status counts, and the beginning is enough.
    """
    chunks = [await content.readany()]
    size = len(chunks[0])
    while size <= limit and not content.at_eof():
        chunk = await content.readany()
        chunks.append(chunk)
        size += len(chunk)
    if size <= limit:
        return RawResponse(status, headers, b"".join(chunks))
    if 200 <= status < 300:
        return TransportFailure("receive", Effect.DONE, f"the answer is larger than {limit} bytes")
    chunks[-1] = chunks[-1][: limit - size]
    return RawResponse(status, headers, b"".join(chunks))
