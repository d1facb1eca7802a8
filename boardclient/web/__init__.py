"""Sign users in to web applications of any framework (interface 4.11, 4.12).

Needs the extra `web` (itsdangerous). The only I/O is the exchange of a code, one read of the member record, and the token store.
Failed sign-ins are logged by the logger `boardclient.web`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import attrs

from boardclient._base._environment import optional, required
from boardclient._base._guards import Outcome, begin_in_task, result_of, supplied
from boardclient._base._redaction import raises_without_frames, takes_secrets
from boardclient.credentials._credentials import Credentials, Exchange, StaticCredentials, is_issued_by
from boardclient.credentials._file_store import FileTokenStore
from boardclient.credentials._oauth import ConsentState, OAuthCredentials
from boardclient.credentials._stores import MemoryTokenStore, TokenStore
from boardclient.credentials._token_exchange import ParseToken, check_redirect
from boardclient.errors import (
    Attempt,
    BoardClientError,
    ConsentRequired,
    CredentialError,
    Effect,
    SessionClosedError,
    TransportError,
)
from boardclient.models import Member, check_seconds, check_text
from boardclient.session import AsyncSession
from boardclient.web._cookies import SKEW_SECONDS, Cookies, Flow, SignedAccount, SignInCookies

__all__ = ["Begun", "ConsentState", "NoCredentials", "SignIn", "SignInError", "SignedIn", "local_address"]

T = TypeVar("T")
AccountOf: TypeAlias = Callable[[Member], "str | Awaitable[str]"]
Query: TypeAlias = Mapping[str, str] | str | bytes
"""The query of a request: a mapping, or the raw query string."""
Reason: TypeAlias = Literal["refused", "expired", "replayed", "foreign", "failed"]

_logger: Final = logging.getLogger("boardclient.web")

_ACCOUNT_SECONDS: Final = 30 * 24 * 3600
_FLOW_SECONDS: Final = 600
"""How long a user may take at the consent page."""
_FAULT: Final = 5
"""The first digit of the statuses for what is not the user's affair."""
_MOST_KEPT: Final = 1024
"""How many credentials of accounts, and how many completed states, a worker keeps in memory."""
_LONGEST_ADDRESS: Final = 600
"""Servers accept headers of about 8 KiB: the cookies of all sign-ins, and others, must find room there."""
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
"""Browsers remove some of these from URLs, and read a backslash as a slash: https://url.spec.whatwg.org/#url-parsing."""
_SERVICE_ERRORS: Final = frozenset(
    {
        "invalid_request",
        "invalid_scope",
        "server_error",
        "temporarily_unavailable",
        "unauthorized_client",
        "unsupported_response_type",
    }
)
"""The errors that don't come from the user: https://www.rfc-editor.org/rfc/rfc6749#section-4.1.2.1."""
_VARIABLES: Final = ("client_id", "client_secret", "redirect_uri", "auth_url", "authorize_url", "cookie_secret")


class SignInError(BoardClientError):
    """Report a redirect that signs nobody in. Respond with `suggested_status` and `set_cookies`.

    Attributes:
        reason: "refused": by the user or the service. "expired": begun more than ten minutes ago. "replayed": completed before.
            "foreign": not begun in this browser. "failed": anything else, such as an exchange that the service refuses. Only
            with "failed" a request may have been sent to the service.
        set_cookies: The values of `Set-Cookie` headers to send.
        login_url: Where the application's sign-in begins, for another attempt. None where it is not known.
        suggested_status: What to respond with: 400, or 502, 503 or 504 if the service is down or does not accept the client.
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
        self.login_url: str | None = None


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


class SignInOptions(TypedDict, total=False):
    """The options of `SignIn` besides the session, for type checkers."""

    client_id: str
    client_secret: str
    redirect_uri: str
    auth_url: str
    authorize_url: str
    cookie_secret: str | bytes | Iterable[str | bytes]
    store: TokenStore | None
    key: str | None
    login_path: str
    pkce: bool
    account_of: AccountOf | None
    scope: str | None
    parse_token: ParseToken | None
    account_seconds: float
    cookie_name: str | None
    clock: Callable[[], float]


class NoCredentials:
    """Refuse all calls: those of the session are made for users, through its views."""

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Refuse the call."""
        self._refuse()

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Refuse the call."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CredentialError("this session has no credentials of its own: call through sign_in.session_for(account)")


