"""`OAuthCredentials` as applications see it: its options, sign-ins, tokens. What sessions call is in `_renewing`."""

from __future__ import annotations

import asyncio
import random
from typing import Final, Literal, Protocol, TypeAlias, cast

import attrs

from boardclient.credentials._account_store import MemoryTokenStore
from boardclient.credentials._code_exchange import exchange_code
from boardclient.credentials._config import Authorize, OAuthClientConfig
from boardclient.credentials._credentials import Exchange
from boardclient.credentials._renewing import RenewingCredentials, track_wait
from boardclient.credentials._tokens import ParseToken, RenewalFailure, StoredToken, Token, TokenStore
from boardclient.errors import CredentialError, SessionClosedError
from boardclient.models import check_filled

ConsentState: TypeAlias = Literal["never", "good", "needs consent"]
"""Whether an account has a token: none is stored, one that may be used, or one that is refused or has expired."""

_WAIT_SECONDS: Final = (0.1, 0.3)
"""The random pause between two looks of `wait_for_token` at the store: workers must not look in step."""
_KEEP_ATTEMPTS: Final = 10
"""How often `keep_token` publishes a token while other workers publish theirs."""


class HasExchange(Protocol):
    """The part of `AsyncSession` that credentials use."""

    @property
    def exchange(self) -> Exchange:
        """What sends forms on the session's pool."""
        ...


