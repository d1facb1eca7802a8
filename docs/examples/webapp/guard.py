"""What protects the pages: browsers get strict headers, and no request has a large body."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BYTES = 2**20
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
FORGET_BOARDS = "boards=; Max-Age=0; Path=/; HttpOnly; SameSite=Lax"


class Guard:
    """Add `HEADERS` to every response, and refuse bodies above `LARGEST_BYTES` while they arrive.

    With the log-out the browser forgets the boards that the user has opened.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST_BYTES:
                raise HTTPException(413, "The file is larger than 1 MiB")
            return message

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if (scope["method"], scope["path"], message["status"]) == ("POST", "/logout", 303):
                    headers.append("Set-Cookie", FORGET_BOARDS)
            await send(message)

        await self.app(scope, receive_limited, send_guarded)
