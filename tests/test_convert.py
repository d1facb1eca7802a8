"""Wire to models and back (contract section 3): strict for 4.1 to 4.3, tolerant elsewhere, deaf for 4.7 to 4.10."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from boardclient import _wire
from boardclient.errors import DecodeError, Effect
from boardclient.models import Board, BoardList, BoardPrefs, Card, Member

PREFS = {
    "permissionLevel": "private", "voting": "disabled", "comments": "members", "invitations": "members",
    "selfJoin": True, "cardCovers": False, "background": "blue", "calendarFeedEnabled": False,
}  # fmt: skip
BOARD = {"id": "b1", "name": "Plan", "url": "https://b.example/b1", "prefs": PREFS}
LIST = {"id": "l1", "name": "To Do", "idBoard": "b1", "pos": "top", "subscribed": False, "closed": False}
CARD = {"id": "c1", "name": "Write", "desc": "", "url": "https://b.example/c1"}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def test_documented_responses_fill_the_models() -> None:
    """The responses that the document shows give every field under its Python name, and nothing is left over."""
    board = _wire.created_board(body(BOARD))
    prefs = BoardPrefs("private", "disabled", "members", "members", True, False, "blue", False)
    assert board == Board("b1", "Plan", "https://b.example/b1", prefs)
    assert board.prefs is not None
    assert (board.extra, board.prefs.extra) == ({}, {})
    made = _wire.created_list(body(LIST))
    assert (made, made.extra) == (BoardList("l1", "To Do", "b1", "top", False, False), {})
    card = _wire.created_card(body(CARD))
    assert (card, card.extra) == (Card("c1", "Write", "", "https://b.example/c1"), {})


READERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "board": (_wire.created_board, Board),
    "list": (_wire.created_list, BoardList),
    "created card": (_wire.created_card, Card),
    "card": (_wire.card, Card),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("nulls", [False, True])
def test_only_the_id_is_required(reader: str, nulls: bool) -> None:
    """A field that is absent from a response, or null, is None and not the text `None`."""
    read, model = READERS[reader]
    wire = [*BOARD, *LIST, *CARD, "idList", "due"]
    documented = {"board": BOARD, "list": LIST}.get(reader, {**CARD, "idList": 0, "due": 0, "pos": 0})
    value = read(body({**(dict.fromkeys(wire) if nulls else {}), "id": "x"}))
    assert value == model("x")
    assert value.extra == (dict.fromkeys(set(wire) - set(documented)) if nulls else {})


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrong", [{}, {"id": None}, {"id": 7}, {"id": ["x"]}, {"ID": "x"}, {"id": True}])
def test_a_response_without_a_string_id_is_a_decode_error(reader: str, wrong: object) -> None:
    """An object whose id is no string is a DecodeError at `id`, of an operation that was done."""
    with pytest.raises(DecodeError) as caught:
        READERS[reader][0](body(wrong))
    assert (caught.value.path, caught.value.effect) == ("id", Effect.DONE)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("reader", [*READERS, "member"])
@pytest.mark.parametrize("wrong", [b"[]", b"null", b'"x"', b"3", b"true", b"", b"{", b"\xff", b"NaN"])
def test_a_body_that_is_no_object_is_a_decode_error(reader: str, wrong: bytes) -> None:
    """A body that is no JSON object is a DecodeError at the top, and the body is not in its message."""
    read = _wire.member if reader == "member" else READERS[reader][0]
    with pytest.raises(DecodeError) as caught:
        read(wrong)
    assert caught.value.path == ""
    assert caught.value.__context__ is None


WRONG_STRICT = [
    *((_wire.created_board, BOARD, name, wrong) for name in ("name", "url") for wrong in (1, True, [], {})),
    *((_wire.created_board, BOARD, "prefs", wrong) for wrong in (1, "x", [], True)),
    *((_wire.created_list, LIST, name, wrong) for name in ("name", "idBoard") for wrong in (1, False, [], {})),
    *((_wire.created_list, LIST, "pos", wrong) for wrong in (True, [], {})),
    *((_wire.created_list, LIST, name, wrong) for name in ("closed", "subscribed") for wrong in (0, 1, "true", "", [])),
    *((_wire.created_card, CARD, name, wrong) for name in ("name", "desc", "url") for wrong in (0, 1.5, True, [], {})),
]


@pytest.mark.parametrize(("read", "good", "name", "wrong"), WRONG_STRICT)
def test_a_documented_field_of_another_type_is_a_decode_error(read: Any, good: dict[str, Any], name: str, wrong: object) -> None:
    """In 4.1 to 4.3 a field of another type than shown is a DecodeError that names the field, never a coerced value."""
    with pytest.raises(DecodeError) as caught:
        read(body({**good, name: wrong}))
    assert caught.value.path == name
    assert name in str(caught.value)


@pytest.mark.parametrize("name", PREFS)
def test_a_preference_of_another_type_is_named_with_its_place(name: str) -> None:
    """A preference of another type is a DecodeError at `prefs.` and its wire name."""
    with pytest.raises(DecodeError) as caught:
        _wire.created_board(body({**BOARD, "prefs": {**PREFS, name: 1}}))
    assert caught.value.path == f"prefs.{name}"


def test_undocumented_fields_stay_under_their_wire_names() -> None:
    """What the document does not show is kept as it came, nulls and an `extra` of the service's own included."""
    more = {"limits": {"a": [1, None]}, "extra": "theirs", "board_id": 3, "shortUrl": None}
    board = _wire.created_board(body({**BOARD, **more, "prefs": {**PREFS, **more}}))
    assert board.extra == more
    assert board.prefs is not None
    assert board.prefs.extra == more
    assert _wire.member(body({"id": "m1", **more})).extra == more


