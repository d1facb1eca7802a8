"""Databases that processes share: a SQLite file or PostgreSQL.

This module knows the format of the tables, and nothing of their content.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast

import attrs

from boardclient._base._guards import wait_to_end
from boardclient.errors import JournalError
from boardclient.store import _clock, _sqlite
from boardclient.store._connection import Connection
from boardclient.store._kinds import LEDGER
from boardclient.store._location import checked_location, conninfo_of, is_behind_pooler

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 60.0
"""For how long a database that was reached before may be unreachable."""
_THREADS: Final = 5
"""How many connections to a server work at once."""
_FORMATS: Final = "CREATE TABLE IF NOT EXISTS boardclient_format (format INTEGER PRIMARY KEY)"
_FORMAT: Final = "SELECT format FROM boardclient_format"
_LOCK: Final = "SELECT pg_advisory_xact_lock(20260101)"
"""Without it, two processes that create the tables at once would conflict in PostgreSQL's catalogue."""
_of_parents: Final[list[Connection]] = []
"""The connections that a fork inherited. They are never closed, which would close them for the parent."""


@attrs.frozen
class Tables:
    """The tables of a module, which may share a database with those of others.

    Args:
        statements: Create the tables that are missing.
        format: The format of the database, None if these tables have none.
        convert: Converts the tables of an earlier format within a transaction, or raises a `JournalError`.
    """

    statements: tuple[str, ...]
    format: int | None = None
    convert: Callable[[Connection, int], None] | None = None


@attrs.define
class _Step(Generic[T]):
    """An attempt to do some work, and its result."""

    work: Callable[[Connection], T]
    kind: Literal["statement", "reads", "changes"]
    connection: Connection | None = None
    """The connection in use."""
    result: T | None = None
    failure: str | None = None
    may_pass: bool = False
    """Whether another attempt may succeed in a moment."""
    is_busy: bool = False
    """Whether another connection kept the file locked."""
    is_ending: bool = False
    """Whether all was done but the commit."""
    is_done: bool = False
    """Whether the transaction is committed."""
    is_broken: bool = False
    """Whether the connection can no longer be used."""

    def take(self, connection: Connection) -> None:
        if self.kind == "statement":
            self.result = self.work(connection)
            self.is_done = True
            return
        try:
            connection.begin(is_read=self.kind == "reads")
            self.result = self.work(connection)
            self.is_ending = True
            connection.commit()
        except BaseException:
            try:
                connection.rollback()
            except Exception:  # the first error says more
                self.is_broken = True
            raise
        self.is_done = True

    def give_up(self) -> None:
        """Stop waiting for a server that does not respond."""
        if self.connection is not None:
            self.connection.give_up()


