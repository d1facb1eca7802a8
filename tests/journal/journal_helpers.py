"""What the tests of the journal share: journals whose rows are sent, and processes that die at any moment."""

from __future__ import annotations

import hashlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._format import Entry, RowDecision, RowKey, RowState
from boardclient.bulk.journal._view import read_rows

IDENTITY = {"base_url": "https://boards.example", "board": "b1", "account": "m1"}
ALL: tuple[RowState, ...] = ("logged", "done", "failed", "waiting", "unknown")


class Sending(JournalFile):
    """A journal whose rows are all sent as soon as they may be."""

    def admit(self, *arguments: Any) -> list[RowDecision]:
        decisions = super().admit(*arguments)
        self.release_to(self.last)
        return decisions


@contextmanager
def opened(path: Path, identity: dict[str, str] = IDENTITY) -> Iterator[JournalFile]:
    """Open a journal whose rows are sent."""
    with closing(Sending.open(path, identity)) as journal:
        yield journal


def entry(key: RowKey, content: str = "as it was") -> Entry:
    """Return a row of some content."""
    return (key, hashlib.blake2b(content.encode(), digest_size=16).digest())


def entries(*keys: RowKey) -> list[Entry]:
    """Return rows of one content."""
    return [entry(key) for key in keys]


def filled(path: Path, rows: int = 2000) -> None:
    """Make a journal of some size."""
    with opened(path) as journal:
        for start in range(0, rows, 100):
            journal.admit(entries(*(f"reference {n}" for n in range(start, start + 100))))


def states(path: Path) -> dict[RowKey, tuple[RowState, str | None]]:
    """Return what a journal says of its rows."""
    return {row.key: (row.state, row.detail) for row in read_rows(path)}


def crash(path: Path) -> Path:
    """Copy what a process that died now would leave behind."""
    left = Path(tempfile.mkdtemp(dir=path.parent)) / path.name
    for suffix in ("", "-journal", "-lock"):
        shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
    with closing(sqlite3.connect(left, isolation_level=None)) as connection:  # nothing says that it is a copy
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("UPDATE meta SET value = ? WHERE name = 'used_inode'", (left.stat().st_ino,))
    return left


_KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from journal_helpers import IDENTITY, Sending, entries

path, first, rows, torn_at = Path(sys.argv[2]), *map(int, sys.argv[3:6])
rollback = path.with_name(f"{path.name}-journal")
journal = Sending.open(path, IDENTITY)
if rows:
    journal.admit(entries(*range(first, first + rows)))
if torn_at >= 0:
    # A small cache is written to the file in the middle of the commit, as a large one at its end.
    journal._connection.execute("PRAGMA cache_size = 1")
    torn = lambda: rollback.stat().st_size >= torn_at and os.kill(os.getpid(), signal.SIGKILL)
    journal._connection.set_progress_handler(torn, 5)
    journal.admit(entries(*range(first + rows, first + rows + 500)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_run(path: Path, rows: int = 20, *, first: int = 0, torn_at: int = -1) -> None:
    """Let a process log and send rows, and kill it: between commits, or once the rollback journal of the next is so long."""
    command = [sys.executable, "-c", _KILLED, str(Path(__file__).parent), str(path), str(first), str(rows), str(torn_at)]
    done = subprocess.run(command, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
