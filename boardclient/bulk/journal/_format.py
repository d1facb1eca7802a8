"""What a journal is on disk: its tables, its rows as values, its marks. No rows are written here."""

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
"""Tells SQLite files of this package from all others ("bcJL")."""
SCHEMA_VERSION: Final = 2
PAGE_BYTES: Final = 4096

# A row is logged by standing in `rows`, and in doubt as long as `outcomes` says nothing of it: no column is rewritten where a row
# succeeds. `keys` finds a row by its key; it lags behind `rows` by what lies after `indexed` in `meta`, which comes first:
# its tokens are looked for on the second page of the file.
SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (seq INTEGER PRIMARY KEY, key NOT NULL, digest BLOB NOT NULL, run INTEGER NOT NULL);
CREATE TABLE keys (key PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE outcomes (
  seq INTEGER PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('done', 'failed', 'waiting', 'unknown')),
  detail TEXT,
  shown BLOB
);
CREATE TABLE baseline (card_id TEXT PRIMARY KEY) WITHOUT ROWID;
"""

RowKey: TypeAlias = int | str
"""How a row is known: its reference (text), or its position in the input (a number from 0)."""
SettledState: TypeAlias = Literal["done", "failed", "waiting", "unknown"]
"""What became of a row: created; refused for good; refused for a passing reason or not sent; reported as in doubt."""
RowState: TypeAlias = Literal["logged", "done", "failed", "waiting", "unknown"]
"""What the journal holds of a row: "logged" as long as nothing is known of it."""
RowAction: TypeAlias = Literal["send", "done", "failed", "doubtful"]
"""What to do with a row of the input: send it; skip it, since it is done or refused for good; find out whether it was done."""

# The values that exist once per row of a running import are tuples: they are SQLite's parameters as they stand.


class Entry(NamedTuple):
    """A row of the input. `digest` stands for its content and is only ever compared."""

    key: RowKey
    digest: bytes


class RowDecision(NamedTuple):
    """What the journal says of a row.

    `detail` is the card's id of a done row, the reason of a failed or doubtful one.
    """

    seq: int
    action: RowAction
    detail: str | None = None


class RowOutcome(NamedTuple):
    """What became of a row.

    `detail` is the card's id of a done row, otherwise the reason. `shown` stands for what the service showed of its card.
    """

    seq: int
    state: SettledState
    detail: str | None = None
    shown: bytes | None = None


@attrs.frozen(kw_only=True)
class JournalRow:
    """A row as the journal holds it.

    `run` is the number of the run that logged it last, from 1. `detail` is the card's id of a done row, otherwise the reason
    where one is known. `shown` is what `RowOutcome` said.
    """

    seq: int
    key: RowKey
    digest: bytes
    run: int
    state: RowState
    detail: str | None
    shown: bytes | None


ROWS: Final = (
    "SELECT seq, key, digest, run, coalesce(state, 'logged'), detail, shown FROM rows LEFT JOIN outcomes USING (seq)"
    " WHERE seq > ? AND coalesce(state, 'logged') IN ({states}) ORDER BY seq LIMIT ?"
)


def select_rows(connection: sqlite3.Connection, states: tuple[RowState, ...], after: int, limit: int) -> list[JournalRow]:
    """Return rows in these states, in the order of logging, after the number `after`."""
    found = connection.execute(ROWS.format(states=",".join("?" * len(states))), (after, *states, limit)).fetchall()
    return [
        JournalRow(seq=seq, key=key, digest=digest, run=run, state=state, detail=detail, shown=shown)
        for seq, key, digest, run, state, detail, shown in found
    ]


@attrs.frozen(kw_only=True)
class Meta:
    """What a journal says of itself.

    `baseline` counts the cards that stood on the board before, None where nobody looked. `used_inode` and `used_path` say which
    file a run opened and has not closed; 0 where all did.
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
    """Open an existing SQLite file that waits `timeout` seconds for others' locks."""
    # The thread that closes a journal whose opening was cancelled need not be the one that opened it.
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", timeout=timeout, uri=True, isolation_level=None, check_same_thread=False
    )


def read_meta(connection: sqlite3.Connection, path: Path) -> Meta:
    """Make sure that the file is a journal, and return what it says of itself.

    Raises:
        JournalError: it is not.
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
        raise damage(path, "its head can't be read") from error


def damage(path: Path, why: str) -> JournalError:
    """Return the error of a journal that has lost what it held."""
    return JournalError(_DAMAGED.format(path=path, why=why))


_DAMAGED: Final = (
    "{path} is damaged ({why}): restore it from a copy; with a new journal, rows that were sent already would be sent again"
)
_ADVICE: Final = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_ERROR: _DAMAGED,  # a table is missing or has other columns
    sqlite3.SQLITE_NOTADB: "{path} is no journal of boardclient ({why}): choose another path, or restore it",
    sqlite3.SQLITE_FULL: "{path} can't grow ({why}): make room and run again, which resumes it",
    sqlite3.SQLITE_IOERR: "{path} can't be read or written ({why}): see to the disk and run again, which resumes it",
    sqlite3.SQLITE_BUSY: "{path} is kept locked by another program ({why}): end that one and run again",
}
_MOVED: Final = "{path} was moved or removed while a run was using it ({why}): put it back before the next run"
_OTHERWISE: Final = "{path} can't be used ({why}): see to its permissions and those of its folder, which must be writable"


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a JournalError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        is_moved = code == sqlite3.SQLITE_READONLY_DBMOVED
        advice = _MOVED if is_moved else _ADVICE.get(code & 0xFF, _OTHERWISE)  # the lowest byte is the kind of error
        raise JournalError(advice.format(path=path, why=error)) from error


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file has all its pages and they fit. This takes 0.2 s for a million rows.

    Raises:
        JournalError: they do not.
    """
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if path.stat().st_size != pages * PAGE_BYTES:
        raise damage(path, "it was cut off")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damage(path, verdict.splitlines()[-1])
