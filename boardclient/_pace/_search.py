"""The search for a service's limit, phase after phase. No I/O, no clock, no asyncio.

The model is an account that fills at the rate of the limit, and from which each accepted request takes one. A token bucket is
such an account, and a fixed window is one that is filled all at once. A refusal shows that the account is empty. So the attempts
accepted between two refusals, divided by the time between them, are the limit, or less if the account was full meanwhile. The
rate at which it ran empty is the limit or more. Refusals that are as frequent at a lower rate have another cause. The rules are
in docs/design/pace.md.
"""

from __future__ import annotations

import math
from typing import Final

from boardclient._pace._evidence import Evidence, PacedAttempt, Usual, judge
from boardclient._pace._phases import (
    HIGHEST,
    Approach,
    Block,
    Climb,
    Open,
    Phase,
    Settle,
    Steady,
    Trial,
    bounded,
    cruise,
    settling,
)
from boardclient._pace._timing import LONGEST_HOLD, Schedule

_PAUSE: Final = 0.15
"""The seconds without a start after a refusal. A small excess leaves about that much of a window."""
_LONGEST_PAUSE: Final = 30.0
"""The most seconds between two attempts that ask whether a block is over, without a longer `Retry-After`."""
_KEPT: Final = 0.9
"""The part of the rate that is kept after an isolated refusal, and after an outage."""
_AFTER_OUTAGE: Final = 0.95
"""The part of the rate that is kept after an outage, from which it grows again."""
_BELOW: Final = 0.99
"""A refusal below this part of a confirmed limit is unexpected."""
_SAME: Final = 0.07
"""Measurements that differ by less than this part agree. Two in a row are no coincidence."""
_MANY: Final = 40
"""The number of accepted attempts from which the saved tokens of a bucket hardly count, and one measurement is enough."""
_ROUGH: Final = 8.0
"""Up to this limit, in requests per second, the first measurement is too rough to contradict anything."""
_LEAST_SHARE: Final = 0.01
"""The smallest share that a trial looks for: a smaller one would take too many attempts."""
_BELIEF: Final = 0.5
"""The part of a usual share that is still believed after refusals that it does not explain."""
_MOST_SHARE: Final = 0.3
"""Isolated refusals that are more frequent than this have to do with the rate."""
_TRIED: Final = 0.8
"""The rate of a trial, as a part of the one before."""
_APART: Final = 4
"""Refusals that are fewer attempts apart are not isolated."""
_CLOSE: Final = 60
"""The number of attempts within which three isolated refusals begin a trial."""


