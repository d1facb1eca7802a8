"""Outages and missing consent: a run waits, tries few requests, and says so; no row fails that a wait would have saved."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from bulk_service import Core
from virtual_loop import virtually

from boardclient import (
    BadRequestError,
    BoardClientError,
    BulkProgress,
    BulkRun,
    Card,
    CardDraft,
    ConsentRequired,
    DeadlineError,
    DecodeError,
    Effect,
    RateLimitError,
    ServerError,
    TransportError,
)
from boardclient._operations import Request
from boardclient._pipeline._calls import CallOptions
from boardclient.bulk._hold import Hold
from boardclient.models import BoardList
from boardclient.testing import BoardService


def refused() -> TransportError:
    return TransportError("no connection: refused", "connect", effect=Effect.NOT_SENT)


def hung() -> DeadlineError:
    return DeadlineError("no connection in time", effect=Effect.NOT_SENT)


def unavailable() -> ServerError:
    return ServerError("503", 503, effect=Effect.UNKNOWN)


async def test_a_hold_says_what_it_waits_for_now() -> None:
    """An outage may turn into missing consent, and listeners are notified of both."""
    reasons: list[str | None] = []
    hold = Hold(30.0, lambda: reasons.append(hold.reason))
    assert hold.note_failure(refused())
    assert hold.note_failure(ConsentRequired("sign in"))
    assert hold.note_failure(ConsentRequired("sign in"))
    hold.end()
    assert reasons == ["outage", "consent", None]


@virtually
async def test_the_pauses_between_tries_begin_anew_after_a_success() -> None:
    """The pauses double during an outage; the next outage begins with the first pause again."""
    loop, hold = asyncio.get_running_loop(), Hold(30.0, lambda: None)

    async def pause() -> float:
        began = loop.time()
        await hold.acquire()
        hold.release()
        return loop.time() - began

    hold.note_failure(refused())
    assert [await pause() for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    hold.note_success()
    hold.note_failure(refused())
    assert await pause() == pytest.approx(0.1)


@virtually
async def test_a_task_that_tried_in_an_earlier_hold_waits_in_the_next() -> None:
    """The permission to try ends with the hold that gave it."""
    hold = Hold(30.0, lambda: None)
    hold.note_failure(refused())
    await hold.acquire()
    assert hold.may_send()
    hold.note_success()
    hold.note_failure(refused())
    assert not hold.may_send()


class Service(Core):
    """A service in memory that is out of reach from `down_at` on, for `down_for` seconds; `failure` makes what is raised then."""

    def __init__(
        self,
        failure: Callable[[], BoardClientError] = refused,
        *,
        down_at: float = 1.0,
        down_for: float = 10.0,
        timeout: float | None = 30.0,
    ) -> None:
        super().__init__(timeout)
        self.failure = failure
        self.down_at = asyncio.get_running_loop().time() + down_at
        self.up_at = self.down_at + down_for
        self.tried: list[float] = []
        """When something was tried while the service was out of reach."""
        self.created: list[str] = []
        self.reported: list[BulkProgress] = []
        self.reasons: list[tuple[str | None, float]] = []

    async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
        await asyncio.sleep(0.01)
        now = asyncio.get_running_loop().time()
        if self.down_at <= now < self.up_at:
            self.tried.append(now)
            raise self.failure()
        if request.operation == "boards.lists":
            return [BoardList("list")]
        if request.operation == "boards.cards":
            return iter([[Card(name, name, "", None, "list") for name in self.created]])
        name = json.loads(request.body or b"")["name"]
        self.created.append(name)
        return Card(name, name, "", None, "list")

    def report(self, progress: BulkProgress) -> None:
        self.reported.append(progress)
        if not self.reasons or self.reasons[-1][0] != progress.waiting_for:
            self.reasons.append((progress.waiting_for, asyncio.get_running_loop().time()))

    def run(self, number: int, concurrency: int | None = 4, **given: Any) -> BulkRun:
        drafts = [CardDraft(f"card {index}", "list") for index in range(number)]
        return self.open_run(drafts, self.report, concurrency=concurrency, **given)


@pytest.mark.parametrize("failure", [refused, hung])
@pytest.mark.parametrize("down_for", [0.5, 10.0, 250.0])
@virtually
async def test_an_outage_fails_no_row(failure: Callable[[], BoardClientError], down_for: float) -> None:
    """Rows that could not be sent are sent once the service is back; meanwhile few are tried, and the run says why it waits."""
    service = Service(failure, down_for=down_for)
    report = await service.run(2000).wait()
    assert (report.created, report.failed, report.unknown) == (2000, 0, 0)
    assert sorted(service.created) == sorted(f"card {index}" for index in range(2000))
    assert len(service.tried) < 20 + down_for / 4
    assert [reason for reason, _ in service.reasons] == [None, "outage", None]
    (_, began), (_, ended) = service.reasons[1:]
    assert service.down_at <= began < service.down_at + 0.1
    assert service.up_at <= ended < service.up_at + 6.0


@virtually
async def test_a_row_waits_for_five_minutes_at_most() -> None:
    """After that, rows fail as they come, until the service is back."""
    service = Service(down_for=400.0)
    report = await service.run(20_000, 8).wait()
    assert report.failed + report.created == 20_000
    assert max(service.tried) - service.down_at >= 300.0
    waited = [moment for moment in service.tried if moment - service.down_at < 299.0]
    assert len(waited) < 100


@virtually
async def test_rows_succeed_again_after_an_outage_that_was_too_long() -> None:
    """The end of the wait is no end of the run."""
    service = Service(down_for=303.0)
    report = await service.run(2000).wait()
    assert 0 < report.failed < 1500
    assert report.created == 2000 - report.failed
    assert service.reasons[-1][0] is None


class SlowService(Service):
    """A service that accepts one card in ten seconds, and never the one of `refused_row`."""

    accepts_at = 0.0
    refused_row: str | None = None

    async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
        now = asyncio.get_running_loop().time()
        if request.operation == "cards.create":
            if now < self.accepts_at:
                raise RateLimitError("429", 429, retry_after=self.accepts_at - now)
            if json.loads(request.body or b"")["name"] == self.refused_row:
                raise RateLimitError("429", 429, retry_after=20.0)
            self.accepts_at = now + 10.0
        return await super().call(request, options)


@virtually
async def test_no_row_fails_because_the_service_is_slow() -> None:
    """Rows that wait for longer than five minutes after a refusal are created if the service accepts others meanwhile."""
    service = SlowService(down_at=math.inf)
    report = await service.run(80).wait()
    assert (report.created, report.failed) == (80, 0)


@virtually
async def test_a_row_that_is_refused_again_and_again_fails() -> None:
    """A row that is refused twenty times while others are accepted fails after five minutes."""
    service = SlowService(down_at=math.inf)
    service.refused_row = "card 0"
    async with service.run(80) as run:
        ended = {result.index: asyncio.get_running_loop().time() async for result in run}
    assert (run.report.created, run.report.failed) == (79, 1)
    assert 300.0 <= ended[0] < 500.0


@pytest.mark.parametrize(("timeout", "patience"), [(30.0, 15.0), (3.0, 3.0), (None, 15.0)])
@virtually
async def test_rows_fail_sooner_if_an_address_never_responded(timeout: float | None, patience: float) -> None:
    """Where nothing ever got through, rows fail sooner: the address may be wrong."""
    service = Service(down_at=0.0, down_for=1e9, timeout=timeout)
    report = await service.run(50).wait()
    assert (report.failed, report.created) == (50, 0)
    assert patience <= max(service.tried) < patience + 6.0


@virtually
async def test_failures_of_unknown_effect_hold_the_run() -> None:
    """While each request fails and may have been done, few are sent: those that were are in doubt, and the others are created."""
    service = Service(unavailable)
    report = await service.run(2000).wait()
    assert report.failed == 0
    assert report.unknown == len(service.tried) < 25
    assert report.created == 2000 - report.unknown


@virtually
async def test_failures_of_unknown_effect_hold_the_run_for_half_a_minute() -> None:
    """A service that refuses every request is not an outage: each row is sent and reported."""
    service = Service(unavailable, down_for=1e9)
    report = await service.run(500).wait()
    assert report.created + report.unknown == 500
    assert 31.0 <= max(service.tried) < 45.0


@virtually
async def test_single_failures_hold_nothing() -> None:
    """Four lost responses in a row are not an outage, and neither is an error response that concerns one card."""
    for failure in (unavailable, lambda: BadRequestError("400", 400)):
        service = Service(failure, down_at=0.05, down_for=0.01 if failure is unavailable else 5.0)
        report = await service.run(1000).wait()
        assert report.created + report.unknown + report.failed == 1000
        assert {progress.waiting_for for progress in service.reported} == {None}


@virtually
async def test_missing_consent_holds_the_run() -> None:
    """Rows wait for the token however long it takes, and are sent within half a second after that."""
    service = Service(lambda: ConsentRequired("sign in", effect=Effect.NOT_SENT), down_for=1800.0)
    report = await service.run(2000).wait()
    assert (report.created, report.failed) == (2000, 0)
    assert [reason for reason, _ in service.reasons] == [None, "consent", None]
    assert service.reasons[2][1] <= service.up_at + 0.5
    assert len(service.tried) <= 4 + 1800 * 4


@virtually
async def test_a_refused_token_and_missing_consent() -> None:
    """A card whose token was refused before consent was found missing was not created: it is sent again."""
    service = Service(lambda: ConsentRequired("sign in", effect=Effect.REJECTED))
    assert (await service.run(100).wait()).created == 100


@pytest.mark.parametrize("failure", [refused, lambda: ConsentRequired("sign in")])
@virtually
async def test_stopping_a_run_that_is_held(failure: Callable[[], BoardClientError]) -> None:
    """Rows that wait are not sent, and the iteration ends at once."""
    service = Service(failure, down_for=200.0)
    async with service.run(2000) as run:
        asyncio.get_running_loop().call_later(7.0, run.stop)
        await run.wait()
        assert asyncio.get_running_loop().time() < 7.1
        tried = len(service.tried)
    assert len(service.tried) == tried
    assert run.report.failed == run.report.unknown == 0


@virtually
async def test_leaving_a_run_that_is_held() -> None:
    """A run that is left while it is held leaves no task behind."""
    service = Service(down_for=200.0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20.0), service.run(2000) as run:
            await run.wait()
    assert run.progress.waiting_for is None
    await asyncio.sleep(1.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtually
async def test_the_board_is_read_through_an_outage() -> None:
    """Beginning, settling and the audit wait for the service as rows do."""
    service = Service(down_at=0.0, down_for=10.0)
    report = await service.run(100, board_id="board").wait()
    assert report.created == 100
    service = Service(unavailable, down_at=1.0, down_for=20.0)
    report = await service.run(1000, board_id="board", settle=1.0).wait()
    assert (report.created, report.unknown, report.failed) == (1000, 0, 0)
    assert report.audit is not None
    assert "settling" in {progress.waiting_for for progress in service.reported}


@virtually
async def test_a_service_that_never_responded_is_not_read_again() -> None:
    """A 5xx for the first request of a run is an error after a short while: the address may be wrong."""
    service = Service(unavailable, down_at=0.0, down_for=1e9)
    with pytest.raises(ServerError):
        await service.run(100, board_id="board").wait()
    assert asyncio.get_running_loop().time() < 20.0


@pytest.mark.parametrize("retry_after", [None, 0.5, 40.0])
@virtually
async def test_the_board_is_read_through_refusals(retry_after: float | None) -> None:
    """A run begins after minutes of 429s, and does not read the board earlier than Retry-After allows."""
    service = Service(lambda: RateLimitError("429", 429, retry_after=retry_after), down_at=0.0, down_for=200.0)
    assert (await service.run(10, board_id="board").wait()).created == 10
    pauses = [later - earlier for earlier, later in zip(service.tried, service.tried[1:], strict=False)]
    assert min(pauses) >= (retry_after or 0.1)
    assert max(pauses) <= max(10.0, retry_after or 0.0) + 0.1


@pytest.mark.parametrize("retry_after", [None, 3600.0])
@virtually
async def test_the_board_is_refused_for_too_long(retry_after: float | None) -> None:
    """After five minutes, or at once where more is asked for, the refusal is raised."""
    service = Service(lambda: RateLimitError("429", 429, retry_after=retry_after), down_at=0.0, down_for=1e9)
    with pytest.raises(RateLimitError):
        await service.run(10, board_id="board").wait()
    assert asyncio.get_running_loop().time() < 300.0


@pytest.mark.parametrize(("down_for", "is_read"), [(1.0, True), (1e9, False)])
@virtually
async def test_a_page_in_place_of_the_board_is_not_the_last_word(down_for: float, *, is_read: bool) -> None:
    """A proxy shows a page for a moment. If it lasts, the error is raised."""
    service = Service(lambda: DecodeError("the body is not JSON"), down_at=0.015, down_for=down_for)
    with contextlib.nullcontext() if is_read else pytest.raises(DecodeError):
        assert (await service.run(10, board_id="board").wait()).created == 10


@virtually
async def test_stopping_a_run_that_can_not_begin() -> None:
    """A run that waits for consent before its first row ends when it is stopped."""
    service = Service(lambda: ConsentRequired("sign in"), down_at=0.0, down_for=1e9)
    run = service.run(10, board_id="board")
    asyncio.get_running_loop().call_later(60.0, run.stop)
    assert (await run.wait()).created == 0
    assert asyncio.get_running_loop().time() < 61.0


@virtually
async def test_a_try_that_hangs_does_not_stop_the_others() -> None:
    """The next task tries after its pause, whatever the result of the last one."""
    hold = Hold(30.0, lambda: None)
    hold.note_success()
    hold.note_failure(refused())
    tried: list[float] = []

    async def work() -> None:
        await hold.acquire()
        tried.append(asyncio.get_running_loop().time())
        await hold.acquire()  # it may try again
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(work()) for _ in range(4)]
    await asyncio.sleep(2.0)
    assert tried == [pytest.approx(moment) for moment in (0.1, 0.3, 0.7, 1.5)]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@contextlib.asynccontextmanager
async def relay(service: BoardService, port: int = 0) -> AsyncIterator[int]:
    """Relay connections to the service; leaving the block refuses further ones and breaks those that are open."""
    writers: list[asyncio.StreamWriter] = []
    pipes: list[asyncio.Task[None]] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(service.base_url.rpartition(":")[2]))
        writers.extend((writer, far_writer))
        pipes.append(asyncio.current_task())  # type: ignore[arg-type]  # -- it runs in a task
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        for task in pipes:
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)


async def test_connections_that_are_refused_fail_no_row(service: BoardService) -> None:
    """Over real sockets: only what was in flight when the connections broke is in doubt, and is found or sent again."""
    async with service.session() as session:
        board = await session.boards.create("Board", default_lists=True)
        list_id = (await session.boards.lists(board.id))[0].id
    reported: list[BulkProgress] = []
    is_held = asyncio.Event()

    def report(progress: BulkProgress) -> None:
        reported.append(progress)
        if progress.waiting_for == "outage":
            is_held.set()

    async with contextlib.AsyncExitStack() as first:
        port = await first.enter_async_context(relay(service))
        async with service.session(base_url=f"http://127.0.0.1:{port}") as session:
            drafts = [CardDraft(f"card {index}", list_id) for index in range(200)]
            run = session.cards.create_many(drafts, concurrency=8, board_id=board.id, settle=0.01, on_progress=report)
            running = asyncio.create_task(run.wait())
            await service.received("cards.create", 20)
            await first.aclose()
            await is_held.wait()
            async with relay(service, port):
                report = await running
    assert (report.created, report.failed, report.unknown) == (200, 0, 0)
    assert len(service.rules.cards) == 200
    service.assert_no_duplicates()
