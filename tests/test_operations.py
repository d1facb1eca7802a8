"""Sections 4 and 7 of the interface: what is sent, and what a response means. Without an event loop."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from boardclient import _operations as ops
from boardclient._responses import Response, retry_after
from boardclient._statuses import status_of
from boardclient._transport import RawResponse
from boardclient.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    DecodeError,
    Effect,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
)
from boardclient.models import BoardList, Card, Position

NOW = 1_800_000_000.0


def interpret(request: Any, response: RawResponse, now: float) -> Any:
    """Return the value of a response, or its error if there was no earlier attempt."""
    if not response.is_success:
        return ops.error_of(request, response, Effect.NOT_SENT, now)
    try:
        return request.definition.read(response, request.identifier)
    except DecodeError as error:
        return ops.unreadable(request, error, response)


DUE = datetime(2027, 1, 2, 5, 4, 5, 250000, tzinfo=timezone(timedelta(hours=2)))


def raw_response(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> RawResponse:
    return RawResponse(status, CIMultiDict(headers or {}), body)


# operation, identifier, values, the line, the JSON body (None: there is none)
ENCODED: list[tuple[ops.Operation[Any], str | None, dict[str, object], str, dict[str, object] | None]] = [
    (ops.CREATE_BOARD, None, {"name": "Plan", "default_lists": None, "organization_id": None}, "POST /1/boards",
     {"name": "Plan"}),
    (ops.CREATE_BOARD, None, {"name": "", "default_lists": False, "organization_id": "o1"}, "POST /1/boards",
     {"name": "", "defaultLists": False, "idOrganization": "o1"}),
    (ops.ADD_LIST, None, {"name": "To Do", "board_id": "b1", "pos": None}, "POST /1/lists", {"name": "To Do", "idBoard": "b1"}),
    (ops.ADD_LIST, None, {"name": "", "board_id": "b1", "pos": Position.BOTTOM}, "POST /1/lists",
     {"name": "", "idBoard": "b1", "pos": "bottom"}),
    (ops.ADD_CARD, None, {"name": "Write", "list_id": "l1", "desc": None, "due": None, "pos": None}, "POST /1/cards",
     {"name": "Write", "idList": "l1"}),
    (ops.ADD_CARD, None, {"name": "ü\n", "list_id": "l1", "desc": "", "due": DUE, "pos": "17"}, "POST /1/cards",
     {"name": "ü\n", "idList": "l1", "desc": "", "due": "2027-01-02T03:04:05.250000Z", "pos": "17"}),
    (ops.ADD_CARD, None, {"name": "a", "list_id": "l1", "desc": "d", "due": DUE.replace(microsecond=0), "pos": ""},
     "POST /1/cards", {"name": "a", "idList": "l1", "desc": "d", "due": "2027-01-02T03:04:05Z", "pos": ""}),
    (ops.BOARD_CARDS, "b1", {}, "GET /1/boards/b1/cards", None),
    (ops.BOARD_LISTS, "b 1?", {}, "GET /1/boards/b%201%3F/lists", None),
    (ops.READ_CARD, "%2e%2e", {}, "GET /1/cards/%252e%252e", None),
    (ops.MOVE_CARD, "ü&#", {"list_id": "l2"}, "PUT /1/cards/%C3%BC%26%23", {"idList": "l2"}),
    (ops.ADD_LABEL, "c1", {"label_id": "x"}, "POST /1/cards/c1/idLabels", {"value": "x"}),
    (ops.ARCHIVE_LIST, "l:1", {"closed": True}, "PUT /1/lists/l%3A1", {"closed": True}),
    (ops.DELETE_CARD, "c1+", {}, "DELETE /1/cards/c1%2B", None),
    (ops.READ_MEMBER, None, {}, "GET /1/members/me", None),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "identifier", "values", "line", "body"), ENCODED)
def test_a_request_is_what_the_document_shows(
    operation: ops.Operation[Any], identifier: str | None, values: dict[str, object], line: str, body: dict[str, object] | None
) -> None:
    """Each operation sends its method, path and wire names; None is not sent, empty text and False are."""
    request = operation.request(identifier, **values)
    assert request.line == line
    assert (None if request.body is None else json.loads(request.body)) == body
    assert (request.target, request.operation, request.definition.signable_body) == (request.path, operation.name, True)
    assert request.repeatable is (request.method != "POST")


IDENTIFIED = [(operation, values) for operation, identifier, values, _, _ in ENCODED if identifier is not None]


@pytest.mark.parametrize(("operation", "values"), IDENTIFIED)
@pytest.mark.parametrize("identifier", ["", ".", "..", "a/b", "\\", "a\n", "\x7f", "\ud800"])
def test_a_bad_identifier_is_refused_before_anything_is_sent(
    operation: ops.Operation[Any], values: dict[str, object], identifier: str
) -> None:
    """No operation builds a request for an identifier that could become another path."""
    with pytest.raises(ValueError, match="_id "):
        operation.request(identifier, **values)


@pytest.mark.parametrize(
    ("operation", "identifier", "values", "error", "named"),
    [
        (ops.BOARD_CARDS, None, {}, TypeError, "board_id"),
        (ops.CREATE_BOARD, None, {"name": None, "default_lists": None, "organization_id": None}, TypeError, "name"),
        (ops.CREATE_BOARD, None, {"name": "a", "default_lists": 1, "organization_id": None}, TypeError, "default_lists"),
        (ops.CREATE_BOARD, None, {"name": "a", "default_lists": None, "organization_id": ""}, ValueError, "organization_id"),
        (ops.ADD_LIST, None, {"name": "a", "board_id": None, "pos": None}, TypeError, "board_id"),
        (ops.ADD_LIST, None, {"name": "a", "board_id": "b", "pos": 3}, TypeError, "pos"),
        (ops.ADD_CARD, None, {"name": "a", "list_id": "", "desc": None, "due": None, "pos": None}, ValueError, "list_id"),
        (ops.ADD_CARD, None, {"name": "a", "list_id": "l", "desc": None, "due": "soon", "pos": None}, TypeError, "due"),
        (ops.ADD_CARD, None, {"name": "\ud800", "list_id": "l", "desc": None, "due": None, "pos": None}, ValueError, "name"),
        (ops.ADD_CARD, None, {"name": "a", "list_id": "l", "desc": None, "due": datetime(2027, 1, 1), "pos": None},
         ValueError, "due"),
        (ops.MOVE_CARD, "c", {"list_id": ".."}, ValueError, "list_id"),
        (ops.ADD_LABEL, "c", {"label_id": ""}, ValueError, "label_id"),
        (ops.ARCHIVE_LIST, "l", {"closed": None}, TypeError, "closed"),
    ],
)  # fmt: skip
def test_a_value_that_can_not_be_sent_is_refused(
    operation: ops.Operation[Any], identifier: str | None, values: dict[str, object], error: type[Exception], named: str
) -> None:
    """A value of the wrong kind is a TypeError or ValueError that names the Python argument."""
    with pytest.raises(error, match=f"^{named} "):
        operation.request(identifier, **values)


READS: list[ops.Request[Any]] = [operation.request(identifier, **values) for operation, identifier, values, _, _ in ENCODED]
READS.append(ops.build_request("GET", "/1/x"))


def test_responses_to_free_requests_are_returned_as_they_came() -> None:
    """A free request reads as status, headers and body; its JSON is decoded on demand."""
    read = interpret(ops.build_request("GET", "/1/x"), raw_response(201, b'{"a":1}', {"X-A": "b"}), NOW)
    assert isinstance(read, Response)
    assert (read.status, read.headers["x-a"], read.body, read.json()) == (201, "b", b'{"a":1}', {"a": 1})
    with pytest.raises(DecodeError):
        Response(200, {}, b"<html>").json()


@pytest.mark.parametrize(
    ("arguments", "line", "query", "body"),
    [
        (("get", "/1/labels"), "GET /1/labels", [], None),
        (("POST", "/1/a b/ü%20", {"q": "a b&c", "n": 3, "f": 1.5, "yes": True, "no": False, "e": ""}), "POST /1/a%20b/%C3%BC%20",
         [("q", "a b&c"), ("n", "3"), ("f", "1.5"), ("yes", "true"), ("no", "false"), ("e", "")], None),
        (("PUT", "/1/x", None, {"a": None, "b": False}), "PUT /1/x", [], {"a": None, "b": False}),
        (("PUT", "/1/x", None, []), "PUT /1/x", [], []),
        (("PUT", "/1/x", None, False), "PUT /1/x", [], False),
        (("PATCH", "/1/x", {}, {}), "PATCH /1/x", [], {}),
        (("GET", "/1/a:b@c!$&'()*+,;=~..x"), "GET /1/a:b@c!$&'()*+,;=~..x", [], None),
    ],
)  # fmt: skip
def test_a_free_request_is_sent_as_the_caller_gives_it(
    arguments: Any, line: str, query: list[tuple[str, str]], body: object
) -> None:
    """Method, path, parameters and JSON are sent as given; booleans as JSON writes them."""
    request = ops.build_request(*arguments)
    assert request.line == line
    assert parse_qsl(request.target.partition("?")[2], keep_blank_values=True) == query
    assert (None if request.body is None else json.loads(request.body)) == body
    assert request.definition.signable_body is isinstance(body, dict)


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [("GET", None, True), ("put", None, True), ("DELETE", None, True), ("POST", None, False), ("PATCH", None, False)]
    + [(method, given, given) for method in ("GET", "POST") for given in (True, False)],
)
def test_what_may_be_repeated_is_the_callers_word(method: str, given: bool | None, expected: bool) -> None:
    """A free request is repeatable as its caller says, by default for GET, PUT and DELETE only."""
    assert ops.build_request(method, "/1/x", repeatable=given).repeatable is expected


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        *(((method, "/1/x"), ValueError) for method in ("", "GE T", "GET\r\nX: y", "G3T", "ß ", "\ud800")),
        *(
            (("GET", path), ValueError)
            for path in (
                "", "/", "/1", "1/x", "/2/x", "https://evil.example/1/x", "//evil.example/1/x", "/1/../x", "/1/a/./b",
                "/1/%2e%2E/x", "/1/a%2f..%2fb",
                "/1/x?token=a", "/1/x#f",
                "/1/a\\b", "/1/a%5cb", "/1/a\nb", "/1/a%0d%0ab", "/1/\x7f",
                "/1/%C2%85", "/1/a%", "/1/a%zz", "/1/%4", "/1/\ud800",
            )
        ),
        *((("GET", "/1/x", {name: "s"}), ValueError) for name in ("key", "token", "\ud800")),
        (("GET", "/1/x", {"a": "\udc00"}), ValueError),
        *((("GET", "/1/x", {"a": value}), TypeError) for value in (None, [None], [["b"]], b"c")),
        (("GET", "/1/x", {3: "a"}), TypeError),
        *((("POST", "/1/x", None, {name: "s", "b": 1}), ValueError) for name in ("key", "token")),
        *((("POST", "/1/x", None, value), ValueError) for value in (object(), {"a": float("nan")}, "\ud800")),
        ((None, "/1/x"), TypeError),
        (("GET", None), TypeError),
    ],
)  # fmt: skip
def test_a_free_request_that_can_not_be_sent_is_refused(arguments: Any, error: type[Exception]) -> None:
    """Bad methods, other paths, and credentials that are the session's to add are refused before anything is sent."""
    with pytest.raises(error):
        ops.build_request(*arguments)


