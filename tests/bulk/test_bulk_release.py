"""How a run ends inside: its journal is given back or fails, its input, its clock and its instruments."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bulk_helpers import LOST, Memory, Moments, World, kept, names
from bulk_service import Service, drafts, let_run
from virtual_loop import Clock

from boardclient import (
    CardDraft,
    JournalError,
)
from boardclient._activities import Activity, Instrument
from boardclient.bulk import _results
from boardclient.bulk._journal_file import JournalFile, RunLock
from boardclient.bulk._journal_ledger import JournalLedger, RunFile
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
        async def call(self, request: Any) -> Any:
            if request.operation == "cards.create":
                assert int(json.loads(request.body or b"")["name"]) <= marks[-1]
            return await super().call(request)

    monkeypatch.setattr(RunLock, "release_to", note)
    memory = Watching()
    memory.script = {"2": [LOST]}
    async with memory.run([str(seq) for seq in range(1, 41)], journal=path, settle=0.0) as run:
        await run.wait()
    assert (marks[0], marks[-1]) == (0, 40)
    assert all(0 < later - mark <= 16 for mark, later in pairwise(marks))
    assert len(memory.sent) == 41


async def test_a_journal_that_is_full_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No card is sent that is not in the journal; the error is raised after the last result; another run resumes."""
    admit, calls = RunFile.admit, []

    def failing(self: RunFile, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 3:
            raise JournalError("the disk is full: make room and run again")
        return admit(self, *arguments)

    drafts = world.drafts(*range(900))
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "admit", failing)
        async with world.run(drafts) as run:
            with pytest.raises(JournalError, match="the disk is full"):
                async for result in run:
                    seen.append(result.state)
    assert seen == ["created"] * len(world.sent)
    assert 0 < len(seen) < 900
    assert {state for state, _ in kept(world.path).values()} <= {"done", "waiting", "logged"}  # a note may be lost, no row
    _, report = await world.finish(drafts)
    assert report.already == len(seen)
    assert world.there == names(range(900))


async def test_notes_that_cannot_be_written_are_an_error_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are returned; leaving the block reports that the next run will find rows in doubt, which it resolves."""

    def failing(self: JournalFile, *arguments: Any) -> Any:
        raise JournalError("the disk is full")

    drafts = world.drafts(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(JournalFile, "note_unsent", failing)
        with pytest.raises(JournalError, match="the disk is full"):
            await world.finish(drafts)
    states, _ = await world.finish(drafts)
    assert states == {"0": "already", "1": "already"}
    world.service.assert_no_duplicates()


async def test_a_journal_that_fails_while_cards_are_settled_ends_the_run(
    moments: Moments, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card in doubt is unknown and is not sent again; the error of the journal is raised."""

    def failing(*arguments: Any) -> Any:
        raise JournalError("disk I/O error")

    memory = Memory(moments)
    memory.script = {"b": [LOST]}
    seen = {}
    with monkeypatch.context() as patch, pytest.raises(JournalError, match="disk I/O error"):
        async with memory.run("ab", journal=path) as run:
            patch.setattr(RunFile, "ids", failing)
            async for result in run:
                seen[result.draft.name] = result.state
    assert seen == {"a": "created", "b": "unknown"}
    assert len(memory.times("b")) == 1


async def test_the_time_of_a_run_begins_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time between the call of `create_many` and the block does not count, so that the rate is that of the run."""
    clock = Clock()
    monkeypatch.setattr(_results, "time", SimpleNamespace(monotonic=clock))
    run = Service().run([CardDraft("a", "list")])
    clock.advance(100.0)
    async with run:
        clock.advance(1.0)
        assert (await run.wait()).seconds == 1.0


async def test_leaving_early_is_no_failure_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instruments see that a run which was left while cards were in flight ended without an error."""
    ended: list[BaseException | None] = []

    class Noting(Instrument):
        def end(self, activity: Activity) -> None:
            ended.append(activity.error)

    monkeypatch.setattr("boardclient._activities.INSTALLED", [Noting()])
    async with Service(waits=True).run(drafts("list", 10), 3):
        await let_run()
    await let_run()
    assert ended == [None]
