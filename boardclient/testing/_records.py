"""What the service keeps, and how it shows it. Wire names of its own; no rules here.

Fields beyond the documented ones are there because a real service has such fields, not because a client may rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_POSITION_STEP = 16384.0


@attrs.frozen
class Member:
    """A member of the service, who signs in and whose token a request carries."""

    id: str
    name: str

    @property
    def initials(self) -> str:
        """The first letters of the name's first and last word."""
        words = self.name.split() or ["?"]
        return "".join(word[0].upper() for word in dict.fromkeys((words[0], words[-1])))

    def wire(self) -> dict[str, Json]:
        """Show the member as section 4.11 does, whose fields are the service's choice."""
        words = self.name.lower().split()
        return {"id": self.id, "username": words[-1] if words else "", "fullName": self.name}


@attrs.frozen
class AccessToken:
    """A token that the service has issued; `expires_at` is on the clock of the rules."""

    value: str = attrs.field(repr=False)
    scopes: frozenset[str]
    expires_at: float | None
    member_id: str


@attrs.frozen(kw_only=True)
class AuthorizationCode:
    """What a code is exchanged for.

    `challenge` is the S256 challenge of a client that uses PKCE.
    """

    scopes: frozenset[str]
    member_id: str
    challenge: str | None = attrs.field(repr=False)
    expires_at: float


@attrs.define(kw_only=True)
class Order:
    """The next places at the top and at the bottom of a board or a list."""

    first: float = 0.0
    last: float = 0.0

    def place(self, pos: str | float) -> float:
        """Give the position of a new element as a number."""
        number = self.first - _POSITION_STEP if pos == "top" else self.last + _POSITION_STEP if pos == "bottom" else float(pos)
        self.first, self.last = min(self.first, number), max(self.last, number)
        return number


@attrs.define(kw_only=True)
class BoardRecord:
    """A board as the service keeps it."""

    id: str
    name: str
    organization_id: str | None
    order: Order = attrs.field(factory=Order, repr=False)

    def wire(self, url: str) -> dict[str, Json]:
        """Show the board as an answer does."""
        prefs: Json = {
            "permissionLevel": "private",
            "voting": "disabled",
            "comments": "members",
            "invitations": "members",
            "selfJoin": True,
            "cardCovers": True,
            "background": "blue",
            "calendarFeedEnabled": False,
        }
        return {"id": self.id, "name": self.name, "url": url, "prefs": prefs}


@attrs.define(kw_only=True)
class ListRecord:
    """A list as the service keeps it."""

    id: str
    name: str
    board_id: str
    pos: float
    closed: bool = False
    order: Order = attrs.field(factory=Order, repr=False)

    def wire(self) -> dict[str, Json]:
        """Show the list as an answer does."""
        return {
            "id": self.id,
            "name": self.name,
            "idBoard": self.board_id,
            "pos": self.pos,
            "subscribed": False,
            "closed": self.closed,
        }


@attrs.define(kw_only=True)
class CardRecord:
    """A card as the service keeps it; `due` as it was sent."""

    id: str
    name: str
    list_id: str
    board_id: str
    desc: str
    due: str | None
    pos: float
    labels: list[str] = attrs.field(factory=list)

    def face(self, url: str) -> dict[str, Json]:
        """Show the card as the response to its creation does."""
        return {
            "id": self.id,
            "name": self.name,
            "desc": self.desc,
            "url": url,
            "badges": {"votes": 0, "attachments": 0},
        }

    def wire(self, url: str) -> dict[str, Json]:
        """Show the card as a read does."""
        return {
            **self.face(url),
            "idList": self.list_id,
            "idBoard": self.board_id,
            "due": self.due,
            "pos": self.pos,
            "closed": False,
            "idLabels": [*self.labels],
        }


@attrs.frozen
class SeededBoard:
    """A board that a test or a demonstration begins with.

    `lists` and `cards` give identifiers by name.
    """

    id: str
    name: str
    url: str
    lists: Mapping[str, str]
    cards: Mapping[str, str]
