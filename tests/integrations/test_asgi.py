"""The ASGI wrapper: the lifespan protocol between a server and inner applications of every kind, and what requests get."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from web_apps import Browser, MakeSignIn, fastapi_app, starlette_client

from boardclient import AsyncSession, SessionClosedError, StaticCredentials
from boardclient.integrations.asgi import BoardLifespan
from boardclient.integrations.starlette import StarletteBoards
from boardclient.testing import BoardService
from boardclient.web import SignIn


def new_session() -> AsyncSession:
    return AsyncSession(StaticCredentials("t", "k"), "https://boards.example")


class Server:
    """A server's side of the lifespan protocol, in two tasks: what starts an application is not what ends it."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.sent: list[MutableMapping[str, Any]] = []
        self.messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.change = asyncio.Event()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        self.change.set()

    async def start(self) -> None:
        self.task = asyncio.create_task(self.app({"type": "lifespan", "asgi": {}, "state": {}}, self.messages.get, self.send))
        await self.tell("startup")

    async def stop(self) -> None:
        async with asyncio.timeout(60):
            await asyncio.create_task(self.tell("shutdown"))
            await self.task

    async def tell(self, event: str) -> None:
        self.change.clear()
        self.messages.put_nowait({"type": f"lifespan.{event}"})
        told = asyncio.create_task(self.change.wait())
        await asyncio.wait({self.task, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()

    @property
    def types(self) -> list[str]:
        return [message["type"].removeprefix("lifespan.") for message in self.sent]

    async def request(self) -> list[MutableMapping[str, Any]]:
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        await self.app(scope, self.messages.get, send)
        return sent


async def shows_session(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Serve requests only, and raise at a lifespan, as Django does."""
    if scope["type"] != "http":
        raise ValueError("only http here")
    session = scope["state"]["board_session"]
    await PlainTextResponse(repr(session))(scope, receive, send)


async def returns_at_once(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await shows_session(scope, receive, send)


async def ends_silently(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Return at the shutdown without a message, which servers accept."""
    await returns_at_once(scope, receive, send)
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()


@asynccontextmanager
async def quiet(app: object) -> AsyncIterator[None]:
    yield


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse(repr(request.state.board_session))


INNER: dict[str, Any] = {
    "without a lifespan, as Django": shows_session,
    "that returns": returns_at_once,
    "that ends silently": ends_silently,
    "with a lifespan": Starlette(routes=[Route("/", page)], lifespan=quiet),
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
async def test_every_kind_of_application_is_served(inner: Any) -> None:
    """The session is open between the server's start and its end, whatever the inner application does with a lifespan."""
    made: list[AsyncSession] = []

    def make() -> AsyncSession:
        made.append(new_session())
        return made[-1]

    server = Server(BoardLifespan(inner, make))
    await server.start()
    assert server.types == ["startup.complete"]
    assert b"AsyncSession open" in (await server.request())[1]["body"]
    await server.stop()
    assert server.types == ["startup.complete", "shutdown.complete"]
    with pytest.raises(SessionClosedError):
        await made[0].members.me()
    with pytest.raises(RuntimeError, match="lifespan has not run"):
        await server.request()


async def test_the_session_is_closed_before_the_shutdown_is_confirmed() -> None:
    """A server may end the process as soon as it is notified of the end."""
    session = new_session()
    server = Server(BoardLifespan(INNER["with a lifespan"], lambda: session))
    states: list[str] = []
    send = server.send

    async def watched(message: MutableMapping[str, Any]) -> None:
        states.append("open" if "open" in repr(session) else "closed")
        await send(message)

    server.send = watched  # type: ignore[method-assign]  # -- it watches
    await server.start()
    await server.stop()
    assert states == ["open", "closed"]


@asynccontextmanager
async def fails_to_start(app: object) -> AsyncIterator[None]:
    raise ZeroDivisionError("no start")
    yield


@asynccontextmanager
async def fails_to_end(app: object) -> AsyncIterator[None]:
    yield
    raise ZeroDivisionError("no end")


@pytest.mark.parametrize(
    ("lifespan", "types"),
    [(fails_to_start, ["startup.failed"]), (fails_to_end, ["startup.complete", "shutdown.failed"])],
)
async def test_failures_of_the_inner_application_are_its_own(lifespan: Any, types: list[str]) -> None:
    """Errors of the inner application reach the server once, and the session is closed."""
    session = new_session()
    server = Server(BoardLifespan(Starlette(lifespan=lifespan), lambda: session))
    await server.start()
    with pytest.raises(ZeroDivisionError):
        await server.stop()
    assert server.types == types
    assert "closed" in repr(session)


@pytest.mark.parametrize("result", [ZeroDivisionError("no session today"), object()])
async def test_a_session_that_cant_be_made_ends_the_start(result: object) -> None:
    """The server is notified, and the inner application does not start."""

    async def make() -> AsyncSession:
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[return-value]  # -- wrong on purpose

    server = Server(BoardLifespan(shows_session, make))
    await server.start()
    with pytest.raises((ZeroDivisionError, TypeError)):
        await server.task
    assert server.types == ["startup.failed"]
    assert any(text in server.sent[0]["message"] for text in ("no session today", "make returned object"))


async def test_a_cancelled_lifespan_closes_the_session() -> None:
    """A server that cancels the start of the application leaves no session open."""
    session = new_session()
    server = Server(BoardLifespan(shows_session, lambda: session))
    await server.start()
    server.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server.task
    assert "closed" in repr(session)


async def test_a_mounted_application_is_served_by_a_wrapped_outer_one(consenting: BoardService) -> None:
    """Mounted applications get no lifespan; the wrapper opens the session for the adapter of an inner one as well."""
    boards = StarletteBoards(lambda: SignIn.from_env(login_path="/inner/login"))
    inner = Starlette()
    boards.install(inner)

    async def me(request: Request) -> JSONResponse:
        assert (await boards.user_session(request)).identity
        assert "board_sign_in" in request.scope["state"]
        return JSONResponse({"account": await boards.user_account(request)})

    inner.add_route("/me", me)
    outer = Starlette(routes=[Mount("/inner", inner), Mount("/", inner)])
    async with starlette_client(BoardLifespan(outer, boards)) as send:
        browser = Browser(send)
        assert (await browser.open("/inner/me?a=b")).header("Location") == "/inner/login?return_to=/inner/me%3Fa%3Db"
        ada = consenting.members[0].id
        assert (await browser.sign_in(ada, "/inner/me")).json() == {"account": ada}


async def test_without_its_lifespan_an_application_gets_a_clear_error(make: MakeSignIn) -> None:
    """A test client that is no context manager, and an application that is mounted without its lifespan, get a clear error."""
    app = fastapi_app(make)
    for client in (TestClient(app), TestClient(Starlette(routes=[Mount("/", app)]))):
        with pytest.raises(RuntimeError, match=r"lifespan has not run.*with TestClient\(app\).*BoardLifespan"):
            client.get("/me")


@pytest.mark.parametrize(
    ("module", "used"),
    [
        ("asgi", set()),
        ("starlette", {"starlette"}),
        ("fastapi", {"starlette"}),
        ("litestar", {"litestar"}),
        ("quart", {"quart"}),
        ("aiohttp_web", {"aiohttp.web"}),
    ],
)
def test_each_module_imports_its_own_framework_only(module: str, used: set[str]) -> None:
    """An application installs one framework; the wrapper works without any."""
    code = (
        f"import sys, boardclient.integrations.{module};"
        "print(*{'starlette', 'fastapi', 'litestar', 'quart', 'aiohttp.web'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == used


@pytest.mark.parametrize("login_path", ["/login", "/app/login"])
@pytest.mark.parametrize("way", ["mount", "proxy"])
@pytest.mark.usefixtures("consenting")
async def test_below_a_prefix_a_sign_in_is_found(way: str, login_path: str) -> None:
    """In an application that is mounted, and behind a proxy that takes the prefix away, pages and the sign-out lead there.

    A `login_path` that has the prefix already, as was needed before, still does.
    """
    boards = StarletteBoards(lambda: SignIn.from_env(login_path=login_path))
    inner = Starlette()
    boards.install(inner)

    async def me(request: Request) -> JSONResponse:
        return JSONResponse({"account": await boards.user_account(request)})

    async def behind_a_proxy(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await inner({**scope, "root_path": "/app"} if scope["type"] == "http" else scope, receive, send)

    inner.add_route("/me", me)
    outer = Starlette(routes=[Mount("/app", inner)]) if way == "mount" else behind_a_proxy
    at = "/app" if way == "mount" else ""
    async with starlette_client(BoardLifespan(outer, boards)) as send:
        browser = Browser(send)
        assert (await browser.open(f"{at}/me")).header("Location") == "/app/login?return_to=/app/me"
        assert (await browser.open(f"{at}/login")).status == 303
        assert (await browser.fetch(f"{at}/me")).json()["login_url"] == "/app/login"
        assert (await browser.open(f"{at}/logout", "POST")).header("Location") == "/app/"
