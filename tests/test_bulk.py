"""Bulk creation: laziness, order, back-pressure, errors as results, and an end that never hangs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from tenacity import AsyncRetrying, stop_after_attempt, wait_none

from boardclient import (
    AsyncSession,
    Attempt,
    AuthenticationError,
    BadRequestError,
    BulkProgress,
    BulkReport,
    BulkRun,
    Card,
    CardDraft,
    CredentialError,
    DecodeError,
    Effect,
    SessionClosedError,
    StaticCredentials,
    TransportError,
)
from boardclient._messages import Request
from boardclient._pipeline._options import CallOptions
from boardclient._pipeline._places import Places
from boardclient.bulk._options import make_options
from boardclient.retry import when_safe
from boardclient.testing import BoardService, faults


@pytest.fixture
async def session(service: BoardService) -> AsyncIterator[AsyncSession]:
    async with service.session(retry=None) as opened:
        yield opened


@pytest.fixture
async def list_id(session: AsyncSession) -> str:
    board = await session.boards.create("Board")
    return (await session.lists.create("List", board_id=board.id)).id


def drafts(list_id: str, number: int, note: Callable[[int], object] = lambda index: None) -> Iterator[CardDraft]:
    for index in range(number):
        note(index)
        yield CardDraft(f"card {index}", list_id)


async def adrafts(list_id: str, number: int) -> AsyncIterator[CardDraft]:
    for index in range(number):
        await asyncio.sleep(0)
        yield CardDraft(f"card {index}", list_id)


class Service:
    """A service in memory, for what needs no socket: it creates a card when the test says so, and counts."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.under_way = self.most = 0
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.may_end = asyncio.Event()
        self.errors: dict[str, BaseException] = {}
        self.told: list[BulkProgress] = []

    timeout = 30.0
    max_connections = 16
    places = Places(16)
    limiter = None
    is_observed = False
    identity: Mapping[str, str] = {}

    def notify(self, event: object) -> None: ...

    async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
        name = json.loads(request.body or b"")["name"]
        self.begun.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.waits:
                await self.may_end.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.under_way -= 1
        if name in self.errors:
            raise self.errors[name]
        return Card(name)

    def run(self, source: Any, concurrency: int | None = None, on_progress: Any = None) -> BulkRun:
        listeners = [self.told.append] if on_progress is None else [on_progress, self.told.append]
        plan = make_options(
            self, source, concurrency=concurrency, journal=None, board_id=None, unknown=None, marker=None, settle=None
        )
        return BulkRun(self, source, plan, listeners)


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("concurrency", [None, 1, 3, 40])
@pytest.mark.parametrize("kind", ["list", "generator", "asynchronous generator", "iterable"])
async def test_every_card_is_created_once(
    kind: str, concurrency: int | None, service: BoardService, session: AsyncSession, list_id: str
) -> None:
    """Whatever the input and the number of workers, each draft gives one card and one result with its index."""

    class Rows:
        def __iter__(self) -> Iterator[CardDraft]:
            return drafts(list_id, 30)

    source = {
        "list": lambda: list(drafts(list_id, 30)),
        "generator": lambda: drafts(list_id, 30),
        "asynchronous generator": lambda: adrafts(list_id, 30),
        "iterable": Rows,
    }[kind]()
    results = {}
    async with session.cards.create_many(source, concurrency=concurrency) as run:
        async for result in run:
            assert result.state == "created"
            assert result.error is None
            assert result.card is not None
            assert result.card.name == result.draft.name == f"card {result.index}"
            results[result.index] = result
        assert run.progress.total == (30 if kind == "list" else None)
    assert sorted(results) == list(range(30))
    assert len(service.rules.cards) == 30
    service.assert_no_duplicates()
    report = run.report
    assert (report.created, report.already, report.failed, report.unknown) == (30, 0, 0, 0)
    assert (report.requests, report.rejected) == (30, 0)
    assert report.seconds > 0
    assert report.rate == pytest.approx(30 / report.seconds)


async def test_one_worker_keeps_the_order(session: AsyncSession, list_id: str) -> None:
    """With one worker the results come in the order of the input."""
    async with session.cards.create_many(drafts(list_id, 12), concurrency=1) as run:
        assert [result.index async for result in run] == list(range(12))


