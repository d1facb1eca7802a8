"""What third-party instruments see of requests: neither credentials nor bodies.

Instruments patch `aiohttp.ClientSession`. Sentry and OpenTelemetry add trace configs in `__init__`; ddtrace, vcrpy and others
wrap `_request`. All of them read the URL, and some the body. On our own sessions they see a URL without `key` and `token`, and
no body.
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

from boardclient._transport._shown import shown_headers
from boardclient._transport._shown_response import shown_error
from boardclient._transport._values import RawResponse, TransportFailure, TransportResult

_SECRET_PARAMETERS: Final = frozenset({"key", "token"})
SESSION_CLASS: Final = vars(aiohttp.ClientSession)
"""The class's namespace. Wrappers found here can be compared by identity, while attribute access may bind a new object each time.

If `__init__` has changed, new sessions have other trace configs."""

_logger: Final = logging.getLogger("boardclient.transport")


def _is_of_aiohttp(function: object) -> bool:
    # Not isinstance: a wrapt.FunctionWrapper pretends to have the class and the code of the function that it wraps
    # (https://wrapt.readthedocs.io/en/latest/wrappers.html).
    return type(function) is FunctionType and function.__code__.co_filename == aiohttp.ClientSession.close.__code__.co_filename


_OWN_REQUEST, _OWN_INNER_REQUEST = (
    SESSION_CLASS[name] if _is_of_aiohttp(SESSION_CLASS[name]) else None for name in ("request", "_request")
)
"""aiohttp's own functions. None for one that was wrapped before this package was imported."""


def is_wrapped() -> bool:
    """Return True if `ClientSession.request` or `._request` was patched."""
    return SESSION_CLASS["_request"] is not _OWN_INNER_REQUEST or SESSION_CLASS["request"] is not _OWN_REQUEST


def is_mocked() -> bool:
    """Return True if they were patched with `unittest.mock`, as aioresponses does.

    A mock stands in for the service, so it receives the credentials and the body.
    """
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
    """The head of a response over `DirectTransport`, as `on_request_end` sees it.

    Its attributes have the names of `ClientResponse`'s.
    """

    method: str
    url: URL
    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    history: tuple[()] = ()

    @property
    def real_url(self) -> URL:
        """The URL, also without credentials."""
        return self.url

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def reason(self) -> str:
        """The standard phrase for the status, or ""."""
        return HTTPStatus(self.status).phrase if self.status in HTTPStatus._value2member_map_ else ""


class _Guarded:
    """A trace whose signals can't fail a call: their errors are logged."""

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
    """The trace signals of a request over `DirectTransport`, in aiohttp's order."""

    def __init__(self, http: aiohttp.ClientSession, method: str, url: str, headers: CIMultiDict[str], secrets: list[str]) -> None:
        self.headers = headers
        """The headers of the request. Handlers of `on_request_start` may add to them."""
        self._method = method
        self._url = shown_url(url)
        self._secrets = secrets
        self.signals: Any = [_Guarded(Trace(http, config, config.trace_config_ctx())) for config in http.trace_configs]

    async def start(self) -> None:
        """Send the signals for the start of the request."""
        for signal in self.signals:
            await signal.send_request_start(self._method, self._url, self.headers)

    async def end(self, outcome: TransportResult | BaseException) -> None:
        """Send the signals for the end of the request."""
        for signal in self.signals:
            if isinstance(outcome, RawResponse):
                response = TracedResponse(self._method, self._url, outcome.status, shown_headers(outcome.headers, self._secrets))
                await signal.send_request_headers(self._method, self._url, self.headers)
                await signal.send_request_end(self._method, self._url, self.headers, response)
            else:
                await signal.send_request_exception(self._method, self._url, self.headers, _shown_error(outcome))


def _shown_error(outcome: TransportResult | BaseException) -> BaseException:
    """Return an exception that shows no part of the request."""
    return shown_error(outcome) if isinstance(outcome, TransportFailure) else asyncio.CancelledError()