STATUSES: list[tuple[int, type[ApiError], Effect]] = [
    (101, ApiError, Effect.UNKNOWN),
    (300, ApiError, Effect.REJECTED),
    (301, ApiError, Effect.REJECTED),
    (307, ApiError, Effect.REJECTED),
    (399, ApiError, Effect.REJECTED),
    (400, BadRequestError, Effect.REJECTED),
    (401, AuthenticationError, Effect.REJECTED),
    (402, ApiError, Effect.REJECTED),
    (403, PermissionDeniedError, Effect.REJECTED),
    (404, NotFoundError, Effect.REJECTED),
    (408, ApiError, Effect.UNKNOWN),
    (409, ApiError, Effect.REJECTED),
    (418, ApiError, Effect.REJECTED),
    (429, RateLimitError, Effect.REJECTED),
    (499, ApiError, Effect.REJECTED),
    (500, ServerError, Effect.UNKNOWN),
    (502, ServerError, Effect.UNKNOWN),
    (503, ServerError, Effect.UNKNOWN),
    (599, ServerError, Effect.UNKNOWN),
    (600, ApiError, Effect.UNKNOWN),
    (999, ApiError, Effect.UNKNOWN),
]


@pytest.mark.parametrize(("status", "kind", "effect"), STATUSES)
def test_every_status_is_the_error_of_the_contract(status: int, kind: type[ApiError], effect: Effect) -> None:
    """A status that is no success is exactly the error that the contract names, with what it says about the effect."""
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
    assert status_of(status).effect is effect


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
    if request_.operation == "request":
        return
    body = b'[{"id":"a"},{"id":2}]'
    error = interpret(request_, raw_response(200, body), NOW)
    assert isinstance(error, DecodeError)
    assert (error.effect, error.request) == (Effect.DONE, request_.line)
    assert error.path == ("[1].id" if request_.operation in {"boards.cards", "boards.lists"} else "")
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


