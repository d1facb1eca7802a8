"""Leaving a bulk run, consuming it from several tasks, and taking it up again."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bulk_helpers import World
from bulk_service import Closing, Service, drafts, let_run
from virtual_loop import virtually
from waiting import SECONDS, until

from boardclient import AsyncSession, BulkProgress, Card, CardDraft, Effect, RateLimitError, TransportError, retry
from boardclient.bulk._journal._journal_rows import JournalRows


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_leaving_early_cancels_and_closes(asynchronous: bool) -> None:
    """Leaving the block cancels the cards in flight, which may exist, and closes the input generator before it returns."""
    source, service = Closing(), Service(waits=True)
    async with service.run(source.arows() if asynchronous else source.rows(), 3) as run:
        await let_run()
        assert service.running == 3
    assert source.is_closed
    assert sorted(service.cancelled) == service.begun == ["card 0", "card 1", "card 2"]
    assert (run.report.created, run.report.unknown) == (0, 3)
    effects = {result.index: result.error and result.error.effect for result in run.take_ready()}
    assert effects == dict.fromkeys(range(3), Effect.UNKNOWN)


@pytest.mark.parametrize("is_good", [True, False])
async def test_a_cancellation_while_the_journal_opens_gives_it_back(
    session: AsyncSession, list_id: str, tmp_path: Path, is_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run can open the journal at once. Without a journal file, nothing else is raised."""
    path = tmp_path / "cards.journal"
    if not is_good:
        path.write_bytes(b"no journal")
    begun, is_cancelled, opened = threading.Event(), threading.Event(), JournalRows.open

    def held(*args: Any) -> JournalRows:
        begun.set()
        assert is_cancelled.wait(SECONDS)
        return opened(*args)

    monkeypatch.setattr(JournalRows, "open", held)

    async def enter() -> None:
        async with session.cards.create_many(drafts(list_id, 1), journal=path, unknown="report"):
            raise AssertionError("it was entered")

    entering = asyncio.create_task(enter())
    await until(begun.is_set, entering)
    entering.cancel()
    is_cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    if is_good:
        assert (await session.cards.create_many(drafts(list_id, 1), journal=path, unknown="report").wait()).created == 1


