"""Refusals that may have another cause than the rate. No I/O, no clock, no asyncio.

A limit accepts the same number a second at each rate above it, and all below it. Refusals with another cause are as frequent at
any rate. So what decides is whether a smaller share is refused at a lower rate.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

_MAJORITY: Final = 0.5
"""A share of refusals from which on they have to do with the rate."""
_COUNT: Final = 60
"""Attempts at each of two rates, which are compared."""
_FEWEST: Final = 20
_SECONDS: Final = 4.0
"""At low rates, fewer are compared: those of this many seconds, but at least `_FEWEST`."""
LOW: Final = 0.85
_REST: Final = 0.95
HIGH: Final = 1.0
_STEP: Final = 0.08
_LARGEST_STEP: Final = 0.5
_LONGEST_PAUSE: Final = 6
_CLEAR: Final = 0.25
_MARGIN: Final = 0.03
"""The least difference of two shares that counts."""
_SIGMAS: Final = 1.2
_DEVIATION: Final = 0.05
_MOST: Final = 150
_IN_A_ROW: Final = math.log(1e-4)
_QUIET: Final = 150
"""The attempts without a refusal after which the noise is over."""


@attrs.define
class Noisy:
    """Some attempts are refused at any rate. Compare two rates, and climb while no larger share is refused at the higher one.

    `rate` is the highest that is known to be possible, `share` is refused there, and `serial` is the last attempt before the
    present part: a low one, which measures the share, a high one, and after a failure some rests just below the rate.
    """

    rate: float
    share: float
    serial: int
    part: float = HIGH
    step: float = _LARGEST_STEP / 2
    count: int = 0
    refused: int = 0
    in_a_row: int = 0
    quiet: int = 0
    """Accepted attempts below the rate since the last refusal there."""
    rests: int = 0
    pause: int = 1

    @property
    def aim(self) -> float:
        """The rate of the present part."""
        return self.rate * (1 + self.step if self.part == HIGH else self.part)

    def grow(self, rate: float, step: float) -> float:
        """Return the rate, which stays until enough were sent at it."""
        return rate

    def note(self, serial: int, *, is_refused: bool) -> bool:
        """Note an attempt. Return True if the rate changes, from the attempts after `serial` on."""
        self.count += 1
        self.refused += is_refused
        self.in_a_row = self.in_a_row + 1 if is_refused else 0
        if self.part != HIGH:
            self.quiet = 0 if is_refused else self.quiet + 1
        needed = min(_MOST, max(_COUNT, 2 * self.share * (1 - self.share) / _DEVIATION**2), max(_FEWEST, _SECONDS * self.rate))
        is_clear = self.count > 15 and self.refused > (self.share + _CLEAR) * self.count
        if self.count < needed and not is_clear:
            return False
        self._end_part(self.refused / self.count)
        self.count = self.refused = 0
        self.serial = serial
        return True

    def _end_part(self, share: float) -> None:
        usual = min(0.9, self.share)
        sigma = math.sqrt(max(usual, 0.01) * (1 - usual) * 2 / self.count)
        is_more = share - usual > max(_MARGIN, _SIGMAS * sigma)
        if self.part == LOW:
            if share > _MAJORITY or (is_more and self.count < _COUNT):
                self.rate *= 0.7
                return
            self.share = min(share, (self.share + share) / 2)
            self.part = HIGH
        elif is_more:
            self.rate = min(self.rate, self.aim * (1 - share) / (1 - usual))
            self.step = _STEP
            self.rests, self.pause = self.pause, min(_LONGEST_PAUSE, 2 * self.pause)
            self.part = _REST if self.part == HIGH else LOW
        elif self.part == HIGH:
            self.rate = self.aim
            self.step, self.pause = min(_LARGEST_STEP, 2 * self.step), 1
            self.part = LOW
        else:
            self.rests -= 1
            self.part = _REST if self.rests > 0 else LOW

    @property
    def is_blocked(self) -> bool:
        """Return True if more were refused in a row than chance explains."""
        return self.in_a_row * math.log(max(0.1, min(0.9, self.share))) < _IN_A_ROW

    @property
    def may_climb(self) -> bool:
        """Return True if a higher rate was not refused more often so far."""
        return self.pause == 1

    @property
    def is_over(self) -> bool:
        """Return True if nothing has been refused below the rate for long."""
        return self.quiet >= _QUIET
