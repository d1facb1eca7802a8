"""The exceptions, the effect of a failed call, and the history of its attempts. No I/O.

BoardClientError
├── ApiError                     the service responded, and not with success
│   ├── BadRequestError 400
│   ├── AuthenticationError 401
│   ├── PermissionDeniedError 403
│   ├── NotFoundError 404
│   ├── RateLimitError 429
│   └── ServerError 5xx
├── TransportError               no complete response arrived
│   └── DeadlineError            also a TimeoutError
├── DecodeError                  a success whose body is not what the interface shows
├── CredentialError              credentials could not be obtained
│   └── ConsentRequired          the account's user has to sign in
├── InvalidIdentifierError       also a ValueError: an identifier or a credential that can't be part of a path
├── JournalError                 the journal or ledger of a run can't be used
└── SessionClosedError           the session was closed before or during the call
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple, Self, TypeVar

import attrs

_KEY: Final = "$BOARDCLIENT_KEY"
_TOKEN: Final = "$BOARDCLIENT_TOKEN"  # noqa: S105 -- a variable of the shell, not a secret
"""The variables of the shell that stand for the credentials in a curl command."""

Phase = Literal["connect", "send", "receive", "deadline"]
_Error = TypeVar("_Error", bound="BoardClientError")


class Effect(enum.Enum):
    """What a call may have done at the service, from the least to the most serious.

    ```python
    try:
        await session.cards.create("Book the hall", list_id=todo.id)
    except BoardClientError as error:
        if error.effect in (Effect.NOT_SENT, Effect.REJECTED):
            print("there is no card: the call may be made again")
    ```
    """

    NOT_SENT = "not sent"
    """The service never got the request."""
    REJECTED = "rejected"
    """The service refused the request and did nothing."""
    UNKNOWN = "unknown"
    """The service may have carried out the request."""
    DONE = "done"
    """The service carried out the request, but its response could not be used."""

    def __str__(self) -> str:
        """Return the word that documents and log records use."""
        return str(self.value)

    @classmethod
    def worst(cls, effects: Iterable[Effect]) -> Effect:
        """Return the worst of the effects, NOT_SENT if there are none."""
        return max(effects, key=_EFFECTS.index, default=cls.NOT_SENT)


_EFFECTS = [*Effect]


@attrs.frozen(kw_only=True)
class Attempt:
    """One request that a call made or tried to make.

    Args:
        number: The number of the attempt within the call, from 1.
        started_at: When it began, aware and in UTC.
        seconds: How long it took.
        effect: What it may have done.
        why: Its outcome in words.
        status: The HTTP status, None if no complete response arrived.
        pause_seconds: The pause between this attempt and the next one. None if none followed.
    """

    number: int
    started_at: datetime
    seconds: float
    effect: Effect
    why: str
    status: int | None = None
    pause_seconds: float | None = None


class ShownRequest(NamedTuple):
    """What a call sends, without its credentials.

    Args:
        method: The HTTP method.
        url: The absolute URL, without credentials. Only the first 64 KiB of its path and query are kept.
        body: The JSON body without credentials, None if there is none. "@body.json" stands for one of more than 64 KiB: curl
            reads it from that file.
        has_key: Whether a key is sent as well as a token.
        is_in_body: Whether the credentials go into the body, and not into the query, where they are shown beside "@body.json".
    """

    method: str
    url: str
    body: str | None = None
    has_key: bool = True
    is_in_body: bool = False

    def as_curl(self) -> str:
        """Return the request as one command of a POSIX shell.

        The credentials go through a pipe: every user of the machine can read the arguments of programs. `printf` is none, but a
        part of the shell.
        """
        from shlex import quote  # few programs ask for a command: importing it takes a millisecond

        # With -X HEAD curl waits for a body, and -G would put the body into the query: https://curl.se/docs/manpage.html
        parts = ["curl", "-sS", "-I" if self.method == "HEAD" else f"-X {quote(self.method)}", "-H 'Accept: application/json'"]
        if self.body is not None:
            parts.append("-H 'Content-Type: application/json'")
        if self.body is not None and self.is_in_body:
            # The credentials come first in the object, where they need no parser: the rest follows them as it is.
            rest = self.body[1:].lstrip()
            comma = "" if rest == "}" else ","
            key = quote('{"key":"') + f'"{_KEY}"' + quote('","token":"')
            source = f"printf %s {key}" + f'"{_TOKEN}"' + quote(f'"{comma}{rest}')
            parts.append("--data-binary @-")
        else:
            option = "data-urlencode" if self.body is None else "url-query"
            fields = [f'"key={_KEY}"'] * self.has_key + [f'"token={_TOKEN}"']
            escape = rf"""sed 's/[\\"]/\\&/g; s/.*/{option} = "&"/'"""
            # A file of options on standard input: what stands there is in no list of processes.
            source = rf"printf '%s\n' {' '.join(fields)} | {escape}"
            parts += ["-G"] if self.body is None else [f"--data-binary {quote(self.body)}"]
            parts.append("-K -")
        return f"{source} | {' '.join([*parts, quote(self.url)])}"


class BoardClientError(Exception):
    """Base of all errors of this package.

    ```python
    try:
        await session.cards.create("Book the hall", list_id=todo.id)
    except BoardClientError as error:
        print(error.effect, error.retry_at, error.attempts)
    ```

    Attributes:
        message: The error in words, without credentials.
        effect: The worst of what the attempts may have done.
        attempts: The history of the call, oldest first.
        repeatable: Whether a second request leaves the service in the same state as the first.
        suggested_status: The HTTP status with which a web application may respond.
        retry_at: From when on the same call makes sense again, aware. None if that is not known, or waiting does not help.
        candidates: The identifiers of the cards that may be the one of a reference, if its effect stays unknown.
        shown_request: What the call sends, without its credentials. None if there was no request.
        call_id: The identifier of the call in events and logs.
        request_id: What the service calls the last request, by a header such as `X-Request-Id`, for its support. None if no
            response says so.
    """

    suggested_status: int = 500
    retry_at: datetime | None = None
    candidates: tuple[str, ...] = ()
    shown_request: ShownRequest | None = None
    call_id: str = ""
    request_id: str | None = None

    def __init__(self, message: str = "", effect: Effect = Effect.NOT_SENT, attempts: tuple[Attempt, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.effect = effect
        self.attempts = attempts
        self.repeatable = False

    def as_curl(self) -> str | None:
        """Return the request of the call as a curl command for a POSIX shell.

        The command holds no credentials: it takes them from `$BOARDCLIENT_KEY` and `$BOARDCLIENT_TOKEN`, and passes them to curl
        in no argument, which other users could read. Headers that the application added are left out. A body of more than 64 KiB
        is read from the file `body.json`, and the credentials are in the query then. With a body and credentials in the query it
        needs curl 7.87. The result is None if there was no request.
        """
        return None if self.shown_request is None else self.shown_request.as_curl()

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, effect={self.effect.name}, attempts={len(self.attempts)})"

    def __reduce__(self) -> tuple[object, ...]:
        # Not by `__init__`, whose arguments differ: an error of a worker process must arrive as what it was.
        return _restore, (type(self), self.args, self.__dict__.copy())

    def __copy__(self) -> Self:
        # Not by pickling: libraries register a way of their own for all exceptions, which keeps the traceback and shares notes.
        copied = _restore(type(self), self.args, self.__dict__.copy())
        if notes := getattr(self, "__notes__", None):
            copied.__notes__ = [*notes]
        return copied


def _restore(cls: type[_Error], args: tuple[object, ...], state: dict[str, object]) -> _Error:
    """Rebuild a pickled or copied error without running its `__init__`."""
    # `BaseException.__new__` keeps the arguments that `str` and tracebacks show.
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ApiError(BoardClientError):
    """Report a response that is not a success (interface section 7).

    ```python
    try:
        await session.cards.get("none")
    except ApiError as error:
        print(error.status, error.request, error.body)
    ```

    Attributes:
        status: The HTTP status.
        headers: The first 64 KiB of the headers of the response, with `***` in place of credentials.
        body: The first 64 KiB of the body, with `***` in place of credentials.
        request: The method and the path, without the query.
        retry_after: The seconds that a `Retry-After` header asks for. None if there is none.
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
    """Report status 401: the key or token is invalid, and a renewal did not help.

    `suggested_status` is 502: not the visitor's credentials were refused. A user who has to sign in is `ConsentRequired`.
    """


