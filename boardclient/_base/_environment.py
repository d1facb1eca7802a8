"""What a program finds around it: variables, proxies, what the extras of this package install, files and their disks."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from boardclient.errors import JournalError

_REMOTE: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3"}
    | {"vboxsf", "virtiofs"}
)
_REMEDIES: Final = {
    errno.EMFILE: "allow more with: ulimit -n 1024",
    errno.ENFILE: "end other programs on this machine",
    errno.ENOSPC: "make room on the disk",
    errno.EFBIG: "allow larger files with: ulimit -f unlimited",
}
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_MOUNTS: Path = Path("/proc/self/mountinfo")
_FOLDERS: Final = {"config": ("APPDATA", "~", "~/.config"), "data": ("LOCALAPPDATA", "~/AppData/Local", "~/.local/share")}
"""Where the user's files of a kind are: the variable of Windows, the folder without it, and that of other systems."""


def optional(name: str) -> str | None:
    """Return the stripped value of an environment variable, or None if it is not set or empty."""
    return os.environ.get(name, "").strip() or None


def required(*names: str) -> list[str]:
    """Return the stripped values of environment variables, or raise a ValueError that names all that are not set or empty."""
    values = [optional(name) for name in names]
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    if missing:
        are = "variables {} are" if len(missing) > 1 else "variable {} is"
        raise ValueError(f"the environment {are} not set".format(", ".join(missing)))
    return [value for value in values if value is not None]


@contextmanager
def requires_extra(extra: str, name: str) -> Iterator[None]:
    """Have a failing import in the block name the extra that `name` needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(
            f"{name} needs {package}: pip install '.[{extra}]' in a clone, or pip install 'boardclient[{extra}]'", name=error.name
        ) from None


def reason_of(error: OSError) -> str:
    why, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0)
    return why if remedy is None else f"{why}: {remedy}"


def why_no_file_opens() -> str | None:
    """Return why this process can open no file at all, None if it can. SQLite says the same of any file that it can't open."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return reason_of(error)
    return None


def find_location(path: str | os.PathLike[str]) -> Path:
    """Return the path of a database file without links.

    Raises:
        JournalError: its folder does not exist or is on a network file system.
    """
    given = Path(path)
    try:
        found = given.resolve()
        found.parent.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"can't be used ({error})"
        raise JournalError(f"{given}: its folder {why}: create it, or check the path") from error
    if is_changed_by_others(found):
        from shlex import quote  # few programs ask for a command: importing it takes a millisecond

        raise JournalError(f"others may change {found}, and with it what is created: chmod go-w {quote(str(found))}")
    kind = _file_system(found.parent)
    if kind in _REMOTE:
        raise JournalError(
            f"{found} is on a network file system ({kind}), where locks are not reliable: put the journal on a local disk"
        )
    return found


def is_changed_by_others(path: Path) -> bool:
    """Return True if other users of this machine may write to a file. False if there is none, and on Windows."""
    try:
        found = path.stat()
    except OSError:
        return False
    return hasattr(os, "geteuid") and bool(found.st_mode & 0o022 or found.st_uid not in {0, os.geteuid()})


def base_folder(kind: Literal["config", "data"]) -> str:
    """Return the folder in which programs keep the user's files of a kind. It may begin with `~`."""
    variable, of_windows, of_others = _FOLDERS[kind]
    platform: str = sys.platform  # type checkers take sys.platform itself for that of their own run
    if platform == "win32":
        return os.environ.get(variable) or of_windows
    if platform == "darwin":
        return "~/Library/Application Support"
    # An empty or relative variable is ignored: https://specifications.freedesktop.org/basedir-spec/latest/.
    given = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    return given if os.path.isabs(given) else of_others


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


def proxy_of_environment(url: str, *, allow_insecure: bool) -> str | None:
    """Return the proxy that the environment names for an address, as for curl, or None.

    aiohttp's own search would send credentials of ~/.netrc as well. Plain http goes to this machine unless `allow_insecure` is
    set: only a proxy on this machine may see it.
    """
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]  # -- no stub has it

    proxies, parts = getproxies_environment(), urlsplit(url)
    host, address = parts.hostname or "", parts.netloc.rpartition("@")[2]
    found = proxies.get(parts.scheme, proxies.get("all"))
    if not found or proxy_bypass_environment(address, proxies) or _is_in_network(host, proxies.get("no", "")):
        return None
    proxy = found if "://" in found else f"http://{found}"
    is_safe = parts.scheme == "https" or allow_insecure or urlsplit(proxy).hostname in LOOPBACK
    return proxy if is_safe else None


def variable_of_proxy(url: str) -> str:
    """Return the name of the variable that names the proxy for an address, "" if there is none."""
    scheme = urlsplit(url).scheme
    names = [name for kind in (scheme, "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]
    return next((name for name in names if os.environ.get(name)), "")


def _is_in_network(host: str, networks: str) -> bool:
    """Return True if a host is an address of one of the networks, such as 10.0.0.0/8, among the entries of NO_PROXY."""
    for entry in networks.split(","):
        with suppress(ValueError):
            if ip_address(host) in ip_network(entry.strip(), strict=False):
                return True
    return False
