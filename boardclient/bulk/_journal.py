"""The journal of a run: a ledger in a SQLite file, from which a later run resumes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from boardclient import _wire
from boardclient._statuses import is_final
from boardclient.bulk._content import Content
from boardclient.bulk._journal_file import JournalFile
from boardclient.bulk._ledger import Doubt, to_the_end
from boardclient.bulk._life import Row, RowAction, RowKey, RowState
from boardclient.bulk._listing import IdSet
from boardclient.bulk._results import ResultState
from boardclient.errors import BoardClientError, JournalError
from boardclient.models import Card, CardDraft

T = TypeVar("T")

Decision: TypeAlias = tuple[int, RowAction, "str | None"]
"""What to do with a row: its number, the action, and the card's id if it is done, the reason if it is in doubt."""
Outcome: TypeAlias = tuple[int, RowState, "str | None"]
"""The outcome of a row: its number, its state, and the card's id if it is done, otherwise the reason."""

_RECENT: Final = 1 << 15
"""The number of keys that are kept in memory before they are added to the index in sorted order. With references in random order,
each row would otherwise rewrite a page of the index."""
_NOTE_SECONDS: Final = 0.5
"""How long an outcome may wait to be written together with the next rows."""
_EARLY_OUTCOMES: Final = 64
"""The first outcomes of a run wait less: the fewer there are, the sooner they are written. So a run that is killed early leaves
confirmed cards, without which the next one can prove nothing."""
_MOST_PENDING: Final = 1024
"""How many outcomes may wait to be written."""
_STRIDE: Final = 16
"""How many rows are released together, which saves a system call per row. After a kill, up to this many more are in doubt."""

_FIND: Final = (
    "SELECT k.key, seq, content, run, coalesce(state, 'logged'), detail FROM keys k CROSS JOIN rows USING (seq)"
    " LEFT JOIN outcomes USING (seq) WHERE k.key IN"
)
_FIND_BY_CONTENT: Final = (
    "SELECT rows.key, seq, rows.content, run, coalesce(state, 'logged') AS state, detail FROM temp.earlier AS e"
    " CROSS JOIN rows USING (seq) LEFT JOIN outcomes USING (seq) WHERE state NOT IN ('failed', 'waiting', 'undone')"
    " AND e.content IN"
)
_INDEX: Final = "INSERT INTO keys SELECT key, seq FROM rows WHERE seq > ? ORDER BY key"
_DOUBTS: Final = (
    "SELECT seq, key, content FROM rows LEFT JOIN outcomes USING (seq)"
    " WHERE run < ? AND coalesce(state, 'logged') IN ('logged', 'unknown') ORDER BY seq"
)
_UNCHANGEABLE: Final = frozenset({"logged", "done", "unknown"})


class _Known(NamedTuple):
    """What the file holds about a row of the input."""

    key: RowKey
    seq: int
    content: str
    run: int
    state: RowState
    detail: str | None