@takes_secrets
class SignIn:
    """Sign users in at the service's consent page, and make sessions for them.

    Each sign-in under way has a signed cookie of its own in the browser, for ten minutes, so tabs can begin and finish in any
    order and at once. A browser has at most five under way. The server stores none of them, so any worker can complete what
    another began.

    Tokens go to `store`, under the account that `account_of` names. A call for an account without a good token raises
    `ConsentRequired`, whose `login_url` is `login_path`. All workers use a new token within 0.5 s.

    A signed cookie says which account is signed in at a browser. It is good for this client at this service only, and until the
    account signs out at any browser.

    ```python
    sign_in = SignIn.from_env(session, pkce=True)  # `FastAPIBoards(SignIn.from_env)` makes one at each start
    ```

    Args:
        session: The application's session, whose pool serves all users.
        client_id: The identifier of the registered client.
        client_secret: Its secret.
        redirect_uri: The address that the client is registered with. If it is https, the names of cookies begin with `__Host-`.
        auth_url: The address of the service's token exchange, without `/1`.
        authorize_url: The address of the consent page, which the interface does not show. It gets the parameters of RFC 6749
            4.1.1.
        cookie_secret: The secret that signs cookies, at least 16 bytes, or several: the first one signs, all of them are
            accepted.
        store: Where tokens are kept. By default a `MemoryTokenStore`, which serves one worker.
        key: The API key. None (default): only the token is sent.
        login_path: Where the application's sign-in begins, "/login" by default.
        pkce: Whether a code challenge is sent (RFC 7636), False by default.
        account_of: A function, which may be async, from the `Member` to the account, whose name must fit in a cookie of 4,096
            bytes. By default the account is the member's id.
        scope: The scopes to ask for, separated by spaces. None (default): none are named.
        parse_token: As in `OAuthCredentials`.
        account_seconds: For how many seconds a user stays signed in at a browser, 30 days by default.
        cookie_name: What the names of the cookies begin with. None (default): it comes from the service and the client, so that
            several sign-ins on one host, also on other ports, leave each other's cookies alone.
        clock: A function that returns seconds since the epoch, by default `time.time`. Clocks of workers may differ by a minute.

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
        cookie_name: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (account_of is None or callable(account_of)):
            raise TypeError("account_of must be a function")
        if not 0 < check_seconds(account_seconds, "account_seconds") < math.inf:
            raise ValueError("account_seconds must be more than 0 seconds, and finite")
        self._credentials = OAuthCredentials(
            client_id=client_id,
            client_secret=client_secret,
            redirect_uri=check_redirect(redirect_uri, session.exchange),
            auth_url=session.exchange.check_url(auth_url, "auth_url"),
            store=MemoryTokenStore() if store is None else store,
            key=key,
            login_url=login_path,
            parse_token=parse_token,
        )
        self._page = _checked_page(authorize_url, session.exchange)
        self._cookies = SignInCookies(
            cookie_secret,
            f"{client_id} {session.identity['service']}",
            name=cookie_name,
            # Browsers refuse `Secure`, and so `__Host-`, over plain http (RFC 6265bis, section 5.7).
            is_secure=redirect_uri.lower().startswith("https:"),
            account_seconds=account_seconds,
            clock=clock,
        )
        self.session: Final[AsyncSession] = session
        """The session whose pool serves all users."""
        self.login_path: Final[str] = login_path
        """Where the application's sign-in begins."""
        self.redirect_uri: Final[str] = redirect_uri
        """The address that the client is registered with."""
        self._has_challenge = pkce
        self._scope = scope
        self._account_of = account_of
        self._clock = clock
        self._credentials_of = functools.lru_cache(_MOST_KEPT)(self._credentials.for_account)
        self._host = urlsplit(redirect_uri).netloc
        self._completions: OrderedDict[str, asyncio.Task[Outcome[SignedIn]]] = OrderedDict()
        """The completions of this worker, by state. The service refuses the codes that other workers have used."""
        self._begun_at: OrderedDict[str, str] = OrderedDict()
        """The hosts of sign-ins that began at another one than that of the redirect URI."""

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
            ValueError: variables are not set, or a value can't be used.
        """
        names = [*([] if session else ["base_url"]), *(name for name in _VARIABLES if name not in options)]
        values = required(*(f"BOARDCLIENT_{name.upper()}" for name in names))
        given: dict[str, Any] = dict(zip(names, values, strict=True))
        base_url = given.pop("base_url", "")
        given["key"] = optional("BOARDCLIENT_KEY")
        if (path := optional("BOARDCLIENT_TOKENS")) is not None and "store" not in options:
            given["store"] = FileTokenStore(path)
        given.update(options)
        if session is not None:
            return cls(session, **given)
        own = AsyncSession(NoCredentials(), base_url)
        try:
            return cls(own, **given)
        except Exception:
            own._discard()
            raise
        finally:
            del given, options, values  # the frame stays with an error

    @property
    def callback_path(self) -> str:
        """The path of the redirect URI."""
        return urlsplit(self.redirect_uri).path or "/"

    # --- signing in

    def begin(self, return_to: str = "/", cookies: Cookies = None, *, scope: str | None = None, host: str | None = None) -> Begun:
        """Begin a sign-in: return where to send the browser, and its cookies.

        Args:
            return_to: Where the user goes afterwards, a path of this site. Anything else becomes "/", the default.
            cookies: The cookies of the request, with the flows of other tabs. None by default.
            scope: The scopes to ask for, in place of those of the constructor. The new token replaces a good one.
            host: The `Host` header of the request, which the log names if the sign-in fails. None (default) if it is not known.
        """
        # 128 bits, so that nobody guesses it (RFC 6749, section 10.10).
        state = secrets.token_urlsafe(16)
        verifier = self._cookies.verifier(state) if self._has_challenge else None
        location = self._credentials.consent_address(self._page, state, scope=scope or self._scope, code_verifier=verifier)
        new = self._cookies.keep_flow(Flow(state, int(self._clock()), local_address(return_to), self._has_challenge))
        if host is not None and host != self._host:
            _keep(self._begun_at, state, host)
        return Begun(location, (new, *self._cookies.drop_flows(cookies)))

    @raises_without_frames
    async def complete(self, query: Query, cookies: Cookies) -> SignedIn:
        """Complete a sign-in with the query and the cookies of the redirect.

        The code is exchanged once, the member record (interface 4.11) is read with the new token, and the token is stored under
        the account. Cancelling the request does not lose the token.

        A redirect that is opened again exchanges nothing. It completes for the user whom it has signed in at this browser, and
        while the first one is under way. A browser's prefetch must not get here.

        Args:
            query: The query of the redirect: a string or bytes, with or without "?", or a mapping.
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.

        Raises:
            SignInError: nobody is signed in. See its `reason`.
            SessionClosedError: the session is closed.
        """
        given = _parameters(query)
        try:
            if given is None:
                raise SignInError("the redirect is malformed: its query names a parameter twice, or is no query")
            return await self._complete(given, cookies)
        except SignInError as error:
            error.login_url = self.login_path
            why = self._why_foreign(given or {}) if error.reason == "foreign" else str(error)
            _logger.warning("a sign-in failed (%s): %s", error.reason, why)  # a record that is kept must not keep the error
            raise

    # --- accounts

    def credentials_for(self, account: str) -> OAuthCredentials:
        """Return the credentials of an account, which all requests of a worker share.

        Raises:
            ValueError, TypeError: `account` is empty, or not a string.
        """
        return self._credentials_of(account)

    def session_for(self, account: str) -> AsyncSession:
        """Return a session on the same pool for an account.

        Its calls raise `ConsentRequired` if the account has no good token.

        Raises:
            ValueError, TypeError: `account` is empty, or not a string.
        """
        return self.session.with_credentials(self.credentials_for(account))

    async def state(self, account: str) -> ConsentState:
        """Return "never", "good" or "needs consent", as `OAuthCredentials.state` does.

        Raises:
            CredentialError: the store failed.
        """
        return await self.credentials_for(account).state()

    async def sign_out(self, account: str) -> None:
        """Delete the account's token, and end the account's cookies at all browsers. Send `sign_out_cookies` to this one.

        Raises:
            CredentialError: the store failed, or has no `delete`.
        """
        await self.credentials_for(account).forget()

    @property
    def sign_out_cookies(self) -> tuple[str, ...]:
        """The values of `Set-Cookie` headers that sign a user out at the browser."""
        return (self._cookies.drop_account(),)

    def account_of_request(self, cookies: Cookies) -> str | None:
        """Return the account that the cookie of a browser names. None if it names none.

        The store is not asked, so the account may have signed out elsewhere: see `signed_in_account`.

        Args:
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.
        """
        signed = self._cookies.account_of(cookies)
        return None if signed is None else signed.account

    async def signed_in_account(self, cookies: Cookies) -> str | None:
        """Return the account that is signed in at a browser by cookie and store.

        None if no user is.

        Args:
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.

        Raises:
            CredentialError: the store failed.
        """
        signed = await self._signed_in(cookies)
        return None if signed is None else signed.account

    async def _signed_in(self, cookies: Cookies) -> SignedAccount | None:
        signed = self._cookies.account_of(cookies)
        if signed is None or not await self.credentials_for(signed.account).is_kept_since(signed.deletion):
            return None
        return signed

    def __repr__(self) -> str:
        return f"SignIn({self._credentials!r})"

    # --- the steps of a sign-in

    async def _complete(self, given: Mapping[str, str], cookies: Cookies) -> SignedIn:
        found = self._cookies.flow_of(given.get("state", ""), cookies)
        if found is None:
            raise SignInError("the sign-in was not begun in this browser", "foreign")
        flow, key = found
        if flow.is_over:
            return await self._complete_again(flow, cookies)
        code = self._checked_code(given, flow)
        first = self._completions.get(flow.state)
        if first is None:
            first = begin_in_task(self.session.exchange.spawn, self._finish, flow, code, key)
            _keep(self._completions, flow.state, first)
            return await result_of(first)
        if first.done():
            return await self._complete_again(flow, cookies)
        try:  # a second click, which gets the only response that the browser waits for
            return await result_of(first)
        except SignInError as error:
            failure = copy.copy(error)
        raise failure

    def _checked_code(self, given: Mapping[str, str], flow: Flow) -> str:
        """Return the code of a redirect.

        Raises:
            SignInError: it holds none, or is late.
        """
        if not -SKEW_SECONDS <= self._clock() - flow.begun_at <= _FLOW_SECONDS:
            raise SignInError(f"the sign-in was begun more than {_FLOW_SECONDS // 60} minutes ago: begin again", "expired")
        error, code, ended = given.get("error"), given.get("code"), (self._cookies.end_flow(flow),)
        if not is_issued_by(given.get("iss"), self._page, self._credentials.auth_url):
            raise SignInError("the redirect comes from another service than the sign-in went to", "failed")
        if error in _SERVICE_ERRORS:
            failure = SignInError(f"the service's consent page failed ({error})", "failed", ended)
            failure.suggested_status = TransportError.suggested_status
            raise failure
        if error is not None:
            raise SignInError("the user or the service refused access", "refused", ended)
        if not code:
            raise SignInError("the redirect holds no code", "failed", ended)
        return code

    async def _complete_again(self, flow: Flow, cookies: Cookies) -> SignedIn:
        """Complete for the user whom this very sign-in has signed in at this browser."""
        ended = (self._cookies.end_flow(flow),)
        with contextlib.suppress(ConsentRequired):
            try:
                signed = await self._signed_in(cookies)
                if signed is not None and signed.state == flow.state:
                    member = await self.session_for(signed.account).members.me()
                    return SignedIn(signed.account, member, signed.return_to, ended)
            except (SessionClosedError, ConsentRequired):
                raise
            except BoardClientError as error:
                raise _failure_of(error, error.effect) from error
        raise SignInError("the sign-in was completed before", "replayed", ended)

    def _why_foreign(self, given: Mapping[str, str]) -> str:
        """Say why there is no cookie, as far as this worker knows. Browsers keep those of `localhost` and `127.0.0.1` apart."""
        host = self._begun_at.get(given.get("state", ""))
        if host is not None:
            return f"it began at {host}, and its redirect leads to {self._host}: browsers keep the cookies of each host apart"
        return f"it was not begun in this browser, or at another host than {self._host}, where its redirect leads"

    async def _finish(self, flow: Flow, code: str, key: bytes) -> SignedIn:
        """Exchange the code, find out who the user is, and store the token."""
        verifier = self._cookies.verifier(flow.state, key) if flow.has_challenge else None
        ended, effect = self._cookies.end_flow(flow), Effect.NOT_SENT
        try:
            token = await self._credentials.request_token(code, self.session, code_verifier=verifier)
            effect = Effect.DONE
            member = await self.session.with_credentials(StaticCredentials(token.value, self._credentials.key)).members.me()
            account = await self._account_name(member)
            credentials = self.credentials_for(account)
            self._cookies.keep_account(account, 2**63, flow)  # a name that is too long is refused before its token is stored
            signed = self._cookies.keep_account(account, (await credentials.keep_token(token)).deletion, flow)
        except SessionClosedError:
            raise
        except BoardClientError as error:
            failure = _failure_of(error, Effect.worst([effect, error.effect]), (ended,))
            if isinstance(error.__cause__, TransportError) and error.__cause__.effect is Effect.NOT_SENT:
                del self._completions[flow.state]  # the code was not sent: the user may reload the page
                failure.set_cookies = ()
            raise failure from error
        except ValueError as error:  # the code or the name of the account can't be sent, or the name is too long for a cookie
            raise SignInError(f"the sign-in failed: {error}", "failed", (ended,), effect) from error
        return SignedIn(account, member, flow.return_to, (ended, signed))

    async def _account_name(self, member: Member) -> str:
        """Return what `account_of` returns, or the member's id (4.11)."""
        if self._account_of is not None:
            name: str = await supplied(
                "account_of", self._account_of, member, is_valid=_is_name, expected="the name of an account"
            )
            return name
        if not member.id:
            raise CredentialError("the member record holds no id: give SignIn account_of=, a function of the member")
        return member.id


