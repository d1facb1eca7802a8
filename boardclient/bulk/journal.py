"""The journal of a bulk run: read it, and resolve its rows by hand.

A run writes it, and `read_journal` and `read_rows` may read it meanwhile. The design is described in docs/design/journal.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

import attrs

from boardclient._base._environment import find_location
from boardclient.bulk._content import Content, secret_marker
from boardclient.bulk._journal._file import JOB, JournalConnection, JournalFile, Meta, connect, read_meta, translated
from boardclient.bulk._journal._journal_rows import JournalRows, read_content
from boardclient.bulk._life import IN_DOUBT, Outcome, RowKey, RowState
from boardclient.errors import JournalError
from boardclient.models import CardDraft
from boardclient.store._by_hand import check_told, doubts_of, named, page_of, settle, why_not_settled
from boardclient.store._kinds import check_journal
from boardclient.store._rows import DONE, OF_ROWS, StoredRow, stored_rows

__all__ = [
    "STATES",
    "Candidate",
    "JournalRow",
    "JournalSummary",
    "Rehearsal",
    "RowAction",
    "RowKey",
    "RowState",
    "UnknownRow",
    "accept_suggestions",
    "adopt",
    "is_new",
    "note_undone",
    "read_journal",
    "read_row",
    "read_rows",
    "read_unknown",
    "rehearsed",
    "resolve",
]

STATES: Final[tuple[RowState, ...]] = get_args(RowState)
_by_likeness: Final = attrgetter("likeness")
_COUNTS: Final = (
    "SELECT coalesce(o.state, 'logged') AS state, count(*) AS number FROM boardclient_rows AS r"
    " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq GROUP BY 1"
)
_COMPARED: Final = 300
"""How many characters of a row and of a card are compared."""
_LEAST_ALIKE: Final = 0.6
"""The likeness from which a card is suggested."""


@attrs.frozen(kw_only=True)
class JournalSummary:
    """A summary of a journal.

    Attributes:
        path: The path of the journal.
        identity: What the journal is bound to, such as service, account and board.
        created_at: When it was created, in UTC.
        runs: The number of runs that have opened it.
        counts: The number of rows in each state.
        total: The number of rows in the input of the last run, None if it has no length. Rows are logged as they are sent.
    """

    path: Path
    identity: dict[str, str]
    created_at: datetime
    runs: int
    counts: dict[RowState, int]
    total: int | None = None

    @property
    def rows(self) -> int:
        """The number of rows in all states."""
        return sum(self.counts.values())


@attrs.frozen(kw_only=True)
class JournalRow:
    """A row of a journal.

    Attributes:
        seq: The number of the row, from 1, in the order of logging.
        key: The draft's reference, or its position in the input, from 0.
        content: What was sent, in the form in which it is compared, without a marker.
        state: "logged" until the outcome is known, then "done", "failed", "waiting" (not sent), "unknown" or "undone".
        detail: The card's id if it is "done" or "undone", otherwise the reason, or None if there is none.
        marker: The marker that `marker=True` puts before and behind its description.
        run: The number of the run of a journal that recorded its state, from 1. 0 if its card was on the board before the first
            run, or was adopted (`adopt`), and in a ledger.
    """

    seq: int
    key: RowKey
    content: Content
    state: RowState
    detail: str | None
    marker: str = ""
    run: int = 0


@attrs.frozen
class Candidate:
    """A card that may be that of an unknown row. `likeness` is from 0 to 1."""

    card_id: str
    content: Content
    likeness: float


@attrs.frozen(kw_only=True)
class UnknownRow:
    """A row whose card may exist, beside similar cards, the most similar first.

    `suggestion` is the most similar one, if it is similar at all, no other card is as similar to the row, and no other row to the
    card. A card that a row has is not suggested.
    """

    row: JournalRow
    candidates: tuple[Candidate, ...] = ()
    suggestion: Candidate | None = None


def read_journal(path: str | os.PathLike[str]) -> JournalSummary:
    """Return a summary of a journal.

    Args:
        path: The path of the journal. A run may be using it.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    with _reading(path) as (target, connection, meta):
        counts = dict.fromkeys(STATES, 0) | dict(connection.fetch(_COUNTS))
    return JournalSummary(
        path=target,
        identity=meta.identity,
        created_at=datetime.fromisoformat(meta.created_at),
        runs=meta.runs,
        counts=counts,
        total=meta.total,
    )


