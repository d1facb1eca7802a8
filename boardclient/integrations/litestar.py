"""Litestar: a plugin with the lifespan, dependencies, routes and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from boardclient._base._environment import requires_extra
from boardclient.integrations._http import HANDLED, IncomingRequest, OutgoingResponse, response_to
from boardclient.integrations._sessions import BoardSessions
from boardclient.integrations.asgi import OriginGuard
from boardclient.session import AsyncSession

with requires_extra("litestar", __name__):
    from litestar import Litestar, Request, Response, get, post
    from litestar.config.app import AppConfig
    from litestar.connection import ASGIConnection
    from litestar.di import Provide
    from litestar.handlers import HTTPRouteHandler
    from litestar.middleware import DefineMiddleware
    from litestar.plugins import InitPlugin
    from litestar.response.base import ASGIResponse

__all__ = ["LitestarBoards"]

_Request = Request[Any, Any, Any]


class LitestarBoards(BoardSessions, InitPlugin):
    """The session of a Litestar application, and a view per user. Use it as `Litestar(plugins=[boards])`.

    Handlers get it by the name of a parameter: `user_session`, `optional_session`, `user_account`, or `app_session` for the
    application's own. The plugin adds the routes `/login`, `/callback` and `/logout` (POST), the exception handlers and the guard
    of origins.

    The arguments are those of `BoardSessions`.
    """

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add everything to the application, as the plugin protocol asks."""
        app_config.middleware = [DefineMiddleware(cast("Any", OriginGuard), boards=self), *app_config.middleware]
        app_config.lifespan = [*app_config.lifespan, self.lifespan]
        app_config.route_handlers = [*app_config.route_handlers, *self.routes]
        app_config.exception_handlers = {**dict.fromkeys(HANDLED, self.handle), **app_config.exception_handlers}
        given = {
            name: Provide(getattr(self, name)) for name in ("user_session", "optional_session", "user_account", "app_session")
        }
        app_config.dependencies = {**given, **app_config.dependencies}
        return app_config

    @asynccontextmanager
    async def lifespan(self, app: Litestar) -> AsyncIterator[None]:
        """Open the session when the application starts, and close it when it ends."""
        async with self.running():
            yield

    @property
    def routes(self) -> list[HTTPRouteHandler]:
        """The routes of a sign-in."""

        @get(self.login_path, include_in_schema=False)
        async def log_in(request: _Request) -> Response[bytes]:
            return _Response(await self.log_in(_incoming(request)))

        @get(self.callback_path, include_in_schema=False)
        async def call_back(request: _Request) -> Response[bytes]:
            return _Response(await self.call_back(_incoming(request)))

        @post(self.logout_path, include_in_schema=False)
        async def log_out(request: _Request) -> Response[bytes]:
            return _Response(await self.log_out(_incoming(request)))

        return [log_in, call_back, log_out]

    def handle(self, request: _Request, error: Exception) -> Response[bytes]:
        """Return the response to an error of this package. Raise any other again."""
        return _Response(response_to(error, _incoming(request)))

    async def user_session(self, request: _Request) -> AsyncSession:
        """Return a session for the signed-in user.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.session_of(_incoming(request))

    async def optional_session(self, request: _Request) -> AsyncSession | None:
        """Return a session for the signed-in user, None for a guest."""
        return await self.optional_session_of(_incoming(request))

    async def user_account(self, request: _Request) -> str:
        """Return the account of the signed-in user.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.account_of(_incoming(request))


def _incoming(connection: ASGIConnection[Any, Any, Any, Any]) -> IncomingRequest:
    return IncomingRequest.of_scope(connection.scope)


class _Response(Response[bytes]):
    """A response whose headers are sent unchanged, several of one name too."""

    def __init__(self, outgoing: OutgoingResponse) -> None:
        super().__init__(outgoing.body, status_code=outgoing.status)
        self._outgoing = outgoing

    def to_asgi_response(self, *arguments: Any, **options: Any) -> ASGIResponse:
        return ASGIResponse(body=self._outgoing.body, status_code=self._outgoing.status, headers=self._outgoing.headers)
