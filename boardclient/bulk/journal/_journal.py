"""The journal of a bulk run as its tasks use it: a thread works on the file. No SQL is here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self, TypeVar

from boardclient.bulk.journal._file import JournalFile
from boardclient.bulk.journal._format import Entry, JournalRow, RowDecision, RowOutcome, RowState, SettledState

T = TypeVar("T")

NOTE_SECONDS: Final = 0.5
"""How long an outcome may wait for the next rows to be written with it."""
_NOTES: Final = 1024
"""How many outcomes may wait."""
_PAGE: Final = 1000
_STRIDE: Final = 16
"""How many rows are released together: so many more are in doubt after a kill, and a system call less is made for each."""


class Journal:
    """An open journal, used from one event loop; owned by the run, which closes it.

    Rows are admitted in batches: those with the action "send" are on the disk when `admit` returns. Each is released before its
    first request; after a kill, rows that were logged and not released are known to be unsent. Outcomes are noted without
    waiting, and written with the next batch, soon, or at the end; a row whose outcome is lost in a crash is in doubt. A caller
    that is cancelled leaves nothing half done.
    """

    def __init__(self, file: JournalFile, thread: ThreadPoolExecutor, note_seconds: float) -> None:
        self._file = file
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._note_seconds = note_seconds
        self._noted: list[RowOutcome] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closing: Future[None] | None = None
        self._logged = file.last
        """The last row that is known to be on the disk."""
        self._released = file.last  # a row of an earlier run counts as released whatever becomes of it

    @classmethod
    async def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], *, note_seconds: float = NOTE_SECONDS) -> Self:
        """Open the journal for a run, or create it where there is none.

        Nobody else can open it until it is closed. A cancellation is raised once the file is closed again. `identity` names what
        the rows belong to (service, board, account), with texts that hold no secret. Outcomes wait at most `note_seconds` to be
        written.

        Raises:
            JournalError: it can't be used; the message says what to do.
        """
        thread = ThreadPoolExecutor(1, "boardclient-journal")
        opening = thread.submit(JournalFile.open, path, dict(identity))
        try:
            file = await _ended(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                thread.submit(opening.result().close)
            thread.shutdown()
            raise
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(file, thread, note_seconds)

    @property
    def secret(self) -> bytes:
        """32 random bytes, made with the journal: a key for markers and digests."""
        return self._file.secret

    @property
    def baseline(self) -> int | None:
        """How many cards stood on the board before the first row. None means that it was not read."""
        return self._file.baseline

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        return self._file.is_new

    async def admit(self, entries: Sequence[Entry]) -> list[RowDecision]:
        """Look rows up, log those that are to be sent. Return what to do with each, in the order of the rows.

        Rows that were logged for a caller who was cancelled meanwhile are noted as not sent.

        Raises:
            JournalError: the file can't be written, now or before, or is not where it was; a key came before in this run; or the
                content of a row that may have been sent has changed. None of the rows may be sent.
        """
        job = self._submit(self._file.admit, tuple(entries), self._take_noted())
        try:
            decisions = await _result(job)
        except asyncio.CancelledError:
            if self._closing is None:
                self._thread.submit(_withdraw, self._file, job)
            raise
        for seq, action, _ in decisions:
            if action == "send" and seq > self._logged:
                self._logged = seq
        return decisions

    def release(self, seq: int) -> None:
        """Let a row be sent that was admitted, before its first request.

        Raises:
            JournalError: the journal is no longer where it was, or that can't be noted. The row may not be sent.
        """
        if seq > self._released:
            self._check_open()
            released = min(seq + _STRIDE - 1, max(seq, self._logged))
            self._file.release_to(released)
            self._released = released

    def note(self, seq: int, state: SettledState, detail: str | None = None, shown: bytes | None = None) -> None:
        """Note what became of a row, without waiting.

        `detail` is the card's id of a done row, otherwise the reason; `shown` stands for what the service showed of its card.
        Whether it could be written shows at the next `admit`, `flush` or `aclose`.
        """
        self._check_open()
        if detail is not None and not detail.isascii():
            detail = detail.encode(errors="replace").decode()  # a lone surrogate in a reason must not stop the run
        self._noted.append(RowOutcome(seq, state, detail, shown))
        self._write_soon()

    async def flush(self) -> None:
        """Write what was noted.

        Raises:
            JournalError: the file can't be written, now or before.
        """
        await _result(self._submit(self._file.record, self._take_noted()))

    async def rows(self, *states: RowState) -> AsyncGenerator[JournalRow, None]:
        """Yield the rows in these states, in the order of logging. What was noted is written first.

        Raises:
            JournalError: the file can't be written or read.
        """
        await self.flush()
        after = 0
        while page := await _result(self._submit(self._file.rows, states, after, _PAGE)):
            for row in page:
                yield row
            after = page[-1].seq

    async def set_baseline(self, card_ids: Iterable[str]) -> None:
        """Keep the ids of the cards that stand on the board, before a row is logged.

        Raises:
            RuntimeError: a row was logged already, or there is a baseline.
            JournalError: the file can't be written.
        """
        await _result(self._submit(self._file.set_baseline, tuple(card_ids)))

    async def baseline_ids(self) -> list[str]:
        """Return the ids of the cards that stood on the board before the first row."""
        return await _result(self._submit(self._file.baseline_ids))

    async def aclose(self) -> None:
        """Write what was noted, close the file and give the lock back; once is enough.

        A cancellation is raised after that, so that the next run is not refused.

        Raises:
            JournalError: the file can't be written, now or before: the next run will find rows in doubt. The lock is given back.
        """
        if self._closing is None:
            self._closing = self._submit(_finish, self._file, self._take_noted())
            self._thread.shutdown(wait=False)
        await _ended(self._closing)

    def _submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        self._check_open()
        return self._thread.submit(work, *arguments)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise RuntimeError("the journal is closed")

    def _write_soon(self) -> None:
        if len(self._noted) >= _NOTES:
            self._write_noted()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._note_seconds, self._write_noted)

    def _take_noted(self) -> list[RowOutcome]:
        noted, self._noted = self._noted, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return noted

    def _write_noted(self) -> None:
        """Write what was noted, without waiting. The file raises an error of it at its next use."""
        self._submit(self._file.record, self._take_noted())


async def _result(job: Future[T]) -> T:
    """Wait for a job of the thread, which a cancellation leaves alone."""
    return await asyncio.shield(asyncio.wrap_future(job))


async def _ended(job: Future[T]) -> T:
    """Wait for a job of the thread; a cancellation is raised after its end."""
    waiter = asyncio.wrap_future(job)
    cancelled: asyncio.CancelledError | None = None
    while not waiter.done():
        try:
            await asyncio.wait({waiter})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        waiter.exception()  # it was looked at
        raise cancelled
    return waiter.result()


def _withdraw(file: JournalFile, admission: Future[list[RowDecision]]) -> None:
    """Note rows as not sent that were logged for a caller who was cancelled."""
    if admission.exception() is None:
        unsent = [RowOutcome(row.seq, "waiting", "not sent: cancelled") for row in admission.result() if row.action == "send"]
        file.record(unsent)


def _finish(file: JournalFile, noted: list[RowOutcome]) -> None:
    try:
        file.record(noted)  # also where there is nothing to record: an error of before comes up here at the latest
    finally:
        file.close()
