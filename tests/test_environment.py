"""A session that the environment configures."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

from boardclient import AsyncSession, CredentialError, Credentials, FileTokenStore, StaticCredentials
from boardclient.testing import BoardService
from boardclient.web import NoCredentials, SignIn


async def test_a_session_is_built_from_the_environment(board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, key and token come from their variables, without the white space that files leave around them."""
    monkeypatch.setenv("BOARDCLIENT_BASE_URL", f" {board_service.base_url}\n")
    monkeypatch.setenv("BOARDCLIENT_TOKEN", f"{board_service.token}\n")
    monkeypatch.setenv("BOARDCLIENT_KEY", f"{board_service.key}\r\n")
    async with AsyncSession.from_env(timeout=5) as session:
        assert (await session.boards.create("Launch")).name == "Launch"


async def test_arguments_win_over_the_environment(board_service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_sign_in_is_built_from_the_environment(
    board_service: BoardService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine variables make a sign-in and its session, which has no credentials of its own; what is given wins."""
    for name, value in {**board_service.environment, "BOARDCLIENT_COOKIE_SECRET": "s" * 32}.items():
        monkeypatch.setenv(name, f" {value}\n")
    monkeypatch.setenv("BOARDCLIENT_TOKENS", str(tmp_path / "tokens.db"))
    sign_in = SignIn.from_env(login_path="/in")
    async with sign_in.session as session:
        begun = sign_in.begin()
        assert begun.location.startswith(board_service.authorize_url)
        state = begun.location.partition("state=")[2]
        cookies = "; ".join(cookie.partition(";")[0] for cookie in begun.set_cookies)
        done = await sign_in.complete({"code": board_service.new_code(), "state": state}, cookies)
        assert await FileTokenStore(tmp_path / "tokens.db").read(done.account) is not None
        assert (await sign_in.session_for(done.account).members.me()).id == done.member.id
        assert (sign_in.login_path, sign_in.callback_path) == ("/in", "/callback")
        with pytest.raises(CredentialError, match=r"sign_in\.session_for"):
            await session.members.me()
    async with board_service.session() as session:
        monkeypatch.delenv("BOARDCLIENT_TOKENS")
        monkeypatch.delenv("BOARDCLIENT_BASE_URL")
        assert SignIn.from_env(session, key=None).session is session


@pytest.mark.parametrize(
    "name", ["AUTH_URL", "AUTHORIZE_URL", "CLIENT_ID", "CLIENT_SECRET", "REDIRECT_URI", "COOKIE_SECRET", "BASE_URL"]
)
def test_a_sign_in_names_the_variable_that_is_missing(
    board_service: BoardService, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it before a session is made."""
    for variable, value in {**board_service.environment, "BOARDCLIENT_COOKIE_SECRET": "s" * 32}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv(f"BOARDCLIENT_{name}")
    with pytest.raises(ValueError, match=f"BOARDCLIENT_{name} is not set"):
        SignIn.from_env()


def test_variables_that_are_missing_are_named_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sets them one after the other gets one error for all."""
    for name in ("AUTH_URL", "AUTHORIZE_URL", "CLIENT_ID", "CLIENT_SECRET", "REDIRECT_URI", "COOKIE_SECRET", "BASE_URL", "TOKEN"):
        monkeypatch.delenv(f"BOARDCLIENT_{name}", raising=False)
    with pytest.raises(ValueError, match="variables BOARDCLIENT_BASE_URL, BOARDCLIENT_TOKEN are not set"):
        AsyncSession.from_env()
    monkeypatch.setenv("BOARDCLIENT_CLIENT_ID", "c")
    names = [f"BOARDCLIENT_{name}" for name in ("BASE_URL", "CLIENT_SECRET", "REDIRECT_URI", "AUTH_URL", "AUTHORIZE_URL")]
    with pytest.raises(ValueError, match=f"the environment variables {', '.join(names)}, BOARDCLIENT_COOKIE_SECRET are not set"):
        SignIn.from_env()


@pytest.mark.parametrize("is_lent", [False, True])
def test_a_bad_address_leaves_no_open_session(
    board_service: BoardService, is_lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign-in that can't be built closes the session it has made, and no session of the application's."""
    for variable, value in {**board_service.environment, "BOARDCLIENT_COOKIE_SECRET": "s" * 32}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("BOARDCLIENT_AUTHORIZE_URL", "ftp://boards.example/consent")
    session = board_service.session() if is_lent else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="authorize_url must be"):
            SignIn.from_env(session)
        gc.collect()
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == []
    if session is not None:
        assert "open" in repr(session)
        session._discard()


async def test_no_credentials_are_not_renewed_either() -> None:
    """A session for users only says how to call through it."""
    async with AsyncSession(NoCredentials(), "https://boards.example") as session:
        with pytest.raises(CredentialError, match=r"sign_in\.session_for"):
            await NoCredentials().renew(Credentials("t"), session.exchange)
