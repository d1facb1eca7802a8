"""Sign users in to web applications of any framework (interface 4.11, 4.12).

Needs the extra `web` (itsdangerous). The only I/O is the exchange of a code, one read of the member record, and the token store.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Self, TypeAlias, Unpack

import attrs

from boardclient._environment import required
from boardclient._redaction import takes_secrets
from boardclient._sign_in._account_of import AccountOf, account_of_member
from boardclient._sign_in._browser import SERVICE_ERRORS, keys_of, local_address, parameters
from boardclient._sign_in._consent_page import ConsentPage
from boardclient._sign_in._cookies import SignInCookies
from boardclient._sign_in._flows import PROBLEM_WORDS, Flow, Signer, new_state
from boardclient._sign_in._settings import NoCredentials, SignInOptions, options_of_environment
from boardclient.credentials import Exchange, StaticCredentials
from boardclient.credentials._oauth import ConsentState, OAuthCredentials
from boardclient.credentials._stores import MemoryTokenStore
from boardclient.credentials._tokens import ParseToken, TokenStore
from boardclient.errors import Attempt, BoardClientError, Effect, SessionClosedError, TransportError
from boardclient.models import Member, check_text
from boardclient.session import AsyncSession

__all__ = ["Begun", "ConsentState", "NoCredentials", "SignIn", "SignInError", "SignedIn"]

Cookies: TypeAlias = Mapping[str, str] | str | bytes | None
"""The cookies of a request: a mapping, or the raw `Cookie` header."""
Query: TypeAlias = Mapping[str, object] | str | bytes
"""The query of a request: a mapping of names to a text or to several, or the raw query string."""
Reason: TypeAlias = Literal["refused", "expired", "replayed", "foreign", "failed"]

_ACCOUNT_SECONDS: Final = 30 * 24 * 3600
_MOST_KEPT: Final = 1024
"""How many credentials of accounts, and how many completed states, a worker keeps in memory."""


class SignInError(BoardClientError):
    """Report a redirect that signs nobody in. Respond with status 400 and `set_cookies`.

    Attributes:
        reason: "refused": by the user or the service. "expired": begun more than ten minutes ago. "replayed": completed before.
            "foreign": not begun in this browser. "failed": anything else, such as an exchange that the service refuses. Only
            with "failed" a request may have been sent to the service.
        set_cookies: The values of `Set-Cookie` headers to send.
    """

    suggested_status = 400

    def __init__(
        self,
        message: str = "",
        reason: Reason = "failed",
        set_cookies: tuple[str, ...] = (),
        effect: Effect = Effect.NOT_SENT,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, effect, attempts)
        self.reason: Reason = reason
        self.set_cookies = set_cookies


@attrs.frozen
class Begun:
    """Where to send the browser (status 303), and the values of `Set-Cookie` headers."""

    location: str = attrs.field(repr=False)
    set_cookies: tuple[str, ...] = attrs.field(repr=False)


@attrs.frozen
class SignedIn:
    """Who has signed in, where to send the browser (status 303), and its cookies."""

    account: str
    member: Member
    return_to: str
    set_cookies: tuple[str, ...] = attrs.field(repr=False)


@takes_secrets
class SignIn:
    """Sign users in at the service's consent page, and make sessions for them.

    Each sign-in is a flow in a signed cookie of the browser. It is open for ten minutes, and up to five may be open, so tabs can
    finish in any order. The server stores no flows, so any worker can complete what another began.

    Tokens go to `store`, under the account that `account_of` names. A call for an account without a good token raises
    `ConsentRequired`, whose `login_url` is `login_path`. All workers use a new token within 0.5 s.

    Args:
        session: The application's session, whose pool serves all users.
        client_id: The identifier of the registered client.
        client_secret: Its secret.
        redirect_uri: The address that the client is registered with. If it is https, the names of cookies begin with `__Host-`.
        auth_url: The address of the service's token exchange, without `/1`.
        authorize_url: The address of the consent page, which the interface does not show. It gets the parameters of RFC 6749
            4.1.1.
        cookie_secret: The secret that signs cookies, or several: the first one signs, all of them are accepted.
        store: Where tokens are kept. By default a `MemoryTokenStore`, which serves one worker.
        key: The API key. None (default): only the token is sent.
        login_path: Where the application's sign-in begins, "/login" by default.
        pkce: Whether a code challenge is sent (RFC 7636), False by default.
        account_of: A function, which may be async, from the `Member` to the account. By default the account is the member's id.
        scope: The scopes to ask for, separated by spaces. None (default): none are named.
        parse_token: As in `OAuthCredentials`.
        account_seconds: For how many seconds a user stays signed in at a browser, 30 days by default.
        clock: A function that returns seconds since the epoch, by default `time.time`.

    Raises:
        ValueError, TypeError: an option can't work.
        ModuleNotFoundError: the extra `web` is not installed.
    """

    def __init__(
        self,
        session: AsyncSession,
        *,
        client_id: str,
        client_secret: str,
        redirect_uri: str,
        auth_url: str,
        authorize_url: str,
        cookie_secret: str | bytes | Iterable[str | bytes],
        store: TokenStore | None = None,
        key: str | None = None,
        login_path: str = "/login",
        pkce: bool = False,
        account_of: AccountOf | None = None,
        scope: str | None = None,
        parse_token: ParseToken | None = None,
        account_seconds: float = _ACCOUNT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (account_of is None or callable(account_of)):
            raise TypeError("account_of must be a function")
        self._credentials = OAuthCredentials(
            client_id=client_id,
            client_secret=client_secret,
            redirect_uri=redirect_uri,
            auth_url=session.exchange.check_url(auth_url, "auth_url"),
            store=MemoryTokenStore() if store is None else store,
            key=key,
            login_url=login_path,
            parse_token=parse_token,
        )
        signer = Signer(keys_of(cookie_secret, "cookie_secret"))
        self._consent_page = ConsentPage(
            _checked_page(authorize_url, session.exchange),
            client_id=client_id,
            redirect_uri=redirect_uri,
            scope=scope,
            signer=signer,
            has_challenge=pkce,
        )
        self._cookies = SignInCookies(
            signer, is_secure=redirect_uri.lower().startswith("https:"), account_seconds=account_seconds, clock=clock
        )
        self._session = session
        self._login_path = login_path
        self._key = key
        self._account_of = account_of
        self._clock = clock
        self._accounts: OrderedDict[str, OAuthCredentials] = OrderedDict()
        self._used: OrderedDict[str, None] = OrderedDict()
        """The states that this worker has completed. Codes that another worker has used are refused by the service."""

    @classmethod
    def from_env(cls, session: AsyncSession | None = None, **options: Unpack[SignInOptions]) -> Self:
        """Return a sign-in that environment variables configure.

        `BOARDCLIENT_CLIENT_ID`, `_CLIENT_SECRET`, `_REDIRECT_URI`, `_AUTH_URL`, `_AUTHORIZE_URL`, and `_COOKIE_SECRET` must be
        set. `_KEY` is the API key if one is used, and `_TOKENS` the path of a `FileTokenStore`. White space around a value is
        removed.

        Args:
            session: By default one for `BOARDCLIENT_BASE_URL`, without credentials of its own. Close it as `sign_in.session`.
            options: Those of `SignIn`, in place of those of the environment.

        Raises:
            ValueError: a variable is not set, or a value can't be used.
        """
        given = options_of_environment(options)
        if session is not None:
            return cls(session, **given)
        own = AsyncSession(NoCredentials(), required("BOARDCLIENT_BASE_URL"))
        try:
            return cls(own, **given)
        except Exception:
            own._discard()
            raise

    @property
    def session(self) -> AsyncSession:
        """The session whose pool serves all users."""
        return self._session

    @property
    def login_path(self) -> str:
        """Where the application's sign-in begins."""
        return self._login_path

    @property
    def callback_path(self) -> str:
        """The path of the redirect URI."""
        return self._consent_page.callback_path

    # --- signing in

    def begin(self, return_to: str = "/", cookies: Cookies = None, *, scope: str | None = None) -> Begun:
        """Begin a sign-in: return where to send the browser, and its cookies.

        Args:
            return_to: Where the user goes afterwards, a path of this site. Anything else becomes "/", the default.
            cookies: The cookies of the request, with the flows of other tabs. None by default.
            scope: The scopes to ask for, in place of those of the constructor. The new token replaces a good one.
        """
        now, state = self._clock(), new_state()
        location, hint = self._consent_page.address(state, scope)
        flow = Flow(state, int(now), local_address(return_to), hint=hint)
        flows = self._cookies.flows(cookies).add(flow, now)
        return Begun(location, (self._cookies.keep_flows(flows),))

    async def complete(self, query: Query, cookies: Cookies) -> SignedIn:
        """Complete a sign-in with the query and the cookies of the redirect.

        The code is exchanged once, the member record (interface 4.11) is read with the new token, and the token is stored under
        the account. Cancelling the request does not lose the token.

        Args:
            query: The query of the redirect: a string or bytes, with or without "?", or a mapping.
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.

        Raises:
            SignInError: nobody is signed in. See its `reason`.
            SessionClosedError: the session is closed.
        """
        flow, code, ended = self._check_redirect(query, cookies)
        finishing = self._session.exchange.spawn(self._finish(flow, code, ended))
        del code
        await asyncio.wait({finishing})
        outcome = SessionClosedError() if finishing.cancelled() else finishing.result()
        if isinstance(outcome, SignedIn):
            return outcome
        if isinstance(outcome, SessionClosedError):
            raise SessionClosedError("the session was closed during the sign-in")
        try:
            raise outcome
        finally:
            del outcome, finishing  # the error would be in a reference cycle with this frame

    # --- accounts

    def credentials_for(self, account: str) -> OAuthCredentials:
        """Return the credentials of an account, which all requests of a worker share.

        Raises:
            ValueError, TypeError: `account` is empty, or no text.
        """
        found = self._accounts.get(account)
        if found is None:
            found = self._accounts[account] = self._credentials.for_account(account)
            if len(self._accounts) > _MOST_KEPT:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(account)
        return found

    def session_for(self, account: str) -> AsyncSession:
        """Return a session on the same pool for an account.

        Its calls raise `ConsentRequired` if the account has no good token.

        Raises:
            ValueError, TypeError: `account` is empty, or no text.
        """
        return self._session.with_credentials(self.credentials_for(account))

    async def state(self, account: str) -> ConsentState:
        """Return "never", "good" or "needs consent", as `OAuthCredentials.state` does.

        Raises:
            CredentialError: the store failed.
        """
        return await self.credentials_for(account).state()

    async def sign_out(self, account: str) -> None:
        """Delete the account's token, for all workers. Send `sign_out_cookies` to the browser.

        Raises:
            CredentialError: the store failed, or has no `delete`.
        """
        await self.credentials_for(account).forget()

    @property
    def sign_out_cookies(self) -> tuple[str, ...]:
        """The values of `Set-Cookie` headers that sign a user out at the browser."""
        return (self._cookies.drop_account(),)

    def account_of_request(self, cookies: Cookies) -> str | None:
        """Return the account that is signed in at the browser of a request. None if no user is.

        Args:
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.
        """
        return self._cookies.account(cookies)

    def __repr__(self) -> str:
        return f"SignIn({self._credentials!r})"

    # --- the steps of a sign-in

    def _check_redirect(self, query: Query, cookies: Cookies) -> tuple[Flow, str, str]:
        """Return the open flow of a redirect, its code, and the cookie that ends it.

        The flow counts as completed from now on.

        Raises:
            SignInError: there is no such flow, or no code.
        """
        given, flows = parameters(query), self._cookies.flows(cookies)
        if given is None:
            raise SignInError("the redirect is malformed: its query names a parameter twice, or is no query", "failed")
        found = flows.find(given.get("state", ""), self._clock())
        if not isinstance(found, Flow):
            raise SignInError(PROBLEM_WORDS[found], found)
        ended = self._cookies.keep_flows(flows.end(found))
        error, code = given.get("error"), given.get("code")
        if error is not None and error not in SERVICE_ERRORS:
            raise SignInError("the user or the service refused access", "refused", (ended,))
        if error is not None:
            raise SignInError(f"the service's consent page failed ({error})", "failed", (ended,))
        if not code:
            raise SignInError("the redirect holds no code", "failed", (ended,))
        if not self._mark_used(found):
            raise SignInError(PROBLEM_WORDS["replayed"], "replayed", (ended,))
        return found, code, ended

    def _mark_used(self, flow: Flow) -> bool:
        """Note that the flow is completed. Return False if this worker has completed it before."""
        if flow.state in self._used:
            return False
        self._used[flow.state] = None
        if len(self._used) > _MOST_KEPT:
            self._used.popitem(last=False)
        return True

    async def _finish(self, flow: Flow, code: str, ended: str) -> SignedIn | SignInError | SessionClosedError:
        """Exchange the code, find out who the user is, and store the token. Return errors as values."""
        verifier = self._consent_page.verifier(flow)
        try:
            token = await self._credentials.request_token(code, self._session, code_verifier=verifier)
            member = await self._session.with_credentials(StaticCredentials(token.value, self._key)).members.me()
            account = await account_of_member(member, self._account_of)
            await self.credentials_for(account).keep_token(token)
        except SessionClosedError as error:
            return error
        except BoardClientError as error:
            failure = SignInError(f"the sign-in failed: {error}", "failed", (), error.effect)
            failure.__cause__ = error.with_traceback(None)
            if isinstance(error.__cause__, TransportError) and error.__cause__.effect is Effect.NOT_SENT:
                del self._used[flow.state]  # the code was not sent: the user may reload the page
                return failure
        except ValueError as error:
            failure = SignInError(f"the sign-in failed: {error}")
            failure.__cause__ = error.__cause__
        else:
            signed = self._cookies.keep_account(account)
            return SignedIn(account, member, flow.return_to, (ended, signed))
        finally:
            del code, verifier  # the frame stays with an error
        failure.set_cookies = (ended,)
        return failure


def _checked_page(url: str, exchange: Exchange) -> str:
    """Return the URL of the consent page, which may have a query.

    Raises:
        ValueError, TypeError: browsers can't be sent there with parameters.
    """
    address, _, query = check_text(url, "authorize_url").partition("?")
    checked = exchange.check_url(address, "authorize_url")
    if "#" in query or not query.isprintable():
        raise ValueError("authorize_url must hold no fragment and no control character")
    return f"{checked}?{query}" if query else checked
