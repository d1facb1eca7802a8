"""What a response means: each status in one table, the response as applications see it, and its errors (interface 7). No I/O.

To add a status, add a row to `_TABLE`, and a class to `errors` if it has an error of its own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, TypeGuard, TypeVar

import attrs
from multidict import CIMultiDict

from boardclient._base._activities import request_id_of
from boardclient._interface import _fields, _listings
from boardclient._transport._values import SUCCESSES, RawResponse
from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CredentialError,
    DecodeError,
    Effect,
    JournalError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
)
from boardclient.models import JsonValue

T = TypeVar("T")

_END_OF_CALENDAR: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
BODY_KEPT_BYTES: Final = 64 * 2**10
"""How much of a response's body an error keeps."""
_EXCERPT_BYTES: Final = 200
_KIND_LENGTH: Final = 60
_ID_LENGTH: Final = 200
"""How much of the service's identifier of a request a message shows."""


@attrs.frozen(eq=False)
class StatusMeaning:
    """The meaning of one status (interface section 7).

    Args:
        error: The class of its error.
        words: Its cause in words, "" if the interface names none.
        effect: What the service may have done. Only what proves that it has done nothing is REJECTED.
        advice: What the caller can do about it, "" if nothing is known to help.
        is_throttling: Whether the service asks for fewer requests. Any request may be repeated after a pause.
        is_overload: Whether the service may respond with it because requests come too fast.
        is_transient: Whether the same request may succeed later, so that repeatable ones are retried.
        ends_run: Whether every further call would get it too, so that a bulk run ends.
    """

    error: type[ApiError]
    words: str = ""
    effect: Effect = Effect.UNKNOWN
    advice: str = attrs.field(default="", kw_only=True)
    is_throttling: bool = attrs.field(default=False, kw_only=True)
    is_overload: bool = attrs.field(default=False, kw_only=True)
    is_transient: bool = attrs.field(default=False, kw_only=True)
    ends_run: bool = attrs.field(default=False, kw_only=True)


_REDIRECT: Final = StatusMeaning(ApiError, "a redirect, which is not followed", advice="check base_url")
"""A service that has done what was asked redirects as well: https://www.rfc-editor.org/rfc/rfc9110#section-15.4.4."""
_REFUSALS: Final = (402, 405, 406, *range(409, 418), 421, 422, 426)
"""The other client errors that RFC 9110 defines, section 15.5. What proxies invent, such as 499, proves nothing."""
_TABLE: Final[Mapping[int, StatusMeaning]] = {
    304: StatusMeaning(ApiError, "not modified, though the request has no condition", advice="check headers="),
    # The same request is to be sent to another address, so this one was not carried out.
    **dict.fromkeys((307, 308), attrs.evolve(_REDIRECT, effect=Effect.REJECTED)),
    **dict.fromkeys(_REFUSALS, StatusMeaning(ApiError, effect=Effect.REJECTED)),
    400: StatusMeaning(BadRequestError, "a required parameter is missing or wrong", Effect.REJECTED, advice="check what is sent"),
    401: StatusMeaning(
        AuthenticationError,
        "the key or token is invalid or expired",
        Effect.REJECTED,
        advice="check both, or obtain a new token",
        ends_run=True,
    ),
    403: StatusMeaning(
        PermissionDeniedError,
        "the credentials lack a permission or scope",
        Effect.REJECTED,
        advice="obtain a token with the scopes read and write",
    ),
    404: StatusMeaning(
        NotFoundError,
        "an identifier does not exist or is not accessible",
        Effect.REJECTED,
        advice="check the identifiers and whose token it is",
    ),
    407: StatusMeaning(
        ApiError,
        "the proxy wants credentials",
        Effect.REJECTED,
        advice="give them in proxy=",
        ends_run=True,
    ),
    408: StatusMeaning(ApiError, "the service waited too long for the request"),
    429: StatusMeaning(
        RateLimitError,
        "too many requests",
        Effect.REJECTED,
        advice="send fewer at a time, with limiter=Pace()",
        is_throttling=True,
        is_overload=True,
    ),
    503: StatusMeaning(ServerError, "the service failed", is_transient=True, is_overload=True),
}
_CLASSES: Final[Mapping[int, StatusMeaning]] = {
    2: StatusMeaning(ApiError, effect=Effect.DONE),
    3: _REDIRECT,
    4: StatusMeaning(ApiError),
    5: StatusMeaning(ServerError, "the service failed", is_transient=True),
}
"""By the first digit, for other statuses: https://www.rfc-editor.org/rfc/rfc9110#section-15 treats unknown ones as x00."""
_UNASSIGNED: Final = StatusMeaning(ApiError)


