"""Where the rows of a run wait, and what happens to them; the options and the parts of an engine.

What happens to a row is the table in `_life`: each event but "taken" goes through `Lives.happen`, which carries out the reaction.
"""

from __future__ import annotations

import asyncio
import math
import os
from bisect import insort_left
from collections import deque
from collections.abc import Coroutine, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import attrs

from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._concurrency import Turns
from boardclient.bulk._engine._source import AsyncSource, SyncSource
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import ADMISSION, LIVES, MOST_SENDS, Event, Life, Outcome, Row, State, Unknown
from boardclient.bulk._proof._board import RunBoard
from boardclient.bulk._proof._recognition import Marking
from boardclient.bulk._proof._reconciler import Reconciler, RowFinding, unknown_error
from boardclient.bulk._results import Results, ResultState, Tally
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card

_MOST_REFUSED: Final = 10_000
"""How many rows that were refused, in this run or an earlier one, wait for the board to be read."""
_MOST_DOUBTS: Final = 1000
"""The number of rows in doubt at which the board is read before more rows are sent."""
_LARGEST_COMMIT: Final = 256
_SMALLEST_COMMIT: Final = 32
"""With fewer rows, it would be most of a row's cost, since its price hardly depends on their number."""
_LIFE_OF_PROBES: Final[Life] = {**LIVES["report"], ("sent", "refused"): ("ended", "failed")}
"""A probe is sent once. If its effect is unknown, the next listing shows it or not, and another one may be sent."""
_put_off_at: Final = attrgetter("put_off_at")


Source: TypeAlias = SyncSource[Row] | AsyncSource[Row]


