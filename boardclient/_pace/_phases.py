"""The phases of the search for a limit. No I/O, no clock, no asyncio.

Each phase is a small value with the facts that it needs, and says how the rate grows without refusals. `_search` decides what a
refusal does to it. The table in docs/design/pace.md gives the reason of each rule.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import attrs

LOWEST: Final = 0.05
HIGHEST: Final = 1e5
"""The lowest and highest rate in starts per second. The highest means that the rate is not limited."""
_DOUBLING: Final = math.log(2) / 0.6
"""The growth per second from a given start rate until the first refusal: it doubles in 0.6 s."""
_GROWTH: Final = 1 / 16
"""By how much the attempts in flight may grow with each accepted one. At the first refusal, at most the initial number and 6 in
100 of the accepted attempts are refused."""
_PROBE: Final = 1.08
_RAMP: Final = 0.025
"""How far above the known limit a probe goes, and how fast, while a bucket's saved tokens may explain that it is accepted."""
_FOR_EACH: Final = 0.015
"""The largest growth for each attempt. At one attempt per second, refusals would otherwise come after few attempts."""
_SPARSE: Final = 165.0
"""How many attempts must be accepted for each refused one before the next probe."""
_PROBE_SECONDS: Final = 5.0
"""About how many seconds a probe lasts until it is refused."""
_LONG_PAUSE: Final = 10.0
"""The seconds from which a `Retry-After` makes what was accepted before and during it a poor measure of the limit."""
_LOW: Final = 2.3
"""Up to this limit, in requests per second, a limit is confirmed by a number of attempts instead of seconds."""
_CONFIRMING: Final = 24.0
"""That number: fewer say too little, and each higher rate costs refusals."""
_ENOUGH: Final = 8
"""How many refusals a trial waits for: two shares differ by chance."""
_LEAST: Final = 16
_MOST: Final = 300
"""How many attempts a trial takes at least and at most."""
_MOST_USUAL: Final = 0.15
"""A larger share of refusals is never usual."""


def bounded(rate: float) -> float:
    """Return a rate within the lowest and the highest one."""
    return min(HIGHEST, max(LOWEST, rate))


def cruise(limit: float) -> float:
    """Return the rate between two probes. It leaves more margin at low limits, since jitter fills small windows early."""
    return limit * min(0.985, max(0.98, 0.97 + 0.0003 * limit))


def settling(limit: float) -> float:
    """Return the seconds until a limit that was measured once is probed."""
    return 1.5 if limit > _LOW else _CONFIRMING / limit


def climb(rate: float, speed: float, step: float) -> float:
    """Return a rate after exponential growth for `step` seconds."""
    return min(HIGHEST, rate * math.exp(min(3.0, speed * step)))


@attrs.define
class Open:
    """Nothing was refused yet. Only the attempts in flight are limited, unless a start rate was given."""

    places: float
    speed: float = _DOUBLING

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after `step` seconds."""
        grown = climb(rate, self.speed, step)
        self.speed = min(_DOUBLING, self.speed + 0.05 * step)
        return grown

    def note_accepted(self, most: int) -> None:
        """Allow a little more in flight."""
        self.places = min(float(most), self.places + _GROWTH)


@attrs.define
class Approach:
    """The limit is known roughly: grow until refused again.

    The first measurement may include the saved tokens of a bucket, or a part of a window.
    """

    refused_rate: float
    speed: float
    patience: float = 0.0
    measured: float = math.inf
    """The accepted attempts per second until the last refusal."""

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after `step` seconds. Above the refused rate it grows ever faster."""
        self.patience -= step
        if self.patience > 0:
            return rate
        if rate > self.refused_rate:
            self.speed += 0.02 * step
            return climb(rate, self.speed, step)
        return climb(rate, min(self.speed, _FOR_EACH * rate), step)


@attrs.define
class Settle:
    """The limit was measured once without saved tokens. Soon try a slightly higher rate to confirm it."""

    patience: float
    progress: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after `step` seconds."""
        self.progress += step
        late = self.progress - self.patience
        return climb(rate, max(0.02, 0.01 * late), step) if late > 0 else rate


@attrs.define
class Steady:
    """The limit is known. Stay below it, and probe slightly above it from time to time."""

    limit: float
    refused: int
    progress: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after `step` seconds. The more refusals the last probe met, the later the next one."""
        self.progress += step
        patience = min(60.0, max(8.0, _SPARSE * self.refused / self.limit - _PROBE_SECONDS))
        return min(
            HIGHEST, cruise(self.limit) + self.limit * min(0.1, _RAMP * max(0.0, self.progress - patience)), _PROBE * self.limit
        )


@attrs.define
class Climb:
    """The limit has risen, since more was accepted than it allows. Grow ever faster until refused."""

    speed: float = 0.12

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after `step` seconds."""
        self.speed += 0.08 * step
        return climb(rate, self.speed, step)


@attrs.define
class Trial:
    """Several refusals were isolated. Send less than was accepted: what is still refused has another cause than the rate.

    `origin`, `limit` and `aim` are what they were before, `accepted` the rate that was accepted, and `share` the part that was
    refused.
    """

    origin: Phase
    limit: float | None
    aim: float
    accepted: float
    share: float
    serial: int
    refused: int = 0
    streak: int = 0

    def grow(self, rate: float, step: float) -> float:
        """Return the unchanged rate."""
        return rate

    def remaining(self, serial: int) -> float | None:
        """Return the part that is still refused, None if more attempts are needed."""
        count = serial - self.serial
        if self.refused < _ENOUGH and count < min(_MOST, max(_LEAST, _ENOUGH / self.share)):
            return None
        return min(_MOST_USUAL, self.refused / count) if self.refused > 1 else 0.0


Phase: TypeAlias = Open | Approach | Settle | Steady | Climb | Trial


@attrs.define
class Block:
    """A time in which attempts are refused and no later one has been accepted.

    `asks` is True once attempts are made one at a time to see whether the block is over. `limit` is the limit that was assumed
    before.
    """

    origin: Phase
    serial: int
    since: float
    limit: float | None
    refused_rate: float
    asks: bool
    is_unexpected: bool = False
    """Whether the refused rate is below a limit that was confirmed."""
    refused: int = 1
    accepted: int = 0
    """The accepted attempts that were in flight together with the first refused one, and started after it."""
    retry_at: float = -math.inf
    """The time until which the block lasts according to its last `Retry-After`, which is in whole seconds."""
    aim: float = HIGHEST
    is_outage: bool = False
    """Whether an attempt was refused with 503, which is no sign of a limit on the number of requests."""

    @property
    def has_long_pause(self) -> bool:
        """Whether the service asked for a long pause. How much it would have accepted meanwhile is unknown."""
        return self.retry_at > self.since + _LONG_PAUSE

    @property
    def is_isolated(self) -> bool:
        """Whether hardly any other attempt was refused together with the first one."""
        return (self.limit is None or not self.asks) and self.refused <= 1 + self.accepted // 4
