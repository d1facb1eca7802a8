"""The engine of a run: takes rows from the input, sends them, reconciles those in doubt, and ends.

What happens to a row is the table in `_life`. State changes here are plain methods. Three kinds of tasks do the awaiting: the
workers, the feeder where the input or the ledger has to be awaited, and the conductor.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from datetime import datetime
from typing import Any, Final, TypeAlias

from boardclient import _operations as operations
from boardclient._pace import Pace
from boardclient._pipeline._calls import CallOptions, CallRunner
from boardclient._statuses import is_throttling
from boardclient.bulk._board import PatientReader
from boardclient.bulk._ledger import Ledger, to_the_end
from boardclient.bulk._life import LIVES, MOST_SENDS, Event, Row, event_of
from boardclient.bulk._listing import SeenIds
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._reconciler import Reconciler, RowFinding
from boardclient.bulk._results import Listener, Results, ResultState, Tally, moment_in
from boardclient.bulk._source import AsyncSource, SyncSource
from boardclient.bulk._waiting import Hold, SharedLimiter, Turn, Turns, is_held, pause_before, queue_before
from boardclient.errors import ApiError, BoardClientError, DecodeError, Effect, InvalidIdentifierError
from boardclient.events import BulkPhase, WaitReason
from boardclient.models import Card, check_identifier

Source: TypeAlias = SyncSource[Row] | AsyncSource[Row]

_ENDS_TASK: Final = (asyncio.CancelledError, GeneratorExit)
"""What ends a task from outside: it is cancelled, or its event loop was closed."""
_LOOK_SECONDS: Final = 0.02
"""How often a run looks whether more workers make it faster."""
_LARGEST_BATCH: Final = 256
"""The largest number of rows logged in one commit, whose cost hardly depends on their number."""
_MOST_DOUBTS: Final = 1000
"""The number of rows in doubt at which the board is read before more rows are sent."""
_MOST_KEPT: Final = 64
"""How many rows are kept back at most, each of another list."""
_RESEND_SECONDS: Final = 0.25
"""The pause before a row of unknown effect is sent a second time with `unknown="resend"`. It doubles each time."""
_STEPS: Final = 10
"""How often the loop runs before an input counts as one that has to be waited for."""
_LINE: Final = "POST /1/cards"
_NOT_PROVEN: Final = (
    "it is not listed, but no later, longer listing has proven that listing complete: with a journal, the next run knows"
    " once any other card is on the board"
)


class Engine:
    """Sends the rows of one run, and finds out about those in doubt. Owned by its `BulkRun`, which opens, halts and closes it.

    Rows that are being sent and results that were not taken together number at most two per worker, so a slow consumer slows the
    workers down. With `unknown="reconcile"` the last row of each list is kept back until others have a result or are in doubt:
    its card makes the listing longer, which proves the others absent.
    """

    def __init__(
        self,
        caller: CallRunner,
        source: Source,
        options: BulkOptions,
        listeners: Sequence[Listener],
        *,
        ledger: Ledger,
        tally: Tally,
        ended: Callable[[BaseException | None], object],
    ) -> None:
        self.is_halted = False
        self.in_flight = 0
        self.phase: BulkPhase = "creating" if options.board_id is None else "reading the board"
        self.wait_ends_at: datetime | None = None
        self.results = Results(self._dispatch)
        self._caller, self._source, self._options, self._listeners = caller, source, options, listeners
        self._ledger, self._tally, self._ended = ledger, tally, ended
        self._loop = asyncio.get_running_loop()
        self._life = LIVES[options.unknown]
        self._hold = Hold(caller.timeout, self._note_change)
        shared = caller.limiter
        self._queue = None if shared is None else queue_before(shared)
        has_pace = isinstance(shared, Pace)
        self._turns = Turns(options.workers, caller.slots, makes_pace=not has_pace, grows=options.concurrency is None)
        self._workers: list[asyncio.Task[None]] = []
        self._growing: asyncio.TimerHandle | None = None
        reader = PatientReader(caller, self._limiter(None), self._hold)
        self._reconciler = Reconciler(reader, options.board_id, ledger, options.marker, options.settle_seconds)
        self._has_board, self._reads_board = options.board_id is not None, options.unknown == "reconcile"
        self._seen = SeenIds()
        """The identifiers that responses have named, and those of known cards."""
        self._ready: deque[Row] = deque()
        self._first: deque[Row] = deque()
        """Rows to be sent before those of `_ready`: they were put off, or were in doubt."""
        self._kept: dict[str, Row] = {}
        """The rows that are kept back, by their lists."""
        self._paused: dict[Row, asyncio.TimerHandle] = {}
        self._refused: deque[Row] = deque()
        """Refused rows, until another is accepted or nothing is left to send."""
        self._doubted: list[Row] = []
        self._open: list[Row] = []
        """Rows in doubt whose cards the last listing lacked."""
        self._busy = 0
        """How many rows the workers have."""
        self._idle: deque[asyncio.Future[Row | None]] = deque()
        """The workers that wait for a row."""
        self._batch = ledger.batch
        """How many rows the feeder takes and logs at a time. 0 if nothing is logged."""
        self._is_exhausted = False
        if isinstance(source, AsyncSource):
            source.on_wait = self._dispatch
        self._is_reconciling = self._is_reading = False
        self._sent_at = self._loop.time()  # requests of earlier runs were sent before now
        """When the last response was lost, on the loop's clock."""
        self._listed_at = self._sent_at
        """When the board was last read for rows in doubt."""
        self._has_grown = False
        """Whether a card was created since the board was read for rows in doubt."""
        self._calls: list[CallOptions] = []
        """The options of the workers' calls, by which they are withdrawn."""
        self._entering: set[asyncio.Task[Any]] = set()
        """The workers that wait for pace or a connection."""
        self._change = asyncio.Event()
        """Set when the run is quiet, or no longer is."""
        self._needs_rows = asyncio.Event()
        """Set when rows may have to be taken from the input."""
        self._phase_task: asyncio.Task[None] | None = None
        self._conductor: asyncio.Task[None] | None = None
        self._announced: WaitReason | None = None
        self._is_over = False

    # --- open, halt, close

    async def open(self, context: Context, tell: Callable[[str], object]) -> asyncio.Task[None]:
        """Read the board if necessary, and start the tasks, which run in `context`. Return the one that ends last.

        `tell` is called with each phase, in words.

        Raises:
            BoardClientError: the board could not be read.
        """
        self._tell = tell
        if self._has_board:
            tell("the board is read")
            self._begin_phase("reading the board")
        await self._until_halted(self._reconciler.prepare(reads_cards=self._reads_board), context)
        self._tally.begin()
        if self._has_board:
            self._begin_phase("creating")
        self._caller.slots.wanted += self._options.workers
        self._conductor = asyncio.create_task(self._conduct(), name="boardclient bulk run", context=context)
        return self._conductor

    def halt(self, error: BaseException | None = None) -> None:
        """Start nothing more, and complete what was sent. `error` is raised to the owner of the run after the last result."""
        self._ended(error)
        if self.is_halted:
            return
        self.is_halted = True
        self._source.give_up()
        self._hold.end()
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        for task in self._entering:
            task.cancel()
        self._caller.withdraw(self._calls)
        if self._phase_task is not None:
            self._phase_task.cancel()

    async def aclose(self) -> None:
        """Cancel the calls in flight, and close the ledger and the input. A cancellation of the caller is raised after that.

        Raises:
            JournalError: the journal could not be written.
            Exception: any error that the input's cleanup raises.
        """
        self.halt()
        try:
            await to_the_end(asyncio.create_task(self._release()))
        finally:
            # The ledger is closed first, since closing the input may take long.
            await self._source.aclose()

    async def _release(self) -> None:
        try:
            if self._conductor is not None:  # pragma: no branch -- None only if the run could not begin
                self._conductor.cancel()
                await asyncio.wait({self._conductor})
                self._caller.slots.wanted -= self._options.workers
                self._ledger.withdraw([row for row in self._take_unsent() if row.state in {"ready", "refused"}])
        finally:
            await self._ledger.aclose()

    async def _until_halted(self, phase: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        """Await a phase in a task, which is cancelled when the run is halted, or the caller is."""
        self._phase_task = task = asyncio.create_task(phase, context=context)
        if self.is_halted:
            task.cancel()
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._phase_task = None
        if not (task.cancelled() and self.is_halted):
            task.result()

    # --- what the run tells

    @property
    def in_doubt(self) -> int:
        """The number of rows in doubt."""
        return len(self._doubted) + len(self._open)

    @property
    def waiting_for(self) -> WaitReason | None:
        """What the run waits for, or None."""
        if self._hold.reason is not None:
            return self._hold.reason
        if self._is_reconciling:
            return "settling"
        return "retry-after" if is_held(self._turns.pace, self._caller.limiter) else None

    def _add_result(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, put it into the queue, and notify the listeners."""
        self._ledger.add_outcome(row, state, card, error)
        values = (row.index, row.draft, card, error, state)
        self.results.put(values)
        self._tally.add_result(values)
        if self._listeners:
            self._notify()

    def _announce(self) -> None:
        """Notify the listeners if the reason for which the run waits has changed."""
        if self._listeners and self.waiting_for != self._announced:
            self._notify()

    def _notify(self) -> None:
        progress = self._tally.progress(self)
        self._announced = progress.waiting_for
        try:
            for listener in self._listeners:
                listener(progress)
        except asyncio.CancelledError:  # a plain function can't be cancelled, so the function itself raised this
            self.halt(RuntimeError("on_progress raised CancelledError"))
        except BaseException as error:  # a faulty listener ends the run and is raised to its owner
            self.halt(error)

    # --- what happens to rows

    def _happen(
        self, row: Row, event: Event, card: Card | None = None, error: BoardClientError | None = None, seconds: float = 0.0
    ) -> None:
        """Let an event happen to a row, and carry out the reaction to it."""
        row.state, reaction = self._life[row.state, event]
        match reaction:
            case "created":
                self._add_result(row, "created", card)
            case "queue":
                self._ready.append(row)
            case "queue first":
                self._first.append(row)
            case "pause" if seconds <= 0:
                insort(self._first, row, key=_waiting_since)
            case "pause":
                self._paused[row] = self._loop.call_later(seconds, self._resume, row)
            case "keep":
                (self._open if row.state == "open" else self._doubted).append(row)
            case "hold back":
                self._refused.append(row)
            case "withdraw":
                self._ledger.withdraw([row])
            case "found":
                self._add_result(row, "already" if row.is_earlier else "created", card)
            case "already" | "failed" | "unknown":  # pragma: no branch -- "nothing" needs no reaction
                self._add_result(row, reaction, card, error or row.error)

    def _admit(self, row: Row) -> None:
        """Begin the life of a row that was taken from the input."""
        if row.action == "done":
            card_id = row.detail or ""
            self._seen.add(card_id)
            self._reconciler.note_known(row, card_id)
            self._happen(row, "known", Card(card_id))
        elif row.action == "doubtful":
            why = row.detail or "an earlier run has sent it, and ended before the response came"
            row.error = BoardClientError(why, Effect.UNKNOWN)
            self._happen(row, "in doubt")
        elif self._has_board and (problem := self._reconciler.problem(row)) is not None:
            self._happen(row, "unsendable", error=problem)
        else:
            self._happen(row, "admitted")

    def _resume(self, row: Row) -> None:
        """Send a row again after its pause."""
        del self._paused[row]
        insort(self._first, row, key=_waiting_since)
        self._note_change()

    def _note_created(self, row: Row, card: Card) -> None:
        """Note the response to a row's request."""
        if not (card.id.isalnum() or _is_usable(card.id)):
            why = f"{_LINE}: a later call can't send the identifier {card.id!a:.60}"
            self._note_failure(row, DecodeError(why, "id", _LINE))
            return
        if not self._seen.add(card.id):
            why = f"{_LINE}: the response names the card {card.id:.60}, which is another row's"
            self._note_failure(row, DecodeError(why, "id", _LINE))
            return
        if self._hold.is_disturbed or self._refused:
            self._note_accepted(row)
        if self._reads_board:
            self._has_grown = True
            self._reconciler.note_created(row, card.id)
        self._happen(row, "created", card)

    def _note_accepted(self, row: Row) -> None:
        """Note that a request was accepted, and whose fault the refusals before it were."""
        was_outage = self._hold.reason is not None
        if was_outage and not self._hold.may_send(row):
            return  # it was sent before the outage, and says nothing about its end
        self._hold.note_success()
        while self._refused and (was_outage or self._refused[0].sent_as < row.sent_as):
            self._happen(self._refused.popleft(), "outage is over" if was_outage else "accepted another")

    def _note_failure(self, row: Row, failure: BoardClientError) -> None:
        """Note the failure of a row's request."""
        event, seconds = event_of(failure, row.sends, row.refusals + 1), 0.0
        if event != "given back" and not self._hold.note_failure(failure) and not is_throttling(failure):
            self.halt(failure if self._hold.reason is None else _too_long(failure))
        if event in {"given back", "put off"}:
            row.sends -= 1
        if event == "put off":
            if is_throttling(failure):
                self._turns.note_refusal(self._tally.requests, _retry_after(failure))
            pause = 0.0 if self.is_halted else pause_before(row, failure, self._hold)
            event, seconds = ("waited too long", 0.0) if pause is None else (event, pause)
        elif event in {"lost", "lost too often"}:
            seconds = _RESEND_SECONDS * 2**row.sends
            self._sent_at = row.doubted_at = self._loop.time()
        elif event in {"refused", "refused too often"}:
            row.refusals += 1
            if self._reads_board:
                self._reconciler.note_refused(row)
        if event not in {"given back", "put off"}:
            if row.state == "resent" and row.error is not None and not event.startswith("lost"):
                row.error.add_note(f"sent again: {failure}")
            else:
                row.error = failure
        self._happen(row, event, seconds=seconds)
        self._announce()

    def _judge_refused(self) -> None:
        """Nothing is left to send that could show whose fault the last refusals were: they are the rows' own."""
        while self._refused:
            self._happen(self._refused.popleft(), "accepted another")

    # --- which row is sent next

    def _take(self) -> Row | None:
        """Return the next row to send if there is one now, which counts as busy until its request has ended."""
        if self.is_halted or self._is_reading or self._busy + len(self.results.untaken) >= 2 * self._options.workers:
            return None
        hold = self._hold
        if (hold.reason is not None and not hold.is_due) or len(self._doubted) >= _MOST_DOUBTS:
            return None
        row = self._next_row()
        if row is None and hold.reason is not None and self._refused:
            row = self._refused.popleft()
        if row is None:
            return None
        row.state, _ = self._life[row.state, "taken"]
        self._busy += 1
        if hold.reason is not None:
            hold.try_one(row)
        return row

    def _next_row(self) -> Row | None:
        """Return the row that is sent next, or None if none is left but those that are kept back."""
        first, ready, kept = self._first, self._ready, self._kept
        while first or ready or self._refill():
            row = (first or ready).popleft()
            if self._batch and len(ready) < self._batch >> 1:
                self._needs_rows.set()
            if not self._reads_board or row.was_kept or row.put_off_at is not None:
                return row
            list_id = row.draft.list_id
            before = kept.get(list_id)
            if before is None and len(kept) >= _MOST_KEPT:
                return row
            kept[list_id] = row
            if before is not None:
                return before
        return None

    def _refill(self) -> bool:
        """Take rows from the input if that needs no waiting, and return whether one is ready."""
        source = self._source
        if self._batch or self._is_exhausted or isinstance(source, AsyncSource):
            self._needs_rows.set()
            return False
        while not (self._ready or self.is_halted):
            try:
                row = source.next_at_once()
            except BaseException as error:  # an error of the input ends the run and is raised to its owner
                self.halt(error)
                return False
            if row is None:
                self._is_exhausted = True
                return False
            self._admit(row)
        return not self.is_halted

    def _dispatch(self) -> None:
        """Give rows to idle workers, and wake the conductor."""
        while self._idle:
            if self._idle[0].done():
                self._idle.popleft()
            elif (row := self._take()) is not None:
                self._idle.popleft().set_result(row)
            else:
                break
        if not self._busy and (self.is_halted or self._is_quiet):
            self._change.set()

    def _note_change(self) -> None:
        """Note that rows may be sent that had to wait, or that the run waits for something else."""
        self._announce()
        self._dispatch()

    @property
    def _wanted(self) -> int:
        """How many rows the feeder is to take now."""
        waiting = len(self._first) + len(self._ready)
        capacity = 2 * self._options.workers - self._busy - len(self.results.untaken)
        if self._batch:
            return self._batch if waiting <= self._batch >> 1 and capacity > 0 else 0
        return min(capacity, len(self._idle)) - waiting

    async def _feed(self) -> None:
        """Take rows from an input that has to be awaited, or for a ledger, as the body of the feeder."""
        while not (self._is_exhausted or self.is_halted):
            while (wanted := self._wanted) <= 0:
                self._needs_rows.clear()
                await self._needs_rows.wait()
            rows = await self._source.take(wanted)
            if self._batch and rows:
                await self._ledger.admit(rows)
                if self._idle and len(rows) == self._batch:
                    self._batch = min(2 * self._batch, _LARGEST_BATCH)  # workers had to wait for them
            self._is_exhausted = not rows
            for row in rows:
                self._admit(row)
            self._change.set()
            self._dispatch()

    # --- the workers

    def _limiter(self, hold: Hold | None) -> SharedLimiter | None:
        if self._queue is None or self._caller.limiter is None:
            return None
        return SharedLimiter(self._caller.limiter, self._queue, hold)

    async def _work(self) -> None:
        """Send one row after another until the run is halted, as the body of a worker."""
        limiter = self._limiter(self._hold)
        options = CallOptions(limiter, is_of_run=True, waits_count=False)
        self._calls.append(options)
        call, turns, tally, hold = self._caller.call, self._turns, self._tally, self._hold
        turn: Turn | None = None
        while (row := self._take() or await self._next()) is not None:
            failure: BoardClientError | None = None
            try:
                if turns.must_wait and (turn := await self._enter(row)) is None:
                    continue
                request = self._request(row)
                if limiter is not None:
                    limiter.row = row
                self.in_flight += 1
                try:
                    card = await call(request, options)
                except BoardClientError as error:
                    failure = error
                finally:
                    self.in_flight -= 1
                if turn is not None:
                    await turn.leave(failure)
                    turn = None
                if failure is not None:
                    tally.add_attempts(failure.attempts)
                    self._note_failure(row, failure)
                    failure = None  # its traceback holds this frame
                    continue
                if options.history:
                    tally.add_attempts(options.history)
                    options.history.clear()
                else:
                    tally.requests += 1
                self._note_created(row, card)  # pyright: ignore[reportPossiblyUnboundVariable] -- there is no failure
            except asyncio.CancelledError:
                self._give_back_unsent(row)
                if not self.is_halted and not self._is_over:
                    self.halt(RuntimeError("a card was cancelled by something other than its run"))
                raise
            except GeneratorExit:  # pragma: no cover -- only if the event loop is closed during the run
                raise
            except BaseException as error:  # a faulty limiter or marker ends the run and is raised to its owner
                self._give_back_unsent(row)
                self.halt(error)
            finally:
                if turn is not None:
                    await turn.give_back()
                    turn = None
                if hold.reason is not None:
                    hold.release(row)
                self._busy -= 1
                if self._idle or not self._busy:
                    self._dispatch()

    async def _next(self) -> Row | None:
        """Wait for a row to send, and return None once the run is halted."""
        if self.is_halted:
            return None
        waiter: asyncio.Future[Row | None] = self._loop.create_future()
        self._idle.append(waiter)
        self._needs_rows.set()
        if not self._busy:
            self._dispatch()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and (row := waiter.result()) is not None:  # pragma: no cover -- a race
                self._give_back(row)
                self._busy -= 1
            raise

    async def _enter(self, row: Row) -> Turn | None:
        """Wait for pace and connection, and return None if the run was held meanwhile, and the row given back."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a worker is a task
        self._entering.add(task)
        try:
            turn = await self._turns.enter()
        finally:
            self._entering.discard(task)
        if self._hold.may_send(row) and not self.is_halted:
            return turn
        await turn.give_back()
        self._give_back(row)
        return None

    def _request(self, row: Row) -> operations.Request[Card]:
        """Return the request that creates the card of a row, which may be sent from now on."""
        draft = row.draft
        desc = self._reconciler.description(row) if self._options.marker else draft.desc
        request = operations.ADD_CARD.request_with(operations.draft_fields(draft, desc), list_id=draft.list_id, due=draft.due)
        if row.seq > self._ledger.released:
            self._ledger.release(row)
        row.sends += 1
        row.sent_as = self._tally.requests + self.in_flight
        return request

    def _give_back(self, row: Row) -> None:
        """Let a row be sent later that was taken and not sent."""
        self._happen(row, "given back")

    def _give_back_unsent(self, row: Row) -> None:
        """Give back a row whose request did not end, unless it may have been sent."""
        if row.state == "resent" or (row.state == "sent" and not row.sends):
            self._give_back(row)

    # --- the conductor

    async def _conduct(self) -> None:
        """Let the workers send everything, reconcile what is in doubt, and end, as the body of the conductor."""
        # A task per worker, not per card: this saves 10 microseconds per card, and memory does not grow with the input.
        self._start_workers()
        feeding: list[asyncio.Task[None]] = []
        if self._batch or isinstance(self._source, AsyncSource):
            feeder = asyncio.create_task(self._feed())
            feeder.add_done_callback(self._note_fed)
            feeding.append(feeder)
        try:
            try:
                await self._until_halted(self._phases())
            except _ENDS_TASK:
                raise
            except BaseException as error:  # raised to the owner of the run after the last result
                self.halt(error)
            if self.is_halted:
                await self._stop()
        except _ENDS_TASK:
            raise
        except BaseException as error:  # pragma: no cover -- a ledger that fails while the run stops
            self.halt(error)
        finally:
            self._is_over = True
            if self._growing is not None:
                self._growing.cancel()
            tasks = [*self._workers, *feeding]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self.results.close()

    def _start_workers(self) -> None:
        """Start as many workers as the run needs, and look again soon if it may need more."""
        needed = self._turns.places(self._tally.requests)
        self._workers += [asyncio.create_task(self._work()) for _ in range(needed - len(self._workers))]
        if needed < self._options.workers:
            self._growing = self._loop.call_later(_LOOK_SECONDS, self._start_workers)

    def _note_fed(self, feeder: asyncio.Task[None]) -> None:
        if not feeder.cancelled() and (error := feeder.exception()) is not None:
            self.halt(error)

    async def _phases(self) -> None:
        self._tell("rows are sent")
        reads_at_end = bool(self._ledger.batch) and self._reads_board
        while True:
            await self._quiet()
            if self._refused:
                self._judge_refused()
            elif self._doubted:
                reads_at_end = True
                await self._reconcile()
            elif self._kept:
                self._send_kept()
            elif self._open and self._has_grown:
                await self._reconcile()
            elif self._open:
                await self._give_up()
            elif self._is_exhausted:
                break
            else:
                await self._wait_for_change()
        # The response of a proxy that repeated a POST looks like any other: only the board shows the second card.
        if reads_at_end:
            self._tell("the board is read for the audit")
            self._begin_phase("reading the board")
            try:
                self._tally.audit = await self._reconciler.audit()
            except BoardClientError as error:
                self._tally.audit_error = error  # the results stay as they are

    async def _reconcile(self) -> None:
        """Read the board once every card that was sent must be listed, until when new rows are sent."""
        rows = [*self._doubted, *self._open]
        self._is_reconciling = True
        try:
            wait = self._sent_at + self._options.settle_seconds - self._loop.time()
            if wait > 0:
                self._tell(f"rows in doubt: {len(rows)}, the board is read in {wait:.1f} s")
                self._begin_phase("waiting", wait)
                await asyncio.sleep(wait)
                return
            self._is_reading, self._has_grown = True, False
            self._begin_phase("reading the board")
            findings = await self._reconciler.reconcile(rows)
        finally:
            self._is_reconciling = self._is_reading = False
        self._doubted.clear()
        self._open.clear()
        self._listed_at = self._loop.time()
        for finding in findings:
            self._note_finding(finding)
        self._begin_phase("creating")
        self._dispatch()

    def _note_finding(self, finding: RowFinding) -> None:
        """Note what a listing says about a row in doubt."""
        row, card, error, is_open = finding
        if is_open:
            self._happen(row, "not listed")
        elif card is not None:
            self._seen.add(card.id)
            self._happen(row, "found", card)
        elif error is not None:
            self._happen(row, "not told", error=error)
        elif row.sends >= MOST_SENDS:
            why = f"sent {row.sends} times, and not on the board: {row.error}"
            self._happen(row, "absent too often", error=BoardClientError(why, Effect.REJECTED))
        else:
            row.is_earlier, row.was_kept, row.error, row.put_off_at = False, False, None, None
            self._happen(row, "absent")

    async def _give_up(self) -> None:
        """Report rows as unknown whose absence no further card can prove, unless an input may still yield one."""
        patience = self._listed_at + self._options.settle_seconds - self._loop.time()
        if not self._is_exhausted and patience > 0:
            await self._wait_for_change(patience)
        else:
            rows, self._open = self._open, []
            for row, _, error, _ in self._reconciler.give_up(rows, _NOT_PROVEN):
                self._happen(row, "given up", error=error)

    async def _stop(self) -> None:
        """Complete what was sent, and end the lives of all other rows."""
        while self._busy:
            await self._wait_for_change()
        for row in self._take_unsent():
            self._happen(row, "stopped")

    def _take_unsent(self) -> list[Row]:
        """Remove all rows that have no result, and return them."""
        for timer in self._paused.values():
            timer.cancel()
        places = (self._first, self._ready, self._paused, self._refused, self._doubted, self._open)
        rows = [row for place in (*places, self._kept.values()) for row in place]
        for place in (*places, self._kept):
            place.clear()
        return rows

    @property
    def _is_quiet(self) -> bool:
        """Whether no request is under way, and none will be unless the conductor does something."""
        if self._busy:
            return False
        if len(self._doubted) >= _MOST_DOUBTS:
            return True
        if self._paused or (self._refused and self._hold.reason is not None):
            return False
        is_fed = self._is_exhausted or self._source.is_waiting
        return is_fed and not (self._first or self._ready)

    async def _quiet(self) -> None:
        """Wait until the run is quiet, but not for an input that yields soon."""
        steps = 0
        while steps < _STEPS:
            if not self._is_quiet:
                steps = 0
                await self._wait_for_change()
            elif self._is_exhausted:
                return
            else:
                steps += 1
                await asyncio.sleep(0)

    def _send_kept(self) -> None:
        """Let the rows be sent that were kept back."""
        for row in self._kept.values():
            row.was_kept = True
        self._first.extend(self._kept.values())
        self._kept.clear()
        self._dispatch()

    async def _wait_for_change(self, seconds: float | None = None) -> None:
        self._change.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._change.wait()

    def _begin_phase(self, phase: BulkPhase, seconds: float | None = None) -> None:
        """Note what the run does from now on, and until when if it waits, and notify the listeners."""
        self.phase, self.wait_ends_at = phase, None if seconds is None else moment_in(seconds)
        if self._listeners:
            self._notify()


def _is_usable(card_id: str) -> bool:
    """Return True if later calls can name a card by an identifier."""
    try:
        return bool(check_identifier(card_id, "id").strip())
    except InvalidIdentifierError:
        return False


def _waiting_since(row: Row) -> float:
    return row.put_off_at or 0.0


def _retry_after(error: BoardClientError) -> float | None:
    return error.retry_after if isinstance(error, ApiError) else None


def _too_long(error: BoardClientError) -> BoardClientError:
    """Return the error of a run that an outage ended."""
    ended = copy.copy(error)
    ended.message += "; nothing was accepted for too long, so the run ended, and the rows that were not sent are left to the next"
    ended.args = (ended.message, *ended.args[1:])
    return ended
