"""What a ledger says of its jobs: how far they are, their report, the result of each row. What ends them, and settles a row."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Final, TypeAlias

import attrs
import sqlalchemy as sa

from boardclient.bulk import BulkReport, CardResult
from boardclient.bulk._content import Content, IdSet
from boardclient.bulk._life import IN_DOUBT, check_row
from boardclient.bulk.journal import JournalRow, UnknownRow
from boardclient.distributed._parts import PartLedger, claim, is_free, worker_name
from boardclient.distributed._plan import Job, check_job
from boardclient.distributed._tables import CLOSING, State, count_of, jobs, load_audit, load_rows, parts, read_states
from boardclient.errors import BoardClientError, Effect, JournalError
from boardclient.models import Card, CardDraft, check_identifier
from boardclient.store._alchemy import Database, checked_location, takes_location

Jobs: TypeAlias = Job | Sequence[Job] | str | os.PathLike[str]
"""A job, several, or all of a ledger."""
_LEASE_SECONDS: Final = 30.0
"""How long a person's word on a row may take."""


@attrs.frozen(kw_only=True)
class PartStatus:
    """How far a part is. `part` is -1 for the closing part, which reconciles what the others left in doubt.

    Attributes:
        part: The number of the part.
        key: The key of its batch. Of a job that was planned, it is the number.
        job: The name of its job.
        state: "open", "held" by a worker, "consent" if it waits until the account's user signs in, or "done".
        owner: The worker that holds it, or held it last.
        rows: How many rows it has.
        done: How many of them have a card.
        failed: How many have none.
        in_doubt: How many may have one.
        seconds: How long its runs took.
        rate: How many cards they made in a second.
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
        ledger: A job, several of one ledger, or a ledger. Only jobs know which cards existed when they were planned: for a ledger
            all are "created".
        name: The name of a job of the ledger. None (default) stands for all.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    given = _jobs_in(ledger)
    already = sum(job.already for job in given)
    planned_at = min((job.planned_at for job in given), default=0.0)
    async with of_ledger(ledger, name) as (database, names):
        added = [sa.func.sum(parts.c[one]) for one in ("done", "failed", "in_doubt", "requests", "rejected")]
        is_counted = parts.c.ended_at > planned_at
        times = sa.func.min(parts.c.began_at).filter(is_counted), sa.func.max(parts.c.ended_at).filter(is_counted)
        columns = [sa.func.coalesce(column, 0) for column in (*added, *times)]
        (found,) = await database.read(sa.select(*columns).where(parts.c.job.in_(names)))
        done, failed, in_doubt, requests, rejected, began_at, ended_at = tuple(found)
        stored = await database.read(sa.select(jobs.c.audit).where(jobs.c.job.in_(names)))
    audits: list[dict[str, Any]] = [json.loads(one.audit or "{}") for one in stored]
    failures = [values.pop("audit_error") for values in audits if "audit_error" in values]
    left = [card for values in audits for card in values.pop("probes", [])]
    seconds = max(0.0, ended_at - max(began_at, planned_at))
    return BulkReport(
        created=int(done) - already,
        already=already,
        failed=int(failed),
        unknown=int(in_doubt),
        seconds=seconds,
        rate=(int(done) - already) / seconds if seconds else 0.0,
        requests=int(requests),
        rejected=int(rejected),
        audit=load_audit(audits) if audits and all(audits) else None,
        audit_error=BoardClientError(failures[0]) if failures else None,
        probes=tuple(Card(card_id, name, list_id=list_id) for _, card_id, name, list_id, *_ in left),
    )


@takes_location
async def status(ledger: Jobs, *, name: str | None = None) -> list[PartStatus]:
    """Return how far each part of a job is, or of all jobs of the ledger, and who holds it.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    async with of_ledger(ledger, name) as (database, names):
        is_held = sa.not_(is_free).label("is_held")
        columns = [column for column in parts.c if column.name not in {"rows", "digest"}]
        wanted = sa.select(*columns, is_held).where(parts.c.job.in_(names)).order_by(parts.c.job, parts.c.first)
        found = await database.read(wanted)
    return [
        PartStatus(
            job=part.job,
            part=part.part,
            key=part.key or str(part.part),
            state="held" if part.state == "open" and part.is_held else part.state,
            owner=part.owner,
            rows=part.size,
            done=part.done,
            failed=part.failed,
            in_doubt=part.in_doubt,
            seconds=part.seconds,
            rate=part.done / part.seconds if part.seconds else 0.0,
        )
        for part in found
    ]


