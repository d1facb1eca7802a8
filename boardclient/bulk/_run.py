"""The run: workers take rows, create cards and hand out results, no faster than they are taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Sized
from types import TracebackType
from typing import Any, Final, Literal, Self

from boardclient import _operations as operations
from boardclient._pipeline._options import CallOptions, CallRunner
from boardclient.bulk._backlog import Backlog
from boardclient.bulk._ledger import JournalLedger, Ledger, MemoryLedger
from boardclient.bulk._outbox import Outbox
from boardclient.bulk._plan import Drafts, Plan, journal_identity
from boardclient.bulk._reconcile import Reconciler
from boardclient.bulk._results import FATAL, BulkReport, CardResult, State
from boardclient.bulk._rows import Row, Source
from boardclient.bulk._tally import Tally
from boardclient.bulk._turns import make_turns
from boardclient.errors import BoardClientError, Effect, RateLimitError
from boardclient.events import BulkProgress
from boardclient.models import Card

_LONGEST_REFUSAL_SECONDS: Final = 300.0
"""How long a card may wait from its first answer of 429 on before it counts as failed; another run sends it again."""
_MOST_IN_DOUBT: Final = 1000
"""Rows in doubt that are kept until the board is read, also before the end of the input."""
_MOST_SENDS: Final = 5
"""How often a card is sent whose effect is unknown each time."""
_RESEND_SECONDS: Final = 0.25
"""The pause before a card in doubt is sent a second time, where that is the caller's choice; doubling."""

Listener = Callable[[BulkProgress], object]


