"""Where a file of tokens may be: no other user may read or replace it."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from boardclient.errors import CredentialError

_IS_POSIX: Final = os.name == "posix"
_OTHERWISE: Final = "choose a folder of your own, such as that of FileTokenStore.for_app(name)"


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


def app_path(name: str, platform: str = sys.platform, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of an application's token file in the user's data folder.

    That is `$XDG_DATA_HOME` (https://specifications.freedesktop.org/basedir-spec/latest/), by default `~/.local/share`;
    `~/Library/Application Support` on macOS and `%LOCALAPPDATA%` on Windows.

    Raises:
        ValueError: the name is empty, or can't be that of a folder.
    """
    if name in {"", ".", ".."} or any(character in '/\\:<>"|?*' or not character.isprintable() for character in name):
        raise ValueError("name must be the name of a folder: no separators, and not empty")
    if platform == "win32":
        base = environment.get("LOCALAPPDATA") or "~/AppData/Local"
    elif platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = environment.get("XDG_DATA_HOME") or ""
        if not os.path.isabs(base):  # "All paths set in these environment variables must be absolute", the specification says
            base = "~/.local/share"
    return absolute_path(base) / name / "tokens.sqlite3"


def check_folder(folder: Path) -> None:
    """Check that no other user can change files in the folder, if it exists.

    Raises:
        CredentialError: others can. The message says what to do.
    """
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    found = existing.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise CredentialError(f"{existing} is not a folder: choose another path for the token store")
    if existing != folder or not _IS_POSIX:
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
    if not _IS_POSIX:
        return
    _check_owner(path, found)
    if found.st_mode & 0o077:
        raise CredentialError(
            f"others may use {path}, where tokens are stored: chmod 600 {shlex.quote(str(path))}, or choose another path"
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise CredentialError(f"{path}, where tokens are stored, belongs to another user: {_OTHERWISE}, or run as that user")
