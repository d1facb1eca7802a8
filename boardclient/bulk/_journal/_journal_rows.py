"""The rows in the file of a journal, and what a run does with them.

The design is described in docs/design/journal.md.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from boardclient._interface import _fields
from boardclient.bulk._content import Content, IdSet
from boardclient.bulk._journal._file import FORMAT, JournalFile
from boardclient.bulk._ledger import Doubt
from boardclient.bulk._life import Outcome, RowKey, RowState
from boardclient.errors import JournalError
from boardclient.models import CardDraft

T = TypeVar("T")

Decision: TypeAlias = "tuple[int, Outcome | None]"
"""What the file has of a row: its number, and its outcome, None if the row was logged to be sent."""
Note: TypeAlias = tuple[int, RowState, "str | None"]
"""The outcome of a row as it is stored: its number, its state, and the card's id if it is done, otherwise the reason."""

_AT_ONCE: Final = 128
"""How many rows a statement takes. Each gives up the GIL, and the event loop's thread may keep it for 5 ms
(`sys.getswitchinterval`). A row has at most four parameters, of which old SQLite versions allow 999
(https://www.sqlite.org/limits.html, section 9)."""

_FIND: Final = (
    "SELECT key, seq, content, run, coalesce(state, 'logged'), detail FROM rows LEFT JOIN outcomes USING (seq) WHERE key IN"
)
_FIND_BY_CONTENT: Final = (
    "SELECT rows.key, seq, rows.content, run, coalesce(state, 'logged'), detail FROM temp.earlier AS e"
    " CROSS JOIN rows USING (seq) LEFT JOIN outcomes USING (seq)"
    " WHERE coalesce(state, 'logged') NOT IN ('failed', 'waiting', 'undone') AND e.content IN"
)
_DOUBTS: Final = (
    "SELECT seq, coalesce(first, seq), content FROM rows LEFT JOIN first_numbers USING (seq) LEFT JOIN outcomes USING (seq)"
    " WHERE run < ? AND coalesce(state, 'logged') IN ('logged', 'unknown') ORDER BY seq"
)
BASELINE: Final = "SELECT card_id FROM baseline"
DONE: Final = "SELECT detail FROM outcomes WHERE state = 'done'"
_DISOWN: Final = "DELETE FROM baseline WHERE card_id IN (SELECT detail FROM outcomes WHERE state = 'done')"
_FIELDS: Final = ("name", "list", "description", "due date", "position")
"""The words for what a stored content holds, in its order."""
_UNCHANGEABLE: Final = frozenset({"logged", "done", "unknown"})


class _Known(NamedTuple):
    """What the file holds about a row of the input."""

    key: RowKey
    seq: int
    content: str
    run: int
    state: RowState
    detail: str | None


