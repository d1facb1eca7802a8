"""Wire <-> models: the one module that imports cattrs and the JSON codec. No I/O.

Two converters read the same models: `_documented` for answers that the interface shows (4.1 to 4.3), where a documented field of
another type is an error, and `_tolerant` for all others, where such a value stays in `extra` under its wire name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
import msgspec
from cattrs import Converter
from cattrs.preconf.msgspec import make_converter

from boardclient.errors import DecodeError
from boardclient.models import Board, BoardList, BoardPrefs, Card, JsonValue, Member

T = TypeVar("T")

_MISFIT: Final = object()
_Fit: TypeAlias = Callable[[object], object]  # the value as the model has it, or _MISFIT
_Hook: TypeAlias = Callable[[object, object], object]


class _Misfit(Exception):  # noqa: N818 -- never leaves this module
    """Name the place of a value that the document does not allow."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _text(value: object) -> object:
    return value if isinstance(value, str) else _MISFIT


def _flag(value: object) -> object:
    return value if isinstance(value, bool) else _MISFIT


def _place(value: object) -> object:
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else _MISFIT


def _moment(value: object) -> object:
    """Read an ISO 8601 date-time with an offset; without one it is no moment."""
    if not isinstance(value, str):
        return _MISFIT
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return _MISFIT
    return _MISFIT if moment.utcoffset() is None else moment


@attrs.frozen
class _Field:
    """How one field of a model stands on the wire; `documented` where an answer of 4.1 to 4.3 shows its type."""

    name: str
    wire: str
    fit: _Fit
    documented: bool = True


_MODELS: Final[dict[type, tuple[_Field, ...]]] = {
    BoardPrefs: (
        _Field("permission_level", "permissionLevel", _text),
        _Field("voting", "voting", _text),
        _Field("comments", "comments", _text),
        _Field("invitations", "invitations", _text),
        _Field("self_join", "selfJoin", _flag),
        _Field("card_covers", "cardCovers", _flag),
        _Field("background", "background", _text),
        _Field("calendar_feed_enabled", "calendarFeedEnabled", _flag),
    ),
    Board: (
        _Field("id", "id", _text),
        _Field("name", "name", _text),
        _Field("url", "url", _text),
    ),
    BoardList: (
        _Field("id", "id", _text),
        _Field("name", "name", _text),
        _Field("board_id", "idBoard", _text),
        _Field("pos", "pos", _place),
        _Field("subscribed", "subscribed", _flag),
        _Field("closed", "closed", _flag),
    ),
    Card: (
        _Field("id", "id", _text),
        _Field("name", "name", _text),
        _Field("desc", "desc", _text),
        _Field("url", "url", _text),
        _Field("list_id", "idList", _text, documented=False),
        _Field("due", "due", _moment, documented=False),
        _Field("pos", "pos", _place, documented=False),
    ),
    Member: (_Field("id", "id", _text, documented=False),),
}


def _hook(model: type, fields: tuple[_Field, ...], *, strict: bool) -> _Hook:
    """Make the structure hook of a model: typed fields filled, everything else kept in `extra`."""
    id_required = model in {Board, BoardList, Card}

    def structure(value: object, _: object) -> object:
        if not isinstance(value, dict):
            raise _Misfit("")
        if id_required and not isinstance(value.get("id"), str):
            raise _Misfit("id")
        extra = dict(value)
        known = {}
        for field in fields:
            raw = value.get(field.wire)
            fitted = None if raw is None else field.fit(raw)
            if fitted is not _MISFIT:
                known[field.name] = fitted
                extra.pop(field.wire, None)
            elif strict and field.documented:
                raise _Misfit(field.wire)
        return model(**known, extra=extra)

    return structure


