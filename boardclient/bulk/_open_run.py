"""An open run: its parts, and its phases from the first row to the last result."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine, Sequence
from typing import Any

from boardclient._activities import PARENT, Activity
from boardclient._pipeline._calls import CallRunner
from boardclient.bulk._backlog import Backlog
from boardclient.bulk._board import PatientReader
from boardclient.bulk._concurrency import make_limiter
from boardclient.bulk._doubts import Doubts
from boardclient.bulk._halt import ENDS_TASK, Halt, Halted, to_the_end
from boardclient.bulk._hold import Hold
from boardclient.bulk._input import AsyncInput, Drafts, open_input
from boardclient.bulk._journal import JournalLedger
from boardclient.bulk._ledger import Ledger, MemoryLedger
from boardclient.bulk._options import BulkOptions, journal_identity
from boardclient.bulk._queue import ResultQueue
from boardclient.bulk._reconciler import Reconciler
from boardclient.bulk._recorder import Listener, ResultRecorder
from boardclient.bulk._results import ResultState
from boardclient.bulk._rows import Row
from boardclient.bulk._run_limiter import RunLimiter
from boardclient.bulk._sender import Sender
from boardclient.bulk._settling import Settling
from boardclient.bulk._tally import Tally
from boardclient.errors import BoardClientError, Effect
from boardclient.events import WaitReason
from boardclient.logs import followers
from boardclient.models import Card


class OpenRun:
    """A run inside its `async with` block. Owned by its `BulkRun`, which closes it.

    It has two phases. In the first, rows are passed to the workers until the input ends, too many rows are in doubt, or some are
    while the input is waited for. In the second, the board is read, and each row in doubt is settled, sent again, or left until
    another card was created. They alternate until no row is left.
    """

    def __init__(
        self,
        caller: CallRunner,
        drafts: Drafts,
        options: BulkOptions,
        listeners: Sequence[Listener],
        *,
        ledger: Ledger,
        tally: Tally,
        halt: Halt,
        activity: Activity,
    ) -> None:
        self.results = ResultQueue()
        self._activity = activity
        self._options = options
        self._ledger = ledger
        self._tally = tally
        self._halt = halt
        self._input = open_input(drafts)
        self._recorder = ResultRecorder(ledger, self.results, tally, listeners, halt)
        doubted: list[Row] = []
        self._backlog = Backlog(self._input, ledger, options.workers, self.results, doubted)
        self._doubts = Doubts(options, self._backlog, self._recorder, doubted)
        self._hold = Hold(caller.timeout, self._recorder.announce)
        self._limiter = RunLimiter(make_limiter(caller, options, tally), caller.limiter, self._hold, caller.slots)
        reader = PatientReader(caller, self._limiter, self._hold)
        self._reconciler = Reconciler(reader, options.board_id, ledger, options.marker, options.settle_seconds)
        self._settling = Settling(self._input, self._backlog, self._doubts, self._reconciler, self._recorder)
        self._sender = Sender(
            caller,
            options,
            ledger=ledger,
            reconciler=self._reconciler,
            backlog=self._backlog,
            doubts=self._doubts,
            recorder=self._recorder,
            tally=tally,
            limiter=self._limiter,
            hold=self._hold,
            halt=halt,
        )
        self._slots = caller.slots
        self._conductor: asyncio.Task[None] | None = None
        tally.reason = self._waiting_for
        halt.on_set(self._input.give_up)
        halt.on_set(self._hold.end)
        halt.on_set(self._sender.withdraw_unsent)

    @classmethod
    async def open(
        cls,
        caller: CallRunner,
        drafts: Drafts,
        options: BulkOptions,
        listeners: Sequence[Listener],
        *,
        tally: Tally,
        halt: Halt,
    ) -> OpenRun:
        """Open the journal, read the board if necessary, and start the workers.

        Raises:
            JournalError: the journal can't be used.
            BoardClientError: the board could not be read.
        """
        activity = Activity(kind="run", operation="cards.create_many", instruments=followers(), parent=PARENT.get())
        # One context for all tasks of the run: a context variable can be reset only in the context in which it was set.
        context = contextvars.copy_context()
        context.run(lambda: PARENT.set(activity.begin()))
        try:
            ledger = await _open_ledger(caller, options)
            try:
                run = cls(caller, drafts, options, listeners, ledger=ledger, tally=tally, halt=halt, activity=activity)
                with contextlib.suppress(Halted):
                    await halt.unless_set(run._prepare(), context)
            except BaseException:
                await to_the_end(asyncio.create_task(ledger.aclose()))
                raise
        except BaseException as error:
            context.run(activity.end, error)
            raise
        tally.begin()
        caller.slots.wanted += options.workers
        run._conductor = asyncio.create_task(run._conduct(), name="boardclient bulk run", context=context)
        # Not in the task, which may be cancelled before it begins.
        run._conductor.add_done_callback(lambda task: run._end(), context=context)
        return run

    async def _prepare(self) -> None:
        if self._options.board_id is not None:
            self._activity.note("the board is read")
        await self._reconciler.prepare(reads_cards=self._options.unknown == "reconcile")

    async def aclose(self) -> None:
        """Cancel the calls in flight, and close the journal and the input.

        A cancellation of the caller is raised after that.

        Raises:
            JournalError: the journal could not be written.
            Exception: any error that the input's cleanup raises.
        """
        self._halt.set()
        conductor = self._conductor
        assert conductor is not None  # noqa: S101 -- `open` has begun it
        conductor.cancel()
        try:
            await to_the_end(asyncio.create_task(self._release(conductor)))
        finally:
            self._tally.reason = None
            # The journal is closed first, since closing the input may take long.
            await self._input.aclose()

    async def _release(self, conductor: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait({conductor})
            self._slots.wanted -= self._options.workers
            self._withdraw()
        finally:
            await self._ledger.aclose()

    def _waiting_for(self) -> WaitReason | None:
        if self._hold.reason is not None:
            return self._hold.reason
        if self._settling.is_under_way:
            return "settling"
        return "retry-after" if self._limiter.is_held else None

    # --- phases

    async def _conduct(self) -> None:
        # A task per worker, not per card: this saves 10 microseconds per card, and memory does not grow with the input.
        workers = [asyncio.create_task(self._sender.work()) for _ in range(self._options.workers)]
        try:
            await self._phases()
        except ENDS_TASK:
            raise
        except BaseException as error:  # raised to the owner of the run after the last result
            self._halt.set(error)
        finally:
            self._sender.is_over = True
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            self.results.close()

    def _end(self) -> None:
        self._activity.counts = self._tally.counts
        self._activity.end(self._halt.error)

    async def _phases(self) -> None:
        is_doubted = False
        try:
            self._activity.note("rows are sent")
            await self._unless_halted(self._feed())
            while self._doubts.rows:
                is_doubted = True
                self._activity.note(
                    f"rows in doubt: {len(self._doubts.rows)}, the board is read in {self._doubts.settle_seconds:.1f} s"
                )
                await self._unless_halted(self._settling.run())
                await self._unless_halted(self._feed())
            # The response of a proxy that repeated a POST looks like any other: only the board shows the second card.
            if is_doubted or (self._ledger.batch and self._options.unknown == "reconcile"):
                self._activity.note("the board is read for the audit")
                await self._audit()
        except Halted:
            self._activity.note("the run is stopped")
            self._doubts.rows += self._withdraw()
            await self._backlog.drained()
            for row in self._doubts.rows:
                self._recorder.settle(row, "unknown", error=row.error)

    async def _audit(self) -> None:
        """Compare the board with the ledger. Results stay as they are if the board can't be read."""
        try:
            self._tally.audit = await self._halt.unless_set(self._reconciler.audit())
        except BoardClientError as error:
            self._tally.audit_error = error

    async def _unless_halted(self, phase: Coroutine[Any, Any, None]) -> None:
        """Run a phase. An error in it halts the run.

        Raises:
            Halted: the run is halted.
        """
        try:
            await self._halt.unless_set(phase)
        except ENDS_TASK:
            raise
        except BaseException as error:
            if not isinstance(error, Halted):
                self._halt.set(error)
            raise Halted from None

    def _withdraw(self) -> list[Row]:
        """Remove the rows that wait to be sent. Return those that are in doubt."""
        rows = self._backlog.give_up()
        self._ledger.withdraw([row for row in rows if row.error is None])
        return [row for row in rows if row.error is not None]

    async def _feed(self) -> None:
        """Take rows as workers ask for them, until none is left and none is under way.

        It also ends when too many rows are in doubt, or when some are and the input has to be waited for.
        """
        watch = asyncio.create_task(self._interrupt_input()) if isinstance(self._input, AsyncInput) else None
        try:
            rows: Sequence[Row] | None = None
            while rows != [] and not (self._backlog.is_exhausted or self._doubts.is_full or self._halt.is_set):
                rows = await self._backlog.take()
                self._backlog.put_all(self._select(rows))
        finally:
            if watch is not None:
                watch.cancel()
        await self._backlog.drained()
        if not self._doubts.rows:
            self._backlog.send(self._backlog.take_kept())
            await self._backlog.drained()

    async def _interrupt_input(self) -> None:
        """End the wait for the next row once nothing else is left to do. It may depend on a row in doubt."""
        await self._doubts.wait()
        await self._backlog.idle()
        while self._doubts.settle_seconds:
            await asyncio.sleep(self._doubts.settle_seconds)
            await self._backlog.idle()
        self._input.interrupt()

    def _select(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows to send. Settle the others, or add them to those in doubt."""
        selected: list[Row] = []
        for row in rows:
            if row.action == "send":
                if (problem := self._reconciler.problem(row)) is None:
                    selected.append(row)
                else:
                    self._finish(row, "failed", error=problem)
            elif row.action == "done":
                self._reconciler.note_known(row, row.detail or "")
                self._finish(row, "already", Card(row.detail or ""))
            else:
                why = row.detail or "an earlier run has sent it, and ended before the response came"
                row.error = BoardClientError(why, Effect.UNKNOWN)
                if self._options.unknown == "resend":
                    selected.append(row)
                else:
                    self._doubts.add(row, row.error)
                    self._backlog.end()
        return selected

    def _finish(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Settle a row that this run did not send."""
        self._recorder.settle(row, state, card, error)
        self._backlog.end()


async def _open_ledger(caller: CallRunner, options: BulkOptions) -> Ledger:
    """Open the journal, or make a ledger in memory."""
    if options.ledger is not None:
        return options.ledger
    if options.journal is None:
        return MemoryLedger()
    identity = journal_identity(caller.identity, options.board_id, options.marker)
    return await JournalLedger.open(options.journal, identity, options.batch)
