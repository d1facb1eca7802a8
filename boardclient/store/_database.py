"""Databases that processes share: a SQLite file or PostgreSQL.

Nothing here knows what is in the tables, but for their format.
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

from boardclient._guards import wait_to_end
from boardclient.errors import JournalError
from boardclient.store import _clock, _sqlite
from boardclient.store._connection import Connection
from boardclient.store._kinds import LEDGER
from boardclient.store._location import checked_location, conninfo_of, is_behind_pooler

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 60.0
"""How long a database that was reached before may be away."""
_THREADS: Final = 5
"""How many connections to a server work at once."""
_FORMATS: Final = "CREATE TABLE IF NOT EXISTS boardclient_format (format INTEGER PRIMARY KEY)"
_FORMAT: Final = "SELECT format FROM boardclient_format"
_LOCK: Final = "SELECT pg_advisory_xact_lock(20260101)"
"""Two creations at once would meet in the catalogue."""
_of_parents: Final[list[Connection]] = []
"""The connections that forks have left. They are never closed, which would end them for the parents."""


@attrs.frozen
class Tables:
    """The tables of a module, which may share a database with those of others.

    Args:
        statements: They create what is not there.
        format: Of the database, None if these tables have none.
        convert: Changes the tables of an earlier format in a transaction, and raises a `JournalError` if it can't.
    """

    statements: tuple[str, ...]
    format: int | None = None
    convert: Callable[[Connection, int], None] | None = None


@attrs.define
class _Step(Generic[T]):
    """A try to do some work, and what became of it."""

    work: Callable[[Connection], T]
    kind: Literal["statement", "reads", "changes"]
    connection: Connection | None = None
    """The one that it uses."""
    result: T | None = None
    failure: str | None = None
    may_pass: bool = False
    """Whether the same may work in a moment."""
    is_busy: bool = False
    """Whether another connection has kept a file locked."""
    is_ending: bool = False
    """Whether all was done but the end of the transaction."""
    is_done: bool = False
    """Whether the transaction is committed."""
    is_broken: bool = False
    """Whether the connection can't be used any more."""

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
            except Exception:  # what came before says more
                self.is_broken = True
            raise
        self.is_done = True

    def give_up(self) -> None:
        """End a wait for a server that does not answer."""
        if self.connection is not None:
            self.connection.give_up()


class Database:
    """The connections of one event loop to a ledger. Owned by what opened it, which closes it.

    What is done with a connection is a plain function, so that nothing else is awaited in it, and runs in a thread: one for a
    file, a few for a server. While the database can't be reached, all is tried again, for up to a minute, once it was reached
    before.

    Args:
        where: The path of a SQLite file, or `postgresql://…` without a password, which libpq's PGPASSWORD or password file gives.
            `?pooler=transaction` is for a pooler that gives a connection to each transaction.
        is_durable: Whether the end of a transaction waits for the disk.
        is_known: Whether it was reached before, by another process.

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
        """Those of the driver of a server, which `_tell` puts into words."""
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
        """Leave threads and connections to the process from which this one was forked."""
        self._threads, self._process = ThreadPoolExecutor(self._most), os.getpid()
        _of_parents.extend(self._idle)
        self._idle.clear()

    async def read(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of one statement. It keeps no other connection waiting.

        Raises:
            JournalError: the database can't be reached or read. The message names no password.
        """
        return await self._carry_out(lambda connection: connection.fetch(sql, *values), "statement")

    async def query(self, work: Callable[[Connection], T]) -> T:
        """Do several reads that see the same moment, and return their result. They keep no other connection waiting.

        Raises:
            JournalError: the database can't be reached or read. The message names no password.
        """
        return await self._carry_out(work, "reads")

    async def change(
        self, work: Callable[[Connection], T], *, is_repeatable: bool = True, on_commit: Callable[[T], object] | None = None
    ) -> T:
        """Do some work in a transaction, which is on the disk at the end, and return its result.

        If the connection is lost, the work is done again. Was that at the end of the transaction, nobody knows whether it holds:
        work that `is_repeatable` finds out by itself, or does the same again. If the caller is cancelled, the transaction is
        completed first. `on_commit` gets the result in any case.

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
            try:  # in a task of its own, which ends also if the caller is cancelled
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
        """Take a step, in a thread."""
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
            if connection.is_lost or not self._keeps_connections:  # with it the others are lost
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
            JournalError: a version of boardclient that is not known made them, or the file is no ledger.
        """
        if self.is_file:
            _sqlite.create_file(self.where)
        if tables.format is None or await self.query(_look) != (tables.format, True):
            if self.is_file:
                await self._carry_out(partial(_sqlite.make_ledger, self.where), "statement")
            await self.change(partial(self._make, tables))
        self._format = tables.format

    async def check(self, tables: Tables) -> None:
        """Check that this version of boardclient can use the tables. Those of an earlier format are converted.

        Raises:
            JournalError: it can't, or there are none.
        """
        found = next((row.format for row in await self.read(_FORMAT)), None)
        if found is None:
            raise JournalError(f"the ledger {self.where} has no jobs: this is no ledger")
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
        """Close the connections. It awaits nothing if its event loop was closed.

        Those of steps that still run are closed at their ends, as are those of later steps.
        """
        self._keeps_connections = False
        if self._loop is None or self._loop.is_closed():
            self.abandon()
        else:
            await wait_to_end(asyncio.create_task(self._in_thread(self.close_idle)))
            self._threads.shutdown(wait=False)

    def abandon(self) -> None:
        """Close the connections whose event loop was closed."""
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
        if self._process != os.getpid():  # it has been forked: the threads stayed behind
            self._begin_process()
        run = partial(_sqlite.files.run, work) if self.is_file else work
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, run)
        except RuntimeError:  # the interpreter ends, and takes nothing more. Nobody waits for the event loop any more
            run()
        else:
            await done


def _look(connection: Connection) -> tuple[int | None, bool]:
    """Return the format of the tables, None if there are none, and whether readers keep nobody waiting."""
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
        return "this is no ledger"
    if any(words in failure for words in ("malformed", "not a database", "can't decode")):
        return "put back a copy of it, since the same again will not work"
    return "run again, which resumes it"
