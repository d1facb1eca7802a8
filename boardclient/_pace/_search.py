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

from boardclient._pace._evidence import Evidence, PacedAttempt, judge
from boardclient._pace._noise import HIGH, LOW, Noisy
from boardclient._pace._phases import (
    HIGHEST,
    Approach,
    Block,
    Climb,
    Experiment,
    Open,
    Phase,
    Settle,
    Steady,
    bounded,
    cruise,
    settling,
)
from boardclient._pace._schedule import LONGEST_HOLD, Schedule
from boardclient._pace._window import Span, Window, usual_lengths, windows_between

_PAUSE: Final = 0.15
"""The seconds without a start after a refusal. A small excess leaves about that much of a window."""
_LONGEST_PAUSE: Final = 30.0
"""The most seconds between two attempts that ask whether a block is over, without a longer `Retry-After`."""
_SLOWER: Final = 0.9
"""The rate of an experiment, as a part of the accepted rate."""
_ODDS: Final = 2.5
"""The log-likelihood ratio at which an experiment ends, 12 to 1."""
_CONTRADICTED: Final = 0.96
"""A refusal below this part of a recently accepted rate has another cause, or the limit has fallen."""
_ISOLATED: Final = 0.9
"""The part of the rate that is kept after an isolated refusal."""
_BELOW: Final = 0.99
"""A refusal below this part of a confirmed limit is unexpected."""
_SAME: Final = 0.07
"""Measurements that differ by less than this part agree. Two in a row are no coincidence."""
_MANY: Final = 40
"""The number of accepted attempts from which the saved tokens of a bucket hardly count, and one measurement is enough."""
_ROUGH: Final = 8.0
"""Up to this limit, in requests per second, the first measurement is too rough to contradict anything."""
_LONG: Final = 0.4
"""The seconds from which a block may be the rest of a window."""
_REST: Final = 0.25
"""The largest part of a known window for which attempts wait after a refusal. A known window is used evenly up to its end."""
_ASKED: Final = 0.9
"""The part of the time between the ends of two blocks from which a `Retry-After` alone explains it, and no window."""
_MORE: Final = 3.0
"""Refusals in an experiment that are so many times as frequent as before have to do with the rate, which is still too high."""
_OVERLOAD: Final = 0.2
"""A share of refusals above this is an overload, even if an experiment shows something else."""


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
        self._schedule = schedule
        self._first_places = places
        self._lowered = 0
        """The number of the last attempt that was started before the rate was last lowered."""
        self._unblocked_at = -math.inf
        self._pause = _PAUSE
        self._doubts = 0
        """The number of consecutive refusals that contradict what was accepted before."""
        self._window: Window | None = None
        self._last_end: Span | None = None
        """When the last block ended that was not isolated."""

    def grow(self, now: float, step: float, in_flight: int) -> None:
        """Raise the aim after `step` seconds, as the phase says."""
        phase = self.phase
        self.aim = phase.grow(self.aim, step)
        if isinstance(phase, Steady) and self.aim > phase.limit and self._is_risen(phase.limit, now, in_flight):
            self.phase = Climb()

    def _is_risen(self, limit: float, now: float, in_flight: int) -> bool:
        """Return True if more was accepted than the limit and all saved tokens allow."""
        window = self._window
        if window is not None:
            begin = window.next_end(now) - window.seconds
            return self.evidence.accepted_between(begin, self.serial - in_flight) > 1.03 * limit * window.seconds + 2.0
        anchor = self.evidence.anchor
        accepted = self.serial - in_flight - anchor.serial
        savings = limit * (now - anchor.moment) - accepted
        if savings > limit:
            # The size of an account is limited, so a long rest does not fill it forever.
            self.evidence.last_refused = anchor._replace(moment=now - (limit + accepted) / limit)
        return savings < -max(2.0, 0.03 * limit)

    def note_accepted(self, attempt: PacedAttempt, now: float, in_flight: int) -> None:
        """Note an accepted attempt."""
        block, phase = self.block, self.phase
        if block is not None:
            if attempt.serial > self._lowered:
                self._unblock(block, attempt, now)
            elif attempt.serial > block.serial:
                block.accepted += 1
                if block.limit is not None and block.is_isolated and block.accepted > min(4, in_flight // 4):
                    self._end_early(block, attempt, now)
        elif isinstance(phase, Experiment):
            self._judge_experiment(phase, attempt, now, is_refused=False)
        elif isinstance(phase, Noisy):
            self._judge_noise(phase, attempt, now, is_refused=False)

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
        is_usual = block is None and isinstance(phase, Noisy)
        self.evidence.note_refused(attempt.serial, attempt.started_at, is_usual=is_usual)
        if block is not None and not is_throttling:
            block.is_outage = True
        if attempt.serial <= self._lowered:
            if block is not None:
                block.refused += 1
            elif isinstance(phase, Steady):
                phase.refused += 1
        elif block is not None:
            self._prolong(block, attempt, now, retry_after)
        elif isinstance(phase, Experiment):
            self._judge_experiment(phase, attempt, now, is_refused=True)
        elif isinstance(phase, Noisy):
            self._judge_noise(phase, attempt, now, is_refused=True)
        else:
            self._begin_block(attempt, now)

    def _begin_block(self, attempt: PacedAttempt, now: float) -> None:
        evidence, phase = self.evidence, self.phase
        rate = evidence.recent_rate(attempt.serial, attempt.started_at, attempt.rate, self._unblocked_at)
        anchor = evidence.anchor_before(attempt.serial)
        count = attempt.serial - anchor.serial - (evidence.refused - anchor.refused)
        seconds = attempt.started_at - anchor.moment
        measured = count / seconds if seconds > 0 else HIGHEST
        is_open = self.limit is None
        # If the rate grew much over a long time, the average says little about the limit.
        is_measured = is_open or seconds < 4 or rate < 1.35 * measured
        self.block = Block(phase, attempt.serial, attempt.started_at, self.limit, rate, is_measured, asks=is_open)
        self._lowered = self.serial
        if self.limit is not None:
            possible = evidence.possible(now)
            if rate < _CONTRADICTED * possible and not isinstance(phase, Experiment):
                self.block.possible = possible
            elif (
                isinstance(phase, Steady) or (isinstance(phase, Settle) and self.limit > _ROUGH)
            ) and rate < _BELOW * self.limit:
                self.block.possible = self.limit
            self._lower(phase, self.limit, rate, measured, count, seconds)
            evidence.note_possible(attempt.serial, attempt.started_at)
        self._pause = max(_PAUSE, 0.95 * self._pause)
        end = math.inf if self._window is None else self._window.next_end(attempt.started_at)
        if self._window is not None and end - now < _REST * self._window.seconds:
            self.block.asks = True
            self._schedule.hold(max(now, end))
        else:
            self._window = None
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
        span = Span(max(evidence.anchor.moment, block.retry_at - 1.0), attempt.started_at)
        end = (span.low + span.high) / 2 if block.asks else evidence.anchor.moment
        count = attempt.serial - 1 - anchor.serial - (evidence.refused - anchor.refused)
        measured = max(0, count) / max(1e-3, end - anchor.moment)
        self.block = None
        self._unblocked_at = attempt.started_at
        self._look_for_window(
            span,
            is_full=block.asks or not (block.is_isolated or block.accepted),
            is_long=block.asks
            and not block.is_outage
            and span.low - block.since > max(_LONG, 4 / (block.limit or HIGHEST))
            and (self._last_end is None or block.retry_at - block.since < _ASKED * (span.high - self._last_end.low)),
        )
        if not block.is_isolated:
            self._doubts = 0
            if block.possible:
                evidence.forget_possible()  # the limit has fallen
        elif not block.possible:
            self._doubts = 0
        if not block.asks and block.refused == 1 and isinstance(self.phase, Approach | Settle | Steady):
            self._keep(min(block.refused_rate, 0.98 * self.evidence.delivered(block.serial, block.since)))
        if block.limit is None:
            self._open_block_ended(block, attempt, measured, count, end, now)
        elif block.possible and block.is_isolated and evidence.usual(attempt.serial) * _OVERLOAD > 1:
            self._doubt(block, now)
        elif self._window is not None and self._fill_window(self._window, block, measured, attempt.serial):
            pass
        elif block.asks and isinstance(self.phase, Approach | Settle) and block.is_measured:
            self._refine(block, measured, count, end - anchor.moment)
        elif isinstance(self.phase, Steady):
            self.phase.refused = block.refused
        since = end if block.retry_at == -math.inf else span.low
        evidence.end_block(attempt.serial - 1 if block.asks else evidence.anchor.serial, end, since)

    def _end_early(self, block: Block, attempt: PacedAttempt, now: float) -> None:
        """End a block early, as attempts that were started in it are accepted."""
        self._schedule.release(now)
        if isinstance(block.origin, Approach) and block.accepted >= 3:
            block.possible = block.refused_rate
        self._keep(_ISOLATED * block.refused_rate)
        self._unblock(block, attempt, now)

    def _keep(self, limit: float) -> None:
        """Keep at least this limit, since a single refusal says little."""
        if self.limit is not None and self.limit < limit:
            limit = self._set_limit(limit)
            if isinstance(self.phase, Steady):
                self.phase.limit = limit

    def _look_for_window(self, end: Span, *, is_full: bool, is_long: bool) -> None:
        """Compare the end of a long block with the one before it."""
        if self._window is not None:
            self._window = self._window.followed_by(end)
        elif self._last_end is not None and is_long:
            self._window = self._fullest(windows_between(self._last_end, end), end)
        if is_full:
            self._last_end = end

    def _fullest(self, windows: list[Window], end: Span) -> Window | None:
        """Return the shortest window whose accepted rate is about the highest of all."""
        moment = (end.low + end.high) / 2
        accepted = [self._accepted_within(window.seconds, moment) for window in windows]
        return next((window for window, rate in zip(windows, accepted, strict=True) if rate >= 0.97 * max(accepted)), None)

    def _accepted_within(self, seconds: float, end: float) -> float:
        """Return the rate that was accepted in the seconds before the end of a block."""
        return self.evidence.accepted_between(end - seconds, self.serial - 1) / seconds

    def _fill_window(self, window: Window, block: Block, measured: float, serial: int) -> bool:
        """Set the limit to what the last window accepted. Return False if that contradicts other measurements."""
        end = (window.end.low + window.end.high) / 2
        anchor = self.evidence.anchor_before(serial)
        if 0.7 < (end - anchor.moment) / window.seconds < 1.3:  # the count since the end of the previous window is exact
            accepted: float = serial - 1 - anchor.serial - (self.evidence.refused - anchor.refused)
        else:
            accepted = self.evidence.accepted_between(end - window.seconds, serial - 1)
        limit = accepted / window.seconds
        if not 0.85 * min(measured, block.refused_rate) < limit < 1.1 * block.refused_rate:
            self._window = None
            return False
        limit = self._set_limit(limit)
        is_close = window.end.high - window.end.low < 0.05 * window.seconds
        self.phase = Steady(limit, min(block.refused, 3)) if is_close else Settle(1.2 * window.seconds, window.seconds)
        return True

    def _open_block_ended(self, block: Block, attempt: PacedAttempt, measured: float, count: int, end: float, now: float) -> None:
        """Set the first limit after the first block, if anything was accepted before it."""
        if count <= 0:
            self.evidence.begin(attempt.serial - 1, attempt.started_at)
            self.phase = Open(self._first_places)
            return
        if block.accepted >= 3 * block.refused:
            accepted = max(measured, self.evidence.delivered(block.serial, block.since))
            self._begin_experiment(None, block.refused / (attempt.serial - 1), accepted)
            return
        seconds = end - block.since
        # The growth before a long block was slow, so the average is too low: take the fullest window that fits.
        lengths = usual_lengths(max(_LONG, seconds), end - self.evidence.begun.moment) if block.asks and seconds > _LONG else []
        limit = self._set_limit(max([measured, *(self._accepted_within(length, end) for length in lengths)]))
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

    def _doubt(self, block: Block, now: float) -> None:
        """Ignore the first two unexpected refusals, and begin an experiment at the third."""
        self._doubts += 1
        if self._doubts > 2:
            self._doubts = 0
            self._begin_experiment(block.possible, *self.evidence.recent(self.serial, now))
        elif block.refused_rate < _CONTRADICTED * self.evidence.possible(now):
            self.limit, self.phase = block.limit, block.origin
            self.aim = bounded(block.refused_rate)

    def _begin_experiment(self, limit: float | None, share: float, accepted: float) -> None:
        """Send less than was accepted, which a limit does not refuse."""
        self.phase = Experiment(limit, share, accepted, self.serial)
        self.aim = bounded(_SLOWER * accepted)

    def _judge_experiment(self, phase: Experiment, attempt: PacedAttempt, now: float, *, is_refused: bool) -> None:
        """End an experiment once it has a result."""
        if attempt.serial <= phase.serial:
            return
        phase.note(is_refused=is_refused)
        share = phase.refused / (attempt.serial - phase.serial)
        if phase.refused > 2 and share > max(_OVERLOAD, phase.share):
            self.evidence.forget_possible()
            self.phase = Open(self._first_places) if phase.limit is None else Approach(self.aim, 0.03)
            self._begin_block(attempt, now)
        elif phase.score > _ODDS and (attempt.serial - phase.serial) * phase.share >= 1:
            is_more = share > _MORE * phase.share
            self._begin_noise(self.aim if is_more else phase.limit or phase.accepted, min(share, _OVERLOAD))
        elif phase.score < -_ODDS:
            self._believe(phase.accepted)

    def _begin_noise(self, accepted: float, share: float) -> None:
        """Return to the rate before the experiment, and raise it from there."""
        self._lowered = self.serial
        self.limit = limit = bounded(accepted / (1 - share))
        self.phase = noisy = Noisy(limit, share, self.serial, LOW if share > 0.1 else HIGH)
        self.aim = bounded(noisy.aim)

    def _judge_noise(self, phase: Noisy, attempt: PacedAttempt, now: float, *, is_refused: bool) -> None:
        """Note an attempt while refusals are usual."""
        if attempt.serial <= phase.serial:
            return
        if phase.note(self.serial, is_refused=is_refused):
            phase.rate = self.limit = bounded(phase.rate)
            self.aim = bounded(phase.aim)
        if phase.is_blocked:
            self.phase = Approach(self.aim, 0.03)
            self._begin_block(attempt, now)
        elif phase.is_over:
            limit = self._set_limit(phase.rate)
            self.phase = Climb() if phase.may_climb else Steady(limit, 1)

    def _believe(self, limit: float) -> None:
        """Set the limit, since the slower rate was refused much less."""
        self.evidence.forget_possible()
        self._lowered = self.serial
        limit = self._set_limit(limit)
        self.phase = Settle(settling(limit))
