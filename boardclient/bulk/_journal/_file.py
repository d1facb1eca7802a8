"""The file of a journal: its format, its lock, and what is checked when it is opened for writing.

The design is described in docs/design/journal.md.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import sqlite3
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import attrs

from boardclient._base._environment import find_location, why_no_file_opens
from boardclient.bulk._journal._conversion import EARLIER, convert, show_as_this_format
from boardclient.errors import JournalError
from boardclient.store._kinds import JOURNAL, check_journal
from boardclient.store._rows import DONE, PLACES
from boardclient.store._sqlite import FileConnection
from boardclient.store._tables import TABLES, dump_ids, load_ids

FORMAT: Final = 6
_PAGE_BYTES: Final = 4096
_BOOT: Path = Path("/proc/sys/kernel/random/boot_id")
_LOCK_SECONDS: Final = 30.0
"""How long a commit waits for readers to release their locks."""

JOB: Final = 1
"""The number of the one job of a journal."""
PART: Final = 0
"""The number of its one part, so that rows are numbered from 1."""
# The number of a run is the owner of the job, so that the beginning of a run writes one page.
_JOB: Final = (
    "INSERT INTO boardclient_jobs (job, name, board_id, identity, options, secret, owner) VALUES (?, 'journal', ?, ?, ?, ?, '0')"
)
_PART: Final = "INSERT INTO boardclient_parts (part, job, key, digest, size, logged) VALUES (?, ?, 'journal', '', 0, ?)"
_META: Final = "SELECT identity, secret, options, owner FROM boardclient_jobs WHERE job = ?"
_OWNER: Final = "SELECT owner FROM boardclient_jobs WHERE job = ?"
_BEGIN: Final = "UPDATE boardclient_jobs SET owner = ?, options = ? WHERE job = ?"
_UNSENT: Final = (
    "INSERT OR IGNORE INTO boardclient_outcomes (seq, job, state, detail, at)"
    " SELECT seq, job, 'waiting', 'not sent', {clock} FROM boardclient_rows WHERE seq > ?"
)
_WAS_SENT: Final = (
    "SELECT EXISTS (SELECT 1 FROM boardclient_rows AS r LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq"
    " WHERE o.seq IS NULL OR (o.at > 0 AND (o.state != 'waiting' OR o.detail != 'not sent')))"
)


@attrs.frozen(kw_only=True)
class Meta:
    """The metadata of a journal. `baseline` is the number of cards before the first row, None if they were not read.

    `runs` is the number of its runs. `inode` and `path` name the file that the last run has used. `total` is the number of rows
    in its input, None if not known. `shown` are the fields that responses to the runs have shown of cards, with blanks between
    them.
    """

    identity: dict[str, str]
    secret: bytes = attrs.field(repr=False)
    runs: int = 0
    created_at: str
    inode: int
    path: str
    baseline: int | None = None
    total: int | None = None
    shown: str = ""

    @property
    def options(self) -> str:
        """What is stored as the options of the job."""
        return json.dumps({name: getattr(self, name) for name in _OPTIONS}, ensure_ascii=False)


_OPTIONS: Final = ("created_at", "inode", "path", "baseline", "total", "shown")


# --- reading a file


class JournalConnection(FileConnection):
    """A connection to a journal. Its clock counts the runs, so that an outcome is of the run that has recorded it."""

    runs = 0

    def now(self) -> float:
        return float(self.runs)

    def each(self, sql: str, *values: object) -> Generator[Any, None, None]:
        """Run a statement and yield its rows as they are read, for those of which there may be millions."""
        yield from self._execute(sql, values)


def connect(path: Path) -> JournalConnection:
    """Connect to an existing SQLite file. Only one thread at a time may use the connection."""
    # Not read-only: a reader, too, rolls back what a killed process has left.
    return JournalConnection(
        sqlite3.connect(
            f"{path.as_uri()}?mode=rw", timeout=_LOCK_SECONDS, uri=True, isolation_level=None, check_same_thread=False
        )
    )


def read_meta(connection: JournalConnection, path: Path) -> Meta:
    """Check the format of a journal, and return its metadata. A journal of an earlier format looks like one of this from then on.

    Raises:
        JournalError: it has another format.
        sqlite3.Error: it can't be read.
    """
    version = connection.value("PRAGMA user_version")
    if version in EARLIER:
        show_as_this_format(connection)
    elif version != FORMAT:
        age = "a newer" if version > FORMAT else "an older"
        raise JournalError(
            f"{path} was written by {age} boardclient (format {version}, not {FORMAT}): use that version, or begin a new journal"
        )
    found = connection.one(_META, JOB)
    try:
        identity, secret, options, owner = found
        connection.runs = int(owner)
        return Meta(identity=json.loads(identity), secret=secret, runs=connection.runs, **json.loads(options))
    except (TypeError, ValueError) as error:
        raise _damage(path, "its metadata can't be read") from error


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors and those of the system as a JournalError that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise JournalError(_OTHERWISE.format(path=path, why=error.strerror or error)) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        is_moved = code == sqlite3.SQLITE_READONLY_DBMOVED
        # The low byte is the primary result code: https://www.sqlite.org/rescode.html.
        advice = _MOVED if is_moved else _ADVICE.get(code & 0xFF, _OTHERWISE)
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN and (why := why_no_file_opens()) is not None:
            raise JournalError(f"{path} can't be used ({why}): then run again, which resumes it") from error
        raise JournalError(advice.format(path=path, why=error)) from error
    except UnicodeDecodeError as error:  # SQLite's message quotes what is damaged
        raise _damage(path, "its tables can't be read") from error


def _damage(path: Path, why: str) -> JournalError:
    return JournalError(_DAMAGED.format(path=path, why=why))


_DAMAGED: Final = (
    "{path} is damaged ({why}): restore it from a copy; with a new journal, rows that were sent already would be sent again"
)
_ADVICE: Final = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_ERROR: _DAMAGED,  # a table is missing or has other columns
    sqlite3.SQLITE_NOTADB: "{path} is not a journal of boardclient ({why}): choose another path, or restore it",
    sqlite3.SQLITE_FULL: "{path} can't grow ({why}): free some disk space and run again, which resumes it",
    sqlite3.SQLITE_IOERR: "{path} can't be read or written ({why}): check the disk and its free space, and run again",
    sqlite3.SQLITE_BUSY: "{path} is kept locked by another program ({why}): end that program and run again",
}
_MOVED: Final = (
    "{path} was moved, removed or replaced while a run was using it: no more rows are logged."
    " Put the file back before the next run; without it, rows would be sent again"
)
_OTHERWISE: Final = "{path} can't be used ({why}): check its permissions and those of its folder, which must be writable"


# --- the lock


class RunMark(NamedTuple):
    """How far the last run released rows: none above the number `released` was sent.

    `is_sure` is False after a restart of the machine, since the mark is written without a sync.
    """

    run: int
    released: int
    is_sure: bool


class RunLock:
    """The exclusive right to write a journal. It ends with the process. Its file also holds the mark.

    It is a file of its own, which is never removed: closing any descriptor of the journal would release SQLite's locks
    (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """

    def __init__(self, journal: Path) -> None:
        self.path: Path = journal.with_name(f"{journal.name}-lock")
        self._head = b""
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise JournalError(f"{self.path} can't be opened ({error.strerror}): check the path and its permissions") from error
        try:
            _lock(self._descriptor)
        except OSError as error:
            os.close(self._descriptor)
            if isinstance(error, BlockingIOError | PermissionError):
                message = f"{journal} is in use by another run: wait for its end, or give each run a journal of its own"
            else:
                message = f"{journal} can't be locked ({error.strerror}): put the journal on a local disk"
            raise JournalError(message) from error

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, secret: bytes | None = None) -> RunMark | None:
        """Return the mark, None if there is none, or not of the journal with this secret."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        try:
            name, boot, run, released = os.read(self._descriptor, 200).decode("ascii").split()
            mark = RunMark(int(run), int(released), boot == _boot() != "-")
        except ValueError:
            return None
        return mark if secret is None or name == _name(secret) else None

    def begin(self, secret: bytes, run: int, released: int) -> None:
        """Write the first mark of a run."""
        self._head = f"{_name(secret)} {_boot()} {run}".encode("ascii")
        self.release_to(released)

    def release_to(self, released: int) -> None:
        """Note that rows up to this number may be sent from now on.

        Raises:
            JournalError: this can't be written.
        """
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            mark = b"%s %020d\n" % (self._head, released)
            if os.write(self._descriptor, mark) < len(mark):  # what is left of the mark before may complete it to a lower number
                raise OSError(errno.ENOSPC, "no space is left")
        except OSError as error:
            raise JournalError(f"{self.path} can't be written ({error.strerror}): free some disk space and run again") from error


def _name(secret: bytes) -> str:
    """Return the identifier of a journal in a mark. The secret can't be derived from it."""
    return hashlib.blake2b(secret, digest_size=16).hexdigest()


def _boot() -> str:
    """Return the identifier of this boot (proc_sys_kernel(5)), "-" if there is none."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return "-"


if sys.platform == "win32":  # pragma: no cover -- Windows
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- writing a file


class JournalFile:
    """A journal that is open for writing, by one thread at a time. After an error of the file, every use raises it again."""

    def __init__(self, path: Path, connection: JournalConnection, lock: RunLock, meta: Meta) -> None:
        self.path = path
        self.meta: Meta = meta
        self.connection = connection
        self.lock = lock
        self.runs: int = meta.runs
        """The number of the last run that may have opened it. With a later one, nothing is written any more."""
        self._opened = contextlib.ExitStack()
        self._fault: str | None = None
        self._inodes = _identify(str(lock.path)), _identify(str(path))

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str] | None) -> Self:
        """Open a journal, or create it for this identity. Without one, it must exist.

        Rows that the last run logged and did not release are recorded as not sent.

        Raises:
            JournalError: the file can't be used. It was not changed, except that an interrupted commit was rolled back.
        """
        target = find_location(path)
        if identity is None and not target.exists():
            raise JournalError(f"there is no journal {target}: check the path")
        if target.exists():
            check_journal(target)
        with contextlib.ExitStack() as opened, translated(target):
            lock = opened.enter_context(contextlib.closing(RunLock(target)))
            if identity is not None and not target.exists():
                _create(target, identity, lock)
            connection = opened.enter_context(contextlib.closing(connect(target)))
            meta = read_meta(connection, target)
            if identity is not None:
                _check_identity(target, meta.identity, identity)
            mark = lock.read(meta.secret)
            _check(connection, target, meta, mark)
            _make_durable(connection)
            if connection.value("PRAGMA user_version") != FORMAT:
                with in_transaction(connection):
                    convert(connection, [*TABLES, f"PRAGMA user_version = {FORMAT}"])
            journal = cls(target, connection, lock, meta)
            if mark is not None and mark.is_sure and mark.run == meta.runs:
                with journal.transaction():
                    journal.record_unsent(mark.released)
            journal._opened = opened.pop_all()
            return journal

    @property
    def last(self) -> int:
        """The number of the last row that was logged, or 0."""
        return _last(self.connection)

    @property
    def was_sent(self) -> bool:
        """Whether a row may ever have been sent. Rows that were adopted were not."""
        return bool(self.connection.value(_WAS_SENT))

    def has_lock(self) -> bool:
        """Return False if another process may have got the lock: its file or the journal is not in its place any more.

        It takes two system calls, so it can be asked before each request. A process may be suspended for any time, and finds
        neither out from its own descriptors.
        """
        try:
            return self._inodes == (_identify(str(self.lock.path)), _identify(str(self.path)))
        except OSError:
            return False

    def check_lock(self) -> None:
        """Raise an earlier error of the file again, or that another process may have got the lock."""
        self.check()
        if not self.has_lock():
            raise JournalError(
                f"{self.path} or its lock was moved, removed or replaced while it was in use: nothing more is sent."
                " Put both back, and run again"
            )

    def record_unsent(self, released: int) -> None:
        """Record within a transaction that no row above a number was sent."""
        self.connection.run(_UNSENT, released)

    def set_meta(self, **changes: Any) -> None:
        """Change some of the metadata, within a transaction."""
        self.meta = attrs.evolve(self.meta, **changes)
        self.connection.run("UPDATE boardclient_jobs SET options = ? WHERE job = ?", self.meta.options, JOB)

    def begin_run(self, total: int | None) -> None:
        """Begin a run. Those that still have the file open can write nothing any more."""
        inode, runs = self.path.stat().st_ino, self.runs + 1
        self.meta = attrs.evolve(self.meta, runs=runs, path=str(self.path), inode=inode, total=total)
        with self.transaction():
            self.connection.run(_BEGIN, str(runs), self.meta.options, JOB)
        self.runs = self.connection.runs = runs

    def baseline(self) -> list[str]:
        """Return the cards that are not those of rows: those from before, and those that were deleted again."""
        with self.guarded():
            undone = self.connection.fetch("SELECT detail FROM boardclient_outcomes WHERE state = 'undone'")
            return [*self._stored_baseline(), *(row.detail for row in undone)]

    def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Store the cards from before within a transaction, but for those of rows. Those of an earlier run remain."""
        own = {row.detail for row in self.connection.fetch(DONE, JOB)}
        ids = sorted({*self._stored_baseline(), *card_ids} - own)
        self._store_baseline(ids)
        self.set_meta(baseline=len(ids))

    def disown(self, card_ids: Collection[str]) -> None:
        """Note within a transaction that cards from before are now those of rows."""
        self._store_baseline(card_id for card_id in self._stored_baseline() if card_id not in card_ids)

    def _store_baseline(self, card_ids: Iterable[str]) -> None:
        self.connection.run("UPDATE boardclient_jobs SET baseline = ? WHERE job = ?", dump_ids(card_ids), JOB)

    def _stored_baseline(self) -> list[str]:
        stored = self.connection.value("SELECT baseline FROM boardclient_jobs WHERE job = ?", JOB)
        return [] if stored is None else load_ids(stored)

    def check(self) -> None:
        """Raise an earlier error of the file again."""
        if self._fault is not None:
            raise JournalError(self._fault)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Raise an earlier error of the file again, and remember a new one."""
        self.check()
        try:
            with translated(self.path):
                yield
        except JournalError as error:
            self._fault = error.message
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction. At the end it is on the disk, and the file is still in its place: SQLite looks before it writes.

        Raises:
            JournalError: the file can't be used, or another run has begun since: the lock file was removed, or the journal moved.
        """
        with self.guarded(), in_transaction(self.connection):
            # Without what `Connection` does for each statement: this one is run with each commit.
            if self.connection.raw.execute(_OWNER, (JOB,)).fetchone() != (str(self.runs),):
                raise JournalError(f"{self.path} is in use by another run, which began during this one: this one ends")
            yield

    def close(self) -> None:
        """Close the file and release the lock. Calling it again does nothing."""
        if self._fault is None:
            with contextlib.suppress(sqlite3.Error):  # an empty rollback journal may stay
                self.connection.run("PRAGMA journal_mode = DELETE")
        self._fault = f"{self.path} is closed"
        self._opened.close()


@contextlib.contextmanager
def in_transaction(connection: JournalConnection) -> Iterator[None]:
    """Run a transaction, which is rolled back after an error."""
    connection.begin(is_read=False)
    try:
        yield
        connection.commit()
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors roll the transaction back by themselves
            connection.rollback()
        raise


def _identify(path: str) -> tuple[int, int]:
    """Return the device and the inode of a file. No other file gets them while it is open."""
    found = os.stat(path)  # with a string, it takes a third of the time of `Path.stat`
    return found.st_dev, found.st_ino


def _create(path: Path, identity: Mapping[str, str], lock: RunLock) -> None:
    """Create a journal beside its path, and move it there when it is whole."""
    mark, rollback = lock.read(), path.with_name(f"{path.name}-journal")
    if mark is not None and mark.released:
        raise JournalError(
            f"{path} is gone, though a run has used it: put it back, or its rows are sent again."
            f" To begin a new journal there all the same, remove {lock.path.name} beside it"
        )
    unfinished = path.with_name(f"{path.name}-new")
    try:
        if rollback.exists() and rollback.stat().st_size:
            raise JournalError(f"{rollback} belongs to a journal that is gone: put both back together, or move it away")
        unfinished.unlink(missing_ok=True)  # an interrupted creation has left it
        unfinished.with_name(f"{unfinished.name}-journal").unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # only its owner can ever read it
        meta = Meta(
            identity=dict(identity),
            secret=secrets.token_bytes(32),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            inode=unfinished.stat().st_ino,
            path=str(path),
        )
        with contextlib.closing(connect(unfinished)) as connection:
            for pragma in (f"page_size = {_PAGE_BYTES}", "synchronous = FULL"):
                connection.run(f"PRAGMA {pragma}")
            with in_transaction(connection):
                for statement in (f"PRAGMA application_id = {JOURNAL}", f"PRAGMA user_version = {FORMAT}", *TABLES):
                    connection.run(statement)
                identifiers = identity.get("board", ""), json.dumps(meta.identity, ensure_ascii=False)
                connection.run(_JOB, JOB, *identifiers, meta.options, meta.secret)
                connection.run(_PART, PART, JOB, PLACES)  # all rows of a journal are logged when they are stored
        unfinished.replace(path)
    except OSError as error:
        raise JournalError(f"{path} can't be created ({error.strerror}): choose a folder that is writable") from error


def _check(connection: JournalConnection, path: Path, meta: Meta, mark: RunMark | None) -> None:
    """Check that the file is whole, and the one that the last run has used. It takes half a second for a million rows."""
    if path.stat().st_size != connection.value("PRAGMA page_count") * _PAGE_BYTES:
        raise _damage(path, "it was cut off")
    verdict = connection.value("PRAGMA quick_check(1)")
    if verdict != "ok":
        raise _damage(path, verdict.splitlines()[-1])
    original = Path(meta.path)
    if original != path and original.exists() and original.stat().st_ino == meta.inode != path.stat().st_ino:
        raise JournalError(f"{path} is a copy of {original}, which knows what was sent since: use the original, or remove it")
    if mark is not None and (mark.run, mark.released) > (meta.runs, _last(connection)):
        raise JournalError(
            f"{path} is an older copy: a run has used a newer one here, and its rows would be sent again."
            f" Put the newer one back; or remove {path.name}-lock to use this one all the same"
        )


def _last(connection: JournalConnection) -> int:
    return int(connection.value("SELECT coalesce(max(seq), 0) FROM boardclient_rows"))


def _make_durable(connection: JournalConnection) -> None:
    """Make commits survive a power failure (https://www.sqlite.org/pragma.html)."""
    connection.run("PRAGMA synchronous = FULL")  # NORMAL may lose logged rows in a power failure: they would be sent twice
    connection.run("PRAGMA fullfsync = ON")  # for macOS, where fsync leaves data in the disk's cache
    connection.run("PRAGMA cache_size = -4096")
    connection.run("PRAGMA journal_mode = TRUNCATE")


def _check_identity(path: Path, made_for: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Check that the journal belongs to this service, account and board."""
    others = [name for name in {**made_for, **given} if made_for.get(name) != given.get(name)]
    if others:
        differences = ", ".join(f"{name} {made_for.get(name)!r} (now {given.get(name)!r})" for name in others)
        raise JournalError(f"{path} belongs to another import: {differences}. Give this import a journal of its own")
