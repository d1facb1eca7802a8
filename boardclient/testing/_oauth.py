"""OAuth of the service: members, tokens, codes, the token exchange and the consent page. No I/O.

The interface does not describe the consent page (5.10). It takes the parameters of RFC 6749, section 4.1.1, and RFC 7636.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

import attrs

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Fields: TypeAlias = Mapping[str, Json]
_MEMBERS: Any = ("A Member",)
_CODE_SECONDS = 600.0  # RFC 6749, section 4.1.2
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PARAMETERS = ("response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method")
_REFUSED = "refuse"
_STYLE = (
    ":root{color-scheme:light dark}body{max-width:26rem;margin:8vh auto;padding:0 1rem;font:16px/1.5 system-ui}"
    "form{display:grid;gap:.6rem}button{font:inherit;min-height:3rem}"
)
_WORDS = {"read": "See boards, lists and cards", "write": "Create, move, label and delete cards, and archive lists"}


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

    `error` is the error code for the token exchange (RFC 6749, section 5.2) or the redirect (section 4.1.2.1).
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


@attrs.frozen
class Member:
    """A member of the service, to whom tokens belong."""

    id: str
    name: str

    def wire(self) -> dict[str, Json]:
        words = self.name.lower().split()
        return {"id": self.id, "username": words[-1] if words else "", "fullName": self.name}


@attrs.frozen
class AccessToken:
    value: str = attrs.field(repr=False)
    scopes: frozenset[str]
    expires_at: float | None
    member_id: str


@attrs.frozen(kw_only=True)
class AuthorizationCode:
    """What an authorization code grants.

    `challenge` is the S256 challenge of a client that uses PKCE (RFC 7636). `expires_at` is a time on the service's clock.
    """

    scopes: frozenset[str]
    member_id: str
    challenge: str | None = attrs.field(repr=False)
    expires_at: float


def names_of(values: Iterable[str]) -> list[str]:
    """Return names as a list.

    Raises:
        TypeError: it is one name, or something in it is none.
    """
    names = [*values]
    # A single text is an iterable of names as well, each of one letter.
    if isinstance(values, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"expected a list of names, not {values!r}")
    return names


def set_of(values: Iterable[str]) -> frozenset[str]:
    return frozenset(names_of(values))


def _members(names: Iterable[str]) -> tuple[Member, ...]:
    found = tuple(Member(id=_member_id(number), name=name) for number, name in enumerate(names_of(names)))
    if not found:
        raise ValueError("a service has one member at least")
    return found


def _member_id(number: int) -> str:
    return f"{number:024x}" if number == 0 else f"a11ce{number:019x}"  # never the identifier of a board, list or card


def _secret(kind: str, number: int, of: str = "") -> str:
    # Each value has characters that must be percent-encoded, to find clients that forget it.
    return f"{kind}/{hashlib.sha256(f'{kind} {number}{of}'.encode()).hexdigest()[:32]}+="


@attrs.define(kw_only=True, eq=False, repr=False)
class Grants:
    """Issues and checks the tokens of one service. `BoardService` documents the attributes."""

    clock: Callable[[], float] = time.monotonic
    token_lifetime: float | None = None
    scopes: frozenset[str] = attrs.field(default=frozenset({"read", "write"}), converter=set_of)
    redirect_uri: str = "https://application.example/callback"
    members: tuple[Member, ...] = attrs.field(default=_MEMBERS, converter=_members)
    key: str = attrs.field(init=False, default=_secret("key", 0))
    client_id: str = attrs.field(init=False, default=_secret("client", 0))
    client_secret: str = attrs.field(init=False, default=_secret("client-secret", 0))
    token: str = attrs.field(init=False, default="")
    tokens: dict[str, AccessToken] = attrs.field(init=False, factory=dict)
    _codes: dict[str, AuthorizationCode] = attrs.field(init=False, factory=dict)
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))
    _run: str = attrs.field(init=False, factory=lambda: secrets.token_hex(8))
    """Makes the tokens of this service its own: a store may still keep those of one that ran before."""

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
            scopes=self.scopes if scopes is None else set_of(scopes),
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
        value = _secret("token", next(self._numbers), self._run)
        granted = self.scopes if scopes is None else set_of(scopes)
        self.tokens[value] = AccessToken(value, granted, expires_at, self.member(member).id)
        return value

    def expire_tokens(self) -> None:
        """Make every token that was issued so far expire."""
        for token in list(self.tokens.values()):
            # Kept, not removed: the service still knows whose it was, and says that it has expired.
            self.tokens[token.value] = attrs.evolve(token, expires_at=float("-inf"))

    def authenticate(self, query: Mapping[str, str], body: object, *, write: bool) -> Member:
        """Return the member who makes a request (interface 5).

        Raises:
            Refused: the key or the token is invalid, or the token lacks the scope.
        """
        fields = body if isinstance(body, dict) else {}
        key = query.get("key", fields.get("key"))
        # A token in the body counts only beside a key (interface 5.5).
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
        """Exchange a code for a token, and return the response (interface 4.12).

        Errors have the form of RFC 6749, section 5.2.
        """
        try:
            return Answer(200, self._exchanged(fields))
        except Refused as refused:
            return Answer(
                refused.status, {"error": refused.error, "error_description": refused.message, "message": refused.message}
            )

    def _exchanged(self, fields: Fields) -> dict[str, Json]:
        given = {name: required(fields, name) for name in ("client_id", "client_secret", "code", "redirect_uri")}
        if (given["client_id"], given["client_secret"]) != (self.client_id, self.client_secret):
            raise Refused(400, "the client identifier or secret is invalid", "invalid_client")
        if given["redirect_uri"] != self.redirect_uri:
            raise Refused(400, "the redirect URI is not the registered one", "invalid_grant")
        # Taken before it is checked further: a code is good for one try, also for a wrong one (RFC 6749, section 4.1.2).
        code = self._codes.pop(given["code"], None)
        if code is None or self.clock() >= code.expires_at:
            raise Refused(400, "the code is invalid, used or expired", "invalid_grant")
        verifier = text_of(fields, "code_verifier")
        # Both ways: a verifier without a challenge shows a client that has mixed up two sign-ins.
        if code.challenge != (None if verifier is None else challenge_of(verifier)):
            raise Refused(400, "the code verifier is missing or does not match the code", "invalid_grant")
        token = self.issue_token(scopes=code.scopes, member=code.member_id)
        response: dict[str, Json] = {"access_token": token, "token_type": "bearer"}
        if self.token_lifetime is not None:
            response["expires_in"] = int(self.token_lifetime)
        return response


def challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _page(title: str, body: str) -> str:
    """Return a whole page. The title is escaped, and `body` must be safe."""
    head = (
        '<meta charset=utf-8><meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>"


def show_consent(grants: Grants, query: Mapping[str, str]) -> Answer:
    """Return the page that asks for consent, or a redirect with an error."""
    return _checked(grants, query, lambda scopes: _consent_page(grants, query, scopes))


def decide_consent(grants: Grants, fields: Fields) -> Answer:
    """Return a redirect to the application, with a code or with an error."""
    query = {name: value for name, value in fields.items() if isinstance(value, str)}

    def granted(scopes: frozenset[str]) -> Answer:
        choice = query.get("member", "")
        if choice == _REFUSED:
            raise Refused(303, "the user refused", "access_denied")
        try:
            code = grants.new_code(scopes=scopes, member=choice, challenge=query.get("code_challenge"))
        except LookupError:
            return _broken("There is no such member.")
        return _back(grants, query, code=code)

    return _checked(grants, query, granted)


def _checked(grants: Grants, query: Mapping[str, str], then: Callable[[frozenset[str]], Answer]) -> Answer:
    """Check a request, and call `then` with its scopes."""
    # With an unknown client or redirect URI there must be no redirect: RFC 6749, section 4.1.2.1.
    if query.get("client_id") != grants.client_id:
        return _broken("The client identifier is missing or unknown.")
    if query.get("redirect_uri", grants.redirect_uri) != grants.redirect_uri:
        return _broken(f"The redirect URI is not the registered one, which is {grants.redirect_uri}.")
    try:
        return then(_scopes(grants, query))
    except Refused as refused:
        return _back(grants, query, error=refused.error, error_description=refused.message)


def _scopes(grants: Grants, query: Mapping[str, str]) -> frozenset[str]:
    if query.get("response_type") != "code":
        raise Refused(303, "response_type must be code", "unsupported_response_type")
    challenge, method = query.get("code_challenge"), query.get("code_challenge_method")
    if (challenge is None) != (method is None) or (method is not None and method != "S256"):
        raise Refused(303, "a code challenge comes with code_challenge_method=S256", "invalid_request")
    if challenge is not None and not _CHALLENGE.fullmatch(challenge):
        raise Refused(303, "the code challenge is no SHA-256 digest in base64url", "invalid_request")
    asked = frozenset(query.get("scope", "").replace(",", " ").split()) or grants.scopes
    if not asked <= grants.scopes:
        raise Refused(303, f"the scopes are {' '.join(sorted(grants.scopes))}", "invalid_scope")
    return asked


def _back(grants: Grants, query: Mapping[str, str], **parameters: str) -> Answer:
    state = {"state": query["state"]} if "state" in query else {}
    separator = "&" if urlsplit(grants.redirect_uri).query else "?"
    headers = {"Location": f"{grants.redirect_uri}{separator}{urlencode({**parameters, **state})}", "Cache-Control": "no-store"}
    # 303 makes the browser send a GET without the form's fields: RFC 9110, section 15.4.4.
    return Answer(303, "", "text/plain", headers)


def _broken(message: str) -> Answer:
    body = f"<h1>This sign-in can't continue</h1><p>{escape(message)}</p><p>Nothing was sent to any application.</p>"
    return Answer(400, _page("Sign-in", f"<main>{body}</main>"), "text/html")


def _consent_page(grants: Grants, query: Mapping[str, str], scopes: frozenset[str]) -> Answer:
    host = urlsplit(grants.redirect_uri).netloc
    hidden = "".join(f'<input type=hidden name="{name}" value="{escape(query[name])}">' for name in _PARAMETERS if name in query)
    wanted = "".join(f"<li>{escape(_WORDS.get(scope, scope))}</li>" for scope in sorted(scopes))
    choices = "".join(
        f'<button name=member value="{escape(member.id)}">Continue as <b>{escape(member.name)}</b></button>'
        for member in grants.members
    )
    body = (
        f"<main><h1>Allow access to your boards?</h1><p><b>{escape(host)}</b> would like to:</p><ul>{wanted}</ul>"
        f"<form method=post action=authorize>{hidden}{choices}"
        f'<button name=member value="{_REFUSED}">Refuse</button></form>'
        "<p>This is a service for trials. Its members have no passwords.</p></main>"
    )
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
    return Answer(200, _page("Allow access?", body), "text/html", headers)
