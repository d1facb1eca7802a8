"""The journal as a file: what it remembers of each row, through crashes, and every reason for which it refuses to be used."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from boardclient import JournalError
from boardclient.bulk.journal import _file, _format, _location, _opening, _view
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._format import Entry, RowDecision, RowKey, RowOutcome, RowState
from boardclient.bulk.journal._view import read_journal, read_rows

IDENTITY = {"base_url": "https://boards.example", "board": "b1", "account": "m1"}
ALL: tuple[RowState, ...] = ("logged", "done", "failed", "waiting", "unknown")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cards.journal"


class Sending(JournalFile):
    """A journal whose rows are all sent as soon as they may be."""

    def admit(self, *arguments: Any) -> list[RowDecision]:
        decisions = super().admit(*arguments)
        self.release_to(self.last)
        return decisions


@contextmanager
def opened(path: Path, identity: dict[str, str] = IDENTITY) -> Iterator[JournalFile]:
    with closing(Sending.open(path, identity)) as journal:
        yield journal


def entry(key: RowKey, content: str = "as it was") -> Entry:
    return Entry(key, hashlib.blake2b(content.encode(), digest_size=16).digest())


def entries(*keys: RowKey) -> list[Entry]:
    return [entry(key) for key in keys]


def states(path: Path) -> dict[RowKey, tuple[RowState, str | None]]:
    return {row.key: (row.state, row.detail) for row in read_rows(path)}


def crash(path: Path) -> Path:
    """Copy what a process that died now would leave behind."""
    left = Path(tempfile.mkdtemp(dir=path.parent)) / path.name
    for suffix in ("", "-journal", "-lock"):
        shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
    with closing(sqlite3.connect(left, isolation_level=None)) as connection:  # nothing says that it is a copy
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("UPDATE meta SET value = ? WHERE name = 'used_inode'", (left.stat().st_ino,))
    return left


# What is remembered


def test_new_rows_are_armed_on_the_disk_before_they_may_be_sent(path: Path) -> None:
    """New rows are to be sent, numbered in the order of logging, and are in doubt after a crash."""
    with opened(path) as journal:
        assert journal.admit(entries("a", 0)) == [RowDecision(1, "send"), RowDecision(2, "send")]
        assert journal.admit(entries("b")) == [RowDecision(3, "send")]
        assert states(crash(path)) == {"a": ("logged", None), 0: ("logged", None), "b": ("logged", None)}


def test_what_is_committed_outlives_a_power_failure(path: Path) -> None:
    """SQLite is set to wait for the disk at every commit, which no test can observe otherwise."""
    with opened(path) as journal:
        settings = [journal._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
        assert settings == [2, "truncate"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RowOutcome(2, "done", "card9"), RowDecision(2, "done", "card9")),
        (RowOutcome(2, "failed", "status 400"), RowDecision(2, "failed", "status 400")),
        (RowOutcome(2, "unknown", "status 503"), RowDecision(2, "doubtful", "status 503")),
        (RowOutcome(2, "waiting", "status 429"), RowDecision(2, "send")),
        (None, RowDecision(2, "doubtful")),
    ],
)
@pytest.mark.parametrize("order", [("x", "row", "y"), ("y", "row", "x"), ("row",)])
def test_a_later_run_knows_what_became_of_a_row(
    path: Path, outcome: RowOutcome | None, expected: RowDecision, order: tuple[str, ...]
) -> None:
    """A later run skips what is done or refused for good, repeats what was refused in passing and settles the rest."""
    with opened(path) as journal:
        journal.admit(entries("x", "row", "y"))
        journal.record([outcome] if outcome else [])
    with opened(path) as journal:
        assert dict(zip(order, journal.admit(entries(*order)), strict=True))["row"] == expected


def test_a_position_and_a_reference_are_different_rows(path: Path) -> None:
    """A row known by the text "5" is not the one at position 5."""
    with opened(path) as journal:
        journal.admit(entries(5, "5"), ())
        journal.record([RowOutcome(1, "done", "card of position 5")])
    assert states(path) == {5: ("done", "card of position 5"), "5": ("logged", None)}


@pytest.mark.parametrize("state", ["waiting", "failed"])
def test_a_row_of_which_nothing_was_done_may_change(path: Path, state: Any) -> None:
    """What the service refused is sent again with other content, and is then in doubt with that content, logged by this run."""
    with opened(path) as journal:
        journal.admit(entries("a"), ())
        journal.record([RowOutcome(1, state, "status 400")])
    with opened(path) as journal:
        assert journal.admit([entry("a", "mended")]) == [RowDecision(1, "send")]
        (row,) = journal.rows(ALL)
        assert (row.state, row.detail, row.run, row.digest) == ("logged", None, 2, entry("a", "mended").digest)
        assert states(crash(path)) == {"a": ("logged", None)}


def test_the_last_outcome_of_a_row_holds(path: Path) -> None:
    """A row that was in doubt and then found is done."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        journal.record([RowOutcome(1, "unknown", "status 503"), RowOutcome(1, "done", "c1")])
        assert states(path) == {"a": ("done", "c1")}
        journal.record([RowOutcome(1, "unknown", None)])
        assert states(path) == {"a": ("unknown", None)}


