"""The phases of the search for a limit: what is known of it, and how the rate grows without refusals.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import attrs

from boardclient._pipeline._pace._evidence import EXCESS

LOWEST: Final = 0.05
HIGHEST: Final = 1e5
"""The lowest and highest rate in starts per second. The highest means that the rate is not limited."""

LONGEST_WAIT_SECONDS: Final = 300.0
"""The longest time that a `Retry-After` is waited for. A bulk run that is asked to wait longer ends."""

_DOUBLING: Final = math.log(2) / 0.6
"""The growth per second from a given start rate until the first refusal: it doubles in 0.6 s."""
_GROWTH: Final = 1 / 16
"""By how much the attempts in flight may grow with each accepted one. At the first refusal, at most the initial number and 6 in
100 of the accepted attempts are refused."""
CRUISE: Final = 0.98
_PROBE: Final = 1.08
_RAMP: Final = 0.018
"""The rate between two probes and the highest one of a probe, as parts of the limit, and how much of it a probe adds per second:
little, while a bucket's saved tokens may explain that it is accepted."""
_SPARSE: Final = 165.0
"""How many attempts must be accepted for each refused one before the next probe."""
_PROBE_SECONDS: Final = 5.0
"""About how many seconds a probe lasts until it is refused."""
_CONFIRMING: Final = 24.0
"""How many attempts at a new limit precede its first probe: each higher rate costs refusals."""
_FOR_EACH: Final = 0.015
"""The largest growth for each attempt. At one attempt per second, refusals would otherwise come after few attempts."""

CLIMB: Final = 0.12
"""The growth per second at first where the limit is known to be higher."""

_MOST_USUAL: Final = 0.15
"""A larger share of refusals is never usual."""
_FIRST_PATIENCE: Final = 24
_SECOND_PATIENCE: Final = 200
_LONGEST_PATIENCE: Final = 3200
"""How many attempts are accepted at a number before one more is tried, at first and after it was refused again and again."""

_LEAST_PROVEN: Final = 0.75
"""The part of a number that is accepted again and again which is the least possible one."""
_FEW: Final = 10
"""Below this number, one less is much less than what a service accepts that limits the rate."""
_TRIAL_REFUSALS: Final = 8
_TRIAL_SECONDS: Final = 15.0
_SHORTEST_TRIAL: Final = 16
_LONGEST_TRIAL: Final = 300
"""A trial ends after so many refusals, or seconds, and after so many attempts at least and at most: shares differ by chance."""


def _climb(rate: float, speed: float, step: float) -> float:
    """Return a rate after exponential growth for `step` seconds."""
    # Bounded: after a pause of minutes `exp` would overflow, and one step must not be a jump to any rate.
    return min(HIGHEST, rate * math.exp(min(3.0, speed * step)))


@attrs.define
class Unlimited:
    """Nothing was refused yet. Only the attempts in flight are limited, unless a start rate was given."""

    concurrency: float
    speed: float = _DOUBLING

    def grow(self, rate: float, step: float) -> float:
        grown = _climb(rate, self.speed, step)
        self.speed = min(_DOUBLING, self.speed + 0.05 * step)
        return grown

    def widen(self, most: int) -> None:
        self.concurrency = min(float(most), self.concurrency + _GROWTH)


@attrs.define
class Approach:
    """The limit is known roughly, or has risen: grow until refused again, and ever faster above the refused rate.

    The first measurement may include the saved tokens of a bucket, or a part of a window.
    """

    speed: float
    refused_rate: float = 0.0
    patience: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        self.patience -= step
        if self.patience > 0:
            return rate
        # Above what was refused before, the limit has risen, and nobody knows how far.
        if rate > self.refused_rate:
            self.speed += 0.05 * step
            return _climb(rate, self.speed, step)
        return _climb(rate, min(self.speed, _FOR_EACH * rate), step)


@attrs.define
class Steady:
    """The limit is known. Stay below it, and probe slightly above it from time to time.

    The more refusals the last probe met, the later the next one. A new limit is probed soon.
    """

    limit: float
    is_new: bool = False
    refused: int = 1
    progress: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        self.progress += step
        patience = min(60.0, max(8.0, _SPARSE * self.refused / self.limit - _PROBE_SECONDS))
        if self.is_new:
            patience = 1.5 if self.limit > 2.3 else _CONFIRMING / self.limit
        return min(HIGHEST, self.limit * min(_PROBE, CRUISE + _RAMP * max(0.0, self.progress - patience)))


