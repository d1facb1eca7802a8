"""The work on a job: a part, a batch, and what settles the rows in doubt. All three are a run on a part that the worker holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final, TypeVar

import attrs
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from boardclient import AsyncSession
from boardclient._guards import check_notified
from boardclient._interface import _operations as operations
from boardclient._interface._responses import moment_in
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk import BulkReport, BulkRun, CardResult
from boardclient.bulk._life import IN_DOUBT
from boardclient.bulk._results import MOST_PROBLEMS
from boardclient.bulk._run import check_count, check_patience, make_options
from boardclient.distributed import _parts
from boardclient.distributed._parts import (
    COMMIT_SIZE,
    HeldElsewhereError,
    LeaseLostError,
    PartLease,
    PartLedger,
    claim,
    is_free,
    is_open,
    log_first,
    of_part,
    take,
    worker_name,
)
from boardclient.distributed._plan import Job, check_job, check_text, enter_job, job_for_batches
from boardclient.distributed._status import report as report_of
from boardclient.distributed._status import result_of
from boardclient.distributed._status import results as results_of
from boardclient.distributed._tables import (
    CLOSING,
    State,
    digest_rows,
    dump_audit,
    dump_drafts,
    jobs,
    load_rows,
    parts,
    read_states,
)
from boardclient.distributed._worker import BoundJob, Worker, run_here, worker_for
from boardclient.errors import BoardClientError, ConsentRequired, JournalError
from boardclient.events import BulkProgress
from boardclient.models import Card, CardDraft, DraftLike, as_draft, check_seconds
from boardclient.store._alchemy import Database, checked_location

R = TypeVar("R")

_AT_ONCE: Final = 2
"""How many rows of its own the closing part sends while rows are in doubt. A worker that is killed then leaves them in doubt, and
others are needed."""
_POLL_SECONDS: Final = 0.5
_MOST_LOSSES: Final = 10
"""How often a call may lose its part before it ends."""
_FEW: Final = 32
"""A run with so many rows has a worker for each."""

_others: Final = parts.alias()
_is_waited_for: Final = (_others.c.job == parts.c.job) & (_others.c.part != CLOSING) & (_others.c.state != "done")
_has_failed: Final = is_open | (parts.c.failed > 0)
_any: Final = sa.true()
_is_last: Final = is_open & sa.not_(sa.exists().where(_is_waited_for))
"""When the closing part is taken: once no other part is open. `_any` takes a part that is done as well."""

Progress = Callable[[BulkProgress], object]


@attrs.frozen
class WorkOptions:
    """How a worker works: the options of `import_part` and `reconcile`, which describe them, with their checks."""

    concurrency: int | None = None
    lease: float = 30.0
    patience: float | None = None
    on_progress: Progress | None = None
    probe: bool = True

    def __attrs_post_init__(self) -> None:
        check_count(self.concurrency, "concurrency")
        if not 0 < check_seconds(self.lease, "lease") < math.inf:
            raise ValueError("lease must be more than 0 seconds, and finite")
        check_patience(self.patience)
        if self.on_progress is not None:
            check_notified(self.on_progress, "on_progress")


_OF_ONE: Final = WorkOptions(lease=10.0)
"""The card of a reference belongs to a process that was killed no longer, since a host waits for the next call."""


async def import_part(
    job: Job,
    part: int,
    *,
    session: AsyncSession | None = None,
    concurrency: int | None = None,
    lease: float = 30.0,
    patience: float | None = None,
    probe: bool = True,
    on_progress: Progress | None = None,
) -> None:
    """Create the cards of a part, and settle the whole job if it is the last one.

    It can be called any number of times, anywhere and at once: one worker holds a part, others wait until it is done or its
    lease has ended. A worker that is suspended for longer sends nothing when it wakes up.

    Args:
        job: The job, as `plan` returned it.
        part: One of `job.parts`.
        session: The session to use. By default one is made by `AsyncSession.from_env()`, so that no credential travels. For a job
            with an account it signs with the token that `SqlTokenStore` has for it in the ledger's database, and renews it as
            `BOARDCLIENT_CLIENT_ID` and the other variables of `SignIn.from_env` say. If it has no limiter, all workers with this
            account share one pace.
        concurrency: As in `create_many`.
        lease: The seconds after which the part of a worker that has died is taken over.
        patience: How many seconds in a row it may wait for a service that accepts nothing, for a pause that the service asks for,
            or for another worker. Then the part is given back, and the error's `retry_at` says when to call again, if that is
            known. None (default): as long as it takes.
        probe: As in `create_many`, for the rows that are settled at the end of the job.
        on_progress: Called with the progress of the part.

    Raises:
        TypeError: `lease` or `patience` is no number.
        ValueError: `concurrency`, `lease` or `patience` is out of range.
        JournalError: the ledger can't be used, or belongs to another service or account, or the job has no such part.
        ConsentRequired: the account's user has to sign in. The part is given back, and another call resumes it.
        BoardClientError: the run of the part ended early. Another call resumes it.
    """
    options = WorkOptions(concurrency, lease, patience, on_progress, probe)
    if not isinstance(part, int):
        raise TypeError(f"part must be a number, not {type(part).__name__}")
    if isinstance(part, bool) or part not in {CLOSING, *check_job(job).parts}:
        raise _no_part(job, part)
    async with _task(job, session, options) as task:
        if part != CLOSING:
            await task.hold(part, task.run_part)
        await task.settle()


def import_part_now(job: Job, part: int, **options: Any) -> None:
    """Create the cards of a part, as `import_part` does, from a plain function.

    Raises:
        RuntimeError: an event loop runs in this thread.
    """
    _now(import_part, job, part, **options)


def import_batch_now(job: Job, key: str, rows: Iterable[DraftLike], **options: Any) -> BulkReport:
    """Create the cards of a batch once, as `import_batch` does, from a plain function.

    Raises:
        RuntimeError: an event loop runs in this thread.
    """
    return _now(import_batch, job, key, rows, **options)


def _now(work: Callable[..., Coroutine[Any, Any, R]], *given: Any, **options: Any) -> R:
    if asyncio._get_running_loop() is not None:
        name = work.__name__
        raise RuntimeError(f"{name}_now can't run where an event loop runs: await {name}(…) instead")
    return run_here(work(*given, **options))


async def import_batch(
    job: Job,
    key: str,
    rows: Iterable[DraftLike],
    *,
    session: AsyncSession | None = None,
    concurrency: int | None = None,
    lease: float = 30.0,
    patience: float | None = None,
    on_progress: Progress | None = None,
) -> BulkReport:
    """Create the cards of a batch once, however often and wherever it is called.

    The first call with a key stores the rows, and later ones resume it. On return the ledger owns them: each has a card, failed,
    or is in doubt until `reconcile` settles it. They need not be delivered again. If several calls have the same
    key at once, one of them works, and the others wait for its result. A later call sends failed rows again, if the board shows
    no cards of theirs.

    Args:
        job: The job, as `open_job` returned it.
        key: What is the same each time these rows are delivered, such as the number of a partition.
        rows: The cards to create, as in `create_many`.
        session: As in `import_part`.
        concurrency: As in `create_many`.
        lease: The seconds after which the batch of a worker that has died is taken over.
        patience: As in `import_part`.
        on_progress: Called with the progress of the batch.

    Returns:
        The report of these rows. Rows that an earlier call has created are "already".

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.
        JournalError: the ledger can't be used, belongs to another service or account, is drained, or has other rows for the key.
        ConsentRequired: the account's user has to sign in. Another call resumes the batch.
        BoardClientError: the run ended early. Another call resumes the batch.
    """
    return (await run_batch(job, key, rows, session, WorkOptions(concurrency, lease, patience, on_progress)))[0]


async def run_batch(
    job: Job, key: str, rows: Iterable[DraftLike], session: AsyncSession | Pipeline | None, options: WorkOptions
) -> tuple[BulkReport, list[CardResult]]:
    """Do what `import_batch` does, and return the results as well."""
    check_text(key, "key")
    drafts = [as_draft(row, f"row {index}") for index, row in enumerate(rows)]
    async with _task(job, session, options) as task:
        part, new = await task.store(key, drafts)
        found = None
        if part.state != "done" or part.failed:  # rows that fail while this call waits for another one are not sent by it
            condition = _has_failed if part.state == "done" else is_open
            found = await task.hold(part.part, task.run_part, first=new, condition=condition)
        return found or await task.known(part, drafts)


async def reconcile(job: Job, *, session: AsyncSession | None = None, probe: bool = True) -> BulkReport:
    """Settle the rows of a job that are in doubt, and audit the whole. Call it at any time, as often as you like.

    Parts and batches whose workers have died are completed first. Then rows in doubt are settled by the rules of `create_many`
    with `unknown="reconcile"`: found, or proven absent and sent, or unknown.

    Args:
        job: The job, as `open_job` or `plan` returned it.
        session: As in `import_part`.
        probe: As in `create_many`.

    Returns:
        The report of the job. Its `problems` are the rows that failed or are unknown, its `audit` what the board showed.

    Raises:
        JournalError: the ledger can't be used, belongs to another service or account, or the job is drained.
        ConsentRequired: the account's user has to sign in.
        BoardClientError: the board could not be read, or a run ended early. Another call continues.
    """
    return await reconcile_by(job, session, probe=probe)


async def reconcile_by(job: Job, session: AsyncSession | Pipeline | None, *, probe: bool) -> BulkReport:
    """Do what `reconcile` does, by a session or what makes its calls."""
    async with _task(job, session, WorkOptions(probe=probe)) as task:
        await task.complete_abandoned()
        settled = await task.settle(condition=_any)
    if settled is None:
        raise task.drained()
    problems, failure = [result async for result in results_of(job, is_problem=True)], settled.audit_error
    if failure is not None:
        for error in [result.error for result in problems if result.error is not None and result.state == "unknown"]:
            error.retry_at = failure.retry_at
    found = await report_of(job)
    return attrs.evolve(
        found,
        problems=tuple(problems[:MOST_PROBLEMS]),
        audit_error=failure or found.audit_error,
        probes=settled.probes,
    )


async def create_once(
    pipeline: Pipeline,
    draft: CardDraft,
    board_id: str,
    reference: str,
    ledger: str | os.PathLike[str],
    *,
    settle: float | None,
    probe: bool,
) -> Card:
    """Create the card of a reference as a batch of one, or return it."""
    check_text(reference, "reference")
    job, options = job_for_batches(board_id, checked_location(ledger), settle=settle)
    async with worker_for(job.ledger, creates=True) as worker:
        if (job.name, options) not in worker.opened:
            await enter_job(worker.database, job, options)
            worker.opened.add((job.name, options))
        _, (result,) = await run_batch(job, reference, [draft], pipeline, attrs.evolve(_OF_ONE, probe=probe))
        if result.state == "unknown":  # pragma: no branch -- coverage loses track of a frame that waits for greenlets
            failure, found = result.error, await reconcile_by(job, pipeline, probe=probe)
            _, (result,) = await run_batch(job, reference, [draft], pipeline, attrs.evolve(_OF_ONE, probe=probe))
            _complete(result.error, found, failure)
    if result.card is None:
        assert result.error is not None  # noqa: S101 -- it has one of both
        raise result.error
    if result.state != "created":
        with contextlib.suppress(BoardClientError):  # it would say that nothing was created
            shown = await pipeline.call(operations.READ_CARD.request(result.card.id))
            if shown.id == result.card.id:
                return shown
    return result.card


def _complete(error: BoardClientError | None, found: BulkReport, failure: BoardClientError | None) -> None:
    """Name the cards that may be that of a row, by the report of the whole job, and say when to come again."""
    if error is None:
        return
    if found.audit is not None:
        error.candidates = tuple(card.id for card in found.audit.resembling if card.id in str(error))
    error.retry_at = (found.audit_error or failure or error).retry_at


# --- calls, and what they hold


@contextlib.asynccontextmanager
async def _task(job: Job, session: AsyncSession | Pipeline | None, options: WorkOptions) -> AsyncGenerator[_Task, None]:
    async with worker_for(check_job(job).ledger) as worker:
        try:
            pipeline = worker.pipeline(job, session)
            bound = await worker.bind(job, pipeline)
            yield _Task(worker=worker, job=job, pipeline=pipeline, bound=bound, options=options)
        except ConsentRequired:  # all parts wait for the user: the next call that runs one opens it
            waiting = (parts.c.job == job.name) & (parts.c.state == "open") & is_free
            parked = parts.update().where(waiting).values(state="consent")
            await worker.database.change(lambda connection: connection.execute(parked))
            raise


@attrs.frozen(kw_only=True)
class _Task:
    """The call of a worker for a job."""

    worker: Worker
    job: Job
    pipeline: Pipeline
    bound: BoundJob
    options: WorkOptions
    owner: str = attrs.field(factory=worker_name)

    @property
    def database(self) -> Database:
        return self.worker.database

    async def hold(
        self,
        part: int,
        work: Callable[[PartLease], Awaitable[R]],
        *,
        first: PartLease | None = None,
        condition: sa.ColumnElement[bool] = is_open,
    ) -> R | None:
        """Hold a part and do some work, again if the part is lost. Wait while another worker has it.

        Return what the work returned, None if there was nothing to do.

        Raises:
            HeldElsewhereError: another worker has the part for longer than the call may wait.
            LeaseLostError: the part was lost again and again: the lease is too short for this machine.
        """
        loop, since, losses = asyncio.get_running_loop(), None, 0
        waits = condition is _is_last
        may_be_free = not waits  # the closing part is mostly not: it waits for others
        while True:
            held, first = first, None
            if may_be_free:
                held = held or await claim(
                    self.database, self.job.name, part, self.owner, self.options.lease, condition=condition
                )
            may_be_free = True
            # Four cases: this call has the part, nothing is left to do, another worker has it, or it has just become free.
            if held is not None:
                since = None
                try:
                    return await self.work_on(held, work)
                except LeaseLostError as lost:  # another worker may have it now, or this one takes it again
                    losses += 1
                    if losses == _MOST_LOSSES or lost.part != part:
                        raise
            elif (rest := await self.rest(part, condition)) is None:
                return None
            elif rest > 0:
                since, pause = since or loop.time(), min(_POLL_SECONDS, self.options.lease / 4)
                if self.options.patience is not None and loop.time() + pause - since > self.options.patience:
                    error = HeldElsewhereError(f"another worker has part {part} of {self.job.name!r}")
                    error.retry_at = moment_in(rest)
                    raise error
                await asyncio.sleep(pause)
            if condition is _has_failed:  # once: what another worker has done since is the result
                condition = is_open

    async def work_on(self, held: PartLease, work: Callable[[PartLease], Awaitable[R]]) -> R:
        """Do some work with a part, and give it back."""
        try:
            with self.worker.heartbeat.keep(held, held.drain):
                return await work(held)
        finally:
            if not held.is_returned:
                with contextlib.suppress(JournalError):  # then it ends by itself
                    await held.give_back(self.database)

    async def rest(self, part: int, condition: sa.ColumnElement[bool]) -> float | None:
        """Return how many seconds another worker may keep a part, or None if there is nothing to do for this one."""
        found = await self.database.read(_rest(condition is _is_last), of_job=self.job.name, of_part=part)
        if not found:
            raise _no_part(self.job, part)
        (known,) = found
        is_over = known.state == "done" and condition is not _any
        return None if is_over or known.is_draining or known.waits else max(0.0, float(known.rest))

    async def run_part(self, held: PartLease) -> tuple[BulkReport, list[CardResult]] | None:
        """Run a part that this worker holds, and close it. Rows in doubt are left to the closing part.

        If some were refused before, the board is read, and the rows in doubt are settled with them. Return None if the job was
        drained before every row had a result.
        """
        states = {} if held.epoch == 1 else await read_states(self.database, self.job.name, held.part)
        entries = load_rows(self.job.name, held)
        ledger = self.ledger(held, entries, states)
        lists = {draft.list_id for _, draft in entries}
        # The lists of the board are read by the run, unless all are known.
        board_id = None if lists <= self.bound.lists else self.job.board_id
        run = partial(self.carry_out, held, ledger, board_id=board_id, unknown="report", settle=None)
        if held.failed:
            settle = await self.settle_seconds()
            run = partial(self.carry_out, held, ledger, board_id=self.job.board_id, unknown="reconcile", settle=settle)
            # Only the holder of the closing part settles rows.
            ended = await self.hold(CLOSING, lambda closing: run(), condition=_any)
            if ended is None:
                return None
            report, results = ended
        else:
            report, results = await run()
        self.bound.lists |= lists - {result.draft.list_id for result in report.problems}
        return (report, results) if len(results) == len(entries) else None

    async def settle(self, *, condition: sa.ColumnElement[bool] = _is_last) -> BulkReport | None:
        """Run the closing part until nothing is kept back. Return the report of its last run, None if there is nothing to do."""
        while True:
            closed = await self.hold(CLOSING, self.close, condition=condition)
            if closed is None:
                return None
            is_complete, of_run = closed
            if is_complete:
                return of_run

    async def settle_seconds(self) -> float | None:
        """Return `settle` of the job, which may be another than when it was planned."""
        (found,) = await self.database.read(sa.select(jobs.c.options).where(jobs.c.job == self.job.name))
        settle: float | None = json.loads(found.options)["settle"]
        return settle

    async def close(self, held: PartLease) -> tuple[bool, BulkReport]:
        """Run the closing part: settle the rows in doubt of all parts, but for those that other workers hold.

        It looks for the cards of rows that have failed, since a service may have done what it refused, and sends none of them. It
        keeps rows back for another run while there are rows in doubt. Return False if there are some, and the report of the run.
        """
        database, job = self.database, self.job
        has_some = (parts.c.state == "done") & (parts.c.failed + parts.c.in_doubt > 0)
        of_run, sought = (parts.c.part == CLOSING) | has_some, {"failed", *IN_DOUBT}
        columns = parts.c.part, parts.c.first, parts.c.rows, jobs.c.options
        wanted = sa.select(*columns).join_from(parts, jobs, parts.c.job == jobs.c.job).where(parts.c.job == job.name, of_run)
        entries: list[tuple[int, CardDraft]] = []
        owners: dict[int, int] = {}
        has_doubts = False
        found = await database.read(wanted.order_by(parts.c.first))
        states = await read_states(database, job.name)  # after the parts: a row of one that is done is no longer being sent
        for part in found:
            for seq, draft in load_rows(job.name, part):
                state = states.get(seq, ("",))[0]
                if part.part == CLOSING or state in sought:
                    entries.append((seq, draft))
                    owners[seq] = part.part
                    has_doubts = has_doubts or state in IN_DOUBT
        new = [seq for seq in held.numbers if seq not in states]
        kept = {*new[_AT_ONCE:]} if has_doubts else set()
        ledger = self.ledger(held, [entry for entry in entries if entry[0] not in kept], states)
        ledger.owners = owners
        settle = json.loads(found[0].options)["settle"]  # the job's, which may be another one than when it was planned
        options = {"board_id": job.board_id, "unknown": "reconcile", "settle": settle, "probe": self.options.probe}
        report, _ = await self.carry_out(held, ledger, is_open=bool(kept), resends=False, **options)
        return not kept and held.is_returned, report

    def ledger(self, held: PartLease, entries: Sequence[tuple[int, CardDraft]], states: dict[int, State]) -> PartLedger:
        bound = self.bound
        of_job: dict[str, Any] = {"secret": bound.secret, "baseline": bound.baseline, "listed_before": bound.listed_before}
        return PartLedger(self.database, held, entries, states, **of_job)

    async def carry_out(
        self, held: PartLease, ledger: PartLedger, *, unknown: str, is_open: bool = False, resends: bool = True, **given: Any
    ) -> tuple[BulkReport, list[CardResult]]:
        """Run rows, and record the end of their part."""
        drafts = [draft for _, draft in ledger.entries]
        concurrency = self.options.concurrency or (max(1, len(drafts)) if len(drafts) <= _FEW else None)
        given |= {"concurrency": 1 if held.commit_size == 1 else concurrency, "marker": self.bound.marker or None}
        options = make_options(self.pipeline, journal=None, unknown=unknown, **given)
        watch = _Watch(self)
        listeners = [watch.on_progress] if self.options.on_progress is None else [watch.on_progress, self.options.on_progress]
        run = watch.run = BulkRun(self.pipeline, drafts, attrs.evolve(options, ledger=ledger, resends=resends), listeners)
        ledger.report, held.on_drain = (lambda: run.report), run.stop
        if held.is_draining:  # since before it had a run
            run.stop()
        async with watch, run:
            results = [result async for result in run]
            if watch.error is not None:
                raise watch.error
            if not held.is_draining:
                audit = dump_audit(run.report) if not (resends or is_open) else None
                await ledger.finish(state="open" if is_open else "done", audit=audit)
        return run.report, results

    async def store(self, key: str, drafts: Sequence[CardDraft]) -> tuple[Any, PartLease | None]:
        """Store a batch, take it, and log its first rows, all in one, unless it is there.

        Return its part, and the lease if it is new.

        Raises:
            JournalError: the ledger has other rows for the key, or the job takes no batches.
        """
        began, job, digest = _parts._now(), self.job.name, digest_rows(drafts).hexdigest()
        values: dict[str, Any] = {"of_job": job, "new_key": key, "new_digest": digest, "new_rows": dump_drafts(drafts)}
        values |= {"new_size": len(drafts), "new_owner": self.owner, "for_seconds": self.options.lease}
        values["new_in_doubt"] = min(len(drafts), COMMIT_SIZE)  # those that are logged below

        def store(connection: sa.Connection) -> tuple[Any, PartLease | None]:
            found = connection.execute(_new_batch(self.database.is_file), values).one_or_none()
            if found is None:
                known = sa.select(parts).where(parts.c.job == job, parts.c.key == key)
                found = connection.execute(known).one_or_none()
                # The end of an earlier transaction may have been lost.
                if found is None or (found.owner, found.epoch) != (self.owner, 1):
                    return found, None
            return found, PartLease.of(job, found, began, self.options.lease, log_first(connection, found))

        while True:
            found, lease = await take(self.database, store, itemgetter(1))
            if found is None:
                await self.refuse_batches()  # if it takes them, another batch came at the same moment, and got the number
                continue
            if found.digest != digest:
                stored = [draft for _, draft in load_rows(job, found)]
                raise JournalError(f"the ledger {self.job.ledger} has other rows for {key!r}: {_difference(stored, drafts)}")
            return found, lease

    async def refuse_batches(self) -> None:
        (job,) = await self.database.read(sa.select(jobs.c.digest, jobs.c.is_draining).where(jobs.c.job == self.job.name))
        if job.digest is not None:
            raise JournalError(f"the rows of {self.job.name!r} were planned: open a job with another name for batches")
        if job.is_draining:
            raise self.drained()

    def drained(self) -> JournalError:
        return JournalError(f"the job {self.job.name!r} is drained: open_job or plan opens it again")

    async def known(self, part: Any, drafts: Sequence[CardDraft]) -> tuple[BulkReport, list[CardResult]]:
        """Return what became of a batch that another call has completed.

        Raises:
            JournalError: the job was drained before.
        """
        first, states = part.first, await read_states(self.database, self.job.name, part.part)
        if any(first + index not in states for index in range(1, len(drafts) + 1)):
            raise self.drained()
        results = [result_of(n, draft, states[first + 1 + n], is_earlier=True) for n, draft in enumerate(drafts)]
        counts: Counter[str] = Counter(result.state for result in results)
        problems = tuple(result for result in results if result.error is not None)[:MOST_PROBLEMS]
        report = BulkReport(already=counts["already"], failed=counts["failed"], unknown=counts["unknown"], problems=problems)
        return report, results

    async def complete_abandoned(self) -> None:
        """Complete the parts that workers have begun and no longer hold."""
        columns = is_free, parts.c.epoch > 0, parts.c.part != CLOSING, is_open
        wanted = sa.select(parts.c.part).where(parts.c.job == self.job.name, *columns).order_by(parts.c.part)
        task = attrs.evolve(self, options=attrs.evolve(self.options, patience=0.0))
        for (part,) in await self.database.read(wanted):
            with contextlib.suppress(HeldElsewhereError):
                await task.hold(part, self.run_part)


@attrs.define
class _Watch:
    """Ends a run whose user has to sign in, or that waits for longer than its call may."""

    task: _Task
    run: BulkRun | None = None
    error: BoardClientError | None = None
    _since: float | None = None
    _timer: asyncio.TimerHandle | None = None

    def on_progress(self, progress: BulkProgress) -> None:
        """Look at the progress of the run."""
        if progress.waiting_for == "consent":
            self._end(ConsentRequired(f"the account of {self.task.job.name} has to sign in", self.task.job.account or ""))

    def _end(self, error: BoardClientError) -> None:
        assert self.run is not None  # noqa: S101 -- entered with its run
        self.error = self.error or error
        self.run.stop()

    def _look(self, patience: float) -> None:
        """Look whether the run waits, some times in the seconds that it may."""
        assert self.run is not None  # noqa: S101 -- entered with its run
        loop, progress = asyncio.get_running_loop(), self.run.progress
        is_waiting = progress.waiting_for in {"outage", "retry-after", "refusals"} and progress.phase != "waiting"
        self._since = (self._since or loop.time()) if is_waiting else None
        if self._since is not None:
            rest = patience - (loop.time() - self._since)
            ends_at = progress.wait_ends_at
            seconds = 0.0 if ends_at is None else (ends_at - datetime.now(UTC)).total_seconds()
            if max(seconds, 1e-3) > rest:
                error = BoardClientError(f"{progress.status}: the part is given back")
                error.retry_at = ends_at
                self._end(error)
                return
        self._timer = loop.call_later(max(0.01, min(_POLL_SECONDS, patience / 4)), self._look, patience)

    async def __aenter__(self) -> None:
        if self.task.options.patience is not None:
            self._look(self.task.options.patience)

    async def __aexit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _no_part(job: Job, part: object) -> JournalError:
    return JournalError(f"the job {job.name!r} has no part {part}")


@cache
def _rest(waits: bool) -> sa.Executable:
    """Return the statement that reads how long a part may be kept, and whether it waits for others."""
    waiting = sa.exists().where(_is_waited_for) if waits else sa.false()
    rest = (parts.c.lease_until - Database.clock).label("rest")
    wanted = sa.select(parts.c.state, jobs.c.is_draining, waiting.label("waits"), rest)
    return wanted.join_from(parts, jobs, parts.c.job == jobs.c.job).where(of_part)


@cache
def _new_batch(is_file: bool) -> Any:
    """Return the statement that stores a batch after the last one, unless its key is there or the job takes none."""
    last, clock = parts.alias(), Database.clock
    names = ("key", "digest", "rows", "size", "owner", "in_doubt")
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}", type_=parts.c[name].type) for name in names}
    values |= {"job": last.c.job, "part": last.c.part + 1, "first": last.c.first + last.c.size, "epoch": sa.literal(1)}
    values |= {"lease_until": clock + sa.bindparam("for_seconds"), "began_at": clock}
    takes_batches = sa.exists().where(jobs.c.job == last.c.job, jobs.c.digest.is_(None), sa.not_(jobs.c.is_draining))
    source = sa.select(*values.values()).where(last.c.job == sa.bindparam("of_job"), takes_batches)
    dialect = sqlite if is_file else postgresql
    insert = dialect.insert(parts).from_select([*values], source.order_by(last.c.part.desc()).limit(1))
    return insert.on_conflict_do_nothing().returning(parts)


def _difference(stored: Sequence[CardDraft], given: Sequence[CardDraft]) -> str:
    """Return how two batches differ, in words."""
    for index, (one, other) in enumerate(zip(stored, given, strict=False)):
        names = [field.name for field in attrs.fields(CardDraft) if getattr(one, field.name) != getattr(other, field.name)]
        if names:
            return f"row {index} has another {names[0]}"
    return f"{len(given)} rows, and not {len(stored)}"