def test_outcomes_are_written_with_the_next_admission(path: Path) -> None:
    """Logging and recording are one commit, and a row of this batch is not affected by it."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        journal.admit(entries("b"), [RowOutcome(1, "done", "c1")])
        assert states(crash(path)) == {"a": ("done", "c1"), "b": ("logged", None)}


def test_rows_are_paged_in_the_order_of_arming(path: Path) -> None:
    """Rows come by state, after a number, so many at a time."""
    with opened(path) as journal:
        journal.admit(entries(*"abcdef"))
        journal.record([RowOutcome(seq, "done", "c") for seq in (2, 4)])
        assert [row.key for row in journal.rows(("logged",), limit=2)] == ["a", "c"]
        assert [row.key for row in journal.rows(("logged",), after=3)] == ["e", "f"]
        assert [row.key for row in journal.rows(("done", "logged"))] == list("abcdef")


def test_batches_of_any_size_are_written_whole(path: Path) -> None:
    """Every row of a batch is there, also where it is cut into statements of several lengths."""
    with opened(path) as journal:
        numbers = [len(journal.admit(entries(*(f"{size}-{n}" for n in range(size))))) for size in (0, 1, 9, 127, 300)]
        assert numbers == [0, 1, 9, 127, 300]
        assert [row.seq for row in journal.rows(ALL)] == list(range(1, 438))
    with opened(path) as journal:
        standings = journal.admit(entries(*(f"300-{n}" for n in range(300))))
        assert [standing.seq for standing in standings] == list(range(138, 438))


def test_the_secret_stays_and_is_the_journals_own(path: Path, tmp_path: Path) -> None:
    """Every run of a journal has the same 32 random bytes, another journal has others, and no repr shows them."""
    with opened(path) as journal, opened(tmp_path / "other") as other:
        first = journal.secret
        assert len(first) == 32
        assert other.secret != first
    with opened(path) as journal:
        assert (journal.secret, journal._run) == (first, 2)
        assert repr(first) not in repr(_format.read_meta(journal._connection, path))


def test_the_baseline_is_kept_for_every_run(path: Path) -> None:
    """The cards that stood there before are known by id, also an empty set of them, and differ from not having looked."""
    with opened(path) as journal:
        assert journal.baseline is None
        journal.set_baseline(f"card{n}" for n in [*range(300), 7])
        assert journal.baseline == 300
    with opened(path) as journal:
        assert journal.baseline == 300
        assert sorted(journal.baseline_ids()) == sorted(f"card{n}" for n in range(300))


def test_an_empty_board_has_a_baseline(path: Path) -> None:
    """The baseline of an empty board counts as known."""
    with opened(path) as journal:
        journal.set_baseline([])
    with opened(path) as journal:
        assert journal.baseline == 0


@pytest.mark.parametrize("is_armed", [False, True])
def test_the_baseline_is_set_once_and_before_the_first_row(path: Path, is_armed: bool) -> None:
    """Later the rows' own cards could not be told apart from those that existed before."""
    with opened(path) as journal:
        if is_armed:
            journal.admit(entries("a"))
        else:
            journal.set_baseline(["c"])
        with pytest.raises(RuntimeError, match="before the first row"):
            journal.set_baseline(["d"])
        assert journal.baseline_ids() == ([] if is_armed else ["c"])


