"""A response of `ClientSession` that instruments may read. They find no credential in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDictProxy

from boardclient._transport._connections import PROGRESS
from boardclient._transport._failures import failure_of
from boardclient._transport._reading import read_whole, watched
from boardclient._transport._requests import OUTGOING, Outgoing
from boardclient._transport._shown import FORM_TYPE, secrets_of, shown_response, shown_text
from boardclient._transport._values import RawResponse, TransportFailure, TransportResult

if TYPE_CHECKING:
    from aiohttp.connector import Connection


class ShownResponse(aiohttp.ClientResponse):
    """A response that is read before `ClientSession` returns it to instruments.

    They see what is left without credentials. `ClientSessionTransport` takes the response as it was from `Outgoing`.
    """

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head, and the body where instruments may read it."""
        outgoing = OUTGOING.get()
        if outgoing is None or not outgoing.is_watched:
            return await super().start(connection)
        outgoing.received = received = await self._received(connection, outgoing.limit)
        if isinstance(received, TransportFailure):
            raise shown_error(received)
        self._show(received, outgoing)
        return self

    async def _received(self, connection: Connection, limit: int) -> TransportResult:
        progress = PROGRESS.get()
        assert progress is not None  # noqa: S101 -- it is set with what goes out
        try:
            await super().start(connection)
            progress.stage = "receive"
            with watched(self):
                received = await read_whole(self.status, self.headers, self.content, limit)
        except Exception as error:  # whatever it is, it may print what the service sent
            return failure_of(error, progress.stage)
        if not self.content.is_eof():
            self.close()
        return received

    def _show(self, received: RawResponse, outgoing: Outgoing) -> None:
        """Leave nothing in the response that instruments may not see."""
        secrets = secrets_of(outgoing.url, outgoing.body, outgoing.content_type)
        is_token = outgoing.content_type == FORM_TYPE and outgoing.body is not None and received.is_success
        headers, body = shown_response(received.headers, received.body, secrets, is_token=is_token)
        self._headers = CIMultiDictProxy(headers)
        self._cache = {}  # of properties that were asked for before
        self._raw_headers = tuple((name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers.items())
        self._raw_cookie_headers = tuple(headers.getall("Set-Cookie", ())) or None
        self.reason = shown_text(self.reason or "", secrets)
        self._body = body
        self.content = _stream(body, self._loop)


def _stream(body: bytes, loop: Any) -> aiohttp.StreamReader:
    """Return a stream of a body that was already read."""
    stream = aiohttp.StreamReader(ResponseHandler(loop), len(body) + 1, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    return stream


def shown_error(failure: TransportFailure) -> aiohttp.ClientError:
    """Return a failure as an exception of aiohttp that shows no part of the request."""
    kind = aiohttp.ClientPayloadError if failure.phase == "receive" else aiohttp.ClientConnectionError
    return kind(failure.why)
