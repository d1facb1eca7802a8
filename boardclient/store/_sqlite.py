"""A database in a SQLite file, which the processes of one machine share."""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakSet

from boardclient.errors import JournalError
from boardclient.store import _clock
from boardclient.store._connection import Columns, Connection, row_maker, translated
from boardclient.store._kinds import LEDGER, refuse_journal

_OLDEST: Final = (3, 35)
"""The first SQLite with RETURNING."""
_WAIT_SECONDS: Final = 30.0
_PARAMETERS: Final = 999
"""The largest number of parameters of a statement: https://www.sqlite.org/limits.html#max_variable_number."""
_ROWS: Final = 128
"""How many rows one statement inserts at most. Other threads run between two statements."""


class FileConnection(Connection):
    """A connection to a SQLite file."""

    is_file = True

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self._can_write = False
        self._boot = _clock.boot()
        self._began: float | None = None

    def _execute(self, sql: str, values: Sequence[object]) -> sqlite3.Cursor:
        text, clocks = translated(sql, is_file=True)
        if list in map(type, values):
            values = [json.dumps(value) if isinstance(value, list) else value for value in values]
        if clocks:
            rest, now = iter(values), self.now()
            values = [now if is_clock else next(rest) for is_clock in clocks]
        return self.raw.execute(text, values)

    def fetch(self, sql: str, *values: object) -> list[Any]:
        return _rows_of(self._execute(sql, values))

    def run(self, sql: str, *values: object) -> int:
        return self._execute(sql, values).rowcount

    def insert(self, head: str, columns: Columns, rows: Iterable[Sequence[object]], tail: str = "") -> list[Any]:
        most = min(_ROWS, _PARAMETERS // len(columns))
        left, found = iter(rows), list[Any]()
        has_words = any(isinstance(kind, str) and "{" in kind for _, kind in columns)
        while some := [*islice(left, most)]:
            text, values = _insertion(head, tuple(columns), len(some), tail), [*chain.from_iterable(some)]
            # Each commit of a journal inserts, and no row has what `_execute` looks for, unless it is the time.
            found += _rows_of(self._execute(text, values) if has_words else self.raw.execute(text, values))
        return found

    def now(self) -> float:
        since = _clock.seconds_of(self._boot)
        if self._began is None:
            self._began = self.value(_clock.FIND, self._boot)
        if self._began is not None:
            return self._began + since
        if not self._can_write:
            return float(self.value(_clock.NEXT, time.time() - since)) + since
        self.run(_clock.NOTE, self._boot, time.time() - since)
        return self.now()

    def begin(self, *, is_read: bool) -> None:
        self.raw.execute("BEGIN" if is_read else "BEGIN IMMEDIATE")
        self._can_write = not is_read

    def commit(self) -> None:
        self.raw.execute("COMMIT")
        self._can_write = False

    def rollback(self) -> None:
        self._can_write, self._began = False, None  # the row of this boot may be one of this transaction
        if self.raw.in_transaction:
            self.raw.execute("ROLLBACK")

    def close(self) -> None:
        self.raw.close()


@functools.lru_cache(100)
def _insertion(head: str, columns: Columns, rows: int, tail: str) -> str:
    names = ", ".join(name for name, _ in columns)
    marks = ", ".join(kind if isinstance(kind, str) else "?" for _, kind in columns)
    return f"{head} ({names}) VALUES {', '.join([f'({marks})'] * rows)} {tail}"


def _rows_of(cursor: sqlite3.Cursor) -> list[Any]:
    found = cursor.fetchall()
    return [*map(row_maker(tuple(column[0] for column in cursor.description)), found)] if found else []


def check_version() -> None:
    """Check that SQLite knows RETURNING.

    Raises:
        JournalError: it is too old for that.
    """
    if sqlite3.sqlite_version_info < _OLDEST:
        raise JournalError(
            f"a ledger in a file needs SQLite 3.35 or later, and this Python has {sqlite3.sqlite_version}: use a newer Python,"
            " or a ledger on PostgreSQL"
        )


def connect(path: Path, *, is_durable: bool) -> FileConnection:
    """Connect to a file. This neither changes nor locks it.

    Raises:
        JournalError: it is a journal, or the file of another program.
        sqlite3.Error: it is missing, or not a SQLite file.
    """
    refuse_journal(path)
    # Without mode=rw, SQLite would create a missing file.
    raw = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", timeout=_WAIT_SECONDS, uri=True, isolation_level=None, check_same_thread=False
    )
    configure(raw, is_durable=is_durable)
    return FileConnection(raw)


def configure(raw: sqlite3.Connection, *, is_durable: bool) -> None:
    """Set the options of a connection."""
    raw.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
    raw.execute("PRAGMA cache_size = -32768")  # the index of a million references


def create_file(path: str) -> None:
    """Create an empty file that only its owner can read, if there is none.

    Raises:
        JournalError: it can't be created.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise JournalError(f"the ledger {path} can't be created ({error.strerror}): choose another place") from None


def make_ledger(path: str, connection: Connection) -> None:
    """Make an empty file a ledger, and set WAL mode, so that nobody waits for a reader.

    Raises:
        JournalError: the file has tables of another program.
    """
    application = connection.value("PRAGMA application_id")
    tables = [row.name for row in connection.fetch("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if application != LEDGER and tables and "boardclient_format" not in tables:
        raise JournalError(f"{path} belongs to another program, and is not a ledger: choose another path")
    if application != LEDGER:  # while changes are written to the file itself: https://www.sqlite.org/wal.html
        connection.run(f"PRAGMA application_id = {LEDGER}")
    if connection.value("PRAGMA journal_mode") != "wal":
        connection.run("PRAGMA journal_mode = WAL")


class Owner(Protocol):
    """An object with idle connections to a file."""

    def close_idle(self) -> None: ...


class _Files:
    """The files that this process uses. A fork waits for the steps under way, and for all connections to be closed.

    With an open connection, SQLite in the child would believe that it holds the parent's locks, and its commits could be lost:
    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_.
    """

    def __init__(self) -> None:
        self._owners: WeakSet[Owner] = WeakSet()
        self._running, self._changed = 0, threading.Condition(threading.Lock())
        if hasattr(os, "register_at_fork"):  # pragma: no branch -- only Windows has no fork
            release = self._changed.release
            os.register_at_fork(before=self._close_all, after_in_parent=release, after_in_child=release)

    def add(self, owner: Owner) -> None:
        with self._changed:
            self._owners.add(owner)

    def run(self, work: Callable[[], object]) -> None:
        """Run a step, for whose end a fork waits."""
        with self._changed:
            self._running += 1
        try:
            work()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _close_all(self) -> None:
        """Close all connections, and let no step begin until `release`."""
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._running)
        for owner in self._owners:
            owner.close_idle()


files: Final = _Files()
