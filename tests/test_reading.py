"""Long answers and lazy fields: reading gives what a plain way gives, slice by slice, and keeps no more than it must."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from unittest import mock

import attrs
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual_loop import Clock

from boardclient import AsyncSession, DeadlineError, DecodeError, Effect, StaticCredentials, _convert, _json
from boardclient import _operations as ops
from boardclient._transport import RawResponse
from boardclient.models import Board, BoardList, BoardPrefs, Card, Member

# --- the same, read the plain way

KINDS: dict[type, dict[str, tuple[str, tuple[type, ...]]]] = {
    Card: {
        "id": ("id", (str,)), "name": ("name", (str,)), "desc": ("desc", (str,)), "url": ("url", (str,)),
        "idList": ("list_id", (str,)), "due": ("due", ()), "pos": ("pos", (str, int, float)),
    },
    BoardList: {
        "id": ("id", (str,)), "name": ("name", (str,)), "idBoard": ("board_id", (str,)), "pos": ("pos", (str, int, float)),
        "subscribed": ("subscribed", (bool,)), "closed": ("closed", (bool,)),
    },
}  # fmt: skip


def aware(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.utcoffset() is not None else None


def refuse(constant: str) -> None:
    raise ValueError(constant)


def integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= 4300 else float(digits)


def plainly(model: type, body: bytes) -> list[tuple[Any, dict[str, Any]]] | str:
    """Read an array by way of dicts: each value and its `extra`, or the place of the first thing that is wrong."""
    try:
        decoded = json.loads(body.decode("utf-8-sig"), parse_constant=refuse, parse_int=integer)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(decoded, list):
        return ""
    read = []
    for index, fields in enumerate(decoded):
        if not isinstance(fields, dict):
            return f"[{index}]"
        if not isinstance(fields.get("id"), str):
            return f"[{index}].id"
        extra, known = dict(fields), {}
        for wire, (name, kinds) in KINDS[model].items():
            value = fields.get(wire)
            fitted = aware(value) if wire == "due" else value if type(value) in kinds else None
            if value is None or fitted is not None:
                extra.pop(wire, None)
            known[name] = fitted
        read.append((model(**known), extra))
    return read


def quickly(model: type, body: bytes) -> list[tuple[Any, dict[str, Any]]] | str:
    try:
        values = [value for values in _convert._slices(model, body) for value in values]
    except DecodeError as error:
        return error.path if error.__context__ is None else "an error with another behind it"
    return [(value, value.extra) for value in values]


SPACE = st.sampled_from([b"", b"", b"", b"", b" ", b"\n", b"\t\r\n "])
WELL = [b"null", b"true", b"7", b"1.5", b"{}", b"[]", b"[{},{}]", b'"x"', b'"},{"', b'"2027-01-01T00:00:00+02:00"', b'"\xc3\xbc"']
ODD = [
    b"-1", b"1e3", b"1e999", b"-1E+400", b"9" * 30, b"9" * 4400, b"9" * 320 + b".5", b"1e-999", b"NaN", b"01", b"[1,]",
    b'""', b'"]"',
    b'"[{"', b'"\\"},{\\""', b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\xff"', b'"\\q"', b'"2027-01-01"', b'"2027-13-01T00:00:00Z"',
]  # fmt: skip
GOOD, TOKENS = st.sampled_from(WELL), st.sampled_from([*WELL, *ODD])
NAMES = st.sampled_from(["id", "name", "desc", "url", "idList", "idBoard", "due", "pos", "closed", "subscribed", "a", "extra"])


def written(pairs: list[tuple[str, bytes]], space: bytes) -> bytes:
    return b"{" + b",".join(b'%s"%s"%s:%s' % (space, name.encode(), space, raw) for name, raw in pairs) + space + b"}"


def nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    arrays = st.builds(lambda items, space: b"[" + (space + b"," + space).join(items) + b"]", st.lists(inner, max_size=3), SPACE)
    return arrays | st.builds(written, st.lists(st.tuples(NAMES, inner), max_size=4), SPACE)


def objects(leaves: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pairs = st.lists(st.tuples(NAMES, leaves | nested(leaves | nested(leaves))), max_size=7)
    return st.builds(lambda pairs, space: written([("id", b'"c"'), *pairs], space), pairs, SPACE)


ELEMENTS = objects(GOOD) | objects(GOOD) | objects(GOOD | TOKENS) | TOKENS
ARRAYS = st.builds(
    lambda items, space: space + b"[" + (space + b"," + space).join(items) + space + b"]" + space,
    st.lists(objects(GOOD), max_size=8) | st.lists(ELEMENTS, max_size=8),
    SPACE,
)
BODIES = ARRAYS | st.builds(lambda body, cut: body[:cut], ARRAYS, st.integers(0, 200)) | TOKENS | st.binary(max_size=20)


@settings(deadline=None, max_examples=200)
@given(BODIES, st.sampled_from([1, 16, 100, 2**16]), st.integers(1, 5), st.sampled_from([Card, BoardList]))
@example(b'[{"id":"a"},{"id":7},{"id":"b","x":1e999}]', 1, 1, Card)
@example(b'[{"id":"a"},{"id":"b","x":1e999}]', 1, 1, Card)
@example(b'[{"id":"a"},{"id":"b"},]', 1, 1, Card)
@example(b'\xef\xbb\xbf[{"id":"a"}]', 1, 1, Card)
@example(b'\xef\xbb\xbf[{"id":"a","name":"\\ud83d"},{"id":"b"},{"id":"c","x":1e400}]  ', 16, 1, Card)
@example(b'[{"id":"a","name":"\\ud83d"},{"id":"b"}] x', 1, 1, Card)
@example(b'[{"id":"a"},{"id":"b"}]]', 1, 1, Card)
@example(b'{"id":"a"},{"id":"b"}', 1, 1, Card)
@example(b'[{"id":"a","x":[' + b"{},{}," * 9 + b'{}]},{"id":"b"}]', 1, 1, Card)
@example(b'[{"id":"a","x":"' + b"},{" * 9 + b'"},{"id":"b"}]', 1, 1, Card)
@example(b'[{"id":"a","x":' + b"[{},{}]," * 1 + b'"y":"],["},{"id":"b"}]', 1, 1, Card)
@example(b'[{"id":"a","a":1},{"id":"b","x":[{"id":"c","a":1},{"id":"d","a":1}]},{"id":"e","a":2}]', 1, 1, Card)
@example(b'[{"id":"a","a":1},{"id":"b","x":"},{\\"id\\":\\"c\\",\\"a\\":1}"},{"id":"e","a":2}]', 1, 1, Card)
@example(b'[{"id":"a"},' + b"[{},{}]," * 20 + b'{"id":"b"}]', 1, 1, Card)
def test_any_array_reads_as_it_does_by_way_of_dicts(body: bytes, part: int, elements: int, model: type) -> None:
    """Any bytes give the same values, the same `extra` down to the types, and the same place of an error, however cut."""
    with mock.patch.object(_json, "PART_BYTES", part), mock.patch.object(_convert, "SLICE_ELEMENTS", elements):
        read = quickly(model, body)
    expected = plainly(model, body)
    assert read == expected
    assert repr(read) == repr(expected)
    if isinstance(read, list):
        assert repr([extra for _, extra in read]) == repr([extra for _, extra in expected])  # type: ignore[misc]  # -- it is a list


@settings(deadline=None)
@given(objects(GOOD | TOKENS) | TOKENS)
def test_any_card_reads_as_an_element_of_an_array(body: bytes) -> None:
    """One card is read as the same card in an array, and as the response to a change where it can be read at all."""
    expected = plainly(Card, b"[" + body + b"]")
    try:
        card = _convert.card(body)
    except DecodeError:
        assert isinstance(expected, str)
        return
    changed = _convert.changed_card("c1", body)
    assert [(card, card.extra)] == [(changed, changed.extra)] == expected


PREFS = {name: (name, (str,)) for name in ("voting", "comments", "invitations", "background")} | {
    "permissionLevel": ("permission_level", (str,)), "selfJoin": ("self_join", (bool,)),
    "cardCovers": ("card_covers", (bool,)), "calendarFeedEnabled": ("calendar_feed_enabled", (bool,)),
}  # fmt: skip
EVERY_KIND = KINDS | {
    BoardPrefs: PREFS,
    Board: {"id": ("id", (str,)), "name": ("name", (str,)), "url": ("url", (str,)), "prefs": ("prefs", ())},
    Member: {"id": ("id", (str,))},
}
UNDOCUMENTED = {(Card, "idList"), (Card, "due"), (Card, "pos"), (Member, "id")}


def one_by_one(model: type, fields: object, *, strict: bool) -> Any:
    """Read an object field by field: its value with its `extra`, or the place of the first thing that is wrong."""
    if not isinstance(fields, dict):
        return ""
    known: dict[str, Any] = {}
    extra = dict(fields)
    for wire in sorted(EVERY_KIND[model], key=lambda wire: NAMED[model].index(EVERY_KIND[model][wire][0])):
        name, kinds = EVERY_KIND[model][wire]
        value = fields.get(wire)
        fitted: Any = aware(value) if wire == "due" else value if type(value) in kinds else None
        if wire == "prefs" and value is not None:
            inner = one_by_one(BoardPrefs, value, strict=strict)
            if not isinstance(inner, str):
                fitted = inner
            elif strict:
                return f"prefs.{inner}".strip(".")
        required = wire == "id" and model is not Member
        if fitted is None and (required or (strict and value is not None and (model, wire) not in UNDOCUMENTED)):
            return wire
        if value is None or fitted is not None:
            extra.pop(wire, None)
        known[name] = fitted
    return model(**known, extra=extra)


def structured(converter: Any, model: type, form: object) -> Any:
    try:
        return converter.structure(form, model)
    except _convert._Misfit as misfit:
        return misfit.path


def whole(read: Any) -> str:
    """Write down all of what was read, types included, with the parts that comparison leaves out."""
    return repr((read, getattr(read, "extra", None), getattr(getattr(read, "prefs", None), "extra", None)))


NAMED = {model: [field.name for field in attrs.fields(model)] for model in EVERY_KIND}
LEAVES = st.sampled_from([None, True, False, 0, 7, 1.5, "", "x", "2027-01-01T00:00:00+02:00", "2027-01-01T00:00:00"])
VALUES = LEAVES | LEAVES | st.lists(LEAVES, max_size=1) | st.dictionaries(st.sampled_from([*PREFS, "more"]), LEAVES)
OBJECTS = st.dictionaries(
    st.sampled_from(sorted({wire for kinds in EVERY_KIND.values() for wire in kinds} | {"more"})), VALUES
).flatmap(lambda fields: st.sampled_from([fields, {**fields, "id": "c1"}, {**fields, "id": "c1"}]))


@settings(deadline=None, max_examples=300)
@given(st.lists(OBJECTS | VALUES, min_size=1, max_size=5), st.sampled_from(sorted(EVERY_KIND, key=repr)), st.booleans())
@example([{"id": "b", "prefs": [1]}, {"id": "b", "prefs": {"voting": 1}}, {"id": "b", "prefs": {}}], Board, False)
@example([{"id": "b", "prefs": {}}, {"id": "b", "prefs": {"voting": 1}}, {"id": "b", "prefs": [1]}], Board, True)
def test_what_was_read_before_does_not_matter(values: list[Any], model: type, strict: bool) -> None:
    """Whatever shapes were met and remembered, each object reads as it does field by field, from its bytes as from a dict."""
    with mock.patch.object(_convert, "_SHAPES", 2):
        converter = _convert._converter(strict=strict)
    for value in [*values, *values]:
        expected = one_by_one(model, value, strict=strict)
        for form in (value, msgspec.json.encode(value), msgspec.Raw(msgspec.json.encode(value))):
            assert whole(structured(converter, model, form)) == whole(expected)


# --- extra on demand

RAW = b'{"id":"c1","name":"n","pos":true,"labels":[{"id":"l"}],"due":null,"extra":1}'
EXTRA = {"pos": True, "labels": [{"id": "l"}], "extra": 1}


def slot(card: Card) -> object:
    return vars(Card)["extra"].fset.__self__.__get__(card)


def test_extra_is_read_on_first_use_and_then_kept() -> None:
    """The fields are read at the first access, the bytes are let go, and every later access gives the same mapping."""
    card = _convert.card(RAW)
    assert slot(card) == RAW
    first = card.extra
    assert type(first) is dict
    assert first == EXTRA
    assert card.extra is first
    assert slot(card) is first


def test_looking_at_a_card_does_not_read_extra() -> None:
    """Comparison, hash and repr leave out `extra`, read or not."""
    card = _convert.card(RAW)
    assert card == Card("c1", "n")
    assert hash(card) == hash(Card("c1", "n"))
    assert repr(card) == repr(Card("c1", "n"))
    assert slot(card) == RAW


@pytest.mark.parametrize(
    "way",
    [
        copy.copy,
        copy.deepcopy,
        lambda card: pickle.loads(pickle.dumps(card)),
        lambda card: attrs.evolve(card, name="n"),
        lambda card: Card(**attrs.asdict(card)),
        lambda card: Card(**attrs.asdict(card, recurse=False)),
    ],
)
def test_a_card_travels_with_its_extra(way: Callable[[Card], Card]) -> None:
    """Copies, pickles, `evolve` and `asdict` hold the fields themselves, whether they had been read or not."""
    for read_before in (False, True):
        card = _convert.card(RAW)
        if read_before:
            assert card.extra == EXTRA
        again = way(card)
        assert (again, slot(again)) == (card, EXTRA)
        assert card.extra == EXTRA


def test_a_card_built_by_hand_has_the_extra_it_was_given() -> None:
    """A given mapping is kept as it is, a card without one has its own empty one, and none can be changed."""
    given_: dict[str, Any] = {"a": 1}
    assert Card("c", extra=given_).extra is given_
    assert Card("c").extra == {}
    assert Card("c").extra is not Card("d").extra
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Card("c").extra = {}  # type: ignore[misc]  # -- that it can't be set is the point
    assert Card.extra is vars(Card)["extra"]


def test_threads_that_read_at_once_get_all_fields() -> None:
    """Threads that meet an unread `extra` all see the whole of it."""
    for card in _convert.cards(b"[" + b",".join([RAW] * 50) + b"]"):
        seen: list[object] = []
        together = threading.Barrier(4)

        def read(card: Card = card, seen: list[object] = seen, together: threading.Barrier = together) -> None:
            together.wait()
            seen.append(card.extra)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [EXTRA] * 4


# --- memory


def board(cards: int) -> bytes:
    one = {"name": "n", "desc": "x" * 600, "labels": [{"id": "l", "name": "m"}, {"id": "k"}], "badges": {"a": {"b": 1}}}
    return json.dumps([{"id": f"c{number}", **one, "text": "},{" * 100} for number in range(cards)]).encode()


def test_one_kept_card_does_not_hold_the_body() -> None:
    """A kept card whose `extra` was not read keeps a few kilobytes of a body of two megabytes."""
    tracemalloc.start()
    try:
        body = board(2000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        size = len(body)
        kept = _convert.cards(body)[1000]
        del body
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before + size
    finally:
        tracemalloc.stop()
    assert size > 2_000_000
    assert held < 50_000
    assert len(kept.extra["text"]) == 300  # type: ignore[arg-type]  # -- a string


def test_many_cards_hold_little_more_than_their_bytes() -> None:
    """A board whose `extra` is not read takes less than twice its body."""
    body = board(1000)
    gc.collect()
    tracemalloc.start()
    try:
        cards = _convert.cards(body)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(cards) == 1000
    assert held < 2 * len(body)


# --- slices

IDS = [f"c{number}" for number in range(1000)]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n ", " : ")])
def test_a_long_array_is_cut_into_small_parts(separators: tuple[str, str]) -> None:
    """Parts stay small whatever the white space, and inner arrays and strings that look like a seam don't break an element."""
    body = json.dumps(json.loads(board(1000)), separators=separators).encode()
    parts = list(_json.split_array(body))
    assert [json.loads(bytes(piece))["id"] for part in parts for piece in part.elements] == [
        f"c{number}" for number in range(1000)
    ]
    assert max(sum(len(bytes(piece)) for piece in part.elements) for part in parts) < 2 * _json.PART_BYTES
    slices = [len(values) for values in _convert.slices_of_cards(body)]
    assert (sum(slices), max(slices) <= 256) == (1000, True)


