"""Requests and responses of all integrations. No I/O.

Responses with a status of 5xx are logged by the logger `boardclient.web`.
"""

from __future__ import annotations

import html
import json
import logging
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, urlsplit

import attrs

from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    ConsentRequired,
    CredentialError,
    DeadlineError,
    Effect,
    InvalidIdentifierError,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    SessionClosedError,
    TransportError,
)
from boardclient.web import SignInError, local_address

HANDLED: Final = (BoardClientError, ExceptionGroup)
"""The errors that have handlers: those of this package, and groups of them that a task group raises."""
logger: Final = logging.getLogger("boardclient.web")

MOUNT: Final = "boardclient.mount"
"""Where a scope keeps the path of the application that serves the routes: mounts within it change `root_path`."""
_SAFE: Final = "/!$&'()*+,;=:@~-._"
"""What need not be escaped in a path: https://www.rfc-editor.org/rfc/rfc3986#section-3.3."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_NEVER_KEPT: Final = ("Cache-Control", "no-store")
_FAILURE: Final = 5
"""The first digit of the statuses that are logged: the browser is not at fault."""
_DETAILS: Final[tuple[tuple[type[BoardClientError], str], ...]] = (
    (ConsentRequired, "sign in first"),
    (AuthenticationError, "the board service does not accept the application's credentials"),
    (PermissionDeniedError, "the board service does not allow it"),
    (NotFoundError, "it does not exist, or is not accessible"),
    (RateLimitError, "the board service is busy: try again later"),
    (DeadlineError, "the board service did not respond in time"),
    (TransportError, "the board service can't be reached"),
    (CredentialError, "the sign-in could not be renewed: try again later"),
    (SessionClosedError, "the application is shutting down"),
    (JournalError, "the application could not keep its journal"),
    (BadRequestError, "the board service does not understand the request"),
)
"""What users read. The messages of errors name hosts and paths, and are logged."""

_TITLES: Final = {401: "You are not signed in", 403: "That is not allowed", 404: "Not found"}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 32rem; margin: 3rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
{content}
</body>
</html>
"""


