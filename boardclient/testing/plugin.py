"""The pytest plugin. Nothing of the package, nor aiohttp, is imported until a test asks for a fixture."""

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
    """Give the options of `board_service`; override it to choose others."""
    return {}


@pytest.fixture
def board_service(board_service_options: Mapping[str, object]) -> Iterator[BoardService]:
    """Run a `BoardService` for one test, whatever the test's own style.

    The service has a thread and an event loop of its own, so it serves synchronous tests and every asynchronous plugin alike.
    """
    from boardclient.testing import BoardService

    with BoardService(**board_service_options) as service:  # type: ignore[arg-type]  # -- the options are the application's choice
        yield service


@pytest.fixture(scope="module")
def module_board_service_options() -> Mapping[str, object]:
    """Give the options of `module_board_service`; override it to choose others."""
    return {}


@pytest.fixture(scope="module")
def module_board_service(module_board_service_options: Mapping[str, object]) -> Iterator[BoardService]:
    """Run one `BoardService` for all tests of a module, which share what it holds."""
    from boardclient.testing import BoardService

    with BoardService(**module_board_service_options) as service:  # type: ignore[arg-type]  # -- as above
        yield service


@pytest.fixture
def board_session_options() -> Mapping[str, object]:
    """Give the options of `board_session`, those of `AsyncSession`.

    Override it to choose others.
    """
    return {}


@_asynchronous()
async def board_session(board_service: BoardService, board_session_options: Mapping[str, object]) -> AsyncIterator[AsyncSession]:
    """Open a session on `board_service` for one asynchronous test."""
    async with board_service.session(**board_session_options) as session:  # type: ignore[arg-type]  # -- as above
        yield session
