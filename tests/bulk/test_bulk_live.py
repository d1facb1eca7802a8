"""Inputs that wait for the result of a row before they yield the next one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bulk_helpers import LOST, Memory
from virtual_loop import virtually

from boardclient import BulkRun, CardDraft, CardResult


class Live:
    """An input that yields each row once the rows before it, but `ahead` of them, have results."""

    def __init__(self, names: str, ahead: int = 0) -> None:
        self.taken: asyncio.Queue[CardResult] = asyncio.Queue()
        self._names = names
        self._ahead = ahead

    async def rows(self) -> AsyncIterator[CardDraft]:
        for number, name in enumerate(self._names):
            if number > self._ahead:
                await self.taken.get()
            yield CardDraft(name, "list")


def open_run(memory: Memory, rows: AsyncIterator[CardDraft], workers: int, **options: Any) -> BulkRun:
    return memory.open_run(rows, concurrency=workers, **{"board_id": "board", "settle": 60.0, **options})


def on_the_loop() -> Memory:
    """Return a service in memory whose time is that of the running loop."""
    memory = Memory()
    memory.seconds = 0.0
    return memory


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("has_journal", [True, False])
def test_an_input_gets_the_result_that_it_waits_for(workers: int, ahead: int, has_journal: bool, tmp_path: Path) -> None:
    """If a response was lost, the card is found. If a request was, a later card proves it, or the row is unknown in time."""

    async def body() -> None:
        memory = on_the_loop()
        memory.script = {"a": ["swallowed"], "c": ["swallowed"], "d": ["swallowed"], "f": ["swallowed"], "h": ["swallowed"]}
        live = Live("abcdefgh", ahead)
        results = []
        options = {"journal": tmp_path / "j", "settle": 0.005} if has_journal else {}
        async with asyncio.timeout(3600), open_run(memory, live.rows(), workers, **options) as run:
            async for result in run:
                results.append(result)
                live.taken.put_nowait(result)
        unknown = {result.draft.name for result in results if result.state == "unknown"}
        assert unknown <= ({*"cdf"} if ahead < 2 else {*"df"})
        assert sorted(card.name or "" for card in memory.cards) == sorted({*"abcdefgh"} - unknown)
        assert run.report.audit is not None
        assert not run.report.audit.duplicated

    if has_journal:
        asyncio.run(body())  # its thread does not wait in virtual time
    else:
        virtually(body)()


@pytest.mark.parametrize("seconds", [0.0, 1.0, 61.0])
def test_a_run_that_waits_for_its_input_can_be_stopped(seconds: float) -> None:
    """A run whose input is slow can be stopped: a row in doubt is unknown, or was settled before."""

    @virtually
    async def body() -> None:
        async def rows() -> AsyncIterator[CardDraft]:
            yield CardDraft("a", "list")
            yield CardDraft("b", "list")
            await asyncio.Event().wait()

        memory = on_the_loop()
        memory.script = {"a": [LOST]}
        async with asyncio.timeout(3600), open_run(memory, rows(), 1) as run:
            await asyncio.sleep(seconds)
            run.stop()
            states = {result.draft.name: result.state async for result in run}
        if seconds == 61.0:
            assert states == {"a": "created", "b": "created"}
        else:
            assert states.get("a", "unknown") == "unknown"
            assert "b" not in states
            assert memory.cards == []

    body()


@virtually
async def test_rows_that_come_while_cards_may_still_be_created_are_sent_at_once() -> None:
    """The board is read once a lost card must be listed. Until then the input is not interrupted, and its rows are sent."""

    async def rows() -> AsyncIterator[CardDraft]:
        yield CardDraft("a", "list")
        await asyncio.sleep(10.0)
        yield CardDraft("b", "list")
        yield CardDraft("c", "list")

    memory = on_the_loop()
    memory.script = {"a": ["swallowed"]}
    async with open_run(memory, rows(), 2) as run:
        assert (await anext(run)).draft.name == "b"
        assert asyncio.get_running_loop().time() < 60.0
        assert [result.draft.name async for result in run] == ["a", "c"]
