"""An embedded service and an open session in one line, for trials and examples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from boardclient.testing._server import BoardService

if TYPE_CHECKING:
    from boardclient import AsyncSession


class Playground(NamedTuple):
    """An embedded service, and an open session that uses it."""

    service: BoardService
    session: AsyncSession


@asynccontextmanager
async def playground(service: BoardService | None = None) -> AsyncIterator[Playground]:
    """Run an embedded service and open a session that uses it, both for one block.

    ```python
    async with playground() as (service, session):
        board = await session.boards.create("Roadmap", default_lists=True)
        print(board.url)  # a page that shows the board while the block runs
    ```

    Args:
        service: The service to run. By default a `BoardService()` with its default options.

    Raises:
        OSError: the service's port is in use.
    """
    async with service or BoardService() as running, running.session() as session:
        yield Playground(running, session)
