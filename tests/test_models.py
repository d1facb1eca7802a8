"""The values of the contract (section 3): frozen, compared by what is documented, checked before they are sent."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pickle
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boardclient import BulkReport, CardResult, Response, TransportError
from boardclient.errors import InvalidIdentifierError
from boardclient.models import (
    Board,
    BoardList,
    BoardPrefs,
    Card,
    CardDraft,
    Member,
    Position,
    as_draft,
    check_identifier,
    check_text,
    is_visible,
    read_date,
    utc_timestamp,
)

FIELDS = {
    Board: ["id", "name", "url", "prefs"],
    BoardPrefs: ["permission_level", "voting", "comments", "invitations", "self_join", "card_covers", "background",
                 "calendar_feed_enabled"],
    BoardList: ["id", "name", "board_id", "pos", "subscribed", "closed"],
    Card: ["id", "name", "desc", "url", "list_id", "due", "pos"],
    Member: ["id"],
}  # fmt: skip


@pytest.mark.parametrize("model", FIELDS)
def test_models_have_the_documented_fields(model: type) -> None:
    """A model has the fields of the contract and `extra`; only the id is required, and not in a member or in preferences."""
    assert [field.name for field in attrs.fields(model)] == [*FIELDS[model], "extra"]
    required = [field.name for field in attrs.fields(model) if field.default is attrs.NOTHING]
    assert required == ([] if model in {Member, BoardPrefs} else ["id"])


@pytest.mark.parametrize("model", FIELDS)
def test_models_are_frozen_slotted_values(model: type) -> None:
    """A model can't be changed or grown, hashes and compares without `extra`, and pickles with it."""
    filled = {name: f"the {name}" for name in FIELDS[model]}
    value, twin = model(**filled, extra={"limits": 1}), model(**filled, extra={"limits": [2]})
    for name in (FIELDS[model][0], "another"):
        with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
            setattr(value, name, "x")
    assert not hasattr(value, "__dict__")
    assert value == twin
    assert hash(value) == hash(twin)
    assert value != attrs.evolve(value, **{FIELDS[model][0]: "another"})
    assert "extra" not in repr(value)
    again = pickle.loads(pickle.dumps(value))
    assert (again, again.extra) == (value, {"limits": 1})


def test_a_model_becomes_a_dict_that_json_can_express() -> None:
    """Fields go by their names, `due` as text, and models within models as dicts of their own."""
    card = Card("c", name="n", due=datetime(2027, 1, 2, 3, tzinfo=UTC), extra={"labels": [{"id": "l"}]})
    assert json.loads(json.dumps(card.to_dict())) == {
        "id": "c", "name": "n", "desc": None, "url": None, "list_id": None, "due": "2027-01-02T03:00:00Z", "pos": None,
        "extra": {"labels": [{"id": "l"}]},
    }  # fmt: skip
    board = Board("b", prefs=BoardPrefs(voting="disabled"))
    assert board.to_dict()["prefs"]["voting"] == "disabled"  # type: ignore[index,call-overload]  # -- a dict


@pytest.mark.parametrize("number", [b"1e400", b"-1.5e999", b"9" * 5000])
def test_a_number_beyond_the_range_of_a_float_is_null(number: bytes) -> None:
    """JSON can't express infinity, so such a number is None in a field, in `extra` and in a free response."""
    response = Response(200, {}, b'{"id":"c","pos":%b,"more":[%b,1.5]}' % (number, number))
    card = response.read(Card)
    assert (card.pos, card.extra) == (None, {"more": [None, 1.5]})
    assert response.json() == {"id": "c", "pos": None, "more": [None, 1.5]}
    assert json.dumps(card.to_dict(), allow_nan=False)