@pytest.mark.parametrize("source", [[], iter(())])
async def test_empty_input(source: Any, service: BoardService, session: AsyncSession) -> None:
    """No drafts give no results, and a report of zeros."""
    async with session.cards.create_many(source) as run:
        report = await run.wait()
    assert report == BulkReport(seconds=report.seconds)
    assert report.rate == 0
    assert service.requests == 0


async def test_wait_gives_the_report(session: AsyncSession, list_id: str) -> None:
    """`wait()` runs to the end and returns the report, as often as it is asked."""
    async with session.cards.create_many(drafts(list_id, 20)) as run:
        report = await run.wait()
        assert report.created == 20
        assert await run.wait() == report == run.report
        assert [result async for result in run] == []


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_input_is_lazy_and_results_press_back(concurrency: int) -> None:
    """Without a consumer at most workers + queue are pulled; each result taken lets one more in."""
    pulled: list[int] = []
    service = Service()
    async with service.run(drafts("list", 1000, pulled.append), concurrency) as run:
        await settle()
        assert len(pulled) == 2 * concurrency
        taken = 0
        async for _ in run:
            taken += 1
            await settle()
            assert len(pulled) == 2 * concurrency + taken
            if taken == 10:
                break
    assert len(pulled) == 2 * concurrency + 10


async def test_concurrency_is_a_bound_and_is_reached(service: BoardService, session: AsyncSession, list_id: str) -> None:
    """The service never sees more cards at once than there are workers, and sees that many."""
    under_way = most = 0
    reached = asyncio.Event()

    class Together:
        async def play(self, stage: faults.Stage) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            if under_way == 5:
                reached.set()
            await reached.wait()
            under_way -= 1
            await stage.reply_answer()

    service.faults.add(Together(), "cards.create")
    async with session.cards.create_many(drafts(list_id, 60), concurrency=5) as run:
        assert (await run.wait()).created == 60
    assert most == 5


async def test_default_concurrency() -> None:
    """Without a number sixteen workers create cards."""
    service = Service(waits=True)
    async with service.run(drafts("list", 100)):
        await settle()
        assert service.under_way == 16
    assert service.under_way == 0


async def test_errors_of_cards_are_results(service: BoardService, session: AsyncSession, list_id: str) -> None:
    """A card that fails is a result: "failed" where nothing was done, "unknown" where it may have been, and the run goes on."""
    plan: dict[int, faults.Fault] = {
        1: faults.status(400),
        2: faults.status(503),
        3: faults.drop(commit=True),
        4: faults.status(403),
        5: faults.foreign_body(b'{"name": "no id"}'),
        6: faults.foreign_body(b"<html>"),
        7: faults.status(404),
        8: faults.status(408),
        9: faults.redirect("/elsewhere"),
    }
    for number, fault in plan.items():
        service.faults.add(fault, "cards.create", call=number)
    async with session.cards.create_many(drafts(list_id, 10), concurrency=1) as run:
        results = [result async for result in run]
    expected = ["failed", "unknown", "unknown", "failed", "unknown", "unknown", "failed", "unknown", "failed", "created"]
    assert [result.state for result in results] == expected
    assert all((result.error is None) == (result.state == "created") for result in results)
    assert all((result.card is None) == (result.state != "created") for result in results)
    assert isinstance(results[0].error, BadRequestError)
    assert isinstance(results[2].error, TransportError)
    assert isinstance(results[4].error, DecodeError)
    report = run.report
    assert (report.created, report.failed, report.unknown, report.requests, report.rejected) == (1, 4, 5, 10, 0)


async def test_a_refusal_is_the_affair_of_the_pace(service: BoardService, list_id: str) -> None:
    """A card that is answered with 429 is sent again however little the policy repeats, and counts each time."""
    service.faults.add(faults.status(429), "cards.create", times=2)
    async with service.session(retry=None) as session, session.cards.create_many(drafts(list_id, 2), concurrency=2) as run:
        report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (2, 4, 2)


