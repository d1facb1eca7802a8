"""The service's rules, without sockets: table-driven, each row one request."""

from __future__ import annotations

import pytest

from boardclient.testing import BoardRules


class World:
    def __init__(self, **options):
        self.now = 100.0
        self.rules = BoardRules(clock=lambda: self.now, **options)
        self.query = {"key": self.rules.key, "token": self.rules.token}

    def ask(self, method, path, body=None, query=None):
        answer = self.rules.answer(method, path, self.query if query is None else query, body)
        return answer.status, answer.body

    def board(self, **fields):
        return self.ask("POST", "/1/boards", {"name": "B", **fields})[1]["id"]

    def list(self, board_id, **fields):
        return self.ask("POST", "/1/lists", {"name": "L", "idBoard": board_id, **fields})[1]["id"]

    def card(self, list_id, **fields):
        return self.ask("POST", "/1/cards", {"name": "C", "idList": list_id, **fields})[1]["id"]

    def exchange(self, code):
        given = {name: getattr(self.rules, name) for name in ("client_id", "client_secret", "redirect_uri")}
        return self.ask("POST", "/auth/1/OAuthGetAccessToken", {**given, "code": code}, {})


@pytest.fixture
def world():
    return World(organizations={"org1"})


def test_cards_are_read_in_the_order_of_lists_and_positions(world):
    board = world.board()
    right, left = world.list(board), world.list(board, pos="top")
    world.card(right, name="r2")
    world.card(right, name="r1", pos="top")
    world.card(left, name="l1")
    world.card(world.list(world.board()), name="elsewhere")
    assert [card["name"] for card in world.ask("GET", f"/1/boards/{board}/cards")[1]] == ["l1", "r1", "r2"]


def test_a_created_card_shows_the_documented_fields_and_a_read_one_more(world):
    """Creating shows the fields that the interface names for it; reading the card shows its list and date too."""
    home = world.list(world.board())
    _, made = world.ask("POST", "/1/cards", {"name": "", "idList": home, "desc": "d", "due": "2027-01-02T03:04:05Z"})
    _, read = world.ask("GET", f"/1/cards/{made['id']}")
    assert set(made) == {"id", "name", "desc", "url", "badges"}
    assert read.items() >= {**made, "idList": home, "due": "2027-01-02T03:04:05Z"}.items()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/1/boards", None, 400),
        ("POST", "/1/boards", {"name": None}, 400),
        ("POST", "/1/boards", {"name": 7}, 400),
        ("POST", "/1/boards", {"name": "B", "defaultLists": "true"}, 400),
        ("POST", "/1/boards", b"name=B", 400),
        ("POST", "/1/boards", ["B"], 400),
        ("GET", "/1/boards/none/cards", None, 404),
        ("GET", "/1/boards/none/lists", None, 404),
        ("GET", "/1/boards//lists", None, 400),
        ("POST", "/1/lists", {"idBoard": "{board}"}, 400),
        ("POST", "/1/lists", {"name": "L"}, 400),
        ("POST", "/1/lists", {"name": "L", "idBoard": "none"}, 404),
        ("PUT", "/1/lists/none", {"closed": True}, 404),
        ("PUT", "/1/lists/{list}", {}, 400),
        ("PUT", "/1/lists/{list}", {"closed": "true"}, 400),
        ("PUT", "/1/lists/{list}", {"closed": False}, 400),
        ("POST", "/1/cards", {"idList": "{list}"}, 400),
        ("POST", "/1/cards", {"name": "C"}, 400),
        ("POST", "/1/cards", {"name": "C", "idList": "none"}, 404),
        ("GET", "/1/cards/none", None, 404),
        ("GET", "/1/cards/", None, 400),
        ("PUT", "/1/cards/{card}", {}, 400),
        ("PUT", "/1/cards/{card}", {"idList": "none"}, 404),
        ("PUT", "/1/cards/none", {"idList": "{list}"}, 404),
        ("POST", "/1/cards/{card}/idLabels", {}, 400),
        ("POST", "/1/cards/{card}/idLabels", {"value": ""}, 400),
        ("POST", "/1/cards/none/idLabels", {"value": "x"}, 404),
        ("DELETE", "/1/cards/", None, 400),
        ("DELETE", "/1/cards/none", None, 404),
        ("GET", "/1/members/you", None, 405),
        ("GET", "/elsewhere", None, 405),
    ],
)
def test_refuses_with_the_documented_status_and_does_nothing(world, method, path, body, status):
    """A refused request has the status of the interface and changes nothing."""
    board = world.board()
    home = world.list(board)
    names = {"board": board, "list": home, "card": world.card(home)}
    if isinstance(body, dict):
        body = {name: value.format(**names) if isinstance(value, str) else value for name, value in body.items()}
    before = repr(world.rules), world.rules.cards_of(board)
    answered, shown = world.ask(method, path.format(**names), body)
    assert answered == status
    assert shown["message"]
    assert (repr(world.rules), world.rules.cards_of(board)) == before


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("desc", (None, ""), (5,)),
        ("pos", (None, "top", 1.5, "3"), ("middle", "nan", True, 10**400, {})),
        (
            "due",
            (None, "2027-01-02", "2027-01-02T03:04:05Z", "2027-01-02T03:04:05.123456+01:00", "2027-01-02T03:04:05,5-01:30"),
            ("", "soon", "2027-02-29", "2027-01-02 03:04:05", "2027-01-02T03:04:05+24:00", 5),
        ),
    ],
)
def test_what_a_field_of_a_card_may_hold(world, field, good, bad):
    """Null counts as not sent. A position is a finite number or a word, a date has ISO 8601's form."""
    home = world.list(world.board())
    for values, status in ((good, 200), (bad, 400)):
        for value in values:
            assert world.ask("POST", "/1/cards", {"name": "C", "idList": home, field: value})[0] == status, value


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        (("key", "token"), (), 200),
        ((), ("key", "token"), 200),
        (("token",), (), 200),
        ((), ("token",), 401),
        (("key",), (), 401),
        ((), (), 401),
        (("wrong key", "token"), (), 401),
        (("key", "wrong token"), (), 401),
        ((), ("key", "number token"), 401),
    ],
)
def test_credentials_travel_in_the_query_or_in_the_body(world, query, body, status):
    """Key and token are accepted in the query or in the JSON body; a missing or wrong one is refused."""
    known = {
        "key": ("key", world.rules.key),
        "token": ("token", world.rules.token),
        "wrong key": ("key", "wrong"),
        "wrong token": ("token", "wrong"),
        "number token": ("token", 7),
    }
    fields = {"name": "B", **dict(known[name] for name in body)}
    assert world.ask("POST", "/1/boards", fields, dict(known[name] for name in query))[0] == status


@pytest.mark.parametrize(("scope", "method", "status"), [("read", "GET", 200), ("write", "GET", 403), ("read", "DELETE", 403)])
def test_a_token_without_the_scope_is_forbidden(world, scope, method, status):
    token = world.rules.issue_token(scopes=[scope])
    path = "/1/members/me" if method == "GET" else "/1/cards/none"
    assert world.ask(method, path, None, {"token": token})[0] == status
