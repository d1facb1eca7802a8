"""What was accepted and refused, and when: the measurements behind a limit.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Final, NamedTuple

_COUNT: Final = 8
"""The least number of accepted attempts for a measurement."""
_FEW: Final = 12
"""The least number of accepted attempts that show which rate is possible."""
_DELIVERED_SECONDS: Final = 2.0
_MEMORY_SECONDS: Final = 60.0
"""For how long a rate that was accepted counts as possible."""


class PacedAttempt:
    """An attempt that was started. Owned by the task that started it, until its end."""

    __slots__ = ("outer", "rate", "serial", "started_at")

    def __init__(self, serial: int, started_at: float, rate: float) -> None:
        self.serial = serial
        self.started_at = started_at
        self.rate = rate
        self.outer: PacedAttempt | None = None
        """The attempt of the same task that encloses this one, if the pace is entered twice."""


class Mark(NamedTuple):
    """One attempt: its number, when it started, and how many were refused before."""

    serial: int
    moment: float
    refused: int
    since: float
    """The earliest time at which the service can have been exhausted, if the moment is a guess, or else the moment."""


class Evidence:
    """When attempts were started, and when the service was exhausted. Owned by a `Controller`.

    A service is exhausted at the moment at which it refuses an attempt because of a limit.
    """

    __slots__ = ("_best", "_best_at", "_marks", "_refusals", "begun", "last_refused", "refused")

    def __init__(self) -> None:
        self.begun = Mark(0, 0.0, 0, 0.0)
        """The beginning of the measurement: the first start, or the end of a time in which nothing was accepted."""
        self.last_refused: Mark | None = None
        self.refused = 0
        self._marks: deque[Mark] = deque(maxlen=650)
        self._refusals: deque[Mark] = deque(maxlen=8)
        self._best = 0.0
        self._best_at = -math.inf

    def begin(self, serial: int, now: float) -> None:
        """Begin the measurement anew."""
        self.begun = Mark(serial, now, self.refused, now)
        self.last_refused = None
        self._refusals.clear()

    def note_start(self, serial: int, now: float) -> None:
        """Record how many attempts were started by now, at most ten times per second."""
        if not self._marks or now - self._marks[-1].moment >= 0.1:
            self._marks.append(Mark(serial, now, self.refused, now))

    def note_refused(self, serial: int, started_at: float, *, is_usual: bool) -> None:
        """Record a refused attempt. A usual refusal, which has another cause, does not show that the limit was reached."""
        self.refused += 1
        if is_usual:
            return
        if self.last_refused is None or serial > self.last_refused.serial:
            self.last_refused = Mark(serial, started_at, self.refused, started_at)

    def end_block(self, serial: int, moment: float, since: float) -> None:
        """Record when the service was exhausted, and since when at the earliest.

        `serial` is the number of the last attempt before that.
        """
        self.last_refused = Mark(serial, moment, self.refused, since)
        self._refusals.append(self.last_refused)

    @property
    def anchor(self) -> Mark:
        """When the service was last exhausted, or else the beginning."""
        return self.last_refused or self.begun

    def anchor_before(self, serial: int) -> Mark:
        """Return the last exhaustion since which enough was accepted, or the first one."""
        for mark in reversed(self._refusals):
            if serial - mark.serial >= _COUNT:
                return mark
        return self._refusals[0] if self._refusals else self.begun

    def recent_rate(self, serial: int, started_at: float, rate: float, since: float) -> float:
        """Return the rate of starts in the second before an attempt.

        If the rate is growing, the result is close to its current value, `rate`.
        """
        begin = max(started_at - 1.0, since)
        for mark in self._marks:
            if begin <= mark.moment < started_at:
                count = serial - 1 - mark.serial
                return rate if count < 20 else min(rate, max(count / (started_at - mark.moment), 0.8 * rate))
        return rate

    def accepted_between(self, begin: float, serial: int) -> float:
        """Return how many attempts were accepted from a time on, up to an attempt.

        Between two records, the starts count as evenly spaced.
        """
        before = after = self.begun
        for mark in self._marks:
            after = mark
            if mark.moment > begin:
                break
            before = mark
        part = (begin - before.moment) / (after.moment - before.moment) if after.moment > begin > before.moment else 0.0
        return serial - before.serial - part * (after.serial - before.serial) - (self.refused - before.refused)

    def delivered(self, serial: int, now: float) -> float:
        """Return the accepted attempts per second in the last 2 to 4 s, 0 if few."""
        for mark in reversed(self._marks):
            count = serial - mark.serial - (self.refused - mark.refused)
            if now - mark.moment > 2 * _DELIVERED_SECONDS:
                break
            if count >= _FEW and now - mark.moment >= _DELIVERED_SECONDS:
                return (count - 1) / (now - mark.moment)
        return 0.0

    def usual(self, serial: int) -> float:
        """Return the largest number of attempts between two of the last blocks."""
        serials = [self.begun.serial, *(mark.serial for mark in self._refusals), serial][-4:]
        return float(max(later - earlier for earlier, later in itertools.pairwise(serials)))

    def recent(self, serial: int, now: float) -> tuple[float, float]:
        """Return the refused share and the accepted rate since the third last block."""
        first = self._refusals[-3] if len(self._refusals) > 2 else self.begun
        count, refused = max(1, serial - first.serial), self.refused - first.refused
        accepted = (count - refused) / max(1e-3, now - first.moment)
        lately = self.delivered(serial, now)
        return refused / count, min(accepted, lately or accepted)

    # --- the rate that the service is known to accept

    def note_possible(self, serial: int, now: float) -> None:
        """Measure the rate that was accepted since the first of the recorded exhaustions."""
        first = self._refusals[0] if self._refusals else self.begun
        count, seconds = serial - first.serial - (self.refused - first.refused), now - first.since
        if self._refusals and count >= _FEW and seconds >= 0.3 and (count - 1) / seconds >= self.possible(now):
            self._best, self._best_at = (count - 1) / seconds, now

    def possible(self, now: float) -> float:
        """Return the highest rate that was accepted in the last 60 s, 0 if unknown."""
        return self._best if now - self._best_at < _MEMORY_SECONDS else 0.0

    def forget_possible(self) -> None:
        """Forget the possible rate, after the limit has fallen."""
        self._best_at = -math.inf
        self._refusals.clear()
        self._refusals.append(self.anchor)


def judge(
    known: float, rate: float, measured: float, count: int, seconds: float, *, is_near: bool, is_repeated: bool
) -> tuple[float, bool]:
    """Return a limit between the measured and the refused rate.

    The second value says whether they agree on it.
    """
    if count >= 5 and 0.9 * measured <= rate <= 1.25 * measured:
        weight = min(max(known / 40, 0.3), 0.75 if rate <= 1.12 * measured else 0.5)
        return min(rate, weight * rate + (1 - weight) * measured), True
    if count >= 5 and is_near and rate < 1.35 * measured:
        return (measured + rate) / 2, True
    if count >= 5 and is_repeated and measured < rate < 1.5 * measured:
        return (3 * measured + rate) / 4, True
    if seconds < 4:
        return min(rate, math.sqrt(measured * rate) if count >= 8 else 0.8 * rate), False
    if rate > measured:
        return (measured * rate * rate) ** (1 / 3), False
    return rate, False
