"""The values of the service (interface section 2): frozen, slotted, without I/O and without wire names."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar, Union, cast

import attrs

JsonValue: TypeAlias = Union[bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]", None]
Extra: TypeAlias = Mapping[str, JsonValue]
T = TypeVar("T")


class Position(enum.StrEnum):
    """Where a list or card is put (interface 2.2, 2.3); a plain string does as well."""

    TOP = "top"
    BOTTOM = "bottom"


class Unread:
    """Undocumented fields that nobody has asked for yet; who builds a model hands it as `extra` in place of the fields."""

    __slots__ = ()

    def read(self) -> dict[str, JsonValue]:
        """Return the fields under their wire names."""
        raise NotImplementedError


class _OnDemand:
    """The attribute `extra` of a model, over the slot that attrs made: what is `Unread` there is read once, and then kept."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, instance: object, owner: type) -> object:
        if instance is None:
            return self
        value = self._slot.__get__(instance, owner)
        if isinstance(value, Unread):
            value = value.read()  # by two threads at once: each gets all the fields, and one of the equal mappings is kept
            self._slot.__set__(instance, value)
        return value

    def __set__(self, instance: object, value: object) -> None:
        self._slot.__set__(instance, value)


def _with_extra(model: type[T]) -> type[T]:
    """Let a frozen, slotted attrs class read its `extra` on demand; whatever goes through attributes sees just a mapping."""
    cast("Any", model).extra = _OnDemand(cast("Any", model).extra)
    return model


def _extra() -> Extra:
    """Declare the undocumented fields of an answer: kept, but no part of the value or its repr."""
    return attrs.field(factory=dict, eq=False, repr=False, kw_only=True)


@_with_extra
@attrs.frozen
class BoardPrefs:
    """Preferences of a board (interface 2.1)."""

    permission_level: str | None = None
    voting: str | None = None
    comments: str | None = None
    invitations: str | None = None
    self_join: bool | None = None
    card_covers: bool | None = None
    background: str | None = None
    calendar_feed_enabled: bool | None = None
    extra: Extra = _extra()


@_with_extra
@attrs.frozen
class Board:
    """A board (interface 2.1)."""

    id: str
    name: str | None = None
    url: str | None = None
    prefs: BoardPrefs | None = None
    extra: Extra = _extra()


@_with_extra
@attrs.frozen
class BoardList:
    """A list of a board (interface 2.2); `closed` is true for an archived list."""

    id: str
    name: str | None = None
    board_id: str | None = None
    pos: str | float | None = None
    subscribed: bool | None = None
    closed: bool | None = None
    extra: Extra = _extra()


@_with_extra
@attrs.frozen
class Card:
    """A card (interface 2.3); `list_id`, `due` (aware) and `pos` as far as an answer has them."""

    id: str
    name: str | None = None
    desc: str | None = None
    url: str | None = None
    list_id: str | None = None
    due: datetime | None = None
    pos: str | float | None = None
    extra: Extra = _extra()


@_with_extra
@attrs.frozen
class Member:
    """The authenticated member (interface 2.5), whose fields are not documented: they are in `extra`."""

    id: str | None = None
    extra: Extra = _extra()


_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_IN_IDENTIFIERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


def check_text(value: object, name: str, /) -> str:
    """Return the text unchanged, as a plain string, if it can be sent.

    Raises:
        TypeError: it is not a string.
        ValueError: it holds a lone surrogate, which UTF-8 can't carry.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if not value.isascii() and _LONE_SURROGATE.search(value):
        raise ValueError(f"{name} holds a lone surrogate, which can't be sent")
    return value if type(value) is str else str.__str__(value)


def check_identifier(value: object, name: str, /) -> str:
    """Return the identifier unchanged if it can stand in a path and nowhere else.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty, `.` or `..`, or holds a control character, `/` or a backslash.
    """
    text = check_text(value, name)
    if text in {"", ".", ".."}:
        raise ValueError(f"{name} must be an identifier, not {text!r}")
    if _NOT_IN_IDENTIFIERS.search(text):
        raise ValueError(f"{name} must not hold a control character, a slash or a backslash")
    return text


def utc_timestamp(value: object, name: str = "due", /) -> str:
    """Return an aware date-time as ISO 8601 in UTC, `2027-01-02T03:04:05Z`, with its fraction where it has one.

    Raises:
        TypeError: it is not a datetime.
        ValueError: it has no offset, or can't be written in UTC.
    """
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ValueError(f"{name} must be timezone-aware")
    try:
        return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
    except OverflowError:
        pass
    raise ValueError(f"{name} lies outside the years that UTC can express")


@attrs.frozen
class CardDraft:
    """A card to be created (interface 4.3).

    `reference` is the caller's own stable id of the row; it is never sent.

    Raises:
        TypeError, ValueError: a field could not be sent as it is.
    """

    name: str
    list_id: str
    desc: str | None = None
    due: datetime | None = None
    pos: Position | str | None = None
    reference: str | None = None

    def __attrs_post_init__(self) -> None:
        check_text(self.name, "name")
        check_identifier(self.list_id, "list_id")
        if self.desc is not None:
            check_text(self.desc, "desc")
        if self.due is not None:
            utc_timestamp(self.due, "due")
        if self.pos is not None:
            check_text(self.pos, "pos")
        if self.reference is not None:
            check_text(self.reference, "reference")
