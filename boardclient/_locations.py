"""Where database files may be: on local disks, since locks on network file systems are not reliable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from boardclient.errors import JournalError

_REMOTE: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3"}
    | {"vboxsf", "virtiofs"}
)
_MOUNTS: Path = Path("/proc/self/mountinfo")


def find_location(path: str | os.PathLike[str]) -> Path:
    """Return the path of a database file without links.

    Raises:
        JournalError: its folder does not exist or is on a network file system.
    """
    given = Path(path)
    try:
        given.parent.resolve(strict=True)
        found = given.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise JournalError(f"the folder of the journal {given} can't be used ({error}): create it first") from error
    kind = _file_system(found.parent)
    if kind in _REMOTE:
        raise JournalError(
            f"{found} is on a network file system ({kind}), where locks are not reliable: put the journal on a local disk"
        )
    return found


def _file_system(folder: Path) -> str | None:
    """Return the type of a folder's file system, None if it is not known.

    The format is described at https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html.
    """
    device = folder.stat().st_dev
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    of_device = (line.partition(" - ")[2] for line in lines if f" {os.major(device)}:{os.minor(device)} " in line)
    return next((kind.split(" ")[0] for kind in of_device), None)
