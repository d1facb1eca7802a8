"""A registered client: its options, and the exchange of a code for a token (interface 4.12, 5.9).

The interface shows no response. Error messages hold no values of a success, only names, and of those only what can't be a token.
Of a refusal they hold the description, with `***` in place of what may be a secret.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, cast
from urllib.parse import parse_qsl

import attrs

from boardclient._base._guards import supplied
from boardclient._base._redaction import forms_of, is_free_of, masked, raises_without_frames
from boardclient._interface import _fields
from boardclient._interface._operations import check_root, check_url
from boardclient._interface._responses import Response, add_words, retry_at, status_of
from boardclient.credentials._credentials import Exchange
from boardclient.credentials._stores import GuardedStore, MemoryTokenStore, Token, TokenStore
from boardclient.errors import CredentialError, DecodeError, Effect
from boardclient.models import JsonValue, check_filled, check_seconds, check_text

_EXCHANGE_SECONDS: Final = 30.0
"""The time limit of an exchange on a session whose calls have no deadline. A renewal must end."""
_PATH: Final = "/1/OAuthGetAccessToken"
_TOKEN_NAMES: Final = ("access_token", "token")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z_.-]{0,23}")
_CLIENT_ERRORS: Final = frozenset({"invalid_client", "invalid_request", "unauthorized_client", "unsupported_grant_type"})
"""The codes of RFC 6749, section 5.2, that the application's configuration causes."""
_WORDS: Final = ("error_description", "message", "error", "detail", "title", "errmsg", "error_message", "reason")
"""The fields in which services say why they refuse (RFC 6749, section 5.2, and RFC 9457 among others)."""
_ERRORS: Final = ("error", "errors")
"""The fields that say that a response refuses, whatever its status. They may hold those of `_WORDS`, also in lists."""
_LONGEST_WORDS: Final = 200
_LETTERS: Final = "(?:[A-Za-z]?[a-z]{1,19}|[A-Z]{1,19}|[A-Za-z]{1,8})"
"""The letters of a word, such as "Token", "PKCE" or "OAuth". Longer ones with capitals inside may be base64."""
_PLAIN_WORD: Final = re.compile(rf"[('\"]?(?:{_LETTERS}(?:[_'-]{_LETTERS}){{0,3}}|[0-9]{{1,3}})[.,;:!?)'\"]{{0,2}}")
"""A word that can't be a token: letters, or a short number."""


@attrs.frozen(kw_only=True)
class AuthorizationRequest:
    """Say why the application is asked for an authorization code. Nothing in it is secret.

    Args:
        account: the account that the code is for.
        first_time: True if no token is stored for the account.
        attempt: how often a code was asked for since the service last accepted a token, from 1.
    """

    account: str
    first_time: bool
    attempt: int


Authorize: TypeAlias = Callable[[AuthorizationRequest], Awaitable[str]]
ParseToken: TypeAlias = Callable[[Mapping[str, JsonValue]], Token]
"""Takes a token from the fields of the exchange's response."""


def _checked_address(url: str) -> str:
    return check_root(url, "auth_url", allow_insecure=True)  # the session says whether forms may go over plain http


def check_redirect(url: str, exchange: Exchange) -> str:
    """Return a redirect URI if a session may use it: https, or plain http that it allows. It may have a query.

    Raises:
        ValueError: it is neither, or holds a user, a password or a fragment.
    """
    exchange.check_url(_without_query(url, "redirect_uri"), "redirect_uri")
    return url


def _without_query(url: str, name: str) -> str:
    address, _, query = check_text(url, name).partition("?")
    if "#" in query or not query.isprintable():
        raise ValueError(f"{name} must hold no fragment and no control character")
    return address


