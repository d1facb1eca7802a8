"""What a ledger stores: its tables, and drafts, states and audits as they stand there."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import sqlalchemy as sa

from boardclient._database import Database, Id, metadata
from boardclient.bulk import BulkAudit, BulkReport
from boardclient.models import Card, CardDraft, utc_timestamp

CLOSING: Final = -1
"""The number of the part that is run last: it reconciles what all others left in doubt, and holds the audit."""

jobs: Final = sa.Table(
    "boardclient_jobs",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("board_id", sa.Text, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("identity", sa.Text),
    sa.Column("baseline", sa.LargeBinary),
    sa.Column("audit", sa.Text),
    sa.Column("is_draining", sa.Boolean, nullable=False),
)
# A row per part, never one per card. `rows` are the drafts. Only the holder of the current epoch may write.
parts: Final = sa.Table(
    "boardclient_parts",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("first", sa.BigInteger, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("rows", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until", sa.Float, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("rejected", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
)
# Append only: what became of rows, and then which rows may be sent from now on.
events: Final = sa.Table(
    "boardclient_events",
    metadata,
    sa.Column("id", Id, primary_key=True, autoincrement=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("outcomes", sa.Text, nullable=False),
    sa.Column("sent", sa.Text, nullable=False),
    sa.Index("boardclient_events_of_part", "job", "part", "id"),
)

State = tuple[str, str]
"""What became of a row: "logged", "done", "failed" or "unknown", and its card's identifier or the reason."""


def dump_drafts(drafts: Sequence[CardDraft]) -> bytes:
    """Return drafts as they are stored."""
    values = [
        [one.name, one.list_id, one.desc, None if one.due is None else utc_timestamp(one.due), one.pos, one.reference]
        for one in drafts
    ]
    return zlib.compress(json.dumps(values).encode(), 1)


def load_drafts(stored: bytes) -> list[CardDraft]:
    """Return drafts that were stored."""
    values = json.loads(zlib.decompress(stored))
    return [
        CardDraft(name, list_id, desc, None if due is None else datetime.fromisoformat(due), pos, reference)
        for name, list_id, desc, due, pos, reference in values
    ]


async def read_states(database: Database, job: str, part: int | None = None, *, until: int | None = None) -> dict[int, State]:
    """Return what became of the rows of a part, or of all, by their numbers. Rows that were not sent are left out."""
    wanted = events.c.job == job
    if part is not None and part != CLOSING:
        wanted &= events.c.part.in_([part, CLOSING])
    if until is not None:
        wanted &= events.c.id <= until
    found: dict[int, State] = {}
    async with database.begin() as connection:
        async for outcomes, sent in await connection.stream(
            sa.select(events.c.outcomes, events.c.sent).where(wanted).order_by(events.c.id)
        ):
            found.update((seq, (state, detail)) for seq, state, detail in json.loads(outcomes))
            found.update(
                (seq, ("logged", "a worker has sent it, and ended before the response came")) for seq in json.loads(sent)
            )
    return {seq: known for seq, known in found.items() if known[0] != "waiting"}


def dump_audit(of_run: BulkReport) -> str | None:
    """Return an audit as it is stored, with cards and drafts as lists."""
    if of_run.audit is None:
        return None if of_run.audit_error is None else json.dumps({"audit_error": of_run.audit_error.message})
    return json.dumps(attrs.asdict(of_run.audit, recurse=False), default=_fields)


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
