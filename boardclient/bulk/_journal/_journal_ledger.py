"""The ledger in a journal: what a run keeps of its rows in the file, from which a later run resumes.

The design is described in docs/design/journal.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self, TypeVar

from boardclient._base._guards import wait_to_end
from boardclient.bulk._content import REMOVABLE, IdSet
from boardclient.bulk._journal._journal_rows import Decision, JournalRows
from boardclient.bulk._ledger import DurableLedger, Others
from boardclient.bulk._life import Row
from boardclient.bulk._results import ResultState
from boardclient.errors import BoardClientError
from boardclient.models import Card
from boardclient.store._rows import dump_cards

T = TypeVar("T")

_STRIDE: Final = 16
"""How many rows are released together, which saves a system call per row. After a kill, up to this many more are in doubt."""


class JournalLedger(DurableLedger):
    """A ledger in a journal, for one event loop. A thread works on the file. Owned by the run, which closes it.

    Rows to be sent are on the disk when `admit` returns, and released before their first request: rows that were logged and not
    released were certainly not sent. Cancelling a caller leaves nothing half done.
    """

    note_seconds = 0.1
    largest_commit = 256  # it costs the same, however many rows it has

    def __init__(self, file: JournalRows, thread: ThreadPoolExecutor, commit_size: int) -> None:
        super().__init__(file.journal.meta.secret)
        self.commit_size = commit_size
        self.is_new = file.is_new
        self.may_send = self._may_send
        self.older.append(file.done)
        self.released = self._mark = file.last  # those of earlier runs count as released
        self._file = file
        self._thread = thread
        self._closing: Future[None] | None = None
        self._logged = file.last
        """The number of the last row that is known to be on the disk."""
        self._unshown = REMOVABLE - file.shown
        """Those that a person can remove and that no response has shown yet."""
        self._has_looked = False
        """Whether this iteration of the loop has looked at the lock."""

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], identity: Mapping[str, str], commit_size: int, total: int | None = None
    ) -> Self:
        """Open the journal for a run, or create it if there is none. No other run can open it until it is closed.

        `identity` says what the rows belong to (service, board, account) and must not contain secrets. `total` is the number of
        rows in the input, if it is known. A cancellation is raised once the file is closed again.

        Raises:
            JournalError: the journal can't be used. Nothing was sent. The message says what to do.
        """
        thread = ThreadPoolExecutor(1, "boardclient-journal")
        opening = thread.submit(JournalRows.open, path, dict(identity), total)
        try:
            await wait_to_end(asyncio.wrap_future(opening))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and opening.exception() is None:
                thread.submit(opening.result().journal.close)
            thread.shutdown(wait=isinstance(error, asyncio.CancelledError))  # it has nearly nothing left to do
            raise
        return cls(opening.result(), thread, commit_size)

    def is_in_input(self, card_id: str) -> bool:
        return card_id in self.seen

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set on the others what earlier runs did.

        If the caller is cancelled meanwhile, the rows may be logged. None of them is released.

        Raises:
            JournalError: the file can't be written, or was moved; a reference comes twice; or a row that may have been sent has
                other content or another reference now. None of the rows may be sent.
        """
        entries, noted = [(row.key, row.draft) for row in rows], self._take_noted().values()
        if rows and rows[0].outcome is not None:
            refused = [(row.seq, row.draft) for row in rows]
            decisions: list[Decision] = [(seq, None) for seq in await self._do(self._file.log_again, refused, noted)]
        else:
            decisions = await self._do(self._file.admit, entries, noted)
        for row, (seq, outcome) in zip(rows, decisions, strict=True):
            row.seq, row.first_seq = seq, self._file.first.get(seq)
            if outcome is not None:
                row.outcome = outcome
        self._logged = self._file.last

    def release(self, row: Row) -> None:
        """Note that a row may be sent.

        Raises:
            JournalError: this can't be noted, or an outcome could not be written. The row must not be sent.
        """
        self._check_open()
        self._file.journal.check_lock()
        # The last row stays unreleased until it is sent. After a kill its card proves whether those in doubt exist.
        released = min(row.seq + _STRIDE - 1, max(row.seq, self._logged - 1))
        self._file.journal.lock.release_to(released)
        self.released = self._mark = released

    def _may_send(self) -> bool:
        """Return True while the journal is this run's. Otherwise the next row is passed to `release`, which raises why not."""
        if self._has_looked:
            return True
        if self._file.journal.has_lock():
            self._note_look()
            return True
        self.released = -1
        return False

    def _note_look(self) -> None:
        """Note that the lock was looked at, which counts until the loop has gone round once."""
        self._has_looked = True
        self._loop.call_soon(self._forget_look)

    def _forget_look(self) -> None:
        self._has_looked = False

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, without waiting, and which fields the response shows."""
        super().add_outcome(row, state, card, error)
        if card is not None and self._unshown:
            self.record_shown((card,))

    def record_shown(self, cards: Iterable[Card]) -> None:
        """Record which fields responses show of cards. What a card does not show later was removed."""
        for card in cards:  # what one has shown is not looked for in the next
            if not self._unshown:
                break
            if fields := {field for field in self._unshown if getattr(card, field) is not None}:
                self._unshown -= fields
                self._submit(self._file.record_shown, fields)

    async def record_resembling(self, cards: Mapping[int, Sequence[Card]]) -> None:
        await self._do(self._file.record, self._take_noted().values(), [(seq, dump_cards(found)) for seq, found in cards.items()])

    async def baseline(self) -> IdSet | None:
        known = self._file.journal.meta.baseline
        self.listed_before = known or 0  # adopted cards are not among them any more, and deleted ones are
        return None if known is None else IdSet(await self._do(self._file.journal.baseline))

    async def set_baseline(self, ids: Sequence[str]) -> None:
        await self._do(self._file.set_baseline, tuple(ids))
        self.listed_before = len(ids)

    async def _of_confirmed(self, work: Callable[[Iterable[str]], T]) -> T:
        self._write_soon()
        return await self._do(lambda: self._file.of_confirmed(work))

    async def count_earlier(self, condition: Callable[[str], bool]) -> int:
        done = self._file.done
        return await self._of_confirmed(lambda ids: sum(card_id in done and condition(card_id) for card_id in ids))

    async def others(self) -> Others:
        return Others(() if self._file.journal.runs == 1 else await self._do(self._file.doubts))

    async def aclose(self) -> None:
        """Write what was recorded, and close the journal so that another run can open it. Calling it again does nothing.

        A cancellation is raised after that.

        Raises:
            JournalError: the file can't be written, or could not be earlier. The lock is released; the next run will find rows in
                doubt.
        """
        if self._closing is None:
            self._closing = self._submit(self._file.finish, self._take_noted().values(), self._mark)
            self._is_closed = True
            self._thread.shutdown(wait=False)
        await wait_to_end(asyncio.wrap_future(self._closing))

    def _write_soon(self) -> None:
        self._submit(self._file.record, self._take_noted().values())

    async def _do(self, work: Callable[..., T], *arguments: object) -> T:
        """Let the thread do something, which a cancellation does not affect."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(work, *arguments)))

    def _submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        self._check_open()
        return self._thread.submit(work, *arguments)
