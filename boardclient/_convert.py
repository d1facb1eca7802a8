"""Wire <-> models: the one module that imports cattrs and the JSON codec. No I/O.

Two converters read the same models: `_documented` for answers that the interface shows (4.1 to 4.3), where a documented field of
another type is an error, and `_tolerant` for all others, where such a value stays in `extra` under its wire name.

A model is built from its own piece of the body or from a decoded object. Of a piece it keeps a copy of the bytes, from which
`extra` is read on demand: one kept card doesn't hold a body of a hundred megabytes, and bytes are nothing to the cyclic garbage
collector. The piece is decoded whole, though the model needs a few fields, because the codec checks neither UTF-8 nor the range
of numbers in what it skips, and both checks made here cost as much; a dict that is dropped at once costs a quarter of one that
the collector comes to see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import chain, islice
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
import msgspec
from cattrs import Converter
from cattrs.preconf.msgspec import make_converter

from boardclient.errors import DecodeError
from boardclient.models import Board, BoardList, BoardPrefs, Card, JsonValue, Member, read_extra_by

T = TypeVar("T")

_Kinds: TypeAlias = frozenset[type]
_Fit: TypeAlias = Callable[[object], object]  # the value as the model has it, or None
_Hook: TypeAlias = Callable[[object, object], object]


class _Misfit(Exception):  # noqa: N818 -- never leaves this module
    """Name the place of a value that the document does not allow."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


_ID: Final[_Kinds] = frozenset({str})
_TEXT: Final[_Kinds] = frozenset({str, NoneType})
_FLAG: Final[_Kinds] = frozenset({bool, NoneType})
_PLACE: Final[_Kinds] = frozenset({str, int, float, NoneType})
_NULL: Final[_Kinds] = frozenset({NoneType})
_PIECE: Final = (bytes, msgspec.Raw)
_SHAPES: Final = 128  # remembered for each model: answers have a handful, and a hostile one with them all fills no memory


def _moment(value: object) -> datetime | None:
    """Read an ISO 8601 date-time with an offset; without one it is no moment."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment


def _object(value: object) -> object:
    """Take an object; which model it is, the converter knows."""
    return value if isinstance(value, dict) else None


@attrs.frozen
class _Field:
    """How one field of a model stands on the wire; `documented` where an answer of 4.1 to 4.3 shows its type.

    A value of one of the `kinds` is taken as it is, exactly: true is no number. Any other is asked of `fit`. An absent field is
    null, and a required one is one that may not be null.
    """

    name: str
    wire: str
    kinds: _Kinds = _NULL
    fit: _Fit = lambda _: None
    documented: bool = True


_PREFS: Final = _Field("prefs", "prefs", fit=_object)
_MODELS: Final[dict[type, tuple[_Field, ...]]] = {
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
        _Field("due", "due", fit=_moment, documented=False),
        _Field("pos", "pos", _PLACE, documented=False),
    ),
    Member: (_Field("id", "id", _TEXT, documented=False),),
}


def _rest(fields: tuple[_Field, ...], value: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the fields of an object that its model doesn't hold."""
    rest = dict(value)
    for field in fields:
        raw = rest.get(field.wire)
        if type(raw) in field.kinds or field.fit(raw) is not None:
            rest.pop(field.wire, None)
    return rest


def _rest_of_piece(fields: tuple[_Field, ...], piece: bytes) -> dict[str, JsonValue]:
    return _rest(fields, cast("dict[str, JsonValue]", decode(piece)))


def _hook(model: type, fields: tuple[_Field, ...], *, strict: bool) -> _Hook:
    """Make the structure hook of a model: typed fields filled, everything else kept in `extra`."""
    by_name = {field.name: field for field in fields}
    ordered = tuple(by_name[attribute.name] for attribute in attrs.fields(model) if attribute.name != "extra")
    wires = [field.wire for field in ordered]

    @lru_cache(_SHAPES)
    def others(*kinds: type) -> list[tuple[int, str, _Fit, bool]]:
        """Return the fields whose values, where they are of these types, are not taken as they are, and whether they must fit."""
        return [
            (index, field.wire, field.fit, NoneType not in field.kinds or (strict and field.documented))
            for index, (field, kind) in enumerate(zip(ordered, kinds, strict=True))
            if kind not in field.kinds
        ]

    def structure(value: Any, _: object) -> object:
        try:
            fields = _decode(value) if isinstance(value, _PIECE) else value
        except _UNREADABLE:
            fields = None
        if not isinstance(fields, dict):
            raise _no_object(value)
        values = [*map(fields.get, wires)]
        for index, wire, fit, must_fit in others(*map(type, values)):
            values[index] = fitted = fit(values[index])
            if fitted is None and must_fit:
                raise _Misfit(wire)
        return model(*values, extra=_rest(ordered, fields) if fields is value else bytes(value))

    return structure


