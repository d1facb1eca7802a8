"""Recordings as HTTP Archive 1.2, which browsers and HTTP tools show. No I/O.

The format is described at http://www.softwareishard.com/blog/har-12-spec/.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from boardclient import __version__
from boardclient.testing._recording import (
    Body,
    Interaction,
    MultiFields,
    RecordedFailure,
    RecordedResponse,
    Unanswered,
    written_outcome,
)

_UNKNOWN_SIZE: Final = -1
_NO_RESPONSE: Final = RecordedResponse(status=0)
"""What browsers write for a request without a response."""
_HTTP: Final = "HTTP/1.1"
OWN: Final = "_boardclient"
"""The field of a response that says why there is none. The format allows fields whose names begin with an underscore."""


def har_of(interactions: Iterable[Interaction]) -> dict[str, Any]:
    """Return an archive. Its times are in milliseconds."""
    creator = {"name": "boardclient", "version": __version__}
    return {"log": {"version": "1.2", "creator": creator, "entries": [_entry(one) for one in interactions]}}


def _entry(one: Interaction) -> dict[str, Any]:
    milliseconds = round(one.seconds * 1000, 3)
    entry: dict[str, Any] = {
        "startedDateTime": datetime.fromtimestamp(one.started, UTC).isoformat(timespec="milliseconds"),
        "time": milliseconds,
        "request": _request(one),
        "response": _response(one.outcome if isinstance(one.outcome, RecordedResponse) else _NO_RESPONSE),
        "cache": {},
        "timings": {"send": 0, "wait": milliseconds, "receive": 0},
        "comment": one.request.operation,
    }
    if isinstance(one.outcome, RecordedFailure):
        entry["response"] |= {"_error": one.outcome.why, OWN: written_outcome(one.outcome)}
    elif isinstance(one.outcome, Unanswered):
        entry["response"] |= {"_error": "the caller gave the request up", OWN: written_outcome(one.outcome)}
    return entry


def _request(one: Interaction) -> dict[str, Any]:
    request = one.request
    pairs = [*_pairs(request.query)]
    query = "?" + urlencode(pairs) if pairs else ""
    written = {
        "method": request.method,
        "url": f"{one.origin}{request.path}{query}",
        "httpVersion": _HTTP,
        "cookies": [],
        "headers": [],
        "queryString": _named(request.query),
        "headersSize": _UNKNOWN_SIZE,
        "bodySize": 0,
    }
    if request.body is not None:
        kind = "application/x-www-form-urlencoded" if request.body.kind == "form" else "application/json"
        size, posted = _content(request.body)
        encoding = {"_encoding": "base64"} if request.body.kind == "base64" else {}
        written |= {"bodySize": size, "postData": {"mimeType": kind, "params": [], **posted, **encoding}}
    return written


def _response(response: RecordedResponse) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in _pairs(response.headers)}
    content: dict[str, Any] = {"size": 0, "mimeType": headers.get("content-type", "x-unknown")}
    if response.body is not None:
        size, held = _content(response.body)
        content |= {"size": size, **held}
        if response.body.kind == "base64":
            content["encoding"] = "base64"
    return {
        "status": response.status,
        "statusText": _phrase(response.status),
        "httpVersion": _HTTP,
        "cookies": [],
        "headers": _named(response.headers),
        "content": content,
        "redirectURL": headers.get("location", ""),
        "headersSize": _UNKNOWN_SIZE,
        "bodySize": _UNKNOWN_SIZE,
    }


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""


def _pairs(fields: MultiFields) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        yield from ((name, one) for one in (value if isinstance(value, list) else [value]))


def _named(fields: MultiFields) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in _pairs(fields)]


def _content(body: Body) -> tuple[int, dict[str, str]]:
    """Return the size of a body, and the fields that hold it."""
    if body.kind == "left_out":
        return _UNKNOWN_SIZE, {"text": "", "comment": str(body.value)}
    text = _text(body)
    return len(body.encode()) if body.kind == "base64" else len(text.encode()), {"text": text}


def _text(body: Body) -> str:
    if body.kind == "form":
        return urlencode([*_pairs(body.value)])  # type: ignore[arg-type]  # -- the value of a form are fields
    return json.dumps(body.value, ensure_ascii=False) if body.kind == "json" else str(body.value)
