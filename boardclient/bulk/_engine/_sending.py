"""Sends rows: workers make the calls, and a feeder takes rows from the input before they are needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Final

from boardclient._base._guards import GuardedLimiter
from boardclient._interface import _operations as operations
from boardclient._pipeline._calls import CallOptions
from boardclient._transport._order import WriteOrder
from boardclient.bulk._concurrency import Turn
from boardclient.bulk._engine._places import Lives, Shared
from boardclient.bulk._engine._row_responses import CREATE, Responses
from boardclient.bulk._engine._source import AsyncSource
from boardclient.bulk._life import Row
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card

_LOOK_SECONDS: Final = 0.02
"""How often a run looks whether more workers make it faster."""
_LEAST_AHEAD: Final = 16
"""How many rows are taken from the input together, at least, if nothing is logged."""


class Sender:
    """Sends the rows of a run. Owned by its engine.

    Rows that are being sent and results that were not taken together number at most two per worker, so a slow consumer slows the
    workers down. The input is read a few rows ahead of them.
    """

    def __init__(self, shared: Shared, lives: Lives, responses: Responses) -> None:
        options, ledger = shared.options, shared.ledger
        self._owner, self._pipeline, self._source, self._options = shared.owner, shared.pipeline, shared.source, options
        self._ledger, self._tally, self._results, self._markers = ledger, shared.tally, shared.results, shared.reconciler.markers
        self._turns, self._hold, self._lives, self._responses = shared.turns, shared.turns.hold, lives, responses
        self._once_taken = lives.once_taken
        self._places, self._ready, self._tried = lives.places, lives.places.ready, lives.tried
        self._loop = asyncio.get_running_loop()
        self._calls: list[CallOptions] = []  # the options of the workers' calls, by which they are withdrawn
        self.busy = 0
        """How many workers have a row."""
        self._most = 2 * options.workers  # how many may have one, results that were not taken included
        self._idle = deque[asyncio.Future[None]]()  # the workers that wait for a row
        self._needs_rows = asyncio.Event()  # wakes the feeder
        self._is_feeder_waiting = self._lacks_room = False  # the latter if it waits until results were taken
        self._change = asyncio.Event()  # wakes the conductor
        self.ahead: int = ledger.commit_size or max(_LEAST_AHEAD, 2 * options.workers)
        """How many rows are taken from the input together."""
        self.is_exhausted = False
        """Whether the input has ended."""
        self._requests = 0  # how many requests were begun
        self._orders = dict[str, WriteOrder]()  # in which the rows of each list are written
        self._results.on_take = self.dispatch
        if isinstance(self._source, AsyncSource):
            self._source.on_wait = self.dispatch

    def set_most(self) -> None:
        """Set how many workers may have a row, after a halt or another phase of the run. A hold is looked at for each row."""
        is_shut = self._owner.is_halted or self._tally.phase == "reading the board"
        # Twice the number of workers: results that nobody takes then stop the sending, and the others continue meanwhile.
        self._most = 0 if is_shut else 2 * self._options.workers

    @property
    def _room(self) -> int:
        """How many more rows may be sent now."""
        if self._places.are_full or (self._hold.reason is not None and not self._hold.is_due):
            return 0
        return self._most - self.busy - len(self._results.untaken)

    def _take(self) -> Row | None:
        """Return the next row to send if there is one now, which counts as busy until its request has ended."""
        if self.busy + len(self._results.untaken) >= self._most or self._places.are_full:
            return None
        rows = self._ready
        if self._hold.reason is not None:
            rows = rows or self._tried
            if not (rows and self._hold.is_due):
                return None
            # The one request of an outage: whatever becomes of it, the next may only follow after a pause.
            self._hold.try_one()
        elif not rows:
            return None
        row = rows.popleft()
        row.state = self._once_taken[row.state]
        self.busy += 1
        # At half, so that the feeder has time for the next commit before a worker finds nothing.
        if self._is_feeder_waiting and 2 * len(self._ready) <= self.ahead:
            self._is_feeder_waiting = False
            self._needs_rows.set()
        return row

    def dispatch(self) -> None:
        """Wake what may have something to do now: workers, the feeder and the conductor."""
        if self._idle:
            rows = len(self._ready) + (len(self._tried) if self._hold.reason is not None else 0)
            for _ in range(len(self._idle) if self._owner.is_halted else min(len(self._idle), self._room, rows)):
                waiter = self._idle.popleft()
                if not waiter.done():
                    waiter.set_result(None)
        if self._lacks_room and self._wanted > 0:  # `_take` wakes a feeder that waits until rows are needed
            self._needs_rows.set()
        if not self.busy and (self._owner.is_halted or self.is_quiet):
            self._change.set()

    @property
    def _wanted(self) -> int:
        """How many rows the feeder is to take now."""
        is_full = self.busy + len(self._results.untaken) >= 2 * self._options.workers or self._places.has_most_refused
        return 0 if is_full or 2 * len(self._ready) > self.ahead else self.ahead

    async def feed(self) -> None:
        """Take rows from the input before they are needed, as the body of the feeder."""
        while not (self.is_exhausted or self._owner.is_halted):
            while (wanted := self._wanted) <= 0:
                self._needs_rows.clear()
                self._is_feeder_waiting, self._lacks_room = True, 2 * len(self._ready) <= self.ahead
                await self._needs_rows.wait()
            self._is_feeder_waiting = self._lacks_room = False
            try:
                rows = await self._source.take(wanted)
            except Exception as error:  # it ends the input, and is raised to the owner of the run after the last result
                self._tally.error = self._tally.error or error
                rows = []
            if rows:
                await self._ledger.admit(rows)
                # Only a ledger on a disk makes workers wait, and larger commits cost it hardly more.
                if self._ledger.is_durable and self._idle and len(rows) == self.ahead:
                    self.ahead = min(2 * self.ahead, self._ledger.largest_commit)  # workers had to wait for them
            self.is_exhausted = not rows
            self._lives.admit_all(rows)
            self.dispatch()

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
                    self._tally.requests += 1
                    row.error = BoardClientError(f"{CREATE}: the run ended before the response came", Effect.UNKNOWN)
                # Its number changes when its request may have left: before that nothing can have been created.
                self._lives.happen(row, "given back" if row.sent_as == before else "lost")
                raise
            finally:
                self.busy -= 1
                self._responses.order.sending.discard(row)
            if self._turns.earlier:
                self._turns.end_earlier(row, failure, 200 if failure is None else None)
            if failure is None:
                self._responses.record_created(row, card, options)  # pyright: ignore[reportPossiblyUnboundVariable] -- no failure
            else:
                self._responses.record_failure(row, failure, options)
                failure = None  # its traceback holds this frame
            if self._responses.to_prove:
                await self._prove_some()
            if self._hold.reason is not None:
                self._hold.release()
            if self._idle:
                self.dispatch()

    async def _prove_some(self) -> None:
        """Ask for proofs while rows are sent."""
        self.busy += 1
        try:
            await self._responses.prove(self._responses.to_prove, is_end=False)
        finally:
            self.busy -= 1

    async def _next(self) -> Row | None:
        """Wait for a row to send, and return it. None if the run is halted."""
        while (row := self._take()) is None:
            self.dispatch()
            if self._owner.is_halted:
                return None
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter
        return row

    def _request(self, row: Row, options: CallOptions) -> operations.Request[Card]:
        """Return the request that creates the card of a row, and set for what its call waits."""
        draft = row.draft
        desc = self._markers.description(row) if self._options.marker or row.is_probe else draft.desc
        request = operations.card_request(draft.name, draft.list_id, desc, draft.due, draft.pos)
        if self._options.ordered:
            options.order = self._orders.get(draft.list_id) or self._orders.setdefault(draft.list_id, WriteOrder())
        if self._turns.must_wait():
            options.limiter = GuardedLimiter(Turn(self._turns, partial(self._begin, row)))
        else:
            options.limiter = None
            self._begin(row)
        return request

    def _begin(self, row: Row) -> None:
        """Note that the request of a row may be sent from now on."""
        # Before its request leaves, so that after a kill no row that was sent is taken for one that was not.
        if row.seq > self._ledger.released:
            self._ledger.release(row)
        self._requests += 1
        row.sent_as = self._requests
        self._responses.order.sending.add(row)

    async def grow(self) -> None:
        """Start as many workers as the run needs, and look again soon if it may need more."""
        workers = 0
        while workers < self._options.workers and not self._owner.is_halted:
            needed = self._turns.workers_needed(self._tally.requests)
            for _ in range(needed - workers):
                self._owner.start(self._work())
            workers = max(workers, needed)
            # There is no event to wait for: the rate of all workers decides, and no single response changes it.
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def is_quiet(self) -> bool:
        """Whether no request is under way, and none will be unless the conductor does something."""
        places = self._places
        has_rows = self._ready or places.paused or (self._tried and self._hold.reason is not None)
        is_fed = self.is_exhausted or self._source.is_waiting or places.has_most_refused
        return not self.busy and (places.are_full or (is_fed and not has_rows))

    async def wait_for_change(self, seconds: float | None = None) -> None:
        """Wait until the conductor may have something to do."""
        self._change.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._change.wait()

    def halt(self) -> None:
        """Withdraw the calls that wait, and close the input."""
        self.set_most()
        self._source.stop()
        self._hold.end()
        self._pipeline.withdraw(self._calls)
