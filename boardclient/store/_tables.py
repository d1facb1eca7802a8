"""The tables of a journal and of a ledger, in a file or on a server: jobs, parts, rows, outcomes. And how audits are stored.

A part is a batch of rows with a key. The number of a row is made of the number of its part and its position there, and a
reference identifies it within its job. The state of a row is that of its outcome. A row without an outcome is "logged" if its
position is below `logged` of its part, otherwise "waiting". So nothing is written for a row before something is known about it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from boardclient.bulk._results import BulkAudit, BulkReport
from boardclient.errors import JournalError
from boardclient.models import Card, CardDraft, utc_timestamp
from boardclient.store._connection import Connection
from boardclient.store._database import Tables
from boardclient.store._rows import undamaged

# `_connection` replaces the words in braces.
# The worker that has the lease may send and record the rows of a part, or reconcile a job. `lease` is its length in seconds, and
# `lost_lease` that of the last worker that died with the part.
# Counts are NULL while a part is open. They are computed once, when it is closed. `earlier` are the requests of workers that died
# before the job was planned or opened, and whose cards were found since.
JOBS: Final = """
CREATE TABLE IF NOT EXISTS boardclient_jobs (
  job {id}, name {text} NOT NULL UNIQUE, board_id {text} NOT NULL, account {text}, identity {text}, options {text} NOT NULL,
  secret {bytes} NOT NULL, baseline {bytes}, audit {text}, digest {text},
  planned INTEGER NOT NULL DEFAULT 0, is_draining INTEGER NOT NULL DEFAULT 0,
  owner {text}, lease_until {float} NOT NULL DEFAULT 0, lease {float} NOT NULL DEFAULT 0
)"""
PARTS: Final = """
CREATE TABLE IF NOT EXISTS boardclient_parts (
  part {id}, job {int} NOT NULL, key {text} NOT NULL, digest {text} NOT NULL, size INTEGER NOT NULL,
  logged INTEGER NOT NULL DEFAULT 0, state {text} NOT NULL DEFAULT 'open',
  epoch INTEGER NOT NULL DEFAULT 0, owner {text}, lease_until {float} NOT NULL DEFAULT 0, lease {float} NOT NULL DEFAULT 0,
  lost_lease {float} NOT NULL DEFAULT 0, stalls INTEGER NOT NULL DEFAULT 0, done INTEGER, failed INTEGER, in_doubt INTEGER,
  requests {int} NOT NULL DEFAULT 0, rejected {int} NOT NULL DEFAULT 0, earlier {int} NOT NULL DEFAULT 0,
  seconds {float} NOT NULL DEFAULT 0,
  began_at {float}, ended_at {float}, UNIQUE (job, key)
) {fill}"""
ROWS: Final = """
CREATE TABLE IF NOT EXISTS boardclient_rows (
  seq {int} PRIMARY KEY, job {int} NOT NULL, ref {key}, content {text} NOT NULL, marker {int}
)"""
ROWS_BY_REFERENCE: Final = (
    "CREATE UNIQUE INDEX IF NOT EXISTS boardclient_rows_ref ON boardclient_rows (job, ref) WHERE ref IS NOT NULL"
)
OUTCOMES: Final = """
CREATE TABLE IF NOT EXISTS boardclient_outcomes (
  seq {int} PRIMARY KEY, job {int} NOT NULL, state {text} NOT NULL, detail {text} NOT NULL, at {float} NOT NULL, resembling {text}
)"""
OPEN_OUTCOMES: Final = (
    "CREATE INDEX IF NOT EXISTS boardclient_outcomes_open ON boardclient_outcomes (job)"
    " WHERE state IN ('waiting', 'logged', 'unknown', 'failed')"
)
DELIVERIES: Final = """
CREATE TABLE IF NOT EXISTS boardclient_deliveries (
  job {int} NOT NULL, key {text} NOT NULL, digest {text} NOT NULL, since {float} NOT NULL, seqs {text} NOT NULL,
  PRIMARY KEY (job, key, digest)
)"""
"""The batches of jobs whose rows were announced, when that was, and the numbers of their rows, some in other parts."""
OPEN_PARTS: Final = "CREATE INDEX IF NOT EXISTS boardclient_parts_open ON boardclient_parts (job) WHERE in_doubt IS NULL"
FORMAT: Final = 3
_EARLIER: Final = 2
TABLES: Final = (JOBS, PARTS, OPEN_PARTS, ROWS, ROWS_BY_REFERENCE, OUTCOMES, OPEN_OUTCOMES)


def _convert(connection: Connection, found: int) -> None:
    """Convert the tables of an earlier format.

    Raises:
        JournalError: they can't be converted.
    """
    if found != _EARLIER:
        raise JournalError(f"the ledger has format {found}, not {_EARLIER} or {FORMAT}: use the boardclient that made it")
    from boardclient.store._conversion import convert

    convert(connection, TABLES)


LEDGER: Final = Tables((*TABLES, DELIVERIES), FORMAT, _convert)

MOST_BYTES: Final = 2600
"""The longest key, reference or name in UTF-8: an index of PostgreSQL takes 2,704 bytes."""


def dump_ids(ids: Iterable[str]) -> bytes:
    """Return the stored form of the identifiers of the cards that existed before the first row."""
    return zlib.compress(json.dumps([*ids]).encode(), 1)


def load_ids(stored: bytes) -> list[str]:
    """Return the identifiers that `dump_ids` has stored.

    Raises:
        JournalError: they are damaged.
    """
    with undamaged("the list of the cards from before"):
        try:
            ids: list[str] = json.loads(zlib.decompress(stored))
        except zlib.error as error:
            raise ValueError from error
    return ids


def dump_audit(of_run: BulkReport) -> str:
    """Return the audit of a run as JSON, with cards and drafts as lists, or why there is none."""
    values: dict[str, Any] = {"probes": of_run.probes}
    if of_run.audit is not None:
        values["audit"] = attrs.asdict(of_run.audit, recurse=False)
    if of_run.audit_error is not None:
        values["audit_error"] = of_run.audit_error.message
    return json.dumps(values, default=_fields)


def _fields(value: Any) -> list[Any]:
    due = None if value.due is None else utc_timestamp(value.due)
    return [type(value).__name__, getattr(value, "id", None), value.name, value.list_id, value.desc, due]


def load_audit(stored: Sequence[dict[str, Any]]) -> BulkAudit:
    """Return one audit for several jobs: counts are added up, and each card is listed once."""
    values: dict[str, Any] = {}
    for audit in stored:
        for name, value in audit.items():
            if isinstance(value, list):
                known = values.setdefault(name, [])
                known += [one for one in value if one not in known]
            else:
                values[name] = values.get(name, 0) + value
    loaded: dict[str, Any] = {name: load_cards(one) if isinstance(one, list) else one for name, one in values.items()}
    return BulkAudit(**loaded)


def load_cards(stored: Iterable[list[Any]]) -> tuple[Any, ...]:
    """Return the cards and drafts that `dump_audit` has stored."""
    return tuple(map(_loaded, stored))


def _loaded(values: list[Any]) -> Card | CardDraft:
    kind, card_id, name, list_id, desc, due = values
    when = None if due is None else datetime.fromisoformat(due)
    if kind == "Card":
        return Card(card_id, name=name, list_id=list_id, desc=desc, due=when)
    return CardDraft(name, list_id, desc=desc, due=when)
