"""The rows of a ledger: what is stored of a draft, and its outcome."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from boardclient.bulk._content import Content, digest
from boardclient.bulk._life import Outcome, RowState
from boardclient.errors import JournalError
from boardclient.models import Card, CardDraft, utc_timestamp
from boardclient.store._connection import Connection

PLACES: Final = 2**32
"""A row's number is the number of its part times this, plus its position in the part."""
LOGGED: Final = Outcome("logged", "a worker has sent it, and ended before the response came")
OF_ROWS: Final = (
    "SELECT r.seq, r.ref, r.content, r.marker, {state} AS state, o.detail, o.at, {clock} - o.at AS age, o.resembling"
    " FROM boardclient_rows AS r JOIN boardclient_parts AS p ON p.part = r.seq / 4294967296"
    " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq"
)
"""The start of a statement that returns rows as `StoredRow` has them."""
OPEN: Final = "o.state IN ('waiting', 'logged', 'unknown', 'failed')"
"""The condition of the index on outcomes that may change. SQLite uses it only if a statement has the same words."""
OPEN_ROWS: Final = f"{OF_ROWS} WHERE o.job = ? AND {OPEN} AND o.state <> 'waiting'"
"""Returns the rows whose outcomes say that they failed or are in doubt."""
# By ranges of the numbers of rows, which are those of the key: no index on parts of rows is needed.
LOGGED_ROWS: Final = (
    f"{OF_ROWS} WHERE p.job = ? AND p.in_doubt IS NULL AND p.logged > 0 AND r.seq >= p.part * {PLACES}"
    f" AND r.seq < p.part * {PLACES} + p.logged AND o.seq IS NULL"
)
"""Returns the logged rows without an outcome. They are in parts that are not closed."""
DONE: Final = "SELECT detail FROM boardclient_outcomes WHERE job = ? AND state = 'done'"
"""Returns the identifiers of the cards of a job."""
_OUTCOME: Final = (("seq", int), ("job", int), ("state", str), ("detail", str), ("at", float), ("resembling", str))
_REPLACE: Final = (
    "ON CONFLICT (seq) DO UPDATE SET state = excluded.state, detail = excluded.detail, at = excluded.at,"
    " resembling = excluded.resembling"
)


class StoredRow(NamedTuple):
    """A row of a ledger."""

    seq: int
    ref: str | None
    content: str
    marker: int | None
    """The number from which its marker is derived, None if that is `seq`."""
    state: RowState
    detail: str | None = None
    at: float | None = None
    """When its outcome was recorded, on the clock of the database, None if it has none."""
    age: float | None = None
    """How many seconds ago that was."""
    resembling: str | None = None
    """The cards that may be its own, while it is unknown or if a person has resolved it."""

    @property
    def part(self) -> int:
        return self.seq // PLACES

    @property
    def number(self) -> int:
        """The number from which its marker is derived. Only an undo changes it."""
        return self.seq if self.marker is None else self.marker

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.state, self.detail or LOGGED.detail)

    @property
    def draft(self) -> CardDraft:
        """The draft that was delivered.

        Raises:
            JournalError: it is damaged.
        """
        with undamaged(f"row {self.seq}"):
            name, list_id, desc, due, pos = json.loads(self.content)
            when = None if due is None else datetime.fromisoformat(due)
            return CardDraft(name, list_id, desc, when, pos, self.ref)


def dump_cards(cards: Iterable[Card]) -> str:
    """Return what is stored of cards that may be those of a row in doubt: their identifiers, and what people compare."""
    # In ASCII, since a service may send half of a pair of surrogates, which no database takes.
    shown = [
        [card.id, card.name or "", card.list_id or "", card.desc, None if card.due is None else int(card.due.timestamp())]
        for card in cards
    ]
    return json.dumps(shown, separators=(",", ":"))


def listed(states: Iterable[str]) -> str:
    """Return states as a list in SQL."""
    words = ", ".join(f"'{state}'" for state in states)
    return f"({words})"


def first_of(part: int) -> int:
    """Return the number of the first row of a part."""
    return part * PLACES


