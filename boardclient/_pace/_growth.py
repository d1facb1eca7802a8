"""How many requests a run sends at a time while nothing is refused. No I/O, no clock, no asyncio."""

from __future__ import annotations

import math
from typing import Final

_FIRST: Final = 16
"""How many at first. Every service accepts a burst of this size."""
_STEP: Final = 4
"""Each step adds one for so many."""
_ROUND: Final = 2
"""How many requests must end for each that is in flight before a step, so that few are refused at a limit."""
_SHORTEST_SECONDS: Final = 0.02
_FASTER: Final = 1.05
"""A step pays if the rate rises by this factor."""
_FIRST_REST_SECONDS: Final = 1.0
"""The pause after a step that did not pay. It doubles each time."""


class Growth:
    """Finds how many requests at a time make a run fastest. Owned by a run that was not refused yet.

    More than that would only wait, in the service or for this process.
    """

    def __init__(self, most: int) -> None:
        self.places = min(_FIRST, most)
        self._most = most
        self._best = 0.0
        self._ended = 0
        self._since: float | None = None
        self._rests_until = -math.inf
        self._rest = _FIRST_REST_SECONDS

    def look(self, now: float, ended: int) -> int:
        """Return how many may be in flight, given how many requests have ended so far."""
        if self._since is None:
            if now >= self._rests_until:
                self._since, self._ended = now, ended
            return self.places
        count, seconds = ended - self._ended, now - self._since
        if count < _ROUND * self.places or seconds < _SHORTEST_SECONDS:
            return self.places
        self._since, self._ended = now, ended
        rate, best = count / seconds, self._best
        if rate < _FASTER * best:
            self._since, self._best = None, 0.0
            self._rests_until, self._rest = now + self._rest, 2 * self._rest
        else:
            self._best = rate
            self.places = min(self._most, self.places + max(1, self.places // _STEP))
        return self.places