def _given_or_own(store: TokenStore | None) -> TokenStore:
    return MemoryTokenStore() if store is None else store


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class OAuthClient:
    """A registered client: the options of `OAuthCredentials`, which describes them, with their defaults and checks."""

    client_id: str
    client_secret: str
    redirect_uri: str
    auth_url: str = attrs.field(converter=_checked_address)
    authorize: Authorize | None = None
    key: str | None = None
    store: TokenStore = attrs.field(default=None, converter=_given_or_own)
    account: str = "default"
    service: str | None = None
    authorize_timeout: float = 300.0
    cooldown: float = 1.0
    renew_before_expiry: float | None = None
    parse_token: ParseToken | None = None
    lease_seconds: float = 5.0
    login_url: str | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("client_id", "client_secret", "redirect_uri", "account"):
            check_filled(getattr(self, name), name)
        check_url(_without_query(self.redirect_uri, "redirect_uri"), "redirect_uri", allow_insecure=True)
        for name in ("key", "login_url", "service"):
            if getattr(self, name) is not None:
                check_filled(getattr(self, name), name)
        if not all(function is None or callable(function) for function in (self.authorize, self.parse_token)):
            raise TypeError("authorize must be an async function or None, and parse_token a function")
        steps = ("read", "generation", "publish", "delete", "lease", "release")
        if isinstance(self.store, type) or not all(callable(getattr(self.store, name, None)) for name in steps):
            raise TypeError("store must be a TokenStore, such as MemoryTokenStore() or FileTokenStore(path)")
        self._check_times()

    def _check_times(self) -> None:
        for name in ("authorize_timeout", "lease_seconds", "cooldown"):
            check_seconds(getattr(self, name), name)
        if self.renew_before_expiry is not None:
            check_seconds(self.renew_before_expiry, "renew_before_expiry")
        if not self.authorize_timeout > 0 or not self.lease_seconds > 0 or not self.cooldown >= 0:
            raise ValueError("authorize_timeout and lease_seconds must be more than 0 seconds, cooldown at least 0")
        if self.renew_before_expiry is not None and not self.renew_before_expiry > 0:
            raise ValueError("renew_before_expiry must be more than 0 seconds, or None")

    @property
    def guarded_store(self) -> GuardedStore:
        return GuardedStore(self.store, self.account, self.auth_url if self.service is None else self.service)

    @raises_without_frames
    async def token_for(self, code: str, exchange: Exchange, timeout: float | None, code_verifier: str | None) -> Token:
        """Send the code once, and return the token of the response. It may take `_EXCHANGE_SECONDS` if `timeout` is None.

        Raises:
            CredentialError: the response has no token.
            TransportError: there is no response.
        """
        fields = {
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "code": code,
            "redirect_uri": self.redirect_uri,
        }
        if code_verifier is not None:
            fields["code_verifier"] = code_verifier
        secrets = forms_of([self.client_secret, code, *filter(None, (code_verifier, self.key))])
        response = await exchange.post_form(self.auth_url + _PATH, fields, _EXCHANGE_SECONDS if timeout is None else timeout)
        try:
            return await _token_of(response, self.parse_token, secrets)
        except CredentialError as error:
            add_words(error, f"(sent to {self.auth_url}{_PATH})", " ")
            raise


async def _token_of(response: Response, parse: ParseToken | None, secrets: frozenset[bytes]) -> Token:
    """Return the token of a response. `secrets` are forms of what a response may repeat.

    The response may be a JSON object as in RFC 6749 5.1, one with a field `token`, or the same form-encoded, with any content
    type.
    """
    fields = _form_or_object(response.body)
    if not response.is_success:
        raise _refusal(response, fields or {}, secrets)
    # Large services refuse with status 200. A token beside an error counts all the same.
    is_refusal = fields is not None and any(fields.get(name) for name in _ERRORS)
    if fields is None:
        raise _no_token("its response is neither a JSON object nor form-encoded")
    # Three cases, in this order since a service may send a token beside an error: the application takes the token, a field has
    # it, or there is none. Only then the response is searched for a reason.
    if parse is not None:
        try:
            parsed: Token = await supplied(
                "parse_token", parse, fields, is_valid=lambda made: isinstance(made, Token), expected="a Token"
            )
        except CredentialError as error:
            if is_refusal:
                failure = _refusal(response, fields, secrets)
            else:
                failure = _no_token(f"{error.message}: {_names(fields, secrets)}", error.__cause__)
        else:
            return parsed
        raise failure
    value = next((found for name in _TOKEN_NAMES if isinstance(found := fields.get(name), str) and found), None)
    if value is None:
        if is_refusal:
            raise _refusal(response, fields, secrets)
        raise _no_token(f"{_names(fields, secrets)}; parse_token can take it from another shape")
    if "\ufffd" in value:  # half of an emoji is read as U+FFFD
        raise _no_token("it holds U+FFFD or half of an emoji")
    return Token(value, _end(fields.get("expires_in"), time.time()))


