"""The embedded service over HTTP. It applies the rules, plans which calls get faults, and records each call."""

from __future__ import annotations

import asyncio
import collections
import json
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypedDict, Unpack
from urllib.parse import parse_qsl

import attrs
from aiohttp import web

from boardclient._base._guards import check_notified
from boardclient.testing import faults
from boardclient.testing._oauth import Answer, Json, Member
from boardclient.testing._rules import FORMS, OPERATIONS, UNKNOWN, BoardRules, SeededBoard, operation_of
from boardclient.testing.faults import Fault, Stage

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials, Token, TokenStore
    from boardclient.session import SessionOptions

_HOST = "127.0.0.1"
_BACKSTOP_SECONDS = 0.05
_PLAYGROUND_SETTLE_SECONDS = 1.0


@attrs.define(kw_only=True, eq=False)
class Call:
    """One request that the service received.

    Attributes:
        operation: The operation, such as "cards.create", or "unknown".
        number: The number of the call among those of its operation, from 1.
        method: The HTTP method.
        path: The percent-encoded path.
        connection: The client's port, which is the same for calls on one connection.
        fault: The fault that was applied, or None.
        status: The status of the response, or None until one was sent.
        query: The decoded query parameters.
        headers: The headers, case-insensitive.
        body: The decoded JSON, the fields of a form, or the bytes if they are neither. None without a body.
    """

    operation: str
    number: int
    method: str
    path: str
    connection: int
    fault: Fault | None
    status: int | None = None
    query: Mapping[str, str] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: Json | bytes = attrs.field(repr=False)


@attrs.define(kw_only=True, eq=False)
class Planned:
    """One entry of a plan. `hits` counts the calls that got the fault."""

    fault: Fault
    operation: str | None
    calls: Container[int] | None
    times: int | None
    hits: int = 0

    def fits(self, operation: str, number: int) -> bool:
        """Return True if a call gets the fault."""
        if self.times is not None and self.hits >= self.times:
            return False
        return self.operation in (None, operation) and (self.calls is None or number in self.calls)