def read_rows(path: str | os.PathLike[str], *states: RowState) -> Generator[JournalRow, None, None]:
    """Yield the rows of a journal, in the order of logging.

    A run may be using the journal: rows are read a thousand at a time, and its commits wait no longer than that takes. Each row
    has the state that it had when its thousand was read.

    Args:
        path: The path of the journal.
        states: Yield only rows in these states. None given, the default, means all.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    after = 0
    while True:
        with _reading(path) as (_, connection, meta):  # no lock is held between pages, or a run would have to wait
            rows = [_shown(row, meta) for row in page_of(connection, JOB, states or STATES, after)]
        yield from rows
        if not rows:
            return
        after = rows[-1].seq


def read_unknown(path: str | os.PathLike[str]) -> list[UnknownRow]:
    """Return the rows whose cards may exist, beside the cards that may be theirs.

    Rows that a killed run logged and certainly did not send are recorded as not sent before.

    Args:
        path: The path of the journal. No run may be using it.

    Raises:
        JournalError: there is no journal, it is in use, or can't be read.
    """
    with contextlib.closing(JournalFile.open(path, None)) as journal:
        return _read_unknown(journal)


def read_row(path: str | os.PathLike[str], key: RowKey) -> UnknownRow | None:
    """Return the row with a key, None if there is none.

    The cards that may be its own are beside it.

    Args:
        path: The path of the journal. A run may be using it.
        key: The row's reference, or its position in the input, from 0.

    Raises:
        JournalError: there is no journal, or it can't be read.
    """
    with _reading(path) as (_, connection, meta):
        found = _find(connection, key)
    return None if found is None else beside(_shown(found, meta), found.resembling)


def resolve(journal: str | os.PathLike[str], row: RowKey, *, card_id: str | None = None, absent: bool = False) -> bool:
    """Resolve a row by hand whose card may exist. The next run reports it as "already", or sends it if the card is absent.

    Look at the board first: an absent row is sent again without further questions. Calling it again with the same words does
    nothing, and with other words it corrects the row, until a run has sent it.

    Args:
        journal: The path of the journal. No run may be using it.
        row: The row's reference, a string, or its position in the input, a whole number from 0.
        card_id: The identifier of its card.
        absent: True if there is no card.

    Returns:
        True if it is resolved now, False if it was resolved with the same words before.

    Raises:
        JournalError: there is no journal, it is in use or can't be written, it has no such row, the row is neither in doubt nor
            resolved by hand, or the card is another row's and its error did not name it.
        TypeError: `row` is neither a string nor a whole number.
        ValueError: neither or both of `card_id` and `absent` are given, or the identifier is unusable.
    """
    told = check_told(row, card_id, absent=absent)
    with contextlib.closing(JournalFile.open(journal, None)) as file, file.transaction():
        found = _find(file.connection, row)
        if found is None:
            refusal: str | None = f"it does not have {named(row)}"
        elif found.outcome == told:  # an answer that was lost is given again
            return False
        elif (refusal := why_not_settled(file.connection, JOB, row, found, told, is_journal=True)) is None:
            _resolve(file, [(found, told)])
    if refusal is not None:
        raise JournalError(f"{journal}: {refusal}")
    return True


def _resolve(file: JournalFile, told: Sequence[tuple[StoredRow, Outcome]]) -> None:
    """Record within a transaction what a person says of rows. A card from before stays one that no run has created."""
    before = {*file.baseline()}
    for found, outcome in told:
        is_before = outcome.state == "done" and outcome.detail in before
        settle(file.connection, JOB, found, outcome, 0.0 if is_before else file.connection.now())


def accept_suggestions(path: str | os.PathLike[str]) -> list[UnknownRow]:
    """Give rows in doubt the cards that are suggested for them.

    It returns the rows that are left.

    Args:
        path: The path of the journal. No run may be using it.

    Raises:
        JournalError: there is no journal, it is in use, or can't be written.
    """
    with contextlib.closing(JournalFile.open(path, None)) as file:
        stored = {row.seq: row for row in _doubts(file)}
        suggestions = [(item.row.seq, item.suggestion) for item in _read_unknown(file) if item.suggestion is not None]
        with file.transaction():
            _resolve(file, [(stored[seq], Outcome("done", card.card_id)) for seq, card in suggestions])
        return _read_unknown(file)


def _doubts(file: JournalFile) -> list[StoredRow]:
    with file.guarded():
        return doubts_of(file.connection, JOB)


def _read_unknown(file: JournalFile) -> list[UnknownRow]:
    rows = _doubts(file)
    with file.guarded():
        shown = [beside(_shown(row, file.meta), row.resembling) for row in rows]
        return suggested(shown, (card_id for (card_id,) in file.connection.each(DONE, JOB)))


def suggested(rows: Sequence[UnknownRow], taken: Iterable[str]) -> list[UnknownRow]:
    """Return rows in doubt with the cards that are suggested for them. Those `taken` are other rows'."""
    candidates = [row.candidates for row in rows]
    highest = Counter[tuple[str, float]]()  # of each card, how often its highest likeness comes
    likeness = {one.card_id: one.likeness for one in sorted(chain.from_iterable(candidates), key=_by_likeness)}
    for one in chain.from_iterable(candidates):
        highest[one.card_id, one.likeness] += one.likeness == likeness[one.card_id]
    others = {card_id for card_id in taken if card_id in likeness}
    unknown = []
    for row in rows:
        best = next(iter(row.candidates), None)
        if best is not None:
            is_clear = highest[best.card_id, best.likeness] == 1 and all(
                one.likeness < best.likeness for one in row.candidates[1:2]
            )
            best = best if is_clear and best.likeness >= _LEAST_ALIKE and best.card_id not in others else None
        unknown.append(attrs.evolve(row, suggestion=best))
    return unknown


