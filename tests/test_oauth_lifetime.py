"""Renewals before the end of a token, sessions that close, and the deadlines of calls that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict
from oauth_helpers import Application, FakeSession, error_of, provider_of, token_response, virtual

from boardclient import Credentials, MemoryTokenStore, Response, SessionClosedError, Token

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
async def test_a_session_that_closes_amid_the_exchange() -> None:
    """An exchange that ends with its session is not a failure, and no cool-down follows."""
    provider, session = provider_of(), FakeSession(SessionClosedError("closed"), token_response())
    assert (await provider.acquire(session)).token == "t1"
    assert provider._state.failure is None


# --- what the exchange asks for


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asked", "seconds"), [("120", 120.0), ("1000000", 3600.0)])
@virtual
async def test_the_exchange_says_when_a_code_can_be_exchanged(status: int, asked: str, seconds: float) -> None:
    """For as long as the exchange asks, up to an hour, no user is asked for a code. Message and `retry_at` say the same."""
    application, store = Application(), MemoryTokenStore(clock=asyncio.get_running_loop().time)
    provider = provider_of(application, store=store)
    session = FakeSession(Response(status, CIMultiDict({"Retry-After": asked}), b""), token_response())
    for passed in (0.0, 30.0):
        await asyncio.sleep(passed)
        error = await error_of(provider.acquire(session))
        assert f"the next renewal is possible in {seconds - passed:.1f} s" in str(error)
        assert error.retry_at is not None
        assert abs((error.retry_at - datetime.now(UTC)).total_seconds() - seconds) < 60
    assert (await store.lease("default", "another worker", 1.0)).state == "cooling"
    await asyncio.sleep(seconds - 31.0)
    await error_of(provider.acquire(session))
    assert len(application.requests) == len(session.forms) == 1
    await asyncio.sleep(2.0)
    assert (await provider.acquire(session)).token == "t1"
