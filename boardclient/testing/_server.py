"""The service's HTTP face on a real loopback socket: requests to the rules, faults to the wire, a record of every call."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import parse_qsl

import attrs
from aiohttp import web

from boardclient.testing._records import Json
from boardclient.testing._rules import AUTH_PREFIX, BoardRules, ExchangeAnswer, operation_of
from boardclient.testing._stage import Stage
from boardclient.testing.faults import Fault, Faults

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials

_HOST = "127.0.0.1"
_BACKSTOP_SECONDS = 0.05
_CREDENTIALS = ("key", "token", "client_id", "client_secret", "code")


@attrs.frozen(kw_only=True)
class Call:
    """One request as the service saw it. `status` is None as long as, or since, it was not answered.

    `number` counts the calls of its operation from 1; `connection` is the client's port, alike for calls on one connection;
    `body` is the decoded JSON, the fields of a form, or the bytes where they are neither.
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


@attrs.frozen
class _Waiter:
    operation: str
    number: int
    future: asyncio.Future[Call]


@attrs.define(kw_only=True, eq=False, repr=False)
class BoardService:
    """The service of the interface document, embedded, on a loopback port.

    Its owner is whoever enters it: `async with` runs it on the running loop, plain `with` in a thread with a loop of its own,
    from where it serves any test. `faults` says what goes wrong, `calls` what was asked, `rules` what the service holds. Closed,
    it may be entered again: on the same port, with what it held.
    """

    port: int = 0
    token_lifetime: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    organizations: Iterable[str] = ()
    scopes: Iterable[str] = ("read", "write")
    errors: Literal["json", "text"] = "json"
    exchange_answer: ExchangeAnswer = "rfc6749"
    shape: Callable[[str, Json], Json] | None = None
    keepalive_timeout: float = 75.0
    rules: BoardRules = attrs.field(init=False)
    faults: Faults = attrs.field(init=False)
    calls: list[Call] = attrs.field(init=False, factory=list)
    _counts: collections.Counter[str] = attrs.field(init=False, factory=collections.Counter)
    _waiters: list[_Waiter] = attrs.field(init=False, factory=list)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _tasks: set[asyncio.Task[object]] = attrs.field(init=False, factory=set)
    _transports: weakref.WeakSet[asyncio.Transport] = attrs.field(init=False, factory=weakref.WeakSet)
    _server: web.Server | None = attrs.field(init=False, default=None)
    _listener: asyncio.Server | None = attrs.field(init=False, default=None)
    _thread: tuple[threading.Thread, Callable[[], object]] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.faults = Faults(self.clock)
        self.rules = BoardRules(
            clock=self.clock,
            token_lifetime=self.token_lifetime,
            organizations=self.organizations,
            scopes=self.scopes,
            errors=self.errors,
            exchange_answer=self.exchange_answer,
            shape=self.shape,
        )

    def __repr__(self) -> str:
        return f"BoardService(port={self.port}, calls={len(self.calls)}, rules={self.rules!r})"

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
        except Exception as error:  # whatever it is, the one who waits is to hear of it
            started.set_exception(error)
            return
        started.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        await self.stop()

    async def start(self) -> None:
        """Listen.

        Raises:
            RuntimeError: the service runs already.
            OSError: the port is taken.
        """
        if self._server is not None:
            raise RuntimeError("this service runs already")
        server = web.Server(self._handle, access_log=None, keepalive_timeout=self.keepalive_timeout)
        self._listener = await asyncio.get_running_loop().create_server(server, _HOST, self.port)
        self._server = server
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and every connection, at once, whatever hangs; a second call changes nothing."""
        server, listener = self._server, self._listener
        if server is None or listener is None:
            return
        self._server = self._listener = None
        listener.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._transports.update(connection.transport for connection in server.connections if connection.transport is not None)
        server.pre_shutdown()
        await server.shutdown(_BACKSTOP_SECONDS)
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def base_url(self) -> str:
        """Where the resource operations are; known once the service runs."""
        return f"http://{_HOST}:{self.port}"

    @property
    def auth_url(self) -> str:
        """Where the token exchange is."""
        return self.base_url + AUTH_PREFIX

    @property
    def key(self) -> str:
        """The API key."""
        return self.rules.key

    @property
    def token(self) -> str:
        """An access token that the service accepts."""
        return self.rules.token

    @property
    def client_id(self) -> str:
        """The client identifier for the token exchange."""
        return self.rules.client_id

    @property
    def client_secret(self) -> str:
        """The client secret for the token exchange."""
        return self.rules.client_secret

    @property
    def redirect_uri(self) -> str:
        """The redirect URI for the token exchange."""
        return self.rules.redirect_uri

    @property
    def requests(self) -> int:
        """How many requests were received."""
        return len(self.calls)

    def new_code(self, *, scopes: Iterable[str] | None = None) -> str:
        """Give an authorization code, for one token exchange."""
        return self.rules.new_code(scopes=scopes)

    async def authorize(self, request: AuthorizationRequest) -> str:
        """Give a code, as the `authorize` of an application whose user consents at once."""
        return self.new_code()

    def oauth_credentials(self, **options: object) -> OAuthCredentials:
        """Build the credentials of this service's registered client; the options are those of `OAuthCredentials`."""
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

    def session(self, credentials: CredentialProvider | None = None, **options: object) -> AsyncSession:
        """Build a session for this service; its options are those of `AsyncSession`, and whoever asked closes it."""
        from boardclient import AsyncSession, StaticCredentials

        given = StaticCredentials(token=self.token, key=self.key) if credentials is None else credentials
        return AsyncSession(given, **{"base_url": self.base_url, **options})  # type: ignore[arg-type]  # -- AsyncSession checks them

    def calls_of(self, operation: str) -> list[Call]:
        """List the calls of one operation, in the order of their arrival."""
        return [call for call in self.calls if call.operation == operation]

    async def received(self, operation: str, number: int = 1) -> Call:
        """Wait until a call has arrived, answered or not; from any loop."""
        with self._lock:
            for call in self.calls:
                if call.operation == operation and call.number == number:
                    return call
            waiter = _Waiter(operation, number, asyncio.get_running_loop().create_future())
            self._waiters.append(waiter)
        return await waiter.future

    def assert_no_duplicates(self) -> None:
        """Check that no two cards are alike in list, name, description and due date.

        Raises:
            AssertionError: some are; the message names them.
        """
        counts = collections.Counter((card.list_id, card.name, card.desc, card.due) for card in self.rules.cards.values())
        twice = [f"{number} x {name!r} in list {home}" for (home, name, _, _), number in counts.items() if number > 1]
        if twice:
            raise AssertionError(f"cards exist more than once: {'; '.join(twice)}")

    def assert_no_credential_in_url_with_body(self) -> None:
        """Check that no request with a body had a credential in its address.

        Raises:
            AssertionError: some had; the message names the calls, not the values.
        """
        leaks = [call for call in self.calls if call.body is not None and any(name in call.query for name in _CREDENTIALS)]
        if leaks:
            raise AssertionError(f"credentials in the address of {', '.join(f'{c.operation} {c.number}' for c in leaks)}")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None and request.transport is not None  # noqa: S101, PT018 -- for the type checker: a request has both
        self._tasks.add(task)
        self._transports.add(request.transport)
        stage = Stage(request, self.sleep)
        try:
            with contextlib.suppress(ConnectionError):
                await self._serve(request, stage)
        finally:
            self._tasks.discard(task)
        return stage.response

    async def _serve(self, request: web.BaseRequest, stage: Stage) -> None:
        peer = request.get_extra_info("peername")
        operation, _ = operation_of(request.method, request.rel_url.raw_path)
        body = _decoded(await request.content.read(), request.content_type, form=operation == "token.exchange")
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
            index = len(self.calls)
            self.calls.append(call)
            self._wake(call)
        stage.commit_with = lambda: self.rules.answer(call.method, call.path, call.query, call.body)
        stage.on_status = lambda status: self._record(index, call, status)
        await (stage.reply_answer() if call.fault is None else call.fault.play(stage))

    def _wake(self, call: Call) -> None:
        for waiter in [*self._waiters]:
            if (waiter.operation, waiter.number) == (call.operation, call.number):
                self._waiters.remove(waiter)
                with contextlib.suppress(RuntimeError):  # the loop of the one who waited is closed
                    waiter.future.get_loop().call_soon_threadsafe(_resolve, waiter.future, call)

    def _record(self, index: int, call: Call, status: int) -> None:
        if index < len(self.calls) and self.calls[index] is call:
            self.calls[index] = attrs.evolve(call, status=status)


def _resolve(future: asyncio.Future[Call], call: Call) -> None:
    if not future.done():
        future.set_result(call)


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
