"""A journal is one file: it is read whole or not at all, whatever was moved, copied, cut off or left beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from journal_helpers import IDENTITY, entries, kill_run, opened

from boardclient import JournalError
from boardclient.bulk.journal import _parts
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._lock import RunLock
from boardclient.bulk.journal._view import read_journal


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def torn(path: Path, *, first: int = 0, rows: int = 20) -> None:
    """Leave a journal whose last commit was cut off with pages of it already in the file."""
    kill_run(path, rows, first=first, torn_at=5000)
    assert beside(path, "-journal").stat().st_size > 4096


def test_a_journal_that_was_closed_is_one_file(path: Path) -> None:
    """A closed journal may be moved and copied anywhere with all it holds."""
    with opened(path) as journal:
        journal.admit(entries("a"))
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}-lock"}
    elsewhere = path.with_name("elsewhere")
    shutil.copy(path, elsewhere)
    with opened(elsewhere) as journal:
        assert [row.action for row in journal.admit(entries("a"))] == ["doubtful"]


def test_after_a_kill_the_file_itself_holds_everything(path: Path) -> None:
    """Committed rows are not in a second file."""
    kill_run(path, 400)
    assert beside(path, "-journal").stat().st_size == 0
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (400,)
    with opened(path) as journal:
        assert {row.action for row in journal.admit(entries(*range(400)))} == {"doubtful"}


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_journal_that_was_killed_and_moved_without_its_companion_is_refused(path: Path, is_torn: bool) -> None:
    """Alone it may lack half a commit. With its companion it is read, also by people."""
    torn(path) if is_torn else kill_run(path)
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir()
    path.rename(elsewhere / path.name)
    for use in (lambda moved: JournalFile.open(moved, IDENTITY), read_journal):
        with pytest.raises(JournalError, match=r"is incomplete: .*was killed, and cards\.journal-journal is missing|is damaged"):
            use(elsewhere / path.name)
    beside(path, "-journal").rename(elsewhere / f"{path.name}-journal")
    assert read_journal(elsewhere / path.name).rows == 20
    with opened(elsewhere / path.name) as journal:
        assert len(journal.rows(("logged",))) == 20


@pytest.mark.parametrize("length", [0, 1, 513, 4000, 5000, 9000])
def test_a_commit_that_was_cut_off_is_undone(path: Path, length: int) -> None:
    """A batch is there whole or not at all, and rows of one that is not there were never sent."""
    kill_run(path, torn_at=length)
    with opened(path) as journal:
        assert [row.key for row in journal.rows(("logged",))] == list(range(20))
        again = journal.admit(entries(*range(520)))
        assert [row.action for row in again] == ["doubtful"] * 20 + ["send"] * 500


def test_reading_undoes_what_was_cut_off_and_keeps_the_journal_whole(path: Path) -> None:
    """A person may look before the next run comes."""
    torn(path)
    assert read_journal(path).rows == 20
    assert read_journal(path).rows == 20
    with opened(path) as journal:
        assert journal.last == 20


def test_reading_leaves_a_cut_off_commit_to_the_run_at_work(path: Path) -> None:
    """The run that holds the journal undoes it."""
    torn(path)
    before = path.read_bytes()
    with closing(RunLock.acquire(path)), contextlib.suppress(JournalError):
        assert read_journal(path).rows == 20
    assert path.read_bytes() == before


@pytest.mark.parametrize("use", [lambda path: JournalFile.open(path, IDENTITY), read_journal])
def test_the_rollback_journal_of_another_file_is_not_played_back(path: Path, use: object) -> None:
    """SQLite would write its pages into the journal, and cut it to the other's length."""
    assert callable(use)
    other = path.with_name("other")
    torn(other)
    kill_run(path, 300)
    shutil.copy(beside(other, "-journal"), beside(path, "-journal"))
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"cards\.journal-journal does not belong to .*cards\.journal"):
        use(path)
    assert path.read_bytes() == before
    beside(path, "-journal").write_bytes(b"")
    with opened(path) as journal:
        assert journal.last == 300


def test_two_new_files_have_nothing_in_common(path: Path) -> None:
    """The first commit of any file has none before it, which does not make the rollback journal of another one its own."""
    path.write_bytes(_parts.next_tokens())
    beside(path, "-journal").write_bytes((b"\xd9" * 8 + _parts.next_tokens()).ljust(9000, b"\0"))
    with pytest.raises(JournalError, match="does not belong to"):
        _parts.check_companions(path, exists=True)


