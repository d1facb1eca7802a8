"""The progress, reports and results of jobs, the calls that drain and resume them, and rows that a person resolves."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import attrs

from boardclient.bulk import BulkAudit, BulkReport, CardResult
from boardclient.bulk._content import Content, secret_marker
from boardclient.bulk._life import IN_DOUBT, RowState
from boardclient.bulk.journal import JournalRow, UnknownRow, beside, suggested
from boardclient.distributed._doubts import BY_RECONCILING, explain
from boardclient.distributed._jobs import Job, check_job
from boardclient.distributed._leases import LEASE_SECONDS, lease_parts, worker_name
from boardclient.errors import BoardClientError, Effect, JournalError
from boardclient.models import Card, CardDraft
from boardclient.store._by_hand import check_told, page_of, problems_of, settle, why_not_settled
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._location import checked_location, takes_location
from boardclient.store._rows import (
    DONE,
    PLACES,
    StoredRow,
    close_part,
    count_delivered,
    first_of,
    rows_by_number,
    rows_by_reference,
)
from boardclient.store._tables import LEDGER, load_audit, load_cards

Jobs: TypeAlias = Job | Sequence[Job] | str | os.PathLike[str]
"""A job, several jobs, or a ledger with all its jobs."""
_WITH_RESULT: Final[tuple[RowState, ...]] = ("logged", "done", "failed", "unknown")
_LONGEST_SECONDS: Final = 1e9
"""Times that are further apart are not of the same boot of the machine."""
_UNSTORED_COUNTS: Final = (
    "SELECT p.part, {state} AS state, count(*) AS number FROM boardclient_parts AS p"
    " JOIN boardclient_rows AS r ON r.seq >= p.part * 4294967296 AND r.seq < (p.part + 1) * 4294967296"
    " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq"
    " WHERE p.job {in ?} AND p.in_doubt IS NULL AND p.epoch > 0 GROUP BY 1, 2"
)
"""Counts the rows of open parts. Closed ones have their counts."""


@attrs.frozen(kw_only=True)
class PartStatus:
    """The progress of a part.

    Attributes:
        part: The number of the part in the ledger.
        key: The key of its batch. In a planned job it is the number that `import_part` takes.
        job: The name of its job.
        state: "open", "held" by a worker, "consent" if it waits until the account's user signs in, or "done": each row has an
            outcome, and the worker that reconciles the job may be deciding about those in doubt.
        owner: The worker that holds it, or held it last.
        rows: The number of its rows.
        done: The number of rows that have a card.
        failed: The number of rows that have none.
        in_doubt: The number of rows that may have one.
        seconds: How long its runs took.
        rate: Cards per second of these runs.
    """

    job: str
    part: int
    key: str
    state: str
    owner: str | None
    rows: int
    done: int
    failed: int
    in_doubt: int
    seconds: float
    rate: float


@takes_location
async def report(ledger: Jobs, *, name: str | None = None) -> BulkReport:
    """Return the report and the audit of a job, or of several together.

    `seconds` is the time from the first row to the last outcome.

    Args:
        ledger: A job, several jobs of one ledger, or a ledger. Only a `Job` says which cards existed when it was planned, opened
            or announced: for a ledger all cards are "created".
        name: The name of a job of the ledger. None (default) means all jobs.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    given = _jobs_in(ledger)
    planned_at = min((job.planned_at for job in given), default=0.0)
    statement = (
        "SELECT coalesce(sum(done), 0) AS done, coalesce(sum(failed), 0) AS failed, coalesce(sum(in_doubt), 0) AS in_doubt,"
        " coalesce(sum(requests), 0) AS requests, coalesce(sum(rejected), 0) AS rejected, coalesce(sum(earlier), 0) AS earlier,"
        " coalesce(sum(seconds), 0.0) AS seconds,"
        " coalesce(min(CASE WHEN ended_at > ? THEN began_at END), 0.0) AS began_at, coalesce(max(ended_at), 0.0) AS ended_at"
        " FROM boardclient_parts WHERE job {in ?}"
    )

    def read(connection: Connection) -> tuple[Any, Mapping[int, Mapping[str, int]], list[Any], int, int]:
        jobs = connection.fetch("SELECT job, audit, options FROM boardclient_jobs WHERE job {in ?}", numbers)
        audits, missing = [json.loads(one.audit or "{}") for one in jobs], sum(_missing(connection, one) for one in jobs)
        already = sum(_done_before(connection, found_jobs[job.name], job) for job in given)
        return connection.one(statement, planned_at, numbers), _unstored_counts(connection, numbers), audits, already, missing

    async with of_ledger(ledger, name) as (database, found_jobs):
        numbers = list(found_jobs.values())
        found, open_parts, audits, already, missing = await database.query(read)
    counts = {name: int(getattr(found, name)) for name in ("done", "failed", "in_doubt")}
    for of_part in open_parts.values():
        for state, number in of_part.items():
            # A part that is open has no stored counts: its rows are counted as they are.
            counts[state] += number
    audit, audit_error, probes = _audit_of(audits)
    seconds = max(0.0, float(found.ended_at) - max(float(found.began_at), planned_at))
    # A job that rests for days between its runs has no rate in wall time, so the time of its runs counts.
    seconds = float(found.seconds) if seconds > _LONGEST_SECONDS else seconds
    # Never below zero: where a `Job` brings its own number, rows may have been resolved otherwise since.
    created = max(0, counts["done"] - already)
    return BulkReport(
        created=created,
        already=min(already, counts["done"]),
        failed=counts["failed"],
        unknown=counts["in_doubt"],
        missing=missing,
        seconds=seconds,
        rate=created / seconds if seconds else 0.0,
        requests=_requests(found, given),
        rejected=max(0, int(found.rejected) - sum(job.rejected for job in given)),
        audit=audit,
        audit_error=audit_error,
        probes=probes,
    )


