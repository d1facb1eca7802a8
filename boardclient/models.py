"""The values of the service (interface section 2). No I/O, no wire names."""

from __future__ import annotations

import enum
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from numbers import Real
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, Union, cast, get_type_hints

import attrs

from boardclient._base._dates import aware as aware
from boardclient._base._dates import configured_zone as configured_zone
from boardclient._base._dates import did_you_mean as did_you_mean
from boardclient._base._dates import fields_of, moment_or_none
from boardclient._base._dates import find_zone as find_zone
from boardclient._base._dates import is_visible as is_visible
from boardclient._base._dates import read_date as read_date
from boardclient.errors import BoardClientError, InvalidIdentifierError

JsonValue: TypeAlias = Union[bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]", None]
Extra: TypeAlias = Mapping[str, JsonValue]
M = TypeVar("M")


class Position(enum.StrEnum):
    """Where to put a list or a card (interface 2.2, 2.3). The plain strings "top" and "bottom" do as well."""

    TOP = "top"
    BOTTOM = "bottom"


Pos: TypeAlias = Position | Literal["top", "bottom"] | str | float  # noqa: PYI051 -- editors complete them
"""A position: "top", "bottom", or another text or number that the service takes besides (interface 2.2)."""


class _DataclassFields:
    """The fields of a model as those of a dataclass, made when they are first asked for.

    FastAPI, Quart, Flask, pandas and polars take dataclasses apart, and know no attrs classes. This attribute is by what all of
    them tell one: https://docs.python.org/3/library/dataclasses.html#dataclasses.is_dataclass.
    """

    def __init__(self) -> None:
        self._made: dict[type, object] = {}

    def __get__(self, instance: object, owner: type) -> object:
        if owner is _Model:
            raise AttributeError("the base of the models has no fields")
        if owner not in self._made:
            import dataclasses

            names = [(field.name, object, None) for field in attrs.fields(cast("type[attrs.AttrsInstance]", owner))]
            self._made[owner] = cast("Any", dataclasses.make_dataclass(owner.__name__, names)).__dataclass_fields__
        return self._made[owner]