def test_a_later_rollback_journal_of_the_same_file_is_not_played_back(path: Path) -> None:
    """An older copy that was put back does not get pages of what came after it."""
    with opened(path) as journal:
        journal.admit(entries("a"))
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    torn(path)
    shutil.copy(copy, path)
    with pytest.raises(JournalError, match=r"does not belong to .* or only to an older version of it"):
        JournalFile.open(path, IDENTITY)


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_what_a_removed_journal_left_is_not_taken_for_the_new_ones(path: Path, suffix: str) -> None:
    """A new journal is begun only where nothing of another one is left, and says what to do."""
    torn(path)
    beside(path, "-journal").rename(beside(path, "-kept"))
    beside(path, "-kept").rename(beside(path, suffix))
    path.unlink()
    with pytest.raises(JournalError, match=rf"{suffix} does not belong to .*: put back .* or move it away to begin anew"):
        JournalFile.open(path, IDENTITY)
    assert not path.exists()
    beside(path, suffix).unlink()
    with opened(path) as journal:
        assert journal.is_new


def test_a_removed_journal_is_begun_anew(path: Path) -> None:
    """A kill between commits leaves an empty rollback journal, which does not affect another journal."""
    kill_run(path)
    path.unlink()
    with opened(path) as journal:
        assert journal.is_new
        assert [row.action for row in journal.admit(entries(0))] == ["send"]


