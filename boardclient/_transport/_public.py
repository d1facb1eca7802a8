"""The exchange over `ClientSession.request`: it serves always, an application's own session, proxies and tracing included."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from boardclient._flights import Flight
from boardclient._messages import Answer
from boardclient._transport._answers import read_whole
from boardclient._transport._connections import FLIGHT, NO_TIMEOUT
from boardclient._transport._failures import Failure, failure_of

LARGE_BODY_BYTES: Final = 2**20
"""aiohttp warns of larger ones in one piece, and sends a file in pieces, no faster than they are taken."""


class PublicWay:
    """The exchange over a `ClientSession`. Owned by its `Pool`."""

    def __init__(self, http: aiohttp.ClientSession, headers: Callable[[str | None], CIMultiDict[str]], limit: int) -> None:
        self._http = http
        self._headers = headers
        self._limit = limit

    async def exchange(self, method: str, url: str, body: bytes | None, flight: Flight, content_type: str) -> Answer | Failure:
        """Send one request once and read its answer."""
        flight.stage = "handed"
        token = FLIGHT.set(flight)
        outcome: Answer | Failure
        try:
            async with self._http.request(
                method,
                URL(url, encoded=True),
                data=body if body is None or len(body) <= LARGE_BODY_BYTES else BytesIO(body),
                headers=self._headers(None if body is None else content_type),
                allow_redirects=False,
                auto_decompress=True,
                raise_for_status=False,
                timeout=NO_TIMEOUT,
            ) as response:
                flight.stage = "receive"
                outcome = await read_whole(response.status, response.headers, response.content, self._limit)
                if not response.content.is_eof():
                    response.close()
        except Exception as error:  # whatever it is, it may print the URL: only its kind leaves this frame
            outcome = failure_of(error, flight.stage)
        finally:
            FLIGHT.reset(token)
        flight.stage = "idle"
        return outcome
