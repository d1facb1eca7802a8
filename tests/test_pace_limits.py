"""The limits that a pace finds and follows, at services of many kinds, as the tasks that use it meet them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from pace_simulation import AtATime, Bucket, Erratic, Open, Outcome, Part, Service, Shut, SlidingWindow, Together, Window, served
from virtual_loop import VirtualLoop, virtually

from boardclient import ApiError, AsyncSession, Pace, StaticCredentials


def build(kind: str, limit: float) -> Service:
    """Return a service with a limit a second."""
    return {
        "bucket": lambda: Bucket(limit),
        "large bucket": lambda: Bucket(limit, burst=5.0),
        "small bucket": lambda: Bucket(limit, burst=0.1),
        "window": lambda: Window(limit),
        "long window": lambda: Window(limit, seconds=3.0),
        "sliding window": lambda: SlidingWindow(limit),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "limit", "latency", "tells"),
    [
        ("bucket", 5, 0.2, False),
        ("bucket", 20, 0.02, False),
        ("bucket", 20, 0.2, True),
        ("bucket", 100, 0.05, False),
        ("window", 20, 0.02, True),
        ("window", 20, 0.2, False),
        ("window", 100, 0.05, False),
        ("large bucket", 20, 0.05, False),
        ("small bucket", 100, 0.2, False),
        ("long window", 100, 0.05, True),
        ("sliding window", 20, 0.05, False),
    ],
)
def test_a_hidden_limit_is_used_with_few_refusals(kind: str, limit: float, latency: float, tells: bool) -> None:
    """After 15 s at least 90 in 100 of what the service takes are used, and at most 2 in 100 requests are refused."""
    outcome = served(build(kind, limit), 75.0, latency=latency, tells=tells)
    assert outcome.accepted(15, 75) >= 0.9 * limit
    assert outcome.refused(15, 75) <= 0.02


@pytest.mark.parametrize("kind", ["bucket", "small bucket", "window"])
def test_a_slow_beginning_is_not_taken_for_a_low_limit(kind: str) -> None:
    """A request a second and then many more: as much of the limit is used as if the first ones had not been."""
    assert served(build(kind, 100), 15.0, rests=(0.0, 5.0)).accepted(5, 15) >= 90


@pytest.mark.parametrize("kind", ["bucket", "window"])
@pytest.mark.parametrize(("limit", "new"), [(20, 40), (40, 20), (100, 25)])
def test_a_limit_that_changes_is_followed(kind: str, limit: float, new: float) -> None:
    """Within 25 s of a change the new limit is used like the old one was."""
    outcome = served(build(kind, limit), 85.0, changes=[(35.0, new)])
    assert outcome.accepted(60, 85) >= 0.85 * new
    assert outcome.refused(60, 85) <= 0.03


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("limit", [None, 50])
def test_refusals_at_any_rate_do_not_stop_a_pace(share: float, limit: int | None) -> None:
    """Where a few in 100 are refused whatever the rate, most of what the service takes is used, and no more are refused."""
    outcome = served(Erratic(share, Open() if limit is None else Bucket(limit), 7), 90.0, workers=10, latency=0.2)
    assert outcome.accepted(30, 90) >= 0.6 * 50
    assert outcome.refused(30, 90) <= share + 0.08


def test_refusals_that_end_are_no_longer_expected() -> None:
    """After a time of refusals at any rate the whole limit is used again."""

    class Fading(Erratic):
        def refuse(self, now: float) -> float | None:
            return super().refuse(now) if now < 30 else self._inner.refuse(now)

    outcome = served(Fading(0.1, Bucket(100), 7), 120.0)
    assert outcome.accepted(80, 120) >= 0.85 * 100
    assert outcome.refused(80, 120) <= 0.03


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_limit_on_one_list_is_not_refused_for_ever(share: float) -> None:
    """Where a share of the requests has a limit of its own, the others keep its pace, and few are refused."""
    outcome = served(Part(share, Bucket(20)), 90.0, workers=20, latency=0.1)
    assert outcome.accepted(30, 90) >= 0.8 * 20 / share
    assert outcome.refused(30, 90) <= 0.05


def test_one_isolated_refusal_says_nothing() -> None:
    """A service that refuses one of its first hundred requests is used as if it had not."""

    class Once(Open):
        count = 0

        def refuse(self, now: float) -> float | None:
            self.count += 1
            return 0.5 if self.count == 60 else None

    outcome, plain = (served(service, 20.0, workers=20, latency=0.1) for service in (Once(), Open()))
    assert outcome.accepted(0, 20) >= 0.95 * plain.accepted(0, 20)


@pytest.mark.parametrize("workers", [10, 40])
def test_a_service_that_fails_for_moments_is_used_between_them(workers: int) -> None:
    """Half a second of 503 every 4 s takes little more than that time."""
    outcome = served(
        Open(), 32.0, workers=workers, latency=0.1, status=lambda now: 503 if now % 4 > 3.5 else 200
    )  # 7 in 8 of the time it responds
    assert outcome.succeeded(4, 32) >= 0.75 * 7 / 8 * workers / 0.1


@virtually
async def test_an_outage_before_which_nothing_was_accepted_says_nothing_of_a_limit() -> None:
    """Also if some of the first requests were accepted in it."""
    clock = asyncio.get_running_loop().time
    pace = Pace()

    async def send(status: int) -> None:
        async with pace:
            await asyncio.sleep(0.004)
            pace.report(status, None, 0.004)

    await asyncio.gather(*map(send, [503, 200, 503, 200, 503, 200]))
    began = clock()
    for _ in range(5):
        await send(200)
    assert clock() - began < 1


def test_503_with_retry_after_is_a_refusal_like_429() -> None:
    """A service that refuses with 503 and Retry-After what is too fast gets hardly any such request after the first seconds."""
    outcome = served(Bucket(50), 60.0, refusal=503, tells=True)
    assert outcome.accepted(15, 60) >= 0.95 * 50
    assert outcome.refused(15, 60) <= 0.02


def test_an_outage_slows_down_and_passes() -> None:
    """While every response is a 503 much less is sent. Afterwards the limit is used again."""
    outcome = served(Bucket(50), 60.0, status=lambda now: 503 if 20 < now < 30 else 200)
    sent = [sum(begin <= at < begin + 5 for at, _ in outcome.arrivals) / 5 for begin in (15, 25, 50)]
    assert sent[1] < 0.3 * sent[0]
    assert sent[2] >= 0.9 * 50


@pytest.mark.parametrize("lost", [None, 502])
def test_failures_at_any_rate_do_not_slow_a_pace_down(lost: int | None) -> None:
    """Where 3 in 10 responses are lost or a 502 at any rate, most of the limit is still used."""
    chance = random.Random(7)
    outcome = served(Bucket(30), 60.0, status=lambda now: lost if chance.random() < 0.3 else 200)
    assert outcome.accepted(15, 60) >= 0.8 * 30


def test_two_limits_at_once_are_both_kept() -> None:
    """A quota of a minute above a limit of a second is used evenly."""
    outcome = served(Together(Bucket(50), Window(20, 60.0, 10.0)), 240.0)
    assert outcome.accepted(120, 240) >= 0.8 * 20
    assert outcome.refused(120, 240) <= 0.05


@pytest.mark.parametrize("places", [2, 5, 20])
def test_a_limit_of_requests_at_a_time_is_used(places: int) -> None:
    """A service that accepts so many at a time is kept busy, with few refusals."""
    outcome = served(AtATime(places, 0.05), 60.0, latency=0.06)
    assert outcome.accepted(15, 60) >= 0.7 * places / 0.06
    assert outcome.refused(15, 60) <= 0.02


@pytest.mark.parametrize(("wire", "is_late"), [(0.001, False), (0.01, True), (0.02, False)])
@pytest.mark.parametrize("places", [3, 8, 20, 60])
@virtually
async def test_a_run_finds_how_many_requests_a_service_accepts_at_a_time(places: int, wire: float, is_late: bool) -> None:
    """It is as fast as with that number of calls, nearly, and there is one burst of refusals, at the start."""
    clock, refused, busy = asyncio.get_running_loop().time, list[float](), 0

    async def call(number: int) -> None:
        nonlocal busy
        await asyncio.sleep(wire / 2)
        busy += 1
        may = busy <= places
        if may or is_late:  # it may count those that it refuses as well
            await asyncio.sleep(0.02)
            may = may if not is_late else busy <= places
        busy -= 1
        await asyncio.sleep(wire / 2)
        if not may:
            refused.append(clock())
            raise ApiError("too many at a time", 429)

    async with AsyncSession(StaticCredentials("token"), "https://board.example") as session:
        results = [result async for result in session.map(call, range(1200))]
    assert {result.error for result in results} == {None}
    assert clock() <= 1200 / places * (0.02 + wire) / 0.85
    burst = [at for at in refused if at < refused[0] + 0.1]
    assert len(burst) <= max(32 - places, 8)
    assert len(refused) - len(burst) <= 10


@pytest.mark.parametrize("tells", [True, False], ids=["Retry-After", "silent"])
def test_a_service_that_is_shut_is_tried_rarely(tells: bool) -> None:
    """Attempts become rarer while everything is refused, and the limit is used when it is open again."""
    outcome = served(Shut(120.0, Bucket(20), begin=20.0), 200.0, tells=tells)
    assert sum(60 < at < 120 for at, _ in outcome.arrivals) <= 6
    assert outcome.accepted(170, 200) >= 0.85 * 20


@pytest.mark.parametrize("lie", [0.0, 0.001])
def test_a_service_that_is_shut_and_asks_for_no_pause_is_tried_rarely(lie: float) -> None:
    """So does one that rounds down, or whose clock is behind. Once it is open, the limit is used."""
    outcome = served(Shut(120.0, Bucket(20), begin=20.0), 200.0, tells=True, lie=lie)
    assert sum(60 < at < 120 for at, _ in outcome.arrivals) <= (6 if lie == 0.0 else 60 / 0.15)
    assert outcome.accepted(170, 200) >= 0.85 * 20


@pytest.mark.parametrize("lie", [0.0, 60.0])
def test_a_wrong_retry_after_does_little_harm(lie: float) -> None:
    """A bucket that asks for a pause of no or of too many seconds is used."""
    assert served(Bucket(20), 120.0, lie=lie).accepted(20, 120) >= 0.8 * 20
    assert served(Window(20), 300.0, lie=lie).accepted(150, 300) >= 0.4 * 20


@pytest.mark.parametrize("workers", [8, 100])
@pytest.mark.parametrize("kind", ["bucket", "window"])
def test_a_slow_service_is_not_given_up(workers: int, kind: str) -> None:
    """Of one request a second more than half are used, however many wait."""
    assert served(build(kind, 1.0), 60.0, workers=workers).accepted(0, 60) > 0.5


@pytest.mark.parametrize(("servers", "latency"), [(4, 0.05), (16, 0.2)])
def test_a_queue_ends_the_growth(servers: int, latency: float) -> None:
    """A service that lets wait what it can't serve at once is kept busy, with a short queue."""
    outcome = served(Open(), 45.0, latency=latency, servers=servers)
    assert outcome.accepted(15, 45) >= 0.8 * servers / (latency / 2)
    waited = sorted(seconds for at, seconds in outcome.latencies if at > 15)
    assert waited[len(waited) // 2] < 3.5 * latency


def test_a_service_that_became_slower_is_not_taken_for_a_queue_for_ever() -> None:
    """The rate comes back after responses have begun to take four times as long."""
    assert served(Window(50), 60.0, slower=(20.0, 0.2)).accepted(40, 60) >= 0.9 * 50


def test_a_service_that_never_refuses_gets_all_that_may_be_in_flight() -> None:
    """Growth ends where no more may be in flight, and scattered latencies do not stop it."""
    outcome: Outcome = served(Open(), 20.0, workers=50, latency=0.1, jitter=0.9)
    assert outcome.accepted(10, 20) >= 0.85 * 50 / 0.1


def test_a_long_rest_does_not_hide_a_limit_that_rose() -> None:
    """A limit that was doubled during a time of little use is found soon after it."""
    rests: dict[str, Any] = {"rests": (40.0, 85.0)}
    assert served(Window(50), 140.0, changes=[(60.0, 100.0)], **rests).accepted(115, 140) >= 0.9 * 100


def test_a_service_that_refuses_at_first_is_used_later() -> None:
    """Refusals before anything was accepted say nothing about a limit."""
    assert served(Shut(3.0, Bucket(50)), 40.0).accepted(15, 40) >= 0.9 * 50


def test_a_failure_in_the_first_second_is_no_limit() -> None:
    """Moments of 503 while the number of requests in flight still grows cost little more than their time."""
    outcome = served(Open(), 20.0, workers=40, latency=0.1, status=lambda now: 503 if 0.3 < now < 0.8 else 200)
    assert outcome.succeeded(10, 20) >= 0.75 * 40 / 0.1


def test_work_that_comes_in_pieces_does_not_slow_a_pace_down() -> None:
    """The times between them, in which nothing is asked for, are not taken for what a service that became slower can do."""
    loop, pieces = VirtualLoop(), 0

    async def work() -> None:
        nonlocal pieces
        pace = Pace(max_in_flight=30)

        async def request(seconds: float) -> None:
            async with pace:
                await asyncio.sleep(seconds)
                pace.report(200, None, seconds)

        while loop.time() < 40.0:
            await asyncio.gather(*(request(0.02 if loop.time() < 2.0 else 0.04) for _ in range(60)))
            await asyncio.sleep(0.04)
            pieces += loop.time() > 20.0

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())
    assert pieces >= 0.75 * 20.0 / (2 * 0.04 + 0.04)
