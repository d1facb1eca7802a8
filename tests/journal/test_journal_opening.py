"""When a journal is opened: one run at a time, of one board, and in a place where its files are safe."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from journal_helpers import IDENTITY, entries, opened, states

from boardclient import JournalError
from boardclient.bulk.journal import _location, _opening
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._view import read_journal


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({**IDENTITY, "board": "b2"}, r"board 'b1' \(now 'b2'\)\. Give"),
        ({**IDENTITY, "board": "b2", "account": "m2"}, r"board 'b1' \(now 'b2'\), account 'm1' \(now 'm2'\)\."),
        ({"base_url": "https://boards.example", "board": "b1"}, r"account 'm1' \(now None\)\."),
        ({**IDENTITY, "list": "l"}, r"list None \(now 'l'\)\."),
    ],
)
def test_a_journal_of_another_board_or_account_is_refused(path: Path, identity: dict[str, str], message: str) -> None:
    """The message names the parts that differ, and the journal is as it was."""
    opened(path).__enter__().close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=f"belongs to another import: {message}"):
        JournalFile.open(path, identity)
    assert path.read_bytes() == before
    with opened(path, dict(reversed(IDENTITY.items()))) as journal:
        assert journal._run == 2


# One run at a time


def test_a_second_run_in_the_same_process_is_refused(path: Path) -> None:
    """The second one fails at once and changes nothing, and neither does another program that reads the file."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        with pytest.raises(JournalError, match="in use by another run"):
            JournalFile.open(path, IDENTITY)
        code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM rows').fetchall(); c.close()"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=300)
        journal.admit(entries("b"))
    assert set(states(path)) == {"a", "b"}
    opened(path).__enter__().close()


def test_closing_twice_is_closing_once(path: Path) -> None:
    """The second time nothing happens, and a closed journal says so."""
    journal = JournalFile.open(path, IDENTITY)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.admit(entries("a"))


def test_a_lock_that_the_system_refuses_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no lock can be had at all, the journal is not used."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(JournalError, match=r"can't be locked \(No locks available\): put the journal on a local disk"):
        JournalFile.open(path, IDENTITY)


# Where it lies


def test_only_the_owner_can_read_a_journal(path: Path) -> None:
    """The file, its log and its lock have mode 0600, whatever the umask."""
    before = os.umask(0)
    try:
        with opened(path) as journal:
            journal.admit(entries("a"))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"{path.name}{suffix}": 0o600 for suffix in ("", "-journal", "-lock")}


def make_link(path: Path) -> None:
    real = path.with_name("real")
    opened(real).__enter__().close()
    path.symlink_to(real)


def make_second_name(path: Path) -> None:
    opened(path).__enter__().close()
    os.link(path, path.with_name("second"))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (make_link, "is a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
        (make_second_name, "has a second name"),
        (Path.mkdir, "is not a plain file"),
        (lambda path: path.with_name(f"{path.name}-lock").symlink_to("elsewhere"), "the lock .* can't be opened"),
        (lambda path: path.write_bytes(b""), r"no journal of boardclient \(it may be empty"),
        (lambda path: path.write_bytes(b"name,desc\n" * 1000), "no journal of boardclient"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE mine (a)").connection.close(), "no journal of boardclient"),
    ],
)
def test_a_file_that_is_no_journal_is_left_alone(path: Path, prepare: Any, message: str) -> None:
    """Nothing at the path of a journal is followed, replaced or changed."""
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(JournalError, match=message):
        JournalFile.open(path, IDENTITY)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not path.with_name("elsewhere").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """Neither a folder that does not exist nor a file in its place is taken for one."""
    (tmp_path / "file").touch()
    for name in ("nowhere", "file"):
        with pytest.raises(JournalError, match=f"the folder of the journal .*{name}.* create it first|be accessed"):
            JournalFile.open(tmp_path / name / "cards.journal", IDENTITY)