@pytest.mark.full
def test_pydantic_takes_and_writes_models() -> None:
    """A web framework's pydantic takes a model as it is, writes what `to_dict` returns, and reads what it has written."""
    import pydantic

    class Everything(pydantic.BaseModel):
        board: Board
        lists: list[BoardList]
        cards: list[Card]
        members: list[Member]
        draft: CardDraft

    shown = Everything(
        board=Board("b", "B", prefs=BoardPrefs("private", self_join=True, extra={"x": [1]}), extra={"y": None}),
        lists=[BoardList("l", pos="16384"), BoardList("m", pos=1.5, closed=False)],
        cards=[card := Card("c", due=datetime(2027, 1, 2, 3, tzinfo=UTC), extra={"labels": [{"id": "l"}]})],
        members=[Member()],
        draft=CardDraft("n", "l", due=datetime(2027, 1, 2, 3, tzinfo=UTC), pos=Position.TOP),
    )
    assert shown.cards[0] is card
    written = shown.model_dump_json()
    assert json.loads(written)["cards"] == [card.to_dict()]
    again = Everything.model_validate_json(written)
    assert again == shown
    assert (again.cards[0].extra, again.board.prefs.extra) == (card.extra, {"x": [1]})  # type: ignore[union-attr]  # -- it has prefs


@pytest.mark.full
def test_pydantic_describes_the_fields_of_models() -> None:
    """The JSON schema of a model has its fields with their types, once for all its uses."""
    import pydantic

    schema = pydantic.TypeAdapter(list[Card] | CardDraft).json_schema()
    cards, draft = schema["$defs"]["Card"], schema["$defs"]["CardDraft"]
    assert [*cards["properties"]] == ["id", "name", "desc", "url", "list_id", "due", "pos", "extra"]
    assert (cards["required"], draft["required"]) == (["id"], ["name", "list_id"])
    assert cards["properties"]["due"]["anyOf"][0] == {"type": "string", "format": "date-time"}
    assert schema["anyOf"][0]["items"] == {"$ref": "#/$defs/Card"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"due": datetime(2027, 1, 2)}, "due must be timezone-aware"),
        ({"due": 1798761600}, "due must be an ISO 8601 text"),
        ({"due": "1798761600"}, "is not an ISO 8601 date"),
        ({"due_date": "2027-01-02"}, "not permitted"),
        ({"list_id": "a/b"}, "list_id must not hold"),
        ({"name": "\ud83d"}, "name holds a lone surrogate"),
        ({"name": None}, "valid string"),
        ({"list_id": 7}, "valid string"),
    ],
)
def test_pydantic_checks_drafts_as_their_class_does(fields: dict[str, object], words: str) -> None:
    """A draft that can't be sent is a validation error of pydantic, which names what is wrong."""
    import pydantic

    with pytest.raises(pydantic.ValidationError, match=words):
        pydantic.TypeAdapter(CardDraft).validate_python({"name": "n", "list_id": "l", **fields})


