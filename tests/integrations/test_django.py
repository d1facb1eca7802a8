"""Django's middleware: users, errors, origins, and its own test clients."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from web_apps import HOST, PAGE, Browser, starlette_client

from boardclient.testing import BoardService


@pytest.fixture
def project() -> Any:
    """Give the project, configured as its settings would."""
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF="django_project", MIDDLEWARE=["django_project.middleware"], ALLOWED_HOSTS=["*"])
    import django_project

    return django_project


async def test_users_sign_in_and_views_use_their_sessions(consenting: BoardService, project: Any) -> None:
    """The routes of the sign-in are the middleware's, the pages Django's."""
    ada, alan = consenting.members
    async with starlette_client(project.application()) as send:
        first, second = Browser(send), Browser(send)
        assert (await first.sign_in(ada.id)).json() == {"id": ada.id, "account": ada.id}
        assert (await second.sign_in(alan.id)).json()["id"] == alan.id
        assert (await first.fetch("/me")).json()["id"] == ada.id
        assert (await first.open("/callback?code=c&state=s")).json()["reason"] == "foreign"
        forged = await first.fetch("/logout", "POST", {**PAGE, "Origin": "https://evil.example"})
        assert (forged.status, forged.header("Content-Type")) == (403, "application/problem+json")
        assert (await first.open("/logout", "POST")).header("Location") == "/"
        left = await first.fetch("/me")
        assert (left.status, left.json()["login_url"]) == (401, "/login")
        assert (await first.open("/me")).header("Location") == "/login?return_to=/me"


@pytest.mark.parametrize(
    ("target", "status", "is_ours"),
    [
        ("/card?card_id=x", 404, True),
        ("/both", 404, True),
        ("/nothing", 404, False),
        ("/broken", 500, False),
        ("/plain", 200, False),
    ],
)
async def test_errors_of_board_calls_are_problem_documents(
    consenting: BoardService, project: Any, target: str, status: int, is_ours: bool
) -> None:
    """Django responds to all others."""
    async with starlette_client(project.application()) as send:
        browser = Browser(send)
        await browser.sign_in(consenting.members[0].id)
        reply = await browser.fetch(target)
    assert reply.status == status
    assert (reply.header("Content-Type") == "application/problem+json") is is_ours
    assert "canary" not in reply.text


async def test_djangos_own_test_client(consenting: BoardService, project: Any) -> None:
    """`AsyncClient` runs no lifespan, so a test opens the session itself."""
    from django.test import AsyncClient

    async with project.boards.running():
        client = AsyncClient()
        assert (await client.get("/me")).status_code == 401
        assert (await client.post("/logout", headers={"origin": "https://evil.example"})).status_code == 403
        state = parse_qs(urlsplit((await client.get("/login"))["Location"]).query)["state"][0]
        done = await client.get("/callback", {"code": consenting.new_code(), "state": state})
        assert (done.status_code, done["Location"]) == (303, "/")
        assert (await client.get("/me")).json()["id"] == consenting.members[0].id


async def test_a_request_without_asgi(project: Any) -> None:
    """A request of WSGI is refused with a clear error, as are errors that are not of this package."""
    from django.test import AsyncRequestFactory, RequestFactory

    request = RequestFactory().get("/me", headers={"host": HOST.partition("//")[2]})
    with pytest.raises(TypeError, match="serve Django by ASGI"):
        await project.boards.user_session(request)
    with pytest.raises(ZeroDivisionError):
        await project.boards.handle(AsyncRequestFactory().get("/me"), ZeroDivisionError())
