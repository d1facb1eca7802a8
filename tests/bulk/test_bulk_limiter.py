"""What the requests of a run wait for besides the service, and how stopping ends the wait."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from bulk_service import drafts, let_run
from virtual_loop import Clock, virtually

from boardclient import AuthenticationError, BulkProgress, Pace, StaticCredentials
from boardclient._pipeline._calls import ConnectionSlots, FifoSemaphore
from boardclient.bulk._hold import Hold
from boardclient.bulk._run_limiter import RunLimiter
from boardclient.bulk.journal import read_rows
from boardclient.errors import Effect, TransportError
from boardclient.testing import BoardService, faults


async def test_a_line_serves_in_order() -> None:
    """At most that many enter at a time, first in first out; a cancelled waiter takes no slot."""
    queue = FifoSemaphore(lambda: 2)
    served: list[int] = []

    async def wait(number: int) -> None:
        await queue.enter()
        served.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(6)]
    await let_run()
    assert served == [0, 1]
    tasks[2].cancel()
    queue.leave()
    await let_run()
    assert served == [0, 1, 3]
    queue.leave()
    tasks[4].cancel()  # it was just let in
    await let_run()
    assert served == [0, 1, 3, 5]


class Limiter:
    """A limiter that lets a task in when the test says so, and notes what happens."""

    def __init__(self) -> None:
        self.waiting = self.inside = 0
        self.exits: list[object] = []
        self.statuses: list[int | None] = []
        self.may_enter = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def __aenter__(self) -> None:
        if self.error is not None:
            raise self.error
        self.waiting += 1
        try:
            await self.may_enter.acquire()
        finally:
            self.waiting -= 1
        self.inside += 1

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.inside -= 1
        self.exits.append(exc_type)

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        self.statuses.append(status)


def held_not() -> Hold:
    return Hold(30.0, lambda: None)


async def enter(limiter: RunLimiter, until: asyncio.Event | None = None) -> None:
    async with limiter:
        limiter.report(200, None, 0.1)
        if until is not None:
            await until.wait()


async def test_few_workers_wait_in_a_limiter_of_the_session() -> None:
    """The others wait in the run's own line, in which they keep their order."""
    shared = Limiter()
    limiter = RunLimiter(None, shared, held_not(), ConnectionSlots(100))
    assert limiter.must_be_entered()
    tasks = [asyncio.create_task(enter(limiter)) for _ in range(50)]
    await let_run()
    assert shared.waiting == 1
    for _ in range(50):
        shared.may_enter.release()
        await let_run()
        assert shared.waiting <= 1
    await asyncio.gather(*tasks)
    assert shared.statuses == [200] * 50
    assert shared.inside == 0


@pytest.mark.parametrize(("rate", "most"), [(1.0, 1), (1000.0, 21)])
async def test_as_many_wait_for_a_shared_pace_as_start_soon(rate: float, most: int) -> None:
    """At a high rate more attempts wait in its queue, so that none of its starts is missed."""
    pace = Pace(start_rate=rate, max_in_flight=1)
    until = asyncio.Event()
    limiter = RunLimiter(None, pace, held_not(), ConnectionSlots(100))
    tasks = [asyncio.create_task(enter(limiter, until)) for _ in range(60)]
    await let_run()
    assert f"{most} waiting" in repr(pace)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert "0 of" in repr(pace)
    assert "0 waiting" in repr(pace)


async def test_two_runs_on_one_pool_share_its_connections() -> None:
    """Two runs on one pool share its connections; a single one that fits never enters a limiter."""
    slots = ConnectionSlots(3)
    until = asyncio.Event()
    one, two = (RunLimiter(None, None, held_not(), slots) for _ in range(2))
    slots.wanted = 3
    assert not one.must_be_entered()
    slots.wanted = 6
    assert one.must_be_entered()
    tasks = [asyncio.create_task(enter(limiter, until)) for limiter in (one, two, one, two)]
    await let_run()
    tasks[3].cancel()
    until.set()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [False, False, False, True]
    await enter(one)


async def test_what_was_entered_is_left_again() -> None:
    """Whichever of the parts fails, or is cancelled, those before it are given back."""
    own, shared, slots = Limiter(), Limiter(), ConnectionSlots(1)
    limiter = RunLimiter(own, shared, held_not(), slots)  # type: ignore[arg-type]  # -- the run's own is a pace
    own.may_enter = shared.may_enter = asyncio.Semaphore(100)
    until = asyncio.Event()
    first = asyncio.create_task(enter(limiter, until))
    await let_run()
    second = asyncio.create_task(enter(limiter))  # waits for its place
    await let_run()
    assert (own.inside, shared.inside) == (2, 2)
    second.cancel()
    await let_run()
    assert (own.inside, shared.inside) == (1, 1)
    shared.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await enter(limiter)
    until.set()
    await first
    assert (own.inside, shared.inside) == (0, 0)


async def test_a_shared_pace_without_a_rate_lets_its_workers_wait() -> None:
    """As long as a pace limits only the attempts in flight, as many attempts of a run wait in its queue."""
    pace = Pace(max_in_flight=8)
    limiter = RunLimiter(None, pace, held_not(), ConnectionSlots(100))
    until = asyncio.Event()
    tasks = [asyncio.create_task(enter(limiter, until)) for _ in range(60)]
    await let_run()
    assert repr(pace).endswith("8 of 8 in flight, 8 waiting>")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_hold_is_waited_for_by_attempts_that_no_limiter_limits() -> None:
    """While a run is held its attempts enter the limiter, in which they wait for the hold, and afterwards they don't."""
    hold = held_not()
    limiter = RunLimiter(None, None, hold, ConnectionSlots(100))
    assert not limiter.must_be_entered()
    hold.note_failure(TransportError("refused", "connect", effect=Effect.NOT_SENT))
    assert limiter.must_be_entered()
    hold.note_success()
    assert not limiter.must_be_entered()


