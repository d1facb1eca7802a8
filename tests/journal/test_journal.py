"""The journal as a run uses it: logged rows are durable, notes cost no waiting, no cancellation and no kill loses a row."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from boardclient import JournalError
from boardclient.bulk.journal import _journal
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._format import Entry, RowDecision, RowKey, RowState
from boardclient.bulk.journal._journal import Journal
from boardclient.bulk.journal._view import read_journal, read_rows

IDENTITY = {"board": "b1"}
NEVER = 1e6


class Sending(Journal):
    """A journal whose rows are all sent as soon as they may be."""

    async def admit(self, entries: Sequence[Entry]) -> list[RowDecision]:
        decisions = await super().admit(entries)
        for decision in decisions:
            if decision.action == "send":
                self.release(decision.seq)
        return decisions


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[Journal]:
    """Give a journal that writes no note on its own."""
    opened = await Sending.open(path, IDENTITY, note_seconds=NEVER)
    yield opened
    with contextlib.suppress(JournalError):
        await opened.aclose()


def entries(*keys: RowKey) -> list[Entry]:
    return [(key, hashlib.blake2b(b"as it was", digest_size=16).digest()) for key in keys]


def states(path: Path) -> dict[RowKey, tuple[RowState, str | None]]:
    return {row.key: (row.state, row.detail) for row in read_rows(path)}


@contextlib.contextmanager
def held_up(journal: Journal) -> Iterator[None]:
    """Keep the thread of the journal busy, so that whatever is asked of it waits."""
    gate = threading.Event()
    journal._thread.submit(gate.wait, 60)
    try:
        yield
    finally:
        gate.set()


async def begun(work: Any) -> asyncio.Task[Any]:
    """Start a call, and run until it waits."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_rows_are_on_the_disk_when_they_are_admitted(journal: Journal, path: Path) -> None:
    """What is to be sent is logged in the file; a note is not there before it is written."""
    assert await journal.admit(entries("a", "b")) == [RowDecision(1, "send"), RowDecision(2, "send")]
    journal.note(1, "done", "c1")
    assert states(path) == {"a": ("logged", None), "b": ("logged", None)}


async def test_notes_are_written_with_the_next_admission(journal: Journal, path: Path) -> None:
    """Recording what happened costs no commit of its own while rows are being logged."""
    await journal.admit(entries("a", "b"))
    journal.note(2, "failed", "status 400")
    await journal.admit(entries("c"))
    assert states(path) == {"a": ("logged", None), "b": ("failed", "status 400"), "c": ("logged", None)}


async def test_notes_are_written_on_their_own_after_a_while(path: Path) -> None:
    """Where nothing more is logged, a timer writes them, and the next ones again."""
    journal = await Sending.open(path, IDENTITY, note_seconds=0)
    await journal.admit(entries("a", "b"))
    for seq in (1, 2):
        journal.note(seq, "done", "c")
        assert journal._timer is not None
        while journal._timer is not None:
            await asyncio.sleep(0)
        await journal.baseline_ids()  # comes after it in the thread
        assert read_journal(path).counts["done"] == seq
    await journal.aclose()


async def test_the_first_notes_are_written_soon(journal: Journal, path: Path) -> None:
    """A run that is killed early leaves a confirmed card, and writing gets rarer with the notes that were written."""
    await journal.admit(entries(*range(100)))
    waits = []
    for seq in (1, 2, 40):
        journal.note(seq, "done", "c")
        assert journal._timer is not None
        waits.append(journal._timer.when() - asyncio.get_running_loop().time())
        for note in range(seq + 1, 2 * seq):
            journal.note(note, "done", "c")
        journal._write_pending()
    assert waits[0] <= 0
    assert NEVER * 0.01 < waits[1] < waits[2] == pytest.approx(NEVER * 3 / 64, rel=0.01)
    journal.note(99, "done", "c")
    await journal.flush()
    assert read_journal(path).counts["done"] == 44


