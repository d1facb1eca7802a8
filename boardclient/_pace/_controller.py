"""How fast to start: the rules that find a service's limit from its answers. No I/O, no clock, no asyncio.

A service is taken to keep an account that fills at its limit and that every accepted request draws from: a token bucket is one,
and a fixed window is one that is filled at once. A refusal says that the account is empty. What was accepted between two of them,
over the time between them, is therefore the limit, or less where the account was full in between; and the rate at which it ran
empty is the limit or more.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from boardclient._pace._latency import Latency

LONGEST_HOLD: Final = 86_400.0
"""Seconds that a `Retry-After` may hold everybody."""
LOWEST: Final = 0.05
HIGHEST: Final = 1e5
"""Starts a second, at least and at most, whatever the answers say."""
_SLACK: Final = 0.01
"""Seconds that a late start may be made up for: timers are that coarse."""
_TICK: Final = 0.02
_SEARCH: Final = math.log(2) / 0.6
"""Growth a second as long as no limit was met: twofold in 0.6 s."""
_PROBE: Final = 1.08
_RAMP: Final = 0.025
"""How far above the known limit a probe goes as long as a bucket's savings may explain its success, and how fast."""
_SPARSE: Final = 150.0
"""Requests for each refused one, from one probe to the next."""
_PROBE_SECONDS: Final = 5.0
"""About how long a probe lasts until it is refused."""
_PAUSE: Final = 0.15
"""Seconds without a start after a refusal: what is left of a window that was used up by a small excess."""

Mark = tuple[int, float]
"""The serial number of an attempt, and the moment of its start."""


_FAILURE_WEIGHT: Final = 1 / 32
_FAILURES_BORNE: Final = 0.3
"""The part of the last attempts, 32 or so, that may fail before there is reason to slow down: an answer that is lost now and then
says nothing of the pace."""


class Attempt:
    """One attempt that was started and has not ended. Owned by whoever started it, until it is given back."""

    __slots__ = ("outer", "rate", "serial", "started_at")

    def __init__(self, serial: int, started_at: float, rate: float) -> None:
        self.serial = serial
        self.started_at = started_at
        self.rate = rate
        self.outer: Attempt | None = None
        """The attempt of the same task around this one."""