@attrs.frozen
class IncomingRequest:
    """A request to the application. `target` is its path and query, percent-encoded.

    `mount` is the path below which the application is, as of a proxy's prefix or a mount, "" for none.

    The names of headers are lower case. Headers of the same name are joined, cookies by a semicolon
    (https://www.rfc-editor.org/rfc/rfc9113#section-8.2.3).
    """

    method: str
    target: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    is_websocket: bool = False
    mount: str = ""

    @classmethod
    def of(
        cls, method: str, target: str, headers: Iterable[tuple[str, str]], *, is_websocket: bool = False, mount: str = ""
    ) -> Self:
        """Return a request. `headers` are pairs of names and values."""
        joined: dict[str, str] = {}
        for given, raw in headers:
            # aiohttp passes on bytes that are not UTF-8 as lone surrogates, which nothing can encode.
            name, value = given.lower(), raw.encode("utf-8", "replace").decode()
            joined[name] = f"{joined[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in joined else value
        # Some frameworks hand the upgrade on as a GET, which browsers send across origins without asking first.
        is_websocket = is_websocket or joined.get("upgrade", "").lower() == "websocket"
        below = quote(mount.rstrip("/"), errors="replace") if local_address(mount, "") else ""
        return cls(method.upper(), target, joined, is_websocket, below)

    @classmethod
    def of_scope(cls, scope: Mapping[str, Any]) -> Self:
        """Return the request of an ASGI scope. That of a websocket counts as GET."""
        path, root, query = scope["path"], scope.get("root_path", "").rstrip("/"), scope.get("query_string", b"")
        # Some servers leave `root_path` out: https://asgi.readthedocs.io/en/latest/specs/www.html#http-connection-scope
        if not f"{path}/".startswith(f"{root}/"):
            path = root + path
        headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        target = quote(path, _SAFE, errors="replace") + (f"?{query.decode('latin-1')}" if query else "")
        is_websocket, mount = scope.get("type") == "websocket", scope.get(MOUNT, root)
        return cls.of(scope.get("method", "GET"), target, headers, is_websocket=is_websocket, mount=mount)

    def below_mount(self, address: str) -> str:
        """Return a path of the application as browsers see it. One that names the mount itself is unchanged."""
        is_below = not address.startswith("/") or address.startswith(("//", f"{self.mount}/")) or address == self.mount
        return address if is_below else self.mount + address

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def cookies(self) -> str:
        """The value of the `Cookie` header, "" if there is none."""
        return self.headers.get("cookie", "")

    def return_to(self, otherwise: str = "/") -> str:
        """Return `return_to` of the query, if it is a path of this site."""
        return local_address(dict(parse_qsl(self.query)).get("return_to"), self.below_mount(otherwise))

    @property
    def page(self) -> str:
        """The page that the user sees: the target of a GET, or the form's page."""
        if self.method in {"GET", "HEAD"}:
            return self.target
        try:
            sender = urlsplit(self.headers.get("referer", ""))
        except ValueError:  # no URL at all
            return self.below_mount("/")
        # The page of another site can't be returned to, since `return_to` takes paths of this one.
        if sender.netloc != self.headers.get("host"):
            return self.below_mount("/")
        return sender.path + (f"?{sender.query}" if sender.query else "")

    def is_forged(self, origins: Collection[str], own: str) -> bool:
        """Return True if a page of another origin sends what is unsafe. `origins` and the application's `own` may.

        Browsers say so in `Sec-Fetch-Site`, older ones in `Origin`. Programs send neither: https://words.filippo.io/csrf.
        """
        if self.method in _SAFE_METHODS and not self.is_websocket:
            return False
        origin, site = self.headers.get("origin"), self.headers.get("sec-fetch-site")
        if origin is not None and (origin == own or origin in origins):
            return False
        # It is looked at before `Origin`, which is absent or "null" in requests that are harmless.
        if site:
            return site not in {"same-origin", "none"}
        host = self.headers.get("host")
        # Behind a proxy the scheme of the request is another than the browser's, so only `own` can tell it.
        return origin is not None and (origin.partition("://")[2] != host or own.partition("://")[2] == host)

    @property
    def is_prefetch(self) -> bool:
        """Whether the browser only expects that the user may open it: https://www.w3.org/TR/fetch-metadata/#sec-purpose-header."""
        purposes = (self.headers.get(name, "") for name in ("sec-purpose", "purpose", "x-purpose", "x-moz"))
        return any(re.match(r"\s*(prefetch|prerender|preview)\b", purpose, re.IGNORECASE) for purpose in purposes)

    @property
    def wants_page(self) -> bool:
        """Whether the request is a navigation, which may be redirected to the login page.

        A fetch, an HTMX request or an EventSource would follow the redirect itself, and fail at the other origin.
        """
        if "hx-request" in self.headers or self.headers.get("x-requested-with", "").lower() == "xmlhttprequest":
            return False
        # Not sent over plain http to other hosts than the local one: https://www.w3.org/TR/fetch-metadata/.
        mode = self.headers.get("sec-fetch-mode")
        return mode == "navigate" if mode else "text/html" in self.headers.get("accept", "").lower()  # programs send */*


@attrs.frozen
class OutgoingResponse:
    """A response to send. Several headers may have the same name."""

    status: int
    headers: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    body: bytes = b""

    @property
    def encoded_headers(self) -> list[tuple[bytes, bytes]]:
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers]


def redirect(location: str, set_cookies: Iterable[str] = ()) -> OutgoingResponse:
    """Return a 303, which browsers follow with GET, whatever method they used before."""
    return OutgoingResponse(303, (("Location", location), _NEVER_KEPT, *_cookies(set_cookies), ("Content-Length", "0")))


