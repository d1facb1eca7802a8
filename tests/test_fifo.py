"""The queue of waiting tasks that the pool and bulk runs use: its order, cancellations, and what a step costs."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from boardclient._base._fifo import Fifo


class Counted(deque[Any]):
    """A deque that counts the entries that are taken from it or looked at."""

    steps = 0

    def popleft(self) -> Any:
        self.steps += 1
        return super().popleft()

    def __iter__(self) -> Any:
        self.steps += len(self)
        return super().__iter__()


def lost() -> None:
    """Take back what was handed to a task that was cancelled."""
    pytest.fail("nothing was handed over")


async def begun(fifo: Fifo, number: int) -> list[asyncio.Task[None]]:
    """Let so many tasks wait."""
    tasks = [asyncio.create_task(fifo.wait(lost)) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def test_tasks_are_resumed_in_the_order_in_which_they_came() -> None:
    """One at a time, without those that were cancelled, even if they have not run since."""
    fifo, order = Fifo(), list[int]()

    async def wait(number: int) -> None:
        await fifo.wait(lost)
        order.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert len(fifo) == 4
    tasks[2].cancel()
    assert [fifo.resume() for _ in range(4)] == [True, True, True, False]
    await asyncio.wait(tasks)
    assert (order, len(fifo)) == ([1, 3, 4], 0)


async def test_what_a_cancelled_task_was_handed_is_given_back() -> None:
    """A task that is cancelled between its resumption and its next step gives back what it was handed."""
    fifo, returned = Fifo(), list[str]()
    task = asyncio.create_task(fifo.wait(lambda: returned.append("it")))
    await asyncio.sleep(0)
    assert fifo.resume()
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), returned, len(fifo)) == (True, ["it"], 0)


@pytest.mark.full
@pytest.mark.parametrize("number", [100, 1_000, 10_000])
async def test_a_step_costs_the_same_however_many_wait(number: int) -> None:
    """Resuming and cancelling look at a few entries each, and cancelled ones do not add up."""
    fifo = Fifo()
    fifo._entries = entries = Counted()  # type: ignore[misc]  # -- final
    tasks = await begun(fifo, number)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.sleep(0)
    while fifo.resume():
        pass
    await asyncio.wait(tasks)
    for task in await begun(fifo, number):
        task.cancel()
        await asyncio.sleep(0)
    assert len(entries) <= 65
    assert entries.steps <= 5 * number
