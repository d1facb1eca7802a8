"""How far a run with a journal is ahead of the service, and of the task that takes its results."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from bulk_service import Service, drafts, let_run

from boardclient.bulk._ledger import JournalLedger
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
