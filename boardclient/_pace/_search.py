"""The search for a service's limit. No I/O, no clock, no asyncio.

A limit is an account that fills at its rate, and each accepted request takes one from it: a refusal shows that it is empty. What
was accepted between two refusals, divided by the time, is the limit or less, and the rate at which it was refused is the limit or
more: where both agree, the limit is known, and otherwise the rate goes between them and grows until the next refusal. At a known
limit the rate is 98 % of it, with a probe to 108 % now and then, whose refusal measures it again. While attempts are refused one
after the other, all wait, and one at a time asks whether that is over. An isolated refusal below a known limit says nothing; of
too many of them, those that a lower rate does not prevent are usual, and tolerated. Unlike in AIMD, a refusal does not cut the
rate by a fixed factor: it says how much was accepted.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import attrs

from boardclient._pace._timing import PacedAttempt, Schedule

LOWEST: Final = 0.05
HIGHEST: Final = 1e5
"""The lowest and highest rate in starts per second. The highest means that the rate is not limited."""

LONGEST_WAIT_SECONDS: Final = 300.0
"""The longest time that a `Retry-After` is waited for. A bulk run that is asked to wait longer ends."""

# growth
_DOUBLING: Final = math.log(2) / 0.6
"""The growth per second from a given start rate until the first refusal: it doubles in 0.6 s."""
_GROWTH: Final = 1 / 16
"""By how much the attempts in flight may grow with each accepted one. At the first refusal, at most the initial number and 6 in
100 of the accepted attempts are refused."""
_CRUISE: Final = 0.98
_PROBE: Final = 1.08
_RAMP: Final = 0.018
"""The rate between two probes and the highest one of a probe, as parts of the limit, and how much of it a probe adds per second:
little, while a bucket's saved tokens may explain that it is accepted."""
_SPARSE: Final = 165.0
"""How many attempts must be accepted for each refused one before the next probe."""
_PROBE_SECONDS: Final = 5.0
"""About how many seconds a probe lasts until it is refused."""
_CONFIRMING: Final = 24.0
"""How many attempts at a new limit precede its first probe: each higher rate costs refusals."""
_FOR_EACH: Final = 0.015
"""The largest growth for each attempt. At one attempt per second, refusals would otherwise come after few attempts."""

_CLIMB: Final = 0.12
"""The growth per second at first where the limit is known to be higher."""

# refusals
_PAUSE: Final = 0.15
"""The seconds without a start after a refusal. A small excess leaves about that much of a window."""
_LONGEST_PAUSE: Final = 30.0
"""The most seconds between two attempts that ask whether a block is over, without a longer `Retry-After`."""
_LONG_PAUSE: Final = 10.0
"""The seconds from which a `Retry-After` says nothing of the limit: how much would have been accepted meanwhile is unknown."""
_KEPT: Final = 0.9
"""The part of the rate that is kept after an isolated refusal."""
_AFTER_OUTAGE: Final = 0.95
"""The part of the rate that is kept after an outage, from which it grows again."""
_BELOW: Final = 0.99
"""A refusal below this part of a confirmed limit is unexpected."""
_COUNT: Final = 8
"""The least number of accepted attempts for a measurement."""

# refusals that have another cause than the rate
_TOLERATED: Final = 3.0
"""How many isolated refusals say nothing, if none is usual."""
_RARE: Final = 1 / 300
"""How often one more of them is tolerated, as a share of the attempts."""
_CREDIT: Final = 8.0
"""How many refusals may come together by chance, where some are usual."""
_EXCESS: Final = 1.5
"""By how much the refused share may exceed the usual one."""
_MOST_USUAL: Final = 0.15
"""A larger share of refusals is never usual."""
_TRIED: Final = 0.8
"""The rate of a trial, as a part of the accepted one before."""
_TRIAL_REFUSALS: Final = 8
_TRIAL_SECONDS: Final = 15.0
_SHORTEST_TRIAL: Final = 16
_LONGEST_TRIAL: Final = 300
"""A trial ends after so many refusals, or seconds, and after so many attempts at least and at most: shares differ by chance."""
_BELIEF: Final = 0.5
"""The part of a usual share that is still believed after a block that it does not explain."""


