"""Sign users in to web applications of any framework (interface 4.11, 4.12).

Needs the extra `web` (itsdangerous). The only I/O is the exchange of a code, one read of the member record, and the token store.
Failed sign-ins are logged by the logger `boardclient.web`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeAlias, TypedDict, Unpack
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import attrs

from boardclient._environment import optional, required, requires_extra
from boardclient._guards import run_in_task, supplied
from boardclient._redaction import raises_without_frames, takes_secrets
from boardclient.credentials._credentials import Credentials, Exchange, StaticCredentials
from boardclient.credentials._exchange import ParseToken
from boardclient.credentials._file_store import FileTokenStore
from boardclient.credentials._oauth import ConsentState, OAuthCredentials
from boardclient.credentials._stores import MemoryTokenStore, TokenStore
from boardclient.errors import Attempt, BoardClientError, CredentialError, Effect, SessionClosedError, TransportError
from boardclient.models import Member, check_seconds, check_text
from boardclient.session import AsyncSession

if TYPE_CHECKING:
    from itsdangerous import URLSafeSerializer

__all__ = ["Begun", "ConsentState", "NoCredentials", "SignIn", "SignInError", "SignedIn", "local_address"]

AccountOf: TypeAlias = Callable[[Member], "str | Awaitable[str]"]
Cookies: TypeAlias = Mapping[str, str] | str | bytes | None
"""The cookies of a request: a mapping, or the raw `Cookie` header."""
Query: TypeAlias = Mapping[str, str] | str | bytes
"""The query of a request: a mapping, or the raw query string."""
Reason: TypeAlias = Literal["refused", "expired", "replayed", "foreign", "failed"]

_logger: Final = logging.getLogger("boardclient.web")


class _LastResort(logging.Handler):
    """Show records for which there is no handler, as Python does by default."""

    def emit(self, record: logging.LogRecord) -> None:
        shows = [*_logger.handlers, *logging.getLogger("boardclient").handlers, *logging.getLogger().handlers]
        if logging.lastResort is not None and not any(type(one) not in {logging.NullHandler, _LastResort} for one in shows):
            logging.lastResort.handle(record)


_logger.addHandler(_LastResort(logging.WARNING))

_ACCOUNT_SECONDS: Final = 30 * 24 * 3600
_FLOW_SECONDS: Final = 600
"""How long a user may take at the consent page."""
_KEPT_SECONDS: Final = 3600
"""How long the cookie of a sign-in is kept, so that an expired or replayed one is not taken for one of another browser."""
_SKEW_SECONDS: Final = 60
"""By how much the clocks of two workers may differ."""
_MOST_FLOWS: Final = 5
"""How many sign-ins of a browser are under way, and how many that are over are kept."""
_SHORTEST_SECRET: Final = 16
_FAULT: Final = 5
"""The first digit of the statuses for what is not the user's affair."""
_MOST_KEPT: Final = 1024
"""How many credentials of accounts, and how many completed states, a worker keeps in memory."""
_LONGEST_ADDRESS: Final = 600
"""Servers accept headers of about 8 KiB: the cookies of all sign-ins, and others, must find room there."""
_LONGEST_COOKIE: Final = 4096
"""Browsers drop a longer one: https://www.rfc-editor.org/rfc/rfc6265#section-6.1."""
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{22}")
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
        suggested_status: 400. A service that is down, and a client that the service does not accept, is 502, 503 or 504.
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
    cookie_name: str
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
        cookie_name: What the names of the cookies begin with, "boardclient" by default.
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
        cookie_name: str = "boardclient",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (account_of is None or callable(account_of)):
            raise TypeError("account_of must be a function")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", cookie_name):
            raise ValueError("cookie_name must be letters, digits, - and _")
        if not 0 < check_seconds(account_seconds, "account_seconds") < math.inf:
            raise ValueError("account_seconds must be more than 0 seconds, and finite")
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
        self._page = _checked_page(authorize_url, session.exchange)
        self._redirect_uri = redirect_uri
        is_secure = redirect_uri.lower().startswith("https:")
        self._cookie_name = f"__Host-{cookie_name}" if is_secure else cookie_name
        # `Lax`, since the redirect from the service comes from another site, and `Strict` would hold the cookie back.
        self._attributes = f"Path=/; HttpOnly; SameSite=Lax{'; Secure' if is_secure else ''}"
        self._keys = _keys_of(cookie_secret)
        self._binding = f"{client_id} {session.identity['service']}"
        _serializer(self._keys[0], "")  # fails here if the extra is not installed
        self._session = session
        self._login_path = login_path
        self._key = key
        self._has_challenge = pkce
        self._scope = scope
        self._account_of = account_of
        self._account_seconds = account_seconds
        self._clock = clock
        self._credentials_of = functools.lru_cache(_MOST_KEPT)(self._credentials.for_account)
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
        given: dict[str, Any] = {name: required(f"BOARDCLIENT_{name.upper()}") for name in _VARIABLES if name not in options}
        given["key"] = optional("BOARDCLIENT_KEY")
        if (path := optional("BOARDCLIENT_TOKENS")) is not None and "store" not in options:
            given["store"] = FileTokenStore(path)
        given.update(options)
        if session is not None:
            return cls(session, **given)
        own = AsyncSession(NoCredentials(), required("BOARDCLIENT_BASE_URL"))
        try:
            return cls(own, **given)
        except Exception:
            own._discard()
            raise
        finally:
            del given, options  # the frame stays with an error

    @property
    def session(self) -> AsyncSession:
        """The session whose pool serves all users."""
        return self._session

    @property
    def login_path(self) -> str:
        """Where the application's sign-in begins."""
        return self._login_path

    @property
    def redirect_uri(self) -> str:
        """The address that the client is registered with."""
        return self._redirect_uri

    @property
    def callback_path(self) -> str:
        """The path of the redirect URI."""
        return urlsplit(self.redirect_uri).path or "/"

    # --- signing in

    def begin(self, return_to: str = "/", cookies: Cookies = None, *, scope: str | None = None) -> Begun:
        """Begin a sign-in: return where to send the browser, and its cookies.

        Args:
            return_to: Where the user goes afterwards, a path of this site. Anything else becomes "/", the default.
            cookies: The cookies of the request, with the flows of other tabs. None by default.
            scope: The scopes to ask for, in place of those of the constructor. The new token replaces a good one.
        """
        state = secrets.token_urlsafe(16)
        verifier = self._verifier(self._keys[0], state) if self._has_challenge else None
        location = self._credentials.consent_address(self._page, state, scope=scope or self._scope, code_verifier=verifier)
        new = self._keep_flow(_Flow(state, int(self._clock()), local_address(return_to), self._has_challenge))
        dropped = [self._set_cookie(name, "", 0) for name in self._too_many(cookies)]
        return Begun(location, (new, *dropped))

    @raises_without_frames
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
        try:
            return await run_in_task(self._session.exchange.spawn, self._finish, *self._checked(query, cookies))
        except SignInError as error:
            if error.reason == "failed":
                _logger.warning("%s", str(error))  # a record that is kept must not keep the error
            raise

    # --- accounts

    def credentials_for(self, account: str) -> OAuthCredentials:
        """Return the credentials of an account, which all requests of a worker share.

        Raises:
            ValueError, TypeError: `account` is empty, or no text.
        """
        return self._credentials_of(account)

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
        """Delete the account's token, and end the account's cookies at all browsers. Send `sign_out_cookies` to this one.

        Raises:
            CredentialError: the store failed, or has no `delete`.
        """
        await self.credentials_for(account).forget()

    @property
    def sign_out_cookies(self) -> tuple[str, ...]:
        """The values of `Set-Cookie` headers that sign a user out at the browser."""
        return (self._set_cookie(f"{self._cookie_name}-account", "", 0),)

    def account_of_request(self, cookies: Cookies) -> str | None:
        """Return the account that the cookie of a browser names. None if it names none.

        The store is not asked, so the account may have signed out elsewhere: see `signed_in_account`.

        Args:
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.
        """
        named = self._named_account(cookies)
        return None if named is None else named[0]

    async def signed_in_account(self, cookies: Cookies) -> str | None:
        """Return the account that is signed in at a browser by cookie and store.

        None if no user is.

        Args:
            cookies: The cookies of the request: a mapping, or the value of the `Cookie` header.

        Raises:
            CredentialError: the store failed.
        """
        named = self._named_account(cookies)
        if named is None:
            return None
        account, generation = named
        return account if await self.credentials_for(account).is_kept_since(generation) else None

    def __repr__(self) -> str:
        return f"SignIn({self._credentials!r})"

    # --- cookies

    def _seal(self, purpose: str, content: list[Any]) -> str:
        dumped = _serializer(self._keys[0], f"{purpose} {self._binding}").dumps(content)
        return dumped if isinstance(dumped, str) else dumped.decode()

    def _open(self, purpose: str, text: str | None) -> tuple[Any, bytes] | None:
        """Return the content of a signed text and the secret that signed it. None if no secret did."""
        from itsdangerous import BadData  # the constructor has imported it

        if text is None or not text.isascii():  # frameworks pass on bytes that are not UTF-8 as lone surrogates
            return None
        for key in self._keys:
            try:
                return _serializer(key, f"{purpose} {self._binding}").loads(text), key
            except BadData:
                pass
        return None

    def _set_cookie(self, name: str, value: str, max_age_seconds: int) -> str:
        cookie = f"{name}={value}; Max-Age={max_age_seconds}; {self._attributes}"
        if len(cookie) > _LONGEST_COOKIE:
            raise ValueError(f"the cookie {name} has {len(cookie):,} bytes, and browsers keep at most {_LONGEST_COOKIE:,}")
        return cookie

    def _account_cookie(self, account: str, generation: int) -> str:
        text = self._seal("boardclient.account", [account, int(self._clock()), generation])
        return self._set_cookie(f"{self._cookie_name}-account", text, int(self._account_seconds))

    def _named_account(self, cookies: Cookies) -> tuple[str, int] | None:
        """Return the account of the cookie, and its generation at that time."""
        opened = self._open("boardclient.account", _cookies_of(cookies).get(f"{self._cookie_name}-account"))
        if opened is None:
            return None
        (account, begun_at, generation), _ = opened
        is_in_time = -_SKEW_SECONDS <= self._clock() - begun_at <= self._account_seconds
        return (account, generation) if is_in_time else None

    def _keep_flow(self, flow: _Flow) -> str:
        text = self._seal(f"boardclient.flow {flow.state}", [flow.begun_at, flow.return_to, flow.has_challenge, flow.is_over])
        return self._set_cookie(f"{self._cookie_name}-flow-{flow.state}", text, _KEPT_SECONDS)

    def _end_flow(self, flow: _Flow) -> str:
        return self._keep_flow(attrs.evolve(flow, return_to="", is_over=True))

    def _flow_of(self, state: str, cookies: Mapping[str, str]) -> tuple[_Flow, bytes] | None:
        if not _STATE.fullmatch(state):
            return None
        opened = self._open(f"boardclient.flow {state}", cookies.get(f"{self._cookie_name}-flow-{state}"))
        return None if opened is None else (_Flow(state, *opened[0]), opened[1])

    def _too_many(self, cookies: Cookies) -> list[str]:
        """Return the names of the cookies to drop before a new one."""
        prefix, now, given = f"{self._cookie_name}-flow-", self._clock(), _cookies_of(cookies)
        states = {name: name.removeprefix(prefix) for name in given if name.startswith(prefix)}
        found = {name: self._flow_of(state, given) for name, state in states.items() if _STATE.fullmatch(state)}
        # Browsers send the older of two cookies first: https://www.rfc-editor.org/rfc/rfc6265#section-5.4.
        flows = [(name, opened[0]) for name, opened in reversed(found.items()) if opened is not None]
        recent = sorted((one for one in flows if now - one[1].begun_at < _KEPT_SECONDS), key=lambda one: -one[1].begun_at)
        under_way = [name for name, flow in recent if not flow.is_over]
        over = [name for name, flow in recent if flow.is_over]
        kept = {*under_way[: _MOST_FLOWS - 1], *over[: _MOST_FLOWS - 1]}
        return [name for name in found if name not in kept]

    # --- the steps of a sign-in

    def _checked(self, query: Query, cookies: Cookies) -> tuple[_Flow, str, bytes]:
        """Return the sign-in that a redirect completes, its code, and the secret that signed its cookie.

        Raises:
            SignInError: it completes none.
        """
        given = _parameters(query)
        if given is None:
            raise SignInError("the redirect is malformed: its query names a parameter twice, or is no query")
        found = self._flow_of(given.get("state", ""), _cookies_of(cookies))
        if found is None:
            raise SignInError("the sign-in was not begun in this browser", "foreign")
        flow, key = found
        if flow.is_over:
            raise SignInError("the sign-in was completed before", "replayed")
        if not -_SKEW_SECONDS <= self._clock() - flow.begun_at <= _FLOW_SECONDS:
            raise SignInError(f"the sign-in was begun more than {_FLOW_SECONDS // 60} minutes ago: begin again", "expired")
        error, code, ended = given.get("error"), given.get("code"), (self._end_flow(flow),)
        if error in _SERVICE_ERRORS:
            failure = SignInError(f"the service's consent page failed ({error})", "failed", ended)
            failure.suggested_status = TransportError.suggested_status
            raise failure
        if error is not None:
            raise SignInError("the user or the service refused access", "refused", ended)
        if not code:
            raise SignInError("the redirect holds no code", "failed", ended)
        if flow.state in self._used:
            raise SignInError("the sign-in was completed before", "replayed", ended)
        self._used[flow.state] = None
        if len(self._used) > _MOST_KEPT:
            self._used.popitem(last=False)
        return flow, code, key

    async def _finish(self, flow: _Flow, code: str, key: bytes) -> SignedIn:
        """Exchange the code, find out who the user is, and store the token."""
        verifier = self._verifier(key, flow.state) if flow.has_challenge else None
        ended, effect = self._end_flow(flow), Effect.NOT_SENT
        try:
            token = await self._credentials.request_token(code, self._session, code_verifier=verifier)
            effect = Effect.DONE
            member = await self._session.with_credentials(StaticCredentials(token.value, self._key)).members.me()
            account = await self._account_name(member)
            credentials = self.credentials_for(account)
            self._account_cookie(account, 2**63)  # a name that is too long is refused before its token is stored
            signed = self._account_cookie(account, await credentials.keep_token(token))
        except SessionClosedError:
            raise
        except BoardClientError as error:
            failure = SignInError(f"the sign-in failed: {error}", "failed", (ended,), Effect.worst([effect, error.effect]))
            failure.suggested_status = error.suggested_status if error.suggested_status // 100 == _FAULT else 400
            if isinstance(error.__cause__, TransportError) and error.__cause__.effect is Effect.NOT_SENT:
                self._used.pop(flow.state, None)  # the code was not sent: the user may reload the page
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

    def _verifier(self, key: bytes, state: str) -> str:
        """Return the code verifier (RFC 7636 4.1) of a state, derived from the secret."""
        raw = hmac.digest(key, b"boardclient.verifier " + state.encode(), "sha256")
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@attrs.frozen
class _Flow:
    """One sign-in in one browser tab, from the redirect until the browser is back."""

    state: str = attrs.field(repr=False)
    begun_at: int
    return_to: str
    has_challenge: bool = False
    is_over: bool = False


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _serializer(key: bytes, salt: str) -> URLSafeSerializer:
    with requires_extra("web", "SignIn"):
        from itsdangerous import URLSafeSerializer
    return URLSafeSerializer(key, salt=salt, signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"})


def _keys_of(secret: str | bytes | Iterable[str | bytes]) -> tuple[bytes, ...]:
    given = [secret] if isinstance(secret, str | bytes) else list(secret)
    keys = tuple(key.encode() if isinstance(key, str) else key for key in given)
    if not all(isinstance(key, bytes) for key in keys):
        raise TypeError("cookie_secret must be a text, or several")
    if not keys or min(map(len, keys)) < _SHORTEST_SECRET:
        raise ValueError(f"cookie_secret must have at least {_SHORTEST_SECRET} bytes: use a random one")
    return keys


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


def _cookies_of(cookies: object) -> dict[str, str]:
    """Return the cookies of a mapping or of a raw `Cookie` header in their order. The first of one name counts."""
    if isinstance(cookies, Mapping):
        return {name: value for name, value in cookies.items() if isinstance(name, str) and isinstance(value, str)}
    if isinstance(cookies, bytes | bytearray):
        cookies = bytes(cookies).decode("latin-1")
    if not isinstance(cookies, str):
        return {}
    found: dict[str, str] = {}
    for part in cookies.split(";"):
        name, _, value = part.strip().partition("=")
        found.setdefault(name, value.strip('"'))
    return found
