"""A fixed window, recognised by when a service that refuses accepts again. No I/O, no clock, no asyncio.

A token bucket that ran empty accepts the next request as soon as one token is there. A window refuses until it ends, and then
accepts as many as before. The ends of two long blocks are therefore a whole number of windows apart. Of the lengths that fit, the
window is the one in which most was accepted: a longer one holds whole windows that were not full, a shorter one too much of the
block.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

_USUAL_SECONDS: Final = (2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
"""The lengths that are looked for. A shorter window is used well as a bucket, a longer one counts as an outage."""


@attrs.frozen
class Span:
    """The end of a window lies between these two moments."""

    low: float
    high: float

    def shifted(self, seconds: float) -> Span:
        """Return the span so much later."""
        return Span(self.low + seconds, self.high + seconds)

    def within(self, other: Span) -> Span | None:
        """Return what is common to two spans, None where they don't meet."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Span(low, high) if low <= high else None


@attrs.frozen
class Window:
    """A window of so many seconds, one of which ended within the span."""

    seconds: float
    end: Span

    def next_end(self, now: float) -> float:
        """Return the moment at which the window of this moment will have ended for sure."""
        return self.end.high + math.ceil((now - self.end.high) / self.seconds) * self.seconds

    def followed_by(self, end: Span) -> Window | None:
        """Return the window with what another end tells of it. It is None where both can't be ends of it."""
        apart = round((end.low + end.high - self.end.low - self.end.high) / 2 / self.seconds)
        common = self.end.shifted(apart * self.seconds).within(end)
        return Window(self.seconds, common) if apart >= 1 and common is not None else None


def windows_between(first: Span, second: Span) -> list[Window]:
    """Return the windows of usual lengths that ended in both spans, shortest first."""
    return [window for seconds in _USUAL_SECONDS if (window := Window(seconds, first).followed_by(second)) is not None]


def usual_lengths(least: float, most: float) -> list[float]:
    """Return the usual lengths between two, in seconds."""
    return [seconds for seconds in _USUAL_SECONDS if least <= seconds <= most]
