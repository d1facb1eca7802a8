"""Journals that are damaged, locked or can't be written: none of them loses a row."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from journal_helpers import ALL, IDENTITY, entries, filled, opened, states

from boardclient import JournalError
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._view import read_rows

# Damage


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite_the_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)


def with_sql(*statements: str) -> Any:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_in_half, "is damaged|malformed"),
        (overwrite_the_middle, r"is damaged \(.*\): restore it from a copy"),
        (with_sql("PRAGMA user_version = 4"), r"written by a newer boardclient \(format 4\): update boardclient"),
        (with_sql("PRAGMA user_version = 2"), r"written by an older boardclient \(format 2\): finish its import"),
        (with_sql("DELETE FROM meta WHERE name = 'secret'"), r"is damaged \(its metadata can't be read\)"),
        (with_sql("UPDATE meta SET value = '{' WHERE name = 'identity'"), r"is damaged \(its metadata can't be read\)"),
        (with_sql("UPDATE meta SET value = 7 WHERE name = 'created_at'"), r"is damaged \(its metadata can't be read\)"),
        (with_sql("DROP TABLE meta"), r"is damaged \(no such table: meta\)"),
    ],
)
def test_a_damaged_or_newer_journal_is_refused(path: Path, damage: Any, message: str) -> None:
    """A damaged or newer file is never taken for an empty journal, and is left unchanged."""
    filled(path)
    damage(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(JournalError, match=message):
            JournalFile.open(path, IDENTITY)
    assert path.read_bytes() == before


def test_damage_that_shows_later_ends_the_run(path: Path) -> None:
    """An error of the file is raised again by all that follows, reading included, and closing gives the lock back."""
    filled(path)
    with opened(path) as journal:
        journal._connection.execute("DROP TABLE outcomes")
        with pytest.raises(JournalError, match="is damaged"):
            journal.admit(entries("a"))
        journal._connection.execute("CREATE TABLE outcomes (seq INTEGER PRIMARY KEY, state, detail)")
        for use in (
            lambda: journal.admit(entries("a")),
            lambda: journal.record([]),
            lambda: journal.rows(ALL),
            journal.baseline_ids,
        ):
            with pytest.raises(JournalError, match="is damaged"):
                use()
        assert not journal._connection.in_transaction
    opened(path).__enter__().close()


def test_a_program_that_keeps_the_file_locked_is_named_as_the_cause(path: Path) -> None:
    """A foreign writer ends the run, with nothing logged."""
    with opened(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        journal._connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="kept locked by another program"):
            journal.admit(entries("a"))
    assert states(path) == {}


def test_a_full_disk_ends_the_run_with_nothing_logged(path: Path) -> None:
    """Rows that did not fit are not logged, nothing is logged afterwards, and the next run resumes the others."""
    with opened(path) as journal:
        journal.admit(entries(*range(100)))
        (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
        journal._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match=r"can't grow .*: free some disk space and run again"):
            for n in range(1000):
                journal.admit(entries(*(f"long reference {n} {m}" for m in range(50))))
        armed = {row.key for row in read_rows(path)}
        assert f"long reference {n} 0" not in armed
        journal._connection.execute("PRAGMA max_page_count = 100000")
        with pytest.raises(JournalError, match="can't grow"):
            journal.admit(entries("after"))
    with opened(path) as journal:
        assert [s.action for s in journal.admit(entries(7, "after", f"long reference {n} 0"))] == ["doubtful", "send", "send"]


LIMITED = """
import resource, signal, sys
from boardclient import JournalError
from boardclient.bulk.journal._file import JournalFile

path, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    journal = JournalFile.open(path, {})
    for first in range(0, 10**6, 200):
        journal.admit([(n, b"d" * 16) for n in range(first, first + 200)])
        print(*range(first, first + 200), sep="\\n", flush=True)
except JournalError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1000, 300_000])
def test_a_write_that_the_system_refuses_loses_nothing(path: Path, limit: int) -> None:
    """What was logged before is there, and a journal that could not be created leaves nothing behind."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path), str(limit)], capture_output=True, text=True, timeout=300)
    *armed, error = done.stdout.splitlines()
    assert "run again, which resumes it" in error, done.stderr
    if limit == 1000:
        assert (armed, path.exists()) == ([], False)
        return
    assert len(armed) > 10
    assert list(states(path))[: len(armed)] == [int(line) for line in armed]
    with opened(path, {}) as journal:
        assert journal.admit(entries("next"))[0].action == "send"
