"""What protects the pages: no form of another origin is accepted, and browsers get strict headers."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Refuse the forms of other origins, and add `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["method"] not in ("GET", "HEAD") and is_cross_origin(Headers(scope=scope)):
            await Response("This form was sent by another site.", 403)(scope, receive, send_guarded)
        else:
            await self.app(scope, receive, send_guarded)


def is_cross_origin(headers: Headers) -> bool:
    """Return True if a page of another origin sent the request.

    Browsers name the origin in Sec-Fetch-Site, older ones in Origin. Programs send neither, and have no users' cookies
    (https://words.filippo.io/csrf).
    """
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
