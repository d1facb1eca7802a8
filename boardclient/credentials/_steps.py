"""The steps of a renewal: the application's code and its store, guarded, and the exchange of a code (interface 4.12, 5.9).

The interface shows no response. Error messages hold no values of a success, only names, and of those only what can't be a token.
Of a refusal they hold the description, with `***` in place of what may be a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast, get_args
from urllib.parse import parse_qsl

import attrs

from boardclient import _wire
from boardclient._redaction import raises_without_frames, redacted, without_frames
from boardclient._responses import Response, status_of
from boardclient._transport import check_root
from boardclient.credentials._credentials import Exchange
from boardclient.credentials._stores import LeaseState, StoredToken, Token, TokenStore
from boardclient.errors import ConsentRequired, CredentialError, DecodeError, Effect, SessionClosedError, TransportError
from boardclient.models import JsonValue, check_filled, check_seconds

T = TypeVar("T")

_STEP_SECONDS: Final = 30.0
"""How long a step at a store, or `parse_token`, may take."""
_RELEASE_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 0.5
"""The limit for a step that is running when the session closes: it should end, but a store that hangs must not delay closing."""
_EXCHANGE_SECONDS: Final = 30.0
"""The time limit of an exchange on a session whose calls have no deadline. A renewal must end."""
_PATH: Final = "/1/OAuthGetAccessToken"
_TOKEN_NAMES: Final = ("access_token", "token")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z_.-]{0,23}")
_CLIENT_ERRORS: Final = frozenset({"invalid_client", "invalid_request", "unauthorized_client", "unsupported_grant_type"})
"""The codes of RFC 6749, section 5.2, that the application's configuration causes."""
_WORDS: Final = ("error_description", "message", "error", "detail", "title")
"""The fields in which services say why they refuse (RFC 6749, section 5.2, and RFC 9457 among others)."""
_LONGEST_WORDS: Final = 200
_PLAIN_WORD: Final = re.compile(r"[('\"]?(?:[A-Za-z]+(?:[_'-][A-Za-z]+){0,3}|[0-9]{1,3})[.,;:!?)'\"]{0,2}")
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


@attrs.frozen(kw_only=True)
class RenewalFailure:
    """Why there is no token. Each caller gets an error of its own.

    Args:
        why: The reason in words.
        cause: What the application raised, None if it did not.
        is_in_doubt: Whether the service may have used up the code.
        effect: What the exchange may have done. The error of a call that waits for the token has that of the call.
        needs_consent: Whether nothing failed, and the user has to sign in.
        login_url: Where the user signs in.
        suggested_status: The status with which a web application responds to the error. None for that of its class.
    """

    why: str
    cause: BaseException | None = None
    is_in_doubt: bool = False
    effect: Effect = Effect.NOT_SENT
    needs_consent: bool = False
    login_url: str | None = None
    suggested_status: int | None = None

    def error(self, account: str = "", cooldown_left: float = 0.0) -> CredentialError:
        """Return a new error. `cooldown_left` are the seconds until the next renewal may begin."""
        if self.needs_consent:
            error: CredentialError = ConsentRequired(self.why, account, self.login_url)
        else:
            hint = f"; the next renewal is possible in {cooldown_left:.1f} s" if cooldown_left > 0 else ""
            error = CredentialError(self.why + hint)
        if self.suggested_status is not None:
            error.suggested_status = self.suggested_status
        error.__cause__ = self.cause
        return error


# --- what applications supply


class Overtaken(Exception):  # noqa: N818 -- it is raised to end a wait, and no failure
    """The task that a guarded call was to end with has ended first."""


@attrs.frozen
class _Outcome:
    # asyncio prints results of tasks in debug mode, and this one may be a token.
    value: Any = attrs.field(default=None, repr=False)
    error: BaseException | None = attrs.field(default=None, repr=False)


