"""The queue between a run and the tasks that take its results: in order, each once, until the end."""

import asyncio

import pytest
from bulk_service import let_run

from boardclient import CardDraft, CardResult
from boardclient.bulk._queue import ResultQueue


def results(*indices: int) -> list[CardResult]:
    return [CardResult(index=index, draft=CardDraft("a", "list")) for index in indices]


def filled(*indices: int) -> ResultQueue:
    queue = ResultQueue()
    for result in results(*indices):
        put(queue, result)
    return queue


def put(queue: ResultQueue, result: CardResult) -> None:
    queue.put((result.index, result.draft, result.card, result.error, result.state))


async def test_results_are_taken_in_order() -> None:
    """Results are taken one by one or all at once, and only once."""
    queue = filled(0, 1, 2, 3)
    assert await queue.wait()
    assert queue.take() == results(0)[0]
    assert queue.take_all() == results(1, 2, 3)
    assert queue.take_all() == []


async def test_a_result_wakes_a_waiter() -> None:
    """A waiter continues only when there is a result, however often another takes it first."""
    queue = filled(0)
    queue.take()
    waiting = asyncio.create_task(queue.wait())
    await let_run()
    put(queue, *results(1))
    queue.take()
    await let_run()
    assert not waiting.done()
    put(queue, *results(2))
    assert await waiting


async def test_the_end_comes_after_the_last_result() -> None:
    """Closing wakes all waiters; the results that are left can still be taken."""
    queue = ResultQueue()
    waiting = [asyncio.create_task(queue.wait()) for _ in range(3)]
    await let_run()
    queue.close()
    assert await asyncio.gather(*waiting) == [False] * 3
    queue = filled(0)
    queue.close()
    assert await queue.wait()
    queue.take()
    for _ in range(2):
        assert not await queue.wait()


async def test_one_of_two_that_wait_is_cancelled() -> None:
    """If a waiter is cancelled after a result woke it, another waiter gets the result."""
    queue = ResultQueue()
    first, second = (asyncio.create_task(queue.wait()) for _ in range(2))
    await let_run()
    put(queue, *results(0))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second
    assert queue.take_all() == results(0)


@pytest.mark.parametrize("take", [ResultQueue.take, ResultQueue.take_all])
async def test_taking_a_result_wakes_a_waiting_worker(take: object) -> None:
    """A task that waits for capacity is woken for each result that is taken, and for nothing else."""
    queue = filled(0, 1)
    worker = asyncio.create_task(queue.freed())
    await let_run()
    assert not worker.done()
    put(queue, *results(2))
    await let_run()
    assert not worker.done()
    assert callable(take)
    take(queue)
    await worker
    assert queue.waiters == 0
