"""A Django project as docs/web.md describes it: views that use the adapter, and a middleware for errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from web_apps import both, broken, card, me

boards: Any = None
"""The adapter of the page's code, which the test sets."""


async def get_me(request: Any) -> JsonResponse:
    return JsonResponse(await me(await boards.user_session(request), await boards.user_account(request)))


async def get_card(request: Any) -> JsonResponse:
    return JsonResponse(await card(await boards.user_session(request), request.GET["card_id"]))


async def get_both(request: Any) -> None:
    await both(await boards.user_session(request))


async def get_broken(request: Any) -> None:
    await broken()


async def get_nothing(request: Any) -> None:
    raise Http404


class BoardErrors:
    """Responds to the errors of board calls."""

    sync_capable, async_capable = False, True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        return await self.get_response(request)

    async def process_exception(self, request: Any, error: Exception) -> HttpResponse:
        answer = await boards.handle(request, error)
        return HttpResponse(answer.body, status=answer.status_code, headers=dict(answer.headers))


urlpatterns = [
    path("me", get_me),
    path("card", get_card),
    path("both", get_both),
    path("broken", get_broken),
    path("nothing", get_nothing),
]
