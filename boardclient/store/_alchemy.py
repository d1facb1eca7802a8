"""Databases that processes share, by SQLAlchemy Core. `_database` takes its place.

Nothing here knows what is in the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

import attrs

from boardclient._environment import find_location, requires_extra
from boardclient._guards import wait_to_end
from boardclient._redaction import without_frames
from boardclient.errors import JournalError
from boardclient.store._kinds import refuse_journal

with requires_extra("workers", "a shared database"):
    import sqlalchemy as sa
    from sqlalchemy.event import listen
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    from sqlalchemy.ext.compiler import compiles
    from sqlalchemy.sql.functions import FunctionElement

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
T = TypeVar("T")

FORMAT: Final = 2
_PATIENCE_SECONDS: Final = 60.0
"""How long a database that was reached before may be away."""
_PASSING: Final = ("08", "57P", "53300", "40001", "40P01", "23505")
"""How the codes begin of what passes, the last that of a row which another connection has inserted at the same moment
(https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_PARAMETERS: Final = frozenset(
    {"database", "direct_tls", "host", "krbsrvname", "passfile", "pooler", "port", "prepared_statement_cache_size", "ssl"}
    | {"target_session_attrs", "user"}
)
"""What asyncpg takes from a URL as a text."""
metadata: Final = sa.MetaData()
"""The tables of all modules that were imported."""
Id: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself

formats: Final = sa.Table("boardclient_format", metadata, sa.Column("format", sa.Integer, primary_key=True))


class _Clock(FunctionElement[float]):
    """The time of the database's server, in seconds since 1970."""

    inherit_cache = True
    type = sa.Float()


@compiles(_Clock, "sqlite")
def _of_sqlite(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(_Clock, "postgresql")
def _of_postgresql(*_: object, **__: object) -> str:
    return "extract(epoch from clock_timestamp())"


@attrs.define
class _Step:
    """A try to do some work in a transaction, and what became of it."""

    work: Callable[[sa.Connection], Any]
    options: dict[str, Any]
    """Those of the connection."""
    result: Any = None
    failure: str | None = None
    may_pass: bool = False
    """Whether the same may work in a moment."""
    is_ending: bool = False
    """Whether all was done but the end of the transaction."""
    is_done: bool = False
    """Whether the transaction is committed."""

    def take(self, connection: sa.Connection) -> None:
        """Do the work in a transaction."""
        connection.execution_options(**self.options)
        with connection.begin():
            self.result = self.work(connection)
            self.is_ending = True
        self.is_done = True


_IN_WAL: Final = sa.text("PRAGMA journal_mode = WAL")
"""Lets nobody wait for a reader, also in later connections: https://www.sqlite.org/wal.html. What only looks at a file does
not set it: the file may be another program's."""


class _Files:
    """The files that this process uses. A fork waits for the steps that run, and finds no connection open.

    With one open, SQLite in the child would believe that it has the locks of the parent, and what it commits could be lost:
    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_.
    """

    def __init__(self) -> None:
        self._engines: WeakSet[sa.Engine] = WeakSet()
        self._running, self._changed = 0, threading.Condition(threading.Lock())
        if hasattr(os, "register_at_fork"):  # pragma: no branch -- only Windows has no fork
            release = self._changed.release
            os.register_at_fork(before=self._close_all, after_in_parent=release, after_in_child=release)

    def add(self, engine: sa.Engine) -> None:
        with self._changed:
            self._engines.add(engine)

    def run(self, work: Callable[[], object]) -> None:
        """Run a step at a file, which no fork cuts in two."""
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
        for engine in self._engines:
            engine.dispose()


_files: Final = _Files()


class Database:
    """The connections of one event loop to a ledger. Owned by what opened it, which closes it.

    What is done in a transaction is a plain function, so that nothing else is awaited in it. For a file it runs in a thread, with
    one change of threads for the whole. While the database can't be reached, reads and changes are tried again, for up to a
    minute, once it was reached before.

    Args:
        where: The path of a SQLite file, or `postgresql://…` without a password, which libpq's PGPASSWORD or password file gives.
            `?pooler=transaction` is for a pooler that gives a connection to each transaction.
        is_durable: Whether the end of a transaction waits for the disk.
        is_known: Whether it was reached before, by another process.

    Raises:
        ValueError: the URL can't be used, or holds a password.
        JournalError: the file is on a network file system.
    """

    clock: sa.ColumnElement[float] = _Clock()
    """Read by the server: the clocks of workers differ."""

    def __init__(
        self, where: str | os.PathLike[str], *, keeps_connections: bool = True, is_durable: bool = True, is_known: bool = False
    ) -> None:
        self.where = checked_location(where)
        self.is_file = "://" not in self.where
        of_path = sa.URL.create("sqlite", database=self.where)  # in a text, "%20" and "?" would name another file
        given = of_path if self.is_file else sa.make_url(self.where).set(drivername="postgresql+asyncpg")
        url = given.difference_update_query(["pooler"])
        arguments: dict[str, Any] = {"command_timeout": _PATIENCE_SECONDS}
        if self.is_file:
            arguments = {"timeout": 30.0, "check_same_thread": False}
        self._reads_in_transactions = given.query.get("pooler") == "transaction"
        if self._reads_in_transactions:
            # The next statement may reach another connection of the server: none may rest on what an earlier one prepared.
            # https://docs.sqlalchemy.org/en/20/dialects/postgresql.html#prepared-statement-name-with-pgbouncer
            nameless = {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
            arguments |= nameless
        kept: dict[str, Any] = {"poolclass": None if keeps_connections else sa.NullPool}
        self._synchronous = "FULL" if is_durable else "NORMAL"
        self._is_known = is_known
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: AsyncEngine | sa.Engine
        if self.is_file:
            self._thread, self._process = ThreadPoolExecutor(1), os.getpid()
            is_there = f"{Path(self.where).as_uri()}?mode=rw"  # SQLite would create a file that is missing

            def connect() -> sqlite3.Connection:
                refuse_journal(Path(self.where))
                opened: sqlite3.Connection = sqlite3.connect(is_there, uri=True, **arguments)
                return opened

            self._engine = sa.create_engine(url, creator=connect, **kept)
            _files.add(self._engine)
            listen(self._engine, "connect", self._configure)
            listen(self._engine, "begin", _begin)
        else:
            self._engine = create_async_engine(url, connect_args=arguments, **kept)
        self.moment: sa.Select[Any] = sa.select(self.clock)
        """The statement that reads the clock within a change."""
        if not (is_durable or self.is_file):  # of this transaction alone: a pooler passes the connection on
            self.moment = self.moment.add_columns(sa.func.set_config("synchronous_commit", "off", True))

    async def read(self, statement: sa.Executable, **values: object) -> Sequence[sa.Row[Any]]:
        """Return the rows of one statement and the values of its parameters. It keeps no other connection waiting.

        Raises:
            JournalError: the database can't be reached or read. The message names no password.
        """
        is_alone = not (self.is_file or self._reads_in_transactions)
        options: dict[str, Any] = {"is_read": True, **({"isolation_level": "AUTOCOMMIT"} if is_alone else {})}
        return await self._carry_out(lambda connection: connection.execute(statement, values).all(), options)

    async def change(
        self, work: Callable[[sa.Connection], T], *, is_repeatable: bool = True, on_commit: Callable[[T], object] | None = None
    ) -> T:
        """Do some work in a transaction, which is on the disk at the end, and return its result.

        If the connection is lost, the work is done again. Was that at the end of the transaction, nobody knows whether it holds:
        work that `is_repeatable` finds out by itself, or does the same again. If the caller is cancelled, the transaction is
        completed first. `on_commit` gets the result in any case.

        Raises:
            JournalError: the database can't be reached or written. The message names no password.
        """
        return await self._carry_out(work, {}, is_repeatable=is_repeatable, on_commit=on_commit)

    async def _carry_out(
        self,
        work: Callable[[sa.Connection], T],
        options: dict[str, Any],
        *,
        is_repeatable: bool = True,
        on_commit: Callable[[T], object] | None = None,
    ) -> T:
        self._loop = loop = asyncio.get_running_loop()
        pause = 0.05
        until = loop.time() + _PATIENCE_SECONDS
        while True:
            step = _Step(work, options)
            # In a task of its own: the driver closes a connection whose statement is cancelled, and logs that it could not.
            try:
                await wait_to_end(asyncio.create_task(self._once(step)))
            finally:
                if on_commit is not None and step.is_done and step.failure is None:
                    on_commit(step.result)
            if step.failure is None:
                self._is_known = True
                return cast("T", step.result)
            is_safe = self._is_known and step.may_pass and (is_repeatable or not step.is_ending)
            if not is_safe or loop.time() + pause > until:
                raise JournalError(f"the ledger {self.where} can't be used ({step.failure}): {_remedy(step.failure)}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _once(self, step: _Step) -> None:
        try:
            if isinstance(self._engine, sa.Engine):
                await self._in_thread(partial(_within, self._engine, step))
            else:
                async with self._engine.connect() as connection:
                    await connection.run_sync(step.take)
        except DBAPIError as error:
            step.failure, step.may_pass = str(error.orig).partition("\n")[0], _may_pass(error)
        except (SQLAlchemyError, OSError, OverflowError, UnicodeDecodeError) as error:
            # OverflowError: a port or a number that is too large. UnicodeDecodeError: SQLite's message quotes what is damaged.
            step.failure = str(error).partition("\n")[0] or type(error).__name__
            step.may_pass = isinstance(error, OSError)
        except Exception as error:
            if not hasattr(error, "sqlstate"):  # asyncpg's own, while it connects
                raise
            step.failure, step.may_pass = str(error).partition("\n")[0], True

    async def create(self) -> None:
        """Create the tables if there are none.

        Raises:
            JournalError: another version of boardclient made them.
        """
        if self.is_file:
            try:  # only its owner can ever read it
                os.close(os.open(self.where, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                pass
            except OSError as error:
                raise JournalError(f"the ledger {self.where} can't be created ({error.strerror}): choose another place") from None
            await self.read(_IN_WAL)

        def make(connection: sa.Connection) -> None:
            if not self.is_file:  # two creations at once would meet in the catalogue
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(20260101)"))
            metadata.create_all(connection)
            if connection.scalar(sa.select(formats.c.format)) is None:
                connection.execute(formats.insert().values(format=FORMAT))

        await self.change(make)
        await self.check()

    async def check(self) -> None:
        """Check that this version of boardclient can use the tables.

        Raises:
            JournalError: it can't, or there are none.
        """
        found = next((row.format for row in await self.read(sa.select(formats.c.format))), None)
        if found != FORMAT:
            raise JournalError(f"the ledger {self.where} has format {found}, not {FORMAT}: use the boardclient that made it")

    async def aclose(self) -> None:
        """Close the connections. It awaits nothing if its event loop was closed."""
        if self._loop is not None and self._loop.is_closed():
            self.abandon()
        elif isinstance(self._engine, sa.Engine):
            await wait_to_end(asyncio.create_task(self._in_thread(self._engine.dispose)))
            self._thread.shutdown(wait=False)
        else:
            await wait_to_end(asyncio.create_task(self._engine.dispose()))

    def abandon(self) -> None:
        """Close the connections whose event loop was closed."""
        if isinstance(self._engine, sa.Engine):
            self._engine.dispose()
            self._thread.shutdown(wait=False)
        else:
            self._engine.sync_engine.dispose(close=False)  # they can't be closed without their loop

    async def _in_thread(self, work: Callable[[], object]) -> None:
        if self._process != os.getpid():  # it has been forked: the thread stayed behind
            self._thread, self._process = ThreadPoolExecutor(1), os.getpid()
        try:
            done = asyncio.get_running_loop().run_in_executor(self._thread, _files.run, work)
        except RuntimeError:  # the interpreter ends, and takes nothing more. Nobody waits for the event loop any more
            _files.run(work)
        else:
            await done

    def _configure(self, connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin with `_begin`, not with the first change
        for pragma in (f"synchronous = {self._synchronous}", "busy_timeout = 30000"):
            connection.execute(f"PRAGMA {pragma}")


def _within(engine: sa.Engine, step: _Step) -> None:
    with engine.connect() as connection:
        step.take(connection)


def _may_pass(error: DBAPIError) -> bool:
    """Return True if the same may work in a moment: the server restarts, has no connection left, or others were first."""
    state = getattr(error.orig, "sqlstate", None) or ""
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return error.connection_invalidated or state.startswith(_PASSING) or code & 0xFF == sqlite3.SQLITE_BUSY


def _remedy(failure: str) -> str:
    if "prepared statement" in failure:
        return "a pooler in transaction mode needs ?pooler=transaction at the end of the URL"
    if "unable to open" in failure or "readonly" in failure:
        return "check the path and its permissions"
    if formats.name in failure:  # there is no such table
        return "this is no ledger"
    if any(words in failure for words in ("malformed", "not a database", "can't decode")):
        return "put back a copy of it, since the same again will not work"
    return "run again, which resumes it"


def checked_location(where: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file, or a URL without a password.

    Raises:
        ValueError: the URL can't be used, or holds a password.
        JournalError: the folder of the file does not exist, or is on a network file system.
    """
    location = os.fspath(where)
    if "://" not in location:
        return str(find_location(location))
    url = None
    with contextlib.suppress(ValueError, SQLAlchemyError):  # their words may hold a part of a password
        url = sa.make_url(location)
    if url is None or url.get_backend_name() != "postgresql":
        raise ValueError("a ledger is the path of a file, or postgresql://user@host:port/database")
    if url.query.get("pooler", "session") not in {"session", "transaction"}:
        raise ValueError('pooler must be "session" or "transaction"')
    if url.password is not None or any("password" in name.lower() for name in url.query):
        raise ValueError(
            "a ledger's URL can't hold a password, since URLs show up in logs: set PGPASSWORD or use a password file"
        )
    if others := sorted(set(url.query) - _PARAMETERS):
        known = ", ".join(sorted(_PARAMETERS))
        raise ValueError(f"a ledger's URL can't have the parameter {', '.join(others)}, but {known} (ssl is libpq's sslmode)")
    return location


def takes_location(function: F) -> F:
    """Let an async function refuse its `ledger` without keeping it in frames: a URL that is refused may hold a password."""
    parameters = inspect.signature(function)

    @functools.wraps(function)
    async def checked(*arguments: Any, **options: Any) -> Any:
        given = parameters.bind(*arguments, **options).arguments["ledger"]
        try:
            if isinstance(given, str | os.PathLike):  # and no job, which has checked its own
                checked_location(given)
        except ValueError as error:
            refusal = without_frames(error)
        else:
            return await function(*arguments, **options)
        del arguments, options, given
        raise refusal

    return cast("F", checked)


def _begin(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get("is_read"):  # one statement needs no transaction, and no lock
        connection.exec_driver_sql("BEGIN IMMEDIATE")
