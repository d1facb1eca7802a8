"""Each framework's adapter: sign-in, users, errors, and the life of the session, seen from a browser."""

# Without `from __future__ import annotations`: FastAPI and Litestar read the annotations of local functions.

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import aiohttp
import litestar
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from fastapi import Body, Depends, FastAPI
from litestar.di import NamedDependency
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.testclient import TestClient
from web_apps import (
    PAGE,
    Browser,
    MakeSignIn,
    Running,
    aiohttp_app,
    aiohttp_client,
    fastapi_app,
    litestar_client,
    starlette_client,
)

from boardclient import AsyncSession, Card, CardDraft, ConsentRequired
from boardclient.integrations.aiohttp_web import AiohttpBoards
from boardclient.integrations.fastapi import FastAPIBoards
from boardclient.integrations.litestar import LitestarBoards
from boardclient.testing import BoardService, assert_no_secrets, faults
from boardclient.web import SignIn, SignInError


async def test_two_users_sign_in_and_never_mix(consenting: BoardService, running: Running, make: MakeSignIn) -> None:
    """Each browser acts for the member who consented there, until that one signs out."""
    ada, alan = consenting.members
    async with running(make) as send:
        first, second = Browser(send), Browser(send)
        assert (await first.sign_in(ada.id, "/me?x=1&y=%2F")).json() == {"id": ada.id, "account": ada.id}
        assert (await second.sign_in(alan.id)).json()["id"] == alan.id
        for _ in range(3):
            assert (await first.fetch("/me")).json()["id"] == ada.id
            assert (await second.fetch("/me")).json()["id"] == alan.id
        left = await first.open("/logout", "POST")
        assert (left.status, left.header("Location")) == (303, "/")
        assert (await first.fetch("/me")).status == 401
        assert (await second.fetch("/me")).json()["id"] == alan.id
        assert (await first.sign_in(alan.id)).json()["id"] == alan.id
    assert len(consenting.calls_of("token.exchange")) == 3


async def test_without_consent_a_page_leads_to_the_login(running: Running, make: MakeSignIn) -> None:
    """A navigation is sent to the login, and from there back to its page. A fetch, which that would mislead, gets 401."""
    headers = {**PAGE, "Host": "app.example", "Referer": "http://app.example/form?a=b"}
    async with running(make) as send:
        for method, page in (("GET", "/me%3Fx%3D%25C3%25A4%26y%3D1"), ("POST", "/form%3Fa%3Db")):
            reply = await Browser(send).fetch("/me?x=%C3%A4&y=1", method, headers)
            assert (reply.status, reply.header("Location")) == (303, f"/login?return_to={page}")
            assert reply.header("Cache-Control") == "no-store"
        reply = await Browser(send).fetch("/me")
    assert (reply.status, reply.header("Location")) == (401, None)
    assert reply.header("Content-Type") == "application/problem+json"
    assert (reply.json()["login_url"], reply.json()["status"]) == ("/login", 401)


