"""Whether responses take longer because requests wait for each other. No I/O, no clock, no asyncio."""

from __future__ import annotations

import math
from typing import Final

_SAMPLES: Final = 16
_ROUND_SECONDS: Final = 0.25
_GAP: Final = 0.5
"""Seconds without a response, if that is unusual, after which a round begins anew."""
_LONGEST: Final = 3600.0
_QUEUED: Final = 1.5
"""Responses that take so many times as long as usual, and 5 ms, have waited."""
_PATIENCE: Final = 3.0
_ROOM: Final = 1.75
"""Most attempts in flight, in multiples of what the rate needs when nothing waits: enough for latencies that scatter."""
_SPARE: Final = 4


class Latency:
    """Average response times in rounds, and know what they are without a queue. Owned by a `Controller`.

    When responses have been slow for some time, few are let in flight for a moment (`is_draining`): what the next round takes is
    then the service's own time, be it that a queue is gone or that the service has become slower for good.
    """

    __slots__ = (
        "_drain_room",
        "_drain_until",
        "_is_new_base",
        "_noted_at",
        "_slow_since",
        "_started_at",
        "base",
        "closes_at",
        "count",
        "since",
        "total",
    )

    def __init__(self) -> None:
        self.base: float | None = None
        self.total = 0.0
        self.count = 0
        self.since = 0
        """Only attempts with a higher serial number count."""
        self.closes_at = -math.inf
        self._started_at = 0.0
        self._noted_at = -math.inf
        self._slow_since: float | None = None
        self._drain_until = -math.inf
        self._drain_room = 1
        self._is_new_base = True

    def begin(self, now: float, serial: int) -> None:
        """Begin a round with the attempts after this one."""
        self.total, self.count, self.since = 0.0, 0, serial
        self._started_at = self.closes_at = now
        self._noted_at = -math.inf

    def note(self, now: float, seconds: float, *, drifts: bool) -> float | None:
        """Take a response; at the end of a round return the responses a second.

        With `drifts`, what is usual follows what becomes a little slower; while the attempts in flight grow, that is a queue.
        """
        if not 0 <= seconds <= _LONGEST:
            return None
        since_last = now - self._noted_at
        if since_last > _GAP and (not self.count or since_last > 8 * (self._noted_at - self._started_at) / self.count):
            # After a time without responses, and at the beginning, what the service delivers is counted from the first one on.
            self.total, self.count, self._started_at = 0.0, 0, now
        self._noted_at = now
        self.total += seconds
        self.count += 1
        return self._close(now, drifts=drifts) if self.count >= _SAMPLES and now >= self.closes_at else None

    def _close(self, now: float, *, drifts: bool) -> float:
        mean = self.total / self.count
        delivered = self.count / max(1e-3, now - self._started_at)
        base = self.base
        self.closes_at = now + _ROUND_SECONDS
        if base is None or self._is_new_base or mean < base:
            self.base = mean if base is None or self._is_new_base else (base + mean) / 2
            self._is_new_base, self._slow_since = False, None
        elif mean < _QUEUED * base + 0.005:
            self.base = base + (mean - base) / 16 if drifts else base
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = now
        elif now - self._slow_since > _PATIENCE:
            self._drain_until = now + max(0.1, 1.5 * mean)
            self._drain_room = max(1, int(0.75 * min(1e6, delivered * base)))
            self._is_new_base = True
            self.closes_at = math.inf
        self.total, self.count, self._started_at = 0.0, 0, now
        return delivered

    @property
    def is_slow(self) -> bool:
        """Return True while responses take so long that they must have waited in a queue."""
        return self._slow_since is not None

    def is_draining(self, now: float) -> bool:
        """Return True while few are let in flight, to measure without a queue."""
        return now < self._drain_until

    def look(self, now: float, serial: int) -> bool:
        """Return True while a queue is being drained. After it, a new round begins with the next attempt."""
        if now < self._drain_until:
            return True
        if self.closes_at == math.inf:
            self.begin(now, serial)
        return False

    def room(self, now: float, rate: float, room: int, most: int) -> int:
        """Return how many may be in flight at that rate."""
        if now < self._drain_until:
            return min(room, self._drain_room)
        return room if self.base is None else min(most, math.ceil(_ROOM * rate * self.base) + _SPARE)