@pytest.mark.full
def test_a_body_and_a_mapping_say_the_same_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits are a date for pydantic, too, and no number of seconds. Without an offset it is in the zone of the environment."""
    import pydantic

    monkeypatch.setenv("BOARDCLIENT_TIMEZONE", "Europe/Berlin")
    for text in ("20270131", "2027-01-31", "2027-01-31T00:00"):
        fields = {"name": "n", "list_id": "l", "due": text}
        read = pydantic.TypeAdapter(CardDraft).validate_json(json.dumps(fields))
        assert read == CardDraft.from_dict(fields) == CardDraft("n", "l", due=datetime(2027, 1, 30, 23, tzinfo=UTC))


BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=BERLIN)),
        ("20270131", datetime(2027, 1, 31, tzinfo=BERLIN)),
        ("2027-W04-7", datetime(2027, 1, 31, tzinfo=BERLIN)),
        ("2027W047", datetime(2027, 1, 31, tzinfo=BERLIN)),
        ("2027-01-31T17", datetime(2027, 1, 31, 17, tzinfo=BERLIN)),
        ("2027-01-31 17:00", datetime(2027, 1, 31, 17, tzinfo=BERLIN)),
        ("2027-01-31t17:00:00z", datetime(2027, 1, 31, 17, tzinfo=UTC)),
        ("20270131T170000,5Z", datetime(2027, 1, 31, 17, 0, 0, 500000, tzinfo=UTC)),
        ("2027-01-31T17:00:00.1234560000-0330", datetime(2027, 1, 31, 20, 30, 0, 123456, tzinfo=UTC)),
    ],
)
def test_a_date_is_iso_8601_text(text: str, moment: datetime) -> None:
    """A date is midnight, digits are a date, and a text without an offset is in the given zone."""
    assert CardDraft.from_dict({"name": "n", "list_id": "l", "due": text}, zone=BERLIN).due == moment


@pytest.mark.parametrize(
    "text",
    [
        "2027", "2027-01", "2027-W04", "1798761600", "31012027", "31.01.2027", "2027-01-31x17:00", "2027-01-31T17:00 UTC",
        "2027-01-31T25:00", "2027-02-30", "2027-01-31T17:0000", " 2027-01-31", "\uff12\uff10\uff12\uff17-01-31",
        "2027-01-31T17:00[Europe/Berlin]",
        "2027-01-31+02:00", "20270131Z", "2027-01-31T17:00:00.1234567Z", "0001-01-01T00:00:00+23:00", "tomorrow",
    ],
)  # fmt: skip
def test_what_a_date_says_is_never_dropped(text: str) -> None:
    """A text that is no whole date, or says more than a date-time holds, is refused and named."""
    with pytest.raises(ValueError, match=f"^due {re.escape(repr(text))} (is|has) "):
        CardDraft.from_dict({"name": "n", "list_id": "l", "due": text})


def test_a_date_with_an_offset_and_no_time_is_no_time() -> None:
    with pytest.raises(ValueError, match=r"has an offset but no time: write 2027-01-31T00:00:00\+02:00"):
        read_date("2027-01-31+02:00")


def test_a_zone_that_the_environment_names_and_nobody_knows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown zone is named with its variable. A date with an offset needs no zone, and without one the machine's is taken."""
    monkeypatch.setenv("BOARDCLIENT_TIMEZONE", "Europe/Atlantis")
    with pytest.raises(ValueError, match="BOARDCLIENT_TIMEZONE: 'Europe/Atlantis' is not a time zone"):
        read_date("2027-01-31")
    assert read_date("2027-01-31T17:00Z") == datetime(2027, 1, 31, 17, tzinfo=UTC)
    monkeypatch.delenv("BOARDCLIENT_TIMEZONE")
    assert read_date("2027-01-31") == datetime(2027, 1, 31).astimezone()


class NotAvailable:
    """Stands for pandas.NA, which has no truth value."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # -- as of what can't be compared


def test_a_mapping_becomes_a_draft() -> None:
    """Its keys are the fields. What a data frame or a CSV file has in place of a value is not given, and "" is a description."""
    given = {"name": "n", "list_id": "l", "desc": "", "due": date(2027, 1, 31), "pos": "", "reference": "r"}
    assert CardDraft.from_dict(given, zone=UTC) == CardDraft("n", "l", "", datetime(2027, 1, 31, tzinfo=UTC), None, "r")
    for missing in (None, float("nan"), NotAvailable()):
        assert CardDraft.from_dict({"name": "n", "list_id": "l", "desc": missing, "due": missing}) == CardDraft("n", "l")
    draft = CardDraft("n", "l", due=datetime(2027, 1, 2, tzinfo=UTC), pos=1.5)
    assert CardDraft.from_dict(draft.to_dict()) == draft
    assert CardDraft.from_dict({"name": "n", "list_id": "l", "due": draft.due}).due == draft.due
    assert TaggedDraft.from_dict({"name": "n", "list_id": "l", "tag": "t"}) == TaggedDraft("n", "l", tag="t")


class ManyValues:
    """Stands for an array, which is compared element by element."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # -- as of an array


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"due_date": "2027-01-31"}, ValueError, r"no field 'due_date' \(did you mean due\?\)"),
        ({None: ["left over"]}, ValueError, "no field None; its fields are name, list_id,"),
        ({"name": None}, ValueError, "a draft needs name"),
        ({"name": 4711}, TypeError, "name must be a string"),
        ({"desc": ManyValues()}, TypeError, "desc must be a string"),
        ({"due": 1798761600}, TypeError, "due must be an ISO 8601 text or a datetime, not int"),
        ({"due": datetime(2027, 1, 2)}, ValueError, "due must be timezone-aware"),
        ({"list_id": "a/b"}, InvalidIdentifierError, "list_id must not hold"),
    ],
)
def test_a_mapping_that_is_no_draft_is_refused(fields: dict[str, object], error: type[Exception], words: str) -> None:
    """An unknown field is named with the nearest one, and a value of another type is not converted."""
    for place, read in (("", CardDraft.from_dict), ("row 7: ", lambda mapping: as_draft(mapping, "row 7"))):
        with pytest.raises(error, match=f"^{place}.*{words}") as caught:
            read({"name": "n", "list_id": "l", **fields})
        assert type(caught.value) is error


