"""Outages and missing consent: a run waits, tries few requests, and says so; no row fails that a wait would have saved."""

import asyncio
import functools
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bulk_service import Core
from virtual_loop import virtually

from boardclient import (
    ApiError,
    AsyncSession,
    BoardClientError,
    BulkProgress,
    BulkRun,
    Card,
    CardDraft,
    ConsentRequired,
    DeadlineError,
    DecodeError,
    Effect,
    NotFoundError,
    Pace,
    RateLimitError,
    ServerError,
    TransportError,
)
from boardclient.models import BoardList
from boardclient.testing import BoardService, faults


def refused() -> TransportError:
    return TransportError("no connection: refused", "connect", effect=Effect.NOT_SENT)


def hung() -> DeadlineError:
    return DeadlineError("no connection in time", effect=Effect.NOT_SENT)


def missing() -> NotFoundError:
    return NotFoundError("404", 404)


def page() -> DecodeError:
    return DecodeError("a page of a proxy", "", "POST /1/cards")


def unavailable() -> ServerError:
    return ServerError("503", 503, effect=Effect.UNKNOWN)


def asks_for(seconds: float) -> ServerError:  # as a 503 with `Retry-After` does
    error = ServerError("503", 503, retry_after=seconds, effect=Effect.UNKNOWN)
    error.retry_at = datetime.now(UTC) + timedelta(seconds=seconds)
    return error


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

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(0.01)
        now = asyncio.get_running_loop().time()
        if self.down_at <= now < self.up_at:
            self.tried.append(now)
            raise self.failure()
        if request.operation.name == "boards.lists":
            return [BoardList("list")]
        if request.operation.name == "boards.cards":
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


@pytest.mark.parametrize(
    ("failure", "timeout", "down_at", "patience"),
    [
        (refused, 30.0, 1.0, 300.0),
        (refused, 30.0, 0.0, 15.0),
        (refused, 3.0, 0.0, 3.0),
        (refused, None, 0.0, 15.0),
        (unavailable, 30.0, 1.0, 30.0),
        (missing, 30.0, 1.0, 60.0),
        (missing, 30.0, 0.0, 15.0),
        (page, 30.0, 1.0, 30.0),
    ],
)
@virtually
async def test_an_outage_that_lasts_ends_the_run(
    failure: Callable[[], BoardClientError], timeout: float | None, down_at: float, patience: float
) -> None:
    """The rows that were not sent are left to the next run; only those that the service itself refused have failed.

    Where nothing ever got through it is sooner: the address may be wrong.
    """
    service = Service(failure, down_at=down_at, down_for=1e9, timeout=timeout)
    async with service.run(2000, 8) as run:
        states: list[str] = []
        with pytest.raises(type(failure()), match="nothing was accepted for too long, so the run ended"):
            async for result in run:
                states.append(result.state)
    assert patience <= max(service.tried) - min(service.tried) < patience + 6.0
    assert states.count("created") == len(service.created)
    expected = {refused: set(), missing: {"failed"}, unavailable: {"unknown"}, page: {"unknown"}}[failure]
    assert set(states) - {"created"} == expected
    assert len(states) - len(service.created) <= len(service.tried) < 100


@virtually
async def test_refusals_of_row_after_row_are_an_outage() -> None:
    """No row fails because a service refuses all of them for a while, whatever the status."""
    for status in (307, 400, 403, 404, 409, 413, 421, 422):
        service = Service(functools.partial(ApiError, str(status), status), down_at=0.03, down_for=2.0)
        report = await service.run(300, 32).wait()
        assert (report.created, report.failed) == (300, 0), status
        assert [reason for reason, _ in service.reasons] == [None, "outage", None]


@virtually
async def test_an_outage_excuses_only_the_rows_that_were_refused_in_it() -> None:
    """A row that was refused while others were accepted is not sent again, and fails once a listing does not show its card."""

    class Choosy(Service):
        bad: tuple[str, ...] = ()

        async def call(self, request: Any) -> Any:
            if request.operation.name == "cards.create" and (name := json.loads(request.body)["name"]) == "card 0":
                self.bad += (name,)
                await asyncio.sleep(0.01)
                raise missing()
            return await super().call(request)

    service = Choosy(missing, down_at=0.06, down_for=2.0)
    async with service.run(300, 32, board_id="board", settle=0.0) as run:
        failed = [result.draft.name async for result in run if result.state == "failed"]
    assert (failed, service.bad, run.report.created) == (["card 0"], ("card 0",), 299)


@virtually
async def test_rows_that_are_refused_themselves_fail() -> None:
    """However many there are side by side: others are accepted between them."""

    class Choosy(Service):
        async def call(self, request: Any) -> Any:
            if json.loads(request.body or b"")["name"] in bad:
                await asyncio.sleep(0.01)
                raise missing()
            return await super().call(request)

    for bad in ({"card 7"}, {f"card {number}" for number in range(100, 130)}, {f"card {number}" for number in range(197, 200)}):
        service = Choosy(down_at=math.inf)
        async with service.run(200, 8) as run:
            failed = {result.draft.name async for result in run if result.state == "failed"}
        assert failed == bad
        assert len(service.created) == 200 - len(bad)