def _no_token(why: str, cause: BaseException | None = None) -> CredentialError:
    error = CredentialError(f"the token exchange gave no token: {why}", Effect.DONE)
    error.suggested_status, error.__cause__ = 502, cause
    return error


def _form_or_object(body: bytes) -> Mapping[str, JsonValue] | None:
    """Decode a JSON object or a form. None if the body is neither, or longer than any."""
    if len(body) > _fields.MOST_VALUE_BYTES:
        return None
    try:
        decoded = _fields.decode(body)
    except DecodeError:
        pass
    else:
        return decoded if isinstance(decoded, dict) else None
    try:
        pairs = parse_qsl(body.decode().strip(), strict_parsing=True)
    except ValueError:
        return None
    return cast("dict[str, JsonValue]", dict(reversed(pairs)))  # of two fields of one name the first counts


def _refusal(response: Response, fields: Mapping[str, JsonValue], secrets: frozenset[bytes]) -> CredentialError:
    found = fields.get("error")  # RFC 6749, section 5.2
    code = found if isinstance(found, str) and _PLAIN_WORD.fullmatch(found) and is_free_of(found.encode(), secrets) else None
    explanation = f" ({code})" if code else ""
    words = _own_words(response, fields, secrets)
    is_usual = response.status == 400 or response.is_success
    if is_usual and not words:
        explanation += ": the client identifier or secret is invalid, or the code is invalid, used or expired"
    why = f"the token exchange failed with status {response.status}{explanation}{words and f'; the service says: {words}'}"
    error = CredentialError(why, status_of(response.status).effect)
    error.retry_at = retry_at(response.status, response.headers, time.time())
    # Only a bad code comes from the user's browser. A 400 that does not say why may be that too.
    error.suggested_status = 400 if is_usual and code not in _CLIENT_ERRORS else 502
    return error


def _own_words(response: Response, fields: Mapping[str, JsonValue], secrets: frozenset[bytes]) -> str:
    """Return the description of a refusal, without secrets and what may be a token."""
    texts = [text for one in _nested(fields) for name in _WORDS if (text := _text(one, name)) is not None]
    if not texts and response.headers.get("Content-Type", "").startswith("text/plain"):
        texts = [response.body.decode("utf-8", "replace")]
    said = "".join(texts[:1]).encode(errors="replace")
    plain = masked(said, secrets, _LONGEST_WORDS).decode(errors="replace")
    shown = [word if _PLAIN_WORD.fullmatch(word) else "***" for word in plain.split()]
    return " ".join(shown) if set(shown) - {"***"} else ""


def _nested(fields: Mapping[str, JsonValue]) -> Iterator[Mapping[str, JsonValue]]:
    yield fields
    for name in _ERRORS:
        found = fields.get(name)
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict):
                yield one
            elif isinstance(found, list):
                yield {"message": one}


def _text(fields: Mapping[str, JsonValue], name: str) -> str | None:
    """Return the text of a field, None if it has none. `error` is a code unless it is several words."""
    text = fields.get(name)
    return text if isinstance(text, str) and text and (name != "error" or " " in text) else None


def _names(fields: Mapping[str, JsonValue], secrets: frozenset[bytes]) -> str:
    """Return the names of fields in words, without those that hold a secret or may be a token."""
    named = (name for name, value in fields.items() if _PLAIN_NAME.fullmatch(name) and not _is_padding(value))
    shown = sorted(name for name in named if is_free_of(name.encode(), secrets))
    hidden = len(fields) - len(shown)
    return f"the names in its response are {', '.join(shown) or 'none'}" + (f" and {hidden} not shown" if hidden else "")


def _is_padding(value: JsonValue) -> bool:
    return isinstance(value, str) and not value.strip("=")


def _end(expires_in: JsonValue, now: float) -> datetime | None:
    """Return when a lifetime in seconds ends. None if it is no positive number."""
    try:
        seconds = float(expires_in)  # type: ignore[arg-type]  # -- what is no number raises
        if isinstance(expires_in, bool) or not math.isfinite(seconds) or seconds <= 0:
            return None
        return datetime.fromtimestamp(now, UTC) + timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        return None