# --- phases: what is known of the limit, and how the rate grows without refusals


def _climb(rate: float, speed: float, step: float) -> float:
    """Return a rate after exponential growth for `step` seconds."""
    return min(HIGHEST, rate * math.exp(min(3.0, speed * step)))


@attrs.define
class Open:
    """Nothing was refused yet. Only the attempts in flight are limited, unless a start rate was given."""

    concurrency: float
    speed: float = _DOUBLING

    def grow(self, rate: float, step: float) -> float:
        grown = _climb(rate, self.speed, step)
        self.speed = min(_DOUBLING, self.speed + 0.05 * step)
        return grown

    def widen(self, most: int) -> None:
        self.concurrency = min(float(most), self.concurrency + _GROWTH)


@attrs.define
class Approach:
    """The limit is known roughly, or has risen: grow until refused again, and ever faster above the refused rate.

    The first measurement may include the saved tokens of a bucket, or a part of a window.
    """

    speed: float
    refused_rate: float = 0.0
    patience: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        self.patience -= step
        if self.patience > 0:
            return rate
        if rate > self.refused_rate:
            self.speed += 0.05 * step
            return _climb(rate, self.speed, step)
        return _climb(rate, min(self.speed, _FOR_EACH * rate), step)


@attrs.define
class Steady:
    """The limit is known. Stay below it, and probe slightly above it from time to time.

    The more refusals the last probe met, the later the next one. A new limit is probed soon.
    """

    limit: float
    is_new: bool = False
    refused: int = 1
    progress: float = 0.0

    def grow(self, rate: float, step: float) -> float:
        self.progress += step
        patience = min(60.0, max(8.0, _SPARSE * self.refused / self.limit - _PROBE_SECONDS))
        if self.is_new:
            patience = 1.5 if self.limit > 2.3 else _CONFIRMING / self.limit
        return min(HIGHEST, self.limit * min(_PROBE, _CRUISE + _RAMP * max(0.0, self.progress - patience)))


Ordinary: TypeAlias = Open | Approach | Steady


@attrs.define
class Trial:
    """Several refusals were isolated. Send less than was accepted: what is still refused has another cause than the rate.

    `origin` is the phase before, `accepted` the rate that was accepted then, and `share` the part that was refused.
    """

    origin: Ordinary
    accepted: float
    share: float
    serial: int
    refused: int = 0

    def grow(self, rate: float, step: float) -> float:
        return rate

    def usual(self, serial: int) -> float | None:
        """Return the part that is usual because it is still refused, None if more attempts are needed."""
        count = serial - self.serial
        expected = min(_LONGEST_TRIAL, _TRIAL_REFUSALS / self.share, _TRIAL_SECONDS * self.accepted)
        if self.refused < _TRIAL_REFUSALS and count < max(_SHORTEST_TRIAL, expected):
            return None
        return min(_EXCESS * self.share, _MOST_USUAL, self.refused / count) if self.refused > 1 else 0.0


Phase: TypeAlias = Ordinary | Trial


@attrs.define
class Block:
    """A time in which attempts are refused and no later one has been accepted.

    `asks` is True once attempts are made one at a time to see whether the block is over. `limit` is the limit that was assumed
    before, and `rate` the refused one.
    """

    origin: Ordinary | None
    """The phase before, if the block has begun another."""
    serial: int
    since: float
    limit: float | None
    rate: float
    asks: bool
    is_outage: bool
    """Whether an attempt was refused with 503, which is no sign of a limit on the number of requests."""
    is_unexpected: bool = False
    """Whether the refused rate is below a limit that was confirmed."""
    refused: int = 1
    accepted: int = 0
    """The accepted attempts that were in flight together with the first refused one, and started after it."""
    retry_at: float = -math.inf
    """The time until which the block lasts according to its last `Retry-After`, which is in whole seconds."""

    @property
    def is_isolated(self) -> bool:
        """Whether hardly any other attempt was refused together with the first one."""
        return (self.limit is None or not self.asks) and self.refused <= 1 + self.accepted // 4


# --- what was accepted and refused


