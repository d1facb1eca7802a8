"""The transport over `ClientSession.request`, and all that instruments see of it.

It works with any session, with proxies and with instruments. These patch `aiohttp.ClientSession`: Sentry and OpenTelemetry add
trace configs in `__init__`; ddtrace, vcrpy and others wrap `_request`. All of them read the URL, and some the bodies. On sessions
of our own they see neither credentials nor the body of a request, and of a response what is left without credentials.
"""

from __future__ import annotations

import asyncio
import copy
import io
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from boardclient._base._redaction import forms_of, masked_text, secrets_of, shown_response, shown_url
from boardclient._transport._bodies import read_whole
from boardclient._transport._connection_pool import NO_TIMEOUT, PROGRESS, Protocol, discard_unread
from boardclient._transport._reader import NOT_CHUNKED, RefusedError, application_error_in, failure_of
from boardclient._transport._values import (
    FORM_TYPE,
    LARGE_BODY_BYTES,
    SUCCESSES,
    Progress,
    RawResponse,
    RequestHeaders,
    Stage,
    TransportFailure,
    TransportResult,
    UnshownStruct,
    UsedConnection,
    can_add,
)
from boardclient.errors import Effect

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.connector import Connection

_REPEATED: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods of requests that aiohttp repeats by itself when a kept-alive connection breaks. On an application's session this can't
be turned off: https://github.com/aio-libs/aiohttp/issues/10790."""

SESSION_CLASS: Final = vars(aiohttp.ClientSession)
"""The class's namespace. Wrappers found here can be compared by identity, while attribute access may bind a new object each time.
"""

_logger: Final = logging.getLogger("boardclient.transport")


class ClientSessionTransport:
    """Sends requests through a `ClientSession`. Owned by its `TransportChoice`.

    On a session of our own, whose request class is `OutgoingRequest`, `ClientSession.request` receives neither credentials nor
    the body, since it passes what it receives to instruments: https://docs.aiohttp.org/en/stable/tracing_reference.html.
    """

    def __init__(self, http: aiohttp.ClientSession, headers: RequestHeaders, limit: int, *, is_lent: bool) -> None:
        self._http = http
        self._is_lent = is_lent
        self._headers = headers
        self._limit = limit
        self._unknown: Final = UsedConnection()
        """The connection of responses that do not know theirs."""
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
        if self._http.closed:
            return TransportFailure(
                "connect", Effect.NOT_SENT, "the ClientSession that was lent as http= is closed", is_closed=True
            )
        sent = self._headers.copy(None if body is None else content_type, headers)
        outgoing = self._hidden(url, body, content_type, sent)
        hides_secrets = outgoing is not None
        tokens = PROGRESS.set(progress), OUTGOING.set(outgoing)
        outcome: TransportResult
        is_first = False
        http = _without_cookies(self._http) if self._is_lent else self._http
        try:
            progress.connection = None
            target = URL(shown_url(url) if hides_secrets else url, encoded=True)
            if progress.order is not None and not self._is_lent:  # a lent session does not say when it writes
                progress.place = progress.order.enter()
            is_first = self._is_lent and self._is_first(target)
            progress.begin_sending("handed")
            async with http.request(
                method,
                target,
                data=None if hides_secrets else payload_of(body),
                headers=sent.copy(),  # instruments write into it
                allow_redirects=False,
                auto_decompress=False,
                raise_for_status=False,
                timeout=NO_TIMEOUT,
            ) as response:
                progress.stage = "receive"
                progress.http_version = getattr(response, "version", None)  # recorders replay responses of classes of their own
                if progress.connection is None:
                    self._unknown.responses += 1
                    progress.connection, progress.response_number = self._unknown, self._unknown.responses
                outcome = _received(outgoing) or await self._read(response, progress)
        except Exception as error:  # it may hold the URL, so only a TransportFailure leaves this frame
            failure = self._failure(error, progress.stage, method, is_first)
            # An instrument may fail after the response has come, which is worth more than its error.
            outcome = _received(outgoing) or failure
        finally:
            if progress.place is not None:
                progress.place.end()
                progress.place = None
            PROGRESS.reset(tokens[0])
            OUTGOING.reset(tokens[1])
            if http is not self._http:
                http.detach()
        progress.stage = "idle"
        return outcome

    def _hidden(self, url: str, body: bytes | None, content_type: str, sent: CIMultiDict[str]) -> Outgoing | None:
        """Return what `ClientSession.request` must not get. A lent session gets all, and so does a mock, which is the service."""
        if self._is_lent or is_mocked():
            return None
        return Outgoing(url, body, content_type, sent, self._limit, is_wrapped() or bool(self._http.trace_configs))

    def _is_first(self, url: URL) -> bool:
        """Close what a request must not get on the lent session, and return whether it is the first of its TLS connection."""
        return not discard_unread(self._http.connector, url.raw_host, url.port) and url.scheme == "https"

    def _failure(self, error: Exception, stage: Stage, method: str, is_first: bool) -> TransportFailure:
        # A trace config that keeps the error would keep the frames, too. What the application's own code raised keeps its own.
        cause = application_error_in(error) if self._is_lent else None
        if cause is not error:
            error.__traceback__ = None
        may_be_second = self._is_lent and method in _REPEATED
        return failure_of(error, stage, may_be_second=may_be_second, cause=cause, is_first=is_first)

    async def _read(self, response: aiohttp.ClientResponse, progress: Progress) -> TransportResult:
        content: Any = response.content
        if not isinstance(content, aiohttp.StreamReader) or content.at_eof():
            # A recorder such as vcrpy has already read the body, or replays one.
            content = _stream(await response.read(), asyncio.get_running_loop())
        body = _Framed(response.headers, content)
        outcome = await read_whole(response.status, response.headers, body, self._limit, progress.needs_body)
        if not content.is_eof():
            response.close()
        return outcome