async def test_a_list_that_is_not_on_the_board_is_never_sent(service: BoardService, session: AsyncSession) -> None:
    """A draft for a list elsewhere fails by itself, also where rows are taken without waiting."""
    board = await session.boards.create("Here", default_lists=True)
    elsewhere = await session.boards.create("Elsewhere", default_lists=True)
    here, there = [(await session.boards.lists(one.id))[0].id for one in (board, elsewhere)]
    rows = [CardDraft(f"card {index}", there if index % 3 == 1 else here) for index in range(9)]
    async with session.cards.create_many(rows, concurrency=2, board_id=board.id) as run:
        results = {result.index: result.state async for result in run}
    assert results == {index: "failed" if index % 3 == 1 else "created" for index in range(9)}
    assert len(service.calls_of("cards.create")) == 6


async def test_a_refusal_for_too_long_is_a_failure(service: BoardService, list_id: str) -> None:
    """A card that is to wait for an hour fails at once, is not sent earlier, and holds nobody up."""
    service.faults.add(faults.status(429, headers={"Retry-After": "3600"}), "cards.create", call=1)
    async with service.session() as session, session.cards.create_many(drafts(list_id, 3), concurrency=1) as run:
        results = [result async for result in run]
    assert sorted(result.state for result in results) == ["created", "created", "failed"]
    assert len(service.calls_of("cards.create")) == 3


async def test_a_policy_that_sees_each_attempt_leaves_refusals_to_the_pace(service: BoardService, list_id: str) -> None:
    """Also a policy that is asked from the first attempt on repeats no 429 of a bulk run."""
    seen: list[int] = []
    service.faults.add(faults.status(429), "cards.create", times=1)
    policy = AsyncRetrying(
        retry=when_safe, stop=stop_after_attempt(9), wait=wait_none(), before=lambda state: seen.append(state.attempt_number)
    )
    async with service.session(retry=policy) as session, session.cards.create_many(drafts(list_id, 1), concurrency=1) as run:
        report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (1, 2, 1)
    assert seen == [1, 1]


async def test_report_counts_the_repeats_of_cards_that_succeed(service: BoardService) -> None:
    """A card that succeeds after a refusal counts both its requests, one that succeeds at once counts one."""
    service.faults.add(faults.status(429, headers={"Retry-After": "0"}), "cards.create", call=1)
    async with service.session() as session:
        board = await session.boards.create("Board", default_lists=True)
        todo = (await session.boards.lists(board.id))[0]
        async with session.cards.create_many([CardDraft("a", todo.id), CardDraft("b", todo.id)], concurrency=1) as run:
            report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (2, 3, 1)


async def test_requests_that_never_left_are_not_counted() -> None:
    """A service that can't be reached was sent nothing."""
    credentials = StaticCredentials(token="t")
    async with (
        AsyncSession(credentials, base_url="http://127.0.0.1:1", retry=None, timeout=0.2) as session,
        session.cards.create_many([CardDraft("a", "list")]) as run,
    ):
        report = await run.wait()
    assert (report.failed, report.requests) == (1, 0)


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_refused_credentials_end_the_run(service: BoardService, list_id: str, concurrency: int) -> None:
    """After a 401 no card is begun; the results so far are handed out, then the error is raised."""
    service.faults.add(faults.status(401), "cards.create", call=range(5, 10000))
    async with service.session(StaticCredentials(service.token, service.key), retry=None) as session:
        seen = []
        async with session.cards.create_many(drafts(list_id, 500), concurrency=concurrency) as run:
            with pytest.raises(AuthenticationError):
                async for result in run:
                    seen.append(result)
            with pytest.raises(AuthenticationError):
                await run.wait()
    assert [result.state for result in seen].count("created") == 4
    assert {type(result.error) for result in seen if result.error} == {AuthenticationError}
    assert len(seen) == len(service.calls_of("cards.create")) <= 4 + concurrency
    assert run.report.failed == len(seen) - 4


async def test_failing_provider_ends_the_run(service: BoardService, list_id: str) -> None:
    """A provider that has no credentials ends the run with a CredentialError."""

    class Provider:
        async def acquire(self, exchange: object) -> Any:
            raise LookupError("none")

        async def renew(self, rejected: object, exchange: object) -> Any: ...

    async with service.session(Provider()) as session, session.cards.create_many(drafts(list_id, 50)) as run:
        with pytest.raises(CredentialError):
            await run.wait()
    assert service.calls_of("cards.create") == []