class JournalRows:
    """The rows in the file of a journal, for one run. Synchronous; each method is one transaction, and one thread runs them."""

    def __init__(self, file: JournalFile, total: int | None = None, *, is_rehearsal: bool = False) -> None:
        self.journal = file
        self.run = file.meta.runs + 1
        self.baseline = file.meta.baseline
        self.last = file.last
        """The number of the last row that was logged, or 0."""
        self.is_new = not file.was_sent
        """Whether no row was sent before this run."""
        self.shown = set(file.meta.shown.split())
        """The fields that responses have shown of cards."""
        self._connection = file.connection
        self._seen = bytearray(self.last + 1)
        """Of each row of earlier runs, whether the input of this run has reached it."""
        self._knows_contents = False
        """Whether rows of earlier runs can be found by their content."""
        with file.transaction():
            file.set_meta("runs", self.run)
            file.set_meta("path", str(file.path))
            file.set_meta("inode", file.path.stat().st_ino)
            file.set_meta("total", total)
            file.connection.execute(f"PRAGMA user_version = {FORMAT}")
        file.runs = self.run
        self.first: dict[int, int] = dict(file.connection.execute("SELECT seq, first FROM first_numbers"))
        """The first numbers of rows that have got another one since."""
        self.done = IdSet(self.ids(DONE))
        """The cards of rows of earlier runs."""
        if not is_rehearsal:
            file.lock.begin(file.meta.secret, self.run, self.last)

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], total: int | None = None) -> Self:
        """Open the journal for a run, or create it if there is none."""
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(contextlib.closing(JournalFile.open(path, identity)))
            run = cls(file, total)
            opened.pop_all()
            return run

    def admit(self, entries: Sequence[tuple[RowKey, CardDraft]], outcomes: Sequence[Note] = ()) -> list[Decision]:
        """Record outcomes, log the rows to be sent, and return what to do with each row. On return everything is on the disk.

        Rows that an earlier run saw refused are not logged yet: `log_again` does that.

        Raises:
            JournalError: the file can't be written, a key comes twice in this run, or a row that may have been sent has other
                content or another reference now. No row was logged, and in the latter cases the journal remains usable.
        """
        keys, contents = [key for key, _ in entries], [content_text(draft) for _, draft in entries]
        with self.journal.transaction():
            self._record(outcomes)
            known = self._find(keys, contents)
            # Rarely any row is known: a run has given each a key of its own.
            refusal = self._refusal(keys, contents, known) if known or len(set(keys)) < len(keys) else None
            if refusal is None:
                return self._log(keys, contents, known)
        raise JournalError(f"{self.journal.path}: {refusal}")

    def log_again(self, rows: Sequence[tuple[int, CardDraft]], outcomes: Sequence[Note] = ()) -> list[int]:
        """Record outcomes, and log rows that were refused and are sent again. Return their new numbers."""
        with self.journal.transaction():
            self._record(outcomes)
            return [self._renumber(seq, content_text(draft)) for seq, draft in rows]

    def record(self, outcomes: Sequence[Note], resembling: Sequence[tuple[int, str]] = ()) -> None:
        """Record outcomes, of which the last counts, and cards that may be rows'."""
        with self.journal.transaction():
            self._record(outcomes)
            self._connection.executemany("INSERT OR REPLACE INTO resembling VALUES (?, ?)", resembling)

    def record_adopted(self, outcomes: Sequence[Note]) -> None:
        """Record rows that no run has sent, since their cards were on the board before. These now count as the rows' own."""
        with self.journal.transaction():
            self._record(outcomes)
            self._connection.executemany("UPDATE rows SET run = 0 WHERE seq = ?", [(seq,) for seq, _, _ in outcomes])
            self._connection.executemany("DELETE FROM baseline WHERE card_id = ?", [(card_id,) for _, _, card_id in outcomes])

    def finish(self, outcomes: Sequence[Note], released: int) -> None:
        """Record the last outcomes and which rows were not sent, and close the file."""
        try:
            with self.journal.transaction():  # even without outcomes: this raises an earlier error of the file
                self._record(outcomes)
                self.journal.record_unsent(released)
        finally:
            self.journal.close()

    def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Store the ids of the cards on the board, before the first row is sent. Those of an earlier run remain.

        The cards of rows that were adopted are left out.
        """
        ordered = sorted({storable(card_id) for card_id in card_ids})
        with self.journal.transaction():
            self._insert("INSERT OR IGNORE INTO baseline (card_id)", [(card_id,) for card_id in ordered])
            self._connection.execute(_DISOWN)
            (self.baseline,) = self._connection.execute("SELECT count(*) FROM baseline").fetchone()
            self.journal.set_meta("baseline", self.baseline)

    def record_shown(self, fields: set[str]) -> None:
        """Store fields that a response has shown of a card."""
        self.shown |= fields
        with self.journal.transaction():
            self.journal.set_meta("shown", " ".join(sorted(self.shown)))

    def ids(self, statement: str) -> Generator[str, None, None]:
        """Yield the identifiers that a statement selects."""
        with self.journal.guarded():
            for (card_id,) in self._connection.execute(statement):
                yield card_id

    def doubts(self) -> list[Doubt]:
        """Return the rows in doubt that the input of this run has not reached."""
        with self.journal.guarded():
            rows = self._connection.execute(_DOUBTS, (self.run,)).fetchall()
        return [Doubt(first, read_content(content)) for seq, first, content in rows if not self._seen[seq]]

    # --- rows

    def _find(self, keys: Sequence[RowKey], contents: Sequence[str]) -> dict[RowKey, _Known]:
        """Look up rows by key, and by content those that may have another key now."""
        known = {values[0]: _Known(*values) for values in self._select(_FIND, keys)}
        if len(self._seen) > 1:
            rows = list(zip(keys, contents, strict=True))
            if any(_may_be_another(key, text, known.get(key)) for key, text in rows):
                self._find_moved(rows, known)
        return known

    def _find_moved(self, rows: Sequence[tuple[RowKey, str]], known: dict[RowKey, _Known]) -> None:
        """Find rows of earlier runs that have another key now, by their content."""
        if not self._knows_contents:
            self._connection.create_function("hash", 1, hash, deterministic=True)
            self._connection.execute("CREATE TEMP TABLE earlier AS SELECT hash(content) AS content, seq FROM rows ORDER BY 1, 2")
            self._connection.execute("CREATE INDEX temp.by_content ON earlier (content)")
            self._knows_contents = True
        unmoved = {key for key, text in rows if key in known and known[key].content == text}
        found: dict[str, list[_Known]] = {}
        for values in self._select(_FIND_BY_CONTENT, list({hash(text) for key, text in rows if key not in unmoved})):
            row = _Known(*values)
            if row.run < self.run and not self._seen[row.seq] and row.key not in unmoved:
                found.setdefault(row.content, []).append(row)
        for equal in found.values():  # equal rows keep their order
            equal.sort(key=lambda row: (isinstance(row.key, str), row.key))
        for key, text in rows:
            own = known.get(key)
            if key not in unmoved and found.get(text) and _may_be_another(key, text, own):
                known[key] = row = found[text].pop(0)
                known.pop(row.key, None)
                if own is not None:  # the two rows exchange their positions
                    known[row.key] = own._replace(key=row.key)

    def _refusal(self, keys: Sequence[RowKey], contents: Sequence[str], known: Mapping[RowKey, _Known]) -> str | None:
        """Return why the rows can't be accepted, or None if they can."""
        seen: set[RowKey] = set()
        for key, content in zip(keys, contents, strict=True):
            row = known.get(key)
            if key in seen or (row is not None and (row.run == self.run or self._seen[row.seq])):
                return f"{named(key)} comes twice in the input: give each row a reference of its own"
            if row is not None and row.content != content and row.state in _UNCHANGEABLE:
                hint = "" if isinstance(key, str) else "; without references, a row that was inserted shifts those behind it"
                return (
                    f"{named(key)} was sent by an earlier run with another {_difference(row.content, content)}:"
                    f" give a changed row a new reference, or put it back{hint}"
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
        decisions: list[Decision] = []
        new: list[tuple[int, RowKey, str, int]] = []
        for key, content in zip(keys, contents, strict=True):
            if key in known:
                decisions.append(self._log_again(key, content, known[key]))
            else:
                self.last += 1
                new.append((self.last, key, content, self.run))
                decisions.append((self.last, None))
        self._insert("INSERT INTO rows (seq, key, content, run)", new)
        return decisions

    def _log_again(self, key: RowKey, content: str, row: _Known) -> Decision:
        """Decide about a row of an earlier run, and log it again if it is to be sent with the others."""
        self._seen[row.seq] = True
        if row.key != key:
            # A row that was not created may have this key. The two exchange their keys, each of which is unique at any time.
            self._connection.execute("UPDATE rows SET key = -1 WHERE key = ?", (key,))
            self._connection.execute("UPDATE rows SET key = ? WHERE seq = ?", (key, row.seq))
            self._connection.execute("UPDATE rows SET key = ? WHERE key = -1", (row.key,))
        if row.state in _UNCHANGEABLE or row.state == "failed":
            return row.seq, Outcome(row.state, row.detail or "")
        # What was deleted may be listed for a while, with the marker of the row.
        return self._renumber(row.seq, content, keeps_marker=row.state != "undone"), None

    def _renumber(self, seq: int, content: str, *, keeps_marker: bool = True) -> int:
        """Give a row that is sent again a new number, as the mark expects."""
        self.last += 1
        values = (self.last, content, self.run, seq)
        self._connection.execute("UPDATE rows SET seq = ?, content = ?, run = ? WHERE seq = ?", values)
        self._connection.execute("DELETE FROM outcomes WHERE seq = ?", (seq,))
        self._connection.execute("DELETE FROM first_numbers WHERE seq = ?", (seq,))
        first = self.first.pop(seq, seq)
        self.first[self.last] = first if keeps_marker else self.last
        self._connection.execute("INSERT INTO first_numbers VALUES (?, ?)", (self.last, self.first[self.last]))
        return self.last

    def _record(self, outcomes: Sequence[Note]) -> None:
        self._insert("INSERT OR REPLACE INTO outcomes (seq, state, detail)", outcomes)

    # --- statements

    def _insert(self, head: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Insert tuples. `head` is the statement up to VALUES."""
        for part in _parts(rows):
            group = f"({','.join('?' * len(part[0]))})"
            self._connection.execute(f"{head} VALUES {','.join([group] * len(part))}", list(chain.from_iterable(part)))

    def _select(self, head: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """Run a statement that ends in IN with the values, and yield the rows."""
        for part in _parts(values):
            yield from self._connection.execute(f"{head} ({','.join('?' * len(part))})", part).fetchall()


def _may_be_another(key: RowKey, content: str, row: _Known | None) -> bool:
    """Return True if a row of the input may be another one than the row that its key had.

    A position is another row's once a row that was not created has been taken out before it.
    """
    return row is None or (isinstance(key, int) and row.content != content and row.state not in _UNCHANGEABLE)


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]


def content_text(draft: CardDraft) -> str:
    """Return the text that is stored for a draft: its content, and its `pos` if set."""
    content = Content.of(draft)
    values = content if draft.pos is None else (*content, draft.pos)
    return _fields.encode(values).decode()


def _difference(before: str, now: str) -> str:
    """Return the words for the fields in which two stored contents differ."""
    pairs = zip_longest(json.loads(before), json.loads(now))
    return " and ".join(words for words, (old, new) in zip(_FIELDS, pairs, strict=False) if old != new)


def read_content(text: str) -> Content:
    return Content(*json.loads(text)[:4])


def storable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def named(key: RowKey) -> str:
    return f"the row at position {key} (from 0)" if isinstance(key, int) else f"the row with the reference {key!r}"
