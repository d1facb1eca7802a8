"""Where a journal may lie: its folder and its file system. Nothing here knows what is in it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from boardclient.errors import JournalError

_REMOTE: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "coda", "davfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "prl_fs"}
    | {"smb2", "smb3", "smbfs", "vboxsf", "virtiofs"}
)
_LOCAL_FUSE: Final = frozenset(
    {"fuse.ntfs-3g", "fuse.ntfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.bindfs", "fuse.gocryptfs"}
)


def find_location(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a journal that may be opened or created there.

    Raises:
        JournalError: its folder does not exist or lies on a network file system, or what lies there is no plain file.
    """
    given = Path(path)
    try:
        found = given.parent.resolve(strict=True) / given.name
    except OSError as error:
        raise JournalError(f"the folder of the journal {given} can't be used ({error.strerror}): create it first") from error
    kind = file_system_of(found.parent, _mounts())
    if is_remote(kind):
        raise JournalError(
            f"{found} lies on a network file system ({kind}), where locks can't be relied on: put the journal on a local disk"
        )
    return found


def exists(path: Path) -> bool:
    """Return True if a plain file is there.

    It is not opened: closing a file takes away every lock that SQLite holds on it in this process
    (https://www.sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        JournalError: it is a link or not a plain file.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalError(f"{path} can't be looked at ({error.strerror}): see to the permissions of its folder") from error
    if stat.S_ISLNK(found.st_mode):
        raise JournalError(f"{path} is a symbolic link: give the path of the journal itself")
    if not stat.S_ISREG(found.st_mode):
        raise JournalError(f"{path} is not a plain file: choose another path")
    if found.st_nlink > 1:
        raise JournalError(f"{path} has a second name (a hard link), under which its lock would not hold: copy it instead")
    return True


def create(path: Path) -> None:
    """Create an empty file that only its owner can read, at no moment anyone else.

    Raises:
        JournalError: it can't be created.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
    except OSError as error:
        raise JournalError(f"{path} can't be created ({error.strerror}): choose a folder that is writable") from error


def clear(unfinished: Path) -> None:
    """Take away what a creation that was cut off has left.

    Raises:
        JournalError: it can't be taken away.
    """
    try:
        unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(f"{unfinished} is in the way ({error.strerror}): move it away") from error


def move(unfinished: Path, path: Path) -> None:
    """Move a finished file to its path.

    Raises:
        JournalError: something lies there, or it can't be moved.
    """
    if os.path.lexists(path):
        raise JournalError(f"{path} can't be created (a file has appeared there): choose another path")
    try:
        unfinished.replace(path)
    except OSError as error:
        raise JournalError(f"{path} can't be created ({error.strerror}): choose a folder that is writable") from error


def file_system_of(folder: Path, mounts: str) -> str | None:
    """Return the type of a folder's file system, by a table like Linux' mountinfo."""
    found, depth = None, -1
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), fields[4]))
        # What is mounted later over the same folder hides what was there.
        if folder.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = tail.split(" ")[0], len(point.parts)
    return found


def is_remote(kind: str | None) -> bool:
    """Return True if a file system is shared with other machines. Unknown ones are not."""
    return kind is not None and (kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE))


def _mounts() -> str:
    """Return the table of mounts, nothing where the system has none."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
