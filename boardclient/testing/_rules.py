"""The service's rules: boards, lists, cards, credentials. No I/O, no asyncio, and wire names of its own.

Whatever the interface document calls "not shown" is a choice here, and `BoardRules.shape` replaces it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urlencode

import attrs

from boardclient.testing._records import AccessToken, BoardRecord, CardRecord, Json, ListRecord

Fields: TypeAlias = Mapping[str, Json]
_R = TypeVar("_R")
ExchangeAnswer: TypeAlias = Literal["rfc6749", "token", "form"]

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
)
OPERATIONS = frozenset(name for name, _, _ in _ROUTES)
_SEGMENTS = tuple((name, method, template.split("/")) for name, method, template in _ROUTES)


def operation_of(method: str, path: str) -> tuple[str, str | None]:
    """Name the operation of a request, and the identifier in its path.

    `path` is still percent-encoded, so that no identifier becomes another path. The name is "unknown" where there is none.
    """
    segments = path.split("/")
    for name, wanted, template in _SEGMENTS:
        if method != wanted or len(segments) != len(template):
            continue
        if all(part in ("{}", segment) for part, segment in zip(template, segments, strict=True)):
            return name, unquote(segments[template.index("{}")]) if "{}" in template else None
    return UNKNOWN, None


@attrs.frozen
class Answer:
    """What the service answers: a status and, as far as it has one, a body: a string goes out as it is, the rest as JSON."""

    status: int
    body: Json = attrs.field(repr=False)
    content_type: str = "application/json"


@attrs.frozen
class _Refused(Exception):  # noqa: N818 -- it never leaves this module
    status: int
    message: str


def _text(fields: Fields, name: str, *, required: bool = False) -> str | None:
    value = fields.get(name)
    if value is None:
        if required:
            raise _Refused(400, f"{name} is missing")
        return None
    if not isinstance(value, str):
        raise _Refused(400, f"{name} is not a string")
    return value


def _required(fields: Fields, name: str) -> str:
    value = _text(fields, name, required=True)
    assert value is not None  # noqa: S101 -- a required text is never absent
    return value


def _flag(fields: Fields, name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _Refused(400, f"{name} is not a boolean")
    return value


def _position(fields: Fields) -> str | float:
    value = fields.get("pos", "bottom")
    if value in ("top", "bottom"):
        return str(value)
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _Refused(400, "pos is no position")
    return number


def _due(fields: Fields) -> str | None:
    value = _text(fields, "due")
    if value is not None:
        try:
            datetime.fromisoformat(value)
        except ValueError:
            value = ""
        if not value:
            raise _Refused(400, "due is not ISO 8601")
    return value


def _found(records: Mapping[str, _R], identifier: str, kind: str) -> _R:
    record = records.get(identifier)
    if record is None:
        raise _Refused(404, f"there is no such {kind}")
    return record


def _names(values: Iterable[str]) -> frozenset[str]:
    return frozenset(values)


def _secret(kind: str, number: int) -> str:
    # The characters that a careless client forgets to encode are part of every value.
    return f"{kind}/{hashlib.sha256(f'{kind} {number}'.encode()).hexdigest()[:32]}+="


@attrs.define(kw_only=True, eq=False, repr=False)
class BoardRules:
    """Answer requests as the interface document says, from memory.

    One object is one service; its owner is whoever built it. `key`, `token`, `client_id`, `client_secret` and `redirect_uri` are
    what a client needs. `shape` gets the operation and the answer of each success, and gives the answer to send instead.
    """

    clock: Callable[[], float] = time.monotonic
    token_lifetime: float | None = None
    organizations: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    scopes: frozenset[str] = attrs.field(default=frozenset({"read", "write"}), converter=_names)
    errors: Literal["json", "text"] = "json"
    exchange_answer: ExchangeAnswer = "rfc6749"
    shape: Callable[[str, Json], Json] | None = None
    redirect_uri: str = "https://application.example/callback"
    key: str = attrs.field(init=False, default=_secret("key", 0))
    client_id: str = attrs.field(init=False, default=_secret("client", 0))
    client_secret: str = attrs.field(init=False, default=_secret("client-secret", 0))
    token: str = attrs.field(init=False, default="")
    boards: dict[str, BoardRecord] = attrs.field(init=False, factory=dict)
    lists: dict[str, ListRecord] = attrs.field(init=False, factory=dict)
    cards: dict[str, CardRecord] = attrs.field(init=False, factory=dict)
    tokens: dict[str, AccessToken] = attrs.field(init=False, factory=dict)
    _codes: dict[str, frozenset[str]] = attrs.field(init=False, factory=dict)
    _ids: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))

    def __attrs_post_init__(self) -> None:
        self.token = self.issue_token()

    def __repr__(self) -> str:
        return f"BoardRules(boards={len(self.boards)}, lists={len(self.lists)}, cards={len(self.cards)})"

    def answer(self, method: str, path: str, query: Mapping[str, str], body: object = None) -> Answer:
        """Apply one request and say the answer.

        `path` is percent-encoded. `body` is the decoded JSON, or the fields of the form at the token exchange, or None.
        """
        operation, identifier = operation_of(method, path)
        try:
            if operation == "token.exchange":
                return self._exchange(self._fields(body))
            self._authenticate(query, body, write=method != "GET")
            if operation == UNKNOWN:
                raise _Refused(404, "there is no such operation")
            if identifier == "":
                raise _Refused(400, "the identifier is missing")
            result = self._apply(operation, identifier or "", self._fields(body))
        except _Refused as refused:
            status, message = refused.status, refused.message
        else:
            return Answer(200, result if self.shape is None else self.shape(operation, result))
        return self._refusal(status, message)

    def new_code(self, *, scopes: Iterable[str] | None = None) -> str:
        """Give an authorization code that one token exchange accepts."""
        code = _secret("code", next(self._numbers))
        self._codes[code] = self.scopes if scopes is None else frozenset(scopes)
        return code

    def issue_token(self, *, scopes: Iterable[str] | None = None, lifetime: float | None = None) -> str:
        """Give a new access token; it lives `lifetime` seconds, by default `token_lifetime`."""
        seconds = self.token_lifetime if lifetime is None else lifetime
        expires_at = None if seconds is None else self.clock() + seconds
        value = _secret("token", next(self._numbers))
        self.tokens[value] = AccessToken(value, self.scopes if scopes is None else frozenset(scopes), expires_at)
        return value

    def revoke(self, token: str) -> None:
        """Refuse a token from now on; one that is unknown already is."""
        self.tokens.pop(token, None)

    def expire_tokens(self) -> None:
        """Let every token issued so far be expired."""
        for token in list(self.tokens.values()):
            self.tokens[token.value] = attrs.evolve(token, expires_at=float("-inf"))

    def cards_of(self, board_id: str) -> list[CardRecord]:
        """List the cards of a board in their order, those of archived lists included."""
        homes = {record.id: record.pos for record in self.lists.values() if record.board_id == board_id}
        cards = [card for card in self.cards.values() if card.list_id in homes]
        return sorted(cards, key=lambda card: (homes[card.list_id], card.pos))

    def _refusal(self, status: int, message: str) -> Answer:
        if self.errors == "text":
            return Answer(status, message, "text/plain")
        return Answer(status, {"message": message})

    @staticmethod
    def _fields(body: object) -> Fields:
        if body is None:
            return {}
        if not isinstance(body, dict):
            raise _Refused(400, "the body is of another kind than documented")
        return body

    def _authenticate(self, query: Mapping[str, str], body: object, *, write: bool) -> None:
        fields = body if isinstance(body, dict) else {}
        key = query.get("key", fields.get("key"))
        value = query.get("token", fields.get("token") if key is not None else None)
        token = self.tokens.get(value) if isinstance(value, str) else None
        if token is None or (key is not None and key != self.key):
            raise _Refused(401, "the key or the token is invalid")
        if token.expires_at is not None and self.clock() >= token.expires_at:
            raise _Refused(401, "the token has expired")
        if ("write" if write else "read") not in token.scopes:
            raise _Refused(403, "the token lacks a scope")

    def _exchange(self, fields: Fields) -> Answer:
        given = {name: _required(fields, name) for name in ("client_id", "client_secret", "code", "redirect_uri")}
        if (given["client_id"], given["client_secret"]) != (self.client_id, self.client_secret):
            raise _Refused(400, "the client identifier or secret is invalid")
        if given["redirect_uri"] != self.redirect_uri:
            raise _Refused(400, "the redirect URI is another")
        scopes = self._codes.pop(given["code"], None)
        if scopes is None:
            raise _Refused(400, "the code is invalid or used")
        token = self.issue_token(scopes=scopes)
        if self.exchange_answer == "token":
            return Answer(200, {"token": token})
        answer: dict[str, Json] = {"access_token": token, "token_type": "bearer"}
        if self.token_lifetime is not None:
            answer["expires_in"] = self.token_lifetime
        if self.exchange_answer == "form":
            return Answer(200, urlencode(answer), "application/x-www-form-urlencoded")
        return Answer(200, answer)

    def _apply(self, operation: str, identifier: str, fields: Fields) -> Json:
        match operation:
            case "boards.create":
                return self._create_board(fields)
            case "boards.cards":
                self._board(identifier)
                return [card.wire() for card in self.cards_of(identifier)]
            case "boards.lists":
                self._board(identifier)
                lists = (record for record in self.lists.values() if record.board_id == identifier)
                return [record.wire() for record in sorted(lists, key=lambda record: record.pos)]
            case "lists.create":
                return self._create_list(fields)
            case "lists.archive":
                return self._archive_list(identifier, fields)
            case "cards.create":
                return self._create_card(fields)
            case "members.me":
                return {"id": f"{0:024x}", "username": "member", "fullName": "A Member"}
        return self._apply_to_card(operation, self._card(identifier), fields)

    def _apply_to_card(self, operation: str, card: CardRecord, fields: Fields) -> Json:
        match operation:
            case "cards.move":
                home = self._list(_required(fields, "idList"))
                card.list_id, card.board_id = home.id, home.board_id
            case "cards.add_label":
                value = _required(fields, "value")
                if not value:
                    raise _Refused(400, "value is missing")
                card.labels.append(value)
                return [*card.labels]
            case "cards.delete":
                del self.cards[card.id]
                return {"limits": {}}
        return card.wire()

    def _create_board(self, fields: Fields) -> Json:
        name, defaults, organization = _required(fields, "name"), _flag(fields, "defaultLists"), _text(fields, "idOrganization")
        if organization is not None and organization not in self.organizations:
            raise _Refused(404, "idOrganization does not exist or is not accessible")
        board = BoardRecord(id=self._new_id(), name=name, organization_id=organization)
        self.boards[board.id] = board
        for title in ("To Do", "Doing", "Done") if defaults else ():
            self._add_list(board, title, "bottom")
        return board.wire()

    def _create_list(self, fields: Fields) -> Json:
        name, board_id, pos = _required(fields, "name"), _required(fields, "idBoard"), _position(fields)
        record = self._add_list(self._board(board_id), name, pos)
        return {**record.wire(), "pos": f"{record.pos:g}"}  # the document shows a string here

    def _archive_list(self, identifier: str, fields: Fields) -> Json:
        record, closed = self._list(identifier), _flag(fields, "closed")
        if closed is not True:  # the reversal is not shown
            raise _Refused(400, "closed is missing or not true")
        record.closed = True
        return record.wire()

    def _create_card(self, fields: Fields) -> Json:
        name, list_id, desc = _required(fields, "name"), _required(fields, "idList"), _text(fields, "desc")
        due, pos, home = _due(fields), _position(fields), self._list(list_id)
        card = CardRecord(
            id=self._new_id(),
            name=name,
            list_id=home.id,
            board_id=home.board_id,
            desc="" if desc is None else desc,
            due=due,
            pos=home.order.place(pos),
        )
        self.cards[card.id] = card
        return card.face()

    def _add_list(self, board: BoardRecord, name: str, pos: str | float) -> ListRecord:
        record = ListRecord(id=self._new_id(), name=name, board_id=board.id, pos=board.order.place(pos))
        self.lists[record.id] = record
        return record

    def _new_id(self) -> str:
        return f"{next(self._ids):024x}"

    def _board(self, identifier: str) -> BoardRecord:
        return _found(self.boards, identifier, "board")

    def _list(self, identifier: str) -> ListRecord:
        return _found(self.lists, identifier, "list")

    def _card(self, identifier: str) -> CardRecord:
        return _found(self.cards, identifier, "card")
