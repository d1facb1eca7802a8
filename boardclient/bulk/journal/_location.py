"""Where a journal may be: its folder, its file system and its path. The content is not read here."""

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
    """Return the absolute path of a journal, if it may be opened or created there.

    Raises:
        JournalError: its folder does not exist or is on a network file system.
    """
    given = Path(path)
    try:
        found = given.parent.resolve(strict=True) / given.name
    except OSError as error:
        raise JournalError(f"the folder of the journal {given} can't be used ({error.strerror}): create it first") from error
    kind = file_system_of(found.parent, _mounts())
    if is_remote(kind):
        raise JournalError(
            f"{found} is on a network file system ({kind}), where locks are not reliable: put the journal on a local disk"
        )
    return found


def exists(path: Path) -> bool:
    """Return True if there is a regular file at the path.

    The file is not opened: closing it would release every lock that SQLite holds on it in this process
    (https://www.sqlite.org/howtocorrupt.html, section 2.2).

    Raises:
        JournalError: the path is a link or not a regular file, or can't be read.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalError(f"{path} can't be accessed ({error.strerror}): check the permissions of its folder") from error
    if stat.S_ISLNK(found.st_mode):
        raise JournalError(f"{path} is a symbolic link: give the path of the journal itself")
    if not stat.S_ISREG(found.st_mode):
        raise JournalError(f"{path} is not a plain file: choose another path")
    if found.st_nlink > 1:
        raise JournalError(f"{path} has a second name (a hard link), under which its lock would not hold: copy it instead")
    return True


def create(path: Path) -> None:
    """Create an empty file that only its owner can read, from the first moment on.

    Raises:
        JournalError: it can't be created.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
    except OSError as error:
        raise JournalError(f"{path} can't be created ({error.strerror}): choose a folder that is writable") from error


def clear(unfinished: Path) -> None:
    """Remove a file that an interrupted creation has left.

    Raises:
        JournalError: it can't be removed.
    """
    try:
        unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(f"{unfinished} is in the way ({error.strerror}): move it away") from error


def move(unfinished: Path, path: Path) -> None:
    """Move a finished file to its path.

    Raises:
        JournalError: there is a file already, or it can't be moved.
    """
    if os.path.lexists(path):
        raise JournalError(f"{path} can't be created (a file has appeared there): choose another path")
    try:
        unfinished.replace(path)
    except OSError as error:
        raise JournalError(f"{path} can't be created ({error.strerror}): choose a folder that is writable") from error


def file_system_of(folder: Path, mounts: str) -> str | None:
    """Return the type of a folder's file system, or None if it is not in the table.

    `mounts` has the format of /proc/self/mountinfo (https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html).
    """
    found, depth = None, -1
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), fields[4]))
        # A later mount on the same folder hides an earlier one.
        if folder.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = tail.split(" ")[0], len(point.parts)
    return found


def is_remote(kind: str | None) -> bool:
    """Return True if a file system is shared with other machines. An unknown one counts as local."""
    return kind is not None and (kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE))


def _mounts() -> str:
    """Return the table of mounts, or "" if the system has none."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
