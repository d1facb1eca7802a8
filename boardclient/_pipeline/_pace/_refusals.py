"""The search for a service's limit: how a refusal changes it, and what ends a block. No I/O, no clock, no asyncio.

A limit works like an account that fills at a fixed rate. Each accepted request takes one from it, and a refusal shows that it is
empty. So what was accepted between two refusals, divided by the time, is at most the limit, and the rate at which a request was
refused is at least the limit. If both agree, the limit is known. If not, the rate is set between them, and grows until the next
refusal.

At a known limit the rate is 98 % of it, with a probe to 108 % now and then, whose refusal measures the limit again. While one
attempt after the other is refused, all wait, and one at a time is made to see whether that is over. An isolated refusal below a
known limit says nothing. If there are too many of them, those that a lower rate does not prevent are usual, and tolerated. Unlike
in AIMD, a refusal does not cut the rate by a fixed factor, since it shows how much was accepted.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

from boardclient._pipeline._pace._evidence import COUNT, Evidence, Usual
from boardclient._pipeline._pace._phases import (
    CLIMB,
    CRUISE,
    HIGHEST,
    LONGEST_WAIT_SECONDS,
    LOWEST,
    Approach,
    AtATime,
    Ordinary,
    Phase,
    Steady,
    Trial,
    Unlimited,
)
from boardclient._pipeline._pace._timing import PacedAttempt, Schedule

_PAUSE: Final = 0.15
"""The seconds without a start after a refusal. A small excess leaves about that much of a window."""
_LONGEST_REST: Final = 1.0
"""How long to wait for the attempts in flight with the first refused one, which show how many are accepted together."""
_LITTLE_SECONDS: Final = 1.0
"""If all attempts are refused for longer, a few that were accepted before say nothing about a limit."""
_SELDOM: Final = 50
"""That is assumed at most once in so many attempts, since a service may be that slow."""
_QUIET_SECONDS: Final = 30.0
"""After so many seconds without a refusal an assumed limit doubles. A confirmed one takes three times as long."""
_LONGEST_PAUSE: Final = 30.0
"""The longest pause between two attempts that check whether a block is over, without a longer `Retry-After`."""
_LONE_PAUSE: Final = 1.0
"""The same for an attempt that waits alone."""
_LONG_PAUSE: Final = 10.0
"""A longer `Retry-After` says nothing about the limit, since it is unknown how much would have been accepted meanwhile."""
_KEPT: Final = 0.9
"""The part of the rate that is kept after an isolated refusal."""
_AFTER_OUTAGE: Final = 0.95
"""The part of the rate that is kept after an outage, from which it grows again."""
_BELOW: Final = 0.99
"""A refusal below this part of a confirmed limit is unexpected."""
_TRIED: Final = 0.8
"""The rate of a trial, as a part of the accepted one before."""
_BELIEF: Final = 0.5
"""The part of a usual share that is still believed after a block that it does not explain."""


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
    noticed_at: float
    limit: float | None
    rate: float
    asks: bool
    is_outage: bool
    """Whether an attempt was refused with 503, which is no sign of a limit on the number of requests."""
    measured: float
    count: int
    """How many attempts per second were accepted before it, and the number of them."""
    is_unexpected: bool = False
    """Whether the refused rate is below a limit that was confirmed."""
    refused: int = 1
    accepted: int = 0
    """The accepted attempts that were in flight together with the first refused one, and started after it."""
    together: int = 0
    """The accepted attempts that were in flight together with the first refused one."""
    is_denied: bool = False
    """Whether an attempt was refused that was started in the block."""
    retry_at: float = -math.inf
    """The time until which the block lasts according to its last `Retry-After`, which is in whole seconds."""

    @property
    def is_isolated(self) -> bool:
        """Whether hardly any other attempt was refused together with the first one."""
        return (self.limit is None or not self.asks) and self.refused <= 1 + self.accepted // 4


@attrs.define
class LimitSearch:
    """Derives a rate from accepted and refused attempts. Owned by a `Permits`, which hands in its schedule."""

    aim: float
    phase: Phase
    _first_concurrency: float
    limit: float | None = None
    serial: int = 0
    """The number of the last attempt that was started."""
    may_be_at_a_time: bool = True
    """Whether the service may limit attempts at a time."""
    block: Block | None = None
    evidence: Evidence = attrs.field(factory=Evidence)
    refused_at: float = -math.inf
    """When an attempt was last refused."""
    _usual: Usual = attrs.field(factory=Usual)
    _risen_at: float = -math.inf
    """When a limit was last raised because nothing had been refused for a while."""
    _ignored: int = -_SELDOM
    """The last attempt before which a few accepted ones were ignored."""
    _lowered: int = 0
    """The number of the last attempt that was started before the rate was last lowered."""

    def rise(self, now: float) -> None:
        """Raise a limit that has refused nothing for a while, since it may have changed."""
        phase, limit = self.phase, self.limit
        if limit is None or self.block is not None or isinstance(phase, Trial):
            return
        times, attempts = (3, 48) if isinstance(phase, Steady) else (1, 8)
        patience = max(times * _QUIET_SECONDS, attempts / limit)
        doublings = (now - max(self.refused_at, self._risen_at)) // patience
        if doublings >= 1:
            self._set_limit(limit * 2.0 ** min(doublings, 50.0))
            self.phase, self._risen_at = Approach(CLIMB), now

    def lone_start(self, *, is_rested: bool) -> float:
        """Return when the only waiting attempt may start: shortly after a refusal, however rarely others may start.

        `is_rested` says that none was in flight when it came. Otherwise it may be one of many that are made one by one.
        """
        if is_rested:
            return self.refused_at + _PAUSE
        return math.inf if self.block is None else self.refused_at + _LONE_PAUSE

    def grow(self, now: float, step: float, in_flight: int) -> None:
        """Raise the aim after `step` seconds, as the phase says."""
        phase = self.phase
        if not isinstance(phase, AtATime):
            self.aim = phase.grow(self.aim, step)
        if isinstance(phase, Steady) and self.aim > phase.limit and self._is_risen(phase.limit, now, in_flight):
            self.phase = Approach(CLIMB)

    def _is_risen(self, limit: float, now: float, in_flight: int) -> bool:
        """Return True if more was accepted than the limit and all saved tokens allow."""
        anchor = self.evidence.anchor
        accepted = self.serial - in_flight - anchor.serial
        savings = limit * (now - anchor.moment) - accepted
        if savings > limit:
            # An account has a limited size, so a long rest fills it only so far.
            self.evidence.anchor = attrs.evolve(anchor, moment=now - (limit + accepted) / limit)
        return savings < -max(2.0, 0.03 * limit)

    @property
    def rests_until(self) -> float:
        """Until when no attempt starts while others are in flight, to count how many of these are accepted together."""
        block = self.block
        if block is None or not self._may_show_number(block):
            return -math.inf
        return block.noticed_at + _LONGEST_REST

    @property
    def has_number(self) -> bool:
        """Whether the block has shown that so many attempts are accepted together."""
        return self.block is not None and self._may_show_number(self.block) and self.block.together > 0

    def _take_number(self, block: Block) -> None:
        """Begin to search for a number of attempts at a time, since a block has shown one."""
        self.phase = AtATime(block.together, block.together, 1.0 if block.together < 3 * block.refused else block.together)
        self.limit, self.aim = None, HIGHEST

    def _may_show_number(self, block: Block) -> bool:
        """Return True if a service that limits attempts at a time may have caused a block. It accepts what comes after them."""
        return self.may_be_at_a_time and block.limit is None and not (block.is_denied or block.is_outage)

    def add_accepted(self, attempt: PacedAttempt, now: float, in_flight: int, schedule: Schedule) -> None:
        block = self.block
        # Three cases: no block; an attempt from after the pause, which ends the block; and one that was in flight with the
        # refused one, which ends it only if there are so many that the refusal must have had another cause.
        if block is None:
            if isinstance(self.phase, Trial):
                self._judge_trial(self.phase, attempt)
        elif attempt.serial > self._lowered:
            if schedule.paused_until > now >= schedule.asked_until:  # it was made alone, before the end of the pause
                schedule.release(now)
            self._unblock(block, attempt)
        else:
            block.together += 1
            block.accepted += attempt.serial > block.serial
            if block.limit is not None and block.is_isolated and block.accepted > min(4, in_flight // 4):
                # Attempts that were started in the block are accepted: it ends early.
                schedule.release(now)
                self._keep(_KEPT * block.rate)
                self._unblock(block, attempt)

    def _set_limit(self, limit: float) -> float:
        """Set the limit, and aim just below it. Return it within its bounds."""
        self.limit = limit = min(HIGHEST, max(LOWEST, limit))
        self.aim = CRUISE * limit
        return limit

    def _keep(self, limit: float) -> None:
        """Keep at least this limit, since a single refusal says little."""
        if self.limit is not None and self.limit < limit:
            limit = self._set_limit(limit)
            if isinstance(self.phase, Steady):
                self.phase.limit = limit

    # --- refusals

    def _is_usual(self, phase: Phase, attempt: PacedAttempt) -> bool:
        """Return True for a refusal that a trial counts, or that the share of usual refusals explains."""
        return isinstance(phase, Trial) or (self._usual.share > 0 and self._usual.explains(attempt.serial))

    def add_refused(
        self, attempt: PacedAttempt, now: float, retry_after: float | None, schedule: Schedule, *, is_throttling: bool = True
    ) -> None:
        """Learn from a refused attempt. `is_throttling` says that the service named the number of requests as the cause.

        The first refusal of a burst lowers the rate. If attempts that were started later are refused too, all are paused.
        """
        block, phase, self.refused_at = self.block, self.phase, now
        # Refusals of attempts that were in flight together are one signal.
        is_late = attempt.serial <= self._lowered
        if isinstance(phase, AtATime):
            cause = phase.add_refused(is_late=is_late)
            if cause == "one too many":
                self.evidence.add_refused(attempt.serial, attempt.started_at, is_usual=True)
                self._lowered = self._lowered if is_late else self.serial
                return
            is_late, self.may_be_at_a_time = False, False
            phase, attempt = self._leave_number(phase, attempt, now, is_rate=cause == "a rate")
        is_usual = block is None and not is_late and self._is_usual(phase, attempt)
        self.evidence.add_refused(attempt.serial, attempt.started_at, is_usual=is_usual)
        # 503 without `Retry-After` says that the service failed, and not why.
        is_outage = not is_throttling and retry_after is None
        # Four cases: the block that it belongs to continues, it was started before the rate was lowered and says nothing new, a
        # trial counts it, or it begins a block unless such refusals are usual.
        if block is not None:
            block.is_outage = block.is_outage or is_outage
            block.refused += 1
            if not is_late:
                schedule.pause(now + self._prolong(block, now, retry_after))
                if retry_after:
                    schedule.asked_until = schedule.paused_until
        elif is_late:
            pass
        elif isinstance(phase, Trial):
            phase.refused += 1
            self._judge_trial(phase, attempt)
        elif not is_usual:
            self._begin_block(phase, attempt, now, is_outage=is_outage)
            schedule.pause(now + min(_LONGEST_PAUSE, max(_PAUSE, 1.1 / (self.limit or HIGHEST))))

    def _leave_number(self, phase: AtATime, attempt: PacedAttempt, now: float, *, is_rate: bool) -> tuple[Ordinary, PacedAttempt]:
        """Begin to search for a rate, from what was accepted. Return the phase and the attempt as one of that rate."""
        measured, count = self._measure(attempt.serial, attempt.started_at)
        if count < COUNT or not is_rate:
            self.phase = found = Unlimited(float(max(1, phase.number)))
            return found, attempt
        rate = self._set_limit(max(measured, phase.seen / max(1e-3, now - attempt.started_at)))
        self.phase = approach = Approach(CLIMB)
        return approach, PacedAttempt(attempt.serial, attempt.started_at, rate)

    def _begin_block(self, phase: Ordinary, attempt: PacedAttempt, now: float, *, is_outage: bool) -> None:
        known, rate = self.limit, attempt.rate
        measured, count = self._measure(attempt.serial, attempt.started_at)
        origin = None if known is None else phase
        self.block = Block(
            origin, attempt.serial, attempt.started_at, now, known, rate, known is None, is_outage, measured, count
        )
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
        """Return for how long to pause all attempts, before one at a time asks whether the block is over."""
        block.asks = block.is_denied = True
        self._lowered = self.serial
        if not retry_after:  # "0" and a date that has passed, as of another clock, say nothing
            return min(_LONGEST_PAUSE, max(_PAUSE, 0.35 * (now - block.since)))
        seconds = min(LONGEST_WAIT_SECONDS, max(_PAUSE, retry_after))
        block.retry_at = now + seconds
        return seconds

    def _unblock(self, block: Block, attempt: PacedAttempt) -> None:
        """End a block: the service accepts again. What it accepted until then is measured as well."""
        end = self._end_of(block, attempt)
        measured, count = self._measure(attempt.serial - 1, end)
        if block.limit is None and block.is_outage:  # what was accepted in an outage says nothing of a limit
            measured, count = block.measured, block.count
        self.block = None
        # What the block has shown: a number of attempts at a time, nothing about a limit, too little to measure one, a first
        # limit, a better one, or that a known one still holds.
        if self._may_show_number(block) and block.together:
            self._take_number(block)
        elif self._doubt(block):
            if self.limit is None:
                return  # it was not exhausted
        elif block.limit is None and (not count or self._says_little(block, count, attempt)):
            self._begin_again(attempt, count)
            return
        elif block.limit is None:
            self._take_first_limit(measured, end - block.since)
        elif block.asks and isinstance(self.phase, Approach):
            self._take_better_limit(block, measured, count, end - block.since)
        elif isinstance(self.phase, Steady):
            self.phase.refused = block.refused
        self._forgive(block)
        self.evidence.end_block(attempt.serial - 1 if block.asks else self.evidence.anchor.serial, end)

    def _end_of(self, block: Block, attempt: PacedAttempt) -> float:
        """Return the moment until which the service was exhausted: between the last refusal and the accepted attempt."""
        end = self.evidence.anchor.moment
        if block.asks and block.retry_at <= block.since + _LONG_PAUSE:
            end = (max(end, block.retry_at - 1.0) + attempt.started_at) / 2
        return end

    def _says_little(self, block: Block, count: int, attempt: PacedAttempt) -> bool:
        """Return True if so few were accepted before a long block that it was an outage, perhaps."""
        is_long = attempt.started_at - block.since > _LITTLE_SECONDS
        if count >= COUNT or not is_long or self.serial - self._ignored < _SELDOM:
            return False
        # Seldom, or a limit that is really so low would never be found.
        self._ignored = self.serial
        return True

    def _begin_again(self, attempt: PacedAttempt, count: int) -> None:
        """Begin as if nothing had been refused, since nothing or little was accepted before."""
        self.evidence.begin(attempt.serial - 1, attempt.started_at)
        self.phase = Unlimited(min(self._first_concurrency, 2.0 * count) if count else self._first_concurrency)
        self.limit, self.aim = None, HIGHEST

    def _take_first_limit(self, measured: float, seconds: float) -> None:
        """Take what was accepted for the limit. It may include the saved tokens of a bucket."""
        limit = self._set_limit(measured)
        self.phase = Approach(min(0.06, 0.25 / max(1.0, seconds)), 1.3 * limit, 2 * seconds)

    def _take_better_limit(self, block: Block, measured: float, count: int, seconds: float) -> None:
        """Take what was accepted since the last block for the limit, with the time in which all was refused."""
        # A few attempts say little: otherwise one long pause between them could end the run.
        limit = measured if count >= COUNT else min(block.rate, max(block.rate / 4, math.sqrt(measured * block.rate)))
        limit = self._set_limit(limit)
        self.phase = Approach(max(0.03, math.log(max(1.0, block.rate / limit)) / 8), block.rate, 2 * seconds)

    def _forgive(self, block: Block) -> None:
        """Let the rate rise soon after an outage, and after a pause so long that nothing is known of it."""
        if block.is_outage and block.limit is not None:
            # A limit that is reached again costs a few refusals, while a rate that stays low costs the rest of the run.
            self._keep(_AFTER_OUTAGE * block.rate)
            self.phase = Approach(CLIMB)
        elif block.retry_at > block.since + _LONG_PAUSE and isinstance(self.phase, Approach):
            self.phase = Approach(CLIMB)

    # --- refusals that may have another cause than the rate

    def _doubt(self, block: Block) -> bool:
        """Ignore an isolated refusal where it says nothing of the limit, or begin a trial if there were too many."""
        may_ignore = block.accepted >= 3 * block.refused if block.limit is None else block.is_unexpected
        if not (block.is_isolated and may_ignore):
            # A share that was found wrong corrects itself: no limit on a part of the requests may be refused for ever.
            self._usual.share *= _BELIEF
            return False
        phase = self.phase = block.origin or self.phase
        assert not isinstance(phase, AtATime | Trial)  # noqa: S101 -- no block begins in one
        if isinstance(phase, Steady):
            phase.limit = self._set_limit(CRUISE * block.rate)
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
            self.phase = Approach(CLIMB) if self._usual.share else Steady(limit, is_new=True)