def _no_object(value: object) -> _Misfit:
    """Make the error of a value that is no object.

    Raises:
        DecodeError: it is a piece of a body, and not even JSON.
    """
    if isinstance(value, _PIECE):
        decode(value)
    return _Misfit("")


def _nested(converter: Converter, *, strict: bool) -> _Fit:
    """Make the reader of a board's `prefs`, an object within an object."""

    def fit(value: object) -> object:
        try:
            return converter.structure(value, BoardPrefs)
        except _Misfit as misfit:
            path = ".".join(filter(None, ("prefs", misfit.path)))
        if strict:
            raise _Misfit(path)
        return None

    return fit


def _converter(*, strict: bool) -> Converter:
    """Make a converter for the wire form of every model."""
    converter = make_converter()
    prefs = attrs.evolve(_PREFS, fit=_nested(converter, strict=strict))
    for model, fields in _MODELS.items():
        mine = tuple(prefs if field is _PREFS else field for field in fields)
        converter.register_structure_hook(model, cast("Any", _hook(model, mine, strict=strict)))
    return converter


_documented: Final = _converter(strict=True)
_tolerant: Final = _converter(strict=False)

for _model, _fields in _MODELS.items():
    read_extra_by(_model, partial(_rest_of_piece, _fields))

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_UNREADABLE: Final = (ValueError, RecursionError, msgspec.MsgspecError)


