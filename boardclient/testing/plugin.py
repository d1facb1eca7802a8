"""The pytest plugin. It imports aiohttp and the rest of the package only when a test uses a fixture."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from boardclient import AsyncSession
    from boardclient.testing import BoardRecording, BoardService
    from boardclient.testing._replay import RecordMode

try:
    from pytest_asyncio import fixture as _asynchronous
except ImportError:  # pragma: no cover -- the package's own tests need it; anyio's plugin takes fixtures of this kind
    _asynchronous = pytest.fixture  # type: ignore[assignment]  # -- both are called without arguments


_MODES = ("none", "once", "all")
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--board-record`."""
    parser.getgroup("boardclient").addoption(
        "--board-record",
        choices=_MODES,
        default="once",
        help="For tests with the fixture board_recording: 'once' (default) records those that have no recording yet, 'none' only"
        " replays, 'all' records every one again.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "board_recording(path=None, *, ignoring=(), strict=True, repeats=False, secrets=()): the file of the fixture"
        " board_recording, beside the test, and the options of boardclient.testing.record and replay.",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note that a test has failed."""
    yield
    if call.when == "call" and call.excinfo is not None:
        item.stash[_failed] = True


@pytest.fixture
def board_recording(request: pytest.FixtureRequest) -> Iterator[BoardRecording]:
    """Record or replay the requests of one test.

    The file is `recordings/MODULE/TEST.har` beside the test's module, or what the marker `board_recording` names.
    """
    from boardclient.testing._replay import NotRecordedError, recording_of_test

    marker = request.node.get_closest_marker("board_recording")
    module = request.path
    arguments, options = ((), {}) if marker is None else (marker.args, {**marker.kwargs})
    named = arguments[0] if arguments else options.pop("path", None) or _file_name(module.stem, request.node.nodeid)
    mode: RecordMode = request.config.getoption("--board-record")  # pyright: ignore[reportAssignmentType] -- it has a default
    try:
        with recording_of_test(module.parent / named, mode, options, lambda: request.node.stash.get(_failed, False)) as recording:
            yield recording
    except NotRecordedError as error:
        pytest.fail(str(error), pytrace=False)


def _file_name(module: str, test: str) -> str:
    """Return the path of a test's file.

    If parameters contain characters that no file name may have, a checksum keeps the names distinct.
    """
    name = test.partition("::")[2].replace("::", ".")
    clean = re.sub(r"[^\w.,=+\-\[\]]+", "-", name)
    checksum = "" if clean == name else f"-{zlib.crc32(name.encode()):08x}"
    return f"recordings/{module}/{clean}{checksum}.har"


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


@pytest.fixture(scope="module")
def module_board_service_options() -> Mapping[str, object]:
    """Return the options of `module_board_service`, none by default. Override it to set some."""
    return {}


@pytest.fixture(scope="module")
def module_board_service(module_board_service_options: Mapping[str, object]) -> Iterator[BoardService]:
    """Run one `BoardService` for all tests of a module, which share its data."""
    from boardclient.testing import BoardService

    with BoardService(**module_board_service_options) as service:  # type: ignore[arg-type]  # -- as above
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
