"""The exceptions, the effect of a failed call, and the history of its attempts. No I/O, no wire names.

BoardClientError
├── ApiError                     the service answered, and not with success
│   ├── BadRequestError 400
│   ├── AuthenticationError 401
│   ├── PermissionDeniedError 403
│   ├── NotFoundError 404
│   ├── RateLimitError 429
│   └── ServerError 5xx
├── TransportError               no whole answer came
│   └── DeadlineError            also a TimeoutError
├── DecodeError                  a success whose body is not what the interface shows
├── CredentialError              no credentials could be had
│   └── ConsentRequired          the account's user has to sign in
├── InvalidIdentifierError       also a ValueError: an identifier that can't stand in a path
├── JournalError                 the journal of a bulk run can't be used
└── SessionClosedError           the session was closed before or during the call
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import attrs

from boardclient._curl import ShownRequest

Phase = Literal["connect", "send", "receive", "deadline"]


class Effect(enum.Enum):
    """What a call may have done at the service, from the mildest to the gravest."""

    NOT_SENT = "not sent"
    """The service never got it."""
    REJECTED = "rejected"
    """The service refused it and did nothing."""
    UNKNOWN = "unknown"
    """It may have been done or not: nothing that came back tells."""
    DONE = "done"
    """The service did it; its answer could not be used."""

    @classmethod
    def worst(cls, effects: Iterable[Effect]) -> Effect:
        """Return the gravest of the effects, NOT_SENT where there is none."""
        return max(effects, key=_GRAVITY.__getitem__, default=cls.NOT_SENT)


_GRAVITY = {effect: gravity for gravity, effect in enumerate(Effect)}


@attrs.frozen(kw_only=True)
class Attempt:
    """One request that a call made or tried to make.

    `started_at` is aware (UTC), `seconds` is how long the attempt took, `pause_seconds` the wait that followed it before the
    next one (None where none followed), `why` its outcome in words.
    """

    number: int
    started_at: datetime
    seconds: float
    effect: Effect
    why: str
    status: int | None = None
    pause_seconds: float | None = None


class BoardClientError(Exception):
    """Base of every error that this package raises on its own account.

    `effect` is the worst of what the attempts may have done; `attempts` is the history of the call, oldest first;
    `repeatable` says whether the operation may be repeated without harm even if it was done. `suggested_status` is the HTTP
    status that a web application may answer with where it has no better one.
    """

    suggested_status: int = 500
    shown_request: ShownRequest | None = None
    """What the call sends, without its credentials; None where there was no request."""
    call_id: str = ""
    """Which call it was, as events and logs name it."""

    def __init__(self, message: str = "", effect: Effect = Effect.NOT_SENT, attempts: tuple[Attempt, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.effect = effect
        self.attempts = attempts
        self.repeatable = False

    def as_curl(self) -> str | None:
        """Return the request of the call as a curl command for a POSIX shell. It is None where there was none to be sent.

        The command may be shown to anyone: it takes the credentials from `$BOARDCLIENT_KEY` and `$BOARDCLIENT_TOKEN`. It leaves
        out headers that the application added.
        """
        return None if self.shown_request is None else self.shown_request.as_curl()

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, effect={self.effect.name}, attempts={len(self.attempts)})"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, self.__dict__.copy())


def _restore(cls: type[BoardClientError], args: tuple[object, ...], state: dict[str, object]) -> BoardClientError:
    """Rebuild a pickled or copied error without running its `__init__`."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ApiError(BoardClientError):
    """Report an answer of the service that is not a success (interface section 7).

    `body` holds at most its first 64 KiB and, like `headers`, `***` wherever a credential of the call stood;
    `request` is the method and the path, without the query; `retry_after` is what a Retry-After header asks for, in seconds.
    """

    suggested_status = 502

    def __init__(
        self,
        message: str = "",
        status: int = 0,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        request: str = "",
        retry_after: float | None = None,
        effect: Effect = Effect.REJECTED,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, effect, attempts)
        self.status = status
        self.headers: Mapping[str, str] = headers
        self.body = body
        self.request = request
        self.retry_after = retry_after


class BadRequestError(ApiError):
    """Report status 400: a required parameter is missing."""

    suggested_status = 400


class AuthenticationError(ApiError):
    """Report status 401: the key or token is invalid, and renewing did not help."""

    suggested_status = 401


class PermissionDeniedError(ApiError):
    """Report status 403: the credentials lack a permission or scope."""

    suggested_status = 403


class NotFoundError(ApiError):
    """Report status 404: an identifier does not exist or is not accessible."""

    suggested_status = 404


class RateLimitError(ApiError):
    """Report status 429: the service asks for fewer requests. `retry_after` says when, where it said so."""

    suggested_status = 503


class ServerError(ApiError):
    """Report a 5xx status: whether the operation was done is unknown."""


class TransportError(BoardClientError):
    """Report that no whole answer came; `phase` says how far the exchange got."""

    suggested_status = 502

    def __init__(
        self,
        message: str = "",
        phase: Phase = "receive",
        request: str = "",
        effect: Effect = Effect.UNKNOWN,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, effect, attempts)
        self.phase: Phase = phase
        self.request = request


class DeadlineError(TransportError, TimeoutError):
    """Report that the call's one deadline passed."""

    suggested_status = 504

    def __init__(
        self,
        message: str = "",
        phase: Phase = "deadline",
        request: str = "",
        effect: Effect = Effect.UNKNOWN,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, phase, request, effect, attempts)


class DecodeError(BoardClientError):
    """Report a success whose body is not what the interface shows. `path` names the place, as in `[3].name`."""

    suggested_status = 502

    def __init__(
        self,
        message: str = "",
        path: str = "",
        request: str = "",
        effect: Effect = Effect.DONE,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, effect, attempts)
        self.path = path
        self.request = request


class CredentialError(BoardClientError):
    """Report that credentials could not be had. `__cause__` is what the application raised, where it did."""

    suggested_status = 503


class ConsentRequired(CredentialError):  # noqa: N818 -- a public name, and consent is no failure
    """Report that the user of `account` has to sign in before the call can be made.

    Nothing was sent. `login_url` is where the application's sign-in begins, None where the credentials were given none.
    """

    suggested_status = 401

    def __init__(
        self,
        message: str = "",
        account: str = "",
        login_url: str | None = None,
        effect: Effect = Effect.NOT_SENT,
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, effect, attempts)
        self.account = account
        self.login_url = login_url


class InvalidIdentifierError(BoardClientError, ValueError):
    """Report an identifier that can't stand in the path of a request. Nothing was sent."""

    suggested_status = 404


class JournalError(BoardClientError):
    """Report that the journal of a bulk run can't be used, or contradicts the input.

    The message says what to do. No row was sent that the journal does not hold.
    """


class SessionClosedError(BoardClientError):
    """Report that the session was closed before the call, or while it was under way."""

    suggested_status = 503