def _nested(converter: Converter, *, strict: bool) -> _Fit:
    """Make the reader of a board's `prefs`, an object within an object."""

    def fit(value: object) -> object:
        try:
            return converter.structure(value, BoardPrefs)
        except _Misfit as misfit:
            path = ".".join(filter(None, ("prefs", misfit.path)))
        if strict:
            raise _Misfit(path)
        return _MISFIT

    return fit


def _converter(*, strict: bool) -> Converter:
    """Make a converter for the wire form of every model."""
    converter = make_converter()
    prefs = _Field("prefs", "prefs", _nested(converter, strict=strict))
    for model, fields in _MODELS.items():
        mine = (*fields, prefs) if model is Board else fields
        converter.register_structure_hook(model, cast("Any", _hook(model, mine, strict=strict)))
    return converter


_documented: Final = _converter(strict=True)
_tolerant: Final = _converter(strict=False)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


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


def decode(body: bytes) -> JsonValue:
    """Return the JSON value of an answer's body.

    Raises:
        DecodeError: it is not JSON.
    """
    try:
        return cast("JsonValue", _decode(body))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        pass
    raise DecodeError("the body is not JSON")


def _structure(converter: Converter, value: object, model: type[T], place: str = "") -> T:
    """Build one model, or raise the DecodeError that names the place within the body."""
    try:
        return converter.structure(value, model)
    except _Misfit as misfit:
        path = ".".join(filter(None, (place, misfit.path)))
    raise DecodeError(f"the answer is not the documented {model.__name__} at {path or 'its top'}", path)


def _one(converter: Converter, model: type[T], body: bytes) -> T:
    return _structure(converter, decode(body), model)


def _many(model: type[T], body: bytes) -> list[T]:
    values = decode(body)
    if not isinstance(values, list):
        raise DecodeError("the answer is not an array")
    return [_structure(_tolerant, value, model, f"[{index}]") for index, value in enumerate(values)]


def _each(model: type[T], body: bytes) -> Iterator[T]:
    """Split the array now, and build one model at a time when it is asked for."""
    try:
        values = _split(body)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        values = None
    if values is None:
        raise DecodeError("the answer is not an array")
    return (_structure(_tolerant, decode(bytes(value)), model, f"[{index}]") for index, value in enumerate(values))


created_board: Final[Callable[[bytes], Board]] = partial(_one, _documented, Board)
created_list: Final[Callable[[bytes], BoardList]] = partial(_one, _documented, BoardList)
created_card: Final[Callable[[bytes], Card]] = partial(_one, _documented, Card)
card: Final[Callable[[bytes], Card]] = partial(_one, _tolerant, Card)
member: Final[Callable[[bytes], Member]] = partial(_one, _tolerant, Member)
each_card: Final[Callable[[bytes], Iterator[Card]]] = partial(_each, Card)
cards: Final[Callable[[bytes], list[Card]]] = partial(_many, Card)
lists: Final[Callable[[bytes], list[BoardList]]] = partial(_many, BoardList)


def _whatever_fits(model: type[T], identifier: str, body: bytes) -> T:
    """Fill the model with what fits of an undocumented answer; the identifier is the caller's where the answer has none.

    What the answer has as an identifier and is no string stays in `extra`.
    """
    try:
        value = decode(body)
    except DecodeError:
        value = None
    fields: Mapping[str, JsonValue] = value if isinstance(value, dict) else {}
    raw = fields.get("id")
    if isinstance(raw, str):
        return _structure(_tolerant, fields, model)
    filled = _structure(_tolerant, {**fields, "id": identifier}, model)
    return filled if raw is None else _with_extra(filled, {"id": raw})


def _with_extra(value: T, more: Mapping[str, JsonValue]) -> T:
    return cast("T", attrs.evolve(cast("Any", value), extra={**cast("Any", value).extra, **more}))


changed_card: Final[Callable[[str, bytes], Card]] = partial(_whatever_fits, Card)
changed_list: Final[Callable[[str, bytes], BoardList]] = partial(_whatever_fits, BoardList)
