"""Where the rows of a run wait, and what happens to them; the options and the parts of an engine.

What happens to a row is the table in `_life`: each event but "taken" goes through `Lives.happen`, which carries out the reaction.
"""

from __future__ import annotations

import asyncio
import math
import os
from bisect import insort_left
from collections import deque
from collections.abc import Coroutine
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import attrs

from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import LIVES, MOST_SENDS, Event, Row, State, Unknown
from boardclient.bulk._proof._board import RunBoard
from boardclient.bulk._proof._probes import MOST_PROBES
from boardclient.bulk._proof._recognition import Marking
from boardclient.bulk._proof._reconciler import Reconciler, RowFinding, unknown_error
from boardclient.bulk._results import Results, ResultState, Tally
from boardclient.bulk._source import AsyncSource, SyncSource
from boardclient.bulk._waiting import Turns
from boardclient.errors import BoardClientError, Effect
from boardclient.models import Card

_MOST_REFUSED: Final = 10_000
"""How many rows that were refused wait for the board to be read, those of earlier runs and those of this one each."""
_MOST_DOUBTS: Final = 1000
"""The number of rows in doubt at which the board is read before more rows are sent."""
_LARGEST_COMMIT: Final = 256
_SMALLEST_COMMIT: Final = 32
"""With fewer rows, it would be most of a row's cost, since its price hardly depends on their number."""
_LIFE_OF_PROBES: Final = LIVES["report"]
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
        self.to_check: list[Row] = []
        """Rows that were refused by an earlier run, or in an outage. They are sent after all others, once the board was read."""
        self.to_send_again: list[Row] = []
        """Those of them that the board does not show."""
        self.refused, self.failed, self.doubted, self.open = deque[Row](), deque[Row](), deque[Row](), deque[Row]()
        self._aside = {"refused": self.refused, "failed": self.failed, "doubted": self.doubted, "open": self.open}
        self.are_full = False
        """Whether so many rows wait for the board to be read that no more are sent before."""

    @property
    def in_doubt(self) -> list[Row]:
        """The rows whose cards may exist."""
        return [*self.doubted, *self.open]

    @property
    def has_most_failed(self) -> bool:
        """Whether the board is to be read for the rows that have failed."""
        return len(self.failed) >= _MOST_REFUSED

    @property
    def are_refused_first(self) -> bool:
        """Whether no more rows are taken from the input before those are sent that an earlier run saw refused."""
        return len(self.to_check) >= _MOST_REFUSED or bool(self.to_send_again)

    def queue_first(self, row: Row) -> None:
        """Let a row be sent before those that were not put off."""
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
        self.ready.extend(self.kept_back.pop(list_id) for list_id in lists[:-1] or lists)

    def take_to_send_again(self, number: int) -> list[Row]:
        """Take some of the rows that were refused and are sent again."""
        rows, self.to_send_again = self.to_send_again[:number], self.to_send_again[number:]
        return rows

    def set_aside(self, row: Row) -> None:
        self._aside[row.state].append(row)
        self._count()

    def empty(self, *places: deque[Row]) -> None:
        """Forget the rows of some places, about which something is known by now."""
        for place in places:
            place.clear()
        self._count()

    def _count(self) -> None:
        self.are_full = len(self.doubted) >= _MOST_DOUBTS or self.has_most_failed

    def take_back(self, row: Row) -> bool:
        """Take a row out of the places where it waits after it was refused. Return False if it is in none."""
        for place in (self.refused, self.failed, self.to_check, self.to_send_again):
            if row in place:
                place.remove(row)
                self._count()
                return True
        return False

    def clear(self) -> list[Row]:
        """Take all rows out, and return those that this run has begun with."""
        for timer in self.paused.values():
            timer.cancel()
        rows = [*chain(self.ready, self.paused, *self._aside.values(), self.kept_back.values())]
        rows += [row for row in (*self.to_check, *self.to_send_again) if row.state == "refused"]  # "new" ones stay as they are
        self.paused.clear()
        self.kept_back.clear()
        self.empty(self.ready, *self._aside.values())
        return rows

    def __repr__(self) -> str:
        counts = {
            "ready": self.ready,
            "kept back": self.kept_back,
            "paused": self.paused,
            "to check": self.to_check,
            "to send again": self.to_send_again,
            **self._aside,
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
    probe: bool = False
    waits_for_consent: bool = True
    """Whether the run waits until a user has signed in. If not, it ends with `ConsentRequired`."""
    ledger: Ledger | None = None
    """The ledger to use in place of a journal: one that the caller has opened."""

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
        self.once_taken: Final[dict[State, State]] = {
            state: after for (state, event), (after, _) in self._life.items() if event == "taken"
        }
        """The state of a row once it was taken, to which there is no reaction."""

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
            case "pause" if pause > 0:
                self.places.paused[row] = self._loop.call_later(pause, self._resume, row)
            case "pause" | "queue first":
                self.places.queue_first(row)
            case "check":
                self.places.to_check.append(row)
            case "set aside":
                self.places.set_aside(row)
                if row.state == "failed":  # what the next run reads if this one is killed before the board is read
                    self._ledger.add_outcome(row, "failed", error=row.error)
            case "withdraw":
                self._ledger.withdraw([row])
            case "found":
                self._add_result(row, "already" if row.is_earlier else "created", card)
            case "already" | "failed" | "unknown":  # pragma: no branch -- "nothing" needs no reaction
                self._add_result(row, reaction, card, error or row.error)

    def _add_result(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, put it into the queue, and notify the listeners."""
        self._ledger.add_outcome(row, state, card, error)
        if row.is_probe:
            self._end_probe(row, state, card)
            return
        values = (row.index, row.draft, card, error, state)
        self._results.put(values)
        self._tally.add_result(values)
        if self._tally.listeners:
            self._owner.notify()

    def _end_probe(self, probe: Row, state: ResultState, card: Card | None) -> None:
        """Note what became of a probe: the next listing may be longer, or no probe can make it so."""
        self._reconciler.record_probe(probe, card)
        if state == "failed":  # it is not asked again
            for row in self.places.open:
                if row.draft.list_id == probe.draft.list_id:
                    row.probes = MOST_PROBES

    def _resume(self, row: Row) -> None:
        """Let a row be sent again after its pause."""
        del self.places.paused[row]
        self.places.queue_first(row)
        self._owner.on_change()

    def admit(self, row: Row) -> None:
        """Begin the life of a row that was taken from the input."""
        if row.action == "send":
            if row.is_final:
                row.error, row.is_earlier = BoardClientError(row.detail or "", Effect.REJECTED), True
                self.happen(row, "refused")
            elif row.detail is not None:
                self.places.to_check.append(row)
            elif self._options.board_id is None or (problem := self._board.problem(row)) is None:
                self.happen(row, "admitted")
            else:
                self.happen(row, "unsendable", error=problem)
        elif row.action == "done":
            card_id = row.detail or ""
            self._ledger.seen.add(card_id)
            self._reconciler.record_known(row, card_id)
            self.happen(row, "known", Card(card_id))
        else:
            why = row.detail or "an earlier run has sent it, and ended before the response came"
            row.error = BoardClientError(why, Effect.UNKNOWN)
            self.happen(row, "in doubt")

    def apply_finding(self, finding: RowFinding) -> None:
        """Note what a listing says about a row in doubt."""
        row, event, card, error = finding
        if event == "found" and card is not None:
            self._ledger.seen.add(card.id)
        elif event == "absent":
            if row.sends >= MOST_SENDS:
                why = f"sent {row.sends} times, and not on the board: {row.error}"
                event, error = "absent too often", BoardClientError(why, Effect.REJECTED)
            else:
                row.is_earlier, row.error, row.put_off_at, row.probes = False, None, math.inf, 0
        self.happen(row, event, card, error)

    def end(self, why: str) -> None:
        """End the lives of all rows that have no result: they are not sent, or it is unknown whether their cards exist."""
        for row in self.places.clear():
            is_lost = row.state in {"doubted", "open", "again"} and not row.is_earlier
            self.happen(row, "stopped", error=unknown_error(row, why) if is_lost else None)