@virtually
async def test_a_hold_that_begins_again_is_waited_for_again() -> None:
    """An attempt that waited for a hold, and then for the limiter, waits for another hold that has begun meanwhile."""
    shared, hold = Limiter(), held_not()
    limiter = RunLimiter(None, shared, hold, ConnectionSlots(1))
    until = asyncio.Event()
    task = asyncio.create_task(enter(limiter, until))
    await let_run()
    for number in (1, 2):
        hold.note_failure(TransportError("refused", "connect", effect=Effect.NOT_SENT))
        shared.may_enter.release()
        await let_run()
        assert (shared.inside, len(shared.exits)) == (0, number)
        hold.note_success()
        await let_run()
    until.set()
    shared.may_enter.release()
    await task


@virtually
async def test_a_permit_that_comes_in_a_hold_is_returned() -> None:
    """An attempt that waits for the limiter when a hold begins waits for the hold, and then for the limiter again."""
    shared, hold = Limiter(), held_not()
    limiter = RunLimiter(None, shared, hold, ConnectionSlots(1))
    task = asyncio.create_task(enter(limiter))
    await let_run()
    hold.note_failure(TransportError("refused", "connect", effect=Effect.NOT_SENT))
    shared.may_enter.release()
    await let_run()
    assert (shared.inside, len(shared.exits)) == (0, 1)
    hold.note_success()
    shared.may_enter.release()
    await task
    assert len(shared.exits) == 2


@pytest.mark.parametrize("concurrency", [None, 8])
async def test_progress_says_that_the_service_asked_for_a_pause(
    service: BoardService, list_id: str, concurrency: int | None
) -> None:
    """While Retry-After holds all starts, `waiting_for` says so, and listeners are notified at once."""
    service.faults.add(faults.status(429, headers={"Retry-After": "3600"}), "cards.create", call=range(4, 1000))
    is_reported = asyncio.Event()

    def tell(progress: BulkProgress) -> None:
        if progress.waiting_for == "retry-after":
            is_reported.set()

    async with service.session() as session:
        run = session.cards.create_many(drafts(list_id, 300), concurrency=concurrency, on_progress=tell)
        async with run:
            async with asyncio.timeout(20.0):
                await is_reported.wait()
            assert run.progress.waiting_for == "retry-after"
        assert run.progress.waiting_for is None


# --- whole runs


async def test_a_run_starves_no_other_call(service: BoardService, list_id: str) -> None:
    """Another call of the session hardly waits behind a run of a hundred workers."""
    pace = Pace(start_rate=20.0)
    async with service.session(limiter=pace) as session, session.cards.create_many(drafts(list_id, 500)) as run:
        await service.received("cards.create", 3)
        before = len(service.calls_of("cards.create"))
        await session.members.me()
        assert len(service.calls_of("cards.create")) - before < 10
        run.stop()


@pytest.mark.parametrize(
    ("limiter", "cards"),
    [(lambda: None, 30), (lambda: Pace(start_rate=0.05), 1), (lambda: asyncio.Semaphore(0), 0)],
    ids=["own pace", "shared pace", "semaphore"],
)
async def test_stopping_sends_nothing_more(
    limiter: Callable[[], Any], cards: int, service: BoardService, list_id: str, path: Path
) -> None:
    """Rows that wait for the limiter are not sent; the iteration ends at once, and no row is in doubt."""
    service.faults.add(faults.status(429, headers={"Retry-After": "3600"}), "cards.create", call=range(4, 1000))
    async with (
        service.session(limiter=limiter(), timeout=600.0) as session,
        session.cards.create_many(drafts(list_id, 300), journal=path) as run,
    ):
        if cards:
            await service.received("cards.create", 1)
        assert run._open is not None
        while not len(session._core.in_flight):
            await asyncio.sleep(0)
        await let_run()
        sent = len(service.calls_of("cards.create"))
        run.stop()
        async with asyncio.timeout(60):
            report = await run.wait()
        assert len(service.calls_of("cards.create")) <= min(sent + 16, cards)
    assert report.unknown == 0
    assert {row.state for row in read_rows(path)} <= {"done", "waiting"}


async def test_a_refused_token_ends_what_waits(service: BoardService, list_id: str) -> None:
    """A token that is refused is not sent a hundred times more."""
    service.faults.add(faults.status(401), "cards.create", call=range(3, 1000))
    pace = Pace(start_rate=200.0, max_in_flight=4)
    credentials = StaticCredentials(service.token, service.key)
    async with service.session(credentials, retry=None, limiter=pace) as session:
        with pytest.raises(AuthenticationError):
            await session.cards.create_many(drafts(list_id, 500)).wait()
    assert len(service.calls_of("cards.create")) <= 2 + 4


@pytest.mark.parametrize("runs", [1, 2])
async def test_more_workers_than_connections(service: BoardService, list_id: str, loop_clock: Clock, runs: int) -> None:
    """The wait for a connection is not a row's: with ten workers for each connection none runs into its deadline."""
    service.sleep = loop_clock.sleep
    service.faults.add(faults.delay_answer(0.02), "cards.create", times=10_000)
    async with service.session(max_connections=3, timeout=0.2, retry=None) as session:
        made = [session.cards.create_many(drafts(list_id, 45 // runs), concurrency=30) for _ in range(runs)]
        reports = await asyncio.gather(*(run.wait() for run in made))
    assert sum(report.created for report in reports) == 45 // runs * runs
