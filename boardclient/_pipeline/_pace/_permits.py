"""When the next attempt may start, given the rate, the attempts in flight and the pauses.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import math
from typing import Final, Self

import attrs

from boardclient._interface._responses import status_of
from boardclient._pipeline._pace._evidence import Evidence
from boardclient._pipeline._pace._phases import HIGHEST, LOWEST, AtATime, Unlimited
from boardclient._pipeline._pace._refusals import LimitSearch
from boardclient._pipeline._pace._timing import Latency, PacedAttempt, Schedule
from boardclient.errors import Effect

_TICK: Final = 0.02
REST_SECONDS: Final = 0.1
"""The time without an attempt in flight after which, until the first refusal, the measurement begins again."""
FIRST_CONCURRENCY: Final = 16
"""How many attempts may be in flight at first. Every service accepts a burst of this size."""


@attrs.define(eq=False)
class Permits:
    """Decides when the next attempt may start, and learns from results. Owned by a `Pace`, or by the group of several.

    Times are in seconds on one monotonic clock. Its state is a tree, which `_shared` stores.
    """

    rate: float
    concurrency: int
    """How many attempts may be in flight now, at least 1."""
    _most: int
    _schedule: Schedule
    _search: LimitSearch
    _latency: Latency = attrs.field(factory=Latency)
    in_flight: int = 0
    _reported_at: float = math.inf
    _ticked_at: float = -math.inf
    _was_full: bool = False
    _asking: int | None = None
    """The number of the attempt in flight that asks whether a block is over, during which no other starts."""

    @classmethod
    def begin(
        cls, rate: float | None, max_in_flight: int, concurrency: int = FIRST_CONCURRENCY, *, finds_number: bool = True
    ) -> Self:
        """Return permits for a service of which nothing is known yet.

        `rate` is the initial rate in starts per second, or None to begin with a burst. `max_in_flight` is the largest number of
        attempts in flight, `concurrency` the number at first. `finds_number` is False if results come too late to find out how
        many attempts are accepted at a time.
        """
        aim, first = rate or HIGHEST, min(concurrency, max_in_flight)
        search = LimitSearch(aim, Unlimited(float(first)), float(first), may_be_at_a_time=finds_number)
        return cls(aim, first, max_in_flight, Schedule(1 / aim), search)

    @property
    def limit(self) -> float | None:
        return self._search.limit

    @property
    def asked_until(self) -> float:
        """The time until which no attempt starts because of a `Retry-After`."""
        return self._schedule.asked_until

    @property
    def paused_until(self) -> float:
        """The time until which no attempt starts, because of refusals."""
        return self._schedule.paused_until

    def take_over(
        self,
        sent: int,
        evidence: Evidence,
        now: float,
        retry_after: float | None,
        *,
        in_flight: int = 0,
        seconds: float | None = None,
    ) -> list[PacedAttempt]:
        """Take over attempts that were not limited until their first refusal. Return those that are still in flight.

        `sent` is the number of attempts that have ended, and `in_flight` that of the others; `evidence` says when they began, and
        `seconds` how long attempts take at least, if that is known.
        """
        self._latency.base = seconds
        self._search.serial = sent + in_flight
        self._search.evidence = evidence
        self.in_flight = in_flight
        self._search.add_refused(PacedAttempt(sent, now, self.rate), now, retry_after, self._schedule)
        self._apply(now)
        return [PacedAttempt(sent + number, now, self.rate) for number in range(1, in_flight + 1)]

    def begun(self, now: float) -> tuple[int, float]:
        """Return how many attempts were started since the last rest, and for how many seconds."""
        mark = self._search.evidence.last_begun()
        return self._search.serial - mark.serial, now - mark.moment

    def add_earlier(self, sent: int, refused: int) -> None:
        """Count attempts that were not limited, and of which nothing was known at the first refusal."""
        if self.limit is None:
            self._search.evidence.add_earlier(sent, refused)

    # --- starts and ends

    def next_start(self) -> float:
        """Return the time at which an attempt may start.

        It is infinite if an attempt in flight has to end first.
        """
        if self.in_flight >= self.concurrency or self._asking is not None:
            return math.inf
        return max(self._schedule.next_at, self._search.rests_until) if self.in_flight else self._schedule.next_at

    def lone_start(self, *, is_rested: bool) -> float:
        """Return the time at which the only waiting attempt may start. `is_rested` says that it came after a rest."""
        return math.inf if self.in_flight else max(self.asked_until, self._search.lone_start(is_rested=is_rested))

    def start(self, now: float) -> PacedAttempt:
        """Start an attempt. The time of `next_start` must have passed, or that of `lone_start`."""
        search = self._search
        serial = search.serial = search.serial + 1
        if not self.in_flight:
            self._latency.note_idle()
            # What nobody asks for says nothing about a limit, so a measurement begins again after a rest.
            if self.limit is None and search.block is None and now - self._reported_at > REST_SECONDS:
                search.evidence.begin_again(serial - 1, now)
            elif (idle := now - max(self._reported_at, self._schedule.next_at)) > REST_SECONDS:
                search.evidence.skip(idle)
        # Also a limit may rise: what was found once is wrong after a while without refusals.
        search.rise(now)
        self.in_flight += 1
        if now - self._ticked_at >= _TICK:
            self._tick(now)
        self._schedule.take(now)
        attempt = PacedAttempt(serial, now, self.rate)
        if self.in_flight >= self.concurrency:
            self._was_full = True
        # One attempt at a time asks whether a block is over, so that a block of any length costs few refusals.
        if search.block is not None and search.block.asks:
            self._asking = serial
        return attempt

    def end(self, attempt: PacedAttempt) -> None:
        self.in_flight -= 1
        if attempt.serial == self._asking:
            self._asking = None
        if not self.in_flight and self._search.has_number:
            self._schedule.release(-math.inf)  # all that were accepted together have ended

    def cancel(self, attempt: PacedAttempt) -> None:
        """Undo the start of an attempt that was never made."""
        self.end(attempt)
        # Nothing reached the service, so the next start need not wait for this one.
        self._schedule.give_back()

    def report(self, attempt: PacedAttempt, now: float, status: int | None, retry_after: float | None, seconds: float) -> None:
        self._reported_at = now
        if status is None:
            return
        meaning = status_of(status)
        # Lost responses and failures of the service say nothing about a limit: neither refused nor accepted.
        if meaning.is_overload:
            self._search.add_refused(attempt, now, retry_after, self._schedule, is_throttling=meaning.is_throttling)
            self._apply(now)
        elif meaning.effect is not Effect.UNKNOWN:
            self._add_accepted(attempt, now, seconds)

    def _add_accepted(self, attempt: PacedAttempt, now: float, seconds: float) -> None:
        search = self._search
        was_blocked = search.block is not None
        search.add_accepted(attempt, now, self.in_flight, self._schedule)
        if was_blocked and search.block is None:
            self._was_full = False
            self._latency.begin(now, search.serial)
            self._apply(now)
        elif isinstance(search.phase, AtATime):
            search.phase.add_accepted(self.in_flight, self._most)
            self._apply(now)
        elif self._was_full and isinstance(search.phase, Unlimited):
            search.phase.widen(self._most)
            self.concurrency = int(search.phase.concurrency)
        if attempt.serial > self._latency.since:
            delivered = self._latency.add(now, seconds)
            if delivered is not None:
                self._end_round(now, delivered)

    def _end_round(self, now: float, delivered: float) -> None:
        """Limit the rate to what was delivered if the number in flight may not grow. More would only wait."""
        search = self._search
        if isinstance(search.phase, AtATime):
            return
        # With as many in flight as may be and slow responses, more attempts would only queue in the service.
        if self._was_full and (search.aim < HIGHEST or self._latency.is_slow):
            search.aim = min(search.aim, max(LOWEST, 1.05 * delivered))
            if isinstance(search.phase, Unlimited):
                search.phase.speed = 0.05
        self._was_full = False
        self._apply(now)

    # --- growth

    def _tick(self, now: float) -> None:
        search = self._search
        if search.serial == 1:
            search.evidence.begin(0, now)
            self._latency.begin(now, 0)
        # Bounded, or the rate would jump after a time without attempts.
        step = min(now - self._ticked_at, max(0.1, 2 * self._schedule.spacing))
        self._ticked_at = now
        is_draining = self._latency.update(now, search.serial - 1)
        # Starts that came late used less than the rate allowed, so they show nothing of a higher one.
        if not self._schedule.was_late and search.block is None and not is_draining and search.aim < HIGHEST:
            search.grow(now, step, self.in_flight)
        self._schedule.was_late = False
        self._apply(now)

    def _apply(self, now: float) -> None:
        """Derive the rate and the attempts in flight from the aim."""
        self.rate = rate = self._search.aim
        self._schedule.spacing = 1 / rate if rate < HIGHEST else 0.0
        if isinstance(self._search.phase, AtATime):
            self.concurrency = max(1, int(self._search.phase.concurrency))
        elif rate < HIGHEST or self._latency.is_draining(now):
            self.concurrency = self._latency.concurrency_for(now, rate, self.concurrency, self._most)
        elif isinstance(self._search.phase, Unlimited):  # pragma: no branch -- only this phase has no rate
            self.concurrency = int(self._search.phase.concurrency)
