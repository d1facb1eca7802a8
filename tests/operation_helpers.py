"""What the tests of requests and of responses share: every operation with its fields, and texts of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st
from multidict import CIMultiDict

from boardclient._interface import _operations as ops
from boardclient._transport._values import RawResponse
from boardclient.errors import DecodeError, Effect
from boardclient.models import Position

NOW = 1_800_000_000.0


def interpret(request: Any, response: RawResponse, now: float) -> Any:
    """Return the value of a response, or its error if there was no earlier attempt."""
    if not 200 <= response.status < 300:
        return ops.outcome_of(request, response, Effect.NOT_SENT, now, "the service")
    try:
        return request.operation.read(response, request)
    except DecodeError as error:
        return ops.unreadable(request, error, response, "the service")


DUE = datetime(2027, 1, 2, 5, 4, 5, 250000, tzinfo=timezone(timedelta(hours=2)))


def raw_response(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> RawResponse:
    return RawResponse(status, CIMultiDict(headers or {}), body)


# operation, identifier, values, the line, the JSON body (None: there is none)


ENCODED: list[tuple[ops.Operation[Any], str | None, dict[str, object], str, dict[str, object] | None]] = [
    (ops.CREATE_BOARD, None, {"name": "Plan", "default_lists": None, "organization_id": None}, "POST /1/boards",
     {"name": "Plan"}),
    (ops.CREATE_BOARD, None, {"name": "", "default_lists": False, "organization_id": "o1"}, "POST /1/boards",
     {"name": "", "defaultLists": False, "idOrganization": "o1"}),
    (ops.ADD_LIST, None, {"name": "To Do", "board_id": "b1", "pos": None}, "POST /1/lists", {"name": "To Do", "idBoard": "b1"}),
    (ops.ADD_LIST, None, {"name": "", "board_id": "b1", "pos": Position.BOTTOM}, "POST /1/lists",
     {"name": "", "idBoard": "b1", "pos": "bottom"}),
    (ops.ADD_CARD, None, {"name": "Write", "list_id": "l1", "desc": None, "due": None, "pos": None}, "POST /1/cards",
     {"name": "Write", "idList": "l1"}),
    (ops.ADD_CARD, None, {"name": "ü\n", "list_id": "l1", "desc": "", "due": DUE, "pos": "17"}, "POST /1/cards",
     {"name": "ü\n", "idList": "l1", "desc": "", "due": "2027-01-02T03:04:05.250000Z", "pos": "17"}),
    (ops.ADD_CARD, None, {"name": "a", "list_id": "l1", "desc": "d", "due": DUE.replace(microsecond=0), "pos": ""},
     "POST /1/cards", {"name": "a", "idList": "l1", "desc": "d", "due": "2027-01-02T03:04:05Z", "pos": ""}),
    (ops.BOARD_CARDS, "b1", {}, "GET /1/boards/b1/cards", None),
    (ops.BOARD_LISTS, "b 1?", {}, "GET /1/boards/b%201%3F/lists", None),
    (ops.READ_CARD, "%2e%2e", {}, "GET /1/cards/%252e%252e", None),
    (ops.MOVE_CARD, "ü&#", {"list_id": "l2"}, "PUT /1/cards/%C3%BC%26%23", {"idList": "l2"}),
    (ops.ADD_LABEL, "c1", {"label_id": "x"}, "POST /1/cards/c1/idLabels", {"value": "x"}),
    (ops.ARCHIVE_LIST, "l:1", {"closed": True}, "PUT /1/lists/l%3A1", {"closed": True}),
    (ops.DELETE_CARD, "c1+", {}, "DELETE /1/cards/c1%2B", None),
    (ops.READ_MEMBER, None, {}, "GET /1/members/me", None),
]  # fmt: skip

READS: list[ops.Request[Any]] = [operation.request(identifier, **values) for operation, identifier, values, _, _ in ENCODED]
READS.append(ops.build_request("GET", "/1/x"))

TEXT = st.text(st.characters(codec=None)) | st.text(st.sampled_from('0123456789 ,:GMTJan+-Fri"/.%\\\x00\ud800\udfffü😀'))
