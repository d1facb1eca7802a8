"""The public interface as a type checker sees it: checked by mypy and basedpyright, never run."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import assert_type

import tenacity

from boardclient import (
    ApiError,
    AsyncSession,
    Attempt,
    Board,
    BoardClientError,
    BoardList,
    BoardPrefs,
    BulkProgress,
    BulkReport,
    Card,
    CardDraft,
    CardResult,
    CredentialProvider,
    Credentials,
    DecodeError,
    Effect,
    JsonValue,
    Member,
    Position,
    RateLimitError,
    Response,
    StaticCredentials,
    TransportError,
    retry,
)
from boardclient.credentials import Exchange
from boardclient.events import CredentialsRenewed, Event, RequestSent, ResponseReceived, RetryScheduled
from boardclient.testing import BoardService


async def boards(session: AsyncSession) -> None:
    board = await session.boards.create("Launch", default_lists=False, organization_id="o")
    assert_type(board, Board)
    assert_type(board.id, str)
    assert_type(board.name, str | None)
    assert_type(board.url, str | None)
    assert_type(board.prefs, BoardPrefs | None)
    assert_type(board.extra, Mapping[str, JsonValue])
    if board.prefs is not None:
        assert_type(board.prefs.permission_level, str | None)
        assert_type(board.prefs.self_join, bool | None)
        assert_type(board.prefs.background, str | None)
    assert_type(await session.boards.lists("b"), list[BoardList])
    assert_type(await session.boards.cards("b"), list[Card])


async def lists(session: AsyncSession) -> None:
    made = await session.lists.create("To do", board_id="b", pos=Position.TOP)
    assert_type(made, BoardList)
    assert_type(made.board_id, str | None)
    assert_type(made.pos, str | float | None)
    assert_type(made.closed, bool | None)
    assert_type(await session.lists.create("To do", board_id="b", pos="bottom"), BoardList)
    assert_type(await session.lists.create("To do", board_id="b", pos=made.pos), BoardList)
    assert_type(await session.lists.archive("l"), BoardList)


async def cards(session: AsyncSession) -> None:
    card = await session.cards.create("a", list_id="l", desc="", due=datetime.now(UTC), pos=Position.BOTTOM)
    assert_type(card, Card)
    assert_type(card.due, datetime | None)
    assert_type(card.list_id, str | None)
    assert_type(card.pos, str | float | None)
    assert_type(await session.cards.create("a", list_id="l"), Card)
    assert_type(await session.cards.get("c"), Card)
    assert_type(await session.cards.move("c", list_id="l"), Card)
    await session.cards.add_label("c", "label")
    await session.cards.delete("c")
    await session.cards.create("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ty: ignore[missing-argument] -- a card needs its list
    await session.cards.create("a", "l")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ty: ignore[missing-argument, too-many-positional-arguments] -- list_id is keyword-only


async def members(session: AsyncSession) -> None:
    member = await session.members.me()
    assert_type(member, Member)
    assert_type(member.id, str | None)


async def anything_else(session: AsyncSession) -> None:
    response = await session.request("GET", "/1/labels", params={"limit": "5"}, repeatable=True)
    assert_type(response, Response)
    assert_type(response.status, int)
    assert_type(response.body, bytes)
    assert_type(response.json(), JsonValue)
    assert_type(await session.request("POST", "/1/labels", json={"name": "red", "tags": ["a", None, 1.5, True]}), Response)


async def bulk(session: AsyncSession) -> None:
    async def lazily() -> AsyncIterator[CardDraft]:
        yield CardDraft("a", "l", reference="row 1")

    def show(progress: BulkProgress) -> None:
        assert_type(progress.done, int)
        assert_type(progress.rate, float)

    async with session.cards.create_many(lazily(), concurrency=8, unknown="report", on_progress=show) as run:
        async for result in run:
            assert_type(result, CardResult)
            assert_type(result.index, int)
            assert_type(result.draft, CardDraft)
            assert_type(result.card, Card | None)
            assert_type(result.error, BoardClientError | None)
    assert_type(run.report, BulkReport)
    assert_type(run.report.created, int)
    drafts: Iterator[CardDraft] = (CardDraft(name=str(number), list_id="l") for number in range(3))
    async with session.cards.create_many(drafts, concurrency=8) as run:
        await run.wait()
    undo = await session.cards.plan_undo("cards.journal")
    assert_type([(kept.card, kept.why) for kept in undo.kept], list[tuple[Card, str]])
    assert_type(await undo.run(), None)


async def mapped(session: AsyncSession) -> None:
    """The value of a call that raised nothing is what the function returns."""
    async for result in session.map(session.cards.get, ["a", "b"]):
        assert_type(result.item, str)
        if result.error is None:
            assert_type(result.value, Card)
        else:
            assert_type(result.error, Exception)
            assert_type(result.value, None)


async def errors(session: AsyncSession) -> None:
    try:
        await session.members.me()
    except RateLimitError as error:
        assert_type(error.retry_after, float | None)
    except ApiError as error:
        assert_type(error.status, int)
        assert_type(error.body, bytes)
        assert_type(error.request, str)
    except TransportError as error:
        if error.phase == "connect":
            assert_type(error.effect, Effect)
    except DecodeError as error:
        assert_type(error.path, str)
    except BoardClientError as error:
        assert_type(error.attempts, tuple[Attempt, ...])


class Vault:
    """Be a provider by having its methods: there is nothing to inherit."""

    async def acquire(self, exchange: Exchange) -> Credentials:
        return Credentials("t", key="k")

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        return Credentials(token="t2", key=rejected.key)


class NoProvider:
    """Lack `renew`."""

    async def acquire(self, exchange: Exchange) -> Credentials:
        return Credentials("t")


class OneAtATime:
    """Be a limiter by being an async context manager."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def observe(event: Event) -> None:
    """Distinguish the events by their class."""
    match event:
        case RequestSent():
            assert_type(event.attempt, int)
        case ResponseReceived():
            assert_type(event.status, int | None)
        case RetryScheduled():
            assert_type(event.pause_seconds, float)
        case CredentialsRenewed():
            assert_type(event.operation, str)
        case BulkProgress():
            assert_type(event.total, int | None)


async def building() -> None:
    provider: CredentialProvider = Vault()
    provider = StaticCredentials(token="t", key="k")
    provider = NoProvider()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # ty: ignore[invalid-assignment] -- it cannot renew
    async with AsyncSession(
        provider,
        base_url="https://board.example",
        retry=None,
        timeout=None,
        limiter=OneAtATime(),
        observers=[observe],
        headers={"X-Team": "launch"},
        credentials_in="query",
    ) as session:
        assert_type(session, AsyncSession)
        assert_type(session.with_credentials(Vault()), AsyncSession)
        assert_type(session.with_options(retry=retry.default(), timeout=5.0, limiter=OneAtATime()), AsyncSession)
    await session.aclose()
    AsyncSession(provider, base_url="https://board.example", credentials_in="header")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type] -- "body" or "query"


def policies() -> None:
    assert_type(retry.default(), tenacity.AsyncRetrying)
    tenacity.AsyncRetrying(
        retry=tenacity.retry_any(retry.when_safe, retry.when_status(503)),
        wait=retry.wait_retry_after(otherwise=tenacity.wait_random_exponential(max=10), at_most=60),
        stop=tenacity.stop_after_attempt(5),
        reraise=True,
    )


async def testing() -> None:
    async with BoardService() as service:
        assert_type(service.base_url, str)
        assert_type(service.auth_url, str)
        assert_type(service.key, str)
        assert_type(service.token, str)
        async with service.session() as session:
            assert_type(session, AsyncSession)
