"""What each HTTP status of a response means, in one table. No I/O.

Every other module asks this one. To add a status: one line in `_TABLE`, and one class in `errors` where it has its own error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    CredentialError,
    Effect,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
)


@attrs.frozen
class Status:
    """The meaning of one status (interface section 7).

    Args:
        error: the class of the error that it raises.
        words: its cause in words, "" where the interface names none.
        advice: what the caller can do about it, "" where nothing is known to help.
        effect: what the service may have done.
        is_throttling: the service asks for fewer requests; the same request may be sent again later, whatever it does.
        is_transient: the same request may succeed later, so one that may be repeated is sent again.
        ends_run: every further call would get it as well, so a bulk run ends.
        is_final: the same row would get it again, so the journal of a bulk run does not send the row again.
    """

    error: type[ApiError]
    words: str = ""
    effect: Effect = Effect.REJECTED
    advice: str = attrs.field(default="", kw_only=True)
    is_throttling: bool = attrs.field(default=False, kw_only=True)
    is_transient: bool = attrs.field(default=False, kw_only=True)
    ends_run: bool = attrs.field(default=False, kw_only=True)
    is_final: bool = attrs.field(default=False, kw_only=True)


_TABLE: Final[Mapping[int, Status]] = {
    400: Status(BadRequestError, "a required parameter is missing or wrong", advice="check what is sent", is_final=True),
    401: Status(
        AuthenticationError, "the key or token is invalid or expired", advice="check both, or obtain a new token", ends_run=True
    ),
    403: Status(
        PermissionDeniedError,
        "the credentials lack a permission or scope",
        advice="obtain a token with the scopes read and write",
    ),
    404: Status(
        NotFoundError,
        "an identifier does not exist or is not accessible",
        advice="check the identifiers and whose token it is",
        is_final=True,
    ),
    408: Status(ApiError, "the service waited too long for the request", Effect.UNKNOWN),
    425: Status(ApiError),
    429: Status(RateLimitError, "too many requests", advice="send fewer at a time, with limiter=Pace()", is_throttling=True),
}
_CLASSES: Final[Mapping[int, Status]] = {
    2: Status(ApiError, effect=Effect.DONE, is_final=True),
    3: Status(ApiError, "a redirect, which is not followed", advice="check base_url", is_final=True),
    4: Status(ApiError, is_final=True),
    5: Status(ServerError, "the service failed", Effect.UNKNOWN, is_transient=True),
}
"""By the first digit, for statuses that are not in `_TABLE` (RFC 9110, section 15: an unknown one is treated as x00)."""
_UNASSIGNED: Final = Status(ApiError, effect=Effect.UNKNOWN)

_RUN_ENDING_ERRORS: Final = (CredentialError, JournalError, SessionClosedError)
"""Errors without a status that every further call would meet."""


def status_of(status: int) -> Status:
    """Return the meaning of a status. One that is not in the table means what its class means."""
    return _TABLE.get(status) or _CLASSES.get(status // 100, _UNASSIGNED)


def is_throttling(error: object) -> bool:
    """Return whether an error says that the service asks for fewer requests."""
    return isinstance(error, ApiError) and status_of(error.status).is_throttling


def is_final(error: object) -> bool:
    """Return whether an error is a response that the same row would get again."""
    return isinstance(error, ApiError) and status_of(error.status).is_final


def ends_run(error: object) -> bool:
    """Return whether an error is one that every further call would meet."""
    if isinstance(error, ApiError):
        return status_of(error.status).ends_run
    return isinstance(error, _RUN_ENDING_ERRORS)
