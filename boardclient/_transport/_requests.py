"""Requests as aiohttp takes them. What is sent is kept apart from what instruments see."""

from __future__ import annotations

import io
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import aiohttp
import attrs
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection

LARGE_BODY_BYTES: Final = 2**20
"""aiohttp warns of larger ones in one piece, and sends a file in pieces, no faster than they are taken."""


def payload_of(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp takes it."""
    return body if body is None or len(body) <= LARGE_BODY_BYTES else io.BytesIO(body)


class Prototype(aiohttp.ClientRequest):
    """What the requests of one method and content type to one origin have in common. To the connector it is each of them."""

    def __init__(self, method: str, origin: str, headers: CIMultiDict[str], has_body: bool) -> None:
        super().__init__(method, URL(origin, encoded=True), headers=headers)
        if has_body:
            self.headers.pop("Content-Length", None)  # that of no body
        elif method in self.POST_METHODS:
            self.headers.setdefault("Content-Type", "application/octet-stream")  # as aiohttp does
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        self.head: Final = " HTTP/1.1\r\n" + "".join(lines)
        self._key: Final = super().connection_key

    @property
    def connection_key(self) -> ConnectionKey:
        """The pool's key, computed once."""
        return self._key


@attrs.frozen
class Outgoing:
    """What a request sends in place of the URL and body that instruments were shown."""

    url: str = attrs.field(repr=False)
    body: bytes | None = attrs.field(repr=False)


OUTGOING: Final[ContextVar[Outgoing | None]] = ContextVar("boardclient_outgoing", default=None)


class SignedRequest(aiohttp.ClientRequest):
    """A request that is signed below `ClientSession`. What wraps or traces the session sees neither credentials nor the body."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Write the request with its own URL and body. The response gets the URL that was shown."""
        outgoing = OUTGOING.get()
        if outgoing is None:
            return await super().send(conn)
        shown, traces = self.url, self._traces
        if outgoing.body is not None:
            await self.update_body(payload_of(outgoing.body))
        self.url, self._traces = URL(outgoing.url, encoded=True), []  # else the traces would be given the URL and the bodies
        try:
            response = await super().send(conn)
        finally:
            self.url, self._traces = shown, traces
        for trace in traces:
            await trace.send_request_headers(self.method, shown, self.headers)
        return response

    @property
    def request_info(self) -> aiohttp.RequestInfo:
        """What responses and exceptions hold of the request."""
        shown = self.original_url
        return aiohttp.RequestInfo(shown, self.method, CIMultiDictProxy(self.headers), shown)