@attrs.frozen
class Mark:
    """A moment at which the service was exhausted: the last attempt before it, and how many had been refused."""

    serial: int
    moment: float
    refused: int


@attrs.define
class Evidence:
    """When the service was exhausted, because of a limit. Owned by a `Search`."""

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
        """Begin another measurement after a rest: what is not asked for says nothing about a limit."""
        self._begun = [*(mark for mark in self._begun[-7:] if mark.serial < serial), Mark(serial, now, self.refused)]

    def last_begun(self) -> Mark:
        return self._begun[-1]

    def add_earlier(self, sent: int, refused: int) -> None:
        """Add attempts that were made before the first exhaustion, and that later ones were numbered without."""
        self._begun = [attrs.evolve(mark, serial=mark.serial - sent) for mark in self._begun]
        self.refused += refused

    def add_refused(self, serial: int, started_at: float, *, is_usual: bool) -> None:
        """Add a refused attempt. A usual refusal does not show that the limit was reached."""
        self.refused += 1
        if not is_usual and serial > self.anchor.serial:
            self.anchor = Mark(serial, started_at, self.refused)

    def end_block(self, serial: int, moment: float) -> None:
        """Record when the service was exhausted. `serial` is the number of the last attempt before that."""
        self.anchor = Mark(serial, moment, self.refused)
        self._blocks = [*self._blocks[-7:], self.anchor]

    def anchor_before(self, serial: int) -> Mark:
        """Return the last exhaustion since which enough was accepted, or the first one. Before any, the last beginning."""
        marks = self._blocks or self._begun
        return next((mark for mark in reversed(marks) if serial - mark.serial >= _COUNT), marks[0])