TOLERATED = [
    *(("card", name, name, wrong) for name in ("name", "desc", "url") for wrong in (1, 1.5, True, [], {})),
    *(("card", "idList", "list_id", wrong) for wrong in (1, True, [], {})),
    *(("list", name, name, wrong) for name in ("closed", "subscribed") for wrong in (0, 1, "true", [])),
    *(("list", "idBoard", "board_id", wrong) for wrong in (1, True, [], {})),
    *((kind, "pos", "pos", wrong) for kind in ("list", "card") for wrong in (True, [], {})),
]


@pytest.mark.parametrize(("kind", "wire", "name", "wrong"), TOLERATED)
def test_a_wrong_type_in_an_undocumented_response_stays_in_extra(kind: str, wire: str, name: str, wrong: object) -> None:
    """In undocumented responses a value of another type leaves the field None and stays in `extra` as it came."""
    read, good = {"card": (_wire.cards, CARD), "list": (_wire.lists, LIST)}[kind]
    (value,) = read(body([{**good, wire: wrong}]))
    assert getattr(value, name) is None
    assert value.extra == {wire: wrong}
    assert type(value.extra[wire]) is type(wrong)


EVERY_CARD = [
    _wire.created_card,
    _wire.card,
    lambda raw: _wire.cards(b"[" + raw + b"]")[0],
    lambda raw: _wire.changed_card("c1", raw),
]


