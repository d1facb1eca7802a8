"""Limiters and credential hooks of applications: what they raise, swallow or delay never repeats, loses or hides a call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tenacity import AsyncRetrying
from virtual_loop import Clock

from boardclient import (
    ApiError,
    AsyncSession,
    CardDraft,
    Credentials,
    DeadlineError,
    Effect,
    SessionClosedError,
    StaticCredentials,
    TransportError,
    retry,
)
from boardclient.credentials import Exchange
from boardclient.testing import BoardService, faults


class Limiter:
    """A limiter with faults: what it does on leaving, and what its report raises."""

    def __init__(self, leave: Any = None, report: BaseException | None = None) -> None:
        self.leave, self.error = leave, report
        self.entered = self.reported = 0

    async def __aenter__(self) -> None:
        self.entered += 1

    async def __aexit__(self, *exc: object) -> Any:
        if isinstance(self.leave, BaseException):
            raise self.leave
        if self.leave == "hang":
            await asyncio.Event().wait()
        if self.leave == "swallow":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return None
        return self.leave

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        self.reported += 1
        if self.error is not None:
            raise self.error


LEAVES = [True, LookupError("leaving"), asyncio.CancelledError("of another task"), None]


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("end", ["deadline", "cancellation", "closing"])
async def test_a_call_that_ends_within_a_limiter_is_sent_once(
    board_service: BoardService, loop_clock: Clock, leave: Any, end: str
) -> None:
    """Whatever a limiter does on leaving, a creation goes out once, ends as it was ended, and leaves the task free."""
    listed = await a_list(board_service)
    board_service.faults.add(faults.hang(), "cards.create")
    session = board_service.session(limiter=Limiter(leave), timeout=30, retry=retry.default())
    async with session:
        task = asyncio.ensure_future(settled(session.cards.create("a", list_id=listed)))
        await board_service.received("cards.create")
        if end == "cancellation":
            task.cancel()
        elif end == "closing":
            await session.aclose()
        else:
            loop_clock.advance(30)
        error, cancelling = await task
    kinds = {"deadline": DeadlineError, "cancellation": asyncio.CancelledError, "closing": SessionClosedError}
    assert type(error) is kinds[end]
    assert cancelling == (1 if end == "cancellation" else 0)
    assert len(board_service.calls_of("cards.create")) == 1
    if end != "cancellation":
        assert error.effect is Effect.UNKNOWN


async def settled(call: Any) -> tuple[Any, int]:
    """Return how a call ended, and how many cancellations it left in its task."""
    task = asyncio.current_task()
    assert task is not None
    try:
        return await call, task.cancelling()
    except (Exception, asyncio.CancelledError) as error:
        return error, task.cancelling()


async def a_list(service: BoardService) -> str:
    async with service.session() as session:
        board = await session.boards.create("a board")
        return (await session.lists.create("a list", board_id=board.id)).id


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("report", [None, LookupError("report"), asyncio.CancelledError("of another task")])
async def test_a_created_card_is_not_lost(
    board_service: BoardService, leave: Any, report: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A limiter that fails on leaving or in its report is logged, and the card is returned."""
    listed = await a_list(board_service)
    limiter = Limiter(leave, report)
    async with board_service.session(limiter=limiter) as session:
        card = await session.cards.create("a", list_id=listed)
    assert (card.name, limiter.entered, limiter.reported) == ("a", 1, 1)
    expected = ["a limiter's report failed"] * (report is not None) + ["leaving a limiter failed"] * isinstance(
        leave, BaseException
    )
    assert [record.message for record in caplog.records] == expected


