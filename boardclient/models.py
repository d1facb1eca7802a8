"""The values of the service (interface section 2): frozen, slotted, without I/O and without wire names."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, Union, cast

import attrs

from boardclient.errors import InvalidIdentifierError

JsonValue: TypeAlias = Union[bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]", None]
Extra: TypeAlias = Mapping[str, JsonValue]


class Position(enum.StrEnum):
    """Where a list or card is put (interface 2.2, 2.3); a plain string does as well."""

    TOP = "top"
    BOTTOM = "bottom"


def read_extra_by(model: type, read: Callable[[bytes], Extra]) -> None:
    """Let a model be built with bytes as its `extra`, which are read when somebody asks for it, and let go then.

    Whatever goes through attributes sees just a mapping. The setter is that of the slot which attrs made: what `__init__` calls
    for each model runs no Python code.
    """
    slot = cast("Any", model).extra

    def extra(instance: object) -> object:
        value = slot.__get__(instance)
        if type(value) is bytes:
            value = read(value)  # by two threads at once: each gets all the fields, and one of the equal mappings is kept
            slot.__set__(instance, value)
        return value

    cast("Any", model).extra = property(extra, slot.__set__)


def _extra() -> Extra:
    """Declare the undocumented fields of an answer: kept, but no part of the value or its repr."""
    return attrs.field(factory=dict, eq=False, repr=False, kw_only=True)


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


@attrs.frozen
class Board:
    """A board (interface 2.1)."""

    id: str
    name: str | None = None
    url: str | None = None
    prefs: BoardPrefs | None = None
    extra: Extra = _extra()


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


@attrs.frozen
class Member:
    """The authenticated member (interface 2.5), whose fields are not documented: they are in `extra`."""

    id: str | None = None
    extra: Extra = _extra()


_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PLAIN_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_-]+")
_NOT_IN_IDENTIFIERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


def check_text(value: object, name: str, /) -> str:
    """Return the text unchanged, as a plain string, if it can be sent.

    Raises:
        TypeError: it is not a string.
        ValueError: it holds a lone surrogate, which UTF-8 can't carry.
    """
    if type(value) is str and value.isascii():
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if _LONE_SURROGATE.search(value):
        raise ValueError(f"{name} holds a lone surrogate, which can't be sent")
    return value if type(value) is str else str.__str__(value)


def check_identifier(value: object, name: str, /) -> str:
    """Return the identifier unchanged if it can stand in a path and nowhere else.

    Raises:
        TypeError: it is not a string.
        InvalidIdentifierError: it is empty, `.` or `..`, or holds a control character, `/`, a backslash or a lone surrogate.
    """
    if type(value) is str and _PLAIN_IDENTIFIER.fullmatch(value):
        return value
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        raise InvalidIdentifierError(f"{name} holds a lone surrogate, which can't be sent")
    text = check_text(value, name)
    if text in {"", ".", ".."}:
        raise InvalidIdentifierError(f"{name} must be an identifier, not {text!r}")
    if _NOT_IN_IDENTIFIERS.search(text):
        raise InvalidIdentifierError(f"{name} must not hold a control character, a slash or a backslash")
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
