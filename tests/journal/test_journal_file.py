"""What an operator may do to the file of a journal, and what the disk may: a clear refusal, and never a row sent twice."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from waiting import until

from boardclient import Card, CardDraft, JournalError
from boardclient._base import _environment
from boardclient.bulk import resolve
from boardclient.bulk._journal import _file
from boardclient.bulk._journal._journal_ledger import JournalLedger
from boardclient.bulk._journal._journal_rows import JournalRows
from boardclient.bulk._life import IN_DOUBT, Row
from boardclient.bulk.journal import read_journal, read_rows, read_unknown, rehearsed

IDENTITY = {"service": "https://boards.example", "board": "b1"}


def rows(*names: object) -> list[Row]:
    """Return rows without references."""
    return [Row(index, CardDraft(str(name), "l1")) for index, name in enumerate(names)]


def action(row: Row) -> str:
    """Return what a run does with a row."""
    return "send" if row.outcome is None else "in doubt" if row.outcome.state in IN_DOUBT else row.outcome.state


async def opened(path: Path, **identity: str) -> JournalLedger:
    """Open a journal for a run."""
    return await JournalLedger.open(path, {**IDENTITY, **identity}, 8)


async def run(path: Path, names: Sequence[object], *, sent: int | None = None, done: int = 0) -> list[str]:
    """Pass rows through a journal; some are released, some of them done. Return what was to be done with each."""
    ledger = await opened(path)
    given = rows(*names)
    try:
        await ledger.admit(given)
        for row in given[:sent]:
            if row.seq > ledger.released:
                ledger.release(row)
        for row in given[:done]:
            ledger.add_outcome(row, "created", Card(f"card {row.index}"))
    finally:
        await ledger.aclose()
    return [action(row) for row in given]


def states(path: Path) -> list[str]:
    return [row.state for row in read_rows(path)]


# --- kills


CRASHES = '''
import os, sys
from pathlib import Path
from boardclient import CardDraft
from boardclient.bulk._journal import _file
from boardclient.bulk._journal._journal_rows import JournalRows

connect, folder = _file.connect, Path(sys.argv[1])
entries = [(f"r{n}", CardDraft(f"card {n}", "l1")) for n in range(12)]

def life(path, steps, sent):
    """Log twelve rows in batches of four, and send them; die before a statement."""
    left = [steps]
    def count(statement):
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
    def traced(where):
        connection = connect(where)
        connection.raw.set_trace_callback(count)
        return connection
    _file.connect = traced
    run = JournalRows.open(path, {})
    if run.is_new and not run.last:
        run.set_baseline(["b1", "b2"])
    noted = []
    for start in range(0, 12, 4):
        for (key, _), (seq, outcome) in zip(entries[start:], run.admit(entries[start : start + 4], noted)):
            if outcome is None:
                run.journal.lock.release_to(max(seq, run.last if seq % 2 else seq))
                os.write(sent, f"{key} ".encode())
                noted = [(seq, "done", f"card of {key}")]
    run.record(noted)
    run.journal.close()

for steps in range(1, 200):
    path, again = folder / f"journal {steps}", 0
    listed = os.open(folder / f"sent {steps}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for again in range(2):  # two lives that end at the same step
        child = os.fork()
        if not child:
            life(path, steps, listed)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    run = JournalRows.open(path, {})
    sent = (folder / f"sent {steps}").read_text().split()
    outcomes = [outcome for start in range(0, 12, 4) for _, outcome in run.admit(entries[start : start + 4])]
    run.journal.close()
    wrong = [key for (key, _), outcome in zip(entries, outcomes) if key in sent and outcome is None]
    twice = [key for key in set(sent) if sent.count(key) > 1]
    print(steps, status, wrong, twice, len(sent))
    if status == 0:
        break
'''


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_after_a_kill_at_any_step_no_row_that_was_sent_is_taken_as_unsent(tmp_path: Path) -> None:
    """A process dies before each single statement of its life, and so does the one that resumes."""
    line = [sys.executable, "-c", CRASHES, str(tmp_path)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert ended.stderr == ""
    found = [line.split(" ", 2) for line in ended.stdout.splitlines()]
    assert len(found) >= 30
    assert {rest.split("] ")[0] for _, _, rest in found} == {"["}, ended.stdout
    assert {rest.split("] ")[1] for _, _, rest in found} == {"["}, ended.stdout
    assert found[-1][1] == "0"


@pytest.mark.parametrize("has_identifier", [True, False])
async def test_after_a_restart_of_the_machine_all_rows_are_in_doubt(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_identifier: bool
) -> None:
    """The mark of what was released may not have survived it. Some systems have no identifier of a boot."""
    boot = path.with_name("boot")
    monkeypatch.setattr(_file, "_BOOT", boot)
    if has_identifier:
        boot.write_text("one")
    ledger = await opened(path)
    given = rows(*range(40))
    await ledger.admit(given)
    ledger.release(given[0])
    ledger._file.journal._opened.close()  # the process is gone
    if has_identifier:
        boot.write_text("another")
    assert [unknown.row.key for unknown in read_unknown(path)] == [*range(40)]


async def test_a_reader_sees_what_is_in_doubt(path: Path) -> None:
    """Rows that a killed run certainly did not send are none of them."""
    ledger = await opened(path)
    given = rows(*range(40))
    await ledger.admit(given)
    ledger.release(given[0])
    ledger._file.journal._opened.close()  # the process is gone
    assert [unknown.row.key for unknown in read_unknown(path)] == [*range(16)]
    assert read_journal(path).counts["waiting"] == 24
    assert await run(path, range(40)) == ["in doubt"] * 16 + ["send"] * 24


async def test_rows_that_two_killed_runs_did_not_send_are_not_in_doubt(path: Path) -> None:
    """A row that is logged again stands above the mark of its run as a new one does."""
    for expected in (["send"] * 40, ["in doubt"] * 16 + ["send"] * 24):
        ledger = await opened(path)
        given = rows(*range(40))
        await ledger.admit(given)
        assert [action(row) for row in given] == expected
        first = next(row for row in given if row.outcome is None)
        if first.seq > ledger.released:
            ledger.release(first)
        ledger._file.journal._opened.close()  # the process is gone
    assert await run(path, range(40)) == ["in doubt"] * 32 + ["send"] * 8


# --- mistakes


@pytest.mark.parametrize("way", ["lock removed", "hard link", "moved"])
async def test_a_run_ends_once_another_has_begun_on_its_journal(path: Path, way: str) -> None:
    """The lock does not hold if its file is removed or the journal has another path, but the journal knows its last run."""
    ledger = await opened(path)
    given = rows("a", "b")
    await ledger.admit(given)
    ledger.release(given[0])
    other = path.with_name("other")
    if way == "lock removed":
        path.with_name(f"{path.name}-lock").unlink()
        other = path
    else:
        (other.hardlink_to(path) if way == "hard link" else path.rename(other))
    second = await opened(other)
    seen = rows("a", "b")
    await second.admit(seen)
    assert [action(row) for row in seen] == ["in doubt", "in doubt"]
    ledger.add_outcome(given[0], "created", Card("card"))
    with pytest.raises(JournalError, match="another run"):
        await ledger.confirmed()
    with pytest.raises(JournalError, match="another run"):
        ledger.release(given[1])
    with pytest.raises(JournalError, match="another run"):
        await ledger.aclose()
    await second.aclose()


async def test_a_second_run_is_refused(path: Path) -> None:
    """A person who would settle rows meanwhile is refused too. Reading is allowed."""
    ledger = await opened(path)
    (row,) = rows("a")
    await ledger.admit([row])
    ledger.release(row)
    for use in (lambda: JournalRows.open(path, IDENTITY), lambda: resolve(path, 0, absent=True), lambda: read_unknown(path)):
        with pytest.raises(JournalError, match="is in use by another run"):
            use()
    assert states(path) == ["logged"]
    await ledger.aclose()
    assert await run(path, "a") == ["in doubt"]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_journal_that_is_deleted_in_mid_run_ends_it(path: Path, is_replaced: bool) -> None:
    """No more rows are logged, and the next run does not begin from nothing."""
    ledger = await opened(path)
    first, second = rows("a"), rows("a", "b")[1:]
    await ledger.admit(first)
    ledger.release(first[0])
    path.rename(path.with_name("moved"))
    if is_replaced:
        path.touch()
    with pytest.raises(JournalError, match="was moved, removed or replaced while a run was using it"):
        await ledger.admit(second)
    with pytest.raises(JournalError, match="was moved"):
        await ledger.aclose()
    path.unlink(missing_ok=True)
    with pytest.raises(JournalError, match=r"is gone, though a run has used it: put it back.* remove cards.journal-lock"):
        await opened(path)
    path.with_name("moved").rename(path)
    assert await run(path, "ab") == ["in doubt", "send"]


async def test_links_lead_to_the_journal_itself(path: Path) -> None:
    """Two names of one journal have one lock."""
    await run(path, "a", done=1)
    link = path.with_name("link")
    link.symlink_to(path)
    ledger = await opened(path)
    with pytest.raises(JournalError, match="in use"):
        await opened(link)
    await ledger.aclose()
    assert await run(link, "a") == ["done"]


async def test_a_journal_that_others_may_change_is_refused(path: Path) -> None:
    """Who can change it decides what is created. The refusal says what to do."""
    await run(path, "a", done=1)
    path.chmod(0o666)
    with pytest.raises(JournalError, match=r"others may change .*cards.journal.*: chmod go-w "):
        await opened(path)
    path.chmod(0o600)
    assert await run(path, "a") == ["done"]


# --- the disk


@pytest.mark.parametrize(("kind", "is_refused"), [("nfs4", True), ("cifs", True), ("ext4", False), (None, False)])
async def test_a_network_file_system_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, is_refused: bool
) -> None:
    """Locks are not reliable there. Where the system does not name it, the file system is taken as local."""
    device = tmp_path.stat().st_dev
    table = tmp_path / "mounts"
    monkeypatch.setattr(_environment, "_MOUNTS", table)
    if kind is not None:
        table.write_text(
            "22 1 0:999 / /proc rw - proc proc rw\n"
            f"29 1 {os.major(device)}:{os.minor(device)} / {tmp_path} rw shared:1 - {kind} server:/volume rw\n"
        )
    if is_refused:
        with pytest.raises(JournalError, match=rf"network file system \({kind}\)"):
            await opened(path)
    else:
        assert await run(path, "a") == ["send"]


async def test_another_program_that_locks_the_file_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while: it may only be reading."""
    monkeypatch.setattr(_file, "_LOCK_SECONDS", 0.01)
    await run(path, "a")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(JournalError, match="is kept locked by another program"):
            await opened(path)


