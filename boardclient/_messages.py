"""What goes to the service and what comes back, as values. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import attrs
from multidict import CIMultiDict

from boardclient._json import decode, encode
from boardclient._transport import RawResponse
from boardclient.models import JsonValue, check_identifier

T = TypeVar("T")
BODY_KEPT_BYTES: Final = 64 * 2**10
"""How much of a response's body an error keeps."""

Read: TypeAlias = "Callable[[RawResponse, str], T]"
Fields: TypeAlias = Callable[..., Mapping[str, JsonValue]]
ReadInSteps: TypeAlias = "Callable[[RawResponse], Generator[None, None, T]]"


@attrs.frozen  # pyright: ignore[reportGeneralTypeIssues] -- attrs freezes subclasses of classes that are not
class Response(RawResponse):
    """The response to `session.request`.

    `status` is a number, `headers` is case-insensitive, and `body` is bytes, with any content encoding undone.
    """

    def json(self) -> JsonValue:
        """Return the JSON value of the body.

        Raises:
            DecodeError: it is not JSON.
        """
        return decode(self.body)


def response_of(response: RawResponse, identifier: str = "") -> Response:
    """Return a response for applications. Its headers are a copy, since aiohttp's proxy can't be pickled."""
    return Response(response.status, CIMultiDict(response.headers), response.body)


@attrs.frozen
class Operation(Generic[T]):
    """What all requests of one operation have in common (interface section 4).

    Args:
        name: Its name in events, logs and journals, such as "cards.create".
        section: Its section of the interface.
        method: The HTTP method.
        path: The path, with at most one `{name}`, which is filled with the percent-encoded identifier.
        read: Makes the value of a success from the response and the identifier of the path.
        fields: Checks values and returns the fields of the body by their wire names. None if there is no body.
        read_in_steps: Reads a long list instead of `read`, and yields after each step. None if the value is short.
        repeatable: Whether a second request leaves the service in the same state as the first.
        signable_body: Whether the credentials can go into the body.
    """

    name: str
    section: str
    method: str
    path: str
    read: Read[T]
    fields: Fields | None = None
    read_in_steps: ReadInSteps[T] | None = None
    repeatable: bool = False
    signable_body: bool = True
    _before: str = attrs.field(init=False)
    _identifier: str = attrs.field(init=False)
    _after: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # Split once and not for each request.
        before, _, rest = self.path.partition("{")
        identifier, _, after = rest.partition("}")
        for name, value in (("_before", before), ("_identifier", identifier), ("_after", after)):
            object.__setattr__(self, name, value)

    def request(self, identifier: str | None = None, /, **values: object) -> Request[T]:
        """Build a request. A value of None is not sent, any other is, `""` and False included.

        Raises:
            TypeError, ValueError: a value can't be sent, or a required one is missing.
        """
        body = None if self.fields is None else encode(self.fields(**values))
        if not self._identifier:
            return Request(self, self.path, body)
        named = check_identifier(identifier, self._identifier)
        return Request(self, self._before + quote(named, safe="") + self._after, body, named)


@attrs.define
class Request(Generic[T]):
    """The request of one call before it is signed, so it holds no credentials.

    `target` is the path with the query. `body` is a JSON object, or None for no body; `identifier` is that of the path, or "".
    It is never changed: `attrs.define` and not `frozen` saves half a microsecond per call.
    """

    definition: Operation[T] = attrs.field(repr=False)
    target: str
    body: bytes | None = None
    identifier: str = ""

    @property
    def path(self) -> str:
        """The path without the query."""
        return self.target.partition("?")[0]

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return self.definition.name

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.definition.method

    @property
    def repeatable(self) -> bool:
        """Whether a second request leaves the service in the same state as the first."""
        return self.definition.repeatable

    @property
    def line(self) -> str:
        """The method and the path, without the query."""
        return f"{self.definition.method} {self.path}"
