"""A service and an open session in one line, to try things out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from boardclient.testing._server import BoardService

if TYPE_CHECKING:
    from boardclient import AsyncSession


class Playground(NamedTuple):
    """An embedded service, and a session that is open on it."""

    service: BoardService
    session: AsyncSession


@asynccontextmanager
async def playground(service: BoardService | None = None) -> AsyncIterator[Playground]:
    """Run an embedded service and open a session on it, for the time of the block.

    ```python
    async with playground() as (service, session):
        board = await session.boards.create("Roadmap", default_lists=True)
        print(board.url)  # a page that shows the board, as long as the block runs
    ```

    Args:
        service: the service to run, where other options than the default ones are wanted.
    """
    async with service or BoardService() as running, running.session() as session:
        yield Playground(running, session)