@pytest.mark.parametrize("read", EVERY_CARD)
@pytest.mark.parametrize(
    ("wire", "due"),
    [
        ("2027-01-02T03:04:05Z", datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2027-01-02T03:04:05.678Z", datetime(2027, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)),
        ("2027-01-02T03:04:05+05:30", datetime(2027, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        (None, None),
    ],
)
def test_a_due_date_with_an_offset_is_aware(read: Callable[[bytes], Card], wire: str | None, due: datetime | None) -> None:
    """A due date with an offset is an aware date-time and no longer in `extra`; null is None."""
    card = read(body({**CARD, "due": wire}))
    assert card.due == due
    assert due is None or (card.due is not None and card.due.utcoffset() == due.utcoffset())
    assert card.extra == {}


@pytest.mark.parametrize("read", EVERY_CARD)
@pytest.mark.parametrize(
    "wire",
    ["2027-01-02T03:04:05", "2027-01-02", "", "soon", "2027-13-01T00:00:00Z", "2027-01-01T00:00:00+99:00", 0, 1e9, True, {}],
)
def test_a_due_date_without_an_offset_stays_in_extra(read: Callable[[bytes], Card], wire: object) -> None:
    """A value that is not a date-time with an offset is None, raw in `extra`, and never an error, also in a created card."""
    card = read(body({**CARD, "due": wire, "pos": False, "idList": 9}))
    assert (card.due, card.pos, card.list_id) == (None, None, None)
    assert card.extra == {"due": wire, "pos": False, "idList": 9}


@pytest.mark.parametrize("pos", ["top", "", 0, 16384, 1.5, -3, 2**70])
def test_a_position_is_text_or_a_number(pos: object) -> None:
    """A position is kept as it came: text, an integer or a fraction."""
    for value in (_wire.created_list(body({**LIST, "pos": pos})), _wire.card(body({**CARD, "pos": pos}))):
        assert value.pos == pos
        assert type(value.pos) is type(pos)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"{}", ""),
        (b"null", ""),
        (b"", ""),
        (b"[3]", "[0]"),
        (b'[{"id":"a"},[]]', "[1]"),
        (b'[{"id":"a"},{"id":"b"},{"id":"c"},{"id":null}]', "[3].id"),
        (b'[{"id":"a"},{"name":"b"}]', "[1].id"),
    ],
)
@pytest.mark.parametrize("read", [_wire.cards, _wire.lists])
def test_an_array_of_objects_with_ids_is_required(read: Callable[[bytes], Any], raw: bytes, path: str) -> None:
    """4.4 and 4.5 are arrays of objects with a string id; anything else is a DecodeError that names the element."""
    with pytest.raises(DecodeError) as caught:
        read(raw)
    assert caught.value.path == path


@pytest.mark.parametrize("read", [_wire.card, lambda raw: _wire.cards(b"[" + raw + b"]")])
def test_a_field_that_no_model_has_must_be_utf_8_too(read: Callable[[bytes], Any]) -> None:
    """Broken text is an error even where only `extra` would show it."""
    read('{"id":"c1","name":"n","x":"\u00e9"}'.encode())
    with pytest.raises(DecodeError):
        read(b'{"id":"c1","name":"n","x":"\xe9"}')


@pytest.mark.parametrize("wire", [None, 7, ["m"], {}])
def test_a_member_needs_no_id(wire: object) -> None:
    """A member's fields are not shown: an id of another type stays in `extra`, and everything else does."""
    member = _wire.member(body({"id": wire, "fullName": "A"}))
    assert member == Member(None)
    assert member.extra == ({"fullName": "A"} if wire is None else {"id": wire, "fullName": "A"})


USELESS = [b"", b"ok", b"null", b"[]", b"3", b'"c9"', b"\xff\xfe", b"{", b"[" * 100_000, b"1e999", b"{}", b'{"id":null}']


@pytest.mark.parametrize("raw", USELESS)
def test_a_useless_response_to_a_change_gives_the_id_of_the_call(raw: bytes) -> None:
    """After a 2xx of 4.7 or 4.9 a body without use gives a model with just the id that the caller passed."""
    card, archived = _wire.changed_card("c1", raw), _wire.changed_list("l1", raw)
    assert (card, card.extra) == (Card("c1"), {})
    assert (archived, archived.extra) == (BoardList("l1"), {})


def test_what_fits_of_a_change_is_used() -> None:
    """What fits of the response to a change fills the model, and what does not stays in `extra`, a strange id included."""
    card = _wire.changed_card("c1", body({"id": "C1", "name": "n", "desc": 4, "idList": "l2", "more": [1]}))
    assert card == Card("C1", "n", list_id="l2")
    assert card.extra == {"desc": 4, "more": [1]}
    archived = _wire.changed_list("l1", body({"id": 17, "closed": True, "pos": 3}))
    assert archived == BoardList("l1", pos=3, closed=True)
    assert archived.extra == {"id": 17}


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800"])
def test_what_json_lacks_is_a_value_error(value: object) -> None:
    """What can't be expressed in JSON is a ValueError that repeats nothing of the value."""
    with pytest.raises(ValueError, match=r"^the value can't be sent as JSON \(\w+\)$") as caught:
        _wire.encode(value)
    assert caught.value.__context__ is None
