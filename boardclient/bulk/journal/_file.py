"""The writing side of a journal. Synchronous; each method is one transaction."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Final, NamedTuple, Self

from boardclient.bulk.journal import _format as form
from boardclient.bulk.journal import _location as location
from boardclient.bulk.journal import _opening as opening
from boardclient.bulk.journal import _parts as parts
from boardclient.bulk.journal._format import Entry, JournalRow, Meta, RowDecision, RowKey, RowOutcome, RowState
from boardclient.bulk.journal._lock import RunLock, RunMark, was_used
from boardclient.bulk.journal._statements import insert, padded, select_each
from boardclient.errors import JournalError

_logger: Final = logging.getLogger("boardclient")

_RECENT: Final = 1 << 15
"""The number of keys that are kept in memory before they are added to the index in sorted order. With references in random order,
each row would otherwise rewrite a page of the index: 24 microseconds per row at a million rows, 4 with sorted references."""
_INDEXED_PER_ENTRY: Final = 4
"""How many of these keys are added to the index with each new row, so that no batch has to wait for all of them."""
_UNCHANGEABLE: Final = frozenset({"logged", "done", "unknown"})
_LOCK_SECONDS: Final = 30.0
"""How long a commit waits for readers to release their locks."""

_NOT_RELEASED: Final = (
    "INSERT OR IGNORE INTO outcomes (seq, state, detail) SELECT seq, 'waiting', 'logged, and not sent: the run was killed'"
    " FROM rows WHERE seq > ?"
)
_FIND: Final = (
    "SELECT k.key, seq, digest, run, coalesce(state, 'logged'), detail FROM keys k CROSS JOIN rows USING (seq)"
    " LEFT JOIN outcomes USING (seq) WHERE k.key IN"
)
_NOT_INDEXED: Final = "INSERT OR IGNORE INTO keys SELECT key, seq FROM rows WHERE seq > ? ORDER BY key"


_new_decision: Final = partial(tuple.__new__, RowDecision)


class _Known(NamedTuple):
    """What the file holds about a row of the input."""

    seq: int
    digest: bytes
    run: int
    state: RowState
    detail: str | None


class JournalFile:
    """A journal opened for one run, which owns it.

    Rows are logged here before they are sent, and their outcomes are recorded. Different threads may use it, but only one at a
    time, except for `release_to`. After an error of the file every method raises it again, so that no row is sent that is not
    logged.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: RunLock, meta: Meta) -> None:
        self.path = path
        self.secret = meta.secret
        self.baseline = meta.baseline
        self._run = meta.runs + 1
        self._lock = lock
        self._tokens = meta.tokens
        self._connection = connection
        self.facts: dict[str, str] = dict(connection.execute("SELECT name, value FROM facts").fetchall())
        self._opened = contextlib.ExitStack()
        self._fault: str | None = None
        self._recent: dict[RowKey, int] = {}
        self._merging: dict[RowKey, int] = {}
        self._unmerged: list[RowKey] = []
        self._has_index = False
        last = opening.last_row(connection)
        self._next: int = last + 1
        self._seen = bytearray((last >> 3) + 1)
        """A bit for each row of earlier runs, set once the input of this run has reached it."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str]) -> Self:
        """Open the journal for a run, or create it if there is none.

        No other run can open it until it is closed. `identity` says what the rows belong to (service, board, account) and must
        not contain secrets.

        Raises:
            JournalError: the file is in use, belongs to another import, has another version, is damaged, incomplete or not a
                journal, or is on a file system without reliable locks. It was not changed, except that an interrupted commit
                was rolled back.
        """
        target = location.find_location(path)
        with contextlib.ExitStack() as opened, form.translated(target):
            is_gone = not location.exists(target) and was_used(target)  # a directory is refused before it gets a lock
            lock = opened.enter_context(contextlib.closing(RunLock.acquire(target)))
            location_exists = location.exists(target)
            parts.check_companions(target, exists=location_exists)
            if not location_exists:
                if is_gone:
                    _logger.warning("%s is gone, though a run has used it: its rows are sent again unless it is put back", target)
                opening.create(target, identity)
            had_rollback = parts.has_rollback(target)
            connection = opened.enter_context(contextlib.closing(form.connect(target, "rw", _LOCK_SECONDS)))
            meta = parts.recover(connection, target)
            opening.check_identity(target, meta.identity, dict(identity))
            form.check_pages(connection, target)
            parts.check_whole(target, meta, had_rollback=had_rollback)
            mark = lock.read(meta.secret)
            opening.check_rows(connection, target, meta, mark)
            opening.make_durable(connection, target)
            journal = cls(target, connection, lock, meta)
            journal._begin(meta, mark)
            journal._opened = opened.pop_all()
            return journal

    def _begin(self, meta: Meta, mark: RunMark | None) -> None:
        """Record that a run has opened the journal.

        Rows that the last run logged and did not release are recorded as not sent.
        """
        with self._transaction():
            if mark is not None and mark.is_sure and mark.run == meta.runs:
                self._connection.execute(_NOT_RELEASED, (mark.released,))
            self._connection.execute(_NOT_INDEXED, (meta.indexed,))
            self._note_indexed(self.last)
            self._set_meta("runs", self._run)
            self._set_meta("used_path", str(self.path))
            self._set_meta("used_inode", self.path.lstat().st_ino)
        self._lock.begin(self.secret, self._run, self.last)

    def close(self) -> None:
        """Close the file and release the lock. Calling it again does nothing.

        Raises:
            JournalError: the file can't be written. It is closed all the same; the next run will find rows in doubt.
        """
        is_sound, was_closed = self._fault is None, self._fault == self._closed_message
        try:
            if is_sound:
                with self._transaction():
                    self._set_meta("used_inode", 0)
                with self._guarded():
                    self._connection.execute("PRAGMA journal_mode = DELETE")  # removes the empty rollback journal
        finally:
            if not was_closed:
                self._fault = self._closed_message
                self._opened.close()

    @property
    def _closed_message(self) -> str:
        return f"{self.path} is closed"

    def release_to(self, seq: int) -> None:
        """Allow logged rows up to this number to be sent. Another thread may use the journal meanwhile.

        Raises:
            JournalError: this can't be noted, or the journal was moved or removed.
        """
        self._lock.release_to(seq)

    def admit(self, entries: Sequence[Entry], outcomes: Sequence[RowOutcome] = ()) -> list[RowDecision]:
        """Record outcomes, log the rows to be sent, and return what to do with each row.

        The decisions have the order of the entries. On return everything is on the disk. A row that failed for good is sent again
        only if its content has changed.

        Raises:
            JournalError: the file can't be written, a key comes twice in this run, or the content of a row that may have been
                sent has changed. No row was logged. In the latter two cases the outcomes are recorded, and the journal remains
                usable.
        """
        refusal: str | None = None
        decisions: list[RowDecision] = []
        with self._transaction():
            self._record(outcomes)
            keys = [key for key, _ in entries]
            known = self._find(keys)
            # Rarely any key is known: a run has given each row a key of its own.
            refusal = self._refusal(entries, known) if known or len(set(keys)) < len(keys) else None
            if refusal is None:
                decisions = self._log(entries, known)
        if refusal is not None:
            raise JournalError(f"{self.path}: {refusal}")
        return decisions

    def record(self, outcomes: Sequence[RowOutcome]) -> None:
        """Record outcomes of rows. The last outcome of a row counts."""
        with self._transaction():
            self._record(outcomes)

    def rows(self, states: tuple[RowState, ...], after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return up to `limit` rows in these states, with numbers above `after`."""
        with self._guarded():
            return form.select_rows(self._connection, states, after, limit)

    def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Store the ids of the cards on the board, before the first row is logged.

        Raises:
            RuntimeError: a row was already logged, or there is a baseline.
        """
        if self._next > 1 or self.baseline is not None:
            raise RuntimeError("the baseline is set once, before the first row is logged")
        ordered = sorted(set(card_ids))
        with self._transaction():
            insert(self._connection, "INSERT INTO baseline (card_id)", [(card_id,) for card_id in ordered])
            self._connection.execute("INSERT INTO meta VALUES ('baseline', ?)", (len(ordered),))
        self.baseline = len(ordered)

    def set_fact(self, name: str, value: str) -> None:
        """Keep a text for later runs, in place of an earlier one of this name."""
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
        self.facts[name] = value

    @property
    def run(self) -> int:
        """The number of the run that has the journal open, from 1."""
        return self._run

    @property
    def last(self) -> int:
        """The number of the last row that was logged, or 0."""
        return self._next - 1

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        return self._next == 1

    def baseline_ids(self) -> list[str]:
        """Return the card ids of the baseline."""
        with self._guarded():
            return [card_id for (card_id,) in self._connection.execute("SELECT card_id FROM baseline")]

    def _find(self, keys: Sequence[RowKey]) -> dict[RowKey, _Known]:
        """Look up rows by key. Those whose keys are still in memory belong to this run."""
        known: dict[RowKey, _Known] = {}
        if self._has_index:
            for key, *values in select_each(self._connection, _FIND, keys):
                known[key] = _Known(*values)
        for key in chain(filter(self._recent.__contains__, keys), filter(self._merging.__contains__, keys)):
            known[key] = _Known(0, b"", self._run, "logged", None)
        return known

    def _refusal(self, entries: Sequence[Entry], known: Mapping[RowKey, _Known]) -> str | None:
        """Return why the rows can't be accepted, or None if they can."""
        seen: set[RowKey] = set()
        for key, digest in entries:
            row = known.get(key)
            if key in seen or (row is not None and (row.run == self._run or self._was_seen(row.seq))):
                return f"{_named(key)} comes twice in the input: give each row a reference of its own"
            if row is not None and row.digest != digest and row.state in _UNCHANGEABLE:
                return (
                    f"{_named(key)} was sent by an earlier run with other content: give a changed row a new reference,"
                    " or put the content back"
                )
            seen.add(key)
        return None

    def _log(self, entries: Sequence[Entry], known: Mapping[RowKey, _Known]) -> list[RowDecision]:
        """Log the rows to be sent, and return the decisions. Called within the transaction that looked them up."""
        logged = self._log_new([entry for entry in entries if entry[0] not in known] if known else entries)
        if not known:
            return list(logged)
        return [self._log_again(known[key], digest) if key in known else next(logged) for key, digest in entries]

    def _log_new(self, entries: Sequence[Entry]) -> Iterator[RowDecision]:
        """Log rows that the file does not have. A run has up to a million of them, so each loop over them runs in C."""
        numbers = range(self._next, self._next + len(entries))
        if entries:
            keys, digests = zip(*entries, strict=True)
            self._recent.update(zip(keys, numbers, strict=True))
            values = list(zip(numbers, keys, digests, repeat(self._run)))
            insert(self._connection, "INSERT INTO rows (seq, key, digest, run)", values)
            self._next = numbers.stop
            self._index(_INDEXED_PER_ENTRY * len(entries))
        return map(_new_decision, zip(numbers, repeat("send"), repeat(None)))

    def _log_again(self, row: _Known, digest: bytes) -> RowDecision:
        """Decide about a row of an earlier run, and log it again if it is to be sent."""
        self._seen[row.seq >> 3] |= 1 << (row.seq & 7)
        decision = _decision(row, digest)
        if decision.action == "send":
            self._connection.execute("UPDATE rows SET digest = ?, run = ? WHERE seq = ?", (digest, self._run, row.seq))
            self._connection.execute("DELETE FROM outcomes WHERE seq = ?", (row.seq,))
        return decision

    def _was_seen(self, seq: int) -> bool:
        return bool(self._seen[seq >> 3] & 1 << (seq & 7))

    def _index(self, count: int) -> None:
        """Add up to `count` keys to the index, once enough have been collected."""
        if not self._unmerged:
            if len(self._recent) < _RECENT:
                return
            self._merging, self._recent = self._recent, {}
            numbers = [key for key in self._merging if isinstance(key, int)]
            texts = [key for key in self._merging if isinstance(key, str)]
            self._unmerged = [*sorted(texts, reverse=True), *sorted(numbers, reverse=True)]
        part = self._unmerged[-count:]
        del self._unmerged[-count:]
        insert(self._connection, "INSERT INTO keys (key, seq)", [(key, self._merging[key]) for key in reversed(part)])
        if not self._unmerged:
            self._note_indexed(max(self._merging.values()))
            self._merging = {}

    def _note_indexed(self, seq: int) -> None:
        self._set_meta("indexed", seq)
        self._has_index = seq > 0

    def _set_meta(self, name: str, value: object) -> None:
        self._connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))

    def _record(self, outcomes: Sequence[RowOutcome]) -> None:
        insert(self._connection, "INSERT OR REPLACE INTO outcomes (seq, state, detail)", padded(outcomes))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raise an earlier error of the file again, and remember a new one."""
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
        """Run a transaction. At the end it is on the disk, and the file was not moved meanwhile."""
        with self._guarded():
            self._lock.check_files()
            tokens = parts.next_tokens(self._tokens)
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._set_meta("tokens", tokens)  # first of all: see parts
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors roll the transaction back by themselves
                    self._connection.execute("ROLLBACK")
                raise
            self._tokens = tokens
            self._lock.check_files()


def _decision(row: _Known, digest: bytes) -> RowDecision:
    """Return what to do with a row that an earlier run logged. An unknown state counts as doubtful."""
    if row.state == "done":
        return RowDecision(row.seq, "done", row.detail)
    if row.state == "failed" and row.digest == digest:
        return RowDecision(row.seq, "failed", row.detail)
    if row.state in {"failed", "waiting"}:
        return RowDecision(row.seq, "send")
    return RowDecision(row.seq, "doubtful", row.detail)


def _named(key: RowKey) -> str:
    return f"the row at position {key} (from 0)" if isinstance(key, int) else f"the row with the reference {key!r}"
