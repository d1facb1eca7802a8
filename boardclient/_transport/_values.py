"""The values at the border of the transport: settings, progress and results. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import attrs
import msgspec
from multidict import CIMultiDict

from boardclient._transport._order import WriteOrder, WritePlace
from boardclient._version import __version__
from boardclient.errors import Effect, Phase

if TYPE_CHECKING:
    from ssl import SSLContext

    import aiohttp

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header (RFC 9110, section 5.1)."""
_REFUSED: Final = frozenset({"content-length", "expect", "transfer-encoding"})
"""The headers that say where a body ends and when it is sent (RFC 9112, section 6, and RFC 9110, section 10.1.1)."""

_FIELD_VALUE: Final = re.compile(r"[!-~](?:[ !-~]*[!-~])?", re.ASCII)
"""The value of a header, printable ASCII only (RFC 9110, section 5.5)."""
FRAMING: Final = frozenset({"connection", "content-length", "cookie", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
"""Headers that change how a message is framed, or that aiohttp treats in its own way."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
LARGE_BODY_BYTES: Final = 2**20
"""Larger bodies are passed to aiohttp, which sends them in pieces and with flow control."""

SUCCESSES: Final = frozenset(range(200, 300))
"""The statuses of responses that are read for their value."""

Stage = Literal["idle", "handed", "connect", "write", "send", "receive"]


@attrs.frozen(kw_only=True)
class TransportSettings:
    """The settings of a session's transport, checked. `AsyncSession` documents them, and has their defaults."""

    max_connections: int
    trust_env: bool
    ssl: SSLContext | bool | aiohttp.Fingerprint | None
    proxy: str | None = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    user_agent: str
    allow_insecure: bool
    max_answer_bytes: int

    def __attrs_post_init__(self) -> None:
        for name, flag in (("trust_env", self.trust_env), ("allow_insecure", self.allow_insecure)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be a bool, not {type(flag).__name__}")
        if self.ssl is False and not self.allow_insecure:
            raise ValueError("ssl=False turns certificate checks off: it needs allow_insecure=True")
        if self.ssl is not None and not isinstance(self.ssl, bool):
            _check_ssl(self.ssl)
        for name, limit in (("max_connections", self.max_connections), ("max_answer_bytes", self.max_answer_bytes)):
            if not isinstance(limit, int):
                raise TypeError(f"{name} must be a whole number, not {type(limit).__name__}")
            if limit < 1:
                raise ValueError("max_connections and max_answer_bytes must be at least 1")
        check_headers(self.headers, "headers", _REFUSED)
        if not (isinstance(self.user_agent, str) and self.user_agent.isprintable()):
            raise ValueError("user_agent must be a printable string")


def check_headers(headers: Mapping[str, str], what: str, refused: frozenset[str]) -> Mapping[str, str]:
    """Return a copy of headers, or raise a TypeError or ValueError that calls them `what` if they can't be sent."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"{what} must be a mapping of strings, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str) or not (name + value).isprintable():
            raise ValueError(f"{what} must be printable strings")
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"{what} must have names of letters, digits and hyphens, such as X-Request-Source")
        if name.lower() in refused:
            raise ValueError(f"{what} must not hold {name}: each request has its own")
    return dict(headers)


def _check_ssl(value: object) -> None:
    import ssl

    import aiohttp

    if not isinstance(value, ssl.SSLContext | aiohttp.Fingerprint):
        raise TypeError(f"ssl must be an SSLContext, an aiohttp.Fingerprint, a bool or None, not {type(value).__name__}")


class RequestHeaders:
    """The headers of a session's requests, prepared once for each content type."""

    def __init__(self, settings: TransportSettings) -> None:
        agent = " ".join(filter(None, (f"boardclient/{__version__}", settings.user_agent)))
        bare = CIMultiDict({"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": agent})
        self._prepared: Final[dict[str | None, CIMultiDict[str]]] = {None: with_fields(bare, settings.headers)}

    def copy(self, content_type: str | None, extra: Mapping[str, str] | None = None) -> CIMultiDict[str]:
        """Return the headers of one request, a mapping of its own since instruments write into it."""
        prepared = self._prepared.get(content_type)
        if prepared is None:
            prepared = self._prepared[content_type] = self._prepared[None].copy()
            prepared["Content-Type"] = content_type or ""
        return with_fields(prepared.copy(), extra or {})


def with_fields(headers: CIMultiDict[str], fields: Mapping[str, str]) -> CIMultiDict[str]:
    """Return headers with further fields, each there once, also if names differ in their case only."""
    for name, value in fields.items():
        headers[name] = value
    return headers


def can_add(headers: CIMultiDict[str], name: str, value: str) -> bool:
    """Return True if an instrument may add a header: it is well-formed, frames nothing, and is not there already."""
    is_well_formed = _FIELD_NAME.fullmatch(name) is not None and _FIELD_VALUE.fullmatch(value) is not None
    return is_well_formed and name not in headers and name.lower() not in FRAMING


class UsedConnection:
    """The connection of some responses, for a layer that can tell a response to another request.

    Over HTTP/1.1 nothing but their order says which request a response belongs to. After one response too many each later one is
    read for the wrong request, until the connection is closed.
    """

    responses: int = 0
    """How many responses came over it."""
    has_surplus: bool = False
    """Whether more came over it than the responses to its requests."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes over it any more."""
        return False

    def use_next(self) -> bool | None:
        """Let the next request have it. Return False while another one has it, and None if it is closed or not known."""
        return None

    def distrust(self) -> bool:
        """Close the connection, also under a request in flight, which then ends with a failure.

        Return False if it is not known which connection it was: then a later request may get it. So it is for a `ClientSession`
        that the application lent, whose responses all seem to come over one connection.
        """
        return False


class UnshownStruct(msgspec.Struct, eq=False):
    """An object of a call, with declared fields.

    msgspec makes it in C, at half the cost of a class of attrs. It shows no fields: some hold what the service sent.
    """

    def __repr__(self) -> str:
        return object.__repr__(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Progress(UnshownStruct, kw_only=True):
    """How far one request is. The transport sets it.

    It is read after a cancellation or a deadline has ended the request, since nothing is returned then.
    """

    stage: Stage = "idle"
    """One of: "idle" outside the transport, "handed" to a session that may not report its progress, "connect" until there is a
    connection, "write" until the next iteration of the event loop writes the request, "send", "receive"."""
    http_version: tuple[int, int] | None = None
    """The HTTP version of the last response, such as (1, 1)."""
    connection: UsedConnection | None = None
    """The connection that the response came over, None if there was none."""
    response_number: int = 0
    """Which of the connection's responses it was, counted from 1."""
    order: WriteOrder | None = None
    """In which it is written among others, None if that does not matter."""
    place: WritePlace | None = None
    """Its place there, while it is under way."""

    def begin_sending(self, stage: Stage = "send") -> None:
        """Note that the request is handed over or written now. A subclass may raise an exception: then it is not."""
        self.stage = stage

    @property
    def needs_body(self) -> bool:
        """Whether a success is a response only with its whole body."""
        return True

    @property
    def effect_under_way(self) -> Effect:
        """What the request may have done if it ends here."""
        return Effect.NOT_SENT if self.stage in {"idle", "connect", "write"} else Effect.UNKNOWN


class RawResponse(UnshownStruct, eq=True):
    """A whole response: status, headers (case-insensitive) and the decoded body. It is not changed after it was made."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen
class TransportFailure:
    """No whole response was received. `why` shows no URL.

    It says how far the request got and what its effect may be. Failures are returned, not raised, because the frames of the
    transport hold credentials and aiohttp's exceptions show URLs.
    """

    status: ClassVar[None] = None
    phase: Phase
    effect: Effect
    why: str
    is_closed: bool = False
    """Whether the session that the application lent is closed, so that every further request fails."""
    cause: Exception | None = attrs.field(default=None, repr=False)
    """What a middleware or a trace config of the application raised on the session that it lent, None for anything else."""


TransportResult: TypeAlias = RawResponse | TransportFailure
