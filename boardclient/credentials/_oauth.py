"""`OAuthCredentials`, as sessions and applications use it (interface 4.12, 5.7).

There is one renewal on each event loop, for all calls that wait.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import quote, urlencode

import attrs

from boardclient._base._guards import run_in_task
from boardclient._base._redaction import hides, raises_without_frames, takes_secrets, without_fields
from boardclient._interface._responses import add_words
from boardclient.credentials._credentials import Credentials, Exchange, OwnProvider, own_error
from boardclient.credentials._renewal import LOOK_SECONDS, Renewal, TokenState, exchange_once, is_within_renewal, look
from boardclient.credentials._stores import StoredToken, Token
from boardclient.credentials._token_exchange import OAuthClient
from boardclient.errors import ConsentRequired, CredentialError, Effect, SessionClosedError
from boardclient.models import check_filled

ConsentState: TypeAlias = Literal["never", "good", "needs consent"]
"""Whether an account has a token: none is stored, one that may be used, or one that is refused or has expired."""

_EARLY_SECONDS: Final = 1.0
"""How long a call waits for an early renewal or for the store before it uses the token it has."""
_FRESH_SECONDS: Final = 0.25
"""How often the store is looked at while a good token is used, if users sign in elsewhere: they replace and delete tokens."""
_KEEP_ATTEMPTS: Final = 10
"""How often `keep_token` publishes a token while other workers publish theirs."""


class _HasExchange(Protocol):  # an `AsyncSession`, which is of a layer above
    @property
    def exchange(self) -> Exchange: ...


@takes_secrets
@without_fields
@hides("client_secret", "key")
@attrs.define(kw_only=True, eq=False, repr=False, slots=False)
class OAuthCredentials(OAuthClient, OwnProvider):
    """Sign with a token that the user consents to, and renew it when it is refused.

    `authorize` returns an authorization code, which is exchanged once for a token and kept in `store`. If many tasks, sessions,
    event loops or processes (through one store) meet a 401, one of them renews the token and all use it:

    - A 401 for an older token does not discard a newer one. Cancelling a caller does not cancel the renewal.
    - A failed renewal fails for all callers that wait. No other renewal begins for `cooldown` seconds. The cool-down doubles with
      each failure, up to 60 seconds, until the service accepts a token. A new token that the service refuses is such a failure.
    - A token that another worker publishes ends all waiting, and a cool-down.

    With `authorize=None`, for applications whose users sign in with a browser, a call without a usable token raises
    `ConsentRequired` at once. So does a call whose `authorize` raises it. There is no cool-down then, and the token is used as
    soon as `exchange_code` or another worker has put it into the store. `boardclient.web.SignIn` does all of this.

    One object may serve any number of sessions, also on different event loops. A renewal ends when the session that began it is
    closed. See interface 4.12 and 5.

    ```python
    async def authorize(request: AuthorizationRequest) -> str:
        return await code_from_the_user(request.account)  # a function of yours


    credentials = OAuthCredentials(
        client_id="…",
        client_secret="…",
        redirect_uri="https://app.example/callback",
        auth_url="https://board.example",
        authorize=authorize,
        store=FileTokenStore("tokens.db"),
    )
    ```

    Args:
        client_id: The identifier of the registered client.
        client_secret: Its secret.
        redirect_uri: The address that the client is registered with.
        auth_url: The address of the service's token exchange, without `/1`.
        authorize: An async function of an `AuthorizationRequest` that returns a code. None (default): users sign in elsewhere.
        key: The API key. Without one (default) only the token is sent.
        store: Where tokens are kept. By default a `MemoryTokenStore` of these credentials.
        account: Whose token it is, in a store of many. "default" by default.
        service: Which service it is for, in a store of several. None (default): `auth_url`.
        authorize_timeout: The seconds that `authorize` may take, 300 by default. The deadlines of waiting calls don't shorten it.
        cooldown: The seconds without a renewal after a failed one, 1 by default.
        renew_before_expiry: How many seconds before a token's known end it is renewed. None (default): only after a 401.
        parse_token: A function from the fields of the exchange's response to a `Token`, if the response has another shape.
        lease_seconds: The seconds after which other processes take the lease from a process that died. 5 by default.
        login_url: Where the application's sign-in begins, for `ConsentRequired`. None by default.
        clock: A function that returns monotonic seconds, for tests. `time.monotonic` by default.

    Raises:
        ValueError, TypeError: an option can't work.
    """

    clock: Callable[[], float] = time.monotonic

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._state = TokenState(self.key, self.cooldown, self.renew_before_expiry, self.clock)
        self._renewals: dict[asyncio.AbstractEventLoop, asyncio.Task[CredentialError | None]] = {}

    def for_account(self, account: str) -> OAuthCredentials:
        """Return credentials with the same options for another account of the store.

        Raises:
            ValueError, TypeError: `account` is empty, or not a string.
        """
        check_filled(account, "account")  # refused here, since the frames of a constructor hold the client's secret
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.account = account
        other.__attrs_post_init__()
        return other

    # --- what sessions call

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return the credentials to sign with. If there is no good token, wait for a renewal.

        Raises:
            ConsentRequired: the user has to sign in.
            CredentialError: no token can be had.
        """
        credentials = self._state.credentials
        if credentials is None:
            return await self._wait_for_renewal(exchange)
        if self._state.is_due or self._is_stale:
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
        if await self._refuse(rejected, exchange):
            return rejected
        return await self._wait_for_renewal(exchange)

    def current(self) -> Credentials | None:
        """Return the credentials in use. None if there are none, or if a renewal or a look at the store is due."""
        return None if self._state.is_due or self._is_stale else self._state.credentials

    def is_current(self, credentials: Credentials) -> bool:
        """Return True if these are the credentials in use, and not refused."""
        return self._state.credentials == credentials

    def waiting_for(self) -> str:
        """Return what the renewal waits for, in words."""
        return self._state.waits_for

    def note_accepted(self, credentials: Credentials) -> None:
        """Note that the service accepted the credentials. Failures before that no longer count."""
        self._state.accept(credentials)

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Note a 401 that ends its call, which has renewed once already."""
        with contextlib.suppress(SessionClosedError):  # then the call ends anyway
            await self._refuse(credentials, exchange)

    @property
    def _is_stale(self) -> bool:
        return self.authorize is None and self._state.is_look_older_than(_FRESH_SECONDS)

    async def _refuse(self, rejected: Credentials, exchange: Exchange) -> bool:
        """Note a 401, and return True if it is final. Then the other workers of the store cool down too."""
        is_final, cooldown = self._state.refuse(rejected)
        # A new token that is refused at once would be refused to every worker, each of which would ask the user again.
        if cooldown:
            await asyncio.wait({exchange.spawn(self._cool_others(cooldown))})  # a cancelled caller leaves no lease behind
        return is_final

    async def _cool_others(self, seconds: float) -> None:
        """Let no worker of the store renew the token for so long."""
        store, holder, state = self.guarded_store, secrets.token_hex(8), None
        with contextlib.suppress(CredentialError):  # if the store fails, each worker meets the 401 itself
            try:
                state = (await store.lease(holder, self.lease_seconds)).state
            finally:
                if state in {None, "granted"}:  # None: it failed or was cancelled, and may have been granted
                    await store.release(holder, seconds)

    # --- renewals

    async def _wait_for_renewal(self, exchange: Exchange) -> Credentials:
        """Wait for the renewal that runs on this loop, or begin one, again if its session closes meanwhile."""
        state = self._state
        while (credentials := state.credentials) is None:
            if is_within_renewal(self.guarded_store):
                words = f"it used a session with the credentials of account {self.account!r}, which it must renew"
                raise CredentialError(f"authorize waits for itself: {words}")
            failure = state.failure
            # In a cool-down a renewal only looks at the store, and not more often than that: many callers may wait.
            if failure is None or state.is_look_older_than(LOOK_SECONDS):
                renewal = self._join_renewal(exchange)
                await asyncio.wait({renewal})
                failure = None if renewal.cancelled() else renewal.result()
            if failure is not None and state.credentials is None:
                raise self._error_of(failure)
        return credentials

    def _error_of(self, failure: CredentialError) -> CredentialError:
        """Return a caller's own error for a failed renewal. The caller has sent nothing."""
        error, left = own_error(failure), self._state.cooldown_left
        error.effect = Effect.NOT_SENT
        if left > 0 and self.authorize is not None and not isinstance(error, ConsentRequired):
            add_words(error, f"the next renewal is possible in {left:.1f} s")
        return error

    async def _renew_early(self, credentials: Credentials, exchange: Exchange) -> Credentials:
        """Renew a token that may still be good, and that other calls use meanwhile, or if the renewal fails."""
        loop, state = asyncio.get_running_loop(), self._state
        # Three cases in which the token that is there is used at once: it is being renewed already, that has just failed, or this
        # is the call of `authorize` itself.
        if loop in self._renewals or state.failure is not None or is_within_renewal(self.guarded_store):
            return credentials
        await asyncio.wait({self._join_renewal(exchange)}, timeout=_EARLY_SECONDS)
        if state.in_use is None:  # signed out by another worker
            return await self._wait_for_renewal(exchange)
        return state.credentials or credentials

    def _join_renewal(self, exchange: Exchange) -> asyncio.Task[CredentialError | None]:
        loop = asyncio.get_running_loop()
        task = self._renewals.get(loop)
        if task is None or task.done():
            task = self._renewals[loop] = exchange.spawn(Renewal(self, self._state, exchange).run())
            task.add_done_callback(self._drop)
        return task

    def _drop(self, task: asyncio.Task[CredentialError | None]) -> None:
        """Forget a renewal that has ended, unless the next one has begun."""
        loop = task.get_loop()
        if self._renewals.get(loop) is task:
            del self._renewals[loop]

    # --- the token of the account

    async def state(self) -> ConsentState:
        """Look into the store, and return whether it has a usable token.

        "never": no token is stored. "good": a token is stored, and may be used. "needs consent": the service has refused
        it in this process, or its known end is over. The service is not asked.

        Raises:
            CredentialError: the store failed.
        """
        await look(self._state, self.guarded_store)
        if self._state.in_use is None:
            return "never"
        return "good" if self._state.is_usable else "needs consent"

    async def is_kept_since(self, deletion: int) -> bool:
        """Return True if the store has a token, and there was no sign-out since it kept one with this `deletion`.

        Raises:
            CredentialError: the store failed.
        """
        stored = await look(self._state, self.guarded_store)
        return stored is not None and stored.deletion == deletion

    async def keep_token(self, token: Token) -> StoredToken:
        """Store a token that was obtained elsewhere, and return it as it is stored.

        It is used from now on.

        Raises:
            CredentialError: the store did not take it.
            TypeError: it is no `Token`.
        """
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, not {type(token).__name__}")
        store = self.guarded_store
        for _ in range(_KEEP_ATTEMPTS):
            stored = await store.publish(token, await store.generation())
            if stored is not None:
                self._state.replace(stored)
                return stored
        raise CredentialError("the token store took no new token")

    async def forget(self) -> None:
        """Sign the account out: delete its token here and in the store.

        Workers with `authorize=None` stop using it within 0.25 s, others once the service refuses it. A running renewal does not
        bring it back. The token stays valid at the service, whose interface shows no way to revoke it.

        Raises:
            CredentialError: the store failed.
        """
        store = self.guarded_store
        await store.delete()
        self._state.drop(await store.generation())

    # --- codes from elsewhere

    def consent_address(
        self, authorize_url: str, state: str, *, scope: str | None = None, code_verifier: str | None = None
    ) -> str:
        """Return the address at which the user gives consent (RFC 6749 4.1.1).

        The service's page then sends the browser to `redirect_uri`, with `state` and a code for `exchange_code`. Check there that
        the state is the same.

        Args:
            authorize_url: The address of the consent page, which the interface does not show. It may have a query.
            state: A random text for this sign-in alone.
            scope: The scopes to ask for, separated by spaces. None (default): none are named.
            code_verifier: A random text of at least 43 characters, whose challenge is sent (RFC 7636). `exchange_code` needs it
                too, so it is for codes that `authorize` does not return. None by default.
        """
        query = {"response_type": "code", "client_id": self.client_id, "redirect_uri": self.redirect_uri, "state": state}
        if scope:
            query["scope"] = scope
        if code_verifier is not None:
            challenge = base64.urlsafe_b64encode(hashlib.sha256(code_verifier.encode()).digest()).rstrip(b"=").decode()
            query |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        return f"{authorize_url}{'&' if '?' in authorize_url else '?'}{urlencode(query, quote_via=quote)}"

    @raises_without_frames
    async def exchange_code(self, code: str, session: _HasExchange, *, code_verifier: str | None = None) -> None:
        """Exchange a code for a token (interface 4.12), store and use it.

        It replaces a good token too, as after a consent to more scopes. It ends a cool-down. Every call
        and worker that waits for a token uses it, and a renewal that is running gives up its lease. Cancelling the caller does
        not lose the token.

        Args:
            code: The authorization code. It is sent once.
            session: The session whose pool sends the form.
            code_verifier: The verifier of the code challenge (RFC 7636 4.5). None (default) if there was none.

        Raises:
            CredentialError: the service gave no token, or the store did not take it.
            TypeError, ValueError: the code can't be sent.
            SessionClosedError: the session is closed.
        """
        await run_in_task(session.exchange.spawn, self._request_and_keep, code, session.exchange, code_verifier)

    @raises_without_frames
    async def request_token(self, code: str, session: _HasExchange, *, code_verifier: str | None = None) -> Token:
        """Exchange a code, and return the token without storing it. Its account may not be known yet.

        The arguments are those of `exchange_code`.

        Raises:
            CredentialError: the service gave no token.
            TypeError, ValueError: the code can't be sent.
            SessionClosedError: the session is closed.
        """
        return await run_in_task(session.exchange.spawn, self._request, code, session.exchange, code_verifier)

    async def _request(self, code: str, exchange: Exchange, verifier: str | None) -> Token:
        check_filled(code, "the code")
        return await exchange_once(self, self._state, code, exchange, exchange.timeout, verifier)

    async def _request_and_keep(self, code: str, exchange: Exchange, verifier: str | None) -> None:
        await self.keep_token(await self._request(code, exchange, verifier))

    def __repr__(self) -> str:
        return f"OAuthCredentials(account={self.account!r}, auth_url={self.auth_url!r}, ***)"
