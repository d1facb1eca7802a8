"""Any ASGI application: the life of its session, and the guard of origins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from boardclient.integrations._http import MOUNT, IncomingRequest, Problem
from boardclient.integrations._sessions import BoardSessions, MakeSession

__all__ = ["BoardLifespan", "BoardSessions", "IncomingRequest", "OriginGuard", "Problem"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class OriginGuard:
    """Wrap an ASGI application. Refuse unsafe requests and websockets that pages of other origins send.

    The adapters of frameworks install it.

    Args:
        app: The inner application.
        boards: The object of an adapter, whose `origins` are allowed too.
    """

    def __init__(self, app: App, boards: BoardSessions) -> None:
        self.app = app
        self.boards = boards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        is_request = scope["type"] in {"http", "websocket"}
        if is_request:
            # Here, since this is the outermost application: mounts within it will change `root_path`.
            scope[MOUNT] = scope.get("root_path", "")
        refusal = self.boards.refusal_of(IncomingRequest.of_scope(scope)) if is_request else None
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # The specification has the server send `websocket.connect` first, which is to be received.
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before the handshake: the server responds with 403
        else:
            await send({"type": "http.response.start", "status": refusal.status, "headers": refusal.encoded_headers})
            await send({"type": "http.response.body", "body": refusal.body})


class BoardLifespan:
    """Wrap an ASGI application. The session is opened when the server starts, and closed when it stops.

    Each request has the session in `scope["state"]["board_session"]` (in Starlette and FastAPI `request.state.board_session`, in
    Django `request.scope["state"]["board_session"]`), and the sign-in, if there is one, in `scope["state"]["board_sign_in"]`.
    The inner application's lifespan, if it has one, runs within. Wrap the outermost application: mounted ones get no lifespan.
    Pages of other origins are refused, as by `OriginGuard`.

    Args:
        app: The inner application.
        boards: The function that makes the session, as in `BoardSessions`; or an adapter's `BoardSessions`, which is opened.

    Raises:
        RuntimeError: a request came before the lifespan, for example since it is switched off at the server.
    """

    def __init__(self, app: App, boards: MakeSession | BoardSessions) -> None:
        self.boards: BoardSessions = boards if isinstance(boards, BoardSessions) else BoardSessions(boards)
        self.app: OriginGuard = OriginGuard(app, self.boards)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] == "lifespan":
            await _Lifespan(self.boards, receive, send).run(self.app, scope)
            return
        state = {**scope.get("state", {}), "board_session": self.boards.session}
        if self.boards.has_sign_in:
            state["board_sign_in"] = self.boards.sign_in
        await self.app({**scope, "state": state}, receive, send)


class _Lifespan:
    """The lifespan protocol between the server and the inner application.

    https://asgi.readthedocs.io/en/latest/specs/lifespan.html
    """

    def __init__(self, boards: BoardSessions, receive: Receive, send: Send) -> None:
        self._boards, self._receive, self._send = boards, receive, send
        self._waiting: list[Message] = []
        """The server's startup message, until the inner application asks for it."""
        self._sent = self._received = ""
        self._is_open = False

    async def run(self, app: App, scope: Scope) -> None:
        """Open the session, run the inner lifespan if any, and close the session."""
        # Received before the session is opened, since the server begins with it and waits for its answer.
        self._waiting.append(await self._receive())
        try:
            await self._boards.open()
        except Exception as error:
            await self._send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            raise
        self._is_open = True
        try:
            await self._run_inner(app, scope)
            if not self._sent:
                await self.send({"type": "lifespan.startup.complete"})
            if self._sent == "lifespan.startup.complete":
                if self._received != "lifespan.shutdown":
                    await self._receive()
                await self.send({"type": "lifespan.shutdown.complete"})
        finally:
            await self._close()

    async def _run_inner(self, app: App, scope: Scope) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            if not self._waiting:
                raise
            # It raised before it received a message, so it has no lifespan: that is what the specification prescribes.

    async def receive(self) -> Message:
        """Return the server's next message to the inner application."""
        message = self._waiting.pop() if self._waiting else await self._receive()
        self._received = message["type"]
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on to the server. Before the last one the session is closed."""
        self._sent = message["type"]
        # After the last message the server may stop the event loop, and a session can't be closed any more.
        if self._sent != "lifespan.startup.complete":
            await self._close()
        await self._send(message)

    async def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._boards.aclose()
