"""The lock of a journal, and the mark of how far its rows were released."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple, Self

from boardclient.errors import JournalError

_LAYOUT: Final = struct.Struct("<8s16s16sQQQ")
_MAGIC: Final = b"bcJLmrk1"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Mark(NamedTuple):
    """How far the rows of a journal's last run were released. None above the number `released` was sent.

    `is_sure` says whether that can be relied on. A write without a sync outlives its process, and not a power failure.
    """

    run: int
    released: int
    is_sure: bool


class RunLock:
    """The exclusive right to write a journal, at most until the process ends. Owned by an open journal, which closes it.

    The lock lies on a file beside the journal. On the journal itself it would meet SQLite's own locks on some systems, and
    closing the descriptor of a refused attempt would take away the locks of the connection that is at work
    (https://www.sqlite.org/howtocorrupt.html, 2.2). The file stays where it is: were it removed, one process could hold the lock
    of the removed file and another that of a new one.
    """

    def __init__(self, journal: Path, descriptor: int) -> None:
        self._journal = journal
        self._path = journal.with_name(f"{journal.name}-lock")
        self._descriptor = descriptor
        self._head = (b"", b"", 0)
        self._places: dict[Path, tuple[int, int]] = {}

    @classmethod
    def acquire(cls, journal: Path) -> Self:
        """Take the lock.

        Raises:
            JournalError: somebody else holds it, or it can't be opened.
        """
        path = journal.with_name(f"{journal.name}-lock")
        try:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise JournalError(f"the lock {path} can't be opened ({error.strerror}): see to what lies there") from error
        try:
            _lock(descriptor, journal)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(journal, descriptor)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def read(self, secret: bytes) -> Mark | None:
        """Return the mark of a journal, None where there is none."""
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            magic, name, boot, inode, run, released = _LAYOUT.unpack(os.read(self._descriptor, _LAYOUT.size))
        except (OSError, struct.error):
            return None
        if (magic, name) != (_MAGIC, _name(secret)):
            return None
        is_sure = boot == _boot() != bytes(16) and inode == os.fstat(self._descriptor).st_ino
        return Mark(run, released, is_sure)

    def begin(self, secret: bytes, run: int, released: int) -> None:
        """Begin the mark of a run, and remember where the journal and the lock lie.

        Raises:
            JournalError: it can't be written.
        """
        self._head = (_name(secret), _boot(), run)
        self._places = {path: _identity(path.lstat()) for path in (self._journal,)}
        self._places[self._path] = _identity(os.fstat(self._descriptor))
        self.release_to(released)

    def release_to(self, released: int) -> None:
        """Note that rows up to this number may be sent from now on.

        Raises:
            JournalError: that can't be written, or the journal lies no longer where it was.
        """
        self.check_places()
        name, boot, run = self._head
        values = _LAYOUT.pack(_MAGIC, name, boot, self._places[self._path][1], run, released)
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, values)
        except OSError as error:
            raise JournalError(f"{self._path} can't be written ({error.strerror}): make room and run again") from error

    def check_places(self) -> None:
        """Make sure that the journal and its lock are where they were.

        Raises:
            JournalError: one was moved, removed or replaced.
        """
        for path, identity in self._places.items():
            try:
                is_there = _identity(path.lstat()) == identity
            except OSError:
                is_there = False
            if not is_there:
                raise JournalError(
                    f"{path} was moved, removed or replaced while a run was using it: nothing more is sent."
                    " Put the file back before the next run; without it, rows would be sent again"
                )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _name(secret: bytes) -> bytes:
    """Return what a mark knows its journal by; it tells nothing of the secret."""
    return hashlib.blake2b(secret, digest_size=16).digest()


def _boot() -> bytes:
    """Return what identifies this boot of the machine. It is zeros where the system doesn't say."""
    try:
        return bytes.fromhex(_BOOT.read_text(encoding="ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


if sys.platform == "win32":  # pragma: no cover -- Windows
    import msvcrt

    def _lock(descriptor: int, journal: Path) -> None:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise JournalError(_IN_USE.format(journal=journal)) from error

else:
    import fcntl

    def _lock(descriptor: int, journal: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(_IN_USE.format(journal=journal)) from error
        except OSError as error:
            raise JournalError(f"{journal} can't be locked ({error.strerror}): put the journal on a local disk") from error


_IN_USE: Final = "{journal} is in use by another run: wait for its end, or give each run a journal of its own"
