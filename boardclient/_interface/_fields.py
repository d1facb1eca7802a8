"""The wire: names of fields, JSON, and models from JSON. The only module that reads responses with cattrs. No I/O.

There are two converters. `STRICT` reads responses that the interface shows (4.1 to 4.3): a documented field of another type is
an error. `LENIENT` reads all others: such a value stays in `extra` under its wire name.

msgspec decodes the fields of a model into a private `Struct`, and skips all others. The model keeps the text, from which
`extra` is read on its first access. The models of an array share its text in parts of 16 KiB, which is split into their texts
then. If the `Struct` refuses a text, all of it is decoded and read field by field. This takes twice as long, and finds the place
of an error.

msgspec refuses two things that the grammar of JSON allows: numbers beyond the range of a float, and unpaired surrogates as
escapes (https://www.rfc-editor.org/rfc/rfc8259#section-8.2). The standard library decodes such text, with null in place of such
numbers and U+FFFD in place of each of these surrogates, so that what was read can be encoded. Services that cut texts leave
halves of an emoji. NaN and Infinity, which some writers produce, are no JSON.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from operator import add, eq
from types import NoneType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, Union, cast

import attrs
import msgspec
from cattrs import Converter

from boardclient.errors import DecodeError
from boardclient.models import Board, BoardList, BoardPrefs, Card, Extra, JsonValue, Member, aware_datetime

T = TypeVar("T")

# --- JSON

UNREADABLE: Final = (ValueError, RecursionError, msgspec.MsgspecError)
"""What msgspec and the standard library raise for text that they can't decode."""

MOST_VALUE_BYTES: Final = 4 * 2**20
"""The longest text of one record that is read, since it is decoded in one step. A text of a million characters needs up to 3 MiB
as escapes, if it is not an extreme one."""
_MOST_DIGITS: Final = 4300
"""Python converts no longer texts to integers: https://docs.python.org/3/library/stdtypes.html#int-max-str-digits"""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_encode: Final = msgspec.json.Encoder(enc_hook=str.__str__).encode  # msgspec encodes no subclasses of `str`
_decode: Final = msgspec.json.Decoder().decode
split: Final[Callable[[bytes], list[msgspec.Raw]]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""Split an array into the texts of its elements, or raise one of `UNREADABLE`."""


class _NoNumberError(ValueError):
    """The text has NaN or Infinity."""


def _refuse(constant: str) -> NoReturn:
    raise _NoNumberError(constant)


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def _float(digits: str) -> float | None:
    """Return a number, or None if it is beyond the range of a float: JSON can't express infinity."""
    number = float(digits)
    return number if math.isfinite(number) else None


_quick: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=msgspec.json.Decoder(float).decode)
"""It raises one of `UNREADABLE` for a number that has no value. It takes a quarter of the time where numbers are many."""
_lenient: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer, parse_float=_float)


def encode(value: object) -> bytes:
    """Return the value as JSON.

    Raises:
        ValueError: JSON cannot express it.
    """
    try:
        return _encode(value)
    except (TypeError, OverflowError, *UNREADABLE) as error:
        problem = type(error).__name__
    raise ValueError(f"the value can't be sent as JSON ({problem})")


def not_json() -> DecodeError:
    return DecodeError("the body is not JSON")


def decode(body: bytes | msgspec.Raw) -> JsonValue:
    """Return the value of a JSON text. A byte order mark is ignored, as RFC 8259 section 8.1 permits.

    Raises:
        DecodeError: it is not JSON.
    """
    try:
        return cast("JsonValue", _decode(body))
    except UNREADABLE:
        pass
    try:
        text = _without_space(bytes(body)).decode()
        value, end = value_at(text, 0)
        if end == len(text):
            return value
    except UNREADABLE:
        pass
    raise not_json()


def _without_space(body: bytes) -> bytes:
    """Return the text without the byte order mark, and the white space of JSON around it."""
    body = body.removeprefix(codecs.BOM_UTF8)
    inner = body.strip()  # with two characters more than JSON has, at a fifth of the time
    return b"" if b"\x0b" in body or b"\x0c" in body else inner  # which are not allowed within a text either