def write_nothing(descriptor: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "no space is left")


@pytest.mark.parametrize("write", [write_nothing, lambda descriptor, data, write=os.write: write(descriptor, data[:-3])])
async def test_a_mark_that_is_not_written_whole_stops_the_row(
    path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[int, bytes], int]
) -> None:
    """What is left of the mark before could make it a lower number, and the row be sent again."""
    ledger = await opened(path)
    (row,) = rows("a")
    await ledger.admit([row])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(JournalError, match=r"cards.journal-lock can't be written \(no space is left\): free some disk space"):
            ledger.release(row)
    await ledger.aclose()


async def test_an_error_of_the_system_names_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a file that goes away while it is opened."""
    monkeypatch.setattr(_file, "_identify", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(JournalError, match=r"cards.journal can't be used \(I/O error\): check its permissions"):
        await opened(path)


async def test_an_error_of_the_copy_on_which_rows_are_tried_is_one_of_the_system(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite chooses where the copy is, and the journal is all right."""
    await run(path, "a")

    def fail(*_: object) -> None:
        raise JournalError(f"{path} can't grow") from sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(JournalRows, "admit", fail)
    with rehearsed(path, IDENTITY) as decide, pytest.raises(OSError, match=r"^database or disk is full$"):
        decide([(0, CardDraft("a", "l1"))])


