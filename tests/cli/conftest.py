"""What the tests of the command line share: a call of it in this process, with the environment of an embedded service."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from import_helpers import Terminal

from boardclient import BulkRun
from boardclient.cli import main
from boardclient.testing import BoardService


class Result(NamedTuple):
    code: object
    out: str
    err: str

    def fails(self, code: int, *words: str) -> None:
        """Assert the exit code, that nothing was printed, and that the message has these words."""
        assert (self.code, self.out, [one for one in words if one not in self.err]) == (code, "", []), self.err


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("BOARDCLIENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setitem(sys.modules, "keyring", None)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "PY_COLORS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def bare_cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line without any configuration."""

    def call(*argv: str) -> Result:
        with pytest.raises(SystemExit) as caught:
            main(argv)
        return Result(caught.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def cli(bare_cli: Cli, board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call the command line, configured for `board_service`."""
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", board_service.base_url)
    monkeypatch.setenv("BOARDCLIENT_KEY", board_service.key)
    monkeypatch.setenv("BOARDCLIENT_TOKEN", board_service.token)
    return bare_cli


@pytest.fixture
def on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Call the command line with a terminal as standard output, and give what it prints."""

    def call(*argv: str, code: int = 0, columns: int = 200, **variables: str) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", terminal := Terminal())
            assert cli(*argv).code == code
            return terminal.getvalue()

    return call


class BoardIds(NamedTuple):
    board: str
    todo: str
    doing: str
    done: str


@pytest.fixture
def board(board_service: BoardService) -> BoardIds:
    """Give a board with the three default lists."""

    async def make() -> BoardIds:
        async with board_service.session() as session:
            board = await session.boards.create("Work", default_lists=True)
            lists = await session.boards.lists(board.id)
            return BoardIds(board.id, *(item.id for item in lists))

    ids = asyncio.run(make())
    board_service.calls.clear()
    return ids


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[[str], str]:
    """Write a CSV file and give its path."""

    def write(text: str, name: str = "cards.csv") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        return str(path)

    return write


@pytest.fixture
def stop_requested(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set once a signal has requested a graceful stop of a command."""
    told, real = threading.Event(), BulkRun.stop

    def stop(run: BulkRun) -> None:
        real(run)
        told.set()

    monkeypatch.setattr(BulkRun, "stop", stop)
    return told


@pytest.fixture
def signals_on(board_service: BoardService, stop_requested: threading.Event) -> Callable[..., None]:
    """Send this process a signal as soon as the service has received a call, and others as soon as the stop is requested."""

    def arrange(operation: str, count: int, first: signal.Signals, *others: signal.Signals) -> None:
        def wait_and_send() -> None:
            asyncio.run(board_service.received(operation, count))
            os.kill(os.getpid(), first)
            for number in others:
                stop_requested.wait()
                os.kill(os.getpid(), number)

        threading.Thread(target=wait_and_send, daemon=True).start()

    return arrange
