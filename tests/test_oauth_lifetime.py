"""Renewals before the end of a token, sessions that close, and the deadlines of calls that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from oauth_helpers import Application, FakeSession, provider_of, token_response, virtual

from boardclient import (
    Credentials,
    SessionClosedError,
    Token,
)

# --- early renewal


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give the clock that ends of tokens are on."""
    wall = SimpleNamespace(now=1_700_000_000.0)
    monkeypatch.setattr(time, "time", lambda: wall.now)
    return wall


def ending(wall: SimpleNamespace, value: str, seconds: float) -> Callable[[Mapping[str, Any]], Token]:
    return lambda fields: Token(str(fields["access_token"]), datetime.fromtimestamp(wall.now, UTC) + timedelta(seconds=seconds))


@virtual
async def test_an_early_renewal_that_takes_long(wall: SimpleNamespace) -> None:
    """The call that began it uses the old token after a second, and the renewal continues."""
    application = Application("code", lambda: asyncio.sleep(5, "another code"))
    provider = provider_of(application, renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_response("t1"), token_response("t2"))
    first = await provider.acquire(session)
    wall.now += 3590
    began = asyncio.get_running_loop().time()
    assert await provider.acquire(session) is first
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)
    await asyncio.sleep(5)
    assert (await provider.acquire(session)).token == "t2"
    assert len(application.requests) == 2


@virtual
async def test_within_an_early_renewal_the_token_is_good(wall: SimpleNamespace) -> None:
    """A callback may sign with the token that it is to replace."""
    seen: list[Credentials] = []

    async def signing() -> str:
        provider._renewals.clear()  # as on another loop
        seen.append(await provider.acquire(session))
        return "another code"

    provider = provider_of(Application("code", signing), renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_response("t1"), token_response("t2"))
    first = await provider.acquire(session)
    wall.now += 3590
    assert (await provider.acquire(session)).token == "t2"
    assert seen == [first]


# --- sessions that close


@virtual
async def test_a_session_that_closes_leaves_the_renewal_to_another() -> None:
    """A renewal ends with its session, without a failure; a call that waits on another session begins the next one."""
    application = Application(asyncio.Event().wait)
    provider, one, two = provider_of(application), FakeSession(), FakeSession(token_response())
    waiting = [asyncio.create_task(provider.acquire(session)) for session in (one, one, two, two)]
    await asyncio.sleep(1)
    one.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    # Those of the closed session find the renewal that another began, or none.
    assert results[2:] == [Credentials("t1")] * 2
    assert all(isinstance(result, SessionClosedError | Credentials) for result in results[:2])
    assert [request.attempt for request in application.requests] == [1, 2]
    assert provider._state.failure is None


@virtual
async def test_a_session_that_closes_amid_the_exchange() -> None:
    """An exchange that ends with its session is not a failure, and no cool-down follows."""
    provider, session = provider_of(), FakeSession(SessionClosedError("closed"), token_response())
    assert (await provider.acquire(session)).token == "t1"
    assert provider._state.failure is None


# --- deadlines