class Controller:
    """Decides when the next attempt may start, and learns from what became of the earlier ones. Owned by a `Pace`.

    Every method that is told the time is told it in seconds of one clock that does not go back.
    """

    def __init__(self, rate: float, max_in_flight: int) -> None:
        self.rate = rate
        self.limit: float | None = None
        self.room = min(16, max_in_flight)
        """How many may be in flight, from 1 on."""
        self.in_flight = 0
        self.held_until = -math.inf
        self._most = max_in_flight
        self._slot = -math.inf
        self._spacing = 1 / rate
        self._serial = 0
        # growth
        self._aim = rate
        self._speed = _SEARCH
        self._progress = 0.0
        self._ticked_at = -math.inf
        self._was_late = True
        self._was_full = False
        self._is_sure = False
        self._is_steady = False
        self._is_proven = False
        self._marks: deque[Mark] = deque(maxlen=100)
        # refusals
        self._anchor: Mark = (0, 0.0)
        self._last_refused: Mark | None = None
        self._lowered = 0
        self._refused = 0
        self._blocked_at: float | None = None
        self._unblocked_at = -math.inf
        self._is_going_on = False
        self._was_search = True
        self._is_measured = True
        self._trial: Attempt | None = None
        self._refused_rate = 0.0
        self._measured = 0.0
        self._pause = _PAUSE
        # failures and latency
        self._failures = 0.0
        self._failed = 0
        self._health = 1.0
        self._latency = Latency()

    # --- starts and ends

    def next_start(self) -> float:
        """Return the moment from which an attempt may start, infinity as long as one has to end before."""
        if self.in_flight >= self.room or self._trial is not None:
            return math.inf
        return self._slot

    def start(self, now: float) -> Attempt:
        """Start an attempt, `next_start` being past."""
        serial = self._serial = self._serial + 1
        self.in_flight += 1
        slot = self._slot
        if now - slot > _SLACK:
            if now - slot > _SLACK + self._spacing:
                self._was_late = True  # for want of work or of room, not because of the rate
                slot = now
            else:
                slot = now - _SLACK
        if now - self._ticked_at >= _TICK:
            self._tick(now)
        self._slot = slot + self._spacing
        attempt = Attempt(serial, now, self.rate)
        if self.in_flight >= self.room:
            self._was_full = True
        if self._is_going_on:
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
        self._slot -= self._spacing

    def report(self, attempt: Attempt, now: float, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Learn what became of an attempt; `status` is None where no answer came."""
        if status == 429:
            self._note_refusal(attempt, now, retry_after)
        elif status is None or status >= 500 or status == 408:
            self._note_failure(attempt)
        else:
            if self._failures:
                self._failures *= 1 - _FAILURE_WEIGHT
            if self._blocked_at is not None and attempt.serial > self._lowered:
                self._unblock(attempt, self._blocked_at)
            latency = self._latency
            if attempt.serial > latency.since:
                delivered = latency.note(now, seconds)
                if delivered is not None:
                    self._end_round(now, delivered)

    def _end_round(self, now: float, delivered: float) -> None:
        if self._was_full:
            # More than it delivers only waits; from here on growth is slow.
            self._aim = min(self._aim, max(LOWEST, 1.05 * delivered))
            if self.limit is None:
                self._speed = 0.05
        self._was_full = False
        self._apply(now)

    def _note_failure(self, attempt: Attempt) -> None:
        """Slow down for a moment when failures are more than an accident."""
        self._failures += (1 - self._failures) * _FAILURE_WEIGHT
        if self._failures > _FAILURES_BORNE and attempt.serial > self._failed:
            self._health = max(0.1, self._health * 0.7)
            self._failed = self._serial

    # --- growth

    def _tick(self, now: float) -> None:
        if self._serial == 1:
            self._anchor = (0, now)
            self._latency.begin(now, 0)
        step = min(now - self._ticked_at, max(0.1, 2 * self._spacing))
        self._ticked_at = now
        is_draining = self._latency.look(now, self._serial - 1)
        if self._health < 1.0:
            self._health = min(1.0, self._health * (1 + 0.25 * step))
        elif not self._was_late and self._blocked_at is None and not is_draining:
            self._grow(now, step)
        self._was_late = False
        if not self._marks or now - self._marks[-1][1] >= 0.1:
            self._marks.append((self._serial, now))
        self._apply(now)

    def _grow(self, now: float, step: float) -> None:
        limit = self.limit
        self._progress += step
        if limit is None:
            self._climb(step)
            self._speed = min(_SEARCH, self._speed + 0.05 * step)
        elif self._is_proven:
            self._speed += 0.08 * step
            self._climb(step)
        elif not self._is_sure:
            if self._aim > self._refused_rate:
                self._speed += 0.02 * step
            self._climb(step)
        elif not self._is_steady:
            if self._progress > 1.5:
                self._speed = max(0.02, 0.01 * (self._progress - 1.5))
                self._climb(step)
        else:
            self._probe(now, limit)

    def _climb(self, step: float) -> None:
        self._aim = min(HIGHEST, self._aim * math.exp(min(3.0, self._speed * step)))

    def _probe(self, now: float, limit: float) -> None:
        """Stay below the limit for a time, then go a little above it, and on when no savings can explain that it goes well."""
        patience = min(26.0, max(8.0, _SPARSE * self._refused / limit - _PROBE_SECONDS))
        factor = min(_PROBE, _cruise(limit) + _RAMP * max(0.0, self._progress - patience))
        self._aim = min(HIGHEST, limit * factor)
        serial, moment = self._last_refused or self._anchor
        accepted = self._serial - self.in_flight - serial
        savings = limit * (now - moment) - accepted
        if savings > limit:
            moment = now - (limit + accepted) / limit  # an account has a size: a long rest does not fill it for ever
            self._last_refused = (serial, moment)
        elif factor > 1.0 and savings < -max(2.0, 0.03 * limit):
            self._is_proven = True
            self._speed = 0.12

    def _apply(self, now: float) -> None:
        """Make rate and room follow from the aim."""
        self.rate = rate = max(LOWEST, self._aim * self._health)
        self._spacing = 1 / rate
        self.room = self._latency.room(now, rate, self.room, self._most)

    # --- refusals

    def _note_refusal(self, attempt: Attempt, now: float, retry_after: float | None) -> None:
        """Lower the pace for the first of a burst; hold everybody when refusals go on among those started after it."""
        is_fresh = attempt.serial > self._lowered
        if not is_fresh:
            self._refused += 1
        elif self._blocked_at is None:
            self._lower(attempt, now)
        else:
            self._refused += 1
            self._go_on(attempt, now, self._blocked_at, retry_after)
        if self._last_refused is None or attempt.serial > self._last_refused[0]:
            self._last_refused = (attempt.serial, attempt.started_at)
        self._apply(now)

    def _lower(self, attempt: Attempt, now: float) -> None:
        self._anchor = self._last_refused or self._anchor
        serial, moment = self._anchor
        count, seconds = attempt.serial - 1 - serial, attempt.started_at - moment
        measured = count / seconds if seconds > 0 else HIGHEST
        rate = self._recent_rate(attempt)
        known, was_sure, self._was_search = self.limit, self._is_sure, self.limit is None
        is_repeated = abs(measured - self._measured) < 0.07 * measured and count < 40 and measured < rate < 1.5 * measured
        if known is None:
            limit, self._is_sure = min(0.7 * rate, measured), False
        else:
            is_near = was_sure and rate <= 1.12 * known
            limit, self._is_sure = _judge(known, rate, measured, count, seconds, is_near=is_near, is_repeated=is_repeated)
            self._measured = measured
        # Over a long time in which the rate grew much, what was accepted says little about the limit.
        self._is_measured = known is None or seconds < 4 or rate < 1.35 * measured
        self.limit = limit = min(HIGHEST, max(LOWEST, limit))
        self._is_steady = was_sure and self._is_sure and known is not None and limit > 0.9 * known
        self._is_proven = False
        self._refused_rate = rate
        self._speed = min(0.4, max(0.03, math.log(rate / limit) / 4))
        self._progress = 0.0
        self._aim = limit * _cruise(limit)
        self._refused = 1
        self._lowered = self._serial
        self._blocked_at = attempt.started_at
        self._pause = max(_PAUSE, 0.95 * self._pause)
        self._hold(now + min(30.0, max(self._pause, 1.5 / limit)))

    def _recent_rate(self, attempt: Attempt) -> float:
        """Return the rate of the second before the attempt: where it grows, nearer to the limit than that of the moment."""
        rate = attempt.rate
        begin = max(attempt.started_at - 1.0, self._unblocked_at)
        for serial, moment in self._marks:
            if begin <= moment < attempt.started_at:
                count = attempt.serial - 1 - serial
                return rate if count < 20 else min(rate, max(count / (attempt.started_at - moment), 0.8 * rate))
        return rate

    def _go_on(self, attempt: Attempt, now: float, blocked_at: float, retry_after: float | None) -> None:
        """Hold everybody, then let one attempt at a time ask whether it is over."""
        serial, moment = self._anchor
        if not self._is_going_on:
            self._pause = min(0.6, 1.5 * self._pause)
        if attempt.started_at > moment and self._is_measured:
            measured = (attempt.serial - serial - self._refused) / (attempt.started_at - moment)
            limit = self.limit or HIGHEST
            if 1.03 * measured < limit:
                self.limit = max(LOWEST, 1.03 * measured, limit / 2)
                self._is_steady = self._is_steady and self.limit > 0.9 * limit
                self._aim = self.limit * _cruise(self.limit)
        self._is_going_on = True
        self._lowered = self._serial
        if retry_after is None:
            self._hold(now + min(30.0, max(_PAUSE, 0.35 * (now - blocked_at))))
        else:
            self._hold(now + min(max(0.0, retry_after), LONGEST_HOLD))

    def _hold(self, until: float) -> None:
        self.held_until = until
        self._slot = max(self._slot, until)

    def _unblock(self, attempt: Attempt, blocked_at: float) -> None:
        """Take note that the service accepts again: what it accepted until then, over that time, is a measure as well."""
        refused_at = blocked_at if self._last_refused is None else self._last_refused[1]
        end = (attempt.started_at + refused_at) / 2
        if self._is_going_on and not self._is_sure and self._is_measured:
            serial, moment = self._anchor
            if self._was_search:
                begin = end - 2 * (end - blocked_at)
                for mark in self._marks:
                    if moment < mark[1] <= begin:
                        serial, moment = mark
            measured = max(0.0, (attempt.serial - 1 - serial - self._refused) / max(1e-3, end - moment))
            if self._was_search:
                limit = measured
                self._refused_rate, self._speed = 1.3 * measured, 0.06
            else:
                limit = min(self._refused_rate, (measured * measured * self._refused_rate) ** (1 / 3))
                self._speed = max(0.03, math.log(self._refused_rate / max(LOWEST, limit)) / 8)
            self.limit = limit = min(HIGHEST, max(LOWEST, limit))
            self._aim = limit * _cruise(limit)
        self._blocked_at = None
        self._is_going_on = False
        self._unblocked_at = attempt.started_at


def _cruise(limit: float) -> float:
    """Return the part of the limit that is used between two probes: jitter fills a small window earlier than a large one."""
    return min(0.985, max(0.98, 0.97 + 0.0003 * limit))


def _judge(
    known: float, rate: float, measured: float, count: int, seconds: float, *, is_near: bool, is_repeated: bool
) -> tuple[float, bool]:
    """Return the limit that lies between what was measured and the rate that was refused, and whether they agree on it."""
    if count >= 5 and 0.9 * measured <= rate <= 1.25 * measured:
        weight = min(max(known / 40, 0.3), 0.75 if rate <= 1.12 * measured else 0.5)
        return min(rate, weight * rate + (1 - weight) * measured), True
    if count >= 5 and is_near and rate < 1.35 * measured:
        return (measured + rate) / 2, True
    if count >= 5 and is_repeated:
        return (3 * measured + rate) / 4, True
    if seconds < 4:
        return min(rate, math.sqrt(measured * rate) if count >= 8 else 0.8 * rate), False
    if rate > measured:
        return (measured * rate * rate) ** (1 / 3), False
    return rate, False