class SlowService(Service):
    """A service that accepts one card in ten seconds, and never the one of `refused_row`."""

    accepts_at = 0.0
    refused_row: str | None = None

    async def call(self, request: Any) -> Any:
        now = asyncio.get_running_loop().time()
        if request.operation.name == "cards.create":
            if now < self.accepts_at:
                raise RateLimitError("429", 429, retry_after=self.accepts_at - now)
            if json.loads(request.body or b"")["name"] == self.refused_row:
                raise RateLimitError("429", 429, retry_after=20.0)
            self.accepts_at = now + 10.0
        return await super().call(request)


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
    assert 300.0 <= ended[0] < 2000.0


@virtually
async def test_failures_of_unknown_effect_hold_the_run() -> None:
    """While each request fails and may have been done, few are sent: those that were are in doubt, and the others are created."""
    service = Service(unavailable)
    report = await service.run(2000).wait()
    assert report.failed == 0
    assert report.unknown == len(service.tried) < 25
    assert report.created == 2000 - report.unknown


@virtually
async def test_an_outage_lasts_as_long_as_the_service_asks() -> None:
    """Nothing is tried meanwhile: each try would leave a row in doubt. The progress says until when."""
    service = Service(lambda: asks_for(service.up_at - asyncio.get_running_loop().time()), down_for=200.0)
    report = await service.run(2000).wait()
    assert (report.failed, report.created) == (0, 2000 - report.unknown)
    assert report.unknown == len(service.tried) < 10
    assert [reason for reason, _ in service.reasons] == [None, "retry-after", "outage", None]
    assert all(progress.wait_ends_at for progress in service.reported if progress.waiting_for == "retry-after")


@virtually
async def test_an_outage_that_the_service_says_is_long_ends_the_run() -> None:
    """The error says when to come again."""
    service = Service(lambda: asks_for(3600.0), down_for=1e9)
    async with service.run(2000, 1) as run:
        with pytest.raises(ServerError) as caught:
            await run.wait()
    assert caught.value.retry_at is not None
    assert (len(service.tried), asyncio.get_running_loop().time() < 2.0) == (5, True)


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


@virtually
async def test_consent_is_found_missing_during_an_outage() -> None:
    """The run says what it waits for now."""
    failures = iter([refused(), refused()])
    service = Service(lambda: next(failures, ConsentRequired("sign in")))
    assert (await service.run(200, 1).wait()).created == 200
    assert [reason for reason, _ in service.reasons] == [None, "outage", "consent", None]


@virtually
async def test_the_only_row_is_tried_for_longer_than_the_pause() -> None:
    """A hold ends with the row that is tried, though another became due meanwhile and there is none."""

    class Slow(Service):
        async def call(self, request: Any) -> Any:
            await asyncio.sleep(0.5)
            return await super().call(request)

    service = Slow(down_at=0.0, down_for=1.0)
    assert (await service.run(1).wait()).created == 1
    assert [reason for reason, _ in service.reasons] == ["outage", None]


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


@pytest.mark.parametrize("retry_after", [None, 0.5, 40.0])
@virtually
async def test_the_board_is_read_through_refusals(retry_after: float | None) -> None:
    """A run begins after minutes of 429s, and does not read the board earlier than Retry-After allows."""
    service = Service(lambda: RateLimitError("429", 429, retry_after=retry_after), down_at=0.0, down_for=200.0)
    assert (await service.run(10, board_id="board").wait()).created == 10
    pauses = [later - earlier for earlier, later in zip(service.tried, service.tried[1:], strict=False)]
    assert min(pauses) >= (retry_after or 0.1)
    assert max(pauses) <= max(10.0, retry_after or 0.0) + 0.1


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (lambda: RateLimitError("429", 429), 300.0),
        (lambda: RateLimitError("429", 429, retry_after=3600.0), 1.0),
        (lambda: asks_for(3600.0), 1.0),
        (unavailable, 20.0),
        (missing, 20.0),
    ],
)
@virtually
async def test_a_board_that_is_never_read_ends_the_run(failure: Callable[[], BoardClientError], seconds: float) -> None:
    """A 429 after five minutes, or at once where more is asked for. Others soon, since the address may be wrong."""
    with pytest.raises(type(failure())):
        await Service(failure, down_at=0.0, down_for=1e9).run(10, board_id="board").wait()
    assert asyncio.get_running_loop().time() < seconds


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
    """The next row is tried after its pause, whatever becomes of the last try."""

    class Hanging(Service):
        async def call(self, request: Any) -> Any:
            if len(self.tried) == 4:
                self.tried.append(0.0)
                await asyncio.Event().wait()
            return await super().call(request)

    service = Hanging(down_at=0.0, down_for=0.05)
    async with asyncio.timeout(60), service.run(20) as run:
        results = [await anext(run) for _ in range(19)]
    assert {result.state for result in results} == {"created"}