# What contradicts itself


@pytest.mark.parametrize(("recent", "indexed_per_entry"), [(1, 4), (3, 4), (5, 1), (1000, 4)])
@pytest.mark.parametrize("key", ["ref-0", "ref-5", "ref-11", 0, 11])
def test_a_key_that_comes_twice_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, indexed_per_entry: int, key: RowKey
) -> None:
    """A key of any earlier batch of this run is known, wherever the file keeps it by now, and nothing of the batch is logged."""
    monkeypatch.setattr(_file, "_RECENT", recent)
    monkeypatch.setattr(_file, "_INDEXED_PER_ENTRY", indexed_per_entry)
    with opened(path) as journal:
        for n in range(12):
            journal.admit(entries(f"ref-{n}", n))
            journal.admit([])
        with pytest.raises(JournalError, match=rf"{key}.* comes twice"):
            journal.admit(entries("new", key))
        assert len(journal.rows(ALL)) == 24
        assert journal.admit(entries("new")) == [RowDecision(25, "send")]


@pytest.mark.parametrize("batches", range(1, 13))
@pytest.mark.parametrize(("recent", "indexed_per_entry"), [(1, 4), (5, 1), (1000, 4)])
def test_every_row_is_found_again_wherever_the_run_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, indexed_per_entry: int, batches: int
) -> None:
    """A row that did not come into the index before the end, or the crash, of its run is in it for the next one."""
    monkeypatch.setattr(_file, "_RECENT", recent)
    monkeypatch.setattr(_file, "_INDEXED_PER_ENTRY", indexed_per_entry)
    with opened(path) as journal:
        for n in range(batches):
            journal.admit(entries(f"ref-{n}", n))
        left = crash(path)
    for ended in (path, left):
        with opened(ended) as journal:
            again = journal.admit(entries(*range(batches), *(f"ref-{n}" for n in range(batches))))
            assert {standing.action for standing in again} == {"doubtful"}


@pytest.mark.parametrize("state", ["done", "failed", "waiting", "unknown", None])
def test_a_row_of_an_earlier_run_that_comes_twice_is_refused(path: Path, state: Any) -> None:
    """Whatever its state in earlier runs, a row can come only once in this run's input."""
    with opened(path) as journal:
        journal.admit(entries(*range(20)))
        journal.record([RowOutcome(13, state, "x")] if state else [])
    with opened(path) as journal:
        journal.admit(entries(12))
        journal.admit(entries(*range(12), *range(13, 20)))
        with pytest.raises(JournalError, match=r"position 12 \(from 0\) comes twice in the input: give each row a reference"):
            journal.admit(entries(12))


def test_a_key_that_comes_twice_in_one_batch_is_refused(path: Path) -> None:
    """Nothing of the batch is logged, and what was to be recorded with it is recorded."""
    with opened(path) as journal:
        journal.admit(entries("z"))
        with pytest.raises(JournalError, match="the reference 'a' comes twice"):
            journal.admit(entries("a", "b", "a"), [RowOutcome(1, "done", "c1")])
        assert states(crash(path)) == {"z": ("done", "c1")}