async def _outcome_of(caught: type[BaseException], function: Callable[..., object], *arguments: object) -> _Outcome:
    try:
        value = function(*arguments)
        return _Outcome(await value if inspect.isawaitable(value) else value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except caught as error:
        return _Outcome(error=error)


async def run_to_end(exchange: Exchange, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Run a function in a task of the session, which continues if the caller is cancelled.

    Raises:
        SessionClosedError: the session is closed, or was closed meanwhile.
    """
    task = exchange.spawn(_outcome_of(Exception, function, *arguments))
    await asyncio.wait({task})
    if task.cancelled():
        raise SessionClosedError("the session was closed during the exchange")
    outcome = task.result()
    if outcome.error is not None:
        raise outcome.error
    return cast("T", outcome.value)


async def supplied(
    name: str,
    function: Callable[..., object],
    *arguments: object,
    is_valid: Callable[[Any], bool],
    expected: str,
    seconds: float = _STEP_SECONDS,
    grace_seconds: float = 0.0,
    until: asyncio.Task[None] | None = None,
) -> Any:
    """Call an application's function, async or not, which may do anything.

    Raises:
        CredentialError: it raised, took longer than `seconds`, or returned something else than `expected`. What it raised is the
            cause. The message and cause of a `CredentialError` are kept.
        Overtaken: the task `until` ended first.
    """
    # BaseException: also a CancelledError that the application raised itself
    task = asyncio.create_task(_outcome_of(BaseException, function, *arguments))
    del arguments  # one may be a token, and the frame stays with an error
    try:
        await asyncio.wait({task, *([until] if until else [])}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=grace_seconds)
        raise
    finally:
        task.cancel()  # it is not waited for: it may ignore this
    if not task.done():
        if until is not None and until.done():
            raise Overtaken
        raise CredentialError(f"{name} did not return within {seconds:g} s")
    outcome = task.result()
    if outcome.error is not None:
        failure = _failure_of(name, outcome.error)
    elif is_valid(outcome.value):
        return outcome.value
    else:
        failure = CredentialError(f"{name} returned {type(outcome.value).__name__}, not {expected}")
    del outcome, task  # the value may be a token
    raise failure


def _failure_of(name: str, error: BaseException) -> CredentialError:
    """Return the error for what an application's function raised."""
    if isinstance(error, ConsentRequired):
        return error
    is_told = isinstance(error, CredentialError)
    failure = CredentialError(str(error) if is_told else f"{name} raised {type(error).__name__}")
    failure.__cause__ = error.__cause__ if is_told else error
    return failure


def _is_stored(value: Any) -> bool:
    return value is None or (isinstance(value, StoredToken) and isinstance(value.token, Token))


_RESULTS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "read": (_is_stored, "a StoredToken or None"),
    "generation": (lambda value: isinstance(value, int), "an int"),
    "lease": (lambda value: isinstance(value, str) and value in get_args(LeaseState), "a LeaseState"),
}
"""What the methods of a store return, in code and in words. Of the others' results only the truth counts."""


@attrs.frozen
class GuardedStore:
    """The steps at a store for one account. A step that fails raises a `CredentialError`."""

    store: TokenStore
    account: str

    async def read(self) -> StoredToken | None:
        """Return the stored token, None if there is none."""
        stored: StoredToken | None = await self._step("read")
        return stored

    async def generation(self) -> int:
        """Return the generation."""
        generation: int = await self._step("generation")
        return generation

    async def publish(self, token: Token, after: int) -> bool:
        """Publish the token, and return whether the store took it."""
        step = self._step("publish", token, after, grace_seconds=GRACE_SECONDS)
        del token  # the frame stays with an error
        return bool(await step)

    async def delete(self) -> None:
        """Delete the token."""
        await self._step("delete")

    async def lease(self, holder: str, seconds: float, *, grace_seconds: float = GRACE_SECONDS) -> LeaseState:
        """Ask for the lease, and return whether it was granted."""
        state: LeaseState = await self._step("lease", holder, seconds, grace_seconds=grace_seconds)
        return state

    async def release(self, holder: str, cooldown: float = 0.0) -> None:
        """Release the lease, within a second. If that fails, the lease runs out by itself."""
        with contextlib.suppress(CredentialError):
            await self._step("release", holder, cooldown, seconds=_RELEASE_SECONDS, grace_seconds=GRACE_SECONDS)

    async def _step(self, name: str, *arguments: object, seconds: float = _STEP_SECONDS, grace_seconds: float = 0.0) -> Any:
        is_valid, expected = _RESULTS.get(name, (lambda _: True, ""))
        calling = supplied(
            f"the token store failed: {name}",
            getattr(self.store, name),
            self.account,
            *arguments,
            is_valid=is_valid,
            expected=expected,
            seconds=seconds,
            grace_seconds=grace_seconds,
        )
        del arguments
        try:
            return await calling
        except CredentialError as error:
            failure = without_frames(error)
        raise failure


# --- the exchange of a code


def _checked_address(url: str) -> str:
    return check_root(url, "auth_url", allow_insecure=True)  # the session says whether forms may go over plain http


@attrs.frozen(kw_only=True)
class OAuthClientConfig:
    """The options of `OAuthCredentials`, which describes them, checked."""

    client_id: str = attrs.field(repr=False)
    client_secret: str = attrs.field(repr=False)
    redirect_uri: str = attrs.field(repr=False)
    auth_url: str = attrs.field(converter=_checked_address)
    authorize: Authorize | None
    key: str | None = attrs.field(repr=False)
    store: TokenStore
    account: str
    authorize_timeout: float
    cooldown: float
    renew_before_expiry: float | None
    parse_token: ParseToken | None
    lease_seconds: float
    login_url: str | None
    steps: GuardedStore = attrs.field(init=False, repr=False)
    """The steps at the store for this account."""

    def __attrs_post_init__(self) -> None:
        for name in ("client_id", "client_secret", "redirect_uri", "account"):
            check_filled(getattr(self, name), name)
        for name in ("key", "login_url"):
            if getattr(self, name) is not None:
                check_filled(getattr(self, name), name)
        if not all(function is None or callable(function) for function in (self.authorize, self.parse_token)):
            raise TypeError("authorize must be an async function or None, and parse_token a function")
        steps = ("read", "generation", "publish", "delete", "lease", "release")
        if isinstance(self.store, type) or not all(callable(getattr(self.store, name, None)) for name in steps):
            raise TypeError("store must be a TokenStore, such as MemoryTokenStore() or FileTokenStore(path)")
        for name in ("authorize_timeout", "lease_seconds", "cooldown"):
            check_seconds(getattr(self, name), name)
        if self.renew_before_expiry is not None:
            check_seconds(self.renew_before_expiry, "renew_before_expiry")
        if not self.authorize_timeout > 0 or not self.lease_seconds > 0 or not self.cooldown >= 0:
            raise ValueError("authorize_timeout and lease_seconds must be more than 0 seconds, cooldown at least 0")
        if self.renew_before_expiry is not None and not self.renew_before_expiry > 0:
            raise ValueError("renew_before_expiry must be more than 0 seconds, or None")
        object.__setattr__(self, "steps", GuardedStore(self.store, self.account))

    def consent_needed(self, login_url: str | None = None, cause: BaseException | None = None) -> RenewalFailure:
        """Return the failure of calls whose user has to sign in. The callback's `login_url` replaces the configured one."""
        why = f"the user of account {self.account!r} has to sign in"
        return RenewalFailure(why=why, cause=cause, needs_consent=True, login_url=login_url or self.login_url)

    @raises_without_frames
    async def exchange(
        self, code: str, exchange: Exchange, timeout: float | None, code_verifier: str | None = None
    ) -> Token | RenewalFailure:
        """Send the code once, and return the token of the response. It may take `_EXCHANGE_SECONDS` if `timeout` is None."""
        fields = {
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "code": code,
            "redirect_uri": self.redirect_uri,
        }
        if code_verifier is not None:
            fields["code_verifier"] = code_verifier
        secrets = [value for name, value in fields.items() if name not in {"client_id", "redirect_uri"}]
        try:
            response = await exchange.post_form(self.auth_url + _PATH, fields, _EXCHANGE_SECONDS if timeout is None else timeout)
        except TransportError as error:
            lost = error.with_traceback(None)
        else:
            token = await read_token(response, time.time(), self.parse_token, secrets)
            if isinstance(token, RenewalFailure):
                effect = Effect.DONE if 200 <= response.status < 300 else status_of(response.status).effect
                return attrs.evolve(token, why=f"{token.why} (sent to {self.auth_url}{_PATH})", effect=effect)
            return token
        is_in_doubt = lost.effect is not Effect.NOT_SENT
        words = "failed, with unknown effect" if is_in_doubt else "was not sent"
        return RenewalFailure(
            why=f"the token exchange {words}: {lost.message}",
            cause=lost,
            is_in_doubt=is_in_doubt,
            effect=lost.effect,
            suggested_status=lost.suggested_status,
        )


async def read_token(
    response: Response, now: float, parse: ParseToken | None = None, secrets: Sequence[str] = ()
) -> Token | RenewalFailure:
    """Return the token of a response, or why it has none. `secrets` are what the form held, which a refusal may repeat.

    The response may be a JSON object as in RFC 6749 5.1, one with a field `token`, or the same form-encoded, with any content
    type.
    """
    fields = _fields(response.body)
    if not 200 <= response.status < 300:
        return _refusal(response, fields or {}, secrets)
    if fields is None:
        return _none("its response is neither a JSON object nor form-encoded")
    if parse is not None:
        try:
            parsed: Token = await supplied(
                "parse_token", parse, fields, is_valid=lambda made: isinstance(made, Token), expected="a Token"
            )
        except CredentialError as error:  # its frames hold the response
            return _none(f"{error.message}: {_names(fields)}", without_frames(error).__cause__)
        return parsed
    value = next((found for name in _TOKEN_NAMES if isinstance(found := fields.get(name), str) and found), None)
    if value is None:
        return _none(f"{_names(fields)}; parse_token can take it from another shape")
    try:
        return Token(value, _end(fields.get("expires_in"), now))
    except ValueError:
        return _none("it holds characters that no request can carry")


def _none(why: str, cause: BaseException | None = None) -> RenewalFailure:
    return RenewalFailure(why=f"the token exchange gave no token: {why}", cause=cause, suggested_status=502)


def _fields(body: bytes) -> Mapping[str, JsonValue] | None:
    """Decode a JSON object or a form. None if the body is neither."""
    try:
        decoded = _wire.decode(body)
    except DecodeError:
        pass
    else:
        return decoded if isinstance(decoded, dict) else None
    try:
        pairs = parse_qsl(body.decode().strip(), strict_parsing=True)
    except ValueError:
        return None
    return cast("dict[str, JsonValue]", dict(reversed(pairs)))  # of two fields of one name the first counts


def _refusal(response: Response, fields: Mapping[str, JsonValue], secrets: Sequence[str]) -> RenewalFailure:
    found = fields.get("error")  # RFC 6749, section 5.2
    code = found if isinstance(found, str) and _PLAIN_WORD.fullmatch(found) else None
    explanation = f" ({code})" if code else ""
    if response.status == 400:
        explanation += ": the client identifier or secret is invalid, or the code is invalid, used or expired"
    words = _own_words(response, fields, secrets)
    return RenewalFailure(
        why=f"the token exchange failed with status {response.status}{explanation}{words and f'; the service says: {words}'}",
        # Only a bad code comes from the user's browser. A 400 that does not say why may be that too.
        suggested_status=400 if response.status == 400 and code not in _CLIENT_ERRORS else 502,
    )


def _own_words(response: Response, fields: Mapping[str, JsonValue], secrets: Sequence[str]) -> str:
    """Return the description of a refusal, without secrets and what may be a token."""
    texts = [text for name in _WORDS if isinstance(text := fields.get(name), str) and (name != "error" or " " in text)]
    if not texts and response.headers.get("Content-Type", "").startswith("text/plain"):
        texts = [response.body.decode("utf-8", "replace")]
    said = "".join(texts[:1]).encode(errors="replace")
    plain = (redacted(said, secrets, _LONGEST_WORDS) if secrets else said[:_LONGEST_WORDS]).decode(errors="replace")
    shown = [word if _PLAIN_WORD.fullmatch(word) else "***" for word in plain.split()]
    return " ".join(shown) if set(shown) - {"***"} else ""


def _names(fields: Mapping[str, JsonValue]) -> str:
    """Return the names of fields in words, without those that may be a token."""
    shown = sorted(name for name, value in fields.items() if _PLAIN_NAME.fullmatch(name) and not _is_padding(value))
    hidden = len(fields) - len(shown)
    return f"the names in its response are {', '.join(shown) or 'none'}" + (f" and {hidden} not shown" if hidden else "")


def _is_padding(value: JsonValue) -> bool:
    """Return True if a value may be the padding of a base64 token."""
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
