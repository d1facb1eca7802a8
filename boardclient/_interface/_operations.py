"""How each request is built, where it may be sent, and what its response means (interface 4). No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final, Generic, TypeAlias, TypeVar, cast
from urllib.parse import quote, unquote, urlencode

import attrs
from yarl import URL

from boardclient._base._redaction import CREDENTIAL_NAMES
from boardclient._interface import _fields, _listings
from boardclient._interface._fields import decode, encode
from boardclient._interface._responses import Response, add_request_id, api_error, excerpt, response_of
from boardclient._transport._values import FRAMING, RawResponse, TransportFailure, TransportResult, UnshownStruct, check_headers
from boardclient.errors import BoardClientError, DecodeError, Effect, NotFoundError, SessionClosedError, TransportError
from boardclient.models import (
    Board,
    BoardList,
    Card,
    JsonValue,
    Member,
    Pos,
    aware_datetime,
    check_identifier,
    check_pos,
    check_text,
    utc_timestamp,
)

T = TypeVar("T")
REPEATABLE_METHODS: Final = frozenset({"GET", "PUT", "DELETE"})
_HOST: Final = re.compile(r"[0-9A-Za-z._~!$&'()*+,;=:%-]+")
"""An encoded host, IPv6 addresses included (RFC 3986, section 3.2.2)."""

Read: TypeAlias = "Callable[[RawResponse, Request[T]], T]"
MakeFields: TypeAlias = Callable[..., Mapping[str, JsonValue]]


@attrs.frozen(eq=False)
class Operation(Generic[T]):
    """What all requests of one operation have in common (interface section 4).

    Args:
        name: Its name in events, logs and journals, such as "cards.create".
        method: The HTTP method.
        path: The path, with at most one `{name}`, which is filled with the percent-encoded identifier.
        read: Makes the value of a success from the response and its request.
        fields: Checks values and returns the fields of the body by their wire names. None if there is no body.
        slices: Reads a long list instead of `read`, and yields its parts. None if the value is not a list.
        repeatable: Whether a second request leaves the service in the same state as the first.
        signable_body: Whether the credentials can go into the body.
        documented: The names of the body's fields on the wire, which only the arguments of a call set.
        needs_body: Whether a success needs the body of its response. Otherwise what can be read of it is enough.
    """

    name: str
    method: str
    path: str
    read: Read[T]
    fields: MakeFields | None = None
    slices: Callable[[bytes], Iterator[T]] | None = None
    repeatable: bool = False
    signable_body: bool = True
    documented: frozenset[str] = frozenset()
    needs_body: bool = True
    _parts: list[str] = attrs.field(init=False, default=attrs.Factory(lambda self: re.split(r"[{}]", self.path), takes_self=True))
    """The path, or what is before its identifier, the name of that, and what is after it."""

    def request(self, identifier: str | None = None, /, **values: object) -> Request[T]:
        """Build a request. A value of None is not sent, any other is, `""` and False included.

        Raises:
            TypeError, ValueError: a value can't be sent, or a required one is missing.
        """
        fields = {} if self.fields is None else self.fields(**values)
        body = None if self.fields is None else encode(fields)
        if len(self._parts) == 1:
            return Request(self, self.path, body, "", fields)  # by position: classes take keywords at twice the cost
        before, name, after = self._parts
        named = check_identifier(identifier, name)
        quoted = named if named.encode().isalnum() else quote(named, safe="")  # ASCII, as nearly all: quoting takes 2 µs
        return Request(self, before + quoted + after, body, named)


class Request(UnshownStruct, Generic[T]):
    """The request of one call before it is signed, so it holds no credentials.

    `target` is the path with the query, and `identifier` is what the caller put into the path, or "". `body` is a JSON object, or
    None for no body. `fields` are those of a creation's body by their wire names, otherwise empty. `headers` are sent besides
    those of the session. It is not changed after it was made.
    """

    operation: Operation[T]
    target: str
    body: bytes | None = None
    identifier: str = ""
    fields: Mapping[str, JsonValue] = MappingProxyType({})
    headers: Mapping[str, str] | None = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def method(self) -> str:
        return self.operation.method

    @property
    def repeatable(self) -> bool:
        return self.operation.repeatable

    @property
    def line(self) -> str:
        return f"{self.operation.method} {self.path}"


def _nothing(response: RawResponse, request: Request[None]) -> None:
    return None


def _response(response: RawResponse, request: Request[Response]) -> Response:
    return response_of(response, request.line)


def _of_body(read: Callable[[bytes], T]) -> Read[T]:
    """Make the reader of a response whose body has all that is read."""
    return lambda response, _: read(response.body)


def _of_changed(read: Callable[[str, bytes], T]) -> Read[T]:
    """Make the reader of the response to a change, which gets the identifier of the call in case the body has none."""
    return lambda response, request: read(request.identifier, response.body)


_set_list_id, _set_due = (vars(Card)[name].__set__ for name in ("list_id", "due"))
"""Set a field of a card that was not returned yet: it is frozen."""


def _created_card(response: RawResponse, request: Request[Card]) -> Card:
    """Read the card that was created, with the list and the date that were sent if the response lacks them.

    A field that the response has, as null or in another form, stays as it is.
    """
    # By `find`: `in` takes the number of a byte as well, and trying that first costs a fiftieth of a call.
    body, sent = response.body, request.fields
    card = _fields.created_card(body)
    if card.list_id is None and (body.find(b'"idList"') < 0 or "idList" not in _fields_of(body)):
        _set_list_id(card, sent["idList"])
    if "due" in sent and card.due is None and (body.find(b'"due"') < 0 or "due" not in _fields_of(body)):
        _set_due(card, aware_datetime(cast("str", sent["due"])))
    return card


def _fields_of(body: bytes) -> Mapping[str, JsonValue]:
    return cast("Mapping[str, JsonValue]", decode(body))


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


# The fields of bodies, by their wire names. Values are checked here, since annotations are not enforced at run time.


def _board_fields(*, name: object, default_lists: object, organization_id: object) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {"name": check_text(name, "name")}
    if default_lists is not None:
        fields["defaultLists"] = _flag(default_lists, "default_lists")
    if organization_id is not None:
        fields["idOrganization"] = check_identifier(organization_id, "organization_id")
    return fields


def _list_fields(*, name: object, board_id: object, pos: object) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {"name": check_text(name, "name"), "idBoard": check_identifier(board_id, "board_id")}
    if pos is not None:
        fields["pos"] = check_pos(pos, "pos")
    return fields


def _card_fields(name: str, list_id: str, desc: str | None, due: datetime | None, pos: Pos | None) -> dict[str, JsonValue]:
    """Return the fields of a card, which `check_card` has checked: a draft does when it is made."""
    fields: dict[str, JsonValue] = {"name": name, "idList": list_id}
    if desc is not None:
        fields["desc"] = desc
    if due is not None:
        fields["due"] = utc_timestamp(due)
    if pos is not None:
        fields["pos"] = pos
    return fields


def _place_fields(*, list_id: object) -> dict[str, JsonValue]:
    return {"idList": check_identifier(list_id, "list_id")}


def _label_fields(*, label_id: object) -> dict[str, JsonValue]:
    return {"value": check_identifier(label_id, "label_id")}


def _closed_fields(*, closed: object) -> dict[str, JsonValue]:
    return {"closed": _flag(closed, "closed")}


CREATE_BOARD: Final[Operation[Board]] = Operation(  # 4.1
    "boards.create", "POST", "/1/boards", _of_body(_fields.created_board), _board_fields,
    documented=frozenset({"name", "defaultLists", "idOrganization"}),
)  # fmt: skip
ADD_LIST: Final[Operation[BoardList]] = Operation(  # 4.2
    "lists.create", "POST", "/1/lists", _of_body(_fields.created_list), _list_fields,
    documented=frozenset({"name", "idBoard", "pos"}),
)  # fmt: skip
ADD_CARD: Final[Operation[Card]] = Operation(  # 4.3
    "cards.create", "POST", "/1/cards", _created_card, _card_fields,
    documented=frozenset({"name", "idList", "desc", "due", "pos"}),
)  # fmt: skip


def card_request(name: str, list_id: str, desc: str | None, due: datetime | None, pos: Pos | None) -> Request[Card]:
    """Build the request for a card as `ADD_CARD.request` does, at three quarters of its cost, since values keep no names."""
    fields = _card_fields(name, list_id, desc, due, pos)
    return Request(ADD_CARD, ADD_CARD.path, encode(fields), "", fields)


BOARD_CARDS: Final[Operation[list[Card]]] = Operation(  # 4.4
    "boards.cards", "GET", "/1/boards/{board_id}/cards", _of_body(_listings.cards),
    slices=_listings.slices_of_cards, repeatable=True,
)  # fmt: skip
CARDS_IN_SLICES: Final[Operation[Iterator[list[Card]]]] = Operation(  # 4.4
    "boards.cards", "GET", "/1/boards/{board_id}/cards", _of_body(_listings.slices_of_cards), repeatable=True
)
BOARD_LISTS: Final[Operation[list[BoardList]]] = Operation(  # 4.5
    "boards.lists", "GET", "/1/boards/{board_id}/lists", _of_body(_listings.lists),
    slices=_listings.slices_of_lists, repeatable=True,
)  # fmt: skip
READ_CARD: Final[Operation[Card]] = Operation(  # 4.6
    "cards.get", "GET", "/1/cards/{card_id}", _of_body(_fields.card), repeatable=True
)
MOVE_CARD: Final[Operation[Card]] = Operation(  # 4.7
    "cards.move", "PUT", "/1/cards/{card_id}", _of_changed(_fields.changed_card), _place_fields,
    documented=frozenset({"idList"}), repeatable=True, needs_body=False,
)  # fmt: skip
ADD_LABEL: Final[Operation[None]] = Operation(  # 4.8
    "cards.add_label", "POST", "/1/cards/{card_id}/idLabels", _nothing, _label_fields,
    documented=frozenset({"value"}), needs_body=False,
)  # fmt: skip
ARCHIVE_LIST: Final[Operation[BoardList]] = Operation(  # 4.9
    "lists.archive", "PUT", "/1/lists/{list_id}", _of_changed(_fields.changed_list), _closed_fields,
    documented=frozenset({"closed"}), repeatable=True, needs_body=False,
)  # fmt: skip
DELETE_CARD: Final[Operation[None]] = Operation(  # 4.10
    "cards.delete", "DELETE", "/1/cards/{card_id}", _nothing, repeatable=True, needs_body=False
)
READ_MEMBER: Final[Operation[Member]] = Operation(  # 4.11
    "members.me", "GET", "/1/members/me", _of_body(_fields.member), repeatable=True
)


# CONNECT has a host in place of a path, and TRACE must not send credentials: RFC 9110, sections 9.3.6 and 9.3.8.
_METHOD: Final = re.compile(r"(?!(?:CONNECT|TRACE)\Z)[A-Z]+")
REFUSED_HEADERS: Final = FRAMING | frozenset(
    {
        "accept-encoding",
        "authorization",
        "content-encoding",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
    }
)
"""Headers that hold credentials, or that say how a message is framed and encoded."""


Parameter: TypeAlias = str | int | float | bool
"""The value of a query parameter."""


Parameters: TypeAlias = Mapping[str, Parameter | Sequence[Parameter] | None]


def extended(
    request: Request[T],
    extra_query: Parameters | None,
    extra_headers: Mapping[str, str] | None,
    extra_body: Mapping[str, JsonValue] | None = None,
) -> Request[T]:
    """Return the request with what its interface does not show.

    Raises:
        TypeError, ValueError: it can't be sent, or names a credential, a documented field or a header that frames a message.
    """
    if extra_query is None and extra_headers is None and extra_body is None:
        return request
    reserved = CREDENTIAL_NAMES | request.operation.documented
    target, body = request.target, request.body
    if extra_query is not None:
        target = _with_query(target, _query(extra_query, "extra_query", reserved))
    if extra_body is not None:
        assert body is not None  # noqa: S101 -- only calls with a body take it
        if not isinstance(extra_body, Mapping):
            raise TypeError(f"extra_body must be a mapping, not {type(extra_body).__name__}")
        fields = _exactly(dict(extra_body), "extra_body")
        _check_names(extra_body, "extra_body", reserved)
        if fields:
            body = b",".join((body[:-1], encode(fields)[1:])) if body != b"{}" else encode(fields)
    headers = None if extra_headers is None else check_headers(extra_headers, "extra_headers", REFUSED_HEADERS)
    return Request(request.operation, target, body, request.identifier, request.fields, headers)


def _query(parameters: Parameters, name: str, reserved: frozenset[str]) -> dict[str, list[str]]:
    """Return checked parameters of a query, without those that are None. Errors call them `name`."""
    if not isinstance(parameters, Mapping):
        raise TypeError(f"{name} must be a mapping, not {type(parameters).__name__}")
    _check_names(parameters, name, reserved)
    given = ((check_text(key, name), value) for key, value in parameters.items())
    return {key: _parameters(value, f"{name}[{key!r}]") for key, value in given if value is not None}


def _with_query(path: str, pairs: Mapping[str, list[str]]) -> str:
    return f"{path}?{urlencode(pairs, doseq=True, quote_via=quote)}" if pairs else path


def _check_names(given: Iterable[object], name: str, reserved: frozenset[str]) -> None:
    if found := reserved.intersection(given):
        raise ValueError(f"{name} must not hold {', '.join(sorted(found))}: the session and the arguments of the call set that")


def build_request(
    method: str,
    path: str,
    params: Parameters | None = None,
    json: JsonValue = None,
    repeatable: bool | None = None,
    headers: Mapping[str, str] | None = None,
) -> Request[Response]:
    """Build a request that is not in the table, for `session.request`.

    Credentials go into a body that is a JSON object, otherwise into the query.

    Raises:
        TypeError, ValueError: it can't be sent, or it names a credential, which is the session's to add.
    """
    verb = check_text(method, "method").upper()
    if not _METHOD.fullmatch(verb):
        raise ValueError("method must be an HTTP method other than CONNECT and TRACE")
    pairs = _query({} if params is None else params, "params", CREDENTIAL_NAMES)
    if not isinstance(repeatable, bool | None):
        raise TypeError(f"repeatable must be a bool or None, not {type(repeatable).__name__}")
    if isinstance(json, dict):
        _check_names(json, "json", CREDENTIAL_NAMES)
    checked = _checked_path(path)
    is_repeatable = verb in REPEATABLE_METHODS if repeatable is None else repeatable
    body = None if json is None else encode(_exactly(json, "json"))
    is_signable = isinstance(json, dict)
    operation = Operation("request", verb, checked, _response, repeatable=is_repeatable, signable_body=is_signable)
    more = None if headers is None else check_headers(headers, "headers", REFUSED_HEADERS)
    return Request(operation, _with_query(checked, pairs), body, checked, headers=more)


def _exactly(value: JsonValue, name: str) -> JsonValue:
    """Return a JSON value unchanged, or raise ValueError for anything else. Errors call it `name`.

    msgspec would write NaN as null, bytes as base64 and sets as arrays: https://jcristharif.com/msgspec/supported-types.html.
    """
    try:
        return _json(value, name)
    except RecursionError:
        pass
    raise ValueError(f"{name} is too deep, or holds itself")


def _json(value: JsonValue, name: str) -> JsonValue:
    if isinstance(value, dict):
        return {check_text(key, name): _json(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item, name) for item in value]
    if isinstance(value, str):
        return check_text(value, name)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{name} holds a {type(value).__name__} object that JSON can't express")


def _parameters(values: object, name: str) -> list[str]:
    """Return the texts of a query parameter, one for each time it is sent."""
    return [_parameter(value, name) for value in (values if isinstance(values, list | tuple) else [values])]


def _parameter(value: object, name: str) -> str:
    """Return the text of a query parameter; booleans are true and false, as in JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return check_text(str(value) if isinstance(value, int | float) else value, name)


