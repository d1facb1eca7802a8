"""Recognises a fixed window by when a service accepts requests again.

No I/O, no clock, no asyncio.

An empty token bucket accepts the next request as soon as it has one token. A window refuses requests until it ends, and then
accepts as many as before. The ends of two long blocks are therefore a whole number of windows apart. If several lengths fit, the
window is the one with the highest accepted rate: a longer one would include windows that were not full, a shorter one too much of
the block.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

_USUAL_SECONDS: Final = (2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
"""The lengths that are tried, in seconds. A shorter window can be treated as a bucket, a longer one counts as an outage."""


@attrs.frozen
class Span:
    """Two times between which a window ends."""

    low: float
    high: float

    def shifted(self, seconds: float) -> Span:
        """Return the span, later by a number of seconds."""
        return Span(self.low + seconds, self.high + seconds)

    def within(self, other: Span) -> Span | None:
        """Return the intersection of two spans, or None if it is empty."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Span(low, high) if low <= high else None


@attrs.frozen
class Window:
    """Windows of equal length, one of which ended within the span `end`."""

    seconds: float
    end: Span

    def next_end(self, now: float) -> float:
        """Return the time by which the current window will certainly have ended."""
        return self.end.high + math.ceil((now - self.end.high) / self.seconds) * self.seconds

    def followed_by(self, end: Span) -> Window | None:
        """Return the windows with the span narrowed by another end, None if impossible."""
        apart = round((end.low + end.high - self.end.low - self.end.high) / 2 / self.seconds)
        common = self.end.shifted(apart * self.seconds).within(end)
        return Window(self.seconds, common) if apart >= 1 and common is not None else None


def windows_between(first: Span, second: Span) -> list[Window]:
    """Return the windows of usual lengths that ended in both spans, shortest first."""
    return [window for seconds in _USUAL_SECONDS if (window := Window(seconds, first).followed_by(second)) is not None]


def usual_lengths(least: float, most: float) -> list[float]:
    """Return the usual lengths between two lengths, in seconds."""
    return [seconds for seconds in _USUAL_SECONDS if least <= seconds <= most]