class Owner(Protocol):
    """What an engine does for its parts."""

    is_halted: bool
    """Whether nothing more is started."""

    def halt(self, error: BaseException | None = None) -> None:
        """Start nothing more, and complete what was sent."""

    def start(self, body: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with the run."""

    def notify(self) -> None:
        """Notify the listeners."""

    def on_change(self) -> None:
        """Note that rows may be sent that had to wait, or that the run waits for something else."""


class Places:
    """Where the rows of a run wait, each in one place. Owned by its engine."""

    def __init__(self) -> None:
        self.ready = deque[Row]()
        """Rows to be sent: those that were put off, the longest ago first, then the others."""
        self.kept_back: dict[str, Row] = {}
        """The last row of each list, which is sent once the board was read: its card makes the next listing longer."""
        self.paused: dict[Row, asyncio.TimerHandle] = {}
        """Rows that are ready after a pause."""
        self.refused = deque[Row]()
        """Rows that were refused, by this run or an earlier one, until it is known what becomes of them."""
        self.returned = deque[Row]()
        """Those of them that are sent again after all others, since none of their cards exists."""
        self.doubted, self.open = deque[Row](), deque[Row]()
        self.are_full = False
        """Whether so many rows wait for the board to be read that no more are sent before."""

    @property
    def in_doubt(self) -> list[Row]:
        """The rows whose cards may exist."""
        return [*self.doubted, *self.open]

    @property
    def are_empty(self) -> bool:
        waiting = self.ready, self.kept_back, self.paused, self.refused, self.returned, self.doubted, self.open
        return not any(waiting)

    @property
    def has_most_refused(self) -> bool:
        """Whether no more rows are taken from the input before something becomes of those that were refused."""
        return len(self.refused) + len(self.returned) >= _MOST_REFUSED

    def queue_first(self, row: Row) -> None:
        """Let a row be sent before those that were not put off."""
        # Rows that were never put off have infinity there, so that they stay behind all others.
        insort_left(self.ready, row, key=_put_off_at)

    def keep_back(self, row: Row) -> None:
        """Keep a row back as the last one of its list. The one that was the last is ready."""
        before = self.kept_back.pop(row.draft.list_id, None)
        self.kept_back[row.draft.list_id] = row
        if before is not None:
            self.ready.append(before)

    def let_go(self) -> None:
        """Let the rows be sent that were kept back, the last of them after the others: its card proves them absent."""
        lists = [*self.kept_back]
        # The last one waits for another call, so that its card is certainly newer than those of the others.
        self.ready.extend(self.kept_back.pop(list_id) for list_id in lists[:-1] or lists)

    def take_returned(self, number: int) -> list[Row]:
        """Take some of the rows that are sent again."""
        rows = [self.returned.popleft() for _ in range(min(number, len(self.returned)))]
        self._count()
        return rows

    def set_aside(self, row: Row) -> None:
        (self.open if row.state == "open" else self.refused if row.is_refused else self.doubted).append(row)
        self._count()

    def empty(self, *places: deque[Row]) -> list[Row]:
        """Take out all rows of some places, about which something is known by now."""
        rows = [*chain(*places)]
        for place in places:
            place.clear()
        self._count()
        return rows

    def _count(self) -> None:
        self.are_full = len(self.doubted) >= _MOST_DOUBTS or len(self.refused) >= _MOST_REFUSED

    def take_back(self, row: Row) -> bool:
        """Take a row out of the places where it waits after it was refused. Return False if it is in none."""
        for place in (self.refused, self.returned):
            if row in place:
                place.remove(row)
                self._count()
                return True
        return False

    def clear(self) -> list[Row]:
        """Take all rows out, and return those that this run has begun with: not those that only an earlier one has sent."""
        for timer in self.paused.values():
            timer.cancel()
        # A refused row that this run has not sent is left to a later run, as if it had not been reached.
        refused = [row for row in self.empty(self.refused, self.returned) if row.sent_as]
        rows = [*chain(self.ready, self.paused, refused, self.doubted, self.open, self.kept_back.values())]
        self.paused.clear()
        self.kept_back.clear()
        self.empty(self.ready, self.doubted, self.open)
        return rows

    def __repr__(self) -> str:
        counts = {
            "ready": self.ready,
            "kept back": self.kept_back,
            "paused": self.paused,
            "refused": self.refused,
            "returned": self.returned,
            "doubted": self.doubted,
            "open": self.open,
        }
        return f"<Places {', '.join(f'{len(rows)} {words}' for words, rows in counts.items() if rows) or 'empty'}>"


@attrs.frozen(kw_only=True)
class BulkOptions:
    """The checked options of a bulk run. `workers` is the number of tasks that send rows."""

    concurrency: int | None
    journal: str | os.PathLike[str] | None
    board_id: str | None
    unknown: Unknown
    marker: Marking
    settle_seconds: float
    workers: int
    probe: bool = True
    ordered: bool = False
    waits_for_consent: bool = True
    """Whether the run waits until a user has signed in. If not, it ends with `ConsentRequired`."""
    patience: float | None = None
    """How many seconds in a row the run may wait for a service that accepts nothing, for a pause it asks for, or for a user."""
    resends: bool = True
    """Whether rows that an earlier run saw refused are sent again. If not, their cards are looked for."""
    ledger: Ledger | None = None
    """The ledger to use in place of a journal: one that the caller has opened."""
    call: str = "cards.create_many"
    """What the log calls the run."""
    is_of_one: bool = False
    """Whether the caller returns the card of the only row, or raises its error. The log then need not say it."""

    @property
    def commit_size(self) -> int:
        """How many rows are logged together at first: four per worker, from 32 to 256."""
        return min(_LARGEST_COMMIT, max(_SMALLEST_COMMIT, 4 * self.workers))


@attrs.frozen(kw_only=True)
class Shared:
    """What the parts of an engine share."""

    owner: Owner
    pipeline: Pipeline
    source: Source
    options: BulkOptions
    ledger: Ledger
    tally: Tally
    results: Results
    turns: Turns
    board: RunBoard
    reconciler: Reconciler


class Lives:
    """Lets events happen to the rows of a run, and carries out the reactions. Owned by its engine."""

    def __init__(self, shared: Shared) -> None:
        self.places: Final = Places()
        self._owner, self._ledger, self._results, self._tally = shared.owner, shared.ledger, shared.results, shared.tally
        self._board, self._reconciler, self._options = shared.board, shared.reconciler, shared.options
        self._loop = asyncio.get_running_loop()
        self._life = LIVES[self._options.unknown]
        self.lost_at: float = -math.inf
        """When the last request whose effect is unknown ended, on the loop's clock: of this run, or of an earlier one."""
        # "taken" happens to each row once for each request, so a look-up in place of `happen` is felt in the cost of a card.
        self.once_taken: Final[dict[State, State]] = {
            state: after for (state, event), (after, _) in self._life.items() if event == "taken"
        }
        """The state of a row once it was taken, to which there is no reaction."""
        self.tried: Final = self.places.refused if "doubted" in self.once_taken else deque[Row]()
        """The rows that were refused and are tried again in an outage: none if the board is read before."""
        self.unknown: Final[list[Row]] = []
        """The first rows that were reported as unknown."""

    def happen(
        self, row: Row, event: Event, card: Card | None = None, error: BoardClientError | None = None, pause: float = 0.0
    ) -> None:
        """Let an event happen to a row, and carry out the reaction to it."""
        row.state, reaction = (_LIFE_OF_PROBES if row.is_probe else self._life)[row.state, event]
        match reaction:
            case "created":
                self._add_result(row, "created", card)
            case "queue":
                self.places.ready.append(row)
            case "keep back":
                self.places.keep_back(row)
            # Without a pause there is no timer: its callback would come after whatever is ready by then.
            case "pause" if pause > 0:
                self.places.paused[row] = self._loop.call_later(pause, self._resume, row)
            case "pause" | "queue first":
                self.places.queue_first(row)
            case "return":
                self.places.returned.append(row)
            case "set aside":
                self._set_aside(row)
            case "withdraw":
                # Probes are no rows of a ledger.
                if not row.is_probe:
                    self._ledger.withdraw([row])
            case "found":
                self._add_result(row, "already" if row.is_earlier else "created", card)
            case "already" | "failed" | "unknown":  # pragma: no branch -- "nothing" needs no reaction
                self._add_result(row, reaction, card, error or row.error)

    def _add_result(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, put it into the queue, and notify the listeners."""
        if row.is_probe:
            self._end_probe(row, state, card)
            return
        self._ledger.add_outcome(row, state, card, error)
        # They tell late responses apart. Bounded, since a service may lose each response of a long run.
        if state == "unknown" and len(self.unknown) < _MOST_DOUBTS:
            self.unknown.append(row)
        values = (row.index, row.draft, card, error, state)
        self._results.put(values)
        self._tally.add_result(values)
        if self._tally.listeners:
            self._owner.notify()

    def _end_probe(self, probe: Row, state: ResultState, card: Card | None) -> None:
        """Note what became of a probe: the next listing may be longer, or no probe can make it so."""
        self._reconciler.record_probe(probe, card)
        if state == "failed":
            self._reconciler.probes.record_refused(probe)

    def _set_aside(self, row: Row) -> None:
        """Let a refused row wait until the board is read, and log it: the next run finds that if this one is killed before."""
        self.places.set_aside(row)
        if row.is_refused and row.outcome is None and self._options.unknown == "reconcile":
            self._ledger.add_outcome(row, "failed", error=row.error)
            row.outcome = Outcome("failed")

    def _resume(self, row: Row) -> None:
        """Let a row be sent again after its pause."""
        del self.places.paused[row]
        self.places.queue_first(row)
        self._owner.on_change()

    def admit_all(self, rows: Sequence[Row]) -> None:
        """Begin the lives of rows that were taken from the input."""
        state, reaction = self._life["new", "admitted"]
        if reaction != "queue":
            for row in rows:
                self.admit(row)
            return
        # Where no board is read, what happens to nearly all rows happens to each of them: nothing is looked up for one.
        for row in rows:
            if row.outcome is None and self._options.board_id is None:
                row.state = state
                self.places.ready.append(row)
            else:
                self.admit(row)

    def admit(self, row: Row) -> None:
        """Begin the life of a row that was taken from the input."""
        known = row.outcome
        event: Event = "admitted" if known is None else ADMISSION[known.state]
        if event == "admitted":
            # A row for a list of another board would be created, and no reading of this board would ever show its card.
            problem = None if self._options.board_id is None else self._board.problem(row)
            self.happen(row, "admitted" if problem is None else "unsendable", error=problem)
            return
        card, detail = None, "" if known is None else known.detail
        if event == "known":
            card = Card(detail)
            # From now on a response that names this card for another row is not believed.
            self._ledger.seen.add(detail)
            self._reconciler.record_card(row, detail)
        elif event == "was refused":
            row.error, row.is_refused, row.is_excused = BoardClientError(detail, Effect.REJECTED), True, self._options.resends
        else:
            why = detail or "an earlier run has sent it, and ended before the response came"
            row.error = BoardClientError(why, Effect.UNKNOWN)
            # A ledger that does not know when it ended sets nothing: it may have been a moment ago.
            self.lost_at = max(self.lost_at, row.doubted_at or self._loop.time())
        # A card that is found for it counts as "already": this run has sent nothing for it.
        row.is_earlier = True
        self.happen(row, event, card)

    def admit_again(self, row: Row) -> None:
        """Continue the life of a row that was refused, and is sent again."""
        # Without an outcome the table of admission takes it for a row that nobody has sent.
        row.outcome, row.error, row.is_refused, row.is_excused, row.is_earlier = None, None, False, False, False
        self.admit(row)

    def apply_finding(self, finding: RowFinding) -> None:
        """Note what a listing says about a row in doubt."""
        row, event, card, error = finding
        if event == "found" and card is not None:
            # No response to this run has named the card, so only the listing makes it known.
            self._ledger.seen.add(card.id)
        elif event == "absent" and not row.is_refused:
            if row.sends >= MOST_SENDS:
                why = f"sent {row.sends} times, and not on the board: {row.error}"
                event, error = "absent too often", BoardClientError(why, Effect.REJECTED)
            else:
                # It is sent as if it had just come: behind what was put off, with all its patience and its probes.
                row.is_earlier, row.error, row.put_off_at, row.probes = False, None, math.inf, 0
        self.happen(row, event, card, error)

    def end(self, why: str, *, is_unread: bool = False) -> None:
        """End the lives of all rows that have no result: they are not sent, or it is unknown whether their cards exist.

        If the board could not be read, rows of earlier runs say so as well. Otherwise they say what is known of them.
        """
        for row in self.places.clear():
            if row.state == "doubted" and row.is_refused:
                self.happen(row, "refusal stands")
                continue
            # A row of an earlier run keeps that run's own words, which say more than that this one has ended.
            is_lost = row.state in {"doubted", "open", "again"} and (is_unread or not row.is_earlier)
            self.happen(row, "stopped", error=unknown_error(row, why) if is_lost else None)