@attrs.define(eq=False)
class Faults:
    """The plan of which calls get which faults. Owned by the service.

    A call gets the fault of the first entry that fits. If none fits, the rate limit applies.

    ```python
    service.faults.add(faults.status(503), "members.me", times=1)
    service.faults.add(faults.drop(commit=True), "cards.create", call=3)
    ```
    """

    clock: Callable[[], float] = time.monotonic
    planned: list[Planned] = attrs.field(init=False, factory=list)
    _limit: faults.rate_limit | None = attrs.field(init=False, default=None)
    _level: float = attrs.field(init=False, default=0.0)
    _filled_at: float = attrs.field(init=False, default=0.0)

    status: ClassVar[type[faults.status]] = faults.status
    drop: ClassVar[type[faults.drop]] = faults.drop
    delay_answer: ClassVar[type[faults.delay_answer]] = faults.delay_answer
    delay_commit: ClassVar[type[faults.delay_commit]] = faults.delay_commit
    hang: ClassVar[type[faults.hang]] = faults.hang
    truncated: ClassVar[type[faults.truncated]] = faults.truncated
    foreign_body: ClassVar[Callable[..., faults.status]] = staticmethod(faults.foreign_body)
    slow_body: ClassVar[type[faults.slow_body]] = faults.slow_body
    redirect: ClassVar[Callable[..., faults.status]] = staticmethod(faults.redirect)

    def add(
        self, fault: Fault, operation: str | None = None, *, call: int | Iterable[int] | None = None, times: int | None = None
    ) -> Planned:
        """Apply a fault to future calls, and return the entry of the plan.

        Args:
            fault: The fault, such as `faults.status(503)`.
            operation: The operation whose calls get it, such as "cards.create". None, the default, means all operations.
            call: The number, or numbers, of the calls that get it. Calls are counted for each operation, from 1. None, the
                default, means all calls.
            times: The largest number of calls that get it. None, the default, means any number.

        Raises:
            ValueError: the service has no such operation, or `call` or `times` is less than 1.
            TypeError: `call` or `times` is not a whole number, or `fault` makes faults and is not one.
        """
        if isinstance(fault, type) or not callable(getattr(fault, "play", None)):
            raise TypeError(f"expected a fault such as faults.drop(), not {fault!r}")
        if operation is not None and operation not in OPERATIONS | {UNKNOWN}:
            raise ValueError(f"{operation!r} is not an operation of the service: use one of {', '.join(sorted(OPERATIONS))}")
        # A range stays one, since it may be as long as `range(100, 10**9, 100)`. Its first number is its smallest.
        calls = call if call is None or isinstance(call, range) else frozenset({call} if isinstance(call, int | str) else call)
        for number in (1 if times is None else times, *(calls[:1] if isinstance(calls, range) else calls or ())):
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"call and times must be whole numbers, not {number!r}")
            if number < 1:
                raise ValueError(f"call and times count from 1: with {number} no call gets the fault")
        planned = Planned(fault=fault, operation=operation, calls=calls, times=times)
        self.planned.append(planned)
        return planned

    def remove(self, planned: Planned) -> None:
        """Remove an entry from the plan.

        Raises:
            ValueError: it is not in the plan.
        """
        self.planned.remove(planned)

    def clear(self) -> None:
        """Remove all entries and the rate limit."""
        self.planned.clear()
        self._limit = None

    @property
    def rate_limit(self) -> faults.rate_limit | None:
        """The rate limit that the service enforces, or None. Setting it fills the bucket."""
        return self._limit

    @rate_limit.setter
    def rate_limit(self, limit: faults.rate_limit | None) -> None:
        self._limit = limit
        self._level = 0.0 if limit is None else float(limit.burst)
        self._filled_at = self.clock()

    def meet(self, operation: str, number: int) -> Fault | None:
        """Return the fault that a call gets, or None, and count the call."""
        # Planned faults come first, and take nothing from the bucket: a test knows which call gets them.
        for planned in self.planned:
            if planned.fits(operation, number):
                planned.hits += 1
                return planned.fault
        limit = self._limit
        if limit is None:
            return None
        now = self.clock()
        self._level = min(float(limit.burst), self._level + (now - self._filled_at) * limit.per_second)
        self._filled_at = now
        if self._level < 1.0:
            return limit
        self._level -= 1.0
        return None