class OAuthCredentials(RenewingCredentials):
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
    closed. See interface sections 4.12 and 5.

    Args:
        client_id: The identifier of the registered client.
        client_secret: Its secret.
        redirect_uri: The address that the client is registered with.
        auth_url: The address of the service's token exchange, without `/1`.
        authorize: An async function of an `AuthorizationRequest` that returns a code. None (default): users sign in elsewhere.
        key: The API key. Without one (default) only the token is sent.
        store: Where tokens are kept. By default a `MemoryTokenStore` of these credentials.
        account: Whose token it is, in a store of many. "default" by default.
        authorize_timeout: The seconds that `authorize` may take, 300 by default. The deadlines of waiting calls don't shorten it.
        cooldown: The seconds without a renewal after a failed one, 1 by default.
        renew_before_expiry: How many seconds before a token's known end it is renewed. None (default): only after a 401.
        parse_token: A function from the fields of the exchange's response to a `Token`, if the response has another shape.
        lease_seconds: The seconds after which other processes take the lease from a process that died. 5 by default.
        login_url: Where the application's sign-in begins, for `ConsentRequired`. None by default.

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
        super().__init__(
            OAuthClientConfig(
                client_id=client_id,
                client_secret=client_secret,
                redirect_uri=redirect_uri,
                auth_url=auth_url,
                authorize=authorize,
                key=key,
                store=MemoryTokenStore() if store is None else store,
                account=account,
                authorize_timeout=authorize_timeout,
                cooldown=cooldown,
                renew_before_expiry=renew_before_expiry,
                parse_token=parse_token,
                lease_seconds=lease_seconds,
                login_url=login_url,
            )
        )

    @property
    def account(self) -> str:
        """Whose token it is, in the store."""
        return self._config.account

    def for_account(self, account: str) -> OAuthCredentials:
        """Return credentials with the same options for another account of the store.

        Raises:
            ValueError, TypeError: `account` is empty, or no text.
        """
        other = type(self).__new__(type(self))  # a subclass may have a constructor of its own
        RenewingCredentials.__init__(other, attrs.evolve(self._config, account=account))
        return other

    # --- the token of the account

    async def state(self) -> ConsentState:
        """Look into the store, and return whether it has a usable token.

        "never": no token is stored. "good": a token is stored, and may be used. "needs consent": the service has refused
        it in this process, or its known end is over. The service is not asked.

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
        return "good" if state.is_usable else "needs consent"

    async def wait_for_token(self) -> None:
        """Wait until the account has a usable token, whichever worker publishes it.

        It looks into the store about 5 times a second. There is no time limit: use `asyncio.timeout`.

        Raises:
            CredentialError: the store failed.
        """
        while await self.state() != "good":  # noqa: ASYNC110 -- another process may be the one that publishes it
            await asyncio.sleep(random.uniform(*_WAIT_SECONDS))  # noqa: S311 -- no secret depends on it

    async def keep_token(self, token: Token) -> None:
        """Store a token that was obtained elsewhere, and use it from now on.

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

    async def forget(self) -> None:
        """Sign the account out: delete its token here and in the store.

        Other workers stop using it within 0.25 s, and a running renewal does not bring it back. The token stays valid at the
        service, whose interface shows no way to revoke it.

        Raises:
            CredentialError: the store failed, or has no `delete`.
        """
        steps = self._config.steps
        await steps.delete()
        self._token_state.drop(await steps.generation())

    async def authorize_again(self, session: HasExchange | Exchange) -> None:
        """Call `authorize` even if the token is good, and use the new token from then on.

        Args:
            session: The session whose pool sends the form.

        Raises:
            ConsentRequired: there is no `authorize`, or it raised this.
            CredentialError: the renewal failed, or is in a cool-down.
            SessionClosedError: the session is closed.
        """
        if self._config.authorize is None:
            raise self._config.consent_needed().error()
        with track_wait(self._config.store, self._config.account):
            before = self._token_state.held
            renewal = self._join_renewal(_exchange_of(session))
            await asyncio.wait({renewal})
        failure = None if renewal.cancelled() else renewal.result()
        if failure is not None:
            raise failure.error(self._token_state.cooldown_left)
        if self._token_state.held is before:
            raise SessionClosedError("the session was closed during the renewal")

    # --- codes from elsewhere

    async def exchange_code(self, code: str, session: HasExchange | Exchange, *, code_verifier: str | None = None) -> None:
        """Exchange a code for a token (interface 4.12), store and use it.

        It replaces a good token too, as after a consent to more scopes. It ends a cool-down and the lease of the account, and
        every call and worker that waits for a token uses it. Cancelling the caller does not lose the token.

        Args:
            code: The authorization code. It is sent once.
            session: The session whose pool sends the form.
            code_verifier: The verifier of the code challenge (RFC 7636 4.5). None (default) if there was none.

        Raises:
            CredentialError: the service gave no token, or the store did not take it.
            TypeError, ValueError: the code can't be sent.
            SessionClosedError: the session is closed.
        """
        exchanged = self._exchange_in_task(code, _exchange_of(session), code_verifier, is_kept=True)
        del code, code_verifier
        await exchanged

    async def request_token(self, code: str, session: HasExchange | Exchange, *, code_verifier: str | None = None) -> Token:
        """Exchange a code, and return the token without storing it. Its account may not be known yet.

        The arguments are those of `exchange_code`.

        Raises:
            CredentialError: the service gave no token.
            TypeError, ValueError: the code can't be sent.
            SessionClosedError: the session is closed.
        """
        exchanged = self._exchange_in_task(code, _exchange_of(session), code_verifier, is_kept=False)
        del code, code_verifier
        return await exchanged

    async def _exchange_in_task(self, code: str, exchange: Exchange, code_verifier: str | None, *, is_kept: bool) -> Token:
        """Exchange a code in a task of its own, which outlives a cancelled caller."""
        check_filled(code, "the code")
        if self._token_state.is_lost(code):
            raise CredentialError("the code was sent before, with unknown effect: send each code once")
        exchanging = exchange.spawn(self._run_exchange(code, exchange, code_verifier, is_kept=is_kept))
        del code, code_verifier
        await asyncio.wait({exchanging})
        outcome = SessionClosedError() if exchanging.cancelled() else exchanging.result()
        if isinstance(outcome, SessionClosedError):
            raise SessionClosedError("the session was closed during the exchange")
        if isinstance(outcome, RenewalFailure):
            raise outcome.error()
        return outcome

    async def _run_exchange(
        self, code: str, exchange: Exchange, code_verifier: str | None, *, is_kept: bool
    ) -> Token | RenewalFailure | SessionClosedError:
        """Return the token, or a failure as a value. A raised one would hold the code in its frames."""
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

    def __repr__(self) -> str:
        return f"OAuthCredentials(account={self._config.account!r}, auth_url={self._config.auth_url!r}, ***)"


def _exchange_of(session: HasExchange | Exchange) -> Exchange:
    return cast("Exchange", getattr(session, "exchange", session))
