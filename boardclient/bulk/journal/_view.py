"""The reading side of a journal, also during a run.

It changes nothing, except that it rolls back an interrupted commit.
"""

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
"""How long a reader waits for a commit of a run."""


@attrs.frozen(kw_only=True)
class JournalSummary:
    """A summary of a journal.

    Attributes:
        path: The path of the journal.
        identity: What the journal is bound to, such as service, account and board.
        created_at: When it was created, in UTC.
        runs: The number of runs that have opened it.
        counts: The number of rows in each state.
    """

    path: Path
    identity: dict[str, str]
    created_at: datetime
    runs: int
    counts: dict[RowState, int]

    @property
    def rows(self) -> int:
        """The number of rows in all states."""
        return sum(self.counts.values())


def read_journal(path: str | os.PathLike[str]) -> JournalSummary:
    """Return a summary of a journal.

    Args:
        path: The path of the journal. A run may be using it.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    with _reading(path) as (target, connection, meta):
        connection.execute("BEGIN")  # both counts are of the same moment
        counts = dict.fromkeys(STATES, 0)
        counts.update(connection.execute("SELECT state, count(*) FROM outcomes GROUP BY state").fetchall())
        (rows,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        counts["logged"] = rows - sum(counts.values())
    return JournalSummary(path=target, identity=meta.identity, created_at=meta.created_at, runs=meta.runs, counts=counts)


def read_rows(path: str | os.PathLike[str], *states: RowState) -> Generator[JournalRow, None, None]:
    """Yield the rows of a journal, in the order of logging.

    A run may be using the journal: rows are read a thousand at a time, and its commits wait no longer than that takes. Each row
    has the state that it had when its thousand was read.

    Args:
        path: The path of the journal.
        states: Yield only rows in these states. None given, the default, means all.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    after = 0
    while True:
        with _reading(path) as (_, connection, _):  # no lock is held between pages, or a run would have to wait
            rows = form.select_rows(connection, states or STATES, after, _PAGE)
        yield from rows
        if not rows:
            return
        after = rows[-1].seq


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Path, sqlite3.Connection, form.Meta]]:
    target = location.find_location(path)
    if not location.exists(target):
        raise JournalError(f"there is no journal {target}: check the path")
    had_rollback = parts.has_rollback(target)
    with form.translated(target):
        if parts.is_cut_off(target):
            _recover(target)
        with contextlib.closing(form.connect(target, "ro", _LOCK_SECONDS)) as connection:
            meta = form.read_meta(connection, target)
            parts.check_whole(target, meta, had_rollback=had_rollback or parts.has_rollback(target))
            yield target, connection, meta


def _recover(target: Path) -> None:
    """Roll back an interrupted commit, unless a run is using the journal."""
    try:
        lock = RunLock.acquire(target)
    except JournalError:
        return
    with contextlib.closing(lock):
        parts.check_companions(target, exists=True)
        with contextlib.closing(form.connect(target, "rw")) as connection:
            parts.recover(connection, target)
