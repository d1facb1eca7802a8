"""The OAuth 2.0 code exchange, with one renewal for all requests (4.12, 5)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from typing import Final, Literal, Protocol, TypeAlias, cast

import attrs

from boardclient._urls import check_root
from boardclient.credentials._code_exchange import Authorize, OAuthClientConfig, exchange_code
from boardclient.credentials._exchange_answer import ParseToken
from boardclient.credentials._failure import RenewalFailure
from boardclient.credentials._memory_store import MemoryTokenStore
from boardclient.credentials._protocol import CredentialObserver, Exchange
from boardclient.credentials._renewal import Renewal
from boardclient.credentials._token_state import LOOK_SECONDS, TokenState
from boardclient.credentials._tokens import StoredToken, Token, TokenStore
from boardclient.credentials._values import Credentials
from boardclient.credentials._waiting import is_within_renewal, waiting_for
from boardclient.errors import CredentialError, SessionClosedError
from boardclient.models import check_text

ConsentState: TypeAlias = Literal["never", "good", "needs consent"]
"""Whether an account has a token: none is stored, one that may be used, or one that is refused or over."""

_EARLY_SECONDS: Final = 1.0
"""How long a call waits for an early renewal, or for a look at the store, before it uses the token held."""
_FRESH_SECONDS: Final = 0.25
"""How old the last look at the store may be where users sign in elsewhere: tokens are replaced and deleted there."""
_WAIT_SECONDS: Final = (0.1, 0.3)
"""Between looks of `wait_for_token`, at random, so that workers don't look in step."""
_KEEP_ATTEMPTS: Final = 10
"""How often a token that the user has just consented to is published while other workers publish theirs."""


class HasExchange(Protocol):
    """An `AsyncSession`, as far as credentials use one."""

    @property
    def exchange(self) -> Exchange:
        """The session's way to send forms."""
        ...


