"""The rules of the service for boards, lists and cards. No I/O and no asyncio.

The wire names are written here again, independently of the client's. What the interface document calls "not shown" is decided
here, and can be replaced with `BoardRules.shape`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar
from urllib.parse import unquote

import attrs

from boardclient.testing import _oauth
from boardclient.testing._oauth import Answer, Fields, Grants, Json, Member, Refused, names_of, required, set_of, text_of

_R = TypeVar("_R")
_POSITION_STEP = 16384.0


@attrs.define(kw_only=True)
class Order:
    first: float = 0.0
    last: float = 0.0

    def number_of(self, pos: str | float) -> float:
        number = self.first - _POSITION_STEP if pos == "top" else self.last + _POSITION_STEP if pos == "bottom" else float(pos)
        self.first, self.last = min(self.first, number), max(self.last, number)
        return number


@attrs.define(kw_only=True)
class BoardRecord:
    id: str
    name: str
    order: Order = attrs.field(factory=Order, repr=False)

    def wire(self, url: str) -> dict[str, Json]:
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
    id: str
    name: str
    board_id: str
    pos: float
    closed: bool = False
    order: Order = attrs.field(factory=Order, repr=False)

    def wire(self) -> dict[str, Json]:
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

    def face(self, address: str) -> dict[str, Json]:
        """Return the card's JSON in the response to its creation (4.3)."""
        return {
            "id": self.id,
            "name": self.name,
            "desc": self.desc,
            "url": f"{address}/c/{self.id}",
            "badges": {"votes": 0, "attachments": 0},
        }

    def wire(self, address: str) -> dict[str, Json]:
        """Return the card's JSON in the response to a read (4.4, 4.6)."""
        return {
            **self.face(address),
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

    ```python
    seeded = service.seed({"To Do": ["Book the hall"], "Done": []})
    await session.cards.move(seeded.cards["Book the hall"], list_id=seeded.lists["Done"])
    ```

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


AUTH_PREFIX = "/auth"
UNKNOWN = "unknown"
_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("boards.create", "POST", "/1/boards"),
    ("boards.cards", "GET", "/1/boards/{}/cards"),
    ("boards.lists", "GET", "/1/boards/{}/lists"),
    ("lists.create", "POST", "/1/lists"),
    ("lists.archive", "PUT", "/1/lists/{}"),
    ("cards.create", "POST", "/1/cards"),
    ("cards.get", "GET", "/1/cards/{}"),
    ("cards.move", "PUT", "/1/cards/{}"),
    ("cards.add_label", "POST", "/1/cards/{}/idLabels"),
    ("cards.delete", "DELETE", "/1/cards/{}"),
    ("members.me", "GET", "/1/members/me"),
    ("token.exchange", "POST", f"{AUTH_PREFIX}/1/OAuthGetAccessToken"),
    ("consent.show", "GET", f"{AUTH_PREFIX}/authorize"),
    ("consent.decide", "POST", f"{AUTH_PREFIX}/authorize"),
)
FORMS = frozenset({"token.exchange", "consent.decide"})
OPERATIONS = frozenset(name for name, _, _ in _ROUTES)
_SEGMENTS = tuple((name, method, template.split("/")) for name, method, template in _ROUTES)


def operation_of(method: str, path: str) -> tuple[str, str | None]:
    """Return the operation of a request, and the identifier in its path or None.

    `path` is percent-encoded, so that a slash in an identifier is not part of the path. The operation is "unknown" if there is no
    such route.
    """
    # By whole segments, which are decoded last: an encoded slash belongs to an identifier.
    segments = path.split("/")
    for name, wanted, template in _SEGMENTS:
        if method != wanted or len(segments) != len(template):
            continue
        if all(part in ("{}", segment) for part, segment in zip(template, segments, strict=True)):
            return name, unquote(segments[template.index("{}")]) if "{}" in template else None
    return UNKNOWN, None