def test_an_array_without_a_cut_to_be_found_is_walked_in_small_parts() -> None:
    """Where inner arrays look like seams time and again the elements are found one by one, and parts stay small."""
    inner = b'"x":[{"id":"1","x":1},{"id":"2","x":2}],' * 3 + b'"z":"' + b"]" * 500 + b'"'
    with mock.patch.multiple(_json, PART_BYTES=1000, _CUTS_TRIED=0, _REST_ELEMENTS=0):
        parts = list(_json.split_array(b"[" + b",".join(b'{"id":"%d",%s}' % (number, inner) for number in range(9)) + b"]"))
    assert [json.loads(bytes(piece))["id"] for part in parts for piece in part.elements] == [*"012345678"]
    assert max(len(part.elements) for part in parts) < 3


@pytest.mark.parametrize(
    "more", ['"x": [' + ",".join(['{"id": "i"}'] * 60_000) + "]", ",".join(f'"f{n}": {n}' for n in range(60_000))]
)
def test_a_few_large_cards_are_not_read_by_the_standard_library(more: str) -> None:
    """A card of a megabyte is split off by msgspec: the standard library holds the loop for a tenth of a second."""
    body = ("[" + ",".join(f'{{"id": "c{number}", {more}}}' for number in range(2)) + "]").encode()
    with mock.patch.object(_json, "_scan", side_effect=AssertionError):
        assert [card.id for card in _convert.cards(body)] == ["c0", "c1"]