def _done_before(connection: Connection, number: int, job: Job) -> int:
    """Return how many rows of a job got their cards before it was planned or opened."""
    if not job.planned_at:  # an earlier version has planned it
        return job.already
    statement = "SELECT count(*) FROM boardclient_outcomes WHERE job = ? AND state = 'done' AND at < ?"
    return int(connection.value(statement, number, job.planned_at))


def _requests(found: Any, given: Sequence[Job]) -> int:
    """Return how many requests were sent. Of jobs that were planned, those of earlier runs are left out."""
    earlier = 0 if any(job.parts for job in given) else int(found.earlier)
    return max(0, int(found.requests) - sum(job.requests for job in given) + earlier)


def _missing(connection: Connection, job: Any) -> int:
    """Return how many of a job's announced rows no batch has brought since."""
    options = json.loads(job.options)
    since = options.get("since")
    return 0 if since is None else max(0, options["rows"] - count_delivered(connection, job.job, since))


def _audit_of(ends: Sequence[Mapping[str, Any]]) -> tuple[BulkAudit | None, BoardClientError | None, tuple[Card, ...]]:
    """Return the audit of several jobs, why there is none, and the probes that are left, as their ends have them."""
    # All or none: the audit of some jobs would look like one of all.
    audit = load_audit([end["audit"] for end in ends]) if ends and all("audit" in end for end in ends) else None
    failures = [end["audit_error"] for end in ends if "audit_error" in end]
    probes = tuple(card for end in ends for card in load_cards(end.get("probes", ())))
    return audit, BoardClientError(failures[0]) if failures else None, probes


def _unstored_counts(connection: Connection, jobs: list[int]) -> dict[int, dict[str, int]]:
    """Return the counts of open parts, which are not stored."""
    counts: dict[int, dict[str, int]] = {}
    for part, state, number in connection.fetch(_UNSTORED_COUNTS, jobs):
        name = "in_doubt" if state in IN_DOUBT else state
        if name in {"done", "failed", "in_doubt"}:
            of_part = counts.setdefault(int(part), dict.fromkeys(("done", "failed", "in_doubt"), 0))
            of_part[name] += int(number)
    return counts