@pytest.mark.parametrize("state", ["done", "unknown", None])
def test_changed_content_under_a_reference_is_refused(path: Path, state: Any) -> None:
    """A row that may have been sent can't be sent with other content. Its batch is not logged, and the journal stays usable."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        journal.record([RowOutcome(1, state, "x")] if state else [])
    with opened(path) as journal:
        with pytest.raises(JournalError, match="'a' was sent by an earlier run with other content"):
            journal.admit([entry("b"), entry("a", "changed")])
        assert [standing.action for standing in journal.admit(entries("b", "a"))] == [
            "send",
            "doubtful" if state != "done" else "done",
        ]


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
    """The second one fails at once and harms nothing: nor does another program that reads the file."""
    with opened(path) as journal:
        journal.admit(entries("a"))
        with pytest.raises(JournalError, match="in use by another run"):
            JournalFile.open(path, IDENTITY)
        code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM rows').fetchall(); c.close()"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
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
def test_what_is_no_journal_is_left_alone(path: Path, prepare: Any, message: str) -> None:
    """Nothing that lies at the path is followed, replaced or changed."""
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


def test_a_creation_goes_through_no_link(path: Path) -> None:
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
    done = subprocess.run([sys.executable, "-c", CUT_OFF, str(path), moment], timeout=60)
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


# Damage


def filled(path: Path, rows: int = 2000) -> None:
    with opened(path) as journal:
        for start in range(0, rows, 100):
            journal.admit(entries(*(f"reference {n}" for n in range(start, start + 100))))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite_the_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)


def with_sql(*statements: str) -> Any:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_in_half, "is damaged|malformed"),
        (overwrite_the_middle, r"is damaged \(.*\): restore it from a copy"),
        (with_sql("PRAGMA user_version = 3"), r"written by a newer boardclient \(format 3\): update boardclient"),
        (with_sql("PRAGMA user_version = 1"), r"written by an older boardclient \(format 1\): finish its import"),
        (with_sql("DELETE FROM meta WHERE name = 'secret'"), r"is damaged \(its metadata can't be read\)"),
        (with_sql("UPDATE meta SET value = '{' WHERE name = 'identity'"), r"is damaged \(its metadata can't be read\)"),
        (with_sql("UPDATE meta SET value = 7 WHERE name = 'created_at'"), r"is damaged \(its metadata can't be read\)"),
        (with_sql("DROP TABLE meta"), r"is damaged \(no such table: meta\)"),
    ],
)
def test_a_damaged_or_newer_journal_is_refused(path: Path, damage: Any, message: str) -> None:
    """It is never taken for an empty one, and stays as it is."""
    filled(path)
    damage(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(JournalError, match=message):
            JournalFile.open(path, IDENTITY)
    assert path.read_bytes() == before


def test_damage_that_shows_later_ends_the_run(path: Path) -> None:
    """An error of the file is raised again by all that follows, reading included, and closing gives the lock back."""
    filled(path)
    with opened(path) as journal:
        journal._connection.execute("DROP TABLE outcomes")
        with pytest.raises(JournalError, match="is damaged"):
            journal.admit(entries("a"))
        journal._connection.execute("CREATE TABLE outcomes (seq INTEGER PRIMARY KEY, state, detail)")
        for use in (
            lambda: journal.admit(entries("a")),
            lambda: journal.record([]),
            lambda: journal.rows(ALL),
            journal.baseline_ids,
        ):
            with pytest.raises(JournalError, match="is damaged"):
                use()
        assert not journal._connection.in_transaction
    opened(path).__enter__().close()


def test_a_program_that_keeps_the_file_locked_is_named_as_the_cause(path: Path) -> None:
    """A foreign writer ends the run, with nothing logged."""
    with opened(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        journal._connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="kept locked by another program"):
            journal.admit(entries("a"))
    assert states(path) == {}


def test_a_full_disk_ends_the_run_with_nothing_armed(path: Path) -> None:
    """Rows that did not fit are not logged, nothing is logged afterwards, and the next run resumes the others."""
    with opened(path) as journal:
        journal.admit(entries(*range(100)))
        (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
        journal._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match=r"can't grow .*: free some disk space and run again"):
            for n in range(1000):
                journal.admit(entries(*(f"long reference {n} {m}" for m in range(50))))
        armed = {row.key for row in read_rows(path)}
        assert f"long reference {n} 0" not in armed
        journal._connection.execute("PRAGMA max_page_count = 100000")
        with pytest.raises(JournalError, match="can't grow"):
            journal.admit(entries("after"))
    with opened(path) as journal:
        assert [s.action for s in journal.admit(entries(7, "after", f"long reference {n} 0"))] == ["doubtful", "send", "send"]


LIMITED = """
import resource, signal, sys
from boardclient import JournalError
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._format import Entry

path, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    journal = JournalFile.open(path, {})
    for first in range(0, 10**6, 200):
        journal.admit([Entry(n, b"d" * 16) for n in range(first, first + 200)])
        print(*range(first, first + 200), sep="\\n", flush=True)
