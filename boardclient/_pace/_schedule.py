"""When the next attempt may start. Starts are evenly spaced, and held back as refusals say. No I/O, no clock, no asyncio."""

from __future__ import annotations

import math
from typing import Final

LONGEST_HOLD: Final = 86_400.0
"""Seconds that a `Retry-After` may hold all attempts."""
_SLACK: Final = 0.01
"""Seconds that a late start may be made up for: timers are that coarse."""


class Schedule:
    """Spaces starts evenly. Owned by a `Controller`; times are seconds of one clock."""

    __slots__ = ("held_until", "next_at", "spacing", "was_late")

    def __init__(self, rate: float) -> None:
        self.spacing = 1 / rate
        self.next_at = -math.inf
        self.held_until = -math.inf
        self.was_late = True
        """Whether an attempt started late because there was no work or no free place, so that the rate was not used."""

    def take(self, now: float) -> None:
        """Start an attempt now, and set the moment of the next one."""
        late = now - self.next_at
        if late > _SLACK:
            if late > _SLACK + self.spacing:
                self.was_late = True
                self.next_at = now
            else:
                self.next_at = now - _SLACK
        self.next_at += self.spacing

    def give_back(self) -> None:
        """Undo a start that was never used."""
        self.next_at -= self.spacing

    def hold(self, until: float) -> None:
        """Let nothing start before this moment."""
        self.held_until = until
        self.next_at = max(self.next_at, until)

    def release(self, now: float) -> None:
        """End a hold."""
        self.held_until = self.next_at = now
