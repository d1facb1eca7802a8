"""Whether the files that make up a journal belong together.

A commit first copies each page that it changes to `NAME-journal`, SQLite's rollback journal. A process that dies amid a commit
leaves that file, and the next one that opens the journal plays it back. SQLite can't tell whose pages it holds, and where it is
missing takes the commit for complete (https://www.sqlite.org/howtocorrupt.html, 1.3 and 1.4). So every commit renews two random
tokens on the page of `meta`, which it changes first: the rollback journal of a commit holds one that the journal has as well.
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
"""The least length of a rollback journal that holds a page (https://www.sqlite.org/fileformat.html, section 3)."""
_SEARCHED: Final = 1 << 16
"""How far tokens are looked for: `meta` is the second page of a journal, and the first that a commit changes."""


def next_tokens(tokens: bytes = b"") -> bytes:
    """Return what the next commit writes: the token of the one before, and a new one."""
    before = tokens[-_TOKEN:] or bytes(_TOKEN)
    return _TAG + before + secrets.token_bytes(_TOKEN)


def rollback_of(path: Path) -> Path:
    """Return where SQLite keeps the rollback journal of a file."""
    return path.with_name(f"{path.name}-journal")


def has_rollback(path: Path) -> bool:
    """Return True if there is a rollback journal, be it empty."""
    return _length(rollback_of(path)) >= 0


def is_cut_off(path: Path) -> bool:
    """Return True if a commit is under way or was cut off."""
    return _length(rollback_of(path)) > 0


def recover(connection: sqlite3.Connection, path: Path) -> form.Meta:
    """Undo a commit that was cut off, and return what the journal says of itself.

    The rollback journal stays beside it, empty: its absence would mean that the journal lies elsewhere than its run left it.

    Raises:
        JournalError: the file is no journal, or of another version.
        sqlite3.Error: it can't be read.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # a rollback journal that was played back is kept then
    meta = form.read_meta(connection, path)
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    return meta


def check_companions(path: Path, *, exists: bool) -> None:
    """Check that the files beside a journal, or where it will be, are its own.

    Only for the holder of the lock.

    Raises:
        JournalError: it is not, or can't be looked at; nothing was changed.
    """
    wal, rollback = path.with_name(f"{path.name}-wal"), rollback_of(path)
    if _length(wal) > 0:
        raise JournalError(_FOREIGN.format(left=wal, path=path))
    if _length(rollback) < _FIRST_RECORD:
        if _length(rollback) > 0:
            _empty(rollback)  # no page is in it: the commit had changed nothing yet
        return
    head = _read(rollback)
    if not head.startswith(bytes(8)) and not (exists and _tokens(head) & _tokens(_read(path))):
        raise JournalError(_FOREIGN.format(left=rollback, path=path))


def check_whole(path: Path, meta: form.Meta, *, had_rollback: bool) -> None:
    """Make sure that a journal whose last run did not close it is all that there was.

    Raises:
        JournalError: a part of it is missing, or it is a copy.
    """
    if not meta.used_inode:
        return
    if not had_rollback:
        raise JournalError(
            f"{path} is incomplete: its last run was killed, and {rollback_of(path).name} is missing, which belongs beside it."
            " Bring both together again, or begin a new journal elsewhere"
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
    """Return the length of a file, -1 where there is none."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise JournalError(f"{path} can't be looked at ({error.strerror}): see to the permissions of its folder") from error


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
        raise JournalError(f"{path} can't be read ({error.strerror}): see to its permissions") from error


def _empty(path: Path) -> None:
    try:
        os.truncate(path, 0)
    except OSError as error:
        raise JournalError(f"{path} can't be written ({error.strerror}): see to its permissions") from error