def status_of(status: int) -> StatusMeaning:
    """Return the meaning of a status, which is that of its first digit if it is not in the table."""
    return _TABLE.get(status) or _CLASSES.get(status // 100, _UNASSIGNED)


def is_http_error(status: int) -> bool:
    """Return whether HTTP calls a status an error (RFC 9110, sections 15.5 and 15.6)."""
    return 400 <= status < 600


def is_throttling(error: object) -> TypeGuard[ApiError]:
    """Return True if an error says that the service asks for fewer requests."""
    return isinstance(error, ApiError) and status_of(error.status).is_throttling


def ends_run(error: object) -> bool:
    if isinstance(error, ApiError):
        return status_of(error.status).ends_run
    return isinstance(error, CredentialError | JournalError | SessionClosedError)


def add_words(error: BoardClientError, words: str, joint: str = "; ") -> None:
    error.message += joint + words
    error.args = (error.message, *error.args[1:])


def add_request_id(error: BoardClientError, headers: Mapping[str, str]) -> None:
    """Let an error tell, and its message say, what the service calls the request, if the headers of its response do."""
    error.request_id = request_id_of(headers)
    if error.request_id is not None:
        add_words(error, f"request id {ascii(error.request_id[:_ID_LENGTH])[1:-1]}")


@attrs.frozen
class Response:
    """The response to `session.request`.

    ```python
    response = await session.request("GET", "/1/members/me")
    print(response.status, response.read(Member).extra)
    ```

    `status` is a number, `headers` is case-insensitive, and `body` is bytes, with any content encoding undone. `request` is the
    method and the path, without the query.
    """

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    request: str = attrs.field(default="", eq=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return self.status in SUCCESSES

    def json(self) -> JsonValue:
        """Return the JSON value of the body.

        Raises:
            DecodeError: it is not JSON.
        """
        return self._read(_fields.decode)

    def read(self, model: type[T]) -> T:
        """Return the body as a model or as a list of models.

        `model` is `Board`, `BoardList`, `Card` or `Member`, or a list of one of them, such as `list[Card]`. A field of another
        type than the interface shows is None, and stays in `extra`.

        Raises:
            DecodeError: the body is no such object or array, or an identifier is missing.
            TypeError: it is another type.
        """
        return self._read(partial(_listings.read, model))

    def _read(self, reader: Callable[[bytes], T]) -> T:
        try:
            return reader(self.body)
        except DecodeError as error:
            message, path = error.message, error.path
        unusable = DecodeError(f"{self.request}{self.request and ': '}{message}", path, self.request)
        add_request_id(unusable, self.headers)
        raise unusable


def response_of(response: RawResponse, line: str) -> Response:
    """Return a response for applications. Its headers are a copy, since aiohttp's proxy can't be pickled."""
    return Response(response.status, CIMultiDict(response.headers), response.body, line)


def api_error(line: str, response: RawResponse, now: float, host: str) -> ApiError:
    """Return the error of an unsuccessful response. Its credentials are redacted."""
    meaning = status_of(response.status)
    asked = asked_pause(response.headers, now, is_throttling=meaning.is_throttling)
    body = response.body[:BODY_KEPT_BYTES]
    wait = "" if asked is None else f"it asks to wait {asked:g} s"
    parts = [
        f"{line}: status {response.status} from {host}",
        "; ".join(filter(None, (meaning.words, wait, meaning.advice))),
        excerpt(response),
    ]
    error = meaning.error(": ".join(filter(None, parts)), response.status, response.headers, body, line, asked, meaning.effect)
    error.retry_at = retry_at(response.status, response.headers, now)
    add_request_id(error, response.headers)
    return error


def excerpt(response: RawResponse) -> str:
    """Return the beginning of a body in ASCII. A content type other than JSON precedes it."""
    text = " ".join(response.body[:_EXCERPT_BYTES].decode("utf-8", "replace").split())
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip()[:_KIND_LENGTH]
    named = f"{ascii(kind)[1:-1]}: " if kind and "json" not in kind.lower() else ""
    return f"{named}{ascii(text)[1:-1]}" if text else ""


def moment_in(seconds: float, now: float | None = None) -> datetime:
    """Return the date-time in so many seconds, or the end of the calendar if it is later."""
    return datetime.fromtimestamp(min((time.time() if now is None else now) + seconds, _END_OF_CALENDAR), UTC)


def retry_at(status: int, headers: Mapping[str, str], now: float) -> datetime | None:
    """Return from when on a service accepts a request again that it refused or failed. None if it does not say."""
    meaning = status_of(status)
    asked = asked_pause(headers, now, is_throttling=meaning.is_throttling) if meaning.is_overload else None
    return None if asked is None else moment_in(asked, now)


_COUNTS: Final = (("RateLimit-Remaining", "RateLimit-Reset"), ("X-RateLimit-Remaining", "X-RateLimit-Reset"))
_LONGEST_RESET: Final = 1e8
"""A larger number is a time since 1970, in seconds, and no number of seconds to wait."""


def asked_pause(headers: Mapping[str, str], now: float, *, is_throttling: bool) -> float | None:
    """Return the seconds for which a response asks to wait: what `Retry-After` says, or else what other fields say.

    These are `retry-after-ms` and, of a 429 (`is_throttling`), the time until requests are left again: `RateLimit` as in
    https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/, and its earlier forms. A service need send none.
    """
    asked = retry_after(headers, now)
    if asked is None:
        milliseconds = _number(headers.get("retry-after-ms", ""))
        asked = None if milliseconds is None else milliseconds / 1000
    if asked is not None or not is_throttling:
        return asked
    if (seconds := _pause_of_policy(headers)) is not None:
        return seconds
    for remaining, reset in _COUNTS:
        if _number(headers.get(remaining, "")) == 0 and (seconds := _number(headers.get(reset, ""))) is not None:
            return seconds if seconds < _LONGEST_RESET else max(0.0, seconds - (_http_date(headers.get("Date", "")) or now))
    return None


def _pause_of_policy(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a policy of `RateLimit` has requests left again, None if none is used up.

    Where it does not say them, the window of `RateLimit-Policy` is the longest that it can take.
    """
    windows = {name: parameters.get("w", "") for name, parameters in _policies(headers.get("RateLimit-Policy", ""))}
    for name, parameters in _policies(headers.get("RateLimit", "")):  # "default";r=0;t=30
        if _number(parameters.get("r", "")) == 0:
            return _number(parameters.get("t", windows.get(name, "")))
    earlier = _parameters(headers.get("RateLimit", "").split(","))  # limit=100, remaining=0, reset=30, until draft 7
    return _number(earlier.get("reset", "")) if _number(earlier.get("remaining", "")) == 0 else None


def _policies(value: str) -> list[tuple[str, dict[str, str]]]:
    """Return the names and the parameters of the items of a field."""
    items = [item.split(";") for item in value.split(",")]
    return [(name.strip(), _parameters(parameters)) for name, *parameters in items]


def _parameters(parts: Iterable[str]) -> dict[str, str]:
    return {name: amount for name, _, amount in (part.strip().partition("=") for part in parts)}


def _number(value: str) -> float | None:
    """Return a number that is not negative. None if it is none."""
    value = value.strip()
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", value):
        return None
    return float(value)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that `Retry-After` asks for. None if it is missing or malformed.

    It holds seconds or a date (https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3). A date counts from the response's own
    `Date`, or from `now` if there is none: the service's clock may differ. A past date is 0.
    """
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        seconds = float(value)
        return seconds if math.isfinite(seconds) else None
    moment = _http_date(value)
    if moment is None:
        return None
    sent = _http_date(headers.get("Date", ""))
    return max(0.0, moment - (now if sent is None else sent))


def _http_date(value: str) -> float | None:
    """Return an HTTP date in seconds since the epoch. None if it is malformed."""
    try:
        moment = parsedate_to_datetime(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
