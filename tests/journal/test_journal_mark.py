"""Rows that were logged and never released are known to be unsent, where that is certain."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

import pytest
from journal_helpers import IDENTITY, entries, states

from boardclient import JournalError
from boardclient.bulk.journal import _lock
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._lock import RunLock, was_used

UNSENT = ("waiting", "logged, and not sent: the run was killed")


def run(path: Path, *keys: str, released: int | None) -> None:
    """Log rows and release some; what becomes of them is never noted."""
    with closing(JournalFile.open(path, IDENTITY)) as journal:
        journal.admit(entries(*keys))
        if released is not None:
            journal.release_to(released)


def actions(path: Path, keys: str) -> list[str]:
    with closing(JournalFile.open(path, IDENTITY)) as journal:
        return [row.action for row in journal.admit(entries(*keys))]


@pytest.mark.parametrize(("released", "expected"), [(None, "ssss"), (1, "dsss"), (3, "ddds"), (4, "dddd")])
def test_only_rows_up_to_the_mark_are_in_doubt(path: Path, released: int | None, expected: str) -> None:
    """Rows above the mark were not sent, and are sent now."""
    run(path, *"abcd", released=released)
    assert actions(path, "abcd") == [{"s": "send", "d": "doubtful"}[letter] for letter in expected]


def test_the_mark_of_an_earlier_run_says_nothing(path: Path) -> None:
    """If a lock was put back that is older than the last run, a row may be released that lies above its mark."""
    run(path, "a", released=1)
    lock = path.with_name(f"{path.name}-lock")
    older = lock.read_bytes()
    run(path, "b", released=2)
    lock.write_bytes(older)
    assert actions(path, "ab") == ["doubtful", "doubtful"]


@pytest.mark.parametrize("released", [None, 1])
def test_a_journal_that_is_gone_is_missed(path: Path, released: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """The lock shows that rows may have been sent. The new journal begins all the same, with a warning: it may be meant."""
    run(path, "a", released=released)
    path.unlink()
    caplog.set_level(logging.WARNING, "boardclient")
    assert actions(path, "a") == ["send"]
    assert [f"{path} is gone" in text for text in caplog.messages] == [True] * (released is not None)
    caplog.clear()
    assert actions(path, "b") == ["send"]
    assert caplog.messages == []


@pytest.mark.parametrize("lock", [b"", b"x" * 64, None])
def test_a_lock_of_another_kind_says_nothing_of_a_journal(path: Path, lock: bytes | None) -> None:
    if lock is not None:
        path.with_name(f"{path.name}-lock").write_bytes(lock)
    assert not was_used(path)


def test_rows_of_earlier_runs_stay_in_doubt(path: Path) -> None:
    """The mark of a later run does not affect rows that an earlier one released."""
    run(path, *"abc", released=2)
    run(path, "d", "e", released=None)
    JournalFile.open(path, IDENTITY).close()
    assert states(path) == {"a": ("logged", None), "b": ("logged", None), "c": UNSENT, "d": UNSENT, "e": UNSENT}


@pytest.mark.parametrize("damage", ["removed", "emptied", "of another journal", "copied", "of another boot", "without boots"])
def test_without_a_mark_to_rely_on_all_rows_are_in_doubt(path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that was not synchronised is lost in a power failure; a copy of the mark may be older than what was sent."""
    run(path, *"ab", released=1)
    lock = path.with_name(f"{path.name}-lock")
    match damage:
        case "removed":
            lock.unlink()
        case "emptied":
            lock.write_bytes(b"")
        case "of another journal":
            run(path.with_name("other"), *"ab", released=1)
            path.with_name("other-lock").replace(lock)
        case "copied":
            lock.with_name("copy").write_bytes(lock.read_bytes())
            lock.with_name("copy").replace(lock)
        case "of another boot":
            monkeypatch.setattr(_lock, "_boot", lambda: b"another boot of m")
        case _:
            monkeypatch.setattr(_lock, "_BOOT", path.with_name("missing"))
    assert actions(path, "ab") == ["doubtful", "doubtful"]


def test_the_mark_survives_where_the_system_names_no_boot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is written where the system names no boot, too, and is not relied on there."""
    monkeypatch.setattr(_lock, "_BOOT", path.with_name("missing"))
    run(path, *"ab", released=1)
    assert actions(path, "ab") == ["doubtful", "doubtful"]


def test_a_mark_that_cannot_be_written_ends_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that can't be marked as released is not sent."""

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with closing(JournalFile.open(path, IDENTITY)) as journal:
        journal.admit(entries("a"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            with pytest.raises(JournalError, match=r"-lock can't be written \(No space left on device\): free some disk space"):
                journal.release_to(1)


def test_another_file_in_place_of_the_lock_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is no lock, and a file system without locks is refused with nothing left open."""
    lock = path.with_name(f"{path.name}-lock")
    lock.mkdir()
    with pytest.raises(JournalError, match="-lock can't be opened"):
        RunLock.acquire(path)
    lock.rmdir()

    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_lock.fcntl, "flock", refuse)
    with pytest.raises(JournalError, match=r"can't be locked \(Operation not supported\): put the journal on a local disk"):
        RunLock.acquire(path)
