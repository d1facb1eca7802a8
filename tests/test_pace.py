"""Pace: the limit that it finds and follows, the turns that it gives, and numbers of any kind that it survives."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pace_simulation import Bucket, Open, Outcome, Service, Window, simulate
from virtual_loop import VirtualLoop

from boardclient import AsyncSession, Pace, StaticCredentials
from boardclient._pace._controller import HIGHEST, LONGEST_HOLD, LOWEST, Attempt, Controller, _judge

# --- the limit, found and followed


def served(service: Service, seconds: float = 75.0, **options: Any) -> Outcome:
    return simulate(Controller(8.0, 1000), service, seconds, **options)


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
    """The same holds at the ends of the range, and for small and large bursts and longer windows."""
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


def test_a_pace_starts_low() -> None:
    """The first second does not hold more than a service that takes little would bear."""
    outcome = served(Open(), 1.0)
    assert len(outcome.arrivals) < 20


def test_a_service_that_never_refuses_gets_all_that_may_be_in_flight() -> None:
    """Growth ends where no more may be in flight."""
    outcome = simulate(Controller(8.0, 50), Open(), 20.0, latency=0.1)
    assert outcome.accepted(10, 20) == pytest.approx(50 / 0.1, rel=0.05)


@pytest.mark.parametrize(("servers", "latency"), [(4, 0.05), (16, 0.05), (4, 0.2)])
def test_a_queue_ends_the_growth(servers: int, latency: float) -> None:
    """A service that lets wait what it can't serve at once is kept busy, with a short queue."""
    outcome = simulate(Controller(8.0, 1000), Open(), 60.0, latency=latency, servers=servers)
    capacity = servers / (latency / 2)
    assert outcome.accepted(20, 60) >= 0.8 * capacity
    waited = sorted(seconds for at, seconds in outcome.latencies if at > 20)
    assert waited[len(waited) // 2] < 3.5 * latency


def test_latency_that_scatters_is_no_queue() -> None:
    """Noise in the answers does not slow a pace down."""
    outcome = simulate(Controller(8.0, 50), Open(), 20.0, latency=0.1, jitter=0.9)
    assert outcome.accepted(10, 20) >= 0.9 * 50 / 0.1


def test_a_service_that_became_slower_for_good_is_not_taken_for_a_queue_for_ever() -> None:
    """The rate comes back after answers have begun to take four times as long."""
    outcome = simulate(Controller(8.0, 1000), Window(100), 60.0, latency=0.05, slower=(20.0, 0.2))
    assert outcome.accepted(40, 60) >= 0.9 * 100


def test_failures_slow_down_and_pass() -> None:
    """While every answer is a 503 much less is sent; afterwards the limit is used again."""
    outcome = served(Bucket(100), 60.0, status=lambda now: 503 if 20 < now < 30 else 200)
    sent = [sum(begin <= at < begin + 5 for at, _ in outcome.arrivals) / 5 for begin in (15, 25, 50)]
    assert sent[1] < 0.3 * sent[0]
    assert sent[2] >= 0.95 * 100


def test_a_single_failure_is_an_accident() -> None:
    """One failure among successes changes nothing."""
    controller = Controller(50.0, 10)
    attempt = controller.start(0.0)
    controller.report(attempt, 0.1, None, None, 0.1)
    controller.end(attempt)
    controller.start(1.0)
    assert controller.rate == 50.0


def test_an_idle_client_learns_nothing() -> None:
    """A rate that nobody uses does not grow."""
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
def test_the_limit_lies_between_what_was_accepted_and_what_was_refused(
    rate: float, measured: float, count: int, seconds: float, limit: float, is_sure: bool
) -> None:
    """What was accepted between two refusals and the rate that was refused bound the limit, the closer the surer."""
    judged = _judge(100.0, rate, measured, count, seconds, is_near=False, is_repeated=False)
    assert judged == (pytest.approx(limit, rel=0.001), is_sure)


def burst(controller: Controller, number: int, now: float) -> list[Attempt]:
    """Start so many attempts, each as soon as it may."""
    attempts = []
    for _ in range(number):
        now = max(now, controller.next_start())
        attempts.append(controller.start(now))
    return attempts


def refuse(controller: Controller, attempt: Attempt, now: float, retry_after: float | None = None) -> None:
    controller.report(attempt, now, 429, retry_after, 0.1)
    controller.end(attempt)


def test_refusals_that_were_in_flight_together_are_one_signal() -> None:
    """Ten refusals of one moment lower the rate as one of them does, and make nobody wait for Retry-After."""
    paces = []
    for number in (1, 10):
        controller = Controller(100.0, 16)
        attempts = burst(controller, 10, 0.0)
        for attempt in attempts[:number]:
            refuse(controller, attempt, 0.2, retry_after=60.0)
        paces.append((controller.rate, controller.next_start()))
    assert paces[0] == paces[1]
    assert paces[0][0] < 100.0
    assert paces[0][1] < 0.5


def test_refusals_that_go_on_make_everybody_wait_for_retry_after() -> None:
    """A refused attempt that was started after the pace was lowered holds everybody, and one asks whether it is over."""
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


@pytest.mark.parametrize(("accepted", "is_lowered"), [(60, False), (4, True)])
def test_refusals_that_go_on_lower_the_limit_by_what_they_measure(accepted: int, is_lowered: bool) -> None:
    """The longer a service refuses, the less it took over the whole time; that counts once it is below the limit."""
    controller = Controller(100.0, 16)
    for _ in range(accepted):
        (attempt,) = burst(controller, 1, 0.0)
        controller.report(attempt, attempt.started_at + 0.001, 201, None, 0.001)
        controller.end(attempt)
    limits = []
    for _ in range(2):
        (attempt,) = burst(controller, 1, 0.0)
        refuse(controller, attempt, attempt.started_at + 0.01)
        limits.append(controller.limit)
    assert limits[0] is not None
    assert (limits[1] != limits[0]) is is_lowered


def test_refusals_that_go_on_without_retry_after_are_asked_about_ever_more_rarely() -> None:
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


def test_a_trial_that_is_given_up_makes_room_for_another() -> None:
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
    """Rubbish holds nobody, and no number holds for ever."""
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
def test_a_latency_that_is_none_is_left_out(seconds: float) -> None:
    """Answers that took no possible time leave rate and room as they are."""
    controller = Controller(100.0, 16)
    for _ in range(40):
        attempt = controller.start(controller.next_start() if controller.next_start() > 0 else 0.0)
        controller.report(attempt, attempt.started_at, 200, None, seconds)
        controller.end(attempt)
    assert controller.room == 16
    assert controller.rate > 100.0


@settings(max_examples=150, deadline=None)
@given(rate=st.floats(LOWEST, HIGHEST), most=st.integers(1, 50), steps=_STEPS, last=st.booleans())
def test_no_answers_whatever_bring_a_pace_to_a_stop(
    rate: float, most: int, steps: list[tuple[str, int | None, float | None, float]], last: bool
) -> None:
    """Rate and room stay finite and within their bounds, and when nobody is in flight the next start has a moment."""
    controller = Controller(rate, most)
    under_way: list[Attempt] = []
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
        assert 1 <= controller.room <= most
        assert controller.in_flight == len(under_way)
        assert under_way or controller.next_start() <= now + LONGEST_HOLD + 1 / LOWEST


# --- turns


def virtually(test: Callable[[Callable[[], float]], Coroutine[Any, Any, None]]) -> None:
    """Run a test, which is given the clock, on a loop whose time passes only by waiting."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop.time))


def test_turns_come_evenly_and_in_order() -> None:
    """Tasks start one by one, as fast as the rate, in the order in which they came."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=10.0, clock=clock)
        turns: list[tuple[int, float]] = []

        async def work(number: int) -> None:
            async with pace as entered:
                assert entered is pace
                turns.append((number, clock()))

        await asyncio.gather(*map(work, range(4)))
        assert [number for number, _ in turns] == [0, 1, 2, 3]
        gaps = [later[1] - earlier[1] for earlier, later in itertools.pairwise(turns)]
        assert gaps == pytest.approx([0.1, 0.1, 0.1], abs=0.02)
        assert pace.in_flight == 0

    virtually(test)


def test_who_comes_later_does_not_overtake_a_turn_that_is_due() -> None:
    """A task that comes after the moment of a turn, but before it was given, stands behind."""

    async def test(clock: Callable[[], float]) -> None:
        ahead = 0.0
        pace = Pace(start_rate=1.0, clock=lambda: clock() + ahead)
        order: list[str] = []

        async def work(name: str) -> None:
            async with pace:
                order.append(name)

        await work("first")
        second = asyncio.create_task(work("second"))
        await asyncio.sleep(0.0)
        ahead = 5.0
        await asyncio.gather(second, work("third"))
        assert order == ["first", "second", "third"]

    virtually(test)


def test_no_more_are_in_flight_than_may_be() -> None:
    """Who comes when all places are taken starts when one is given back."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=1000.0, max_in_flight=2, clock=clock)
        most = 0

        async def work() -> None:
            nonlocal most
            async with pace:
                most = max(most, pace.in_flight)
                await asyncio.sleep(1.0)

        begun = clock()
        await asyncio.gather(*(work() for _ in range(6)))
        assert most == 2
        assert pace.workers == 2
        assert clock() - begun == pytest.approx(3.0, abs=0.1)

    virtually(test)


@pytest.mark.parametrize("cancelled", [[1], [3], [1, 2, 3]])
def test_a_cancelled_waiter_takes_no_turn(cancelled: list[int]) -> None:
    """Those behind it start as if it had never come, and no place stays taken."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=10.0, clock=clock)
        turns: list[tuple[int, float]] = []

        async def work(number: int) -> None:
            async with pace:
                turns.append((number, round(clock(), 1)))

        tasks = [asyncio.create_task(work(number)) for number in range(5)]
        await asyncio.sleep(0.05)
        for number in cancelled:
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [number for number in range(5) if number not in cancelled]
        assert [number for number, _ in turns] == left
        assert turns[-1][1] - turns[0][1] == pytest.approx(0.1 * (len(left) - 1), abs=0.02)
        assert pace.in_flight == 0
        assert "0 waiting" in repr(pace)

    virtually(test)


def test_a_turn_that_came_together_with_a_cancellation_goes_to_the_next() -> None:
    """A task that is cancelled after its turn was given, before it ran, leaves turn and place."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=0.1, max_in_flight=1, clock=clock)
        turns: list[tuple[str, float]] = []

        async def work(name: str) -> None:
            async with pace:
                turns.append((name, clock()))

        await pace.__aenter__()
        second, third = asyncio.create_task(work("second")), asyncio.create_task(work("third"))
        await asyncio.sleep(30.0)
        await pace.__aexit__(None, None, None)  # the second one's turn
        assert pace.in_flight == 1
        second.cancel()
        await asyncio.wait([second, third])
        assert turns == [("third", pytest.approx(30.0, abs=0.1))]
        assert pace.in_flight == 0

    virtually(test)


def test_a_hold_is_obeyed_by_everybody_and_ends() -> None:
    """Waiters start after the hold; until then the pace says until when."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=100.0, clock=clock)
        assert pace.held_until is None
        for _ in range(2):
            async with pace:
                await asyncio.sleep(0.1)
                pace.report(429, 5.0, 0.1)
        refused_at = clock()
        assert pace.held_until == refused_at + 5.0
        async with pace:
            assert clock() == pytest.approx(refused_at + 5.0, abs=0.02)
            pace.report(200, None, 0.1)
        assert pace.held_until is None
        assert pace.limit is not None
        assert pace.rate < 100.0

    virtually(test)


def test_a_hold_that_comes_while_somebody_waits_moves_its_turn() -> None:
    """Who already waits for its turn waits for the end of a hold as well."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=1.0, clock=clock)

        async def refused(after: float) -> None:
            async with pace:
                await asyncio.sleep(after)
                pace.report(429, 30.0, after)

        async def work() -> float:
            async with pace:
                return clock()

        await refused(0.1)
        first = asyncio.create_task(refused(0.1))
        await asyncio.sleep(0.0)
        waiting = asyncio.create_task(work())
        await first
        refused_at = clock()
        assert await waiting == pytest.approx(refused_at + 30.0, abs=0.1)

    virtually(test)


def test_an_answer_belongs_to_the_attempt_of_its_task() -> None:
    """Within a block inside a block the inner attempt is meant, afterwards the outer one."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(start_rate=10.0, clock=clock)
        told: list[float] = []
        pace._controller.report = lambda attempt, *answer: told.append(attempt.started_at)  # type: ignore[method-assign]  # -- looked at from outside
        async with pace:
            outer = clock()
            await asyncio.sleep(1.0)
            async with pace:
                inner = clock()
                pace.report(200, None, 0.1)
            pace.report(200, None, 0.1)
        assert told == [inner, outer]
        assert pace.in_flight == 0

    virtually(test)


def test_reports_and_exits_from_elsewhere_are_refused() -> None:
    """A report outside the block, and an exit by another task, say what is wrong."""

    async def test(clock: Callable[[], float]) -> None:
        pace = Pace(clock=clock)
        with pytest.raises(RuntimeError, match="from within its"):
            pace.report(200, None, 0.1)
        await asyncio.create_task(pace.__aenter__())  # type: ignore[arg-type]  # -- any awaitable that is a coroutine does
        with pytest.raises(RuntimeError, match="by the task that entered it"):
            await pace.__aexit__(None, None, None)

    virtually(test)


def test_one_loop_at_a_time() -> None:
    """On a second loop a pace in use is refused; one that is free, or whose loop was closed, is not."""
    pace = Pace()
    loops = [asyncio.new_event_loop() for _ in range(3)]

    async def nested() -> None:
        await pace.__aenter__()
        if pace.in_flight == 1:
            await nested()

    loops[0].run_until_complete(pace.__aenter__())
    with pytest.raises(RuntimeError, match="in use on another event loop"):
        loops[1].run_until_complete(pace.__aenter__())
    loops[0].close()
    loops[1].run_until_complete(nested())
    assert pace.in_flight == 2
    loops[1].close()

    async def use() -> None:
        async with pace:
            assert pace.in_flight == 1

    loops[2].run_until_complete(use())
    loops[2].close()
    asyncio.run(use())


def test_a_pace_shows_what_it_knows() -> None:
    """The repr tells rate, limit and places."""
    assert repr(Pace()) == "<Pace 8/s, no limit met, 0 of 16 in flight, 0 waiting>"
    pace = Pace(start_rate=100.0, max_in_flight=8, clock=lambda: 5.0)

    async def refused() -> None:
        async with pace:
            pace.report(429, None, 0.1)

    asyncio.run(refused())
    assert repr(pace) == "<Pace 69/s, limit about 70/s, 0 of 8 in flight, 0 waiting>"


def test_a_pace_can_not_be_pickled() -> None:
    """A pace belongs to its process."""
    with pytest.raises(TypeError, match="build one in each process"):
        pickle.dumps(Pace())


@pytest.mark.parametrize(
    "options",
    [
        {"start_rate": 0},
        {"start_rate": math.nan},
        {"start_rate": math.inf},
        {"max_in_flight": 0},
        {"max_in_flight": 2.5},
        {"max_in_flight": True},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """A rate that is no rate and a number of places that is none are a ValueError."""
    with pytest.raises(ValueError, match=next(iter(options))):
        Pace(**options)


async def test_a_session_tells_its_pace(wire: Any) -> None:
    """As `limiter=`, a pace hears of answers and refusals, and sessions that share it share what it found."""
    pace = Pace(start_rate=1000.0)
    wire.get("http://127.0.0.1/1/members/me?token=t", status=429, headers={"Retry-After": "1"})
    async with AsyncSession(StaticCredentials("t"), "http://127.0.0.1", limiter=pace, retry=None) as session:
        with pytest.raises(Exception, match="429"):
            await session.members.me()
    assert pace.limit is not None
    assert pace.in_flight == 0
