"""The token store of all processes of one machine, a SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from boardclient._base._environment import base_folder, why_no_file_opens
from boardclient._base._redaction import raises_without_frames
from boardclient.credentials._stores import AccountRecord, AccountStore, Change, Records, T, changed, takes_over, unchanged
from boardclient.errors import CredentialError

_OTHERWISE: Final = "choose a folder of your own, such as that of FileTokenStore.for_app(name)"
_APPLICATION: Final = 0x62644B74  # PRAGMA application_id: what makes a SQLite file one of ours
_VERSION: Final = 2
_BUSY_SECONDS: Final = 5.0

_SCHEMA: Final = (
    """CREATE TABLE tokens (
        account TEXT NOT NULL, service TEXT NOT NULL, generation INTEGER NOT NULL, deletion INTEGER NOT NULL, token TEXT,
        expires_at TEXT, holder TEXT, since REAL NOT NULL, until REAL NOT NULL, PRIMARY KEY (account, service)
    )""",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_TO_VERSION_2: Final = (
    *_SCHEMA,
    "INSERT INTO tokens SELECT account, '', generation, deletion, token, expires_at, holder, since, until FROM accounts",
    "DROP TABLE accounts",
)
"""Rows of version 1 name no service: the first one that looks takes them over."""
_LOAD: Final = "SELECT service, generation, deletion, token, expires_at, holder, since, until FROM tokens WHERE account = ?"
_DROP: Final = "DELETE FROM tokens WHERE account = ? AND service = ?"
_SAVE: Final = "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"

_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: f"another process has kept it locked for {_BUSY_SECONDS:g} seconds; try again, or end that process",
    sqlite3.SQLITE_FULL: "the disk is full; make room on it",
    sqlite3.SQLITE_READONLY: "it can't be written; give it and its folder to the user of this process",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it away, and a new one is made",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite file; choose another path, or move it away",
}

_one_step: Final = threading.Lock()
"""Held during each step in this process, and during `fork()`.

