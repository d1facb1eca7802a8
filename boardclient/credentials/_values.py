"""Credentials, and how they sign a request or are taken out of an answer (interface section 5). No I/O."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, Final, Literal, NoReturn
from urllib.parse import quote

import attrs
from multidict import CIMultiDict

from boardclient import _json
from boardclient._messages import BODY_KEPT_BYTES, Request
from boardclient._transport import RawResponse
from boardclient.models import check_text

CredentialsIn = Literal["body", "query"]


@attrs.define
class SignedRequest:
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
        object.__setattr__(self, "_fields", _json.encode(pairs)[:-1])

    def sign(self, request: Request[Any], place: CredentialsIn = "body") -> SignedRequest:
        """Return the request with the credentials: in its JSON body where it has one, otherwise in the query.

        A token without a key always goes into the query (5.6).
        """
        body = request.body
        if body is not None and place == "body" and self.key is not None and request.signable_body:
            rest = body[1:] if body == b"{}" else b"," + body[1:]
            return SignedRequest(f"{request.path}?{request.query}" if request.query else request.path, self._fields + rest)
        query = f"{request.query}&{self._query}" if request.query else self._query
        return SignedRequest(f"{request.path}?{query}", body)

    def redact(self, answer: RawResponse) -> RawResponse:
        """Return the answer with `***` in place of whatever equals a credential: plain, percent-encoded, as JSON.

        Of a large body only the beginning is left, somewhat more or less than an error keeps.
        """
        written = self._written
        headers = CIMultiDict((name, _redacted(value, written)) for name, value in answer.headers.items())
        margin = _LONGEST_WAY * max(len(self.token), len(self.key or ""))
        body = written.sub(b"***", answer.body[: BODY_KEPT_BYTES + margin])
        if len(answer.body) > BODY_KEPT_BYTES + margin:
            body = body[:-margin]  # a credential may begin there and be cut off
        return attrs.evolve(answer, body=body, headers=headers)

    @cached_property
    def _written(self) -> re.Pattern[bytes]:
        """Make the pattern of everything that reads as a credential, the longer first: one may begin with the other."""
        secrets = sorted(filter(None, (self.token, self.key)), key=len, reverse=True)
        return re.compile(b"|".join(map(_spellings, secrets)))

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled")

    def __copy__(self) -> Credentials:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Credentials:
        return self


def _spellings(secret: str) -> bytes:
    """Make the pattern of a text however a service writes it: each character plain, percent-encoded or escaped as in JSON.

    The ways may be mixed, and one put upon another: JSON as a string in JSON, a percent-encoded address in an address.
    """
    plain = re.sub(r"\\+", r"\\", secret)  # of backslashes any number counts as one, whose escapes they may be
    return b"".join(_ways(character) for character in plain)


def _ways(character: str) -> bytes:
    raw, units = character.encode(), character.encode("utf-16-be")
    percent = b"".join(b"%%(?:25){0,3}%02x" % byte for byte in raw)
    unicode = b"".join(_BACKSLASH + b"u" + units[at : at + 2].hex().encode() for at in range(0, len(units), 2))
    ways = [re.escape(raw), b"(?i:%s|%s)" % (percent, unicode)]
    if character in _SHORT_ESCAPES:
        ways.append(_BACKSLASH + _SHORT_ESCAPES[character])
    if character == " ":
        ways.append(rb"\+")
    one = b"(?:%s)" % b"|".join(ways)
    if character == "\\":
        return one + b"{1,8}"
    return one if character.isalnum() else b"(?:%s)?%s" % (_BACKSLASH, one)


_LONGEST_WAY: Final = 128  # bytes of one character, escapes of escapes included
_BACKSLASH: Final = rb"(?:\\|%(?:25){0,3}5[cC]){1,8}"
_SHORT_ESCAPES: Final = dict(zip("\b\f\n\r\t", (b"b", b"f", b"n", b"r", b"t"), strict=True))


def _redacted(value: str, written: re.Pattern[bytes]) -> str:
    return written.sub(b"***", value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
