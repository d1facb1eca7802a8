"""How failures other than refusals slow the pace down. No I/O, no clock, no asyncio."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 1 / 32
_BORNE: Final = 0.5
"""The share of the last 32 attempts or so that may fail before the pace slows down."""
_LOWEST: Final = 0.1
"""The least part of the rate, used when everything fails."""
_RECOVERY: Final = 0.25
"""By how much the health grows per second, as a part of itself."""


class Failures:
    """Counts 5xx, 408 and lost responses, and derives how far to slow down. Owned by a `Controller`."""

    __slots__ = ("_noted", "_share", "health")

    def __init__(self) -> None:
        self.health = 1.0
        """The part of the rate to use, 1.0 if there are few failures."""
        self._share = 0.0
        self._noted = 0

    def note_success(self) -> None:
        """Note a response that is not a failure."""
        if self._share:
            self._share *= 1 - _WEIGHT

    def note_failure(self, serial: int, last_serial: int) -> None:
        """Note a failure. All attempts that were in flight together slow the pace down only once.

        The part of the rate that is used is at least the share of attempts that do not fail.
        """
        self._share += (1 - self._share) * _WEIGHT
        if self._share > _BORNE and serial > self._noted:
            self.health = max(_LOWEST, 1 - self._share, self.health * 0.7)
            self._noted = last_serial

    def recover(self, seconds: float) -> None:
        """Raise the health again after a number of seconds."""
        self.health = min(1.0, self.health * (1 + _RECOVERY * seconds))