def is_new(path: str | os.PathLike[str]) -> bool:
    """Return True if no run has sent a row of a journal yet.

    Until then a card that equals a row is one that was on the board before.

    Rows that a killed run logged and certainly did not send are recorded as not sent before.

    Args:
        path: The path of the journal. No run may be using it.

    Raises:
        JournalError: there is no journal, it is in use, or can't be read.
    """
    with contextlib.closing(JournalFile.open(path, None)) as journal, journal.guarded():
        return not journal.was_sent


def note_undone(path: str | os.PathLike[str], card_ids: Sequence[str]) -> None:
    """Note that created cards were deleted. A later run sends their rows again, and never takes these cards for its own.

    On return it is on the disk. Cards that no row has are left out, so it can be repeated.

    Args:
        path: The path of the journal. No run may be using it.
        card_ids: The identifiers of the cards, as `read_rows` gives them for rows that are "done".

    Raises:
        JournalError: there is no journal, it is in use, or can't be written.
    """
    # All done rows are looked at, since no index has the cards: an undo is rare, and an index would cost each row.
    wanted = {*card_ids}
    with contextlib.closing(JournalFile.open(path, None)) as file:
        with file.guarded():
            done = file.connection.each("SELECT seq, detail FROM boardclient_outcomes WHERE state = 'done'")
            rows = [(seq, card_id) for seq, card_id in done if card_id in wanted]
        record_undone(file, rows)


def record_undone(file: JournalFile, rows: Iterable[tuple[int, str]]) -> None:
    """Record that cards were deleted. `rows` are the numbers of their rows, with the cards."""
    undone = "UPDATE boardclient_outcomes SET state = 'undone' WHERE seq = ? AND state = 'done' AND detail = ?"
    with file.transaction():
        for seq, card_id in rows:
            file.connection.run(undone, seq, card_id)


RowAction: TypeAlias = Literal["send", "done", "in doubt"]
"""What a run does with a row: it sends it, skips it, since it is done, or finds out whether its card exists."""

Rehearsal: TypeAlias = Callable[[Sequence[tuple[RowKey, CardDraft]]], list[tuple[int, RowAction, "str | None"]]]
"""Returns what a run would do with rows: each one's number, the action, and the card's id if it is done."""


@contextlib.contextmanager
def rehearsed(path: str | os.PathLike[str], identity: Mapping[str, str]) -> Iterator[Rehearsal]:
    """Give a function that decides about rows as a run would, and changes nothing.

    It works on a temporary copy of the journal. For rows that a run would refuse it raises a `JournalError`. It may be called
    again, with other rows, and raises an `OSError` if the copy can't be written.

    Args:
        path: The path of the journal. No run may be using it.
        identity: What the rows belong to, as a `JournalSummary` has it.

    Raises:
        JournalError: the journal is in use or can't be read, or belongs to another import.
    """
    with (
        contextlib.closing(JournalConnection(sqlite3.connect("", isolation_level=None))) as copy,  # on disk where it grows
        contextlib.closing(JournalFile.open(path, identity)) as journal,
    ):
        with journal.guarded():
            # A copy, since a run numbers rows and exchanges keys as it meets them, and the next rows depend on that.
            journal.connection.raw.backup(copy.raw)
        run = JournalRows(JournalFile(journal.path, copy, journal.lock, journal.meta), is_rehearsal=True)

        def decide(rows: Sequence[tuple[RowKey, CardDraft]]) -> list[tuple[int, RowAction, str | None]]:
            try:
                return [(seq, *_action(outcome)) for seq, outcome in run.admit(rows)]
            except JournalError as error:
                if error.__cause__ is None:
                    raise
                raise OSError(str(error.__cause__)) from None  # of the copy, whose place SQLite chooses

        yield decide


