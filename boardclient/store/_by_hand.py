"""What a person does with the rows of a journal or a ledger: read them, and settle those in doubt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, cast

from boardclient.bulk._life import IN_DOUBT, Outcome, RowKey, RowState, check_row
from boardclient.models import check_identifier
from boardclient.store._connection import Connection
from boardclient.store._rows import LOGGED_ROWS, OF_ROWS, OPEN_ROWS, StoredRow, listed, put_outcomes, stored_rows

_PAGE: Final = 1000
_OF_CARD: Final = f"{OF_ROWS} WHERE o.job = ? AND o.state = 'done' AND o.detail = ? AND o.seq <> ?"


def page_of(connection: Connection, job: int, states: Sequence[RowState], after: int) -> list[StoredRow]:
    """Return the next thousand rows of a job that are in some states, after the one with a number."""
    statement = f"{OF_ROWS} WHERE r.job = ? AND r.seq > ? AND {{state}} IN {listed(states)} ORDER BY r.seq LIMIT {_PAGE}"
    return stored_rows(connection, statement, job, after)


def doubts_of(connection: Connection, job: int) -> list[StoredRow]:
    """Return the rows of a job that are in doubt, once no worker sends them."""
    return _with_logged(connection, f"{OPEN_ROWS} AND o.state <> 'failed'", job)


def problems_of(connection: Connection, job: int) -> list[StoredRow]:
    """Return the rows of a job that have failed or are in doubt."""
    return _with_logged(connection, OPEN_ROWS, job)


def _with_logged(connection: Connection, statement: str, job: int) -> list[StoredRow]:
    # Two statements, since each has an index of its own: a job with a million cards is not read for the few that are open.
    return sorted([*stored_rows(connection, statement, job), *stored_rows(connection, LOGGED_ROWS, job)])


def check_told(row: object, card_id: str | None, *, absent: bool) -> Outcome:
    """Check what a person says of a row, and return it.

    Raises:
        TypeError: `row` is neither a string nor a whole number.
        ValueError: neither or both of `card_id` and `absent` are given, or the identifier is unusable.
    """
    check_row(row)
    if (card_id is None) is not absent:
        raise ValueError("give either card_id or absent=True")
    if card_id is None:
        # As any row that was not sent: the next run sends it without a look at the board, which the person has had.
        return Outcome("waiting", "absent, as a person has resolved")
    return Outcome("done", check_identifier(card_id, "card_id"))


def why_not_settled(
    connection: Connection, job: int, row: RowKey, found: StoredRow, told: Outcome, *, is_journal: bool
) -> str | None:
    """Return why a row can't be settled as a person says, None if it can.

    A person may change what a person has settled, and a row never gets the card of another. A run with a journal names a card
    that another row has only if its identifier was given again, and then both have it.
    """
    # What a person has settled keeps its candidates, also if there were none, and so it can be corrected.
    if found.state not in IN_DOUBT and found.resembling is None:
        name = named(row) if is_journal else f"the row {row!r}"
        return f"{name} is {found.state}, not in doubt ({found.detail})"
    other = next(iter(stored_rows(connection, _OF_CARD, job, told.detail, found.seq)), None)
    if told.state != "done" or other is None or (is_journal and _is_named(found, told) and not _is_named(other, told)):
        return None
    if is_journal:
        return f"the card {told.detail} is that of {named(cast('RowKey', other.ref))}"
    return f"the card {told.detail} is that of another row"


def _is_named(row: StoredRow, told: Outcome) -> bool:
    return told.detail in [card_id for card_id, *_ in json.loads(row.resembling or "[]")]


def settle(connection: Connection, job: int, found: StoredRow, told: Outcome, at: float) -> None:
    """Record within a transaction what a person says of a row."""
    put_outcomes(connection, [(found.seq, job, *told, at, found.resembling or "[]")])


def named(key: RowKey) -> str:
    return f"the row at position {key} (from 0)" if isinstance(key, int) else f"the row with the reference {key!r}"
