"""The token store of several processes of one machine: a SQLite file. Only here is sqlite3 imported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from boardclient.credentials._accounts import Account, AccountStore, Change, Lease, T
from boardclient.credentials._file_location import absolute_path, app_path, check_file, check_folder
from boardclient.credentials._tokens import StoredToken, Token, text_of_end
from boardclient.errors import CredentialError

_APPLICATION: Final = 0x62644B74  # PRAGMA application_id: what makes a SQLite file one of ours
_VERSION: Final = 1
_BUSY_SECONDS: Final = 5.0
_LARGEST: Final = 2**62  # generations that SQLite can count up from

_SCHEMA: Final = (
    """CREATE TABLE accounts (
        account TEXT PRIMARY KEY, generation INTEGER NOT NULL, token TEXT, expires_at TEXT,
        holder TEXT, since REAL NOT NULL, until REAL NOT NULL
    )""",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_LOAD: Final = "SELECT generation, token, expires_at, holder, since, until FROM accounts WHERE account = ?"
_DELETED: Final = "deleted"
"""In place of an end, where the token was deleted: a lost token alone is damage."""
_SAVE: Final = "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?)"

_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: f"another process has kept it locked for {_BUSY_SECONDS:g} seconds; try again, or end that process",
    sqlite3.SQLITE_FULL: "the disk is full; make room on it",
    sqlite3.SQLITE_READONLY: "it can't be written; give it and its folder to the user of this process",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it away, and a new one is made",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite file; choose another path, or move it away",
}

_one_step: Final = threading.Lock()
"""HeldToken for the whole of each step in this process.

