"""Convert between the wire and the models. The only module that imports cattrs. No I/O.

There are two converters. `_strict` reads responses that the interface shows (4.1 to 4.3): a documented field of another type is
an error. `_lenient` reads all others: such a value stays in `extra` under its wire name.

msgspec decodes the fields of a model into a private `Struct`, and skips all others. The model keeps the text, from which
`extra` is read on its first access. The models of an array share its text in parts of 16 KiB, which is split into their texts
then. If the `Struct` refuses a text, all of it is decoded and read field by field. This takes twice as long, and finds the place
of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import count, repeat, starmap
from operator import add, eq
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import attrs
import msgspec
from attrs.converters import optional
from cattrs import Converter

from boardclient._fields import FIELDS, PREFS, Field, Fit
from boardclient._json import PART_BYTES, UNREADABLE, Elements, check_utf_8, decode, read_whole, split_array, split_whole
from boardclient.errors import DecodeError
from boardclient.models import Board, BoardList, BoardPrefs, Card, Extra, JsonValue, Member, constructor_of

T = TypeVar("T")

_Hook: TypeAlias = Callable[[Any, object], Any]
_Construct: TypeAlias = Callable[..., Any]


class _Misfit(Exception):  # noqa: N818 -- never leaves this module
    """Report the place of a value that the interface does not allow."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


_SHAPES: Final = 128
"""How many combinations of types are cached for each model. Responses have a few; a limit keeps a hostile one from filling
memory."""


