"""The calls of workers: they import a part, a batch or the card of a reference, or reconcile the job."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

import attrs

from boardclient import AsyncSession
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk import BulkReport, CardResult
from boardclient.bulk._results import MOST_PROBLEMS
from boardclient.distributed._batches import check_rows, check_text, key_of
from boardclient.distributed._doubts import explain_all
from boardclient.distributed._jobs import CLOSING, Job, check_job
from boardclient.distributed._leases import LEASE_SECONDS
from boardclient.distributed._status import firsts_of
from boardclient.distributed._status import report as report_of
from boardclient.distributed._status import results as results_of
from boardclient.distributed._task import Progress, Task, WorkOptions
from boardclient.distributed._worker_process import run_here, worker_for
from boardclient.errors import ConsentRequired, JournalError
from boardclient.models import DraftLike
from boardclient.store._rows import PLACES

R = TypeVar("R")


async def import_part(
    job: Job,
    part: int,
    *,
    session: AsyncSession | None = None,
    concurrency: int | None = None,
    lease: float = LEASE_SECONDS,
    patience: float | None = None,
    on_progress: Progress | None = None,
    probe: bool = True,
) -> None:
    """Create the cards of a part, and reconcile the whole job if it is the last one.

    It can be called any number of times, anywhere and at once: one worker holds a part, and others wait until it is done or its
    lease has ended. A worker that was suspended for longer than its lease sends nothing when it wakes up.

    Args:
        job: The job, as `plan` returned it.
        part: One of `job.parts`.
        session: The session to use. By default `AsyncSession.from_env()` makes one, so that no credential travels. If the job has
            an account, it uses the token of this account that `SqlTokenStore` keeps in the ledger's database, and renews it with
            `BOARDCLIENT_CLIENT_ID` and the other variables of `SignIn.from_env`. If the session has no limiter, all workers with
            this account share one pace.
        concurrency: As in `create_many`.
        lease: The seconds after which the part of a dead worker is taken over. A number below 10 counts as 10.
        patience: How many seconds in a row it may wait for a service that accepts nothing, for a pause that the service asks for,
            or for another worker. After that the part is released, and the error's `retry_at` says when to call again, if that is
            known. None (default): without limit.
        on_progress: Called with the progress of the part.
        probe: As in `create_many`, for the rows in doubt at the end of the job.

    Raises:
        TypeError: `lease` or `patience` is not a number.
        ValueError: `concurrency`, `lease` or `patience` is out of range.
        JournalError: the ledger can't be used, or belongs to another service or account, or the job has no such part.
        ConsentRequired: the account's user has to sign in. The part is released, and another call resumes it.
        BoardClientError: the run of the part ended early. Another call resumes it.
    """
    # Checked before the ledger is opened: a mistake must not leave a lease behind.
    options = WorkOptions(concurrency, lease, patience, on_progress, probe)
    if not isinstance(part, int):
        raise TypeError(f"part must be a number, not {type(part).__name__}")
    # True equals 1, and would be taken for the second part.
    if isinstance(part, bool) or part not in {CLOSING, *check_job(job).parts}:
        raise JournalError(f"the job {job.name!r} has no part {part}")
    async with _task(job, session, options) as task:
        if part == CLOSING:
            await task.complete_abandoned()
        else:
            await task.run_planned(part)
        await task.close_at_end()


def import_part_now(job: Job, part: int, **options: Any) -> None:
    """Create the cards of a part, as `import_part` does, from a plain function.

    Raises:
        RuntimeError: an event loop runs in this thread, or gevent or eventlet has replaced the threads of this process.
    """
    _now(import_part, job, part, **options)


def import_batch_now(job: Job, key: str | None, rows: Iterable[DraftLike], **options: Any) -> BulkReport:
    """Create the cards of a batch once, as `import_batch` does, from a plain function.

    Raises:
        RuntimeError: an event loop runs in this thread, or gevent or eventlet has replaced the threads of this process.
    """
    return _now(import_batch, job, key, rows, **options)


_PATCHES: Final = (("gevent", "monkey", "is_module_patched"), ("eventlet", "patcher", "is_monkey_patched"))
"""What replaces the threads of a process, and the module and the function that tell so."""


def _now(work: Callable[..., Coroutine[Any, Any, R]], *given: Any, **options: Any) -> R:
    name = work.__name__
    for package, module, asks in _PATCHES:
        patching = sys.modules.get(f"{package}.{module}")
        if patching is not None and any(getattr(patching, asks)(kind) for kind in ("thread", "threading")):
            raise RuntimeError(
                f"{name}_now needs threads, and {package} has replaced those of this process: run its tasks in processes or"
                " threads, with Celery by -P prefork or -P threads"
            )
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"{name}_now can't run where an event loop runs: await {name}(…) instead")
    return run_here(work(*given, **options))


async def import_batch(
    job: Job,
    key: str | None,
    rows: Iterable[DraftLike],
    *,
    session: AsyncSession | None = None,
    concurrency: int | None = None,
    lease: float = LEASE_SECONDS,
    patience: float | None = None,
    on_progress: Progress | None = None,
) -> BulkReport:
    """Create the cards of a batch once, however often and wherever it is called.

    A row with a reference is one card of the job, whichever call, batch or worker delivers it. A row without one is identified by
    the key of its batch and its position there. The first call stores the rows, and later ones resume them. On return the ledger
    owns the rows, and they need not be delivered again: each has a card, failed, or is in doubt until `reconcile` decides. The
    call waits for rows that another call sends. A later call sends failed rows again, if the board does not show their cards.

    The content of a row that was not sent, or was refused, may be corrected: it is replaced.

    Args:
        job: The job, as `open_job` returned it.
        key: A text that is the same each time these rows are delivered, such as the number of a partition. A key may come with
            other rows if all have references. None: the digest of the rows, each of which needs a reference.
        rows: The cards to create, as in `create_many`.
        session: As in `import_part`.
        concurrency: As in `create_many`.
        lease: As in `import_part`, of the batch.
        patience: As in `import_part`.
        on_progress: Called with the progress of the batch.

    Returns:
        The report of these rows. Rows that an earlier call has created are "already".

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or a reference comes twice.
        JournalError: the ledger can't be used, belongs to another service or account, or is drained; the key has other rows; or
            rows whose cards exist or may exist have other content, and the message names them. Nothing was stored.
        ConsentRequired: the account's user has to sign in. Another call resumes the batch.
        BoardClientError: the run ended early. Another call resumes the batch.
    """
    options = WorkOptions(concurrency, lease, patience, on_progress, is_delivery=True)
    return (await run_batch(job, key, rows, session, options))[0]


async def run_batch(
    job: Job,
    key: str | None,
    rows: Iterable[DraftLike],
    session: AsyncSession | Pipeline | None,
    options: WorkOptions,
    *,
    settles: bool = False,
    explains: bool = True,
) -> tuple[BulkReport, list[CardResult]]:
    """Do what `import_batch` does, and return the results as well.

    With `settles`, rows in doubt of this batch are settled. With `explains`, the errors of unknown rows say how that is done.
    """
    drafts = check_rows(rows)
    # Before anything is opened as well, and over checked drafts, so that mappings and drafts have the same digest.
    name = key_of(drafts) if key is None else check_text(key, "key")
    async with _task(job, session, options) as task:
        if not drafts:
            return BulkReport(), []
        batch = await task.store(name, drafts)
        report, results = await task.complete(batch, drafts, settles=settles)
        # Only then are positions needed, which cost a reading of all parts.
        if explains and report.unknown:
            firsts = await firsts_of(task.database, task.stored.job)
            explain_all(results, job, lambda index: firsts[batch.rows[index].part] + batch.rows[index].seq % PLACES)
        return report, results


async def reconcile(job: Job, *, session: AsyncSession | None = None, probe: bool = True) -> BulkReport:
    """Reconcile the rows of a job that are in doubt, and audit the job. Call it at any time, as often as you like.

    Parts and batches whose workers have died are completed first. Then the board decides about rows in doubt, by the rules
    of `create_many` with `unknown="reconcile"`: found, or proven absent and sent, or unknown.

    Args:
        job: The job, as `open_job` or `plan` returned it.
        session: As in `import_part`.
        probe: As in `create_many`.

    Returns:
        The report of the job. Its `problems` are the rows that failed or are unknown, its `audit` is what the board showed.

    Raises:
        JournalError: the ledger can't be used, belongs to another service or account, or the job is drained; or the board shows
            cards of the job that the ledger does not have, since it is an older copy. The message names them.
        ConsentRequired: the account's user has to sign in.
        BoardClientError: the board could not be read, or a run ended early. Another call continues.
    """
    async with _task(job, session, WorkOptions(probe=probe)) as task:
        # First: a ledger that is an older copy would send rows again whose cards exist.
        await task.check_recorded()
        await task.complete_abandoned()
        settled = await task.close()
    problems, failure = [result async for result in results_of(job, is_problem=True)], settled.audit_error
    if failure is not None:
        for error in [result.error for result in problems if result.error is not None and result.state == "unknown"]:
            # The board could not be read, so another call makes sense once it can be.
            error.retry_at = failure.retry_at
    found = await report_of(job)
    return attrs.evolve(
        found,
        problems=tuple(problems[:MOST_PROBLEMS]),
        audit_error=failure or found.audit_error,
        probes=settled.probes,
    )


@contextlib.asynccontextmanager
async def _task(job: Job, session: AsyncSession | Pipeline | None, options: WorkOptions) -> AsyncGenerator[Task, None]:
    async with worker_for(check_job(job).ledger) as worker:
        try:
            pipeline = worker.pipeline(job, session)
            yield Task(worker=worker, job=job, pipeline=pipeline, stored=await worker.bind(job, pipeline), options=options)
        except ConsentRequired:  # all parts wait for the user, and the next call that runs one opens it
            statement = (
                "UPDATE boardclient_parts SET state = 'consent' WHERE in_doubt IS NULL AND state = 'open' AND NOT {held}"
                " AND job = (SELECT job FROM boardclient_jobs WHERE name = ?)"
            )
            await worker.database.change(lambda connection: connection.run(statement, job.name))
            raise