def _without_cookies(lent: aiohttp.ClientSession) -> aiohttp.ClientSession:
    """Return a copy of a session for one request, on the same connections, that keeps and sends no cookies.

    Its users share the lent one: a cookie that the service sets for one of them must not go with the next one's request.
    """
    copied = copy.copy(lent)
    vars(copied)["_cookie_jar"] = aiohttp.DummyCookieJar(loop=asyncio.get_running_loop())
    return copied


class _Framed:
    """The body of a response of `ClientSession`, whose framing is what its header says.

    aiohttp shows fields without the tabs around them, but its parser takes `chunked` with a tab for another coding, whose body
    would last until the connection ends.
    """

    def __init__(self, headers: Mapping[str, str], content: Any) -> None:
        self._says_chunks = "Transfer-Encoding" in headers
        self._content = content

    async def readany(self) -> bytes:
        data: bytes = await self._content.readany()
        if data and self._says_chunks and getattr(self._content, "_http_chunk_splits", ()) is None:
            raise RefusedError(NOT_CHUNKED)
        return data

    def at_eof(self) -> bool:
        return bool(self._content.at_eof())


# --- what is sent


class Outgoing(UnshownStruct):
    """The real URL, body and response of a request. Instruments see others.

    Args:
        url: the URL with the credentials.
        body: what is sent.
        content_type: of the body.
        headers: our own headers.
        limit: how many bytes of the response's body are read.
        is_watched: whether an instrument may read the response.
        received: What came back, None until then.
    """

    url: str
    body: bytes | None
    content_type: str
    headers: CIMultiDict[str]
    limit: int
    is_watched: bool
    received: TransportResult | None = None


def _received(outgoing: Outgoing | None) -> TransportResult | None:
    """Return what came back below `ClientSession`, before instruments have seen it."""
    return None if outgoing is None else outgoing.received


OUTGOING: Final[ContextVar[Outgoing | None]] = ContextVar("boardclient_outgoing", default=None)


class OutgoingRequest(aiohttp.ClientRequest):
    """A request that gets its credentials and body below `ClientSession`, where nothing that wraps or traces it sees them."""

    def __init__(self, method: str, url: URL, *, headers: CIMultiDict[str], **options: Any) -> None:
        if (outgoing := OUTGOING.get()) is not None:  # what instruments have added and can be sent is sent
            added = {name: value for name, value in headers.items() if can_add(outgoing.headers, name, value)}
            headers = outgoing.headers.copy()
            headers.update(added)
        super().__init__(method, url, headers=headers, **options)

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Write the request with its real URL and body, and give the response the shown URL."""
        outgoing = OUTGOING.get()
        if outgoing is None:
            await _begin_sending(conn)
            return await super().send(conn)
        shown, traces = self.url, self._traces
        if outgoing.body is not None:
            await self.update_body(payload_of(outgoing.body))
        if not outgoing.body:  # else `write_bytes` begins
            await _begin_sending(conn)
        self.url, self._traces = URL(outgoing.url, encoded=True), []  # else the traces would see both
        try:
            response = await super().send(conn)
        finally:
            self.url, self._traces = shown, traces
        for trace in traces:
            await trace.send_request_headers(self.method, shown, self.headers)
        return response

    async def write_bytes(self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None) -> None:
        protocol: Any = conn.protocol
        try:
            await _begin_sending(conn)
        except Exception as error:
            protocol.set_exception(error)  # for the caller, which waits for the response
            return
        await super().write_bytes(writer, conn, content_length)

    @property
    def request_info(self) -> aiohttp.RequestInfo:
        shown = self.original_url
        return aiohttp.RequestInfo(shown, self.method, CIMultiDictProxy(self.headers), shown)


async def _begin_sending(connection: Connection) -> None:
    """Wait for the turn of a request and note that it is written now, or raise an exception if it may not be."""
    protocol, progress = connection.protocol, PROGRESS.get()
    place = None if progress is None else progress.place
    is_fresh = isinstance(protocol, Protocol) and not protocol.responses
    if place is not None:
        await place.wait(is_fresh=is_fresh)
    if isinstance(protocol, Protocol):
        await protocol.check_unused()
        protocol.awaits_response = True
    if progress is not None:
        progress.begin_sending()
    if place is not None:
        place.note_written(is_fresh=is_fresh)


def payload_of(body: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body in the form in which it is passed to aiohttp, which warns of large bytes."""
    return body if body is None or len(body) <= LARGE_BODY_BYTES else io.BytesIO(body)