except JournalError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1000, 300_000])
def test_a_write_that_the_system_refuses_loses_nothing(path: Path, limit: int) -> None:
    """What was logged before is there, and a journal that could not be created leaves nothing behind."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path), str(limit)], capture_output=True, text=True, timeout=120)
    *armed, error = done.stdout.splitlines()
    assert "run again, which resumes it" in error, done.stderr
    if limit == 1000:
        assert (armed, path.exists()) == ([], False)
        return
    assert len(armed) > 10
    assert list(states(path))[: len(armed)] == [int(line) for line in armed]
    with opened(path, {}) as journal:
        assert journal.admit(entries("next"))[0].action == "send"


# Reading


def test_a_summary_tells_what_a_journal_holds(path: Path) -> None:
    """A summary has the rows by state, including logged ones, and the identity, age and runs."""
    with opened(path) as journal:
        journal.admit(entries(*"abcdef"))
        journal.record([RowOutcome(1, "done", "c"), RowOutcome(2, "failed"), RowOutcome(3, "waiting"), RowOutcome(4, "unknown")])
        while_open = read_journal(path)
        assert while_open.counts == {"logged": 2, "done": 1, "failed": 1, "waiting": 1, "unknown": 1}
        assert while_open.rows == 6
    opened(path).__enter__().close()
    summary = read_journal(path)
    assert (summary.counts, summary.identity, summary.runs, summary.path) == (while_open.counts, IDENTITY, 2, path)
    assert summary.created_at.utcoffset() is not None


def test_rows_are_listed_by_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the given states, or all, are read in the order of logging, page after page."""
    monkeypatch.setattr(_view, "_PAGE", 2)
    with opened(path) as journal:
        journal.admit(entries(*"abcdef"))
        journal.record([RowOutcome(seq, "done", "c") for seq in (1, 2, 4)])
        assert [row.key for row in read_rows(path, "done")] == ["a", "b", "d"]
        assert [row.key for row in read_rows(path, "logged", "failed")] == ["c", "e", "f"]
        assert [row.key for row in read_rows(path)] == list("abcdef")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_reading_changes_nothing(path: Path) -> None:
    """A reader leaves the file as it is, byte for byte, and the count of runs too; and it leaves no file behind."""
    filled(path, 100)
    path.with_name(f"{path.name}-lock").unlink()
    before = contents(path.parent)
    assert set(before) == {path.name}
    read_journal(path)
    assert len(list(read_rows(path))) == 100
    with closing(read_rows(path)) as rows:
        next(rows)
        assert contents(path.parent) == before
    assert contents(path.parent) == before


def test_reading_during_a_run_changes_nothing(path: Path) -> None:
    """The content of the log is read too, and the log is not changed."""
    filled(path, 100)
    with opened(path) as journal:
        journal.admit(entries("a"), [RowOutcome(1, "done", "c")])
        before = contents(path.parent)
        assert read_journal(path).counts == {"logged": 100, "done": 1, "failed": 0, "waiting": 0, "unknown": 0}
        assert len(list(read_rows(path))) == 101
        assert contents(path.parent) == before


def test_a_run_that_begins_while_one_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is shown as it is when it comes up, and none is left out."""
    monkeypatch.setattr(_view, "_PAGE", 10)
    filled(path, 2000)
    with closing(read_rows(path)) as rows:
        read = [next(rows)]
        with opened(path) as journal:
            journal.record([RowOutcome(seq, "done", "c" * 200) for seq in range(1, 2001)])
            for start in range(0, 2000, 100):
                journal.admit(entries(*range(start, start + 100)))
        read += rows
    assert [row.seq for row in read] == list(range(1, 4001))
    assert Counter(row.state for row in read[10:]) == {"done": 1990, "logged": 2000}


@pytest.mark.parametrize("read", [read_journal, lambda path: next(read_rows(path))])
def test_a_journal_that_is_not_there_cannot_be_read(path: Path, read: Any) -> None:
    """Neither way of reading creates anything."""
    with pytest.raises(JournalError, match="there is no journal"):
        read(path)
    assert list(path.parent.iterdir()) == []
    path.write_text("something else")
    with pytest.raises(JournalError, match="no journal of boardclient"):
        read(path)


# Crashes


class Memory:
    """What the file has to remember: a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, tuple[int, bytes, RowState, str | None]] = {}
        self.met: set[RowKey] = set()
        self.baseline: set[str] | None = None

    def admit(self, batch: Sequence[Entry]) -> list[RowDecision] | None:
        keys = [key for key, _ in batch]
        if len(set(keys)) < len(keys) or self.met & set(keys):
            return None
        for key, digest in batch:
            if key in self.rows and self.rows[key][1] != digest and self.rows[key][2] not in ("failed", "waiting"):
                return None
        self.met |= set(keys)
        return [self._admit_one(key, digest) for key, digest in batch]

    def _admit_one(self, key: RowKey, digest: bytes) -> RowDecision:
        seq, known, state, detail = self.rows.get(key, (len(self.rows) + 1, digest, "waiting", None))
        if state == "waiting" or (state == "failed" and known != digest):
            self.rows[key] = (seq, digest, "logged", None)
            return RowDecision(seq, "send")
        return RowDecision(seq, "doubtful" if state in ("logged", "unknown") else state, detail)


