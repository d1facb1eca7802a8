"""Removes credentials from captured requests and responses. No I/O.

The credentials that sign a request are replaced in its query and body. If a service repeats them elsewhere, or those of a token
exchange, they are found in every form that `boardclient._redaction` knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, urlencode

import attrs

from boardclient._pipeline._taps import RawResponse, TransportFailure, TransportResult
from boardclient._redaction import redacted
from boardclient.testing._parsing import body_of, fields_of, path_of, request_of, walk
from boardclient.testing._recording import (
    Body,
    Interaction,
    MultiFields,
    ProgressStage,
    RecordedFailure,
    RecordedOutcome,
    RecordedRequest,
    RecordedResponse,
    Unanswered,
)
from boardclient.testing._records import Json

STARS: Final = "***"
SIGNING: Final = ("key", "token")
"""The query parameters and fields of a JSON body that hold credentials (interface 5.5)."""

_OPEN_FIELDS: Final = frozenset({"token_type", "scope", "error", "error_description", "error_uri", "message"})
"""Fields of a token exchange's response that hold no secret (RFC 6749, sections 5.1 and 5.2)."""
_OPEN_FORM_FIELDS: Final = frozenset({"redirect_uri", "grant_type", "scope"})
_SECRET_NAME: Final = re.compile(r"auth|cookie|token|secret|key|password|session|signature", re.IGNORECASE)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_.-]{1,24}")
_KEPT_HEADERS: Final = frozenset({"www-authenticate"})
DROPPED_HEADERS: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "keep-alive",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""The headers that belong to one connection or moment. The body is recorded decompressed."""
_DISTINCT_LENGTH: Final = 8
"""The length from which on a secret occurs nowhere by chance. A shorter one may be a field's name, or a part of a number."""
_LITERAL_SEGMENTS: Final = frozenset({"", "1", "boards", "lists", "cards", "members", "me", "idLabels", "OAuthGetAccessToken"})
_TWO_BYTE_CODES: Final = ("utf-16-le", "utf-16-be")


@attrs.define(kw_only=True, eq=False)
class Captured:
    """A request as it was sent, with its credentials, and its outcome.

    It is dropped when the recording ends.
    """

    method: str
    url: str = attrs.field(repr=False)
    body: bytes | None = attrs.field(repr=False)
    content_type: str
    own_headers: Mapping[str, str] = attrs.field(repr=False)
    """The headers that the session adds to every request."""
    started: float
    seconds: float = 0.0
    outcome: TransportResult | None = attrs.field(default=None, repr=False)
    stage: ProgressStage = "idle"

    @property
    def request(self) -> RecordedRequest:
        """The request with its credentials."""
        return request_of(self.method, path_of(self.url), self.body, self.content_type)


def interactions_of(captured: Iterable[Captured], secrets: Iterable[str], max_body_bytes: int) -> Iterator[Interaction]:
    """Yield the captured interactions without credentials and without these secrets."""
    everything = [(one, one.request) for one in captured]
    redactor = _Redactor(everything, secrets, max_body_bytes)
    for one, request in everything:
        yield Interaction(
            request=redactor.request(request),
            outcome=redactor.outcome(one, request),
            origin=redactor.text(one.url.partition("?")[0].removesuffix(request.path)),
            started=one.started,
            seconds=one.seconds,
        )


