"""The records that the service stores, and their JSON. The rules are in `_rules`.

The wire names are written here again, independently of the client's. There are more fields than the interface documents, as in
real services; clients must not rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_POSITION_STEP = 16384.0


@attrs.frozen
class Member:
    """A member of the service, to whom tokens belong."""

    id: str
    name: str

    @property
    def initials(self) -> str:
        """The first letters of the name's first and last word."""
        words = self.name.split() or ["?"]
        return "".join(word[0].upper() for word in dict.fromkeys((words[0], words[-1])))

    def wire(self) -> dict[str, Json]:
        """Return the member's JSON (4.11). The interface does not document its fields."""
        words = self.name.lower().split()
        return {"id": self.id, "username": words[-1] if words else "", "fullName": self.name}


@attrs.frozen
class AccessToken:
    """An issued access token. `expires_at` is a time on the service's clock, or None."""

    value: str = attrs.field(repr=False)
    scopes: frozenset[str]
    expires_at: float | None
    member_id: str


@attrs.frozen(kw_only=True)
class AuthorizationCode:
    """What an authorization code grants.

    `challenge` is the S256 challenge of a client that uses PKCE (RFC 7636). `expires_at` is a time on the service's clock.
    """

    scopes: frozenset[str]
    member_id: str
    challenge: str | None = attrs.field(repr=False)
    expires_at: float


@attrs.define(kw_only=True)
class Order:
    """The first and last position in a board or a list."""

    first: float = 0.0
    last: float = 0.0

    def place(self, pos: str | float) -> float:
        """Return the position of a new element as a number."""
        number = self.first - _POSITION_STEP if pos == "top" else self.last + _POSITION_STEP if pos == "bottom" else float(pos)
        self.first, self.last = min(self.first, number), max(self.last, number)
        return number


@attrs.define(kw_only=True)
class BoardRecord:
    """A board."""

    id: str
    name: str
    organization_id: str | None
    order: Order = attrs.field(factory=Order, repr=False)

    def wire(self, url: str) -> dict[str, Json]:
        """Return the board's JSON (2.1)."""
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
    """A list."""

    id: str
    name: str
    board_id: str
    pos: float
    closed: bool = False
    order: Order = attrs.field(factory=Order, repr=False)

    def wire(self) -> dict[str, Json]:
        """Return the list's JSON (2.2)."""
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
    """A card. `due` is stored as it was sent."""

    id: str
    name: str
    list_id: str
    board_id: str
    desc: str
    due: str | None
    pos: float
    labels: list[str] = attrs.field(factory=list)

    def face(self, url: str) -> dict[str, Json]:
        """Return the card's JSON in the response to its creation (4.3)."""
        return {
            "id": self.id,
            "name": self.name,
            "desc": self.desc,
            "url": url,
            "badges": {"votes": 0, "attachments": 0},
        }

    def wire(self, url: str) -> dict[str, Json]:
        """Return the card's JSON in the response to a read (4.4, 4.6)."""
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
    """A board that was created by `seed`.

    Attributes:
        id: The board's identifier.
        name: The board's name.
        url: The address of the board's page.
        lists: The identifiers of the lists by name.
        cards: The identifiers of the cards by name.
    """

    id: str
    name: str
    url: str
    lists: Mapping[str, str]
    cards: Mapping[str, str]
