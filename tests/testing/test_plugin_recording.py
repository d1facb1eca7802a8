"""The fixture `board_recording`, in runs of pytest of their own."""

from __future__ import annotations

import json

import pytest

from boardclient.testing import BoardRecording, BoardService

pytest_plugins = ["pytester"]

TEST = """
import pytest

MARK
async def test_invite(board_recording):
    async with board_recording.session() as session:
        board = await session.boards.create("NAME", default_lists=True)
        lists = await session.boards.lists(board.id)
    assert [one.name for one in lists] == ["To Do", "Doing", "Done"]
    assert board_recording.is_replayed is IS_REPLAYED
    FAIL
"""


class Suite:
    """A test with a recording, and the service that it was recorded with."""

    def __init__(self, pytester: pytest.Pytester, service: BoardService) -> None:
        self.pytester, self.folder, self.service = pytester, pytester.path, service
        folder = pytester.path
        self.path = folder / "recordings" / "test_it" / "test_invite.har"

    def run(
        self, *options: str, is_replayed: bool = False, name: str = "Party", mark: str = "", fail: str = "", text: str = TEST
    ) -> tuple[int, str]:
        """Return the exit code and the output of one run, in which the service has other identifiers than before."""
        text = text.replace("IS_REPLAYED", str(is_replayed)).replace("NAME", name).replace("MARK", mark).replace("FAIL", fail)
        self.pytester.makepyfile(test_it=text)
        given = ["-q", "-p", "no:cacheprovider", "--strict-markers", "-o", "asyncio_mode=auto"]
        done = self.pytester.runpytest_inprocess(*given, "-o", "asyncio_default_fixture_loop_scope=function", *options)
        return done.ret, "\n".join(done.outlines)


@pytest.fixture
def suite(pytester: pytest.Pytester, board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Give a suite without a recording."""
    for name, value in board_service.environment.items():
        monkeypatch.setenv(name, value)
    return Suite(pytester, board_service)


def test_a_test_is_recorded_once_and_replayed_from_then_on(suite: Suite) -> None:
    """The service sees the first run only, and the file has no credential."""
    assert suite.run()[0] == 0
    assert len(suite.service.calls) == 2
    assert suite.service.token not in suite.path.read_text()
    for mode in ("once", "none"):
        code, out = suite.run(f"--board-record={mode}", is_replayed=True)
        assert code == 0, out
    assert len(suite.service.calls) == 2
    before = suite.path.read_text()
    code, out = suite.run("--board-record=all")
    assert code == 0, out
    assert len(suite.service.calls) == 4
    assert suite.path.read_text() != before


def test_nothing_is_recorded_where_that_is_not_allowed(suite: Suite) -> None:
    """A missing file fails the test in continuous integration, and names the option to record it."""
    code, out = suite.run("--board-record=none")
    assert code == 1
    assert "test_invite.har does not exist: run the test with --board-record=once to record it" in out
    assert not suite.path.exists()
    assert not suite.service.calls


def test_a_test_that_fails_is_not_recorded(suite: Suite) -> None:
    """A test that fails is not recorded, since every later run would replay its failure."""
    assert suite.run(fail="raise ZeroDivisionError")[0] == 1
    assert not suite.path.exists()


def test_a_test_that_asks_for_something_else_fails(suite: Suite) -> None:
    """The words name the nearest recorded request. After a failure, requests that were not made are no second error."""
    suite.run()
    code, out = suite.run(is_replayed=True, name="Wedding")
    assert code == 1
    assert "Wedding" in out
    assert 'where name is "Party"' in out
    code, out = suite.run(is_replayed=True, fail="raise ZeroDivisionError")
    assert code == 1
    assert "1 failed in" in out


def test_the_marker_names_a_file_and_options(suite: Suite) -> None:
    """The file may be an HTTP archive. An option that does not exist is named."""
    mark = "@pytest.mark.board_recording(path='calls.har', ignoring=['name'], secrets=['Party'])"
    assert suite.run(mark=mark)[0] == 0
    assert len(json.loads((suite.folder / "calls.har").read_text())["log"]["entries"]) == 2
    code, out = suite.run(is_replayed=True, mark=mark, name="Wedding")
    assert code == 0, out
    code, out = suite.run(mark="@pytest.mark.board_recording(ignores=['name'])")
    assert "board_recording does not take ignores" in out


def test_each_test_has_a_file_of_its_own(suite: Suite) -> None:
    """Classes and parameters do not share one, whatever is in their names. A test that asks nothing has none."""
    text = """
import os
import pytest

class TestOne:
    @pytest.mark.parametrize("name", ["a/b", "a:b", "c"])
    async def test_it(self, board_recording, name):
        async with board_recording.session() as session:
            await session.boards.create(name)

class TestTwo:
    async def test_it(self, board_recording, monkeypatch):
        monkeypatch.delenv("BOARDCLIENT_KEY")

def test_nothing(board_recording):
    assert os.environ["BOARDCLIENT_BASE_URL"]
"""
    code, out = suite.run(text=text)
    assert code == 0, out
    names = sorted(path.name for path in suite.path.parent.iterdir())
    assert [name.partition("-")[0] for name in names] == ["TestOne.test_it[a", "TestOne.test_it[a", "TestOne.test_it[c].har"]
    code, out = suite.run("--board-record=none", "-k", "TestOne", text=text)
    assert code == 0, out


def test_the_environment_is_that_of_the_replay_for_its_test_only(suite: Suite) -> None:
    """Code that configures itself from the environment reaches the replay. Variables that were not set are not set again."""
    text = """
import os
import pytest
from boardclient import AsyncSession

@pytest.fixture
def before(monkeypatch):
    monkeypatch.delenv("BOARDCLIENT_CLIENT_ID")
    yield
    assert "BOARDCLIENT_CLIENT_ID" not in os.environ
    assert os.environ["BOARDCLIENT_BASE_URL"] == "ADDRESS"

async def test_invite(before, board_recording):
    async with AsyncSession.from_env() as session:
        await session.members.me()
    assert (os.environ["BOARDCLIENT_BASE_URL"] != "ADDRESS") is board_recording.is_replayed is IS_REPLAYED
"""
    for is_replayed in (False, True):
        code, out = suite.run(text=text.replace("ADDRESS", suite.service.base_url), is_replayed=is_replayed)
        assert code == 0, out


def test_the_fixture_works_here(board_recording: BoardRecording) -> None:
    """A test that asks for nothing is recorded nowhere."""
    assert not board_recording.is_replayed
    assert board_recording.service is None
    assert not board_recording.path.exists()