def _failure_of(error: BoardClientError, effect: Effect, set_cookies: tuple[str, ...] = ()) -> SignInError:
    """Return the error of a sign-in that ends with this one. Only what is not the user's affair keeps its status."""
    failure = SignInError(f"the sign-in failed: {error}", "failed", set_cookies, effect)
    failure.suggested_status = error.suggested_status if error.suggested_status // 100 == _FAULT else 400
    failure.retry_at = error.retry_at
    return failure


def _keep(kept: OrderedDict[str, T], state: str, value: T) -> None:
    """Keep what is known of a state, and drop the oldest of too many."""
    kept[state] = value
    if len(kept) > _MOST_KEPT:
        kept.popitem(last=False)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _checked_page(url: str, exchange: Exchange) -> str:
    address, _, query = check_text(url, "authorize_url").partition("?")
    checked = exchange.check_url(address, "authorize_url")
    if "#" in query or not query.isprintable():
        raise ValueError("authorize_url must hold no fragment and no control character")
    return f"{checked}?{query}" if query else checked


# --- what browsers send


def local_address(address: object, otherwise: str = "/") -> str:
    """Return an address if it is a path of this site, otherwise another one.

    It may have a query and a fragment, and at most 600 characters, percent-encoded. It must still be such a path after servers on
    the way have percent-decoded it up to three times.

    Args:
        address: What a browser sent.
        otherwise: What to return in place of any other address, "/" by default.
    """
    if not isinstance(address, str):
        return otherwise
    decoded = address
    for _ in range(4):
        path = re.split(r"[?#]", decoded, maxsplit=1)[0]
        if not path.startswith("/") or "//" in path or _UNSAFE.search(path) or {".", ".."} & set(path.split("/")):
            return otherwise
        decoded = unquote(decoded, errors="replace")
    try:
        encoded = quote(address, safe="/?#[]@!$&'()*+,;=:%~-._")
    except UnicodeEncodeError:  # a lone surrogate
        return otherwise
    return encoded if len(encoded) <= _LONGEST_ADDRESS else otherwise


def _parameters(query: object) -> dict[str, str] | None:
    """Return the parameters of a redirect's query. None if it is malformed.

    No parameter may occur twice (https://www.rfc-editor.org/rfc/rfc6749#section-3.1).
    """
    if isinstance(query, bytes | bytearray):
        query = bytes(query).decode("latin-1")
    if isinstance(query, str):
        pairs: list[tuple[object, object]] = list(parse_qsl(query.removeprefix("?"), keep_blank_values=True))
    elif isinstance(query, Mapping):
        pairs = list(query.items())
    else:
        return None
    found: dict[str, str] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str) or name in found:
            return None
        found[name] = value
    return found