class OAuthOptions(TypedDict, total=False):
    """The options of `OAuthCredentials`. The service has defaults for those that it knows."""

    client_id: str
    client_secret: str
    redirect_uri: str
    auth_url: str
    authorize: Callable[[AuthorizationRequest], Awaitable[str]] | None
    key: str | None
    store: TokenStore | None
    account: str
    service: str | None
    login_url: str | None
    authorize_timeout: float
    cooldown: float
    renew_before_expiry: float | None
    parse_token: Callable[[Mapping[str, object]], Token] | None
    clock: Callable[[], float]


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)  # tests replace its methods
class BoardService:
    """The service of the interface document on a loopback port, for tests and trials.

    `async with` runs it in the running event loop. `with` runs it in a thread with its own event loop, for any kind of test.
    `faults` plans what goes wrong, `calls` has the requests, and `rules` has the stored boards, lists and cards. A closed service
    can be entered again, with the same port and data.

    ```python
    async with BoardService() as service, service.session() as session:
        board = service.seed({"To Do": ["Book the hall"]})
        print(await session.boards.cards(board.id), service.calls_of("boards.cards"))
    ```

    Args:
        port: The port on 127.0.0.1. 0, the default, means any free port.
        members: The names of the members, to whom tokens belong. One member by default.
        redirect_uri: The registered redirect URI of the client. `https://application.example/callback` by default.
        token_lifetime: The seconds until a token expires. None, the default, means never.
        clock: Returns the service's time in seconds. `time.monotonic` by default.
        sleep: Waits for a number of seconds. `asyncio.sleep` by default.
        organizations: The identifiers of the organizations that exist. None by default.
        scopes: The scopes that a token can have. `read` and `write` by default.
        shape: A function that gets the operation and the JSON of each success, and returns the JSON to send instead. None by
            default.
        latency: The seconds by which each call is delayed before it is carried out. 0 by default.
        on_call: A function that is called in the service's event loop with each `Call` when it has ended. None by default.

    Raises:
        TypeError, ValueError: `members`, `organizations` or `scopes` is not a list of names, or there is no member.
    """

    port: int = 0
    member_names: Iterable[str] = attrs.field(default=("A Member",), alias="members")
    redirect_uri: str = "https://application.example/callback"
    """The registered redirect URI of the client."""
    token_lifetime: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    organizations: Iterable[str] = ()
    scopes: Iterable[str] = ("read", "write")
    shape: Callable[[str, Json], Json] | None = None
    latency: float = 0.0
    on_call: Callable[[Call], None] | None = None
    rules: BoardRules = attrs.field(init=False)
    faults: Faults = attrs.field(init=False)
    calls: list[Call] = attrs.field(init=False, factory=list)
    key: str = attrs.field(init=False)
    """The API key."""
    token: str = attrs.field(init=False)
    """An access token that the service accepts."""
    client_id: str = attrs.field(init=False)
    """The client identifier for the token exchange."""
    client_secret: str = attrs.field(init=False)
    """The client secret for the token exchange."""
    _counts: collections.Counter[str] = attrs.field(init=False, factory=collections.Counter)
    _waiters: list[tuple[str, int, Future[Call]]] = attrs.field(init=False, factory=list)
    _lock: threading.RLock = attrs.field(init=False, factory=threading.RLock)
    _tasks: set[asyncio.Task[object]] = attrs.field(init=False, factory=set)
    _transports: weakref.WeakSet[asyncio.Transport] = attrs.field(init=False, factory=weakref.WeakSet)
    _server: web.Server | None = attrs.field(init=False, default=None)
    _listener: asyncio.Server | None = attrs.field(init=False, default=None)
    _thread: tuple[threading.Thread, Callable[[], object]] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        if self.on_call is not None:
            check_notified(self.on_call, "on_call")
        self.faults = Faults(self.clock)
        self.rules = BoardRules(
            clock=self.clock,
            members=self.member_names,
            redirect_uri=self.redirect_uri,
            token_lifetime=self.token_lifetime,
            organizations=self.organizations,
            scopes=self.scopes,
            shape=self.shape,
        )
        self.key, self.token = self.rules.key, self.rules.token
        self.client_id, self.client_secret = self.rules.client_id, self.rules.client_secret

    def __repr__(self) -> str:
        return f"BoardService(port={self.port}, calls={len(self.calls)}, rules={self.rules!r})"

    # --- what clients need

    @property
    def base_url(self) -> str:
        """The address of the resource operations. Its port is known once the service runs."""
        return f"http://{_HOST}:{self.port}"

    @property
    def auth_url(self) -> str:
        """The address of the token exchange."""
        return f"{self.base_url}/auth"

    @property
    def authorize_url(self) -> str:
        """The address of the page on which a user gives consent.

        It takes the parameters of RFC 6749, section 4.1.1, and RFC 7636. The interface does not describe this page (5.10).
        """
        return f"{self.auth_url}/authorize"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which an application uses this service.

        `BOARDCLIENT_COOKIE_SECRET` is not among them.
        """
        return {
            "BOARDCLIENT_BASE_URL": self.base_url,
            "BOARDCLIENT_AUTH_URL": self.auth_url,
            "BOARDCLIENT_KEY": self.key,
            "BOARDCLIENT_TOKEN": self.token,
            "BOARDCLIENT_CLIENT_ID": self.client_id,
            "BOARDCLIENT_CLIENT_SECRET": self.client_secret,
            "BOARDCLIENT_REDIRECT_URI": self.redirect_uri,
            "BOARDCLIENT_AUTHORIZE_URL": self.authorize_url,
        }

    async def authorize(self, request: AuthorizationRequest) -> str:
        """Return a code at once, as the `authorize` callback of `OAuthCredentials`."""
        return self.new_code()

    def oauth_credentials(self, **options: Unpack[OAuthOptions]) -> OAuthCredentials:
        """Return OAuth credentials of the client that is registered with this service.

        Args:
            options: The options of `OAuthCredentials`. They replace those that the service knows.
        """
        from boardclient import OAuthCredentials

        given = {
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "redirect_uri": self.redirect_uri,
            "auth_url": self.auth_url,
            "authorize": self.authorize,
            "key": self.key,
        }
        return OAuthCredentials(**{**given, **options})  # type: ignore[arg-type]  # -- OAuthCredentials checks them

    def session(self, credentials: CredentialProvider | None = None, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return a session for this service. The caller closes it.

        Args:
            credentials: The credentials. By default the service's key and the first member's token.
            options: The options of `AsyncSession`.
        """
        from boardclient import AsyncSession, StaticCredentials

        given = StaticCredentials(token=self.token, key=self.key) if credentials is None else credentials
        return AsyncSession(given, **{"base_url": self.base_url, **options})  # type: ignore[arg-type]  # -- AsyncSession checks them

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, each with `id` and `name`. `token` belongs to the first one."""
        return self.rules.members

    def new_code(self, *, scopes: Iterable[str] | None = None, member: str | None = None) -> str:
        """Return an authorization code for one token exchange.

        Args:
            scopes: The scopes of the token. By default all scopes of the service.
            member: The name or identifier of the member who gives consent. By default the first member.

        Raises:
            LookupError: there is no such member.
        """
        return self.rules.new_code(scopes=scopes, member=member)

    # --- what tests do and see

    def seed(self, lists: Mapping[str, Iterable[str]], name: str = "Board") -> SeededBoard:
        """Create a board with lists and cards, without a request.

        Args:
            lists: The names of the cards in each list, by the name of the list: `{"To Do": ["Book the hall"]}`.
            name: The name of the board. "Board" by default.

        Raises:
            TypeError: `lists` is no mapping of names to lists of names.
        """
        with self._lock:
            return self.rules.seed(lists, name)

    def assert_no_duplicates(self) -> None:
        """Check that no two cards have the same list, name, description and due date.

        Raises:
            AssertionError: there are such cards. The message names them.
        """
        with self._lock:  # the service's own thread may be handling requests
            cards = [*self.rules.cards.values()]
        counts = collections.Counter((card.list_id, card.name, card.desc, card.due) for card in cards)
        twice = [f"{number} x {name!r} in list {card_list}" for (card_list, name, _, _), number in counts.items() if number > 1]
        if twice:
            raise AssertionError(f"cards exist more than once: {'; '.join(twice)}")

    def calls_of(self, operation: str) -> list[Call]:
        """Return the calls of one operation, in the order in which they were received."""
        return [call for call in self.calls if call.operation == operation]

    async def received(self, operation: str, number: int = 1) -> Call:
        """Wait until a call was received, and return it. Its response may not have been sent.

        It may be awaited in any event loop.

        Args:
            operation: The operation, such as "cards.create".
            number: The number of the call among those of the operation, from 1. 1 by default.
        """
        with self._lock:
            for call in self.calls:
                if call.operation == operation and call.number == number:
                    return call
            waiting: Future[Call] = Future()
            self._waiters.append((operation, number, waiting))
        return await asyncio.wrap_future(waiting)

    # --- from its start to its end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        started: Future[Callable[[], object]] = Future()
        thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="board-service", daemon=True)
        thread.start()
        try:
            self._thread = thread, started.result()
        except Exception:
            thread.join()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._thread is not None:
            thread, end = self._thread
            self._thread = None
            end()
            thread.join()

    async def _run(self, started: Future[Callable[[], object]]) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            await self.start()
        except Exception as error:  # raised in the thread of the caller
            started.set_exception(error)
            return
        started.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        await self.stop()

    async def start(self) -> None:
        """Start listening.

        Raises:
            RuntimeError: the service is already running.
            OSError: the port is in use.
        """
        if self._server is not None:
            raise RuntimeError("this service is already running: stop it first, or make another one")
        # The low-level server, since a router would respond to unknown paths itself, without a fault and without a `Call`.
        server = web.Server(self._handle, access_log=None)
        self._listener = await asyncio.get_running_loop().create_server(server, _HOST, self.port)
        self._server = server
        self.port = self._listener.sockets[0].getsockname()[1]
        self.rules.address = self.base_url

    async def stop(self) -> None:
        """Close the listener and all connections at once.

        Requests that hang are cancelled. Calling it again does nothing.
        """
        server, listener = self._server, self._listener
        if server is None or listener is None:
            return
        self._server = self._listener = None
        listener.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Also connections over which no request has come yet, which no handler knows.
        self._transports.update(connection.transport for connection in server.connections if connection.transport is not None)
        server.pre_shutdown()
        await server.shutdown(_BACKSTOP_SECONDS)
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None and request.transport is not None  # noqa: S101, PT018 -- for the type checker: a request has both
        self._tasks.add(task)
        self._transports.add(request.transport)
        try:
            return await self._respond(request)
        except ConnectionError:  # the client has closed the connection
            return web.Response()
        finally:
            self._tasks.discard(task)

    # --- a request

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        operation, _ = operation_of(request.method, request.rel_url.raw_path)
        raw = await _read_body(request)
        call = self._arrived(request, operation, _decoded(raw, request.content_type, form=operation in FORMS))
        stage = Stage(
            request,
            commit_with=lambda: self._commit(call),
            on_status=lambda status: setattr(call, "status", status),
            sleep=lambda seconds: self.sleep(seconds),  # tests replace it
        )
        try:
            if self.latency:
                await stage.sleep(self.latency)
            await (stage.reply_answer() if call.fault is None else call.fault.play(stage))
        finally:
            if self.on_call is not None:
                self.on_call(call)
        return stage.response

    def _arrived(self, request: web.BaseRequest, operation: str, body: Json | bytes) -> Call:
        with self._lock:
            self._counts[operation] += 1
            number = self._counts[operation]
            call = Call(
                operation=operation,
                number=number,
                method=request.method,
                path=request.rel_url.raw_path,
                connection=request.get_extra_info("peername")[1],
                fault=self.faults.meet(operation, number),
                query=dict(request.query),
                headers=request.headers,
                body=body,
            )
            self.calls.append(call)
            for waiter in [one for one in self._waiters if one[:2] == (operation, number)]:
                self._waiters.remove(waiter)
                # False if nobody waits any more: setting a result would raise an error then.
                if waiter[2].set_running_or_notify_cancel():
                    waiter[2].set_result(call)
        return call

    def _commit(self, call: Call) -> Answer:
        with self._lock:
            return self.rules.answer(call.method, call.path, call.query, call.body)


async def _read_body(request: web.BaseRequest) -> bytes:
    """Read the whole body of a request. `request.read` would refuse one of more than 1 MiB."""
    return b"".join([part async for part in request.content.iter_any()])


def _decoded(raw: bytes, content_type: str, *, form: bool) -> Json | bytes:
    if not raw:
        return None
    try:
        if form and content_type == "application/x-www-form-urlencoded":
            return dict(parse_qsl(raw.decode(), keep_blank_values=True))
        if not form and content_type == "application/json":
            decoded: Json = json.loads(raw)
            return decoded
    except (ValueError, RecursionError):
        pass
    return raw


class Playground(NamedTuple):
    """An embedded service, and an open session that uses it."""

    service: BoardService
    session: AsyncSession


@asynccontextmanager
async def playground(service: BoardService | None = None) -> AsyncIterator[Playground]:
    """Run an embedded service and open a session that uses it, both for one block.

    ```python
    async with playground() as play:
        session = play.session
        board = await session.boards.create("Roadmap", default_lists=True)
        print(board.name)
    ```

    Where a call names no `settle`, it is one second: the embedded service commits at once.

    Args:
        service: The service to run. By default a `BoardService()` with its default options.

    Raises:
        OSError: the service's port is in use.
    """
    async with service or BoardService() as running, running.session() as session:
        session._parts.settle_seconds = _PLAYGROUND_SETTLE_SECONDS
        yield Playground(running, session)
