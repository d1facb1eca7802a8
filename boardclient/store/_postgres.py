"""A PostgreSQL database, by psycopg. Its connections are used in threads."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from boardclient._base._environment import requires_extra
from boardclient.store._connection import Columns, Connection, row_maker, translated

with requires_extra("postgres", "a ledger on PostgreSQL"):
    import psycopg
    from psycopg import pq
    from psycopg.abc import Buffer
    from psycopg.adapt import AdaptersMap, Loader
    from psycopg.types.numeric import Int8Dumper

Error: Final = psycopg.Error
_ARRAYS: Final = {int: "bigint[]", str: "text[]", bytes: "bytea[]", float: "float8[]", bool: "boolean[]"}
_PASSING: Final = ("08", "57P", "25P03", "53300", "40001", "40P01", "23505")
"""The first characters of the codes of errors that pass. The last is that of a row which another connection inserted at the same
moment (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_OPTIONS: Final = {
    "application_name": "boardclient",
    "connect_timeout": "30",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
}
_IDLE_SECONDS: Final = 10
"""How long a transaction may be idle before the server ends it, since others wait for the locks of a suspended process."""
_PREPARED: Final = 2
"""How often a connection runs a statement before it is prepared."""


class _NumberLoader(Loader):
    """Load a numeric value without decimals, such as a sum of integers, as an int."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode("ascii")
        return int(text) if text.lstrip("-").isdigit() else float(text)


_adapters: Final = AdaptersMap(psycopg.adapters)
_adapters.register_dumper(int, Int8Dumper)  # one type for all integers, so that one plan fits
_adapters.register_loader("numeric", _NumberLoader)


class ServerConnection(Connection):
    """A connection to PostgreSQL.

    Args:
        raw: A connection of psycopg with autocommit.
        is_durable: Whether a commit waits for the disk.
    """

    is_file = False

    def __init__(self, raw: psycopg.Connection[Any], *, is_durable: bool) -> None:
        self.raw = raw
        # For the transaction only, since a pooler passes the connection on.
        wait = "" if is_durable else "; SET LOCAL synchronous_commit = off"
        self._begin = f"BEGIN; SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'{wait}".encode()

    def _execute(self, sql: str, values: Sequence[object]) -> psycopg.Cursor[Any]:
        return self.raw.execute(translated(sql, is_file=False)[0].encode(), values)

    def fetch(self, sql: str, *values: object) -> list[Any]:
        cursor = self._execute(sql, values)
        if cursor.description is None:
            return []
        return [*map(row_maker(tuple(column.name for column in cursor.description)), cursor.fetchall())]

    def run(self, sql: str, *values: object) -> int:
        return self._execute(sql, values).rowcount

    def insert(self, head: str, columns: Columns, rows: Iterable[Sequence[object]], tail: str = "") -> list[Any]:
        lists = [[*values] for values in zip(*rows, strict=True)]
        if not lists:
            return []
        given = [(name, kind) for name, kind in columns if not isinstance(kind, str)]
        names = ", ".join(name for name, _ in columns)
        wanted = ", ".join(kind if isinstance(kind, str) else f"given.{name}" for name, kind in columns)
        arrays = ", ".join(f"?::{_ARRAYS[kind]}" for _, kind in given)
        of_given = ", ".join(name for name, _ in given)
        rows_of = f"SELECT {wanted} FROM unnest({arrays}) AS given ({of_given})"  # noqa: S608 -- the names are the package's own
        return self.fetch(f"{head} ({names}) {rows_of} {tail}", *lists)

    def begin(self, *, is_read: bool) -> None:
        self.raw.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_read else self._begin, prepare=False)

    def commit(self) -> None:
        self.raw.execute(b"COMMIT", prepare=False)

    def rollback(self) -> None:
        if not self.raw.closed:
            self.raw.execute(b"ROLLBACK", prepare=False)

    def close(self) -> None:
        self.raw.close()

    @property
    def is_lost(self) -> bool:
        return self.raw.closed

    def give_up(self) -> None:
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.raw.fileno())) as shared:
            shared.shutdown(socket.SHUT_RDWR)


def connect(conninfo: Mapping[str, str], *, is_durable: bool, is_behind_pooler: bool) -> ServerConnection:
    """Connect to a server.

    Raises:
        psycopg.Error: the server can't be reached, or refuses the connection.
    """
    # Behind such a pooler, the next statement may reach another connection of the server, where nothing is prepared:
    # https://www.psycopg.org/psycopg3/docs/advanced/prepare.html#using-prepared-statements-with-pgbouncer
    threshold = None if is_behind_pooler else _PREPARED
    given: dict[str, Any] = {**_OPTIONS, **conninfo}
    raw = psycopg.connect(autocommit=True, prepare_threshold=threshold, context=_adapters, **given)
    # psycopg numbers prepared statements from 0 in each connection. Behind a pooler that the URL does not name, that would run
    # the statement which another client has prepared under the same name.
    raw._prepared._prepared_idx = secrets.randbits(62)
    return ServerConnection(raw, is_durable=is_durable)


def tell(error: Exception) -> tuple[str, bool]:
    """Return an error of the driver in words, and whether another attempt may succeed in a moment.

    It may if the server restarts, has no connection left, or another transaction came first.
    """
    text = str(error)
    fatal = text.partition("FATAL:  ")[2] or text
    state = getattr(error, "sqlstate", None)
    is_passing = state.startswith(_PASSING) if state else isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return fatal.partition("\n")[0] or type(error).__name__, is_passing


def option_names() -> set[str]:
    """Return the names of libpq's options."""
    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()}


def read_url(url: str) -> dict[str, str] | None:
    """Return the options of a URL, None if libpq can't read it. Its error is dropped, since it may quote a part of a password."""
    try:
        read = pq.Conninfo.parse(url.encode())
    except psycopg.Error:
        return None
    return {option.keyword.decode(): option.val.decode() for option in read if option.val is not None}
