"""The work of one call: it takes the rows to be sent, runs them, and releases them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import attrs

from boardclient._base._guards import check_notified
from boardclient._interface._responses import moment_in
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk import BulkReport, BulkRun, CardResult
from boardclient.bulk._engine._places import BulkOptions
from boardclient.bulk._life import IN_DOUBT, UNSENT
from boardclient.bulk._results import MOST_PROBLEMS
from boardclient.bulk._run import check_count, check_patience, make_options
from boardclient.bulk._single import End, late
from boardclient.distributed import _leases
from boardclient.distributed._batches import Batch, RowsHeldError, store_batch
from boardclient.distributed._jobs import CLOSING, Job
from boardclient.distributed._leases import (
    LEASE_SECONDS,
    GivenBackError,
    HeldElsewhereError,
    Lease,
    LeaseLostError,
    lease_parts,
    worker_name,
)
from boardclient.distributed._status import result_of
from boardclient.distributed._worker_process import WorkerProcess, check_recorded
from boardclient.errors import BoardClientError, Effect, JournalError
from boardclient.events import BulkProgress
from boardclient.models import CardDraft, check_seconds
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._ledger import StoredJob, StoredLedger, replaced
from boardclient.store._rows import OPEN_ROWS, StoredRow, rows_by_number, rows_of, stored_rows
from boardclient.store._tables import dump_audit

R = TypeVar("R")

_POLL_SECONDS: Final = 0.5
_MOST_LOSSES: Final = 10
"""How often a call may lose its part before it raises."""
_FEW: Final = 32
"""A run with at most so many rows sends them all at once."""
_LISTS_SECONDS: Final = 1.0
"""How long a run waits for another one that reads the lists of the board."""
_MOST_ABANDONED: Final = 200
"""How many abandoned parts are completed together."""
_UNDELIVERED: Final = UNSENT | {"logged"}
"""The states of rows of which nothing is known that a call could return."""
_HELD: Final = "SELECT {held} AS is_held, lease_until - {clock} AS rest, size, in_doubt FROM boardclient_parts WHERE part = ?"

Progress = Callable[[BulkProgress], object]


@attrs.frozen
class WorkOptions:
    """The checked options of `import_part`, `import_batch` and `reconcile`, which describe them."""

    concurrency: int | None = None
    lease: float = LEASE_SECONDS
    patience: float | None = None
    on_progress: Progress | None = None
    probe: bool = True
    settle: float | None = None
    """None: the job's."""
    ends_at: float | None = None
    """When the call ends at the latest, on the loop's clock."""
    is_of_one: bool = False
    """Whether the call is `cards.create`."""
    is_delivery: bool = False
    """Whether its rows are among those that `open_job(rows=…)` has announced."""

    def __attrs_post_init__(self) -> None:
        check_count(self.concurrency, "concurrency")
        if not 0 < check_seconds(self.lease, "lease") < math.inf:
            raise ValueError("lease must be more than 0 seconds, and finite")
        check_patience(self.patience)
        if self.on_progress is not None:
            check_notified(self.on_progress, "on_progress")
        if not isinstance(self.probe, bool):
            raise TypeError(f"probe must be True or False, not {type(self.probe).__name__}")

    @property
    def seconds(self) -> float:
        """The length of a lease."""
        return max(_leases.SHORTEST_SECONDS, self.lease)


@attrs.frozen
class _Taken:
    """The rows that a call may send or settle now. It has no lease while another worker holds them."""

    rows: Sequence[StoredRow]
    lease: Lease | None = None
    due: Callable[[StoredRow], bool] = lambda row: True
    """Whether a row of the lease is to be sent or settled."""
    is_over: bool = False
    """Whether nothing is left to do."""
    rest: float = 0.0
    """For how many seconds another worker may still hold them."""


