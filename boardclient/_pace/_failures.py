"""How failures other than refusals slow the pace down for a moment. No I/O, no clock, no asyncio."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 1 / 32
_BORNE: Final = 0.3
"""The share of the last 32 attempts, or so, that may fail before it is a reason to slow down."""
_LOWEST: Final = 0.1
_RECOVERY: Final = 0.25
"""Growth a second of the health."""


class Failures:
    """Count 5xx, 408 and lost responses, and say how far to slow down for them. Owned by a `Controller`."""

    __slots__ = ("_noted", "_share", "health")

    def __init__(self) -> None:
        self.health = 1.0
        """The part of the rate that is used, 1.0 while all is well."""
        self._share = 0.0
        self._noted = 0

    def note_success(self) -> None:
        """Take a response that is no failure."""
        if self._share:
            self._share *= 1 - _WEIGHT

    def note_failure(self, serial: int, last_serial: int) -> None:
        """Take a failure; the attempts already under way count for one step only."""
        self._share += (1 - self._share) * _WEIGHT
        if self._share > _BORNE and serial > self._noted:
            self.health = max(_LOWEST, self.health * 0.7)
            self._noted = last_serial

    def recover(self, seconds: float) -> None:
        """Let time pass."""
        self.health = min(1.0, self.health * (1 + _RECOVERY * seconds))