A fork waits for it: with a file open in SQLite, the child would believe that it holds the parent's locks
(https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_). And closing a file ends all locks
that the process has on it (POSIX), so no other thread may be in a step meanwhile.
"""
if hasattr(os, "register_at_fork"):  # pragma: no branch -- only Windows has no fork
    os.register_at_fork(before=_one_step.acquire, after_in_parent=_one_step.release, after_in_child=_one_step.release)


class FileTokenStore(AccountStore):
    """Keep tokens in a file, for all processes, threads and loops of one user.

    The file, and its folder, are made where they are missing. Only its owner may read the file, and change files in its folder:
    the folder is checked at once, both are in each step (not on Windows). The file must be on a local disk. Nothing is open
    between the steps, so there is nothing to close, and a process may fork at any time. A step that is cancelled may be done all
    the same. What is deleted or replaced is overwritten in the file.

    Args:
        path: The path of the file; `~` is the user's home folder.
        clock: The seconds since the epoch, the same in all processes; by default `time.time`.

    Raises:
        CredentialError: also from each method; the file can't be used, or others may read it. The message says what to do.
        ValueError: the home folder is not known.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self._path = absolute_path(path)
        self._clock = clock
        check_folder(self._path.parent)

    @classmethod
    def for_app(cls, name: str) -> FileTokenStore:
        """Return the store in the user's data folder. On Linux it is `~/.local/share/NAME/tokens.sqlite3`.

        Raises:
            ValueError: the name can't be that of a folder.
            CredentialError: that folder can't be used.
        """
        return cls(app_path(name))

    async def _look(self, account: str) -> Account:
        return await self._run(account, _unchanged, "BEGIN")

    async def _change(self, account: str, change: Change[T]) -> T:
        try:
            return await self._run(account, change, "BEGIN IMMEDIATE")
        finally:
            del change  # it may hold a token

    async def _run(self, account: str, change: Change[T], begin: str) -> T:
        try:
            outcome = await asyncio.to_thread(self._attempt, account, change, begin)
        except asyncio.CancelledError as cancellation:
            raise cancellation.with_traceback(None)  # noqa: B904 -- the same one, without the frames that hold the token
        finally:
            del change
        if isinstance(outcome, CredentialError):
            raise outcome
        return outcome

    def _attempt(self, account: str, change: Change[T], begin: str) -> T | CredentialError:
        """Do a step in a thread; an error is returned, without the frames of the step."""
        try:
            with _one_step:
                return self._step(account, change, begin)
        except CredentialError as refusal:
            return refusal.with_traceback(None)
        except (sqlite3.Error, OSError, UnicodeError, OverflowError) as error:  # also a number that SQLite can't hold
            cause = error.with_traceback(None)
        why = _ADVICE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, str(cause))
        failure = CredentialError(f"the token store {self._path} can't be used: {why}")
        failure.__cause__ = cause
        return failure

    def _step(self, account: str, change: Change[T], begin: str) -> T:
        is_empty = self._make_file() == 0
        uri = f"{self._path.as_uri()}?mode=rw"  # never made by SQLite, whose files others may read
        with contextlib.closing(sqlite3.connect(uri, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)) as connection:
            connection.text_factory = _to_text
            connection.execute("BEGIN IMMEDIATE" if is_empty else begin)
            connection.execute("PRAGMA secure_delete = ON")  # a token that was replaced doesn't stay in free pages
            if self._is_new(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)
            known = self._load(connection, account)
            # The time is taken under the lock: an earlier one would be before the beginning of a lease just given to another.
            result, changed = change(known, self._clock())
            if changed is not known:
                connection.execute(_SAVE, (account, *_to_row(changed)))
            connection.execute("COMMIT")  # until then closing undoes it all
        return result

    def _make_file(self) -> int:
        """Make the folder and the file where they are missing, check them. Return the file's size."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(folder)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
        # Looked at without opening it: closing it again would end the locks that another thread's SQLite has on it (POSIX).
        found = self._path.lstat()
        check_file(self._path, found)
        if found.st_size == 1:  # SQLite takes it for an empty one, and would overwrite it
            raise CredentialError(f"the token store {self._path} can't be used: {_ADVICE[sqlite3.SQLITE_NOTADB]}")
        return found.st_size

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Return True if the file is new.

        Raises:
            CredentialError: another program, or a later version, wrote it.
        """
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
        if application == _APPLICATION and version > _VERSION:
            raise CredentialError(
                f"the token store {self._path} is of a newer version of boardclient: update this one, or choose another path"
            )
        if (application, version) == (_APPLICATION, _VERSION):
            return False
        ((contents,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if (application, version, contents) == (0, 0, 0):
            return True
        raise CredentialError(f"{self._path} is not a token store but another SQLite file: choose another path")

    def _load(self, connection: sqlite3.Connection, account: str) -> Account:
        row = connection.execute(_LOAD, (account,)).fetchone()
        if row is None:
            return Account()
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return _from_row(*row)
        raise CredentialError(f"the token store {self._path} is damaged: move it away, and a new one is made")

    def __repr__(self) -> str:
        return f"FileTokenStore({str(self._path)!r})"


def _unchanged(known: Account, now: float) -> tuple[Account, Account]:
    return known, known


def _to_text(raw: bytes) -> str:
    # Damaged text is found by the token's own check: SQLite's error would show it.
    return raw.decode("utf-8", "surrogateescape")


def _to_row(record: Account) -> tuple[object, ...]:
    lease = (record.lease.holder, record.lease.since, record.lease.until)
    if record.stored is None:
        return (record.deletion, None, _DELETED if record.deletion else None, *lease)
    return (record.stored.generation, record.stored.token.value, text_of_end(record.stored.token), *lease)


def _from_row(generation: object, token: object, expires_at: object, holder: object, since: object, until: object) -> Account:
    """Return the record of a row.

    Raises:
        TypeError, ValueError, OverflowError: something else was written into it.
    """
    if not isinstance(generation, int) or not 0 <= generation <= _LARGEST:
        raise ValueError("no generation")
    if not isinstance(since, float) or not isinstance(until, float) or not isinstance(holder, str | None):
        raise TypeError("no lease")
    lease = Lease(holder, since, until)
    if token is None and expires_at == (_DELETED if generation else None):
        return Account(lease=lease, deletion=generation)
    if not isinstance(token, str) or not isinstance(expires_at, str | None):
        raise TypeError("no token")
    ends = None if expires_at is None else datetime.fromisoformat(expires_at)
    return Account(StoredToken(Token(token, ends), generation), lease)
