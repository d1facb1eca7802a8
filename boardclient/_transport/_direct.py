"""The exchange over the pool's connections themselves, without aiohttp's request and response: less than half of the cost.

The pool, TLS and the parser are aiohttp's; the head is written here, from the headers that aiohttp would have sent. What is used
of aiohttp beyond its documented interface (`Connection.protocol`, and of it `set_response_params`, `read` and the length; the
buffer of a `StreamReader`) is guarded by `tests/service/test_ways.py` on the versions named here. Whatever is out of the ordinary
takes `ClientSessionTransport`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from boardclient._transport._client_session import LARGE_BODY_BYTES
from boardclient._transport._connections import NO_TIMEOUT, Connector
from boardclient._transport._failures import failure_of
from boardclient._transport._headers import RequestHeaders
from boardclient._transport._progress import Progress
from boardclient._transport._reading import read_whole
from boardclient._transport._values import RawResponse, TransportResult

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection

KNOWN_VERSIONS: Final = frozenset({"3.14.3", "3.14.4", "3.14.5"})
"""The versions of aiohttp that the contract tests have passed on."""

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_FRAMING: Final = frozenset({"connection", "content-length", "cookie", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
_MOST_PROTOTYPES: Final = 64
_AT_HAND_BYTES: Final = 2**16
"""A body that came whole is taken as it lies there, up to this size, which is far below what makes aiohttp pause a connection:
reading it would first have the parser go on with what is left, for 2 microseconds."""
_PLAIN_ORIGIN: Final = re.compile(r"https?://[\w.\-:\[\]]+", re.ASCII)
_PLAIN_TARGET: Final = re.compile(r'/[!"$-~]*(?<!\?)')
"""A target that aiohttp sends as it stands: ASCII without blanks and control characters, fragment and empty query."""

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~\w]+", re.ASCII)
_VALUE: Final = re.compile(r"[!-~](?:[ !-~]*[!-~])?", re.ASCII)
"""A field of printable ASCII: https://www.rfc-editor.org/rfc/rfc9110#section-5.1 and #section-5.5."""

_REQUEST: Final = aiohttp.ClientSession.request
_PRIVATE_REQUEST: Final = getattr(aiohttp.ClientSession, "_request", None)


def _is_of_aiohttp(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == aiohttp.ClientSession.close.__code__.co_filename


_IS_KNOWN: Final = aiohttp.__version__ in KNOWN_VERSIONS and _is_of_aiohttp(_REQUEST) and _is_of_aiohttp(_PRIVATE_REQUEST)


def serves(http: aiohttp.ClientSession, headers: Mapping[str, str]) -> bool:
    """Tell whether requests of this session of our own, with these headers, would be the same ones the direct way.

    They are not with proxies or headers that frame a message, nor where an instrumentation has changed every new session.
    """
    return (
        _IS_KNOWN
        and _FRAMING.isdisjoint(name.lower() for name in headers)
        and not (http.trust_env or http._default_proxy)
        and not (http.trace_configs or http._middlewares or http.headers or http._default_auth)
        and (http._request_class, http._response_class) == (aiohttp.ClientRequest, aiohttp.ClientResponse)
    )


def is_undisturbed() -> bool:
    """Tell whether nobody, as test libraries do, has put something in the place of aiohttp's own request."""
    return aiohttp.ClientSession._request is _PRIVATE_REQUEST and aiohttp.ClientSession.request is _REQUEST


class _Prototype(aiohttp.ClientRequest):
    """What the requests of one method and content type to one origin have in common; to the connector it is each of them."""

    def __init__(self, method: str, origin: str, headers: CIMultiDict[str], has_body: bool) -> None:
        super().__init__(method, URL(origin, encoded=True), headers=headers)
        if has_body:
            self.headers.pop("Content-Length", None)  # that of no body
        elif method in self.POST_METHODS:
            self.headers.setdefault("Content-Type", "application/octet-stream")  # as aiohttp does
        lines = [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        self.head: Final = " HTTP/1.1\r\n" + "".join(lines)
        self._key: Final = super().connection_key

    def can_take(self, headers: Mapping[str, str]) -> bool:
        """Whether these fields of a single request can stand after the head: none is malformed, framing or there already."""
        return all(
            _NAME.fullmatch(name) and _VALUE.fullmatch(value) and name not in self.headers and name.lower() not in _FRAMING
            for name, value in headers.items()
        )

    @property
    def connection_key(self) -> ConnectionKey:
        return self._key


class DirectTransport:
    """The exchange over the connections of a pool of our own. Owned by its `Pool`."""

    def __init__(self, connector: Connector, headers: RequestHeaders, limit: int) -> None:
        self._connector = connector
        self._headers = headers
        self._limit = limit
        self._at_hand = min(limit, _AT_HAND_BYTES)
        self._prototypes: Final[dict[tuple[str, str, str | None], _Prototype]] = {}

    def plan(
        self, method: str, url: str, body: bytes | None, content_type: str, headers: Mapping[str, str] | None = None
    ) -> tuple[_Prototype, bytes] | None:
        """Return what to connect for and what to write, None for a request that is out of the ordinary."""
        start = url.find("/", 8)  # behind "https://"
        if _PLAIN_TARGET.fullmatch(url, start) is None:
            return None
        key = (method, url[:start], None if body is None else content_type)
        prototype = self._prototypes.get(key) or self._prepare(*key)
        if prototype is None:
            return None
        head = prototype.head
        if headers:
            if not prototype.can_take(headers):
                return None
            head += "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if body is None:
            return prototype, f"{method} {url[start:]}{head}\r\n".encode()
        if len(body) > LARGE_BODY_BYTES:
            return None
        return prototype, f"{method} {url[start:]}{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _prepare(self, method: str, origin: str, content_type: str | None) -> _Prototype | None:
        if method not in _METHODS or _PLAIN_ORIGIN.fullmatch(origin) is None:
            return None
        try:
            prototype = _Prototype(method, origin, self._headers.copy(content_type), content_type is not None)
        except ValueError:  # the public way will say what is wrong with it
            return None
        if len(self._prototypes) >= _MOST_PROTOTYPES:
            self._prototypes.clear()
        self._prototypes[method, origin, content_type] = prototype
        return prototype

    async def round_trip(self, prototype: _Prototype, wire: bytes, progress: Progress) -> TransportResult:
        """Send one request once and read its answer."""
        progress.stage = "connect"
        connection: Connection | None = None
        outcome: TransportResult
        try:
            connection = await aiohttp.TCPConnector.connect(self._connector, prototype, [], NO_TIMEOUT)
            protocol, transport = connection.protocol, connection.transport
            # An answer that is there before its request belongs to none of ours.
            if protocol is None or transport is None or transport.is_closing() or len(protocol):
                raise aiohttp.ClientConnectionResetError
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            progress.stage = "send"
            transport.write(wire)
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, content = await protocol.read()
            progress.stage = "receive"
            if (
                content.is_eof()
                and 0 < content.total_bytes <= self._at_hand
                and content.exception() is None
                and "Content-Encoding" not in message.headers
            ):
                outcome = RawResponse(message.code, message.headers, b"".join(content._buffer))
            else:
                outcome = await read_whole(message.code, message.headers, content, self._limit)
            if content.is_eof() and not transport.get_write_buffer_size():  # else somebody still has to read or to write
                connection.release()
                connection = None
        except Exception as error:  # whatever it is, it may print the URL: only its kind leaves this frame
            outcome = failure_of(error, progress.stage)
        finally:
            if connection is not None:
                connection.close()
        progress.stage = "idle"
        return outcome