@pytest.mark.parametrize("has_board", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        refused,
        unavailable,
        missing,
        lambda: asks_for(60.0),
        lambda: RateLimitError("429", 429, retry_after=60.0),
        lambda: RateLimitError("429", 429),
        lambda: ConsentRequired("sign in"),
    ],
)
@virtually
async def test_patience_bounds_how_long_a_run_waits(failure: Callable[[], BoardClientError], has_board: bool) -> None:
    """Then it ends with the error, and the rows that were not sent are left to the next run."""
    service = Service(failure, down_for=1e9)
    run = service.run(500, patience=5.0, board_id="board" if has_board else None, settle=0.0)
    with pytest.raises(type(failure())):
        await run.wait()
    assert asyncio.get_running_loop().time() - service.down_at < 6.0
    assert run.report.created == len(service.created)


@virtually
async def test_patience_begins_again_with_each_wait() -> None:
    """It is no deadline: a run with many short pauses ends with its last row."""
    service = Service(down_for=4.0)
    report = await service.run(2000, patience=10.0).wait()
    assert (report.created, report.failed) == (2000, 0)


@virtually
async def test_a_board_that_asks_for_a_longer_pause_than_a_run_may_wait_ends_it() -> None:
    """Before its first row, too."""
    service = Service(lambda: RateLimitError("429", 429, retry_after=60.0), down_at=0.0, down_for=1e9)
    with pytest.raises(RateLimitError):
        await service.run(10, patience=5.0, board_id="board").wait()
    assert asyncio.get_running_loop().time() < 1.0


@pytest.mark.parametrize("pause", [{}, {"Retry-After": "0.05"}])
async def test_patience_is_for_all_rows_that_are_refused_in_turn(
    service: BoardService, session: AsyncSession, list_id: str, pause: dict[str, str]
) -> None:
    """No row waits for long where each is refused once, but the run does."""
    service.faults.add(faults.status(429, headers=pause), "cards.create", call=range(5, 10_000))
    run = session.cards.create_many((CardDraft(f"card {n}", list_id) for n in range(500)), concurrency=16, patience=0.3)
    async with asyncio.timeout(30):
        with pytest.raises(RateLimitError, match="nothing was accepted for too long") as caught:
            await run.wait()
    assert run.report.created == 4
    assert run.report.seconds < 10
    assert run.ended_waiting is not None
    assert run.ended_waiting.waiting_for in {"refusals", "retry-after"}
    assert caught.value.retry_at is not None


async def test_patience_is_for_a_pause_that_others_have_met(session: AsyncSession, service: BoardService, list_id: str) -> None:
    """A run whose shared pace was asked to wait ends at once, without a request."""
    service.faults.add(faults.status(429, headers={"Retry-After": "100"}), "cards.create")
    paced = session.with_options(limiter=Pace())
    for name in ("first", "again"):  # a single refusal says little
        with pytest.raises(RateLimitError):
            await paced.cards.create(name, list_id=list_id)
    run = paced.cards.create_many([CardDraft("second", list_id)], patience=5.0)
    async with asyncio.timeout(30):
        with pytest.raises(BoardClientError, match="as the service asks; nothing was accepted for too long") as caught:
            await run.wait()
    assert len(service.calls) == 4  # the board, the list, and the two
    assert caught.value.retry_at is not None
    assert caught.value.retry_at > datetime.now(UTC) + timedelta(seconds=30)


@virtually
async def test_patience_is_not_for_rows_that_settle() -> None:
    """The board is read as long after a lost response as `settle` says, whatever the run may wait for others."""
    service = Service(unavailable, down_at=0.035, down_for=0.01)
    report = await service.run(20, 1, patience=1.0, board_id="board", settle=30.0).wait()
    assert (report.created, report.unknown) == (20, 0)


@virtually
async def test_a_run_whose_rows_all_have_results_ends_without_an_error() -> None:
    """Only its audit is missing, which could not be made."""

    class Unreadable(Service):
        async def call(self, request: Any) -> Any:
            await asyncio.sleep(0.01)
            if request.operation.name == "boards.cards" and self.created:
                raise unavailable()
            if b'"card 1"' in (request.body or b""):
                raise ApiError("400", 400)
            return await super().call(request)

    run = Unreadable(down_at=math.inf).run(3, 1, patience=1.0, board_id="board", settle=0.0)
    report = await run.wait()
    assert (report.created, report.failed) == (2, 1)
    assert "nothing was accepted for too long" in str(report.audit_error)
    assert run.ended_waiting is not None
