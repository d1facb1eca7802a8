"""The responses of the rules, and the checks of fields. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import attrs

from boardclient.testing._records import Json

Fields: TypeAlias = Mapping[str, Json]


@attrs.frozen
class Answer:
    """A response of the service.

    Attributes:
        status: The HTTP status.
        body: The body. A string is sent unchanged, any other value as JSON.
        content_type: The content type without a charset. `application/json` by default.
        headers: Other headers. None by default.
    """

    status: int
    body: Json = attrs.field(repr=False)
    content_type: str = "application/json"
    headers: Mapping[str, str] = attrs.field(factory=lambda: MappingProxyType({}), repr=False)


@attrs.frozen
class Refused(Exception):  # noqa: N818 -- it never leaves the rules
    """The rules refuse a request with a status.

    `error` is the error code for the token exchange (RFC 6749, section 5.2).
    """

    status: int
    message: str
    error: str = "invalid_request"


def text_of(fields: Fields, name: str) -> str | None:
    """Return a field that is a string, or None if it is absent or null.

    Raises:
        Refused: it has another type.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} is not a string")
    return value


def required(fields: Fields, name: str) -> str:
    """Return a required field that is a string.

    Raises:
        Refused: it is absent, null or of another type.
    """
    value = text_of(fields, name)
    if value is None:
        raise Refused(400, f"{name} is missing")
    return value
