"""Read recordings from HTTP Archive 1.2, also of browsers and other tools. No I/O."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from boardclient.errors import Effect
from boardclient.testing._har import OWN
from boardclient.testing._parsing import body_of, fields_of, path_of, request_of
from boardclient.testing._recording import (
    Body,
    Interaction,
    RecordedFailure,
    RecordedOutcome,
    RecordedRequest,
    RecordedResponse,
    outcome_of,
)
from boardclient.testing._redacting import DROPPED_HEADERS

_NOT_KEPT: Final = "the archive does not have the body"


def interactions_of_har(log: Mapping[str, Any]) -> Iterator[Interaction]:
    """Yield the entries of an archive, in their order.

    Raises:
        ValueError: an entry is incomplete or wrong.
    """
    for number, entry in enumerate(log["entries"], 1):
        try:
            yield Interaction(request=_request(entry["request"]), outcome=_outcome(entry["response"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"entry {number} is incomplete or wrong ({type(error).__name__}: {error})") from None


def _request(value: Mapping[str, Any]) -> RecordedRequest:
    posted = value.get("postData") or {}
    kind = str(posted.get("mimeType", "")).partition(";")[0].strip().lower()
    text = posted.get("text") or urlencode(_pairs(posted.get("params") or ()))
    raw = base64.b64decode(text, validate=True) if posted.get("_encoding") == "base64" else text.encode()
    request = request_of(str(value["method"]), path_of(str(value["url"])), raw, kind)
    return RecordedRequest(method=request.method, path=request.path, query=request.query, body=_left_out(posted) or request.body)


def _outcome(value: Mapping[str, Any]) -> RecordedOutcome:
    if (known := outcome_of(value.get(OWN) or {})) is not None:
        return known
    if not value["status"]:
        return RecordedFailure(phase="receive", effect=Effect.UNKNOWN, why=str(value.get("_error") or "no response"))
    content = value.get("content") or {}
    text = content.get("text") or ""
    raw = base64.b64decode(text, validate=True) if content.get("encoding") == "base64" else text.encode()
    body = body_of(raw) or _left_out(content)
    headers = [(name, one) for name, one in _pairs(value.get("headers") or ()) if _is_kept(name)]
    return RecordedResponse(status=int(value["status"]), headers=fields_of(headers), body=body)


def _left_out(content: Mapping[str, Any]) -> Body | None:
    """Return why an archive lacks a body, None if it does not."""
    if content.get("text") or content.get("params"):
        return None
    words = content.get("comment")
    return Body("left_out", str(words or _NOT_KEPT)) if words or content.get("size", 0) > 0 else None


def _pairs(fields: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(str(field["name"]), str(field.get("value", ""))) for field in fields]


def _is_kept(name: str) -> bool:
    """Return True for a header that a server can send again. HTTP/2 has pseudo-headers, such as ":status"."""
    return name.lower() not in DROPPED_HEADERS and not name.startswith(":")
