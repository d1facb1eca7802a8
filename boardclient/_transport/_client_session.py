"""The transport over `ClientSession.request`. It works with any session, and with proxies."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from yarl import URL

from boardclient._transport._connections import NO_TIMEOUT, PROGRESS
from boardclient._transport._failures import failure_of
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._instruments import is_mocked, is_wrapped, shown_url
from boardclient._transport._reading import read_whole, unpack_whole, watched
from boardclient._transport._requests import OUTGOING, Outgoing, payload_of
from boardclient._transport._values import Progress, TransportFailure, TransportResult
from boardclient.errors import Effect

_REPEATED: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods of requests that aiohttp repeats by itself when a kept-alive connection breaks. On an application's session this can't
be turned off: https://github.com/aio-libs/aiohttp/issues/10790."""

_logger: Final = logging.getLogger("boardclient.transport")


class ClientSessionTransport:
    """Sends requests through a `ClientSession`. Owned by its `Pool`.

    On a session of our own, whose request class is `SignedRequest`, `ClientSession.request` receives neither the credentials nor
    the body, since it passes what it receives to instruments: https://docs.aiohttp.org/en/stable/tracing_reference.html.
    """

    def __init__(self, http: aiohttp.ClientSession, headers: RequestHeaders, limit: int, *, is_lent: bool) -> None:
        self._http = http
        self._is_lent = is_lent
        self._headers = headers
        self._limit = limit
        if is_lent and getattr(http, "trace_configs", None):
            _logger.debug("the lent ClientSession has trace configs, which see the credentials in the URLs of requests")

    async def round_trip(
        self,
        method: str,
        url: str,
        body: bytes | None,
        progress: Progress,
        content_type: str,
        headers: Mapping[str, str] | None,
    ) -> TransportResult:
        """Send one request once, and return its response or the failure."""
        if self._http.closed:
            return TransportFailure("connect", Effect.NOT_SENT, "no connection: the ClientSession is closed")
        progress.stage = "handed"
        is_shown = self._is_lent or is_mocked()
        outgoing = None
        if not is_shown:
            is_watched = is_wrapped() or bool(self._http.trace_configs)
            outgoing = Outgoing(url, body, content_type, self._limit, is_watched)
        tokens = PROGRESS.set(progress), OUTGOING.set(outgoing)
        outcome: TransportResult
        try:
            async with self._http.request(
                method,
                URL(url, encoded=True) if is_shown else shown_url(url),
                data=payload_of(body) if is_shown else None,
                headers=self._headers.copy(None if body is None else content_type, headers),
                allow_redirects=False,
                auto_decompress=False,
                raise_for_status=False,
                timeout=NO_TIMEOUT,
            ) as response:
                progress.stage = "receive"
                progress.http_version = getattr(response, "version", None)  # recorders replay responses of classes of their own
                outcome = (outgoing and outgoing.received) or await self._read(response)
        except Exception as error:  # it may hold the URL, so only a TransportFailure leaves this frame
            error.__traceback__ = None  # a trace config that keeps the error would keep this frame
            known = outgoing and outgoing.received
            outcome = known or failure_of(error, progress.stage, may_be_second=self._is_lent and method in _REPEATED)
        finally:
            PROGRESS.reset(tokens[0])
            OUTGOING.reset(tokens[1])
        progress.stage = "idle"
        return outcome

    async def _read(self, response: aiohttp.ClientResponse) -> TransportResult:
        content: Any = response.content
        if not isinstance(content, aiohttp.StreamReader) or content.at_eof():
            # A recorder such as vcrpy has already read the body, or replays one.
            return await unpack_whole(response.status, response.headers, await response.read(), self._limit)
        with watched(response):
            outcome = await read_whole(response.status, response.headers, content, self._limit)
        if not content.is_eof():
            response.close()
        return outcome
