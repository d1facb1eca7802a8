"""Wire to models and back (contract section 3): strict for 4.1 to 4.3, tolerant elsewhere, deaf for 4.7 to 4.10."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from boardclient._interface import _fields, _listings
from boardclient.errors import DecodeError
from boardclient.models import Board, BoardList, BoardPrefs, Card

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
    board = _fields.created_board(body(BOARD))
    prefs = BoardPrefs("private", "disabled", "members", "members", True, False, "blue", False)
    assert board == Board("b1", "Plan", "https://b.example/b1", prefs)
    assert board.prefs is not None
    assert (board.extra, board.prefs.extra) == ({}, {})
    made = _fields.created_list(body(LIST))
    assert (made, made.extra) == (BoardList("l1", "To Do", "b1", "top", False, False), {})
    card = _fields.created_card(body(CARD))
    assert (card, card.extra) == (Card("c1", "Write", "", "https://b.example/c1"), {})


def test_undocumented_fields_stay_under_their_wire_names() -> None:
    """What the document does not show is kept as it came, nulls and an `extra` of the service's own included."""
    more = {"limits": {"a": [1, None]}, "extra": "theirs", "board_id": 3, "shortUrl": None}
    board = _fields.created_board(body({**BOARD, **more, "prefs": {**PREFS, **more}}))
    assert board.extra == more
    assert board.prefs is not None
    assert board.prefs.extra == more
    assert _fields.member(body({"id": "m1", **more})).extra == more


EVERY_CARD = [
    _fields.created_card,
    _fields.card,
    lambda raw: _listings.cards(b"[" + raw + b"]")[0],
    lambda raw: _fields.changed_card("c1", raw),
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


@pytest.mark.parametrize("read", [_fields.card, lambda raw: _listings.cards(b"[" + raw + b"]")])
def test_a_field_that_no_model_has_must_be_utf_8_too(read: Callable[[bytes], Any]) -> None:
    """Broken text is an error even where only `extra` would show it."""
    read('{"id":"c1","name":"n","x":"\u00e9"}'.encode())
    with pytest.raises(DecodeError):
        read(b'{"id":"c1","name":"n","x":"\xe9"}')


def test_what_fits_of_a_change_is_used() -> None:
    """What fits of the response to a change fills the model, and what does not stays in `extra`, a strange id included."""
    card = _fields.changed_card("c1", body({"id": "C1", "name": "n", "desc": 4, "idList": "l2", "more": [1]}))
    assert card == Card("C1", "n", list_id="l2")
    assert card.extra == {"desc": 4, "more": [1]}
    archived = _fields.changed_list("l1", body({"id": 17, "closed": True, "pos": 3}))
    assert archived == BoardList("l1", pos=3, closed=True)
    assert archived.extra == {"id": 17}


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800"])
def test_what_json_lacks_is_a_value_error(value: object) -> None:
    """What can't be expressed in JSON is a ValueError that repeats nothing of the value."""
    with pytest.raises(ValueError, match=r"^the value can't be sent as JSON \(\w+\)$") as caught:
        _fields.encode(value)
    assert caught.value.__context__ is None


def test_one_record_has_a_bound() -> None:
    """A response of one record is decoded in one step, so one of more than 4 MiB is refused. After a change it says nothing."""
    long = b'{"id":"c1","name":"' + b"x" * 2**22 + b'"}'
    with pytest.raises(DecodeError, match="the response is longer than 4 MiB"):
        _fields.card(long)
    assert _fields.changed_card("c2", long) == Card("c2")
    assert _listings.read(Card, long[:20] + long[-2:]).id == "c1"


def test_white_space_of_other_kinds_is_not_that_of_json() -> None:
    """A form feed is white space to many tools, and not to JSON (RFC 8259, section 2)."""
    assert _fields.decode(b' \n["\\ud83d"]\t ') == ["\ufffd"]
    for body in (b'\x0c["\\ud83d"]', b'["\\ud83d"]\x0b', b'["\\ud83d"] 1', b'["\\ud83d\x0c"]'):
        with pytest.raises(DecodeError, match="not JSON"):
            _fields.decode(body)