class OAuthCredentials(CredentialObserver):
    """Sign with a token that the user consents to, and renew it when it is refused.

    `authorize` is asked for an authorization code, which is exchanged once and kept as a token in `store`. However many tasks,
    sessions, loops or processes (through one store) meet a 401, one of them renews and all use its token:

    - a 401 for an older token never discards a newer one, and a cancelled caller doesn't cancel the renewal;
    - a renewal that fails does so for all callers that wait, and no other begins for `cooldown` seconds, doubling up to 60 until
      a token is accepted; a token that is refused as soon as it is new counts as such a failure;
    - a token that another worker publishes ends all waiting, a cool-down included.

    With `authorize=None`, for applications whose users sign in by a browser, a call without a usable token raises
    `ConsentRequired` at once, as it does where `authorize` raises it. There is no cool-down then, and the token is used as soon
    as `exchange_code` or another worker has put it into the store. `boardclient.web.SignIn` does the rest.

    May be used by any number of sessions, also on different loops; the session that a renewal began on ends it when it closes.
    See interface sections 4.12 and 5.

    Args:
        client_id: The identifier of the registered client.
        client_secret: Its secret.
        redirect_uri: The address that the client is registered with.
        auth_url: The address of the service's token exchange, without `/1`.
        authorize: An async function of an `AuthorizationRequest` that returns a code; None (default): users sign in elsewhere.
        key: The API key, where one is used; without it only the token is sent.
        store: Where tokens are kept; by default a `MemoryTokenStore` of these credentials' own.
        account: Whose token it is, in a store that holds many; "default" by default.
        authorize_timeout: Seconds for `authorize`, 300 by default, however short the deadlines of the waiting calls are.
        cooldown: Seconds without a renewal after one that failed, 1 by default.
        renew_before_expiry: Seconds before the known end of a token at which it is renewed; None (default): not before a 401.
        parse_token: A function from the fields of the exchange's response to a `Token`, where the response has another shape.
        lease_seconds: Seconds that other processes wait for a holder of the lease that has died, 5 by default.
        login_url: Where the application's sign-in begins; `ConsentRequired` carries it.

    Raises:
        ValueError, TypeError: an option can't work.
    """

    def __init__(
        self,
        *,
        client_id: str,
        client_secret: str,
        redirect_uri: str,
        auth_url: str,
        authorize: Authorize | None = None,
        key: str | None = None,
        store: TokenStore | None = None,
        account: str = "default",
        authorize_timeout: float = 300.0,
        cooldown: float = 1.0,
        renew_before_expiry: float | None = None,
        parse_token: ParseToken | None = None,
        lease_seconds: float = 5.0,
        login_url: str | None = None,
    ) -> None:
        texts = {"client_id": client_id, "client_secret": client_secret, "redirect_uri": redirect_uri, "account": account}
        optional = {"key": key, "login_url": login_url}
        for name, text in {**texts, **{name: text for name, text in optional.items() if text is not None}}.items():
            _check_filled(text, name)
        if not all(function is None or callable(function) for function in (authorize, parse_token)):
            raise TypeError("authorize must be an async function or None, and parse_token a function")
        if store is not None and not all(
            callable(getattr(store, name, None)) for name in ("read", "publish", "lease", "release")
        ):
            raise TypeError("store must be a TokenStore, such as MemoryTokenStore() or FileTokenStore(path)")
        if not authorize_timeout > 0 or not lease_seconds > 0 or not cooldown >= 0:
            raise ValueError("authorize_timeout and lease_seconds must be more than 0 seconds, cooldown at least 0")
        if renew_before_expiry is not None and not renew_before_expiry > 0:
            raise ValueError("renew_before_expiry must be more than 0 seconds, or None")
        self._begin_with(
            OAuthClientConfig(
                client_id=client_id,
                client_secret=client_secret,
                redirect_uri=redirect_uri,
                auth_url=check_root(auth_url, "auth_url", allow_insecure=True),  # the session says whether it may be plain http
                authorize=authorize,
                login_url=login_url,
                parse_token=parse_token,
                store=MemoryTokenStore() if store is None else store,
                account=account,
                key=key,
                authorize_timeout=authorize_timeout,
                cooldown=cooldown,
                renew_before_expiry=renew_before_expiry,
                lease_seconds=lease_seconds,
            )
        )

    def _begin_with(self, config: OAuthClientConfig) -> None:
        self._config = config
        self._token_state = TokenState(config.key, config.cooldown, config.renew_before_expiry)
        self._renewals: dict[asyncio.AbstractEventLoop, asyncio.Task[RenewalFailure | None]] = {}

    @property
    def account(self) -> str:
        """Whose token it is, in the store."""
        return self._config.account

    def for_account(self, account: str) -> OAuthCredentials:
        """Return credentials with the same options for another account of the store.

        Raises:
            ValueError, TypeError: `account` is not a text, or empty.
        """
        _check_filled(account, "account")
        other = type(self).__new__(type(self))
        other._begin_with(attrs.evolve(self._config, account=account))
        return other

    # --- what sessions call

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return what to sign with: the token held, otherwise that of a renewal.

        Raises:
            ConsentRequired: the user has to sign in.
            CredentialError: no token can be had.
        """
        credentials = self._token_state.credentials
        if credentials is None:
            return await self._renewed(exchange)
        if self._token_state.is_due or self._is_stale:
            return await self._renewed_early(credentials, exchange)
        return credentials

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return what replaces credentials that were answered with 401. A newer token that is held, or that of a renewal.

        The same ones are returned, and the 401 is final, where the service refused a token as soon as it was new.

        Raises:
            ConsentRequired: the user has to sign in.
            CredentialError: no token can be had.
        """
        if await self._is_final(rejected, exchange):
            return rejected
        return await self._renewed(exchange)

    def current(self) -> Credentials | None:
        """Return the token that is held. It is None where there is none or `acquire` has something to do first."""
        return None if self._token_state.is_due or self._is_stale else self._token_state.credentials

    def is_current(self, credentials: Credentials) -> bool:
        """Return True if these are the credentials in use, and not known to be refused."""
        return self._token_state.credentials == credentials

    def waiting_for(self) -> str:
        """Return what a renewal waits for now, in words."""
        return self._token_state.waits_for

    def note_accepted(self, credentials: Credentials) -> None:
        """Note that the service took these credentials; the session says so once."""
        self._token_state.accept(credentials)

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Note a 401 that is not followed by a renewal, since the call has had its one."""
        await self._is_final(credentials, exchange)

    # --- what applications call

    async def state(self) -> ConsentState:
        """Return whether the store has a usable token, without a request to the service.

        "never": no token is stored. "good": one is, and nothing is known against it. "needs consent": this process has seen it
        refused, or its known end is over.

        Raises:
            CredentialError: the store failed.
        """
        steps, state = self._config.steps, self._token_state
        stored = await steps.read()
        if stored is not None:
            state.adopt(stored, None)
        else:
            state.drop(await steps.generation())
            if state.held is None:
                return "never"
        return "good" if state.credentials is not None and not state.has_expired else "needs consent"

    async def wait_for_token(self) -> None:
        """Return once the account has a usable token, which any worker may publish. The store is looked at 5 times a second.

        Raises:
            CredentialError: the store failed.
        """
        while await self.state() != "good":  # noqa: ASYNC110 -- another process may be the one that publishes it
            await asyncio.sleep(random.uniform(*_WAIT_SECONDS))  # noqa: S311 -- no secret depends on it

    async def exchange_code(self, code: str, session: HasExchange | Exchange, *, code_verifier: str | None = None) -> None:
        """Exchange a code on the session's pool, and use its token from now on.

        The token replaces a good one too, as for more scopes. It ends cool-downs and leases of the account, and all calls and
        workers that wait for a token use it. A caller that is cancelled does not lose the token. `code_verifier` is sent
        along where the authorization request held a code challenge (RFC 7636).

        Raises:
            CredentialError: the service gave no token, or the store did not take it.
            TypeError, ValueError: the code can't be sent.
            SessionClosedError: the session is closed.
        """
        exchanged = self._exchanged(code, _exchange_of(session), code_verifier, is_kept=True)
        del code, code_verifier
        await exchanged

    async def request_token(self, code: str, session: HasExchange | Exchange, *, code_verifier: str | None = None) -> Token:
        """Exchange a code, and return the token instead of using it. Whose it is may not be known yet.

        Raises:
            CredentialError: the service gave no token.
            TypeError, ValueError: the code can't be sent.
            SessionClosedError: the session is closed.
        """
        exchanged = self._exchanged(code, _exchange_of(session), code_verifier, is_kept=False)
        del code, code_verifier
        return await exchanged

    async def keep_token(self, token: Token) -> None:
        """Use a token that was obtained elsewhere, as `exchange_code` does.

        Raises:
            CredentialError: the store did not take it.
            TypeError: it is no `Token`.
        """
        if not isinstance(token, Token):
            raise TypeError(f"token must be a Token, not {type(token).__name__}")
        steps = self._config.steps
        for _ in range(_KEEP_ATTEMPTS):
            generation = await steps.generation()
            if await steps.publish(token, generation):
                self._token_state.replace(StoredToken(token, generation + 1))
                return
        raise CredentialError("the token store took no new token")

    async def authorize_again(self, session: HasExchange | Exchange) -> None:
        """Ask `authorize` for a code, also while the token is good. Its token is used from then on.

        Raises:
            ConsentRequired: there is no `authorize`, or it raised this.
            CredentialError: the renewal failed, or is in a cool-down.
            SessionClosedError: the session is closed.
        """
        if self._config.authorize is None:
            raise self._config.consent_needed().error()
        with waiting_for(self._config.store, self._config.account):
            before = self._token_state.held
            renewal = self._renewal(_exchange_of(session))
            await asyncio.wait({renewal})
        failure = None if renewal.cancelled() else renewal.result()
        if failure is not None:
            raise failure.error(self._token_state.rest_seconds)
        if self._token_state.held is before:
            raise SessionClosedError("the session was closed during the renewal")

    async def forget(self) -> None:
        """Sign the account out: forget its token here and in the store. Other workers stop using it within 0.25 s.

        A renewal that is under way does not bring it back. The token stays valid at the service (interface: not shown).

        Raises:
            CredentialError: the store failed, or has no `delete`.
        """
        steps = self._config.steps
        await steps.delete()
        self._token_state.drop(await steps.generation())

    def __repr__(self) -> str:
        return f"OAuthCredentials(account={self._config.account!r}, auth_url={self._config.auth_url!r}, ***)"

    # --- renewals

    @property
    def _is_stale(self) -> bool:
        """Return True if other workers may have changed the token since the last look."""
        return self._config.authorize is None and self._token_state.is_look_older_than(_FRESH_SECONDS)

    async def _exchanged(self, code: str, exchange: Exchange, code_verifier: str | None, *, is_kept: bool) -> Token:
        """Exchange a code in its own task, which a cancelled caller leaves running."""
        _check_filled(code, "the code")
        if self._token_state.is_lost(code):
            raise CredentialError("the code was sent before, with unknown effect: send each code once")
        exchanging = exchange.spawn(self._exchange(code, exchange, code_verifier, is_kept=is_kept))
        del code, code_verifier
        await asyncio.wait({exchanging})
        outcome = SessionClosedError() if exchanging.cancelled() else exchanging.result()
        if isinstance(outcome, SessionClosedError):
            raise SessionClosedError("the session was closed during the exchange")
        if isinstance(outcome, RenewalFailure):
            raise outcome.error()
        return outcome

    async def _exchange(
        self, code: str, exchange: Exchange, code_verifier: str | None, *, is_kept: bool
    ) -> Token | RenewalFailure | SessionClosedError:
        more = {} if code_verifier is None else {"code_verifier": code_verifier}
        try:
            token = await exchange_code(self._config, code, exchange, exchange.timeout, more)
            if isinstance(token, RenewalFailure) and token.is_in_doubt:
                self._token_state.lose(code)
            if is_kept and isinstance(token, Token):
                await self.keep_token(token)
            return token
        except SessionClosedError as error:
            return error
        except CredentialError as error:
            return RenewalFailure(error.message, error.__cause__)
        except ValueError as error:
            return RenewalFailure(str(error))
        finally:
            del code, code_verifier, more  # they don't stay in the frame that an error carries

    async def _is_final(self, rejected: Credentials, exchange: Exchange) -> bool:
        verdict = self._token_state.refuse(rejected)
        if verdict.cooldown_seconds:
            await self._share_cooldown(verdict.cooldown_seconds)
        return verdict.is_final

    async def _share_cooldown(self, seconds: float) -> None:
        """Let the other workers of the store rest as well. Where that fails they find out by themselves."""
        steps, holder = self._config.steps, secrets.token_hex(8)
        with contextlib.suppress(CredentialError):
            if await steps.lease(holder, self._config.lease_seconds) == "granted":
                await steps.release(holder, seconds)

    async def _renewed(self, exchange: Exchange) -> Credentials:
        """Wait for the renewal under way on this loop, or begin one. Where its session closes meanwhile, begin another."""
        state = self._token_state
        while (credentials := state.credentials) is None:
            with waiting_for(self._config.store, self._config.account):
                failure = state.failure
                if failure is None or state.is_look_older_than(LOOK_SECONDS):
                    renewal = self._renewal(exchange)
                    await asyncio.wait({renewal})
                    failure = None if renewal.cancelled() else renewal.result()
            if failure is not None and state.credentials is None:
                raise failure.error(state.rest_seconds)
        return credentials

    async def _renewed_early(self, credentials: Credentials, exchange: Exchange) -> Credentials:
        """Renew a token that may still be good. Calls use it meanwhile, and where renewing fails."""
        loop, state = asyncio.get_running_loop(), self._token_state
        if loop in self._renewals or state.failure is not None or is_within_renewal(self._config.store, self._config.account):
            return credentials
        await asyncio.wait({self._renewal(exchange)}, timeout=_EARLY_SECONDS)
        if state.held is None:  # signed out by another worker
            return await self._renewed(exchange)
        return state.credentials or credentials

    def _renewal(self, exchange: Exchange) -> asyncio.Task[RenewalFailure | None]:
        """Return the renewal under way on this loop, begun now where there is none."""
        loop = asyncio.get_running_loop()
        task = self._renewals.get(loop)
        if task is None or task.done():
            task = self._renewals[loop] = exchange.spawn(Renewal(self._config, self._token_state, exchange).run())
            task.add_done_callback(self._part)
        return task

    def _part(self, task: asyncio.Task[RenewalFailure | None]) -> None:
        """Forget a renewal that is over, unless the next one has begun."""
        loop = task.get_loop()
        if self._renewals.get(loop) is task:
            del self._renewals[loop]


def _check_filled(text: object, name: str) -> None:
    if not check_text(text, name):
        raise ValueError(f"{name} must not be empty")


def _exchange_of(session: HasExchange | Exchange) -> Exchange:
    return cast("Exchange", getattr(session, "exchange", session))
