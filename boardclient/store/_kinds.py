"""The kinds of SQLite file that this package makes, and what tells one from the other before anything is done to it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from boardclient.errors import JournalError

JOURNAL: Final = 0x62634A4C
"""Identifies a journal: "bcJL" (https://www.sqlite.org/pragma.html#pragma_application_id)."""
LEDGER: Final = 0x62634C47
"""Identifies a ledger: "bcLG"."""


def application_of(path: Path) -> int:
    """Return the application identifier of a SQLite file, 0 if it has none. Nothing is locked, changed or created.

    Raises:
        sqlite3.Error: the file is missing, or no SQLite file.
    """
    # Immutable: SQLite reads the first page of the file alone. To open the file without SQLite and close it again would end the
    # locks that this process has on it: https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_.
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        ((application,),) = connection.execute("PRAGMA application_id")
    return int(application)


def refuse_journal(path: Path) -> None:
    """Refuse a file that is no ledger by what it says of itself.

    Raises:
        JournalError: it is a journal, or the file of another program.
        sqlite3.Error: the file is missing, or no SQLite file.
    """
    application = application_of(path)
    if application == JOURNAL:
        raise JournalError(f"{path} is a journal, and no ledger: give the ledger a file of its own, or pass it as journal=")
    if application not in {0, LEDGER}:
        raise JournalError(f"{path} is the file of another program: this is no ledger. Choose another path")


def refuse_ledger(path: Path) -> None:
    """Refuse a ledger where a journal is meant.

    Raises:
        JournalError: it is a ledger.
    """
    with contextlib.suppress(sqlite3.Error):  # what is no SQLite file is refused by its name later
        if application_of(path) == LEDGER:
            raise JournalError(f"{path} is a ledger, and no journal: give the journal a file of its own, or pass it as ledger=")