def test_without_retry_after_there_is_no_pause() -> None:
    """A response without the header asks for nothing."""
    assert retry_after({}, NOW) is None


TEXT = st.text(st.characters(codec=None)) | st.text(st.sampled_from('0123456789 ,:GMTJan+-Fri"/.%\\\x00\ud800\udfffü😀'))


@settings(deadline=None)
@given(TEXT | st.builds(http_date, st.floats(0, 2**37)), TEXT | st.just(""), st.floats(0, 2**40))
@example("Mon, 01 Jan 0001 00:00:00 +9999", "Fri, 31 Dec 9999 23:59:59 -9999", 0.0)
@example("Mon, 01 Jan 2027 00:00:00 +99999999999999", "", 0.0)
def test_any_retry_after_is_none_or_a_pause(value: str, date: str, now: float) -> None:
    """No Retry-After and no Date raises an error; the result is None or finite and not negative."""
    seconds = retry_after({"Retry-After": value, "Date": date}, now)
    assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


@settings(deadline=None)
@given(TEXT, TEXT)
def test_any_text_is_sent_whole_or_refused(name: str, desc: str) -> None:
    """Any name and description come back from the JSON as they were, or raise ValueError for a lone surrogate."""
    try:
        request = ops.ADD_CARD.request(name=name, list_id="l", desc=desc, due=None, pos=None)
    except ValueError:
        assert any("\ud800" <= character <= "\udfff" for character in name + desc)
        return
    assert json.loads(request.body or b"") == {"name": name, "idList": "l", "desc": desc}


