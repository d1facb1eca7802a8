"""The pytest plugin. It imports aiohttp and the rest of the package only when a test uses a fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from boardclient import AsyncSession
    from boardclient.testing import BoardService

try:
    from pytest_asyncio import fixture as _asynchronous
except ImportError:  # pragma: no cover -- the package's own tests need it; anyio's plugin takes fixtures of this kind
    _asynchronous = pytest.fixture  # type: ignore[assignment]  # -- both are called without arguments


@pytest.fixture
def board_service_options() -> Mapping[str, object]:
    """Return the options of `board_service`, none by default. Override it to set some."""
    return {}


@pytest.fixture
def board_service(board_service_options: Mapping[str, object]) -> Iterator[BoardService]:
    """Run a `BoardService` for one test.

    The service runs in its own thread with its own event loop, so it works in synchronous tests and with any asynchronous plugin.
    """
    from boardclient.testing import BoardService

    with BoardService(**board_service_options) as service:  # type: ignore[arg-type]  # -- the options are the application's choice
        yield service


@pytest.fixture
def board_session_options() -> Mapping[str, object]:
    """Return the options of `board_session`, none by default. Override it to set some.

    They are those of `AsyncSession`.
    """
    return {}


@_asynchronous()
async def board_session(board_service: BoardService, board_session_options: Mapping[str, object]) -> AsyncIterator[AsyncSession]:
    """Open a session that uses `board_service` for one asynchronous test."""
    async with board_service.session(**board_session_options) as session:  # type: ignore[arg-type]  # -- as above
        yield session
