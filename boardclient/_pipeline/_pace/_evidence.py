"""What was accepted and refused, and which refusals are not caused by the rate. No I/O, no clock, no asyncio."""

from __future__ import annotations

import math
from typing import Final

import attrs

COUNT: Final = 8
"""The least number of accepted attempts for a measurement."""

_TOLERATED: Final = 3.0
"""How many isolated refusals are ignored, if none is usual."""
_RARE: Final = 1 / 300
"""How often one more of them is tolerated, as a share of the attempts."""
_CREDIT: Final = 8.0
"""How many refusals may come together by chance, if some are usual."""
EXCESS: Final = 1.5
"""By how much the refused share may exceed the usual one."""


@attrs.frozen
class Mark:
    """A moment at which the service was exhausted: the last attempt before it, and how many had been refused."""

    serial: int
    moment: float
    refused: int


@attrs.define
class Evidence:
    """When the service was exhausted, because of a limit. Owned by a `LimitSearch`."""

    refused: int = 0
    anchor: Mark = Mark(0, 0.0, 0)
    _begun: list[Mark] = attrs.field(factory=lambda: [Mark(0, 0.0, 0)])
    """When the first attempt was started, and the first one after each of the last rests."""
    _blocks: list[Mark] = attrs.field(factory=list)

    def begin(self, serial: int, now: float) -> None:
        """Begin the measurement: with the first start, or after a time in which nothing was accepted."""
        self.anchor = Mark(serial, now, self.refused)
        self._begun, self._blocks = [self.anchor], []

    def begin_again(self, serial: int, now: float) -> None:
        """Begin another measurement after a rest, since a time without attempts says nothing about a limit."""
        # The last few only: an older measurement says little of a limit that may have changed, and memory stays flat.
        self._begun = [*(mark for mark in self._begun[-7:] if mark.serial < serial), Mark(serial, now, self.refused)]

    def skip(self, seconds: float) -> None:
        """Leave out a time without attempts."""
        self._blocks = [attrs.evolve(mark, moment=mark.moment + seconds) for mark in self._blocks]

    def last_begun(self) -> Mark:
        return self._begun[-1]

    def add_earlier(self, sent: int, refused: int) -> None:
        """Add attempts made before the first exhaustion, which the numbers of later ones do not include."""
        self._begun = [attrs.evolve(mark, serial=mark.serial - sent) for mark in self._begun]
        self.refused += refused

    def add_refused(self, serial: int, started_at: float, *, is_usual: bool) -> None:
        """Add a refused attempt. A usual refusal does not show that the limit was reached."""
        self.refused += 1
        # Responses come in any order: one that was started earlier shows no later exhaustion.
        if not is_usual and serial > self.anchor.serial:
            self.anchor = Mark(serial, started_at, self.refused)

    def end_block(self, serial: int, moment: float) -> None:
        """Record when the service was exhausted. `serial` is the number of the last attempt before that."""
        self.anchor = Mark(serial, moment, self.refused)
        self._blocks = [*self._blocks[-7:], self.anchor]

    def anchor_before(self, serial: int) -> Mark:
        """Return the last exhaustion since which enough was accepted, or the first one. If there was none, the last beginning."""
        marks = self._blocks or self._begun
        return next((mark for mark in reversed(marks) if serial - mark.serial >= COUNT), marks[0])


@attrs.define
class Usual:
    """The share of attempts that is refused at any rate, and how many more refusals are tolerated. Owned by a `LimitSearch`.

    The credit grows with the attempts, and each refusal uses one.
    """

    share: float = 0.0
    refused: int = 0
    """How many attempts were refused since the credit was full."""
    _full: int = 0
    """The last attempt at which it was full."""
    _serial: int = 0
    _credit: float = _TOLERATED

    def begin(self, share: float, serial: int) -> None:
        self.share = share if share > _RARE else 0.0
        self._credit, self._serial = math.inf, serial

    def explains(self, serial: int) -> bool:
        """Use credit for a refused attempt. Return True if there was enough."""
        self._credit += max(_RARE, EXCESS * self.share) * (serial - self._serial)
        most = _CREDIT if self.share else _TOLERATED
        if self._credit >= most:
            # Full credit is where counting begins: refusals before it are forgiven, or they would add up over days.
            self._credit, self._full, self.refused = most, serial - 1, 0
        self._serial = serial
        self._credit -= 1
        self.refused += 1
        return self._credit >= 0

    def share_since_full(self) -> float:
        return min(0.5, self.refused / max(1, self._serial - self._full))
