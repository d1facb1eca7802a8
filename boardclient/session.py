"""AsyncSession, which owns the pool and the provider and gives out the resources. What a call does is in `_pipeline`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

from boardclient import retry as _retry
from boardclient._environment import optional, required
from boardclient._messages import Response
from boardclient._operations import build_request
from boardclient._pace import Limiter
from boardclient._pipeline._core import SessionCore
from boardclient._pipeline._pipeline import Pipeline
from boardclient._stats import SessionStats
from boardclient._transport import Settings
from boardclient.credentials import CredentialProvider, Exchange, StaticCredentials
from boardclient.credentials._values import CredentialsIn
from boardclient.events import Observer
from boardclient.models import JsonValue
from boardclient.resources import Boards, Cards, Lists, Members

if TYPE_CHECKING:
    import aiohttp
    from tenacity import AsyncRetrying


class _Unset:
    """The type of UNSET: an option that was not given, which None is not."""

    def __repr__(self) -> str:
        return "…"


UNSET: Final = _Unset()


class SessionOptions(TypedDict, total=False):
    """The options of `AsyncSession` besides credentials, for type checkers."""

    base_url: str
    retry: AsyncRetrying | None
    timeout: float | None
    max_connections: int
    limiter: Limiter | None
    http: aiohttp.ClientSession | None
    trust_env: bool
    ssl: SSLContext | bool | aiohttp.Fingerprint | None
    proxy: str | None
    headers: Mapping[str, str] | None
    user_agent: str | None
    observers: Iterable[Observer]
    credentials_in: CredentialsIn
    allow_insecure: bool
    max_answer_bytes: int


class AsyncSession:
    """A session with a board service. It owns one connection pool and one credential provider.

    It may be built anywhere; the loop and process of its first call are its own from then on. Use it as an asynchronous context
    manager, or end it with `aclose`; one session serves any number of tasks.

    `timeout` is the one deadline of a call in seconds (None: no deadline), over waiting for a connection, every attempt and
    pause, and a renewal of credentials. `retry` is a `tenacity.AsyncRetrying`, None for one attempt; by default each session
    makes its own `boardclient.retry.default()`. `http` lends an application's own `aiohttp.ClientSession`, which is never closed.

    Raises:
        ValueError: an option is out of its range, or `http` comes together with options of the pool.
    """

    def __init__(
        self,
        credentials: CredentialProvider,
        base_url: str,
        *,
        retry: AsyncRetrying | _Unset | None = UNSET,
        timeout: float | None = 30.0,
        max_connections: int = 100,
        limiter: Limiter | None = None,
        http: aiohttp.ClientSession | None = None,
        trust_env: bool = False,
        ssl: SSLContext | bool | aiohttp.Fingerprint | None = None,
        proxy: str | None = None,
        headers: Mapping[str, str] | None = None,
        user_agent: str | None = None,
        observers: Iterable[Observer] = (),
        credentials_in: CredentialsIn = "body",
        allow_insecure: bool = False,
        max_answer_bytes: int = 256 * 2**20,
    ) -> None:
        settings = Settings(
            max_connections=max_connections,
            trust_env=trust_env,
            ssl=ssl,
            proxy=proxy,
            headers=headers or {},
            user_agent=user_agent or "",
            allow_insecure=allow_insecure,
            max_answer_bytes=max_answer_bytes,
        )
        if http is not None and (max_connections, trust_env, ssl, proxy) != (100, False, None, None):
            raise ValueError("max_connections, trust_env, ssl and proxy are the lent session's own: they don't go with http=")
        if credentials_in not in {"body", "query"}:
            raise ValueError('credentials_in must be "body" or "query"')
        policy = _policy(_retry.default() if isinstance(retry, _Unset) else retry)
        core = SessionCore(base_url, settings, http, timeout)
        self._pipeline = Pipeline(
            core,
            provider=credentials,
            policy=policy,
            timeout=timeout,
            limiter=limiter,
            observers=observers,
            credentials_in=credentials_in,
        )
        core.limiter = limiter
        self._core, self._owns_core = core, True

    @classmethod
    def from_env(cls, credentials: CredentialProvider | None = None, **options: Unpack[SessionOptions]) -> Self:
        """Return a session that the environment configures.

        `BOARDCLIENT_BASE_URL` is the service's address, `BOARDCLIENT_TOKEN` the access token, `BOARDCLIENT_KEY` the API key,
        where one is used. White space around a value is dropped, and an empty variable counts as not set.

        Args:
            credentials: used instead of those of the environment.
            options: as `AsyncSession` takes them; `base_url` is used instead of that of the environment.

        Raises:
            ValueError: a variable is not set, or a value can't be used.
        """
        if credentials is None:
            credentials = StaticCredentials(required("BOARDCLIENT_TOKEN"), optional("BOARDCLIENT_KEY"))
        if "base_url" not in options:
            options["base_url"] = required("BOARDCLIENT_BASE_URL")
        return cls(credentials, **options)

    # Made when asked for, in a tenth of a microsecond: a view stays small, and nothing of it needs the garbage collector.
    @property
    def boards(self) -> Boards:
        """The operations on boards."""
        return Boards(self._pipeline)

    @property
    def lists(self) -> Lists:
        """The operations on lists."""
        return Lists(self._pipeline)

    @property
    def cards(self) -> Cards:
        """The operations on cards."""
        return Cards(self._pipeline)

    @property
    def members(self) -> Members:
        """The operations on members."""
        return Members(self._pipeline)

    # --- views and life

    def with_credentials(self, credentials: CredentialProvider) -> AsyncSession:
        """Return a view for other credentials on the same pool. Closing it closes nothing."""
        return self._view(provider=credentials)

    def with_options(
        self,
        *,
        retry: AsyncRetrying | _Unset | None = UNSET,
        timeout: float | _Unset | None = UNSET,
        limiter: Limiter | _Unset | None = UNSET,
        observers: Iterable[Observer] | _Unset = UNSET,
    ) -> AsyncSession:
        """Return a view with other options on the same pool; closing it closes nothing.

        Args:
            retry: a `tenacity.AsyncRetrying`, None for one attempt.
            timeout: the deadline of a call in seconds, None for no deadline.
            limiter: an async context manager that is entered around each attempt, None for no limiter.
            observers: what receives the events of the view's calls, in place of the session's observers.

        Raises:
            TypeError, ValueError: an option can't work.
        """
        changes: dict[str, object] = {"timeout": timeout, "limiter": limiter, "observers": observers}
        given = {name: value for name, value in changes.items() if not isinstance(value, _Unset)}
        if not isinstance(retry, _Unset):
            given["policy"] = _policy(retry)
        return self._view(**given)

    def _view(self, **changes: Any) -> AsyncSession:
        view = AsyncSession.__new__(AsyncSession)
        view._core, view._owns_core = self._core, False
        view._pipeline = self._pipeline.replace(**changes)
        return view

    def stats(self) -> SessionStats:
        """Return numbers of what the session and all its views do and have done. It costs nothing until it is called."""
        return self._core.stats()

    async def ping(self) -> float:
        """Read the member record once, and return how many seconds that took (4.11).

        It shows that the service is reached and takes the credentials.

        Raises:
            BoardClientError: it does not.
        """
        began = time.perf_counter()
        await self.with_options(retry=None).members.me()
        return time.perf_counter() - began

    @property
    def identity(self) -> Mapping[str, str]:
        """Which service and account the calls go to, without any credential. What a journal is bound to."""
        return self._pipeline.identity

    @property
    def exchange(self) -> Exchange:
        """The session's means to send forms, for `OAuthCredentials` outside a call."""
        return self._core

    async def aclose(self) -> None:
        """Close the session. Calls under way and later ones end with `SessionClosedError`. Idempotent."""
        if self._owns_core:
            await self._core.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # absent where __init__ refused its arguments
        if core is not None and self._owns_core and not core.in_flight.is_closed:
            warnings.warn("an AsyncSession was never closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        state = "closed" if self._core.in_flight.is_closed else "open"
        view = "" if self._owns_core else " view"
        return f"<AsyncSession{view} {state}, {len(self._core.in_flight)} calls, {self._core.pool!r}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("an AsyncSession can't be pickled: build one where it is used")

    # --- calls

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int | float | bool] | None = None,
        json: JsonValue = None,
        repeatable: bool | None = None,
    ) -> Response:
        """Make a call that has no method of its own. It is signed, retried and renewed like the rest.

        `path` starts with "/1/"; `repeatable` tells the retry policy whether a second time does no harm (default: GET, PUT and
        DELETE). A status that is no success raises the error it stands for.

        Raises:
            TypeError, ValueError: it can't be sent, or names a credential itself.
        """
        return await self._pipeline.call(build_request(method, path, params, json, repeatable))


def _policy(retry: AsyncRetrying | None) -> _retry.Policy | None:
    """Return the policy that is asked. It is None where none is wanted or tenacity's own switch is off."""
    if retry is None:
        return None
    policy = _retry.Policy(retry)
    return policy if policy.is_enabled else None
