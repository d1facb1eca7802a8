"""The session, which applications begin with. What a call does is in `_pipeline`."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from ssl import SSLContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, Unpack

import attrs

from boardclient import retry as _retry
from boardclient._base._activities import observers_of
from boardclient._base._environment import optional, required
from boardclient._base._redaction import takes_secrets
from boardclient._interface._operations import REFUSED_HEADERS, Parameter, build_request
from boardclient._interface._responses import Response
from boardclient._pipeline._pipeline import Pipeline
from boardclient._pipeline._session_parts import SessionParts
from boardclient._pipeline._stats import SessionStats
from boardclient._transport._choice import TransportChoice
from boardclient._transport._values import TransportSettings, check_headers
from boardclient.credentials import CredentialProvider, CredentialsIn, Exchange, StaticCredentials
from boardclient.models import JsonValue
from boardclient.resources import Boards, Cards, Lists, Members

if TYPE_CHECKING:
    import aiohttp
    from tenacity import AsyncRetrying

    from boardclient._pipeline._pace import Limiter
    from boardclient.bulk import MapResult
    from boardclient.events import Observer

T = TypeVar("T")
R = TypeVar("R")


class _Unset:
    """The type of UNSET, the default of options for which None is a value."""

    def __repr__(self) -> str:
        return "…"


UNSET: Final = _Unset()
_OF_POOL: Final = ("max_connections", "trust_env", "ssl", "proxy")
"""The options that an application's own `aiohttp.ClientSession` has itself."""


class _OtherOptions(TypedDict, total=False):
    """The options of `AsyncSession` besides credentials and address, for type checkers."""

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


class SessionOptions(_OtherOptions, total=False):
    """The options of `AsyncSession` besides credentials, for type checkers."""

    base_url: str