class _Model:
    """The base class of all models and of drafts: their forms for JSON, data frames and pydantic."""

    __slots__ = ("__weakref__",)  # a slot of the model's own would keep `_fields` from making its instances faster
    __dataclass_fields__: ClassVar[_DataclassFields] = _DataclassFields()

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the fields by name, as values that JSON can express.

        `due` is written as ISO 8601 in UTC. Undocumented fields are under `extra`.

        Raises:
            DecodeError: an undocumented field of the response is malformed.
        """
        fields = attrs.fields(cast("type[attrs.AttrsInstance]", type(self)))
        return {field.name: _plain(getattr(self, field.name)) for field in fields}

    def _repr_html_(self) -> str:
        """Return a table of the fields that have a value, for notebooks."""
        values = {name: value for name, value in self.to_dict().items() if value not in (None, {})}
        return html_table(type(self).__name__, values)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: Any) -> object:
        """Let pydantic read models from their fields, describe these, and write models as `to_dict` does.

        https://docs.pydantic.dev/latest/concepts/types/#customizing-validation-with-__get_pydantic_core_schema__
        """
        from pydantic_core import core_schema

        types = get_type_hints(cls) | {"extra": dict[str, Any]}  # pydantic can't follow the recursive `JsonValue`
        fields = {}
        for field in attrs.fields(cast("type[attrs.AttrsInstance]", cls)):
            schema = handler.generate_schema(types[field.name])
            if field.name == "due":  # pydantic takes numbers and digits for seconds since 1970
                schema = core_schema.no_info_before_validator_function(moment_or_none, schema)
            fields[field.name] = core_schema.typed_dict_field(schema, required=field.default is attrs.NOTHING)
        return core_schema.no_info_wrap_validator_function(
            lambda value, read: value if isinstance(value, cls) else cls(**read(value)),
            core_schema.typed_dict_schema(fields, extra_behavior="ignore" if "extra" in fields else "forbid"),
            ref=f"{cls.__module__}.{cls.__qualname__}",
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_dict),
        )


def html_table(title: str, values: Mapping[str, object]) -> str:
    """Return a table of names and values, escaped."""
    import html  # only notebooks need it: its import takes 2 % of the package's

    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in values.items())
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def _plain(value: object) -> JsonValue:
    if isinstance(value, _Model):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    return utc_timestamp(value) if isinstance(value, datetime) else cast("JsonValue", value)


def to_plain(value: object) -> object:
    """Return a value with its models as `to_dict` returns them.

    They may stand in lists and mappings. Anything else is unchanged.
    """
    if isinstance(value, _Model):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _extra() -> Extra:
    """Declare the undocumented fields of a response. Equality and the repr ignore them."""
    return attrs.field(factory=dict, eq=False, repr=False, kw_only=True)


def _lazy_extra(cls: type[M]) -> type[M]:
    """Let `extra` be given as a reader of JSON texts, and the position of the object in them.

    The first access calls `read(position)` of the reader, which raises a DecodeError if the text is not JSON. The cyclic garbage
    collector stops tracking a tuple of the two if it does not track the reader, so many models don't slow it down
    (https://docs.python.org/3/library/gc.html#gc.is_tracked). The setter of `extra` is that of the slot which attrs made, so
    building a model runs no code but `__init__`.
    """
    slot = cast("Any", cls).extra

    def extra(instance: object) -> object:
        fields = slot.__get__(instance)
        if type(fields) is tuple:
            texts, position = fields
            fields = texts.read(position)
            slot.__set__(instance, fields)  # two threads may both read it: their mappings are equal
        return fields

    cast("Any", cls).extra = property(extra, slot.__set__)
    cast("Any", cls)._given_extra = slot
    return cls


class _Unread(dict[str, JsonValue]):
    """The `extra` of a card that could not be read. It holds why, so that other cards need no place for that."""

    problem: BoardClientError


def unread_card(card_id: str, problem: BoardClientError) -> Card:
    """Return a card of which only the identifier is known, and why."""
    extra = _Unread()
    extra.problem = problem.with_traceback(None)
    return Card(card_id, extra=extra)


@_lazy_extra
@attrs.frozen
class BoardPrefs(_Model):
    """Preferences of a board (interface 2.1). A field is None if the response lacks it."""

    permission_level: str | None = None
    voting: str | None = None
    comments: str | None = None
    invitations: str | None = None
    self_join: bool | None = None
    card_covers: bool | None = None
    background: str | None = None
    calendar_feed_enabled: bool | None = None
    extra: Extra = _extra()


@_lazy_extra
@attrs.frozen
class Board(_Model):
    """A board (interface 2.1). A field is None if the response lacks it."""

    id: str
    name: str | None = None
    url: str | None = None
    prefs: BoardPrefs | None = None
    extra: Extra = _extra()


@_lazy_extra
@attrs.frozen
class BoardList(_Model):
    """A list of a board (interface 2.2). A field is None if the response lacks it; an archived list is `closed`."""

    id: str
    name: str | None = None
    board_id: str | None = None
    pos: str | float | None = None
    subscribed: bool | None = None
    closed: bool | None = None
    extra: Extra = _extra()


@_lazy_extra
@attrs.frozen
class Card(_Model):
    """A card (interface 2.3). A field is None if the response lacks it; `due` is aware.

    ```python
    card = await session.cards.create("Book the hall", list_id=todo.id)
    print(card.name, card.due, card.extra.get("badges"))
    print(card.to_dict())
    ```
    """

    id: str
    name: str | None = None
    desc: str | None = None
    url: str | None = None
    list_id: str | None = None
    due: datetime | None = None
    pos: str | float | None = None
    extra: Extra = _extra()

    @property
    def problem(self) -> BoardClientError | None:
        """Why a card that exists can't be read now.

        Then only its `id` is set, as `cards.create(reference=)` returns it. None for other cards.
        """
        given = cast("Any", self)._given_extra
        return given.problem if type(given) is _Unread else None


@_lazy_extra
@attrs.frozen
class Member(_Model):
    """The authenticated member (interface 2.5). Other fields, such as a name, are not documented: `extra` has them."""

    id: str | None = None
    extra: Extra = _extra()


_NOT_IN_IDENTIFIERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\\ufffd]")
"""U+FFFD stands for what could not be decoded, so another identifier is meant."""


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()  # a tenth of the time of a search
    except UnicodeEncodeError:
        return True
    return False


def check_text(value: object, name: str, /) -> str:
    """Return the text as a plain `str` if it can be sent. Errors call it `name`.

    Raises:
        TypeError: it is not a string.
        ValueError: it holds a lone surrogate, which UTF-8 can't encode (RFC 3629, section 3).
    """
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        hint = ": pass its id" if isinstance(getattr(value, "id", None), str) else ""
        raise TypeError(f"{name} must be a string, not {type(value).__name__}{hint}")
    if _has_lone_surrogate(value):
        raise ValueError(f"{name} holds a lone surrogate, which can't be sent")
    return value if type(value) is str else str.__str__(value)


def check_filled(value: object, name: str, /) -> str:
    """Return the text as `check_text` does, if it is not empty.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty, or can't be sent.
    """
    if text := check_text(value, name):
        return text
    raise ValueError(f"{name} must not be empty")


def check_seconds(value: float, name: str, expected: str = "a number of seconds", /) -> float:
    """Return the number if clocks can add it. Errors call it `name`.

    Raises:
        TypeError: it is not a number, or a Decimal, which can't be added to a float.
    """
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # no float is so large
        return math.inf if value > 0 else -math.inf


def check_identifier(value: object, name: str, /) -> str:
    """Return the identifier if it can be one segment of a path. Errors call it `name`.

    Raises:
        TypeError: it is not a string.
        InvalidIdentifierError: it is empty, `.` or `..`, or holds a control character, `/`, a backslash, a lone surrogate or
            U+FFFD.
    """
    # Most are alphanumeric, and nothing that is refused is. Bytes tell so in two thirds of the time.
    if type(value) is str and value.isascii() and value.encode().isalnum():
        return value
    if isinstance(value, str) and _has_lone_surrogate(value):
        raise InvalidIdentifierError(f"{name} holds a lone surrogate, which can't be sent")
    text = check_text(value, name)
    if text in {"", ".", ".."}:
        raise InvalidIdentifierError(f"{name} must be an identifier, not {text!r}")
    if _NOT_IN_IDENTIFIERS.search(text):
        raise InvalidIdentifierError(f"{name} must not hold a control character, a slash, a backslash or U+FFFD")
    return text


def check_pos(value: object, name: str, /) -> str | float:
    """Return the position if it is a text or a finite number. Errors call it `name`.

    Raises:
        TypeError, ValueError: it is neither.
    """
    if isinstance(value, str):
        return check_text(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a string or a number, not {type(value).__name__}")
    if not abs(value) <= sys.float_info.max:  # NaN is refused too: each comparison with it is false
        raise ValueError(f"{name} must be a finite number")
    return value


def utc_timestamp(value: object, name: str = "due", /) -> str:
    """Return an aware date-time as ISO 8601 in UTC, such as `2027-01-02T03:04:05Z`.

    Errors call it `name`.

    Raises:
        TypeError: it is not a datetime.
        ValueError: it is not aware, is no moment, such as pandas' NaT, or its year in UTC is not between 1 and 9999.
    """
    # Of datetime itself: a subclass may write dates in another form.
    return datetime.isoformat(in_utc(value, name)).removesuffix("+00:00") + "Z"


def in_utc(value: object, name: str) -> datetime:
    """Return an aware date-time in UTC, or raise as `utc_timestamp` does."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(value).__name__}")
    try:
        if value.utcoffset() is not None:
            return value.astimezone(UTC)
        problem = 'must be timezone-aware: say which zone it is in, as by .replace(tzinfo=ZoneInfo("Europe/Berlin"))'
    except OverflowError:
        problem = "lies outside the years that UTC can express"
    except Exception as error:  # a subclass or a tzinfo may raise anything
        problem = f"must be a moment in time: {type(value).__name__} has none ({error})"
    raise ValueError(f"{name} {problem}")