@attrs.frozen
class Problem:
    """What went wrong, for programs (RFC 9457) and for people.

    `document` has the fields `title`, `status` and `detail`, and `effect`, `reason` and `login_url` as far as they are known.
    """

    status: int
    document: Mapping[str, object]
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)

    @classmethod
    def of(cls, error: Exception, request: IncomingRequest | None = None) -> Self:
        """Return the problem of an error of this package, or of a group of them. Raise any other again."""
        reported = _reported(error)
        headers, more = list[tuple[str, str]](), dict[str, object](effect=reported.effect.value)
        # A failed sign-in changes cookies, and its effect would say nothing to a user.
        if isinstance(reported, SignInError):  # nothing was done for the user
            headers, more = [*_cookies(reported.set_cookies)], {"reason": reported.reason}
        if isinstance(reported, ConsentRequired):
            # A 401 must have this header (RFC 9110 15.5.2). Browsers show no prompt for an unknown scheme.
            headers.append(("WWW-Authenticate", "Cookie"))
        if isinstance(reported, ConsentRequired | SignInError) and reported.login_url is not None:
            more["login_url"] = reported.login_url if request is None else request.below_mount(reported.login_url)
        # Rounded up and never negative, since the field takes whole seconds (RFC 9110 10.2.3).
        if (seconds := _retry_after(reported)) is not None:
            headers.append(("Retry-After", str(max(0, math.ceil(seconds)))))
        return cls.made(reported.suggested_status, _detail(reported), headers, **more)

    @classmethod
    def made(cls, status: int, detail: str, headers: Iterable[tuple[str, str]] = (), **more: object) -> Self:
        """Return a problem with these fields."""
        return cls(status, {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}, tuple(headers))

    def response(self, request: IncomingRequest) -> OutgoingResponse:
        """Return a page for a navigation, and a problem document for any other request."""
        kind, body = "application/problem+json", json.dumps(self.document)
        if request.wants_page:
            kind, body = "text/html; charset=utf-8", self._page(sends=request.method not in _SAFE_METHODS)
        content = body.encode()
        # Never kept: an error would be shown after it has passed. "nosniff", since details may repeat what was sent.
        fixed = (("Content-Type", kind), ("X-Content-Type-Options", "nosniff"), _NEVER_KEPT)
        return OutgoingResponse(self.status, (*fixed, *self.headers, ("Content-Length", str(len(content)))), content)

    def _page(self, *, sends: bool) -> str:
        # All of it is escaped, since details name what users have typed.
        document = {name: html.escape(str(value)) for name, value in self.document.items()}
        lines = [f"<p>{document['detail'][:1].upper()}{document['detail'][1:]}.</p>"]
        if sends and document.get("effect") in {Effect.UNKNOWN.value, Effect.DONE.value}:
            lines.append("<p>What you sent may have been done: look before you send it again.</p>")
        if "login_url" in document:
            lines.append(f'<p><a href="{document["login_url"]}">Sign in</a></p>')
        return _PAGE.format(title=_TITLES.get(self.status, "That did not work"), content="\n".join(lines))


def problem(request: IncomingRequest, status: int, detail: str) -> OutgoingResponse:
    return Problem.made(status, detail).response(request)


def response_to(error: Exception, request: IncomingRequest) -> OutgoingResponse:
    """Return the response to an error of this package, or to a group of them. Raise any other again.

    `ConsentRequired` redirects a page to the login path (303), and any other request gets a 401 with `login_url`. Every other
    error becomes a page or a problem document with its `suggested_status`.
    """
    reported, found = _reported(error), Problem.of(error, request)
    if isinstance(reported, ConsentRequired) and reported.login_url is not None and request.wants_page:
        login_url = request.below_mount(reported.login_url)
        separator = "&" if "?" in login_url else "?"
        # The query of the page is escaped as well, or it would end that of the login page.
        return redirect(f"{login_url}{separator}return_to={quote(request.page, safe='/')}")
    if found.status // 100 == _FAILURE and not isinstance(reported, SignInError):  # which `SignIn.complete` has logged
        logger.warning("responded to %s %s with %d: %s", request.method, request.path, found.status, str(reported))
    return found.response(request)


def _reported(error: Exception) -> BoardClientError:
    errors = list(_leaves(error))
    known = [one for one in errors if isinstance(one, BoardClientError)]
    # An error that is not of this package belongs to the framework, with all that came with it.
    if len(known) < len(errors):
        raise error
    # Of several errors the one that a user can act on counts, then the one that says most about the service.
    return max(known, key=lambda one: (isinstance(one, ConsentRequired), one.suggested_status))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, such as a task group's, and of the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _retry_after(error: BoardClientError) -> float | None:
    """Return the seconds after which the browser may try again, if they are known and it is not to sign in instead."""
    if isinstance(error, ApiError) and error.retry_after is not None:
        return error.retry_after
    if error.retry_at is None or error.suggested_status // 100 != _FAILURE:
        return None
    return error.retry_at.timestamp() - time.time()


def _detail(error: BoardClientError) -> str:
    if isinstance(error, InvalidIdentifierError) or (isinstance(error, SignInError) and error.reason != "failed"):
        return str(error)
    if isinstance(error, SignInError):
        return "the sign-in failed: begin again" if error.suggested_status // 100 < _FAILURE else "signing in does not work now"
    return next((text for kind, text in _DETAILS if isinstance(error, kind)), "the board service failed")


def _cookies(set_cookies: Iterable[str]) -> Iterator[tuple[str, str]]:
    return (("Set-Cookie", value) for value in set_cookies)
