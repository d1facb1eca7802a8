"""When the next attempt may start, from rate, attempts in flight and holds.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import math
from typing import Final

from boardclient._pace._search import HIGHEST, LOWEST, Open, Search
from boardclient._pace._timing import Latency, PacedAttempt, Schedule
from boardclient._responses import status_of
from boardclient.errors import Effect

_TICK: Final = 0.02
_PLACES: Final = 16
"""How many attempts may be in flight at first. Every service accepts a burst of this size."""


class Controller:
    """Decides when the next attempt may start, and learns from results. Owned by a `Pace`.

    Times are in seconds on one monotonic clock. `rate` is the initial rate in starts per second, or None to begin with a burst.
    `max_in_flight` is the largest number of attempts in flight, `places` the number at first.
    """

    def __init__(self, rate: float | None, max_in_flight: int, places: int = _PLACES) -> None:
        self.rate = rate or HIGHEST
        self.places = min(places, max_in_flight)
        """How many attempts may be in flight now, at least 1."""
        self.in_flight = 0
        self._most = max_in_flight
        self._ticked_at = -math.inf
        self._was_full = False
        self._trial: PacedAttempt | None = None
        self._schedule = Schedule(self.rate)
        self._search = Search(self.rate, float(self.places), self._schedule)
        self._latency = Latency()

    @property
    def limit(self) -> float | None:
        """The service's limit in requests per second, or None if it is not known yet."""
        return self._search.limit

    @property
    def held_until(self) -> float:
        """The time until which no attempt starts, because of refusals."""
        return self._schedule.held_until

    def take_over(self, sent: int, began: float, now: float, retry_after: float | None, seconds: float | None = None) -> None:
        """Take over attempts that were not limited until their first refusal.

        `sent` is the number of attempts that have ended, `began` the time at which the first one started, and `seconds` how long
        attempts take at least, if that is known.
        """
        self._latency.base = seconds
        self._search.serial = sent
        self._search.evidence.begin(0, began)
        self._search.note_refusal(PacedAttempt(sent, now, self.rate), now, retry_after)
        self._apply(now)

    def add_earlier(self, sent: int, refused: int) -> None:
        """Count attempts that were not limited, and of which nothing was known at the first refusal."""
        if self.limit is None:
            self._search.serial += sent
            self._search.evidence.refused += refused

    # --- starts and ends

    def next_start(self) -> float:
        """Return the time at which an attempt may start.

        It is infinite if an attempt in flight has to end first.
        """
        if self.in_flight >= self.places or self._trial is not None:
            return math.inf
        return self._schedule.next_at

    def start(self, now: float) -> PacedAttempt:
        """Start an attempt. The time of `next_start` must have passed."""
        search = self._search
        serial = search.serial = search.serial + 1
        self.in_flight += 1
        if now - self._ticked_at >= _TICK:
            self._tick(now)
        self._schedule.take(now)
        attempt = PacedAttempt(serial, now, self.rate)
        if self.in_flight >= self.places:
            self._was_full = True
        if search.block is not None and search.block.asks:
            self._trial = attempt
        return attempt

    def end(self, attempt: PacedAttempt) -> None:
        """Note that an attempt has ended."""
        self.in_flight -= 1
        if attempt is self._trial:
            self._trial = None

    def cancel(self, attempt: PacedAttempt) -> None:
        """Undo the start of an attempt that was never made."""
        self.end(attempt)
        self._schedule.give_back()

    def report(self, attempt: PacedAttempt, now: float, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Learn from the result of an attempt. `status` is None without a response."""
        if status is None:
            return
        meaning = status_of(status)
        if meaning.is_overload:
            self._search.note_refusal(attempt, now, retry_after, is_throttling=meaning.is_throttling)
            self._apply(now)
        elif meaning.effect is not Effect.UNKNOWN:
            self._note_accepted(attempt, now, seconds)

    def _note_accepted(self, attempt: PacedAttempt, now: float, seconds: float) -> None:
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
            delivered = self._latency.note(now, seconds)
            if delivered is not None:
                self._end_round(now, delivered)

    def _end_round(self, now: float, delivered: float) -> None:
        """Limit the rate to what was delivered if the number in flight may not grow. More would only wait."""
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
        is_draining = self._latency.update(now, search.serial - 1)
        if not self._schedule.was_late and search.block is None and not is_draining and search.aim < HIGHEST:
            search.grow(now, step, self.in_flight)
        self._schedule.was_late = False
        self._apply(now)

    def _apply(self, now: float) -> None:
        """Derive the rate and the attempts in flight from the aim."""
        self.rate = rate = self._search.aim
        self._schedule.spacing = 1 / rate if rate < HIGHEST else 0.0
        if rate < HIGHEST or self._latency.is_draining(now):
            self.places = self._latency.places_for(now, rate, self.places, self._most)
        elif isinstance(self._search.phase, Open):  # pragma: no branch -- only this phase has no rate
            self.places = int(self._search.phase.places)