def test_a_rollback_journal_without_a_page_is_emptied(path: Path) -> None:
    """A rollback journal with a head alone is emptied: SQLite would cut the file to the length that it names."""
    with opened(path) as journal:
        journal.admit(entries(*range(300)))
    beside(path, "-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(4) + b"\1" * 500)
    with opened(path) as journal:
        assert journal.last == 300


def test_a_rollback_journal_that_was_played_back_means_nothing(path: Path) -> None:
    """SQLite overwrites the head of one that it keeps."""
    opened(path).__enter__().close()
    beside(path, "-journal").write_bytes(bytes(9000))
    with opened(path) as journal:
        assert journal.is_new


def test_a_copy_of_a_journal_in_use_is_refused_beside_the_original(path: Path) -> None:
    """What the run has sent since is not in it."""
    copy = path.with_name("copy")
    with opened(path) as journal:
        journal.admit(entries("a"))
        shutil.copy(path, copy)
        shutil.copy(beside(path, "-journal"), beside(copy, "-journal"))
        journal.admit(entries("b"))
        with pytest.raises(JournalError, match=r"is a copy .* use the original"):
            JournalFile.open(copy, IDENTITY)
    path.unlink()
    with opened(copy) as journal:
        assert journal.last == 1


def test_an_older_copy_in_place_of_the_journal_is_refused(path: Path) -> None:
    """The lock beside it knows what was released since; without the lock the copy may be used."""
    with opened(path) as journal:
        journal.admit(entries("a"))
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    for key in "bc":
        with opened(path) as journal:
            journal.admit(entries(key))
    copy.replace(path)
    with pytest.raises(JournalError, match="is an older copy: a run has used a newer one here"):
        JournalFile.open(path, IDENTITY)
    beside(path, "-lock").unlink()
    with opened(path) as journal:
        assert journal.last == 1


def test_an_older_state_of_the_same_run_is_refused(path: Path) -> None:
    """Rows were released that it does not hold."""
    older = path.with_name("older")
    with opened(path) as journal:
        journal.admit(entries("a"))
        older.write_bytes(path.read_bytes())
        journal.admit(entries("b"))
        kept = {suffix: beside(path, suffix).read_bytes() for suffix in ("-journal", "-lock")}
    path.write_bytes(older.read_bytes())
    for suffix, content in kept.items():
        beside(path, suffix).write_bytes(content)
    with pytest.raises(JournalError, match="is an older copy"):
        JournalFile.open(path, IDENTITY)


@pytest.mark.parametrize("what", ["", "-lock"])
@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_journal_that_is_no_longer_in_its_place_ends_its_run(path: Path, what: str, how: str) -> None:
    """Neither further rows are logged nor logged ones released, and closing says it too."""
    journal = JournalFile.open(path, IDENTITY)
    journal.admit(entries("a"))
    gone = beside(path, what)
    if how == "removed":
        gone.unlink()
    elif how == "moved":
        gone.rename(path.with_name("elsewhere"))
    else:
        shutil.copy(gone, path.with_name("copy"))
        path.with_name("copy").replace(gone)
    with pytest.raises(JournalError, match=r"was moved, removed or replaced while a run was using it: nothing more is sent"):
        journal.release_to(1)
    with pytest.raises(JournalError, match=r"was moved, removed or replaced"):
        journal.admit(entries("b"))
    journal.close()


def test_a_journal_that_is_moved_during_a_commit_ends_its_run(path: Path) -> None:
    """The rows that were logged then are not in the place where the next run looks, so they must not be sent."""
    journal = JournalFile.open(path, IDENTITY)

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            path.rename(path.with_name("elsewhere"))

    journal._connection.set_trace_callback(trace)
    with pytest.raises(JournalError, match=r"was moved, removed or replaced while a run was using it: nothing more is sent"):
        journal.admit(entries("a"))
    journal._connection.set_trace_callback(None)
    journal.close()


def test_sqlite_s_own_word_for_a_moved_file_is_understood(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that comes between our check and SQLite's ends the run as well."""
    journal = JournalFile.open(path, IDENTITY)
    monkeypatch.setattr(journal._lock, "check_files", lambda: None)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(JournalError, match=r"was moved or removed while a run was using it .*: put it back"):
        journal.admit(entries("a"))
    journal.close()


def test_bits_of_the_head_may_flip(path: Path) -> None:
    """A journal with a wrong bit in SQLite's header is refused, or says what it said."""
    with opened(path) as journal:
        journal.admit(entries(*range(50)))
    sound = path.read_bytes()
    for bit in (8 * byte + shift for byte in range(100) for shift in (0, 1, 7)):
        damaged = bytearray(sound)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        path.write_bytes(damaged)
        try:
            journal = JournalFile.open(path, IDENTITY)
        except JournalError:
            pass
        else:
            assert [row.action for row in journal.admit(entries(*range(50)))] == ["doubtful"] * 50, bit
            journal.close()
        for suffix in ("-journal", "-wal", "-shm", "-lock"):
            beside(path, suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_journal_cut_anywhere_is_refused(path: Path, is_killed: bool) -> None:
    """Nothing shorter than it was counts as a journal."""
    kill_run(path, 300)
    if not is_killed:
        opened(path).__enter__().close()
    sound = path.read_bytes()
    for length in (*range(0, len(sound), 4096), 100, 5000, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(JournalError):
            JournalFile.open(path, IDENTITY)


def test_a_row_in_an_unknown_state_is_never_sent(path: Path) -> None:
    """The file admits no such state, and one that comes into it all the same counts as damage."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        with pytest.raises(JournalError, match="CHECK constraint"):
            journal.record([(1, "sent", None)])  # type: ignore[list-item] -- no such state
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("INSERT INTO outcomes VALUES (1, 'paused', NULL)")
    with pytest.raises(JournalError, match="is damaged"):
        JournalFile.open(path, IDENTITY)


def test_rows_that_are_missing_are_damage(path: Path) -> None:
    """The numbers of the rows have no gaps, so that a lost page shows."""
    kill_run(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("DELETE FROM rows WHERE seq = 7")
    with pytest.raises(JournalError, match=r"is damaged \(rows are missing\)"):
        JournalFile.open(path, IDENTITY)


def test_what_the_system_refuses_beside_a_journal_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beside the journal that can't be accessed, read or emptied is a JournalError."""
    with pytest.raises(JournalError, match="can't be accessed"):
        _parts.check_companions(path.with_name("a" * 300), exists=False)
    torn(path)
    rollback = beside(path, "-journal")
    head = rollback.read_bytes()
    rollback.write_bytes(head[:600])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "truncate", refuse)
    with pytest.raises(JournalError, match=r"-journal can't be written \(Permission denied\)"):
        _parts.check_companions(path, exists=True)
    rollback.write_bytes(head)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(JournalError, match=r"-journal can't be read \(Permission denied\)"):
        _parts.check_companions(path, exists=True)
