"""What the rules answer, and how they refuse. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import attrs

from boardclient.testing._records import Json

Fields: TypeAlias = Mapping[str, Json]


@attrs.frozen
class Answer:
    """Hold a response of the service.

    A body that is a string is sent as it is, any other as JSON.
    """

    status: int
    body: Json = attrs.field(repr=False)
    content_type: str = "application/json"
    headers: Mapping[str, str] = attrs.field(factory=lambda: MappingProxyType({}), repr=False)


@attrs.frozen
class Refused(Exception):  # noqa: N818 -- it never leaves the rules
    """End a request with a status.

    `error` is the code of RFC 6749 (section 5.2) for the token exchange.
    """

    status: int
    message: str
    error: str = "invalid_request"


def text_of(fields: Fields, name: str) -> str | None:
    """Return a text, None where it is absent or null.

    Raises:
        Refused: it is something else.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} is not a string")
    return value


def required(fields: Fields, name: str) -> str:
    """Return a text that has to be there.

    Raises:
        Refused: it is absent, null or something else.
    """
    value = text_of(fields, name)
    if value is None:
        raise Refused(400, f"{name} is missing")
    return value