class Database:
    """The connections of one event loop to a ledger. The object that opened it closes it.

    Work with a connection is a plain function, which can't await anything else. It runs in a thread: one for a file, a few for a
    server. If a database that was reached before becomes unreachable, the work is tried again for up to a minute.

    Args:
        where: The path of a SQLite file, or `postgresql://…` without a password, which libpq takes from PGPASSWORD or the
            password file. `?pooler=transaction` says that a pooler in transaction mode stands in between.
        keeps_connections: Whether idle connections are kept open.
        is_durable: Whether a commit waits for the disk.
        is_known: Whether another process has reached the database before.

    Raises:
        ValueError: the URL can't be used, or holds a password.
        JournalError: the file is on a network file system, or SQLite is too old.
        ModuleNotFoundError: it is on PostgreSQL, and psycopg is not installed.
    """

    def __init__(
        self, where: str | os.PathLike[str], *, keeps_connections: bool = True, is_durable: bool = True, is_known: bool = False
    ) -> None:
        self.where = checked_location(where)
        self.is_file = "://" not in self.where
        self._keeps_connections, self._is_known = keeps_connections, is_known
        self._connect: Callable[[], Connection]
        self._errors: tuple[type[Exception], ...] = ()
        """The errors of the server's driver, which `_tell` puts into words."""
        if self.is_file:
            _sqlite.check_version()
            self._connect = partial(_sqlite.connect, Path(self.where), is_durable=is_durable)
            _sqlite.files.add(self)
        else:
            from boardclient.store import _postgres

            of_url = conninfo_of(self.where)
            pooled = is_behind_pooler(self.where)
            self._connect = partial(_postgres.connect, of_url, is_durable=is_durable, is_behind_pooler=pooled)
            self._errors, self._tell = (_postgres.Error,), _postgres.tell
        self._loop: asyncio.AbstractEventLoop | None = None
        self._format: int | None = None
        self._idle: list[Connection] = []
        self._threads, self._process = ThreadPoolExecutor(self._most), os.getpid()

    @property
    def _most(self) -> int:
        return 1 if self.is_file else _THREADS

    def _begin_process(self) -> None:
        """Leave the threads and connections to the parent process, after a fork."""
        self._threads, self._process = ThreadPoolExecutor(self._most), os.getpid()
        _of_parents.extend(self._idle)
        self._idle.clear()

    async def read(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of one statement. No other connection waits for it.

        Raises:
            JournalError: the database can't be reached or read. The message names no password.
        """
        return await self._carry_out(lambda connection: connection.fetch(sql, *values), "statement")

    async def query(self, work: Callable[[Connection], T]) -> T:
        """Do several reads that see the same moment, and return their result. No other connection waits for them.

        Raises:
            JournalError: the database can't be reached or read. The message names no password.
        """
        return await self._carry_out(work, "reads")

    async def change(
        self, work: Callable[[Connection], T], *, is_repeatable: bool = True, on_commit: Callable[[T], object] | None = None
    ) -> T:
        """Do some work in a transaction, and return its result once the transaction is on the disk.

        If the connection is lost, the work is done again. If it is lost during the commit, it is unknown whether the transaction
        was committed: only work that `is_repeatable` is done again then, since it finds out by itself or has the same effect. If
        the caller is cancelled, the transaction is completed first. `on_commit` is called with the result in any case.

        Raises:
            JournalError: the database can't be reached or written. The message names no password.
        """
        return await self._carry_out(work, "changes", is_repeatable=is_repeatable, on_commit=on_commit)

    async def _carry_out(
        self,
        work: Callable[[Connection], T],
        kind: Literal["statement", "reads", "changes"],
        *,
        is_repeatable: bool = True,
        on_commit: Callable[[T], object] | None = None,
    ) -> T:
        self._loop = loop = asyncio.get_running_loop()
        pause = 0.05
        until = loop.time() + _PATIENCE_SECONDS
        while True:
            step = _Step(work, kind)
            try:  # in a task of its own, which is completed even if the caller is cancelled
                await wait_to_end(asyncio.create_task(self._once(step)))
            finally:
                if on_commit is not None and step.is_done and step.failure is None:
                    on_commit(cast("T", step.result))
            if step.failure is None:
                self._is_known = True
                return cast("T", step.result)
            is_safe = (self._is_known or step.is_busy) and step.may_pass and (is_repeatable or not step.is_ending)
            if not is_safe or loop.time() + pause > until:
                raise JournalError(f"the ledger {self.where} can't be used ({step.failure}): {_remedy(step.failure)}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _once(self, step: _Step[Any]) -> None:
        watch = None if self.is_file else asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, step.give_up)
        try:
            await self._in_thread(partial(self._take, step))
        except sqlite3.Error as error:
            step.failure = str(error).partition("\n")[0]
            # The low byte is the primary result code: https://www.sqlite.org/rescode.html.
            step.may_pass = step.is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        except (OSError, OverflowError, UnicodeDecodeError) as error:
            # UnicodeDecodeError: SQLite's message quotes what is damaged.
            step.failure = str(error).partition("\n")[0] or type(error).__name__
            step.may_pass = isinstance(error, OSError)
        except self._errors as error:
            step.failure, step.may_pass = self._tell(error)
        finally:
            if watch is not None:
                watch.cancel()

    def _take(self, step: _Step[Any]) -> None:
        """Do a step, in a thread."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        step.connection = connection
        try:
            step.take(connection)
        finally:
            step.connection = None
            if step.is_broken or connection.is_lost:
                connection.close()
            else:
                self._idle.append(connection)
            if connection.is_lost or not self._keeps_connections:  # the others are lost as well
                self.close_idle()

    def _open(self) -> Connection:
        connection = self._connect()
        if self._format is not None:
            with contextlib.ExitStack() as opened:
                opened.callback(connection.close)
                self._check_format(connection.value(_FORMAT), self._format)
                opened.pop_all()
        return connection

    async def create(self, tables: Tables) -> None:
        """Create the tables if there are none, or convert those of an earlier format.

        Raises:
            JournalError: an unknown version of boardclient made them, or the file is not a ledger.
        """
        if self.is_file:
            _sqlite.create_file(self.where)
        if tables.format is None or await self.query(_look) != (tables.format, True):
            if self.is_file:
                await self._carry_out(partial(_sqlite.make_ledger, self.where), "statement")
            await self.change(partial(self._make, tables))
        self._format = tables.format

    async def check(self, tables: Tables) -> None:
        """Check that this version of boardclient can use the tables, and convert those of an earlier format.

        Raises:
            JournalError: it can't use them, or there are none.
        """
        found = next((row.format for row in await self.read(_FORMAT)), None)
        if found is None:
            raise JournalError(f"the ledger {self.where} has no jobs: it is not a ledger")
        if found != tables.format:
            await self.change(partial(self._make, tables))
        self._format = tables.format

    def _make(self, tables: Tables, connection: Connection) -> None:
        for statement in (_FORMATS, _clock.BOOTS) if self.is_file else (_LOCK, _FORMATS):
            connection.run(statement)
        if tables.format is not None:
            found = connection.value(_FORMAT)
            if found is None:
                connection.run("INSERT INTO boardclient_format (format) VALUES (?)", tables.format)
            elif found < tables.format and tables.convert is not None:
                tables.convert(connection, found)
                connection.run("UPDATE boardclient_format SET format = ?", tables.format)
            else:
                self._check_format(found, tables.format)
        for statement in tables.statements:
            connection.run(statement)
        if self.is_file:
            connection.run(f"PRAGMA application_id = {LEDGER}")  # those of format 2 had none

    def _check_format(self, found: int | None, known: int) -> None:
        if found != known:
            raise JournalError(f"the ledger {self.where} has format {found}, not {known}: use the boardclient that made it")

    async def aclose(self) -> None:
        """Close the connections. Nothing is awaited if the event loop was closed.

        A connection in use is closed when its step ends, as are those of later steps.
        """
        self._keeps_connections = False
        if self._loop is None or self._loop.is_closed():
            self.abandon()
        else:
            await wait_to_end(asyncio.create_task(self._in_thread(self.close_idle)))
            self._threads.shutdown(wait=False)

    def abandon(self) -> None:
        """Close the connections after their event loop was closed."""
        if self._process != os.getpid():
            self._begin_process()
        self._keeps_connections = False
        self.close_idle()
        self._threads.shutdown(wait=False)

    def close_idle(self) -> None:
        """Close the connections that no step uses."""
        while self._idle:
            self._idle.pop().close()

    async def _in_thread(self, work: Callable[[], object]) -> None:
        if self._process != os.getpid():  # a fork does not copy the threads
            self._begin_process()
        run = partial(_sqlite.files.run, work) if self.is_file else work
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, run)
        except RuntimeError:  # the interpreter shuts down and takes no more work, so blocking the event loop does no harm
            run()
        else:
            await done


def _look(connection: Connection) -> tuple[int | None, bool]:
    """Return the format of the tables, None if there are none, and whether a file is in WAL mode, as it should be."""
    find = "SELECT 1 FROM sqlite_master WHERE name = 'boardclient_format'"
    is_there = connection.value(find if connection.is_file else "SELECT to_regclass('boardclient_format')::text")
    is_set_up = not connection.is_file or connection.value("PRAGMA journal_mode") == "wal"
    return connection.value(_FORMAT) if is_there else None, is_set_up


def _remedy(failure: str) -> str:
    if "prepared statement" in failure:
        return "a pooler in transaction mode needs ?pooler=transaction at the end of the URL"
    if "unable to open" in failure or "readonly" in failure:
        return "check the path and its permissions"
    if "boardclient_" in failure:  # there is no such table
        return "it is not a ledger"
    if any(words in failure for words in ("malformed", "not a database", "can't decode")):
        return "put back a copy of it, and reconcile its jobs before anything else"
    return "run again, which resumes it"
