"""The kinds of SQLite file that this package makes. A file of the wrong kind is recognised before anything is changed in it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from boardclient.errors import JournalError

JOURNAL: Final = 0x62634A4C
"""Identifies a journal: "bcJL" (https://www.sqlite.org/pragma.html#pragma_application_id)."""
LEDGER: Final = 0x62634C47
"""Identifies a ledger: "bcLG"."""
_IS_EARLIER: Final = "SELECT 1 FROM sqlite_master WHERE name = 'boardclient_format'"
"""Finds the table that identifies a ledger of format 2, which has no application identifier."""


@contextlib.contextmanager
def _unlocked(path: Path) -> Iterator[sqlite3.Connection]:
    """Read the pages of a SQLite file as they are. Nothing is locked, changed or created."""
    # Opening and closing the file without SQLite would release the locks that this process has on it:
    # https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_.
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        yield connection


def application_of(path: Path) -> int:
    """Return the application identifier of a SQLite file, 0 if it has none.

    Raises:
        sqlite3.Error: the file is missing, or not a SQLite file.
    """
    with _unlocked(path) as connection:
        ((application,),) = connection.execute("PRAGMA application_id")
    return int(application)


def refuse_journal(path: Path) -> None:
    """Refuse a file whose identifier says that it is not a ledger.

    Raises:
        JournalError: it is a journal, or the file of another program.
        sqlite3.Error: the file is missing, or not a SQLite file.
    """
    try:
        application = application_of(path)
    except sqlite3.DatabaseError as error:
        # Another process may be writing the first page. The connection waits for it, and finds out whether the file is damaged.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        application = 0
    if application == JOURNAL:
        raise JournalError(f"{path} is a journal, not a ledger: give the ledger a file of its own, or pass it as journal=")
    if application not in {0, LEDGER}:
        raise JournalError(f"{path} belongs to another program, and is not a ledger: choose another path")


def check_journal(path: Path) -> None:
    """Check that a SQLite file identifies itself as a journal.

    Raises:
        JournalError: it is a ledger, or the file of another program.
    """
    application, is_ledger = JOURNAL, False
    with contextlib.suppress(sqlite3.Error):  # opening the file refuses what is damaged, or not a SQLite file
        application = application_of(path)
        with _unlocked(path) as connection:
            is_ledger = application == LEDGER or (application == 0 and connection.execute(_IS_EARLIER).fetchone() is not None)
    if is_ledger:
        raise JournalError(f"{path} is a ledger, not a journal: give the journal a file of its own, or pass it as ledger=")
    if application != JOURNAL:
        raise JournalError(
            f"{path} is not a journal of boardclient (it may be empty or cut off): choose another path, or restore it"
        )
