"""The transport over `ClientSession.request`: it always works, also with an application's own session, proxies and tracing."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Final

import aiohttp
from yarl import URL

from boardclient._transport._connections import NO_TIMEOUT, PROGRESS
from boardclient._transport._failures import failure_of
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._progress import Progress
from boardclient._transport._reading import read_whole, watched
from boardclient._transport._values import TransportFailure, TransportResult
from boardclient.errors import Effect

LARGE_BODY_BYTES: Final = 2**20
"""aiohttp warns of larger ones in one piece, and sends a file in pieces, no faster than they are taken."""

_REPEATED: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""What aiohttp sends a second time by itself when a kept-alive connection breaks; on an application's session it can't be turned
off: https://github.com/aio-libs/aiohttp/issues/10790."""


class ClientSessionTransport:
    """Sends requests through a `ClientSession`. Owned by its `Pool`."""

    def __init__(self, http: aiohttp.ClientSession, headers: RequestHeaders, limit: int, *, is_lent: bool) -> None:
        self._http = http
        self._is_lent = is_lent
        self._headers = headers
        self._limit = limit

    async def round_trip(
        self,
        method: str,
        url: str,
        body: bytes | None,
        progress: Progress,
        content_type: str,
        headers: Mapping[str, str] | None,
    ) -> TransportResult:
        """Send one request once and read its response."""
        if self._http.closed:
            return TransportFailure("connect", Effect.NOT_SENT, "no connection: the ClientSession is closed")
        progress.stage = "handed"
        token = PROGRESS.set(progress)
        outcome: TransportResult
        try:
            async with self._http.request(
                method,
                URL(url, encoded=True),
                data=body if body is None or len(body) <= LARGE_BODY_BYTES else BytesIO(body),
                headers=self._headers.copy(None if body is None else content_type, headers),
                allow_redirects=False,
                auto_decompress=False,
                raise_for_status=False,
                timeout=NO_TIMEOUT,
            ) as response:
                progress.stage = "receive"
                with watched(response):
                    outcome = await read_whole(response.status, response.headers, response.content, self._limit)
                if not response.content.is_eof():
                    response.close()
        except Exception as error:  # whatever it is, it may print the URL: only its kind leaves this frame
            outcome = failure_of(error, progress.stage, may_be_second=self._is_lent and method in _REPEATED)
        finally:
            PROGRESS.reset(token)
        progress.stage = "idle"
        return outcome