async def test_errors_become_problem_documents(
    consenting: BoardService,
    running: Running,
    make: MakeSignIn,
    secrets: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a user typed is 404, a failing service 502 or 503, and nothing secret is in a response or a log."""
    caplog.set_level(logging.DEBUG)
    async with running(make) as send:
        browser = Browser(send)
        await browser.sign_in(consenting.members[0].id)
        for identifier in ("..", "a%2Fb", "a%00b", "", "nowhere"):
            reply = await browser.fetch(f"/card?card_id={identifier}")
            assert (reply.status, reply.header("Content-Type")) == (404, "application/problem+json"), identifier
        for code, status in ((500, 502), (503, 502), (429, 503), (403, 403), (400, 400)):
            consenting.faults.add(faults.status(code, headers={"Retry-After": "7000"}), "cards.get")
            reply = await browser.fetch("/card?card_id=1")
            consenting.faults.clear()
            assert (reply.status, reply.json()["status"]) == (status, status)
            assert reply.header("Retry-After") == "7000"
        assert (await browser.fetch("/both")).status == 404
        consenting.rules.expire_tokens()
        assert (await browser.fetch("/both")).status == 401
        assert (await browser.open("/both")).header("Location") == "/login?return_to=/both"
        broken = await browser.fetch("/broken")
        assert (broken.status, "problem" in (broken.header("Content-Type") or "")) == (500, False)
    records = [record for record in caplog.records if record.name.startswith("boardclient")]  # Django's hold the application
    kept = [browser.seen, browser.cookies, caplog.text, records]
    assert_no_secrets(kept, secrets=secrets())


async def test_failed_redirects_sign_no_user_in(consenting: BoardService, running: Running, make: MakeSignIn) -> None:
    """A redirect that is replayed, foreign, refused or malformed is 400 with its reason. It exchanges nothing, as a prefetch."""
    ada = consenting.members[0].id
    async with running(make) as send:
        browser, other = Browser(send), Browser(send)
        begun = await browser.open("/login?return_to=//evil.example")
        back = await browser.consent(begun.header("Location") or "", ada)
        foreign = await other.fetch(back)
        assert (foreign.status, foreign.json()["reason"]) == (400, "foreign")
        done = await browser.open(back)
        assert (done.status, done.header("Location")) == (303, "/")
        assert ((await browser.open(back)).status, (await browser.open(back)).header("Location")) == (303, "/")
        await browser.open("/logout", "POST")
        replayed = await browser.fetch(back)
        assert (replayed.status, replayed.json()["reason"]) == (400, "replayed")
        begun = await browser.open("/login")
        refused = await browser.fetch(await browser.consent(begun.header("Location") or "", "refuse"))
        assert (refused.status, refused.json()["reason"]) == (400, "refused")
        begun = await browser.open("/login")
        back = await browser.consent(begun.header("Location") or "", ada)
        assert (await browser.open(back, "HEAD")).status in (404, 405)
        assert (await browser.open("/callback")).status == 400
        assert (await browser.fetch("/callback?code=1&code=2")).json()["reason"] == "failed"
        for purpose in ({"Sec-Purpose": "prefetch;prerender"}, {"Purpose": "Prefetch"}, {"X-Moz": "prefetch"}):
            assert (await browser.fetch(back, headers={**PAGE, **purpose})).status == 503
        assert len(consenting.calls_of("token.exchange")) == 1
        assert (await browser.open(back)).status == 303
        assert (await browser.fetch("/me")).json()["id"] == ada
    assert len(consenting.calls_of("token.exchange")) == 2


async def test_people_get_pages_and_programs_documents(consenting: BoardService, running: Running, make: MakeSignIn) -> None:
    """A navigation that fails shows a page that says why in plain words, with a link to the sign-in where that helps."""
    async with running(make) as send:
        browser = Browser(send)
        foreign = await browser.open("/callback?code=c&state=s")
        await browser.sign_in(consenting.members[0].id)
        unknown = await browser.open("/card?card_id=nowhere")
        consenting.faults.add(faults.drop(), "cards.get")
        lost = await browser.open("/card?card_id=<b>", "POST")
        unread = await browser.open("/card?card_id=a")
        forged = await browser.fetch("/logout", "POST", {**PAGE, "Sec-Fetch-Site": "cross-site"})
    for reply, status, words in (
        (foreign, 400, '<p>The sign-in was not begun in this browser.</p>\n<p><a href="/login">Sign in</a></p>'),
        (unknown, 404, "<p>It does not exist, or is not accessible.</p>"),
        (lost, 502, "<p>The board service can&#x27;t be reached.</p>\n<p>What you sent may have been done: look before"),
        (unread, 502, "<p>The board service can&#x27;t be reached.</p>\n</body>"),
        (forged, 403, "<p>A page of another origin sent this request.</p>"),
    ):
        assert (reply.status, reply.header("Content-Type")) == (status, "text/html; charset=utf-8")
        assert words in reply.text
        assert reply.header("Cache-Control") == "no-store"


async def test_a_page_for_guests_and_users(consenting: BoardService, running: Running, make: MakeSignIn) -> None:
    """A page whose account is optional leads no guest to the sign-in, and has the session of a user."""
    ada = consenting.members[0].id
    async with running(make) as send:
        browser = Browser(send)
        assert (await browser.open("/guest")).json() == {"id": None}
        await browser.sign_in(ada)
        assert (await browser.open("/guest")).json() == {"id": ada}
        await browser.open("/logout", "POST")
        assert (await browser.open("/guest")).json() == {"id": None}


@pytest.mark.parametrize("is_by_routes", [False, True])
async def test_a_forgotten_install_is_named(make: MakeSignIn, caplog: pytest.LogCaptureFixture, is_by_routes: bool) -> None:
    """Without `install(app)` the log says so at the start, and so does the error that got no response."""
    boards = FastAPIBoards(make)
    app = FastAPI(lifespan=boards.lifespan, routes=boards.routes if is_by_routes else None)

    @app.get("/me")
    async def me(session: Annotated[AsyncSession, Depends(boards.user_session)]) -> Any: ...

    words = "boards.install(app) was not called: there is no /login"
    with TestClient(app) as client, pytest.raises(ConsentRequired) as caught:
        client.get("/me")
    assert (words in str(caught.value), words in caplog.text) == (not is_by_routes, not is_by_routes)


async def test_with_a_service_account_no_user_signs_in(consenting: BoardService, running: Running) -> None:
    """The routes of a sign-in are not found where the application has none."""
    async with running(consenting.session) as send:
        browser = Browser(send)
        routes = [("GET", "/login"), ("GET", "/callback?code=c&state=s"), ("POST", "/logout")]
        assert [(await browser.open(target, method)).status for method, target in routes] == [404, 404, 404]


def test_fastapi_reads_drafts_and_shows_cards(consenting: BoardService) -> None:
    """A draft is the body of a request, a card is a response, and the OpenAPI document describes both."""
    boards = FastAPIBoards(consenting.session)
    app = FastAPI(lifespan=boards.lifespan)
    boards.install(app)

    @app.post("/cards")
    async def create(draft: Annotated[CardDraft, Body()], session: Annotated[AsyncSession, Depends(boards.app_session)]) -> Card:
        return await session.cards.create(draft.name, list_id=draft.list_id, due=draft.due)

    list_id = consenting.seed({"To Do": []}).lists["To Do"]
    with TestClient(app) as client:
        draft = {"name": "Book", "list_id": list_id, "due": "2027-01-02T03:04:05+01:00"}
        created = client.post("/cards", json=draft).json()
        assert (created["name"], created["due"]) == ("Book", "2027-01-02T02:04:05Z")
        refused = client.post("/cards", json={**draft, "due": "2027-13-02"})
        assert (refused.status_code, "due" in refused.text) == (422, True)
        described = client.get("/openapi.json").json()["components"]["schemas"]
    assert {"list_id", "due"} <= described["Card"]["properties"].keys() & described["CardDraft"]["properties"].keys()


async def test_signing_out_takes_a_post(consenting: BoardService, running: Running, make: MakeSignIn) -> None:
    """Neither a link nor a form on another site signs a user out. Signing out again is no error; both lead to a local page."""
    async with running(make) as send:
        browser = Browser(send)
        await browser.sign_in(consenting.members[0].id)
        assert (await browser.open("/logout")).status in (404, 405)
        assert (await browser.fetch("/me")).status == 200
        refused = await browser.fetch("/logout", "POST", {**PAGE, "Sec-Fetch-Site": "cross-site"})
        assert (refused.status, refused.header("Set-Cookie")) == (403, None)
        for target, location in (("", "/"), ("?return_to=/goodbye", "/goodbye"), ("?return_to=//evil.example", "/")):
            left = await browser.open(f"/logout{target}", "POST")
            assert (left.status, left.header("Location")) == (303, location)


def page_of(error: SignInError) -> str:
    return f"<h1>Not signed in: {error.reason}</h1>"


async def show(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, SignInError)
    return HTMLResponse(page_of(error), error.suggested_status)


@web.middleware
async def show_of_aiohttp(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except SignInError as error:
        return web.Response(text=page_of(error), status=error.suggested_status)


@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_an_application_shows_its_own_page_for_a_failed_sign_in(make: MakeSignIn, framework: str) -> None:
    """A handler for `SignInError` is called in place of the built-in one, which all other errors keep."""
    if framework == "fastapi":
        app = fastapi_app(make)
        app.add_exception_handler(SignInError, show)
        client = starlette_client(app)
    else:
        app = aiohttp_app(make)
        app.middlewares.append(show_of_aiohttp)  # behind the adapter's own, which sees what this one lets pass
        client = aiohttp_client(app)
    async with client as send:
        foreign = await Browser(send).open("/callback?code=c&state=s")
        assert (foreign.status, foreign.text) == (400, "<h1>Not signed in: foreign</h1>")
        assert (await Browser(send).fetch("/me")).header("Content-Type") == "application/problem+json"


async def test_an_application_uses_its_own_session(board_service: BoardService) -> None:
    """An application without users gives its one session to handlers."""
    boards = FastAPIBoards(board_service.session)
    app = FastAPI(lifespan=boards.lifespan)

    @app.get("/who")
    async def who(session: Annotated[AsyncSession, Depends(boards.app_session)]) -> Any:
        return (await session.members.me()).id

    plugin = LitestarBoards(board_service.session)

    @litestar.get("/who")
    async def who_litestar(app_session: NamedDependency[AsyncSession]) -> str:
        return (await app_session.members.me()).id or ""

    async with starlette_client(app) as send, litestar_client(litestar.Litestar([who_litestar], plugins=[plugin])) as other:
        for client in (send, other):
            assert board_service.members[0].id in (await Browser(client).fetch("/who")).text


async def test_dependencies_are_overridden(board_service: BoardService) -> None:
    """A test of an application may put a session of its own in place of the user's, also in the event loop of TestClient."""
    boards = FastAPIBoards(SignIn.from_env)
    app = FastAPI(lifespan=boards.lifespan)

    @app.get("/who")
    async def who(session: Annotated[AsyncSession, Depends(boards.user_session)]) -> Any:
        return (await session.members.me()).id

    async def in_its_loop() -> AsyncIterator[AsyncSession]:
        async with board_service.session() as session:
            yield session

    app.dependency_overrides[boards.user_session] = in_its_loop
    assert TestClient(app).get("/who").json() == board_service.members[0].id


async def test_an_error_amid_a_response_ends_the_connection(board_service: BoardService) -> None:
    """A second response would be read as a part of the first."""
    boards = AiohttpBoards(board_service.session)
    app = web.Application()
    boards.install(app)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await boards.session.cards.get("nowhere")
        return response

    app.router.add_get("/stream", stream)
    async with AiohttpClient(TestServer(app)) as client, client.get("/stream") as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_headers_of_bytes_that_are_not_utf_8(make: MakeSignIn) -> None:
    """Bytes that aiohttp passes on as lone surrogates never reach a response, which can't hold them."""
    head = b"POST /me HTTP/1.1\r\nHost: a.example\r\nSec-Fetch-Mode: navigate\r\nConnection: close\r\n"
    async with TestServer(aiohttp_app(make)) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(head + b"Referer: http://a.example/a\xff\r\nCookie: \xff\r\nContent-Length: 0\r\n\r\n")
        response = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert b"\r\nLocation: /login?return_to=/a\r\n" in response
