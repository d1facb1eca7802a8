"""The writing side of a journal: one SQLite file, held by one run. Synchronous; each method is one transaction."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from boardclient.bulk.journal import _format as form
from boardclient.bulk.journal import _location as place
from boardclient.bulk.journal._format import Entry, JournalRow, Meta, RowDecision, RowKey, RowOutcome, RowState
from boardclient.errors import JournalError

T = TypeVar("T")

# The loop's thread can take the interpreter at each call into SQLite, and may keep it for 5 ms: a batch is written with as few
# statements as there can be. Few sizes, so that they stay prepared; four parameters a row, below the 999 of an old SQLite.
_CHUNKS: Final = (128, 64, 32, 16, 8, 4, 2, 1)
_RECENT: Final = 1 << 15
"""Rows whose keys are kept in memory before they are sorted into the index. References in random order would otherwise rewrite a
page of the index for each row: 24 microseconds at a million rows, against 4 for references in order."""
_INDEXED_PER_ENTRY: Final = 4
"""How many keys are sorted into the index with each new row, while there are such: no batch waits for all of them."""
_UNCHANGEABLE: Final = frozenset({"armed", "done", "unknown"})


class _Known(NamedTuple):
    """What the file holds of a row of the input."""

    seq: int
    digest: bytes
    run: int
    state: RowState
    detail: str | None


class JournalFile:
    """A journal opened for one run.

    What may be sent is armed here first, and what became of it is recorded. Owned by the run; not for concurrent use, but for
    use from several threads one after the other. `run` is this run's number, from 1. After an error of SQLite every method
    raises it again, so that nothing is sent which is not in the file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, meta: Meta) -> None:
        self.path = path
        self.secret = meta.secret
        self.created_at = meta.created_at
        self.run = meta.runs + 1
        self.baseline = meta.baseline
        self._connection = connection
        self._opened = contextlib.ExitStack()
        self._fault: str | None = None
        self._recent: dict[RowKey, int] = {}
        self._merging: dict[RowKey, int] = {}
        self._unmerged: list[RowKey] = []
        with self._transaction():
            connection.execute("UPDATE meta SET value = ? WHERE name = 'runs'", (self.run,))
            connection.execute("INSERT OR IGNORE INTO keys SELECT key, seq FROM rows WHERE seq > ? ORDER BY key", (meta.indexed,))
            (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM rows").fetchone()
            self._note_indexed(last)
        self._next: int = last + 1
        self._met = bytearray((last >> 3) + 1)
        """A bit for each row of earlier runs that this run's input has come to."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str]) -> Self:
        """Open a journal for a run, or create it where there is none.

        Nobody else can open it until it is closed. `identity` names what the rows belong to (service, board, account), with
        texts that hold no secret.

        Raises:
            JournalError: the file is in use, of another identity, of a newer version, damaged, no journal, or lies where it
                can't be relied on. It was not changed.
        """
        target = place.find_place(path)
        with contextlib.ExitStack() as opened, form.translated(target):
            opened.enter_context(place.locked(target))
            if not place.exists(target):
                _create(target, identity)
            connection = opened.enter_context(contextlib.closing(form.connect(target, "rw")))
            meta = form.read_meta(connection, target)
            _check_identity(target, meta.identity, dict(identity))
            form.check_pages(connection, target)
            _make_durable(connection, target)
            journal = cls(target, connection, meta)
            journal._opened = opened.pop_all()
            return journal

    def close(self) -> None:
        """Close the file and give the lock back; once is enough."""
        self._fault = f"{self.path} is closed"
        self._opened.close()

    def admit(self, entries: Sequence[Entry], outcomes: Sequence[RowOutcome] = ()) -> list[RowDecision]:
        """Record outcomes, arm what is to be sent, and say what to do with each row.

        The answers are in the order of the rows. On return all of it is on the disk. A row that was refused for good is sent
        again only with other content.

        Raises:
            JournalError: the file can't be written; a key came before in this run; or the content of a row that may have been
                sent has changed. No row was armed; in the latter two cases the outcomes are recorded, and the journal can be
                used on.
        """
        refusal: str | None = None
        standings: list[RowDecision] = []
        with self._transaction():
            self._record(outcomes)
            known = self._find(entries)
            refusal = self._refusal(entries, known)
            if refusal is None:
                standings = self._arm(entries, known)
        if refusal is not None:
            raise JournalError(f"{self.path}: {refusal}")
        return standings

    def rearm(self, seqs: Sequence[int], outcomes: Sequence[RowOutcome] = ()) -> None:
        """Record outcomes, and arm rows again that turned out not to be done.

        On return all of it is on the disk. They count as armed by this run. A row that is done stays so.
        """
        with self._transaction():
            self._record(outcomes)
            self._for_each("UPDATE rows SET run = ? WHERE seq IN", seqs, self.run)
            self._for_each("DELETE FROM outcomes WHERE state <> 'done' AND seq IN", seqs)

    def record(self, outcomes: Sequence[RowOutcome]) -> None:
        """Record what became of rows; the last outcome of a row holds."""
        with self._transaction():
            self._record(outcomes)

    def rows(self, states: tuple[RowState, ...], after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return rows in these states, in the order of arming, after the number `after`."""
        with self._guarded():
            return form.select_rows(self._connection, states, after, limit)

    def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Keep the ids of the cards that stand on the board, before a row is armed.

        Raises:
            RuntimeError: a row was armed, so that nobody can tell any more, or there is a baseline.
        """
        if self._next > 1 or self.baseline is not None:
            raise RuntimeError("the baseline is set once, before the first row is armed")
        ordered = sorted(set(card_ids))
        with self._transaction():
            self._insert("INSERT INTO baseline (card_id)", [(card_id,) for card_id in ordered])
            self._connection.execute("INSERT INTO meta VALUES ('baseline', ?)", (len(ordered),))
        self.baseline = len(ordered)

    @property
    def is_new(self) -> bool:
        """Tell whether no row was ever armed."""
        return self._next == 1

    def baseline_ids(self) -> list[str]:
        """Return the ids that the baseline holds."""
        with self._guarded():
            return [card_id for (card_id,) in self._connection.execute("SELECT card_id FROM baseline")]

    def in_baseline(self, card_ids: Sequence[str]) -> set[str]:
        """Return those of the ids that the baseline holds."""
        with self._guarded():
            found = self._for_each("SELECT card_id FROM baseline WHERE card_id IN", card_ids)
            return {card_id for (card_id,) in found}

    def _find(self, entries: Sequence[Entry]) -> dict[RowKey, _Known]:
        """Look the rows up. Of those whose keys are still in memory only the run is told."""
        known: dict[RowKey, _Known] = {}
        for key, *values in self._for_each(
            "SELECT k.key, seq, digest, run, coalesce(state, 'armed'), detail FROM keys k CROSS JOIN rows USING (seq)"
            " LEFT JOIN outcomes USING (seq) WHERE k.key IN",
            [entry.key for entry in entries],
        ):
            known[key] = _Known(*values)
        for key, _ in entries:
            if key in self._recent or key in self._merging:
                known[key] = _Known(0, b"", self.run, "armed", None)
        return known

    def _refusal(self, entries: Sequence[Entry], known: Mapping[RowKey, _Known]) -> str | None:
        """Say why the rows can't be taken, None where they can."""
        seen: set[RowKey] = set()
        for key, digest in entries:
            row = known.get(key)
            if key in seen or (row is not None and (row.run == self.run or self._has_met(row.seq))):
                return f"{_named(key)} comes twice in the input: give each row a reference of its own"
            if row is not None and row.digest != digest and row.state in _UNCHANGEABLE:
                return (
                    f"{_named(key)} was sent by an earlier run with other content: give a changed row a new reference,"
                    " or put the content back"
                )
            seen.add(key)
        return None

    def _arm(self, entries: Sequence[Entry], known: Mapping[RowKey, _Known]) -> list[RowDecision]:
        """Arm what is to be sent, within the transaction that looked the rows up."""
        standings = []
        armed: list[tuple[int, RowKey, bytes, int]] = []
        for key, digest in entries:
            row = known.get(key)
            if row is None:
                seq = self._next + len(armed)
                armed.append((seq, key, digest, self.run))
                self._recent[key] = seq
                standings.append(RowDecision(seq, "send"))
                continue
            self._met[row.seq >> 3] |= 1 << (row.seq & 7)
            standing = _standing(row, digest)
            if standing.action == "send":
                self._rearm(row.seq, digest)
            standings.append(standing)
        self._insert("INSERT INTO rows (seq, key, digest, run)", armed)
        self._next += len(armed)
        if armed:
            self._index(_INDEXED_PER_ENTRY * len(armed))
        return standings

    def _rearm(self, seq: int, digest: bytes) -> None:
        self._connection.execute("UPDATE rows SET digest = ?, run = ? WHERE seq = ?", (digest, self.run, seq))
        self._connection.execute("DELETE FROM outcomes WHERE seq = ?", (seq,))

    def _has_met(self, seq: int) -> bool:
        return bool(self._met[seq >> 3] & 1 << (seq & 7))

    def _index(self, count: int) -> None:
        """Sort up to `count` keys into the index, once enough have come together."""
        if not self._unmerged:
            if len(self._recent) < _RECENT:
                return
            self._merging, self._recent = self._recent, {}
            numbers = [key for key in self._merging if isinstance(key, int)]
            texts = [key for key in self._merging if isinstance(key, str)]
            self._unmerged = [*sorted(texts, reverse=True), *sorted(numbers, reverse=True)]
        part = self._unmerged[-count:]
        del self._unmerged[-count:]
        self._insert("INSERT INTO keys (key, seq)", [(key, self._merging[key]) for key in reversed(part)])
        if not self._unmerged:
            self._note_indexed(max(self._merging.values()))
            self._merging = {}

    def _note_indexed(self, seq: int) -> None:
        self._connection.execute("UPDATE meta SET value = ? WHERE name = 'indexed'", (seq,))

    def _record(self, outcomes: Sequence[RowOutcome]) -> None:
        self._insert("INSERT OR REPLACE INTO outcomes (seq, state, detail)", _padded(outcomes))

    def _insert(self, head: str, values: Sequence[tuple[object, ...]]) -> None:
        """Insert tuples with as few statements as there can be."""
        for part in _chunks(values):
            self._connection.execute(_with_values(head, len(part), len(part[0])), list(chain.from_iterable(part)))

    def _for_each(self, head: str, values: Sequence[object], *first: object) -> list[tuple[Any, ...]]:
        """Execute a statement that ends in IN for the values; return what it finds."""
        found: list[tuple[Any, ...]] = []
        for part in _chunks(_padded(values)):
            found += self._connection.execute(f"{head} ({','.join('?' * len(part))})", (*first, *part)).fetchall()
        return found

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Refuse to go on after an error of the file, and remember one that comes now."""
        if self._fault is not None:
            raise JournalError(self._fault)
        try:
            with form.translated(self.path):
                yield
        except JournalError as error:
            self._fault = error.message
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Do all of it or nothing; on the way out it is on the disk."""
        with self._guarded():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have ended the transaction themselves
                    self._connection.execute("ROLLBACK")
                raise


def _create(path: Path, identity: Mapping[str, str]) -> None:
    """Create a journal without rows: beside its place, and moved there whole, so that a creation cut off leaves none there."""
    unfinished = path.with_name(f"{path.name}-new")
    place.clear(unfinished)
    place.create(unfinished)
    try:
        _initialise(unfinished, identity)
        place.move(unfinished, path)
    except BaseException:
        place.clear(unfinished)
        raise


def _initialise(path: Path, identity: Mapping[str, str]) -> None:
    """Make an empty file a journal, in one transaction."""
    meta = {
        "identity": json.dumps(dict(identity), ensure_ascii=False),
        "secret": secrets.token_bytes(32),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": 0,
        "indexed": 0,
    }
    with contextlib.closing(form.connect(path, "rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(
            f"BEGIN; PRAGMA application_id = {form.APPLICATION_ID}; PRAGMA user_version = {form.SCHEMA_VERSION}; {form.SCHEMA}"
        )
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("COMMIT")


def _make_durable(connection: sqlite3.Connection, path: Path) -> None:
    """See to it that what is committed outlives a power failure.

    Readers and the writer don't wait for each other then.

    Raises:
        JournalError: the file system can't do it.
    """
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL would lose armed rows in a power failure, and send them twice
    connection.execute("PRAGMA fullfsync = ON")  # on macOS, where fsync alone leaves it in the disk's cache
    connection.execute("PRAGMA cache_size = -4096")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalError(f"{path} lies on a file system without shared memory: put the journal on a local disk")


def _check_identity(path: Path, made_for: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Make sure that the journal belongs to this board, account and service.

    Raises:
        JournalError: it belongs to another; the message names the parts that differ.
    """
    parts = [name for name in {**made_for, **given} if made_for.get(name) != given.get(name)]
    if parts:
        differences = ", ".join(f"{name} {made_for.get(name)!r} (now {given.get(name)!r})" for name in parts)
        raise JournalError(f"{path} belongs to another import: {differences}. Give this import a journal of its own")


def _standing(row: _Known, digest: bytes) -> RowDecision:
    """Say what is to be done with a row that an earlier run met."""
    if row.state == "done":
        return RowDecision(row.seq, "done", row.detail)
    if row.state == "failed" and row.digest == digest:
        return RowDecision(row.seq, "failed", row.detail)
    if row.state in {"armed", "unknown"}:
        return RowDecision(row.seq, "doubtful", row.detail)
    return RowDecision(row.seq, "send")


def _named(key: RowKey) -> str:
    return f"the row at position {key} (from 0)" if isinstance(key, int) else f"the row with the reference {key!r}"


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut a sequence into parts of few different lengths."""
    start = 0
    for size in _CHUNKS:
        while len(values) - start >= size:
            yield values[start : start + size]
            start += size


def _padded(values: Sequence[T]) -> Sequence[T]:
    """Repeat the last value until few chunks hold all, where doing a thing twice does no harm."""
    count = len(values)
    if not count:
        return values
    whole = 1 << (count - 1).bit_length() if count < _CHUNKS[0] else count + -count % _CHUNKS[0]
    return [*values, *(values[-1],) * (whole - count)]


@functools.cache
def _with_values(head: str, rows: int, columns: int) -> str:
    group = f"({','.join('?' * columns)})"
    return f"{head} VALUES {','.join([group] * rows)}"
