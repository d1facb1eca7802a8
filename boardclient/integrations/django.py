"""Django: a middleware with routes, users, error responses and a guard.

Wrap the ASGI application in `boardclient.integrations.asgi.BoardLifespan`, since Django has no lifespan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from boardclient._base._environment import requires_extra
from boardclient.integrations._http import HANDLED, IncomingRequest, OutgoingResponse, response_to
from boardclient.integrations._sessions import BoardSessions
from boardclient.models import to_plain
from boardclient.session import AsyncSession

with requires_extra("django", __name__):
    from asgiref.sync import markcoroutinefunction
    from django.core.handlers.asgi import ASGIRequest  # type: ignore[import-untyped]  # -- Django has no types
    from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]  # -- Django has no types

    if TYPE_CHECKING:
        from json import JSONEncoder as DjangoJSONEncoder  # Django has no types, and its encoder has this one's methods
    else:
        from django.core.serializers.json import DjangoJSONEncoder

__all__ = ["DjangoBoards", "ModelJSONEncoder"]

_GetResponse = Callable[[HttpRequest], Awaitable[HttpResponse]]
_NO_SCOPE: Final = (
    "serve Django by ASGI, such as by uvicorn: a request of WSGI, as of manage.py runserver, has no event loop that outlives it"
)


class ModelJSONEncoder(DjangoJSONEncoder):
    """Writes models wherever they stand.

    ```python
    JsonResponse({"cards": cards}, encoder=ModelJSONEncoder)
    ```
    """

    def default(self, o: object) -> object:
        """Return a model as its `to_dict` does, and anything else as Django does."""
        plain = to_plain(o)
        return super().default(o) if plain is o else plain


class DjangoBoards(BoardSessions):
    """The session of a Django project, and a view of it for each user.

    It serves asynchronous views.

    ```python
    boards = DjangoBoards(SignIn.from_env)
    middleware = boards.middleware  # settings.MIDDLEWARE names it: "project.boards.middleware"
    application = BoardLifespan(get_asgi_application(), boards)
    ```

    The arguments are those of `BoardSessions`.
    """

    def middleware(self, get_response: _GetResponse) -> _Middleware:
        """Return the middleware, with `/login`, `/callback` and `/logout` (POST)."""
        return _Middleware(self, get_response)

    # What Django reads: https://docs.djangoproject.com/en/stable/topics/http/middleware/#asynchronous-support
    middleware.sync_capable, middleware.async_capable = False, True  # type: ignore[attr-defined]  # -- functions have attributes

    async def handle(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Return the response to an error of this package. Raise any other again."""
        return _response(response_to(error, _incoming(request)))

    async def user_session(self, request: HttpRequest) -> AsyncSession:
        """Return a session for the signed-in user.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.session_of(_incoming(request))

    async def optional_session(self, request: HttpRequest) -> AsyncSession | None:
        """Return a session for the signed-in user, None for a guest."""
        return await self.optional_session_of(_incoming(request))

    async def user_account(self, request: HttpRequest) -> str:
        """Return the account of the signed-in user.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.account_of(_incoming(request))


class _Middleware:
    def __init__(self, boards: DjangoBoards, get_response: _GetResponse) -> None:
        self._boards, self._get_response = boards, get_response
        # Django looks for the mark and not at `__call__`: an object without it would be called in a thread.
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        boards, incoming = self._boards, _incoming(request)
        routes = {
            ("GET", boards.login_path): boards.log_in,
            ("GET", boards.callback_path): boards.call_back,
            ("POST", boards.logout_path): boards.log_out,
        }
        action = routes.get((incoming.method, request.path_info))
        refusal = boards.refusal_of(incoming)
        if refusal is not None:
            return _response(refusal)
        # Django has no routes of a middleware, and only the project knows whether these paths are its own without a sign-in.
        if action is None or not boards.has_sign_in:
            return await self._get_response(request)
        try:
            return _response(await action(incoming))
        except HANDLED as error:
            return await boards.handle(request, error)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Respond to errors of this package. All others are Django's affair."""
        return _response(response_to(error, _incoming(request))) if isinstance(error, HANDLED) else None


def _incoming(request: HttpRequest) -> IncomingRequest:
    if not isinstance(request, ASGIRequest):
        raise TypeError(_NO_SCOPE)
    headers, mount = cast("Mapping[str, str]", request.headers).items(), request.path.removesuffix(request.path_info)
    return IncomingRequest.of(request.method, request.get_full_path(), headers, mount=mount)


def _response(outgoing: OutgoingResponse) -> HttpResponse:
    response = HttpResponse(outgoing.body, status=outgoing.status)
    for name, value in outgoing.headers:
        if name == "Set-Cookie":
            # As a header of its own: of several with one name Django would keep the last.
            response.cookies.load(value)
        else:
            response[name] = value
    return response