async def test_closed_session_ends_the_run(service: BoardService, list_id: str) -> None:
    """A session that is closed during the run ends it: cards in flight are unknown, and SessionClosedError is raised."""
    service.faults.add(faults.hang(), "cards.create", call=range(3, 1000))
    session = service.session(retry=None)
    states = []
    async with session.cards.create_many(drafts(list_id, 100), concurrency=4) as run:
        await service.received("cards.create", 6)
        await session.aclose()
        with pytest.raises(SessionClosedError):
            async for result in run:
                states.append(result.state)
    assert sorted(states) == ["created", "created", "unknown", "unknown", "unknown", "unknown"]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_faulty_draft_ends_the_run(concurrency: int, asynchronous: bool, session: AsyncSession, list_id: str) -> None:
    """What is no CardDraft is a TypeError that names its place, after the results of the drafts before it."""
    rows: list[Any] = [*drafts(list_id, 6), "no draft", *drafts(list_id, 6)]

    async def source() -> AsyncIterator[CardDraft]:
        for row in rows:
            yield row

    seen = []
    async with session.cards.create_many(source() if asynchronous else rows, concurrency=concurrency) as run:
        with pytest.raises(TypeError, match="draft 6 must be a CardDraft, not str"):
            async for result in run:
                seen.append(result.index)
    assert sorted(seen) == list(range(6))


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_failing_input_ends_the_run(concurrency: int, session: AsyncSession, list_id: str) -> None:
    """What the input raises is raised from the iteration, after the results of the drafts before it."""

    def source() -> Iterator[CardDraft]:
        yield from drafts(list_id, 9)
        raise OSError("the disk is gone")

    seen = []
    async with session.cards.create_many(source(), concurrency=concurrency) as run:
        with pytest.raises(OSError, match="the disk is gone"):
            async for result in run:
                seen.append(result.index)
    assert sorted(seen) == list(range(9))
    assert run.report.created == 9


async def test_fatal_error_stops_an_input_that_waits() -> None:
    """A run does not wait for an input that has nothing to give once an error ended it, and closes the input."""
    closed = []

    async def source() -> AsyncIterator[CardDraft]:
        try:
            yield CardDraft("refused", "list")
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    service = Service()
    service.errors["refused"] = AuthenticationError("401", 401)
    async with service.run(source(), 4) as run:
        with pytest.raises(AuthenticationError):
            await run.wait()
        assert closed == [True]


@pytest.mark.parametrize("taken", [0, 1, 7])
async def test_fatal_error_with_full_results(taken: int) -> None:
    """An error while results wait to be taken loses none of them, wherever the consumer is."""
    service = Service()
    service.errors["card 7"] = CredentialError("none")
    async with service.run(drafts("list", 100), 4) as run:
        await settle()
        for _ in range(taken):
            await anext(run)
            await settle()
        with pytest.raises(CredentialError):
            async for _ in run:
                taken += 1
    assert taken == len(service.begun)
    assert run.report.failed == 1