@attrs.frozen(kw_only=True)
class Task:
    """A call of a worker for a job."""

    worker: WorkerProcess
    job: Job
    pipeline: Pipeline
    stored: StoredJob
    options: WorkOptions

    @property
    def database(self) -> Database:
        return self.worker.database

    # --- batches and parts

    async def store(self, key: str, drafts: Sequence[CardDraft]) -> Batch:
        """Store a batch, and take its part if it is new. Wait while another worker holds rows whose content is to be replaced.

        Raises:
            JournalError: the ledger has other rows, or the job is drained.
        """
        owner = worker_name()

        def store(connection: Connection) -> Batch:
            is_draining, announced_at = self._state(connection)
            since, seconds = announced_at if self.options.is_delivery else None, self.options.seconds
            batch = store_batch(connection, self.stored.job, key, drafts, owner=owner, seconds=seconds, since=since)
            if batch.lease is not None and is_draining:
                raise self.drained()
            return batch

        taken: list[Batch] = []
        pause = _Pause(self.options.patience)
        while True:
            try:
                return await self.database.change(store, on_commit=taken.append)
            except RowsHeldError as held:
                await pause.take(held.message)
            except asyncio.CancelledError:
                for batch in taken:
                    if batch.lease is not None:
                        await self._give_back(batch.lease, batch.rows)
                raise

    def _is_draining(self, connection: Connection) -> bool:
        """Return whether the job takes no work, or raise what `_state` raises."""
        return self._state(connection)[0]

    def _state(self, connection: Connection) -> tuple[bool, float | None]:
        """Return whether the job takes no work, and when its rows were announced, None if they were not.

        Raises:
            JournalError: the job is gone, or another job has its number.
        """
        # By the secret as well, since a ledger that was emptied and filled again gives the same number to another job.
        statement = "SELECT is_draining, options FROM boardclient_jobs WHERE job = ? AND secret = ?"
        found = connection.one(statement, self.stored.job, self.stored.secret)
        if found is None:
            raise replaced(self.job.ledger)
        return bool(found.is_draining), json.loads(found.options).get("since")

    async def complete(self, batch: Batch, drafts: Sequence[CardDraft], *, settles: bool) -> tuple[BulkReport, list[CardResult]]:
        """Send the due rows of a batch, wait for those that other workers send, and return the results of all."""
        index_of = {row.seq: index for index, row in enumerate(batch.rows)}
        parts: dict[int, list[int]] = {} if batch.part is None else {batch.part: []}  # its own first, then those of others
        for row in sorted(batch.rows):
            parts.setdefault(row.part, []).append(row.seq)
        results: dict[int, CardResult] = {}
        reports: list[BulkReport] = []
        for part, numbers in parts.items():
            first = None
            if batch.lease is not None and part == batch.part:
                first = _Taken([row for row in batch.rows if row.part == part], batch.lease)
            choose = partial(self._choose, part, numbers, settles)
            try:
                left, report, found = await self._hold(choose, first)
            except DrainedError:
                rows = await self.database.query(lambda connection: rows_by_number(connection, numbers))  # noqa: B023 -- awaited
                if any(row.state in _UNDELIVERED for row in rows):
                    raise
                left, report, found = rows, BulkReport(), []  # all results are from before
            for row in left:
                index = index_of[row.seq]
                results[index] = result_of(index, drafts[index], row, is_earlier=True)
            for row, result in found:
                index = index_of[row.seq]
                results[index] = attrs.evolve(result, index=index, draft=drafts[index])
            reports.append(report)
        ordered = [results[index] for index in range(len(drafts))]
        return _merged(reports, ordered), ordered

    def _choose(
        self,
        part: int,
        numbers: list[int],
        settles: bool,
        connection: Connection,
        *,
        owner: str,
        is_again: bool,
    ) -> _Taken:
        """Take the rows of a part that are due, among those with the numbers, within a transaction."""

        def is_due(row: StoredRow) -> bool:
            is_refused = row.state == "failed" and not is_again  # by an earlier call, or by the one that had it until now
            return row.state in UNSENT or is_refused or (settles and row.state in IN_DOUBT)

        self._is_draining(connection)
        rows = rows_by_number(connection, numbers)
        held = connection.one(_HELD, part)
        is_waited_for = held.is_held and any(row.state in {"logged", "failed"} for row in rows)
        is_to_be_closed = held.in_doubt is None and not held.is_held and len(rows) == held.size
        if not (any(map(is_due, rows)) or is_waited_for or is_to_be_closed):
            return _Taken(rows, is_over=True)
        lease = lease_parts(connection, self.stored.job, [part], owner, self.options.seconds)
        if lease is None:
            return _Taken(rows, rest=max(0.0, float(held.rest)))
        rows = rows_by_number(connection, numbers)  # again, now that nobody else sends them
        if lease.log_first(connection, rows):
            return _Taken(rows_by_number(connection, numbers), lease)
        return _Taken(rows, lease, is_due)

    async def run_planned(self, part: int) -> None:
        """Run the waiting rows of a planned part, and the failed ones if the part is open.

        Raises:
            JournalError: the ledger has no such part, or its plan was interrupted.
        """
        statement = (
            "SELECT j.digest, j.planned, p.part, p.state FROM boardclient_jobs AS j LEFT JOIN boardclient_parts AS p"
            " ON p.job = j.job AND p.key = ? WHERE j.job = ?"
        )
        (found,) = await self.database.read(statement, str(part), self.stored.job)
        if found.part is None or found.digest is None or part >= found.planned:
            raise JournalError(f"the plan of {self.job.name!r} has no part {part} yet: plan it to its end before parts are run")
        if found.state != "done":
            rows = await self.database.query(lambda connection: rows_of(connection, found.part))
            choose = partial(self._choose, found.part, [row.seq for row in rows], False)
            with contextlib.suppress(DrainedError):
                await self._hold(choose)

    async def complete_abandoned(self) -> None:
        """Send the rows of parts that workers have taken and no longer hold."""
        statement = (
            "SELECT part FROM boardclient_parts WHERE job = ? AND in_doubt IS NULL AND epoch > 0 AND NOT {held}"
            " ORDER BY part LIMIT ?"
        )

        def choose(connection: Connection, *, owner: str, is_again: bool) -> _Taken:
            found = connection.fetch(statement, self.stored.job, _MOST_ABANDONED)
            numbers = [] if is_again else [one.part for one in found]
            lease = lease_parts(connection, self.stored.job, numbers, owner, self.options.seconds) if numbers else None
            if lease is None:
                return _Taken([], is_over=True)
            rows = [row for part in sorted(lease.parts) for row in rows_of(connection, part)]
            return _Taken(rows, lease, lambda row: row.state in UNSENT or row.state == "failed")

        while (await self._hold(choose))[1].requests:
            pass

    async def check_recorded(self) -> None:
        """Check before rows of abandoned parts are sent that the ledger is no older copy, which does not have all cards.

        Raises:
            UnrecordedError: it does not have cards of the job that the board shows.
            BoardClientError: the board could not be read.
        """
        statement = "SELECT part FROM boardclient_parts WHERE job = ? AND in_doubt IS NULL AND epoch > 0 AND NOT {held} LIMIT 1"
        if self.stored.marker and await self.database.read(statement, self.stored.job):
            await check_recorded(self.database, self.stored, self.job.board_id, self.pipeline)

    # --- the end of a job

    async def close_at_end(self) -> None:
        """Reconcile a planned job if none of its parts has rows to send, unless that was done before."""
        numbers = [str(part) for part in self.job.parts if part != CLOSING]
        open_parts = "SELECT count(*) FROM boardclient_parts WHERE job = ? AND in_doubt IS NULL AND key {in ?}"

        def is_over(connection: Connection) -> bool:
            found = connection.one("SELECT audit, is_draining FROM boardclient_jobs WHERE job = ?", self.stored.job)
            is_done = found is None or found.audit is not None or found.is_draining
            return is_done or bool(connection.value(open_parts, self.stored.job, numbers))

        with contextlib.suppress(DrainedError):
            if not await self.database.query(is_over):
                await self.complete_abandoned()  # rows of other batches of the job
                await self._hold(partial(self._take_doubts, is_over))

    async def close(self) -> BulkReport:
        """Settle the rows in doubt that no other worker holds, and return the report of the run."""
        return (await self._hold(partial(self._take_doubts, lambda connection: False)))[1]

    def _take_doubts(
        self, is_over: Callable[[Connection], bool], connection: Connection, *, owner: str, is_again: bool
    ) -> _Taken:
        """Take the right to reconcile the job, and its rows in doubt and failed rows, within a transaction."""
        if is_over(connection):
            return _Taken([], is_over=True)
        parts = {row.part for row in stored_rows(connection, OPEN_ROWS, self.stored.job)}
        lease = lease_parts(connection, self.stored.job, parts, owner, self.options.seconds, is_of_job=True)
        if lease is None:
            rest = connection.value("SELECT lease_until - {clock} FROM boardclient_jobs WHERE job = ?", self.stored.job)
            return _Taken([], rest=max(0.0, float(rest)))
        rows = stored_rows(connection, OPEN_ROWS, self.stored.job)  # again, now that nobody else sends them
        return _Taken(sorted(row for row in rows if row.part in lease.parts), lease)

    # --- runs

    async def _hold(
        self, choose: Callable[..., _Taken], first: _Taken | None = None
    ) -> tuple[Sequence[StoredRow], BulkReport, list[tuple[StoredRow, CardResult]]]:
        """Run the rows that `choose` takes. Take them again if the lease is lost, and wait while another worker holds them.

        Return the rows that were not due, the report of the run, and the results of the others.

        Raises:
            DrainedError: the job is drained.
            HeldElsewhereError: another worker holds the rows for longer than the call may wait.
            LeaseLostError: the lease was lost again and again: the machine stops for longer than a lease.
        """
        pause, losses, is_again, cancelled = _Pause(self.options.patience), 0, False, _cancellations()
        while True:
            taken = first or await self._take(partial(choose, owner=worker_name(), is_again=is_again))
            first = None
            # Four cases: this call has the rows, nothing is left to do, the job is drained, or another worker has them.
            if taken.lease is not None:
                is_again = True
                pause.end()
                try:
                    return await self._run(taken, taken.lease)
                except LeaseLostError:  # another worker may have taken them, or this one takes them again
                    if _cancellations() > cancelled:  # the lease was lost while the run ended, which hid this
                        raise asyncio.CancelledError from None
                    losses += 1
                    if losses == _MOST_LOSSES:
                        raise
            elif taken.is_over:
                return taken.rows, BulkReport(), []
            elif await self.database.query(self._is_draining):
                raise self.drained()
            else:
                await pause.take(f"another worker has rows of {self.job.name!r}", taken.rest)

    async def _take(self, choose: Callable[[Connection], _Taken]) -> _Taken:
        """Take rows in a transaction. If the caller is cancelled meanwhile, they are released."""
        taken: list[_Taken] = []
        try:
            return await self.database.change(choose, on_commit=taken.append)
        except asyncio.CancelledError:
            for one in taken:
                if one.lease is not None:
                    await self._give_back(one.lease)
            raise

    async def _run(
        self, taken: _Taken, lease: Lease
    ) -> tuple[Sequence[StoredRow], BulkReport, list[tuple[StoredRow, CardResult]]]:
        """Run the rows of a lease, record their results, and release them."""
        rows, left = [row for row in taken.rows if taken.due(row)], [row for row in taken.rows if not taken.due(row)]
        is_fresh = lease.is_fresh
        ledger = StoredLedger(self.database, lease, self.stored, rows, is_fresh=is_fresh, since=self.job.planned_at)
        try:
            async with lease.kept(self.database):
                if not (rows or lease.is_of_job):
                    await ledger.finish()
                    return left, BulkReport(), []
                async with self._sharing_lists(rows):
                    report, results = await self._carry_out(lease, ledger, rows)
        finally:
            if not lease.is_returned:
                await self._give_back(lease)
        if report.audit_error is not None and not lease.is_of_job and any(row.state == "failed" for row in rows):
            raise report.audit_error  # refused rows are not sent again before the board was read
        if len(results) < len(rows):
            raise self.drained() if lease.is_draining else late(Effect.NOT_SENT)
        return left, report, [(rows[result.index], result) for result in results]

    async def _run_options(self, lease: Lease, number: int, *, reads: bool, knows_lists: bool) -> BulkOptions:
        """Return the options of a run of so many rows. `reads` says that it reads the cards of the board."""
        concurrency = self.options.concurrency or (max(1, number) if number <= _FEW else None)
        return make_options(
            self.pipeline,
            # Rows whose workers died again and again are sent one by one, so that the row that kills leaves one row in doubt.
            concurrency=1 if lease.commit_size == 1 else concurrency,
            journal=None,
            board_id=self.job.board_id if reads or not knows_lists else None,
            unknown="reconcile" if reads else "report",
            marker=self.stored.marker or None,
            settle=await self._settle() if reads else None,
            probe=self.options.probe and reads,
            waits_for_consent=False,
            patience=self.options.patience,
        )

    @contextlib.asynccontextmanager
    async def _sharing_lists(self, rows: Sequence[StoredRow]) -> AsyncGenerator[None, None]:
        """Let one of the short runs that begin at once read the lists of the board. The others wait a moment for it."""
        wanted, reading = {row.draft.list_id for row in rows}, self.stored.reading
        is_short = len(rows) <= _FEW and not wanted <= self.stored.lists
        if is_short and reading is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reading.wait(), _LISTS_SECONDS)
        if not is_short or self.stored.reading is not None:
            yield
            return
        self.stored.reading = reading = asyncio.Event()
        try:
            yield
        finally:
            self.stored.reading = None
            reading.set()

    async def _carry_out(
        self, lease: Lease, ledger: StoredLedger, rows: Sequence[StoredRow]
    ) -> tuple[BulkReport, list[CardResult]]:
        """Run rows, and record the end of the run."""
        # The board is read for rows that are in doubt or were refused. If other rows are lost, `reconcile` settles them.
        reads = lease.is_of_job or any(row.age is not None and row.state != "waiting" for row in rows)
        drafts = [row.draft for row in rows]
        lists = {draft.list_id for draft in drafts}
        # The lists of the board are read by the run, unless all are known.
        options = await self._run_options(lease, len(drafts), reads=reads, knows_lists=lists <= self.stored.lists)
        call = "cards.create" if self.options.is_of_one else f"job {self.job.name}"
        options = attrs.evolve(options, ledger=ledger, resends=not lease.is_of_job, call=call, is_of_one=self.options.is_of_one)
        listeners = [] if self.options.on_progress is None else [self.options.on_progress]
        run = BulkRun(self.pipeline, drafts, options, listeners)
        ledger.report, lease.on_drain = (lambda: run.report), run.stop
        if lease.is_draining:  # it was drained before it had a run
            run.stop()
        ends_at = self.options.ends_at
        end = End(None if ends_at is None else ends_at - asyncio.get_running_loop().time())
        end.stop = run.stop
        async with _given_back_after(run), run:
            with contextlib.ExitStack() as stack:
                stack.callback(end.cancel)
                results = [result async for result in run]
            if not (lease.is_draining or run.ended_waiting):
                await ledger.finish(audit=dump_audit(run.report) if lease.is_of_job else None)
        # A list in which all rows got cards is on the board, so that later runs need not read the lists for it.
        self.stored.lists |= lists - {result.draft.list_id for result in run.report.problems}
        return run.report, results

    async def _settle(self) -> float | None:
        """Return the time to settle of the call or of the job, which may have changed since the job was bound."""
        if self.options.settle is not None:
            return self.options.settle
        (found,) = await self.database.read("SELECT options FROM boardclient_jobs WHERE job = ?", self.stored.job)
        settle: float | None = json.loads(found.options)["settle"]
        return settle

    async def _give_back(self, lease: Lease, rows: Sequence[StoredRow] = ()) -> None:
        """End a lease. `rows` were logged with it and not sent, which is recorded."""
        with contextlib.suppress(JournalError):  # then it runs out
            if lease.is_fresh and rows:
                await StoredLedger(self.database, lease, self.stored, rows, is_fresh=True).aclose()
            await lease.give_back(self.database)

    def drained(self) -> DrainedError:
        return DrainedError(
            f"the job {self.job.name!r} is drained: `boardclient ledger resume` or distributed.resume opens it again"
        )