@pytest.mark.parametrize("space", [0, 300_000])
def test_a_long_empty_array_has_no_cards(space: int) -> None:
    """White space makes an empty array as long as one that is cut."""
    assert _convert.cards(b"[" + b" " * space + b"]\n") == []


def test_a_long_array_of_numbers_is_refused_at_the_first() -> None:
    """An array without objects is walked to its end, and its first element named."""
    body = b"[" + b",".join([b"1"] * 500) + b"]"
    with mock.patch.object(_json, "PART_BYTES", 100), pytest.raises(DecodeError) as caught:
        _convert.cards(body)
    assert caught.value.path == "[0]"


def test_cards_full_of_objects_that_begin_alike_are_read_in_small_parts() -> None:
    """Inner objects that begin as a card does, hundreds in each card, make no part much longer than a few cards."""
    inner = [{"id": "i", "name": "n", "due": None} for _ in range(300)]
    body = json.dumps([{"id": str(n), "name": "n", "items": inner, "more": [inner]} for n in range(200)]).encode()
    parts = list(_json.split_array(body))
    assert [json.loads(bytes(piece))["id"] for part in parts for piece in part.elements] == [*map(str, range(200))]
    assert max(sum(len(bytes(piece)) for piece in part.elements) for part in parts) < 4 * _json.PART_BYTES


