"""The limits that a pace finds and follows, at services of many kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from pace_simulation import AtATime, Bucket, Erratic, Open, Outcome, Service, Shut, SlidingWindow, Together, Window, simulate

from boardclient._pace._controller import Controller
from boardclient._pace._noise import LOW, Noisy
from boardclient._pace._phases import Block, Climb, Settle, Steady

# --- the limit, found and followed


def served(service: Service, seconds: float = 75.0, **options: Any) -> Outcome:
    return simulate(Controller(None, 1000), service, seconds, **options)


@pytest.mark.parametrize("tells", [False, True], ids=["silent", "Retry-After"])
@pytest.mark.parametrize("latency", [0.02, 0.2])
@pytest.mark.parametrize("kind", [Bucket, Window])
@pytest.mark.parametrize("limit", [10, 20, 100, 300])
def test_a_hidden_limit_is_used_without_many_refusals(
    limit: float, kind: Callable[[float], Service], latency: float, tells: bool
) -> None:
    """After 15 s at least 95 in 100 of what the service takes are used, and at most 1 in 100 requests is refused."""
    outcome = served(kind(limit), latency=latency, tells=tells)
    assert outcome.accepted(15, 75) >= 0.95 * limit
    assert outcome.refused(15, 75) <= 0.01


@pytest.mark.parametrize(
    ("limit", "service", "latency", "jitter"),
    [
        (5, Bucket(5), 0.02, 0.1),
        (5, Bucket(5), 0.2, 0.1),
        (5, Window(5), 0.05, 0.1),
        (5, Window(5), 0.2, 0.01),  # more jitter than that puts six evenly spaced requests into a second
        (20, Bucket(20, burst=5.0), 0.05, 0.1),
        (100, Bucket(100, burst=0.1), 0.05, 0.1),
        (100, Window(100, seconds=3.0), 0.05, 0.1),
        (1000, Bucket(1000), 0.05, 0.1),
        (1000, Window(1000), 0.2, 0.1),
    ],
)
def test_slow_and_fast_and_uncommon_services_are_used_as_well(
    limit: float, service: Service, latency: float, jitter: float
) -> None:
    """Services at the ends of the range, with small and large bursts and longer windows, are used as well."""
    outcome = served(service, latency=latency, jitter=jitter)
    assert outcome.accepted(15, 75) >= 0.95 * limit
    assert outcome.refused(15, 75) <= 0.01


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("kind", [Bucket, Window])
@pytest.mark.parametrize("limit", [20, 100, 300])
@pytest.mark.parametrize("changed_at", [35.0])
def test_a_limit_that_changes_is_followed(
    limit: float, kind: Callable[[float], Service], factor: float, changed_at: float
) -> None:
    """Within 20 s of a change the new limit is used like the old one was."""
    end = changed_at + 45
    outcome = served(kind(limit), end, changes=[(changed_at, factor * limit)])
    assert outcome.accepted(changed_at + 20, end) >= 0.93 * factor * limit
    assert outcome.refused(changed_at + 25, end) <= 0.012


@pytest.mark.parametrize("latency", [0.05, 0.2])
def test_a_longer_window_that_grows_is_followed(latency: float) -> None:
    """Where a window of two seconds takes twice as much, that is found, though a probe is refused late."""
    outcome = served(Window(50, seconds=2.0), 81.0, latency=latency, changes=[(36.0, 100.0)])
    assert outcome.accepted(56, 81) >= 0.93 * 100


@pytest.mark.parametrize("latency", [0.002, 0.05, 0.5])
def test_a_pace_starts_with_a_burst(latency: float) -> None:
    """The first attempts start at once, 16 of them, and more as fast as accepted ones come back."""
    outcome = served(Open(), 20 * latency, latency=latency)
    assert sum(at < 0.6 * latency for at, _ in outcome.arrivals) == 16
    assert len(outcome.arrivals) > 16 * 19


@pytest.mark.parametrize("latency", [0.005, 0.05, 0.2])
@pytest.mark.parametrize("service", [Bucket(1), Bucket(10), Window(100), Bucket(300), AtATime(4), Window(50, seconds=10.0)])
def test_the_first_refusals_are_few(service: Service, latency: float) -> None:
    """The first refusal meets no more than the first attempts in flight, and a small part of those accepted before it."""
    outcome = served(service, 4.0, latency=latency)
    first = next(at for at, accepted in outcome.arrivals if not accepted)
    together = [accepted for at, accepted in outcome.arrivals if at <= first + 1.2 * latency]
    assert together.count(False) <= 16 + 0.0625 * together.count(True) + 1


@pytest.mark.parametrize("tells", [False, True], ids=["silent", "Retry-After"])
@pytest.mark.parametrize("seconds", [0.5, 3.0, 20.0])
def test_refusals_before_anything_was_accepted_say_nothing_of_the_limit(seconds: float, tells: bool) -> None:
    """A service that refuses everything at first is used like any other soon after it accepts."""
    outcome = simulate(Controller(None, 10), Shut(seconds), 2 * seconds + 5, latency=0.05, tells=tells)
    assert outcome.accepted(1.5 * seconds + 0.5, 2 * seconds + 5) > 0.9 * 10 / 0.05
    limited = served(Shut(seconds, Bucket(20)), 2 * seconds + 40, tells=tells)
    assert limited.accepted(2 * seconds + 10, 2 * seconds + 40) > 0.85 * 20


@pytest.mark.parametrize("latency", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("phase", [0.1, 0.37, 0.6, 0.9])
def test_a_retry_after_that_is_always_too_long_is_no_limit(phase: float, latency: float) -> None:
    """Where each refusal asks for 60 s, though a window ends after 1 s, the rate comes back between the pauses."""
    outcome = served(Window(20, phase=phase), 300.0, latency=latency, lie=60.0)
    assert outcome.accepted(15, 300) >= 0.5 * 20


@pytest.mark.parametrize("latency", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("limit", [20, 100])
def test_the_rate_comes_back_after_a_long_retry_after(limit: float, latency: float) -> None:
    """A service that asks once, near the beginning, for a pause of 30 s is used again soon after it."""
    outcome = served(Shut(30.5, Bucket(limit), begin=0.5), 75.0, latency=latency, tells=True)
    assert outcome.accepted(45, 75) >= 0.95 * limit


@pytest.mark.parametrize("seed", [9, 11])
def test_tokens_saved_during_a_retry_after_are_no_rate(seed: int) -> None:
    """A Retry-After in whole seconds is too long, so a bucket fills meanwhile. What it then accepts at once is no limit."""
    outcome = served(Bucket(5, burst=5.0), latency=0.02, tells=True, seed=seed)
    assert outcome.accepted(15, 75) >= 0.95 * 5
    assert outcome.refused(15, 75) <= 0.01


@pytest.mark.parametrize(("limit", "refused"), [(0.2, 0.17), (1, 0.08), (2, 0.02)])
@pytest.mark.parametrize("tells", [False, True], ids=["silent", "Retry-After"])
def test_a_low_limit_is_confirmed_by_a_number_of_attempts(limit: float, refused: float, tells: bool) -> None:
    """At a few requests per second or minute a probe every few seconds would be refused each time."""
    outcome = simulate(Controller(None, 8), Bucket(limit, max(1.0, 1 / limit)), 300.0, latency=0.2, tells=tells)
    assert outcome.accepted(60, 300) >= 0.77 * limit
    assert outcome.refused(60, 300) <= refused


# --- refusals with another cause


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rare_refusals_at_any_rate_do_not_slow_down_for_good(seed: int) -> None:
    """A service without a limit that refuses 1 in 100 is used for most of what the places allow."""
    outcome = simulate(Controller(None, 10), Erratic(0.01, seed=seed), 75.0, latency=0.2, seed=seed)
    assert outcome.accepted(15, 75) > 0.75 * 10 / 0.2


@pytest.mark.parametrize(("share", "part"), [(0.01, 0.6), (0.05, 0.6)])
def test_a_limit_is_found_among_refusals_at_any_rate(share: float, part: float) -> None:
    """A hidden limit is used although 1 in 100, or 1 in 20, is refused at any rate: for the most part in most runs."""
    uses = sorted(served(Erratic(share, Bucket(50), seed), seed=seed).accepted(15, 75) / 50 for seed in range(1, 8))
    assert uses[3] > part
    assert uses[0] > 0.3


@pytest.mark.parametrize(("share", "limit", "part"), [(0.05, 500, 0.8), (0.1, 50, 0.75)])
def test_a_share_that_is_refused_at_any_rate_does_not_slow_down(share: float, limit: int, part: float) -> None:
    """Where as many are refused at a lower rate, the rate is not the cause: it goes up until a larger share is refused."""
    uses = sorted(served(Erratic(share, Bucket(limit), seed), 60.0, seed=seed).accepted(20, 60) for seed in range(1, 6))
    assert uses[2] > part * limit


def test_a_pause_without_acceptances_is_no_limit_of_nothing() -> None:
    """A block of few attempts in which nothing was accepted leaves a part of the rate."""
    search = Controller(None, 16)._search
    search._refine(Block(Settle(1.5), 9, 9.0, 50.0, 40.0, is_measured=True, asks=True), measured=0.0, count=0, period=1.0)
    assert search.limit == 10.0


def test_noise_is_compared_at_two_rates() -> None:
    """A larger share at the higher rate ends the growth, more than usual at the lower one lowers the rate, and quiet ends it."""

    def send(noisy: Noisy, refused: int, number: int = 60) -> None:
        for attempt in range(number):
            noisy.note(0, is_refused=attempt * refused // number < (attempt + 1) * refused // number)

    noisy = Noisy(100.0, 0.05, 0)
    send(noisy, 3)
    assert (noisy.rate, noisy.part, noisy.may_climb) == (125.0, LOW, True)
    send(noisy, 3)
    send(noisy, 12)
    assert (noisy.may_climb, noisy.rests, noisy.rate) == (False, 1, 125.0)
    send(noisy, 3)
    assert noisy.part == LOW
    send(noisy, 16, 16)
    assert noisy.rate == 0.7 * 125.0
    send(noisy, 0)
    assert not noisy.is_over
    noisy.part = LOW
    noisy.quiet = 150
    assert noisy.is_over
    send(noisy, 9, 9)
    assert noisy.is_blocked


def test_a_service_that_refuses_everything_ends_noise() -> None:
    """An outage among noise is a block, with attempts that ask now and then."""
    controller = Controller(100.0, 16)
    search = controller._search
    search.limit, search.phase, search.aim = 100.0, Noisy(100.0, 0.1, 0), 100.0
    for step in range(12):
        now = max(float(step), controller.next_start())
        attempt = controller.start(now)
        controller.report(attempt, now + 0.1, 429, None, 0.1)
        controller.end(attempt)
    assert search.block is not None


@pytest.mark.parametrize("may_climb", [True, False])
def test_noise_that_ended_is_no_noise(may_climb: bool) -> None:
    """Without a refusal for long, the pace is steady, or climbs where nothing ended its growth."""
    controller = Controller(100.0, 16)
    search = controller._search
    search.phase = Noisy(100.0, 0.1, 0, LOW, quiet=149, pause=1 if may_climb else 2)
    attempt = controller.start(0.0)
    controller.report(attempt, 0.1, 200, None, 0.1)
    controller.end(attempt)
    assert isinstance(search.phase, Climb if may_climb else Steady)


@pytest.mark.parametrize("status", [500, None])
def test_a_service_that_fails_is_called_less_often_until_it_recovers(status: int | None) -> None:
    """Failures that are no refusals slow the pace down, at most to a tenth; after them it is what it was."""
    controller, now, rates = Controller(50.0, 4), 0.0, []
    for number in range(900):
        now = max(now, controller.next_start())
        attempt = controller.start(now)
        controller.report(attempt, now, status if 100 <= number < 200 else 200, None, 0.01)
        controller.end(attempt)
        rates.append(controller.rate)
    assert rates[99] >= 50.0
    assert rates[99] / 11 < min(rates[100:200]) < rates[99] / 5
    assert rates[-1] >= 50.0


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("limit", [5, 50])
def test_503_is_a_refusal_like_429(limit: int, status: int) -> None:
    """A service that refuses with 503 what is too fast gets hardly any such request after the first seconds."""
    outcome = served(Bucket(limit), 60.0, refusal=status)
    assert outcome.accepted(15, 60) >= 0.95 * limit
    assert outcome.refused(15, 60) <= 0.02


@pytest.mark.parametrize("changed_at", [33.0, 36.0, 39.0, 42.0])
@pytest.mark.parametrize("limit", [10, 20])
def test_a_low_limit_that_is_halved_is_no_background(limit: int, changed_at: float) -> None:
    """The refusals after it do not count as usual: 20 s later there are few."""
    outcome = served(Bucket(limit), changed_at + 45, changes=[(changed_at, limit / 2)])
    assert outcome.refused(changed_at + 20, changed_at + 45) <= 0.1


@pytest.mark.parametrize(("seed", "changed_at"), [(2, 36.82), (23, 48.43)])
def test_more_refusals_than_before_at_a_lower_rate_are_an_overload(seed: int, changed_at: float) -> None:
    """A low limit that fell below the rate of an experiment is searched from that rate, not from the former limit."""
    outcome = served(Bucket(5), changed_at + 45, seed=seed, latency=0.2, changes=[(changed_at, 2.5)])
    assert outcome.refused(changed_at + 20, changed_at + 45) <= 0.13


def test_an_overload_is_not_taken_for_refusals_at_any_rate() -> None:
    """At a plain limit no share of refusals is ever believed to be usual."""
    for service in (Bucket(20), Window(50), Bucket(100, burst=5.0), SlidingWindow(20)):
        outcome = served(service, 120.0, changes=[(60.0, service.limit / 2)] if isinstance(service, Bucket | Window) else [])
        assert outcome.refused(90, 120) < 0.02


# --- other kinds of limits


@pytest.mark.parametrize("phase", [10.0, 20.0, 35.0])
def test_a_quota_of_a_minute_above_a_limit_of_a_second_is_used_evenly(phase: float) -> None:
    """What a known window has left after a late beginning does not count as a limit that has risen."""
    outcome = served(Together(Bucket(50), Window(20, 60.0, phase)), 300.0)
    assert outcome.accepted(120, 300) >= 0.95 * 20
    assert outcome.refused(120, 300) <= 0.0075


@pytest.mark.parametrize("seed", [1, 2, 4, 5])
def test_an_outage_is_no_window(seed: int) -> None:
    """After 10 s of nothing but 503 the limit is what it was, and not what was accepted on average."""
    outcome = served(Bucket(100), 60.0, seed=seed, status=lambda now: 503 if 20 < now < 30 else 200)
    assert outcome.accepted(45, 60) >= 0.9 * 100


@pytest.mark.parametrize("tells", [False, True], ids=["silent", "Retry-After"])
@pytest.mark.parametrize("seconds", [3.0, 10.0])
@pytest.mark.parametrize("limit", [10, 20, 100])
def test_long_windows_are_recognised_by_their_ends(limit: float, seconds: float, tells: bool) -> None:
    """Windows of several seconds are used, and refuse few in the first minutes."""
    outcome = served(Window(limit, seconds=seconds), 120.0, tells=tells)
    assert outcome.accepted(40, 120) >= 0.9 * limit
    assert outcome.refused(15, 75) <= 0.035
    assert outcome.refused(60, 120) <= 0.03


@pytest.mark.parametrize("seconds", [3.0, 10.0])
def test_a_long_window_is_used_although_the_growth_took_long(seconds: float) -> None:
    """The first window that was used up says what it takes, not the average since the start."""
    outcome = served(Window(1000, seconds=seconds), latency=0.2, tells=True)
    assert outcome.accepted(15, 75) >= 0.87 * 1000
    assert outcome.refused(15, 75) <= 0.03


@pytest.mark.parametrize(("limit", "seconds"), [(20, 1.0), (20, 10.0), (5, 10.0)])
def test_sliding_windows_are_used(limit: float, seconds: float) -> None:
    """A window that slides is used like a fixed one."""
    outcome = served(SlidingWindow(limit, seconds))
    assert outcome.accepted(30, 75) >= 0.9 * limit
    assert outcome.refused(30, 75) <= 0.02


@pytest.mark.parametrize("places", [2, 5, 20])
def test_a_limit_of_requests_at_a_time_is_used(places: int) -> None:
    """A service that accepts so many at a time is kept busy, with few refusals."""
    outcome = served(AtATime(places, 0.05), latency=0.06)
    assert outcome.accepted(15, 75) >= 0.7 * places / 0.06
    assert outcome.refused(15, 75) <= 0.01


def test_an_exhausted_quota_is_tried_rarely() -> None:
    """A quota that is used up for an hour meets an attempt every 30 s at most, in the end."""
    outcome = served(Window(500 / 3600, seconds=3600.0), 1200.0)
    assert sum(at > 600 for at, _ in outcome.arrivals) <= 21


@pytest.mark.parametrize("kind", [Bucket, Window])
@pytest.mark.parametrize("workers", [8, 100])
def test_a_slow_service_is_not_given_up(workers: int, kind: Callable[[float], Service]) -> None:
    """Of one request a second more than half are used, however many were sent at first."""
    outcome = simulate(Controller(None, workers, workers), kind(1.0), 60.0, latency=0.05)
    assert outcome.accepted(0, 60) > 0.55


def test_a_service_that_never_refuses_gets_all_that_may_be_in_flight() -> None:
    """Growth ends where no more may be in flight."""
    outcome = simulate(Controller(None, 50), Open(), 20.0, latency=0.1)
    assert outcome.accepted(10, 20) == pytest.approx(50 / 0.1, rel=0.05)


@pytest.mark.parametrize(("servers", "latency"), [(4, 0.05), (16, 0.05), (4, 0.2), (40, 0.2)])
def test_a_queue_ends_the_growth(servers: int, latency: float) -> None:
    """A service that lets wait what it can't serve at once is kept busy, with a short queue."""
    outcome = simulate(Controller(None, 1000), Open(), 60.0, latency=latency, servers=servers)
    capacity = servers / (latency / 2)
    assert outcome.accepted(20, 60) >= 0.8 * capacity
    waited = sorted(seconds for at, seconds in outcome.latencies if at > 20)
    assert waited[len(waited) // 2] < 3.5 * latency


def test_latency_that_scatters_is_no_queue() -> None:
    """Noise in the answers does not slow a pace down."""
    outcome = simulate(Controller(None, 50), Open(), 20.0, latency=0.1, jitter=0.9)
    assert outcome.accepted(10, 20) >= 0.9 * 50 / 0.1


def test_a_service_that_became_slower_for_good_is_not_taken_for_a_queue_for_ever() -> None:
    """The rate comes back after answers have begun to take four times as long."""
    outcome = simulate(Controller(None, 1000), Window(100), 60.0, latency=0.05, slower=(20.0, 0.2))
    assert outcome.accepted(40, 60) >= 0.9 * 100


def test_failures_slow_down_and_pass() -> None:
    """While every answer is a 503 much less is sent; afterwards the limit is used again."""
    outcome = served(Bucket(100), 60.0, status=lambda now: 503 if 20 < now < 30 else 200)
    sent = [sum(begin <= at < begin + 5 for at, _ in outcome.arrivals) / 5 for begin in (15, 25, 50)]
    assert sent[1] < 0.3 * sent[0]
    assert sent[2] >= 0.95 * 100


@pytest.mark.parametrize("lost", [None, 502])
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_a_limit_is_used_although_many_responses_are_lost(share: float, lost: int | None) -> None:
    """Where 2 or 4 in 10 responses are lost or a 502 at any rate, most of the limit is still used."""
    chance = random.Random(7)
    outcome = served(Bucket(30), status=lambda now: lost if chance.random() < share else 200)
    assert outcome.accepted(15, 75) >= 0.8 * 30


def test_the_pace_is_the_same_after_an_outage() -> None:
    """A time in which hardly anything was sent and nothing came back says nothing of what the service delivers."""
    options: dict[str, Any] = {"latency": 0.02, "servers": 4, "rests": (20.0, 25.0)}
    outcome = served(Open(), 32.0, **options, status=lambda now: None if 20 < now < 25 else 200)
    assert outcome.accepted(26, 32) >= 0.8 * outcome.accepted(15, 20)


def test_a_single_failure_is_an_accident() -> None:
    """One failure among successes changes nothing."""
    controller = Controller(50.0, 10)
    attempt = controller.start(0.0)
    controller.report(attempt, 0.1, None, None, 0.1)
    controller.end(attempt)
    controller.start(1.0)
    assert controller.rate == 50.0


def test_an_idle_client_learns_nothing() -> None:
    """An unused rate does not grow."""
    controller = Controller(50.0, 10)
    for second in range(100):
        attempt = controller.start(float(second))
        controller.report(attempt, second + 0.1, 200, None, 0.1)
        controller.end(attempt)
    assert controller.rate == 50.0


def test_a_long_rest_does_not_count_as_savings_for_ever() -> None:
    """A limit that was doubled during a time of little use is found soon after it."""
    limit = 50.0
    outcome = served(Window(limit), 140.0, changes=[(60.0, 2 * limit)], rests=(40.0, 85.0))
    assert outcome.accepted(115, 140) >= 0.93 * 2 * limit