def value_at(text: str, start: int) -> tuple[JsonValue, int]:
    """Decode the value at a place, and return it with the place after it.

    Raises:
        JSONDecodeError: it is no value, or breaks off.
        ValueError, RecursionError: it is NaN, or nested too deeply.
    """
    try:
        value, end = _quick.raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError, _NoNumberError):
        raise
    except UNREADABLE:
        value, end = _lenient.raw_decode(text, start)
    # Only an escape can be a surrogate, and msgspec has read nearly all texts that hold a pair of them.
    has_halves = text.find("\\ud", start, end) >= 0 or text.find("\\uD", start, end) >= 0
    return (_without_halves(value) if has_halves else value), end


def _without_halves(value: Any) -> Any:
    """Return a value with U+FFFD in place of unpaired surrogates."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(one) for name, one in value.items()}
    return [_without_halves(one) for one in value] if isinstance(value, list) else value


def check_utf_8(text: bytes) -> None:
    """Check that the text is UTF-8. msgspec does not, in values that it skips.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    if not text.isascii():
        text.decode()


# --- fields

_Kinds: TypeAlias = frozenset[type]
_Fit: TypeAlias = Callable[[Any], object]

_ID: Final[_Kinds] = frozenset({str})
_TEXT: Final[_Kinds] = frozenset({str, NoneType})
_FLAG: Final[_Kinds] = frozenset({bool, NoneType})
_PLACE: Final[_Kinds] = frozenset({str, int, float, NoneType})
_NULL: Final[_Kinds] = frozenset({NoneType})


def _no_model(value: object) -> None:
    """Stand for the reader of a nested model, which the converter supplies."""


@attrs.frozen(eq=False)
class _Field:
    """How a field of a model is read from the wire. An absent field counts as null.

    Args:
        name: Its name in the model.
        wire: Its name on the wire.
        kinds: The types whose values are used unchanged. Types must be exact: True is not accepted as a number. A field is
            required if `NoneType` is not among them.
        asked: The types whose values are passed to `fit`.
        fit: Returns the model's value for one of a type in `asked`, or None if it does not fit. For None it returns None.
        documented: Whether the interface shows its type in the responses of 4.1 to 4.3, where a misfit is an error.
    """

    name: str
    wire: str
    kinds: _Kinds = _NULL
    asked: _Kinds = frozenset()
    fit: _Fit = _no_model
    documented: bool = True

    @property
    def is_required(self) -> bool:
        return NoneType not in self.kinds

    def fitted(self, value: object) -> object:
        """Return the model's value for one whose type is not in `kinds`. None if it does not fit."""
        return self.fit(value) if type(value) in self.asked else None


_PREFS: Final = _Field("prefs", "prefs", asked=frozenset({dict}))
_FIELDS: Final[dict[type, tuple[_Field, ...]]] = {
    BoardPrefs: (
        _Field("permission_level", "permissionLevel", _TEXT),
        _Field("voting", "voting", _TEXT),
        _Field("comments", "comments", _TEXT),
        _Field("invitations", "invitations", _TEXT),
        _Field("self_join", "selfJoin", _FLAG),
        _Field("card_covers", "cardCovers", _FLAG),
        _Field("background", "background", _TEXT),
        _Field("calendar_feed_enabled", "calendarFeedEnabled", _FLAG),
    ),
    Board: (
        _Field("id", "id", _ID),
        _Field("name", "name", _TEXT),
        _Field("url", "url", _TEXT),
        _PREFS,
    ),
    BoardList: (
        _Field("id", "id", _ID),
        _Field("name", "name", _TEXT),
        _Field("board_id", "idBoard", _TEXT),
        _Field("pos", "pos", _PLACE),
        _Field("subscribed", "subscribed", _FLAG),
        _Field("closed", "closed", _FLAG),
    ),
    Card: (
        _Field("id", "id", _ID),
        _Field("name", "name", _TEXT),
        _Field("desc", "desc", _TEXT),
        _Field("url", "url", _TEXT),
        _Field("list_id", "idList", _TEXT, documented=False),
        _Field("due", "due", asked=frozenset({str}), fit=aware_datetime, documented=False),
        _Field("pos", "pos", _PLACE, documented=False),
    ),
    Member: (_Field("id", "id", _TEXT, documented=False),),
}


# --- models

_Hook: TypeAlias = Callable[[Any, object], Any]
_Construct: TypeAlias = Callable[[tuple[object, ...]], Any]