def test_one_odd_escape_leaves_a_board_readable() -> None:
    """A surrogate without its partner in one of thousands of cards is that card's affair, read as the standard library does."""
    body = (
        board(5000).replace(b'"id": "c2500", "name": "n"', b'"id": "c2500", "name": "\\ud83d"').replace(b'"l"', b'"\\ud800"', 9)
    )
    cards = _convert.cards(body)
    assert [card.id for card in cards] == [f"c{number}" for number in range(5000)]
    assert (cards[2500].name, cards[0].extra["labels"][0]["id"]) == ("\ud83d", "\ud800")  # type: ignore[index,call-overload]  # -- as sent


def test_a_malformed_undocumented_field_is_an_error_in_extra() -> None:
    """Text that the models do not need is looked at when it is asked for, and is an error there."""
    card = _convert.card(b'{"id":"c","name":"n","x":' + b"[" * 500 + b"]" * 500 + b"}")
    assert card.name == "n"
    unreadable = mock.patch.multiple(
        _json, _decode=mock.Mock(side_effect=ValueError), _standard=mock.Mock(**{"decode.side_effect": ValueError})
    )
    with unreadable, pytest.raises(DecodeError):
        card.extra  # noqa: B018 -- reading it is the point


def test_inner_objects_with_an_id_are_not_taken_for_elements() -> None:
    """Each part is cut at the first attempt, though there are inner arrays of objects that begin with an id too."""
    labels = b'"labels":[{"id":"k","colour":"red"},{"id":"l","colour":"blue"},{"id":"m","colour":"red"}]'
    body = b"[" + b",".join(b'{"id":"%d" , "name":"n",%s}' % (number, labels) for number in range(500)) + b"]"
    with mock.patch.object(_json, "PART_BYTES", 1000), mock.patch.object(_json, "_split", wraps=_json._split) as split:
        parts = list(_json.split_array(body))
    assert [json.loads(bytes(piece))["id"] for part in parts for piece in part.elements] == [str(number) for number in range(500)]
    assert len(parts) == split.call_count > 40


