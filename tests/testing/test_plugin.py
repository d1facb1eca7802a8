"""The pytest plugin."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SYNC = """
import pytest
import urllib.parse
import urllib.request

class TestOptions:
    @pytest.fixture
    def board_service_options(self):
        return {"organizations": ["mine"]}

    def test_options(self, board_service):
        assert board_service.rules.organizations == {"mine"}

def test_sync(board_service):
    query = urllib.parse.urlencode({"token": board_service.token})
    with urllib.request.urlopen(f"{board_service.base_url}/1/members/me?{query}") as response:
        assert response.status == 200
    assert board_service.calls[0].operation == "members.me"
"""
ASYNC = """
import pytest

MARK
class TestOptions:
    @pytest.fixture
    def board_session_options(self):
        return {"user_agent": "mine"}

    async def test_options(self, board_service, board_session):
        await board_session.members.me()
        assert board_service.calls[0].headers["User-Agent"].endswith("mine")

MARK
async def test_session(board_service, board_session):
    board = board_service.seed({"To Do": ["Book the hall"]})
    assert [card.name for card in await board_session.boards.cards(board.id)] == ["Book the hall"]
    assert (await board_service.received("boards.cards")).number == 1
"""
NOTHING = """
import sys

def test_nothing():
    loaded = {name for name in sys.modules if name.split(".")[0] in ("aiohttp", "boardclient")}
    assert "boardclient._pytest_plugin" in loaded
    assert not {"aiohttp", "boardclient.testing._service", "boardclient.testing._rules"} & loaded
"""


@pytest.mark.full
def test_unused_fixtures_import_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NOTHING)
    assert pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider").ret == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (SYNC, ["-p", "no:asyncio"]),
        (SYNC + ASYNC.replace("MARK", ""), ["-o", "asyncio_mode=auto"]),
        pytest.param(ASYNC.replace("MARK", "@pytest.mark.asyncio"), ["-o", "asyncio_mode=strict"], marks=pytest.mark.full),
    ],
    ids=["sync", "auto", "strict"],
)
def test_the_fixtures_work_in_any_style(pytester: pytest.Pytester, text: str, options: list[str]) -> None:
    """The fixtures serve plain tests and pytest-asyncio in both modes, and take options."""
    pytester.makepyfile(text)
    if "no:asyncio" not in options:
        options = [*options, "-o", "asyncio_default_fixture_loop_scope=function"]
    assert pytester.runpytest_inprocess("-q", "-W", "error", "-p", "no:cacheprovider", *options).ret == 0
