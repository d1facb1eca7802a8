"""Record the requests of sessions and their responses, without credentials, as an HTTP Archive 1.2.

Browsers and HTTP tools show such files. The format is described at http://www.softwareishard.com/blog/har-12-spec/.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qsl, quote, urlencode

import attrs

from boardclient import __version__
from boardclient._pipeline._taps import Go, PoolRequest, RawResponse, TransportFailure, TransportResult, close_tap, open_tap
from boardclient._redaction import masked
from boardclient.testing._rules import UNKNOWN, operation_of
from boardclient.testing._secrets import encoded_forms

if TYPE_CHECKING:
    from boardclient import AsyncSession
    from boardclient.testing._service import ServiceEndpoint

EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
OWN: Final = "_boardclient"
"""The field of a response that says why there is none. The format allows fields whose names begin with an underscore."""
STARS: Final = "***"
SIGNING: Final = frozenset({"key", "token"})
"""The query parameters and fields of a JSON body that hold credentials (interface 5.5)."""
FORM_TYPE: Final = "application/x-www-form-urlencoded"
DROPPED_HEADERS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade"}
)
"""The headers that belong to one connection or moment. The body is recorded decompressed."""
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_OPEN_FIELDS: Final = frozenset({"token_type", "scope", "expires_in", "error", "error_description", "error_uri", "message"})
"""Fields of a token exchange's response that hold no secret (RFC 6749, sections 5.1 and 5.2)."""
_OPEN_FORM_FIELDS: Final = frozenset({"redirect_uri", "grant_type", "scope"})
_SECRET_NAME: Final = re.compile(r"auth|cookie|token|secret|key|password|session|signature", re.IGNORECASE)
_KEPT_HEADER: Final = "www-authenticate"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_.-]{1,24}")
_JSON_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"(\s*:)?', re.DOTALL)
"""A string in JSON, and the colon that makes it a field's name."""
_DISTINCT_LENGTH: Final = 8
"""The length from which on a secret occurs nowhere by chance. A shorter one may be a field's name, or a part of a number."""
_LITERAL_SEGMENTS: Final = frozenset({"", "1", "boards", "lists", "cards", "members", "me", "idLabels", "OAuthGetAccessToken"})


