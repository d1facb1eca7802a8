"""Pages of other origins: they send no form and no JSON, open no websocket, and read what anyone may read."""

# Without `from __future__ import annotations`: FastAPI and Litestar read the annotations of local functions.

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import aiohttp
import litestar
import litestar.testing
import pytest
import quart
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from litestar.di import NamedDependency
from quart.testing.connections import WebsocketResponseError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from boardclient import AsyncSession
from boardclient.integrations.aiohttp_web import AiohttpBoards
from boardclient.integrations.litestar import LitestarBoards
from boardclient.integrations.quart import QuartBoards
from boardclient.integrations.starlette import StarletteBoards
from boardclient.testing import BoardService

OWN = {"Host": "app.example:8000", "Origin": "http://app.example:8000"}
PORT = {"Host": "app.example:8000", "Origin": "http://app.example:9000"}
FETCH = {"Host": "app.example:8000", "Sec-Fetch-Site": "same-site", "Origin": "http://app.example:8000"}
ADMIN = {"Host": "app.example:8000", "Origin": "https://admin.example", "Sec-Fetch-Site": "cross-site"}
PROGRAM = {"Host": "app.example:8000"}

Post: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable[int]]
Connect: TypeAlias = Callable[[Mapping[str, str]], Awaitable[bool]]
ORIGINS = {"origins": ["https://admin.example"]}


async def who(session: AsyncSession) -> str:
    return (await session.members.me()).id or ""


def of_starlette(app: Any) -> Any:
    @asynccontextmanager
    async def running() -> AsyncIterator[tuple[Post, Connect]]:
        with TestClient(app) as client:

            async def post(method: str, headers: Mapping[str, str]) -> int:
                return (await asyncio.to_thread(client.request, method, "/who", headers=headers, json={"name": "x"})).status_code

            def open_socket(headers: Mapping[str, str]) -> bool:
                try:
                    with client.websocket_connect("/socket", headers=dict(headers)) as socket:
                        return bool(socket.receive_text())
                except WebSocketDisconnect:
                    return False

            yield post, lambda headers: asyncio.to_thread(open_socket, headers)

    return running()


def starlette(make: Any) -> Any:
    return of_starlette(starlette_app(StarletteBoards(make, **ORIGINS)))


def starlette_app(boards: StarletteBoards) -> Starlette:
    app = Starlette(lifespan=boards.lifespan)
    boards.install(app)

    async def get(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await who(boards.session))

    async def socket(websocket: Any) -> None:
        await websocket.accept()
        await websocket.send_text(await who(boards.session))
        await websocket.close()

    app.router.routes += [Route("/who", get, methods=["GET", "POST"]), WebSocketRoute("/socket", socket)]
    return app


@asynccontextmanager
async def of_litestar(make: Any) -> AsyncIterator[tuple[Post, Connect]]:
    @litestar.route("/who", http_method=["GET", "POST"], status_code=200)
    async def get(app_session: NamedDependency[AsyncSession]) -> str:
        return await who(app_session)

    @litestar.websocket("/socket")
    async def socket(socket: litestar.WebSocket[Any, Any, Any], app_session: NamedDependency[AsyncSession]) -> None:
        await socket.accept()
        await socket.send_text(await who(app_session))
        await socket.close()

    app = litestar.Litestar([get, socket], plugins=[LitestarBoards(make, **ORIGINS)])
    with litestar.testing.TestClient(app) as client:

        async def post(method: str, headers: Mapping[str, str]) -> int:
            response = await asyncio.to_thread(client.request, method, "/who", headers=headers, json={"name": "x"})
            return response.status_code

        def open_socket(headers: Mapping[str, str]) -> bool:
            try:
                with client.websocket_connect("/socket", headers=dict(headers)) as connected:
                    return bool(connected.receive_text())
            except litestar.exceptions.WebSocketDisconnect:
                return False

        yield post, lambda headers: asyncio.to_thread(open_socket, headers)


@asynccontextmanager
async def of_quart(make: Any) -> AsyncIterator[tuple[Post, Connect]]:
    app, boards = quart.Quart(__name__), QuartBoards(make, **ORIGINS)
    boards.install(app)

    @app.route("/who", methods=["GET", "POST"])
    async def get() -> str:
        return await who(boards.session)

    @app.websocket("/socket")
    async def socket() -> None:
        await quart.websocket.send(await who(boards.session))

    async with app.test_app():
        client = app.test_client()

        async def post(method: str, headers: Mapping[str, str]) -> int:
            return (await client.open("/who", method=method, headers=dict(headers))).status_code

        async def connect(headers: Mapping[str, str]) -> bool:
            try:
                async with client.websocket("/socket", headers=dict(headers)) as socket:
                    return bool(await socket.receive())
            except WebsocketResponseError:
                return False

        yield post, connect


@asynccontextmanager
async def of_aiohttp(make: Any) -> AsyncIterator[tuple[Post, Connect]]:
    app, boards = web.Application(), AiohttpBoards(make, **ORIGINS)
    boards.install(app)

    async def get(request: web.Request) -> web.Response:
        return web.Response(text=await who(boards.session))

    async def socket(request: web.Request) -> web.WebSocketResponse:
        opened = web.WebSocketResponse()
        await opened.prepare(request)
        await opened.send_str(await who(boards.session))
        await opened.close()
        return opened

    app.router.add_route("*", "/who", get)
    app.router.add_get("/socket", socket)
    async with AiohttpClient(TestServer(app)) as client:

        async def post(method: str, headers: Mapping[str, str]) -> int:
            async with client.request(method, "/who", headers=headers) as response:
                return response.status

        async def connect(headers: Mapping[str, str]) -> bool:
            try:
                async with client.ws_connect("/socket", headers=headers) as socket:
                    return bool(await socket.receive_str())
            except aiohttp.WSServerHandshakeError:
                return False

        yield post, connect


@pytest.mark.parametrize("framework", [starlette, of_litestar, of_quart, of_aiohttp])
async def test_a_page_of_another_origin_sends_nothing_unsafe(board_service: BoardService, framework: Any) -> None:
    """A page on another port of the same host can neither send a form nor read a websocket. Programs and allowed pages can."""
    async with framework(board_service.session) as (send, connect):
        for headers in (PROGRAM, OWN, ADMIN):
            assert await send("POST", headers) == 200
            assert await connect(headers)
        before = board_service.requests
        for headers in (PORT, FETCH, {**PORT, "Origin": "null"}):
            assert await send("POST", headers) == 403
            assert not await connect(headers)
        assert board_service.requests == before
        assert await send("GET", PORT) == 200


async def test_the_check_can_be_switched_off(board_service: BoardService) -> None:
    """With `origins=None` an application checks origins itself."""
    app = starlette_app(StarletteBoards(board_service.session, origins=None))
    async with of_starlette(app) as (send, _):
        assert await send("POST", PORT) == 200
    with pytest.raises(TypeError, match="origins must be a collection"):
        StarletteBoards(board_service.session, origins="https://admin.example")
