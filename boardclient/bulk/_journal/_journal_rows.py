"""The rows in the file of a journal, and what a run does with them.

The design is described in docs/design/journal.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from boardclient._interface import _fields
from boardclient.bulk._content import Content, IdSet
from boardclient.bulk._journal._file import JOB, JournalFile
from boardclient.bulk._ledger import Doubt, Note, storable
from boardclient.bulk._life import FIXED, Outcome, RowKey, RowState
from boardclient.errors import JournalError
from boardclient.models import CardDraft
from boardclient.store._by_hand import doubts_of, named
from boardclient.store._rows import DONE, StoredRow, listed

T = TypeVar("T")

Decision: TypeAlias = "tuple[int, Outcome | None]"
"""What the file has of a row: its number, and its outcome, None if the row was logged to be sent."""

_AT_ONCE: Final = 128
"""How many rows a statement finds. Each gives up the GIL, and the event loop's thread may keep it for 5 ms
(`sys.getswitchinterval`)."""
_ROW: Final = "SELECT r.ref, r.seq, r.content, coalesce(o.state, 'logged'), o.detail"
_FIND: Final = (
    f"{_ROW} FROM boardclient_rows AS r LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq WHERE r.job = {JOB} AND r.ref IN"
)
_FIND_BY_CONTENT: Final = (
    f"{_ROW} FROM temp.earlier AS e CROSS JOIN boardclient_rows AS r ON r.seq = e.seq"
    " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq"
    f" WHERE coalesce(o.state, 'logged') IN {listed(sorted(FIXED))} AND e.content IN"
)
_MARKERS: Final = "SELECT seq, marker FROM boardclient_rows WHERE marker IS NOT NULL"
_ADD_ROWS: Final = "INSERT INTO boardclient_rows"
_COLUMNS: Final = (("seq", int), ("job", str(JOB)), ("ref", str), ("content", str))
_ADD_OUTCOMES: Final = "INSERT INTO boardclient_outcomes"
_REPLACE: Final = (
    "ON CONFLICT (seq) DO UPDATE SET state = excluded.state, detail = excluded.detail, at = excluded.at,"
    # What a run finds out is not what a person has said, who may change that.
    " resembling = CASE WHEN excluded.state = 'unknown' THEN boardclient_outcomes.resembling END"
)
_NAME: Final = "ON CONFLICT (seq) DO UPDATE SET resembling = excluded.resembling"
_FIELDS: Final = ("name", "list", "description", "due date", "position")
"""The words for what a stored content holds, in its order."""


class _Known(NamedTuple):
    """What the file holds about a row of the input."""

    key: RowKey
    seq: int
    content: str
    state: RowState
    detail: str | None


class JournalRows:
    """The rows in the file of a journal, for one run. Synchronous; each method is one transaction, and one thread runs them."""

    def __init__(self, file: JournalFile, total: int | None = None, *, is_rehearsal: bool = False) -> None:
        self.journal = file
        self.last = self._last_before = file.last
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
        file.begin_run(total)
        self._outcome = (("seq", int), ("job", str(JOB)), ("state", str), ("detail", str), ("at", str(file.runs)))
        self.first: dict[int, int] = dict(file.connection.each(_MARKERS))
        """The first numbers of rows that have got another one since."""
        self.done: IdSet = self.of_confirmed(IdSet)
        """The cards of rows of earlier runs."""
        if not is_rehearsal:
            file.lock.begin(file.meta.secret, file.runs, self.last)

    @classmethod
    def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], total: int | None = None) -> Self:
        """Open the journal for a run, or create it if there is none."""
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(contextlib.closing(JournalFile.open(path, identity)))
            run = cls(file, total)
            opened.pop_all()
            return run

    def admit(self, entries: Sequence[tuple[RowKey, CardDraft]], outcomes: Iterable[Note] = ()) -> list[Decision]:
        """Record outcomes, log the rows to be sent, and return what to do with each row. On return everything is on the disk.

        Rows that an earlier run saw refused are not logged yet: `log_again` does that.

        Raises:
            JournalError: the file can't be written, a key comes twice in this run, or a row that may have been sent has other
                content or another reference now. No row was logged, and in the latter cases the journal remains usable.
        """
        keys, contents = [key for key, _ in entries], [content_text(draft) for _, draft in entries]
        with self.journal.transaction():
            self._record(outcomes)
            if not self._last_before and (decisions := self._log_first(keys, contents)) is not None:
                return decisions
            known = self._find(keys, contents)
            # Rarely any row is known: a run has given each a key of its own.
            refusal = self._refusal(keys, contents, known) if known or len(set(keys)) < len(keys) else None
            if refusal is None:
                return self._log(keys, contents, known)
        raise JournalError(f"{self.journal.path}: {refusal}")

    def log_again(self, rows: Sequence[tuple[int, CardDraft]], outcomes: Iterable[Note] = ()) -> list[int]:
        """Record outcomes, and log rows that were refused and are sent again. Return their new numbers."""
        with self.journal.transaction():
            self._record(outcomes)
            return [self._renumber(seq, content_text(draft)) for seq, draft in rows]

    def record(self, outcomes: Iterable[Note], resembling: Sequence[tuple[int, str]] = ()) -> None:
        """Record outcomes, of which the last counts, and cards that may be those of rows in doubt."""
        columns = (*self._outcome[:2], ("state", "'unknown'"), ("detail", "''"), self._outcome[-1], ("resembling", str))
        with self.journal.transaction():
            self._record(outcomes)
            self._connection.insert(_ADD_OUTCOMES, columns, resembling, _NAME)

    def record_adopted(self, rows: Sequence[tuple[int, str]]) -> None:
        """Record rows that no run has sent, since their cards were on the board before. These now count as the rows' own.

        `rows` are their numbers and the cards.
        """
        with self.journal.transaction():
            self._record([(seq, "done", card_id) for seq, card_id in rows])
            self._connection.run("UPDATE boardclient_outcomes SET at = 0 WHERE seq {in ?}", [seq for seq, _ in rows])
            self.journal.disown({card_id for _, card_id in rows})

    def finish(self, outcomes: Iterable[Note], released: int) -> None:
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
        with self.journal.transaction():
            self.journal.set_baseline({storable(card_id) for card_id in card_ids})

    def record_shown(self, fields: set[str]) -> None:
        """Store fields that a response has shown of a card."""
        self.shown |= fields
        with self.journal.transaction():
            self.journal.set_meta(shown=" ".join(sorted(self.shown)))

    def of_confirmed(self, work: Callable[[Iterable[str]], T]) -> T:
        """Return what `work` makes of the cards of rows, of which there may be millions."""
        with self.journal.guarded(), contextlib.closing(self._connection.each(DONE, JOB)) as rows:
            return work(card_id for (card_id,) in rows)

    def doubts(self) -> list[Doubt]:
        """Return the rows in doubt that the input of this run has not reached."""
        with self.journal.guarded():
            return [
                Doubt(row.number, read_content(row.content)) for row in doubts_of(self._connection, JOB) if self._is_ahead(row)
            ]

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
        unmoved = {key for key, text in rows if key in known and known[key].content == text}
        found = self._find_by_content([text for key, text in rows if key not in unmoved], unmoved)
        for key, text in rows:
            own = known.get(key)
            if key in unmoved or not found.get(text) or not _may_be_another(key, text, own):
                continue
            known[key] = row = found[text].pop(0)
            known.pop(row.key, None)
            if own is not None:  # the two rows exchange their positions
                known[row.key] = own._replace(key=row.key)

    def _find_by_content(self, texts: Iterable[str], unmoved: Collection[RowKey]) -> dict[str, list[_Known]]:
        """Return the rows of earlier runs with these contents that the input may still move, in the order of their keys."""
        if not self._knows_contents:
            self._connection.raw.create_function("hash", 1, hash, deterministic=True)
            hashes = "SELECT hash(content) AS content, seq FROM boardclient_rows ORDER BY 1, 2"
            self._connection.run(f"CREATE TEMP TABLE earlier AS {hashes}")
            self._connection.run("CREATE INDEX temp.by_content ON earlier (content)")
            self._knows_contents = True
        found: dict[str, list[_Known]] = {}
        for row in map(_Known._make, self._select(_FIND_BY_CONTENT, [*{hash(text) for text in texts}])):
            if self._is_ahead(row) and row.key not in unmoved:
                found.setdefault(row.content, []).append(row)
        for equal in found.values():  # equal rows keep their order: positions before references
            equal.sort(key=lambda row: (isinstance(row.key, str), row.key))
        return found

    def _is_ahead(self, row: _Known | StoredRow) -> bool:
        """Return True if a row is of an earlier run, and the input of this one has not reached it."""
        return row.seq <= self._last_before and not self._seen[row.seq]

    def _refusal(self, keys: Sequence[RowKey], contents: Sequence[str], known: Mapping[RowKey, _Known]) -> str | None:
        """Return why the rows can't be accepted, or None if they can."""
        seen: set[RowKey] = set()
        for key, content in zip(keys, contents, strict=True):
            row = known.get(key)
            if key in seen or (row is not None and not self._is_ahead(row)):
                return f"{named(key)} comes twice in the input: give each row a reference of its own"
            if row is not None and row.content != content and row.state in FIXED:
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

    def _log_first(self, keys: Sequence[RowKey], contents: Sequence[str]) -> list[Decision] | None:
        """Log rows of a first run, which the file can't have, without a look at it. Return None if a key comes twice."""
        before = self.last
        try:
            return self._log(keys, contents, {})
        except sqlite3.IntegrityError:
            self._connection.run("DELETE FROM boardclient_rows WHERE seq > ?", before)
            self.last = before
            return None

    def _log(self, keys: Sequence[RowKey], contents: Sequence[str], known: Mapping[RowKey, _Known]) -> list[Decision]:
        """Log the rows to be sent, within the transaction that looked them up, and return the decisions."""
        decisions: list[Decision] = []
        new: list[tuple[int, RowKey, str]] = []
        for key, content in zip(keys, contents, strict=True):
            if key in known:
                decisions.append(self._log_again(key, content, known[key]))
            else:
                self.last += 1
                new.append((self.last, key, content))
                decisions.append((self.last, None))
        self._connection.insert(_ADD_ROWS, _COLUMNS, new)
        return decisions

    def _log_again(self, key: RowKey, content: str, row: _Known) -> Decision:
        """Decide about a row of an earlier run, and log it again if it is to be sent with the others."""
        self._seen[row.seq] = True
        if row.key != key:
            # A row that was not created may have this key. The two exchange their keys, each of which is unique at any time.
            for new, old in ((-1, key), (key, row.key), (row.key, -1)):
                self._connection.run("UPDATE boardclient_rows SET ref = ? WHERE job = ? AND ref = ?", new, JOB, old)
        if row.state in FIXED or row.state == "failed":
            return row.seq, Outcome(row.state, row.detail or "")
        # What was deleted may be listed for a while, with the marker of the row.
        return self._renumber(row.seq, content, keeps_marker=row.state != "undone"), None

    def _renumber(self, seq: int, content: str, *, keeps_marker: bool = True) -> int:
        """Give a row that is sent again a new number, as the mark expects."""
        self.last += 1
        first = self.first.pop(seq, seq) if keeps_marker else None
        statement = "UPDATE boardclient_rows SET seq = ?, content = ?, marker = ? WHERE seq = ?"
        self._connection.run(statement, self.last, content, first, seq)
        # That of a card which was deleted stays: a listing may still show it.
        self._connection.run("DELETE FROM boardclient_outcomes WHERE seq = ? AND state <> 'undone'", seq)
        if first is not None:
            self.first[self.last] = first
        return self.last

    def _record(self, outcomes: Iterable[Note]) -> None:
        self._connection.insert(_ADD_OUTCOMES, self._outcome, outcomes, _REPLACE)

    # --- statements

    def _select(self, head: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """Run a statement that ends in IN with the values, and yield the rows."""
        for part in _parts(values):
            yield from self._connection.fetch(f"{head} ({','.join('?' * len(part))})", *part)


def _may_be_another(key: RowKey, content: str, row: _Known | None) -> bool:
    """Return True if a row of the input may be another one than the row that its key had.

    A position is another row's once a row that was not created has been taken out before it.
    """
    return row is None or (isinstance(key, int) and row.content != content and row.state not in FIXED)


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
