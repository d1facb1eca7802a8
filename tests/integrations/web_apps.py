"""One small application per framework, each with its framework's own test client, and a browser that visits them."""

# Without `from __future__ import annotations`: FastAPI and Litestar read the annotations of local functions.

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, TypeAlias
from urllib.parse import parse_qsl

import aiohttp
import attrs
import httpx2
import litestar
import litestar.testing
import quart
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from fastapi import Depends, FastAPI
from litestar.di import NamedDependency
from quart.testing.connections import WebsocketResponseError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from boardclient import AsyncSession
from boardclient.integrations.aiohttp_web import AiohttpBoards
from boardclient.integrations.asgi import BoardLifespan
from boardclient.integrations.django import DjangoBoards
from boardclient.integrations.fastapi import FastAPIBoards
from boardclient.integrations.litestar import LitestarBoards
from boardclient.integrations.quart import QuartBoards
from boardclient.integrations.starlette import StarletteBoards
from boardclient.web import SignIn

HOST = "https://app.example"
PAGE = {"Sec-Fetch-Mode": "navigate", "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FETCH = {"Sec-Fetch-Mode": "cors", "Accept": "*/*"}


@attrs.frozen
class Reply:
    """A response as a browser gets it."""

    status: int
    headers: list[tuple[str, str]]
    text: str

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.text)


Ask: TypeAlias = Callable[[str, str, Mapping[str, str]], Awaitable[Reply]]
Connect: TypeAlias = Callable[[Mapping[str, str]], Awaitable[bool]]


@attrs.frozen
class Send:
    """Sends a request to an application: method, target and headers. `connect` opens its websocket, where it has one."""

    ask: Ask
    connect: Connect | None = None

    async def __call__(self, method: str, target: str, headers: Mapping[str, str]) -> Reply:
        return await self.ask(method, target, headers)


MakeSignIn: TypeAlias = Callable[[], SignIn]
Running: TypeAlias = Callable[..., AbstractAsyncContextManager[Send]]
"""Runs a framework's application for a block: given what makes the sign-in, and options of the adapter."""


PATHS = ("/me", "/card", "/both", "/broken")


async def act(path: str, session: AsyncSession, account: str, card_id: str = "", **others: str) -> dict[str, Any]:
    """Do what a page of an application does."""
    if path == "/card":
        return {"name": (await session.cards.get(card_id)).name}
    async with asyncio.TaskGroup() as group:
        if path == "/broken":
            raise ZeroDivisionError("canary-of-the-application")
        if path == "/both":
            group.create_task(session.cards.get("nowhere"))
        member = group.create_task(session.members.me())
    return {"id": member.result().id, "account": account}


async def greet(session: AsyncSession | None) -> dict[str, Any]:
    """Do what a page for guests and users does."""
    return {"id": None if session is None else (await session.members.me()).id}


# --- applications


async def open_socket(websocket: Any) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def starlette_app(make: MakeSignIn, **options: Any) -> Starlette:
    boards = StarletteBoards(make, **options)
    app = Starlette(lifespan=boards.lifespan)
    boards.install(app)

    async def view(request: Request) -> JSONResponse:
        user = await boards.user_session(request), await boards.user_account(request)
        return JSONResponse(await act(request.url.path, *user, **request.query_params))

    async def guest(request: Request) -> JSONResponse:
        return JSONResponse(await greet(await boards.optional_session(request)))

    app.add_route("/guest", guest)
    for path in PATHS:
        app.add_route(path, view, methods=["GET", "POST"])
    app.router.routes.append(WebSocketRoute("/socket", open_socket))
    return app


def fastapi_app(make: MakeSignIn, **options: Any) -> FastAPI:
    boards = FastAPIBoards(make, **options)
    app = FastAPI(lifespan=boards.lifespan)
    boards.install(app)
    session = Annotated[AsyncSession, Depends(boards.user_session)]

    async def view(request: Request, session: session, account: Annotated[str, Depends(boards.user_account)]) -> dict[str, Any]:
        return await act(request.url.path, session, account, **request.query_params)

    @app.get("/guest")
    async def guest(session: Annotated[AsyncSession | None, Depends(boards.optional_session)]) -> dict[str, Any]:
        return await greet(session)

    for path in PATHS:
        app.add_api_route(path, view, methods=["GET", "POST"])
    app.router.routes.append(WebSocketRoute("/socket", open_socket))
    return app


def litestar_app(make: MakeSignIn, **options: Any) -> litestar.Litestar:
    @litestar.route([*PATHS], http_method=["GET", "POST"], status_code=200)
    async def view(
        request: litestar.Request[Any, Any, Any], user_session: NamedDependency[AsyncSession], user_account: NamedDependency[str]
    ) -> dict[str, Any]:
        return await act(request.url.path, user_session, user_account, **request.query_params)

    @litestar.websocket("/socket")
    async def connect(socket: litestar.WebSocket[Any, Any, Any]) -> None:
        await open_socket(socket)

    @litestar.get("/guest")
    async def guest(optional_session: NamedDependency[AsyncSession | None]) -> dict[str, Any]:
        return await greet(optional_session)

    return litestar.Litestar([view, guest, connect], plugins=[LitestarBoards(make, **options)])


def quart_app(make: MakeSignIn, **options: Any) -> quart.Quart:
    boards = QuartBoards(make, **options)
    app = quart.Quart(__name__)
    boards.install(app)

    async def view() -> dict[str, Any]:
        user = await boards.user_session(), await boards.user_account()
        return await act(quart.request.path, *user, **quart.request.args)

    @app.get("/guest")
    async def guest() -> dict[str, Any]:
        return await greet(await boards.optional_session())

    for path in PATHS:
        app.add_url_rule(path, path, view, methods=["GET", "POST"])

    @app.websocket("/socket")
    async def connect() -> None:
        await quart.websocket.send("hello")

    return app


def aiohttp_app(make: MakeSignIn, **options: Any) -> web.Application:
    boards = AiohttpBoards(make, **options)
    app = web.Application()
    boards.install(app)

    async def view(request: web.Request) -> web.Response:
        user = await boards.user_session(request), await boards.user_account(request)
        return web.json_response(await act(request.path, *user, **request.query))

    async def guest(request: web.Request) -> web.Response:
        return web.json_response(await greet(await boards.optional_session(request)))

    async def connect(request: web.Request) -> web.WebSocketResponse:
        opened = web.WebSocketResponse()
        await opened.prepare(request)
        await opened.send_str("hello")
        await opened.close()
        return opened

    app.router.add_get("/socket", connect)
    app.router.add_get("/guest", guest)
    for path in PATHS:
        app.router.add_get(path, view)
        app.router.add_post(path, view)
    return app


def django_app(make: MakeSignIn, **options: Any) -> BoardLifespan:
    """Return the application of the project beside this file, configured as its settings would."""
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF="django_project", MIDDLEWARE=["django_project.middleware"], ALLOWED_HOSTS=["*"])
    import django_project

    django_project.boards = DjangoBoards(make, **options)
    return django_project.application()


# --- their test clients


def _reply(response: httpx2.Response) -> Reply:
    return Reply(response.status_code, response.headers.multi_items(), response.text)


@asynccontextmanager
async def _in_a_thread(client: Any, refusal: type[Exception]) -> AsyncIterator[Send]:
    """Give a test client that runs the application in an event loop of another thread."""

    async def ask(method: str, target: str, headers: Mapping[str, str]) -> Reply:
        client.cookies.clear()
        return _reply(await asyncio.to_thread(client.request, method, target, headers=headers, follow_redirects=False))

    def open_socket(headers: Mapping[str, str]) -> bool:
        try:
            with client.websocket_connect("/socket", headers=dict(headers)) as socket:
                return bool(socket.receive_text())
        except refusal:
            return False

    with client:
        has_socket = not isinstance(client.app, BoardLifespan)  # what it wraps has none, as Django
        yield Send(ask, (lambda headers: asyncio.to_thread(open_socket, headers)) if has_socket else None)


def starlette_client(app: Any) -> AbstractAsyncContextManager[Send]:
    """Give Starlette's client, which serves any ASGI application."""
    return _in_a_thread(TestClient(app, HOST, raise_server_exceptions=False), WebSocketDisconnect)


def litestar_client(app: litestar.Litestar) -> AbstractAsyncContextManager[Send]:
    client = litestar.testing.TestClient(app, HOST, raise_server_exceptions=False)
    return _in_a_thread(client, litestar.exceptions.WebSocketDisconnect)


@asynccontextmanager
async def asynchronous_client(app: Any) -> AsyncIterator[Send]:
    """Give httpx's AsyncClient on the test's own loop, after the lifespan as FastAPI's documentation has it."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url=HOST) as client:

        async def ask(method: str, target: str, headers: Mapping[str, str]) -> Reply:
            client.cookies.clear()
            return _reply(await client.request(method, target, headers=headers))

        yield Send(ask)


@asynccontextmanager
async def quart_client(app: quart.Quart) -> AsyncIterator[Send]:
    async with app.test_app():
        client = app.test_client(use_cookies=False)

        async def ask(method: str, target: str, headers: Mapping[str, str]) -> Reply:
            response = await client.open(target.removeprefix(HOST), method=method, headers=dict(headers))
            return Reply(response.status_code, list(response.headers.items()), await response.get_data(as_text=True))

        async def connect(headers: Mapping[str, str]) -> bool:
            try:
                async with client.websocket("/socket", headers=dict(headers)) as socket:
                    return bool(await socket.receive())
            except WebsocketResponseError:
                return False

        yield Send(ask, connect)


@asynccontextmanager
async def aiohttp_client(app: web.Application) -> AsyncIterator[Send]:
    async with AiohttpClient(TestServer(app), cookie_jar=aiohttp.DummyCookieJar()) as client:

        async def ask(method: str, target: str, headers: Mapping[str, str]) -> Reply:
            path = target.removeprefix(HOST)
            async with client.request(method, path, headers=headers, allow_redirects=False) as response:
                return Reply(response.status, list(response.headers.items()), await response.text())

        async def connect(headers: Mapping[str, str]) -> bool:
            try:
                async with client.ws_connect("/socket", headers=headers) as socket:
                    return bool(await socket.receive_str())
            except aiohttp.WSServerHandshakeError:
                return False

        yield Send(ask, connect)


FRAMEWORKS: dict[str, Running] = {
    "starlette": lambda make, **options: starlette_client(starlette_app(make, **options)),
    "starlette, async client": lambda make, **options: asynchronous_client(starlette_app(make, **options)),
    "fastapi": lambda make, **options: starlette_client(fastapi_app(make, **options)),
    "fastapi, async client": lambda make, **options: asynchronous_client(fastapi_app(make, **options)),
    "litestar": lambda make, **options: litestar_client(litestar_app(make, **options)),
    "quart": lambda make, **options: quart_client(quart_app(make, **options)),
    "aiohttp": lambda make, **options: aiohttp_client(aiohttp_app(make, **options)),
    "django": lambda make, **options: starlette_client(django_app(make, **options)),
}


# --- who visits them


class Browser:
    """A browser's cookies and navigations; `seen` is all that it was shown."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.cookies: dict[str, str] = {}
        self.seen: list[Reply] = []

    async def fetch(self, target: str, method: str = "GET", headers: Mapping[str, str] = FETCH) -> Reply:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        reply = await self.send(method, target, {**headers, **({"Cookie": cookies} if cookies else {})})
        for name, value in reply.headers:
            if name.lower() == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        self.seen.append(reply)
        return reply

    async def open(self, target: str, method: str = "GET") -> Reply:
        return await self.fetch(target, method, PAGE)

    async def consent(self, location: str, member: str) -> str:
        """Press the button at the service's consent page; return where that leads."""
        address, _, query = location.partition("?")
        async with aiohttp.ClientSession() as http:
            async with http.get(location) as page:
                assert page.status == 200
                assert member in await page.text()
            form = aiohttp.FormData([*parse_qsl(query), ("member", member)])
            async with http.post(address, data=form, allow_redirects=False) as answer:
                assert answer.status == 303
                return answer.headers["Location"]

    async def sign_in(self, member: str, page: str = "/me") -> Reply:
        """Open a page, be led to the consent page and back; return the page."""
        led = await self.open(page)
        assert led.status == 303, led
        begun = await self.open(led.header("Location") or "")
        assert begun.status == 303, begun
        back = await self.consent(begun.header("Location") or "", member)
        done = await self.open(back)
        assert done.status == 303, done
        return await self.open(done.header("Location") or "")
