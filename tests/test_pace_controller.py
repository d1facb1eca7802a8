"""What single refusals and responses do to a pace, and numbers of any kind that it survives."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boardclient._pace._controller import Controller
from boardclient._pace._evidence import Evidence, PacedAttempt, judge
from boardclient._pace._failures import Failures
from boardclient._pace._phases import HIGHEST, LOWEST, Block, Settle
from boardclient._pace._schedule import LONGEST_HOLD, Schedule
from boardclient._pace._window import Span, Window, usual_lengths, windows_between

# --- refusals


@pytest.mark.parametrize(
    ("rate", "measured", "count", "seconds", "limit", "is_sure"),
    [
        (102.0, 98.0, 1000, 10.0, 101.0, True),  # close together: near the rate, which a window refuses at once
        (120.0, 100.0, 1000, 10.0, 110.0, True),
        (400.0, 100.0, 100, 1.0, 200.0, False),  # a burst was saved up: two steps down rather than one too many
        (400.0, 100.0, 4, 0.04, 320.0, False),  # too few to measure by
        (200.0, 110.0, 2000, 18.0, 163.9, False),  # grown for long: nearer to the rate
        (50.0, 100.0, 1000, 10.0, 50.0, False),  # refused below what it took: it has become less
    ],
)
def test_the_limit_is_between_the_accepted_and_the_refused_rate(
    rate: float, measured: float, count: int, seconds: float, limit: float, is_sure: bool
) -> None:
    """What was accepted between two refusals and the rate that was refused bound the limit, the closer the surer."""
    judged = judge(100.0, rate, measured, count, seconds, is_near=False, is_repeated=False)
    assert judged == (pytest.approx(limit, rel=0.001), is_sure)


def burst(controller: Controller, number: int, now: float) -> list[PacedAttempt]:
    """Start so many attempts, each as soon as it may."""
    attempts = []
    for _ in range(number):
        now = max(now, controller.next_start())
        attempts.append(controller.start(now))
    return attempts


def refuse(controller: Controller, attempt: PacedAttempt, now: float, retry_after: float | None = None) -> None:
    controller.report(attempt, now, 429, retry_after, 0.1)
    controller.end(attempt)


def accept(controller: Controller, attempt: PacedAttempt, now: float) -> None:
    controller.report(attempt, now, 201, None, 0.1)
    controller.end(attempt)


def test_refusals_that_were_in_flight_together_are_one_signal() -> None:
    """Ten refusals at one time lower the rate as much as one, and do not hold others for Retry-After."""
    paces = []
    for number in (1, 10):
        controller = Controller(100.0, 16)
        for attempt in burst(controller, 10, 0.0):
            accept(controller, attempt, 0.2)
        attempts = burst(controller, 10, 0.3)
        for attempt in attempts[:number]:
            refuse(controller, attempt, 0.5, retry_after=60.0)
        paces.append(controller.next_start())
        (trial,) = burst(controller, 1, 0.6)
        accept(controller, trial, trial.started_at + 0.1)
        paces.append(controller.rate)
    assert paces[0] == paces[2] < 1.0
    assert paces[3] < paces[1] < 100.0


def test_repeated_refusals_make_all_wait_for_retry_after() -> None:
    """A refused attempt that was started after the rate was lowered holds all others, and one asks whether it is over."""
    controller = Controller(100.0, 16)
    first, *_ = burst(controller, 4, 0.0)
    refuse(controller, first, 0.1, retry_after=7.0)
    (second,) = burst(controller, 1, 0.2)
    now = second.started_at + 0.1
    refuse(controller, second, now, retry_after=7.0)
    assert controller.next_start() == controller.held_until == pytest.approx(now + 7.0)
    trial = controller.start(now + 7.0)
    assert controller.next_start() == math.inf
    controller.report(trial, now + 7.1, 201, None, 0.1)
    controller.end(trial)
    assert controller.next_start() < now + 8.0


def test_repeated_refusals_without_retry_after_are_tried_ever_more_rarely() -> None:
    """The pauses between two trials grow with the time that the service has refused."""
    controller = Controller(100.0, 16)
    asked: list[float] = []
    now = 0.0
    for _ in range(12):
        now = max(now, controller.next_start())
        asked.append(now)
        refuse(controller, controller.start(now), now + 0.05)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[-1] > 3 * pauses[2] > 0
    assert asked[-1] < 60


def test_a_cancelled_trial_lets_another_start() -> None:
    """A cancelled trial does not block the pace."""
    controller = Controller(100.0, 16)
    for _ in range(2):
        (attempt,) = burst(controller, 1, 0.0)
        refuse(controller, attempt, attempt.started_at + 0.1)
    trial = controller.start(controller.next_start())
    assert controller.next_start() == math.inf
    controller.cancel(trial)
    assert controller.next_start() < math.inf


@pytest.mark.parametrize(
    ("retry_after", "held"),
    [(3.0, 3.0), (0.0, 0.0), (-5.0, 0.0), (math.nan, 0.0), (math.inf, LONGEST_HOLD), (1e300, LONGEST_HOLD)],
)
def test_a_retry_after_of_any_kind_holds_for_a_time_that_ends(retry_after: float, held: float) -> None:
    """An invalid Retry-After holds nothing, and no number holds forever."""
    controller = Controller(100.0, 16)
    for _ in range(2):
        (attempt,) = burst(controller, 1, 0.0)
        now = attempt.started_at + 0.1
        refuse(controller, attempt, now, retry_after)
    assert controller.held_until == now + held


# --- numbers of any kind

_NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.just(0), st.just(0.0), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.floats(0, 1e6), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.floats(0, 0.2), st.just(0.0)),
        st.tuples(
            st.sampled_from(["answer", "answer", "cancel"]),
            st.sampled_from([None, 200, 200, 404, 429, 429, 500]),
            st.one_of(st.none(), _NUMBERS),
            st.one_of(st.floats(0, 1), _NUMBERS),
        ),
    ),
    max_size=120,
)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_an_impossible_latency_is_ignored(seconds: float) -> None:
    """A response that took no possible time leaves rate and limit as they are."""
    controller = Controller(100.0, 16)
    for _ in range(40):
        attempt = controller.start(controller.next_start() if controller.next_start() > 0 else 0.0)
        controller.report(attempt, attempt.started_at, 200, None, seconds)
        controller.end(attempt)
    assert controller.places == 16
    assert controller.rate > 100.0


@settings(max_examples=150, deadline=None)
@given(rate=st.floats(LOWEST, HIGHEST), most=st.integers(1, 50), steps=_STEPS, last=st.booleans())
def test_no_responses_stop_a_pace_for_good(
    rate: float, most: int, steps: list[tuple[str, int | None, float | None, float]], last: bool
) -> None:
    """Rate and attempts in flight stay finite and in range, and with none in flight the next start has a time."""
    controller = Controller(rate, most)
    under_way: list[PacedAttempt] = []
    now = 1000.0
    for kind, status, number, seconds in steps:
        if kind == "wait":
            now += number or 0.0
        elif kind == "start":
            due = controller.next_start()
            if due < math.inf:
                now = max(now, due)
                under_way.append(controller.start(now))
        elif under_way:
            attempt = under_way.pop(-1 if last else 0)
            if kind == "cancel":
                controller.cancel(attempt)
            else:
                controller.report(attempt, now, status, number, seconds)
                controller.end(attempt)
        assert LOWEST <= controller.rate <= HIGHEST
        assert controller.limit is None or LOWEST <= controller.limit <= HIGHEST
        assert 1 <= controller.places <= most
        assert controller.in_flight == len(under_way)
        assert under_way or controller.next_start() <= now + LONGEST_HOLD + 1 / LOWEST


# --- a window, recognised by its ends


def test_a_window_is_recognised_by_the_ends_of_two_blocks() -> None:
    """Two ends that lie some usual lengths apart are ends of a window; further ends make it more exact or refute it."""
    *shorter, window = windows_between(Span(9.0, 10.0), Span(19.5, 19.7))
    assert window == Window(10.0, Span(19.5, 19.7))
    assert [other.seconds for other in shorter] == [2.0, 5.0]
    assert windows_between(Span(9.0, 9.1), Span(16.0, 16.1)) == []
    assert usual_lengths(2.5, 10.0) == [3.0, 5.0, 10.0]
    later = window.followed_by(Span(39.6, 40.5))
    assert later == Window(10.0, Span(39.6, 39.7))
    assert window.followed_by(Span(35.0, 35.1)) is None
    assert window.followed_by(Span(19.5, 19.6)) is None
    assert window.next_end(22.0) == pytest.approx(29.7)


def test_what_was_accepted_is_counted_from_any_moment() -> None:
    """Between two marks of the course starts are taken as even, and refused attempts don't count."""
    evidence = Evidence()
    evidence.begin(0, 0.0)
    for serial, moment in ((1, 0.0), (11, 1.0), (21, 2.0)):
        evidence.note_start(serial, moment)
    assert evidence.accepted_between(0.5, 21) == pytest.approx(15.0)
    evidence.note_refused(21, 2.0, is_usual=False)
    assert evidence.accepted_between(1.0, 21) == pytest.approx(9.0)
    assert evidence.accepted_between(-1.0, 21) == 20
    assert evidence.accepted_between(5.0, 31) == 9