@pytest.mark.parametrize("first", [b'{"id":7,"name":"n"}', b'{"id":"\\"","name":"n"}', b'{"id":"c"}'])
def test_elements_are_found_by_one_name_where_two_can_not_be_seen(first: bytes) -> None:
    """Where the first element begins with no plain string, or ends there, its first name alone finds the next ones."""
    with mock.patch.object(_json, "PART_BYTES", 100):
        parts = list(_json.split_array(b"[" + b",".join([first] * 50) + b"]"))
    assert [bytes(piece) for part in parts for piece in part.elements] == [first] * 50
    assert len(parts) > 3


@pytest.mark.parametrize("alike", [1, 250, 1000])
def test_elements_need_not_begin_as_the_first_one_does(alike: int) -> None:
    """Parts stay small where only some elements have the second name of the first one: a response may leave fields out."""
    body = b"[" + b",".join(
        b'{"id":"%d",%s"name":"n"}' % (number, b"" if number % alike else b'"due":null,') for number in range(1000)
    ) + b"]"  # fmt: skip
    with mock.patch.object(_json, "PART_BYTES", 1000):
        parts = list(_json.split_array(body))
    assert [json.loads(bytes(piece))["id"] for part in parts for piece in part.elements] == [
        str(number) for number in range(1000)
    ]
    assert max(sum(len(bytes(piece)) for piece in part.elements) for part in parts) < 2500