class JournalMachine(RuleBasedStateMachine):
    """Drive a file and a dictionary alike, through crashes and reopenings."""

    keys = st.sampled_from([*range(8), *"abcdefgh", "5", ""])

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "cards.journal"
        self.memory = Memory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_file, "_RECENT", 4)  # so that every key goes through the index soon,
        self.patch.setattr(_file, "_INDEXED_PER_ENTRY", 1)  # and in several steps
        self.journal = Sending.open(self.path, IDENTITY)

    @initialize(ids=st.none() | st.sets(st.sampled_from("abc")))
    def look_at_the_board(self, ids: set[str] | None) -> None:
        if ids is not None:
            self.journal.set_baseline(ids)
        self.memory.baseline = ids

    def _outcomes(self, drawn: list[tuple[RowKey, Any, str | None]]) -> list[RowOutcome]:
        """Record what is drawn in the dictionary, and return it for the file."""
        outcomes = []
        for key, state, detail in drawn:
            if key in self.memory.rows:
                seq, digest, *_ = self.memory.rows[key]
                self.memory.rows[key] = (seq, digest, state, detail)
                outcomes.append(RowOutcome(seq, state, detail))
        return outcomes

    ended = st.tuples(keys, st.sampled_from(["done", "failed", "waiting", "unknown"]), st.none() | st.text(max_size=3))

    @rule(
        batch=st.lists(st.tuples(keys, st.sampled_from(["one", "one", "one", "two"])), max_size=5, unique_by=lambda row: row[0]),
        drawn=st.lists(ended, max_size=3),
    )
    def admit(self, batch: list[tuple[RowKey, str]], drawn: list[tuple[RowKey, Any, str | None]]) -> None:
        rows = [entry(key, content) for key, content in batch]
        outcomes = self._outcomes(drawn)
        expected = self.memory.admit(rows)
        if expected is None:
            with pytest.raises(JournalError):
                self.journal.admit(rows, outcomes)
        else:
            assert self.journal.admit(rows, outcomes) == expected

    @rule(drawn=st.lists(ended, max_size=4))
    def record(self, drawn: list[tuple[RowKey, Any, str | None]]) -> None:
        self.journal.record(self._outcomes(drawn))

    @rule()
    def end_and_resume(self) -> None:
        self.journal.close()
        self._resume()

    @rule()
    def crash_and_resume(self) -> None:
        self.path, crashed = crash(self.path), self.journal
        crashed.close()
        self._resume()

    def _resume(self) -> None:
        run = self.journal._run
        self.journal = Sending.open(self.path, IDENTITY)
        assert self.journal._run == run + 1
        self.memory.met = set()

    @invariant()
    def file_and_dictionary_agree(self) -> None:
        held = {row.key: (row.seq, row.digest, row.state, row.detail) for row in self.journal.rows(ALL)}
        assert held == self.memory.rows
        known = self.memory.baseline
        assert self.journal.baseline == (None if known is None else len(known))
        assert set(self.journal.baseline_ids()) == (known or set())

    def teardown(self) -> None:
        self.journal.close()
        self.patch.undo()
        self.folder.cleanup()


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