def encode(value: object) -> bytes:
    """Return the value as JSON.

    Raises:
        ValueError: it can't be expressed in JSON.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        problem = type(error).__name__
    raise ValueError(f"the value can't be sent as JSON ({problem})")


def decode(body: bytes | msgspec.Raw) -> JsonValue:
    """Return the JSON value of an answer's body.

    Raises:
        DecodeError: it is not JSON.
    """
    try:
        return cast("JsonValue", _decode(body))
    except _UNREADABLE:
        pass
    raise DecodeError("the body is not JSON")


def _undocumented(model: type, place: str, misfit: _Misfit) -> DecodeError:
    """Make the error that names the place within the body."""
    path = ".".join(filter(None, (place, misfit.path)))
    return DecodeError(f"the answer is not the documented {model.__name__} at {path or 'its top'}", path)


def _one(converter: Converter, model: type[T]) -> Callable[[object], T]:
    """Make the reader of a body, or of an object, that is one model."""
    structure = cast("Callable[[object, type[T]], T]", converter.get_structure_hook(model))

    def read(value: object) -> T:
        try:
            return structure(value, model)
        except _Misfit as misfit:
            error = _undocumented(model, "", misfit)
        raise error

    return read


SLICE_ELEMENTS: Final = 256
PART_BYTES: Final = 64 * 2**10  # from 128 KiB on glibc maps each part anew, which doubles the time of splitting
_CUTS_TRIED: Final = 16
_SPACE: Final = rb"[ \t\n\r]*"
_TO_NEXT_NAME: Final = _SPACE + rb":" + _SPACE + rb'"[^"\\]*"' + _SPACE + rb"," + _SPACE
_OPENING: Final = re.compile(
    _SPACE + rb"\[" + _SPACE + rb"(\{" + _SPACE + rb'"[^"]*")(?:' + _TO_NEXT_NAME + rb'("[^"]*"))?',
)


def _pieces(body: bytes) -> list[msgspec.Raw]:
    """Split an array into its elements, all at once."""
    try:
        return _split(body)
    except _UNREADABLE:
        pass
    decode(body)
    raise DecodeError("the answer is not an array")


def _cut(body: bytes, start: int, seams: Sequence[re.Pattern[bytes]]) -> tuple[list[msgspec.Raw], int] | None:
    """Split the elements from `start` on for about as long as a part is, and say where the following ones begin.

    A cut is tried where one object may end and another begin. It lies between two elements if, and only if, all before it is an
    array once a bracket closes it: within a string, an object or an inner array it is not. None where no cut is found. The first
    of `seams` is looked for near by only, the last as far as it takes.
    """
    position, skipped = start + PART_BYTES, 0
    for _ in range(_CUTS_TRIED):
        seam = seams[0].search(body, position, position + PART_BYTES) or seams[-1].search(body, position)
        if seam is None:
            return None
        try:
            return _split(b"".join((b"[", memoryview(body)[start : seam.start() + 1], b"]"))), seam.end()
        except _UNREADABLE:
            # Most likely in an inner array, whose end is not far; after that, ever further from whatever looks like a seam.
            position, skipped = max(seam.end() + skipped, body.find(b"]", seam.end() + skipped)), skipped * 2 or 64
    return None


def _parts(body: bytes) -> Iterator[list[msgspec.Raw]]:
    """Split an array into its elements, a part of the body at a time."""
    opening = _OPENING.match(body)
    if opening:
        start = opening.start(1)
        # An element is looked for where one begins with the same two names as the first one does: inner objects often begin with
        # an id too, and reading took a tenth longer for the cuts that were tried in vain. Not all need have the second name.
        first, second = map(re.escape, opening.groups(b""))
        names = [first + _TO_NEXT_NAME + second, first] if second else [first]
        seams = [re.compile(rb"\}" + _SPACE + rb"," + _SPACE + rb"(?=" + name + rb")") for name in names]
        while len(body) - start > PART_BYTES and (found := _cut(body, start, seams)):
            part, start = found
            yield part
        body = b"".join((b"[", memoryview(body)[start:]))
    yield _pieces(body)


def _slices(model: type[T], body: bytes) -> Iterator[list[T]]:
    """Build the models of an array, a few hundred at a time and each slice when it is asked for.

    The first element that is not as documented ends the models. It is reported once all of the body has been found to be JSON;
    until then the slices are empty.
    """
    structure = _tolerant.get_structure_hook(model)
    pieces = enumerate(chain.from_iterable(_parts(body)))
    misfit: DecodeError | None = None
    while part := list(islice(pieces, SLICE_ELEMENTS)):
        values: list[T] = []
        for index, piece in part:
            if misfit is not None:
                decode(piece)
                continue
            try:
                values.append(structure(piece, model))
            except _Misfit as found:
                misfit = _undocumented(model, f"[{index}]", found)
        yield values
    if misfit is not None:
        raise misfit


def _many(model: type[T], body: bytes) -> list[T]:
    return [value for values in _slices(model, body) for value in values]


def _changed(model: type[T]) -> Callable[[str, bytes], T]:
    """Make the reader of an undocumented answer; the identifier is the caller's where the answer has none."""
    structure = _one(_tolerant, model)

    def read(identifier: str, body: bytes) -> T:
        """Fill the model with what fits; what the answer has as an identifier and is no string stays in `extra`."""
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


created_board: Final[Callable[[bytes], Board]] = _one(_documented, Board)
created_list: Final[Callable[[bytes], BoardList]] = _one(_documented, BoardList)
created_card: Final[Callable[[bytes], Card]] = _one(_documented, Card)
card: Final[Callable[[bytes], Card]] = _one(_tolerant, Card)
member: Final[Callable[[bytes], Member]] = _one(_tolerant, Member)
cards: Final[Callable[[bytes], list[Card]]] = partial(_many, Card)
lists: Final[Callable[[bytes], list[BoardList]]] = partial(_many, BoardList)
slices_of_cards: Final[Callable[[bytes], Iterator[list[Card]]]] = partial(_slices, Card)
slices_of_lists: Final[Callable[[bytes], Iterator[list[BoardList]]]] = partial(_slices, BoardList)
changed_card: Final[Callable[[str, bytes], Card]] = _changed(Card)
changed_list: Final[Callable[[str, bytes], BoardList]] = _changed(BoardList)
