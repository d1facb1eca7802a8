"""Record the requests of sessions without credentials as an HTTP Archive, and serve such a file.

Browsers and HTTP tools show these files. http://www.softwareishard.com/blog/har-12-spec/ describes the format.
"""

from __future__ import annotations

import base64
import collections
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import attrs
from aiohttp import web
from multidict import CIMultiDict

from boardclient import __version__
from boardclient._redaction import forms_of, masked
from boardclient._transport._pool import TAPS, TappedRequest
from boardclient._transport._values import RawResponse, TransportFailure, host_of
from boardclient.testing._http import LoopbackService, read_body

if TYPE_CHECKING:
    from boardclient import AsyncSession

_EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_STARS: Final = "***"
_SIGNING: Final = frozenset({"key", "token"})
"""The query parameters and fields of a JSON body that hold credentials (interface 5.5)."""
_OPEN_FIELDS: Final = frozenset(
    {"token_type", "scope", "expires_in", "error", "error_description", "error_uri", "message", "redirect_uri", "grant_type"}
)
"""The fields of a token exchange that hold no secret (RFC 6749, sections 4.1.3, 5.1 and 5.2)."""
_SECRET_HEADER: Final = re.compile(r"auth|cookie|token|secret|key|password|session|signature", re.IGNORECASE)
_DROPPED_HEADERS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "date", "keep-alive", "transfer-encoding"}
)
"""Headers that belong to one connection or moment. The body is recorded decompressed."""
_SHORTEST_SECRET: Final = 6
"""A shorter text stands in other texts by chance."""
_UNRECORDED_STATUS: Final = 421
"""Misdirected Request (https://www.rfc-editor.org/rfc/rfc9110#section-15.5.20): it is not retried, and services do not use it."""
_SHOWN_LENGTH: Final = 300
_MOST_COMPARED: Final = 200


