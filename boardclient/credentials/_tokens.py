"""Tokens, the protocol of their stores, and the guard of supplied code."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, cast, get_args

import attrs

from boardclient._redaction import takes_secrets, without_frames
from boardclient.credentials._credentials import Exchange, filled
from boardclient.errors import ConsentRequired, CredentialError, Effect, SessionClosedError
from boardclient.models import JsonValue

T = TypeVar("T")

LeaseState: TypeAlias = Literal["granted", "held", "cooling"]
"""The result of asking for the lease: granted, held by another, or refused until a cool-down is over."""

_STEP_SECONDS: Final = 30.0
_RELEASE_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 0.5
"""The limit for a step that is running when the session closes: it should end, but a store that hangs must not delay closing."""


def _aware(instance: object, attribute: attrs.Attribute[datetime | None], value: object) -> None:
    if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
        raise ValueError(f"{attribute.name} must be an aware datetime, or None")


@takes_secrets
@attrs.frozen
class Token:
    """An access token from the exchange (interface 4.12).

    The repr doesn't show it, and it can't be pickled: a store saves its `value`.

    Args:
        value: The token.
        expires_at: When it ends, aware. None (default) if that is not known.

    Raises:
        ValueError, TypeError: the value is empty or can't be sent, or the date is not aware.
    """

    value: str = attrs.field(repr=False, validator=filled)
    expires_at: datetime | None = attrs.field(default=None, validator=_aware)

    def __reduce__(self) -> NoReturn:
        raise TypeError("tokens are not pickled: store the value")


def text_of_end(token: Token) -> str | None:
    """Return when a token ends as ISO 8601, None if that is not known."""
    return None if token.expires_at is None else token.expires_at.isoformat()


@attrs.frozen
class StoredToken:
    """A token in a store.

    Args:
        token: The token.
        generation: The number of tokens and deletions of the account so far, from 1.
        deletion: The generation of the account's last deletion, 0 (default) if there was none. It is left out of comparison.
    """

    token: Token
    generation: int
    deletion: int = attrs.field(default=0, eq=False)


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


class TokenStore(Protocol):
    """Keep the tokens of accounts, for all tasks, sessions, loops and processes.

    Each method is one short, atomic step, and does not wait for another worker. An exception reaches the callers as the cause
    of a `CredentialError`. A method that does not return within 30 seconds fails the call.
    `boardclient.testing.TokenStoreSuite` tests a store.

    `publish` makes renewals safe: it compares and sets the generation. The lease only spares users a second prompt. It may be
    lost, run out or be granted twice, which costs at most one more authorization code.
    """

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account, None if none is stored."""
        ...

    async def generation(self, account: str) -> int:
        """Return how many tokens and deletions the account has had, 0 for an unknown one."""
        ...

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1`. Return False if the generation is not `after`.

        It does not matter who has the lease. A cool-down of the account ends.

        Args:
            account: The account whose token it is.
            token: The token to keep.
            after: The generation that the token follows, 0 for the first one.
        """
        ...

    async def delete(self, account: str) -> None:
        """Delete the token, raise the generation by one, and end a lease or cool-down.

        From then on `read` returns None. Generations never repeat, so a renewal that began before the deletion can't publish.
        """
        ...

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Grant `holder` the right to renew for so many seconds from now.

        Return "granted" if no holder has the lease, if it ran out, or if `holder` has it, whose time begins again. Return
        "held" if another holder has it, and "cooling" during the cool-down after a failed renewal.

        Args:
            account: The account whose token is to be renewed.
            holder: A text that names the worker, and is different for each renewal.
            seconds: How long the lease lasts unless `holder` gets it again.
        """
        ...

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, and grant none for `cooldown` seconds.

        Another holder's lease stays as it is. If the lease ran out and no other holder took it, the cool-down may begin or not.

        Args:
            account: The account of the lease.
            holder: The text that `lease` was called with.
            cooldown: The seconds from now in which no holder gets the lease. 0 (default): the next one gets it at once.
        """
        ...


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
