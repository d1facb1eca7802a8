"""A session that the environment configures."""

from __future__ import annotations

import pytest

from boardclient import AsyncSession, StaticCredentials
from boardclient.testing import BoardService


async def test_a_session_is_built_from_the_environment(board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, key and token come from their variables, without the white space that files leave around them."""
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", f" {board_service.base_url}\n")
    monkeypatch.setenv("BOARDCLIENT_TOKEN", f"{board_service.token}\n")
    monkeypatch.setenv("BOARDCLIENT_KEY", f"{board_service.key}\r\n")
    async with AsyncSession.from_env(timeout=5) as session:
        assert (await session.boards.create("Launch")).name == "Launch"


async def test_what_is_given_wins(board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and an address that are given need no variable."""
    for name in ("BASE_URL", "TOKEN", "KEY"):
        monkeypatch.delenv(f"BOARDCLIENT_{name}", raising=False)
    credentials = StaticCredentials(board_service.token, board_service.key)
    async with AsyncSession.from_env(credentials, base_url=board_service.base_url) as session:
        assert (await session.boards.create("Launch")).name == "Launch"


@pytest.mark.parametrize("name", ["BOARDCLIENT_BASE_URL", "BOARDCLIENT_TOKEN"])
@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_variable_that_is_not_set_is_named(name: str, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, and an empty one counts as not set."""
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", "https://boards.example")
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "t")
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is not set"):
        AsyncSession.from_env()