@pytest.mark.parametrize(
    "text", ["", " ", "\u200b", "\u200e\u202e", "\u3164", "\u2800", "\ufe0f", "\x1a", "\xad\ufeff", "\u0301"]
)
def test_characters_that_nobody_sees_are_no_name(text: str) -> None:
    assert not is_visible(text)


@pytest.mark.parametrize("text", ["a", "7", "-", "…", "ж", "日", "🎉", "\ue000", "\u200ba", "\U0001fae9"])
def test_a_character_that_people_see_makes_a_name(text: str) -> None:
    """One is enough, of private use or newer than this Python as well."""
    assert is_visible(text)


class Shout(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "shouted"


class Colour(str, enum.Enum):  # noqa: UP042 -- the older form, whose str() is not its value
    RED = "red"


SENT = (
    st.text()
    | st.text("ab./\\_-09Z\x00\x1f\n\x7f\x85 \ud800\ufffd", max_size=3)
    | st.builds(Shout, st.text(max_size=3))
    | st.sampled_from([Colour.RED, Position.TOP])
)


@given(SENT)
def test_any_text_is_judged_by_its_characters(text: str) -> None:
    """Text passes but for a lone surrogate; an identifier but for dots, slashes, controls and U+FFFD, too, nor is it empty."""
    is_text = not any("\ud800" <= character <= "\udfff" for character in text)
    forbidden = {*"/\\\ufffd", *map(chr, range(32)), *map(chr, range(127, 160))}
    for check, passes in (
        (check_text, is_text),
        (check_identifier, is_text and text not in {"", ".", ".."} and not forbidden & {*text}),
    ):
        try:
            checked = check(text, "name")
        except ValueError:
            assert not passes
        else:
            assert passes
            assert type(checked) is str
            assert checked == text


class NoOffset(tzinfo):
    def utcoffset(self, moment: datetime | None, /) -> None:
        return None


class NoMoment(datetime):
    """Is a date-time by its type alone, as pandas' NaT is."""

    def utcoffset(self) -> timedelta | None:
        raise ValueError("NoMoment does not support utcoffset")


class Broken(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return timedelta(days=1)


class WrittenWithZ(datetime):
    """A date-time of another library, which writes UTC as Z."""

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        return super().isoformat(sep, timespec).replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC), "2027-01-02T03:04:05Z"),
        (datetime(2027, 1, 2, 3, 4, 5, 500000, tzinfo=UTC), "2027-01-02T03:04:05.500000Z"),
        (datetime(2027, 1, 2, 3, 4, 5, 1, tzinfo=UTC), "2027-01-02T03:04:05.000001Z"),
        (datetime(2027, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30))), "2027-01-01T21:34:05Z"),
        (datetime(2026, 12, 31, 23, 0, tzinfo=timezone(timedelta(hours=-3))), "2027-01-01T02:00:00Z"),
        (datetime(2027, 1, 2, tzinfo=timezone(timedelta(seconds=1))), "2027-01-01T23:59:59Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"),
        (WrittenWithZ(2027, 1, 2, 3, 4, 5, tzinfo=UTC), "2027-01-02T03:04:05Z"),
    ],
)
def test_a_due_date_is_sent_in_utc(moment: datetime, written: str) -> None:
    """An aware date-time is written in UTC with a Z, and with its fraction where it has one."""
    assert utc_timestamp(moment) == written


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (datetime(2027, 1, 2), ValueError),
        (datetime(2027, 1, 2, tzinfo=NoOffset()), ValueError),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), ValueError),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), ValueError),
        (NoMoment(2027, 1, 2), ValueError),
        (NoMoment(2027, 1, 2, tzinfo=UTC), ValueError),
        (datetime(2027, 1, 2, tzinfo=Broken()), ValueError),
        (datetime(2027, 1, 2).date(), TypeError),
        ("2027-01-02T03:04:05Z", TypeError),
        (None, TypeError),
    ],
)
def test_a_due_date_without_offset_is_refused(value: object, error: type[Exception]) -> None:
    """A naive date-time, one beyond what UTC can express, and what is no date-time are refused with the argument's name."""
    with pytest.raises(error, match=r"^due "):
        utc_timestamp(value)
    if value is not None:
        with pytest.raises(error, match=r"^due "):
            CardDraft("A", "l1", due=value)


