"""aiohttp.web: a cleanup context, the routes, a middleware, and a view per user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from multidict import CIMultiDict

from boardclient.integrations._http import HANDLED, IncomingRequest, OutgoingResponse, response_to
from boardclient.integrations._sessions import BoardSessions
from boardclient.session import AsyncSession

__all__ = ["AiohttpBoards"]

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AiohttpBoards(BoardSessions):
    """The session of an aiohttp application, and a view of it for each user.

    ```python
    boards = AiohttpBoards(SignIn.from_env)
    boards.install(app)

    async def me(request: web.Request) -> web.Response:
        session = await boards.user_session(request)
        return web.json_response((await session.members.me()).to_dict())
    ```

    The arguments are those of `BoardSessions`.
    """

    def install(self, app: web.Application) -> None:
        """Add the cleanup context, the middleware and the routes. These are `/login`, `/callback` and `/logout` (POST)."""
        app.cleanup_ctx.append(self.cleanup_context)
        app.middlewares.append(self.middleware)
        app.router.add_get(self.login_path, _handler(self.log_in), allow_head=False)
        # Without HEAD, which would use up the code of a sign-in.
        app.router.add_get(self.callback_path, _handler(self.call_back), allow_head=False)
        app.router.add_post(self.logout_path, _handler(self.log_out))

    async def cleanup_context(self, app: web.Application) -> AsyncIterator[None]:
        """Open the session when the application starts, and close it when it ends."""
        async with self.running():
            yield

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Respond to errors of this package, and to other origins' pages.

        Other errors are raised again, and all are once a response has begun.
        """
        incoming = _incoming(request)
        refusal = self.refusal_of(incoming)
        if refusal is not None:
            return _response(refusal)
        try:
            return await handler(request)
        except HANDLED as error:
            # A response that has begun can't be replaced: a second head would be read as a part of its body.
            if request.writer.output_size:
                raise
            return _response(response_to(error, incoming))

    async def user_session(self, request: web.BaseRequest) -> AsyncSession:
        """Return a session for the signed-in user.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.session_of(_incoming(request))

    async def optional_session(self, request: web.BaseRequest) -> AsyncSession | None:
        """Return a session for the signed-in user, None for a guest."""
        return await self.optional_session_of(_incoming(request))

    async def user_account(self, request: web.BaseRequest) -> str:
        """Return the account of the signed-in user.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.account_of(_incoming(request))


def _incoming(request: web.BaseRequest) -> IncomingRequest:
    return IncomingRequest.of(request.method, str(request.rel_url), request.headers.items())


def _handler(
    action: Callable[[IncomingRequest], Awaitable[OutgoingResponse]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        return _response(await action(_incoming(request)))

    return handler


def _response(outgoing: OutgoingResponse) -> web.Response:
    return web.Response(body=outgoing.body, status=outgoing.status, headers=CIMultiDict(outgoing.headers))
