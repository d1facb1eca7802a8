"""The response as applications see it, and its errors (interface 7). No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

import attrs
from multidict import CIMultiDict

from boardclient import _wire
from boardclient._statuses import status_of
from boardclient._transport import RawResponse
from boardclient.errors import ApiError
from boardclient.models import JsonValue

T = TypeVar("T")

BODY_KEPT_BYTES: Final = 64 * 2**10
"""How much of a response's body an error keeps."""
_EXCERPT_BYTES: Final = 200
_KIND_LENGTH: Final = 60


@attrs.frozen  # pyright: ignore[reportGeneralTypeIssues] -- attrs freezes subclasses of classes that are not
class Response(RawResponse):
    """The response to `session.request`.

    `status` is a number, `headers` is case-insensitive, and `body` is bytes, with any content encoding undone.
    """

    def json(self) -> JsonValue:
        """Return the JSON value of the body.

        Raises:
            DecodeError: it is not JSON.
        """
        return _wire.decode(self.body)

    def read(self, model: type[T]) -> T:
        """Return the body as a model or as a list of models.

        `model` is `Board`, `BoardList`, `Card` or `Member`, or a list of one of them, such as `list[Card]`. A field of another
        type than the interface shows is None, and stays in `extra`.

        Raises:
            DecodeError: the body is no such object or array, or an identifier is missing.
            TypeError: it is another type.
        """
        return _wire.read(model, self.body)


def response_of(response: RawResponse) -> Response:
    """Return a response for applications. Its headers are a copy, since aiohttp's proxy can't be pickled."""
    return Response(response.status, CIMultiDict(response.headers), response.body)


def api_error(line: str, response: RawResponse, now: float, host: str = "the service") -> ApiError:
    """Return the error of an unsuccessful response. Its credentials are redacted."""
    meaning, asked = status_of(response.status), retry_after(response.headers, now)
    body = response.body[:BODY_KEPT_BYTES]
    wait = "" if asked is None else f"it asks to wait {asked:g} s"
    parts = [
        f"{line}: status {response.status} from {host}",
        "; ".join(filter(None, (meaning.words, wait, meaning.advice))),
        excerpt(response),
    ]
    return meaning.error(": ".join(filter(None, parts)), response.status, response.headers, body, line, asked, meaning.effect)


def excerpt(response: RawResponse) -> str:
    """Return the beginning of a body in ASCII. A content type other than JSON precedes it."""
    text = " ".join(response.body[:_EXCERPT_BYTES].decode("utf-8", "replace").split())
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip()[:_KIND_LENGTH]
    named = f"{ascii(kind)[1:-1]}: " if kind and "json" not in kind.lower() else ""
    return f"{named}{ascii(text)[1:-1]}" if text else ""


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