async def test_input_that_swallows_its_end_sends_nothing_more() -> None:
    """An input that goes on after it was told to stop gets no card created."""

    async def source() -> AsyncIterator[CardDraft]:
        yield CardDraft("refused", "list")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield CardDraft("too late", "list")

    service = Service()
    service.errors["refused"] = AuthenticationError("401", 401)
    async with service.run(source(), 2) as run:
        with pytest.raises(AuthenticationError):
            await run.wait()
    assert service.begun == ["refused"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_leaving_early_cancels_and_closes(asynchronous: bool) -> None:
    """Leaving the block cancels the cards in flight and closes the input generator before it returns."""
    closed = []

    def source() -> Iterator[CardDraft]:
        try:
            yield from drafts("list", 100)
        finally:
            closed.append(True)

    async def asource() -> AsyncIterator[CardDraft]:
        try:
            for draft in drafts("list", 100):
                yield draft
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    service = Service(waits=True)
    async with service.run(asource() if asynchronous else source(), 3) as run:
        await settle()
        assert service.under_way == 3
    assert closed == [True]
    assert sorted(service.cancelled) == service.begun == ["card 0", "card 1", "card 2"]
    assert run.report.created == 0


async def test_leaving_while_the_input_waits_closes_it() -> None:
    """A worker that waits inside an asynchronous generator is no obstacle to closing it."""
    closed = []

    async def source() -> AsyncIterator[CardDraft]:
        try:
            yield CardDraft("first", "list")
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    service = Service()
    async with service.run(source(), 3) as run:
        assert (await anext(run)).index == 0
        await settle()
    assert closed == [True]


async def test_unfinished_cards_in_flight_leave_no_connection(service: BoardService, session: AsyncSession, list_id: str) -> None:
    """Leaving the block gives back the connections of the cards in flight; the session goes on."""
    service.faults.add(faults.hang(), "cards.create", times=4)
    async with session.cards.create_many(drafts(list_id, 10), concurrency=4):
        await service.received("cards.create", 4)
    assert "0 calls" in repr(session)
    assert (await session.cards.create("after", list_id=list_id)).name == "after"


async def test_exception_in_the_block_is_kept() -> None:
    """What the block raises leaves it, after the workers ended."""
    service = Service(waits=True)
    with pytest.raises(KeyError, match="mine"):
        async with service.run(drafts("list", 10), 2):
            await settle()
            raise KeyError("mine")
    assert service.under_way == 0


async def test_cancelled_consumer() -> None:
    """A consumer that is cancelled leaves the block as any other: cards cancelled, input closed."""
    closed = []

    def source() -> Iterator[CardDraft]:
        try:
            yield from drafts("list", 100)
        finally:
            closed.append(True)

    service = Service(waits=True)

    async def consume() -> None:
        async with service.run(source(), 2) as run:
            await run.wait()

    task = asyncio.create_task(consume())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(service.cancelled) == ["card 0", "card 1"]
    assert closed == [True]


async def test_cancelled_while_leaving_still_closes_the_input() -> None:
    """A second cancellation, while the block is being left, still closes the input."""
    closed = []

    class Stubborn(Service):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
            raise AssertionError

    async def source() -> AsyncIterator[CardDraft]:
        try:
            yield CardDraft("first", "list")
        finally:
            closed.append(True)

    async def consume() -> None:
        async with Stubborn().run(source(), 1) as run:
            await run.wait()

    task = asyncio.create_task(consume())
    for _ in range(2):
        await settle()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [True]


async def test_two_consumers_share_the_results() -> None:
    """Two tasks may iterate at once: each result goes to one of them, and both meet the end."""
    service = Service()

    async def consume(run: BulkRun) -> list[int]:
        return [result.index async for result in run]

    async with service.run(drafts("list", 50), 4) as run:
        one, two = await asyncio.gather(consume(run), consume(run))
    assert sorted(one + two) == list(range(50))


async def test_waiting_and_iterating_at_once() -> None:
    """A task that waits takes results from one that iterates, and loses it none of its own; both meet the end."""
    service = Service()
    taken = []

    async def consume() -> None:
        async for result in run:
            taken.append(result.index)
            await asyncio.sleep(0)

    async with service.run(drafts("list", 50), 4) as run:
        _, report = await asyncio.gather(consume(), run.wait())
    assert report.created == 50
    assert taken == sorted(set(taken))


class Instant(Service):
    """A service that answers without letting any other task run."""

    async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
        self.begun.append(json.loads(request.body or b"")["name"])
        return Card(self.begun[-1])


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_service_that_answers_at_once_starves_nobody(concurrency: int) -> None:
    """The consumer has its turn before more results wait than are kept, also one that only waits for the end."""
    service = Instant()
    async with service.run(drafts("list", 100), concurrency) as run:
        taken = 0
        async for _ in run:
            taken += 1
            assert len(service.begun) <= 2 * concurrency + taken
    service = Instant()
    async with service.run(drafts("list", 1000), concurrency) as run:
        waiting = asyncio.create_task(run.wait())
        while not service.begun:
            await asyncio.sleep(0)
        begun = len(service.begun)
        assert begun <= 2 * concurrency
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(service.begun) - begun <= 4 * concurrency
        assert (await waiting).created == 1000


async def test_an_input_that_stops_the_run() -> None:
    """A card that the input gives right after it stopped the run is not begun."""
    service = Instant()

    def source() -> Iterator[CardDraft]:
        for draft in drafts("list", 9):
            if draft.name == "card 3":
                run.stop()
            yield draft

    run = service.run(source(), 1)
    async with run:
        assert (await run.wait()).created == 3
    assert service.begun == ["card 0", "card 1", "card 2"]


async def test_repeats_of_a_card_count_once() -> None:
    """What a call repeated is counted with its own card, and not with the next of the same worker."""
    lost = Attempt(number=1, started_at=datetime.now(UTC), seconds=0.1, effect=Effect.REJECTED, why="", status=429)
    gone = attrs.evolve(lost, number=2, effect=Effect.NOT_SENT, status=None)
    done = attrs.evolve(lost, number=3, effect=Effect.DONE, status=200)

    class Repeating(Service):
        async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
            card = await super().call(request, bulk)
            assert bulk is not None
            assert bulk.history == []
            if card.id == "card 0":
                bulk.history.extend([lost, gone, done])
            return card

    async with Repeating().run(drafts("list", 3), 1) as run:
        report = await run.wait()
    assert (report.created, report.requests, report.rejected) == (3, 2 + 1 + 1, 1)


async def test_iteration_may_be_taken_up_again() -> None:
    """A loop that is left and begun again goes on where it was."""
    async with Service().run(drafts("list", 10), 1) as run:
        async for first in run:
            assert first.index == 0
            break
        assert [result.index async for result in run] == list(range(1, 10))


async def test_run_is_used_once_and_in_its_block() -> None:
    """Iterating outside the block, waiting there and entering twice are RuntimeErrors; the report stays."""
    run = Service().run(drafts("list", 3), 2)
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await anext(run)
    async with run:
        with pytest.raises(RuntimeError, match="runs once"):
            await run.__aenter__()
        await run.wait()
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await run.wait()
    with pytest.raises(RuntimeError, match="runs once"):
        async with run:
            pass
    assert run.report.created == 3


async def test_consumer_in_another_task_ends_with_the_block() -> None:
    """A consumer elsewhere that waits for a result is told when the block is left."""
    service = Service(waits=True)
    async with service.run(drafts("list", 10), 2) as run:
        consumer = asyncio.create_task(run.wait())
        await settle()
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await consumer


async def test_cancellation_from_elsewhere_is_no_silent_loss() -> None:
    """A card whose creation raises CancelledError on its own ends the run with an error instead of vanishing."""
    service = Service()
    service.errors["card 2"] = asyncio.CancelledError()
    async with service.run(drafts("list", 10), 1) as run:
        seen = []
        with pytest.raises(RuntimeError, match="cancelled by something other"):
            async for result in run:
                seen.append(result.index)
    assert seen == [0, 1]


async def test_foreign_exception_of_a_call_ends_the_run() -> None:
    """What is no error of the package, such as a limiter's own, ends the run and is raised; the first one counts."""
    service = Service(waits=True)
    service.errors = {f"card {index}": LookupError(f"limiter {index}") for index in range(3)}
    async with service.run(drafts("list", 10), 3) as run:
        await settle()
        service.may_end.set()
        with pytest.raises(LookupError, match="limiter 0"):
            await run.wait()
    assert len(service.begun) == 3


async def test_progress_is_told_after_each_card(service: BoardService, list_id: str) -> None:
    """`on_progress` and the observers get the numbers after each card."""
    service.faults.add(faults.status(400), "cards.create", call=2)
    service.faults.add(faults.status(500), "cards.create", call=3)
    told: list[BulkProgress] = []
    observed: list[object] = []
    async with (
        service.session(retry=None, observers=[observed.append]) as session,
        session.cards.create_many([*drafts(list_id, 4)], concurrency=1, on_progress=told.append) as run,
    ):
        await run.wait()
        assert run.progress == told[-1]
    assert [(one.done, one.created, one.failed, one.unknown, one.total) for one in told] == [
        (1, 1, 0, 0, 4),
        (2, 1, 1, 0, 4),
        (3, 1, 1, 1, 4),
        (4, 2, 1, 1, 4),
    ]
    assert [event for event in observed if isinstance(event, BulkProgress)] == told
    assert told[-1].remaining_seconds == 0
    assert told[0].remaining_seconds == pytest.approx(3 / told[0].rate)


async def test_failing_on_progress_ends_the_run_and_keeps_the_result() -> None:
    """What `on_progress` raises ends the run; the card it was told of is still handed out."""

    def tell(progress: BulkProgress) -> None:
        if progress.done == 3:
            raise ZeroDivisionError

    service = Service()
    seen = []
    async with service.run(drafts("list", 50), 1, tell) as run:
        with pytest.raises(ZeroDivisionError):
            async for result in run:
                seen.append(result.index)
    assert seen == [0, 1, 2]
    assert service.begun == ["card 0", "card 1", "card 2"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": -1}, ValueError),
        ({"concurrency": True}, ValueError),
        ({"concurrency": 1.5}, ValueError),
        ({"unknown": "never"}, ValueError),
        ({"unknown": "reconcile"}, ValueError),
        ({"board_id": ".."}, ValueError),
        ({"journal": 3}, TypeError),
        ({"marker": "text"}, TypeError),
        ({"settle": -1}, ValueError),
        ({"settle": float("inf")}, ValueError),
        ({"unknown": []}, ValueError),
        ({"drafts": 3}, TypeError),
        ({"on_progress": 3}, TypeError),
    ],
)
async def test_bad_arguments(
    arguments: dict[str, Any], error: type[Exception], service: BoardService, session: AsyncSession
) -> None:
    """A bad argument is refused by `create_many` itself, before anything is sent."""
    with pytest.raises(error):
        session.cards.create_many(**{"drafts": [], **arguments})
    assert service.requests == 0
    assert isinstance(session.cards.create_many([], unknown="report"), BulkRun)


