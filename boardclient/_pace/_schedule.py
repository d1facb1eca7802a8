"""The schedule of starts: evenly spaced, and held after refusals. No I/O, no clock, no asyncio."""

from __future__ import annotations

import math
from typing import Final

LONGEST_HOLD: Final = 86_400.0
"""The most seconds for which a `Retry-After` may hold all attempts."""
_SLACK: Final = 0.01
"""How many seconds of a late start are made up for, since timers are coarse."""


class Schedule:
    """Spaces starts evenly. Owned by a `Controller`. Times are in seconds on one clock."""

    __slots__ = ("held_until", "next_at", "spacing", "was_late")

    def __init__(self, rate: float) -> None:
        self.spacing = 1 / rate
        self.next_at = -math.inf
        self.held_until = -math.inf
        self.was_late = True
        """Whether the rate was not fully used, because there was no work or too many attempts were in flight."""

    def take(self, now: float) -> None:
        """Start an attempt now, and set the time of the next one."""
        late = now - self.next_at
        if late > _SLACK:
            if late > _SLACK + self.spacing:
                self.was_late = True
                self.next_at = now
            else:
                self.next_at = now - _SLACK
        self.next_at += self.spacing

    def give_back(self) -> None:
        """Undo a start that was not used."""
        self.next_at -= self.spacing

    def hold(self, until: float) -> None:
        """Start nothing before this time."""
        self.held_until = until
        self.next_at = max(self.next_at, until)

    def release(self, now: float) -> None:
        """End a hold."""
        self.held_until = self.next_at = now
