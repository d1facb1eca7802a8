"""How far a run with a journal is ahead of the service, and of the task that takes its results."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from bulk_service import Service, drafts, let_run

from boardclient.bulk._backlog import Backlog
from boardclient.bulk._input import SyncInput, open_input
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import MemoryLedger
from boardclient.bulk._queue import ResultQueue
from boardclient.bulk._rows import Row


async def test_results_that_wait_slow_a_run_with_a_journal_down(path: Path) -> None:
    """Of the rows that are logged ahead, no more are sent than two for each worker until a result is taken."""
    service = Service()
    async with service.open_run(drafts("list", 1000), concurrency=4, journal=path) as run:
        assert (await anext(run)).index < 8
        await let_run()
        assert len(service.begun) <= 9


async def test_one_worker_sends_the_next_row_before_its_result_is_taken(path: Path) -> None:
    """A run with a journal is as far ahead of its consumer as one without: two rows for each worker."""
    service = Service()
    async with service.open_run(drafts("list", 10), concurrency=1, journal=path) as run:
        assert (await anext(run)).index == 0
        await let_run()
        assert len(service.begun) == 3


async def test_a_batch_of_the_journal_has_at_most_256_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches double while workers wait for rows, up to 256: so many rows at most are in doubt after a power failure."""
    sizes: list[int] = []
    admit = JournalLedger.admit

    async def noted(self: JournalLedger, rows: Sequence[Row]) -> None:
        sizes.append(len(rows))
        await admit(self, rows)

    monkeypatch.setattr(JournalLedger, "admit", noted)
    report = await Service().open_run(drafts("list", 3000), concurrency=2000, journal=path).wait()
    assert report.created == 3000
    assert max(sizes) == 256


async def test_rows_are_logged_ahead_and_more_at_once_only_for_workers_that_wait() -> None:
    """The next rows are taken once half a batch is left, and batches grow only while workers wait for them."""
    ledger = MemoryLedger()
    ledger.batch = 4
    backlog = Backlog(open_input(drafts("list", 100)), ledger, 8, ResultQueue(), [])
    waiting = asyncio.create_task(backlog.next())
    await let_run()
    sizes = []
    for _ in range(3):
        async with asyncio.timeout(60):
            rows = await backlog.take()
        sizes.append(len(rows))
        backlog.put_all(rows)
        await waiting
        for _ in range(len(backlog._ready.rows) - 2):
            assert backlog.take_at_once() is not None
    assert sizes == [4, 8, 8]


async def test_rows_are_taken_ahead_of_workers_that_do_not_wait() -> None:
    """Where the input gives fewer rows than half a batch, the next ones are taken at once."""
    ledger = MemoryLedger()
    ledger.batch = 8
    backlog = Backlog(open_input(drafts("list", 3)), ledger, 8, ResultQueue(), [])
    waiting = asyncio.create_task(backlog.next())
    await let_run()
    backlog.put_all(await backlog.take())
    await waiting
    async with asyncio.timeout(60):
        assert await backlog.take() == []


class Waited(SyncInput):
    """An input whose next row is waited for when the test says so."""

    is_waiting = False


async def test_an_input_is_waited_for_again_after_every_row() -> None:
    """Whether an input has to be waited for is decided anew each time it has yielded: each wait may be a short one."""
    source, results = Waited([]), ResultQueue()
    backlog = Backlog(source, MemoryLedger(), 1, results, [])
    idle = asyncio.create_task(backlog.idle())
    for _ in range(20):
        source.is_waiting = True
        results.note_freed()
        for _ in range(5):
            await asyncio.sleep(0)
        source.is_waiting = False
        await let_run()
    assert not idle.done()
    source.is_waiting = True
    results.note_freed()
    await let_run()
    assert idle.done()
