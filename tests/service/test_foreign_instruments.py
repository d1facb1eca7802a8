"""Sentry, OpenTelemetry's instrumentor of aiohttp, vcrpy and trace configs on sessions of our own, as applications use them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_instruments import FOREIGN, Foreign, cassette

from boardclient import ApiError, AsyncSession, OAuthCredentials
from boardclient.testing import BoardService, assert_no_secrets, faults

Install = Callable[[Path], contextlib.AbstractContextManager[Foreign]]


@pytest.fixture(params=FOREIGN.values(), ids=FOREIGN)
def install(request: pytest.FixtureRequest) -> Install:
    """Give what turns an instrument on."""
    return request.param  # type: ignore[no-any-return]  # -- one of FOREIGN


@pytest.fixture
def secrets(service: BoardService) -> list[str]:
    """Give what no instrument may see: the codes and tokens of the service are added as it gives them."""
    found = [service.key, service.token, service.client_secret]
    give = service.new_code

    def new_code(*args: Any, **options: Any) -> str:
        found.append(give(*args, **options))
        return found[-1]

    service.new_code = new_code  # type: ignore[method-assign]  # -- the codes it gives are noted
    return found


def oauth(service: BoardService) -> OAuthCredentials:
    async def authorize(request: object) -> str:
        return service.new_code()

    return OAuthCredentials(
        client_id=service.client_id,
        client_secret=service.client_secret,
        redirect_uri=service.redirect_uri,
        auth_url=service.auth_url,
        key=service.key,
        authorize=authorize,
    )


def sent_tokens(service: BoardService) -> list[str]:
    """Return the tokens that requests were signed with."""
    bodies = [call.body for call in service.calls if isinstance(call.body, dict)]
    return [str(fields["token"]) for fields in (*(call.query for call in service.calls), *bodies) if "token" in fields]


@contextlib.contextmanager
def installed(install: Install, folder: Path, secrets: list[str]) -> Iterator[Foreign]:
    with install(folder) as foreign:
        yield foreign
        assert_no_secrets(foreign.written(), secrets=secrets)


@pytest.mark.parametrize("is_late", [False, True], ids=["before_the_session", "after_it"])
async def test_calls_are_seen_without_credentials(
    install: Install, service: BoardService, secrets: list[str], tmp_path: Path, is_late: bool
) -> None:
    """Each call is seen, what the instrument adds reaches the service, and it writes no credential down."""
    board = service.seed({"To Do": []})
    async with contextlib.AsyncExitStack() as stack:
        if is_late:
            session = await stack.enter_async_context(service.session(retry=None))
            await session.members.me()
            service.calls.clear()
        foreign = stack.enter_context(installed(install, tmp_path, secrets))
        if not is_late:
            session = await stack.enter_async_context(service.session(retry=None))
        await session.members.me()
        card = await session.cards.create("a card", list_id=board.lists["To Do"])
        with pytest.raises(ApiError):
            await session.cards.get("none")
        seen = foreign.seen()
    paths = ["GET {}/1/members/me", "POST {}/1/cards", "GET {}/1/cards/none"]
    assert seen == [path.format(service.base_url) for path in paths]
    for call in service.calls:
        names = {name.lower() for name in call.headers}
        assert set(foreign.fields) <= names
    assert card.name == "a card"


async def test_what_a_service_repeats_is_not_seen(
    install: Install, service: BoardService, secrets: list[str], tmp_path: Path
) -> None:
    """A service that repeats credentials in headers, reason and body shows them to no instrument; the error has them redacted."""
    echo = f"{service.key} {service.token}"
    fault = faults.status(400, headers={"X-Echo": echo, "Set-Cookie": f"a={service.token}"}, body=echo.encode())
    with installed(install, tmp_path, secrets) as foreign:
        async with service.session(retry=None) as session:
            service.faults.add(fault, times=2)
            for call in (session.members.me(), session.cards.create("a card", list_id="l")):
                with pytest.raises(ApiError, match=r"\*\*\* \*\*\*"):
                    await call
            assert len(foreign.seen()) == 2


async def test_a_token_exchange_is_seen_without_its_token(
    install: Install, service: BoardService, secrets: list[str], tmp_path: Path
) -> None:
    """The form of a token exchange and the token in its response are not written down."""
    with installed(install, tmp_path, secrets) as foreign:
        async with AsyncSession(oauth(service), service.base_url) as session:
            await session.members.me()
        secrets += sent_tokens(service)
        assert [one.partition(" ")[0] for one in foreign.seen()] == ["POST", "GET"]
    assert len(secrets) == 5


async def test_a_cassette_replays_an_application(service: BoardService, tmp_path: Path) -> None:
    """What vcrpy recorded answers a later run without the service, the token exchange included."""
    board = service.seed({"To Do": []})
    given = []
    for _ in range(2):
        with cassette(tmp_path):
            async with AsyncSession(oauth(service), service.base_url) as session:
                given.append([await session.members.me(), await session.cards.create("a", list_id=board.lists["To Do"])])
    assert given[0] == given[1]
    assert len(service.calls) == 3
