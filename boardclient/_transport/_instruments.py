"""What instruments of others see of requests: all but the credentials.

Instruments patch `aiohttp.ClientSession`: Sentry and OpenTelemetry add trace configs in `__init__`; ddtrace, vcrpy and others
wrap `_request`. All of them read the URL, and some the body. On sessions of our own they get a URL without `key` and `token`,
and no body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import FunctionType
from typing import Any, Final
from urllib.parse import unquote_plus

import aiohttp
import attrs
from aiohttp.tracing import Trace
from multidict import CIMultiDict
from yarl import URL

from boardclient._transport._values import RawResponse, TransportResult

_SECRET_PARAMETERS: Final = frozenset({"key", "token"})
SESSION_CLASS: Final = vars(aiohttp.ClientSession)
"""A live view: a wrapper found in it is always the same object, which it is not where it binds itself on access.

Another `__init__` than before makes sessions with other trace configs."""

_logger: Final = logging.getLogger("boardclient.transport")


def _is_of_aiohttp(function: object) -> bool:
    # Not isinstance: a wrapper of wrapt's claims the class and the code of what it wraps.
    return type(function) is FunctionType and function.__code__.co_filename == aiohttp.ClientSession.close.__code__.co_filename


_OWN_REQUEST, _OWN_INNER_REQUEST = (
    SESSION_CLASS[name] if _is_of_aiohttp(SESSION_CLASS[name]) else None for name in ("request", "_request")
)
"""aiohttp's own functions; None for one that was wrapped before this package was imported."""


def is_wrapped() -> bool:
    """Return True if something has taken the place of aiohttp's own request."""
    return SESSION_CLASS["_request"] is not _OWN_INNER_REQUEST or SESSION_CLASS["request"] is not _OWN_REQUEST


def is_mocked() -> bool:
    """Return True if `unittest.mock` has, as aioresponses does. It stands for the service and gets what the service would get."""
    return hasattr(SESSION_CLASS["_request"], "mock") or hasattr(SESSION_CLASS["request"], "mock")


def shown_url(url: str) -> URL:
    """Return a URL without the credentials in its query."""
    address, mark, query = url.partition("?")
    if mark:
        kept = [pair for pair in query.split("&") if unquote_plus(pair.partition("=")[0]).lower() not in _SECRET_PARAMETERS]
        address += "?" * bool(kept) + "&".join(kept)
    return URL(address, encoded=True)


@attrs.frozen
class TracedResponse:
    """The head of a response over `DirectTransport` as `on_request_end` sees it. It has `ClientResponse`'s names."""

    method: str
    url: URL
    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    history: tuple[()] = ()

    @property
    def real_url(self) -> URL:
        """The URL, without credentials as well."""
        return self.url

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def reason(self) -> str:
        """The usual words for the status."""
        return HTTPStatus(self.status).phrase if self.status in HTTPStatus._value2member_map_ else ""


class _Guarded:
    """A trace whose signals never fail and never see a credential."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        signal: Callable[..., Awaitable[None]] = getattr(self._trace, name)

        async def send(*values: object) -> None:
            try:
                await signal(*values)
            except Exception:
                _logger.warning("a trace config failed", exc_info=True)

        return send


class Traces:
    """The traces of a request over `DirectTransport`, in `ClientSession`'s order."""

    def __init__(self, http: aiohttp.ClientSession, method: str, url: str, headers: CIMultiDict[str]) -> None:
        self.headers = headers
        """What the request is sent with; handlers of `on_request_start` add to it."""
        self._method = method
        self._url = shown_url(url)
        self.signals: Any = [_Guarded(Trace(http, config, config.trace_config_ctx())) for config in http.trace_configs]

    async def start(self) -> None:
        """Play the start of the request."""
        for signal in self.signals:
            await signal.send_request_start(self._method, self._url, self.headers)

    async def end(self, outcome: TransportResult | BaseException) -> None:
        """Play the end of the request."""
        for signal in self.signals:
            if isinstance(outcome, RawResponse):
                response = TracedResponse(self._method, self._url, outcome.status, outcome.headers)
                await signal.send_request_headers(self._method, self._url, self.headers)
                await signal.send_request_end(self._method, self._url, self.headers, response)
            else:
                await signal.send_request_exception(self._method, self._url, self.headers, _shown_error(outcome))


def _shown_error(outcome: TransportResult | BaseException) -> BaseException:
    """Return an exception that holds nothing of the request."""
    if isinstance(outcome, BaseException):
        return asyncio.CancelledError()
    why = getattr(outcome, "why", "")
    phase = getattr(outcome, "phase", "receive")
    return aiohttp.ClientPayloadError(why) if phase == "receive" else aiohttp.ClientConnectionError(why)
