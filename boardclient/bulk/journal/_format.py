"""The format of a journal: its tables, its rows as values, and its errors."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import attrs

from boardclient.errors import JournalError

APPLICATION_ID: Final = 0x62634A4C
"""Identifies SQLite files of this package: "bcJL" (https://www.sqlite.org/pragma.html#pragma_application_id)."""
SCHEMA_VERSION: Final = 3
PAGE_BYTES: Final = 4096

# A row in `rows` is logged, and in doubt until `outcomes` has it: no row is rewritten when a card is created. `keys` finds a row
# by its key. It lags behind `rows`: `indexed` in `meta` is the last row that it has. `meta` is the first table because its tokens
# are expected on the second page of the file.
SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (seq INTEGER PRIMARY KEY, key NOT NULL, digest BLOB NOT NULL, run INTEGER NOT NULL);
CREATE TABLE keys (key PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE outcomes (
  seq INTEGER PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('done', 'failed', 'waiting', 'unknown')),
  detail TEXT
);
CREATE TABLE baseline (card_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

RowKey: TypeAlias = int | str
"""Identifies a row: its reference, a text, or its position in the input, a number from 0."""
SettledState: TypeAlias = Literal["done", "failed", "waiting", "unknown"]
"""The outcome of a row: created; failed for good; failed for a transient reason or not sent; reported as unknown."""
RowState: TypeAlias = Literal["logged", "done", "failed", "waiting", "unknown"]
"""The state of a row in a journal: "logged" until it has an outcome, then that outcome."""
RowAction: TypeAlias = Literal["send", "done", "failed", "doubtful"]
"""What to do with a row of the input: send it; skip it, since it is done or failed for good; find out whether its card exists."""

# Values that are made for each row of a run are plain tuples where possible: a named tuple takes eight times as long to make.

Entry: TypeAlias = tuple[RowKey, bytes]
"""A row of the input: its key, and a digest of its content."""
RowOutcome: TypeAlias = tuple[int, SettledState, "str | None"]
"""The outcome of a row: its number, its state, and the card's id if it is done, otherwise the reason."""


class RowDecision(NamedTuple):
    """What to do with a row.

    `detail` is the card's id if it is done, and the reason if it is failed or doubtful.
    """

    seq: int
    action: RowAction
    detail: str | None = None


@attrs.frozen(kw_only=True)
class JournalRow:
    """A row of a journal.

    Attributes:
        seq: The number of the row, from 1, in the order of logging.
        key: The draft's reference, or its position in the input, from 0.
        digest: A digest of the draft's content.
        run: The number of the run that logged it last, from 1.
        state: "logged" until the outcome is known, then "done", "failed", "waiting" or "unknown".
        detail: The card's id if it is done, otherwise the reason, or None if there is none.
    """

    seq: int
    key: RowKey
    digest: bytes
    run: int
    state: RowState
    detail: str | None


ROWS: Final = (
    "SELECT seq, key, digest, run, coalesce(state, 'logged'), detail FROM rows LEFT JOIN outcomes USING (seq)"
    " WHERE seq > ? AND coalesce(state, 'logged') IN ({states}) ORDER BY seq LIMIT ?"
)


def select_rows(connection: sqlite3.Connection, states: tuple[RowState, ...], after: int, limit: int) -> list[JournalRow]:
    """Return up to `limit` rows in these states, with numbers above `after`."""
    found = connection.execute(ROWS.format(states=",".join("?" * len(states))), (after, *states, limit)).fetchall()
    return [
        JournalRow(seq=seq, key=key, digest=digest, run=run, state=state, detail=detail)
        for seq, key, digest, run, state, detail in found
    ]


@attrs.frozen(kw_only=True)
class Meta:
    """The metadata of a journal.

    `baseline` is the number of cards that were on the board before the first row, or None if it was not read. `used_inode` and
    `used_path` name the file that a run has opened and not closed. `used_inode` is 0 if all runs closed it.
    """

    identity: dict[str, str]
    secret: bytes = attrs.field(repr=False)
    created_at: datetime
    runs: int
    indexed: int
    baseline: int | None
    used_inode: int
    used_path: str
    tokens: bytes = attrs.field(repr=False)


def connect(path: Path, mode: Literal["ro", "rw"], timeout: float = 5.0) -> sqlite3.Connection:
    """Connect to an existing SQLite file. `timeout` is how long to wait for locks, in seconds."""
    # Its caller lets only one thread use it at a time.
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", timeout=timeout, uri=True, isolation_level=None, check_same_thread=False
    )


def read_meta(connection: sqlite3.Connection, path: Path) -> Meta:
    """Check that the file is a journal, and return its metadata.

    Raises:
        JournalError: it is not a journal, or has another version.
        sqlite3.Error: it can't be read.
    """
    application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if application != APPLICATION_ID:
        raise JournalError(
            f"{path} is no journal of boardclient (it may be empty or cut off): choose another path, or restore it"
        )
    if version > SCHEMA_VERSION:
        raise JournalError(f"{path} was written by a newer boardclient (format {version}): update boardclient to use it")
    if version < SCHEMA_VERSION:
        raise JournalError(
            f"{path} was written by an older boardclient (format {version}): finish its import with that version,"
            " or begin a new journal"
        )
    values = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    try:
        return Meta(
            identity=json.loads(values["identity"]),
            secret=values["secret"],
            created_at=datetime.fromisoformat(values["created_at"]),
            runs=values["runs"],
            indexed=values["indexed"],
            baseline=values.get("baseline"),
            used_inode=values["used_inode"],
            used_path=values["used_path"],
            tokens=values["tokens"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damage(path, "its metadata can't be read") from error


def damage(path: Path, why: str) -> JournalError:
    """Return the error for a damaged journal."""
    return JournalError(_DAMAGED.format(path=path, why=why))


_DAMAGED: Final = (
    "{path} is damaged ({why}): restore it from a copy; with a new journal, rows that were sent already would be sent again"
)
_ADVICE: Final = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_ERROR: _DAMAGED,  # a table is missing or has other columns
    sqlite3.SQLITE_NOTADB: "{path} is no journal of boardclient ({why}): choose another path, or restore it",
    sqlite3.SQLITE_FULL: "{path} can't grow ({why}): free some disk space and run again, which resumes it",
    sqlite3.SQLITE_IOERR: "{path} can't be read or written ({why}): check the disk and run again, which resumes it",
    sqlite3.SQLITE_BUSY: "{path} is kept locked by another program ({why}): end that program and run again",
}
_MOVED: Final = "{path} was moved or removed while a run was using it ({why}): put it back before the next run"
_OTHERWISE: Final = "{path} can't be used ({why}): check its permissions and those of its folder, which must be writable"


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as a JournalError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        is_moved = code == sqlite3.SQLITE_READONLY_DBMOVED
        # The low byte is the primary result code: https://www.sqlite.org/rescode.html.
        advice = _MOVED if is_moved else _ADVICE.get(code & 0xFF, _OTHERWISE)
        raise JournalError(advice.format(path=path, why=error)) from error


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file has all its pages and that they are consistent.

    This takes 0.2 s for a million rows.

    Raises:
        JournalError: the file is damaged.
    """
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if path.stat().st_size != pages * PAGE_BYTES:
        raise damage(path, "it was cut off")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damage(path, verdict.splitlines()[-1])
