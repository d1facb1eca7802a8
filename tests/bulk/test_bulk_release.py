"""A run that ends gives its journal back, also when it is cancelled."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bulk_helpers import LOST, Memory, World, names
from bulk_service import let_run

from boardclient import (
    CardDraft,
    JournalError,
)
from boardclient._operations import Request
from boardclient._pipeline._calls import CallOptions
from boardclient.bulk._journal import JournalLedger, RunFile
from boardclient.bulk._journal_file import JournalFile, RunLock
from boardclient.bulk._life import Row


async def test_a_cancelled_run_gives_its_journal_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the cancellation leaves the block, the next run can have the journal, however often it was cancelled."""
    closing, may_close = threading.Event(), threading.Event()
    close = JournalFile.close

    def slow(self: JournalFile) -> None:
        closing.set()
        may_close.wait()
        close(self)

    monkeypatch.setattr(JournalFile, "close", slow)

    async def consume() -> None:
        async with world.run(world.drafts(*range(9))):
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await world.service.received("cards.create", 1)
    task.cancel()
    while not closing.is_set():
        await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await let_run()
        assert not task.done()
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    states, report = await world.finish(world.drafts(*range(9)))
    assert (len(states), report.created + report.already) == (9, 9)
    world.service.assert_no_duplicates()


async def test_cancelled_while_the_journal_is_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that was opened for a run that is cancelled meanwhile is given back before the cancellation leaves."""
    opening, may_open = threading.Event(), threading.Event()
    open_file = RunFile.open.__func__  # type: ignore[attr-defined]  # -- a class method has it

    def slow(cls: type[RunFile], *arguments: Any) -> RunFile:
        opening.set()
        may_open.wait()
        return open_file(cls, *arguments)

    monkeypatch.setattr(RunFile, "open", classmethod(slow))
    task = asyncio.create_task(world.run(world.drafts(0)).wait())
    while not opening.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await let_run()
    may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await world.run(world.drafts(0)).wait()).created == 1


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
    while (await asyncio.gather(world.run(world.drafts(*range(600))).wait(), return_exceptions=True))[
        0
    ].__class__ is JournalError:
        await asyncio.sleep(0)
    assert not leaving.done()
    may_end.set()
    await leaving
    assert sorted(world.there) == names(range(600))


async def test_rows_are_logged_ahead_of_the_workers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would wait for each commit gets more rows with the next; a slow consumer still holds the sending up."""
    sizes: list[int] = []
    real = JournalLedger.admit

    async def counted(self: JournalLedger, rows: Sequence[Row]) -> None:
        while len(memory.sent) < sum(sizes):  # each commit takes until the workers wait for it
            await asyncio.sleep(0)
        sizes.append(len(rows))
        for _ in range(20):
            await asyncio.sleep(0)
        await real(self, rows)

    monkeypatch.setattr(JournalLedger, "admit", counted)
    memory = Memory()
    names = [f"card {n}" for n in range(1200)]
    async with memory.run(names, journal=path, concurrency=1, board_id=None) as run:
        while len(memory.sent) < 1:
            await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(memory.sent) <= 2
        await run.wait()
    assert [name for name, _ in memory.sent] == names
    assert sizes == [32, 64, 128, 256, 256, 256, 208]


async def test_each_row_is_released_before_its_first_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was logged and not released counts as unsent after a kill: one that is sent all the same has two cards."""
    marks: list[int] = []
    release_to = RunLock.release_to

    def note(file: RunLock, seq: int) -> None:
        release_to(file, seq)
        marks.append(seq)

    class Watching(Memory):
        async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
            if request.operation == "cards.create":
                assert int(json.loads(request.body or b"")["name"]) <= marks[-1]
            return await super().call(request, options)

    monkeypatch.setattr(RunLock, "release_to", note)
    memory = Watching()
    memory.script = {"2": [LOST]}
    async with memory.run([str(seq) for seq in range(1, 41)], journal=path, settle=0.0) as run:
        await run.wait()
    assert (marks[0], marks[-1]) == (0, 40)
    assert all(0 < later - mark <= 16 for mark, later in pairwise(marks))
    assert len(memory.sent) == 41