def _checked_path(path: str) -> str:
    """Return a checked path, with what can't stand in a URL percent-encoded."""
    check_text(path, "path")
    segments = unquote(path).split("/")
    if not path.startswith("/1/") or {".", ".."} & set(segments):
        raise ValueError('path must start with "/1/" and hold no "." or ".." segment')
    if "?" in path or "#" in path or "\\" in unquote(path) or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in unquote(path)):
        raise ValueError("path must hold no query (see params), fragment, backslash or control character")
    if re.search(r"%(?![0-9A-Fa-f]{2})", path):
        raise ValueError("path holds a % that begins no percent-encoding")
    return quote(path, safe="/%:@!$&'()*+,;=~")


# --- where it may be sent: no message shows an address


def check_url(url: object, name: str, *, allow_insecure: bool) -> str:
    """Return the absolute URL, percent-encoded, or raise a ValueError that shows nothing of it but its `name`."""
    parsed = _parsed(url)
    if parsed is None or not _has_host(parsed):
        given = "" if isinstance(url, str) else f", not {type(url).__name__}"
        raise ValueError(f"{name} must be an absolute http or https URL, such as https://board.example{given}")
    if parsed.user is not None or parsed.password is not None or parsed.query_string or parsed.fragment:
        raise ValueError(f"{name} must hold no user, password, query or fragment")
    if parsed.scheme == "http" and not allow_insecure and not _is_loopback(parsed):
        raise ValueError(f"{name} is plain http, which sends credentials unencrypted: use https or allow_insecure=True")
    return str(parsed)


