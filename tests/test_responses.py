"""Responses without a loop: what a status, a body and a Retry-After become (interface sections 4 and 7)."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict
from operation_helpers import NOW, READS, TEXT, interpret, raw_response

from boardclient._interface import _operations as ops
from boardclient._interface._responses import Response, ends_run, is_throttling, retry_after, status_of
from boardclient._transport._values import RawResponse
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
    TransportError,
)
from boardclient.models import BoardList, Card


def test_responses_to_free_requests_are_returned_as_they_came() -> None:
    """A free request reads as status, headers and body; its JSON is decoded on demand."""
    read = interpret(ops.build_request("GET", "/1/x"), raw_response(201, b'{"a":1}', {"X-A": "b"}), NOW)
    assert isinstance(read, Response)
    assert (read.status, read.headers["x-a"], read.body, read.json()) == (201, "b", b'{"a":1}', {"a": 1})
    with pytest.raises(DecodeError):
        Response(200, {}, b"<html>").json()


STATUSES: list[tuple[int, type[ApiError], Effect, str]] = [
    (101, ApiError, Effect.UNKNOWN, ""),
    *((status, ApiError, Effect.UNKNOWN, "") for status in (*range(300, 307), 309, 399)),
    *((status, ApiError, Effect.REJECTED, "") for status in (307, 308)),
    (400, BadRequestError, Effect.REJECTED, ""),
    (401, AuthenticationError, Effect.REJECTED, "ends_run"),
    (403, PermissionDeniedError, Effect.REJECTED, ""),
    (404, NotFoundError, Effect.REJECTED, ""),
    (407, ApiError, Effect.REJECTED, "ends_run"),
    (408, ApiError, Effect.UNKNOWN, ""),
    *((status, ApiError, Effect.REJECTED, "") for status in (402, 405, 406, *range(409, 418), 421, 422, 426)),
    *((status, ApiError, Effect.UNKNOWN, "") for status in (418, 419, 420, 423, 424, 425, 428, 431, 440, 444, 451, 460, 494)),
    (429, RateLimitError, Effect.REJECTED, "is_throttling"),
    (499, ApiError, Effect.UNKNOWN, ""),
    (500, ServerError, Effect.UNKNOWN, "is_transient"),
    (503, ServerError, Effect.UNKNOWN, "is_transient"),
    (599, ServerError, Effect.UNKNOWN, "is_transient"),
    (600, ApiError, Effect.UNKNOWN, ""),
    (999, ApiError, Effect.UNKNOWN, ""),
]


@pytest.mark.parametrize(("status", "kind", "effect", "follows"), STATUSES)
def test_every_status_is_the_error_of_the_contract(status: int, kind: type[ApiError], effect: Effect, follows: str) -> None:
    """A status that is no success is the error of the contract, with its effect and what follows for retries and runs."""
    headers = CIMultiDict({"X-Id": "7", "Retry-After": "2"})
    error = interpret(ops.ADD_LABEL.request("c1", label_id="x"), RawResponse(status, headers, b'{"why":"\xc3\xbc"}'), NOW)
    assert type(error) is kind
    assert (error.status, error.effect, error.body, error.retry_after) == (status, effect, b'{"why":"\xc3\xbc"}', 2.0)
    assert error.headers["x-id"] == "7"
    assert error.request == "POST /1/cards/c1/idLabels"
    assert error.attempts == ()
    assert str(error).startswith(f"POST /1/cards/c1/idLabels: status {status}")
    assert str(error).isascii()
    assert error.__traceback__ is None
    meaning = status_of(status)
    asked = {"is_throttling": is_throttling, "ends_run": ends_run}
    assert {name for name, is_so in asked.items() if is_so(error)} | ({"is_transient"} & {follows}) == {*filter(None, [follows])}
    assert (meaning.effect, meaning.is_transient) == (effect, follows == "is_transient")


@pytest.mark.parametrize("error", [CredentialError("expired"), JournalError("full"), SessionClosedError("closed")])
def test_an_error_that_every_call_would_meet_ends_a_run(error: BoardClientError) -> None:
    """What is no response ends a run by its class; a lost connection does not, and neither throttles."""
    assert ends_run(error)
    assert not any(is_so(TransportError("reset")) for is_so in (ends_run, is_throttling))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_every_2xx_is_a_success(status: int) -> None:
    """No success status is shown, so each 2xx is one."""
    assert interpret(ops.DELETE_CARD.request("c"), raw_response(status), NOW) is None
    assert interpret(ops.READ_CARD.request("c"), raw_response(status, b'{"id":"c"}'), NOW) == Card("c")
    assert status_of(status).effect is Effect.DONE


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_an_error_keeps_64_kib_of_the_body(size: int) -> None:
    """The body of an error is cut at 64 KiB, and its message holds but a short excerpt."""
    error = interpret(READS[0], raw_response(400, b"x" * size), NOW)
    assert isinstance(error, ApiError)
    assert error.body == b"x" * min(size, 65536)
    assert len(str(error)) < 400


def test_a_query_is_in_no_error() -> None:
    """The request of an error is the method and the path, without the query."""
    request = ops.build_request("GET", "/1/search", {"q": "private"})
    errors = interpret(request, raw_response(404), NOW), interpret(READS[7], raw_response(200, b"{}"), NOW)
    assert isinstance(errors[0], NotFoundError)
    assert errors[0].request == "GET /1/search"
    assert "private" not in f"{errors[0]} {errors[0]!r}"


@pytest.mark.parametrize("request_", [request for request in READS if request.method == "GET" or request.line.count("/") == 2])
def test_an_unusable_success_is_a_decode_error_of_a_done_call(request_: ops.Request[Any]) -> None:
    """A success whose body is not as documented is a DecodeError with effect DONE, place and request, and without traceback."""
    if request_.operation.name == "request":
        return
    body = b'[{"id":"a"},{"id":2}]'
    error = interpret(request_, raw_response(200, body), NOW)
    assert isinstance(error, DecodeError)
    assert (error.effect, error.request) == (Effect.DONE, request_.line)
    assert error.path == ("[1].id" if request_.operation.name in {"boards.cards", "boards.lists"} else "")
    assert str(error).startswith(request_.line)
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


@pytest.mark.parametrize("body", [b"", b"null", b"[1", b"\xff", b"<html>", b'{"id":3}', b"[" * 50_000, b"[]"])
def test_changes_succeed_whatever_the_body_is(body: bytes) -> None:
    """After a 2xx of 4.7 to 4.10 nothing in the body is ever an error, and the id is the caller's, not its encoded form."""
    assert interpret(ops.MOVE_CARD.request("c 1", list_id="l"), raw_response(200, body), NOW) == Card("c 1")
    assert interpret(ops.ARCHIVE_LIST.request("l 1", closed=True), raw_response(200, body), NOW) == BoardList("l 1")
    assert interpret(ops.ADD_LABEL.request("c", label_id="x"), raw_response(200, body), NOW) is None
    assert interpret(ops.DELETE_CARD.request("c"), raw_response(200, body), NOW) is None


