"""The workers of a run. Each sends one row after another, and passes on the result."""

from __future__ import annotations

import asyncio
from typing import Final

from boardclient import _operations as operations
from boardclient._pipeline._calls import CallOptions, CallRunner, CallWithdrawn
from boardclient._statuses import ends_run, is_throttling
from boardclient.bulk._backlog import Backlog
from boardclient.bulk._doubts import Doubts
from boardclient.bulk._halt import Halt
from boardclient.bulk._hold import Hold
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._options import BulkOptions
from boardclient.bulk._put_off import pause_before
from boardclient.bulk._reconciler import Reconciler
from boardclient.bulk._recorder import ResultRecorder
from boardclient.bulk._results import state_after
from boardclient.bulk._rows import Row
from boardclient.bulk._run_limiter import RunLimiter
from boardclient.bulk._tally import Tally
from boardclient.errors import BoardClientError, DecodeError, Effect, InvalidIdentifierError
from boardclient.models import Card, check_identifier

_LINE: Final = "POST /1/cards"


class Sender:
    """Sends rows. Owned by its run, which runs `work` in as many tasks as it has workers."""

    def __init__(
        self,
        caller: CallRunner,
        options: BulkOptions,
        *,
        ledger: Ledger,
        reconciler: Reconciler,
        backlog: Backlog,
        doubts: Doubts,
        recorder: ResultRecorder,
        tally: Tally,
        limiter: RunLimiter,
        hold: Hold,
        halt: Halt,
    ) -> None:
        self.is_over = False
        """Set by the run before it cancels the workers."""
        self._caller = caller
        # With a journal they are checked before the workers get them.
        self._checks_rows = options.board_id is not None and options.journal is None
        self._marks_cards = bool(options.marker)
        self._reads_board = options.unknown == "reconcile"
        self._ledger = ledger
        self._reconciler = reconciler
        self._backlog = backlog
        self._doubts = doubts
        self._recorder = recorder
        self._tally = tally
        self._limiter = limiter
        self._hold = hold
        self._halt = halt
        self._calls: set[CallOptions] = set()

    def withdraw_unsent(self) -> None:
        """End the calls that wait for the limiter, a pause or a connection. None of them was sent."""
        self._caller.withdraw(self._calls)

    async def work(self) -> None:
        """Send one row after another until the run is halted or the worker is cancelled."""
        options = CallOptions(self._limiter, leaves_throttling=True, waits_count=False)
        self._calls.add(options)
        halt, hold, backlog, call = self._halt, self._hold, self._backlog, self._caller.call
        while not halt.is_set:
            row = self._next_at_once() or await backlog.next()
            try:
                if hold.reason is not None:
                    await hold.acquire()
                if halt.is_set:
                    self._give_back(row)
                    continue
                request = self._request(row)
                try:
                    card = await call(request, options)
                except BoardClientError as error:
                    failure = error
                else:
                    self._note_created(row, card, options)
                    continue
                self._note_failure(row, failure)
                del failure  # its traceback holds this frame
            except asyncio.CancelledError:
                self._give_back_unsent(row)
                if not self.is_over:
                    halt.set(RuntimeError("a card was cancelled by something other than its run"))
                raise
            except GeneratorExit:  # pragma: no cover -- only if the event loop is closed during the run
                raise
            except BaseException as error:  # a faulty limiter or marker ends the run and is raised to its owner
                self._give_back_unsent(row)
                halt.set(error)
            finally:
                if hold.reason is not None:
                    hold.release()
                backlog.end()

    def _next_at_once(self) -> Row | None:
        """Return a row to send if one is available without waiting, otherwise None."""
        while not (self._doubts.rows and self._doubts.is_full):
            try:
                row = self._backlog.take_at_once()
            except BaseException as error:  # an error of the input ends the run and is raised to its owner
                self._halt.set(error)
                return None
            if row is None or not self._checks_rows or (problem := self._reconciler.problem(row)) is None:
                return row
            self._recorder.settle(row, "failed", error=problem)
            self._backlog.end()
            if self._halt.is_set:
                return None
        return None

    def _request(self, row: Row) -> operations.Request[Card]:
        """Return the request that creates the card of a row. From now on it may be sent."""
        desc = self._reconciler.description(row) if self._marks_cards else row.draft.desc
        draft = row.draft
        request = operations.ADD_CARD.request_with(operations.draft_fields(draft, desc), list_id=draft.list_id, due=draft.due)
        if row.seq > self._ledger.released:
            self._ledger.release(row)
        row.sends += 1
        return request

    def _note_created(self, row: Row, card: Card, options: CallOptions) -> None:
        """Record the card of a row."""
        if options.history:
            self._tally.add_attempts(options.history)
            options.history.clear()
        else:
            self._tally.requests += 1
        if not (card.id.isalnum() or _is_usable(card.id)):
            self._note_failure(row, DecodeError(f"{_LINE}: a later call can't send the identifier {card.id!a:.60}", "id", _LINE))
            return
        if self._hold.is_disturbed:
            self._hold.note_success()
        if self._reads_board:
            self._reconciler.note_created(row, card.id)
        self._recorder.settle(row, "created", card)

    def _note_failure(self, row: Row, failure: BoardClientError) -> None:
        """Record the failure of a row, keep it in doubt, or put it back to be sent again."""
        self._tally.add_attempts(failure.attempts)
        is_held = self._hold.note_failure(failure)
        if ends_run(failure) and not is_held:
            self._halt.set(failure)
        is_nothing_done = failure.effect in {Effect.NOT_SENT, Effect.REJECTED}
        if is_nothing_done and isinstance(failure, CallWithdrawn):
            row.sends -= 1
            self._give_back(row)
        elif (
            is_nothing_done
            and (is_held or is_throttling(failure))
            and not self._halt.is_set
            and (pause := pause_before(row, failure, self._hold)) is not None
        ):
            row.sends -= 1
            self._backlog.begin()
            self._backlog.put_later(row, pause)
            self._recorder.announce()
        elif (state := state_after(failure)) == "unknown" and not self._halt.is_set:
            self._doubts.add(row, failure)
        elif row.error is None:
            if self._reads_board:
                self._reconciler.note_refused(row)
            self._recorder.settle(row, state, error=failure)
        else:
            # The failure of this request does not settle an earlier one, which is in doubt.
            row.error.add_note(f"sent again: {failure}")
            self._recorder.settle(row, "unknown", error=row.error)

    def _give_back_unsent(self, row: Row) -> None:
        """Give back a row whose call did not end, unless it may have been sent."""
        if not row.sends:
            self._give_back(row)

    def _give_back(self, row: Row) -> None:
        """Record that a row was not sent, so that the next run sends it. A row in doubt stays in doubt."""
        if row.error is None:
            self._ledger.withdraw([row])
        else:
            self._doubts.rows.append(row)


def _is_usable(card_id: str) -> bool:
    """Return True if later calls can name a card by an identifier."""
    try:
        return bool(check_identifier(card_id, "id").strip())
    except InvalidIdentifierError:
        return False