def _rest(fields: tuple[Field, ...], value: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the fields of an object that its model does not hold."""
    rest = dict(value)
    for field in fields:
        raw = rest.get(field.wire)
        if type(raw) in field.kinds or field.fitted(raw) is not None:
            rest.pop(field.wire, None)
    return rest


class _Texts(msgspec.Struct, gc=False):
    """The texts of some models, see `models.ObjectTexts`. `array` is what they are split from when the first is read."""

    fields: tuple[Field, ...]
    elements: Elements | None
    array: bytes = b""

    def read(self, position: int) -> Extra:
        """Return the undocumented fields of one model."""
        elements = self.elements
        if elements is None:
            elements = self.elements = split_whole(self.array)
        return _rest(self.fields, cast("dict[str, JsonValue]", decode(elements[position])))


def _careful_hook(model: type, fields: tuple[Field, ...], *, strict: bool) -> _Hook:
    """Make the hook that reads a model field by field, from an object or its text."""
    wires = [field.wire for field in fields]

    @lru_cache(_SHAPES)
    def others(*kinds: type) -> list[tuple[int, Field, bool]]:
        """Return the fields whose values are converted, and whether they must fit."""
        return [
            (index, field, NoneType not in field.kinds or (strict and field.documented))
            for index, (field, kind) in enumerate(zip(fields, kinds, strict=True))
            if kind not in field.kinds
        ]

    def structure(value: Any, _: object) -> Any:
        found = value if isinstance(value, dict) else decode(value) if isinstance(value, _TEXTS) else None
        if not isinstance(found, dict):
            raise _Misfit("")
        values: list[Any] = [*map(found.get, wires)]
        for index, field, must_fit in others(*map(type, values)):
            values[index] = fitted = field.fitted(values[index])
            if fitted is None and must_fit:
                raise _Misfit(field.wire)
        return model(*values, extra=_rest(fields, found) if found is value else (_Texts(fields, (bytes(value),)), 0))

    return structure


_TEXTS: Final = (bytes, msgspec.Raw)


def _struct(model: type, fields: tuple[Field, ...]) -> type[msgspec.Struct] | None:
    """Make the type that msgspec decodes the fields into. None if a field is a model itself."""
    if any(dict in field.asked for field in fields):
        return None
    members: list[tuple[str, Any, None] | tuple[str, Any]] = [
        (field.name, kinds, None) if NoneType in field.kinds else (field.name, kinds)
        for field in fields
        for kinds in [Union[tuple(field.kinds | field.asked)]]  # noqa: UP007 -- a union of a set has no other form
    ]
    return msgspec.defstruct(model.__name__, members, rename={field.name: field.wire for field in fields}, gc=False)


_values: Final = msgspec.structs.astuple


def _hook(struct: type[msgspec.Struct], construct: _Construct, fields: tuple[Field, ...], careful: _Hook) -> _Hook:
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
                return construct(*_values(wire), (_Texts(fields, (value,)), 0))
        return careful(value, model)

    return structure


def _hook_of_many(struct: type[msgspec.Struct], construct: _Construct, fields: tuple[Field, ...]) -> _Hook:
    """Make the structure hook of the models of an array. It raises one of `UNREADABLE` if the `Struct` refuses an element."""
    read: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[struct]).decode  # type: ignore[valid-type]  # -- no annotation

    def structure(array: bytes, _: object = None) -> list[Any]:
        values = map(_values, read(array))
        extras = zip(repeat(_Texts(fields, None, array)), count())
        return list(starmap(construct, map(add, values, zip(extras))))

    return structure


def _nested(converter: Converter) -> Fit:
    """Make the reader of a board's `prefs`, an object within an object."""

    def fit(value: object) -> object:
        try:
            return converter.structure(value, BoardPrefs)
        except _Misfit as misfit:
            path = ".".join(filter(None, ("prefs", misfit.path)))
        raise _Misfit(path)

    return fit


def _converter(*, strict: bool) -> Converter:
    """Make a converter for the wire form of every model."""
    converter = Converter()
    prefs = attrs.evolve(PREFS, fit=_nested(converter))
    for model, declared in FIELDS.items():
        by_name = {field.name: prefs if field is PREFS else field for field in declared}
        fields = tuple(by_name[name] for name in (attribute.name for attribute in attrs.fields(model)) if name in by_name)
        hook = _careful_hook(model, fields, strict=strict)
        if (struct := _struct(model, fields)) is not None:
            fits = {field.name: field.fit for field in fields if field.asked}
            of_many = _hook_of_many(struct, constructor_of(model, **fits), fields)
            converter.register_structure_hook_func(partial(eq, list[model]), of_many)  # type: ignore[valid-type]  # -- no annotation
            # Created cards mostly have no due date, listed ones often do: there `optional` would be one more call for each.
            construct = constructor_of(model, **{name: optional(fit) for name, fit in fits.items()})
            hook = _hook(struct, construct, fields, hook)
        converter.register_structure_hook(model, cast("Any", hook))
    return converter


_strict: Final = _converter(strict=True)
_lenient: Final = _converter(strict=False)


def _decode_error(model: type, place: str, misfit: _Misfit) -> DecodeError:
    """Make the error that names the place within the body."""
    path = ".".join(filter(None, (place, misfit.path)))
    return DecodeError(f"the response is not the documented {model.__name__} at {path or 'its top'}", path)


def _one(converter: Converter, model: type[T]) -> Callable[[object], T]:
    """Make the reader of a body, or of an object, that is one model."""
    structure = cast("Callable[[object, type[T]], T]", converter.get_structure_hook(model))

    def read(value: object) -> T:
        try:
            return structure(value, model)
        except _Misfit as misfit:
            error = _decode_error(model, "", misfit)
        raise error

    return read


SLICE_ELEMENTS: Final = 256
SLICE_PARTS: Final = 8


@cache  # finding the hook takes as long as reading a card
def _hook_of_array(model: type) -> Callable[[bytes], list[Any]]:
    return cast("Any", _lenient.get_structure_hook(list[model]))  # type: ignore[no-any-return,valid-type]  # -- no annotation


def _slices(model: type, body: bytes) -> Iterator[list[Any]]:
    """Yield the models of an array in slices.

    Each takes about a third of a millisecond. After an element that is not as documented, slices are empty. Its error is raised
    at the end, since a body that is not JSON is reported as that.
    """
    read_one = _lenient.get_structure_hook(model)
    misfit: DecodeError | None = None
    before = 0
    values: list[Any] = []
    for number, part in enumerate(split_array(body, _hook_of_array(model)), 1):
        if misfit is None:
            values += part.values
            try:
                for text in part.texts:
                    values.append(read_one(text, model))
            except _Misfit as found:
                misfit = _decode_error(model, f"[{before + len(values)}]", found)
        if number % SLICE_PARTS == 0 or len(values) >= SLICE_ELEMENTS:
            yield values
            before += len(values)
            values = []
    yield values
    if misfit is not None:
        raise misfit


def _many(model: type, body: bytes) -> list[Any]:
    part = read_whole(body, _hook_of_array(model)) if len(body) <= PART_BYTES else None
    if part is not None and not part.texts:
        return part.values
    return [value for values in _slices(model, body) for value in values]


def _changed(model: type[T]) -> Callable[[str, bytes], T]:
    """Make the reader of an undocumented response. The identifier of the call is used if it has none."""
    structure = _one(_lenient, model)

    def read(identifier: str, body: bytes) -> T:
        """Return a model with the fields that fit. An identifier that is no string stays in `extra`."""
        try:
            return structure(body)
        except DecodeError:
            pass
        try:
            value = decode(body)
        except DecodeError:
            value = None
        fields: Mapping[str, JsonValue] = value if isinstance(value, dict) else {}
        filled = structure({**fields, "id": identifier})
        raw = fields.get("id")
        return filled if raw is None else _with_extra(filled, {"id": raw})

    return read


def _with_extra(value: T, more: Mapping[str, JsonValue]) -> T:
    return cast("T", attrs.evolve(cast("Any", value), extra={**cast("Any", value).extra, **more}))


created_board: Final[Callable[[bytes], Board]] = _one(_strict, Board)
created_list: Final[Callable[[bytes], BoardList]] = _one(_strict, BoardList)
created_card: Final[Callable[[bytes], Card]] = _one(_strict, Card)
card: Final[Callable[[bytes], Card]] = _one(_lenient, Card)
member: Final[Callable[[bytes], Member]] = _one(_lenient, Member)
_READERS: Final[dict[Any, Callable[[bytes], Any]]] = {
    Board: _one(_lenient, Board), BoardList: _one(_lenient, BoardList), Card: card, Member: member
}  # fmt: skip
cards: Final[Callable[[bytes], list[Card]]] = partial(_many, Card)
lists: Final[Callable[[bytes], list[BoardList]]] = partial(_many, BoardList)
slices_of_cards: Final[Callable[[bytes], Iterator[list[Card]]]] = partial(_slices, Card)
slices_of_lists: Final[Callable[[bytes], Iterator[list[BoardList]]]] = partial(_slices, BoardList)
changed_card: Final[Callable[[str, bytes], Card]] = _changed(Card)
changed_list: Final[Callable[[str, bytes], BoardList]] = _changed(BoardList)


def read(model: type[T], body: bytes) -> T:
    """Return a body as a model, or as a list of models.

    Raises:
        DecodeError: the body is something else.
        TypeError: neither `model` nor its element is a class of `models` that a body can be.
    """
    arguments = get_args(model)
    element = arguments[0] if get_origin(model) is list else model
    if element not in _READERS:
        raise TypeError("a response is read as Board, BoardList, Card or Member, or as a list of these, such as list[Card]")
    return cast("T", _many(element, body) if arguments else _READERS[element](body))


def with_sent(card: Card, list_id: str, due: datetime | None) -> Card:
    """Fill in the `list_id` and `due` that were sent, if the response lacks them.

    The card is changed in place. A field that the response has, as null or in another form, stays as it is.
    """
    unread = cast("Any", card).unread_extra
    shown = unread[0].elements[0] if type(unread) is tuple else unread  # a response to a creation is one text
    if card.list_id is None and b'"idList"' not in shown:
        object.__setattr__(card, "list_id", list_id)  # the card is frozen, but not returned yet
    if due is not None and card.due is None and b'"due"' not in shown:
        object.__setattr__(card, "due", due)
    return card
