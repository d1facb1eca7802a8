"""The reading side of a journal, for people, while a run is at work or not. The file is never changed."""

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
from boardclient.bulk.journal import _location as place
from boardclient.bulk.journal._format import JournalRow, RowState
from boardclient.errors import JournalError

STATES: Final[tuple[RowState, ...]] = get_args(RowState)
_PAGE: Final = 1000


@attrs.frozen(kw_only=True)
class JournalSummary:
    """What a journal holds.

    `counts` has the number of rows of every state, `created_at` is aware (UTC), `runs` counts the runs that used it.
    """

    path: Path
    identity: dict[str, str]
    created_at: datetime
    runs: int
    counts: dict[RowState, int]


def read_journal(path: str | os.PathLike[str]) -> JournalSummary:
    """Sum a journal up.

    Raises:
        JournalError: there is none, or it can't be read.
    """
    with _reading(path) as (target, connection):
        meta = form.read_meta(connection, target)
        connection.execute("BEGIN")  # both counts are of one moment
        counts = dict.fromkeys(STATES, 0)
        counts.update(connection.execute("SELECT state, count(*) FROM outcomes GROUP BY state").fetchall())
        (rows,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        counts["armed"] = rows - sum(counts.values())
    return JournalSummary(path=target, identity=meta.identity, created_at=meta.created_at, runs=meta.runs, counts=counts)


def read_rows(path: str | os.PathLike[str], *states: RowState) -> Generator[JournalRow, None, None]:
    """Yield the rows in these states, or all, in the order of arming.

    Closing the generator closes the file. A row is shown as it is when it comes up: between pages nothing is held, so that a
    reader who takes hours does not make the log of a run at work grow.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    after = 0
    while True:
        # A new connection for each page: what was opened while nobody was at work doesn't see what a run writes.
        with _reading(path) as (target, connection):
            form.read_meta(connection, target)
            rows = form.select_rows(connection, states or STATES, after, _PAGE)
        yield from rows
        if not rows:
            return
        after = rows[-1].seq


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Path, sqlite3.Connection]]:
    target = place.find_place(path)
    if not place.exists(target):
        raise JournalError(f"there is no journal {target}: look at the path")
    with form.translated(target), contextlib.closing(_connect(target)) as connection:
        yield target, connection


def _connect(target: Path) -> sqlite3.Connection:
    """Open a journal without the right to change it; without a log nobody is at work, and none is to be left behind."""
    if not target.with_name(f"{target.name}-wal").exists():
        return form.connect(target, "ro&immutable=1")
    return form.connect(target, "ro")