# --- which instruments there are


def _is_of_aiohttp(function: object) -> bool:
    # Not isinstance: a wrapt.FunctionWrapper pretends to have the class and the code of the function that it wraps
    # (https://wrapt.readthedocs.io/en/latest/wrappers.html).
    return type(function) is FunctionType and function.__code__.co_filename == aiohttp.ClientSession.close.__code__.co_filename


OWN_REQUEST, OWN_INNER_REQUEST = (
    SESSION_CLASS[name] if _is_of_aiohttp(SESSION_CLASS[name]) else None for name in ("request", "_request")
)
"""aiohttp's own functions. None for one that was wrapped before this package was imported."""


def is_wrapped() -> bool:
    return SESSION_CLASS["_request"] is not OWN_INNER_REQUEST or SESSION_CLASS["request"] is not OWN_REQUEST


def is_mocked() -> bool:
    """Return True if they were patched with `unittest.mock`, which stands in for the service and gets what it would get."""
    return hasattr(SESSION_CLASS["_request"], "mock") or hasattr(SESSION_CLASS["request"], "mock")


# --- what instruments see of a response


class ShownResponse(aiohttp.ClientResponse):
    """A response that is read before `ClientSession` returns it to instruments, which see it without credentials."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head, and the body where instruments may read it."""
        outgoing = OUTGOING.get()
        if outgoing is None or not outgoing.is_watched:
            return await self._start(connection)
        outgoing.received = received = await self._receive(connection, outgoing.limit)
        if isinstance(received, TransportFailure):
            raise shown_error(received)
        self._show(received, outgoing)
        return self

    async def _start(self, connection: Connection) -> aiohttp.ClientResponse:
        protocol, progress = connection.protocol, PROGRESS.get()
        await super().start(connection)
        if progress is not None and isinstance(protocol, Protocol):
            protocol.count_response(self.headers, progress)
        return self

    async def _receive(self, connection: Connection, limit: int) -> TransportResult:
        progress = PROGRESS.get()
        assert progress is not None  # noqa: S101 -- it is set with what goes out
        try:
            await self._start(connection)
            progress.stage = "receive"
            body = _Framed(self.headers, self.content)
            received = await read_whole(self.status, self.headers, body, limit, progress.needs_body)
        except Exception as error:  # whatever it is, it may print what the service sent
            return failure_of(error, progress.stage)
        if not self.content.is_eof():
            self.close()
        return received

    def _show(self, received: RawResponse, outgoing: Outgoing) -> None:
        """Leave nothing in the response that instruments may not see."""
        is_form = outgoing.content_type == FORM_TYPE
        forms = forms_of(secrets_of(outgoing.url, outgoing.body, is_form=is_form))
        is_token = is_form and outgoing.body is not None and received.status in SUCCESSES
        headers, body = shown_response(received.headers, received.body, forms, is_token=is_token)
        self._headers = CIMultiDictProxy(headers)
        self._cache = {}  # of properties that were asked for before
        self._raw_headers = tuple((name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers.items())
        self._raw_cookie_headers = tuple(headers.getall("Set-Cookie", ())) or None
        self.reason = masked_text(self.reason or "", forms)
        self._body = body
        self.content = _stream(body, self._loop)


def _stream(body: bytes, loop: Any) -> aiohttp.StreamReader:
    stream = aiohttp.StreamReader(ResponseHandler(loop), len(body) + 1, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    return stream


def shown_error(failure: TransportFailure) -> aiohttp.ClientError:
    """Return a failure as an exception of aiohttp that shows no part of the request."""
    kind = aiohttp.ClientPayloadError if failure.phase == "receive" else aiohttp.ClientConnectionError
    return kind(failure.why)