def check_root(url: object, name: str, *, allow_insecure: bool) -> str:
    """Return the URL that paths are appended to, which may not end in "/1" (interface 9)."""
    root = check_url(url, name, allow_insecure=allow_insecure).rstrip("/")
    if root.partition("://")[2].endswith("/1"):  # and not a host of that name
        raise ValueError(f'{name} must not end in "/1": the paths of the service start with it')
    return root


def check_proxy(proxy: object, root: str, *, allow_insecure: bool) -> None:
    """Raise a ValueError, which does not show it, if a proxy is no URL or would get credentials of plain http."""
    if proxy is None:
        return
    parsed = _parsed(proxy)
    if parsed is None or not _has_host(parsed):
        raise ValueError("proxy must be an http or https URL, such as http://proxy.example:3128")
    if not (allow_insecure or root.startswith("https:") or _is_loopback(parsed)):
        raise ValueError("proxy would be sent the credentials of plain http unencrypted: use https or allow_insecure=True")


def host_of(url: str) -> str:
    """Return the host of a checked URL, with its port if it has one."""
    return url.partition("://")[2].partition("/")[0]


def _parsed(url: object) -> URL | None:
    try:
        return URL(url) if isinstance(url, str | URL) and str(url).isprintable() else None
    except ValueError:
        return None


