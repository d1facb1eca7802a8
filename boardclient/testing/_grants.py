"""Members, tokens, authorization codes and the token exchange of the service. No I/O."""

from __future__ import annotations

import base64
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlencode

import attrs

from boardclient.testing._answers import Answer, Fields, Refused, required, text_of
from boardclient.testing._records import AccessToken, AuthorizationCode, Json, Member

ExchangeAnswer: TypeAlias = Literal["rfc6749", "token", "form"]
_MEMBERS: Any = ("A Member",)
_CODE_SECONDS = 600.0  # RFC 6749, section 4.1.2


def _names(values: Iterable[str]) -> frozenset[str]:
    return frozenset(values)


def _members(names: Iterable[str]) -> tuple[Member, ...]:
    if isinstance(names, str):
        raise TypeError("members is a list of names, not one name")
    found = tuple(Member(id=_member_id(number), name=name) for number, name in enumerate(names))
    if not found:
        raise ValueError("a service has one member at least")
    return found


def _member_id(number: int) -> str:
    return f"{number:024x}" if number == 0 else f"a11ce{number:019x}"  # never the identifier of a board, list or card


def _secret(kind: str, number: int) -> str:
    # Each value has characters that must be percent-encoded, to find clients that forget it.
    return f"{kind}/{hashlib.sha256(f'{kind} {number}'.encode()).hexdigest()[:32]}+="


@attrs.define(kw_only=True, eq=False, repr=False)
class Grants:
    """Issues and checks the tokens of one service. `BoardService` documents the attributes."""

    clock: Callable[[], float] = time.monotonic
    token_lifetime: float | None = None
    scopes: frozenset[str] = attrs.field(default=frozenset({"read", "write"}), converter=_names)
    exchange_answer: ExchangeAnswer = "rfc6749"
    errors: Literal["json", "text"] = "json"
    redirect_uri: str = "https://application.example/callback"
    members: tuple[Member, ...] = attrs.field(default=_MEMBERS, converter=_members)
    key: str = attrs.field(init=False, default=_secret("key", 0))
    client_id: str = attrs.field(init=False, default=_secret("client", 0))
    client_secret: str = attrs.field(init=False, default=_secret("client-secret", 0))
    token: str = attrs.field(init=False, default="")
    tokens: dict[str, AccessToken] = attrs.field(init=False, factory=dict)
    _codes: dict[str, AuthorizationCode] = attrs.field(init=False, factory=dict)
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    def __attrs_post_init__(self) -> None:
        self.token = self.issue_token()

    def member(self, name_or_id: str | None = None) -> Member:
        """Return the member with this name or identifier, by default the first one.

        Raises:
            LookupError: there is no such member.
        """
        for member in self.members:
            if name_or_id in (None, member.id, member.name):
                return member
        raise LookupError(f"the service has no member {name_or_id!r}; its members are {', '.join(m.name for m in self.members)}")

    def new_code(self, *, scopes: Iterable[str] | None = None, member: str | None = None, challenge: str | None = None) -> str:
        """Return an authorization code for one token exchange within ten minutes.

        Args:
            scopes: The scopes of the token. By default all scopes of the service.
            member: The name or identifier of the member who gives consent. By default the first member.
            challenge: The S256 code challenge (RFC 7636). If it is given, the exchange requires its verifier. None by default.

        Raises:
            LookupError: there is no such member.
        """
        code = _secret("code", next(self._numbers))
        self._codes[code] = AuthorizationCode(
            scopes=self.scopes if scopes is None else frozenset(scopes),
            member_id=self.member(member).id,
            challenge=challenge,
            expires_at=self.clock() + _CODE_SECONDS,
        )
        return code

    def issue_token(
        self, *, scopes: Iterable[str] | None = None, lifetime: float | None = None, member: str | None = None
    ) -> str:
        """Return a new access token.

        Args:
            scopes: The scopes of the token. By default all scopes of the service.
            lifetime: The seconds until it expires. By default `token_lifetime`.
            member: The name or identifier of the member whose token it is. By default the first member.

        Raises:
            LookupError: there is no such member.
        """
        seconds = self.token_lifetime if lifetime is None else lifetime
        expires_at = None if seconds is None else self.clock() + seconds
        value = _secret("token", next(self._numbers))
        granted = self.scopes if scopes is None else frozenset(scopes)
        self.tokens[value] = AccessToken(value, granted, expires_at, self.member(member).id)
        return value

    def revoke(self, token: str) -> None:
        """Refuse a token from now on. An unknown token is ignored."""
        self.tokens.pop(token, None)

    def expire_tokens(self) -> None:
        """Make every token that was issued so far expire."""
        for token in list(self.tokens.values()):
            self.tokens[token.value] = attrs.evolve(token, expires_at=float("-inf"))

    def authenticate(self, query: Mapping[str, str], body: object, *, write: bool) -> Member:
        """Return the member who makes a request (section 5).

        Raises:
            Refused: the key or the token is invalid, or the token lacks the scope.
        """
        fields = body if isinstance(body, dict) else {}
        key = query.get("key", fields.get("key"))
        value = query.get("token", fields.get("token") if key is not None else None)
        token = self.tokens.get(value) if isinstance(value, str) else None
        if token is None or (key is not None and key != self.key):
            raise Refused(401, "the key or the token is invalid")
        if token.expires_at is not None and self.clock() >= token.expires_at:
            raise Refused(401, "the token has expired")
        if ("write" if write else "read") not in token.scopes:
            raise Refused(403, "the token lacks a scope")
        return self.member(token.member_id)

    def exchange(self, fields: Fields) -> Answer:
        """Exchange a code for a token, and return the response (section 4.12).

        Errors have the form of RFC 6749, section 5.2, if `exchange_answer` is "rfc6749".
        """
        try:
            token_fields = self._exchanged(fields)
        except Refused as refused:
            if self.exchange_answer != "rfc6749" or self.errors != "json":
                raise
            return Answer(
                refused.status, {"error": refused.error, "error_description": refused.message, "message": refused.message}
            )
        if self.exchange_answer == "form":
            return Answer(200, urlencode(token_fields), "application/x-www-form-urlencoded")
        return Answer(200, token_fields)

    def _exchanged(self, fields: Fields) -> dict[str, Json]:
        given = {name: required(fields, name) for name in ("client_id", "client_secret", "code", "redirect_uri")}
        if (given["client_id"], given["client_secret"]) != (self.client_id, self.client_secret):
            raise Refused(400, "the client identifier or secret is invalid", "invalid_client")
        if given["redirect_uri"] != self.redirect_uri:
            raise Refused(400, "the redirect URI is not the registered one", "invalid_grant")
        code = self._codes.pop(given["code"], None)
        if code is None or self.clock() >= code.expires_at:
            raise Refused(400, "the code is invalid, used or expired", "invalid_grant")
        verifier = text_of(fields, "code_verifier")
        if code.challenge != (None if verifier is None else challenge_of(verifier)):
            raise Refused(400, "the code verifier is missing or does not match the code", "invalid_grant")
        token = self.issue_token(scopes=code.scopes, member=code.member_id)
        if self.exchange_answer == "token":
            return {"token": token}
        response: dict[str, Json] = {"access_token": token, "token_type": "bearer"}
        if self.token_lifetime is not None:
            response["expires_in"] = int(self.token_lifetime)
        return response


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a code verifier (RFC 7636, section 4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