def test_a_file_that_appears_meanwhile_is_not_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal is moved only where nothing lies at that moment, and nothing else is left."""
    path.write_bytes(b"mine")
    monkeypatch.setattr(_location, "exists", lambda place: False)
    with pytest.raises(JournalError, match=r"can't be created \(a file has appeared there\)"):
        JournalFile.open(path, IDENTITY)
    assert path.read_bytes() == b"mine"
    assert not path.with_name(f"{path.name}-new").exists()


def test_a_journal_that_could_not_be_begun_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file would be taken for a journal that was cut off."""

    def fail(path: Path, identity: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(_opening, "_initialise", fail)
    with pytest.raises(JournalError, match="disk I/O error"):
        JournalFile.open(path, IDENTITY)
    assert [file.name for file in path.parent.iterdir()] == [f"{path.name}-lock"]


@pytest.mark.parametrize("left", [b"", b"cut off", None])
def test_what_an_earlier_creation_left_does_not_matter(path: Path, left: bytes | None) -> None:
    """A journal that was never finished is begun anew, with a secret and a mode of its own."""
    unfinished = path.with_name(f"{path.name}-new")
    if left is None:
        with opened(unfinished) as journal:
            journal.admit(entries("not this import's"))
            secret = journal.secret
    else:
        unfinished.write_bytes(left)
        secret = left
    unfinished.chmod(0o666)
    with opened(path) as journal:
        assert (journal._run, journal.is_new) == (1, True)
        assert journal.secret != secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not unfinished.exists()


def test_what_an_earlier_creation_left_is_not_touched_where_there_is_a_journal(path: Path) -> None:
    """A file that happens to have that name is ignored then."""
    opened(path).__enter__().close()
    unfinished = path.with_name(f"{path.name}-new")
    unfinished.write_bytes(b"mine")
    with opened(path) as journal:
        assert journal._run == 2
    assert unfinished.read_bytes() == b"mine"


def test_creating_a_journal_follows_no_link(path: Path) -> None:
    """What a link beside the place leads to is left alone."""
    path.with_name("other").write_bytes(b"mine")
    path.with_name(f"{path.name}-new").symlink_to("other")
    opened(path).__enter__().close()
    assert path.with_name("other").read_bytes() == b"mine"
    assert not path.is_symlink()


def test_a_folder_beside_the_place_is_reported(path: Path) -> None:
    """Whatever keeps a journal from being created is a JournalError."""
    path.with_name(f"{path.name}-new").mkdir()
    with pytest.raises(JournalError, match="is in the way"):
        JournalFile.open(path, IDENTITY)


def test_a_journal_that_can_not_be_moved_to_its_place_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says of the move is a JournalError, and nothing is left behind."""

    def replace(self: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(JournalError, match=r"can't be created \(Permission denied\)"):
        JournalFile.open(path, IDENTITY)
    assert not path.with_name(f"{path.name}-new").exists()


CUT_OFF = """
import os, sys
from boardclient.bulk.journal import _location, _opening
from boardclient.bulk.journal._file import JournalFile

where = {"created": "_initialise", "initialised": "move"}[sys.argv[2]]
setattr(_location if where == "move" else _opening, where, lambda *arguments: os._exit(9))
JournalFile.open(sys.argv[1], {})
"""


@pytest.mark.parametrize("moment", ["created", "initialised"])
def test_a_creation_that_is_cut_off_leaves_no_journal(path: Path, moment: str) -> None:
    """A process that dies before the journal has its place leaves the place free: the next run begins, with nothing to mend."""
    done = subprocess.run([sys.executable, "-c", CUT_OFF, str(path), moment], timeout=300)
    assert done.returncode == 9
    assert path.with_name(f"{path.name}-new").exists()
    assert not path.exists()
    with pytest.raises(JournalError, match="there is no journal"):
        read_journal(path)
    with opened(path, {}) as journal:
        assert (journal._run, journal.is_new) == (1, True)
        assert not path.with_name(f"{path.name}-new").exists()


def test_a_file_is_created_only_where_nothing_is(path: Path) -> None:
    """Neither a file nor what a link leads to is opened in its place."""
    path.write_bytes(b"mine")
    link = path.with_name("link")
    link.symlink_to("nowhere")
    for place in (path, link):
        with pytest.raises(JournalError, match=r"can't be created \(File exists\): choose a folder that is writable"):
            _location.create(place)
    assert path.read_bytes() == b"mine"
    assert not path.with_name("nowhere").exists()


def test_a_path_that_the_system_refuses_is_reported(tmp_path: Path) -> None:
    """A name that is too long is no missing file."""
    with pytest.raises(JournalError, match=r"can't be accessed \(File name too long\)"):
        read_journal(tmp_path / ("a" * 300))


def test_names_that_mean_something_in_an_address_are_plain_names(tmp_path: Path) -> None:
    """A question mark, a percent sign or a space in the path is part of it."""
    path = tmp_path / "a?mode=ro&b#c %41 ü.journal"
    with opened(path) as journal:
        journal.admit(entries("a"))
    assert path.is_file()
    assert states(path) == {"a": ("logged", None)}


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /home rw - ext4 /dev/vdb rw
31 30 0:41 / /home/ann/team\040files rw,relatime shared:2 master:3 - nfs4 server:/export rw,vers=4.2
32 22 0:42 / /mnt/share rw - cifs //server/share rw
33 22 0:43 / /mnt/ssh rw - fuse.sshfs ann@server: rw
34 22 0:44 / /twice rw - nfs server:/a rw
35 22 0:45 / /twice rw - tmpfs tmpfs rw
a line that is cut off
36 22 - x
"""


@pytest.mark.parametrize(
    ("folder", "kind", "is_remote"),
    [
        ("/", "ext4", False),
        ("/home/ann", "ext4", False),
        ("/home/ann/team files", "nfs4", True),
        ("/home/ann/team files/deep/er", "nfs4", True),
        ("/home/ann/team files 2", "ext4", False),
        ("/mnt/share/x", "cifs", True),
        ("/mnt/ssh", "fuse.sshfs", True),
        ("/twice/x", "tmpfs", False),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(folder: str, kind: str, is_remote: bool) -> None:
    """The longest mount point counts, and of several over the same folder the last."""
    assert _location.file_system_of(Path(folder), MOUNTS) == kind
    assert _location.is_remote(kind) == is_remote


@pytest.mark.parametrize(
    ("kind", "is_remote"), [("fuse.ntfs-3g", False), ("fuseblk", False), ("fuse.rclone", True), ("9p", True), (None, False)]
)
def test_only_a_shared_file_system_is_remote(kind: str | None, is_remote: bool) -> None:
    """An unknown file system counts as local, unless it is a FUSE file system."""
    assert _location.is_remote(kind) == is_remote


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is created on one."""
    monkeypatch.setattr(_location, "_mounts", lambda: f"9 1 0:9 / {path.parent} rw - nfs4 server:/ rw\n")
    with pytest.raises(JournalError, match=r"network file system \(nfs4\).* put the journal on a local disk"):
        JournalFile.open(path, IDENTITY)
    assert list(path.parent.iterdir()) == []


def test_a_system_without_a_table_of_mounts_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table can't be read, no file system is known."""

    def refuse(*arguments: object, **options: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert _location._mounts() == ""
    assert _location.file_system_of(Path("/"), "") is None


def test_a_file_system_without_rollback_journals_is_refused(path: Path) -> None:
    """Where SQLite can't undo what was cut off, the journal is not used."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(JournalError, match="can't hold a rollback"):
        _opening.make_durable(connection, path)
