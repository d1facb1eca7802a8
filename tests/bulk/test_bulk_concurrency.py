"""A fixed number of workers goes at once, until the service refuses something; then a pace leads them."""

import asyncio

import pytest
from virtual_loop import Clock

from boardclient._pace import Pace
from boardclient.bulk._concurrency import FixedConcurrency


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


async def refused(turns: FixedConcurrency, times: int = 1, retry_after: float | None = None) -> None:
    for _ in range(times):
        async with turns:
            turns.report(429, retry_after, 0.01)


async def test_workers_start_at_once_until_a_refusal(clock: Clock) -> None:
    """All workers start at once, whatever other responses the service gives, and successes need no report."""
    turns = FixedConcurrency(3, lambda: 1, clock)
    for status in (200, 500, None, 404):
        async with turns:
            turns.report(status, None, 0.1)
    assert not turns.needs_every_result
    assert turns._pace is None


async def test_a_refusal_starts_a_pace_from_what_was_measured(clock: Clock) -> None:
    """The pace that takes over knows what was accepted before the refusal, over the time since the workers began."""
    turns = FixedConcurrency(7, lambda: 40, clock)
    clock.now += 2.0
    await refused(turns)
    assert turns.needs_every_result
    pace = turns._pace
    assert pace is not None
    assert pace.workers == 7
    assert pace.held_until is not None
    clock.now += 0.2
    async with turns:
        turns.report(200, None, 0.01)
    assert pace.limit == pytest.approx(20.0, rel=0.1)


async def test_a_refusal_of_the_first_request_shows_no_limit(clock: Clock) -> None:
    """If nothing was accepted before, the workers start as soon as something is."""
    turns = FixedConcurrency(3, lambda: 0, clock)
    await refused(turns)
    clock.now += 1.0
    async with turns:
        turns.report(200, None, 0.01)
    pace = turns._pace
    assert pace is not None
    assert (pace.limit, pace.workers) == (None, 3)
    for _ in range(9):
        async with turns:
            turns.report(200, None, 0.01)


async def test_after_a_refusal_workers_use_the_pace(clock: Clock) -> None:
    """After the refusal a worker enters the pace, reports its result, and leaves it."""
    turns = FixedConcurrency(4, lambda: 1, clock)
    await refused(turns)
    pace = turns._pace
    assert pace is not None
    assert pace.in_flight == 0
    clock.now += 100
    async with turns:
        assert pace.in_flight == 1
        turns.report(429, 30.0, 0.01)
    assert pace.in_flight == 0
    assert pace.held_until == clock.now + 30.0  # the pace received the second refusal too
    assert turns._pace is pace
    assert turns._paced == set()


async def test_the_pace_lets_workers_wait(clock: Clock) -> None:
    """Who comes too soon after a refusal waits for the pace; a cancelled one leaves nothing behind."""
    turns = FixedConcurrency(4, lambda: 1, clock)
    clock.now += 1.0
    await refused(turns)
    pace = turns._pace
    assert pace is not None
    clock.now += 1.0  # the pause after the refusal
    async with turns:

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
    """A worker that entered before the refusal of another neither reports to the pace nor leaves it."""
    turns = FixedConcurrency(4, lambda: 1, clock)
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
    turns = FixedConcurrency(2, lambda: 1, clock)
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
    turns = FixedConcurrency(1, lambda: 1)
    await refused(turns)
    assert turns.needs_every_result