@contextmanager
def record(path: str | os.PathLike[str], session: AsyncSession | None = None, *, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Record the requests of sessions and their responses within a block.

    ```python
    with record("calls.har", session):
        await session.boards.cards(board_id)
    ```

    The file is an HTTP Archive 1.2, for `replay`. It is written when the block ends, also by an exception, and replaces an
    existing one. It holds no credentials: neither those that sign requests nor those of a token exchange, wherever the service
    repeats them, also percent-encoded or escaped. A secret of fewer than six characters is replaced only where a request carries
    it.

    Args:
        path: The file. Its folder is made if there is none.
        session: The session, with all views of it. None (default): all sessions.
        secrets: Further texts that must not be written. None by default.

    Raises:
        OSError: the file can't be written.
    """
    pool = None if session is None else session._core.pool
    sent: list[TappedRequest] = []

    def tap(request: TappedRequest) -> None:
        if pool is None or request.pool is pool:
            sent.append(request)

    TAPS.append(tap)
    try:
        yield
    finally:
        TAPS.remove(tap)
        redactor = _Redactor(sent, secrets)
        log = {
            "version": "1.2",
            "creator": {"name": "boardclient", "version": __version__},
            "entries": [redactor.entry(one) for one in sent],
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"log": log}, ensure_ascii=False, indent=2) + "\n", encoding="utf-8", errors="replace")


def _decoded(raw: bytes, content_type: str) -> object:
    """Return the value of JSON, the fields of a form, or the text of any other body."""
    text = raw.decode("utf-8", "backslashreplace")
    if content_type.partition(";")[0] == _FORM_TYPE:
        return dict(parse_qsl(text, keep_blank_values=True))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Redactor:
    """Writes the entries of one recording without its secrets."""

    def __init__(self, sent: Iterable[TappedRequest], secrets: Iterable[str]) -> None:
        self._tokens: dict[str, str] = {}
        """By the tokens of token exchanges, what stands for them: a replayed renewal has to return a token that differs."""
        found = {*secrets}
        for one in sent:
            found.update(_sent_secrets(one))
            if isinstance(one.outcome, RawResponse) and _is_granted(one):
                self._with_placeholders(_granted_value(one.outcome.body))
        self._forms = forms_of(text for text in {*found, *self._tokens} if len(text) >= _SHORTEST_SECRET)

    def _with_placeholders(self, value: object, name: str = "") -> Any:
        """Return the value of a token exchange's response with placeholders for what may be a token (interface 4.13)."""
        if isinstance(value, dict):
            return {name: self._with_placeholders(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [self._with_placeholders(one, name) for one in value]
        if isinstance(value, str) and value and name not in _OPEN_FIELDS:
            return self._tokens.setdefault(value, f"replayed-token-{len(self._tokens) + 1}")
        return value

    def _text(self, text: str) -> str:
        return masked(text.encode("utf-8", "surrogateescape"), self._forms).decode("utf-8", "replace")

    def entry(self, one: TappedRequest) -> dict[str, Any]:
        """Return the entry of a request and its outcome. Its times are in milliseconds."""
        milliseconds = round(one.seconds * 1000, 3)
        return {
            "startedDateTime": datetime.fromtimestamp(one.started, UTC).isoformat(timespec="milliseconds"),
            "time": milliseconds,
            "request": self._request(one),
            "response": self._response(one),
            "cache": {},
            "timings": {"send": 0, "wait": milliseconds, "receive": 0},
        }

    def _request(self, one: TappedRequest) -> dict[str, Any]:
        address, _, query = one.url.partition("?")
        pairs = [
            (self._text(name), _STARS if name in _SIGNING else self._text(value))
            for name, value in parse_qsl(query, keep_blank_values=True)
        ]
        written = {
            "method": one.method,
            "url": self._text(address) + ("?" + urlencode(pairs, quote_via=quote, safe="*") if pairs else ""),
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": [],
            "queryString": _named(pairs),
            "headersSize": -1,
            "bodySize": len(one.body or b""),
        }
        if one.body:
            written["postData"] = {"mimeType": one.content_type, "params": [], "text": self._posted(one.body, one.content_type)}
        return written

    def _posted(self, raw: bytes, content_type: str) -> str:
        value = _decoded(raw, content_type)
        if content_type == _FORM_TYPE and isinstance(value, dict):
            return urlencode(dict.fromkeys(value, _STARS), safe="*")
        if isinstance(value, dict) and _SIGNING & value.keys():
            value |= dict.fromkeys(_SIGNING & value.keys(), _STARS)
            raw = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        return masked(raw, self._forms).decode(errors="replace")

    def _response(self, one: TappedRequest) -> dict[str, Any]:
        response = one.outcome if isinstance(one.outcome, RawResponse) else RawResponse(0, {}, b"")
        raw = response.body
        if _is_granted(one):
            value = self._with_placeholders(_granted_value(raw))
            is_form = isinstance(value, dict) and not raw.lstrip().startswith(b"{")
            raw = (value if isinstance(value, str) else urlencode(value) if is_form else json.dumps(value)).encode()
        raw = masked(raw, self._forms)
        pairs = [
            (self._text(name), self._text(value)) for name, value in response.headers.items() if not _SECRET_HEADER.search(name)
        ]
        written: dict[str, Any] = {
            "status": response.status,
            "statusText": HTTPStatus(response.status).phrase if response.status in {*HTTPStatus} else "",
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": _named(pairs),
            "content": {"size": len(raw), "mimeType": self._text(_type_of(response)), **_held(raw)},
            "redirectURL": self._text(response.headers.get("Location", "")),
            "headersSize": -1,
            "bodySize": -1,
        }
        if not response.status:
            failure = one.outcome if isinstance(one.outcome, TransportFailure) else None
            why = "the caller gave the request up" if failure is None else failure.words(host_of(one.url))
            written["_error"] = self._text(why)
        return written


def _is_granted(one: TappedRequest) -> bool:
    return one.url.endswith(_EXCHANGE_PATH) and isinstance(one.outcome, RawResponse) and one.outcome.is_success


def _granted_value(raw: bytes) -> object:
    """Return what a token exchange responded with: JSON, the fields of a form, or a text."""
    value = _decoded(raw, "")
    return dict(parse_qsl(value)) if isinstance(value, str) and "token=" in value else value


def _type_of(response: RawResponse) -> str:
    return response.headers.get("Content-Type", "x-unknown").partition(";")[0]


def _held(raw: bytes) -> dict[str, str]:
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"text": base64.b64encode(raw).decode(), "encoding": "base64"}


def _named(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _sent_secrets(one: TappedRequest) -> Iterator[str]:
    """Yield the credentials that a request was signed with, those in a form, and those in the session's own headers."""
    fields: dict[str, object] = dict(parse_qsl(urlsplit(one.url).query))
    content = _decoded(one.body or b"", one.content_type)
    if isinstance(content, dict):
        fields |= content
    names = fields.keys() - _OPEN_FIELDS if one.content_type == _FORM_TYPE else fields.keys() & _SIGNING
    yield from (str(fields[name]) for name in names)
    for name, value in one.pool.settings.headers.items():
        if _SECRET_HEADER.search(name):
            yield from (value, value.partition(" ")[2])


@attrs.frozen
class _Response:
    status: int
    headers: CIMultiDict[str]
    body: bytes


def replay(path: str | os.PathLike[str], *, ignoring: Iterable[str] = (), port: int = 0) -> ReplayService:
    """Serve a recording on a loopback port within a block.

    ```python
    async with replay("calls.har") as service, service.session() as session:
        await session.boards.cards(board_id)
    ```

    Requests are equal if they have the same method, path, query and body. The order of names and the credentials don't count.
    Equal requests get their responses in the recorded order, and the last of them again and again. A request that got no response
    gets none. A request that is not in the recording gets status 421 and a text that names the most similar one, and the block
    ends with an `AssertionError`.

    Args:
        path: The file: an HTTP Archive, which may be another tool's.
        ignoring: Further query parameters and fields of the body that don't count, such as "due". None by default.
        port: The port on 127.0.0.1. 0, the default, means any free port.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not an HTTP Archive.
    """
    service = ReplayService(name=os.fspath(path), ignored=_SIGNING | {*ignoring}, port=port)
    try:
        for entry in json.loads(Path(path).read_text(encoding="utf-8"))["log"]["entries"]:
            service._add(entry["request"], entry["response"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{service.name} is no HTTP Archive (HAR 1.2): {error!r}") from None
    return service


@attrs.define(kw_only=True, eq=False, repr=False)
class ReplayService(LoopbackService):
    """Serves the responses of a recording, whatever the credentials are. `replay` makes one.

    `unrecorded` describes the requests that are not in the recording.
    """

    name: str
    ignored: frozenset[str]
    key: str = attrs.field(init=False, default="replayed-key")
    token: str = attrs.field(init=False, default="replayed-token")
    client_id: str = attrs.field(init=False, default="replayed-client")
    client_secret: str = attrs.field(init=False, default="replayed-client-secret")
    redirect_uri: str = attrs.field(init=False, default="https://application.example/callback")
    unrecorded: list[str] = attrs.field(init=False, factory=list)
    _responses: dict[str, collections.deque[_Response | None]] = attrs.field(init=False, factory=dict)

    def __repr__(self) -> str:
        return f"<ReplayService of {self.name}>"

    @property
    def auth_url(self) -> str:
        """The address of the token exchange."""
        return self.base_url

    def new_code(self) -> str:
        """Return an authorization code; any is accepted."""
        return "replayed-code"

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        await self.stop()
        self._check(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        LoopbackService.__exit__(self, kind, error, where)
        self._check(error)

    def _check(self, error: BaseException | None) -> None:
        __tracebackhide__ = True
        if self.unrecorded:
            mismatch = f"{self.name} does not fit: {'; '.join(self.unrecorded)}"
            if error is None:
                raise AssertionError(mismatch)
            error.add_note(mismatch)

    def _add(self, request: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        posted = request.get("postData") or {}
        text, kind = str(posted.get("text") or ""), str(posted.get("mimeType"))
        url = urlsplit(str(request["url"]))
        content = response.get("content") or {}
        body = str(content.get("text") or "").encode()
        headers = CIMultiDict((str(field["name"]), str(field["value"])) for field in response.get("headers") or ())
        for name in {*headers}:
            if name.lower() in _DROPPED_HEADERS or name.startswith(":"):  # HTTP/2 has pseudo-headers, such as ":status"
                headers.popall(name)
        recorded = None
        if int(response["status"]):
            recorded = _Response(int(response["status"]), headers, base64.b64decode(body) if content.get("encoding") else body)
        for start in re.finditer(
            "(?=/1/)", url.path
        ):  # the base URL of the recorded service may have a path, even with "/1/" in it
            asked = self._asked(str(request["method"]), url.path[start.start() :], url.query, text.encode(), kind)
            self._responses.setdefault(asked, collections.deque()).append(recorded)

    def _asked(self, method: str, path: str, query: str, body: bytes, content_type: str) -> str:
        """Return a text that is the same for equal requests."""
        parameters: dict[str, list[str]] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            parameters.setdefault(name, []).append(value)
        content = _decoded(body, content_type) if body else {}
        if isinstance(content, dict) and content_type == _FORM_TYPE:
            content = dict.fromkeys(content)  # the values of a form are secret, so only its names are compared
        counted = [
            {name: value for name, value in part.items() if name not in self.ignored} if isinstance(part, dict) else part
            for part in (parameters, content)
        ]
        return f"{method} {path} {json.dumps(counted, sort_keys=True) if counted != [{}, {}] else ''}".rstrip()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await read_body(request)
        url = request.rel_url
        asked = self._asked(request.method, url.raw_path, url.raw_query_string, raw, request.content_type)
        responses = self._responses.get(asked)
        if responses is None:
            head = asked.partition(" [")[0]
            alike = [one[:_SHOWN_LENGTH] for one in self._responses if one.partition(" [")[0] == head] or [*self._responses]
            nearest = difflib.get_close_matches(asked[:_SHOWN_LENGTH], alike[:_MOST_COMPARED], n=1, cutoff=0.0)
            words = f"{asked[:_SHOWN_LENGTH]} is not in the recording"
            self.unrecorded.append(words + "".join(f"; the nearest is {one[:_SHOWN_LENGTH]}" for one in nearest))
            return web.Response(status=_UNRECORDED_STATUS, text=self.unrecorded[-1])
        response = responses.popleft() if len(responses) > 1 else responses[0]
        if response is None:
            assert request.transport is not None  # noqa: S101 -- for the type checker: a request has one
            request.transport.abort()
            return web.Response()
        return web.Response(status=response.status, headers=response.headers, body=response.body)
