"""The results of a run on their way to whoever takes them: in order, each once, until the end."""

import asyncio

import pytest

from boardclient import CardDraft, CardResult
from boardclient.bulk._outbox import Outbox


def results(*indices: int) -> list[CardResult]:
    return [CardResult(index=index, draft=CardDraft("a", "list")) for index in indices]


def filled(*indices: int) -> Outbox:
    outbox = Outbox()
    for result in results(*indices):
        outbox.put(result)
    return outbox


async def go_on() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_results_are_taken_in_order() -> None:
    """One by one or all that there are, and no longer there afterwards."""
    outbox = filled(0, 1, 2, 3)
    assert await outbox.wait()
    assert outbox.take() == results(0)[0]
    assert outbox.take_all() == results(1, 2, 3)
    assert outbox.take_all() == []


async def test_who_waits_is_woken_by_a_result() -> None:
    """Nobody goes on before there is one, however often another took it first."""
    outbox = filled(0)
    outbox.take()
    waiting = asyncio.create_task(outbox.wait())
    await go_on()
    outbox.put(*results(1))
    outbox.take()
    await go_on()
    assert not waiting.done()
    outbox.put(*results(2))
    assert await waiting


async def test_the_end_comes_after_the_last_result() -> None:
    """Closing wakes everybody who waits; what is there may still be taken."""
    outbox = Outbox()
    waiting = [asyncio.create_task(outbox.wait()) for _ in range(3)]
    await go_on()
    outbox.close()
    assert await asyncio.gather(*waiting) == [False] * 3
    outbox = filled(0)
    outbox.close()
    assert await outbox.wait()
    outbox.take()
    for _ in range(2):
        assert not await outbox.wait()


async def test_one_of_two_that_wait_is_cancelled() -> None:
    """A result that woke somebody who is cancelled meanwhile is the other's."""
    outbox = Outbox()
    first, second = (asyncio.create_task(outbox.wait()) for _ in range(2))
    await go_on()
    outbox.put(*results(0))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second
    assert outbox.take_all() == results(0)


@pytest.mark.parametrize("take", [Outbox.take, Outbox.take_all])
async def test_taking_makes_room(take: object) -> None:
    """Whoever waits for room is told of each result that is taken, and of nothing else."""
    outbox = filled(0, 1)
    assert not outbox.freed.is_set()
    assert callable(take)
    take(outbox)
    assert outbox.freed.is_set()