async def test_facts_are_kept_for_later_runs(journal: Journal, path: Path) -> None:
    """A text is on the disk when it is set, in place of the one before, and comes from the file."""
    assert journal.facts == {}
    await journal.set_fact("seen", "one")
    await journal.set_fact("seen", '{"größer": "\\ud800"}')
    await journal.set_fact("other", "")
    await journal.aclose()
    later = await Sending.open(path, IDENTITY)
    assert later.facts == {"seen": '{"größer": "\\ud800"}', "other": ""}
    await later.aclose()


async def test_many_notes_are_written_at_once(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as many notes wait as may, they are written without a timer."""
    monkeypatch.setattr(_journal, "_MOST_PENDING", 3)
    await journal.admit(entries(*range(4)))
    for seq in (1, 2, 3, 4):
        journal.note(seq, "done", "c")
    await journal.baseline_ids()
    assert read_journal(path).counts["done"] == 3
    await journal.flush()
    assert read_journal(path).counts["done"] == 4


async def test_closing_writes_the_notes_and_gives_the_lock_back(journal: Journal, path: Path) -> None:
    """After closing, once or twice, the file is complete and free, and the journal says that it is closed."""
    await journal.admit(entries("a"))
    journal.note(1, "done", "c1")
    await asyncio.gather(journal.aclose(), journal.aclose())
    assert states(path) == {"a": ("done", "c1")}
    JournalFile.open(path, IDENTITY).close()
    with pytest.raises(RuntimeError, match="the journal is closed"):
        journal.note(1, "failed")
    for use in (journal.admit(entries("b")), journal.flush(), anext(journal.rows("logged"))):
        with pytest.raises(RuntimeError, match="the journal is closed"):
            await use
    assert states(path) == {"a": ("done", "c1")}


async def test_a_reason_that_utf8_cannot_carry_is_noted(journal: Journal, path: Path) -> None:
    """Odd text in a reason does not stop the run, and plain text beyond ASCII stays as it is."""
    await journal.admit(entries("a", "b"))
    journal.note(1, "unknown", "a lone \ud800 surrogate")
    journal.note(2, "unknown", "größer")
    await journal.flush()
    assert states(path) == {"a": ("unknown", "a lone ? surrogate"), "b": ("unknown", "größer")}


async def test_rows_in_doubt_are_those_of_which_nothing_is_known(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logged and unknown rows of every run are in doubt, page after page; noted outcomes count, and each row names its run."""
    monkeypatch.setattr(_journal, "_PAGE", 2)
    await journal.admit(entries(*"abcdef"))
    journal.note(1, "done", "c1")
    journal.note(2, "unknown", "status 503")
    journal.note(3, "waiting", "status 429")
    await journal.aclose()
    later = await Sending.open(path, IDENTITY)
    assert [decision.action for decision in await later.admit(entries("c", "e"))] == ["send", "doubtful"]
    later.note(4, "done", "c4")
    rows = [(row.key, row.run) async for row in later.rows("logged", "unknown")]
    assert rows == [("b", 1), ("c", 2), ("e", 1), ("f", 1)]
    await later.aclose()


async def test_the_baseline_and_the_secret_come_from_the_file(journal: Journal, path: Path) -> None:
    """A later run finds both as the first one left them."""
    secret = journal.secret
    assert journal.baseline is None
    await journal.set_baseline(iter(["c1", "c2"]))
    await journal.aclose()
    later = await Sending.open(path, IDENTITY)
    assert (later.baseline, later.secret) == (2, secret)
    assert await later.baseline_ids() == ["c1", "c2"]
    await later.aclose()


# Cancellation


async def test_rows_logged_for_a_cancelled_task_are_not_in_doubt(journal: Journal, path: Path) -> None:
    """A task that is cancelled while rows are logged sends none of them. They wait for the next run."""
    await journal.admit(entries("before"))
    with held_up(journal):
        task = await begun(journal.admit(entries("a", "b")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await journal.aclose()
    unsent = ("waiting", "not sent: cancelled")
    assert states(path) == {"before": ("logged", None), "a": unsent, "b": unsent}
    later = await Sending.open(path, IDENTITY)
    assert [s.action for s in await later.admit(entries("a", "before"))] == ["send", "doubtful"]
    await later.aclose()


async def test_what_a_cancelled_admission_did_not_arm_stays_as_it_is(journal: Journal, path: Path) -> None:
    """Rows that are done or in doubt already are not touched by the cancellation."""
    await journal.admit(entries("done", "doubtful"))
    journal.note(1, "done", "c1")
    await journal.aclose()
    later = await Sending.open(path, IDENTITY)
    with held_up(later):
        task = await begun(later.admit(entries("done", "doubtful", "new")))
        task.cancel()
        await asyncio.wait([task])
    await later.aclose()
    assert states(path) == {
        "done": ("done", "c1"),
        "doubtful": ("logged", None),
        "new": ("waiting", "not sent: cancelled"),
    }


async def test_notes_taken_along_by_a_cancelled_admission_are_written(journal: Journal, path: Path) -> None:
    """The thread completes its work, also if the rows are refused."""
    await journal.admit(entries("a"))
    journal.note(1, "done", "c1")
    with held_up(journal):
        task = await begun(journal.admit(entries("b", "a")))
        task.cancel()
        await asyncio.wait([task])
    await journal.flush()
    assert states(path) == {"a": ("done", "c1")}
    assert await journal.admit(entries("b")) == [RowDecision(2, "send")]


async def test_an_admission_that_is_cancelled_while_the_journal_closes_ends(journal: Journal, path: Path) -> None:
    """The file can't be written then: the rows are in doubt, which is safe."""
    with held_up(journal):
        admission = await begun(journal.admit(entries("a")))
        closing = await begun(journal.aclose())
        admission.cancel()
        await asyncio.wait([admission])
    await closing
    assert admission.cancelled()
    assert states(path) == {"a": ("logged", None)}


async def test_closing_continues_when_its_caller_is_cancelled(journal: Journal, path: Path) -> None:
    """The cancellation leaves only once the notes are written and the next run can have the file, however often it comes."""
    await journal.admit(entries("a"))
    journal.note(1, "done", "c1")
    with held_up(journal):
        task = await begun(journal.aclose())
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
    await asyncio.wait([task])
    assert task.cancelled()
    JournalFile.open(path, IDENTITY).close()
    assert states(path) == {"a": ("done", "c1")}


@pytest.mark.parametrize("path_is_good", [True, False])
async def test_opening_that_is_cancelled_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch, path_is_good: bool
) -> None:
    """The cancellation leaves only once the journal is closed again, and its thread has ended."""
    gate, began = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    real = JournalFile.open

    def slow(*arguments: Any) -> JournalFile:
        threads.append(threading.current_thread())
        began.set()
        gate.wait(60)
        return real(*arguments)

    monkeypatch.setattr(JournalFile, "open", slow)
    task = await begun(Sending.open(path if path_is_good else path / "nowhere", IDENTITY))
    began.wait(60)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not threads[0].is_alive()
    real(path, IDENTITY).close()


# Errors


async def test_a_journal_that_cannot_be_opened_says_why_and_keeps_no_thread(journal: Journal, path: Path) -> None:
    """The error of the file reaches the task that opens it."""
    before = set(threading.enumerate())
    with pytest.raises(JournalError, match="in use by another run"):
        await Sending.open(path, IDENTITY)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) <= before


def fill_the_disk(journal: Journal) -> None:
    connection = journal._file._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")


async def test_an_error_of_the_writer_shows_at_the_next_call(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome that could not be written is raised to the next caller, and nothing is logged afterwards."""
    monkeypatch.setattr(_journal, "_MOST_PENDING", 1)
    await journal.admit(entries("a"))
    fill_the_disk(journal)
    journal.note(1, "unknown", "x" * 100_000)
    with pytest.raises(JournalError, match="can't grow"):
        await journal.admit(entries("b"))
    with pytest.raises(JournalError, match="can't grow"):
        await journal.flush()
    with pytest.raises(JournalError, match="can't grow"):
        await journal.aclose()
    assert states(path) == {"a": ("logged", None)}


async def test_an_error_of_the_writer_shows_at_closing_at_the_latest(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing else was called after it, closing raises the error, and the lock is released."""
    monkeypatch.setattr(_journal, "_MOST_PENDING", 1)
    await journal.admit(entries("a"))
    fill_the_disk(journal)
    journal.note(1, "unknown", "x" * 100_000)
    for _ in range(2):
        with pytest.raises(JournalError, match="can't grow"):
            await journal.aclose()
    JournalFile.open(path, IDENTITY).close()


async def test_a_repeated_row_leaves_the_rows_already_sent(journal: Journal, path: Path) -> None:
    """The input is refused; rows that were sent already are noted as ever."""
    await journal.admit(entries("a"))
    with pytest.raises(JournalError, match="comes twice"):
        await journal.admit(entries("b", "a"))
    journal.note(1, "done", "c1")
    await journal.aclose()
    assert states(path) == {"a": ("done", "c1")}


# Processes

RUN = """
import asyncio, itertools, sys
from boardclient.bulk.journal._journal import Journal

async def main(path, batch):
    journal = await Journal.open(path, {"board": "b1"})
    for first in itertools.count(0, batch):
        for decision in await journal.admit([(n, b"d" * 16) for n in range(first, first + batch)]):
            assert decision.action == "send"
            journal.release(decision.seq)
            journal.note(decision.seq, "done", f"c{decision.seq}")
        print(first + batch, flush=True)
        if batch > 100:
            sys.stdin.readline()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def start(path: Path, batch: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(path), str(batch)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill a process without mercy, and return the lines that it still got out."""
    assert process.stdout is not None
    process.kill()
    rest = process.stdout.read().splitlines()
    assert process.wait(60) == -signal.SIGKILL
    return rest


def test_a_kill_after_logging_leaves_the_rows_in_doubt(path: Path) -> None:
    """A second process is refused while the first lives; after its death the journal is free and holds what was logged."""
    with start(path, 200) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "200\n"
        with pytest.raises(JournalError, match="in use by another run"):
            JournalFile.open(path, IDENTITY)
        assert read_journal(path).counts["logged"] == 200
        kill(process)
    assert read_journal(path).counts == {"logged": 200, "done": 0, "failed": 0, "waiting": 0, "unknown": 0}
    journal = JournalFile.open(path, IDENTITY)
    decisions = journal.admit([(n, b"d" * 16) for n in range(201)])
    assert [decision.action for decision in decisions] == ["doubtful"] * 200 + ["send"]
    journal.close()


@pytest.mark.parametrize("batches", [1, 3, 10, 40])
@pytest.mark.parametrize("batch", [1, 37])
def test_a_kill_at_any_moment_loses_no_row_that_was_admitted(path: Path, batches: int, batch: int) -> None:
    """After a crash during commits, all rows that may have been sent are in the file, and few rows are in doubt."""
    with start(path, batch) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(batches)]
        told += kill(process)
    admitted = max(int(line) for line in told)
    rows = list(read_rows(path))
    assert [row.key for row in rows] == list(range(len(rows)))
    assert len(rows) in (admitted, admitted + batch)
    done = [row for row in rows if row.state == "done"]
    assert all(row.detail == f"c{row.seq}" for row in done)
    assert len(done) >= len(rows) - 2 * batch
    JournalFile.open(path, IDENTITY).close()