@takes_location
async def drain(ledger: Jobs, *, name: str | None = None) -> None:
    """Let the workers of a job, or of all jobs of the ledger, end once their requests are completed.

    They learn of it within a quarter of their lease. No part is begun any more: `import_part` returns, and `import_batch` raises
    `JournalError` unless each row has a result. `plan` and `open_job` open a job again.

    Raises:
        JournalError: the ledger can't be written, or has no such job.
    """
    async with of_ledger(ledger, name) as (database, names):
        drained = jobs.update().where(jobs.c.job.in_(names)).values(is_draining=True)
        await database.change(lambda connection: connection.execute(drained))


@contextlib.asynccontextmanager
async def of_ledger(ledger: Jobs, name: str | None) -> AsyncGenerator[tuple[Database, list[str]], None]:
    """Open a ledger, and find jobs in it, or all."""
    wanted = [] if name is None else [name]
    if is_known := not isinstance(ledger, str | os.PathLike):
        given = _jobs_in(ledger)
        if not given:
            raise ValueError("no job was given")
        ledger, wanted = given[0].ledger, [job.name for job in given]
    place = checked_location(ledger)
    if "://" not in place and not _exists(place):
        raise JournalError(f"there is no ledger {place}: check the path")
    async with contextlib.aclosing(Database(place, is_known=is_known)) as database:
        await database.check()
        names = [found.job for found in await database.read(sa.select(jobs.c.job))]
        for one in set(wanted).difference(names):
            raise JournalError(f"the ledger {place} has no job {one!r}, but {', '.join(map(repr, names)) or 'none'}")
        yield database, wanted or names


def _jobs_in(ledger: Jobs) -> list[Job]:
    """Return the jobs that a caller names, none if it names a ledger.

    Raises:
        TypeError: there is something else among them.
    """
    if isinstance(ledger, str | os.PathLike):
        return []
    return [*map(check_job, ledger if isinstance(ledger, Iterable) else [ledger])]


def _exists(place: str) -> bool:
    return os.path.exists(place)  # in a function, since this one is not asynchronous


async def results(job: Job, *, is_problem: bool = False) -> AsyncGenerator[CardResult, None]:
    """Yield what became of each row of a job that a worker has taken up and not given back, part by part.

    Take as long as you like for each: nobody waits for you.

    Args:
        job: The job.
        is_problem: True for those that failed or are unknown, and no others.

    Raises:
        JournalError: the ledger can't be read.
    """
    async with contextlib.aclosing(_results(job, is_problem=is_problem)) as found:
        async for result, _ in found:
            yield result


async def _results(job: Job, *, is_problem: bool) -> AsyncGenerator[tuple[CardResult, str | None], None]:
    """Yield what became of each row, and the key of its batch if the row is alone in it."""
    async with contextlib.aclosing(Database(check_job(job).ledger, is_known=True)) as database:
        states = await read_states(database, job.name)
        before = await read_states(database, job.name, until=job.since)
        columns, after = (parts.c.part, parts.c.first, parts.c.size, parts.c.rows, parts.c.key), -1
        wanted = (parts.c.job == job.name) & ((parts.c.failed + parts.c.in_doubt if is_problem else parts.c.size) > 0)
        while page := await database.read(
            sa.select(*columns).where(wanted, parts.c.first > after).order_by(parts.c.first).limit(1)
        ):
            (part,) = page
            after = part.first
            for seq, draft in load_rows(job.name, part):
                if seq in states and not (is_problem and states[seq][0] == "done"):
                    is_earlier = before.get(seq, ("",))[0] == "done"
                    yield result_of(seq - 1, draft, states[seq], is_earlier=is_earlier), _key_of_row(part)


def result_of(index: int, draft: CardDraft, known: State, *, is_earlier: bool) -> CardResult:
    """Return what became of a row, as a run would."""
    state, detail = known
    if state == "done":
        return CardResult(index=index, draft=draft, card=Card(detail), state="already" if is_earlier else "created")
    is_unknown = state in IN_DOUBT
    error = BoardClientError(detail, Effect.UNKNOWN if is_unknown else Effect.REJECTED)
    return CardResult(index=index, draft=draft, error=error, state="unknown" if is_unknown else "failed")


def _key_of_row(part: Any) -> str | None:
    key: str | None = part.key if part.size == 1 else None
    return key


# --- rows that a person settles, since nothing proves whether their cards exist