@takes_secrets  # those of a proxy and of headers
class AsyncSession:
    """A session with a board service, with one pool and one credential provider.

    One session serves any number of tasks. Use it as an asynchronous context manager, or close it with `aclose`. It may be
    created outside of an event loop, and belongs to the event loop and process of its first call.

    ```python
    async with AsyncSession.from_env() as session:
        board = await session.boards.create("Launch", default_lists=True)
    ```

    Args:
        credentials: What signs the requests, such as `StaticCredentials` or `OAuthCredentials`.
        base_url: The address of the service, without `/1`.
        retry: A `tenacity.AsyncRetrying`, or None for one attempt. By default `boardclient.retry.default()`, one for each
            session.
        timeout: The seconds that a call may take, 30 by default, with all its attempts, pauses, waits for a connection and a
            renewal of credentials. None: no limit.
        max_connections: The most connections at a time, 100 by default.
        limiter: An async context manager that is entered for each attempt, such as `Pace` or an `aiolimiter.AsyncLimiter`. None
            (default): no limiter.
        http: An `aiohttp.ClientSession` of the application, which is used and not closed. A call that times out in the wait for
            one of its connections has an unknown effect. None (default): the session has its own.
        trust_env: Whether proxies are taken from the environment. False by default.
        ssl: As in aiohttp: a context, False to accept any certificate, or a fingerprint. None (default): certificates are
            checked.
        proxy: The URL of a proxy. None (default): no proxy.
        headers: Headers of every request. None (default): no further ones.
        user_agent: What follows the name and version of this package in the `User-Agent` header. None (default): nothing.
        observers: Functions that are called with each event, see `boardclient.events`. By default there are none.
        credentials_in: "body" (default) puts credentials into JSON bodies, "query" always into the query (interface 5.5).
        allow_insecure: Whether plain http to other hosts than the local one is allowed. False by default.
        max_answer_bytes: The largest body of a response in bytes, after decompression. 256 MiB by default.

    Raises:
        ValueError, TypeError: an option can't work, or `http` is given together with options of the pool.
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
        check_headers({} if headers is None else headers, "headers", REFUSED_HEADERS)
        # Checked before anything is opened, so that a refused option leaves nothing to close.
        settings = TransportSettings(
            max_connections=max_connections,
            trust_env=trust_env,
            ssl=ssl,
            proxy=proxy,
            headers=headers or {},
            user_agent=user_agent or "",
            allow_insecure=allow_insecure,
            max_answer_bytes=max_answer_bytes,
        )
        # They would be ignored in silence, and a certificate that is not checked as asked must not go unnoticed.
        if http is not None and any(getattr(settings, name) != _DEFAULTS[name] for name in _OF_POOL):
            raise ValueError("max_connections, trust_env, ssl and proxy are the lent session's own: they don't go with http=")
        if credentials_in not in {"body", "query"}:
            raise ValueError('credentials_in must be "body" or "query"')
        policy = _policy(_retry.default() if isinstance(retry, _Unset) else retry)
        followed_by = observers_of(observers)
        parts = SessionParts(base_url, settings, TransportChoice(settings, http), timeout, limiter, followed_by)
        self._pipeline = Pipeline(
            parts=parts,
            provider=credentials,
            policy=policy,
            timeout=timeout,
            limiter=limiter,
            observers=followed_by,
            credentials_in=credentials_in,
        )
        self._parts, self._owns_parts = parts, True

    @classmethod
    def from_env(cls, credentials: CredentialProvider | None = None, **options: Unpack[SessionOptions]) -> Self:
        """Return a session that environment variables configure.

        `BOARDCLIENT_BASE_URL` is the address of the service, `BOARDCLIENT_TOKEN` the access token, and `BOARDCLIENT_KEY` the
        API key if one is used. White space around a value is removed, and an empty variable counts as not set.

        Args:
            credentials: Used in place of those of the environment.
            options: Those of `AsyncSession`. `base_url` is used in place of that of the environment.

        Raises:
            ValueError: variables are not set, or a value can't be used.
        """
        names = {"BOARDCLIENT_BASE_URL": "base_url" not in options, "BOARDCLIENT_TOKEN": credentials is None}
        required(*(name for name, is_wanted in names.items() if is_wanted))  # all that are missing in one error
        if credentials is None:
            credentials = StaticCredentials(required("BOARDCLIENT_TOKEN")[0], optional("BOARDCLIENT_KEY"))
        if "base_url" not in options:
            options["base_url"] = required("BOARDCLIENT_BASE_URL")[0]
        return cls(credentials, **options)

    @classmethod
    def from_profile(cls, name: str | None = None, **options: Unpack[_OtherOptions]) -> Self:
        """Return a session with the sign-in of `boardclient login`.

        Without a name it is the session of a command without options: variables such as `BOARDCLIENT_TOKEN` come first, then the
        service of the last sign-in. The token is read from the system's keyring or the file of tokens, and read again after the
        next `boardclient login`. A call whose token is refused raises `ConsentRequired` until then. The keyring may ask the user
        to unlock it, which may take 30 seconds.

        Args:
            name: The address of a service or its host, whose profile alone counts. None (default): as said above.
            options: Those of `AsyncSession`, except `base_url`.

        Raises:
            ValueError: the service is not known, the profiles can't be read, or an option can't be used.
            CredentialError: nobody is signed in to it, or the token can't be read.
        """
        from boardclient.credentials._profiles import for_session  # for those who use it

        base_url, credentials = for_session(name)
        return cls(credentials, base_url, **options)

    # Made when they are first used: a view, of which a web application makes one for each request, uses few of them.
    @cached_property
    def boards(self) -> Boards:
        """The operations on boards."""
        return Boards(self._pipeline)

    @cached_property
    def lists(self) -> Lists:
        """The operations on lists."""
        return Lists(self._pipeline)

    @cached_property
    def cards(self) -> Cards:
        """The operations on cards."""
        return Cards(self._pipeline)

    @cached_property
    def members(self) -> Members:
        """The operations on members."""
        return Members(self._pipeline)

    # --- views and life

    def with_credentials(self, credentials: CredentialProvider) -> AsyncSession:
        """Return a view of the session with other credentials.

        A view is an `AsyncSession` on the same connection pool. Closing it has no effect.

        Args:
            credentials: What signs the view's requests.

        Raises:
            TypeError: it is not a credential provider.
        """
        return self._view(provider=credentials)

    def with_options(
        self,
        *,
        retry: AsyncRetrying | _Unset | None = UNSET,
        timeout: float | _Unset | None = UNSET,
        limiter: Limiter | _Unset | None = UNSET,
        observers: Iterable[Observer] | _Unset = UNSET,
    ) -> AsyncSession:
        """Return a view of the session with other options.

        A view is an `AsyncSession` on the same connection pool. Closing it has no effect. Options that are not given are those of
        this session.

        Args:
            retry: A `tenacity.AsyncRetrying`, or None for one attempt.
            timeout: The seconds that a call may take, None for no limit.
            limiter: An async context manager that is entered for each attempt, None for no limiter.
            observers: Functions that are called with the view's events, in place of the session's observers.

        Raises:
            TypeError, ValueError: an option can't work.
        """
        changes: dict[str, object] = {"timeout": timeout, "limiter": limiter}
        given = {name: value for name, value in changes.items() if not isinstance(value, _Unset)}
        if not isinstance(retry, _Unset):
            given["policy"] = _policy(retry)
        if not isinstance(observers, _Unset):
            given["observers"] = observers_of(observers)
        return self._view(**given)

    def _view(self, **changes: Any) -> AsyncSession:
        # Not by `__init__`, which checks and makes a pool: a web application makes a view for each request.
        view = AsyncSession.__new__(AsyncSession)
        view._parts, view._owns_parts = self._parts, False
        view._pipeline = attrs.evolve(self._pipeline, **changes)
        return view

    def map(
        self, function: Callable[[T], Awaitable[R]], items: Iterable[T] | AsyncIterable[T], concurrency: int | None = None
    ) -> AsyncGenerator[MapResult[T, R]]:
        """Call a function for each item, and yield the results as they come.

        ```python
        async with contextlib.aclosing(session.map(session.cards.delete, card_ids)) as results:
            async for result in results:
                print(result.item, result.error or "deleted")
        ```

        Items are taken as they are needed. The exception of one item is the `error` of its result, and the others continue.
        Leaving the iteration, or its cancellation, cancels the calls in flight.

        Args:
            function: A function of an item that returns an awaitable, such as `session.cards.get`.
            items: The items, in any iterable.
            concurrency: How many calls to make at a time. None (default): as many as the service is found to accept.

        Yields:
            A `MapResult` for each item, in the order of completion. Where its `error` is None, `value` is the result.

        Raises:
            TypeError: `function` can't be one that is awaited, or has returned what can't be awaited.
            ValueError: `concurrency` is not a whole number of at least 1, or None.
            Exception: any error that the input raises, after the results of the items before it.
        """
        from boardclient.bulk._map import MapResults, check_mapped, map_calls  # for those who use it
        from boardclient.bulk._run import check_count

        check_count(concurrency, "concurrency")
        # Here, since a generator runs no line before it is asked for its first result.
        check_mapped(function, items)
        return MapResults(map_calls(self._pipeline, function, items, concurrency))

    def stats(self) -> SessionStats:
        """Return what the session and its views have done and are doing, in numbers."""
        return self._parts.stats()

    async def ping(self) -> float:
        """Read the member record (interface 4.11), and return the seconds that took.

        There is no retry. Success shows that the service responds and accepts the credentials.

        Raises:
            BoardClientError: the call failed.
        """
        began = time.perf_counter()
        # Without the policy, whose pauses would be measured as the service's time.
        await self.with_options(retry=None).members.me()
        return time.perf_counter() - began

    def redacted(self, value: T, *others: str) -> T:
        """Return a value of JSON with `***` in place of the key and the token.

        What is passed on to others, such as the member record, may hold them. They are found as errors find them: also
        percent-encoded, and escaped as in JSON or HTML.

        Args:
            value: A text, or lists and mappings of texts.
            others: Other secrets that are replaced as well.
        """
        return self._pipeline.redacted(value, others)

    @property
    def identity(self) -> Mapping[str, str]:
        """The service and the account that the calls go to, without credentials. A journal belongs to one identity."""
        return self._pipeline.identity

    @property
    def exchange(self) -> Exchange:
        """What sends forms on the pool, for `OAuthCredentials` outside of a call."""
        return self._parts

    def _discard(self) -> None:
        """Close a session that was never used, and has nothing to wait for."""
        self._parts.in_flight.close()

    async def aclose(self) -> None:
        """Close the session. Running calls and later ones raise `SessionClosedError`.

        It may be called several times. Closing a view has no effect.
        """
        if self._owns_parts:
            await self._parts.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        parts = getattr(self, "_parts", None)  # absent where __init__ refused its arguments
        if parts is not None and self._owns_parts and not parts.in_flight.is_closed:
            warnings.warn(
                "an AsyncSession was never closed: use `async with`, or await its aclose()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        if getattr(self, "_parts", None) is None:  # as in the frames of a constructor that refuses
            return "<AsyncSession, not built>"
        state = "closed" if self._parts.in_flight.is_closed else "open"
        view = "" if self._owns_parts else " view"
        return f"<AsyncSession{view} {state}, {len(self._parts.in_flight)} calls in flight, {self._parts.transport!r}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("an AsyncSession can't be pickled: build one where it is used")

    # --- calls

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Parameter | Sequence[Parameter] | None] | None = None,
        json: JsonValue = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Response:
        """Make a call that has no method of its own. It is signed, renewed and retried like all others.

        Args:
            method: The HTTP method. CONNECT and TRACE are refused.
            path: The path, which starts with "/1/".
            params: The query. A parameter with a list is sent once for each of its values, one that is None is not sent. None
                (default): no query but credentials.
            json: The body. None (default): no body.
            headers: Headers besides those of the session. Credentials, and headers that frame or encode a message, are refused.
                None (default): no others.
            repeatable: Whether a second request leaves the service in the same state as the first, for the retry policy. None
                (default): True for GET, PUT and DELETE.

        Raises:
            ApiError: the status is not a success.
            InvalidIdentifierError: the path holds the key or token of the call, which errors, logs and events would show.
            BoardClientError: the call failed in another way.
            TypeError, ValueError: it can't be sent, or holds a field `key` or `token`, or a header of the session's own.
        """
        return await self._pipeline.call(build_request(method, path, params, json, repeatable, headers))


def _policy(retry: AsyncRetrying | None) -> _retry.Policy | None:
    """Return the policy of a session, or None if none is wanted or it is disabled."""
    if retry is None:
        return None
    policy = _retry.Policy(retry)
    return policy if policy.is_enabled else None


_DEFAULTS: Final = {name: parameter.default for name, parameter in inspect.signature(AsyncSession).parameters.items()}
