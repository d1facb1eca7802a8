"""Bulk creation by the workers of a Dask cluster. The ledger decides; Dask only carries parts.

It needs the extra `dask`. Workers read their credentials from the environment: none is in a task, a graph or a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self
from urllib.parse import urlsplit

import attrs

from boardclient._base._environment import requires_extra
from boardclient.bulk import BulkReport, CardResult
from boardclient.bulk._run import check_count
from boardclient.distributed import Job, drain, import_part_now, reconcile, report, results, resume, status
from boardclient.distributed._leases import LEASE_SECONDS
from boardclient.distributed._task import WorkOptions
from boardclient.errors import BoardClientError, JournalError
from boardclient.events import BulkProgress

with requires_extra("dask", "boardclient.integrations.dask"):
    import dask
    import distributed

_client: Any = distributed.Client  # its package has no annotations
_cluster: Any = distributed.LocalCluster
_ended: Any = distributed.wait
_killed: Any = distributed.KilledWorker
_configured: Any = dask.config.set  # pyright: ignore[reportPrivateImportUsage] -- documented as dask.config.set

_POLL_SECONDS = 0.5
_LOST_SECONDS = 40.0
"""How long the scheduler may be out of reach."""
_MOST_ROUNDS = 10
"""How often a part is submitted. A scheduler gives it up after as many killed workers as its settings say."""


class DaskRun:
    """A bulk creation whose parts are Dask's tasks, used as a `BulkRun`. Owned by its caller.

    A worker that dies is replaced, and its part is resumed once its lease has ended. If the scheduler or the caller dies, the
    same jobs planned again resume everything. An account whose user has to sign in holds up its own jobs alone.

    Args:
        jobs: What `plan` or `plan_many` returned.
        workers: How many processes to start on this host. None (default): as many as there are processors.
        scheduler: The address of a running cluster to use instead. It must be `tls://…`, or on this host.
        concurrency: As in `create_many`, for each worker.
        lease: As in `import_part`.
        probe: As in `reconcile`, which the caller's process does for jobs that have unknown rows when all parts have ended.
        on_progress: Called with the progress of the whole.

    Raises:
        TypeError: `lease` is not a number.
        ValueError: an argument is out of range, or tasks would travel to another host in clear text.
    """

    def __init__(
        self,
        jobs: Job | Sequence[Job],
        *,
        workers: int | None = None,
        scheduler: str | None = None,
        concurrency: int | None = None,
        lease: float = LEASE_SECONDS,
        probe: bool = True,
        on_progress: Callable[[BulkProgress], object] | None = None,
    ) -> None:
        address = urlsplit(scheduler or "tls:")
        if address.scheme != "tls" and address.hostname not in {"127.0.0.1", "::1", "localhost"}:
            raise ValueError(f"the scheduler {scheduler} is on another host: use tls://, since Dask's tasks are code")
        check_count(workers, "workers")
        WorkOptions(concurrency, lease, on_progress=on_progress)  # before any worker does, which raises the same
        self.report: BulkReport = BulkReport()
        self._jobs = [jobs] if isinstance(jobs, Job) else [*jobs]
        self._workers, self._scheduler, self._on_progress = workers, scheduler, on_progress
        self._options: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "probe": probe}
        self._probe = probe
        self._is_stopped = False
        self._token = secrets.token_hex(4)
        self._opened = AsyncExitStack()
        self._client: Any = None

    async def __aenter__(self) -> Self:
        """Connect to the cluster, or start one."""
        async with AsyncExitStack() as opened:
            # A part that killed its worker is not to blame, and must not be given up.
            settings = {"allowed-failures": 50, "no-workers-timeout": "120s"}  # workers that are gone for good end the run
            opened.enter_context(_configured({f"distributed.scheduler.{name}": value for name, value in settings.items()}))
            target: Any = self._scheduler or await opened.enter_async_context(
                _cluster(
                    n_workers=self._workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                    asynchronous=True,
                )
            )
            self._client = await opened.enter_async_context(_client(target, asynchronous=True))
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._opened.aclose()

    def stop(self) -> None:
        """Let the workers end once their requests are completed. The same jobs planned again resume."""
        self._is_stopped = True

    async def __aiter__(self) -> AsyncGenerator[CardResult, None]:
        """Carry the parts, and yield the results when all have ended, job by job. `index` counts on from one job to the next.

        Raises:
            ConsentRequired: an account's user has to sign in. All other jobs have ended.
            BoardClientError: a part ended early, and the others have ended, or the cluster can't be used. The same jobs resume.
        """
        if self._client is None:
            raise RuntimeError("use a DaskRun within its `async with` block")
        failure: Exception | None = None
        try:
            await self._follow(asyncio.ensure_future(self._carry()))
        except Exception as error:
            failure = error
        finally:
            self.report = await report(self._jobs)
        first = 0
        for job in self._jobs:
            async for result in results(job):
                yield attrs.evolve(result, index=first + result.index)
            first += job.rows
        if failure is not None:
            raise failure

    async def _carry(self) -> None:
        """Carry all parts. Those that the scheduler gives up, after too many killed workers, are submitted again."""
        left = [(job, part) for job in self._jobs for part in job.parts]
        for count in range(_MOST_ROUNDS):
            tasks = {self._submitted(job, part, count): (job, part) for job, part in left}
            await _ended([*tasks])  # the others, when one has failed
            errors = {task: await task.exception() for task in tasks if task.status == "error"}
            left = [tasks[task] for task, error in errors.items() if isinstance(error, _killed)]
            for error in errors.values():
                if not isinstance(error, _killed):
                    raise error
            if not left:
                break
        else:
            raise BoardClientError(f"{len(left)} parts have killed each worker that began them: look at the workers' logs")
        if self._probe:
            await self._reconcile()

    async def _reconcile(self) -> None:
        """Reconcile the jobs that have unknown rows."""
        for job in self._jobs:
            if not self._is_stopped and (await report(job)).unknown:
                await reconcile(job, probe=True)

    def _submitted(self, job: Job, part: int, count: int) -> Any:
        # Of this run alone, since others may use the same cluster. Dask's dashboard shows it.
        key = f"import_part-{job.name}-{part}-{self._token}-{count}"
        return self._client.submit(import_part_now, job, part, **self._options, key=key, retries=3)

    async def _follow(self, work: asyncio.Future[Any]) -> None:
        is_draining, clock = False, asyncio.get_running_loop().time
        began = connected_at = clock()
        while not (await asyncio.wait({work}, timeout=_POLL_SECONDS))[0]:
            connected_at = clock() if self._client.status == "running" else connected_at
            if clock() - connected_at > _LOST_SECONDS:
                work.cancel()
                raise BoardClientError("the scheduler is gone: the same jobs again resume")
            if self._is_stopped and not is_draining:
                is_draining = True
                await drain(self._jobs)
            if self._on_progress is not None:
                with contextlib.suppress(JournalError):  # a look that fails ends nothing
                    self._on_progress(await self._progress(clock() - began))
        if is_draining:
            await resume(self._jobs)  # what this run has drained, and nobody else
        try:
            await work
        except BoardClientError:
            raise
        except (Exception, asyncio.CancelledError) as error:  # of Dask
            failure = f"Dask: {type(error).__name__}: {error}"
        else:
            return
        raise BoardClientError(f"{failure}: the same jobs again resume")

    async def _progress(self, seconds: float) -> BulkProgress:
        found, already = await status(self._jobs), sum(job.already for job in self._jobs)
        done, failed, in_doubt = (sum(getattr(part, name) for part in found) for name in ("done", "failed", "in_doubt"))
        is_closing = all(part.state == "done" for part in found)
        return BulkProgress(
            done=done + failed,
            created=done - already,
            already=already,
            failed=failed,
            unknown=0,
            rate=(done - already) / seconds if seconds else 0.0,
            seconds=seconds,
            total=sum(job.rows for job in self._jobs),
            phase="creating" if not is_closing else "waiting" if in_doubt else "reading the board",
            waiting_for="settling" if is_closing and in_doubt else None,
            in_doubt=in_doubt,
        )
