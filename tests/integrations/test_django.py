"""Django within a Starlette application, as docs/web.md mounts it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from web_apps import Browser, starlette_client

from boardclient.testing import BoardService

_GUIDE = (Path(__file__).parents[2] / "docs/web.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```python\n(.*?)^```$", _GUIDE, re.MULTILINE | re.DOTALL)
_PLACEHOLDER = re.compile(r"^async def django\(.*?\n(?=\S)", re.MULTILINE | re.DOTALL)


@pytest.fixture
def application() -> Any:
    """Give the application of the page, with Django's in place of the function that stands for it."""
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF="django_project", MIDDLEWARE=["django_project.BoardErrors"], ALLOWED_HOSTS=["*"])
    (block,) = [block for block in _BLOCKS if _PLACEHOLDER.search(block)]
    names: dict[str, Any] = {"get_asgi_application": get_asgi_application}
    source = _PLACEHOLDER.sub("django = get_asgi_application()\n\n\n", block)
    exec(compile(source, "asgi.py", "exec", dont_inherit=True), names)
    importlib.import_module("django_project").boards = names["boards"]
    return names["application"]


async def test_users_sign_in_and_views_use_their_sessions(consenting: BoardService, application: Any) -> None:
    """The routes of the sign-in are Starlette's, the pages Django's."""
    ada, alan = consenting.members
    async with starlette_client(application) as send:
        first, second = Browser(send), Browser(send)
        assert (await first.sign_in(ada.id)).json() == {"id": ada.id, "account": ada.id}
        assert (await second.sign_in(alan.id)).json()["id"] == alan.id
        assert (await first.fetch("/me")).json()["id"] == ada.id
        await first.open("/logout", "POST")
        left = await first.fetch("/me")
        assert (left.status, left.json()["login_url"]) == (401, "/login")


@pytest.mark.parametrize(
    ("target", "status", "is_ours"),
    [("/card?card_id=x", 404, True), ("/both", 404, True), ("/nothing", 404, False), ("/broken", 500, False)],
)
async def test_errors_of_board_calls_are_problem_documents(
    consenting: BoardService, application: Any, target: str, status: int, is_ours: bool
) -> None:
    """Django responds to all others, which the middleware raises again."""
    async with starlette_client(application) as send:
        browser = Browser(send)
        await browser.sign_in(consenting.members[0].id)
        reply = await browser.fetch(target)
    assert reply.status == status
    assert (reply.header("Content-Type") == "application/problem+json") is is_ours
    assert "canary" not in reply.text
