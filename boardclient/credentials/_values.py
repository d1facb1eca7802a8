"""Credentials, and how they sign a request or are taken out of an answer (interface section 5). No I/O."""

from __future__ import annotations

import json
from typing import Any, Literal, NoReturn
from urllib.parse import quote, quote_plus

import attrs
from multidict import CIMultiDict

from boardclient import _convert
from boardclient._operations import Answer, Request
from boardclient.models import check_text

Place = Literal["body", "query"]


@attrs.frozen
class Signed:
    """A request with its credentials: what goes on the wire, and must not stay in any frame that an error carries."""

    target: str = attrs.field(repr=False)
    body: bytes | None = attrs.field(repr=False)


def _secret(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not check_text(value, attribute.name):
        raise ValueError(f"{attribute.name} must not be empty")


@attrs.frozen
class Credentials:
    """An access token, and the API key where one is used (interface 5.5, 5.6).

    Its repr shows neither, and it can't be pickled.
    """

    token: str = attrs.field(repr=False, validator=_secret)
    key: str | None = attrs.field(default=None, repr=False, validator=attrs.validators.optional(_secret))
    _query: str = attrs.field(init=False, repr=False, eq=False)
    _fields: bytes = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        # Made once: signing a request then costs one concatenation.
        pairs = {"token": self.token} if self.key is None else {"key": self.key, "token": self.token}
        object.__setattr__(self, "_query", "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items()))
        object.__setattr__(self, "_fields", _convert.encode(pairs)[:-1])

    def sign(self, request: Request[Any], place: Place = "body") -> Signed:
        """Return the request with the credentials: in its JSON body where it has one, otherwise in the query.

        A token without a key always goes into the query (5.6).
        """
        body = request.body
        if body is not None and place == "body" and self.key is not None and request.signable_body:
            rest = body[1:] if body == b"{}" else b"," + body[1:]
            return Signed(f"{request.path}?{request.query}" if request.query else request.path, self._fields + rest)
        return Signed(f"{request.path}?{request.query}&{self._query}" if request.query else f"{request.path}?{self._query}", body)

    def redact(self, answer: Answer) -> Answer:
        """Return the answer with `***` in place of whatever equals a credential, in plain, percent-encoded or JSON form."""
        body = answer.body
        forms = sorted({form for secret in (self.token, self.key) if secret for form in _forms(secret)}, key=len, reverse=True)
        for form in forms:
            body = body.replace(form.encode(), b"***")
        headers = CIMultiDict((name, _replaced(value, forms)) for name, value in answer.headers.items())
        return attrs.evolve(answer, body=body, headers=headers)

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled")

    def __copy__(self) -> Credentials:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Credentials:
        return self


def _forms(secret: str) -> set[str]:
    plain = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return plain | {json.dumps(secret)[1:-1], _convert.encode(secret).decode()[1:-1]}


def _replaced(value: str, forms: list[str]) -> str:
    for form in forms:
        value = value.replace(form, "***")
    return value
