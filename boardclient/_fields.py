"""The wire name and the types of each field of a model (interface section 2). No I/O."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, Final, TypeAlias

import attrs

from boardclient.models import Board, BoardList, BoardPrefs, Card, Member, aware_datetime

_Kinds: TypeAlias = frozenset[type]
Fit: TypeAlias = Callable[[Any], object]

_ID: Final[_Kinds] = frozenset({str})
_TEXT: Final[_Kinds] = frozenset({str, NoneType})
_FLAG: Final[_Kinds] = frozenset({bool, NoneType})
_PLACE: Final[_Kinds] = frozenset({str, int, float, NoneType})
_NULL: Final[_Kinds] = frozenset({NoneType})


def _no_model(value: object) -> None:
    """Stand for the reader of a nested model, which the converter supplies."""


@attrs.frozen(eq=False)
class Field:
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
    fit: Fit = _no_model
    documented: bool = True

    def fitted(self, value: object) -> object:
        """Return the model's value for one whose type is not in `kinds`. None if it does not fit."""
        return self.fit(value) if type(value) in self.asked else None


PREFS: Final = Field("prefs", "prefs", asked=frozenset({dict}))
FIELDS: Final[dict[type, tuple[Field, ...]]] = {
    BoardPrefs: (
        Field("permission_level", "permissionLevel", _TEXT),
        Field("voting", "voting", _TEXT),
        Field("comments", "comments", _TEXT),
        Field("invitations", "invitations", _TEXT),
        Field("self_join", "selfJoin", _FLAG),
        Field("card_covers", "cardCovers", _FLAG),
        Field("background", "background", _TEXT),
        Field("calendar_feed_enabled", "calendarFeedEnabled", _FLAG),
    ),
    Board: (
        Field("id", "id", _ID),
        Field("name", "name", _TEXT),
        Field("url", "url", _TEXT),
        PREFS,
    ),
    BoardList: (
        Field("id", "id", _ID),
        Field("name", "name", _TEXT),
        Field("board_id", "idBoard", _TEXT),
        Field("pos", "pos", _PLACE),
        Field("subscribed", "subscribed", _FLAG),
        Field("closed", "closed", _FLAG),
    ),
    Card: (
        Field("id", "id", _ID),
        Field("name", "name", _TEXT),
        Field("desc", "desc", _TEXT),
        Field("url", "url", _TEXT),
        Field("list_id", "idList", _TEXT, documented=False),
        Field("due", "due", asked=frozenset({str}), fit=aware_datetime, documented=False),
        Field("pos", "pos", _PLACE, documented=False),
    ),
    Member: (Field("id", "id", _TEXT, documented=False),),
}
