"""Starlette and FastAPI: the lifespan, dependencies, routes and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from boardclient._base._environment import requires_extra
from boardclient.integrations._http import HANDLED, IncomingRequest, OutgoingResponse, logger, response_to
from boardclient.integrations._sessions import BoardSessions
from boardclient.integrations.asgi import OriginGuard
from boardclient.models import to_plain
from boardclient.session import AsyncSession

with requires_extra("starlette", __name__):
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

__all__ = ["ModelJSONResponse", "StarletteBoards"]

_NOT_INSTALLED: Final = (
    "boards.install(app) was not called: there is no {}, and errors of this package get no response of their own"
)


class ModelJSONResponse(JSONResponse):
    """A response of JSON that may hold models anywhere.

    ```python
    ModelJSONResponse({"cards": cards})
    ```
    """

    def render(self, content: object) -> bytes:
        """Return the content as JSON. Models are written as their `to_dict` does."""
        return super().render(to_plain(content))


class StarletteBoards(BoardSessions):
    """The session of a Starlette or FastAPI application, and a view of it per user.

    ```python
    boards = StarletteBoards(SignIn.from_env)
    app = FastAPI(lifespan=boards.lifespan)
    boards.install(app)
    UserSession = Annotated[AsyncSession, Depends(boards.user_session)]
    ```

    The arguments are those of `BoardSessions`.
    """

    _is_installed = False

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Keep the session open while the application runs. Pass it as `lifespan=`.

        Within a lifespan of the application, write `async with boards.lifespan(): yield`.
        """
        async with self.running():
            if self.missing:
                logger.warning("%s", self.missing)
            yield

    @property
    def missing(self) -> str:
        """What the application has forgotten, in words, "" if nothing."""
        return "" if self._is_installed or not self.has_sign_in else _NOT_INSTALLED.format(self.login_path)

    def install(self, app: Starlette) -> None:
        """Add the exception handlers, the guard of origins and the routes.

        These are `/login`, `/callback` and `/logout` (POST).
        """
        app.add_middleware(OriginGuard, boards=self)
        for kind in HANDLED:
            app.add_exception_handler(kind, self.handle)
        app.router.routes += self.routes

    @property
    def routes(self) -> list[Route]:
        """The routes of a sign-in."""
        self._is_installed = True
        return [
            Route(self.login_path, _endpoint(self.log_in)),
            Route(self.callback_path, _endpoint(self.call_back)),
            Route(self.logout_path, _endpoint(self.log_out), methods=["POST"]),
        ]

    async def handle(self, request: Request, error: Exception) -> Response:
        """Return the response to an error of this package. Raise any other again."""
        return _response(response_to(error, IncomingRequest.of_scope(request.scope)))

    async def user_session(self, connection: HTTPConnection) -> AsyncSession:
        """Return a session for the signed-in user, also as a dependency.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.session_of(IncomingRequest.of_scope(connection.scope))

    async def optional_session(self, connection: HTTPConnection) -> AsyncSession | None:
        """Return a session for the signed-in user, None for a guest. Also a dependency."""
        return await self.optional_session_of(IncomingRequest.of_scope(connection.scope))

    async def user_account(self, connection: HTTPConnection) -> str:
        """Return the account of the signed-in user, also as a dependency.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.account_of(IncomingRequest.of_scope(connection.scope))


def _endpoint(action: Callable[[IncomingRequest], Awaitable[OutgoingResponse]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return _response(await action(IncomingRequest.of_scope(request.scope)))

    return endpoint


def _response(outgoing: OutgoingResponse) -> Response:
    response = Response(outgoing.body, outgoing.status)
    response.raw_headers = outgoing.encoded_headers
    return response
