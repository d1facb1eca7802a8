"""Checks that the files of a journal belong together.

A commit first copies each page that it changes to `NAME-journal`, SQLite's rollback journal. If a process dies during a commit,
that file remains, and the next process that opens the journal plays it back. SQLite does not know which file its pages belong to,
and if it is missing takes the commit for complete (https://www.sqlite.org/howtocorrupt.html, sections 1.3 and 1.4). So every
commit renews two random tokens on the page of `meta`, which it changes first. The rollback journal of a commit therefore holds a
token that the journal has too.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from pathlib import Path
from typing import Final

from boardclient.bulk.journal import _format as form
from boardclient.errors import JournalError

_TAG: Final = b"\xbcjournal"
_TOKEN: Final = 8
_TOKENS: Final = re.compile(re.escape(_TAG) + b"(.{8})(.{8})", re.DOTALL)
_FIRST_RECORD: Final = 512 + 4 + form.PAGE_BYTES + 4
"""The smallest size of a rollback journal that holds a page (https://www.sqlite.org/fileformat.html, section 3)."""
_SEARCHED: Final = 1 << 16
"""How many bytes are searched for tokens. `meta` is the second page of a journal, and the first that a commit changes."""


def next_tokens(tokens: bytes = b"") -> bytes:
    """Return the tokens for the next commit: that of the last one, and a new one."""
    before = tokens[-_TOKEN:] or bytes(_TOKEN)
    return _TAG + before + secrets.token_bytes(_TOKEN)


def rollback_of(path: Path) -> Path:
    """Return the path of a file's rollback journal."""
    return path.with_name(f"{path.name}-journal")


def has_rollback(path: Path) -> bool:
    """Return True if there is a rollback journal, even an empty one."""
    return _length(rollback_of(path)) >= 0


def is_cut_off(path: Path) -> bool:
    """Return True if a commit is in progress or was interrupted."""
    return _length(rollback_of(path)) > 0


def recover(connection: sqlite3.Connection, path: Path) -> form.Meta:
    """Roll back an interrupted commit, and return the metadata of the journal.

    The rollback journal is kept, empty. If it were missing, the journal would count as moved without it.

    Raises:
        JournalError: the file is not a journal, or has another version.
        sqlite3.Error: it can't be read.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # keeps the rollback journal after it was played back
    meta = form.read_meta(connection, path)
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    return meta


def check_companions(path: Path, *, exists: bool) -> None:
    """Check that the files beside a journal, or its future path, belong to it.

    The caller holds the lock.

    Raises:
        JournalError: one does not, or can't be read. Nothing was changed.
    """
    wal, rollback = path.with_name(f"{path.name}-wal"), rollback_of(path)
    if _length(wal) > 0:
        raise JournalError(_FOREIGN.format(left=wal, path=path))
    if _length(rollback) < _FIRST_RECORD:
        if _length(rollback) > 0:
            _empty(rollback)  # it holds no page: the commit had not changed anything
        return
    head = _read(rollback)
    if not head.startswith(bytes(8)) and not (exists and _tokens(head) & _tokens(_read(path))):
        raise JournalError(_FOREIGN.format(left=rollback, path=path))


def check_whole(path: Path, meta: form.Meta, *, had_rollback: bool) -> None:
    """Check that a journal which its last run did not close is complete.

    Raises:
        JournalError: its rollback journal is missing, or it is a copy of another file.
    """
    if not meta.used_inode:
        return
    if not had_rollback:
        raise JournalError(
            f"{path} is incomplete: its last run was killed, and {rollback_of(path).name} is missing, which belongs beside it."
            " Put both into one folder again, or begin a new journal elsewhere"
        )
    original = Path(meta.used_path)
    if original != path and _inode(original) == meta.used_inode != _inode(path):
        raise JournalError(f"{path} is a copy that was made before the last run of {original} had closed it: use the original")


_FOREIGN: Final = (
    "{left} does not belong to {path}, or only to an older version of it: put back the journal that it belongs to,"
    " or move it away to begin anew"
)


def _tokens(raw: bytes) -> set[bytes]:
    return {token for pair in _TOKENS.findall(raw) for token in pair} - {bytes(_TOKEN)}


def _length(path: Path) -> int:
    """Return the length of a file, or -1 if there is none."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise JournalError(f"{path} can't be accessed ({error.strerror}): check the permissions of its folder") from error


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_SEARCHED)
    except OSError as error:
        raise JournalError(f"{path} can't be read ({error.strerror}): check its permissions") from error


def _empty(path: Path) -> None:
    try:
        os.truncate(path, 0)
    except OSError as error:
        raise JournalError(f"{path} can't be written ({error.strerror}): check its permissions") from error
