"""Every adapter is tested alike: a test that asks for `running` runs on each framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from web_apps import FRAMEWORKS, HOST, MakeSignIn, Running

from boardclient import AsyncSession
from boardclient.testing import BoardService
from boardclient.web import NoCredentials, SignIn

COOKIE_SECRET = "cookie-secret-canary-9"


@pytest.fixture
def consenting(monkeypatch: pytest.MonkeyPatch) -> Iterator[BoardService]:
    """Run a service of two members, to which the environment leads."""
    with BoardService(members=["Ada", "Alan"], redirect_uri=f"{HOST}/callback") as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("BOARDCLIENT_TOKEN")
        monkeypatch.setenv("BOARDCLIENT_COOKIE_SECRET", COOKIE_SECRET)
        yield service


@pytest.fixture
def make(consenting: BoardService) -> MakeSignIn:
    """Give what makes a sign-in from the environment, whose session does not retry."""
    return lambda: SignIn.from_env(AsyncSession(NoCredentials(), consenting.base_url, retry=None))


@pytest.fixture(params=FRAMEWORKS)
def running(request: pytest.FixtureRequest) -> Running:
    """Give what runs a framework's application."""
    return FRAMEWORKS[request.param]


@pytest.fixture
def secrets(consenting: BoardService) -> Callable[[], list[str]]:
    """Give the secrets so far: those of the client, and every token."""

    def known() -> list[str]:
        tokens = list(consenting.rules.tokens)
        return [COOKIE_SECRET, consenting.client_secret, consenting.key, *tokens]

    return known