def adopt(
    path: str | os.PathLike[str],
    identity: Mapping[str, str],
    rows: Sequence[tuple[RowKey, CardDraft, str]],
    before: Iterable[str] | None = None,
) -> None:
    """Note that rows have cards which were on the board before. Runs report them as "already". The journal may be new.

    Their `run` is 0, since no run created these cards.

    Args:
        path: The path of the journal. No run may be using it.
        identity: What the rows belong to, as a `JournalSummary` has it.
        rows: The key, the draft and the card's identifier of each. None of them may have another card.
        before: The identifiers of all cards on the board. They are kept if the journal is new.

    Raises:
        JournalError: the journal is in use or can't be written, belongs to another import, or a row may have another card.
    """
    file = JournalRows.open(path, identity)
    with contextlib.closing(file.journal):
        if before is not None and file.is_new:
            file.set_baseline(before)
        adopted: list[tuple[int, str]] = []
        refused: list[tuple[int, CardDraft]] = []
        cards_of_refused: list[str] = []
        decisions = file.admit([(key, draft) for key, draft, _ in rows])
        for (seq, outcome), (_, draft, card_id) in zip(decisions, rows, strict=True):
            if outcome is None:
                adopted.append((seq, card_id))
            elif outcome.state == "failed":
                refused.append((seq, draft))
                cards_of_refused.append(card_id)
            elif outcome.detail != card_id:
                raise JournalError(
                    f"{file.journal.path}: rows have moved since the last run: run it once without leaving any out"
                )
        # The card shows what the row says now, and not what was refused.
        adopted += zip(file.log_again(refused), cards_of_refused, strict=True)
        file.record_adopted(adopted)


def _action(outcome: Outcome | None) -> tuple[RowAction, str | None]:
    """Return what a run does with a row of which a journal has an outcome, and the detail of that."""
    if outcome is None:
        return "send", None
    return "done" if outcome.state == "done" else "in doubt" if outcome.state in IN_DOUBT else "send", outcome.detail


def _find(connection: JournalConnection, key: RowKey) -> StoredRow | None:
    """Return the row with a key. No row has a position that SQLite can't hold."""
    if isinstance(key, int) and key.bit_length() > 63:
        return None
    return next(iter(stored_rows(connection, f"{OF_ROWS} WHERE r.job = ? AND r.ref = ?", JOB, key)), None)


def _shown(row: StoredRow, meta: Meta) -> JournalRow:
    return JournalRow(
        seq=row.seq,
        key=cast("RowKey", row.ref),
        content=read_content(row.content),
        marker=secret_marker(meta.secret, row.number),
        run=meta.runs if row.at is None else int(row.at),
        state=row.state,
        detail=row.detail or None,
    )


def beside(row: JournalRow, cards: str | None) -> UnknownRow:
    """Return a row beside the cards that may be its own, the most similar first."""
    shown = [(card_id, Content(*values)) for card_id, *values in json.loads(cards or "[]")]
    found = [Candidate(card_id, content, _likeness(row.content, content)) for card_id, content in shown]
    return UnknownRow(row=row, candidates=tuple(sorted(found, key=_by_likeness, reverse=True)))


def _common(first: str, second: str) -> int:
    """Return how many characters at the beginning of two texts are the same."""
    known, most = 0, min(len(first), len(second))
    while known < most:  # halved, since a comparison of slices costs no more than one of characters
        half = (known + most + 1) // 2
        known, most = (half, most) if first[known:half] == second[known:half] else (known, half - 1)
    return known


def _likeness(sent: Content, shown: Content) -> float:
    """Return how alike two contents read, by one plain measure. It suggests, and proves nothing.

    It is the share of what both have: their beginning, their end, and the pairs of neighbouring characters in between. Its time
    grows with the length of the texts, that of difflib with the square.
    """
    first, second = (f"{content.name}\n{content.desc or ''}"[:_COMPARED] for content in (sent, shown))
    start = _common(first, second)
    end = _common(first[start:][::-1], second[start:][::-1])
    pairs, others = (Counter(pairwise(text[start : len(text) - end])) for text in (first, second))
    return 2 * (start + end + (pairs & others).total()) / (len(first) + len(second))


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[tuple[Path, JournalConnection, Meta]]:
    target = find_location(path)
    if not target.exists():
        raise JournalError(f"there is no journal {target}: check the path")
    check_journal(target)
    with translated(target), contextlib.closing(connect(target)) as connection:
        connection.begin(is_read=True)  # nobody converts the file meanwhile
        meta = read_meta(connection, target)
        connection.run("PRAGMA query_only = ON")
        yield target, connection, meta
