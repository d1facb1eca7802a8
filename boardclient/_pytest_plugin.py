"""The pytest plugin. It imports aiohttp and the rest of the package only when a test uses a fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from boardclient import AsyncSession
    from boardclient.testing import BoardService

try:
    from pytest_asyncio import fixture as _asynchronous
except ImportError:  # pragma: no cover -- the package's own tests need it; anyio's plugin takes fixtures of this kind
    _asynchronous = pytest.fixture  # type: ignore[assignment]  # -- both are called without arguments


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--board-record`."""
    parser.getgroup("boardclient").addoption(
        "--board-record", action="store_true", help="record the tests with the fixture board_recording again"
    )


@pytest.fixture
def board_recording_options() -> Mapping[str, object]:
    """Return the options of `board_recording`, none by default. Override it to set some.

    They are `secrets` of `boardclient.testing.record` and `ignoring` of `boardclient.testing.replay`.
    """
    return {}


@pytest.fixture
def board_recording(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, board_recording_options: Mapping[str, object]
) -> Iterator[None]:
    """Replay the requests of one test, or record them with `--board-record`. A test that fails leaves its recording as it was.

    The file is `recordings/MODULE/TEST.har` beside the test's module. While it is replayed, the environment variables are those
    of the service that replays it.
    """
    from boardclient.testing import record, replay

    options: dict[str, object] = {"secrets": (), "ignoring": (), **board_recording_options}
    name = quote(request.node.nodeid.partition("::")[2].replace("::", "."), safe="[]")
    path = request.path.parent / "recordings" / request.path.stem / f"{name}.har"
    if request.config.getoption("--board-record"):
        beside, failed = path.with_name(f"{path.name}.new"), request.session.testsfailed
        with record(beside, secrets=options["secrets"]):  # type: ignore[arg-type]  # -- the application's choice
            yield
        if request.session.testsfailed == failed:
            beside.replace(path)
        else:  # what a failed test has recorded is of no use
            beside.unlink()
    elif not path.exists():
        pytest.fail(f"{path} does not exist: run the test with --board-record to record it", pytrace=False)
    else:
        with replay(path, ignoring=options["ignoring"]) as service:  # type: ignore[arg-type]  # -- as above
            for variable, value in service.environment.items():
                monkeypatch.setenv(variable, value)
            yield


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
