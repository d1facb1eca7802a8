"""The embedded service over HTTP. It applies the rules and the faults, and records each call."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import threading
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import parse_qsl

import attrs
from aiohttp import web

from boardclient.testing import _pages
from boardclient.testing._http import HttpStage, LoopbackServer, ServiceClock, read_body
from boardclient.testing._oauth import Answer, ExchangeAnswer, Json, Member
from boardclient.testing._rules import AUTH_PREFIX, FORMS, BoardRules, SeededBoard, operation_of
from boardclient.testing.faults import Fault, Faults

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials, Token, TokenStore
    from boardclient.session import SessionOptions


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
    login_url: str | None
    authorize_timeout: float
    cooldown: float
    renew_before_expiry: float | None
    parse_token: Callable[[Mapping[str, object]], Token] | None
    clock: Callable[[], float]


class ServiceEndpoint(Protocol):
    """The addresses and credentials of a service, and sessions for it."""

    key: str
    """The API key."""
    token: str
    """An access token that the service accepts."""
    client_id: str
    """The client identifier for the token exchange."""
    client_secret: str
    """The client secret for the token exchange."""
    redirect_uri: str
    """The redirect URI for the token exchange."""

    @property
    @abstractmethod
    def base_url(self) -> str:
        """The address of the resource operations. Its port is known once the service runs."""

    @property
    def auth_url(self) -> str:
        """The address of the token exchange."""
        return self.base_url + AUTH_PREFIX

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

    @abstractmethod
    def new_code(self) -> str:
        """Return an authorization code for one token exchange."""

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


_CREDENTIALS = ("key", "token", "client_id", "client_secret", "code")


@attrs.frozen(kw_only=True)
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


_T = TypeVar("_T")


@attrs.frozen
class _Waiter:
    operation: str
    number: int
    future: asyncio.Future[Call]


@attrs.define(kw_only=True, eq=False, repr=False)
class BoardService(LoopbackServer, ServiceEndpoint):
    """The service of the interface document on a loopback port, for tests and trials.

    `async with` runs it in the running event loop. `with` runs it in a thread with its own event loop, for any kind of test.
    `faults` plans what goes wrong, `calls` has the requests, and `rules` has the stored boards, lists and cards. A closed service
    can be entered again, with the same port and data.

    Args:
        port: The port on 127.0.0.1. 0, the default, means any free port.
        members: The names of the members, to whom tokens belong. One member by default.
        redirect_uri: The registered redirect URI of the client. `https://application.example/callback` by default.
        token_lifetime: The seconds until a token expires. None, the default, means never.
        clock: Returns the real time in seconds. `time.monotonic` by default; `advance` moves the service's time ahead of it.
        sleep: Waits for a number of real seconds. `asyncio.sleep` by default.
        organizations: The identifiers of the organizations that exist. None by default.
        scopes: The scopes that a token can have. `read` and `write` by default.
        errors: The form of errors, "json" by default, or "text".
        exchange_answer: The form of the token exchange's response: "rfc6749" (the default), "token" for `{"token": …}`, or "form"
            for the fields of RFC 6749 form-encoded.
        shape: A function that gets the operation and the JSON of each success, and returns the JSON to send instead. None by
            default.
        keepalive_timeout: The seconds for which an idle connection is kept. 75 by default.
        max_body_bytes: The largest body of a request in bytes, 1 MiB by default. A larger one is refused with 413.
        latency: The seconds by which each call is delayed before it is carried out. 0 by default.
        on_call: A function that is called in the service's event loop with each `Call`, when its response begins or it ends
            without one. None by default.

    Raises:
        TypeError, ValueError: `members` is not a list of names, or is empty.
    """

    member_names: Iterable[str] = attrs.field(default=("A Member",), alias="members")
    redirect_uri: str = "https://application.example/callback"
    token_lifetime: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    organizations: Iterable[str] = ()
    scopes: Iterable[str] = ("read", "write")
    errors: Literal["json", "text"] = "json"
    exchange_answer: ExchangeAnswer = "rfc6749"
    shape: Callable[[str, Json], Json] | None = None
    max_body_bytes: int = 2**20
    latency: float = 0.0
    on_call: Callable[[Call], None] | None = None
    key: str = attrs.field(init=False)
    token: str = attrs.field(init=False)
    client_id: str = attrs.field(init=False)
    client_secret: str = attrs.field(init=False)
    rules: BoardRules = attrs.field(init=False)
    faults: Faults = attrs.field(init=False)
    calls: list[Call] = attrs.field(init=False, factory=list)
    _counts: collections.Counter[str] = attrs.field(init=False, factory=collections.Counter)
    _waiters: list[_Waiter] = attrs.field(init=False, factory=list)
    _lock: threading.RLock = attrs.field(init=False, factory=threading.RLock)
    _time: ServiceClock = attrs.field(init=False)
    _unsettled: list[asyncio.Future[None]] = attrs.field(init=False, factory=list)
    _stages: set[HttpStage] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._time = ServiceClock(self.clock, lambda seconds: self.sleep(seconds))
        self.faults = Faults(self._time)
        self.rules = BoardRules(
            clock=self._time,
            members=self.member_names,
            redirect_uri=self.redirect_uri,
            token_lifetime=self.token_lifetime,
            organizations=self.organizations,
            scopes=self.scopes,
            errors=self.errors,
            exchange_answer=self.exchange_answer,
            shape=self.shape,
        )
        self.key, self.token = self.rules.key, self.rules.token
        self.client_id, self.client_secret = self.rules.client_id, self.rules.client_secret

    def __repr__(self) -> str:
        return f"BoardService(port={self.port}, calls={len(self.calls)}, rules={self.rules!r})"

    async def start(self) -> None:
        """Start listening.

        Raises:
            RuntimeError: the service is already running.
            OSError: the port is in use.
        """
        await LoopbackServer.start(self)
        self.rules.address = self.base_url

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, each with `id` and `name`. `token` belongs to the first one."""
        return self.rules.members

    @property
    def requests(self) -> int:
        """How many requests were received."""
        return len(self.calls)

    def new_code(self, *, scopes: Iterable[str] | None = None, member: str | None = None) -> str:
        """Return an authorization code for one token exchange.

        Args:
            scopes: The scopes of the token. By default all scopes of the service.
            member: The name or identifier of the member who gives consent. By default the first member.

        Raises:
            LookupError: there is no such member.
        """
        return self.rules.new_code(scopes=scopes, member=member)

    def seed(self, lists: Mapping[str, Iterable[str]], name: str = "Board") -> SeededBoard:
        """Create a board with lists and cards, without a request.

        Args:
            lists: The names of the cards in each list, by the name of the list: `{"To Do": ["Book the hall"]}`.
            name: The name of the board. "Board" by default.
        """
        with self._lock:
            return self.rules.seed(lists, name)

    def advance(self, seconds: float) -> None:
        """Move the service's time forward.

        Tokens expire, rate limits refill, and delays of the service end accordingly. The client's timeouts and pauses are not
        affected.

        Args:
            seconds: The number of seconds, at least 0.

        Raises:
            ValueError: `seconds` is negative.
        """
        self._time.advance(seconds)

    def assert_no_duplicates(self) -> None:
        """Check that no two cards have the same list, name, description and due date.

        After requests that the client gave up, `await service.settled()` first: they may still create cards.

        Raises:
            AssertionError: there are such cards. The message names them.
        """
        with self._lock:  # the service's own thread may be handling requests
            cards = [*self.rules.cards.values()]
        counts = collections.Counter((card.list_id, card.name, card.desc, card.due) for card in cards)
        twice = [f"{number} x {name!r} in list {card_list}" for (card_list, name, _, _), number in counts.items() if number > 1]
        if twice:
            raise AssertionError(f"cards exist more than once: {'; '.join(twice)}")

    def assert_no_credential_in_url_with_body(self) -> None:
        """Check that no request with a body had a credential in its URL.

        Raises:
            AssertionError: some requests had. The message names the calls, not the values.
        """
        leaks = [call for call in [*self.calls] if call.body is not None and any(name in call.query for name in _CREDENTIALS)]
        if leaks:
            raise AssertionError(f"credentials in the address of {', '.join(f'{c.operation} {c.number}' for c in leaks)}")

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
            waiter = _Waiter(operation, number, asyncio.get_running_loop().create_future())
            self._waiters.append(waiter)
        return await waiter.future

    async def settled(self) -> None:
        """Wait until no request that was received can change anything any more.

        It may be awaited in any event loop. Delays by faults are waited for, on the service's clock, which `advance` moves.
        Requests that hang forever are not waited for.
        """
        with self._lock:
            if all(stage.is_settled for stage in self._stages):
                return
            waiting = asyncio.get_running_loop().create_future()
            self._unsettled.append(waiting)
        await waiting

    def _check_settled(self) -> None:
        with self._lock:
            if self._unsettled and all(stage.is_settled for stage in self._stages):
                for future in self._unsettled:
                    _call_in_loop_of(future, None)
                self._unsettled.clear()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        stage = HttpStage(request, self._time.sleep)
        stage.on_settled = self._check_settled
        with self._lock:
            self._stages.add(stage)
        try:
            with contextlib.suppress(ConnectionError):
                await self._serve(request, stage)
        finally:
            with self._lock:
                self._stages.discard(stage)
            self._check_settled()
        return stage.response

    async def _serve(self, request: web.BaseRequest, stage: HttpStage) -> None:
        path = request.rel_url.raw_path
        if _pages.is_page(request.method, path):
            with self._lock:
                shown = _pages.show(self.rules, path, whole="content" not in request.query)
            stage.on_status = lambda status: None
            await stage.reply(shown.status, *stage.encode(shown))
            return
        operation, _ = operation_of(request.method, path)
        raw = await read_body(request, self.max_body_bytes)
        body = None if raw is None else _decoded(raw, request.content_type, form=operation in FORMS)
        index, call = self._arrived(request, operation, body)
        stage.commit_with = lambda: self._response_to(call)
        stage.on_status = lambda status: self._record(index, call, status)
        try:
            await self._play(stage, call, is_too_long=raw is None)
        finally:
            if self.on_call is not None and not stage.has_begun:
                self.on_call(call)

    async def _play(self, stage: HttpStage, call: Call, *, is_too_long: bool) -> None:
        if self.latency:
            await stage.sleep(self.latency)
        if is_too_long:
            await stage.reply(413, b"", {"Connection": "close"})
        else:
            await (stage.reply_answer() if call.fault is None else call.fault.play(stage))

    def _arrived(self, request: web.BaseRequest, operation: str, body: Json | bytes) -> tuple[int, Call]:
        peer = request.get_extra_info("peername")
        with self._lock:
            self._counts[operation] += 1
            number = self._counts[operation]
            call = Call(
                operation=operation,
                number=number,
                method=request.method,
                path=request.rel_url.raw_path,
                connection=peer[1],
                fault=self.faults.meet(operation, number),
                query=dict(request.query),
                headers=request.headers,
                body=body,
            )
            self.calls.append(call)
            self._wake(call)
            return len(self.calls) - 1, call

    def _response_to(self, call: Call) -> Answer:
        with self._lock:
            return self.rules.answer(call.method, call.path, call.query, call.body)

    def _wake(self, call: Call) -> None:
        for waiter in [*self._waiters]:
            if (waiter.operation, waiter.number) == (call.operation, call.number):
                self._waiters.remove(waiter)
                _call_in_loop_of(waiter.future, call)

    def _record(self, index: int, call: Call, status: int) -> None:
        if index < len(self.calls) and self.calls[index] is call:
            call = self.calls[index] = attrs.evolve(call, status=status)
        if self.on_call is not None:
            self.on_call(call)


def _call_in_loop_of(future: asyncio.Future[_T], value: _T) -> None:
    with contextlib.suppress(RuntimeError):  # the waiter's loop is closed
        future.get_loop().call_soon_threadsafe(_resolve, future, value)


def _resolve(future: asyncio.Future[_T], value: _T) -> None:
    if not future.done():
        future.set_result(value)


def _decoded(raw: bytes, content_type: str, *, form: bool) -> Json | bytes:
    if not raw:
        return None
    try:
        if form and content_type == "application/x-www-form-urlencoded":
            return dict(parse_qsl(raw.decode(), keep_blank_values=True))
        if not form and content_type == "application/json":
            decoded: Json = json.loads(raw)
            return decoded
    except ValueError:
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
    async with playground() as (service, session):
        board = await session.boards.create("Roadmap", default_lists=True)
        print(board.url)  # a page that shows the board while the block runs
    ```

    Args:
        service: The service to run. By default a `BoardService()` with its default options.

    Raises:
        OSError: the service's port is in use.
    """
    async with service or BoardService() as running, running.session() as session:
        yield Playground(running, session)
