"""The pytest plugin, in pytest processes of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCOPE = ["-o", "asyncio_default_fixture_loop_scope=function"]
SYNC = """
import urllib.parse
import urllib.request

def test_sync(board_service):
    query = urllib.parse.urlencode({"token": board_service.token})
    with urllib.request.urlopen(f"{board_service.base_url}/1/members/me?{query}") as response:
        assert response.status == 200
    assert board_service.calls[0].operation == "members.me"
"""
ASYNC = """
import aiohttp
import pytest

MARK
async def test_async(board_service):
    async with aiohttp.ClientSession() as http:
        async with http.get(board_service.base_url + "/1/members/me", params={"token": board_service.token}) as response:
            assert response.status == 200
    assert (await board_service.received("members.me")).number == 1
"""
OPTIONS = """
import pytest

@pytest.fixture
def board_service_options():
    return {"organizations": ["mine"]}

def test_options(board_service):
    assert board_service.rules.organizations == {"mine"}
"""

SESSION = """
import pytest

@pytest.fixture
def board_session_options():
    return {"timeout": 20.0}

MARK
async def test_session(board_service, board_session):
    board = board_service.seed({"To Do": ["Book the hall"]})
    assert [card.name for card in await board_session.boards.cards(board.id)] == ["Book the hall"]
"""
MODULE = """
def test_one(module_board_service):
    module_board_service.seed({}, "shared")

def test_two(module_board_service):
    assert [board.name for board in module_board_service.rules.boards.values()] == ["shared"]
"""


def run(folder, text, *options):
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(folder), *options]
    return subprocess.run([*command, str(folder)], capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (SYNC, ["-p", "no:asyncio"]),
        (SYNC, ["-o", "asyncio_mode=auto", *SCOPE]),
        (ASYNC.replace("MARK", ""), ["-o", "asyncio_mode=auto", *SCOPE]),
        (ASYNC.replace("MARK", "@pytest.mark.asyncio"), ["-o", "asyncio_mode=strict", *SCOPE]),
        (OPTIONS, ["-p", "no:asyncio"]),
    ],
    ids=["sync without pytest-asyncio", "sync beside it", "auto", "strict", "options"],
)
def test_the_fixture_works_in_any_style(tmp_path, text, options):
    """The fixture serves plain tests and pytest-asyncio in both modes, and takes options."""
    done = run(tmp_path, text, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_run_without_the_fixture_imports_nothing(tmp_path):
    """A test run that does not use the fixtures imports neither aiohttp nor the service."""
    text = """
import sys

def test_nothing():
    loaded = {name for name in sys.modules if name.split(".")[0] in ("aiohttp", "boardclient")}
    assert "boardclient.testing.plugin" in loaded
    assert not {"aiohttp", "boardclient.testing._service", "boardclient.testing._rules"} & loaded
"""
    done = run(tmp_path, text, "-p", "no:asyncio")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fixture_gives_a_running_service(board_service):
    assert board_service.base_url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_session_is_opened_for_a_test(tmp_path, mode):
    """The fixture `board_session` is an open session, in both modes of pytest-asyncio."""
    text = SESSION.replace("MARK", "" if mode == "auto" else "@pytest.mark.asyncio")
    done = run(tmp_path, text, "-o", f"asyncio_mode={mode}", *SCOPE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_service_is_shared_by_the_tests_of_a_module(tmp_path):
    done = run(tmp_path, MODULE, "-p", "no:asyncio")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


async def test_the_session_fixture_talks_to_the_shared_service(board_session, module_board_service):
    assert (await board_session.members.me()).id == module_board_service.members[0].id
