"""HTTP of the services: a server on a loopback port with its addresses, and one request with its response."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import attrs
from aiohttp import web

from boardclient.testing._oauth import Answer

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials, Token, TokenStore
    from boardclient.session import SessionOptions

_HOST = "127.0.0.1"
_BACKSTOP_SECONDS = 0.05


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


@attrs.define(kw_only=True, eq=False, repr=False, slots=False)  # tests replace its methods
class LoopbackService(ABC):
    """A service on 127.0.0.1 that runs for one block, and what clients need to use it.

    `async with` runs it in the running event loop, `with` in a thread. A closed one can be entered again, on the same port.

    Args:
        port: The port. 0, the default, means any free port.
    """

    port: int = 0
    redirect_uri: str = "https://application.example/callback"
    """The registered redirect URI of the client."""
    key: str = attrs.field(init=False)
    """The API key."""
    token: str = attrs.field(init=False)
    """An access token that the service accepts."""
    client_id: str = attrs.field(init=False)
    """The client identifier for the token exchange."""
    client_secret: str = attrs.field(init=False)
    """The client secret for the token exchange."""
    _tasks: set[asyncio.Task[object]] = attrs.field(init=False, factory=set)
    _transports: weakref.WeakSet[asyncio.Transport] = attrs.field(init=False, factory=weakref.WeakSet)
    _server: web.Server | None = attrs.field(init=False, default=None)
    _listener: asyncio.Server | None = attrs.field(init=False, default=None)
    _thread: tuple[threading.Thread, Callable[[], object]] | None = attrs.field(init=False, default=None)

    @abstractmethod
    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request, and return its response, which may have been sent already."""

    @abstractmethod
    def new_code(self) -> str:
        """Return an authorization code for one token exchange."""

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
        server = web.Server(self._handle, access_log=None)
        self._listener = await asyncio.get_running_loop().create_server(server, _HOST, self.port)
        self._server = server
        self.port = self._listener.sockets[0].getsockname()[1]

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


@attrs.define(eq=False)
class Stage:
    """One request that waits for its response, as a fault sees it. Owned by the handler of the request."""

    request: web.BaseRequest = attrs.field(repr=False)
    commit_with: Callable[[], Answer]
    on_status: Callable[[int], None]
    sleep: Callable[[float], Awaitable[object]]
    """Waits for a number of seconds on the service's clock."""
    response: web.StreamResponse = attrs.field(init=False, factory=web.Response)
    _outcome: Answer | None = attrs.field(init=False, default=None)

    def commit(self) -> Answer:
        """Carry out the request, and return its response. Calling it again changes nothing."""
        if self._outcome is None:
            self._outcome = self.commit_with()
        return self._outcome

    def encode(self, response: Answer) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a response."""
        text = response.body if isinstance(response.body, str) else json.dumps(response.body)
        return text.encode(), {"Content-Type": f"{response.content_type}; charset=utf-8", **response.headers}

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response.

        Args:
            status: The HTTP status.
            body: The body, b"" by default.
            headers: Header fields. None (default): those that HTTP requires.
        """
        self.response = web.Response(status=status, body=body, headers=headers)
        self.on_status(status)
        await self.response.prepare(self.request)
        await self.response.write_eof()

    async def reply_answer(self) -> None:
        """Carry out the request, and send its response."""
        outcome = self.commit()
        await self.reply(outcome.status, *self.encode(outcome))

    async def begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of a response.

        Args:
            status: The HTTP status.
            length: The bytes of the body that follows, as `Content-Length` announces them.
            headers: Further header fields.
        """
        self.response = web.StreamResponse(status=status, headers=headers)
        self.response.content_length = length
        self.on_status(status)
        await self.response.prepare(self.request)

    async def write(self, part: bytes) -> None:
        """Send a part of the body, after `begin`."""
        await self.response.write(part)

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self.request.transport is not None:
            self.request.transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection at once, with `reset` by a TCP RST."""
        transport = self.request.transport
        if transport is None:
            return
        if reset:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def hang(self) -> None:
        """Wait until the service closes."""
        await asyncio.Event().wait()


async def read_body(request: web.BaseRequest) -> bytes:
    """Read the whole body of a request. `request.read` would refuse one of more than 1 MiB."""
    return b"".join([part async for part in request.content.iter_any()])
