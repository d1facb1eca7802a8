"""The arguments of tools: how each is described to an agent, and read. Nothing is converted, guessed or ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from typing import Any, Final, TypeAlias

import attrs

from boardclient.models import Position, check_text, did_you_mean, is_visible, read_date

FIELDS: Final = ("id", "name", "desc", "url", "list_id", "due", "pos")
"""The fields of a card that a tool may show."""

Schema: TypeAlias = Mapping[str, Any]
_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
    str: "a text",
}


class WrongArgumentError(ValueError):
    """Arguments that a tool does not take. Nothing was sent."""


@attrs.frozen
class Parameter:
    """An argument of a tool.

    Args:
        name: Its name.
        schema: What it is, in JSON Schema.
        text: What an agent reads about it.
        read: Makes the value from what the call has, which is never None. It raises a ValueError that follows the name.
        is_required: Whether a call must have it.
    """

    name: str
    schema: Schema
    text: str
    read: Callable[[Any, tzinfo | None], object]
    is_required: bool = True


def schema_of(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a tool."""
    return {
        "type": "object",
        "properties": {one.name: {**one.schema, "description": one.text} for one in parameters},
        "required": [one.name for one in parameters if one.is_required],
        "additionalProperties": False,
    }


def read_arguments(
    tool: str, parameters: tuple[Parameter, ...], given: Mapping[str, Any], zone: tzinfo | None
) -> dict[str, object]:
    """Return the values of the arguments that a call has. An optional one that is null counts as not given.

    Raises:
        WrongArgumentError: one is unknown, is lacking, or can't be read. The message names all of them.
    """
    names = [one.name for one in parameters]
    wrong = [f"{tool} has no argument {name!r}{did_you_mean(name, names)}" for name in given if name not in names]
    values: dict[str, object] = {}
    for one in parameters:
        value = given.get(one.name)
        # Many hosts send null for what an agent has left out.
        if value is None:
            wrong += [f"{one.name} is missing"] if one.is_required else []
            continue
        try:
            values[one.name] = one.read(value, zone)
        except ValueError as error:
            wrong.append(f"{one.name} {error}")
    if wrong:
        known = f"; its arguments are {', '.join(names)}" if names else "; it takes none"
        raise WrongArgumentError("; ".join(wrong) + (known if len(given.keys() - {*names}) else ""))
    return values


# --- kinds of values


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        kind = _KINDS.get(type(value), "something else")
        raise ValueError(f"must be a text, not {kind}")  # noqa: TRY004 -- an argument of the wrong kind is the agent's mistake
    try:
        return check_text(value, "it")
    except ValueError:
        raise ValueError("holds half of a character (a lone surrogate), which can't be sent: the text was cut") from None


def _any_text(value: object, _: object) -> str:
    return _text_of(value)


def _filled(value: object, _: object) -> str:
    if not is_visible(text := _text_of(value)):
        raise ValueError("has no character that people see")
    return text


def _due(value: object, zone: tzinfo | None) -> datetime:
    return read_date(_text_of(value), zone)


def _pos(value: object, _: object) -> Position:
    text = _text_of(value)
    if text not in list(Position):
        raise ValueError('must be "top" or "bottom"')
    return Position(text)


def _limit(value: object, _: object) -> int:
    if isinstance(value, float) and value.is_integer():  # JSON has one kind of number
        value = int(value)
    # In Python True is a number, and in JSON it is none.
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("must be a whole number from 0")
    return value


def _fields(value: object, _: object) -> list[str]:
    if not (isinstance(value, list) and all(isinstance(name, str) and name in FIELDS for name in value)):
        raise ValueError(f"must be a list of names among {', '.join(FIELDS)}")
    return value


_TEXT: Final = {"type": "string"}
_FILLED: Final = {"type": "string", "minLength": 1}

BOARD_ID: Final = Parameter("board_id", _FILLED, "Identifier of the board. No tool lists boards: the user knows it.", _filled)
CARD_ID: Final = Parameter("card_id", _FILLED, "Identifier of the card, from board_cards. A name is not an identifier.", _filled)
LIST_ID: Final = Parameter("list_id", _FILLED, "Identifier of the list, from board_lists. A name is not an identifier.", _filled)
LABEL_ID: Final = Parameter("label_id", _FILLED, "Identifier of the label. No tool lists labels: the user knows it.", _filled)
FILTER: Final = (
    attrs.evolve(LIST_ID, text="Show only the cards of this list: its identifier from board_lists.", is_required=False),
    Parameter("text", _TEXT, "Show only cards whose names hold this text, in upper or lower case.", _any_text, is_required=False),
    Parameter(
        "fields",
        {"type": "array", "items": {"type": "string", "enum": [*FIELDS]}},
        "What to show of each card. Without it: id, name, list_id and due.",
        _fields,
        is_required=False,
    ),
    Parameter(
        "limit",
        {"type": "integer", "minimum": 0},
        "How many cards to show at most; `total` counts all that fit. Without it: 50.",
        _limit,
        is_required=False,
    ),
)
CONTENT: Final = (
    Parameter("name", _FILLED, "Name of the card. It is sent as it is.", _filled),
    Parameter(
        "reference",
        _FILLED,
        "Your own name for this card, such as ticket-4711. Give the same one if you make this call again: it makes one card, "
        "however often it is called. A new card needs a new reference.",
        _filled,
    ),
    Parameter("desc", _TEXT, "Description of the card. It is sent as it is, also if it is JSON.", _any_text, is_required=False),
    Parameter(
        "due",
        _TEXT,
        "Due date as ISO 8601 text: 2027-01-31, or 2027-01-31T17:00:00+01:00. Without a time it is midnight. Without an offset "
        "such as +01:00 or Z it is in the time zone {zone}.",
        _due,
        is_required=False,
    ),
    Parameter(
        "pos",
        {"type": "string", "enum": [*map(str, Position)]},
        "Where to put the card in the list: top or bottom. Without it the service decides.",
        _pos,
        is_required=False,
    ),
)