def http_date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


RUBBISH = ("", " ", "-1", "+1", "1e3", "nan", "inf", "1.", ".5", "1,5", "0x10", "soon", "1 s", "\u0663")


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("0", None, 0.0),
        ("120", None, 120.0),
        (" 7 ", None, 7.0),
        ("1.5", None, 1.5),
        ("00003", None, 3.0),
        ("99999999999", None, 99999999999.0),
        ("9" * 400, None, None),
        *((rubbish, None, None) for rubbish in RUBBISH),
        (http_date(NOW + 30), None, 30.0),
        (http_date(NOW - 30), None, 0.0),
        (http_date(NOW + 30), http_date(NOW + 10), 20.0),
        (http_date(NOW + 3630), http_date(NOW + 3600), 30.0),
        (http_date(NOW), http_date(NOW + 5), 0.0),
        (http_date(NOW + 30), "rubbish", 30.0),
        ("Fri, 15 Jan 2027 08:00:30 -0000", None, 30.0),
        ("Friday, 15-Jan-27 08:00:30 GMT", None, 30.0),
        ("Fri Jan 15 08:00:30 2027", None, 30.0),
        ("Fri, 99 Jan 2027 08:00:30 GMT", None, None),
        ("Fri, 15 Jan 2027", None, None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str, date: str | None, seconds: float | None) -> None:
    """A valid Retry-After is in seconds, or a date relative to the response's Date; anything else is None."""
    headers = {"retry-after": value} | ({} if date is None else {"date": date})
    error = interpret(READS[0], raw_response(429, b"", headers), NOW)
    assert isinstance(error, RateLimitError)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7", "retry-after-ms": "500"}, 7.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "soon"}, None),
        ({"RateLimit": '"default";r=0;t=30'}, 30.0),
        ({"RateLimit": '"burst";r=5;t=1, "daily";r=0;t=40'}, 40.0),
        ({"RateLimit": '"default";r=3;t=30'}, None),
        ({"RateLimit": '"default";r=0'}, None),
        ({"RateLimit": '"default";r=0', "RateLimit-Policy": '"burst";q=9;w=1, "default";q=100;w=60'}, 60.0),
        ({"RateLimit": '"default";r=0;t=30', "RateLimit-Policy": '"default";q=100;w=60'}, 30.0),
        ({"RateLimit-Policy": '"default";q=100;w=60'}, None),
        ({"RateLimit": "limit=100, remaining=0, reset=30"}, 30.0),
        ({"RateLimit": "limit=100, remaining=7, reset=30"}, None),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "12"}, 12.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "12"}, 12.0),
        ({"X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "12"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "tomorrow"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) + 20)}, 20.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) + 20), "Date": http_date(NOW + 5)}, 15.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) - 20)}, 0.0),
    ],
)
def test_other_fields_say_how_long_to_wait_where_retry_after_does_not(headers: dict[str, str], seconds: float | None) -> None:
    """Of a refusal with 429. They are hints: rubbish is ignored, and no other status is held up by a count."""
    error = interpret(READS[0], raw_response(429, b"", headers), NOW)
    assert isinstance(error, RateLimitError)
    assert error.retry_after == pytest.approx(seconds)
    failed = interpret(READS[0], raw_response(503, b"", headers), NOW)
    assert isinstance(failed, ApiError)
    is_count = any(name.lower().startswith(("ratelimit", "x-ratelimit")) for name in headers)
    assert failed.retry_after == pytest.approx(None if is_count else seconds)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_date_of_no_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """The offset -0000 says that the zone is not known (RFC 5322, section 3.3): the zone of this machine plays no part."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        seconds = retry_after({"Retry-After": "Thu, 01 Jan 1970 00:01:40 -0000"}, 40.0)
    time.tzset()
    assert seconds == 60.0


@settings(deadline=None)
@given(TEXT | st.builds(http_date, st.floats(0, 2**37)), TEXT | st.just(""), st.floats(0, 2**40))
@example("Mon, 01 Jan 0001 00:00:00 +9999", "Fri, 31 Dec 9999 23:59:59 -9999", 0.0)
@example("Mon, 01 Jan 2027 00:00:00 +99999999999999", "", 0.0)
def test_any_retry_after_is_none_or_a_pause(value: str, date: str, now: float) -> None:
    """No Retry-After and no Date raises an error; the result is None or finite and not negative."""
    seconds = retry_after({"Retry-After": value, "Date": date}, now)
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


NUMBERS = st.integers() | st.integers(-(10**400), 10**400) | st.floats()
NAMES = st.sampled_from([*"abc", "id", "name", "desc", "due", "pos", "prefs", "voting", "selfJoin", "idList", "closed", "extra"])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | st.datetimes().map(str) | st.sampled_from(["top", "2027-01-01T00:00:00Z"])
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | TEXT, inner, max_size=6))
OBJECTS = st.dictionaries(NAMES, TREES, max_size=8)
ODD = st.sampled_from(
    [
        b"[" * 5_000 + b"]" * 5_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"id":"a","name":' + b"[" * 900 + b"]" * 900 + b"}",
        b'[{"id":"a","pos":' + b"9" * 5_000 + b"}]",
        b'{"id":"a","pos":1e999,"due":-1e999}',
        b'[{"id":"a","pos":-1e999}]',
        b'{"id":1,"id":"a","id":"b","prefs":{"voting":1,"voting":"x"}}',
        b'{"id":"\\ud800","name":"\\udfff\\ud800"}',
        b'{"\\ud800":1,"id":"a"}',
        b'{"id":"\\u0000"}',
        b'\xef\xbb\xbf{"id":"a"}',
        '{"id":"a"}'.encode("utf-16"),
        b'{"id":"a","due":"0001-01-01T00:00:00+14:00"}',
        b"-0",
        b"NaN",
    ]
)
BODIES = (
    st.binary() | ODD | st.one_of(TREES, OBJECTS, st.lists(OBJECTS, max_size=4)).map(lambda value: json.dumps(value).encode())
)
BODIES |= st.tuples(BODIES, BODIES).map(b"".join)


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(st.sampled_from(READS), BODIES)
def test_any_body_is_a_value_or_a_decode_error(request_: ops.Request[Any], body: bytes) -> None:
    """Whatever bytes a success carries, each operation gives its value or a DecodeError; a change always its value."""
    outcome = interpret(request_, raw_response(200, body), NOW)
    if request_.operation.name in {"cards.move", "lists.archive", "cards.add_label", "cards.delete", "request"}:
        assert not isinstance(outcome, BoardClientError)
    if isinstance(outcome, BoardClientError):
        assert type(outcome) is DecodeError
        assert outcome.effect is Effect.DONE
    repr(outcome)


@settings(deadline=None)
@given(st.integers(100, 999), BODIES, TEXT)
def test_any_failure_is_an_api_error(status: int, body: bytes, header: str) -> None:
    """Whatever a response that is no success holds, it is an ApiError with an ASCII message."""
    if 200 <= status < 300:
        return
    error = interpret(READS[0], raw_response(status, body, {"Retry-After": header, "X": header}), NOW)
    assert isinstance(error, ApiError)
    assert str(error).isascii()
    assert str(error).isprintable()