@attrs.define
class Usual:
    """The share of attempts that is refused at any rate, and how many more refusals it explains. Owned by a `Search`.

    The credit grows with the attempts, and each refusal takes one from it.
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
        """Take a refused attempt from the credit. Return whether that was enough."""
        self._credit += max(_RARE, _EXCESS * self.share) * (serial - self._serial)
        most = _CREDIT if self.share else _TOLERATED
        if self._credit >= most:
            self._credit, self._full, self.refused = most, serial - 1, 0
        self._serial = serial
        self._credit -= 1
        self.refused += 1
        return self._credit >= 0

    def share_since_full(self) -> float:
        return min(0.5, self.refused / max(1, self._serial - self._full))


# --- the search


@attrs.define
class Search:
    """Derives a rate from accepted and refused attempts. Owned by a `Controller`, which hands in its schedule."""

    aim: float
    phase: Phase
    _first_concurrency: float
    limit: float | None = None
    serial: int = 0
    """The number of the last attempt that was started."""
    block: Block | None = None
    evidence: Evidence = attrs.field(factory=Evidence)
    _usual: Usual = attrs.field(factory=Usual)
    _lowered: int = 0
    """The number of the last attempt that was started before the rate was last lowered."""

    def grow(self, now: float, step: float, in_flight: int) -> None:
        """Raise the aim after `step` seconds, as the phase says."""
        phase = self.phase
        self.aim = phase.grow(self.aim, step)
        if isinstance(phase, Steady) and self.aim > phase.limit and self._is_risen(phase.limit, now, in_flight):
            self.phase = Approach(_CLIMB)

    def _is_risen(self, limit: float, now: float, in_flight: int) -> bool:
        """Return True if more was accepted than the limit and all saved tokens allow."""
        anchor = self.evidence.anchor
        accepted = self.serial - in_flight - anchor.serial
        savings = limit * (now - anchor.moment) - accepted
        if savings > limit:
            # The size of an account is limited, so a long rest does not fill it forever.
            self.evidence.anchor = attrs.evolve(anchor, moment=now - (limit + accepted) / limit)
        return savings < -max(2.0, 0.03 * limit)

    def add_accepted(self, attempt: PacedAttempt, now: float, in_flight: int, schedule: Schedule) -> None:
        block = self.block
        # Three cases: no block; an attempt from after the hold, which ends the block; and one that was in flight with the refused
        # one, which ends it only if there are so many that the refusal must have had another cause.
        if block is None:
            if isinstance(self.phase, Trial):
                self._judge_trial(self.phase, attempt)
        elif attempt.serial > self._lowered:
            self._unblock(block, attempt)
        elif attempt.serial > block.serial:
            block.accepted += 1
            if block.limit is not None and block.is_isolated and block.accepted > min(4, in_flight // 4):
                # Attempts that were started in the block are accepted: it ends early.
                schedule.release(now)
                self._keep(_KEPT * block.rate)
                self._unblock(block, attempt)

    def _set_limit(self, limit: float) -> float:
        """Set the limit, and aim just below it. Return it within its bounds."""
        self.limit = limit = min(HIGHEST, max(LOWEST, limit))
        self.aim = _CRUISE * limit
        return limit

    def _keep(self, limit: float) -> None:
        """Keep at least this limit, since a single refusal says little."""
        if self.limit is not None and self.limit < limit:
            limit = self._set_limit(limit)
            if isinstance(self.phase, Steady):
                self.phase.limit = limit

    # --- refusals

    def add_refused(
        self, attempt: PacedAttempt, now: float, retry_after: float | None, schedule: Schedule, *, is_throttling: bool = True
    ) -> None:
        """Learn from a refused attempt. `is_throttling` says that the service named the number of requests as the cause.

        The first refusal of a burst lowers the rate. If attempts that were started later are refused too, all attempts are held.
        """
        block, phase = self.block, self.phase
        is_late = attempt.serial <= self._lowered
        is_usual = block is None and not is_late
        is_usual = is_usual and (isinstance(phase, Trial) or (self._usual.share > 0 and self._usual.explains(attempt.serial)))
        self.evidence.add_refused(attempt.serial, attempt.started_at, is_usual=is_usual)
        is_outage = not is_throttling and retry_after is None
        # Four cases: the block that it belongs to continues, it was started before the rate was lowered and says nothing new, a
        # trial counts it, or it begins a block unless such refusals are usual.
        if block is not None:
            block.is_outage = block.is_outage or is_outage
            block.refused += 1
            if not is_late:
                schedule.hold(now + self._prolong(block, now, retry_after))
        elif is_late:
            pass
        elif isinstance(phase, Trial):
            phase.refused += 1
            self._judge_trial(phase, attempt)
        elif not is_usual:
            self._begin_block(phase, attempt, is_outage=is_outage)
            schedule.hold(now + min(_LONGEST_PAUSE, max(_PAUSE, 1.1 / (self.limit or HIGHEST))))

    def _begin_block(self, phase: Ordinary, attempt: PacedAttempt, *, is_outage: bool) -> None:
        known, rate = self.limit, attempt.rate
        measured, count = self._measure(attempt.serial, attempt.started_at)
        origin = None if known is None else phase
        self.block = Block(origin, attempt.serial, attempt.started_at, known, rate, known is None, is_outage)
        self._lowered = self.serial
        if known is not None:
            self.block.is_unexpected = isinstance(phase, Steady) and rate < _BELOW * known
            self._lower(phase, known, rate, measured, count)

    def _measure(self, serial: int, until: float) -> tuple[float, int]:
        """Return the accepted attempts per second until a moment, and their number. The last attempt is not one of them."""
        anchor = self.evidence.anchor_before(serial)
        count = max(0, serial - anchor.serial - (self.evidence.refused - anchor.refused))
        return count / (1 - self._usual.share) / max(1e-3, until - anchor.moment), count

    def _lower(self, phase: Phase, known: float, rate: float, measured: float, count: int) -> None:
        """Set the limit between the accepted and the refused rate since the last refusal."""
        # What was accepted is the limit or less, what was refused the limit or more.
        is_agreed = count >= 5 and 0.9 * measured <= rate <= 1.25 * measured
        limit = min(rate, (measured + rate) / 2 if is_agreed else math.sqrt(measured * rate))
        limit = self._set_limit(limit)
        if is_agreed:
            self.phase = Steady(limit, is_new=not (isinstance(phase, Steady) and limit > 0.9 * known))
        else:
            self.phase = Approach(min(0.4, max(0.03, math.log(rate / limit) / 4)), rate)

    def _prolong(self, block: Block, now: float, retry_after: float | None) -> float:
        """Return for how long to hold all attempts, before one at a time asks whether the block is over."""
        block.asks = True
        self._lowered = self.serial
        if not retry_after:  # "0" and a date that has passed, as of another clock, say nothing
            return min(_LONGEST_PAUSE, max(_PAUSE, 0.35 * (now - block.since)))
        seconds = min(LONGEST_WAIT_SECONDS, max(_PAUSE, retry_after))
        block.retry_at = now + seconds
        return seconds

    def _unblock(self, block: Block, attempt: PacedAttempt) -> None:
        """End a block: the service accepts again. What it accepted until then is measured as well."""
        evidence, anchor = self.evidence, self.evidence.anchor
        end = anchor.moment
        if block.asks and block.retry_at <= block.since + _LONG_PAUSE:
            end = (max(end, block.retry_at - 1.0) + attempt.started_at) / 2
        measured, count = self._measure(attempt.serial - 1, end)
        if block.limit is None and block.is_outage:  # what was accepted in an outage says nothing of a limit
            measured, count = self._measure(block.serial, block.since)
        self.block = None
        # What the block has shown, from the least to the most: nothing about a limit, that there is one of which nothing was
        # accepted yet, a first limit, a better one, or that a known one still holds.
        if self._doubt(block):
            pass
        elif block.limit is None and not count:  # nothing was accepted before
            evidence.begin(attempt.serial - 1, attempt.started_at)
            self.phase = Open(self._first_concurrency)
            return
        elif block.limit is None:
            seconds = end - block.since
            limit = self._set_limit(measured)
            self.phase = Approach(min(0.06, 0.25 / max(1.0, seconds)), 1.3 * limit, 2 * seconds)
        elif block.asks and isinstance(self.phase, Approach):
            # A few say little: one long pause between them would else end the run.
            limit = measured if count >= _COUNT else min(block.rate, max(block.rate / 4, math.sqrt(measured * block.rate)))
            limit = self._set_limit(limit)
            self.phase = Approach(max(0.03, math.log(max(1.0, block.rate / limit)) / 8), block.rate, 2 * (end - block.since))
        elif isinstance(self.phase, Steady):
            self.phase.refused = block.refused
        if block.is_outage and block.limit is not None:
            self._keep(_AFTER_OUTAGE * block.rate)
            self.phase = Approach(_CLIMB)
        elif block.retry_at > block.since + _LONG_PAUSE and isinstance(self.phase, Approach):
            self.phase = Approach(_CLIMB)
        evidence.end_block(attempt.serial - 1 if block.asks else anchor.serial, end)

    # --- refusals that may have another cause than the rate

    def _doubt(self, block: Block) -> bool:
        """Ignore an isolated refusal where it says nothing of the limit, or begin a trial if there were too many."""
        may_ignore = block.accepted >= 3 * block.refused if block.limit is None else block.is_unexpected
        if not (block.is_isolated and may_ignore):
            self._usual.share *= _BELIEF
            return False
        phase = self.phase = block.origin or self.phase
        assert not isinstance(phase, Trial)  # noqa: S101 -- no block begins in one
        if isinstance(phase, Steady):
            phase.limit = self._set_limit(_CRUISE * block.rate)
        else:
            self.limit, self.aim = None, HIGHEST
        if not self._usual.explains(block.serial):
            share = self._usual.share_since_full()
            accepted = self._measure(block.serial, block.since)[0] if block.limit is None else block.rate * (1 - share)
            self._lowered = self.serial
            self.phase = Trial(phase, accepted, share, self.serial)
            self.aim = min(HIGHEST, max(LOWEST, _TRIED * accepted))
        return True

    def _judge_trial(self, trial: Trial, attempt: PacedAttempt) -> None:
        if attempt.serial <= trial.serial:
            return
        usual = trial.usual(attempt.serial)
        if usual is None:
            return
        self._usual.begin(usual, self.serial)
        if self.limit is None and self._usual.share:
            self.phase, self.aim = trial.origin, HIGHEST
        else:
            self._lowered = self.serial
            limit = self._set_limit(trial.accepted / (1 - self._usual.share))
            self.phase = Approach(_CLIMB) if self._usual.share else Steady(limit, is_new=True)
