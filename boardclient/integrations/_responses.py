"""The responses of all integrations: redirects and problem documents (RFC 9457). No I/O."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import attrs

from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    ConsentRequired,
    CredentialError,
    DeadlineError,
    InvalidIdentifierError,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    SessionClosedError,
    TransportError,
)
from boardclient.integrations._requests import IncomingRequest
from boardclient.web import SignInError

_logger: Final = logging.getLogger("boardclient.integrations")

_NEVER_KEPT: Final = ("Cache-Control", "no-store")
_FAILURE: Final = 5
"""The first digit of the statuses that are logged: the browser is not at fault."""
_DETAILS: Final[tuple[tuple[type[BoardClientError], str], ...]] = (
    (ConsentRequired, "sign in first"),
    (AuthenticationError, "the board service does not accept the credentials"),
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


@attrs.frozen
class OutgoingResponse:
    """A response to send. Several headers may have the same name."""

    status: int
    headers: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    body: bytes = b""

    @property
    def encoded_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as in ASGI."""
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers]


def redirect(location: str, set_cookies: Iterable[str] = ()) -> OutgoingResponse:
    """Return a 303, which browsers follow with GET, whatever method they used before."""
    return OutgoingResponse(303, (("Location", location), _NEVER_KEPT, *_cookies(set_cookies), ("Content-Length", "0")))


def response_to(error: Exception, request: IncomingRequest) -> OutgoingResponse | None:
    """Return the response to an error of this package, or to a group of them. None for any other error.

    `ConsentRequired` redirects a page to the login path (303), and any other request gets a 401 with `login_url`. Every other
    error becomes a problem document with its `suggested_status`.
    """
    errors = list(_leaves(error))
    known = [one for one in errors if isinstance(one, BoardClientError)]
    if len(known) < len(errors):
        return None
    reported = max(known, key=lambda one: (isinstance(one, ConsentRequired), one.suggested_status))
    if isinstance(reported, ConsentRequired) and reported.login_url is not None and request.wants_page:
        separator = "&" if "?" in reported.login_url else "?"
        return redirect(f"{reported.login_url}{separator}return_to={quote(request.page, safe='/')}")
    return _problem(reported, request)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, such as a task group's, and of the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _problem(error: BoardClientError, request: IncomingRequest) -> OutgoingResponse:
    status = error.suggested_status
    document: dict[str, object] = {"title": HTTPStatus(status).phrase, "status": status, "detail": _detail(error)}
    headers = [("Content-Type", "application/problem+json"), ("X-Content-Type-Options", "nosniff"), _NEVER_KEPT]
    if isinstance(error, ConsentRequired):
        # A 401 must have this header (RFC 9110 15.5.2). Browsers show no prompt for an unknown scheme.
        headers.append(("WWW-Authenticate", "Cookie"))
        if error.login_url is not None:
            document["login_url"] = error.login_url
    if isinstance(error, SignInError):
        document["reason"] = error.reason
        headers += _cookies(error.set_cookies)
    else:
        document["effect"] = error.effect.value
    if isinstance(error, ApiError) and error.retry_after is not None:
        headers.append(("Retry-After", str(max(0, math.ceil(error.retry_after)))))
    if status // 100 == _FAILURE:
        _logger.warning("responded to %s %s with %d: %s", request.method, request.path, status, error)
    body = json.dumps(document).encode()
    return OutgoingResponse(status, (*headers, ("Content-Length", str(len(body)))), body)


def _detail(error: BoardClientError) -> str:
    if isinstance(error, InvalidIdentifierError) or (isinstance(error, SignInError) and error.reason != "failed"):
        return str(error)
    if isinstance(error, SignInError):
        return "the sign-in failed: begin again"
    return next((text for kind, text in _DETAILS if isinstance(error, kind)), "the board service failed")


def _cookies(set_cookies: Iterable[str]) -> Iterator[tuple[str, str]]:
    return (("Set-Cookie", value) for value in set_cookies)