class BulkRun:
    """A bulk creation under way: an asynchronous context manager and a stream of `CardResult` in the order of completion.

    Leaving the block cancels what is in flight and closes the input, where that is a generator; a journal stays resumable. A
    credential that is refused, a closed session, a journal that can't be written and a faulty input end the run: no further
    card is begun, those in flight come to their end, and the error is raised from the iteration after the last result. Owned by
    whoever called `create_many`.
    """

    def __init__(self, caller: CallRunner, drafts: Drafts, plan: Plan, listeners: Sequence[Listener]) -> None:
        if not all(map(callable, listeners)):
            raise TypeError("on_progress must be callable")
        self._caller = caller
        self._drafts = drafts
        self._plan = plan
        self._tally = Tally(len(drafts) if isinstance(drafts, Sized) else None)
        self._listeners = tuple(listeners)
        self._turns = make_turns(caller, plan, self._tally)
        self._doubtful: list[Row] = []
        self._doubted_at = 0.0
        self._is_halted = False
        self._halted = asyncio.Event()
        """The same, for whoever waits for it."""
        self._is_over = False
        self._fatal: BaseException | None = None
        self._life: Literal["new", "open", "left"] = "new"

    # --- its life, and what its owner sees

    async def __aenter__(self) -> Self:
        if self._life != "new":
            raise RuntimeError("a BulkRun runs once")
        self._life = "open"
        plan = self._plan
        self._ledger = await _open_ledger(self._caller, plan)
        try:
            self._reconciler = Reconciler(self._caller, plan.board_id, self._ledger, plan.marker)
            await self._reconciler.prepare(reads_cards=plan.unknown == "reconcile")
        except BaseException:
            await self._ledger.aclose()
            raise
        self._tally.begin()
        self._doubted_at = asyncio.get_running_loop().time()  # of rows of earlier runs: whoever sent them has ended by now
        self._source = Source(self._drafts)
        self._outbox = Outbox()
        self._backlog = Backlog(self._source, self._ledger, plan.workers, self._outbox)
        self._conductor = asyncio.create_task(self._conduct())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._life = "left"
        self.stop()
        self._conductor.cancel()
        try:
            await asyncio.wait({self._conductor})
            self._withdraw()
        finally:
            try:
                await self._source.aclose()
            finally:
                await self._ledger.aclose()

    def stop(self) -> None:
        """Begin no further card: those in flight come to their end, then the iteration ends; a journal stays resumable."""
        self._is_halted = True
        self._halted.set()

    def __aiter__(self) -> AsyncIterator[CardResult]:
        return self

    async def __anext__(self) -> CardResult:
        self._check_open()
        if self._outbox.untaken or await self._more():
            return self._outbox.take()
        raise StopAsyncIteration

    async def _more(self) -> bool:
        """Wait for a result, and tell whether there is one; at the end of the run raise what ended it early."""
        self._check_open()
        if await self._outbox.wait():
            return True
        self._check_open()
        if self._fatal is not None:
            raise self._fatal
        return False

    def take_ready(self) -> list[CardResult]:
        """Take the results that wait to be taken, and wait for none: what is known when a run is about to be left early."""
        return self._outbox.take_all()

    def _check_open(self) -> None:
        if self._life != "open":
            raise RuntimeError("a BulkRun is used within its `async with` block")

    async def wait(self) -> BulkReport:
        """Run to the end without looking at the results, and return the report.

        Raises:
            BoardClientError: the run ended early, as the iteration would say.
        """
        while await self._more():
            self._outbox.take_all()
        return self.report

    @property
    def report(self) -> BulkReport:
        """The sum of the results so far."""
        return self._tally.report

    @property
    def progress(self) -> BulkProgress:
        """How far the run is."""
        return self._tally.progress

    # --- phases: feed the workers, then settle what is in doubt, until nothing is left

    async def _conduct(self) -> None:
        # A task for each worker and not for each card: 10 microseconds a card less, and memory that doesn't grow with the input.
        workers = [asyncio.create_task(self._work()) for _ in range(self._plan.workers)]
        try:
            await self._phases()
        except Exception as error:  # whatever went wrong is for the owner of the run
            self._fail(error)
        finally:
            self._is_over = True
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            self._outbox.close()

    async def _phases(self) -> None:
        is_doubted = False
        try:
            await self._unless_halted(self._feed())
            while self._doubtful:
                is_doubted = True
                await self._unless_halted(self._settle_doubtful())
                await self._unless_halted(self._feed())
            if is_doubted:
                with contextlib.suppress(BoardClientError):  # what is settled stays so without it
                    self._tally.audit = await self._reconciler.audit()
        except _Halted:
            self._doubtful += self._withdraw()
            await self._backlog.drained()
            for row in self._doubtful:
                self._settle(row, _unknown(row, row.error))

    def _withdraw(self) -> list[Row]:
        """Take back the rows that wait to be sent; return those that were sent before and are in doubt."""
        rows = self._backlog.give_up()
        self._ledger.withdraw([row for row in rows if row.error is None])
        return [row for row in rows if row.error is not None]

    async def _unless_halted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; where the run is halted meanwhile, leave it."""
        task, halted = asyncio.create_task(work), asyncio.create_task(self._halted.wait())
        try:
            await asyncio.wait({task, halted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            halted.cancel()
            await asyncio.wait({task, halted})
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if self._is_halted:
            raise _Halted

    def _fail(self, error: BaseException) -> None:
        """Halt the run with an error, which its owner meets after the last result."""
        if self._fatal is None:
            self._fatal = error
        self.stop()

    async def _feed(self) -> None:
        """Take rows as workers ask for them, until the input is at its end or too many are in doubt, and none is under way."""
        # An input may swallow the cancellation that ends its waiting.
        while not (self._backlog.is_exhausted or self._is_halted or len(self._doubtful) >= _MOST_IN_DOUBT):
            for row in await self._backlog.take():
                self._direct(row)
        if not self._is_halted:
            await self._backlog.drained()

    def _direct(self, row: Row) -> None:
        """Send a new row, or settle it where it is known what becomes of it."""
        if row.standing == "done":
            self._finish(row, CardResult(index=row.index, draft=row.draft, card=Card(row.detail or ""), state="already"))
        elif row.standing == "failed":
            self._finish(row, _failure(row, BoardClientError(f"refused in an earlier run: {row.detail}", Effect.REJECTED)))
        elif row.standing == "doubtful":
            why = row.detail or "an earlier run has sent it, and ended before the answer came"
            row.error = BoardClientError(why, Effect.UNKNOWN)
            if self._plan.unknown == "resend":
                self._backlog.put(row)
            else:
                self._doubt(row, row.error)
                self._backlog.end()
        elif (problem := self._reconciler.problem(row)) is not None:
            self._finish(row, _failure(row, problem))
        else:
            self._backlog.put(row)

    async def _settle_doubtful(self) -> None:
        """Read the board once whatever was sent must have arrived, and settle what is in doubt or send it again."""
        rows = list(self._doubtful)
        await asyncio.sleep(self._doubted_at + self._plan.settle_seconds - asyncio.get_running_loop().time())
        findings = await self._reconciler.settle(rows)
        self._doubtful.clear()
        for row, card, error in findings:
            if card is not None:
                state: State = "already" if row.is_earlier else "created"
                self._settle(row, CardResult(index=row.index, draft=row.draft, card=card, state=state))
            elif error is not None:
                self._settle(row, _unknown(row, error))
            elif row.sends >= _MOST_SENDS:
                why = f"sent {row.sends} times, and not on the board: {row.error}"
                self._settle(row, _failure(row, BoardClientError(why, Effect.REJECTED)))
            else:
                row.is_earlier, row.error = False, None
                self._backlog.begin()
                self._backlog.put(row)

    # --- one row

    async def _work(self) -> None:
        """Send row after row."""
        part = CallOptions(self._turns)
        while True:
            row = self._next_at_once() or await self._backlog.next()
            if self._is_halted:
                self._backlog.put(row)  # it is taken back with the others
                return
            try:
                await self._send(row, part)
            except asyncio.CancelledError:
                if self._life == "open" and not self._is_over:
                    self._fail(RuntimeError("a card was cancelled by something other than its run"))
                raise
            except Exception as error:  # a faulty limiter or marker ends the run and is raised to its owner
                if not row.sends and row.error is None:
                    self._ledger.withdraw([row])
                self._fail(error)
            finally:
                self._backlog.end()

    def _next_at_once(self) -> Row | None:
        """Return a row that is to be sent, if that needs no waiting."""
        while not self._is_halted and len(self._doubtful) < _MOST_IN_DOUBT:
            try:
                row = self._backlog.take_at_once()
            except Exception as error:  # whatever the input raises is for the owner of the run
                self._fail(error)
                return None
            if row is None or self._plan.board_id is None or (problem := self._reconciler.problem(row)) is None:
                return row
            self._finish(row, _failure(row, problem))
        return None

    async def _send(self, row: Row, part: CallOptions) -> None:
        """Create the card of a row, and say what became of it."""
        draft = row.draft
        desc = self._reconciler.description(row) if self._plan.marker else draft.desc
        request = operations.ADD_CARD.request(name=draft.name, list_id=draft.list_id, desc=desc, due=draft.due, pos=draft.pos)
        row.sends += 1
        try:
            card = await self._caller.call(request, part)
        except BoardClientError as error:
            failure = error
        else:
            if part.history:
                self._tally.add_attempts(part.history)
                part.history.clear()
            else:
                self._tally.requests += 1
            if self._plan.unknown == "reconcile":
                self._reconciler.note_created(row, card)
            self._settle(row, CardResult(index=row.index, draft=draft, card=card))
            return
        self._note_failure(row, failure)

    def _note_failure(self, row: Row, failure: BoardClientError) -> None:
        """Say what became of a row whose card was not created, or send it again."""
        self._tally.add_attempts(failure.attempts)
        if isinstance(failure, FATAL):
            self._fail(failure)
        if isinstance(failure, RateLimitError) and not self._is_halted and self._is_patient(row, failure):
            row.sends -= 1
            self._backlog.begin()
            self._backlog.put_later(row, failure.retry_after or 0.0)
        elif (result := CardResult.of_error(row.index, row.draft, failure)).state == "unknown" and not self._is_halted:
            self._doubt(row, failure)
        elif row.error is None:
            self._settle(row, result)
        else:
            # What became of this sending says nothing of an earlier one that is in doubt.
            row.error.add_note(f"sent again: {failure}")
            self._settle(row, _unknown(row, row.error))

    def _is_patient(self, row: Row, refusal: RateLimitError) -> bool:
        """Tell whether a card that was answered with 429 is sent again: not where it would have to wait for too long."""
        now = asyncio.get_running_loop().time()
        if row.refused_at is None:
            row.refused_at = now
        return now + (refusal.retry_after or 0.0) - row.refused_at < _LONGEST_REFUSAL_SECONDS

    def _doubt(self, row: Row, error: BoardClientError) -> None:
        """Do with a row in doubt what the caller wants: report it, send it again, or set it aside until the board is read."""
        row.error = error
        if self._plan.unknown == "resend" and row.sends < _MOST_SENDS:
            self._backlog.begin()
            self._backlog.put_later(row, _RESEND_SECONDS * 2**row.sends)
        elif self._plan.unknown == "reconcile":
            self._doubtful.append(row)
            if row.sends:
                self._doubted_at = asyncio.get_running_loop().time()
        else:
            self._settle(row, _unknown(row, error))

    def _finish(self, row: Row, result: CardResult) -> None:
        """Settle a row that was never sent."""
        self._settle(row, result)
        self._backlog.end()

    def _settle(self, row: Row, result: CardResult) -> None:
        """Hand a result out, put it on record and tell whoever listens."""
        self._ledger.settle(row, result)
        self._outbox.put(result)
        self._tally.add_result(result.state)
        if self._listeners:
            try:
                progress = self.progress
                for listener in self._listeners:
                    listener(progress)
            except Exception as error:  # a faulty listener ends the run and is raised to its owner
                self._fail(error)


class _Halted(Exception):  # noqa: N818 -- never leaves this module
    """The run is not to begin anything more."""


def _failure(row: Row, error: BoardClientError) -> CardResult:
    return CardResult(index=row.index, draft=row.draft, error=error, state="failed")


def _unknown(row: Row, error: BoardClientError | None) -> CardResult:
    return CardResult(index=row.index, draft=row.draft, error=error, state="unknown")


async def _open_ledger(caller: CallRunner, plan: Plan) -> Ledger:
    if plan.journal is None:
        return MemoryLedger(keeps_cards=plan.unknown == "reconcile")
    return await JournalLedger.open(plan.journal, journal_identity(caller.identity, plan.board_id, plan.marker), plan.batch)