class RunFile:
    """What a run does with its journal's file. Synchronous; each method is one transaction, and one thread runs them."""

    def __init__(self, file: JournalFile, *, is_rehearsal: bool = False) -> None:
        self.file = file
        self.run = file.meta.runs + 1
        self.baseline = file.meta.baseline
        self.facts: dict[str, str] = dict(file.connection.execute("SELECT name, value FROM facts").fetchall())
        self._connection = file.connection
        self._recent: set[RowKey] = set()
        """The keys of this run that are not in the index yet."""
        self._next = file.last + 1
        self._seen = bytearray((self._next >> 3) + 1)
        """A bit for each row of earlier runs, set once the input of this run has reached it."""
        self._has_earlier = self._next > 1
        self._knows_contents = False
        """Whether rows of earlier runs can be found by their content."""
        self._indexed = file.meta.indexed
        """The number up to which rows can be found by their keys."""
        with file.transaction():
            self._index()
            file.set_meta("runs", self.run)
            file.set_meta("path", str(file.path))
            file.set_meta("inode", file.path.stat().st_ino)
        if not is_rehearsal:
            file.lock.begin(file.meta.secret, self.run, self.last)

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str]) -> Self:
        """Open the journal for a run, or create it if there is none."""
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(contextlib.closing(JournalFile.open(path, identity)))
            run = cls(file)
            opened.pop_all()
            return run

    @property
    def last(self) -> int:
        """The number of the last row that was logged, or 0."""
        return self._next - 1

    def admit(self, entries: Sequence[tuple[RowKey, CardDraft]], outcomes: Sequence[Outcome] = ()) -> list[Decision]:
        """Record outcomes, log the rows to be sent, and return what to do with each row. On return everything is on the disk.

        Raises:
            JournalError: the file can't be written, a key comes twice in this run, or a row that may have been sent has other
                content or another reference now. No row was logged, and in the latter cases the journal remains usable.
        """
        keys, contents = [key for key, _ in entries], [content_text(draft) for _, draft in entries]
        with self.file.transaction():
            self._record(outcomes)
            known = self._find(keys, contents)
            # Rarely any row is known: a run has given each a key of its own.
            refusal = self._refusal(keys, contents, known) if known or len(set(keys)) < len(keys) else None
            if refusal is None:
                return self._log(keys, contents, known)
        raise JournalError(f"{self.file.path}: {refusal}")

    def record(self, outcomes: Sequence[Outcome], resembling: Sequence[tuple[int, str]] = ()) -> None:
        """Record outcomes, of which the last counts, and cards that may be rows'."""
        with self.file.transaction():
            self._record(outcomes)
            self._connection.executemany("INSERT OR REPLACE INTO resembling VALUES (?, ?)", resembling)

    def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Store the ids of the cards on the board, once, before the first row is logged."""
        ordered = sorted({_storable(card_id) for card_id in card_ids})
        with self.file.transaction():
            _insert(self._connection, "INSERT INTO baseline (card_id)", [(card_id,) for card_id in ordered])
            self.file.set_meta("baseline", len(ordered))
        self.baseline = len(ordered)

    def set_fact(self, name: str, value: str) -> None:
        """Keep a text for later runs, in place of an earlier one of this name."""
        with self.file.transaction():
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
        self.facts[name] = value

    def ids(self, statement: str) -> Generator[str, None, None]:
        """Yield the identifiers that a statement selects."""
        with self.file.guarded():
            for (card_id,) in self._connection.execute(statement):
                yield card_id

    def doubts(self) -> list[Doubt]:
        """Return the rows in doubt that the input of this run has not reached."""
        with self.file.guarded():
            rows = self._connection.execute(_DOUBTS, (self.run,)).fetchall()
        return [Doubt(seq, key, read_content(content)) for seq, key, content in rows if not self._was_seen(seq)]

    # --- rows

    def _find(self, keys: Sequence[RowKey], contents: Sequence[str]) -> dict[RowKey, _Known]:
        """Look up rows by key, and those of another key by content, in one go for each."""
        known: dict[RowKey, _Known] = {}
        if self._indexed:
            for key, *values in _select_each(self._connection, _FIND, keys):
                known[key] = _Known(key, *values)
        for key in filter(self._recent.__contains__, keys):
            known[key] = _Known(key, 0, "", self.run, "logged", None)
        if self._has_earlier and len(known) < len(keys):
            self._find_renamed([(key, text) for key, text in zip(keys, contents, strict=True) if key not in known], known)
        return known

    def _find_renamed(self, new: Sequence[tuple[RowKey, str]], known: dict[RowKey, _Known]) -> None:
        """Find rows of earlier runs that have another key now, by their content."""
        if not self._knows_contents:
            self._connection.create_function("hash", 1, hash, deterministic=True)
            self._connection.execute("CREATE TEMP TABLE earlier AS SELECT hash(content) AS content, seq FROM rows ORDER BY 1, 2")
            self._connection.execute("CREATE INDEX temp.by_content ON earlier (content)")
            self._knows_contents = True
        found: dict[str, list[_Known]] = {}
        for values in _select_each(self._connection, _FIND_BY_CONTENT, list({hash(text) for _, text in new})):
            row = _Known(*values)
            found.setdefault(row.content, []).append(row)
        taken: set[int] = set()
        for key, text in new:
            for row in found.get(text, ()):
                is_free = row.run < self.run and not self._was_seen(row.seq) and row.seq not in taken
                if is_free and row.key not in known:
                    known[key] = row
                    taken.add(row.seq)
                    break

    def _refusal(self, keys: Sequence[RowKey], contents: Sequence[str], known: Mapping[RowKey, _Known]) -> str | None:
        """Return why the rows can't be accepted, or None if they can."""
        seen: set[RowKey] = set()
        for key, content in zip(keys, contents, strict=True):
            row = known.get(key)
            if key in seen or (row is not None and (row.run == self.run or self._was_seen(row.seq))):
                return f"{named(key)} comes twice in the input: give each row a reference of its own"
            if row is not None and row.content != content and row.state in _UNCHANGEABLE:
                return (
                    f"{named(key)} was sent by an earlier run with other content: give a changed row a new reference,"
                    " or put the content back"
                )
            if row is not None and isinstance(row.key, str) and row.key != key:
                return (
                    f"{named(key)} has the content of {named(row.key)}, which an earlier run sent: put the reference back;"
                    " if it is another row, put it after that one, or into an import with a journal of its own"
                )
            seen.add(key)
        return None

    def _log(self, keys: Sequence[RowKey], contents: Sequence[str], known: Mapping[RowKey, _Known]) -> list[Decision]:
        """Log the rows to be sent, within the transaction that looked them up, and return the decisions."""
        new = [(key, text) for key, text in zip(keys, contents, strict=True) if key not in known]
        logged = self._log_new(new)
        if not known:
            return list(logged)
        return [
            self._log_again(key, text, known[key]) if key in known else next(logged)
            for key, text in zip(keys, contents, strict=True)
        ]

    def _log_new(self, rows: Sequence[tuple[RowKey, str]]) -> Iterator[Decision]:
        """Log rows that the file does not have."""
        numbers = range(self._next, self._next + len(rows))
        if rows:
            keys, contents = zip(*rows, strict=True)
            self._recent.update(keys)
            values = list(zip(numbers, keys, contents, repeat(self.run)))
            _insert(self._connection, "INSERT INTO rows (seq, key, content, run)", values)
            self._next = numbers.stop
            if len(self._recent) >= _RECENT:
                self._index()
        return ((number, "send", None) for number in numbers)

    def _log_again(self, key: RowKey, content: str, row: _Known) -> Decision:
        """Decide about a row of an earlier run, and log it again if it is to be sent."""
        self._seen[row.seq >> 3] |= 1 << (row.seq & 7)
        if row.key != key:
            self._connection.execute("UPDATE rows SET key = ? WHERE seq = ?", (key, row.seq))
            self._connection.execute("UPDATE keys SET key = ? WHERE key = ?", (key, row.key))
        if row.state == "done":
            return row.seq, "done", row.detail
        if row.state in _UNCHANGEABLE:
            return row.seq, "doubtful", row.detail
        self._connection.execute("UPDATE rows SET content = ?, run = ? WHERE seq = ?", (content, self.run, row.seq))
        self._connection.execute("DELETE FROM outcomes WHERE seq = ?", (row.seq,))
        return row.seq, "send", None

    def _was_seen(self, seq: int) -> bool:
        return bool(self._seen[seq >> 3] & 1 << (seq & 7))

    def _index(self) -> None:
        """Add the keys that are not in the index yet, in their order."""
        self._connection.execute(_INDEX, (self._indexed,))
        self._indexed = self.last
        self.file.set_meta("indexed", self.last)
        self._recent.clear()

    def _record(self, outcomes: Sequence[Outcome]) -> None:
        _insert(self._connection, "INSERT OR REPLACE INTO outcomes (seq, state, detail)", outcomes)


