"""A Django project as docs/web.md describes it: `boards`, its middleware, views, and the ASGI application."""

from __future__ import annotations

from typing import Any

from django.core.asgi import get_asgi_application
from django.http import JsonResponse
from django.urls import path
from web_apps import both, broken, card, me

from boardclient.integrations.asgi import BoardLifespan
from boardclient.integrations.django import DjangoBoards
from boardclient.web import SignIn

boards = DjangoBoards(SignIn.from_env)  # each test puts its own in its place


def middleware(get_response: Any) -> Any:
    return boards.middleware(get_response)


middleware.sync_capable, middleware.async_capable = False, True  # type: ignore[attr-defined]  # -- what Django reads


async def get_me(request: Any) -> JsonResponse:
    return JsonResponse(await me(await boards.user_session(request), await boards.user_account(request)))


async def get_card(request: Any) -> JsonResponse:
    return JsonResponse(await card(await boards.user_session(request), request.GET["card_id"]))


async def get_both(request: Any) -> None:
    await both(await boards.user_session(request))


async def get_broken(request: Any) -> None:
    await broken()


urlpatterns = [
    path("me", get_me),
    path("card", get_card),
    path("both", get_both),
    path("broken", get_broken),
]


def application() -> BoardLifespan:
    """Return what `asgi.py` of a project names `application`."""
    return BoardLifespan(get_asgi_application(), boards)
