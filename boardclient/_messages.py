"""What goes to the service and what comes back, as values. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import attrs
from multidict import CIMultiDict

from boardclient import _json
from boardclient._transport import RawResponse
from boardclient.models import JsonValue, check_identifier

T = TypeVar("T")
BODY_KEPT_BYTES: Final = 64 * 2**10
"""How much of an answer's body an error keeps."""

Read: TypeAlias = "Callable[[RawResponse, str], T]"
Fields: TypeAlias = Callable[..., Mapping[str, JsonValue]]
ReadInSteps: TypeAlias = "Callable[[RawResponse], Generator[None, None, T]]"


@attrs.frozen  # pyright: ignore[reportGeneralTypeIssues] -- attrs freezes subclasses of classes that are not
class Response(RawResponse):
    """The response to `session.request`. `status`, `headers` (case-insensitive) and `body`, unpacked."""

    def json(self) -> JsonValue:
        """Return the JSON value of the body.

        Raises:
            DecodeError: it is not JSON.
        """
        return _json.decode(self.body)


def response_of(answer: RawResponse, identifier: str = "") -> Response:
    """Return an answer as it is handed out. Aiohttp's own headers are a proxy, which can't be pickled."""
    return Response(answer.status, CIMultiDict(answer.headers), answer.body)


@attrs.frozen
class Operation(Generic[T]):
    """What all requests of one operation have in common (interface section 4).

    `path` has at most one `{name}`, filled with the percent-encoded identifier. `fields` checks values and returns the
    fields of the body by their wire names, None where there is no body. `read` makes the value of a success from the response
    and the identifier; `read_in_steps` does the same where it is a long list, and yields after each step.
    """

    name: str
    section: str
    method: str
    path: str
    read: Read[T]
    fields: Fields | None = None
    read_in_steps: ReadInSteps[T] | None = None
    repeatable: bool = False
    """Whether the service's state is the same after a second time."""
    signable_body: bool = True
    """Whether the credentials can be in the body."""
    _before: str = attrs.field(init=False)
    _identifier: str = attrs.field(init=False)
    _after: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # Taken apart once, not for each request.
        before, _, rest = self.path.partition("{")
        identifier, _, after = rest.partition("}")
        for name, value in (("_before", before), ("_identifier", identifier), ("_after", after)):
            object.__setattr__(self, name, value)

    def request(self, identifier: str | None = None, /, **values: object) -> Request[T]:
        """Build the request. A value that is None is not sent. Any other is sent, `""` and False included.

        Raises:
            TypeError, ValueError: a value can't be sent, or a required one is missing.
        """
        path, named = self.path, ""
        if self._identifier:
            named = check_identifier(identifier, self._identifier)
            path = self._before + quote(named, safe="") + self._after
        body = None if self.fields is None else _json.encode(self.fields(**values))
        return Request(self, path, body, named)


@attrs.define
class Request(Generic[T]):
    """One call, not yet signed: it holds no credential. `body` is a JSON object, or None where there is no body.

    `identifier` is that of the path, "" for none. Nobody changes it; not to forbid that takes half a microsecond off each call.
    """

    definition: Operation[T] = attrs.field(repr=False)
    path: str
    body: bytes | None = None
    identifier: str = ""
    query: str = ""

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
        """Whether a second time does no harm."""
        return self.definition.repeatable

    @property
    def line(self) -> str:
        """The method and the path, without the query."""
        return f"{self.definition.method} {self.path}"
