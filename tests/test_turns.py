"""A fixed number of workers goes at once, until the service refuses something; then a pace leads them."""

import asyncio

import pytest

from boardclient._pace import Pace
from boardclient.bulk._turns import FixedTurns


class Clock:
    """Seconds of the test's choice."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def refused(turns: FixedTurns, times: int = 1, retry_after: float | None = None) -> None:
    for _ in range(times):
        async with turns:
            turns.report(429, retry_after, 0.01)


async def test_nobody_waits_before_a_refusal(clock: Clock) -> None:
    """Every worker goes at once, whatever else the service answers, and successes need not be told."""
    turns = FixedTurns(3, lambda: 1, clock)
    for status in (200, 500, None, 404):
        async with turns:
            turns.report(status, None, 0.1)
    assert not turns.needs_every_result
    assert turns._pace is None


@pytest.mark.parametrize(
    ("starts", "seconds", "rate"),
    [
        (40, 2.0, 10.0),  # half of what was too much
        (1, 10.0, 1.0),  # never slower than once a second
        (1, 0.0, 500.0),  # a clock that stands still divides by no zero
        (30, 0.0, 10_000.0),  # never faster than a pace can be
    ],
)
async def test_a_refusal_begins_at_half_the_rate(clock: Clock, starts: int, seconds: float, rate: float) -> None:
    """The pace that takes over starts at half of the starts a second so far, for as many workers as there are."""
    turns = FixedTurns(7, lambda: starts, clock)
    clock.now += seconds
    await refused(turns)
    assert turns.needs_every_result
    assert turns._pace is not None
    assert turns._pace.rate == pytest.approx(rate)
    assert turns._pace.workers <= 7


async def test_later_turns_are_those_of_the_pace(clock: Clock) -> None:
    """After the refusal a worker enters the pace, tells it of its answer, and leaves it."""
    turns = FixedTurns(4, lambda: 1, clock)
    await refused(turns)
    pace = turns._pace
    assert pace is not None
    assert pace.in_flight == 0
    clock.now += 100
    async with turns:
        assert pace.in_flight == 1
        turns.report(429, 30.0, 0.01)
    assert pace.in_flight == 0
    assert pace.limit is not None  # it heard of the second refusal
    assert turns._pace is pace
    assert turns._paced == set()


async def test_the_pace_lets_workers_wait(clock: Clock) -> None:
    """Who comes too soon after a refusal waits for the pace; a cancelled one leaves nothing behind."""
    turns = FixedTurns(4, lambda: 1, clock)
    clock.now += 1.0
    await refused(turns)
    pace = turns._pace
    assert pace is not None
    async with turns:  # the first start is free

        async def enter() -> None:
            async with turns:
                raise AssertionError

        waiting = asyncio.create_task(enter())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert pace.in_flight == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert pace.in_flight == 0
    assert turns._paced == set()


async def test_attempts_from_before_the_pace_are_not_its_own(clock: Clock) -> None:
    """A worker that entered before the refusal of another neither tells the pace nor leaves it."""
    turns = FixedTurns(4, lambda: 1, clock)
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def early() -> None:
        async with turns:
            entered.set()
            await may_end.wait()
            turns.report(429, 5.0, 0.01)
            turns.report(200, None, 0.01)

    task = asyncio.create_task(early())
    await entered.wait()
    await refused(turns)
    pace = turns._pace
    assert pace is not None
    rate = pace.rate
    may_end.set()
    await task
    assert turns._pace is pace
    assert (pace.in_flight, pace.rate) == (0, rate)


async def test_an_error_within_leaves_the_pace(clock: Clock) -> None:
    """What the attempt raises passes through, and its place in the pace is given back."""
    turns = FixedTurns(2, lambda: 1, clock)
    await refused(turns)
    clock.now += 10
    with pytest.raises(KeyError):
        async with turns:
            raise KeyError
    assert turns._pace is not None
    assert turns._pace.in_flight == 0
    assert isinstance(turns._pace, Pace)


async def test_it_has_a_clock_of_its_own() -> None:
    """Without a clock of the test's it takes the system's."""
    turns = FixedTurns(1, lambda: 1)
    await refused(turns)
    assert turns.needs_every_result
