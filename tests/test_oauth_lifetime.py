"""Renewals before the end of a token, sessions that close, and the deadlines of calls that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from oauth_helpers import OPTIONS, SECRETS, Application, FakeSession, provider_of, token_response, virtual

from boardclient import (
    AsyncSession,
    AuthorizationRequest,
    CredentialError,
    Credentials,
    DeadlineError,
    OAuthCredentials,
    SessionClosedError,
    Token,
)
from boardclient.errors import Effect
from boardclient.testing import assert_no_secrets

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
async def test_a_closed_session_renews_nothing() -> None:
    """A closed session renews nothing, and the user is not asked."""
    application, session = Application(), FakeSession()
    session.close()
    with pytest.raises(SessionClosedError):
        await provider_of(application).acquire(session)
    assert application.requests == []


@virtual
async def test_a_session_that_closes_amid_the_exchange() -> None:
    """An exchange that ends with its session is not a failure, and no cool-down follows."""
    provider, session = provider_of(), FakeSession(SessionClosedError("closed"), token_response())
    assert (await provider.acquire(session)).token == "t1"
    assert provider._state.failure is None


@virtual
async def test_a_renewal_that_begins_as_another_ends() -> None:
    """A renewal that begins before the last one's done callback has run is not forgotten."""
    begun: list[asyncio.Task[Any]] = []

    class First(FakeSession):
        def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = super().spawn(work)
            task.add_done_callback(lambda _: begun.append(provider._join_renewal(two)))
            return task

    application = Application(asyncio.Event().wait, lambda: asyncio.sleep(5, "code"))
    provider, one, two = provider_of(application), First(), FakeSession(token_response())
    first = asyncio.create_task(provider.acquire(one))
    await asyncio.sleep(1)
    first.cancel()
    one.close()
    await asyncio.sleep(1)
    assert list(provider._renewals.values()) == two.tasks == begun
    assert (await provider.acquire(FakeSession())).token == "t1"
    assert provider._renewals == {}
    assert len(application.requests) == 2


@virtual
async def test_a_cancelled_caller_leaves_the_renewal() -> None:
    """The call that began a renewal may be cancelled: the renewal continues for the others."""
    provider = provider_of(Application(lambda: asyncio.sleep(5, "code")))
    session = FakeSession(token_response())
    first, second = (asyncio.create_task(provider.acquire(session)) for _ in range(2))
    await asyncio.sleep(1)
    first.cancel()
    assert (await second).token == "t1"
    assert first.cancelled()
    assert len(session.forms) == 1


async def test_real_sessions_that_close() -> None:
    """A call that waits for credentials ends with its session; that of another session asks again."""
    asked: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()

    async def authorize(request: AuthorizationRequest) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asked.put_nowait(future)
        return await future

    provider = OAuthCredentials(**OPTIONS, authorize=authorize)
    one, two = (AsyncSession(provider, "https://board.example") for _ in range(2))
    calls = [asyncio.create_task(session.members.me()) for session in (one, two)]
    first = await asked.get()
    await one.aclose()
    with pytest.raises(SessionClosedError):
        await calls[0]
    assert first.cancelled()
    (await asked.get()).set_exception(LookupError("mine"))
    with pytest.raises(CredentialError, match="authorize raised LookupError") as caught:
        await calls[1]
    assert_no_secrets(caught.value, secrets=SECRETS)
    await two.aclose()


# --- deadlines


@virtual
async def test_the_deadline_of_a_call_that_waits_for_credentials() -> None:
    """A call that waits for credentials ends at its deadline, and leaves the renewal to others."""
    provider = provider_of(Application(lambda: asyncio.sleep(100, "")))
    async with AsyncSession(provider, "https://board.example", timeout=5.0) as session:
        with pytest.raises(DeadlineError, match="the user's consent") as caught:
            await session.members.me()
        assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.01)
        assert caught.value.effect is Effect.NOT_SENT
        with pytest.raises(CredentialError, match="authorize returned str"):
            await provider.acquire(session.exchange)
        assert asyncio.get_running_loop().time() == pytest.approx(100.0, abs=0.1)
