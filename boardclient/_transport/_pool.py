"""The connections of a session, and the way that each request takes over them."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar, Final

import aiohttp
from multidict import CIMultiDict

from boardclient._flights import Flight
from boardclient._messages import Answer
from boardclient._transport import _direct
from boardclient._transport._connections import NO_TIMEOUT, Connector
from boardclient._transport._direct import DirectWay
from boardclient._transport._failures import Failure
from boardclient._transport._public import PublicWay
from boardclient._transport._settings import Settings


class Pool:
    """The connections of a session: its own, made at first use and closed with it, or an application's, which is only used."""

    _may_be_direct: ClassVar[bool] = True
    """Tests and benchmarks turn it off, to see the public way where the direct one would serve."""

    def __init__(self, settings: Settings, lent: aiohttp.ClientSession | None = None) -> None:
        self._settings = settings
        self._lent = lent
        self._http: aiohttp.ClientSession | None = None
        self._public: PublicWay | None = None
        self._direct: DirectWay | None = None
        agent = " ".join(filter(None, (f"boardclient/{version('boardclient')}", settings.user_agent)))
        bare = CIMultiDict({"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": agent})
        bare.update(settings.headers)
        self._headers: Final[dict[str | None, CIMultiDict[str]]] = {None: bare}

    @property
    def is_lent(self) -> bool:
        """Tell whether the connections are an application's."""
        return self._lent is not None

    def _open(self) -> PublicWay:
        """Make the connections' owner, and choose the ways over it."""
        limit = self._settings.max_answer_bytes
        http = self._lent
        if http is None:
            _keep_receive_buffers()
            http, connector = _own_session(self._settings)
            if _direct.serves(http, self._typed(None)):
                self._direct = DirectWay(connector, self._typed, limit)
        self._http, self._public = http, PublicWay(http, self._typed, limit)
        return self._public

    def _typed(self, content_type: str | None) -> CIMultiDict[str]:
        """Return the headers of every request with such a body, None for those without one."""
        headers = self._headers.get(content_type)
        if headers is None:
            headers = self._headers[content_type] = self._headers[None].copy()
            headers["Content-Type"] = content_type or ""
        return headers

    def send(
        self, method: str, url: str, body: bytes | None, flight: Flight, content_type: str = "application/json"
    ) -> Coroutine[Any, Any, Answer | Failure]:
        """Send one request once and return its whole answer, or how it failed; a cancellation leaves the flight's stage."""
        public, direct = self._public or self._open(), self._direct
        if direct is not None and self._may_be_direct and _direct.is_undisturbed():
            plan = direct.plan(method, url, body, content_type)
            if plan is not None:
                return direct.exchange(*plan, flight)
        return public.exchange(method, url, body, flight, content_type)

    async def aclose(self) -> None:
        """Close the connections if they are the session's own."""
        http = self._forget()
        if http is not None and not self.is_lent:
            await http.close()

    def abandon(self) -> None:
        """Forget the connections without a loop to close them on."""
        http = self._forget()
        if http is not None and isinstance(http.connector, Connector):
            http.connector.abandon()

    def _forget(self) -> aiohttp.ClientSession | None:
        http, self._http, self._public, self._direct = self._http, None, None, None
        return http

    def __repr__(self) -> str:
        if self.is_lent:
            return "lent connections"
        connector = None if self._http is None else self._http.connector
        return f"{0 if connector is None else len(connector._acquired)}/{self._settings.max_connections} connections"


def _own_session(settings: Settings) -> tuple[aiohttp.ClientSession, Connector]:
    connector = Connector(settings.max_connections, True if settings.ssl is None else settings.ssl)
    http = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=NO_TIMEOUT,
        trust_env=settings.trust_env,
        proxy=settings.proxy,
    )
    # aiohttp repeats GET, PUT and DELETE by itself on a broken kept-alive connection; repeating is the caller's policy's.
    http._retry_connection = False
    return http, connector


@cache
def _keep_receive_buffers() -> None:
    """Keep glibc from giving asyncio's 256 KiB receive buffers back to the kernel after each answer.

    One large allocation, freed, raises its threshold for mmap: 16 microseconds per request on plain http.
    """
    bytes(2**20)
