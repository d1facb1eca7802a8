"""Error pages of an application's own, by the handlers of its framework."""

from __future__ import annotations

import pytest
import quart
from aiohttp import web
from litestar import MediaType
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from starlette.requests import Request
from starlette.responses import HTMLResponse
from web_apps import (
    Browser,
    MakeSignIn,
    Running,
    aiohttp_app,
    aiohttp_client,
    fastapi_app,
    litestar_app,
    litestar_client,
    quart_app,
    quart_client,
    starlette_app,
    starlette_client,
)

from boardclient.testing import BoardService
from boardclient.web import SignInError


def _words(error: SignInError) -> str:
    return f"<h1>Not signed in: {error.reason}</h1>"


async def _page_of_starlette(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, SignInError)
    response = HTMLResponse(_words(error), error.suggested_status)
    for cookie in error.set_cookies:
        response.headers.append("Set-Cookie", cookie)
    return response


def _with_handler(app: object) -> object:
    app.add_exception_handler(SignInError, _page_of_starlette)
    return app


def _page_of_litestar(request: LitestarRequest, error: SignInError) -> LitestarResponse:
    headers = {"Set-Cookie": error.set_cookies[0]} if error.set_cookies else {}
    return LitestarResponse(_words(error), status_code=error.suggested_status, media_type=MediaType.HTML, headers=headers)


def _quart(make: MakeSignIn) -> quart.Quart:
    app = quart_app(make)

    @app.errorhandler(SignInError)
    async def show(error: SignInError) -> tuple[str, int, list[tuple[str, str]]]:
        return _words(error), error.suggested_status, [("Set-Cookie", cookie) for cookie in error.set_cookies]

    return app


def _aiohttp(make: MakeSignIn) -> web.Application:
    app = aiohttp_app(make)

    @web.middleware
    async def show(request: web.Request, handler: object) -> web.StreamResponse:
        try:
            return await handler(request)
        except SignInError as error:
            response = web.Response(text=_words(error), status=error.suggested_status, content_type="text/html")
            for cookie in error.set_cookies:
                response.headers.add("Set-Cookie", cookie)
            return response

    app.middlewares.append(show)  # behind the adapter's own, which sees what this one lets pass
    return app


OWN_PAGES: dict[str, Running] = {
    "starlette": lambda make: starlette_client(_with_handler(starlette_app(make))),
    "fastapi": lambda make: starlette_client(_with_handler(fastapi_app(make))),
    "litestar": lambda make: litestar_client(litestar_app(make, {SignInError: _page_of_litestar})),
    "quart": lambda make: quart_client(_quart(make)),
    "aiohttp": lambda make: aiohttp_client(_aiohttp(make)),
}


@pytest.mark.parametrize("framework", OWN_PAGES)
async def test_an_application_shows_its_own_page_for_a_failed_sign_in(
    consenting: BoardService, make: MakeSignIn, framework: str
) -> None:
    """A handler for `SignInError` gets the reason and the cookies. All other errors keep the built-in response."""
    async with OWN_PAGES[framework](make) as send:
        browser = Browser(send)
        begun = await browser.open("/login")
        before = dict(browser.cookies)
        refused = await browser.open(await browser.consent(begun.header("Location") or "", "refuse"))
        foreign = await browser.open("/callback?code=c&state=s")
        other = await browser.fetch("/me")
    assert (refused.status, refused.text) == (400, "<h1>Not signed in: refused</h1>")
    assert (refused.header("Content-Type") or "").startswith("text/html")
    assert browser.cookies != before
    assert (foreign.status, foreign.text) == (400, "<h1>Not signed in: foreign</h1>")
    assert (other.status, other.header("Content-Type")) == (401, "application/problem+json")