Ordinary: TypeAlias = Unlimited | Approach | Steady
"""The phases of a limit of the rate, outside a trial."""


@attrs.define
class AtATime:
    """The service accepts so many attempts at a time, it seems. Only the attempts in flight are limited.

    `seen` is how many were accepted together when others were refused. Such a service refuses only what is one too many, and that
    at once: a number that was accepted for long and is refused later is no limit of this kind, nor one much lower than was seen.
    """

    number: int
    """How many may be in flight."""
    seen: int
    concurrency: float
    """How many may be in flight for now: it rises to the number by one for each accepted attempt."""
    accepted: int = 0
    """How many were accepted with as many in flight as may be, since the number last changed."""
    is_bounded: bool = True
    """Whether one more was refused."""
    was_lowered: bool = False
    """Whether the last change of the number lowered it."""
    least: float = 0.5
    """The part of what was seen that is the least possible number. Others have begun and ended meanwhile."""
    patience: int = _FIRST_PATIENCE
    """How many must be accepted before one more is tried, once one more was refused."""

    def add_accepted(self, in_flight: int, most: int) -> None:
        if self.concurrency < self.number:
            self.concurrency = min(self.number, self.concurrency + 1)
        elif in_flight >= self.number:
            # Only with as many in flight as may be: a number that is not used is not proven.
            self.accepted += 1
            if self.accepted >= self.number > self.seen:
                self.seen, self.least = self.number, _LEAST_PROVEN
            if not self.was_lowered and self.accepted == self._proving:
                self.is_bounded, self.patience = False, _SECOND_PATIENCE
            if self.number < most and self.accepted >= (self.patience if self.is_bounded else self.number):
                self.number, self.accepted, self.was_lowered = self.number + 1, 0, False
                self.concurrency = self.number

    def add_refused(self, *, is_late: bool) -> Literal["one too many", "another cause", "a rate"]:
        """Allow one less, and return what has refused an attempt.

        `is_late` says that it was started before the number was last lowered.
        """
        if not is_late:
            if self.was_lowered and self.accepted < self.number:
                return "a rate"
            # A small number that was accepted for long is not suddenly too large: another limit has refused it.
            if self.number < _FEW and self.accepted >= self._proving and self.concurrency >= self.number:
                return "another cause"
            if self.is_bounded:
                self.patience = min(_LONGEST_PATIENCE, max(_SECOND_PATIENCE, 2 * self.patience))
        self.number = min(self.number, math.ceil(self.concurrency)) - 1
        self.concurrency, self.accepted, self.is_bounded, self.was_lowered = self.number, 0, True, True
        if self.number >= self.least * self.seen:
            return "one too many"
        return "a rate" if is_late else "another cause"

    @property
    def _proving(self) -> int:
        """How many accepted attempts show that the number is accepted."""
        return 16 + 4 * self.number


@attrs.define
class Trial:
    """Several refusals were isolated. Send less than was accepted: what is still refused has another cause than the rate.

    `origin` is the phase before, `accepted` the rate that was accepted then, and `share` the part that was refused.
    """

    origin: Ordinary
    accepted: float
    share: float
    serial: int
    refused: int = 0

    def grow(self, rate: float, step: float) -> float:
        return rate

    def usual(self, serial: int) -> float | None:
        """Return the part that is usual because it is still refused, None if more attempts are needed."""
        count = serial - self.serial
        expected = min(_LONGEST_TRIAL, _TRIAL_REFUSALS / self.share, _TRIAL_SECONDS * self.accepted)
        if self.refused < _TRIAL_REFUSALS and count < max(_SHORTEST_TRIAL, expected):
            return None
        # One refusal in a trial may be chance, and a share of it would hide a limit that is reached later.
        return min(EXCESS * self.share, _MOST_USUAL, self.refused / count) if self.refused > 1 else 0.0


Phase: TypeAlias = Ordinary | AtATime | Trial
