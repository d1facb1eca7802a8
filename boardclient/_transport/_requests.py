"""Requests in aiohttp's form. What is sent is kept apart from what instruments see."""

from __future__ import annotations

import io
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Final

import aiohttp
import attrs
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from boardclient._transport._values import TransportResult

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection

LARGE_BODY_BYTES: Final = 2**20
"""Bodies above this size are passed to aiohttp as a file, which it sends in pieces and with flow control. It warns of larger
bytes objects, which it writes at once."""


def payload_of(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body in the form in which it is passed to aiohttp."""
    return body if body is None or len(body) <= LARGE_BODY_BYTES else io.BytesIO(body)


class Prototype(aiohttp.ClientRequest):
    """The common part of the requests with one method and content type to one origin.

    The connector gets it in place of each request.
    """

    def __init__(self, method: str, origin: str, headers: CIMultiDict[str], has_body: bool) -> None:
        super().__init__(method, URL(origin, encoded=True), headers=headers)
        if has_body:
            self.headers.pop("Content-Length", None)  # aiohttp computed it for no body
        elif method in self.POST_METHODS:
            self.headers.setdefault("Content-Type", "application/octet-stream")  # as aiohttp does
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        self.head: Final = " HTTP/1.1\r\n" + "".join(lines)

    @cached_property
    def connection_key(self) -> ConnectionKey:  # pyright: ignore[reportIncompatibleMethodOverride] -- a property computed once
        """The key of the connections in the pool."""
        return super().connection_key


@attrs.define(eq=False)
class Outgoing:
    """The real URL, body and response of a request. Instruments see others.

    Args:
        url: the URL with the credentials.
        body: what is sent.
        content_type: of the body.
        limit: how many bytes of the response's body are read.
        is_watched: whether an instrument may read the response.
        received: What came back, None until then.
    """

    url: str = attrs.field(repr=False)
    body: bytes | None = attrs.field(repr=False)
    content_type: str
    limit: int
    is_watched: bool
    received: TransportResult | None = attrs.field(default=None, repr=False)


OUTGOING: Final[ContextVar[Outgoing | None]] = ContextVar("boardclient_outgoing", default=None)


class OutgoingRequest(aiohttp.ClientRequest):
    """A request that gets its credentials below `ClientSession`.

    Whatever wraps or traces the session sees neither credentials nor the body.
    """

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Write the request with its real URL and body. The response gets the shown URL."""
        outgoing = OUTGOING.get()
        if outgoing is None:
            return await super().send(conn)
        shown, traces = self.url, self._traces
        if outgoing.body is not None:
            await self.update_body(payload_of(outgoing.body))
        self.url, self._traces = URL(outgoing.url, encoded=True), []  # else the traces would see both
        try:
            response = await super().send(conn)
        finally:
            self.url, self._traces = shown, traces
        for trace in traces:
            await trace.send_request_headers(self.method, shown, self.headers)
        return response

    @property
    def request_info(self) -> aiohttp.RequestInfo:
        """The facts about the request that responses and exceptions hold."""
        shown = self.original_url
        return aiohttp.RequestInfo(shown, self.method, CIMultiDictProxy(self.headers), shown)