def _cancellations() -> int:
    """Return how often the running task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class DrainedError(JournalError):
    """The job takes no more work until it is resumed."""


@attrs.define
class _Pause:
    """The pauses of a call that waits for another worker, for at most `patience` seconds in a row."""

    patience: float | None
    _since: float | None = None

    def end(self) -> None:
        """Note that the call no longer waits."""
        self._since = None

    async def take(self, why: str, rest: float | None = None) -> None:
        """Wait for a moment.

        Raises:
            HeldElsewhereError: it has waited for too long.
        """
        clock = asyncio.get_running_loop().time
        self._since = clock() if self._since is None else self._since
        if self.patience is not None and clock() + _POLL_SECONDS - self._since > self.patience:
            error = HeldElsewhereError(why)
            error.retry_at = None if rest is None else moment_in(rest)
            raise error
        await asyncio.sleep(_POLL_SECONDS if rest is None else min(_POLL_SECONDS, max(0.01, rest)))


@contextlib.asynccontextmanager
async def _given_back_after(run: BulkRun) -> AsyncGenerator[None, None]:
    """Raise an error that says when to call again, if `patience` has ended the run."""
    cause: BoardClientError | None = None
    try:
        yield
    except BoardClientError as error:
        if run.ended_waiting is None or isinstance(error, JournalError):
            raise
        cause = error
    if (progress := run.ended_waiting) is not None:
        ended = GivenBackError(f"{progress.status}: the part is given back")
        ended.retry_at = progress.wait_ends_at
        raise ended from cause


def _merged(reports: Sequence[BulkReport], results: Sequence[CardResult]) -> BulkReport:
    """Return the report of a call, whose rows several runs may have sent."""
    counts: Counter[str] = Counter(result.state for result in results)
    seconds = sum(report.seconds for report in reports)
    return BulkReport(
        created=counts["created"],
        already=counts["already"],
        failed=counts["failed"],
        unknown=counts["unknown"],
        seconds=seconds,
        rate=counts["created"] / seconds if seconds else 0.0,
        requests=sum(report.requests for report in reports),
        rejected=sum(report.rejected for report in reports),
        problems=tuple(result for result in results if result.error is not None)[:MOST_PROBLEMS],
        audit_error=next((report.audit_error for report in reports if report.audit_error is not None), None),
        probes=tuple(card for report in reports for card in report.probes),
    )
