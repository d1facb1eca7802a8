"""Sentry, OpenTelemetry's instrumentor of aiohttp and vcrpy on sessions of our own, as applications use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foreign_instruments import FOREIGN, Foreign, cassette

from boardclient import ApiError, AsyncSession
from boardclient.testing import BoardService, assert_no_secrets, faults


async def refused(session: AsyncSession, foreign: Foreign) -> None:
    """Report the error of a call: an instrument may write down what its frames hold."""
    with pytest.raises(ApiError, match=r"\*\*\* \*\*\*") as caught:
        await session.cards.get("none")
    foreign.report(caught.value)


@pytest.mark.parametrize("is_late", [False, True], ids=["before_the_session", "after_it"])
@pytest.mark.parametrize("install", FOREIGN.values(), ids=FOREIGN)
async def test_calls_are_seen_without_credentials(install: Any, service: BoardService, tmp_path: Path, is_late: bool) -> None:
    """Each request is seen, what the instrument adds is sent, and it writes no credential, though a response repeats some."""
    codes: list[str] = []

    async def authorize(request: object) -> str:
        codes.append(service.new_code())
        return codes[-1]

    board, early = service.seed({"To Do": []}), service.session(retry=None)
    if is_late:
        await early.members.me()
        service.calls.clear()
    with install(tmp_path) as foreign:
        async with early, early.with_credentials(service.oauth_credentials(authorize=authorize)) as session:
            card = await session.cards.create("a card", list_id=board.lists["To Do"])
            echo = f"{service.key} {[*service.rules.tokens][-1]}"
            service.faults.add(faults.status(400, {"X-Echo": echo, "Set-Cookie": f"a={echo}"}, echo.encode()), "cards.get")
            await refused(session, foreign)
        seen = foreign.seen()
        assert_no_secrets(foreign.written(), secrets=[service.key, service.client_secret, *service.rules.tokens, *codes])
    paths = ["POST {}/auth/1/OAuthGetAccessToken", "POST {}/1/cards", "GET {}/1/cards/none"]
    assert (seen, card.name) == ([path.format(service.base_url) for path in paths], "a card")
    for call in service.calls:
        assert set(foreign.fields) <= {name.lower() for name in call.headers}


async def test_a_cassette_replays_an_application(service: BoardService, tmp_path: Path) -> None:
    """What vcrpy recorded answers a later run without the service, the token exchange included."""
    board = service.seed({"To Do": []})
    given = []
    for _ in range(2):
        with cassette(tmp_path):
            async with service.session(service.oauth_credentials()) as session:
                given.append([await session.members.me(), await session.cards.create("a", list_id=board.lists["To Do"])])
    assert given[0] == given[1]
    assert len(service.calls) == 3
