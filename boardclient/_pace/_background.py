"""Refusals that do not depend on the rate, and when there are more than usual.

No I/O, no clock, no asyncio.
"""

from __future__ import annotations

import math
from typing import Final

_MEMORY: Final = 1 / 400
"""The weight of one attempt in the usual share of refusals."""
_NONE: Final = 0.002
"""A share below this counts as zero."""
_DRIFT: Final = 1.5
"""The share may grow to this multiple of what an experiment measured. More is an overload."""
_EXCESS: Final = 0.15
"""By how much the share of an overload exceeds the usual share, at least."""
_ALARM: Final = 4.0
"""The log-likelihood ratio above which refusals count as an overload, about 50 to 1."""


class Background:
    """The share of attempts that is refused at any rate. Owned by a `Controller`.

    It is 0 until an experiment has measured it. A cumulative sum of log-likelihood ratios decides whether there are more refusals
    than usual: Page's CUSUM test (https://en.wikipedia.org/wiki/CUSUM).
    """

    __slots__ = ("_most", "_score", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self._most = 0.0
        self._score = 0.0

    def set(self, share: float) -> None:
        """Set the share that an experiment has measured."""
        self._score = 0.0
        self._most = _DRIFT * share
        self._drift_to(share)

    def _drift_to(self, share: float) -> None:
        self.share = min(share, self._most) if share >= _NONE else 0.0

    def note_accepted(self) -> None:
        """Note an accepted attempt."""
        usual = self.share
        if usual:
            self._score = max(0.0, self._score + math.log((1 - usual - _EXCESS) / (1 - usual)))
            self._drift_to(usual * (1 - _MEMORY))

    def is_overload(self) -> bool:
        """Note a refusal. Return True if there are more than the usual share explains."""
        usual = self.share
        if not usual:
            return True
        self._score += math.log((usual + _EXCESS) / usual)
        self._drift_to(usual + (1 - usual) * _MEMORY)
        if self._score < _ALARM:
            return False
        self._score = 0.0
        return True