@settings(deadline=None)
@given(st.datetimes(timezones=st.timezones() | st.just(UTC)))
def test_any_aware_moment_comes_back_equal(moment: datetime) -> None:
    """What is written of a date-time reads back as the same moment, or it is a ValueError."""
    try:
        written = utc_timestamp(moment)
    except ValueError:
        assert moment.year in {1, 9999}
        return
    assert datetime.fromisoformat(written) == moment.astimezone(UTC)


def test_a_draft_holds_what_it_is_given() -> None:
    """A draft needs a name and a list; the rest is None, and empty text is a value."""
    draft = CardDraft("", "l1", desc="", pos=Position.TOP, reference="row 7")
    assert attrs.asdict(draft) == {
        "name": "", "list_id": "l1", "desc": "", "due": None, "pos": "top", "reference": "row 7",
    }  # fmt: skip
    assert CardDraft("a", "l1") == CardDraft("a", "l1", None, None, None, None)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"name": None}, TypeError),
        ({"name": "\ud800"}, ValueError),
        ({"list_id": ""}, ValueError),
        ({"list_id": "a/b"}, ValueError),
        ({"list_id": 3}, TypeError),
        ({"desc": 1}, TypeError),
        ({"due": datetime(2027, 1, 2)}, ValueError),
        ({"due": "2027-01-02"}, TypeError),
        ({"pos": True}, TypeError),
        ({"pos": b"top"}, TypeError),
        ({"pos": float("nan")}, ValueError),
        ({"pos": float("-inf")}, ValueError),
        ({"pos": 10**400}, ValueError),
        ({"reference": 5}, TypeError),
    ],
)
def test_a_draft_that_could_not_be_sent_is_refused(values: dict[str, object], error: type[Exception]) -> None:
    """A draft is checked when it is made, and the error names the field."""
    with pytest.raises(error, match=f"^{next(iter(values))} "):
        CardDraft(**{"name": "a", "list_id": "l1", **values})  # type: ignore[arg-type]  # -- wrong types are the point


class PlainDraft(CardDraft):
    """A draft of an application, with a `__dict__`."""


@attrs.frozen
class TaggedDraft(CardDraft):
    """A draft of an application, with a field of its own."""

    tag: str = "none"


@pytest.mark.parametrize("kind", [CardDraft, PlainDraft, TaggedDraft])
def test_a_draft_is_a_frozen_value_of_its_class(kind: type[CardDraft]) -> None:
    """Drafts and those of subclasses can't be changed, compare and hash by their fields, and pickle, copy and evolve."""
    draft = kind("a", "l1", pos="top")
    for change in (lambda: setattr(draft, "name", "b"), lambda: delattr(draft, "name")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            change()
    for again in (kind("a", "l1", pos="top"), pickle.loads(pickle.dumps(draft)), copy.copy(draft), attrs.evolve(draft)):
        assert type(again) is kind
        assert (again, hash(again)) == (draft, hash(draft))
    assert attrs.evolve(draft, name="b") == kind("b", "l1", pos="top") != draft
    with pytest.raises(TypeError, match=r"^name must be a string"):
        kind(1, "l1")  # type: ignore[arg-type]  # -- wrong types are the point


@pytest.mark.parametrize(
    "text",
    ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "0001-01-01T23:00:00+23:59", "9999-12-31T00:01:00-23:59"],
)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_date_that_utc_can_not_express_is_left_in_extra(text: str, many: bool) -> None:
    """What was read can be written again, also at the ends of the calendar."""
    body = json.dumps({"id": "c1", "due": text}).encode()
    (card,) = Response(200, {}, b"[%b]" % body).read(list[Card]) if many else [Response(200, {}, body).read(Card)]
    assert (card.due, card.extra) == (None, {"due": text})
    assert card.to_dict()["extra"] == {"due": text}
    within = Response(200, {}, b'{"id":"c1","due":"9999-12-31T23:59:59+05:00"}').read(Card)
    assert within.to_dict()["due"] == "9999-12-31T18:59:59Z"


