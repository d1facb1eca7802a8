"""The reading side of a journal, while a run is at work or not. It changes nothing, except that it undoes a commit cut off."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, get_args

import attrs

from boardclient.bulk.journal import _format as form
from boardclient.bulk.journal import _location as location
from boardclient.bulk.journal import _parts as parts
from boardclient.bulk.journal._format import JournalRow, RowState
from boardclient.bulk.journal._lock import RunLock
from boardclient.errors import JournalError

STATES: Final[tuple[RowState, ...]] = get_args(RowState)
_PAGE: Final = 1000
_LOCK_SECONDS: Final = 10.0
"""How long a reader waits for a commit of a run at work."""


@attrs.frozen(kw_only=True)
class JournalSummary:
    """What a journal holds.

    `counts` has the number of rows in each state, `rows` is their sum. `created_at` is aware (UTC). `runs` counts the runs that
    used it.
    """

    path: Path
    identity: dict[str, str]
    created_at: datetime
    runs: int
    counts: dict[RowState, int]

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return sum(self.counts.values())


def read_journal(path: str | os.PathLike[str]) -> JournalSummary:
    """Sum a journal up.

    Raises:
        JournalError: there is none, or it can't be read.
    """
    with _reading(path) as (target, connection, meta):
        connection.execute("BEGIN")  # both counts are of one moment
        counts = dict.fromkeys(STATES, 0)
        counts.update(connection.execute("SELECT state, count(*) FROM outcomes GROUP BY state").fetchall())
        (rows,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        counts["logged"] = rows - sum(counts.values())
    return JournalSummary(path=target, identity=meta.identity, created_at=meta.created_at, runs=meta.runs, counts=counts)


def read_rows(path: str | os.PathLike[str], *states: RowState) -> Generator[JournalRow, None, None]:
    """Yield the rows in these states, or all, in the order of logging.

    Closing the generator closes the file. A row is shown as it is when it comes up. A run at work waits for a reader only as
    long as it takes to read a thousand rows.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    after = 0
    while True:
        with _reading(path) as (_, connection, _):  # no lock is held between pages: it would keep a run waiting
            rows = form.select_rows(connection, states or STATES, after, _PAGE)
        yield from rows
        if not rows:
            return
        after = rows[-1].seq


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Path, sqlite3.Connection, form.Meta]]:
    target = location.find_location(path)
    if not location.exists(target):
        raise JournalError(f"there is no journal {target}: look at the path")
    had_rollback = parts.has_rollback(target)
    with form.translated(target):
        if parts.is_cut_off(target):
            _recover(target)
        with contextlib.closing(form.connect(target, "ro", _LOCK_SECONDS)) as connection:
            meta = form.read_meta(connection, target)
            parts.check_whole(target, meta, had_rollback=had_rollback or parts.has_rollback(target))
            yield target, connection, meta


def _recover(target: Path) -> None:
    """Undo a commit that was cut off. Where a run is at work, it is that run's affair."""
    try:
        lock = RunLock.acquire(target)
    except JournalError:
        return
    with contextlib.closing(lock):
        parts.check_companions(target, exists=True)
        with contextlib.closing(form.connect(target, "rw")) as connection:
            parts.recover(connection, target)
