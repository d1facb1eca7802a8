"""What each HTTP status means, in one table that all other modules use. No I/O.

To add a status, add a row to `_TABLE`, and a class to `errors` if it has an error of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CredentialError,
    Effect,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
)


@attrs.frozen(eq=False)
class StatusMeaning:
    """The meaning of one status (interface section 7).

    Args:
        error: The class of its error.
        words: Its cause in words, "" if the interface names none.
        effect: What the service may have done.
        advice: What the caller can do about it, "" if nothing is known to help.
        is_throttling: Whether the service asks for fewer requests. Any request may be repeated after a pause.
        is_overload: Whether the service may respond with it because requests come too fast.
        is_transient: Whether the same request may succeed later, so that repeatable ones are retried.
        ends_run: Whether every further call would get it too, so that a bulk run ends.
        is_final: Whether the same row would get it again, so that a journal does not send the row again.
    """

    error: type[ApiError]
    words: str = ""
    effect: Effect = Effect.REJECTED
    advice: str = attrs.field(default="", kw_only=True)
    is_throttling: bool = attrs.field(default=False, kw_only=True)
    is_overload: bool = attrs.field(default=False, kw_only=True)
    is_transient: bool = attrs.field(default=False, kw_only=True)
    ends_run: bool = attrs.field(default=False, kw_only=True)
    is_final: bool = attrs.field(default=False, kw_only=True)


_TABLE: Final[Mapping[int, StatusMeaning]] = {
    304: StatusMeaning(ApiError, "not modified, though the request has no condition", advice="check headers=", is_final=True),
    400: StatusMeaning(BadRequestError, "a required parameter is missing or wrong", advice="check what is sent", is_final=True),
    401: StatusMeaning(
        AuthenticationError, "the key or token is invalid or expired", advice="check both, or obtain a new token", ends_run=True
    ),
    403: StatusMeaning(
        PermissionDeniedError,
        "the credentials lack a permission or scope",
        advice="obtain a token with the scopes read and write",
    ),
    404: StatusMeaning(
        NotFoundError,
        "an identifier does not exist or is not accessible",
        advice="check the identifiers and whose token it is",
        is_final=True,
    ),
    407: StatusMeaning(
        ApiError, "the proxy wants credentials", advice="check proxy= or the proxy of the environment", ends_run=True
    ),
    408: StatusMeaning(ApiError, "the service waited too long for the request", Effect.UNKNOWN),
    425: StatusMeaning(ApiError),
    429: StatusMeaning(
        RateLimitError,
        "too many requests",
        advice="send fewer at a time, with limiter=Pace()",
        is_throttling=True,
        is_overload=True,
    ),
    503: StatusMeaning(ServerError, "the service failed", Effect.UNKNOWN, is_transient=True, is_overload=True),
}
_CLASSES: Final[Mapping[int, StatusMeaning]] = {
    2: StatusMeaning(ApiError, effect=Effect.DONE, is_final=True),
    3: StatusMeaning(ApiError, "a redirect, which is not followed", advice="check base_url", is_final=True),
    4: StatusMeaning(ApiError, is_final=True),
    5: StatusMeaning(ServerError, "the service failed", Effect.UNKNOWN, is_transient=True),
}
"""By the first digit, for other statuses: https://www.rfc-editor.org/rfc/rfc9110#section-15 treats unknown ones as x00."""
_UNASSIGNED: Final = StatusMeaning(ApiError, effect=Effect.UNKNOWN)

SUCCESSES: Final = frozenset(range(200, 300))
"""The statuses of responses that are read for their value."""

_RUN_ENDING: Final[tuple[type[BoardClientError], ...]] = (
    *(status.error for status in _TABLE.values() if status.ends_run),
    CredentialError,
    JournalError,
    SessionClosedError,
)
"""Errors that every further call would raise too."""


def status_of(status: int) -> StatusMeaning:
    """Return the meaning of a status, which is that of its first digit if it is not in the table."""
    return _TABLE.get(status) or _CLASSES.get(status // 100, _UNASSIGNED)


def is_http_error(status: int) -> bool:
    """Return whether HTTP calls a status an error (RFC 9110, sections 15.5 and 15.6)."""
    return 400 <= status < 600


def is_throttling(error: object) -> bool:
    """Return True if an error says that the service asks for fewer requests."""
    return isinstance(error, ApiError) and status_of(error.status).is_throttling


def is_final(error: object) -> bool:
    """Return True if an error is a response that the same row would get again."""
    return isinstance(error, ApiError) and status_of(error.status).is_final


def ends_run(error: object) -> bool:
    """Return True if every further call would raise the error too."""
    if isinstance(error, ApiError):
        return status_of(error.status).ends_run
    return isinstance(error, _RUN_ENDING)
