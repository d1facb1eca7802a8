"""The tables of a ledger."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from boardclient._database import Id, metadata

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
