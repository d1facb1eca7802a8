"""A board with a ledger, which tests of batches and of single cards use."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest
from waiting import SECONDS

from boardclient import AsyncSession, BulkReport, Card, CardDraft
from boardclient.distributed import Job, import_batch, open_job
from boardclient.errors import BoardClientError
from boardclient.testing import BoardService, faults


@attrs.define
class World:
    """A service with a board, a session, and a ledger."""

    service: BoardService
    session: AsyncSession
    board_id: str
    list_id: str
    ledger: str

    def drafts(self, count: int, word: str = "card") -> list[CardDraft]:
        return [CardDraft(f"{word} {n}", self.list_id, reference=f"{word} {n}") for n in range(count)]

    async def open(self, **options: Any) -> Job:
        return await open_job(self.board_id, self.ledger, **{"settle": 0.2, **options})

    async def deliver(self, job: Job, key: str | None, rows: Sequence[CardDraft], **options: Any) -> BulkReport:
        async with asyncio.timeout(SECONDS):
            return await import_batch(job, key, rows, session=self.session, **options)

    async def interrupt(self, job: Job, key: str, rows: Sequence[CardDraft], *, sent: int) -> None:
        """End a delivery after some of its rows."""
        first = self.sent + sent + 1
        self.service.faults.add(faults.status(401), "cards.create", call=range(first, first + len(rows)))
        with pytest.raises(BoardClientError):
            await self.deliver(job, key, rows, concurrency=1)
        self.service.faults.clear()

    async def names(self) -> Counter[str | None]:
        return Counter(card.name for card in await self.session.boards.cards(self.board_id))

    async def create(self, name: str, reference: str, **options: Any) -> Card:
        places: dict[str, Any] = {"list_id": self.list_id, "board_id": self.board_id, "ledger": self.ledger}
        return await self.session.cards.create(name, reference=reference, **{**places, "settle": 0.2, **options})

    @property
    def sent(self) -> int:
        return len(self.service.calls_of("cards.create"))


@contextlib.asynccontextmanager
async def open_board() -> AsyncIterator[tuple[BoardService, AsyncSession, str, str]]:
    """Yield a service, a session with it, and the identifiers of a board and of its only list."""
    async with BoardService() as service, service.session() as session:
        board = service.seed({"To Do": []})
        yield service, session, board.id, board.lists["To Do"]


@pytest.fixture
async def world(ledger: str) -> AsyncIterator[World]:
    async with open_board() as place:
        yield World(*place, ledger)


def counts(found: BulkReport) -> tuple[int, int, int, int]:
    return found.created, found.already, found.failed, found.unknown