class PermissionDeniedError(ApiError):
    """Report status 403: the credentials lack a permission or scope."""

    suggested_status = 403


class NotFoundError(ApiError):
    """Report status 404: an identifier does not exist or is not accessible."""

    suggested_status = 404


class RateLimitError(ApiError):
    """Report status 429: the service asks for fewer requests. See `retry_after` for a pause that it names.

    ```python
    try:
        await session.members.me()
    except RateLimitError as error:
        print("again at", error.retry_at)
    ```
    """

    suggested_status = 503


class ServerError(ApiError):
    """Report a 5xx status: it is unknown whether the operation was done."""


class TransportError(BoardClientError):
    """Report that no complete response arrived. `phase` says how far the request got."""

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
    """Report that the timeout of the call passed. The message says what the call was waiting for."""

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
    """Report a success whose body is not what the interface shows.

    `path` names the place within the body, such as `[3].name`.
    """

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
    """Report that no credentials could be obtained for a call.

    `__cause__` is the exception of the application's callback or store, if one raised.
    """

    suggested_status = 503


class ConsentRequired(CredentialError):  # noqa: N818 -- a public name, and consent is no failure
    """Report that the user of `account` has to sign in before the call can be made.

    Nothing was sent. `login_url` is where the application's sign-in begins, None if the credentials have none. `is_signed_out`
    says that the account had a token and has none any more, since its user has signed out: a bulk run under way ends then.

    ```python
    try:
        await session.members.me()
    except ConsentRequired as error:
        print(error.account, "signs in at", error.login_url)
    ```
    """

    suggested_status = 401
    is_signed_out: bool = False

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
    """Report an identifier, or a credential, that can't be part of a path. It was not sent."""

    suggested_status = 404


class JournalError(BoardClientError):
    """Report a journal or ledger that can't be used, or that contradicts the input.

    The message says what to do. Every row that was sent is in the journal or ledger.
    """


class SessionClosedError(BoardClientError):
    """Report that the session was closed before or during the call."""

    suggested_status = 503