def test_slices_are_read_one_by_one() -> None:
    """Later slices are not read in advance; a wrong type is reported at the end, and broken JSON before it."""
    good = board(1000)[:-1]
    slices = _convert.slices_of_cards(good + b',{"id":7}]')
    assert len(next(slices)) > 0
    with pytest.raises(DecodeError) as caught:
        read = [len(values) for values in slices]
    assert caught.value.path == "[1000].id"
    slices = _convert.slices_of_cards(b'[{"id":7},' + good[1:] + b',{"id":NaN}]')
    read = []
    with pytest.raises(DecodeError, match="not JSON"):
        for values in slices:
            read.append(len(values))
    assert sum(read) == 0
    assert len(read) > 3


def test_steps_give_what_one_reading_gives() -> None:
    """A long list is read in steps, anything else in none, and value or error are those of one reading."""

    def steps(operation: ops.Operation[Any], answer: RawResponse) -> tuple[int, Any]:
        running = ops.interpret_in_steps(operation.request("b"), answer)
        for number in range(1000):
            try:
                next(running)
            except StopIteration as end:
                return number, end.value
            except DecodeError as error:
                return number, error
        raise AssertionError

    long = board(1000)
    for operation in (ops.BOARD_CARDS, ops.BOARD_LISTS):
        whole = RawResponse(200, {}, long)
        number, values = steps(operation, whole)
        assert (number > 3, values) == (True, operation.read(whole, "b"))
        number, error = steps(operation, RawResponse(200, {}, long[:-1] + b",3]"))
        assert (type(error), error.path) == (DecodeError, "[1000]")
        shown = ops.unreadable(operation.request("b"), error, whole)
        assert (shown.path, shown.__context__, shown.__traceback__) == ("[1000]", None, None)
        assert str(shown).startswith("GET /1/boards/b/")
    assert [value.id for value in steps(ops.BOARD_CARDS, RawResponse(200, {}, b'[{"id":"a"}]'))[1]] == ["a"]
    assert steps(ops.BOARD_CARDS, RawResponse(200, {}, b"[]"))[0] == 0
    assert steps(ops.READ_CARD, RawResponse(200, {}, long))[0] == 0


class Answering:
    """A pool that answers everything with one body at once."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def send(self, *_: Any, **options: Any) -> RawResponse:
        return RawResponse(200, {}, self.body)


def answering(session: AsyncSession, body: bytes) -> Any:
    return mock.patch.object(session._core.pool, "send", Answering(body).send)


async def test_other_tasks_run_while_a_long_response_is_read() -> None:
    """Another task runs after each slice, and a short response is read at once."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example") as session:
        counting = asyncio.create_task(count())
        with answering(session, b'[{"id":"c1"}]'):
            assert await session.boards.cards("b1") == [Card("c1")]
        assert turns == 0
        with answering(session, board(2000)):
            assert len(await session.boards.cards("b1")) == 2000
        counting.cancel()
    assert turns > 8


async def test_a_deadline_covers_reading_a_long_response(loop_clock: Clock) -> None:
    """The deadline covers reading too: the call is not reported as unsent, and the attempt is in the history."""

    def endless(body: bytes) -> Iterator[None]:
        while True:
            loop_clock.advance(1)
            yield

    request = attrs.evolve(ops.BOARD_CARDS, read_in_steps=endless).request("b1")
    async with AsyncSession(StaticCredentials("t", "k"), "https://boards.example", timeout=30) as session:
        with answering(session, board(1000)), pytest.raises(DeadlineError) as caught:
            await session._pipeline.call(request)
    assert caught.value.effect is Effect.UNKNOWN
    assert [attempt.effect for attempt in caught.value.attempts] == [Effect.UNKNOWN]
