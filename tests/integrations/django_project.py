"""A Django project as docs/frameworks/django.md describes it: `boards`, its middleware, views, and the ASGI application."""

from __future__ import annotations

from typing import Any

from django.core.asgi import get_asgi_application
from django.http import JsonResponse
from django.urls import path
from web_apps import PATHS, act, greet

from boardclient.integrations.asgi import BoardLifespan
from boardclient.integrations.django import DjangoBoards
from boardclient.web import SignIn

boards = DjangoBoards(SignIn.from_env)  # each test puts its own in its place


def middleware(get_response: Any) -> Any:
    return boards.middleware(get_response)


middleware.sync_capable, middleware.async_capable = False, True  # type: ignore[attr-defined]  # -- what Django reads


async def view(request: Any) -> JsonResponse:
    user = await boards.user_session(request), await boards.user_account(request)
    return JsonResponse(await act(request.path, *user, **request.GET.dict()))


async def guest(request: Any) -> JsonResponse:
    return JsonResponse(await greet(await boards.optional_session(request)))


urlpatterns = [path("guest", guest), *(path(name[1:], view) for name in PATHS)]


def application() -> BoardLifespan:
    """Return what `asgi.py` of a project names `application`."""
    return BoardLifespan(get_asgi_application(), boards)
