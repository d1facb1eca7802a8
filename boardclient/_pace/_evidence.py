"""What was accepted and refused, and when: the measurements behind a limit.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

_COUNT: Final = 8
"""The least number of accepted attempts for a measurement."""
_FEW: Final = 12
"""The least number of accepted attempts that show which rate is possible."""
_ROUND: Final = 60
"""How many usual refusals are expected in a round."""
_CHANCE: Final = 1e-4
"""A number of refusals in a row that is less likely than this by chance ends a usual share."""
_DELIVERED_SECONDS: Final = 2.0


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

    __slots__ = ("_marks", "_refusals", "begun", "last_refused", "refused")

    def __init__(self) -> None:
        self.begun = Mark(0, 0.0, 0, 0.0)
        """The beginning of the measurement: the first start, or the end of a time in which nothing was accepted."""
        self.last_refused: Mark | None = None
        self.refused = 0
        self._marks: deque[Mark] = deque(maxlen=650)
        self._refusals: deque[Mark] = deque(maxlen=8)

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
        """Record a refused attempt. A usual refusal does not show that the limit was reached."""
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

    def delivered(self, serial: int, now: float) -> float:
        """Return the accepted attempts per second in the last 2 to 4 s, 0 if few."""
        for mark in reversed(self._marks):
            count = serial - mark.serial - (self.refused - mark.refused)
            if now - mark.moment > 2 * _DELIVERED_SECONDS:
                break
            if count >= _FEW and now - mark.moment >= _DELIVERED_SECONDS:
                return (count - 1) / (now - mark.moment)
        return 0.0


class Usual:
    """The share of attempts that is refused at any rate. Owned by a `Search`."""

    def __init__(self) -> None:
        self.share = 0.0
        self._serial = self._refused = self._streak = 0

    def begin(self, share: float, serial: int) -> None:
        """Begin a round after an attempt."""
        self.share = share if share > 0.003 else 0.0
        self._serial, self._refused, self._streak = serial, 0, 0

    def note_accepted(self, serial: int) -> bool:
        """Note an accepted attempt. Return True at the end of a round, when the share has to be measured again."""
        self._streak = 0
        return self.share > 0 and (serial - self._serial) * self.share >= _ROUND

    def share_of_round(self, serial: int) -> float:
        """Return the share that was refused in the round."""
        return self._refused / max(1, serial - self._serial)

    def explains(self, serial: int) -> bool:
        """Return whether one more refusal, of this attempt, is usual."""
        if not self.share:
            return False
        self._refused += 1
        self._streak += 1
        expected = self.share * max(0, serial - self._serial)
        return self.share**self._streak > _CHANCE and self._refused <= 1 + expected + 3 * math.sqrt(expected)


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
