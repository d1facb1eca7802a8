"""What the tests of bulk runs share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bulk_helpers import Moments, World

from boardclient import AsyncSession
from boardclient.testing import BoardService


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cards.journal"


@pytest.fixture
async def session(service: BoardService) -> AsyncIterator[AsyncSession]:
    async with service.session(retry=None) as opened:
        yield opened


@pytest.fixture
async def world(service: BoardService, session: AsyncSession, path: Path) -> World:
    board = await session.boards.create("Board")
    lists = [(await session.lists.create(name, board_id=board.id)).id for name in ("one", "two")]
    return World(service, session, path, board.id, lists)


@pytest.fixture
async def moments(monkeypatch: pytest.MonkeyPatch) -> Moments:
    return Moments(monkeypatch)


@pytest.fixture
async def list_id(session: AsyncSession) -> str:
    """Give a list on a new board."""
    board = await session.boards.create("Board")
    return (await session.lists.create("List", board_id=board.id)).id
