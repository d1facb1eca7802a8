"""What becomes of a run's journal: what it holds before a request, when it is given back, and what a disk does to it."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bulk_helpers import LOST, Memory, Moments, World, names
from waiting import until

from boardclient import CardDraft, JournalError


async def test_a_cancelled_run_gives_its_journal_back(world: World) -> None:
    """When the cancellation leaves the block, the next run can have the journal, however often it was cancelled."""

    async def consume() -> None:
        async with world.run(world.drafts(*range(9))):
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await world.service.received("cards.create", 1)
    await until(lambda: not task.cancel())
    assert task.cancelled()
    states, report = await world.finish(world.drafts(*range(9)))
    assert (len(states), report.created + report.already) == (9, 9)
    world.service.assert_no_duplicates()


async def test_each_row_is_released_before_its_first_request(path: Path) -> None:
    """A row that was logged and not released counts as unsent after a kill: one that is sent all the same has two cards."""
    marks: list[int] = []

    class Watching(Memory):
        async def call(self, request: Any) -> Any:
            if request.operation.name == "cards.create":
                marks.append(int(path.with_name(f"{path.name}-lock").read_text().split()[-1]))
                assert int(json.loads(request.body or b"")["name"]) <= marks[-1]
            return await super().call(request)

    memory = Watching()
    memory.script = {"2": [LOST]}
    await memory.results([str(seq) for seq in range(1, 41)], journal=path, settle=0.0)
    assert len(memory.sent) == len(marks) == 41
    assert marks[-1] == 40
    assert all(0 <= later - mark <= 16 for mark, later in pairwise(marks))


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is one of POSIX")
async def test_a_full_disk_ends_the_run(world: World) -> None:
    """No card is sent that is not in the journal. The error is raised after the last result, and another run resumes."""
    import resource

    drafts, seen = world.drafts(*range(900)), []
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(JournalError, match=r"can't grow|can't be read or written"):
            async with world.run(drafts) as run:
                async for result in run:
                    seen.append(result.state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert seen == ["created"] * len(world.sent)
    assert 0 < len(seen) < 900
    _, report = await world.finish(drafts)
    assert report.already >= len(seen)
    assert world.there == names(range(900))


async def test_a_journal_that_is_moved_while_cards_are_settled_ends_the_run(moments: Moments, path: Path) -> None:
    """The card in doubt is unknown and is not sent again. The error of the journal is raised."""
    memory = Memory(moments)
    memory.script = {"b": [LOST]}
    seen = {}
    with pytest.raises(JournalError, match="was moved"):
        async with memory.run("ab", journal=path) as run:
            async for result in run:
                seen[result.draft.name] = result.state
                await until(lambda: memory.times("b"), pause=1.0)
                path.rename(path.with_name("moved"))
    assert seen == {"a": "created", "b": "unknown"}
    assert len(memory.times("b")) == 1


async def test_an_input_that_hangs_keeps_no_journal(world: World) -> None:
    """The journal is given back before the cleanup of the input, which takes its time."""
    may_end = asyncio.Event()

    async def source() -> AsyncIterator[CardDraft]:
        try:
            for draft in world.drafts(*range(600)):
                yield draft
        finally:
            await may_end.wait()

    async def first() -> None:
        async with world.run(source()) as run:
            await anext(run)

    leaving = asyncio.create_task(first())
    await world.service.received("cards.create", 2)

    async def is_run() -> bool:
        with contextlib.suppress(JournalError):
            await world.run(world.drafts(*range(600))).wait()
            return True
        return False

    await until(is_run)
    assert not leaving.done()
    may_end.set()
    await leaving
    assert sorted(world.there) == names(range(600))
