"""The journal of a bulk run as its tasks see it. Here is the thread that works on the file, and no SQL."""

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
"""How long an outcome may wait for the next arming to be written with it."""
_NOTES: Final = 1024
"""How many outcomes may wait."""
_PAGE: Final = 1000


class Journal:
    """An open journal, used from one event loop; owned by the run, which closes it.

    Rows are admitted in batches: what `admit` calls "send" is on the disk, and may leave. What became of it is noted without
    waiting, and written with the next batch, soon, or at the end; a row whose note is lost in a crash is in doubt, as one
    without a note is. Whoever is cancelled while waiting here leaves nothing half done: the thread goes on to its end.
    """

    def __init__(self, file: JournalFile, thread: ThreadPoolExecutor, note_seconds: float) -> None:
        self._file = file
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._note_seconds = note_seconds
        self._noted: list[RowOutcome] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closing: Future[None] | None = None

    @classmethod
    async def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], *, note_seconds: float = NOTE_SECONDS) -> Self:
        """Open the journal for a run, or create it where there is none.

        Nobody else can open it until it is closed. `identity` names what the rows belong to (service, board, account), with
        texts that hold no secret.

        Raises:
            JournalError: it can't be used; the message says what to do.
        """
        thread = ThreadPoolExecutor(1, "boardclient-journal")
        opening = thread.submit(JournalFile.open, path, dict(identity))
        try:
            file = await _result(opening)
        except BaseException:
            thread.submit(_close_unclaimed, opening)
            thread.shutdown(wait=False)
            raise
        return cls(file, thread, note_seconds)

    @property
    def secret(self) -> bytes:
        """32 random bytes, made with the journal: a key for markers and digests."""
        return self._file.secret

    @property
    def run(self) -> int:
        """The number of this run, from 1: a row of a lower one was armed earlier."""
        return self._file.run

    @property
    def baseline(self) -> int | None:
        """How many cards stood on the board before. None means that nobody looked."""
        return self._file.baseline

    @property
    def is_new(self) -> bool:
        """Tell whether no row was ever armed."""
        return self._file.is_new

    async def admit(self, entries: Sequence[Entry]) -> list[RowDecision]:
        """Look rows up, arm those that are to be sent, and say what to do with each.

        The answers are in the order of the rows. Rows that were armed for a caller who was cancelled meanwhile are noted as not
        sent.

        Raises:
            JournalError: the file can't be written, now or before; a key came before in this run; or the content of a row that
                may have been sent has changed. None of the rows may be sent.
        """
        job = self._submit(self._file.admit, tuple(entries), self._take_noted())
        try:
            return await _result(job)
        except asyncio.CancelledError:
            if self._closing is None:
                self._thread.submit(_withdraw, self._file, job)
            raise

    def note(self, seq: int, state: SettledState, detail: str | None = None) -> None:
        """Say what became of a row, without waiting.

        `detail` is the card's id of a done row, otherwise the reason. Whether it could be written shows at the next `admit`,
        `flush` or `aclose`.
        """
        self._check_open()
        if detail is not None and not detail.isascii():
            detail = detail.encode(errors="replace").decode()  # a lone surrogate in a reason must not stop the run
        self._noted.append(RowOutcome(seq, state, detail))
        if len(self._noted) >= _NOTES:
            self._write_noted()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._note_seconds, self._write_noted)

    async def rearm(self, seqs: Iterable[int]) -> None:
        """Arm rows again that were in doubt and turned out not to be done.

        From now on they count as armed by this run. A row that is done stays so. Whoever is cancelled here finds the rows in
        doubt, as they were.

        Raises:
            JournalError: the file can't be written, now or before. None of the rows may be sent.
        """
        await _result(self._submit(self._file.rearm, tuple(seqs), self._take_noted()))

    async def flush(self) -> None:
        """Write what was noted.

        Raises:
            JournalError: the file can't be written, now or before.
        """
        await _result(self._submit(self._file.record, self._take_noted()))

    async def doubtful(self) -> AsyncGenerator[JournalRow, None]:
        """Yield the rows that may have been sent and of which nothing is known.

        They are those of all runs, in the order of arming. Those under way are among them. What was noted is written first.

        Raises:
            JournalError: the file can't be written or read.
        """
        async for row in self.rows("armed", "unknown"):
            yield row

    async def rows(self, *states: RowState) -> AsyncGenerator[JournalRow, None]:
        """Yield the rows in these states, in the order of arming; what was noted is written first.

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
        """Keep the ids of the cards that stand on the board, before a row is armed.

        Raises:
            RuntimeError: a row was armed already, or there is a baseline.
            JournalError: the file can't be written.
        """
        await _result(self._submit(self._file.set_baseline, tuple(card_ids)))

    async def baseline_ids(self) -> list[str]:
        """Return the ids of the cards that stood on the board before."""
        return await _result(self._submit(self._file.baseline_ids))

    async def in_baseline(self, card_ids: Iterable[str]) -> set[str]:
        """Return those of the ids that stood on the board before."""
        return await _result(self._submit(self._file.in_baseline, tuple(card_ids)))

    async def aclose(self) -> None:
        """Write what was noted, close the file and give the lock back; once is enough.

        Raises:
            JournalError: the file can't be written, now or before: the next run will find rows in doubt. The lock is given back.
        """
        if self._closing is None:
            self._closing = self._submit(_finish, self._file, self._take_noted())
            self._thread.shutdown(wait=False)
        await _result(self._closing)

    def _submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        self._check_open()
        return self._thread.submit(work, *arguments)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise RuntimeError("the journal is closed")

    def _take_noted(self) -> list[RowOutcome]:
        noted, self._noted = self._noted, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return noted

    def _write_noted(self) -> None:
        """Write what was noted, unwaited for. The file remembers an error for whoever asks next."""
        self._submit(self._file.record, self._take_noted())


async def _result(job: Future[T]) -> T:
    """Wait for a job of the thread, which a cancellation leaves alone."""
    return await asyncio.shield(asyncio.wrap_future(job))


def _withdraw(file: JournalFile, admission: Future[list[RowDecision]]) -> None:
    """Note the rows as not sent that an admission armed and of which nobody learned."""
    if admission.exception() is None:
        unsent = [
            RowOutcome(standing.seq, "waiting", "not sent: cancelled")
            for standing in admission.result()
            if standing.action == "send"
        ]
        file.record(unsent)


def _finish(file: JournalFile, noted: list[RowOutcome]) -> None:
    try:
        file.record(noted)  # also where there is nothing to record: an error of before comes up here at the latest
    finally:
        file.close()


def _close_unclaimed(opening: Future[JournalFile]) -> None:
    if opening.exception() is None:
        opening.result().close()
