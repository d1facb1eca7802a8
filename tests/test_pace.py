"""Pace: the turns that it gives, the loops that it serves, and what it shows of itself."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
import re
from typing import Any

import pytest
from pace_simulation import Bucket, pace_of
from virtual_loop import virtually

from boardclient import AsyncSession, DeadlineError, Effect, Pace, StaticCredentials
from boardclient._pipeline._pace._permits import Permits

# --- turns


@virtually
async def test_permits_are_granted_evenly_and_in_order() -> None:
    """Tasks start one by one, as fast as the rate, in the order in which they came."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(10.0)
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


@virtually
async def test_a_later_task_does_not_overtake_a_due_permit() -> None:
    """A task that comes when a permit is due, but not yet granted, waits behind the others."""
    clock = asyncio.get_running_loop().time
    ahead = 0.0
    pace = pace_of(1.0, clock=lambda: clock() + ahead)
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


@virtually
async def test_no_more_are_in_flight_than_may_be() -> None:
    """Who comes when all places are taken starts when one is given back."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(1000.0, max_in_flight=2)
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


@pytest.mark.parametrize("cancelled", [[1], [3], [1, 2, 3]])
@virtually
async def test_a_cancelled_waiter_uses_no_permit(cancelled: list[int]) -> None:
    """Tasks behind a cancelled one start as if it had never come, and its place is free again."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(10.0)
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


@virtually
async def test_a_permit_granted_with_a_cancellation_passes_to_the_next_task() -> None:
    """A task that is cancelled after its permit was granted, before it ran, returns the permit."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(0.1, max_in_flight=1)
    turns: list[tuple[str, float]] = []

    async def work(name: str) -> None:
        async with pace:
            turns.append((name, clock()))

    await pace.__aenter__()
    second, third = asyncio.create_task(work("second")), asyncio.create_task(work("third"))
    await asyncio.sleep(30.0)
    await pace.__aexit__(None, None, None)  # the second one starts
    assert pace.in_flight == 1
    second.cancel()
    await asyncio.wait([second, third])
    assert turns == [("third", pytest.approx(30.0, abs=0.1))]
    assert pace.in_flight == 0


@pytest.mark.parametrize(("asked", "held"), [(5.0, 5.0), (3600.0, 300.0)])
@virtually
async def test_a_hold_delays_all_waiters_and_ends(asked: float, held: float) -> None:
    """Waiters start after the hold, of five minutes at most; until then the pace says how long it lasts."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(100.0)
    assert pace.held_seconds is None
    async with pace:
        pace.report(200, None, 0.1)
    for _ in range(2):
        async with pace:
            await asyncio.sleep(0.1)
            pace.report(429, asked, 0.1)
    refused_at = clock()
    assert pace.held_seconds == held
    async with pace:
        assert clock() == pytest.approx(refused_at + held, abs=0.02)
        pace.report(200, None, 0.1)
    assert pace.held_seconds is None