A SQLite connection must not be open in the child of a fork:
https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_. And closing any descriptor of a
file drops all POSIX locks that the process holds on it, so no two threads may be in a step at the same time:
https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_.
"""
if hasattr(os, "register_at_fork"):  # pragma: no branch -- only Windows has no fork
    os.register_at_fork(before=_one_step.acquire, after_in_parent=_one_step.release, after_in_child=_one_step.release)


class FileTokenStore(AccountStore):
    """Keep tokens in a file, for all processes, threads and event loops of one user.

    The file and its folder are created if they are missing. No other user may read the file or change files in its folder: the
    folder is checked at once, and both in each step (not on Windows). The file must be on a local disk. It is opened for each
    step and closed after it, so there is nothing to close, and a process may fork at any time. A step that is cancelled may
    still be done. Tokens that are deleted or replaced are overwritten in the file.

    ```python
    store = FileTokenStore("tokens.db")  # for `store=` of `OAuthCredentials` or `SignIn`
    ```

    Args:
        path: The path of the file. `~` is the user's home folder.
        clock: A function that returns seconds since the epoch, the same in all processes. `time.time` by default.

    Raises:
        CredentialError: the file can't be used, or other users may read it. Each method may raise it. The message says what to
            do.
        ValueError: the home folder is not known.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self._path = absolute_path(path)
        self._clock = clock
        check_folder(self._path.parent)

    @classmethod
    def for_app(cls, name: str) -> FileTokenStore:
        """Return the store of an application, in the user's data folder.

        On Linux it is `~/.local/share/NAME/tokens.sqlite3`, on macOS in `~/Library/Application Support`, on Windows in
        `%LOCALAPPDATA%`.

        Raises:
            ValueError: the name can't be that of a folder.
            CredentialError: the folder can't be used.
        """
        if name in {"", ".", ".."} or any(character in '/\\:<>"|?*' or not character.isprintable() for character in name):
            raise ValueError("name must be the name of a folder: no separators, and not empty")
        return cls(absolute_path(base_folder("data")) / name / "tokens.sqlite3")

    @raises_without_frames
    async def _change(self, account: str, service: str | None, change: Change[T]) -> T:
        return await asyncio.to_thread(self._attempt, account, service, change)

    def _attempt(self, account: str, service: str | None, change: Change[T]) -> T:
        """Do a step, in a thread."""
        try:
            with _one_step:
                return self._step(account, service, change)
        except (sqlite3.Error, OSError, UnicodeError, OverflowError) as error:  # OverflowError: an integer beyond 64 bits
            cause = error
        why = _ADVICE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF) or why_no_file_opens() or str(cause)
        raise CredentialError(f"the token store {self._path} can't be used: {why}") from cause

    def _step(self, account: str, service: str | None, change: Change[T]) -> T:
        is_empty = self._make_file() == 0
        uri = f"{self._path.as_uri()}?mode=rw"  # SQLite would create a file that others may read
        with contextlib.closing(sqlite3.connect(uri, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)) as connection:
            connection.text_factory = _to_text
            is_read = change is unchanged and not is_empty
            # Readers wait for no writer, and for no other reader.
            connection.execute("BEGIN" if is_read else "BEGIN IMMEDIATE")
            # A replaced token must not stay in free pages: https://www.sqlite.org/pragma.html#pragma_secure_delete
            connection.execute("PRAGMA secure_delete = ON")
            if is_read and (self._missing(connection) or takes_over(self._load(connection, account), service)):
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
            for statement in self._missing(connection):
                connection.execute(statement)
            known = self._load(connection, account)
            # The time is taken under the lock: an earlier one may be before the start of a lease that another worker just took.
            result, after = changed(known, service, change, self._clock())
            for name in known.keys() - after.keys():
                connection.execute(_DROP, (account, name))
            for name, record in after.items():
                if record is not known.get(name):
                    connection.execute(_SAVE, (account, name, *record.to_row()))
            connection.execute("COMMIT")  # closing without it rolls back
        return result

    def _make_file(self) -> int:
        """Create the folder and the file if missing, check both, and return the file's size."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(folder)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
        # lstat() needs no descriptor: closing one drops the locks that SQLite holds on the file, see _one_step.
        found = self._path.lstat()
        check_file(self._path, found)
        return found.st_size

    def _missing(self, connection: sqlite3.Connection) -> tuple[str, ...]:
        """Return the statements that a new file, or one of an earlier version, needs first.

        Raises:
            CredentialError: another program, or a later version, wrote it.
        """
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if application == _APPLICATION and version == 1:
            return _TO_VERSION_2
        if (application, version) == (_APPLICATION, _VERSION) or (application, version, tables) == (0, 0, 0):
            return () if tables else _SCHEMA
        whose = (
            "of another version of boardclient" if application == _APPLICATION else "not a token store but another SQLite file"
        )
        raise CredentialError(f"{self._path} is {whose}: choose another path")

    def _load(self, connection: sqlite3.Connection, account: str) -> Records:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return {service: AccountRecord.from_row(*row) for service, *row in connection.execute(_LOAD, (account,))}
        raise CredentialError(f"the token store {self._path} is damaged: move it away, and a new one is made")

    def __repr__(self) -> str:
        return f"FileTokenStore({str(self._path)!r})"


def _to_text(raw: bytes) -> str:
    # Damaged text is found when the Token is built. SQLite's own error would show the text.
    return raw.decode("utf-8", "surrogateescape")


# --- where the file may be: no other user may read or replace it


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path, with `~` expanded.

    Raises:
        ValueError: the home folder of `~` or `~user` is not known.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        pass
    raise ValueError(f"the home folder in {os.fspath(path)!r} is not known: give the whole path")


def check_folder(folder: Path) -> None:
    """Check that no other user can change files in the folder, if it exists.

    Raises:
        CredentialError: others can. The message says what to do.
    """
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    found = existing.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise CredentialError(f"{existing} is not a folder: choose another path for the token store")
    if existing != folder or not _has_owners():
        return
    if found.st_mode & stat.S_ISVTX and found.st_mode & 0o022:
        raise CredentialError(f"the folder {folder} is shared with other users, who could tamper with tokens in it: {_OTHERWISE}")
    _check_owner(folder, found)
    if found.st_mode & 0o022:
        raise CredentialError(
            f"others may change files in {folder}, where tokens are stored: "
            f"chmod go-w {shlex.quote(str(folder))}, or {_OTHERWISE}"
        )


def check_file(path: Path, found: os.stat_result) -> None:
    """Check that it is a regular file that only this process's user may read.

    Raises:
        CredentialError: it is not. The message says what to do.
    """
    if stat.S_ISLNK(found.st_mode):
        raise CredentialError(f"the token store {path} is a symbolic link: give the path of the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise CredentialError(f"the token store {path} is not a file: choose another path")
    if not _has_owners():
        return
    _check_owner(path, found)
    if found.st_mode & 0o077:
        raise CredentialError(
            f"others may use {path}, where tokens are stored: chmod 600 {shlex.quote(str(path))}, or choose another path"
        )


def _has_owners() -> bool:
    return hasattr(os, "geteuid")  # which Windows has not


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise CredentialError(f"{path}, where tokens are stored, belongs to another user: {_OTHERWISE}, or run as that user")
