"""FileTokenStore: where its file is, how it is made, and who may read it."""

from __future__ import annotations

import os
import pickle
import sqlite3
import stat
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from token_store_helpers import POSIX, SECRET, refusal, token_in

from boardclient import CredentialError, FileTokenStore, Token


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_making_a_file_store_does_no_io(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made, opened or asked before the first step; its place is settled even so."""
    monkeypatch.chdir(path.parent.parent)
    relative = FileTokenStore("private/tokens.db")
    assert not path.parent.exists()
    monkeypatch.chdir("/")
    assert repr(relative) == repr(FileTokenStore(path)) == f"FileTokenStore({str(path)!r})"


@POSIX
async def test_file_and_folder_are_made_private(tmp_path: Path) -> None:
    """Whatever the umask, only the owner may read the file and enter its folder; missing folders above are made too."""
    path = tmp_path / "above" / "private" / "tokens.db"
    before = os.umask(0)
    try:
        assert await FileTokenStore(path).read("a") is None
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o777)


@POSIX
async def test_file_is_private_before_anything_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When SQLite opens the file it is there already, private and empty; nothing of its own making is ever open to others."""
    seen: list[tuple[int, int]] = []
    connect = sqlite3.connect

    def spy(*arguments: Any, **options: Any) -> sqlite3.Connection:
        seen.append((mode(path), path.stat().st_size))
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", spy)
    before = os.umask(0)
    try:
        await FileTokenStore(path).publish("a", Token(SECRET), 0)
    finally:
        os.umask(before)
    assert seen == [(0o600, 0)]


async def test_file_that_vanishes_is_not_made_by_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone when SQLite opens it is an error: SQLite would make one that others may read."""
    connect = sqlite3.connect

    def late(*arguments: Any, **options: Any) -> sqlite3.Connection:
        path.unlink()
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", late)
    await refusal(FileTokenStore(path), "unable to open database file")
    assert not path.exists()


async def test_tokens_outlive_the_store(path: Path) -> None:
    """Another store of the same path, here after pickling, reads what one has published, and knows its leases."""
    token = Token(SECRET, datetime(2031, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    one = FileTokenStore(str(path))
    assert await one.publish("a", token, 0)
    assert (await one.lease("a", "x", 60.0)).state == "granted"
    other = pickle.loads(pickle.dumps(one))
    stored = await other.read("a")
    assert stored.token == token
    assert stored.token.expires_at.isoformat() == "2031-01-02T00:00:00+02:00"
    assert (await other.lease("a", "y", 60.0)).state == "held"


async def test_odd_path(tmp_path: Path) -> None:
    """A path may hold what has a meaning in a URI."""
    path = tmp_path / "to ken?mode=ro&x#y%41ö" / "a?b#c%2F.db"
    assert await FileTokenStore(path).publish("a", Token("token"), 0)
    assert path.stat().st_size > 0
    assert await token_in(FileTokenStore(path), "a") == Token("token")


@POSIX
@pytest.mark.parametrize("bits", [0o040, 0o004, 0o020, 0o002, 0o010, 0o001, 0o077])
async def test_file_that_others_may_use_is_refused(path: Path, file_store: FileTokenStore, bits: int) -> None:
    """A file with a bit for group or others is refused, and what the message says mends it."""
    await file_store.publish("a", Token(SECRET), 0)
    path.chmod(0o600 | bits)
    await refusal(file_store, f"others may use {path}, where tokens are stored: chmod 600 {path}, or choose another path")
    path.chmod(0o600)
    assert await token_in(file_store, "a") == Token(SECRET)


@POSIX
@pytest.mark.parametrize("bits", [0o020, 0o002, 0o072, 0o077])
async def test_folder_that_others_may_write_to_is_refused(path: Path, file_store: FileTokenStore, bits: int) -> None:
    """A folder in which others may replace the file is refused, already when the store is made, and the advice mends it."""
    path.parent.mkdir()
    path.parent.chmod(0o700 | bits)
    words = f"others may change files in {path.parent}, where tokens are stored: chmod go-w {path.parent}, or choose"
    await refusal(file_store, words)
    with pytest.raises(CredentialError, match="others may change files in"):
        FileTokenStore(path)
    assert not path.exists()
    path.parent.chmod((0o700 | bits) & ~0o022)
    assert await FileTokenStore(path).read("a") is None


@POSIX
@pytest.mark.parametrize("mode", [0o1777, 0o1770])
async def test_shared_folder_is_refused_and_never_to_be_closed(path: Path, mode: int) -> None:
    """A folder as the system's temporary one is refused, and no advice says to change its mode, whosever it is."""
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(CredentialError, match=r"is shared with other users.*FileTokenStore\.for_app") as caught:
        FileTokenStore(path)
    assert "chmod" not in str(caught.value)
    assert FileTokenStore(path.parent / "of-its-own" / "tokens").__class__ is FileTokenStore


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the user's home folder, and one that is not known is a clear error."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert repr(FileTokenStore("~/mine/tokens")) == f"FileTokenStore('{tmp_path}/mine/tokens')"
    with pytest.raises(ValueError, match="the home folder in '~nobody-of-this-name/x' is not known: give the whole path"):
        FileTokenStore("~nobody-of-this-name/x")


@POSIX
async def test_store_of_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of an application is a file in the user's data folder, which is made at first use."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, data in (("absolute", str(tmp_path / "absolute")), (".local/share", "relative"), (".local/share", "")):
        monkeypatch.setenv("XDG_DATA_HOME", data)
        store = FileTokenStore.for_app("board mirror")
        assert repr(store) == f"FileTokenStore('{tmp_path}/{folder}/board mirror/tokens.sqlite3')"
    assert await store.publish("a", Token(SECRET), 0)
    assert (tmp_path / ".local/share/board mirror/tokens.sqlite3").stat().st_mode & 0o777 == 0o600
    for name in ("", ".", "..", "a/b", "a\\b", "a:b", "a\n"):
        with pytest.raises(ValueError, match="name must be the name of a folder"):
            FileTokenStore.for_app(name)


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("darwin", {}, "Library/Application Support"),
        ("win32", {}, "AppData/Local"),
        ("win32", {"LOCALAPPDATA": "/elsewhere"}, "/elsewhere"),
        ("linux", {}, ".local/share"),
    ],
)
def test_data_folders(platform: str, environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each system has its own data folder."""
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("LOCALAPPDATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert repr(FileTokenStore.for_app("x")) == f"FileTokenStore('{Path.home() / folder / 'x' / 'tokens.sqlite3'}')"


@POSIX
async def test_deleted_and_replaced_tokens_leave_the_file(path: Path, file_store: FileTokenStore) -> None:
    """The bytes of a token that was deleted or replaced are overwritten."""
    await file_store.publish("a", Token("canary-first-7"), 0)
    await file_store.publish("a", Token("canary-second-7"), await file_store.generation("a"))
    assert b"canary-second-7" in path.read_bytes()
    await file_store.delete("a")
    assert b"canary" not in path.read_bytes()


@POSIX
@pytest.mark.parametrize("place", ["file", "folder"])
async def test_what_belongs_to_another_user_is_refused(
    path: Path, file_store: FileTokenStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither file nor folder may belong to another user, even if this user has access."""
    await file_store.publish("a", Token(SECRET), 0)
    if place == "folder":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        await refusal(file_store, f"{path.parent}, where tokens are stored, belongs to another user")
        return
    owners = iter([path.stat().st_uid, path.stat().st_uid + 1] * 4)
    monkeypatch.setattr(os, "geteuid", lambda: next(owners))
    await refusal(file_store, f"{path}, where tokens are stored, belongs to another user: choose a folder of your own")


@POSIX
async def test_symbolic_link_is_refused(path: Path, file_store: FileTokenStore, tmp_path: Path) -> None:
    """Neither a link to a store nor a dangling one is followed; a linked folder is as good as its target."""
    path.parent.mkdir(mode=0o700)
    target = path.parent / "target.db"
    path.symlink_to(target)
    await refusal(file_store, "is a symbolic link: give the path of the file itself")
    assert not target.exists()
    await FileTokenStore(target).publish("a", Token(SECRET), 0)
    await refusal(file_store, "is a symbolic link")
    (tmp_path / "linked").symlink_to(path.parent, target_is_directory=True)
    assert await token_in(FileTokenStore(tmp_path / "linked" / "target.db"), "a") == Token(SECRET)


@POSIX
async def test_a_pipe_or_folder_in_place_of_the_file_is_refused(path: Path, file_store: FileTokenStore) -> None:
    """A pipe, which would hang who opens it, and a folder are refused."""
    path.parent.mkdir(mode=0o700)
    os.mkfifo(path, 0o600)
    await refusal(file_store, "is not a file: choose another path")
    path.unlink()
    path.mkdir(mode=0o700)
    await refusal(file_store, "is not a file: choose another path")


async def test_folder_that_is_a_file_is_refused(path: Path, file_store: FileTokenStore) -> None:
    """An error of the system is the cause, and its words are in the message."""
    path.parent.write_text("a file")
    assert isinstance((await refusal(file_store, "File exists")).__cause__, FileExistsError)
    with pytest.raises(CredentialError, match="is not a folder: choose another path"):
        FileTokenStore(path)


async def test_modes_are_not_checked_on_windows(path: Path, file_store: FileTokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows neither modes nor owners are checked."""
    path.parent.mkdir()
    path.parent.chmod(0o777)
    monkeypatch.delattr(os, "geteuid", raising=False)
    assert await file_store.read("a") is None
