"""What calls send besides what the interface shows, and models from responses of other requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from boardclient import AsyncSession, Board, BoardClientError, BoardList, Card, DecodeError, Member, Response, StaticCredentials

Call = Callable[..., Any]
CALLS: list[tuple[str, bool, Callable[[AsyncSession, Mapping[str, Any]], Any]]] = [
    ("boards.create", True, lambda session, extra: session.boards.create("B", **extra)),
    ("boards.lists", False, lambda session, extra: session.boards.lists("b1", **extra)),
    ("boards.cards", False, lambda session, extra: session.boards.cards("b1", **extra)),
    ("lists.create", True, lambda session, extra: session.lists.create("L", board_id="b1", **extra)),
    ("lists.archive", True, lambda session, extra: session.lists.archive("l1", **extra)),
    ("cards.create", True, lambda session, extra: session.cards.create("C", list_id="l1", **extra)),
    ("cards.get", False, lambda session, extra: session.cards.get("c1", **extra)),
    ("cards.move", True, lambda session, extra: session.cards.move("c1", list_id="l2", **extra)),
    ("cards.add_label", True, lambda session, extra: session.cards.add_label("c1", "x", **extra)),
    ("cards.delete", False, lambda session, extra: session.cards.delete("c1", **extra)),
    ("members.me", False, lambda session, extra: session.members.me(**extra)),
]
every_call = pytest.mark.parametrize(("has_body", "call"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
with_body = pytest.mark.parametrize("call", [row[2] for row in CALLS if row[1]], ids=[row[0] for row in CALLS if row[1]])


class Echo:
    """A service that keeps what it gets, and responds to anything."""

    def __init__(self) -> None:
        self.query: dict[str, list[str]] = {}
        self.body: Any = None
        self.headers: Mapping[str, str] = {}
        self.seen = 0
        self.status = 200

    async def respond(self, request: web.Request) -> web.Response:
        self.seen += 1
        self.query = parse_qs(urlsplit(request.path_qs).query)
        self.headers = request.headers.copy()
        text = await request.text()
        self.body = json.loads(text) if text else None
        is_many = request.path.endswith(("/cards", "/lists")) and request.method == "GET"
        return web.json_response([{"id": "i1"}] if is_many else {"id": "i1"}, status=self.status)


@pytest.fixture
async def echo() -> Any:
    echo, application = Echo(), web.Application()
    application.router.add_route("*", "/{rest:.*}", echo.respond)
    async with (
        TestServer(application) as server,
        AsyncSession(StaticCredentials("the-token", "the-key"), f"http://127.0.0.1:{server.port}") as session,
    ):
        yield echo, session


@every_call
async def test_every_call_sends_further_parameters_and_headers(echo: Any, has_body: bool, call: Call) -> None:
    """Parameters and headers are sent beside the credentials, whichever place those have."""
    service, session = echo
    await call(
        session, {"extra_query": {"fields": ["id", "due"], "open": False, "q": "a&b ü"}, "extra_headers": {"X-Source": "it"}}
    )
    assert {name: service.query[name] for name in ("fields", "open", "q")} == {
        "fields": ["id", "due"],
        "open": ["false"],
        "q": ["a&b ü"],
    }
    assert service.headers["X-Source"] == "it"
    assert (service.body if has_body else service.query)["token"] in ("the-token", ["the-token"])


@with_body
async def test_every_body_takes_further_fields(echo: Any, call: Call) -> None:
    """Further fields are in the body beside the documented ones."""
    service, session = echo
    await call(session, {})
    plain = service.body
    await call(session, {"extra_body": {"idMembers": ["m1"], "cover": {"size": None}}})
    assert service.body == {**plain, "idMembers": ["m1"], "cover": {"size": None}}
    await call(session, {"extra_body": {}, "extra_query": {}, "extra_headers": {}})
    assert service.body == plain


@pytest.mark.parametrize(
    "extra",
    [
        {"extra_query": {"token": "x"}},
        {"extra_query": {"key": "x"}},
        {"extra_query": {"idList": "x"}},
        {"extra_query": {"fields": len}},
        {"extra_query": {"a": "\ud800"}},
        {"extra_body": {"token": "x"}},
        {"extra_body": {"key": "x"}},
        {"extra_body": {"name": "x"}},
        {"extra_body": {"due": None}},
        {"extra_body": {"a": float("nan")}},
        {"extra_body": {"a": b"x"}},
        {"extra_headers": {"Authorization": "x"}},
        {"extra_headers": {"cookie": "x"}},
        {"extra_headers": {"CONTENT-LENGTH": "3"}},
        {"extra_headers": {"Transfer-Encoding": "chunked"}},
        {"extra_headers": {"Content-Type": "text/plain"}},
        {"extra_headers": {"Host": "elsewhere"}},
        {"extra_headers": {"X-A": "a\r\nX-B: b"}},
        {"extra_headers": {"X A": "a"}},
        {"extra_headers": {"X-A": 1}},
        {"extra_headers": [("X-A", "a")]},
        {"extra_body": ["a"]},
        {"extra_query": "a=b"},
        {"extra_form": {}},
    ],
)
async def test_what_the_session_sets_and_what_can_not_be_sent_is_refused(echo: Any, extra: dict[str, Any]) -> None:
    """Credentials, documented fields and framing are refused before anything is sent, and the error names the argument."""
    service, session = echo
    with pytest.raises((ValueError, TypeError), match=next(iter(extra))):
        await session.cards.create("C", list_id="l1", **extra)
    assert service.seen == 0


async def test_a_request_without_a_body_takes_no_fields(echo: Any) -> None:
    """A GET has no body to put them in."""
    service, session = echo
    for call in (session.cards.get, session.cards.delete, session.boards.cards):
        with pytest.raises((ValueError, TypeError), match="extra_body"):
            await call("c1", extra_body={"a": 1})
    assert service.seen == 0


async def test_a_reconciled_creation_takes_none(echo: Any) -> None:
    """A creation that reads the board sends only what the board shows."""
    service, session = echo
    with pytest.raises(ValueError, match="extra_body"):
        await session.cards.create("C", list_id="l1", board_id="b1", extra_body={"a": 1})
    assert service.seen == 0


# --- models from other responses


@pytest.mark.parametrize(
    ("body", "model", "value"),
    [
        (b'{"id":"c1","name":"C","due":7,"x":[1]}', Card, Card("c1", name="C")),
        (b'{"id":"b1","prefs":{"selfJoin":true}}', Board, None),
        (b'{"id":"l1","pos":2.5}', BoardList, BoardList("l1", pos=2.5)),
        (b"{}", Member, Member()),
        (b'[{"id":"c1"},{"id":"c2"}]', list[Card], [Card("c1"), Card("c2")]),
        (b"[]", list[BoardList], []),
    ],
)
def test_a_response_is_read_as_a_model(body: bytes, model: Any, value: Any) -> None:
    """What fits fills the fields, all else is in `extra`."""
    read = Response(200, {"X-A": "a"}, body).read(model)
    assert value is None or read == value
    if model is Card:
        assert read.extra == {"due": 7, "x": [1]}


@pytest.mark.parametrize(
    ("body", "model", "path"),
    [
        (b'{"name":"C"}', Card, "id"),
        (b'[{"id":"c1"},{"id":2}]', list[Card], "[1].id"),
        (b'{"id":"c1"}', list[Card], ""),
        (b'[{"id":"c1"}]', Card, ""),
        (b"<html>", Board, ""),
        (b"", list[Card], ""),
    ],
)
def test_another_body_is_a_decode_error(body: bytes, model: Any, path: str) -> None:
    """The error names the place."""
    with pytest.raises(DecodeError) as raised:
        Response(200, {}, body).read(model)
    assert raised.value.path == path
    assert isinstance(raised.value, BoardClientError)


@pytest.mark.parametrize("count", [0, 1, 3, 700])
@pytest.mark.parametrize("model", [Board, BoardList, Card, Member])
def test_each_model_is_read_alone_and_in_arrays(model: Any, count: int) -> None:
    """An array of any model is what its objects are alone, whatever its length."""
    objects = [
        {"id": f"i{number}", "name": "ä", "prefs": {"voting": "no", "x": number}, "y": [number]} for number in range(count)
    ]
    alone = [Response(200, {}, json.dumps(one).encode()).read(model) for one in objects]
    read = Response(200, {}, json.dumps(objects).encode()).read(list[model])
    assert read == alone
    assert [one.extra for one in read] == [one.extra for one in alone]


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"7", b'"[]"', b"{}", b"[7]", b"[null]", b'[{"id":7}]', b'[{"id":"a"'])
@pytest.mark.parametrize("model", [Board, BoardList, Card])
def test_no_other_body_is_an_array_of_models(model: Any, body: bytes) -> None:
    """The error names the request."""
    with pytest.raises(DecodeError, match=r"^GET /1/x: ") as raised:
        Response(200, {}, body, "GET /1/x").read(list[model])
    assert raised.value.request == "GET /1/x"


@pytest.mark.parametrize("model", [int, list, list[int], dict[str, Card], "Card", None])
def test_another_type_is_refused(model: Any) -> None:
    """Only models can be read."""
    with pytest.raises(TypeError, match="Card"):
        Response(200, {}, b"{}").read(model)
