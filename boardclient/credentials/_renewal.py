"""One renewal, from the first look at the store to the new token (interface 5.7).

The interface has no refresh tokens, so each new token takes a code from the application. A renewal looks at the store, takes the
lease so that no other worker asks for a code too, asks for one, exchanges it, and publishes the token. It ends early if another
worker publishes one meanwhile.

`TokenState` is what this process knows of an account's token. Its methods are synchronous, and hold a lock, since event loops may
run in several threads. `Renewal` does the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import random
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Final

import attrs

from boardclient._base._activities import PARENT, Activity, followers
from boardclient._base._guards import Overtaken, supplied
from boardclient._base._redaction import raises_without_frames, without_frames
from boardclient._interface._responses import moment_in
from boardclient.credentials._credentials import Credentials, Exchange
from boardclient.credentials._stores import GuardedStore, LeaseRecord, StoredToken, Token
from boardclient.credentials._token_exchange import AuthorizationRequest, OAuthClient, check_redirect
from boardclient.errors import ConsentRequired, CredentialError, Effect, SessionClosedError, TransportError
from boardclient.models import check_filled

LOOK_SECONDS: Final = 0.05
"""The least time between looks at the store while no renewal begins. A token of another worker ends the wait."""
_LONGEST_COOLDOWN_SECONDS: Final = 60.0
_LONGEST_ASKED_SECONDS: Final = 3600.0
"""The longest `Retry-After` of the token exchange that is kept to."""
_NEW_SECONDS: Final = 60.0
"""How long a token that was never accepted counts as new. If it is refused later, it may have expired unused."""
_POLL_SECONDS: Final = (0.05, 0.2)
"""The random pause between two looks at a store that another worker may publish to: workers must not look in step."""


@attrs.define(eq=False)
class TokenInUse:
    """A token in use, its credentials, and what is known about it."""

    stored: StoredToken
    credentials: Credentials
    obtained_at: float | None = None
    """When this process's renewal obtained it, on the state's clock. None if another worker did."""
    renew_at: float | None = None
    """When it is renewed early, in seconds since the epoch. None for never."""
    is_proven: bool = False
    """Whether the service has accepted it."""


class TokenState:
    """The token that signs the requests of an account. Owned by its provider."""

    def __init__(self, key: str | None, cooldown: float, renew_before_expiry: float | None, clock: Callable[[], float]) -> None:
        self.credentials: Credentials | None = None
        """What to sign with. None if there is no token, or it was refused."""
        self.in_use: TokenInUse | None = None
        """The token, good or refused. None if there is none."""
        self.asked = 0
        """How often the application was asked for a code since the service last accepted a token."""
        self.waits_for = "the token store"
        """What the renewal waits for, in words."""
        self._lost_codes: set[bytes] = set()
        """The digests of codes whose exchange had an unknown effect. They are not sent again."""
        self._credentials_of: Callable[[Token], Credentials] = lambda token: Credentials(token.value, key)
        """Makes credentials. The key is in no attribute, where it could be found."""
        self._margin = renew_before_expiry
        self._clock = clock
        self._looked_at = -math.inf
        self._first_cooldown = cooldown
        self._failures = 0
        self._failure: CredentialError | None = None
        self._cooling_until = -math.inf
        self._lock = threading.RLock()

    def adopt(self, stored: StoredToken, instead_of: TokenInUse | None, *, is_own: bool = False) -> bool:
        """Use a token of the store, unless the token in use is better. Return True if that is good then, and not `instead_of`.

        `instead_of` is the token that the caller wants to replace. `is_own` says that a renewal of this process has published
        the stored one.
        """
        with self._lock:
            in_use = self.in_use
            # Three cases: a good token of a later generation stays. A renewal of this process replaces the token that it was
            # begun for, whatever the generations say: the store may have been restored from a copy, or have lost its file.
            # Otherwise what the store has is used if it differs.
            is_old = in_use is not None and self.credentials is not None and stored.generation < in_use.stored.generation
            if is_own and in_use is instead_of:
                is_old = False
            if not is_old and (in_use is None or is_own or stored != in_use.stored):
                self._use(stored, self._clock() if is_own else None)
            return self.credentials is not None and self.in_use is not instead_of

    def replace(self, stored: StoredToken) -> None:
        """Use a token that the user has just consented to, in place of any other."""
        with self._lock:
            self._use(stored, None)
            self._failures, self._cooling_until = 0, -math.inf
            self._looked_at = self._clock()

    def drop(self, generation: int) -> None:
        """Forget the token if the store, whose generation is given, has deleted it."""
        with self._lock:
            if self.in_use is not None and generation > self.in_use.stored.generation:
                self.in_use = self.credentials = None

    def _use(self, stored: StoredToken, obtained_at: float | None) -> None:
        credentials, end = self._credentials_of(stored.token), stored.token.expires_at
        renew_at = None
        if self._margin is not None and end is not None:  # not before half of the remaining time has passed
            renew_at = max(end.timestamp() - self._margin, (time.time() + end.timestamp()) / 2)
        self.in_use = TokenInUse(stored, credentials, obtained_at, renew_at)
        self.credentials = credentials

    @property
    def is_due(self) -> bool:
        in_use = self.in_use
        return in_use is not None and in_use.renew_at is not None and time.time() >= in_use.renew_at

    @property
    def is_usable(self) -> bool:
        """Whether there is a token that is neither refused nor past its end."""
        if self.credentials is None or self.in_use is None:
            return False
        end = self.in_use.stored.token.expires_at
        return end is None or time.time() < end.timestamp()

    def refuse(self, rejected: Credentials) -> tuple[bool, float]:
        """Note a 401. Return whether it is final, and the seconds of the cool-down that begins with it.

        It is if the token was new: no other will help. There are no seconds if an earlier 401 has begun the cool-down.
        """
        with self._lock:
            in_use = self.in_use
            if in_use is None or in_use.credentials != rejected:
                return False, 0.0  # it is for an older token
            is_first, self.credentials = self.credentials is not None, None
            # Three cases: a token that worked has expired, and is renewed. So is one that another worker obtained, or that was
            # never used for a while. One that is refused right after its own renewal would be refused again: the renewals cool
            # down.
            if in_use.is_proven or in_use.obtained_at is None or self._clock() - in_use.obtained_at > _NEW_SECONDS:
                return False, 0.0
            why = CredentialError("the service refused a token as soon as it was new")
            return True, self.fail(why) if is_first else 0.0

    def accept(self, credentials: Credentials) -> None:
        """Note that the service accepted the token. Earlier failures no longer count."""
        with self._lock:
            if self.in_use is not None and self.credentials == credentials:
                self.in_use.is_proven = True
                self._failures = self.asked = 0

    def fail(self, failure: CredentialError, seconds: float | None = None) -> float:
        """Note a failed renewal, and return for how many seconds none begins: by default a cool-down, which grows each time.

        The cool-down lasts for as long as the service asks, up to an hour: a code that is exchanged before would be wasted.
        """
        with self._lock:
            if seconds is None:
                seconds = min(_LONGEST_COOLDOWN_SECONDS, self._first_cooldown * 2.0 ** min(self._failures, 10))
                self._failures += 1
                if failure.retry_at is not None:
                    asked = (failure.retry_at - moment_in(0)).total_seconds()
                    seconds = max(seconds, min(asked, _LONGEST_ASKED_SECONDS))
            self._failure, self._cooling_until = failure, self._clock() + seconds
            failure.retry_at = moment_in(seconds) if seconds else None
            return seconds

    def note_lost(self, code: str) -> None:
        """Note that an exchange of the code had an unknown effect."""
        self._lost_codes.add(_digest(code))

    def is_lost(self, code: str) -> bool:
        return _digest(code) in self._lost_codes

    @property
    def cooldown_left(self) -> float:
        return max(0.0, self._cooling_until - self._clock())

    @property
    def failure(self) -> CredentialError | None:
        """Why no renewal begins now, None if one may."""
        return self._failure if self.cooldown_left else None

    def begin_look(self) -> None:
        self._looked_at = self._clock()

    def is_look_older_than(self, seconds: float) -> bool:
        return self._clock() - self._looked_at >= seconds


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


# --- a renewal

_renewals: Final[ContextVar[tuple[Renewal, ...]]] = ContextVar("boardclient_renewals", default=())
"""The renewals that the running task belongs to, outermost first. Tasks that a callback starts inherit them."""


def is_within_renewal(store: GuardedStore) -> bool:
    """Return True if the running task belongs to a renewal of this account of the store."""
    return any(one.store == store for one in _renewals.get() if not one.is_over)


async def look(state: TokenState, store: GuardedStore) -> StoredToken | None:
    """Return the store's token, and use it if it is another one. Drop the token that the store has deleted."""
    in_use = state.in_use
    stored = await store.read()
    if stored is not None:
        state.adopt(stored, in_use)
    elif in_use is not None:
        state.drop(await store.generation())
    return stored


