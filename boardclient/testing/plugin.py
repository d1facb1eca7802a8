"""The pytest plugin. Nothing of the package, nor aiohttp, is imported until a test asks for the fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from boardclient.testing import BoardService


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
