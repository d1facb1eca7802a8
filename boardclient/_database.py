"""Databases that processes share: a SQLite file or PostgreSQL, by SQLAlchemy Core.

Nothing here knows what is in the tables.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from boardclient._environment import find_location, requires_extra
from boardclient._redaction import without_frames
from boardclient.errors import JournalError

with requires_extra("workers", "a shared database"):
    import sqlalchemy as sa
    from sqlalchemy.event import listen
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

FORMAT: Final = 1
metadata: Final = sa.MetaData()
"""The tables of all modules that were imported."""
Id: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself

formats: Final = sa.Table("boardclient_format", metadata, sa.Column("format", sa.Integer, primary_key=True))


class Database:
    """The connections of one event loop to a ledger. Owned by what opened it, which closes it.

    Args:
        where: The path of a SQLite file, or `postgresql://…` without a password, which libpq's PGPASSWORD or password file gives.
        is_durable: Whether the end of a transaction waits for the disk.

    Raises:
        ValueError: the URL can't be used, or holds a password.
        JournalError: the file is on a network file system.
    """

    def __init__(self, where: str | os.PathLike[str], *, keeps_connections: bool = True, is_durable: bool = True) -> None:
        self.where = checked_place(where)
        self.is_file = "://" not in self.where
        of_path = sa.URL.create("sqlite+aiosqlite", database=self.where)  # in a text, "%20" and "?" would name another file
        url = of_path if self.is_file else sa.make_url(self.where).set(drivername="postgresql+asyncpg")
        of_file: dict[str, Any] = {"connect_args": {"timeout": 30.0, "factory": _Connection}}
        options: dict[str, Any] = of_file if self.is_file else {"pool_pre_ping": True, "pool_size": 2}
        if not keeps_connections:
            options = {"connect_args": options.get("connect_args", {}), "poolclass": sa.NullPool}
        self._synchronous = "FULL" if is_durable else "NORMAL"
        if not is_durable and not self.is_file:
            options["connect_args"] = {"server_settings": {"synchronous_commit": "off"}}
        self._engine = create_async_engine(url, **options)
        if self.is_file:
            listen(self._engine.sync_engine, "connect", self._configure)
            listen(self._engine.sync_engine, "begin", _begin)
        # Read by the server: the clocks of workers differ.
        self.clock: sa.ColumnElement[float] = sa.literal_column(
            "((julianday('now') - 2440587.5) * 86400.0)" if self.is_file else "extract(epoch from clock_timestamp())", sa.Float
        )

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection, None]:
        """Open a transaction, which is on the disk at the end.

        Raises:
            JournalError: the database can't be reached, read or written. The message names no password.
        """
        failure: str | None = None
        try:
            async with self._engine.begin() as connection:
                yield connection
                return
        except DBAPIError as error:
            failure = str(error.orig).partition("\n")[0]
        except (SQLAlchemyError, OSError) as error:
            failure = str(error).partition("\n")[0] or type(error).__name__
        raise JournalError(f"the ledger {self.where} can't be used ({failure}): run again, which resumes it")

    async def create(self) -> None:
        """Create the tables if there are none.

        Raises:
            JournalError: another version of boardclient made them.
        """
        if self.is_file:
            with contextlib.suppress(FileExistsError):  # only its owner can ever read it
                os.close(os.open(self.where, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        async with self.begin() as connection:
            if not self.is_file:  # two creations at once would meet in the catalogue
                await connection.execute(sa.text("SELECT pg_advisory_xact_lock(20260101)"))
            await connection.run_sync(metadata.create_all)
            if await connection.scalar(sa.select(formats.c.format)) is None:
                await connection.execute(formats.insert().values(format=FORMAT))
        await self.check()

    async def check(self) -> None:
        """Check that this version of boardclient can use the tables.

        Raises:
            JournalError: it can't, or there are none.
        """
        async with self.begin() as connection:
            found = await connection.scalar(sa.select(formats.c.format))
        if found != FORMAT:
            raise JournalError(f"the ledger {self.where} has format {found}, not {FORMAT}: use the boardclient that made it")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    def _configure(self, connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin with `_begin`, not with the first change
        for pragma in (f"synchronous = {self._synchronous}", "journal_mode = WAL", "busy_timeout = 30000"):
            connection.execute(f"PRAGMA {pragma}")


class _Connection(sqlite3.Connection):
    """Ends its transaction when it is closed. SQLite alone would keep it, and the lock, until every cursor is gone.

    The traceback of a cancelled task may hold a cursor for long.
    """

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # it is closed already
            self.rollback()
        super().close()


def checked_place(where: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file, or a URL without a password."""
    place = os.fspath(where)
    if "://" not in place:
        return str(find_location(place))
    url = sa.make_url(place)
    if url.get_backend_name() != "postgresql":
        raise ValueError("a ledger is the path of a file, or postgresql://…")
    if url.password is not None or any("password" in name.lower() for name in url.query):
        raise ValueError(
            "a ledger's URL can't hold a password, since URLs show up in logs: set PGPASSWORD or use a password file"
        )
    return place


def takes_place(function: F) -> F:
    """Let an async function refuse its `ledger` without keeping it in frames: a URL that is refused may hold a password."""
    parameters = inspect.signature(function)

    @functools.wraps(function)
    async def checked(*arguments: Any, **options: Any) -> Any:
        given = parameters.bind(*arguments, **options).arguments["ledger"]
        try:
            if isinstance(given, str | os.PathLike):  # and no job, which has checked its own
                checked_place(given)
        except ValueError as error:
            refusal = without_frames(error)
        else:
            return await function(*arguments, **options)
        del arguments, options, given
        raise refusal

    return cast("F", checked)


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