@pytest.mark.parametrize("leave", LEAVES)
async def test_a_failing_limiter_ends_no_run(board_service: BoardService, leave: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In a bulk run, too, what the session's limiter raises on leaving or in its report is logged, and the card counts."""
    listed = await a_list(board_service)
    limiter = Limiter(leave, LookupError("report"))
    async with board_service.session(limiter=limiter) as session:
        report = await session.cards.create_many([CardDraft("a", listed)]).wait()
    assert (report.created, limiter.entered, limiter.reported) == (1, 1, 1)
    expected = ["a limiter's report failed"] + ["leaving a limiter failed"] * isinstance(leave, BaseException)
    assert [record.message for record in caplog.records] == expected


async def test_a_limiter_hears_for_how_long_the_service_asks_to_wait(board_service: BoardService) -> None:
    """A 503 with `Retry-After` says as much of a limit as a 429 does."""
    told: list[tuple[int | None, float | None]] = []

    class Told(Limiter):
        def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
            told.append((status, retry_after))

    for status in (429, 503, 500):
        board_service.faults.add(faults.status(status, {"Retry-After": "7"}), "members.me", times=1)
    async with board_service.session(limiter=Told(), retry=None) as session:
        for _ in range(3):
            with pytest.raises(ApiError):
                await session.members.me()
        await session.members.me()
    assert told == [(429, 7.0), (503, 7.0), (500, 7.0), (200, None)]


async def test_an_attempt_that_sent_nothing_is_not_reported() -> None:
    """A refused connection is not reported as a response of the service."""
    limiter = Limiter()
    async with AsyncSession(StaticCredentials("t", "k"), "http://127.0.0.1:1", limiter=limiter, retry=None) as session:
        with pytest.raises(TransportError) as failed:
            await session.cards.create("Card", list_id="l1")
    assert (failed.value.effect, limiter.entered, limiter.reported) == (Effect.NOT_SENT, 1, 0)


@pytest.mark.parametrize("leave", ["hang", "swallow"])
async def test_a_limiter_that_never_exits_loses_no_result(board_service: BoardService, loop_clock: Clock, leave: str) -> None:
    """Where leaving the limiter takes longer than the deadline, the card that was created is returned, and the task is free."""

    class Late(Limiter):
        async def __aexit__(self, *exc: object) -> Any:
            loop_clock.advance(30)
            return await super().__aexit__(*exc)

    listed = await a_list(board_service)
    async with board_service.session(limiter=Late(leave), timeout=30) as session:
        card, cancelling = await settled(session.cards.create("a", list_id=listed))
    assert (card.name, cancelling) == ("a", 0)


async def test_a_limiter_that_swallows_the_callers_cancellation_sends_nothing(board_service: BoardService) -> None:
    """A call that is cancelled while it waits for the limiter is cancelled, even if the limiter swallows that."""

    class Stubborn(Limiter):
        async def __aenter__(self) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)  # it may await more before it lets the call continue
                self.entered += 1

    limiter = Stubborn()
    async with board_service.session(limiter=limiter) as session:
        call = asyncio.create_task(session.members.me())
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (limiter.entered, board_service.calls_of("members.me")) == (1, [])


async def test_a_limiter_that_swallows_the_deadline_sends_nothing(board_service: BoardService, loop_clock: Clock) -> None:
    """A limiter that lets a call enter after its deadline does not make it send the request."""

    class Stubborn(Limiter):
        async def __aenter__(self) -> None:
            try:
                loop_clock.advance(30)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.entered += 1

    listed = await a_list(board_service)
    limiter = Stubborn()
    async with board_service.session(limiter=limiter, timeout=30) as session:
        error, cancelling = await settled(session.cards.create("a", list_id=listed))
    assert (type(error), error.effect, cancelling, limiter.entered) == (DeadlineError, Effect.NOT_SENT, 0, 1)
    assert len(board_service.calls_of("cards.create")) == 0


async def test_an_error_on_entering_a_limiter_is_raised_to_the_caller(board_service: BoardService, loop_clock: Clock) -> None:
    """A limiter that can't be entered sends nothing, and its error is raised; at the deadline a DeadlineError is."""

    class Refusing(Limiter):
        async def __aenter__(self) -> None:
            try:
                if self.entered:
                    loop_clock.advance(30)
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise LookupError("no turn, late") from None
            self.entered += 1
            raise LookupError("no turn")

    async with board_service.session(limiter=Refusing(), timeout=30) as session:
        first, _ = await settled(session.members.me())
        late, cancelling = await settled(session.members.me())
    assert (type(first), type(late), cancelling) == (LookupError, DeadlineError, 0)
    assert len(board_service.calls_of("members.me")) == 0


async def test_outdated_credentials_are_acquired_again_before_another_entry(board_service: BoardService) -> None:
    """Credentials that are outdated once the limiter is entered are not sent."""

    class Outdated(StaticCredentials):
        acquired = 0

        async def acquire(self, exchange: Exchange) -> Credentials:
            self.acquired += 1
            return Credentials("outdated" if self.acquired == 1 else board_service.token, board_service.key)

        def is_current(self, credentials: Credentials) -> bool:
            return credentials.token != "outdated"

    limiter, provider = Limiter(), Outdated("unused", "unused")
    async with board_service.session(provider, limiter=limiter) as session:
        await session.members.me()
    assert (provider.acquired, limiter.entered, len(board_service.calls_of("members.me"))) == (2, 2, 1)


def test_a_session_needs_a_provider() -> None:
    """An object that is not a provider is refused at construction."""
    with pytest.raises(TypeError, match="CredentialProvider"):
        AsyncSession(object(), "https://board.example")  # type: ignore[arg-type]  # -- the point


def test_a_policy_that_cannot_be_copied_is_refused() -> None:
    """A subclass of AsyncRetrying whose constructor asks for something else is refused at once, not at the first retry."""

    class Named(AsyncRetrying):
        def __init__(self, name: str) -> None:
            super().__init__()

    with pytest.raises(TypeError, match="Named"):
        AsyncSession(StaticCredentials("t"), "https://board.example", retry=Named("mine"))