@settings(deadline=None)
@given(TEXT)
@pytest.mark.parametrize(("operation", "values"), IDENTIFIED)
def test_any_identifier_stays_in_its_segment_or_is_refused(
    operation: ops.Operation[Any], values: dict[str, object], identifier: str
) -> None:
    """Any identifier is one percent-encoded segment of the operation's own path, or a ValueError."""
    try:
        path = operation.request(identifier, **values).path
    except ValueError:
        return
    template, segments = operation.path.split("/"), path.split("/")
    assert len(segments) == len(template)
    assert path.isascii()
    assert path.isprintable()
    for expected, segment in zip(template, segments, strict=True):
        if expected.startswith("{"):
            assert unquote(segment, errors="strict") == identifier
            assert segment == quote(identifier, safe="")
            assert segment not in {"", ".", ".."}
        else:
            assert segment == expected


@settings(deadline=None)
@given(TEXT.map(lambda text: f"/1/{text}"))
def test_any_free_path_stays_below_the_version_or_is_refused(path: str) -> None:
    """Any path of a free request is sent under `/1/`, printable and without query, or is a ValueError."""
    try:
        sent = ops.build_request("GET", path).path
    except ValueError:
        return
    assert sent.startswith("/1/")
    assert not set(sent) & set('?#\\ "')
    assert sent.isascii()
    assert sent.isprintable()
    assert not {".", ".."} & set(unquote(sent).split("/"))


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


@settings(deadline=None, max_examples=60)
@given(BODIES)
@pytest.mark.parametrize("request_", READS)
def test_any_body_is_a_value_or_a_decode_error(request_: ops.Request[Any], body: bytes) -> None:
    """Whatever bytes a success carries, each operation gives its value or a DecodeError; a change always its value."""
    outcome = interpret(request_, raw_response(200, body), NOW)
    if request_.operation in {"cards.move", "lists.archive", "cards.add_label", "cards.delete", "request"}:
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


def endless() -> list[object]:
    deep: list[object] = []
    deep.append(deep)
    return deep


@pytest.mark.parametrize(
    "value",
    [float("nan"), {"a": [float("inf")]}, -float("inf"), b"x", {1, 2}, endless(), {(1,): 2}, {1: 2}, object(), ["\ud800"]],
)
def test_an_applications_json_is_sent_as_it_is_or_not_at_all(value: Any) -> None:
    """NaN, infinities, bytes, sets, circles and what JSON lacks are refused instead of being sent as something else."""
    with pytest.raises((TypeError, ValueError), match=r"json|JSON"):
        ops.build_request("POST", "/1/x", json=value)


def test_an_applications_json_is_sent_whole() -> None:
    """Whatever JSON can express goes out as it is, tuples as arrays."""
    value: Any = {"a": [1, 1.5, "ü", None, True, {"b": "\x00"}], "c": (1, 2), "d": 2**70}
    assert json.loads(ops.build_request("POST", "/1/x", json=value).body or b"") == {**value, "c": [1, 2]}


def test_a_parameter_with_several_values_is_sent_several_times() -> None:
    """A list in the query of a free request stands for its values, and an empty one for none."""
    request = ops.build_request("GET", "/1/x", {"a": [1, True, "b&c"], "d": [], "e": ("f",)})
    assert request.target == "/1/x?a=1&a=true&a=b%26c&e=f"