@contextlib.contextmanager
def undamaged(what: str) -> Iterator[None]:
    """Raise a JournalError in place of the errors that damaged values cause."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        failure = type(error).__name__
    else:
        return
    raise JournalError(
        f"{what} is damaged ({failure}): put back a copy of the ledger, and reconcile the job before anything else"
    )


def dump_content(draft: CardDraft) -> str:
    """Return the stored form of a draft, without its reference."""
    due = None if draft.due is None else utc_timestamp(draft.due)
    return json.dumps([draft.name, draft.list_id, draft.desc, due, draft.pos], ensure_ascii=True, separators=(",", ":"))


_FIELDS: Final = ("name", "list_id", "desc", "due", "pos")


def differing_field(stored: str, given: str) -> str | None:
    """Return the name of the first field in which two stored contents differ, None if the same card shows both."""
    # Texts that differ may mean the same card, which shows neither a fraction of a second nor which white space was sent.
    one, other = (StoredRow(0, None, text, None, "waiting").draft for text in (stored, given))
    if Content.of(one) != Content.of(other):
        pairs = zip(_FIELDS, Content.of(one), Content.of(other), strict=False)
        return next(name for name, before, now in pairs if before != now)
    return None if one.pos == other.pos else "pos"


def digest_rows(drafts: Iterable[CardDraft], *running: Any) -> Any:
    """Return the digest of rows, and add the rows to the running digests as well."""
    # What is digested is what identifies a delivery, so a change here would make every key of today one with other rows.
    found = blake2b(digest_size=16)
    for draft in drafts:
        row = digest(draft) + (draft.reference or "").encode("utf-8", "surrogatepass") + b"\0"
        for one in (found, *running):
            one.update(row)
    return found


def stored_rows(connection: Connection, statement: str, *values: object) -> list[StoredRow]:
    """Return the rows that a statement finds which begins with `OF_ROWS`."""
    return [StoredRow(*row) for row in connection.fetch(statement, *values)]


def rows_of(connection: Connection, part: int) -> list[StoredRow]:
    """Return the rows of a part, in the order of their positions."""
    statement = f"{OF_ROWS} WHERE r.seq >= ? AND r.seq < ? ORDER BY r.seq"
    return stored_rows(connection, statement, first_of(part), first_of(part + 1))


def rows_by_number(connection: Connection, numbers: list[int]) -> list[StoredRow]:
    """Return rows by their numbers, in their order."""
    return stored_rows(connection, f"{OF_ROWS} WHERE r.seq {{in ?}} ORDER BY r.seq", numbers)


def rows_by_reference(connection: Connection, job: int, references: list[str]) -> list[StoredRow]:
    """Return the rows of a job that have one of these references."""
    return stored_rows(connection, f"{OF_ROWS} WHERE r.job = ? AND r.ref {{in ?}}", job, references)


def put_outcomes(connection: Connection, outcomes: Iterable[tuple[object, ...]]) -> None:
    """Insert outcomes, given as the values of their columns, or replace those of the same rows."""
    connection.insert("INSERT INTO boardclient_outcomes", _OUTCOME, outcomes, _REPLACE)


def note_delivery(connection: Connection, job: int, key: str, digest: str, since: float, rows: Iterable[StoredRow]) -> None:
    """Note which rows a batch has brought since the job's rows were announced."""
    ranges: list[list[int]] = []
    for seq in sorted(row.seq for row in rows):
        if ranges and seq == ranges[-1][1] + 1:
            ranges[-1][1] = seq
        else:
            ranges.append([seq, seq])
    connection.run(
        "INSERT INTO boardclient_deliveries (job, key, digest, since, seqs) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (job, key, digest) DO UPDATE SET since = excluded.since, seqs = excluded.seqs",
        job,
        key,
        digest,
        since,
        json.dumps(ranges, separators=(",", ":")),
    )


def count_delivered(connection: Connection, job: int, since: float) -> int:
    """Return how many rows batches have brought since the job's rows were announced. A row that came twice counts once."""
    statement = "SELECT seqs FROM boardclient_deliveries WHERE job = ? AND since >= ?"
    count, end = 0, -1
    for first, last in sorted(ends for found in connection.fetch(statement, job, since) for ends in json.loads(found.seqs)):
        count += max(0, last - max(first - 1, end))
        end = max(end, last)
    return count


def close_part(connection: Connection, part: int) -> None:
    """Count the rows of a part within a transaction, and close it unless a row waits to be sent."""
    first = first_of(part)
    found = connection.one(
        "SELECT p.size, coalesce(sum(CASE WHEN {state} = 'done' THEN 1 ELSE 0 END), 0) AS done,"
        " coalesce(sum(CASE WHEN {state} = 'failed' THEN 1 ELSE 0 END), 0) AS failed,"
        " coalesce(sum(CASE WHEN {state} IN ('logged', 'unknown') THEN 1 ELSE 0 END), 0) AS in_doubt"
        " FROM boardclient_parts AS p LEFT JOIN boardclient_rows AS r ON r.seq >= ? AND r.seq < ?"
        " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq WHERE p.part = ? GROUP BY p.part, p.size",
        first,
        first_of(part + 1),
        part,
    )
    assert found is not None  # noqa: S101 -- the caller holds the part
    # A part with a waiting row stays open: its run was stopped, or drained.
    if found.done + found.failed + found.in_doubt < found.size:
        open_part(connection, part)
        return
    connection.run(
        "UPDATE boardclient_parts SET state = 'done', done = ?, failed = ?, in_doubt = ?, ended_at = {clock} WHERE part = ?",
        found.done,
        found.failed,
        found.in_doubt,
        part,
    )


def open_part(connection: Connection, part: int) -> None:
    """Open a part within a transaction, so that its waiting rows are sent. It has no counts until it is closed."""
    statement = "UPDATE boardclient_parts SET state = 'open', done = NULL, failed = NULL, in_doubt = NULL WHERE part = ?"
    connection.run(statement, part)
