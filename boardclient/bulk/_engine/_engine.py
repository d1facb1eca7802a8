"""The engine of a run: it opens and halts what sends rows, and its conductor finds out about those in doubt.

State changes are plain methods, and only the bodies of tasks await.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from boardclient._base._guards import wait_to_end
from boardclient._interface._responses import ends_run
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._concurrency import Hold, Turns
from boardclient.bulk._engine._patience import Patience
from boardclient.bulk._engine._places import BulkOptions, Lives, Shared, Source
from boardclient.bulk._engine._row_responses import CREATE, TOO_LONG, Responses, ended_by
from boardclient.bulk._engine._sending import Sender
from boardclient.bulk._ledger import Ledger, UnrecordedError
from boardclient.bulk._proof._board import NO_BOARD, RunBoard
from boardclient.bulk._proof._reconciler import Reconciler, RowFinding
from boardclient.bulk._results import Results, Snapshot, Tally
from boardclient.errors import BoardClientError
from boardclient.events import BulkPhase, WaitReason

_NOT_PROVEN: Final = "the board does not list it, and no longer listing has proven that the board lists every card"
_MOST_EARLIER: Final = 1000
"""How many rows that earlier runs have left in doubt are remembered, to tell responses that come late."""


class Engine:
    """Sends the rows of one run, and finds out about those in doubt. Owned by its `BulkRun`, which opens, halts and closes it."""

    def __init__(self, pipeline: Pipeline, source: Source, options: BulkOptions, *, ledger: Ledger, tally: Tally) -> None:
        self.is_halted = self._is_auditing = False
        self.results = Results()
        self._source, self._options, self._ledger, self._tally = source, options, ledger, tally
        self._loop = asyncio.get_running_loop()
        self._hold = Hold(pipeline.timeout, self.on_change, waits_for_consent=options.waits_for_consent)
        self._patience: Patience | None = None
        if options.patience is not None:
            self._patience = Patience(options.patience, self._hold, tally, lambda: self.snapshot, self._end_wait)
        self._turns = Turns(pipeline, options.workers, self._hold, grows=options.concurrency is None)
        self._board = RunBoard(pipeline, self._hold, options.board_id, ledger, options.settle_seconds, self._on_wait)
        self._reconciler = Reconciler(self._board, ledger, options.marker, sends_probes=options.probe)
        self._probes = self._reconciler.probes
        tally.probes = self._probes.cards_left
        shared = Shared(
            owner=self,
            pipeline=pipeline,
            source=source,
            options=options,
            ledger=ledger,
            tally=tally,
            results=self.results,
            turns=self._turns,
            board=self._board,
            reconciler=self._reconciler,
        )
        self._lives = Lives(shared)
        self._places = self._lives.places
        self._responses = Responses(shared, self._lives)
        self._sender = Sender(shared, self._lives, self._responses)
        self._reads_board = options.unknown == "reconcile"
        self._reads_at_end = ledger.is_durable and self._reads_board
        self._conductor: asyncio.Task[None] | None = None
        self._phase_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []  # the feeder and the workers
        self._listed_at = self._loop.time()  # when, on the loop's clock, the board was last read

    # --- open, halt, close

    async def open(self, context: Context) -> asyncio.Task[None]:
        """Read the board if necessary, and start the tasks, which run in `context`. Return the one that ends last.

        Raises:
            BoardClientError: the board could not be read.
        """
        if self._options.board_id is not None:
            self._begin_phase("reading the board", "the board is read")
        self._look_at_wait()
        note = self._reconciler.appearances.record if self._reads_board else None
        try:
            await self._until_halted(self._board.prepare(note), context)
            if self._tally.ended_waiting is not None and self._tally.error is not None:
                raise self._tally.error
        except BaseException:
            self._stop_looking()
            raise
        if self._reads_board and not self._ledger.is_new:
            self._responses.earlier = [doubt.content for doubt in (await self._ledger.others()).doubts[:_MOST_EARLIER]]
        self._tally.begin()
        if self._options.board_id is not None:
            self._begin_phase("creating")
        self._turns.slots.wanted += self._options.workers
        self._conductor = asyncio.create_task(self._conduct(), name="boardclient bulk run", context=context)
        self._conductor.add_done_callback(self._on_task_end)
        self._conductor.add_done_callback(lambda conductor: self.results.close())
        return self._conductor

    def halt(self, error: BaseException | None = None) -> None:
        """Start nothing more, and complete what was sent. `error` is raised to the owner of the run after the last result."""
        # The first error is the cause. Later ones may be what came of it.
        self._tally.error = self._tally.error or error
        if self.is_halted:
            return
        self.is_halted = True
        self._stop_looking()
        self._sender.halt()
        if self._phase_task is not None:
            self._phase_task.cancel()
        self._sender.dispatch()

    async def aclose(self) -> None:
        """Cancel the calls in flight, and close the ledger and the input. A cancellation of the caller is raised after that.

        Raises:
            JournalError: the journal could not be written.
            Exception: any error that the input's cleanup raises.
        """
        self.halt()
        try:
            await wait_to_end(asyncio.create_task(self._release()))
        finally:
            # The ledger is closed first, since closing the input may take long.
            await self._source.aclose()

    async def _release(self) -> None:
        try:
            if self._conductor is not None:  # pragma: no branch -- None only if the run could not begin
                self._conductor.cancel()
                await asyncio.wait({self._conductor})
                if not self._ledger.is_durable:  # no later run knows of them
                    await self._probes.remove(is_patient=False)
                    self._probes.warn_of_unseen()
                self._turns.slots.wanted -= self._options.workers
        finally:
            await self._ledger.aclose()

    async def _until_halted(self, phase: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        """Await a phase, which is cancelled when the run is halted."""
        self._phase_task = task = asyncio.create_task(phase, context=context)
        if self.is_halted:
            task.cancel()
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            await asyncio.wait({task})
        if not (task.cancelled() and self.is_halted):
            task.result()

    # --- what the run tells

    @property
    def snapshot(self) -> Snapshot:
        """What the run does now."""
        held_seconds = self._turns.held_seconds
        # No pace holds requests for longer than five minutes.
        asked_seconds = max(self._hold.asked_seconds, self._turns.asked_seconds)
        if held_seconds is None and self._places.paused and not (self._sender.busy or self._places.ready):
            held_seconds = self._refused_seconds()
            if self._hold.reason is None:  # in an outage the pauses are the run's own
                asked_seconds = max(asked_seconds, held_seconds or 0.0)
        in_doubt = len(self._places.doubted) + len(self._places.open)
        waits = self._wait(in_doubt, held_seconds, asked_seconds)
        return Snapshot(self._sender.busy - self._turns.waiting, in_doubt, *waits, self._sender.is_quiet)

    def _wait(self, in_doubt: int, held_seconds: float | None, asked_seconds: float) -> tuple[WaitReason | None, float | None]:
        """Return what the run waits for, and for how many seconds if that is known."""
        reason, phase = self._hold.reason, self._tally.phase
        # Nothing is sent while the board is read, so a pause of that reading is what the run waits for, whatever else holds it.
        if self._board.held_until is not None:
            return "retry-after" if self._board.is_asked else "refusals", self._board.held_until - self._loop.time()
        if reason == "outage" and asked_seconds:
            return "retry-after", asked_seconds
        if reason is not None:
            return reason, held_seconds
        if held_seconds is not None and not (in_doubt and phase == "waiting"):
            return "retry-after" if asked_seconds else "refusals", max(held_seconds, asked_seconds)
        return "settling" if in_doubt and phase != "creating" else None, held_seconds

    def _refused_seconds(self) -> float | None:
        """Return for how long all rows that are left wait after a 429, or None if others wait too."""
        # Rows of unknown effect that are sent again are in another state.
        due = [timer.when() for row, timer in self._places.paused.items() if row.state == "ready"]
        return min(due) - self._loop.time() if due else None

    def _begin_phase(self, phase: BulkPhase, words: str | None = None, seconds: float | None = None) -> None:
        """Note what the run does from now on, in words for instruments, and for how long if it waits."""
        self._tally.begin_phase(phase, words, seconds)
        self._sender.set_most()
        self.notify()

    def _on_wait(self, seconds: float | None) -> None:
        """Note that the board is read again after so many seconds, or now."""
        if seconds is None:
            self._begin_phase("reading the board")
        else:
            self._begin_phase("waiting", f"cards are not listed yet, the board is read again in {seconds:.1f} s", seconds)

    def notify(self) -> None:
        if (error := self._tally.notify(self.snapshot)) is not None:
            self.halt(error)

    def on_change(self) -> None:
        """Note that rows may be sent that had to wait, or that the run waits for something else."""
        if self.snapshot.waiting_for != self._tally.announced:
            self.notify()
        self._look_at_wait()
        self._sender.dispatch()

    def _look_at_wait(self) -> None:
        if self._patience is not None and not self.is_halted:
            self._patience.look()

    def _stop_looking(self) -> None:
        if self._patience is not None:
            self._patience.stop()

    def _end_wait(self) -> None:
        """End the run, which has waited for longer than it may: with an error, unless all rows have results."""
        progress = self._tally.progress(self.snapshot)
        error = ended_by(self._hold.failure or BoardClientError(progress.status), TOO_LONG)
        error.retry_at = error.retry_at or progress.wait_ends_at
        self._tally.ended_waiting = progress
        if self._is_auditing:
            self._tally.audit_error = error
        is_over = self._sender.is_exhausted and not self._sender.busy and (self._is_auditing or self._places.are_empty)
        self.halt(None if is_over else error)

    # --- the conductor

    async def _conduct(self) -> None:
        """Let everything be sent, reconcile what is in doubt, and end, as the body of the conductor."""
        self.start(self._sender.feed())
        self.start(self._sender.grow())
        try:
            try:
                await self._until_halted(self._phases())
            except Exception as error:  # raised to the owner of the run after the last result
                self.halt(error)
            if self.is_halted:
                await self._stop()
        finally:
            self.is_halted = True
            self._stop_looking()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._end_lives("the run was left")

    def start(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(body)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """End the run if something that the application supplies has ended a task."""
        if task.cancelled():
            if not self.is_halted:
                self.halt(RuntimeError("a card was cancelled by something other than its run"))
        elif (error := task.exception()) is not None:
            self.halt(error)

    async def _phases(self) -> None:
        """Do what is next whenever the run is quiet, until nothing is left."""
        self._tally.note("rows are sent")
        places = self._places
        while True:
            if not self._sender.is_quiet:
                await self._sender.wait_for_change()
            elif await self._judge_responses() or await self._judge_doubts():
                continue
            elif places.refused and (self._hold.reason is not None or any(row.is_excused for row in places.refused)):
                await self._check_refused()
            elif self._sender.is_exhausted:
                break
            elif places.refused:
                await self._audit()
                self._begin_phase("creating")
            else:
                await self._sender.wait_for_change()
        # The response of a proxy that repeated a POST looks like any other: only the board shows the second card.
        if self._reads_at_end or places.refused:
            await self._audit()

    async def _judge_responses(self) -> bool:
        """Find out about responses and refusals. Return False if there is nothing to find out now."""
        places = self._places
        if connections := self._responses.order.connections:  # nothing more comes over them soon that proves their responses
            await asyncio.sleep(0)  # what has come already is read
            await self._responses.prove(connections)
        elif places.returned:
            await self._admit_again()
        elif places.refused and not self._reads_board:  # nothing is left to send that could show whose fault the refusals were
            self._lives.happen(places.refused.popleft(), "refusal stands")
        elif places.refused and places.has_most_refused:
            await self._check_refused()
        else:
            return False
        return True

    async def _judge_doubts(self) -> bool:
        """Find out about rows in doubt, and send what helps to. Return False if there is nothing to find out."""
        places = self._places
        # In this order: the board is read for the rows in doubt; the rows are sent that were kept back, whose cards make the next
        # listing longer; what no listing can prove is given up, or probed; and the probes are deleted.
        if places.doubted or (places.open and self._reconciler.has_grown and not places.kept_back):
            await self._reconcile()
        elif places.kept_back:
            places.let_go()
            self._sender.dispatch()
        elif places.open:
            await self._give_up()
        elif self._probes.is_to_be_removed:
            await self._probes.remove()
        else:
            return False
        return True

    async def _audit(self) -> None:
        """Read the board, and end the rows that have failed: a service may have done what it refused."""
        self._is_auditing = True
        self._begin_phase("reading the board", "the board is read for the audit")
        try:
            self._tally.audit, findings = await self._reconciler.audit(self._places.refused, self._places.in_doubt)
        except UnrecordedError:
            raise
        except BoardClientError as error:
            self._tally.audit_error = error  # the results stay as they are
            findings = [RowFinding(row, "refusal stands") for row in self._places.refused]
        self._is_auditing = False
        self._places.empty(self._places.refused)
        for finding in findings:
            self._lives.apply_finding(finding)
        await self._probes.remove()  # those of an earlier run that only a listing shows

    async def _check_refused(self) -> None:
        """Read the board for the rows that were refused. Those of an outage or an earlier run are sent again if it lacks them."""
        if self._hold.reason is not None:
            self._responses.excuse()
        rows = self._places.empty(self._places.refused)
        self._begin_phase("reading the board", "the board is read before refused rows are sent again")
        try:
            findings = await self._reconciler.check(rows, self._places.in_doubt)
        except BoardClientError as error:
            if ends_run(error) or isinstance(error, (*NO_BOARD, UnrecordedError)):
                self._places.refused.extend(rows)
                raise
            why = f"{CREATE}: it was refused, and is not sent again while the board can't be read: {error.message}"
            unread = BoardClientError(why)
            unread.retry_at = error.retry_at
            findings = [RowFinding(row, "unsendable" if row.is_excused else "refusal stands") for row in rows]
            findings = [f._replace(error=copy.copy(unread)) if f.row.is_excused else f for f in findings]
        self._begin_phase("creating")
        for finding in findings:
            self._lives.apply_finding(finding)

    async def _admit_again(self) -> None:
        rows = self._places.take_returned(self._sender.ahead)
        await self._ledger.admit(rows)
        for row in rows:
            self._lives.admit_again(row)
        self._sender.dispatch()

    async def _reconcile(self) -> None:
        """Wait until every card that was sent must be listed, while new rows are sent. Then read the board."""
        self._reads_at_end = True
        while (wait := self._lives.lost_at + self._options.settle_seconds - self._loop.time()) > 0:
            words = f"rows in doubt: {len(self._places.doubted) + len(self._places.open)}, the board is read in {wait:.1f} s"
            self._begin_phase("waiting", words, wait)
            await asyncio.sleep(wait)
            while not self._sender.is_quiet:
                await self._sender.wait_for_change()
        self._begin_phase("reading the board")
        is_outage = self._hold.reason is not None
        findings = await self._reconciler.reconcile(self._places.in_doubt, self._places.refused)
        self._places.empty(self._places.doubted, self._places.open)
        self._listed_at = self._loop.time()
        for finding in findings:
            self._lives.apply_finding(finding)
        self._begin_phase("creating")
        if is_outage and self._hold.reason is not None and (error := findings[0].error) is not None:
            # A card of the rows that were kept back proves others absent, once the service accepts requests again.
            self.halt(ended_by(error, TOO_LONG))
        self._sender.dispatch()

    async def _give_up(self) -> None:
        """Report rows as unknown whose absence no further card can prove, unless an input may still yield one, or a probe."""
        patience = self._listed_at + self._options.settle_seconds - self._loop.time()
        if not self._sender.is_exhausted and patience > 0:
            await self._sender.wait_for_change(patience)
        elif self._probes.is_earlier_to_be_removed:  # what they add to the listing is gone when the next run looks
            await self._probes.remove()
            self._reconciler.has_grown = True
        elif lists := self._probes.lists_for(self._places.open) if self._options.probe else None:
            self._send_probes(lists)
        else:
            rows = [*self._places.open]
            self._places.empty(self._places.open)
            why = _NOT_PROVEN if self._options.probe else f"{_NOT_PROVEN}; a temporary card may prove it, and none was allowed"
            for finding in await self._reconciler.give_up(rows, why):
                self._lives.happen(finding.row, "given up", error=finding.error)

    # --- probes

    def _send_probes(self, lists: Iterable[str]) -> None:
        """Send a probe to each of these lists: nothing else makes the next listing longer."""
        for row in self._places.open:
            row.probes += 1
        self._tally.note("temporary cards are sent, so that the next listing is longer")
        for list_id in lists:
            self._lives.happen(self._probes.make(list_id), "admitted")
        self._sender.dispatch()

    # --- the end

    async def _stop(self) -> None:
        """Complete what was sent, and end the lives of all other rows."""
        while self._sender.busy:
            await self._sender.wait_for_change()
        with suppress(BoardClientError):
            await self._responses.prove(self._responses.order.connections)
        why, error, unread = "the run was stopped", self._tally.error, self._board.failure
        if unread is not None and error is None:  # it was stopped while it waited for the board
            why = f"the board could not be read: {unread.message}"
        elif error is not None:
            why = f"the run has ended: {error if isinstance(error, BoardClientError) else type(error).__name__}"
        self._end_lives(why, is_unread=unread is not None)
        await self._probes.remove(is_patient=False)

    def _end_lives(self, why: str, *, is_unread: bool = False) -> None:
        self._responses.end()
        self._lives.end(why, is_unread=is_unread)