@attrs.frozen
class Recording:
    """Requests and their outcomes without credentials: the entries of an HTTP Archive, in the order of the requests."""

    entries: Sequence[Mapping[str, Any]]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` or another tool has written.

        Raises:
            OSError: it can't be read.
            ValueError: it is not an HTTP Archive.
        """
        try:
            archive = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)} can't be replayed: it is not JSON: {error}") from None
        try:
            return cls(tuple(archive["log"]["entries"]))
        except (KeyError, TypeError):
            raise ValueError(f"{os.fspath(path)} can't be replayed: it is no HTTP Archive (HAR 1.2)") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file. An existing one is replaced, and never left half written.

        Raises:
            OSError: it can't be written.
        """
        whole = Path(path)
        beside = whole.with_name(f".{whole.name}.{secrets.token_hex(4)}")
        try:
            with beside.open("xb") as file:
                file.write(json.dumps(self.to_har(), ensure_ascii=False, indent=2).encode() + b"\n")
            beside.replace(whole)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def to_har(self) -> dict[str, Any]:
        """Return the whole archive."""
        creator = {"name": "boardclient", "version": __version__}
        return {"log": {"version": "1.2", "creator": creator, "entries": [*self.entries]}}


def record(
    path: str | os.PathLike[str] | None = None,
    target: AsyncSession | ServiceEndpoint | None = None,
    *,
    secrets: Iterable[str] = (),
    max_body_bytes: int = 2**20,
) -> Recorder:
    """Record the requests of sessions and their responses within a block.

    ```python
    async with record("calls.har", session):
        await session.boards.cards(board_id)
    ```

    The file is an HTTP Archive 1.2. It is written when the block ends, also by an exception, and replaces an existing one. It
    holds no credentials: neither those that sign requests nor those of a token exchange, wherever the service repeats them, also
    percent-encoded, escaped, or in base64, hexadecimal or UTF-16. `with` works as well as `async with`.

    Args:
        path: The file, for `replay`. None (default): no file is written, only `Recorder.recording` is set.
        target: An `AsyncSession` with all its views, or a `BoardService` with all its sessions. None (default): every session.
        secrets: Further texts that must not be written. None by default.
        max_body_bytes: The largest body to record in bytes, 1 MiB by default. Of a larger one only the size is written.

    Raises:
        OSError: the file can't be written.
    """
    return Recorder(None if path is None else Path(path), target, tuple(secrets), max_body_bytes)


@attrs.define(kw_only=True, eq=False)
class _Captured:
    """A request as it was sent, with its credentials, and its outcome. Dropped when the recording ends."""

    request: PoolRequest = attrs.field(repr=False)
    started: float
    seconds: float = 0.0
    outcome: TransportResult | None = attrs.field(default=None, repr=False)
    stage: str = "idle"
    """How far the request was when it was given up."""

    @property
    def path(self) -> str:
        """The path behind the base URL, without the query."""
        return path_of(self.request.url).partition("?")[0]

    @property
    def fields(self) -> dict[str, object]:
        """The parameters of the query and the fields of the body."""
        query = parse_qsl(self.request.url.partition("?")[2], keep_blank_values=True)
        body = decoded(self.request.body or b"", self.request.content_type)
        return {**dict(query), **(body if isinstance(body, dict) else {})}


@attrs.define(eq=False, repr=False)
class Recorder:
    """Records the requests of sessions within a block. `record` makes one."""

    _path: Path | None
    _target: AsyncSession | ServiceEndpoint | None
    _secrets: tuple[str, ...]
    _max_body_bytes: int
    _captured: list[_Captured] = attrs.field(init=False, factory=list)
    _recording: Recording | None = attrs.field(init=False, default=None)

    @property
    def recording(self) -> Recording:
        """What was recorded, without credentials. Requests in flight are in it without a response."""
        if self._recording is not None:
            return self._recording
        captured = [*self._captured]
        redactor = _Redactor(captured, self._secrets, self._max_body_bytes)
        return Recording(tuple(redactor.entry(one) for one in captured))

    def __enter__(self) -> Self:
        if self._path is not None:
            if self._path.is_dir():
                raise IsADirectoryError(f"{self._path} is a folder: name a file in it")
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._captured, self._recording = [], None
        open_tap(self._tap)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        close_tap(self._tap)
        self._recording = self.recording
        self._captured = []
        if self._path is not None:
            self._recording.save(self._path)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.__exit__(kind, error, where)

    def __repr__(self) -> str:
        return f"<Recorder of {len(self._captured)} requests>"

    def _concerns(self, request: PoolRequest) -> bool:
        target = self._target
        if target is None:
            return True
        core = getattr(target, "_core", None)
        return request.url.startswith(f"{target.base_url}/") if core is None else request.pool is core.pool  # type: ignore[union-attr]  # -- a session has a core

    async def _tap(self, request: PoolRequest, go: Go) -> TransportResult:
        if not self._concerns(request):
            return await go(request)
        captured = _Captured(request=request, started=time.time())
        self._captured.append(captured)
        began = time.perf_counter()
        try:
            captured.outcome = await go(request)
        finally:
            captured.seconds, captured.stage = time.perf_counter() - began, request.progress.stage
        return captured.outcome


def path_of(url: str) -> str:
    """Return the path behind the base URL, with the query. It starts with "/1/" (interface 9.1)."""
    address, mark, query = url.partition("?")
    path = "/" + address.partition("://")[2].partition("/")[2]
    paths = [path[match.start() :] for match in re.finditer("(?=/1/)", path)] or [path]
    known = (one for one in paths if one == EXCHANGE_PATH or any(operation_of(m, one)[0] != UNKNOWN for m in _METHODS))
    return next(known, paths[0]) + mark + query


def decoded(raw: bytes, content_type: str) -> object:
    """Return the value of a body in JSON, the fields of a form, or None if it is neither."""
    try:
        if content_type.partition(";")[0].strip().lower() == FORM_TYPE:
            return dict(parse_qsl(raw.decode(), keep_blank_values=True, strict_parsing=True))
        return json.loads(raw) if raw.lstrip()[:1] in (b"{", b"[") else None
    except (ValueError, RecursionError):
        return None


class _Redactor:
    """Writes the entries of one recording without its secrets."""

    def __init__(self, captured: Iterable[_Captured], secrets: Iterable[str], max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._placeholders: dict[str, str] = {}
        """By the tokens of token exchanges: a replayed exchange responds with a placeholder, a different one for each token."""
        found = {*secrets}
        for one in captured:
            found.update(_sent_secrets(one))
            if one.path == EXCHANGE_PATH and isinstance(one.outcome, RawResponse):
                for name, secret in _exchange_secrets(one.outcome):
                    self._placeholders.setdefault(secret, f"replayed-token-{len(self._placeholders) + 1}")
                    if _SECRET_NAME.search(name) or len(secret) >= _DISTINCT_LENGTH:
                        found.add(secret)
        found.discard("")
        self._forms = encoded_forms(found)
        self._distinct = encoded_forms(secret for secret in found if len(secret) >= _DISTINCT_LENGTH)

    def entry(self, one: _Captured) -> dict[str, Any]:
        """Return the entry of a request and its outcome. Its times are in milliseconds."""
        milliseconds = round(one.seconds * 1000, 3)
        return {
            "startedDateTime": datetime.fromtimestamp(one.started, UTC).isoformat(timespec="milliseconds"),
            "time": milliseconds,
            "request": self._request(one),
            "response": self._response(one),
            "cache": {},
            "timings": {"send": 0, "wait": milliseconds, "receive": 0},
            "comment": "token.exchange" if one.path == EXCHANGE_PATH else operation_of(one.request.method, one.path)[0],
        }

    def _text(self, text: str) -> str:
        return self._clean(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def _clean(self, raw: bytes) -> bytes:
        return masked(raw, self._forms) if self._forms else raw

    def _clean_body(self, raw: bytes) -> bytes:
        if not raw.lstrip().startswith((b"{", b"[")):
            return self._clean(raw)
        # A short secret may occur in names and numbers by chance, and replacing it there would change the body.
        raw = _JSON_STRING.sub(lambda match: match[0] if match[1] else self._clean(match[0]), raw)
        return masked(raw, self._distinct) if self._distinct else raw

    def _request(self, one: _Captured) -> dict[str, Any]:
        request = one.request
        origin = request.url.partition("?")[0].removesuffix(one.path)
        path = "/".join(part if part in _LITERAL_SEGMENTS else self._text(part) for part in one.path.split("/"))
        pairs = [
            (name, STARS if name in SIGNING else self._text(value))
            for name, value in parse_qsl(request.url.partition("?")[2], keep_blank_values=True)
        ]
        query = "?" + urlencode(pairs, quote_via=quote, safe="*") if pairs else ""
        written: dict[str, Any] = {
            "method": request.method,
            "url": f"{self._text(origin)}{path}{query}",
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": [],
            "queryString": _named(pairs),
            "headersSize": -1,
            "bodySize": len(request.body or b""),
        }
        if request.body:
            body = self._request_body(request.body, request.content_type)
            written["postData"] = {"mimeType": request.content_type, "params": [], **self._held(body, encoding="_encoding")}
        return written

    def _request_body(self, raw: bytes, content_type: str) -> bytes:
        value = decoded(raw, content_type)
        if isinstance(value, dict) and content_type == FORM_TYPE:
            return urlencode(dict.fromkeys(value, STARS), safe="*").encode()
        if isinstance(value, dict) and SIGNING & value.keys():
            raw = json.dumps({**value, **dict.fromkeys(SIGNING & value.keys(), STARS)}, ensure_ascii=False).encode(
                errors="replace"
            )
        return self._clean_body(raw)

    def _held(self, raw: bytes, *, encoding: str) -> dict[str, Any]:
        """Return the fields that hold a body."""
        if len(raw) > self._max_body_bytes:
            return {"text": "", "comment": f"{len(raw)} bytes, more than max_body_bytes ({self._max_body_bytes})"}
        try:
            return {"text": raw.decode()}
        except UnicodeDecodeError:
            return {"text": base64.b64encode(raw).decode(), encoding: "base64"}

    def _response(self, one: _Captured) -> dict[str, Any]:
        outcome = one.outcome
        response = outcome if isinstance(outcome, RawResponse) else RawResponse(0, {}, b"")
        raw = response.body
        if one.path == EXCHANGE_PATH:
            raw = _with_placeholders(response, self._placeholders)
        headers = {name.lower(): value for name, value in response.headers.items()}
        written: dict[str, Any] = {
            "status": response.status,
            "statusText": HTTPStatus(response.status).phrase if response.status in {*HTTPStatus} else "",
            "httpVersion": "HTTP/1.1",
            "cookies": [],
            "headers": _named(sorted(self._headers(response.headers), key=lambda pair: pair[0].lower())),
            "content": {
                "size": len(raw),
                "mimeType": headers.get("content-type", "x-unknown"),
                **(self._held(self._clean_body(raw), encoding="encoding") if raw else {}),
            },
            "redirectURL": self._text(headers.get("location", "")),
            "headersSize": -1,
            "bodySize": -1,
        }
        if isinstance(outcome, TransportFailure):
            failure = {"phase": outcome.phase, "effect": outcome.effect.value, "why": self._text(outcome.why)}
            return {**written, "_error": failure["why"], OWN: {"failure": failure}}
        if outcome is None:
            unanswered = {"stage": one.stage}
            return {**written, "_error": "the caller gave the request up", OWN: {"unanswered": unanswered}}
        return written

    def _headers(self, headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for name, value in headers.items():
            lowered = name.lower()
            if lowered == _KEPT_HEADER or not (lowered in DROPPED_HEADERS or _SECRET_NAME.search(name)):
                yield name, self._text(value)


def _named(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _sent_secrets(one: _Captured) -> Iterator[str]:
    """Yield the credentials that a request was signed with, or what its form held."""
    is_form = one.request.content_type == FORM_TYPE
    for name, value in one.fields.items():
        is_open = name in _OPEN_FORM_FIELDS or (name == "client_id" and len(str(value)) < _DISTINCT_LENGTH)
        if isinstance(value, str) and (name in SIGNING or (is_form and not is_open)):
            yield value
    for name, value in one.request.settings.headers.items():
        if _SECRET_NAME.search(name):
            yield from (value, value.partition(" ")[2])


def _exchange_value(raw: bytes) -> object:
    """Return what a token exchange responded with (interface 4.13 does not show its form): JSON, fields, or a text."""
    text = raw.decode("utf-8", "surrogateescape").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
        # The end of a token in base64 looks like a field: "dG9rZW4==".
        return _Form(pairs) if pairs and all(_PLAIN_NAME.fullmatch(name) and value.strip("=") for name, value in pairs) else text


class _Form(dict[str, str]):
    """The fields of a form-encoded response."""


def _strings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each string in a JSON value with the name of its field."""
    waiting = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            waiting += reversed([(str(key), one) for key, one in value.items()])
        elif isinstance(value, list):
            waiting += reversed([(name, one) for one in value])


def _exchange_secrets(response: RawResponse) -> list[tuple[str, str]]:
    """Return the texts of a token exchange's response that may be tokens, with the names of their fields."""
    return [
        (name, text)
        for name, text in _strings(_exchange_value(response.body))
        if text and name not in _OPEN_FIELDS and (response.is_success or _SECRET_NAME.search(name))
    ]


def _with_placeholders(response: RawResponse, placeholders: Mapping[str, str]) -> bytes:
    """Return the body of a token exchange in its own format, with placeholders for what may be a token."""
    tokens = {text for _, text in _exchange_secrets(response)}
    if not tokens:
        return response.body
    value = _exchange_value(response.body)
    if isinstance(value, _Form):
        return urlencode({name: placeholders[text] if text in tokens else text for name, text in value.items()}).encode()
    if isinstance(value, str) and not response.body.lstrip().startswith(b'"'):
        return placeholders[value].encode()
    written = json.dumps(value)
    for token in sorted(tokens, key=len, reverse=True):
        written = written.replace(json.dumps(token), json.dumps(placeholders[token]))
    return written.encode()