def _flag(fields: Fields, name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{name} is not a boolean")
    return value


def _position(fields: Fields) -> str | float:
    value = fields.get("pos")
    if value in (None, "top", "bottom"):
        return "bottom" if value is None else str(value)
    try:
        # A bool is an int in Python, and JSON's true is no position.
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Refused(400, "pos is not a position")
    return number


def _due(fields: Fields) -> str | None:
    value = text_of(fields, "due")
    if value is not None and not _is_date_time(value):
        raise Refused(400, "due is not an ISO 8601 date-time")
    return value


def _is_date_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    # `fromisoformat` takes any character between date and time, and the interface only the T.
    return "T" in text or len(text) <= len("2027-01-02")


def _found(records: Mapping[str, _R], identifier: str, kind: str) -> _R:
    record = records.get(identifier)
    if record is None:
        raise Refused(404, f"there is no such {kind}")
    return record


@attrs.define(kw_only=True, eq=False, repr=False)
class BoardRules(Grants):
    """The service of the interface document, in memory and without HTTP.

    One object is one service. A client needs its `key`, `token`, `client_id`, `client_secret` and `redirect_uri`. It is not
    thread-safe. `BoardService` documents the attributes that it shares.

    Attributes:
        organizations: The identifiers of the organizations that exist. None by default.
        shape: A function that gets the operation and the JSON of each success, and returns the JSON to send instead.
        address: The address at which boards and cards have pages.
        boards: The boards by identifier.
        lists: The lists by identifier.
        cards: The cards by identifier.
    """

    organizations: frozenset[str] = attrs.field(default=frozenset(), converter=set_of)
    shape: Callable[[str, Json], Json] | None = None
    address: str = "https://boards.example"
    boards: dict[str, BoardRecord] = attrs.field(init=False, factory=dict)
    lists: dict[str, ListRecord] = attrs.field(init=False, factory=dict)
    cards: dict[str, CardRecord] = attrs.field(init=False, factory=dict)
    _ids: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    def __repr__(self) -> str:
        return f"BoardRules(boards={len(self.boards)}, lists={len(self.lists)}, cards={len(self.cards)})"

    def answer(self, method: str, path: str, query: Mapping[str, str], body: object = None) -> Answer:
        """Carry out one request, and return the response.

        Args:
            method: The HTTP method.
            path: The percent-encoded path.
            query: The decoded query parameters.
            body: The decoded JSON, or the fields of a form. None by default.
        """
        operation, identifier = operation_of(method, path)
        try:
            if operation == "token.exchange":
                return self.exchange(body if isinstance(body, dict) else {})
            if operation == "consent.show":
                return _oauth.show_consent(self, query)
            if operation == "consent.decide":
                return _oauth.decide_consent(self, body if isinstance(body, dict) else {})
            # Before the route is looked at, so that who is unknown learns nothing of what exists.
            member = self.authenticate(query, body, write=method != "GET")
            if operation == UNKNOWN:
                raise Refused(405, f"the embedded service has no operation {method} {path}")  # 404 would blame an identifier
            if identifier == "":
                raise Refused(400, "the identifier is missing")
            result = self._apply(operation, identifier or "", self._fields(body), member)
        except Refused as refused:
            return Answer(refused.status, {"message": refused.message})
        # After the rules, so that a shape changes what is shown and never what is stored.
        return Answer(200, result if self.shape is None else self.shape(operation, result))

    def seed(self, lists: Mapping[str, Iterable[str]], name: str = "Board") -> SeededBoard:
        """Create a board with lists and cards, without a request.

        Args:
            lists: The names of the cards in each list, by the name of the list.
            name: The name of the board. "Board" by default.

        Raises:
            TypeError: `lists` is no mapping of names to lists of names.
        """
        if not isinstance(lists, Mapping):
            raise TypeError(f'expected the names of cards by list, such as {{"To Do": ["Book the hall"]}}, not {lists!r}')
        named = {title: names_of(lists[title]) for title in names_of(lists)}
        board = BoardRecord(id=self._new_id(), name=name)
        self.boards[board.id] = board
        # After all names are checked, so that a mistake leaves no half board behind.
        added = {title: self._add_list(board, title, "bottom") for title in named}
        cards = {text: self._add_card(added[title], text).id for title, texts in named.items() for text in texts}
        return SeededBoard(board.id, name, self.board_url(board.id), {title: made.id for title, made in added.items()}, cards)

    def board_url(self, board_id: str) -> str:
        """Return the address of a board's page."""
        return f"{self.address}/b/{board_id}"

    def lists_of(self, board_id: str) -> list[ListRecord]:
        """Return the lists of a board in their order, including archived ones."""
        return sorted((record for record in self.lists.values() if record.board_id == board_id), key=lambda record: record.pos)

    def cards_of(self, board_id: str) -> list[CardRecord]:
        """Return the cards of a board in their order, including those of archived lists."""
        positions = {record.id: record.pos for record in self.lists.values() if record.board_id == board_id}
        cards = [card for card in self.cards.values() if card.list_id in positions]
        return sorted(cards, key=lambda card: (positions[card.list_id], card.pos))

    @staticmethod
    def _fields(body: object) -> Fields:
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise Refused(400, "the body is not a JSON object")
        return body

    def _apply(self, operation: str, identifier: str, fields: Fields, member: Member) -> Json:
        match operation:
            case "boards.create":
                return self._create_board(fields)
            case "boards.cards":
                self._board(identifier)
                return [card.wire(self.address) for card in self.cards_of(identifier)]
            case "boards.lists":
                self._board(identifier)
                return [record.wire() for record in self.lists_of(identifier)]
            case "lists.create":
                return self._create_list(fields)
            case "lists.archive":
                return self._archive_list(identifier, fields)
            case "cards.create":
                return self._create_card(fields)
            case "members.me":
                return member.wire()
        return self._apply_to_card(operation, self._card(identifier), fields)

    def _apply_to_card(self, operation: str, card: CardRecord, fields: Fields) -> Json:
        match operation:
            case "cards.move":
                card_list = self._list(required(fields, "idList"))
                card.list_id, card.board_id = card_list.id, card_list.board_id
            case "cards.add_label":
                value = required(fields, "value")
                if not value:
                    raise Refused(400, "value is missing")
                # Labels themselves have no operation in the interface, so any identifier counts as one.
                card.labels.append(value)
                return [*card.labels]
            case "cards.delete":
                del self.cards[card.id]
                return {"limits": {}}
        return card.wire(self.address)

    def _create_board(self, fields: Fields) -> Json:
        name, defaults, organization = required(fields, "name"), _flag(fields, "defaultLists"), text_of(fields, "idOrganization")
        if organization is not None and organization not in self.organizations:
            raise Refused(404, "idOrganization does not exist or is not accessible")
        board = BoardRecord(id=self._new_id(), name=name)
        self.boards[board.id] = board
        for title in ("To Do", "Doing", "Done") if defaults else ():
            self._add_list(board, title, "bottom")
        return board.wire(self.board_url(board.id))

    def _create_list(self, fields: Fields) -> Json:
        name, board_id, pos = required(fields, "name"), required(fields, "idBoard"), _position(fields)
        record = self._add_list(self._board(board_id), name, pos)
        return {**record.wire(), "pos": f"{record.pos:g}"}  # a string, as interface 2.2 says

    def _archive_list(self, identifier: str, fields: Fields) -> Json:
        record, closed = self._list(identifier), _flag(fields, "closed")
        if closed is not True:  # the interface shows no way to reopen a list (interface 3)
            raise Refused(400, "closed is missing or not true")
        record.closed = True
        return record.wire()

    def _create_card(self, fields: Fields) -> Json:
        name, list_id, desc = required(fields, "name"), required(fields, "idList"), text_of(fields, "desc")
        due, pos, card_list = _due(fields), _position(fields), self._list(list_id)
        card = self._add_card(card_list, name, "" if desc is None else desc, due, pos)
        # Less than a read shows, as the interface's own example does: a client must not rely on the rest.
        return card.face(self.address)

    def _add_card(
        self, card_list: ListRecord, name: str, desc: str = "", due: str | None = None, pos: str | float = "bottom"
    ) -> CardRecord:
        card = CardRecord(
            id=self._new_id(),
            name=name,
            list_id=card_list.id,
            board_id=card_list.board_id,
            desc=desc,
            due=due,
            pos=card_list.order.number_of(pos),
        )
        self.cards[card.id] = card
        return card

    def _add_list(self, board: BoardRecord, name: str, pos: str | float) -> ListRecord:
        record = ListRecord(id=self._new_id(), name=name, board_id=board.id, pos=board.order.number_of(pos))
        self.lists[record.id] = record
        return record

    def _new_id(self) -> str:
        # As long as the identifiers of the interface document, and in the order of creation, so that tests are repeatable.
        return f"{next(self._ids):024x}"

    def _board(self, identifier: str) -> BoardRecord:
        return _found(self.boards, identifier, "board")

    def _list(self, identifier: str) -> ListRecord:
        return _found(self.lists, identifier, "list")

    def _card(self, identifier: str) -> CardRecord:
        return _found(self.cards, identifier, "card")