class Misfit(Exception):  # noqa: N818 -- never leaves this package
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _rest(fields: tuple[_Field, ...], value: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    rest = dict(value)
    for field in fields:
        raw = rest.get(field.wire)
        if type(raw) in field.kinds or field.fitted(raw) is not None:
            rest.pop(field.wire, None)
    return rest


class _Texts(msgspec.Struct, gc=False):
    """The texts of some models, from which their `extra` is read. `array` is what they are split from when the first is read."""

    fields: tuple[_Field, ...]
    elements: Sequence[Any] | None
    array: bytes = b""

    def read(self, position: int) -> Extra:
        if self.elements is None:
            self.elements = split(self.array)  # what the `Struct` has read can be split
        element: Any = self.elements[position]
        return _rest(self.fields, element if isinstance(element, dict) else cast("dict[str, JsonValue]", decode(element)))


def _careful_hook(model: type, fields: tuple[_Field, ...], *, strict: bool) -> _Hook:
    """Make the hook that reads a model field by field, from an object or its text."""

    def structure(value: Any, _: object) -> Any:
        found = decode(value) if isinstance(value, bytes) else value
        if not isinstance(found, dict):
            raise Misfit("")
        values: list[Any] = []
        for field in fields:
            raw = found.get(field.wire)
            fitted = raw if type(raw) in field.kinds else field.fitted(raw)
            if fitted is None and type(raw) not in field.kinds and (field.is_required or (strict and field.documented)):
                raise Misfit(field.wire)
            values.append(fitted)
        return model(*values, extra=_rest(fields, found) if found is value else (_Texts(fields, (value,)), 0))

    return structure


def _struct(model: type, fields: tuple[_Field, ...]) -> type[msgspec.Struct] | None:
    if any(dict in field.asked for field in fields):
        return None
    members: list[tuple[str, Any, None] | tuple[str, Any]] = [
        (field.name, kinds) if field.is_required else (field.name, kinds, None)
        for field in fields
        for kinds in [Union[tuple(field.kinds | field.asked)]]  # noqa: UP007 -- a union of a set has no other form
    ]
    return msgspec.defstruct(model.__name__, members, rename={field.name: field.wire for field in fields}, gc=False)


_values: Final = msgspec.structs.astuple


def _hook(struct: type[msgspec.Struct], construct: _Construct, fields: tuple[_Field, ...], careful: _Hook) -> _Hook:
    """Make the structure hook of a model for JSON text or a decoded object."""
    read = msgspec.json.Decoder(struct).decode

    def structure(value: Any, model: object) -> Any:
        if type(value) is bytes:
            try:
                wire = read(value)
                if not value.isascii():
                    check_utf_8(value)
            except UNREADABLE:
                pass
            else:
                return construct((*_values(wire), (_Texts(fields, (value,)), 0)))
        return careful(value, model)

    return structure


def _hook_of_many(struct: type[msgspec.Struct], construct: _Construct, fields: tuple[_Field, ...]) -> _Hook:
    """Make the structure hook of the models of an array. It raises one of `UNREADABLE` if the `Struct` refuses an element."""
    read: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[struct]).decode  # type: ignore[valid-type]  # -- no annotation

    def structure(array: bytes, _: object = None) -> list[Any]:
        values = map(_values, read(array))
        extras = zip(repeat(_Texts(fields, None, array)), count())
        return list(map(construct, map(add, values, zip(extras))))

    return structure


def _one_by_one(array: bytes, _: object = None) -> NoReturn:
    """Stand for the hook of an array whose models msgspec can't decode together."""
    raise ValueError


def _nested(converter: Converter) -> _Fit:
    """Make the reader of a board's `prefs`, an object within an object."""

    def fit(value: object) -> object:
        try:
            return converter.structure(value, BoardPrefs)
        except Misfit as misfit:
            path = ".".join(filter(None, ("prefs", misfit.path)))
        raise Misfit(path)

    return fit


def _constructor_of(frozen: type, converters: Mapping[str, Callable[[Any], object]]) -> _Construct:
    """Make a constructor of a frozen, slotted attrs class from a tuple of its values, which applies converters to them.

    It is up to three times as fast as the class itself, whose `__init__` sets each field by `object.__setattr__`
    (https://www.attrs.org/en/stable/how-does-it-work.html#immutability). A class with the same slots that is not frozen sets them
    directly, and `__class__` of its instances may be set to the frozen one, since the layouts are equal: a slot for weak
    references, if there is one, must be that of a base.
    """
    thawed: Any = None

    def construct(values: tuple[object, ...]) -> Any:
        nonlocal thawed
        if thawed is None:  # made with the first instance: it takes a quarter of a millisecond, most imports need none
            thawed = _thawed(frozen, converters)
        instance = thawed(*values)
        instance.__class__ = frozen
        return instance

    return construct


