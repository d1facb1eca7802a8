"""The asynchronous interface of a journal. A thread works on the file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from typing import Final, Self, TypeVar

from boardclient.bulk._halt import to_the_end
from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._format import Entry, JournalRow, RowDecision, RowOutcome, RowState, SettledState
from boardclient.errors import JournalError

T = TypeVar("T")

_SEQ: Final = attrgetter("seq")

NOTE_SECONDS: Final = 0.5
"""How long an outcome may wait to be written together with the next rows."""
_EARLY_OUTCOMES: Final = 64
"""The first outcomes of a run wait less: the fewer there are, the sooner they are written. So a run that is killed early leaves
confirmed cards, from which the next one learns how the service shows cards."""
_MOST_PENDING: Final = 1024
"""How many outcomes may wait to be written."""
_PAGE: Final = 1000
_STRIDE: Final = 16
"""How many rows are released together, which saves a system call per row. After a crash, up to this many more are in doubt."""


class Journal:
    """An open journal, for one event loop. Owned by the run, which closes it.

    Rows are admitted in batches. Those with the action "send" are on the disk when `admit` returns. Each row is released before
    its first request, so rows that were logged and not released before a crash were certainly not sent. Outcomes are noted
    without waiting, and written with the next batch, or soon. A row whose outcome is lost in a crash is in doubt. Cancelling a
    caller leaves nothing half done.
    """

    def __init__(self, file: JournalFile, thread: ThreadPoolExecutor, note_seconds: float) -> None:
        self._file = file
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._note_seconds = note_seconds
        self._pending: list[RowOutcome] = []
        self._written = 0
        """How many outcomes were passed on to be written."""
        self._timer: asyncio.TimerHandle | None = None
        self._closing: Future[None] | None = None
        self._logged = file.last
        """The number of the last row that is known to be on the disk."""
        self.released = file.last  # those of earlier runs count as released
        """The number up to which rows may be sent."""

    @classmethod
    async def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], *, note_seconds: float = NOTE_SECONDS) -> Self:
        """Open the journal for a run, or create it if there is none.

        No other run can open it until it is closed. A cancellation is raised once the file is closed again. `identity` says what
        the rows belong to (service, board, account) and must not contain secrets. Outcomes are written after `note_seconds` at
        the latest.

        Raises:
            JournalError: the journal can't be used. The message says what to do.
        """
        thread = ThreadPoolExecutor(1, "boardclient-journal")
        opening = thread.submit(JournalFile.open, path, dict(identity))
        try:
            file = await _ended(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                with contextlib.suppress(JournalError, asyncio.CancelledError):  # the first cancellation is raised
                    await _ended(thread.submit(opening.result().close))
            thread.shutdown()  # it has nothing left to do, so this blocks nothing
            raise
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(file, thread, note_seconds)

    @property
    def secret(self) -> bytes:
        """32 random bytes, made with the journal, from which markers are derived."""
        return self._file.secret

    @property
    def baseline(self) -> int | None:
        """The number of cards on the board before the first row, None if unknown."""
        return self._file.baseline

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        return self._file.is_new

    async def admit(self, entries: Sequence[Entry]) -> list[RowDecision]:
        """Log the rows to be sent, and return what to do with each row.

        The decisions have the order of the entries. If the caller is cancelled meanwhile, the rows that were logged are recorded
        as not sent.

        Raises:
            JournalError: the file can't be written, or could not be earlier, or was moved; a key comes twice in this run; or the
                content of a row that may have been sent has changed. None of the rows may be sent.
        """
        job = self._submit(self._file.admit, tuple(entries), self._take_pending())
        try:
            decisions = await _result(job)
        except asyncio.CancelledError:
            if self._closing is None:
                self._thread.submit(_withdraw, self._file, job)
            raise
        self._logged = max(self._logged, max(map(_SEQ, decisions), default=0))
        return decisions

    def release(self, seq: int) -> None:
        """Allow an admitted row to be sent. Called before its first request.

        Raises:
            JournalError: the journal was moved or removed, or this can't be noted. The row must not be sent.
        """
        if seq > self.released:
            self._check_open()
            released = min(seq + _STRIDE - 1, max(seq, self._logged))
            self._file.release_to(released)
            self.released = released

    def note(self, seq: int, state: SettledState, detail: str | None = None) -> None:
        """Note the outcome of a row, without waiting.

        `detail` is the card's id if it is done, otherwise the reason. If it can't be written, the next `admit`, `flush` or
        `aclose` raises.
        """
        if self._closing is not None:
            self._check_open()
        if detail is not None and not detail.isascii():
            detail = detail.encode(errors="replace").decode()  # SQLite can't store a lone surrogate
        self._pending.append((seq, state, detail))
        if self._timer is None or len(self._pending) >= _MOST_PENDING:
            self._write_soon()

    async def flush(self) -> None:
        """Write the outcomes that were noted.

        Raises:
            JournalError: the file can't be written, or could not be earlier.
        """
        await _result(self._submit(self._file.record, self._take_pending()))

    async def rows(self, *states: RowState) -> AsyncGenerator[JournalRow, None]:
        """Yield the rows in these states, in the order of logging. Noted outcomes are written first.

        Raises:
            JournalError: the file can't be written or read.
        """
        await self.flush()
        after = 0
        while page := await _result(self._submit(self._file.rows, states, after, _PAGE)):
            for row in page:
                yield row
            after = page[-1].seq

    @property
    def run(self) -> int:
        """The number of this run, from 1."""
        return self._file.run

    @property
    def facts(self) -> Mapping[str, str]:
        """What earlier runs and this one have learned, as texts by name."""
        return self._file.facts

    async def set_fact(self, name: str, value: str) -> None:
        """Keep a text for later runs, in place of an earlier one of this name.

        It is on the disk on return.

        Raises:
            JournalError: the file can't be written, or could not be earlier.
        """
        await _result(self._submit(self._file.set_fact, name, value))

    async def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Store the ids of the cards on the board, before the first row is logged.

        Raises:
            RuntimeError: a row was already logged, or there is a baseline.
            JournalError: the file can't be written.
        """
        await _result(self._submit(self._file.set_baseline, tuple(card_ids)))

    async def baseline_ids(self) -> list[str]:
        """Return the ids of the cards that were on the board before the first row."""
        return await _result(self._submit(self._file.baseline_ids))

    async def aclose(self) -> None:
        """Write the noted outcomes, close the file and release the lock. Calling it again does nothing.

        A cancellation is raised after that, so that another run can open the journal.

        Raises:
            JournalError: the file can't be written, or could not be earlier. The lock is released; the next run will find rows in
                doubt.
        """
        if self._closing is None:
            self._closing = self._submit(_finish, self._file, self._take_pending())
            self._thread.shutdown(wait=False)
        await _ended(self._closing)

    def _submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        self._check_open()
        return self._thread.submit(work, *arguments)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise RuntimeError("the journal is closed")

    def _write_soon(self) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._write_pending()
        else:
            wait = self._note_seconds * min(1.0, self._written / _EARLY_OUTCOMES)
            self._timer = self._loop.call_later(wait, self._write_pending)

    def _take_pending(self) -> list[RowOutcome]:
        noted, self._pending = self._pending, []
        self._written += len(noted)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return noted

    def _write_pending(self) -> None:
        """Write the noted outcomes, without waiting. The file raises an error at its next use."""
        self._submit(self._file.record, self._take_pending())


async def _result(job: Future[T]) -> T:
    """Wait for a job of the thread. A cancellation does not affect the job."""
    return await asyncio.shield(asyncio.wrap_future(job))


async def _ended(job: Future[T]) -> T:
    """Wait for a job of the thread. A cancellation is raised after the end of the job."""
    return await to_the_end(asyncio.wrap_future(job))


def _withdraw(file: JournalFile, admission: Future[list[RowDecision]]) -> None:
    """Record the rows as not sent that were logged for a caller which was cancelled."""
    if admission.exception() is None:
        unsent: list[RowOutcome] = [
            (row.seq, "waiting", "not sent: cancelled") for row in admission.result() if row.action == "send"
        ]
        file.record(unsent)


def _finish(file: JournalFile, noted: list[RowOutcome]) -> None:
    try:
        file.record(noted)  # even without outcomes: this raises an earlier error of the file
    finally:
        file.close()