async def test_a_file_system_without_locks_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(_file, "_lock", refuse)
    with pytest.raises(JournalError, match="put the journal on a local disk"):
        await opened(path)


# --- the ledger of a run


async def test_outcomes_are_written_without_waiting(path: Path) -> None:
    """Soon, or with the next rows."""
    ledger = await opened(path)
    given = rows(*range(4))
    await ledger.admit(given)
    ledger.add_outcome(given[0], "created", Card("c0"))
    await until(lambda: "done" in states(path))
    ledger.add_outcome(given[1], "created", Card("ç1"))
    ledger.withdraw(given[2:3])
    await ledger.aclose()
    await ledger.aclose()
    assert states(path) == ["done", "done", "waiting", "waiting"]
    for use in (lambda: ledger.release(given[3]), lambda: ledger.add_outcome(given[3], "created", Card("c"))):
        with pytest.raises(RuntimeError, match="closed"):
            use()


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_rows_logged_for_a_cancelled_run_are_not_in_doubt(path: Path, steps: int) -> None:
    """The rows never reached a worker."""
    ledger = await opened(path)
    admission = asyncio.ensure_future(ledger.admit(rows(*range(200))))
    for _ in range(steps):
        await asyncio.sleep(0)
    admission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admission
    await ledger.aclose()
    assert {*states(path)} <= {"waiting"}


async def test_many_rows_are_read_in_pages(path: Path) -> None:
    """In the order of logging."""
    await run(path, range(2500))
    assert [row.key for row in read_rows(path)] == [*range(2500)]
    assert [row.key for row in read_rows(path, "done")] == []