def _thawed(frozen: type, converters: Mapping[str, Callable[[Any], object]]) -> Any:
    fields: dict[str, Any] = {field.name: attrs.field(converter=converters.get(field.name)) for field in attrs.fields(frozen)}
    return attrs.make_class(
        f"Thawed{frozen.__name__}", fields, bases=frozen.__bases__, slots=True, eq=False, repr=False, weakref_slot=False
    )


def _converter(*, strict: bool) -> Converter:
    converter = Converter()
    prefs = attrs.evolve(_PREFS, fit=_nested(converter))
    for model, declared in _FIELDS.items():
        by_name = {field.name: prefs if field is _PREFS else field for field in declared}
        fields = tuple(by_name[name] for name in (attribute.name for attribute in attrs.fields(model)) if name in by_name)
        hook, of_many = _careful_hook(model, fields, strict=strict), cast("_Hook", _one_by_one)
        if (struct := _struct(model, fields)) is not None:
            construct = _constructor_of(model, {field.name: field.fit for field in fields if field.asked})
            hook, of_many = _hook(struct, construct, fields, hook), _hook_of_many(struct, construct, fields)
        converter.register_structure_hook(model, cast("Any", hook))
        converter.register_structure_hook_func(partial(eq, list[model]), of_many)  # type: ignore[valid-type]  # -- no annotation
    return converter


STRICT: Final = _converter(strict=True)
LENIENT: Final = _converter(strict=False)


def decode_error(model: type, within: str, misfit: Misfit) -> DecodeError:
    path = ".".join(filter(None, (within, misfit.path)))
    return DecodeError(f"the response is not the documented {model.__name__} at {path or 'its top'}", path)


def _one(converter: Converter, model: type[T]) -> Callable[[object], T]:
    """Make the reader of a body, or of an object, that is one model."""
    structure = cast("Callable[[object, type[T]], T]", converter.get_structure_hook(model))

    def read(value: object) -> T:
        if type(value) is bytes and len(value) > MOST_VALUE_BYTES:  # it would be decoded in one step
            raise DecodeError(
                f"the response is longer than {MOST_VALUE_BYTES // 2**20} MiB, which is more than one record may have"
            )
        try:
            return structure(value, model)
        except Misfit as misfit:
            error = decode_error(model, "", misfit)
        raise error

    return read


def _changed(model: type[T]) -> Callable[[str, bytes], T]:
    """Make the reader of an undocumented response. The identifier of the call is used if it has none."""
    structure = _one(LENIENT, model)

    def read(identifier: str, body: bytes) -> T:
        """Return a model with the fields that fit. An identifier that is not a string stays in `extra`."""
        try:
            return structure(body)
        except DecodeError:
            pass
        try:
            value = decode(body) if len(body) <= MOST_VALUE_BYTES else None
        except DecodeError:
            value = None
        fields: Mapping[str, JsonValue] = value if isinstance(value, dict) else {}
        filled: Any = structure({**fields, "id": identifier})
        raw = fields.get("id")
        return cast("T", filled if raw is None else attrs.evolve(filled, extra={**filled.extra, "id": raw}))

    return read


created_board: Final[Callable[[bytes], Board]] = _one(STRICT, Board)
created_list: Final[Callable[[bytes], BoardList]] = _one(STRICT, BoardList)
created_card: Final[Callable[[bytes], Card]] = _one(STRICT, Card)
card: Final[Callable[[bytes], Card]] = _one(LENIENT, Card)
member: Final[Callable[[bytes], Member]] = _one(LENIENT, Member)
READERS: Final[dict[Any, Callable[[bytes], Any]]] = {
    Board: _one(LENIENT, Board), BoardList: _one(LENIENT, BoardList), Card: card, Member: member
}  # fmt: skip
changed_card: Final[Callable[[str, bytes], Card]] = _changed(Card)
changed_list: Final[Callable[[str, bytes], BoardList]] = _changed(BoardList)
