"""How sessions obtain and renew a user's token (interface 5.7).

There is one renewal on each event loop, for all calls that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, TypeAlias

import attrs

from boardclient.credentials._config import OAuthClientConfig
from boardclient.credentials._credentials import CredentialObserver, Credentials, Exchange
from boardclient.credentials._renewal import Renewal
from boardclient.credentials._token_state import LOOK_SECONDS, TokenState
from boardclient.credentials._tokens import RenewalFailure, TokenStore
from boardclient.errors import CredentialError

_EARLY_SECONDS: Final = 1.0
"""How long a call waits for an early renewal or for the store before it uses the token it has."""
_FRESH_SECONDS: Final = 0.25
"""How often the store is looked at while a good token is used, if users sign in elsewhere: they replace and delete tokens."""

AccountKey: TypeAlias = tuple[int, str]
"""An account of a store: the store's identity, and the account's name."""

_scopes: Final[ContextVar[tuple[_Scope, ...]]] = ContextVar("boardclient_renewals", default=())
"""The renewals that the running task belongs to, outermost first."""
_waits: Final[list[tuple[AccountKey, AccountKey]]] = []
"""Pairs of an account under renewal and an account that its callback waits for, in all threads of the process."""
_lock: Final = threading.Lock()


class RenewingCredentials(CredentialObserver):
    """The part of `OAuthCredentials` that sessions call, a `CredentialProvider`."""

    def __init__(self, config: OAuthClientConfig) -> None:
        self._config = config
        self._token_state = TokenState(config.key, config.cooldown, config.renew_before_expiry)
        self._renewals: dict[asyncio.AbstractEventLoop, asyncio.Task[RenewalFailure | None]] = {}

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return the credentials to sign with. If there is no good token, wait for a renewal.

        Raises:
            ConsentRequired: the user has to sign in.
            CredentialError: no token can be had.
        """
        credentials = self._token_state.credentials
        if credentials is None:
            return await self._wait_for_renewal(exchange)
        if self._token_state.is_due or self._is_stale:
            return await self._renew_early(credentials, exchange)
        return credentials

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return the credentials that replace those which the service refused with 401.

        They are those of a newer token, or those of a renewal. If the service refuses a token as soon as it is new, the 401 is
        final: the same credentials are returned.

        Raises:
            ConsentRequired: the user has to sign in.
            CredentialError: no token can be had.
        """
        if await self._note_refusal(rejected):
            return rejected
        return await self._wait_for_renewal(exchange)

    def current(self) -> Credentials | None:
        """Return the credentials in use. None if there are none, or if a renewal or a look at the store is due."""
        return None if self._token_state.is_due or self._is_stale else self._token_state.credentials

    def is_current(self, credentials: Credentials) -> bool:
        """Return True if these are the credentials in use, and not refused."""
        return self._token_state.credentials == credentials

    def waiting_for(self) -> str:
        """Return what the renewal waits for, in words."""
        return self._token_state.waits_for

    def note_accepted(self, credentials: Credentials) -> None:
        """Note that the service accepted the credentials. Failures before that no longer count."""
        self._token_state.accept(credentials)

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Note a 401 that ends its call, which has renewed once already."""
        await self._note_refusal(credentials)

    # --- renewals

    @property
    def _is_stale(self) -> bool:
        """Whether the store may have changed since the last look at it."""
        return self._config.authorize is None and self._token_state.is_look_older_than(_FRESH_SECONDS)

    async def _note_refusal(self, rejected: Credentials) -> bool:
        """Note a 401, and return True if no renewal can help: the token was new."""
        verdict = self._token_state.refuse(rejected)
        if verdict.cooldown_seconds:
            await self._share_cooldown(verdict.cooldown_seconds)
        return verdict.is_final

    async def _share_cooldown(self, seconds: float) -> None:
        """Begin the cool-down for the other workers of the store too. If the store fails, each of them meets the 401 itself."""
        steps, holder = self._config.steps, secrets.token_hex(8)
        with contextlib.suppress(CredentialError):
            if await steps.lease(holder, self._config.lease_seconds) == "granted":
                await steps.release(holder, seconds)

    async def _wait_for_renewal(self, exchange: Exchange) -> Credentials:
        """Wait for the renewal that runs on this loop, or begin one. If its session closes meanwhile, begin another."""
        state = self._token_state
        while (credentials := state.credentials) is None:
            with track_wait(self._config.store, self._config.account):
                failure = state.failure
                if failure is None or state.is_look_older_than(LOOK_SECONDS):
                    renewal = self._join_renewal(exchange)
                    await asyncio.wait({renewal})
                    failure = None if renewal.cancelled() else renewal.result()
            if failure is not None and state.credentials is None:
                raise failure.error(state.cooldown_left)
        return credentials

    async def _renew_early(self, credentials: Credentials, exchange: Exchange) -> Credentials:
        """Renew a token that may still be good. Other calls use it meanwhile, and all do if the renewal fails."""
        loop, state = asyncio.get_running_loop(), self._token_state
        if loop in self._renewals or state.failure is not None or is_within_renewal(self._config.store, self._config.account):
            return credentials
        await asyncio.wait({self._join_renewal(exchange)}, timeout=_EARLY_SECONDS)
        if state.held is None:  # signed out by another worker
            return await self._wait_for_renewal(exchange)
        return state.credentials or credentials

    def _join_renewal(self, exchange: Exchange) -> asyncio.Task[RenewalFailure | None]:
        """Return the renewal that runs on this loop. Begin one if there is none."""
        loop = asyncio.get_running_loop()
        task = self._renewals.get(loop)
        if task is None or task.done():
            renewal = Renewal(self._config, self._token_state, exchange)
            task = self._renewals[loop] = exchange.spawn(_run(renewal, (id(self._config.store), self._config.account)))
            task.add_done_callback(self._drop)
        return task

    def _drop(self, task: asyncio.Task[RenewalFailure | None]) -> None:
        """Forget a renewal that has ended, unless the next one has begun."""
        loop = task.get_loop()
        if self._renewals.get(loop) is task:
            del self._renewals[loop]


