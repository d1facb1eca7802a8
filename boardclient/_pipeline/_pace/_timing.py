"""The schedule of starts, and whether responses are late because requests queue.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

_SLACK: Final = 0.01
"""How many seconds of a late start are made up for, since timers are coarse."""
_SAMPLES: Final = 16
_ROUND_SECONDS: Final = 0.25
_GAP: Final = 0.5
"""The seconds without a response, if that is unusual, after which a new round begins."""
_LONGEST: Final = 3600.0
_QUEUED: Final = 1.5
"""Responses that take longer than this multiple of the usual time plus 5 ms were queued."""
_PATIENCE: Final = 3.0
_HEADROOM: Final = 1.75
"""How many attempts may be in flight, as a multiple of what the rate needs without a queue. It allows for varying latencies."""
_SPARE: Final = 4


@attrs.define(eq=False)
class PacedAttempt:
    """An attempt that was started. Owned by the task that started it, until its end."""

    serial: int
    started_at: float
    rate: float
    outer: PacedAttempt | None = None
    """The attempt of the same task that encloses this one, if the pace is entered twice."""


@attrs.define
class Schedule:
    """Spaces starts evenly. Owned by a `Permits`. Times are in seconds on one clock."""

    spacing: float
    next_at: float = -math.inf
    paused_until: float = -math.inf
    asked_until: float = -math.inf
    """Until when the service has asked to wait."""
    was_late: bool = True
    """Whether the rate was not fully used, because there was no work or too many attempts were in flight."""

    def take(self, now: float) -> None:
        if now < self.next_at:  # an attempt that comes alone starts early, and postpones no other
            return
        late = now - self.next_at
        if late > _SLACK:
            if late > _SLACK + self.spacing:
                self.was_late = True
                self.next_at = now
            else:
                self.next_at = now - _SLACK
        self.next_at += self.spacing

    def give_back(self) -> None:
        self.next_at -= self.spacing

    def pause(self, until: float) -> None:
        self.paused_until = until
        self.next_at = max(self.next_at, until)

    def release(self, now: float) -> None:
        self.paused_until = self.next_at = now


@attrs.define
class Latency:
    """Measures response times in rounds, and the usual time without a queue. Owned by a `Permits`.

    When responses have been slow for some time, only few attempts may be in flight for a moment (`is_draining`). The next round
    then measures the time without a queue, whether there was a queue or the service has become slower.
    """

    base: float | None = None
    since: int = 0
    """Only attempts with a higher number count."""
    _closes_at: float = -math.inf
    _total: float = 0.0
    _count: int = 0
    _started_at: float = 0.0
    _added_at: float = -math.inf
    _is_idle: bool = False
    """Whether nothing was in flight since the last response."""
    _slow_since: float | None = None
    _drain_until: float = -math.inf
    _drain_concurrency: int = 1
    _is_new_base: bool = True

    def begin(self, now: float, serial: int) -> None:
        """Begin a round with the attempts after the one with this number."""
        self._total, self._count, self.since = 0.0, 0, serial
        self._started_at = self._closes_at = now
        self._added_at = -math.inf

    def note_idle(self) -> None:
        """Note that an attempt starts while no other is in flight. The time until its response says nothing about the service."""
        self._is_idle = True

    def add(self, now: float, seconds: float) -> float | None:
        """Add a response. At the end of a round, return the responses per second, otherwise None."""
        if not 0 <= seconds <= _LONGEST:
            return None
        since_last = now - self._added_at
        if since_last > _GAP and (not self._count or since_last > 8 * (self._added_at - self._started_at) / self._count):
            # At the beginning, and after a time without responses, a round begins with its first response.
            self._total, self._count, self._started_at = 0.0, 0, now
        elif self._is_idle and self._count:
            # The time in which nothing was in flight is left out, or a lone caller would look like a slow service.
            self._started_at += since_last
        self._added_at, self._is_idle = now, False
        self._total += seconds
        self._count += 1
        return self._close(now) if self._count >= _SAMPLES and now >= self._closes_at else None

    def _close(self, now: float) -> float:
        mean = self._total / self._count
        delivered = self._count / max(1e-3, now - self._started_at)
        base = self.base
        self._closes_at = now + _ROUND_SECONDS
        if base is None or self._is_new_base or mean < base:
            # Half of the way: one fast round among many may be chance, such as responses from a cache.
            self.base = mean if base is None or self._is_new_base else (base + mean) / 2
            self._is_new_base, self._slow_since = False, None
        elif mean < _QUEUED * base + 0.005:
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since > _PATIENCE:
            self._drain_until = now + max(0.1, 1.5 * mean)
            self._drain_concurrency = max(1, int(0.75 * min(1e6, delivered * base)))
            self._is_new_base = True
            self._closes_at = math.inf
        self._total, self._count, self._started_at = 0.0, 0, now
        return delivered

    @property
    def is_slow(self) -> bool:
        """Whether responses take so long that they must have been queued."""
        return self._slow_since is not None

    def is_draining(self, now: float) -> bool:
        """Return True while few attempts may be in flight, to measure without a queue."""
        return now < self._drain_until

    def update(self, now: float, serial: int) -> bool:
        """Return True while a queue is being drained. Begin a new round after that."""
        if self.is_draining(now):
            return True
        if self._closes_at == math.inf:
            self.begin(now, serial)
        return False

    def concurrency_for(self, now: float, rate: float, current: int, most: int) -> int:
        """Return how many attempts may be in flight at a rate. `current` is the number now, `most` the largest."""
        if self.is_draining(now):
            return min(current, self._drain_concurrency)
        return current if self.base is None else min(most, math.ceil(_HEADROOM * rate * self.base) + _SPARE)
