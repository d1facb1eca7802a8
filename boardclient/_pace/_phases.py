"""The phases of the search for a limit. Each is a small value with the facts that it needs. No I/O, no clock, no asyncio.

A phase says how the rate grows while all is well. What a refusal does to it is in `_controller`; the table in
`docs/design/pace.md` gives the reason of each rule.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import attrs

LOWEST: Final = 0.05
HIGHEST: Final = 1e5
"""Starts a second, at least and at most, whatever the responses say. The highest rate is as good as none."""
_DOUBLING: Final = math.log(2) / 0.6
"""Growth a second from a given start rate as long as nothing was refused: twofold in 0.6 s."""
_GROWTH: Final = 1 / 16
"""Places for each accepted attempt, so that a first refusal meets at most the first places and 6 in 100 of what was accepted."""
_PROBE: Final = 1.08
_RAMP: Final = 0.025
"""How far above the known limit a probe goes as long as a bucket's savings may explain its success, and how fast."""
_FOR_EACH: Final = 0.015
"""Growth for each attempt, at most: at one a second, each refusal would else come after a few."""
_SPARSE: Final = 165.0
"""Accepted attempts for each refused one, from one probe to the next."""
_PROBE_SECONDS: Final = 5.0
"""About how long a probe lasts until it is refused."""

_LEFT: Final = 0.2
"""The part of the refusals by a limit that an experiment sees nevertheless: what is left of a burst, other clients."""


def bounded(rate: float) -> float:
    """Return a rate within its bounds."""
    return min(HIGHEST, max(LOWEST, rate))


def cruise(limit: float) -> float:
    """Return the rate between two probes. Jitter fills a small window earlier than a large one."""
    return limit * min(0.985, max(0.98, 0.97 + 0.0003 * limit))


def climb(rate: float, speed: float, step: float) -> float:
    """Return a rate after it has grown for so many seconds."""
    return min(HIGHEST, rate * math.exp(min(3.0, speed * step)))


@attrs.define
class Open:
    """Nothing was refused yet. Only the number in flight is limited, unless a start rate was given."""

    places: float
    speed: float = _DOUBLING

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after so many seconds."""
        grown = climb(rate, self.speed, step)
        self.speed = min(_DOUBLING, self.speed + 0.05 * step)
        return grown

    def note_accepted(self, most: int) -> None:
        """Allow a little more in flight."""
        self.places = min(float(most), self.places + _GROWTH)


@attrs.define
class Approach:
    """The limit is known roughly, so grow until refused again. Savings of a bucket or a part window are in it."""

    refused_rate: float
    speed: float
    patience: float = 0.0
    measured: float = math.inf
    """What was accepted a second until the last refusal."""

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after so many seconds. Beyond the rate that was refused it grows faster and faster."""
        self.patience -= step
        if self.patience > 0:
            return rate
        if rate > self.refused_rate:
            self.speed += 0.02 * step
            return climb(rate, self.speed, step)
        return climb(rate, min(self.speed, _FOR_EACH * rate), step)


@attrs.define
class Settle:
    """The limit was measured once without savings. Soon see whether a little more is refused."""

    patience: float = 1.5
    progress: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after so many seconds."""
        self.progress += step
        late = self.progress - self.patience
        return climb(rate, max(0.02, 0.01 * late), step) if late > 0 else rate


@attrs.define
class Steady:
    """The limit is known. Stay below it, and probe a little above it from time to time."""

    limit: float
    refused: int
    progress: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after so many seconds. The dearer the last probe was, the later the next one."""
        self.progress += step
        patience = min(60.0, max(8.0, _SPARSE * self.refused / self.limit - _PROBE_SECONDS))
        return min(
            HIGHEST, cruise(self.limit) + self.limit * min(0.1, _RAMP * max(0.0, self.progress - patience)), _PROBE * self.limit
        )


@attrs.define
class Climb:
    """More was accepted than the known limit and all savings explain. It has risen, so grow ever faster until refused."""

    speed: float = 0.12

    def grow(self, rate: float, step: float) -> float:
        """Return the rate after so many seconds."""
        self.speed += 0.08 * step
        return climb(rate, self.speed, step)


@attrs.define
class Experiment:
    """Refusals came unexpectedly. Send less than was accepted, and see whether there are fewer.

    `limit` is what was believed before, `share` the part of the attempts that was refused then, `accepted` the others a second.
    A limit takes what it took before, refusals with another cause stay as frequent. `score` is the log-likelihood ratio of the
    two (a sequential probability ratio test).
    """

    limit: float | None
    share: float
    accepted: float
    serial: int
    refused: int = 0
    score: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        """Return the rate, which stays."""
        return rate

    def note(self, *, is_refused: bool) -> None:
        """Take an attempt that was started at the lower rate."""
        self.refused += is_refused
        self.score += -math.log(_LEFT) if is_refused else math.log((1 - self.share) / (1 - _LEFT * self.share))


Phase: TypeAlias = Open | Approach | Settle | Steady | Climb | Experiment


@attrs.define
class Block:
    """Attempts are refused, and none that was started since has been accepted.

    `asks` is True once one attempt at a time asks whether it is over; `limit` is what was believed before.
    """

    origin: Phase
    serial: int
    since: float
    limit: float | None
    refused_rate: float
    is_measured: bool
    asks: bool
    possible: float = 0.0
    """The rate that was accepted before, where it is higher than the one that was refused."""
    refused: int = 1
    accepted: int = 0
    """Attempts accepted that were under way together with the first refused one, and started after it."""
    told_until: float = -math.inf
    """The moment until which the last `Retry-After` of the block said that it goes on; it is in whole seconds."""

    @property
    def is_isolated(self) -> bool:
        """Return True if hardly any other was refused with the first one."""
        return not self.asks and self.refused <= 1 + self.accepted // 8
