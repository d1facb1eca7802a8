"""Quart: the lifespan, the routes, the error handlers, and a view per user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from boardclient._base._environment import requires_extra
from boardclient.integrations._http import HANDLED, IncomingRequest, OutgoingResponse, response_to
from boardclient.integrations._sessions import BoardSessions
from boardclient.session import AsyncSession

with requires_extra("quart", __name__):
    from quart import Quart, Response, has_request_context, request, websocket

__all__ = ["QuartBoards"]


class QuartBoards(BoardSessions):
    """The session of a Quart application, and a view of it for each user.

    ```python
    boards = QuartBoards(SignIn.from_env)
    boards.install(app)

    @app.get("/me")
    async def me() -> dict[str, object]:
        session = await boards.user_session()
        return (await session.members.me()).to_dict()
    ```

    The arguments are those of `BoardSessions`.
    """

    def install(self, app: Quart) -> None:
        """Add the lifespan, the error handlers, the guard of origins and the routes.

        These are `/login`, `/callback` and `/logout` (POST).
        """
        app.before_serving(self.open)
        app.after_serving(self.aclose)
        app.before_request(self.refuse)
        app.before_websocket(self.refuse)
        for kind in HANDLED:
            app.register_error_handler(kind, self.handle)
        app.add_url_rule(self.login_path, "board_login", _view(self.log_in))
        app.add_url_rule(self.callback_path, "board_callback", _view(self.call_back))
        app.add_url_rule(self.logout_path, "board_logout", _view(self.log_out), methods=["POST"])

    async def refuse(self) -> Response | None:
        """Refuse a request of another origin's page."""
        refusal = self.refusal_of(_incoming())
        return None if refusal is None else _response(refusal)

    async def handle(self, error: Exception) -> Response:
        """Return the response to an error of this package. Raise any other again."""
        return _response(response_to(error, _incoming()))

    async def user_session(self) -> AsyncSession:
        """Return a session for the signed-in user of the current request.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.session_of(_incoming())

    async def optional_session(self) -> AsyncSession | None:
        """Return a session for the signed-in user, None for a guest."""
        return await self.optional_session_of(_incoming())

    async def user_account(self) -> str:
        """Return the account of the signed-in user of the current request.

        Raises:
            ConsentRequired: nobody is signed in.
        """
        return await self.account_of(_incoming())


def _incoming() -> IncomingRequest:
    return IncomingRequest.of_scope((request if has_request_context() else websocket).scope)


def _view(action: Callable[[IncomingRequest], Awaitable[OutgoingResponse]]) -> Callable[[], Awaitable[Response]]:
    async def view() -> Response:
        return _response(await action(_incoming()))

    return view


def _response(outgoing: OutgoingResponse) -> Response:
    response = Response(outgoing.body, outgoing.status)
    response.headers.clear()
    response.headers.extend(outgoing.headers)
    return response