@virtually
async def test_a_hold_delays_a_task_that_already_waits() -> None:
    """A task that already waits for a permit waits for the end of a hold as well."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(1.0)

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


@virtually
async def test_a_report_belongs_to_the_innermost_attempt_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a block inside a block the inner attempt is meant, afterwards the outer one."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(10.0)
    told: list[float] = []
    monkeypatch.setattr(Permits, "report", lambda _, attempt, *result: told.append(attempt.started_at))
    async with pace:
        outer = clock()
        await asyncio.sleep(1.0)
        async with pace:
            inner = clock()
            pace.report(200, None, 0.1)
        pace.report(200, None, 0.1)
    assert told == [inner, outer]
    assert pace.in_flight == 0


@virtually
async def test_reports_and_exits_from_elsewhere_are_refused() -> None:
    """A report outside the block, and an exit by another task, say what is wrong."""
    pace = Pace()
    with pytest.raises(RuntimeError, match="inside the Pace's"):
        pace.report(200, None, 0.1)
    await asyncio.create_task(pace.__aenter__())  # type: ignore[arg-type]  # -- any awaitable that is a coroutine does
    with pytest.raises(RuntimeError, match="by the task that entered it"):
        await pace.__aexit__(None, None, None)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e9])
@virtually
async def test_an_impossible_latency_is_ignored(seconds: float) -> None:
    """A clock that was set, or a limiter that reports nonsense, does not change the pace."""
    pace = pace_of(100.0)
    for _ in range(50):
        async with pace:
            pace.report(200, None, seconds)
    assert pace.rate is not None
    assert pace.rate >= 100.0
    assert pace.limit is None


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


@virtually
async def test_a_pace_shows_what_it_knows() -> None:
    """The repr shows rate, limit and attempts in flight; there is no rate while only the latter are limited."""
    assert (Pace().rate, Pace().limit, pace_of(100.0).rate) == (None, None, 100.0)
    assert repr(Pace()) == "<Pace no limit met, 0 of 16 in flight, 0 waiting>"
    assert repr(pace_of(100.0, max_in_flight=8)) == "<Pace 100/s, no limit met, 0 of 8 in flight, 0 waiting>"
    pace = pace_of(100.0, max_in_flight=8)
    for status in (*[200] * 20, 429, 200):
        async with pace:
            pace.report(status, None, 0.1)
    assert re.fullmatch(r"<Pace 7\d(\.\d)?/s, limit about 7\d(\.\d)?/s, 0 of \d in flight, 0 waiting>", repr(pace))


def test_a_pace_can_not_be_pickled() -> None:
    """A pace belongs to its process."""
    with pytest.raises(TypeError, match="build one in each process"):
        pickle.dumps(Pace())


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"max_in_flight": 2.5},
        {"max_in_flight": True},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """An invalid rate or number of attempts is a ValueError."""
    with pytest.raises(ValueError, match=next(iter(options))):
        Pace(**options)


async def test_a_session_reports_to_its_pace(wire: Any) -> None:
    """As `limiter=`, a pace receives successes and refusals, and sessions that share it share what it found."""
    pace = pace_of(1000.0)
    wire.get("http://127.0.0.1/1/members/me?token=t", status=429, headers={"Retry-After": "1"})
    async with AsyncSession(StaticCredentials("t"), "http://127.0.0.1", limiter=pace, retry=None) as session:
        with pytest.raises(Exception, match="429"):
            await session.members.me()
    assert pace.held_seconds is not None
    assert pace.in_flight == 0


@virtually
async def test_a_call_whose_deadline_passes_while_it_waits_was_not_sent() -> None:
    """A call that waits for a permit ends at its deadline, reports that nothing was sent, and leaves the queue."""
    clock = asyncio.get_running_loop().time
    pace = pace_of(0.05)
    async with AsyncSession(StaticCredentials("t"), "http://127.0.0.1:9", limiter=pace, timeout=5.0) as session:
        async with pace:
            with pytest.raises(DeadlineError) as raised:
                await session.members.me()
        assert raised.value.effect is Effect.NOT_SENT
        assert clock() == pytest.approx(5.0, abs=0.1)
        assert pace.in_flight == 0
        assert "0 waiting" in repr(pace)


# --- after a time of refusals


async def _send(pace: Pace, status: int = 200, asked: float | None = None) -> float:
    """Make one attempt, and return the seconds that it waited."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with pace:
        waited = clock() - began
        await asyncio.sleep(0.02)
        pace.report(status, asked, 0.02)
    return waited


async def _refuse(pace: Pace, seconds: float, workers: int = 4) -> None:
    """Have several workers refused for a while."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds

    async def work() -> None:
        while clock() < end:
            await _send(pace, 429)

    await asyncio.gather(*(work() for _ in range(workers)))


@pytest.mark.parametrize("accepted", [0, 1, 3, 100])
@virtually
async def test_calls_do_not_wait_once_a_service_accepts_again(accepted: int) -> None:
    """After 4 s of 429 without Retry-After, whatever was accepted before, no call waits for more than 0.2 s."""
    pace = Pace()
    for _ in range(accepted):
        await _send(pace)
        await asyncio.sleep(2.0)
    await _refuse(pace, 4.0)
    waited = [await _send(pace) for _ in range(20)]
    assert max(waited[1:]) <= 0.2
    await _refuse(pace, 4.0)
    await asyncio.sleep(1.0)
    assert await _send(pace) <= 0.2


@pytest.mark.parametrize("asked", [None, 2.0, 30.0])
@virtually
async def test_a_single_call_waits_no_longer_than_the_service_has_asked_for(asked: float | None) -> None:
    """However low the rate is that was found, a call that comes alone waits for what was asked for, and for nothing else."""
    pace = pace_of(0.06)
    await _send(pace)
    for _ in range(3):
        await _send(pace, 429, asked)
    await asyncio.sleep(0.5)
    assert await _send(pace) <= max(0.2, asked or 0.0)
    await asyncio.sleep(0.5)
    assert await _send(pace) <= 0.2


@virtually
async def test_a_rate_that_nobody_has_refused_for_a_while_rises() -> None:
    """Also if little is sent."""
    pace = Pace()

    async def service(limit: float, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        bucket, end = Bucket(limit), clock() + seconds

        async def work() -> None:
            while clock() < end:
                async with pace:
                    await asyncio.sleep(0.05)
                    pace.report(200 if bucket.refuse(clock()) is None else 429, None, 0.05)

        await asyncio.gather(*(work() for _ in range(20)))

    await service(2.0, 60.0)
    found = pace.limit
    assert found == pytest.approx(2.0, rel=0.2)
    for _ in range(40):
        await asyncio.sleep(10.0)
        await _send(pace)
    assert pace.limit is not None
    assert pace.limit >= 8 * found
    for _ in range(60):
        await asyncio.sleep(10.0)
        await _send(pace)
    begun = asyncio.get_running_loop().time()
    await asyncio.gather(*(_send(pace) for _ in range(50)))
    assert asyncio.get_running_loop().time() - begun <= 1.0