class Search:
    """Derives a rate from accepted and refused attempts. Owned by a `Controller`, whose schedule it holds."""

    def __init__(self, aim: float, places: float, schedule: Schedule) -> None:
        self.aim = aim
        self.limit: float | None = None
        self.serial = 0
        """The number of the last attempt that was started."""
        self.phase: Phase = Open(places)
        self.block: Block | None = None
        self.evidence = Evidence()
        self.usual = Usual()
        self._schedule = schedule
        self._first_places = places
        self._lowered = 0
        """The number of the last attempt that was started before the rate was last lowered."""
        self._unblocked_at = -math.inf
        self._pause = _PAUSE
        self._doubts: list[Block] = []
        """The last isolated refusals in a row."""

    def grow(self, now: float, step: float, in_flight: int) -> None:
        """Raise the aim after `step` seconds, as the phase says."""
        phase = self.phase
        self.aim = phase.grow(self.aim, step)
        if isinstance(phase, Steady) and self.aim > phase.limit and self._is_risen(phase.limit, now, in_flight):
            self.phase = Climb()

    def _is_risen(self, limit: float, now: float, in_flight: int) -> bool:
        """Return True if more was accepted than the limit and all saved tokens allow."""
        anchor = self.evidence.anchor
        accepted = self.serial - in_flight - anchor.serial
        savings = limit * (now - anchor.moment) - accepted
        if savings > limit:
            # The size of an account is limited, so a long rest does not fill it forever.
            self.evidence.last_refused = anchor._replace(moment=now - (limit + accepted) / limit)
        return savings < -max(2.0, 0.03 * limit)

    def note_accepted(self, attempt: PacedAttempt, now: float, in_flight: int) -> None:
        """Note an accepted attempt."""
        block = self.block
        if block is None:
            if isinstance(self.phase, Trial):
                self.phase.streak = 0
                self._judge_trial(self.phase, attempt, now)
            elif self.usual.note_accepted(attempt.serial):
                self._verify(attempt.serial, now)
        elif attempt.serial > self._lowered:
            self._unblock(block, attempt, now)
        elif attempt.serial > block.serial:
            block.accepted += 1
            if block.limit is not None and block.is_isolated and block.accepted > min(4, in_flight // 4):
                self._end_early(block, attempt, now)

    def _set_limit(self, limit: float) -> float:
        """Set the limit, and aim just below it. Return it within its bounds."""
        self.limit = limit = bounded(limit)
        self.aim = cruise(limit)
        return limit

    # --- refusals

    def note_refusal(self, attempt: PacedAttempt, now: float, retry_after: float | None, *, is_throttling: bool = True) -> None:
        """Note a refused attempt. `is_throttling` says that the service named the number of requests as the cause.

        The first refusal of a burst lowers the rate. If attempts that were started later are refused too, all attempts are held.
        """
        block, phase = self.block, self.phase
        is_late = attempt.serial <= self._lowered
        is_usual = block is None and not is_late and (isinstance(phase, Trial) or self.usual.explains(attempt.serial))
        self.evidence.note_refused(attempt.serial, attempt.started_at, is_usual=is_usual)
        is_outage = not is_throttling and retry_after is None
        if block is not None and is_outage:
            block.is_outage = True
        if is_late:
            if block is not None:
                block.refused += 1
            elif isinstance(phase, Steady):
                phase.refused += 1
        elif block is not None:
            self._prolong(block, attempt, now, retry_after)
        elif isinstance(phase, Trial):
            phase.refused += 1
            phase.streak += 1
            self._judge_trial(phase, attempt, now)
        elif not is_usual:
            self._begin_block(attempt, now, is_outage=is_outage)

    def _begin_block(self, attempt: PacedAttempt, now: float, *, is_outage: bool) -> None:
        evidence, phase = self.evidence, self.phase
        rate = evidence.recent_rate(attempt.serial, attempt.started_at, attempt.rate, self._unblocked_at)
        anchor = evidence.anchor_before(attempt.serial)
        count = attempt.serial - anchor.serial - (evidence.refused - anchor.refused)
        seconds = attempt.started_at - anchor.moment
        measured = count / (1 - self.usual.share) / seconds if seconds > 0 else HIGHEST
        is_open = self.limit is None
        self.block = Block(
            phase,
            attempt.serial,
            attempt.started_at,
            self.limit,
            rate,
            asks=is_open,
            is_outage=is_outage,
            aim=attempt.rate,
        )
        self._lowered = self.serial
        if self.limit is not None:
            is_known = isinstance(phase, Steady) or (isinstance(phase, Settle) and self.limit > _ROUGH)
            self.block.is_unexpected = is_known and rate < _BELOW * self.limit
            self._lower(phase, self.limit, rate, measured, count, seconds)
        self._pause = max(_PAUSE, 0.95 * self._pause)
        self._schedule.hold(now + min(_LONGEST_PAUSE, max(self._pause, 1.1 / (self.limit or HIGHEST))))

    def _lower(self, phase: Phase, known: float, rate: float, measured: float, count: int, seconds: float) -> None:
        """Set the limit between the accepted and the refused rate since the last refusal."""
        is_sure = isinstance(phase, Settle | Steady)
        is_near = is_sure and rate <= 1.12 * known
        is_repeated = isinstance(phase, Approach) and count < _MANY and abs(measured - phase.measured) < _SAME * measured
        limit, is_agreed = judge(known, rate, measured, count, seconds, is_near=is_near, is_repeated=is_repeated)
        if is_sure and rate <= known:
            limit = min(limit, 0.98 * rate)  # it was refused below the known limit
        limit = self._set_limit(limit)
        if not is_agreed:
            self.phase = Approach(rate, min(0.4, max(0.03, math.log(rate / limit) / 4)), measured=measured)
        elif is_sure and limit > 0.9 * known:
            self.phase = Steady(limit, 1)
        else:
            self.phase = Settle(settling(limit))

    def _prolong(self, block: Block, attempt: PacedAttempt, now: float, retry_after: float | None) -> None:
        """Hold all attempts, then make one at a time to see whether the block is over."""
        block.refused += 1
        if not block.asks:
            self._pause = min(0.6, 1.5 * self._pause)
        block.asks = True
        self._lowered = self.serial
        if retry_after is None:
            self._schedule.hold(now + min(_LONGEST_PAUSE, max(_PAUSE, 0.35 * (now - block.since))))
        else:
            seconds = min(max(0.0, retry_after), LONGEST_HOLD)
            block.retry_at = attempt.started_at + seconds
            self._schedule.hold(now + seconds)

    def _unblock(self, block: Block, attempt: PacedAttempt, now: float) -> None:
        """End a block: the service accepts again. What it accepted until then is measured as well."""
        evidence = self.evidence
        anchor = evidence.anchor_before(attempt.serial)
        low, high = max(evidence.anchor.moment, block.retry_at - 1.0), attempt.started_at
        end = (low + high) / 2 if block.asks else evidence.anchor.moment
        count = attempt.serial - 1 - anchor.serial - (evidence.refused - anchor.refused)
        measured = max(0, count) / (1 - self.usual.share) / max(1e-3, end - anchor.moment)
        self.block = None
        self._unblocked_at = attempt.started_at
        self.usual.begin(_BELIEF * self.usual.share, self.serial)
        if not block.is_isolated:
            self._doubts.clear()
        if not block.asks and block.refused == 1 and isinstance(self.phase, Approach | Settle | Steady):
            self._keep(min(block.refused_rate, 0.98 * self.evidence.delivered(block.serial, block.since)))
        if block.is_isolated and self._doubt(block):
            pass
        elif block.limit is None:
            self._open_block_ended(block, attempt, measured, count, end)
        elif block.asks and isinstance(self.phase, Approach | Settle):
            self._refine(block, measured, count, end - anchor.moment)
        elif isinstance(self.phase, Steady):
            self.phase.refused = block.refused
        if block.is_outage and block.limit is not None:
            self._keep(_AFTER_OUTAGE * block.aim)
            self.phase = Climb()
        since = end if block.retry_at == -math.inf else low
        evidence.end_block(attempt.serial - 1 if block.asks else evidence.anchor.serial, end, since)

    def _end_early(self, block: Block, attempt: PacedAttempt, now: float) -> None:
        """End a block early, as attempts that were started in it are accepted."""
        self._schedule.release(now)
        if isinstance(block.origin, Approach) and block.accepted >= 3:
            block.is_unexpected = True
        self._keep(_KEPT * block.refused_rate)
        self._unblock(block, attempt, now)

    def _keep(self, limit: float) -> None:
        """Keep at least this limit, since a single refusal says little."""
        if self.limit is not None and self.limit < limit:
            limit = self._set_limit(limit)
            if isinstance(self.phase, Steady):
                self.phase.limit = limit

    def _open_block_ended(self, block: Block, attempt: PacedAttempt, measured: float, count: int, end: float) -> None:
        """Set the first limit after the first block, if anything was accepted before it."""
        if count <= 0:
            self.evidence.begin(attempt.serial - 1, attempt.started_at)
            self.phase = Open(self._first_places)
            return
        seconds = end - block.since
        if block.is_outage:
            measured = count / max(1e-3, block.since - self.evidence.begun.moment)
        limit = self._set_limit(measured)
        if block.has_long_pause:
            self.phase = Climb()
        else:
            self.phase = Approach(1.3 * limit, min(0.06, 0.25 / max(1.0, seconds)), 2 * seconds)

    def _refine(self, block: Block, measured: float, count: int, period: float) -> None:
        rate = block.refused_rate
        # A few say little: one long pause between them would else end the run.
        limit = measured if count >= 8 else min(rate, max(rate / 4, (measured * measured * rate) ** (1 / 3)))
        limit = self._set_limit(limit)
        if block.has_long_pause and rate > 1.35 * measured:
            self.phase = Climb()
        elif count >= 8 and rate < 1.35 * measured:
            self.phase = Settle(max(1.5, 1.2 * period))
        else:
            self.phase = Approach(rate, max(0.03, math.log(max(1.0, rate / limit)) / 8), 1.2 * period)

    # --- refusals that may have another cause than the rate

    def _doubt(self, block: Block) -> bool:
        """Ignore the first two isolated refusals, and begin a trial at the third."""
        doubts = self._doubts
        if doubts and block.serial - doubts[-1].serial < _APART:
            self._doubts = [block]  # so close together, they show that the limit has fallen
            return False
        doubts.append(block)
        while not (block.serial - doubts[0].serial < _CLOSE or all(doubt.is_unexpected for doubt in doubts)):
            doubts.pop(0)
        first = doubts[0]
        is_rough = block.limit is not None and block.limit < _ROUGH and not all(doubt.is_unexpected for doubt in doubts)
        if block.limit is None and block.accepted < 3 * block.refused:
            return False
        share = 2 / max(1, block.serial - first.serial)
        if len(doubts) > 2 and not is_rough and share < _MOST_SHARE:
            self._doubts = []
            accepted = (block.serial - first.serial - 2) / max(1e-3, block.since - first.since)
            aim = HIGHEST if first.limit is None else first.refused_rate
            self._begin_trial(accepted, share, first.origin, first.limit, aim)
        elif block.limit is None:
            self.limit, self.phase = block.limit, block.origin
            self.aim = HIGHEST
        else:
            return block.is_unexpected
        return True

    def _begin_trial(self, accepted: float, share: float, origin: Phase, limit: float | None, aim: float) -> None:
        """Send less than was accepted, which a limit does not refuse."""
        self._lowered = self.serial
        self.phase = Trial(origin, limit, aim, accepted, share, self.serial)
        self.aim = bounded(_TRIED * accepted)

    def _verify(self, serial: int, now: float) -> None:
        """Measure the usual share again, since it may have been wrong, or has changed."""
        share = max(_LEAST_SHARE, self.usual.share_of_round(serial))
        accepted = self.evidence.delivered(self.serial, now) or self.aim
        self._begin_trial(accepted, share, self.phase, self.limit, self.aim)

    def _judge_trial(self, trial: Trial, attempt: PacedAttempt, now: float) -> None:
        """End a trial once it has a result."""
        if attempt.serial <= trial.serial:
            return
        if trial.streak > 2:
            self.usual.begin(0.0, self.serial)
            self.phase = Open(self._first_places) if trial.limit is None else Approach(self.aim, 0.03)
            self._begin_block(attempt, now, is_outage=False)
            return
        remaining = trial.remaining(attempt.serial)
        if remaining is None:
            return
        was_usual = self.usual.share > 0
        self.usual.begin(remaining, self.serial)
        if remaining > trial.share / 4:
            self.limit, self.aim = trial.limit, trial.aim
            self.phase = trial.origin if was_usual or trial.limit is None else Climb()
        else:
            self._lowered = self.serial
            limit = self._set_limit(trial.accepted / (1 - remaining))
            self.phase = Settle(settling(limit))