@takes_location
async def unknown_rows(ledger: Job | str | os.PathLike[str], *, name: str | None = None) -> list[UnknownRow]:
    """Return the rows of a job whose cards may exist. A ledger knows no candidates: the detail of a row names similar cards.

    The key of a row is its reference. Without one it is the key of its batch, such as that of `cards.create(reference=)`, if the
    row is alone in it, and otherwise its position in the job.

    Args:
        ledger: The job, or its ledger.
        name: The name of the job, if the ledger has several.

    Raises:
        JournalError: the ledger can't be read, has no such job, or several.
    """
    async with of_ledger(ledger, name) as (database, names):
        job = Job(ledger=database.where, name=_only(names), board_id="")
    return [_unknown(*found) async for found in _results(job, is_problem=True) if found[0].state == "unknown"]


def _unknown(result: CardResult, key_of_batch: str | None) -> UnknownRow:
    key = next((one for one in (result.draft.reference, key_of_batch) if one is not None), result.index)
    content, detail = Content.of(result.draft, None), str(result.error)
    row = JournalRow(seq=result.index + 1, key=key, content=content, marker="", run=0, state="unknown", detail=detail)
    return UnknownRow(row=row)


@takes_location
async def resolve(
    ledger: Job | str | os.PathLike[str],
    row: int | str,
    *,
    card_id: str | None = None,
    absent: bool = False,
    name: str | None = None,
) -> bool:
    """Resolve a row by hand whose card may exist, as `boardclient.bulk.resolve` does for journals.

    Look at the board first: an absent row is sent again without further questions, by `reconcile`, by its batch if that is
    delivered again, or by its part.

    Args:
        ledger: The job, or its ledger.
        row: The row's reference, the key of its batch if it is alone in it, such as the reference of `cards.create`, or its
            position in the job, from 0, as results have it.
        card_id: The identifier of its card.
        absent: True if there is no card.
        name: The name of the job, if the ledger has several.

    Returns:
        True if it is resolved now, False if it had this card before.

    Raises:
        JournalError: the ledger can't be used, a worker is settling its rows, it has no such row in doubt, or the card is another
            row's. Or several rows have the reference or the key: name one by its position.
        TypeError: `row` is neither a string nor a whole number.
        ValueError: neither or both of `card_id` and `absent` are given, or the identifier is unusable.
    """
    check_row(row)
    if (card_id is None) is not absent:
        raise ValueError("give either card_id or absent=True")
    told: State = ("waiting", "") if card_id is None else ("done", check_identifier(card_id, "card_id"))
    async with of_ledger(ledger, name) as (database, names):
        job = _only(names)
        lease = await claim(database, job, CLOSING, worker_name(), _LEASE_SECONDS, condition=sa.true())
        if lease is None:
            raise JournalError(f"a worker settles the rows of {job!r}, or the job is drained: try again later")
        try:
            states = await read_states(database, job)
            seq, part = await _found(database, job, row, states)
            if states[seq] == told:
                return False
            if count_of(states[seq]) != "in_doubt":
                raise JournalError(f"the row {row!r} of {job!r} is {states[seq][0]}, not in doubt")
            if told in states.values():
                raise JournalError(f"the card {card_id} is that of another row")
            await PartLedger(database, lease, [], states, secret=b"", baseline=IdSet()).settle(seq, part, told)
        finally:
            if not lease.is_returned:
                await lease.give_back(database)
    return True


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise JournalError(f"the ledger has {len(names)} jobs: name one of {', '.join(map(repr, names)) or 'none'}")
    return names[0]


async def _found(database: Database, job: str, row: int | str, states: dict[int, State]) -> tuple[int, int]:
    """Return the number and the part of a row that was sent, and that no worker is sending.

    Raises:
        JournalError: there is none, or several have the reference or the key, such as rows of different batches.
    """
    is_idle = is_free | (parts.c.part == CLOSING)
    columns = parts.c.part, parts.c.first, parts.c.size, parts.c.rows, parts.c.key
    wanted = sa.select(*columns, is_idle.label("is_idle")).where(parts.c.job == job)
    found = [
        (seq, part)
        for part in await database.read(wanted.order_by(parts.c.first))
        for seq, draft in load_rows(job, part)
        if seq in states and row in ((draft.reference, _key_of_row(part)) if isinstance(row, str) else (seq - 1,))
    ]
    if len(found) > 1:
        positions = ", ".join(str(seq - 1) for seq, _ in found)
        raise JournalError(
            f"{len(found)} rows of {job!r} have the reference or key {row!r}: name one by its position ({positions})"
        )
    idle = [(seq, part.part) for seq, part in found if part.is_idle]
    if not idle:
        raise JournalError(f"the job {job!r} has no row {row!r} that was sent, or a worker is sending it")
    return idle[0]
