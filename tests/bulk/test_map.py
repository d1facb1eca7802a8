"""Calls in bulk: `session.map`."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from virtual_loop import virtually
from waiting import until

from boardclient import ApiError, AsyncSession, CardDraft, NotFoundError, Pace, RateLimitError, StaticCredentials
from boardclient.testing import BoardService, faults


@pytest.mark.parametrize("concurrency", [None, 1, 3])
async def test_each_item_has_a_result(
    concurrency: int | None, service: BoardService, session: AsyncSession, list_id: str
) -> None:
    """One item's exception is its result's error, and the others continue."""
    async with session.cards.create_many([CardDraft(name, list_id) for name in "abcd"]) as run:
        cards = [result.card.id async for result in run if result.card]
    ids = [*cards[:2], "unknown", *cards[2:]]
    results = {result.index: result async for result in session.map(session.cards.delete, ids, concurrency)}
    assert [results[index].item for index in range(5)] == ids
    assert isinstance(results.pop(2).error, NotFoundError)
    assert {result.error for result in results.values()} == {None}
    assert not service.rules.cards


async def test_items_are_taken_lazily_and_calls_are_bounded(session: AsyncSession) -> None:
    """However many there are, in any iterable: no more than are called, and as many as results wait to be taken."""
    taken = running = most = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for item in range(1, 1000):
            taken = item
            yield item

    async def aitems() -> AsyncIterator[int]:
        for item in items():
            yield item

    async def double(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 2 * item

    for source in (items(), aitems()):
        async with aclosing(session.map(double, source, 3)) as results:
            first = await anext(results)
            assert first.value == 2 * first.item
            for _ in range(50):
                await asyncio.sleep(0)
            assert taken <= 10
            assert len([result async for result in results]) == 998
        assert most == 3


async def test_results_come_in_the_order_of_completion(session: AsyncSession) -> None:
    """A slow call holds no other up."""
    may_end = asyncio.Event()

    async def call(item: str) -> str:
        if item == "slow":
            await may_end.wait()
        return item

    async with aclosing(session.map(call, ["slow", "a", "b"], 2)) as results:
        assert [(await anext(results)).value, (await anext(results)).value] == ["a", "b"]
        may_end.set()
        assert [result.value async for result in results] == ["slow"]


async def test_results_wait_to_be_taken(session: AsyncSession) -> None:
    """No result is lost if all calls have ended while an earlier result is handled."""

    async def call(item: int) -> int:
        return item

    values = []
    async for result in session.map(call, range(4), 3):
        values.append(result.value)
        for _ in range(50):
            await asyncio.sleep(0)
    assert sorted(values, key=str) == [0, 1, 2, 3]


async def test_leaving_cancels_what_is_in_flight(session: AsyncSession) -> None:
    """The calls have ended, and the input is closed, when the block is left."""
    ended: list[object] = []

    async def call(item: int) -> None:
        try:
            if item:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(item)
            raise

    def items() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            ended.append("input")

    async with aclosing(session.map(call, items(), 3)) as results:
        await anext(results)
        await asyncio.sleep(0)
    assert ended.pop() == "input"
    assert set(ended) <= {1, 2, 3}
    assert ended


async def test_an_input_that_raises_ends_the_iteration(session: AsyncSession) -> None:
    """Its error is raised after the results until then. A function that raises a cancellation does not end it."""

    async def call(item: int) -> int:
        if item == 1:
            raise asyncio.CancelledError
        return item

    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        async for result in session.map(call, items(), 1):
            seen.append((result.value, type(result.error)))
    assert seen == [(0, type(None)), (None, RuntimeError), (2, type(None))]
    with pytest.raises(ValueError, match="concurrency"):
        session.map(call, [], 0)
    assert [result async for result in session.map(call, [])] == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_calls_in_flight_end_before_the_error_of_the_input(session: AsyncSession, is_async: bool) -> None:
    """The items before the one that could not be read have results, however long their calls take."""
    has_raised = asyncio.Event()

    def items() -> Iterator[int]:
        yield from range(3)
        has_raised.set()
        raise OSError("the disk is gone")

    async def aitems() -> AsyncIterator[int]:
        for item in items():
            yield item

    async def call(item: int) -> int:
        await has_raised.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return item

    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        async for result in session.map(call, aitems() if is_async else items(), 5):
            seen.append(result.value)
    assert sorted(seen, key=str) == [0, 1, 2]


async def test_a_task_is_started_for_an_item_and_not_for_a_place(session: AsyncSession) -> None:
    """A high concurrency costs nothing while there are few items."""
    most = 0

    async def call(item: int) -> None:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))

    assert len([result async for result in session.map(call, range(10), 10_000)]) == 10
    assert most < 20


async def test_a_second_cancellation_waits_for_the_input_too(session: AsyncSession) -> None:
    """However often the iteration is cancelled, its calls and the cleanup of its input have ended when it is left."""
    ended: list[object] = []

    async def slowly(what: object) -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue
        ended.append(what)

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            await slowly("input")

    async def call(item: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await slowly(item)

    async def iterate() -> None:
        async with aclosing(session.map(call, items(), 2)) as results:
            await anext(results)

    iterating = asyncio.create_task(iterate())
    for _ in range(10):
        await asyncio.sleep(0)
    await until(lambda: not iterating.cancel())
    assert iterating.cancelled()
    assert ended == [1, "input"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_call_that_cancels_its_task_is_not_lost_silently(session: AsyncSession) -> None:
    """The other items have results, and the iteration ends with an error that says so."""

    async def call(item: int) -> int:
        if item == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return item

    seen = []
    with pytest.raises(RuntimeError, match="cancelled by something other than its map"):
        async for result in session.map(call, range(5), 2):
            seen.append(result.value)
    assert seen == [0, 2, 3, 4]


class Limited:
    """A function that is refused with a status above `rate` calls a second. It counts the calls."""

    def __init__(self, rate: float = 1e9, status: int = 429) -> None:
        self.rate, self.status = rate, status
        self.tokens, self.at = rate, asyncio.get_running_loop().time()
        self.running = self.most = self.accepted = self.refused = 0

    async def __call__(self, item: int) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.05)
        self.running -= 1
        now = asyncio.get_running_loop().time()
        self.tokens, self.at = min(self.rate, self.tokens + (now - self.at) * self.rate), now
        if self.tokens < 1:
            self.refused += 1
            raise ApiError("too many requests", self.status)
        self.tokens -= 1
        self.accepted += 1


@virtually
async def test_more_calls_are_made_at_a_time_while_that_is_faster() -> None:
    """32 at first, as many as connections at last, and no pace holds them up before one is refused."""
    async with AsyncSession(StaticCredentials("token"), "https://board.example") as session:
        call = Limited()
        async with aclosing(session.map(call, range(10_000))) as results:
            await anext(results)
            assert call.most == 32
            async for _ in results:
                pass
        assert call.most == 100
        assert asyncio.get_running_loop().time() < 1.1 * 10_000 / 100 * 0.05


@pytest.mark.parametrize("rate", [20.0, 100.0])
@pytest.mark.parametrize(("status", "most"), [(429, 0.05), (503, 0.2)])
@virtually
async def test_calls_slow_down_once_one_is_refused(rate: float, status: int, most: float) -> None:
    """After the first refusals nearly all calls are accepted, and nearly as many as the service allows."""
    async with AsyncSession(StaticCredentials("token"), "https://board.example") as session:
        call = Limited(rate, status)
        number = int(60 * rate)
        results = [result async for result in session.map(call, range(number))]
        assert len(results) == number
        assert call.refused < most * number
        assert call.accepted > 0.85 * rate * asyncio.get_running_loop().time()


@pytest.mark.parametrize("concurrency", [None, 10])
@virtually
async def test_no_item_fails_because_too_much_was_asked(concurrency: int | None) -> None:
    """A function that is refused with 429 is called again at the pace, also with a fixed number of calls at a time."""
    async with AsyncSession(StaticCredentials("token"), "https://board.example") as session:
        call = Limited(20.0)
        results = [result async for result in session.map(call, range(400), concurrency)]
        assert sorted(result.index for result in results) == list(range(400))
        assert {result.error for result in results} == {None}
        assert call.accepted == 400
        assert call.refused < 60
        assert asyncio.get_running_loop().time() < 400 / 20 * 1.2


@virtually
async def test_an_item_that_is_refused_for_too_long_fails() -> None:
    """Five minutes of 429, or a pause that the service asks for beyond them, are the end."""
    asked: list[float | None] = [None, 3600.0]

    async def refused(item: int) -> None:
        raise ApiError("too many requests", 429, retry_after=asked[item])

    async with AsyncSession(StaticCredentials("token"), "https://board.example") as session:
        results = [result async for result in session.map(refused, range(2))]
        assert [result.index for result in results] == [1, 0]
        assert all(isinstance(result.error, ApiError) for result in results)
        assert asyncio.get_running_loop().time() == pytest.approx(300, abs=31)


@pytest.mark.full
@pytest.mark.parametrize(("concurrency", "limiter"), [(None, False), (4, False), (None, True)])
async def test_calls_of_a_function_that_are_refused_are_made_again(
    concurrency: int | None, limiter: bool, service: BoardService, session: AsyncSession, list_id: str
) -> None:
    """Each alone: what the function has done before is not done again, and no retry policy is needed."""
    for operation in ("cards.create", "cards.get"):
        service.faults.add(faults.status(429), operation, call=[2, 3, 9, 40])
    session = session.with_options(retry=None, **({"limiter": Pace()} if limiter else {}))

    async def call(number: int) -> str:
        card = await session.cards.create(f"card {number}", list_id=list_id)
        return (await session.cards.get(card.id)).name

    results = [result async for result in session.map(call, range(100), concurrency)]
    assert {result.error for result in results} == {None}
    assert sorted(card.name for card in service.rules.cards.values()) == sorted(f"card {number}" for number in range(100))
    assert sum(call.status == 429 for call in service.calls) == 8


async def test_calls_wait_for_the_map_s_pace_and_for_the_session_s_limiter(service: BoardService, session: AsyncSession) -> None:
    """Once a call is refused the map has a pace of its own, beside the limiter that the application has given."""
    service.faults.add(faults.status(429, {"Retry-After": "0"}), "members.me", call=2)
    limiter, entered = asyncio.Semaphore(2), 0

    class Counted:
        async def __aenter__(self) -> None:
            nonlocal entered
            await limiter.acquire()
            entered += 1

        async def __aexit__(self, *exc: object) -> None:
            limiter.release()

    limited = session.with_options(retry=None, limiter=Counted())

    async def call(number: int) -> str:
        return (await limited.members.me()).id

    results = [result async for result in limited.map(call, range(6), 2)]
    assert {result.error for result in results} == {None}
    assert (entered, len(service.calls)) == (7, 7)


@virtually
async def test_functions_without_calls_are_paced_once_one_is_refused() -> None:
    """The pace learns from each of their results, whether they call a service that this library knows or not."""
    async with AsyncSession(StaticCredentials("token"), "https://board.example") as session:
        outcomes: dict[int, Exception] = {1: ApiError("too many requests", 429), 3: ValueError("a row that is wrong")}

        async def call(item: int) -> int:
            if (error := outcomes.pop(item, None)) is not None:
                raise error
            return item

        results = {result.index: result.error async for result in session.map(call, range(6), 1)}
        assert {index: type(error).__name__ for index, error in results.items() if error is not None} == {3: "ValueError"}


async def test_calls_to_another_session_keep_their_own_limits(service: BoardService, session: AsyncSession, list_id: str) -> None:
    """A refusal there is an error, and a bulk run within a function has its own pace."""
    async with BoardService() as other, other.session(retry=None) as elsewhere:
        other.faults.rate_limit = faults.rate_limit(0.001, burst=1)

        async def call(number: int) -> None:
            await session.cards.create_many([CardDraft(f"card {number}", list_id)]).wait()
            await elsewhere.members.me()

        results = [result async for result in session.map(call, range(3), 1)]
        assert [type(result.error) for result in results] == [type(None), RateLimitError, RateLimitError]
        assert len(service.rules.cards) == 3


async def _double(item: int) -> int:
    return 2 * item


async def _yield(item: int) -> AsyncIterator[int]:
    yield item


async def test_what_can_t_be_mapped_is_refused_at_once(session: AsyncSession) -> None:
    """A call in place of its function, a generator function, and what is no iterable."""
    called = _double(1)
    wrong: list[tuple[Any, Any, str]] = [
        (called, [1], "pass the function itself"),
        ("get", [1], "must be a function of an item, not str"),
        (None, [1], "must be a function of an item, not NoneType"),
        (_yield, [1], "a generator function does not"),
        (_double, 5, "items must be an iterable or asynchronous iterable, not int"),
    ]
    for function, items, words in wrong:
        with pytest.raises(TypeError, match=words):
            session.map(function, items)
    called.close()


async def test_a_function_whose_result_can_t_be_awaited_ends_the_map(session: AsyncSession) -> None:
    """It is no failure of an item: it would be that of each."""
    function: Any = len
    with pytest.raises(TypeError, match="function must return what is awaited, not int"):
        [result async for result in session.map(function, ["a", "b"])]


async def test_a_map_that_nobody_iterates_warns(session: AsyncSession) -> None:
    """No call was made. One that is begun or closed does not warn."""
    with pytest.warns(ResourceWarning, match="no call was made"):  # noqa: PT031 -- it warns when it is collected
        session.map(_double, [1])
        gc.collect()
    await session.map(_double, [1]).aclose()
    with pytest.raises(ZeroDivisionError):
        await session.map(_double, [1]).athrow(ZeroDivisionError())
    assert [result.value async for result in session.map(_double, [1])] == [2]