@takes_location
async def status(ledger: Jobs, *, name: str | None = None) -> list[PartStatus]:
    """Return the progress of each part of a job, or of all jobs of the ledger, and who holds it.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    statement = (
        "SELECT part, job, key, state, owner, size, done, failed, in_doubt, seconds, {held} AS is_held,"
        " (SELECT j.owner FROM boardclient_jobs AS j WHERE j.job = boardclient_parts.job) AS reconciler"
        " FROM boardclient_parts WHERE job {in ?} ORDER BY job, part"
    )

    def read(connection: Connection) -> tuple[list[Any], dict[int, dict[str, int]]]:
        return connection.fetch(statement, [*names]), _unstored_counts(connection, [*names])

    async with of_ledger(ledger, name) as (database, found_jobs):
        names = {number: job for job, number in found_jobs.items()}
        found, open_parts = await database.query(read)
    return [_status_of(part, names[part.job], open_parts.get(part.part, {})) for part in found]


def _status_of(part: Any, job: str, counts: Mapping[str, int]) -> PartStatus:
    done, failed, in_doubt = ((getattr(part, name) or counts.get(name, 0)) for name in ("done", "failed", "in_doubt"))
    # Rows in doubt of a closed part are settled under the lease of the job, whose owner no other lease has.
    is_settled = part.in_doubt is not None and part.owner == part.reconciler
    return PartStatus(
        job=job,
        part=part.part,
        key=part.key,
        state="held" if part.is_held and not is_settled else part.state,
        owner=part.owner,
        rows=part.size,
        done=done,
        failed=failed,
        in_doubt=in_doubt,
        seconds=part.seconds,
        rate=done / part.seconds if part.seconds else 0.0,
    )


@takes_location
async def drain(ledger: Jobs, *, name: str | None = None) -> None:
    """Stop the workers of a job, or of all jobs of the ledger, once the rows in flight have results.

    New calls raise `JournalError` until `resume`.

    Raises:
        JournalError: the ledger can't be written, or has no such job.
    """
    await _set_draining(ledger, name, is_draining=1)


@takes_location
async def resume(ledger: Jobs, *, name: str | None = None) -> None:
    """Let a drained job, or all jobs of the ledger, take work again.

    Raises:
        JournalError: the ledger can't be written, or has no such job.
    """
    await _set_draining(ledger, name, is_draining=0)


async def _set_draining(ledger: Jobs, name: str | None, *, is_draining: int) -> None:
    statement = "UPDATE boardclient_jobs SET is_draining = ? WHERE job {in ?}"
    async with of_ledger(ledger, name) as (database, found):
        await database.change(lambda connection: connection.run(statement, is_draining, list(found.values())))


@contextlib.asynccontextmanager
async def of_ledger(ledger: Jobs, name: str | None) -> AsyncGenerator[tuple[Database, dict[str, int]], None]:
    """Open a ledger, and find the numbers of the named jobs, or of all, by their names."""
    wanted = [] if name is None else [name]
    if is_known := not isinstance(ledger, str | os.PathLike):
        given = _jobs_in(ledger)
        if not given:
            raise ValueError("no job was given")
        ledger, wanted = given[0].ledger, [job.name for job in given]
    place = checked_location(ledger)
    # SQLite would make an empty file of that name, and say that it has no such table.
    if "://" not in place and not _exists(place):
        raise JournalError(f"there is no ledger {place}: check the path")
    async with contextlib.aclosing(Database(place, is_known=is_known)) as database:
        await database.check(LEDGER)
        names = {row.name: int(row.job) for row in await database.read("SELECT name, job FROM boardclient_jobs ORDER BY job")}
        # The message names the jobs that there are: most often the name is mistyped.
        for one in set(wanted).difference(names):
            raise JournalError(f"the ledger {place} has no job {one!r}, but {', '.join(map(repr, names)) or 'none'}")
        yield database, {one: names[one] for one in wanted or names}


def _jobs_in(ledger: Jobs) -> list[Job]:
    """Return the jobs that a caller passed, none if it passed a ledger.

    Raises:
        TypeError: one is not a job.
    """
    if isinstance(ledger, str | os.PathLike):
        return []
    return [*map(check_job, ledger if isinstance(ledger, Iterable) else [ledger])]


def _exists(place: str) -> bool:
    return os.path.exists(place)  # in a function, since this one is not asynchronous


async def results(job: Job, *, is_problem: bool = False) -> AsyncGenerator[CardResult, None]:
    """Yield the result of each row of a job that is no longer waiting, part by part.

    No transaction is open meanwhile, so a slow loop keeps no worker waiting.

    Args:
        job: The job.
        is_problem: True for the rows that failed or are unknown, and no others.

    Raises:
        JournalError: the ledger can't be read.
    """
    async with of_ledger(check_job(job), None) as (database, names):
        async for index, row in _rows(database, names[job.name], is_problem=is_problem):
            # What was done before this plan was made is "already", whichever worker did it.
            is_earlier = row.state == "done" and row.at is not None and row.at < job.planned_at
            result = result_of(index, row.draft, row, is_earlier=is_earlier)
            if result.state == "unknown" and result.error is not None:
                explain(result.error, job, index if row.ref is None else row.ref, BY_RECONCILING)
            yield result


async def _rows(database: Database, job: int, *, is_problem: bool) -> AsyncGenerator[tuple[int, StoredRow], None]:
    """Yield the rows of a job that are not waiting, with their positions in the job. They are read in pages."""
    firsts = await firsts_of(database, job)
    if is_problem:
        for row in await database.query(lambda connection: problems_of(connection, job)):
            yield firsts[row.part] + row.seq % PLACES, row
        return
    after = -1
    # In pages, each in a transaction of its own: a loop that sends mails for each row must not keep a table locked.
    while page := await database.query(lambda connection: page_of(connection, job, _WITH_RESULT, after)):  # noqa: B023 -- awaited
        for row in page:
            yield firsts[row.part] + row.seq % PLACES, row
        after = page[-1].seq


async def firsts_of(database: Database, job: int) -> dict[int, int]:
    """Return the position of the first row of each part in the job."""
    sizes = await database.read("SELECT part, size FROM boardclient_parts WHERE job = ? ORDER BY part", job)
    return dict(zip((part.part for part in sizes), accumulate((part.size for part in sizes), initial=0), strict=False))


def result_of(index: int, draft: CardDraft, row: StoredRow, *, is_earlier: bool) -> CardResult:
    """Return the result of a row, as a run would yield it."""
    state, detail = row.outcome
    if state == "done":
        return CardResult(index=index, draft=draft, card=Card(detail), state="already" if is_earlier else "created")
    is_unknown = state in IN_DOUBT
    error = BoardClientError(detail, Effect.UNKNOWN if is_unknown else Effect.REJECTED)
    if is_unknown:
        error.candidates = tuple(card[0] for card in json.loads(row.resembling or "[]"))
    return CardResult(index=index, draft=draft, error=error, state="unknown" if is_unknown else "failed")


# --- rows that a person resolves


@takes_location
async def unknown_rows(ledger: Job | str | os.PathLike[str], *, name: str | None = None) -> list[UnknownRow]:
    """Return the rows of a job whose cards may exist, with the cards that may be theirs.

    The key of a row is its reference or, without one, its position in the job.

    Args:
        ledger: The job, or its ledger.
        name: The name of the job, if the ledger has several.

    Raises:
        JournalError: the ledger can't be read, has no such job, or several.
    """
    async with of_ledger(ledger, name) as (database, names):
        number = _only(names)
        return await _unknown(database, number)


async def _unknown(database: Database, job: int) -> list[UnknownRow]:
    rows = []
    (stored,) = await database.read("SELECT secret FROM boardclient_jobs WHERE job = ?", job)
    async for index, row in _rows(database, job, is_problem=True):
        if row.state in IN_DOUBT:
            key = index if row.ref is None else row.ref
            content, detail = Content.of(row.draft, None), row.outcome.detail
            marker = secret_marker(bytes(stored.secret), row.number)
            shown = JournalRow(seq=index + 1, key=key, content=content, state="unknown", detail=detail, marker=marker)
            rows.append(beside(shown, row.resembling))
    done = await database.read(DONE, job) if rows else []
    return suggested(rows, (row.detail for row in done))


@takes_location
async def accept_suggestions(ledger: Job | str | os.PathLike[str], *, name: str | None = None) -> list[UnknownRow]:
    """Accept the cards that are suggested for rows in doubt, and return the rows that are left.

    Args:
        ledger: The job, or its ledger.
        name: The name of the job, if the ledger has several.

    Raises:
        JournalError: the ledger can't be used, has no such job, or several, or a worker holds one of the rows.
    """
    for item in await unknown_rows(ledger, name=name):
        if item.suggestion is not None:
            await resolve(ledger, item.row.key, card_id=item.suggestion.card_id, name=name)
    return await unknown_rows(ledger, name=name)


@takes_location
async def resolve(
    ledger: Job | str | os.PathLike[str],
    row: int | str,
    *,
    card_id: str | None = None,
    absent: bool = False,
    name: str | None = None,
) -> bool:
    """Resolve a row whose card may exist, as `boardclient.bulk.resolve` does for journals.

    Look at the board first: an absent row is sent again without another check, by `reconcile`, by its part, or when its batch is
    delivered again. Another call can change the resolution.

    Args:
        ledger: The job, or its ledger.
        row: The row's reference, or its position in the job from 0, which is the `index` of its result.
        card_id: The identifier of its card.
        absent: True if there is no card.
        name: The name of the job, if the ledger has several.

    Returns:
        True if it is resolved now, False if it was resolved like this before.

    Raises:
        JournalError: the ledger can't be used, a worker holds the row, there is no such row in doubt, or the card belongs to
            another row.
        TypeError: `row` is neither a string nor a whole number.
        ValueError: neither or both of `card_id` and `absent` are given, or the identifier is unusable.
    """
    told = check_told(row, card_id, absent=absent)
    async with of_ledger(ledger, name) as (database, names):
        job = _only(names)
        # Only positions need it, and it reads all parts.
        firsts = await firsts_of(database, job) if isinstance(row, int) else {}

        def resolve(connection: Connection) -> bool:
            found = _found(connection, job, row, firsts)
            if found is None:
                raise JournalError(f"the ledger {database.where} has no row {row!r} that was sent")
            # The same again is no error: a person repeats a command line whose output was lost.
            if found.outcome == told:
                return False
            if (refusal := why_not_settled(connection, job, row, found, told, is_journal=False)) is not None:
                raise JournalError(refusal)
            lease = lease_parts(connection, job, [found.part], worker_name(), LEASE_SECONDS)
            if lease is None:
                raise JournalError(f"a worker has the row {row!r}, or its job is drained: try again later")
            settle(connection, job, found, told, connection.now())
            close_part(connection, found.part)
            # The audit was made before this was said, and would contradict it.
            connection.run("UPDATE boardclient_jobs SET audit = NULL WHERE job = ?", job)
            lease.end(connection)
            return True

        return await database.change(resolve)


def _only(names: Mapping[str, int]) -> int:
    if len(names) != 1:
        raise JournalError(f"the ledger has {len(names)} jobs: name one of {', '.join(map(repr, names)) or 'none'}")
    return next(iter(names.values()))


def _found(connection: Connection, job: int, row: int | str, firsts: Mapping[int, int]) -> StoredRow | None:
    """Return the row of a job that has a reference or a position."""
    if isinstance(row, str):
        return next(iter(rows_by_reference(connection, job, [row])), None)
    part = next((part for part, first in reversed([*firsts.items()]) if first <= row), None)
    if part is None:
        return None
    seq = first_of(part) + row - firsts[part]
    return next(iter(rows_by_number(connection, [seq])), None) if seq < 2**63 else None
