"""The package itself, with its defaults."""

import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator

from _contenders import DESC, LIST_ID, Service, Work, in_workers, one_by_one, seen

import boardclient
from boardclient._transport._choice import TransportChoice


def _session(service: Service, concurrency: int) -> boardclient.AsyncSession:
    credentials = boardclient.StaticCredentials(token="t", key="k")
    return boardclient.AsyncSession(credentials, base_url=service.base_url, max_connections=concurrency, ssl=service.context())


@contextlib.asynccontextmanager
async def create_in_workers(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create` in worker tasks."""
    async with _session(service, concurrency) as session:

        async def one(position: int) -> boardclient.Card:
            return await session.cards.create(f"Card {position}", list_id=LIST_ID, desc=DESC)

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def get_in_workers(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Read cards with `session.cards.get` in worker tasks."""
    async with _session(service, concurrency) as session:

        async def one(_: int) -> boardclient.Card:
            return await session.cards.get("c1")

        yield in_workers(concurrency, one)


@contextlib.asynccontextmanager
async def create_in_workers_the_public_way(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create them with `ClientSessionTransport` instead of the direct transport."""
    TransportChoice._may_be_direct = False  # each contender has a process of its own
    async with create_in_workers(service, concurrency) as work:
        yield work


@contextlib.asynccontextmanager
async def create_many(service: Service, concurrency: int | None, folder: str | None = None) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create_many`, with a journal for each run if a folder is given."""
    numbers = itertools.count()
    async with _session(service, concurrency or 100) as session:

        async def work(cards: int, seconds: list[float]) -> int:
            drafts = (boardclient.CardDraft(f"Card {position}", LIST_ID, desc=DESC) for position in range(cards))
            journal = None if folder is None else f"{folder}/{next(numbers)}.journal"
            async with session.cards.create_many(drafts, concurrency=concurrency, journal=journal) as run:
                await run.wait()
            return run.report.created

        yield work


@contextlib.asynccontextmanager
async def create_many_at_its_own_pace(service: Service, _: int) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create_many` and no `concurrency`, as most users do."""
    async with create_many(service, None) as work:
        yield work


@contextlib.asynccontextmanager
async def create_many_with_journal(service: Service, concurrency: int) -> AsyncIterator[Work]:
    """Create cards with `session.cards.create_many` and a journal."""
    with tempfile.TemporaryDirectory() as folder:
        async with create_many(service, concurrency, folder) as work:
            yield work


@contextlib.asynccontextmanager
async def read_board(service: Service, cards: int) -> AsyncIterator[Work]:
    """Read a board's cards with `session.boards.cards`, a single one with `session.cards.get`."""
    async with _session(service, 1) as session:

        async def read() -> int:
            return seen(await (session.boards.cards(f"b{cards}") if cards else session.cards.get("c1")))

        yield one_by_one(read)