def content_text(draft: CardDraft) -> str:
    """Return the text that is stored for a draft: its content, and its `pos` if set."""
    content = Content.of(draft)
    values = content if draft.pos is None else (*content, draft.pos)
    return _wire.encode(values).decode()


def read_content(text: str) -> Content:
    """Return a content that was stored."""
    return Content(*json.loads(text)[:4])


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def named(key: RowKey) -> str:
    """Return the words for a row in messages."""
    return f"the row at position {key} (from 0)" if isinstance(key, int) else f"the row with the reference {key!r}"


# Each statement releases the GIL, and the event loop's thread may keep it for 5 ms (`sys.getswitchinterval`), so a batch takes as
# few statements as possible. There are few sizes, so that prepared statements are reused, and a row has at most four parameters,
# which stays below the 999 of old SQLite versions (https://www.sqlite.org/limits.html, section 9).
_CHUNKS: Final = (128, 64, 32, 16, 8, 4, 2, 1)


def _insert(connection: sqlite3.Connection, head: str, values: Sequence[tuple[object, ...]]) -> None:
    """Insert tuples. `head` is the statement up to VALUES."""
    for part in _chunks(values):
        connection.execute(_with_values(head, len(part), len(part[0])), list(chain.from_iterable(part)))


def _select_each(connection: sqlite3.Connection, head: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    """Run a statement that ends in IN with the values, and return the rows."""
    found: list[tuple[Any, ...]] = []
    for part in _chunks(values):
        found += connection.execute(f"{head} ({','.join('?' * len(part))})", list(part)).fetchall()
    return found


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    start = 0
    for size in _CHUNKS:
        while len(values) - start >= size:
            yield values[start : start + size]
            start += size


@functools.cache
def _with_values(head: str, rows: int, columns: int) -> str:
    group = f"({','.join('?' * columns)})"
    return f"{head} VALUES {','.join([group] * rows)}"


class JournalLedger:
    """A ledger in a journal, for one event loop. A thread works on the file. Owned by the run, which closes it.

    Rows to be sent are on the disk when `admit` returns, and released before their first request: rows that were logged and not
    released before a kill were certainly not sent. Outcomes are noted without waiting, and written with the next rows, or soon. A
    row whose outcome is lost in a kill is in doubt. Cancelling a caller leaves nothing half done.
    """

    def __init__(self, file: RunFile, thread: ThreadPoolExecutor, batch: int) -> None:
        self.batch = batch
        self.secret = file.file.meta.secret
        self.released = file.last  # those of earlier runs count as released
        self._file = file
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._pending: list[Outcome] = []
        self._written = 0
        """How many outcomes were passed on to be written."""
        self._timer: asyncio.TimerHandle | None = None
        self._closing: Future[None] | None = None
        self._logged = file.last
        """The number of the last row that is known to be on the disk."""

    @classmethod
    async def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], batch: int) -> Self:
        """Open the journal for a run, or create it if there is none. No other run can open it until it is closed.

        `identity` says what the rows belong to (service, board, account) and must not contain secrets. A cancellation is raised
        once the file is closed again.

        Raises:
            JournalError: the journal can't be used. Nothing was sent. The message says what to do.
        """
        thread = ThreadPoolExecutor(1, "boardclient-journal")
        opening = thread.submit(RunFile.open, path, dict(identity))
        try:
            file = await _ended(opening)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and opening.exception() is None:
                thread.submit(opening.result().file.close)
            thread.shutdown(wait=isinstance(error, asyncio.CancelledError))  # it has nearly nothing left to do
            raise
        return cls(file, thread, batch)

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        return self._file.last == 0

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set on the others what earlier runs did.

        If the caller is cancelled meanwhile, the rows that were logged are recorded as not sent.

        Raises:
            JournalError: the file can't be written, or was moved; a reference comes twice; or a row that may have been sent has
                other content or another reference now. None of the rows may be sent.
        """
        job = self._submit(self._file.admit, [(row.key, row.draft) for row in rows], self._take_pending())
        try:
            decisions = await _result(job)
        except asyncio.CancelledError:
            if self._closing is None:
                self._thread.submit(_withdraw, self._file, job)
            raise
        for row, (seq, action, detail) in zip(rows, decisions, strict=True):
            row.seq = seq
            if action != "send":
                row.action, row.detail, row.is_earlier = action, detail, action == "doubtful"
        self._logged = self._file.last

    def release(self, row: Row) -> None:
        """Note that a row may be sent. Called before its first request, if its number is above `released`.

        Raises:
            JournalError: this can't be noted. The row must not be sent.
        """
        self._check_open()
        # The last row stays unreleased until it is sent. After a kill its card proves whether those in doubt exist.
        released = min(row.seq + _STRIDE - 1, max(row.seq, self._logged - 1))
        self._file.file.lock.release_to(released)
        self.released = released

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, without waiting, unless the journal has it already.

        If it can't be written, the next `admit` or `aclose` raises.
        """
        if card is None:
            outcome: RowState = "unknown" if state == "unknown" else "failed" if is_final(error) else "waiting"
            self._note(row.seq, outcome, _storable(str(error)))
        elif row.action != "done":
            self._note(row.seq, "done", card.id if card.id.isascii() else _storable(card.id))

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Record that rows were logged and not sent."""
        for row in rows:
            self._note(row.seq, "waiting", "not sent")

    async def note_resembling(self, cards: Mapping[int, Sequence[Card]]) -> None:
        """Keep the cards that may be those of unknown rows, by the rows' numbers."""
        values = [(seq, _wire.encode([_resembling(card) for card in found]).decode()) for seq, found in cards.items()]
        await _result(self._submit(self._file.record, self._take_pending(), values))

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, None if not known."""
        if self._file.baseline is None:
            return None
        return await _result(self._submit(IdSet, self._file.ids("SELECT card_id FROM baseline")))

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the identifiers of the cards that existed before the first row."""
        await _result(self._submit(self._file.set_baseline, tuple(ids)))

    @property
    def facts(self) -> Mapping[str, str]:
        """What earlier runs and this one have learned, as texts by name."""
        return self._file.facts

    async def set_fact(self, name: str, value: str) -> None:
        """Keep a text for later runs, in place of an earlier one of this name. It is on the disk on return.

        Raises:
            JournalError: the journal can't be written.
        """
        await _result(self._submit(self._file.set_fact, name, value))

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows."""
        self._write_pending()
        return await _result(self._submit(IdSet, self._file.ids(_DONE)))

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds."""

        def find() -> set[str]:
            with contextlib.closing(self._file.ids(_DONE)) as ids:
                return set(itertools.islice(filter(condition, ids), most))

        self._write_pending()
        return await _result(self._submit(find))

    async def other_doubts(self) -> Sequence[Doubt]:
        """Return the rows that earlier runs left in doubt and that this one did not get."""
        return () if self._file.run == 1 else await _result(self._submit(self._file.doubts))

    async def aclose(self) -> None:
        """Write what was recorded, and close the journal so that another run can open it. Calling it again does nothing.

        A cancellation is raised after that.

        Raises:
            JournalError: the file can't be written, or could not be earlier. The lock is released; the next run will find rows in
                doubt.
        """
        if self._closing is None:
            self._closing = self._submit(_finish, self._file, self._take_pending())
            self._thread.shutdown(wait=False)
        await _ended(self._closing)

    def _note(self, seq: int, state: RowState, detail: str) -> None:
        if self._closing is not None:
            self._check_open()
        self._pending.append((seq, state, detail))
        if len(self._pending) >= _MOST_PENDING:
            self._write_pending()
        elif self._timer is None:
            wait = _NOTE_SECONDS * min(1.0, self._written / _EARLY_OUTCOMES)
            self._timer = self._loop.call_later(wait, self._write_pending)

    def _take_pending(self) -> list[Outcome]:
        noted, self._pending = self._pending, []
        self._written += len(noted)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return noted

    def _write_pending(self) -> None:
        """Write the noted outcomes without waiting: the file raises an error at its next use."""
        self._submit(self._file.record, self._take_pending())

    def _submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        self._check_open()
        return self._thread.submit(work, *arguments)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise RuntimeError("the journal is closed")


_DONE: Final = "SELECT detail FROM outcomes WHERE state = 'done'"


def _resembling(card: Card) -> list[object]:
    shown = (card.id, card.name or "", card.list_id or "", card.desc)
    texts = [None if text is None else _storable(text) for text in shown]
    return [*texts, None if card.due is None else int(card.due.timestamp())]


async def _result(job: Future[T]) -> T:
    """Wait for a job of the thread, which a cancellation does not affect."""
    return await asyncio.shield(asyncio.wrap_future(job))


async def _ended(job: Future[T]) -> T:
    """Wait for a job of the thread, and raise a cancellation after its end."""
    return await to_the_end(asyncio.wrap_future(job))


def _withdraw(file: RunFile, admission: Future[list[Decision]]) -> None:
    """Record the rows as not sent that were logged for a caller which was cancelled."""
    if admission.exception() is None:  # pragma: no branch -- a failed commit has logged nothing
        file.record([(seq, "waiting", "not sent: cancelled") for seq, action, _ in admission.result() if action == "send"])


def _finish(file: RunFile, noted: Sequence[Outcome]) -> None:
    try:
        file.record(noted)  # even without outcomes: this raises an earlier error of the file
    finally:
        file.file.close()