async def test_cancelled_while_leaving_still_closes_the_input() -> None:
    """A second cancellation, while the block is being left, still closes the input."""
    source = Closing()

    class Stubborn(Service):
        async def call(self, request: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
            raise AssertionError

    async def consume() -> None:
        async with Stubborn().run(source.one_and_wait(), 1) as run:
            await run.wait()

    task = asyncio.create_task(consume())
    for _ in range(2):
        await let_run()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.is_closed


class Instant(Service):
    """A service that answers without letting any other task run."""

    async def call(self, request: Any) -> Any:
        self.begun.append(json.loads(request.body or b"")["name"])
        return Card(self.begun[-1])


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_service_that_responds_at_once_lets_the_consumer_run(concurrency: int) -> None:
    """The consumer runs before the queue exceeds its size, even if it only waits for the end."""
    service = Instant()
    async with service.run(drafts("list", 100), concurrency) as run:
        taken = 0
        async for _ in run:
            taken += 1
            assert len(service.begun) <= 2 * concurrency + taken
    service = Instant()
    async with service.run(drafts("list", 1000), concurrency) as run:
        waiting = asyncio.create_task(run.wait())
        await until(lambda: service.begun, waiting)
        begun = len(service.begun)
        assert begun <= 2 * concurrency
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(service.begun) - begun <= 4 * concurrency
        assert (await waiting).created == 1000


async def test_an_input_that_stops_the_run() -> None:
    """A card that the input gives right after it stopped the run is not begun."""
    service = Instant()

    def source() -> Iterator[CardDraft]:
        for draft in drafts("list", 9):
            if draft.name == "card 3":
                run.stop()
            yield draft

    run = service.run(source(), 1)
    async with run:
        assert (await run.wait()).created == len(service.begun)
    assert set(service.begun) <= {"card 0", "card 1", "card 2"}


@virtually
async def test_repeats_of_a_card_count_once() -> None:
    """What a call repeated is counted with its own card, if it was sent, and not with the next of the same worker."""

    class Repeating(Service):
        async def call(self, request: Any) -> Any:
            card = await super().call(request)
            if self.begun.count("card 0") < 3:
                raise TransportError("no connection", "connect", effect=Effect.NOT_SENT)
            return card

    service = Repeating(retry=retry.default())
    async with service.run(drafts("list", 3), 1) as run:
        report = await run.wait()
    assert (report.created, report.requests, len(service.begun)) == (3, 3, 5)


async def test_run_is_used_once_and_in_its_block() -> None:
    """Iterating outside the block, waiting there and entering twice are RuntimeErrors; the report stays."""
    run = Service().run(drafts("list", 3), 2)
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await anext(run)
    async with run:
        with pytest.raises(RuntimeError, match="used only once"):
            await run.__aenter__()
        await run.wait()
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await run.wait()
    with pytest.raises(RuntimeError, match="used only once"):
        async with run:
            pass
    assert run.report.created == 3


async def test_consumer_in_another_task_ends_with_the_block() -> None:
    """A consumer in another task that waits for a result gets an error when the block is left."""
    service = Service(waits=True)
    async with service.run(drafts("list", 10), 2) as run:
        consumer = asyncio.create_task(run.wait())
        await let_run()
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await consumer


class Crowded(Service):
    """A service with two connections, which two runs share. It refuses "refused" once."""

    max_connections = 2

    async def call(self, request: Any) -> Any:
        if json.loads(request.body or b"")["name"] == "refused" and "refused" not in self.begun:
            self.begun.append("refused")
            raise RateLimitError("429", 429, retry_after=3.0)
        return await super().call(request)


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("is_paced", [True, False])
@virtually
async def test_a_run_that_ends_while_it_waits_for_a_connection(is_paced: bool, is_left: bool) -> None:
    """It sends nothing more, even if it is stopped just when it gets one, and gives back what it had."""
    service = Crowded(waits=True)

    async def later(seconds: float, *names: str) -> AsyncIterator[CardDraft]:
        for name in names:
            if name != "refused":
                await asyncio.sleep(seconds)
            yield CardDraft(name, "list")

    def stop(progress: BulkProgress) -> None:
        if progress.created:
            other.stop()

    other = service.run(later(2.0, *["refused"] * is_paced, "other 0", "other 1"), 2)
    async with service.run(later(0.5, *"abcdef"), 2, stop) as run:
        async with other:
            await asyncio.sleep(10.0)
            if not is_left:
                service.may_end.set()
                await other.wait()
        service.may_end.set()
        report = await run.wait()
    assert (report.created, other.report.created, service.most) == (6, 0, 2)
    assert service.begun == [*["refused"] * is_paced, *"abcdef"]
    async with asyncio.timeout(1.0):
        for _ in range(service.pipeline.slots.number):
            await service.pipeline.slots.enter()


async def test_a_run_that_is_never_started_warns(world: World) -> None:
    """No card was sent, which its owner may have forgotten to ask for."""
    with pytest.warns(ResourceWarning, match="a BulkRun was never started, so no card was sent"):  # noqa: PT031 -- it warns when it is collected
        world.run(world.drafts(0))
        gc.collect()
    assert world.there == []


async def test_a_run_that_is_awaited_runs_to_its_end(world: World) -> None:
    """Without a block, and as `wait` does."""
    report = await world.run(world.drafts(*range(3)))
    assert (report.created, len(world.there)) == (3, 3)


async def test_a_listener_that_returns_a_coroutine_ends_the_run(world: World) -> None:
    """It is a plain function that makes one, so only its call shows it. The cards that were sent are on record."""

    async def tell(progress: object) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="on_progress returned a coroutine"):
        await world.run(world.drafts(*range(3)), on_progress=lambda progress: tell(progress))
