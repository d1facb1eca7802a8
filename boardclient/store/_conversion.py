"""Converts ledgers of format 2, in which all rows of a part were one value, and their outcomes a log of events."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from boardclient.bulk._life import Outcome
from boardclient.errors import JournalError
from boardclient.models import CardDraft
from boardclient.store._connection import Connection
from boardclient.store._rows import LOGGED, close_part, digest_rows, dump_content, first_of, undamaged

_OLD: Final = ("jobs", "parts", "events", "probes")
_CLOSING: Final = -1
_LONGEST_LEASE_SECONDS: Final = 3600.0
"""If a lease ends later than this, the clock was set back since, and it is over."""
_ROW: Final = (("seq", int), ("job", int), ("ref", str), ("content", str), ("marker", int))
_OUTCOME: Final = (("seq", int), ("job", int), ("state", str), ("detail", str), ("at", "{clock}"))


def convert(connection: Connection, statements: Sequence[str]) -> None:
    """Convert the tables of a ledger within a transaction. The old tables are renamed, so that workers of old versions fail.

    Every row keeps the number of its marker.

    Raises:
        JournalError: a worker holds a part, or the tables are damaged.
    """
    statement = "SELECT job, part, owner FROM boardclient_parts WHERE lease_until > {clock} AND lease_until < {clock} + ?"
    # A live worker of the old version would record its outcomes where nobody looks for them any more.
    held = connection.one(statement, _LONGEST_LEASE_SECONDS)
    if held is not None:
        raise JournalError(
            f"{held.owner} of an earlier boardclient holds part {held.part} of {held.job!r}: end its workers, and run again"
            " when its lease has ended"
        )
    for name in _OLD:
        connection.run(f"ALTER TABLE boardclient_{name} RENAME TO boardclient_{name}_of_format_2")
    for statement in statements:
        connection.run(statement)
    for job in connection.fetch("SELECT * FROM boardclient_jobs_of_format_2 ORDER BY job"):
        _convert_job(connection, job)


def _convert_job(connection: Connection, job: Any) -> None:
    parts = connection.fetch("SELECT * FROM boardclient_parts_of_format_2 WHERE job = ? ORDER BY first", job.job)
    is_planned = job.digest is not None
    pieces = [*_planned(parts)] if is_planned else [(part.key, part, _drafts(part)) for part in parts if part.part != _CLOSING]
    number = connection.value(
        "INSERT INTO boardclient_jobs (name, board_id, account, identity, options, secret, baseline, audit, digest, planned,"
        " is_draining) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING job",
        job.job,
        job.board_id,
        job.account,
        job.identity,
        job.options,
        job.secret,
        job.baseline,
        job.audit,
        job.digest,
        len(pieces) if is_planned else 0,
        int(job.is_draining),
    )
    known = _outcomes(connection, job.job)
    seen: set[str] = set()
    for key, part, drafts in pieces:
        _store_part(connection, number, key, part, drafts, known, seen)


def _planned(parts: Sequence[Any]) -> Iterator[tuple[str, Any, list[tuple[int, CardDraft]]]]:
    """Yield planned rows in parts as they are planned now. The last rows were a part of their own, and belong to the last one."""
    rows = [row for part in parts for row in _drafts(part)]
    ordinary = [part for part in parts if part.part != _CLOSING] or [*parts]
    size = ordinary[0].size if len(ordinary) > 1 else max(1, len(rows))
    for number, start in enumerate(range(0, len(rows), size)):
        part = ordinary[min(number, len(ordinary) - 1)]
        yield str(number), part, rows[start : start + size]


def _drafts(part: Any) -> list[tuple[int, CardDraft]]:
    """Return the rows of a part, with their numbers in the job."""
    with undamaged(f"part {part.part} of {part.job!r}"):
        try:
            values = json.loads(zlib.decompress(part.rows))
        except zlib.error as error:
            raise ValueError from error
        return [
            (seq, CardDraft(name, list_id, desc, None if due is None else datetime.fromisoformat(due), pos, reference))
            for seq, (name, list_id, desc, due, pos, reference) in enumerate(values, part.first + 1)
        ]


def _outcomes(connection: Connection, job: str) -> dict[int, Outcome]:
    """Return what became of the rows of a job, by their numbers."""
    found: dict[int, Outcome] = {}
    events = "SELECT id, outcomes, sent FROM boardclient_events_of_format_2 WHERE job = ? ORDER BY id"
    for event in connection.fetch(events, job):
        with undamaged(f"event {event.id} of {job!r}"):
            found.update((seq, Outcome(state, detail)) for seq, state, detail in json.loads(event.outcomes))
            # In this order: a row that was sent again in the same commit has no outcome yet.
            found.update((seq, LOGGED) for seq in json.loads(event.sent))
    return found


def _store_part(
    connection: Connection,
    job: int,
    key: str,
    part: Any,
    rows: Sequence[tuple[int, CardDraft]],
    known: Mapping[int, Outcome],
    seen: set[str],
) -> None:
    # A part that was done is open until `close_part`, which counts its rows, has closed it again.
    state = "open" if part.state == "done" else part.state
    number = connection.value(
        "INSERT INTO boardclient_parts (job, key, digest, size, state, epoch, stalls, owner, requests, rejected, seconds,"
        " began_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING part",
        job,
        key,
        digest_rows(draft for _, draft in rows).hexdigest(),
        len(rows),
        state,
        max(1, part.epoch),
        part.stalls,
        part.owner,
        part.requests,
        part.rejected,
        part.seconds,
        part.began_at,
        part.ended_at,
    )
    # A reference of `cards.create` was the key of a batch of one. One that batches shared stays that of the first.
    stored: list[tuple[object, ...]] = []
    outcomes: list[tuple[object, ...]] = []
    for position, (seq, draft) in enumerate(rows):
        reference = key if draft.reference is None and len(rows) == 1 else draft.reference
        own = None if reference in seen else reference
        seen.update([own] if own is not None else [])
        stored.append((first_of(number) + position, job, own, dump_content(draft), seq))
        outcome = known.get(seq)
        if outcome is not None and outcome.state != "waiting":
            outcomes.append((first_of(number) + position, job, outcome.state, outcome.detail))
    connection.insert("INSERT INTO boardclient_rows", _ROW, stored)
    connection.insert("INSERT INTO boardclient_outcomes", _OUTCOME, outcomes)
    close_part(connection, number)