def aware_datetime(text: str | None, /) -> datetime | None:
    """Return an ISO 8601 date-time of a response as an aware datetime.

    It is None if the text is None, is malformed or has no offset, or if UTC can't express it.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    if not 1 < moment.year < 9999:  # an offset may lead out of the calendar
        try:
            moment.astimezone(UTC)
        except OverflowError:
            return None
    return moment


def check_card(name: object, list_id: object, desc: object, due: object, pos: object, /) -> None:
    """Check the fields of a card that is to be created.

    Raises:
        TypeError, ValueError: a field can't be sent.
    """
    # Nearly all texts are ASCII. Asked here, this saves a call for each.
    if not (type(name) is str and name.isascii()):
        check_text(name, "name")
    check_identifier(list_id, "list_id")
    if not (desc is None or (type(desc) is str and desc.isascii())):
        check_text(desc, "desc")
    if due is not None:
        in_utc(due, "due")  # writing it takes twice as long
    if pos is not None:
        check_pos(pos, "pos")


@attrs.frozen
class CardDraft(_Model):
    """A card to be created (interface 4.3).

    ```python
    draft = CardDraft("Invite Ada", list_id=todo.id, reference="guest 1")
    same = CardDraft.from_dict({"name": "Invite Ada", "list_id": todo.id, "reference": "guest 1"})
    assert draft == same
    ```

    Args:
        name: The name of the card.
        list_id: The list that gets the card.
        desc: The description. None (default): no description.
        due: An aware date-time, which is sent in UTC. None (default): no date.
        pos: "top" or "bottom" of the list, or a text or number that the service takes besides. None (default): the service
            decides.
        reference: The caller's own identifier of the row, by which a journal recognises it. It is not sent. None (default): the
            journal uses the row's position.

    Raises:
        TypeError, ValueError: a field can't be sent.
    """

    name: str
    list_id: str
    desc: str | None = None
    due: datetime | None = None
    pos: Pos | None = None
    reference: str | None = None

    def __attrs_post_init__(self) -> None:
        check_card(self.name, self.list_id, self.desc, self.due, self.pos)
        if self.reference is not None:
            check_text(self.reference, "reference")

    @classmethod
    def from_dict(cls, fields: Mapping[str, object], *, zone: tzinfo | None = None) -> Self:
        """Return the draft of a mapping: a row of a table, or an object of JSON.

        Rows of `csv.DictReader` and of a data frame are such mappings. The keys are the names of the fields. None, NaN and
        pandas' NaT and NA are not given, and neither are an empty date, position and reference. Nothing is converted but a
        date, which is read as the command line reads it.

        Args:
            fields: The values by name.
            zone: The time zone of dates without an offset. None (default): that of the variable `BOARDCLIENT_TIMEZONE`, or of
                this machine.

        Raises:
            TypeError, ValueError: a field is unknown, is lacking or can't be sent.
        """
        return cls(**fields_of(fields, [field.name for field in attrs.fields(cls)], zone))


DraftLike: TypeAlias = CardDraft | Mapping[str, object]
"""A draft, or the mapping that `CardDraft.from_dict` makes one of."""


def check_yields_rows(values: object, name: str, /) -> None:
    """Check that an iterable is not one of names.

    Raises:
        TypeError: it is a mapping, which yields its keys, or a data frame, which yields its columns.
    """
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        kind = type(values).__name__
        raise TypeError(f"{name} must yield rows, and a {kind} yields names: those of a data frame are frame.to_dict('records')")


def as_draft(value: object, place: str, /) -> CardDraft:
    """Return a draft, or that of a mapping. Errors call it `place`.

    Raises:
        TypeError, ValueError: it is neither, or a field can't be sent.
    """
    if isinstance(value, CardDraft):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{place} must be a CardDraft or a mapping of its fields, not {type(value).__name__}")
    kind: type[TypeError | ValueError]
    try:
        return CardDraft.from_dict(value)
    except InvalidIdentifierError as error:
        kind, problem = InvalidIdentifierError, str(error)
    except TypeError as error:
        kind, problem = TypeError, str(error)
    except ValueError as error:
        kind, problem = ValueError, str(error)
    raise kind(f"{place}: {problem}")
