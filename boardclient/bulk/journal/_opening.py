"""Create a journal's file, and check one that a run opens."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from boardclient.bulk.journal import _format as form
from boardclient.bulk.journal import _location as location
from boardclient.bulk.journal import _parts as parts
from boardclient.bulk.journal._format import Meta
from boardclient.bulk.journal._lock import Mark
from boardclient.errors import JournalError


def create(path: Path, identity: Mapping[str, str]) -> None:
    """Create a journal without rows, beside its path and then moved there whole. One cut off leaves none."""
    unfinished = path.with_name(f"{path.name}-new")
    _clear(unfinished)
    location.create(unfinished)
    try:
        _initialise(unfinished, identity)
        location.move(unfinished, path)
    except BaseException:
        _clear(unfinished)
        raise


def _clear(unfinished: Path) -> None:
    location.clear(unfinished)
    location.clear(parts.rollback_of(unfinished))


def _initialise(path: Path, identity: Mapping[str, str]) -> None:
    """Make an empty file a journal, in one transaction."""
    meta = {
        "identity": json.dumps(dict(identity), ensure_ascii=False),
        "secret": secrets.token_bytes(32),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": 0,
        "indexed": 0,
        "used_inode": 0,
        "used_path": "",
        "tokens": parts.next_tokens(),
    }
    with contextlib.closing(form.connect(path, "rw")) as connection:
        connection.execute(f"PRAGMA page_size = {form.PAGE_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(
            f"BEGIN; PRAGMA application_id = {form.APPLICATION_ID}; PRAGMA user_version = {form.SCHEMA_VERSION}; {form.SCHEMA}"
        )
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("COMMIT")


def make_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Make commits outlive a power failure, and stand in the file itself.

    A write-ahead log would take one sync a commit instead of three, and would hold what is newest in a second file.

    Raises:
        JournalError: the file system can't do it.
    """
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL would lose logged rows in a power failure, and send them twice
    connection.execute("PRAGMA fullfsync = ON")  # on macOS, where fsync alone leaves it in the disk's cache
    connection.execute("PRAGMA cache_size = -4096")
    (mode,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if mode != "truncate":
        raise JournalError(f"{path} lies on a file system without room for a rollback journal: put the journal on a local disk")


def last_row(connection: sqlite3.Connection) -> int:
    """Return the number of the last row that was logged, 0 where there is none."""
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM rows").fetchone()
    return int(last)


def check_rows(connection: sqlite3.Connection, path: Path, meta: Meta, mark: Mark | None) -> None:
    """Make sure that no row is missing that was logged.

    Raises:
        JournalError: some are.
    """
    last = last_row(connection)
    if meta.used_inode and connection.execute("SELECT count(*) FROM rows").fetchone() != (last,):
        raise form.damage(path, "rows are missing")
    if mark is not None and (mark.run > meta.runs or (mark.run == meta.runs and mark.released > last)):
        raise JournalError(
            f"{path} is an older copy: a run has used a newer one here, and its rows would be sent again."
            f" Put the newer one back; or remove {path.name}-lock to use this one all the same"
        )


def check_identity(path: Path, made_for: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Make sure that the journal belongs to this board, account and service.

    Raises:
        JournalError: it belongs to another; the message names the parts that differ.
    """
    others = [name for name in {**made_for, **given} if made_for.get(name) != given.get(name)]
    if others:
        differences = ", ".join(f"{name} {made_for.get(name)!r} (now {given.get(name)!r})" for name in others)
        raise JournalError(f"{path} belongs to another import: {differences}. Give this import a journal of its own")
