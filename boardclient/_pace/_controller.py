"""When the next attempt may start: rate, places and holds together. No I/O, no clock, no asyncio."""

from __future__ import annotations

import math
from typing import Final

from boardclient._pace._failures import Failures
from boardclient._pace._latency import Latency
from boardclient._pace._phases import HIGHEST, LOWEST, Open
from boardclient._pace._schedule import Schedule
from boardclient._pace._search import Attempt, Search
from boardclient._statuses import status_of
from boardclient.errors import Effect

_REDIRECTION: Final = 300
"""A status below needs no look into the table."""
_TICK: Final = 0.02
_PLACES: Final = 16
"""Attempts in flight to begin with: every service takes a burst of so many."""


class Controller:
    """Decide when the next attempt may start, and learn from the results of others. Owned by a `Pace`.

    Times are seconds of one clock that does not go back. `rate` is the start rate, None to begin with a burst.
    """

    def __init__(self, rate: float | None, max_in_flight: int, places: int = _PLACES) -> None:
        self.rate = rate or HIGHEST
        self.places = min(places, max_in_flight)
        """How many may be in flight, from 1 on."""
        self.in_flight = 0
        self._most = max_in_flight
        self._ticked_at = -math.inf
        self._was_full = False
        self._trial: Attempt | None = None
        self._schedule = Schedule(self.rate)
        self._search = Search(self.rate, float(self.places), self._schedule)
        self._failures = Failures()
        self._latency = Latency()

    @property
    def limit(self) -> float | None:
        """The limit as far as it is known."""
        return self._search.limit

    @property
    def held_until(self) -> float:
        """The moment until which refusals keep all attempts from starting."""
        return self._schedule.held_until

    def take_over(self, sent: int, began: float, now: float, retry_after: float | None) -> None:
        """Lead attempts that nothing has limited so far, from the first refusal on. `sent` counts those that have ended."""
        self._search.serial = sent
        self._search.evidence.begin(0, began)
        self._search.note_refusal(Attempt(sent, now, self.rate), now, retry_after)
        self._apply(now)

    # --- starts and ends

    def next_start(self) -> float:
        """Return when an attempt may start. It is infinity while one in flight has to end before."""
        if self.in_flight >= self.places or self._trial is not None:
            return math.inf
        return self._schedule.next_at

    def start(self, now: float) -> Attempt:
        """Start an attempt, `next_start` being past."""
        search = self._search
        serial = search.serial = search.serial + 1
        self.in_flight += 1
        if now - self._ticked_at >= _TICK:
            self._tick(now)
        self._schedule.take(now)
        attempt = Attempt(serial, now, self.rate)
        if self.in_flight >= self.places:
            self._was_full = True
        if search.block is not None and search.block.asks:
            self._trial = attempt
        return attempt

    def end(self, attempt: Attempt) -> None:
        """Take back the place of an attempt that is over."""
        self.in_flight -= 1
        if attempt is self._trial:
            self._trial = None

    def cancel(self, attempt: Attempt) -> None:
        """Take back an attempt whose owner never used it."""
        self.end(attempt)
        self._schedule.give_back()

    def report(self, attempt: Attempt, now: float, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Learn what became of an attempt; `status` is None where no response came."""
        if status is None:
            self._failures.note_failure(attempt.serial, self._search.serial)
        elif status < _REDIRECTION or (not (meaning := status_of(status)).is_throttling and meaning.effect is not Effect.UNKNOWN):
            self._note_accepted(attempt, now, seconds)
        elif meaning.is_throttling:
            self._search.note_refusal(attempt, now, retry_after)
            self._apply(now)
        else:
            self._failures.note_failure(attempt.serial, self._search.serial)

    def _note_accepted(self, attempt: Attempt, now: float, seconds: float) -> None:
        self._failures.note_success()
        search = self._search
        was_blocked = search.block is not None
        search.note_accepted(attempt, now, self.in_flight)
        if was_blocked and search.block is None:
            self._was_full = False
            self._latency.begin(now, search.serial)
            self._apply(now)
        elif self._was_full and isinstance(search.phase, Open):
            search.phase.note_accepted(self._most)
            self.places = int(search.phase.places)
        if attempt.serial > self._latency.since:
            delivered = self._latency.note(now, seconds, drifts=search.aim < HIGHEST)
            if delivered is not None:
                self._end_round(now, delivered)

    def _end_round(self, now: float, delivered: float) -> None:
        """Start no more than came back where the number in flight may not grow. More would only wait."""
        search = self._search
        if self._was_full and (search.aim < HIGHEST or self._latency.is_slow):
            search.aim = min(search.aim, max(LOWEST, 1.05 * delivered))
            if isinstance(search.phase, Open):
                search.phase.speed = 0.05
        self._was_full = False
        self._apply(now)

    # --- growth

    def _tick(self, now: float) -> None:
        search = self._search
        if search.serial == 1:
            search.evidence.begin(0, now)
            self._latency.begin(now, 0)
        step = min(now - self._ticked_at, max(0.1, 2 * self._schedule.spacing))
        self._ticked_at = now
        is_draining = self._latency.look(now, search.serial - 1)
        if self._failures.health < 1.0:
            self._failures.recover(step)
        elif not self._schedule.was_late and search.block is None and not is_draining and search.aim < HIGHEST:
            search.grow(now, step, self.in_flight)
        self._schedule.was_late = False
        search.evidence.note_start(search.serial, now)
        self._apply(now)

    def _apply(self, now: float) -> None:
        """Make rate and places follow from the aim."""
        aim = self._search.aim
        self.rate = rate = max(LOWEST, aim * self._failures.health) if aim < HIGHEST else HIGHEST
        self._schedule.spacing = 1 / rate if rate < HIGHEST else 0.0
        if aim < HIGHEST or self._latency.is_draining(now):
            self.places = self._latency.room(now, rate, self.places, self._most)
        elif isinstance(self._search.phase, Open):  # pragma: no branch -- only this phase has no rate
            self.places = int(self._search.phase.places)