def _has_host(url: URL) -> bool:
    return url.scheme in {"http", "https"} and _HOST.fullmatch(url.raw_host or "") is not None


def _is_loopback(url: URL) -> bool:
    if url.host == "localhost":
        return True
    try:
        return ip_address(url.host or "").is_loopback
    except ValueError:
        return False


# --- what its response means


def words_of(failure: TransportFailure, host: str) -> str:
    is_unreachable = failure.phase == "connect" and not failure.is_closed
    return f"no connection to {host}: {failure.why}" if is_unreachable else f"{failure.why} ({host})"


def outcome_of(request: Request[T], response: TransportResult, earlier: Effect, now: float, host: str) -> T | BoardClientError:
    """Return the outcome of an unsuccessful response, or of a request that got no response: nearly always an error.

    A DELETE that gets 404 after an attempt of unknown effect counts as done, and has a value: that attempt may have deleted the
    card.

    Args:
        request: The request.
        response: What came back, without credentials.
        earlier: The worst effect of the call's earlier attempts.
        now: Seconds since the epoch, for `Retry-After`.
        host: The service's host, for the message.
    """
    error: BoardClientError
    if isinstance(response, TransportFailure):
        words = f"{request.line}: {words_of(response, host)}"
        if response.is_closed:
            error = SessionClosedError(words, response.effect)
        else:
            error = TransportError(words, response.phase, request.line, response.effect)
            error.__cause__ = response.cause
    else:
        error = api_error(request.line, response, now, host)
        if isinstance(error, NotFoundError) and request.method == "DELETE" and earlier is Effect.UNKNOWN:
            return request.operation.read(response, request)
    error.repeatable = request.repeatable
    return error


def unreadable(request: Request[T], error: DecodeError, response: RawResponse, host: str) -> DecodeError:
    """Return the error of a success that can't be read. It replaces `error`, whose frames hold the body.

    It shows the beginning of a body of another kind. The credentials in the response are redacted already.
    """
    message = f"{request.line}: {error.message}"
    if not error.path:
        message += f" (status {response.status} from {host}: {excerpt(response) or 'an empty body'}); check base_url"
    unusable = DecodeError(message, error.path, request.line)
    add_request_id(unusable, response.headers)
    unusable.repeatable = request.repeatable
    return unusable
