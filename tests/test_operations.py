"""Requests without a loop: what is sent for each operation (interface section 4), and what is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_helpers import DUE, ENCODED, TEXT

from boardclient import CardDraft, Position
from boardclient._interface import _operations as ops


@pytest.mark.parametrize(("operation", "identifier", "values", "line", "body"), ENCODED)
def test_a_request_is_what_the_document_shows(
    operation: ops.Operation[Any], identifier: str | None, values: dict[str, object], line: str, body: dict[str, object] | None
) -> None:
    """Each operation sends its method, path and wire names; None is not sent, empty text and False are."""
    request = operation.request(identifier, **values)
    assert request.line == line
    assert (None if request.body is None else json.loads(request.body)) == body
    assert (request.target, request.operation, request.operation.signable_body) == (request.path, operation, True)
    assert request.repeatable is (request.method != "POST")


class Text(str):
    """A string of another type, as numpy and markup libraries make them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


SENDABLE = TEXT.filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))


@pytest.mark.parametrize("kind", [str, Text])
@given(
    name=SENDABLE,
    desc=st.none() | SENDABLE,
    due=st.none() | st.just(DUE),
    pos=st.none() | SENDABLE | st.sampled_from(Position) | st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_draft_is_sent_with_the_texts_that_it_holds(
    kind: type[str], name: str, desc: str | None, due: datetime | None, pos: str | float | None
) -> None:
    """Texts of any string type and numbers are sent as they are, None is not, and a description may be one with a marker."""
    draft = CardDraft(kind(name), kind("l-1"), "", due, pos)
    marked = desc if desc is None else kind(desc)
    request = ops.ADD_CARD.request(name=draft.name, list_id=draft.list_id, desc=marked, due=draft.due, pos=draft.pos)
    sent = json.loads(request.body or b"")
    given = {"name": name, "idList": "l-1", "desc": desc, "due": due and "2027-01-02T03:04:05.250000Z", "pos": pos}
    assert sent == {field: value for field, value in given.items() if value is not None}


IDENTIFIED = [(operation, values) for operation, identifier, values, _, _ in ENCODED if identifier is not None]


@pytest.mark.parametrize(
    ("operation", "identifier", "values", "error", "named"),
    [
        (ops.BOARD_CARDS, None, {}, TypeError, "board_id"),
        (ops.CREATE_BOARD, None, {"name": None, "default_lists": None, "organization_id": None}, TypeError, "name"),
        (ops.CREATE_BOARD, None, {"name": "a", "default_lists": 1, "organization_id": None}, TypeError, "default_lists"),
        (ops.CREATE_BOARD, None, {"name": "a", "default_lists": None, "organization_id": ""}, ValueError, "organization_id"),
        (ops.ADD_LIST, None, {"name": "a", "board_id": None, "pos": None}, TypeError, "board_id"),
        (ops.ADD_LIST, None, {"name": "a", "board_id": "b", "pos": [3]}, TypeError, "pos"),
        (ops.ADD_LIST, None, {"name": "a", "board_id": "b", "pos": 10**400}, ValueError, "pos"),
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
    assert request.operation.signable_body is isinstance(body, dict)


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
        *(((method, "/1/x"), ValueError) for method in ("", "GE T", "GET\r\nX: y", "G3T", "ß ", "\ud800", "connect", "TRACE")),
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
        *((("GET", "/1/x", {"a": value}), TypeError) for value in ([None], [["b"]], b"c")),
        (("GET", "/1/x", {3: "a"}), TypeError),
        *((("GET", "/1/x", params), TypeError) for params in (3, "a=b", [("a", "b")])),
        (("GET", "/1/x", None, None, "yes"), TypeError),
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


def test_a_parameter_that_is_none_is_not_sent() -> None:
    """None means "not sent", as everywhere, and an error about another value names its parameter."""
    assert ops.build_request("GET", "/1/x", {"filter": None, "fields": ""}).target == "/1/x?fields="
    assert ops.build_request("GET", "/1/x", {"filter": None}).target == "/1/x"
    with pytest.raises(TypeError, match=r"params\['since'\] must be a string, not bytes"):
        ops.build_request("GET", "/1/x", {"filter": None, "since": b"1"})


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