def test_a_known_window_that_accepts_another_number_is_given_up() -> None:
    """A window is no longer believed when what it accepted contradicts the rate that was refused."""
    controller = Controller(None, 16)
    search = controller._search
    for attempt in burst(controller, 8, 0.0):
        accept(controller, attempt, 0.1)
    search._window = Window(10.0, Span(9.9, 10.0))
    block = Block(Settle(1.5), 9, 9.0, 50.0, 50.0, is_measured=True, asks=True)
    assert not search._fill_window(search._window, block, measured=40.0, serial=9)
    assert search._window is None


def test_a_start_that_is_a_little_late_is_made_up_for() -> None:
    """Timers are coarse: up to 10 ms of a late start come off the next pause, and a short hold does not shorten it."""
    schedule = Schedule(10.0)
    schedule.take(5.0)
    assert schedule.next_at == pytest.approx(5.1)
    schedule.hold(5.05)
    assert schedule.next_at == pytest.approx(5.1)
    schedule.take(5.15)
    assert schedule.next_at == pytest.approx(5.24)


def test_failures_that_were_in_flight_together_slow_down_once() -> None:
    """Attempts that were started before the pace slowed down say nothing of the slower one."""
    failures = Failures()
    for serial in range(100):
        failures.note_failure(serial + 1, 100)
    once = failures.health
    assert once == pytest.approx(0.7)
    failures.note_failure(101, 200)
    assert failures.health < once