class _Redactor:
    """Replaces the secrets of one recording."""

    def __init__(self, captured: Iterable[tuple[Captured, RecordedRequest]], secrets: Iterable[str], max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._placeholders: dict[str, str] = {}
        """By the tokens of token exchanges: a replayed exchange responds with a placeholder, a different one for each token."""
        found = {*secrets}
        for one, request in captured:
            found.update(_sent_secrets(request), _header_secrets(one.own_headers))
            if request.is_exchange and isinstance(one.outcome, RawResponse):
                found.update(self._exchange_secrets(_ExchangeResponse(one.outcome)))
        self._secrets = sorted(filter(None, found))
        self._distinct = [secret for secret in self._secrets if len(secret) >= _DISTINCT_LENGTH]

    def _exchange_secrets(self, response: _ExchangeResponse) -> list[str]:
        secrets = response.secrets()
        for _, secret in secrets:
            self._placeholders.setdefault(secret, f"replayed-token-{len(self._placeholders) + 1}")
        return [secret for name, secret in secrets if _SECRET_NAME.search(name) or len(secret) >= _DISTINCT_LENGTH]

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._cleaned(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def _cleaned(self, raw: bytes) -> bytes:
        if not self._secrets:
            return raw
        for code in _TWO_BYTE_CODES:
            for secret in self._secrets:
                raw = raw.replace(secret.encode(code), STARS.encode(code))
        return redacted(raw, self._secrets)

    def request(self, request: RecordedRequest) -> RecordedRequest:
        """Return a request without credentials."""
        segments = [segment if segment in _LITERAL_SEGMENTS else self.text(segment) for segment in request.path.split("/")]
        return attrs.evolve(
            request,
            path="/".join(segments),
            query={name: STARS if name in SIGNING else self._values(value) for name, value in request.query.items()},
            body=self._request_body(request.body),
        )

    def _values(self, value: str | list[str]) -> str | list[str]:
        return [self.text(one) for one in value] if isinstance(value, list) else self.text(value)

    def _request_body(self, body: Body | None) -> Body | None:
        if body is None or not isinstance(body.value, dict):
            return None if body is None else self._body(body)
        if body.kind == "form":
            return Body("form", dict.fromkeys(body.value, STARS))
        signed: dict[str, Json] = {name: STARS for name in SIGNING if name in body.value}
        clean = self._body(Body("json", {name: value for name, value in body.value.items() if name not in SIGNING}))
        return Body("json", {**signed, **clean.value}) if isinstance(clean.value, dict) else clean

    def _body(self, body: Body) -> Body:
        raw = body.encode()
        if len(raw) > self._max_body_bytes:
            return Body("left_out", f"{len(raw)} bytes, more than max_body_bytes ({self._max_body_bytes})")
        clean = self._cleaned(raw)
        if clean == raw:
            return body
        if body.kind == "json":
            value = walk(body.value, lambda name, text: self.text(text))
            written = json.dumps(value, ensure_ascii=False).encode()
            # A short secret may occur in names and numbers by chance, and replacing it there would change the body.
            clean = redacted(written, self._distinct) if self._distinct else written
        return cast("Body", body_of(clean))  # not empty: each secret leaves its stars

    def outcome(self, one: Captured, request: RecordedRequest) -> RecordedOutcome:
        """Return the outcome of a request, without secrets."""
        outcome = one.outcome
        if outcome is None:
            return Unanswered(stage=one.stage)
        if isinstance(outcome, TransportFailure):
            return RecordedFailure(phase=outcome.phase, effect=outcome.effect, why=self.text(outcome.why))
        body = body_of(_ExchangeResponse(outcome).with_placeholders(self._placeholders) if request.is_exchange else outcome.body)
        return RecordedResponse(
            status=outcome.status, headers=self._headers(outcome.headers), body=None if body is None else self._body(body)
        )

    def _headers(self, headers: Mapping[str, str]) -> MultiFields:
        kept = (
            (name, self.text(value))
            for name, value in headers.items()
            if name.lower() in _KEPT_HEADERS or not (name.lower() in DROPPED_HEADERS or _SECRET_NAME.search(name))
        )
        return fields_of(sorted(kept, key=lambda pair: pair[0].lower()))


def _sent_secrets(request: RecordedRequest) -> Iterator[str]:
    """Yield the credentials that a request was signed with, or what its form held."""
    fields: dict[str, Json] = {**cast("dict[str, Json]", request.query)}
    if request.body is not None and isinstance(request.body.value, dict):
        fields |= request.body.value
    is_form = request.body is not None and request.body.kind == "form"
    for name, value in fields.items():
        is_open = name in _OPEN_FORM_FIELDS or (name == "client_id" and len(str(value)) < _DISTINCT_LENGTH)
        if name in SIGNING or (is_form and not is_open):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def _header_secrets(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if _SECRET_NAME.search(name):
            yield from (value, value.partition(" ")[2])


_Format: TypeAlias = Literal["json", "form", "text"]


class _ExchangeResponse:
    """A token exchange's response. The interface does not show its form (4.13)."""

    def __init__(self, response: RawResponse) -> None:
        self._raw = response.body
        self._is_success = response.is_success
        self._format: _Format = "json"
        text = response.body.decode("utf-8", "surrogateescape").strip()
        try:
            self._value: Json = json.loads(text)
            walk(self._value, lambda name, text: text)
        except (ValueError, RecursionError):
            pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
            # The end of a token in base64 looks like a field: "dG9rZW4==".
            is_form = bool(pairs) and all(_PLAIN_NAME.fullmatch(name) and value.strip("=") for name, value in pairs)
            self._format = "form" if is_form else "text"
            self._value = cast("Json", dict(pairs)) if is_form else text

    def secrets(self) -> list[tuple[str, str]]:
        """Return the texts that may be tokens, each with the name of its field."""
        found: list[tuple[str, str]] = []

        def note(name: str, text: str) -> str:
            if text and name not in _OPEN_FIELDS and (self._is_success or _SECRET_NAME.search(name)):
                found.append((name, text))
            return text

        walk(self._value, note)
        return found

    def with_placeholders(self, placeholders: Mapping[str, str]) -> bytes:
        """Return the body in its own format, with placeholders for what may be a token."""
        names = {text for _, text in self.secrets()}
        if not names:
            return self._raw
        value = walk(self._value, lambda name, text: placeholders[text] if text in names else text)
        if self._format == "json":
            return json.dumps(value).encode()
        return urlencode(cast("dict[str, str]", value)).encode() if self._format == "form" else cast("str", value).encode()
