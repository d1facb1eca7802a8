"""What many tests share: single exchanges without sockets, a raw server, and a policy that does not sleep."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing.connection  # noqa: F401 -- coverage drops it from sys.modules where it starts in a worker, and pickle then finds another
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import aioresponses.core
import pytest
from aioresponses import aioresponses as AioResponses
from hypothesis import HealthCheck, settings
from virtual_loop import Clock

from boardclient import AsyncSession, retry
from boardclient.testing import BoardService

if TYPE_CHECKING:
    from recipe_helpers import Recipe

_HERE = Path(__file__).parent
_FULL = {
    _HERE / path
    for path in (
        "campaign",
        "distributed",
        "examples",
        "integrations",
        "service/test_foreign_instruments.py",
        "service/test_opentelemetry.py",
        "service/test_spoiled_responses.py",
        "store",
        "test_activities.py",
        "test_datadog.py",
        "test_drawn_services.py",
        "test_pace_limits.py",
    )
}
"""What only the full suite runs: it needs the group `full` of pyproject.toml or a browser, or takes long."""
_ENGINES = _HERE / "engines"
"""What only `--engines` runs: it needs the group `engines`, of 1.3 GB."""

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("contributor", settings.get_profile("any machine"), max_examples=20)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the full suite."""
    parser.addoption("--full", action="store_true", help="run also what takes long, or needs the group `full` or a browser")
    parser.addoption("--engines", action="store_true", help="run what needs the group `engines`")
    parser.addoption("--write-output", action="store_true", help="write what the programs of the pages print below them")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and run what the command line names, whatever it needs; workers get the option from here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's `&` ignores it, and so would each process of a test
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "full: takes long, or needs the group `full`; only `--full` or its own path runs it")
    if hasattr(config, "workerinput"):
        config.option.full = config.workerinput["full"]
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.full = True
    if not config.option.full:  # the full suite tries five times as many examples of each property
        settings.load_profile("contributor")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the option: it is named paths in any case."""
    node.workerinput["full"] = node.config.option.full


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what only the full suite runs without importing it."""
    if collection_path == _ENGINES:
        return None if config.option.engines else True
    return True if collection_path in _FULL and not config.option.full else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out single tests of the full suite."""
    if not config.option.full:
        left_out = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True)
def _without_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the profiles of the machine's user out of programs that a test starts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no profiles"))


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _ClientResponse(aiohttp.ClientResponse):
    """The response that aioresponses builds without the `stream_writer` of aiohttp 3.14."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("stream_writer", SimpleNamespace(output_size=0))
        super().__init__(*args, **kwargs)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[AioResponses]:
    """Return the mock that responds in place of sockets."""
    monkeypatch.setattr(aioresponses.core, "ClientResponse", _ClientResponse)
    with AioResponses() as mock:
        yield mock


@pytest.fixture
async def service() -> AsyncIterator[BoardService]:
    """Run the service on the test's own loop."""
    async with BoardService() as running:
        yield running


@pytest.fixture
async def session(service: BoardService) -> AsyncIterator[AsyncSession]:
    async with service.session() as opened:
        yield opened


@pytest.fixture
async def loop_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the time of the test's own loop, beside real sockets.

    A deadline passes by `advance`, called on the loop, however slow the machine is. With `service.sleep = loop_clock.sleep` time
    passes while the service waits.
    """
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    return clock


@pytest.fixture
async def passing_time(loop_clock: Clock) -> AsyncIterator[Clock]:
    """Let 10 ms of the loop's time pass in each of its iterations, so that no pause takes real time."""

    async def pass_time() -> None:
        while True:
            loop_clock.advance(0.01)
            await asyncio.sleep(0)

    passing = asyncio.create_task(pass_time())
    yield loop_clock
    passing.cancel()


@pytest.fixture
def pauses() -> list[float]:
    """Return the pauses that `policy` made."""
    return []


@pytest.fixture
def policy(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the default policy, whose sleep only notes the pause, which is the longest that is possible."""

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("random.uniform", lambda low, high: high)
    return retry.default(sleep=sleep)


class RawServer:
    """A server that answers bytes of the test's choice; `served` counts the connections."""

    def __init__(self) -> None:
        self.served = 0
        self.handlers: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def run(self, handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve every connection with the handler, and give the base URL."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.served += 1
            self.handlers.append(asyncio.current_task())  # type: ignore[arg-type]  # -- it runs in a task
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await handler(reader, writer)
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        scheme = "http" if context is None else "https"
        try:
            yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self.handlers:
                task.cancel()
            await asyncio.gather(*self.handlers, return_exceptions=True)
            await asyncio.sleep(0)


@pytest.fixture
def raw_server() -> RawServer:
    """Give a server below HTTP."""
    return RawServer()


@pytest.fixture(params=["recipe", "naive twin"])
def make_recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Recipe]]:
    """Give a function that makes the recipe of the page of an engine, or its naive twin, in a folder."""
    from recipe_helpers import Recipe  # needs the group `full`

    made: list[Recipe] = []
    with BoardService(latency=0.01) as service:

        def make(title: str) -> Recipe:
            made.append(Recipe(title, tmp_path, service, request.param == "naive twin"))
            return made[-1]

        try:
            yield make
        finally:
            for recipe in made:
                recipe.close()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back what a test's application configured of logging: frameworks set the level and handlers of all loggers."""
    loggers = [logging.getLogger(), logging.getLogger("boardclient")]
    before = [(logger, logger.level, [*logger.handlers]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        for handler in {*logger.handlers} - {*handlers}:
            logger.removeHandler(handler)