async def test_run_never_entered_leaves_its_input_alone() -> None:
    """A run that is never entered pulls nothing."""
    pulled: list[int] = []
    source = drafts("list", 3, pulled.append)
    Service().run(source)
    assert pulled == []
    assert next(source).name == "card 0"


async def test_many_cards_with_faults(service: BoardService, list_id: str) -> None:
    """Three hundred cards with lost answers: each draft one result, each card at most once, each unknown one accounted for."""
    service.faults.add(faults.drop(commit=True), "cards.create", call=range(1, 1000, 7))
    service.faults.add(faults.drop(), "cards.create", call=range(3, 1000, 11))
    async with service.session() as session, session.cards.create_many(drafts(list_id, 300), concurrency=12) as run:
        results = [result async for result in run]
    assert sorted(result.index for result in results) == list(range(300))
    service.assert_no_duplicates()
    report = run.report
    assert report.created + report.unknown == 300
    assert report.created <= len(service.rules.cards) <= 300


async def test_results_that_wait_are_taken_without_waiting(service: BoardService, list_id: str) -> None:
    """`take_ready` hands out what is there, also after the end, and never waits for a card."""
    service.faults.add(faults.hang(), "cards.create", call=2)
    async with service.session() as session, session.cards.create_many(drafts(list_id, 3), concurrency=1) as run:
        assert run.take_ready() == []
        await service.received("cards.create", 2)
        assert [result.index for result in run.take_ready()] == [0]
        assert run.take_ready() == []
    async with service.session() as session, session.cards.create_many([]) as run:
        await run.wait()
        assert run.take_ready() == []
        with pytest.raises(StopAsyncIteration):
            await anext(run)


async def test_waiting_without_a_block(service: BoardService, session: AsyncSession, list_id: str) -> None:
    """`wait()` opens a run that was not entered, and closes it; a second time it can't be used."""
    run = session.cards.create_many(drafts(list_id, 5))
    assert (await run.wait()).created == 5
    with pytest.raises(RuntimeError, match="within its `async with` block"):
        await run.wait()
    assert run.take_ready() == []
