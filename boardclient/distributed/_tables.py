"""What a ledger stores: its tables, and drafts, states and audits as they stand there."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import attrs
import sqlalchemy as sa

from boardclient.bulk import BulkAudit, BulkReport
from boardclient.bulk._content import digest
from boardclient.bulk._life import IN_DOUBT
from boardclient.errors import JournalError
from boardclient.models import Card, CardDraft, utc_timestamp
from boardclient.store._alchemy import Database, Id, metadata

CLOSING: Final = -1
"""The number of the part that is run last: it reconciles what all others left in doubt, and holds the audit."""

COUNTS: Final = ("done", "failed", "in_doubt")
"""The columns that count the rows of a part."""

jobs: Final = sa.Table(
    "boardclient_jobs",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text),  # of all rows; null if they come in batches
    sa.Column("board_id", sa.Text, nullable=False),
    sa.Column("account", sa.Text),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("identity", sa.Text),
    sa.Column("baseline", sa.LargeBinary),
    sa.Column("audit", sa.Text),
    sa.Column("is_draining", sa.Boolean, nullable=False),
)
# A row per part, never one per card. `rows` are the drafts, `key` is what a caller knows them by, and `stalls` how many workers
# have died with the part in a row. Only the holder of the current epoch may write.
parts: Final = sa.Table(
    "boardclient_parts",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("first", sa.BigInteger, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("rows", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default="open"),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("stalls", sa.Integer, nullable=False, server_default="0"),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until", sa.Float, nullable=False, server_default="0"),
    *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in (*COUNTS, "requests", "rejected")),
    sa.Column("seconds", sa.Float, nullable=False, server_default="0"),
    sa.Column("began_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.UniqueConstraint("job", "key"),
)
# Append only: what became of rows, and then which rows may be sent from now on. `number` counts those of an epoch.
events: Final = sa.Table(
    "boardclient_events",
    metadata,
    sa.Column("id", Id, primary_key=True, autoincrement=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("outcomes", sa.Text, nullable=False),
    sa.Column("sent", sa.Text, nullable=False),
    sa.UniqueConstraint("job", "part", "epoch", "number"),
)

# The temporary cards that prove others absent. Their numbers are negative.
probes: Final = sa.Table(
    "boardclient_probes",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("list_id", sa.Text, nullable=False),
    sa.Column("card_id", sa.Text),
    sa.Column("is_over", sa.Boolean, nullable=False),
)

_EVENT: Final = sa.text(
    "INSERT INTO boardclient_events (job, part, epoch, number, outcomes, sent)"
    " VALUES (:job, :part, :epoch, :number, :outcomes, :sent) ON CONFLICT DO NOTHING"
)

State = tuple[str, str]
"""What became of a row: "logged", "done", "failed" or "unknown", and its card's identifier or the reason."""
LOGGED: Final[State] = ("logged", "a worker has sent it, and ended before the response came")
_PAGE: Final = 300
"""How many events are read at once."""


def count_of(state: State | None) -> str:
    """Return the column that counts a row in this state, "" if none does."""
    name = "" if state is None else state[0]
    return "in_doubt" if name in IN_DOUBT else name if name in COUNTS else ""


@contextlib.contextmanager
def _undamaged(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        failure = type(error).__name__
    else:
        return
    raise JournalError(f"{what} is damaged ({failure}): put back a copy of the ledger, since the same again will not work")


def dump_drafts(drafts: Sequence[CardDraft]) -> bytes:
    values = [
        [one.name, one.list_id, one.desc, None if one.due is None else utc_timestamp(one.due), one.pos, one.reference]
        for one in drafts
    ]
    return zlib.compress(json.dumps(values).encode(), 1)


def load_rows(job: str, part: Any) -> list[tuple[int, CardDraft]]:
    """Return the rows of a part, with their numbers in the job.

    Raises:
        JournalError: they are damaged.
    """
    with _undamaged(f"part {part.part} of {job!r}"):
        values = json.loads(zlib.decompress(part.rows))
        return [
            (seq, CardDraft(name, list_id, desc, None if due is None else datetime.fromisoformat(due), pos, reference))
            for seq, (name, list_id, desc, due, pos, reference) in enumerate(values, part.first + 1)
        ]


def digest_rows(drafts: Iterable[CardDraft], *running: Any) -> Any:
    """Return the digest of all that rows are, and add them to others."""
    found = blake2b(digest_size=16)
    for draft in drafts:
        row = digest(draft) + (draft.reference or "").encode("utf-8", "surrogatepass") + b"\0"
        for one in (found, *running):
            one.update(row)
    return found


async def read_states(database: Database, job: str, part: int | None = None, *, until: int | None = None) -> dict[int, State]:
    """Return what became of the rows of a part, or of all, by their numbers. Rows that were not sent are left out."""
    wanted = events.c.job == job
    if part is not None and part != CLOSING:
        wanted &= events.c.part.in_([part, CLOSING])
    if until is not None:
        wanted &= events.c.id <= until
    found: dict[int, State] = {}
    columns, after = (events.c.id, events.c.part, events.c.outcomes, events.c.sent), -1
    page: Sequence[Any] = [None] * _PAGE
    while len(page) == _PAGE:
        page = await database.read(sa.select(*columns).where(wanted, events.c.id > after).order_by(events.c.id).limit(_PAGE))
        for event in page:
            with _undamaged(f"event {event.id} of part {event.part} of {job!r}"):
                found.update((seq, (state, detail)) for seq, state, detail in json.loads(event.outcomes))
                found.update((seq, LOGGED) for seq in json.loads(event.sent))
            after = event.id
    return {seq: known for seq, known in found.items() if known[0] != "waiting"}


def insert_event(
    connection: sa.Connection, job: str, part: int, epoch: int, number: int, noted: Mapping[int, State], sent: Sequence[int]
) -> bool:
    """Append an event. Return False if it is there already."""
    values = {"job": job, "part": part, "epoch": epoch, "number": number, "sent": json.dumps([*sent])}
    values["outcomes"] = json.dumps([(seq, *known) for seq, known in noted.items()])
    return connection.execute(_EVENT, values).rowcount == 1


def dump_audit(of_run: BulkReport) -> str | None:
    """Return an audit as it is stored, with cards and drafts as lists."""
    if of_run.audit is None:
        return None if of_run.audit_error is None else json.dumps({"audit_error": of_run.audit_error.message})
    stored = attrs.asdict(of_run.audit, recurse=False) | ({"probes": of_run.probes} if of_run.probes else {})
    return json.dumps(stored, default=_fields)


def _fields(value: Any) -> list[Any]:
    due = None if value.due is None else utc_timestamp(value.due)
    return [type(value).__name__, getattr(value, "id", None), value.name, value.list_id, value.desc, due]


def load_audit(stored: Sequence[dict[str, Any]]) -> BulkAudit:
    """Return the audit of several jobs: counts are added, and cards listed one after another."""
    values: dict[str, Any] = {}
    for audit in stored:
        for name, value in audit.items():
            values[name] = values[name] + value if name in values else value
    loaded: dict[str, Any] = {name: tuple(map(_loaded, one)) if isinstance(one, list) else one for name, one in values.items()}
    return BulkAudit(**loaded)


def _loaded(values: list[Any]) -> Card | CardDraft:
    kind, card_id, name, list_id, desc, due = values
    when = None if due is None else datetime.fromisoformat(due)
    if kind == "Card":
        return Card(card_id, name=name, list_id=list_id, desc=desc, due=when)
    return CardDraft(name, list_id, desc=desc, due=when)
