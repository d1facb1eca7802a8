"""The engine of a run: workers send rows, a feeder takes them from the input, and a conductor finds out about those in doubt.

What happens to a row is the table in `_life`: each event but "taken" goes through `Engine._happen`, which carries out the
reaction. State changes are plain methods, and only the bodies of these tasks await.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from bisect import insort_left
from collections import deque
from collections.abc import Coroutine, Iterable
from contextvars import Context
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, TypeAlias

from boardclient import _operations as operations
from boardclient._guards import GuardedLimiter, wait_to_end
from boardclient._pipeline._calls import CallOptions
from boardclient._pipeline._pipeline import Pipeline
from boardclient._responses import add_words, ends_run, is_throttling, moment_in
from boardclient._transport._values import UsedConnection
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import LIVES, MOST_SENDS, Event, Row, State, event_of
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._proof._board import RunBoard
from boardclient.bulk._proof._order import Response as UnprovenResponse
from boardclient.bulk._proof._order import ResponseOrder, Verdict
from boardclient.bulk._proof._probes import MOST_PROBES, Probes
from boardclient.bulk._proof._reconciler import Reconciler, RowFinding, unknown_error
from boardclient.bulk._results import Results, ResultState, Snapshot, Tally
from boardclient.bulk._source import AsyncSource, SyncSource
from boardclient.bulk._waiting import PATIENCE_SECONDS, Hold, Turn, Turns, pause_before, retry_after_of
from boardclient.errors import BoardClientError, DecodeError, Effect, InvalidIdentifierError
from boardclient.events import BulkPhase, WaitReason
from boardclient.models import Card, check_identifier

Source: TypeAlias = SyncSource[Row] | AsyncSource[Row]

_LOOK_SECONDS: Final = 0.02
"""How often a run looks whether more workers make it faster."""
_LEAST_AHEAD: Final = 16
"""How many rows are taken from the input together, at least, if nothing is logged."""
_MOST_REFUSED: Final = 10_000
"""How many rows that were refused wait for the board to be read, those of earlier runs and those of this one each."""
_MOST_DOUBTS: Final = 1000
"""The number of rows in doubt at which the board is read before more rows are sent."""
_RESEND_SECONDS: Final = 0.5
"""The pause before a row of unknown effect is sent a second time with `unknown="resend"`. It doubles each time."""
_MOST_QUESTIONS: Final = 4
"""For how many cards a connection is asked, until one response shows whether it is in step."""
_LINE: Final = "POST /1/cards"
_NOT_PROVEN: Final = "the board does not list it, and no longer listing has proven that the board lists every card"
_NEXT_RUN: Final = ": a next run with more rows of the list may prove it"
_put_off_at: Final = attrgetter("put_off_at")
_LIFE_OF_PROBES: Final = LIVES["report"]
"""A probe is sent once. If its effect is unknown, the next listing shows it or not, and another one may be sent."""


class Engine:
    """Sends the rows of one run, and finds out about those in doubt. Owned by its `BulkRun`, which opens, halts and closes it.

    Rows that are being sent and results that were not taken together number at most two per worker, so a slow consumer slows the
    workers down. The input is read a few rows ahead of them.
    """

    def __init__(self, pipeline: Pipeline, source: Source, options: BulkOptions, *, ledger: Ledger, tally: Tally) -> None:
        self.is_halted = False
        self.results = Results(self._dispatch)
        self._pipeline, self._source, self._options, self._ledger, self._tally = pipeline, source, options, ledger, tally
        self._loop = asyncio.get_running_loop()
        self._life = LIVES[options.unknown]
        self._once_taken: dict[State, State] = {
            state: after for (state, event), (after, _) in self._life.items() if event == "taken"
        }
        self._hold = Hold(pipeline.timeout, self._note_change, waits_for_consent=options.waits_for_consent)
        self._turns = Turns(pipeline, options.workers, self._hold, grows=options.concurrency is None)
        self._board = RunBoard(pipeline, self._hold, options.board_id, ledger, options.settle_seconds, self._note_wait)
        self._reconciler = Reconciler(self._board, ledger, options.marker, sends_probes=options.probe)
        self._probes: Probes | None = None
        self._reads_board = options.unknown == "reconcile"
        self._order = ResponseOrder(self._reconciler.markers)
        self._to_prove: list[UsedConnection] = []  # the connections of which too many responses wait for a proof
        self._latest = ""  # the last card that was created

        # Each row that waits is in one of these places.
        self._ready = deque[Row]()  # rows to be sent: those that were put off, the longest ago first, then the others
        self._kept_back: dict[str, Row] = {}  # the last row of each list, whose card makes the next listing longer
        self._to_check: list[Row] = []  # those refused by an earlier run, or in an outage: they are sent after all others
        self._to_send_again: list[Row] = []  # those of them that the board does not show
        self._paused: dict[Row, asyncio.TimerHandle] = {}
        self._refused, self._failed, self._doubted, self._open_rows = deque[Row](), deque[Row](), deque[Row](), deque[Row]()
        self._aside = {"refused": self._refused, "failed": self._failed, "doubted": self._doubted, "open": self._open_rows}

        # The tasks, and what wakes them.
        self._conductor: asyncio.Task[None] | None = None
        self._phase_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []  # the feeder and the workers
        self._calls: list[CallOptions] = []  # the options of the workers' calls, by which they are withdrawn
        self._busy = 0  # how many workers have a row
        self._most = 2 * options.workers  # how many may have one, results that were not taken included
        self._idle = deque[asyncio.Future[None]]()  # the workers that wait for a row
        self._needs_rows = asyncio.Event()  # wakes the feeder
        self._change = asyncio.Event()  # wakes the conductor
        if isinstance(source, AsyncSource):
            source.on_wait = self._dispatch
        self._ahead = ledger.batch or max(_LEAST_AHEAD, 2 * options.workers)  # how many rows are taken from the input together
        self._is_exhausted = False

        # When, on the loop's clock, a response was last lost and the board last read. Requests of earlier runs were sent before.
        self._lost_at = self._listed_at = self._loop.time()
        self._has_grown = False  # whether a card was created since the board was read
        self._requests = 0  # how many requests were begun

    # --- open, halt, close

    async def open(self, context: Context) -> asyncio.Task[None]:
        """Read the board if necessary, and start the tasks, which run in `context`. Return the one that ends last.

        Raises:
            BoardClientError: the board could not be read.
        """
        if self._options.board_id is not None:
            self._begin_phase("reading the board", "the board is read")
        await self._until_halted(self._board.prepare(self._reconciler.appearances.note if self._reads_board else None), context)
        if self._reads_board:
            await self._until_halted(self._load_probes(), context)
        self._tally.begin()
        if self._options.board_id is not None:
            self._begin_phase("creating")
        self._turns.slots.wanted += self._options.workers
        self._conductor = asyncio.create_task(self._conduct(), name="boardclient bulk run", context=context)
        self._conductor.add_done_callback(self._note_task_end)
        self._conductor.add_done_callback(lambda conductor: self.results.close())
        return self._conductor

    def halt(self, error: BaseException | None = None) -> None:
        """Start nothing more, and complete what was sent. `error` is raised to the owner of the run after the last result."""
        self._tally.error = self._tally.error or error
        if self.is_halted:
            return
        self.is_halted = True
        self._set_most()
        self._source.stop()
        self._hold.end()
        self._pipeline.withdraw(self._calls)
        if self._phase_task is not None:
            self._phase_task.cancel()
        self._dispatch()

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
                if self._probes is not None and not self._ledger.batch:  # no later run knows of them
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
        waiting_for: WaitReason | None = self._hold.reason
        held_seconds = self._turns.held_seconds
        if held_seconds is None and self._paused and not (self._busy or self._ready):
            # All that is left was refused with 429. Rows of unknown effect that are sent again are in another state.
            due = [timer.when() for row, timer in self._paused.items() if row.state == "ready"]
            held_seconds = min(due) - self._loop.time() if due else None
        in_doubt = len(self._doubted) + len(self._open_rows)
        if waiting_for is None and in_doubt and self._tally.phase != "creating":
            waiting_for = "settling"
        elif waiting_for is None and held_seconds is not None:
            waiting_for = "retry-after"
        return Snapshot(self._busy - self._turns.waiting, in_doubt, waiting_for, held_seconds)

    def _add_result(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, put it into the queue, and notify the listeners."""
        self._ledger.add_outcome(row, state, card, error)
        if row.is_probe:
            self._note_probe(row, state, card)
            return
        values = (row.index, row.draft, card, error, state)
        self.results.put(values)
        self._tally.add_result(values)
        if self._tally.listeners:
            self._notify()

    def _begin_phase(self, phase: BulkPhase, words: str | None = None, seconds: float | None = None) -> None:
        """Note what the run does from now on, in words for instruments, and for how long if it waits."""
        self._tally.begin_phase(phase, words, seconds)
        self._set_most()
        self._notify()

    def _note_wait(self, seconds: float | None) -> None:
        """Note that the board is read again after so many seconds, or now."""
        if seconds is None:
            self._begin_phase("reading the board")
        else:
            self._begin_phase("waiting", f"cards are not listed yet, the board is read again in {seconds:.1f} s", seconds)

    def _notify(self) -> None:
        if (error := self._tally.notify(self.snapshot)) is not None:
            self.halt(error)

    def _note_change(self) -> None:
        """Note that rows may be sent that had to wait, or that the run waits for something else."""
        if self.snapshot.waiting_for != self._tally.announced:
            self._notify()
        self._dispatch()

    # --- what happens to rows

    def _happen(
        self, row: Row, event: Event, card: Card | None = None, error: BoardClientError | None = None, pause: float = 0.0
    ) -> None:
        """Let an event happen to a row, and carry out the reaction to it."""
        row.state, reaction = (_LIFE_OF_PROBES if row.is_probe else self._life)[row.state, event]
        match reaction:
            case "created":
                self._add_result(row, "created", card)
            case "queue":
                self._ready.append(row)
            case "keep back":
                before = self._kept_back.pop(row.draft.list_id, None)
                self._kept_back[row.draft.list_id] = row
                if before is not None:
                    self._ready.append(before)
            case "pause" if pause > 0:
                self._paused[row] = self._loop.call_later(pause, self._resume, row)
            case "pause" | "queue first":
                insort_left(self._ready, row, key=_put_off_at)
            case "check":
                self._to_check.append(row)
            case "set aside":
                self._aside[row.state].append(row)
                if row.state == "failed":  # what the next run reads if this one is killed before the board is read
                    self._ledger.add_outcome(row, "failed", error=row.error)
                self._set_most()
            case "withdraw":
                self._ledger.withdraw([row])
            case "found":
                self._add_result(row, "already" if row.is_earlier else "created", card)
            case "already" | "failed" | "unknown":  # pragma: no branch -- "nothing" needs no reaction
                self._add_result(row, reaction, card, error or row.error)

    def _resume(self, row: Row) -> None:
        """Let a row be sent again after its pause."""
        del self._paused[row]
        insort_left(self._ready, row, key=_put_off_at)
        self._note_change()

    def _admit(self, row: Row) -> None:
        """Begin the life of a row that was taken from the input."""
        if row.action == "send":
            if row.detail is not None:
                self._to_check.append(row)
            elif self._options.board_id is None or (problem := self._board.problem(row)) is None:
                self._happen(row, "admitted")
            else:
                self._happen(row, "unsendable", error=problem)
        elif row.action == "done":
            card_id = row.detail or ""
            self._ledger.seen.add(card_id)
            self._reconciler.note_known(row, card_id)
            self._happen(row, "known", Card(card_id))
        else:
            why = row.detail or "an earlier run has sent it, and ended before the response came"
            row.error = BoardClientError(why, Effect.UNKNOWN)
            self._happen(row, "in doubt")

    def _note_created(self, row: Row, card: Card, options: CallOptions) -> None:
        """Note the response to a row's request, and the attempts before, if there were any."""
        attempts, connection = options.history, options.connection
        if attempts:
            self._tally.add_attempts(attempts)
            attempts.clear()
        else:
            self._tally.requests += 1
        verdict: Verdict = "proven" if connection is None else self._order.judge(row, card, connection)
        why = None
        if not (card.id.isalnum() or _is_usable(card.id)):
            why = "a later call can't send the identifier"  # not shown, since it may repeat a credential
        elif self._is_another_s(row, card.id, is_proven=verdict == "proven"):
            row.named, why = card.id, "the response names a card which is another row's or an older one"
        elif verdict == "foreign":
            why = "the response names the card of another row"
        if why is not None:
            error = DecodeError(f"{_LINE}: {why}", "id", _LINE)
            if connection is not None and (verdict == "foreign" or (verdict == "open" and self._was_named(card.id))):
                self._distrust(connection, error)
            self._note_failure(row, error, options)
        elif connection is None:
            self._confirm(row, card)
        elif verdict == "open":
            if self._hold.is_disturbed:
                self._note_accepted(row)  # whichever request was accepted
            self._keep(UnprovenResponse(options.response_number, row, card), connection)
        else:
            self._believe(self._order.prove(connection, options.response_number))
            self._confirm(row, card)

    def _is_another_s(self, row: Row, card_id: str, *, is_proven: bool) -> bool:
        """Return True if a card that a response names is another row's or an older one. Claim it if the response is proven."""
        if card_id in self._reconciler.unaccounted:
            return True
        if is_proven and not row.is_probe:
            return not self._ledger.claim(card_id)
        return card_id in self._order.card_ids or self._ledger.knows(card_id)

    def _was_named(self, card_id: str) -> bool:
        """Return True if a response to another row has named a card."""
        return card_id in self._order.card_ids or card_id in self._ledger.seen

    def _keep(self, response: UnprovenResponse, connection: UsedConnection) -> None:
        """Keep a response until it is known whether its connection was in step."""
        self._order.add(response, connection)
        if self._order.needs_proof(connection):
            self._to_prove.append(connection)
        for ended in self._order.ended(connection):
            self._end_connection(ended, is_in_step=not (ended.has_surplus or self._order.is_out_of_step(ended)))

    def _end_connection(self, connection: UsedConnection, *, is_in_step: bool) -> None:
        """Believe the responses of a connection, or distrust them."""
        if is_in_step:
            self._believe(self._order.prove(connection, connection.responses + 1))
        else:
            self._distrust(connection, DecodeError(f"{_LINE}: nothing proves that the response is that to its row", "", _LINE))

    async def _prove(self, connections: list[UsedConnection], *, is_end: bool = True) -> None:
        """Find out whether connections are in step. At the end those are not of which that can't be found out."""
        while connections:
            connection = connections.pop()
            ids = islice(dict.fromkeys([*filter(None, [self._latest]), *sorted(self._order.card_ids)]), _MOST_QUESTIONS)
            is_in_step: bool | None = True
            if self._order.has_at_stake(connection):
                is_in_step = await self._board.is_in_step(connection, [*ids])
            elif is_end:  # all its rows are in doubt: what is read now comes over another
                connection.distrust()
            if is_in_step is not None or is_end:
                self._end_connection(connection, is_in_step=bool(is_in_step))

    def _believe(self, responses: Iterable[UnprovenResponse]) -> None:
        """Take responses for those to their rows."""
        for _, row, card, _ in responses:
            row.is_unproven = False
            if card is None:
                continue
            if self._is_another_s(row, card.id, is_proven=True):
                row.named = card.id
                why = f"{_LINE}: the response names a card which is another row's or an older one"
                self._note_failure(row, DecodeError(why, "id", _LINE))
            else:
                self._confirm(row, card)

    def _distrust(self, connection: UsedConnection, error: BoardClientError) -> None:
        """Close a connection that is out of step. Its rows since the last one that is proven are in doubt."""
        for _, row, card, _ in self._order.distrust(connection):
            row.is_unproven = False
            if card is not None or self._take_back(row):
                self._doubt(row, error)
        if not connection.distrust():
            self.halt(_waited(error, "its connection can't be told from others and closed"))

    def _take_back(self, row: Row) -> bool:
        """Take a row out of the places where it waits after it was refused. Return False if it is in none."""
        for place in (self._refused, self._failed, self._to_check, self._to_send_again):
            if row in place:
                place.remove(row)
                return True
        return False

    def _doubt(self, row: Row, error: BoardClientError) -> None:
        """Note that the response to a row was perhaps another's."""
        row.error, row.sends = error, row.sends + 1
        self._lost_at = row.doubted_at = self._loop.time()
        self._happen(row, "lost", pause=_RESEND_SECONDS * 2 ** (row.sends - 1))

    def _confirm(self, row: Row, card: Card) -> None:
        """Note the card of a row."""
        if self._hold.is_disturbed or self._refused:
            self._note_accepted(row)
        if self._reads_board:
            self._has_grown = True
            self._reconciler.note_created(row, card.id)
        self._latest = card.id
        self._happen(row, "created", card)

    def _note_accepted(self, row: Row) -> None:
        """Note that a request was accepted, and whose fault the refusals before it were."""
        was_outage = self._hold.reason is not None
        if was_outage and not self._hold.lets_through():
            return  # it was sent before the outage, and says nothing about its end
        self._hold.note_success()
        while self._refused and (was_outage or (self._refused[0].sent_as < row.sent_as and not self._refused[0].is_unproven)):
            self._happen(self._refused.popleft(), "outage is over" if was_outage else "accepted another")

    def _note_failure(self, row: Row, failure: BoardClientError, options: CallOptions | None = None) -> None:
        """Note the failure of a row's request."""
        self._tally.add_attempts(failure.attempts)
        event = event_of(failure, row.sends + 1, row.refusals + 1)
        if failure.effect is Effect.DONE and self._reads_board:
            self._note_accepted(row)  # what the service has made is on the board
        elif event != "given back" and not self._hold.note_failure(failure):
            self.halt(failure if self._hold.reason is None else _waited(failure, "nothing was accepted for too long"))
        pause: float | None = 0.0
        if event == "put off":
            pause = self._pause_of(row, failure)
            event = "waited too long" if pause is None else event
        elif event in {"lost", "lost too often"}:
            row.sends += 1
            asked = self._asked_pause(failure) if self._options.unknown == "resend" else 0.0
            pause = max(_RESEND_SECONDS * 2.0 ** (row.sends - 1), asked)
            self._lost_at = self._loop.time()
        elif event in {"refused", "refused too often"}:
            row.refusals += 1
        row.doubted_at = self._loop.time()
        if event not in {"given back", "put off"}:
            if row.state == "resent" and row.error is not None and not event.startswith("lost"):
                row.error.add_note(f"sent again: {failure}")
            else:
                row.error = failure
        self._happen(row, event, pause=pause or 0.0)
        if options is not None and options.connection is not None:  # a later response may show that it was to another request
            row.is_unproven = event.startswith("refused")
            response = UnprovenResponse(options.response_number, row, None, matters=event != "put off")
            self._keep(response, options.connection)
        self._note_change()

    def _pause_of(self, row: Row, failure: BoardClientError) -> float | None:
        """Return the pause before a row is sent again that is put off, None if it has waited too long."""
        if is_throttling(failure):
            self._turns.note_refusal(self._tally.requests, failure)
            self._asked_pause(failure)
        return 0.0 if self.is_halted else pause_before(row, failure, self._hold)

    def _asked_pause(self, failure: BoardClientError) -> float:
        """Return the seconds for which `Retry-After` asks. A long pause ends the run."""
        asked = retry_after_of(failure) or 0.0
        if asked > PATIENCE_SECONDS:
            until = moment_in(asked).astimezone().isoformat(" ", "seconds")
            self.halt(_waited(failure, f"the service accepts requests again at {until}"))
        return asked

    # --- which row is sent next

    def _set_most(self) -> None:
        """Set how many workers may have a row, but for a hold: what decides about it has changed."""
        is_shut = self.is_halted or self._tally.phase == "reading the board" or self._has_too_many
        self._most = 0 if is_shut else 2 * self._options.workers

    @property
    def _room(self) -> int:
        """How many more rows may be sent now."""
        if self._hold.reason is not None and not self._hold.is_due:
            return 0
        return self._most - self._busy - len(self.results.untaken)

    def _take(self) -> Row | None:
        """Return the next row to send if there is one now, which counts as busy until its request has ended."""
        if self._busy + len(self.results.untaken) >= self._most:
            return None
        rows = self._ready
        if self._hold.reason is not None:
            rows = rows or self._refused
            if not (rows and self._hold.is_due):
                return None
            self._hold.try_one()
        elif not rows:
            return None
        row = rows.popleft()
        row.state = self._once_taken[row.state]
        self._busy += 1
        if 2 * len(self._ready) <= self._ahead:
            self._needs_rows.set()
        return row

    def _dispatch(self) -> None:
        """Wake what may have something to do now: workers, the feeder and the conductor."""
        if self._idle:
            rows = len(self._ready) + (len(self._refused) if self._hold.reason is not None else 0)
            for _ in range(len(self._idle) if self.is_halted else min(len(self._idle), self._room, rows)):
                waiter = self._idle.popleft()
                if not waiter.done():
                    waiter.set_result(None)
        if self._wanted > 0:
            self._needs_rows.set()
        if not self._busy and (self.is_halted or self._is_quiet):
            self._change.set()

    @property
    def _wanted(self) -> int:
        """How many rows the feeder is to take now."""
        is_full = self._busy + len(self.results.untaken) >= 2 * self._options.workers or self._are_refused_first
        return 0 if is_full or 2 * len(self._ready) > self._ahead else self._ahead

    async def _feed(self) -> None:
        """Take rows from the input before they are needed, as the body of the feeder."""
        while not (self._is_exhausted or self.is_halted):
            while (wanted := self._wanted) <= 0:
                self._needs_rows.clear()
                await self._needs_rows.wait()
            try:
                rows = await self._source.take(wanted)
            except Exception as error:  # it ends the input, and is raised to the owner of the run after the last result
                self._tally.error = self._tally.error or error
                rows = []
            if rows:
                await self._ledger.admit(rows)
                if self._ledger.batch and self._idle and len(rows) == self._ahead:
                    self._ahead = min(2 * self._ahead, self._ledger.largest_batch)  # workers had to wait for them
            self._is_exhausted = not rows
            for row in rows:
                self._admit(row)
            self._dispatch()

    # --- the workers

    async def _work(self) -> None:
        """Send one row after another until the run is halted, as the body of a worker."""
        # A task per worker, not per card: this saves 10 microseconds per card, and memory does not grow with the input.
        options = CallOptions(is_of_run=True, may_send=self._ledger.may_send)
        self._calls.append(options)
        failure: BoardClientError | None
        while (row := self._take() or await self._next()) is not None:
            before = row.sent_as
            try:
                card = await self._pipeline.call(self._request(row, options), options)
                failure = None
            except BoardClientError as error:
                failure = error
            except BaseException:
                # Cancelled, or a limiter, a policy or what makes markers has raised.
                if row.sent_as != before:
                    row.error = BoardClientError(f"{_LINE}: the run ended before the response came", Effect.UNKNOWN)
                self._happen(row, "given back" if row.sent_as == before else "lost")
                raise
            finally:
                self._busy -= 1
                self._order.sending.discard(row)
            if failure is None:
                self._note_created(row, card, options)  # pyright: ignore[reportPossiblyUnboundVariable] -- no failure
            else:
                self._note_failure(row, failure, options)
                failure = None  # its traceback holds this frame
            if self._to_prove:
                await self._prove_some()
            if self._hold.reason is not None:
                self._hold.release()
            if self._idle:
                self._dispatch()

    async def _prove_some(self) -> None:
        """Ask for proofs while rows are sent."""
        self._busy += 1
        try:
            await self._prove(self._to_prove, is_end=False)
        finally:
            self._busy -= 1

    async def _next(self) -> Row | None:
        """Wait for a row to send, and return it. None if the run is halted."""
        while (row := self._take()) is None:
            self._dispatch()
            if self.is_halted:
                return None
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter
        return row

    def _request(self, row: Row, options: CallOptions) -> operations.Request[Card]:
        """Return the request that creates the card of a row, and set for what its call waits."""
        draft = row.draft
        desc = self._reconciler.markers.description(row) if self._options.marker or row.is_probe else draft.desc
        request = operations.ADD_CARD.request(name=draft.name, list_id=draft.list_id, desc=desc, due=draft.due, pos=draft.pos)
        if self._turns.must_wait():
            options.limiter = GuardedLimiter(Turn(self._turns, partial(self._begin, row)))
        else:
            options.limiter = None
            self._begin(row)
        return request

    def _begin(self, row: Row) -> None:
        """Note that the request of a row may be sent from now on."""
        if row.seq > self._ledger.released:
            self._ledger.release(row)
        self._requests += 1
        row.sent_as = self._requests
        self._order.sending.add(row)

    # --- the conductor

    async def _conduct(self) -> None:
        """Let everything be sent, reconcile what is in doubt, and end, as the body of the conductor."""
        self._start(self._feed())
        self._start(self._grow())
        try:
            try:
                await self._until_halted(self._phases())
            except Exception as error:  # raised to the owner of the run after the last result
                self.halt(error)
            if self.is_halted:
                await self._stop()
        finally:
            self.is_halted = True
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._end_lives("the run was left")

    def _start(self, body: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(body)
        task.add_done_callback(self._note_task_end)
        self._tasks.append(task)

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        """End the run if something that the application supplies has ended a task."""
        if task.cancelled():
            if not self.is_halted:
                self.halt(RuntimeError("a card was cancelled by something other than its run"))
        elif (error := task.exception()) is not None:
            self.halt(error)

    async def _grow(self) -> None:
        """Start as many workers as the run needs, and look again soon if it may need more."""
        workers = 0
        while workers < self._options.workers and not self.is_halted:
            needed = self._turns.workers_needed(self._tally.requests)
            for _ in range(needed - workers):
                self._start(self._work())
            workers = max(workers, needed)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _phases(self) -> None:
        """Do what is next whenever the run is quiet, until nothing is left."""
        self._tally.note("rows are sent")
        reads_at_end = bool(self._ledger.batch) and self._reads_board
        while True:
            if not self._is_quiet:
                await self._wait_for_change()
            elif connections := self._order.connections:  # nothing more will come over them soon that proves their responses
                await asyncio.sleep(0)  # what has come already is read
                await self._prove(connections)
            elif self._to_send_again:
                await self._admit_refused()
            elif self._to_check:
                await self._check_refused()
            elif self._refused:  # nothing is left to send that could show whose fault the refusals were
                self._happen(self._refused.popleft(), "accepted another")
            elif len(self._failed) >= _MOST_REFUSED:
                await self._audit()
                self._begin_phase("creating")
            elif self._doubted or (self._open_rows and self._has_grown and not self._kept_back):
                reads_at_end = True
                await self._reconcile()
            elif self._kept_back:  # the last one after the others, since its card proves them absent
                lists = [*self._kept_back]
                self._ready.extend(self._kept_back.pop(list_id) for list_id in lists[:-1] or lists)
                self._dispatch()
            elif self._open_rows:
                await self._give_up()
            elif self._probes is not None and self._probes.is_to_be_removed:
                await self._probes.remove()
            elif self._is_exhausted:
                break
            elif self._failed:
                await self._audit()
                self._begin_phase("creating")
            else:
                await self._wait_for_change()
        # The response of a proxy that repeated a POST looks like any other: only the board shows the second card.
        if reads_at_end or self._failed:
            await self._audit()

    async def _audit(self) -> None:
        """Read the board, and end the rows that have failed: a service may have done what it refused."""
        self._begin_phase("reading the board", "the board is read for the audit")
        try:
            self._tally.audit, findings = await self._reconciler.audit(self._failed, [*self._doubted, *self._open_rows])
        except BoardClientError as error:
            self._tally.audit_error = error  # the results stay as they are
            findings = [RowFinding(row, "absent") for row in self._failed]
        self._failed.clear()
        for finding in findings:
            self._note_finding(finding)
        await self._remove_probes(is_patient=True)  # those of an earlier run that only a listing shows

    async def _check_refused(self) -> None:
        """Read the board before refused rows are sent again: a service may have done what it refused."""
        rows, self._to_check = self._to_check, []
        findings = [RowFinding(row, "absent") for row in rows]
        if self._reads_board:
            self._begin_phase("reading the board", "the board is read before refused rows are sent again")
            try:
                findings = await self._reconciler.check(rows, [*self._doubted, *self._open_rows])
            except BoardClientError as error:
                if ends_run(error):
                    raise
                why = f"{_LINE}: it was refused, and is not sent again while the board can't be read: {error.message}"
                findings = []
                for row in rows:
                    self._happen(row, "unsendable", error=BoardClientError(why))
            self._begin_phase("creating")
        for finding in findings:
            if finding.event == "absent":
                self._to_send_again.append(finding.row)
            else:
                finding.row.is_earlier = finding.row.state == "new"
                self._note_finding(finding)

    async def _admit_refused(self) -> None:
        """Let some of the rows that were refused be sent again."""
        rows, self._to_send_again = self._to_send_again[: self._ahead], self._to_send_again[self._ahead :]
        await self._ledger.log_refused(rows)
        for row in rows:
            row.detail, row.error = None, None
            if row.state == "new":
                self._admit(row)
            else:
                self._happen(row, "admitted")
        self._dispatch()

    async def _reconcile(self) -> None:
        """Wait until every card that was sent must be listed, while new rows are sent. Then read the board."""
        while (wait := self._lost_at + self._options.settle_seconds - self._loop.time()) > 0:
            words = f"rows in doubt: {len(self._doubted) + len(self._open_rows)}, the board is read in {wait:.1f} s"
            self._begin_phase("waiting", words, wait)
            await asyncio.sleep(wait)
            while not self._is_quiet:
                await self._wait_for_change()
        self._begin_phase("reading the board")
        self._has_grown, is_outage = False, self._hold.reason is not None
        findings = await self._reconciler.reconcile([*self._doubted, *self._open_rows], self._failed)
        self._doubted.clear()
        self._open_rows.clear()
        self._listed_at = self._loop.time()
        for finding in findings:
            self._note_finding(finding)
        self._begin_phase("creating")
        if is_outage and self._hold.reason is not None and (error := findings[0].error) is not None:
            # A card of the rows that were kept back proves others absent, once the service accepts requests again.
            self.halt(_waited(error, "nothing was accepted for too long"))
        self._dispatch()

    def _note_finding(self, finding: RowFinding) -> None:
        """Note what a listing says about a row in doubt."""
        row, event, card, error = finding
        if event == "found" and card is not None:
            self._ledger.seen.add(card.id)
        elif event == "absent" and row.state != "failed":
            if row.sends >= MOST_SENDS:
                why = f"sent {row.sends} times, and not on the board: {row.error}"
                event, error = "absent too often", BoardClientError(why, Effect.REJECTED)
            else:
                row.is_earlier, row.error, row.put_off_at, row.probes = False, None, math.inf, 0
        self._happen(row, event, card, error)

    async def _give_up(self) -> None:
        """Report rows as unknown whose absence no further card can prove, unless an input may still yield one, or a probe."""
        patience = self._listed_at + self._options.settle_seconds - self._loop.time()
        if not self._is_exhausted and patience > 0:
            await self._wait_for_change(patience)
        elif lists := self._lists_to_probe():
            await self._send_probes(lists)
        else:
            rows = [*self._open_rows]
            self._open_rows.clear()
            why = _NOT_PROVEN + (_NEXT_RUN if self._ledger.batch else "")
            for finding in await self._reconciler.give_up(rows, why):
                self._happen(finding.row, "given up", error=finding.error)

    # --- probes

    async def _load_probes(self) -> None:
        """Find out which probes earlier runs have left. They are deleted by this one, even if it sends none."""
        earlier = await self._ledger.probes()
        if self._options.probe or earlier:
            self._probes = self._reconciler.probes = probes = Probes(self._board, self._ledger, earlier)
            self._tally.probes = lambda: tuple(probes.left.values())

    def _lists_to_probe(self) -> set[str]:
        """Return the lists of open rows to which a probe may be sent."""
        rows = self._open_rows if self._options.probe else ()
        return {row.draft.list_id for row in rows if row.probes < MOST_PROBES}

    async def _send_probes(self, lists: Iterable[str]) -> None:
        """Send a probe to each of these lists: nothing else makes the next listing longer."""
        for row in self._open_rows:
            row.probes += 1
        self._tally.note("temporary cards are sent, so that the next listing is longer")
        assert self._probes is not None  # noqa: S101 -- the option is set
        for list_id in lists:
            self._happen(await self._probes.make(list_id), "admitted")
        self._dispatch()

    def _note_probe(self, probe: Row, state: ResultState, card: Card | None) -> None:
        """Note what became of a probe: the next listing may be longer, or no probe can make it so."""
        if state == "failed":
            for row in self._open_rows:
                if row.draft.list_id == probe.draft.list_id:
                    row.probes = MOST_PROBES
        else:
            assert self._probes is not None  # noqa: S101 -- they have made this one
            self._has_grown = True
            self._probes.note_sent(probe, card)

    async def _remove_probes(self, *, is_patient: bool) -> None:
        """Delete the probes that are on the board."""
        if self._probes is not None:
            await self._probes.remove(is_patient=is_patient)

    # --- the end

    async def _stop(self) -> None:
        """Complete what was sent, and end the lives of all other rows."""
        while self._busy:
            await self._wait_for_change()
        with contextlib.suppress(BoardClientError):
            await self._prove(self._order.connections)
        why, error = "the run was stopped", self._tally.error
        if error is not None:
            why = f"the run has ended: {error if isinstance(error, BoardClientError) else type(error).__name__}"
        self._end_lives(why)
        await self._remove_probes(is_patient=False)

    def _end_lives(self, why: str) -> None:
        """End the lives of all rows that have no result: they are not sent, or it is unknown whether their cards exist."""
        for connection in self._order.connections:
            for _, row, card, _ in self._order.prove(connection, connection.responses + 1):
                if card is not None:
                    self._doubt(row, BoardClientError(f"{_LINE}: {why} before the response was proven", Effect.UNKNOWN))
        for timer in self._paused.values():
            timer.cancel()
        places = (self._ready, self._paused, self._refused, self._failed, self._doubted, self._open_rows)
        rows = [*chain(*places, self._kept_back.values())]
        rows += [row for row in (*self._to_check, *self._to_send_again) if row.state == "refused"]  # "new" ones stay as they are
        for place in (*places, self._kept_back):
            place.clear()
        for row in rows:
            is_lost = row.state in {"doubted", "open", "again"} and not row.is_earlier
            self._happen(row, "stopped", error=unknown_error(row, why) if is_lost else None)

    @property
    def _has_too_many(self) -> bool:
        """Whether so many rows wait for the board to be read that no more are sent before."""
        return len(self._doubted) >= _MOST_DOUBTS or len(self._failed) >= _MOST_REFUSED

    @property
    def _are_refused_first(self) -> bool:
        """Whether no more rows are taken from the input before those are sent that an earlier run saw refused."""
        return len(self._to_check) >= _MOST_REFUSED or bool(self._to_send_again)

    @property
    def _is_quiet(self) -> bool:
        """Whether no request is under way, and none will be unless the conductor does something."""
        has_rows = self._ready or self._paused or (self._refused and self._hold.reason is not None)
        is_fed = self._is_exhausted or self._source.is_waiting or self._are_refused_first
        return not self._busy and (self._has_too_many or (is_fed and not has_rows))

    async def _wait_for_change(self, seconds: float | None = None) -> None:
        self._change.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._change.wait()


def _is_usable(card_id: str) -> bool:
    """Return True if later calls can name a card by an identifier."""
    try:
        return bool(check_identifier(card_id, "id").strip())
    except InvalidIdentifierError:
        return False


def _waited(error: BoardClientError, why: str) -> BoardClientError:
    """Return the error of a run that would have to wait for too long."""
    ended = copy.copy(error)
    add_words(ended, f"{why}, so the run ended, and the rows that were not sent are left to the next")
    return ended