# --- which renewal waits for which: callbacks that use accounts must not wait in a circle


@attrs.define(eq=False)
class _Scope:
    """The tasks of one renewal, those of its callback included."""

    key: AccountKey
    is_over: bool = False


async def _run(renewal: Renewal, key: AccountKey) -> RenewalFailure | None:
    """Run a renewal. Its task, and those that it starts, belong to its scope until it ends."""
    scope = _Scope(key)
    _scopes.set((*_scopes.get(), scope))
    try:
        return await renewal.run()
    finally:
        scope.is_over = True


@contextlib.contextmanager
def track_wait(store: TokenStore, account: str) -> Iterator[None]:
    """Record that the running task waits for a renewal, until the block ends.

    Raises:
        CredentialError: the renewal waits for the running task, directly or through callbacks of other accounts.
    """
    awaited = (id(store), account)
    waiters = [scope.key for scope in _scopes.get() if not scope.is_over]
    pairs = [(waiter, awaited) for waiter in waiters]
    with _lock:
        if _leads_to(awaited, waiters):
            raise CredentialError(
                f"authorize waits for itself: it used a session with the credentials of account {account!r}, which it must renew"
            )
        _waits.extend(pairs)
    try:
        yield
    finally:
        with _lock:
            for pair in pairs:
                _waits.remove(pair)


def is_within_renewal(store: TokenStore, account: str) -> bool:
    """Return True if the running task belongs to a renewal of the account."""
    return any(scope.key == (id(store), account) for scope in _scopes.get() if not scope.is_over)


def _leads_to(start: AccountKey, goals: list[AccountKey]) -> bool:
    """Return True if a goal is `start`, or an account that `start` waits for."""
    reached = {start}
    while not reached.intersection(goals):
        further = {awaited for waiter, awaited in _waits if waiter in reached} - reached
        if not further:
            return False
        reached |= further
    return True