def test_notebooks_show_a_table_of_what_a_record_has() -> None:
    """The texts of the service are no markup, and nor are the errors of a report's rows."""
    card = Card("c1", "<script>", list_id="l1", extra={"closed": False})
    assert card._repr_html_() == (
        "<table><caption>Card</caption><tr><th>id</th><td>c1</td></tr><tr><th>name</th><td>&lt;script&gt;</td></tr>"
        "<tr><th>list_id</th><td>l1</td></tr><tr><th>extra</th><td>{&#x27;closed&#x27;: False}</td></tr></table>"
    )
    draft = CardDraft("A", "l1", reference="<b>")
    problem = CardResult(index=0, draft=draft, error=TransportError("<lost>"), state="unknown")
    table = BulkReport(created=2, unknown=1, seconds=1.25, rate=1.6, requests=3, problems=(problem,))._repr_html_()
    assert "<th>created</th><td>2</td>" in table
    assert "<tr><th>row 0 (&#x27;&lt;b&gt;&#x27;)</th><td>unknown: &lt;lost&gt;</td></tr>" in table


CARD = Card("c", "Book the hall", due=datetime(2027, 1, 2, 3, tzinfo=UTC), extra={"labels": [{"id": "l"}]})


def test_models_are_taken_apart_as_dataclasses_are() -> None:
    """What knows no attrs classes asks for the fields of a dataclass: data frames, and the JSON of some frameworks."""
    assert dataclasses.is_dataclass(CARD)
    assert dataclasses.is_dataclass(Card)
    assert not dataclasses.is_dataclass(Card.__mro__[1])
    assert dataclasses.asdict(CARD) == {**CARD.to_dict(), "due": CARD.due}
    assert dataclasses.asdict(Board("b", prefs=BoardPrefs("private")))["prefs"]["permission_level"] == "private"
    assert [field.name for field in dataclasses.fields(CardDraft)] == ["name", "list_id", "desc", "due", "pos", "reference"]


@pytest.mark.full
def test_a_data_frame_of_models_has_columns() -> None:
    """One for each field, with dates as dates."""
    import pandas

    frame = pandas.DataFrame([CARD, Card("d")])
    assert [*frame.columns] == ["id", "name", "desc", "url", "list_id", "due", "pos", "extra"]
    assert (frame["due"][0], frame["name"][0], frame["id"][1]) == (CARD.due, "Book the hall", "d")


@pytest.mark.full
def test_fastapi_takes_a_model_wherever_it_stands() -> None:
    """Without an annotation, in a list and in a mapping."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    app = FastAPI()
    for path, value in (("/plain", CARD), ("/list", [CARD]), ("/mapping", {"card": CARD})):
        app.get(path)(lambda value=value: value)
    with TestClient(app) as client:
        plain, many, mapped = (client.get(path).json() for path in ("/plain", "/list", "/mapping"))
    assert plain == many[0] == mapped["card"]
    assert datetime.fromisoformat(plain.pop("due")) == CARD.due
    assert plain == {name: value for name, value in CARD.to_dict().items() if name != "due"}


@pytest.mark.full
def test_starlette_takes_models_by_a_response() -> None:
    """Anywhere in the value. What is no model is left to the framework."""
    from boardclient.integrations.fastapi import ModelJSONResponse

    value = {"card": CARD, "more": [(CARD, 1)], "due": None}
    assert json.loads(ModelJSONResponse(value).body) == {"card": CARD.to_dict(), "more": [[CARD.to_dict(), 1]], "due": None}
    with pytest.raises(TypeError):
        ModelJSONResponse({"a": object()})
