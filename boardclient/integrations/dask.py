"""Bulk creation by the workers of a Dask cluster. The ledger decides; Dask only carries parts.

It needs the extra `dask`. Workers read their credentials from the environment: none is in a task, a graph or a log.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from boardclient._database import checked_place
from boardclient._environment import requires_extra
from boardclient._redaction import takes_secrets
from boardclient.bulk import BulkReport, CardResult
from boardclient.distributed import Job, drain, import_part_now, plan, report, results, status
from boardclient.events import BulkProgress
from boardclient.models import CardDraft

with requires_extra("dask", "boardclient.integrations.dask"):
    import dask
    import distributed

_client: Any = distributed.Client  # its package has no annotations
_cluster: Any = distributed.LocalCluster
_configured: Any = dask.config.set  # pyright: ignore[reportPrivateImportUsage] -- documented as dask.config.set

_POLL_SECONDS = 0.5


@takes_secrets  # a URL with a password is refused
class DaskRun:
    """A bulk creation whose parts are Dask's tasks, used as a `BulkRun`. Owned by its caller.

    A worker that dies is replaced, and its part is resumed once its lease has ended. If the scheduler or the caller dies, the
    same job again resumes everything.

    Args:
        drafts: As for `plan`, together with `board_id`, `ledger`, `account`, `parts`, `marker` and `settle`.
        workers: How many processes to start on this host. None (default): as many as there are processors.
        scheduler: The address of a running cluster to use instead. It must be `tls://…`, or on this host.
        concurrency: As in `create_many`, for each worker.
        lease: As in `import_part`.
        on_progress: Called with the progress of the whole.

    Raises:
        ValueError: tasks would travel to another host in clear text.
    """

    def __init__(
        self,
        drafts: Iterable[CardDraft],
        board_id: str,
        ledger: str | os.PathLike[str],
        *,
        account: str | None = None,
        parts: int | None = None,
        marker: bool = False,
        settle: float | None = None,
        workers: int | None = None,
        scheduler: str | None = None,
        concurrency: int | None = None,
        lease: float = 30.0,
        on_progress: Callable[[BulkProgress], object] | None = None,
    ) -> None:
        address = urlsplit(scheduler or "tls:")
        if address.scheme != "tls" and address.hostname not in {"127.0.0.1", "::1", "localhost"}:
            raise ValueError(f"the scheduler {scheduler} is on another host: use tls://, since Dask's tasks are code")
        self.report: BulkReport = BulkReport()
        place = checked_place(ledger)
        self._plan: Callable[[], Coroutine[Any, Any, Job]] = lambda: plan(
            drafts, board_id, place, account=account, parts=parts, marker=marker, settle=settle
        )
        self._workers, self._scheduler, self._on_progress = workers, scheduler, on_progress
        self._options: dict[str, Any] = {"concurrency": concurrency, "lease": lease}
        self._is_stopped = False
        self._job: Job | None = None

    async def __aenter__(self) -> Self:
        """Plan the job.

        Raises:
            JournalError: the ledger can't be used, or has other rows.
        """
        self._job = await self._plan()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def stop(self) -> None:
        """Let the workers end once their requests are completed. The same job again resumes."""
        self._is_stopped = True

    async def __aiter__(self) -> AsyncGenerator[CardResult, None]:
        """Carry the parts, and yield the results when all are done."""
        job = self._job
        if job is None:
            raise RuntimeError("use a DaskRun within its `async with` block")
        try:
            async with AsyncExitStack() as opened:
                # A part that killed its worker is not to blame, and must not be given up.
                opened.enter_context(_configured({"distributed.scheduler.allowed-failures": 50}))
                target: Any = self._scheduler or await opened.enter_async_context(
                    _cluster(
                        n_workers=self._workers,
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        silence_logs=logging.ERROR,
                        asynchronous=True,
                    )
                )
                client = await opened.enter_async_context(_client(target, asynchronous=True))
                tasks = [
                    client.submit(import_part_now, job, part, **self._options, pure=False, retries=3, key=f"{job.name}-{part}")
                    for part in job.parts
                ]
                await self._follow(job, asyncio.ensure_future(client.gather(tasks)))
        finally:
            self.report = await report(job)
        async for result in results(job):
            yield result

    async def _follow(self, job: Job, work: asyncio.Future[Any]) -> None:
        is_draining = False
        while not (await asyncio.wait({work}, timeout=_POLL_SECONDS))[0]:
            if self._is_stopped and not is_draining:
                is_draining = True
                await drain(job.ledger, name=job.name)
            if self._on_progress is not None:
                found = await status(job.ledger, name=job.name)
                done, failed = sum(part.done for part in found), sum(part.failed for part in found)
                created, rate = done - job.already, sum(part.rate for part in found if part.state == "held")
                self._on_progress(
                    BulkProgress(
                        done=done + failed,
                        created=created,
                        already=job.already,
                        failed=failed,
                        unknown=0,
                        rate=rate,
                        seconds=0.0,
                        total=job.rows,
                    )
                )
        await work
