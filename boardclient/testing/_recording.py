"""Recordings of requests and responses, and their files. No credentials, no network I/O."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, cast, get_args

import attrs

from boardclient.errors import Effect, Phase
from boardclient.testing._records import Json
from boardclient.testing._rules import operation_of

_FORMAT: Final = "boardclient_recording"
_VERSION: Final = 1
EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
ProgressStage: TypeAlias = Literal["idle", "handed", "connect", "write", "send", "receive"]
"""How far a request was when it was cancelled."""
BodyKind: TypeAlias = Literal["json", "form", "text", "base64", "left_out"]
MultiFields: TypeAlias = Mapping[str, str | list[str]]
"""Names and values of a query or of headers; a name that occurs several times has a list."""


@attrs.frozen
class Body:
    """A body as it is written to a file.

    "json" and "form" have the decoded value, "text" a string, and "base64" the bytes of a body that is not UTF-8. "left_out" says
    why there is no body.
    """

    kind: BodyKind
    value: Json

    def encode(self) -> bytes:
        """Return the bytes to send."""
        if self.kind == "json":
            return json.dumps(self.value, ensure_ascii=False).encode()
        text = cast("str", self.value).encode()
        return base64.b64decode(text, validate=True) if self.kind == "base64" else text


@attrs.frozen(kw_only=True)
class RecordedRequest:
    """A request without credentials. Its path begins behind the base URL."""

    method: str
    path: str
    query: MultiFields = attrs.field(factory=dict)
    body: Body | None = None

    @property
    def operation(self) -> str:
        """The name of the operation, "unknown" for other requests."""
        return "token.exchange" if self.is_exchange else operation_of(self.method, self.path)[0]

    @property
    def is_exchange(self) -> bool:
        """Whether it is the token exchange."""
        return self.path == EXCHANGE_PATH


@attrs.frozen(kw_only=True)
class RecordedResponse:
    """A whole response, without what belongs to its connection."""

    status: int
    headers: MultiFields = attrs.field(factory=dict)
    body: Body | None = None


@attrs.frozen(kw_only=True)
class RecordedFailure:
    """Why there is no complete response, in the terms of `TransportError`."""

    phase: Phase = attrs.field(validator=attrs.validators.in_(get_args(Phase)))
    effect: Effect = attrs.field(converter=Effect)
    why: str


@attrs.frozen(kw_only=True)
class Unanswered:
    """A request that its deadline or its caller cancelled, and how far it had got."""

    stage: ProgressStage = attrs.field(validator=attrs.validators.in_(get_args(ProgressStage)))


RecordedOutcome: TypeAlias = RecordedResponse | RecordedFailure | Unanswered


@attrs.frozen(kw_only=True)
class Interaction:
    """A request and its outcome. Only HAR files have `origin`, `started` and `seconds`.

    Args:
        request: The request.
        outcome: The response, or why there is none.
        origin: The part of the URL before the path.
        started: When the request was sent, in seconds since the epoch.
        seconds: How long it took.
    """

    request: RecordedRequest
    outcome: RecordedOutcome
    origin: str = attrs.field(default="http://board.invalid", eq=False)
    started: float = attrs.field(default=0.0, eq=False)
    seconds: float = attrs.field(default=0.0, eq=False)


@attrs.frozen
class Recording:
    """Requests and their outcomes, in the order of the requests, without credentials.

    `save` writes the file that `boardclient.testing.replay` serves. `to_har` returns the form that browsers and HTTP tools show.
    """

    interactions: Sequence[Interaction]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` has written, or an HTTP Archive of another tool.

        Raises:
            OSError: it can't be read.
            ValueError: it is not a recording, or one of a later version.
        """
        try:
            return cls(tuple(_interactions(json.loads(Path(path).read_text(encoding="utf-8")))))
        except (ValueError, RecursionError) as error:
            why = f"it is not JSON: {error}" if isinstance(error, json.JSONDecodeError) else error
            raise ValueError(f"{os.fspath(path)} can't be replayed: {why}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file. An existing one is replaced, and never left half written.

        It is an HTTP Archive 1.2 if its name ends in ".har".

        Raises:
            OSError: it can't be written.
        """
        is_har = Path(path).suffix == ".har"
        value = self.to_har() if is_har else {_FORMAT: _VERSION, "interactions": [_written(one) for one in self.interactions]}
        _replace(Path(path), json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n")

    def to_har(self) -> dict[str, Any]:
        """Return the recording as HTTP Archive 1.2.

        The times and hosts of a recording that was read from a file are not known.
        """
        from boardclient.testing import _har

        return _har.har_of(self.interactions)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _written(interaction: Interaction) -> dict[str, Any]:
    request, outcome = interaction.request, interaction.outcome
    asked = {"method": request.method, "path": request.path, **_optional(request.query, "query"), **_of_body(request.body)}
    written = {"operation": request.operation, "request": asked}
    if isinstance(outcome, RecordedResponse):
        return {
            **written,
            "response": {"status": outcome.status, **_optional(outcome.headers, "headers"), **_of_body(outcome.body)},
        }
    return {**written, **written_outcome(outcome)}


def written_outcome(outcome: RecordedFailure | Unanswered) -> dict[str, Any]:
    """Return the form in which a file says why there is no response."""
    if isinstance(outcome, RecordedFailure):
        return {"failure": {"phase": outcome.phase, "effect": outcome.effect.value, "why": outcome.why}}
    return {"unanswered": {"stage": outcome.stage}}


def _optional(fields: MultiFields, name: str) -> dict[str, MultiFields]:
    return {name: fields} if fields else {}


def _of_body(body: Body | None) -> dict[str, Json]:
    return {} if body is None else {body.kind: body.value}


def _interactions(value: Any) -> Iterator[Interaction]:
    """Read what `save` has written.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, dict) and isinstance(value.get("log"), dict) and isinstance(value["log"].get("entries"), list):
        from boardclient.testing import _har_reading

        yield from _har_reading.interactions_of_har(value["log"])
        return
    version = value.get(_FORMAT) if isinstance(value, dict) else None
    if version is None:
        raise ValueError("it is no recording of boardclient.testing.record")
    if version != _VERSION:
        raise ValueError(f"its version is {version!r}, and this package reads {_VERSION}")
    for number, one in enumerate(value.get("interactions", ()), 1):
        try:
            yield Interaction(request=_request(one["request"]), outcome=_outcome(one))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"interaction {number} is incomplete or wrong ({type(error).__name__}: {error})") from None


def _request(value: Mapping[str, Any]) -> RecordedRequest:
    return RecordedRequest(
        method=str(value["method"]), path=str(value["path"]), query=dict(value.get("query", {})), body=_body(value)
    )


def outcome_of(value: Mapping[str, Any]) -> RecordedFailure | Unanswered | None:
    """Read what `written_outcome` has written. None if there is no such entry."""
    if "failure" in value:
        return RecordedFailure(**value["failure"])
    return Unanswered(**value["unanswered"]) if "unanswered" in value else None


def _outcome(value: Mapping[str, Any]) -> RecordedOutcome:
    if (failure := outcome_of(value)) is not None:
        return failure
    response = value["response"]
    return RecordedResponse(status=int(response["status"]), headers=dict(response.get("headers", {})), body=_body(response))


def _body(value: Mapping[str, Any]) -> Body | None:
    kinds = [kind for kind in get_args(BodyKind) if kind in value]
    if len(kinds) > 1:
        raise ValueError(f"it has several bodies: {', '.join(kinds)}")
    if not kinds:
        return None
    body = Body(kinds[0], value[kinds[0]])
    if body.kind != "form":
        body.encode()  # raises here, not in the middle of a test
    return body
