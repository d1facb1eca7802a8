"""What goes to the service and what comes back, as values. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, Generic, TypeAlias, TypeVar

import attrs
from multidict import CIMultiDict

from boardclient import _json
from boardclient._transport import RawResponse
from boardclient.models import JsonValue

T = TypeVar("T")
BODY_KEPT_BYTES: Final = 64 * 2**10
"""How much of an answer's body an error keeps."""

Read: TypeAlias = "Callable[[RawResponse, str], T]"
ReadInSteps: TypeAlias = "Callable[[RawResponse], Generator[None, None, T]]"


@attrs.frozen
class Response(RawResponse):
    """The answer to `session.request`: `status`, `headers` (case-insensitive) and `body`, unpacked."""

    def json(self) -> JsonValue:
        """Return the JSON value of the body.

        Raises:
            DecodeError: it is not JSON.
        """
        return _json.decode(self.body)


def response_of(answer: RawResponse, identifier: str = "") -> Response:
    """Return an answer as it is handed out; aiohttp's own headers are a proxy, which can't be pickled."""
    return Response(answer.status, CIMultiDict(answer.headers), answer.body)


@attrs.define
class Request(Generic[T]):
    """One call, not yet signed: it holds no credential. `body` is a JSON object, or None where there is no body.

    `read` makes the value of a success, from its own `identifier` where the answer has none; `read_in_steps` does the same, where
    it can be done in steps, and yields after each. Nobody changes it; not to forbid that takes half a microsecond off each call.
    """

    operation: str
    method: str
    path: str
    read: Read[T] = attrs.field(repr=False, eq=False)
    body: bytes | None = None
    repeatable: bool = False
    identifier: str = ""
    read_in_steps: ReadInSteps[T] | None = attrs.field(default=None, repr=False, eq=False)
    query: str = ""
    signable_body: bool = True

    @property
    def line(self) -> str:
        """Return the method and the path, without the query."""
        return f"{self.method} {self.path}"
