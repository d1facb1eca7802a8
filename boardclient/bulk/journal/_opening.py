"""Creates the file of a journal, and checks it when a run opens it."""

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
from boardclient.bulk.journal._lock import RunMark
from boardclient.errors import JournalError


def create(path: Path, identity: Mapping[str, str]) -> None:
    """Create a journal without rows.

    It is made beside its path and then moved, so that an interruption leaves no incomplete journal.
    """
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
    """Turn an empty file into a journal, in one transaction."""
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
    """Make commits survive a power failure, in the journal's file itself.

    A write-ahead log would need one sync per commit instead of five, but keep the latest commits in a second file
    (https://www.sqlite.org/pragma.html describes these settings).

    Raises:
        JournalError: the file system does not support it.
    """
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL may lose logged rows in a power failure: they would be sent twice
    connection.execute("PRAGMA fullfsync = ON")  # for macOS, where fsync leaves data in the disk's cache
    connection.execute("PRAGMA cache_size = -4096")
    (mode,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if mode != "truncate":
        raise JournalError(f"{path} is on a file system that can't hold a rollback journal: put the journal on a local disk")


def last_row(connection: sqlite3.Connection) -> int:
    """Return the number of the last row that was logged, or 0."""
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM rows").fetchone()
    return int(last)


def check_rows(connection: sqlite3.Connection, path: Path, meta: Meta, mark: RunMark | None) -> None:
    """Check that no logged row is missing.

    Raises:
        JournalError: rows are missing, or the file is an older copy.
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
    """Check that the journal belongs to this service, account and board.

    Raises:
        JournalError: it belongs to others. The message names the differences.
    """
    others = [name for name in {**made_for, **given} if made_for.get(name) != given.get(name)]
    if others:
        differences = ", ".join(f"{name} {made_for.get(name)!r} (now {given.get(name)!r})" for name in others)
        raise JournalError(f"{path} belongs to another import: {differences}. Give this import a journal of its own")
