"""Parses requests and bodies into the form of a recording. No I/O."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Final, NoReturn, cast
from urllib.parse import parse_qsl

from boardclient.testing._recording import EXCHANGE_PATH, Body, RecordedRequest
from boardclient.testing._records import Json
from boardclient.testing._rules import UNKNOWN, operation_of

_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_DEEPEST: Final = 100
"""The most levels of a JSON value that is kept as JSON. A deeper one is kept as text."""


def path_of(url: str) -> str:
    """Return the path behind the base URL, with the query. It starts with "/1/" (interface 9.1)."""
    address, mark, query = url.partition("?")
    path = "/" + address.partition("://")[2].partition("/")[2]
    paths = [path[match.start() :] for match in re.finditer("(?=/1/)", path)] or [path]
    known = (one for one in paths if one == EXCHANGE_PATH or any(operation_of(m, one)[0] != UNKNOWN for m in _METHODS))
    return next(known, paths[0]) + mark + query


def request_of(method: str, path: str, body: bytes | None, content_type: str) -> RecordedRequest:
    """Return a request as it was sent. Its credentials are still in it."""
    path, _, query = path.partition("?")
    return RecordedRequest(
        method=method,
        path=path,
        query=fields_of(parse_qsl(query, keep_blank_values=True)),
        body=body_of(body or b"", is_form=content_type == _FORM_TYPE),
    )


def fields_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Return the values by their names."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


def body_of(raw: bytes, *, is_form: bool = False) -> Body | None:
    """Return a body as JSON or text if only white space is lost. None if it is empty."""
    if not raw:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return Body("base64", base64.b64encode(raw).decode())
    if is_form:
        return Body("form", cast("Json", fields_of(parse_qsl(text, keep_blank_values=True))))
    try:
        return Body("json", json_of(text))
    except ValueError:
        return Body("text", text)


def json_of(text: str) -> Json:
    """Return an object or array that is written as JSON without loss.

    Raises:
        ValueError: the text is something else.
    """
    if not text.lstrip(" \t\r\n").startswith(("{", "[")):
        raise ValueError("neither an object nor an array")
    try:
        value: Json = json.loads(text, parse_constant=_refuse, parse_float=_exact, object_pairs_hook=_unique)
    except (RecursionError, ArithmeticError):
        raise ValueError("too deep, or beyond all floats") from None
    walk(value, lambda name, text: text)
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is an error here
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _exact(number: str) -> float:
    value = float(number)
    if Decimal(repr(value)) != Decimal(number):
        raise ValueError("a float would be another number")
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def walk(value: Json, change: Callable[[str, str], str], name: str = "", depth: int = 0) -> Json:
    """Return a JSON value with each string replaced by what `change` returns.

    `change` gets the name of the field that a string is in, and the string.

    Raises:
        ValueError: the value has too many levels.
    """
    if depth > _DEEPEST:
        raise ValueError("too deep")
    if isinstance(value, str):
        return change(name, value)
    if isinstance(value, list):
        return [walk(one, change, name, depth + 1) for one in value]
    if isinstance(value, dict):
        return {key: walk(one, change, key, depth + 1) for key, one in value.items()}
    return value
