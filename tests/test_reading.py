"""Reading gives what a plain decoder gives, for any bytes, however they are cut."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Any
from unittest import mock

import attrs
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boardclient import DecodeError
from boardclient._interface import _fields, _listings
from boardclient.models import Board, BoardList, BoardPrefs, Card, Member

# --- a plain decoder to compare with

PREFS: dict[str, tuple[str, tuple[type, ...]]] = {
    **{name: (name, (str,)) for name in ("voting", "comments", "invitations", "background")},
    "permissionLevel": ("permission_level", (str,)), "selfJoin": ("self_join", (bool,)),
    "cardCovers": ("card_covers", (bool,)), "calendarFeedEnabled": ("calendar_feed_enabled", (bool,)),
}  # fmt: skip
EVERY_KIND: dict[type, dict[str, tuple[str, tuple[type, ...]]]] = {
    Card: {
        "id": ("id", (str,)), "name": ("name", (str,)), "desc": ("desc", (str,)), "url": ("url", (str,)),
        "idList": ("list_id", (str,)), "due": ("due", ()), "pos": ("pos", (str, int, float)),
    },
    BoardList: {
        "id": ("id", (str,)), "name": ("name", (str,)), "idBoard": ("board_id", (str,)), "pos": ("pos", (str, int, float)),
        "subscribed": ("subscribed", (bool,)), "closed": ("closed", (bool,)),
    },
    BoardPrefs: PREFS,
    Board: {"id": ("id", (str,)), "name": ("name", (str,)), "url": ("url", (str,)), "prefs": ("prefs", ())},
    Member: {"id": ("id", (str,))},
}  # fmt: skip
NAMED = {model: [field.name for field in attrs.fields(model)] for model in EVERY_KIND}
UNDOCUMENTED = {(Card, "idList"), (Card, "due"), (Card, "pos"), (Member, "id")}


def aware(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.utcoffset() is not None else None


def refuse(constant: str) -> None:
    raise ValueError(constant)


def integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= 4300 else None


def number(digits: str) -> float | None:
    return value if math.isfinite(value := float(digits)) else None


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


def encodable(value: Any) -> Any:
    """Return the value with U+FFFD in place of lone surrogates."""
    if isinstance(value, dict):
        return {encodable(name): encodable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [encodable(one) for one in value]
    return re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value


def plainly(model: type, body: bytes) -> list[tuple[Any, dict[str, Any]]] | str:
    """Read an array by way of dicts: each value and its `extra`, or the place of the first thing that is wrong."""
    try:
        decoded = encodable(json.loads(body.decode("utf-8-sig"), parse_constant=refuse, parse_int=integer, parse_float=number))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(decoded, list):
        return ""
    values = [one_by_one(model, fields, strict=False) for fields in decoded]
    wrong = [f"[{index}].{value}".rstrip(".") for index, value in enumerate(values) if isinstance(value, str)]
    return wrong[0] if wrong else [(value, value.extra) for value in values]


def quickly(model: type, body: bytes) -> list[tuple[Any, dict[str, Any]]] | str:
    try:
        values = [value for values in _listings._slices(model, body) for value in values]
    except DecodeError as error:
        return error.path if error.__context__ is None else "an error with another behind it"
    return [(value, value.extra) for value in values]


SPACE = st.sampled_from([b"", b"", b"", b"", b" ", b"\n", b"\t\r\n "])
WELL = [b"null", b"true", b"7", b"1.5", b"{}", b"[]", b"[{},{}]", b'"x"', b'"},{"', b'"2027-01-01T00:00:00+02:00"', b'"\xc3\xbc"']
ODD = [
    b"-1", b"1e3", b"1e999", b"-1E+400", b"9" * 30, b"9" * 4400, b"9" * 320 + b".5", b"1e-999", b"NaN", b"01", b"[1,]",
    b'""', b'"]"',
    b'"[{"', b'"\\"},{\\""', b'"\\ud83d\\ude00"', b'"\\ud800"',
    b'"\\ud83d\\uD83D\\uDe00\\udc00"', b'"\\\\ud800\\\\\\ud800"', b'"\\ud8"', b'"\\Ud800"',
    b'"\xff"', b'"\\q"', b'"2027-01-01"', b'"2027-13-01T00:00:00Z"',
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


@settings(deadline=None, max_examples=2 * settings.default.max_examples)
@given(BODIES, st.sampled_from([1, 16, 100, 2**16]), st.integers(1, 5), st.sampled_from([Card, BoardList]))
@example(b'[{"id":"a"},{"id":7},{"id":"b","x":1e999}]', 1, 1, Card)
@example(b'[{"id":"a"},{"id":"b","x":1e999}]', 1, 1, Card)
@example(b'[{"id":"a"},{"id":"b"},]', 1, 1, Card)
@example(b'\xef\xbb\xbf[{"id":"a"}]', 1, 1, Card)
@example(b'\xef\xbb\xbf[{"id":"a","name":"\\ud83d"},{"id":"b"},{"id":"c","x":1e400}]  ', 16, 1, Card)
@example(b'[{"id":"a","name":"\\ud83d"},{"id":"b"}] x', 1, 1, Card)
@example(b'[{"id":"a"},{"id":"b"}]]', 1, 1, Card)
@example(b"[" + b'{"id":"c1","name":"n"},' * 9 + b"]", 16, 1, Card)
@example(b"\t\r\n [\t\r\n ]\t\r\n ", 1, 1, Card)
@example(b'{"id":"a"},{"id":"b"}', 1, 1, Card)
@example(b'[{"id":"a","x":[' + b"{},{}," * 9 + b'{}]},{"id":"b"}]', 1, 1, Card)
@example(b'[{"id":"a","x":"' + b"},{" * 9 + b'"},{"id":"b"}]', 1, 1, Card)
@example(b'[{"id":"a","x":' + b"[{},{}]," * 1 + b'"y":"],["},{"id":"b"}]', 1, 1, Card)
@example(b'[{"id":"a","a":1},{"id":"b","x":[{"id":"c","a":1},{"id":"d","a":1}]},{"id":"e","a":2}]', 1, 1, Card)
@example(b'[{"id":"a","a":1},{"id":"b","x":"},{\\"id\\":\\"c\\",\\"a\\":1}"},{"id":"e","a":2}]', 1, 1, Card)
@example(b'[{"id":"a"},' + b"[{},{}]," * 20 + b'{"id":"b"}]', 1, 1, Card)
def test_any_array_reads_as_it_does_by_way_of_dicts(body: bytes, part: int, elements: int, model: type) -> None:
    """Any bytes give the same values, the same `extra` down to the types, and the same place of an error, however cut."""
    with mock.patch.multiple(_listings, _PART_BYTES=part, _SLICE_ELEMENTS=elements):
        read = quickly(model, body)
    expected = plainly(model, body)
    assert read == expected
    assert repr(read) == repr(expected)
    if isinstance(read, list):
        assert repr([extra for _, extra in read]) == repr([extra for _, extra in expected])  # type: ignore[misc]  # -- it is a list


def structured(converter: Any, model: type, form: object) -> Any:
    try:
        return converter.structure(form, model)
    except _fields.Misfit as misfit:
        return misfit.path


def whole(read: Any) -> str:
    """Write down all of what was read, types included, with the parts that comparison leaves out."""
    return repr((read, getattr(read, "extra", None), getattr(getattr(read, "prefs", None), "extra", None)))


LEAVES = st.sampled_from([None, True, False, 0, 7, 1.5, "", "x", "2027-01-01T00:00:00+02:00", "2027-01-01T00:00:00"])
VALUES = LEAVES | LEAVES | st.lists(LEAVES, max_size=1) | st.dictionaries(st.sampled_from([*PREFS, "more"]), LEAVES)
OBJECTS = st.dictionaries(
    st.sampled_from(sorted({wire for kinds in EVERY_KIND.values() for wire in kinds} | {"more"})), VALUES
).flatmap(lambda fields: st.sampled_from([fields, {**fields, "id": "c1"}, {**fields, "id": "c1"}]))


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(st.lists(OBJECTS | VALUES, min_size=1, max_size=5), st.sampled_from(sorted(EVERY_KIND, key=repr)), st.booleans())
@example([{"id": "b", "prefs": [1]}, {"id": "b", "prefs": {"voting": 1}}, {"id": "b", "prefs": {}}], Board, False)
@example([{"id": "b", "prefs": {}}, {"id": "b", "prefs": {"voting": 1}}, {"id": "b", "prefs": [1]}], Board, True)
def test_what_was_read_before_does_not_matter(values: list[Any], model: type, strict: bool) -> None:
    """Each object reads as it does field by field, from its bytes as from a dict."""
    converter = _fields._converter(strict=strict)
    for value in [*values, *values]:
        expected = one_by_one(model, value, strict=strict)
        for form in (value, msgspec.json.encode(value)):
            assert whole(structured(converter, model, form)) == whole(expected)
