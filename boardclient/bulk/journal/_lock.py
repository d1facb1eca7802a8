"""The lock file of a journal, which also holds the mark of released rows."""

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
_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class RunMark(NamedTuple):
    """How far the last run released rows.

    No row above the number `released` was sent. `is_sure` says whether this is reliable: the mark is written without a sync, so
    it survives its process but not a power failure.
    """

    run: int
    released: int
    is_sure: bool


class RunLock:
    """The exclusive right to write a journal. Owned by an open journal, which closes it.

    It ends with the process at the latest. The lock is on a file beside the journal. On the journal itself it would conflict with
    SQLite's own locks on some systems, and closing the descriptor of a refused attempt would release the locks of the connection
    in use (https://www.sqlite.org/howtocorrupt.html, section 2.2). The file is never removed: otherwise one process could lock
    the removed file and another a new one.
    """

    def __init__(self, journal: Path, descriptor: int) -> None:
        self._journal = journal
        self._path = journal.with_name(f"{journal.name}-lock")
        self._descriptor = descriptor
        self._head = (b"", b"", 0)
        self._files: dict[str, tuple[int, int]] = {}

    @classmethod
    def acquire(cls, journal: Path) -> Self:
        """Acquire the lock.

        Raises:
            JournalError: another run holds it, or the file can't be opened.
        """
        path = journal.with_name(f"{journal.name}-lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        except OSError as error:
            raise JournalError(
                f"the lock {path} can't be opened ({error.strerror}): check the path and its permissions"
            ) from error
        try:
            _lock(descriptor, journal)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(journal, descriptor)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def read(self, secret: bytes) -> RunMark | None:
        """Return the mark of the journal with this secret, or None if there is none."""
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            magic, name, boot, inode, run, released = _LAYOUT.unpack(os.read(self._descriptor, _LAYOUT.size))
        except (OSError, struct.error):
            return None
        if (magic, name) != (_MAGIC, _name(secret)):
            return None
        is_sure = boot == _boot() != bytes(16) and inode == os.fstat(self._descriptor).st_ino
        return RunMark(run, released, is_sure)

    def begin(self, secret: bytes, run: int, released: int) -> None:
        """Write the first mark of a run, and remember the files of journal and lock.

        Raises:
            JournalError: it can't be written.
        """
        self._head = (_name(secret), _boot(), run)
        self._files = {
            str(self._journal): _identity(self._journal.lstat()),
            str(self._path): _identity(os.fstat(self._descriptor)),
        }
        self.release_to(released)

    def release_to(self, released: int) -> None:
        """Note that rows up to this number may be sent from now on.

        Raises:
            JournalError: this can't be written, or the journal was moved or removed.
        """
        self.check_files()
        name, boot, run = self._head
        values = _LAYOUT.pack(_MAGIC, name, boot, self._files[str(self._path)][1], run, released)
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, values)
        except OSError as error:
            raise JournalError(f"{self._path} can't be written ({error.strerror}): free some disk space and run again") from error

    def check_files(self) -> None:
        """Check that the paths of the journal and the lock still name the same files.

        Raises:
            JournalError: one was moved, removed or replaced.
        """
        for path, identity in self._files.items():
            try:
                is_there = _identity(os.lstat(path)) == identity
            except OSError:
                is_there = False
            if not is_there:
                raise JournalError(
                    f"{path} was moved, removed or replaced while a run was using it: nothing more is sent."
                    " Put the file back before the next run; without it, rows would be sent again"
                )


def was_used(journal: Path) -> bool:
    """Return True if a run has released rows here, even if the journal is gone."""
    try:
        descriptor = os.open(journal.with_name(f"{journal.name}-lock"), os.O_RDONLY | _FLAGS)
    except OSError:
        return False
    try:
        magic, *_, released = _LAYOUT.unpack(os.read(descriptor, _LAYOUT.size))
    except (OSError, struct.error):
        return False
    finally:
        os.close(descriptor)
    return bool(magic == _MAGIC and released > 0)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _name(secret: bytes) -> bytes:
    """Return the identifier of a journal in a mark. The secret can't be derived from it."""
    return hashlib.blake2b(secret, digest_size=16).digest()


def _boot() -> bytes:
    """Return the identifier of this boot of the machine, or zeros without one.

    See https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html.
    """
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