class Renewal:
    """One renewal, for all callers that wait on this event loop.

    It runs in a task of its own. Owned by its provider; the session whose pool it uses cancels it when it closes.
    """

    def __init__(self, client: OAuthClient, state: TokenState, exchange: Exchange) -> None:
        self.client = client
        self.is_over = False
        self.store = client.guarded_store
        self._state = state
        self._exchange = exchange
        self._holder = secrets.token_hex(8)
        self._may_hold_lease = False
        self._seen = state.in_use
        """The token that is to be replaced, as this process knew it at the beginning."""

    async def run(self) -> CredentialError | None:
        """Obtain another token than before, or return why there is none.

        None is also returned if the session closes meanwhile: the caller finds no new token then.
        """
        call = PARENT.get()
        followed = Activity(
            kind="renewal",
            operation="credentials.renew",
            instruments=followers() if call is None else call.instruments,
            call_id="" if call is None else call.call_id,
            account=self.client.account,
            parent=call,
        ).begin()
        PARENT.set(followed)  # in the context of this task
        _renewals.set((*_renewals.get(), self))
        failure = None
        try:
            failure = await self._renew()
        finally:
            self.is_over = True
            followed.end(failure)
        return failure

    async def _renew(self) -> CredentialError | None:
        """Renew the token, and return why there is no other. In a cool-down only look for one in the store."""
        self._state.begin_look()
        if (cooling := self._state.failure) is not None:
            return None if await self._try_to_find_another() else cooling
        failure, cooldown = None, 0.0
        try:
            if (leased := await self._request_lease()) is not None:
                async with self._lease_kept():
                    await self._obtain(leased)
        except (Overtaken, SessionClosedError):
            pass
        except Exception as error:
            failure = self._failure_of(error)
            if isinstance(failure, ConsentRequired):
                failure.is_signed_out = await self._is_signed_out()
            # Three cases: another worker was faster, the user has to sign in, which may happen at any moment, or the renewal
            # failed. Without a lease the renewal has only just looked at the store. With one it may have waited for long.
            if self._may_hold_lease and await self._try_to_find_another():
                failure = None
            elif isinstance(failure, ConsentRequired) or self.client.authorize is None:
                self._state.fail(failure, LOOK_SECONDS)
            else:
                cooldown = self._state.fail(failure)
        finally:
            if self._may_hold_lease:
                await self.store.release(self._holder, cooldown)
        return failure

    def _failure_of(self, error: Exception) -> CredentialError:
        if isinstance(error, ConsentRequired):
            failure: CredentialError = self._consent_needed(error.login_url or self.client.login_url)
            failure.__cause__ = error.__cause__
        elif isinstance(error, CredentialError):
            failure = error
        elif isinstance(error, ValueError):
            failure = CredentialError(str(error))
        else:  # an application's own Exchange may raise anything
            failure = CredentialError(f"the renewal failed: {type(error).__name__}")
            failure.__cause__ = error
        without_frames(failure)
        return failure

    def _consent_needed(self, login_url: str | None) -> ConsentRequired:
        return ConsentRequired(f"the user of account {self.client.account!r} has to sign in", self.client.account, login_url)

    async def _is_signed_out(self) -> bool:
        """Return True if the token was deleted: the account has none, and had one."""
        with contextlib.suppress(CredentialError):  # that the store fails is no sign-out
            return self._state.in_use is None and await self.store.generation() > 0
        return False

    async def _look_for_another(self) -> bool:
        """Look at the store, and return True if another good token is in use now."""
        await look(self._state, self.store)
        return self._state.credentials is not None and self._state.in_use is not self._seen

    async def _try_to_find_another(self) -> bool:
        """Look at the store as `_look_for_another` does. One that fails counts as one without another token."""
        with contextlib.suppress(CredentialError):
            return await self._look_for_another()
        return False

    # --- the lease

    async def _request_lease(self) -> LeaseRecord | None:
        """Take the lease, and return the record of the account, or wait until its holder has published a token."""
        # Before the lease and the user are asked for what could not be sent anyway.
        if self.client.authorize is not None:
            self._exchange.check_url(self.client.auth_url, "auth_url")
            check_redirect(self.client.redirect_uri, self._exchange)
        # Four ends: another worker has published, nobody here can be asked, the lease is granted, or another renewal has just
        # failed.
        while not await self._look_for_another():
            if self.client.authorize is None:
                raise self._consent_needed(self.client.login_url)
            self._may_hold_lease = True  # if the step is cancelled, it may still be done
            leased = await self.store.lease(self._holder, self.client.lease_seconds)
            if leased.state == "granted":
                return leased
            self._may_hold_lease = False
            if leased.state == "cooling":
                failure = CredentialError("a renewal by another holder of the account has just failed")
                if leased.cooldown > 0:  # none of this worker begins before either
                    failure.retry_at = moment_in(leased.cooldown)
                raise failure
            self._state.waits_for = "the renewal by another worker"
            await asyncio.sleep(_pause())
        return None

    @contextlib.asynccontextmanager
    async def _lease_kept(self) -> AsyncIterator[None]:
        """Extend the lease until the block ends."""
        ended = asyncio.Event()
        keeper = asyncio.create_task(self._keep_lease(ended))
        try:
            yield
        finally:
            # Wait for a running step: cancelled, it may still run in a thread, and take the lease again after its release.
            ended.set()
            await asyncio.wait({keeper}, timeout=self.client.lease_seconds)
            keeper.cancel()

    async def _keep_lease(self, ended: asyncio.Event) -> None:
        seconds = self.client.lease_seconds
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds / 3)
                return
            with contextlib.suppress(CredentialError):  # losing the lease costs at most a second code
                await self.store.lease(self._holder, seconds, grace_seconds=0.0)

    # --- what the holder does

    async def _obtain(self, leased: LeaseRecord) -> None:
        """Obtain and publish a token, or use that of another worker who was faster."""
        before = leased.stored
        if before is not None and self._state.adopt(before, self._seen):
            return
        # A third of a call's timeout, so that waiting callers get the error of the exchange.
        timeout = None if self._exchange.timeout is None else self._exchange.timeout / 3
        is_second = False
        while True:
            code = await self._ask_for_code(is_first=before is None)
            try:
                self._state.waits_for = f"the token exchange at {self.client.auth_url}"
                token = await exchange_once(self.client, self._state, code, self._exchange, timeout)
                break
            except CredentialError as error:
                # A code whose response was lost may be used up: one more is asked for. All other failures would come again.
                if is_second or error.effect is Effect.NOT_SENT or not self._state.is_lost(code):
                    raise
                is_second = True
            finally:
                self._state.waits_for = "the token store"
        await self._publish(token, leased.generation)

    async def _ask_for_code(self, *, is_first: bool) -> str:
        """Ask the application for a code.

        Raises:
            Overtaken: another worker has published a token first.
        """
        assert self.client.authorize is not None  # noqa: S101 -- otherwise no lease is taken
        self._state.asked += 1
        self._state.waits_for = f"the user's consent (the authorize callback of account {self.client.account!r})"
        watch = asyncio.create_task(self._watch())
        try:
            code: str = await supplied(
                "authorize",
                self.client.authorize,
                AuthorizationRequest(account=self.client.account, first_time=is_first, attempt=self._state.asked),
                is_valid=_is_code,
                expected="a code that can be sent",
                seconds=self.client.authorize_timeout,
                until=watch,
            )
        finally:
            watch.cancel()
            self._state.waits_for = "the token store"
        return code

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_pause())
            if await self._try_to_find_another():
                return

    async def _publish(self, token: Token, after: int) -> None:
        """Publish the token, or use that of another worker who was faster."""
        stored = await self.store.publish(token, after)
        if stored is not None:
            self._state.adopt(stored, self._seen, is_own=True)
        elif not await self._look_for_another():
            raise CredentialError("the token store took no new token, and holds no other")


@raises_without_frames
async def exchange_once(
    client: OAuthClient, state: TokenState, code: str, exchange: Exchange, timeout: float | None, code_verifier: str | None = None
) -> Token:
    """Exchange a code for a token, unless it was sent before with unknown effect.

    Raises:
        CredentialError: there is no token. Its effect is that of the exchange.
        SessionClosedError: the session is closed, or was closed meanwhile.
    """
    if state.is_lost(code):
        raise CredentialError("the code was sent before, with unknown effect: send each code once")
    try:
        return await client.token_for(code, exchange, timeout, code_verifier)
    except (TransportError, SessionClosedError) as error:
        if error.effect is not Effect.NOT_SENT:  # without a response: the service may have used up the code
            state.note_lost(code)
        if isinstance(error, SessionClosedError):
            raise
        lost = error
    words = "was not sent" if lost.effect is Effect.NOT_SENT else "failed, with unknown effect"
    failure = CredentialError(f"the token exchange {words}: {lost.message}", lost.effect)
    failure.suggested_status = lost.suggested_status
    raise failure from lost


def _is_code(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        return bool(check_filled(value, "the code"))
    return False


def _pause() -> float:
    return random.uniform(*_POLL_SECONDS)  # noqa: S311 -- no secret depends on it
