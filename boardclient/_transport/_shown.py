"""Redacts responses for third-party instruments. No I/O.

A service may repeat credentials, and the response to a token exchange has a token. Recorders such as vcrpy would store both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from multidict import CIMultiDict

from boardclient._redaction import redacted

FORM_TYPE: Final = "application/x-www-form-urlencoded"
_SECRET_NAMES: Final = frozenset({"client_secret", "code", "code_verifier", "key", "refresh_token", "token"})
"""The names of credentials in the query, in a form, or at the top level of a JSON body."""
_REPLACED: Final = frozenset({"Content-Encoding", "Content-Length", "Transfer-Encoding"})
"""Headers that describe the encoded body. Instruments see the decoded one."""


def secrets_of(url: str, body: bytes | None, content_type: str) -> list[str]:
    """Return the credentials in a request."""
    fields: list[tuple[str, object]] = [*parse_qsl(url.partition("?")[2])]
    if body is not None:
        text = body.decode("utf-8", "replace")
        fields += parse_qsl(text) if content_type == FORM_TYPE else _fields(text)
    return [value for name, value in fields if name.lower() in _SECRET_NAMES and isinstance(value, str) and value]


def _fields(text: str) -> list[tuple[str, object]]:
    value = _decoded(text)
    return [*value.items()] if isinstance(value, dict) else []


def _decoded(text: str) -> Any:
    """Return the JSON value of a text, or None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def shown_headers(headers: Mapping[str, str], secrets: list[str]) -> CIMultiDict[str]:
    """Return headers with `***` in place of the secrets."""
    return CIMultiDict((name, shown_text(value, secrets)) for name, value in headers.items())


def shown_text(text: str, secrets: list[str]) -> str:
    """Return a text with `***` in place of the secrets."""
    if not secrets:
        return text
    return redacted(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "surrogateescape")


def shown_response(
    headers: Mapping[str, str], body: bytes, secrets: list[str], *, is_token: bool
) -> tuple[CIMultiDict[str], bytes]:
    """Return the headers and the decoded body of a response without secrets.

    In the response to a token exchange (`is_token`) all texts are replaced.
    """
    if is_token:
        value = _decoded(body.decode("utf-8", "replace"))
        found: list[str] = []
        body = json.dumps(_without_texts(value, found)).encode()
        secrets = [*secrets, *found]
    elif secrets:
        body = redacted(body, secrets)
    shown = shown_headers(headers, secrets)
    for name in _REPLACED:
        shown.popall(name, None)
    shown["Content-Length"] = str(len(body))
    return shown, body


def _without_texts(value: Any, found: list[str]) -> Any:
    """Return a JSON value with `***` in place of its texts, which go into `found`."""
    if isinstance(value, dict):
        return {name: _without_texts(part, found) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_texts(part, found) for part in value]
    if isinstance(value, str) and value:
        found.append(value)
        return "***"
    return value
