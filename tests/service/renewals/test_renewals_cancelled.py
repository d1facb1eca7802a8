"""Renewals whose callers are cancelled or whose sessions close."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from renewal_helpers import Consent, SteppingStore, _steps, exchanges, tasks_left
from waiting import until

from boardclient import AuthorizationRequest, SessionClosedError
from boardclient.testing import BoardService

# --- cancellation


@pytest.mark.parametrize("when", ["first use", "expired"])
async def test_a_leader_cancelled_at_any_step(service: BoardService, when: str) -> None:
    """At whatever step the call that began the renewal is cancelled, the others use the renewal, and none waits forever."""
    cancelled = finished = 0
    for steps in range(500):
        consent, store = Consent(service), SteppingStore()

        async def authorize(request: AuthorizationRequest, consent: Consent = consent) -> str:
            await _steps(3)
            return await consent(request)

        provider = service.oauth_credentials(authorize=authorize, store=store)
        async with service.session(provider) as session:
            if when == "expired":
                await session.members.me()
                service.rules.expire_tokens()
            exchanged, asked = exchanges(service), len(consent.asked)
            leader = asyncio.ensure_future(session.members.me())
            others = [asyncio.ensure_future(session.members.me()) for _ in range(3)]
            await _steps(steps)
            leader.cancel()
            (outcome,) = await asyncio.gather(leader, return_exceptions=True)
            async with asyncio.timeout(60):
                await asyncio.gather(*others)
                await session.members.me()
            assert (len(consent.asked) - asked, exchanges(service) - exchanged) == (1, 1), steps
            await until(lambda: provider._renewals == {})  # noqa: B023 -- used at once
            assert (await store.lease("default", "whoever", 1)).state == "granted"
            assert len(session._parts.in_flight) == 0
        assert tasks_left() == []
        if isinstance(outcome, asyncio.CancelledError):
            cancelled += 1
        else:
            finished += 1
        if finished == 3:
            break
    assert finished == 3
    assert cancelled > 20


# --- closing


async def test_closing_with_a_callback_that_does_not_end(service: BoardService) -> None:
    """A callback that swallows its cancellation doesn't hold up the closing."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def authorize(request: AuthorizationRequest) -> str:
        began.set()
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()
        return service.new_code()

    session = service.session(service.oauth_credentials(authorize=authorize))
    task = asyncio.ensure_future(session.members.me())
    await began.wait()
    async with asyncio.timeout(60):
        await session.aclose()
        with pytest.raises(SessionClosedError):
            await task
    ended.set()
    await _steps(3)
    assert (len(service.calls), tasks_left()) == (0, [])


async def test_closing_at_any_step(service: BoardService) -> None:
    """At whatever step of its renewal a session is closed, another session with the same provider is not affected."""
    ended_early = 0
    for steps in range(500):
        consent = Consent(service)
        provider = service.oauth_credentials(authorize=consent, store=SteppingStore(), lease_seconds=600.0)
        closing, going_on = service.session(provider), service.session(provider)
        exchanged = exchanges(service)
        mine = asyncio.ensure_future(closing.members.me())
        other = asyncio.ensure_future(going_on.members.me())
        await _steps(steps)
        is_over = mine.done()
        async with asyncio.timeout(60):
            await closing.aclose()
            await other
            (outcome,) = await asyncio.gather(mine, return_exceptions=True)
            await going_on.members.me()
            await going_on.aclose()
        assert is_over or isinstance(outcome, SessionClosedError), steps
        assert 1 <= len(consent.asked) <= 2, steps
        assert exchanges(service) - exchanged <= 2, steps
        await _steps(3)
        assert tasks_left() == [], steps
        if is_over:
            break
        ended_early += 1
    assert is_over
    assert ended_early > 20


async def test_a_callback_that_closes_the_session(service: BoardService) -> None:
    """A callback may close the session that waits for it: the call ends with SessionClosedError, and nothing hangs."""

    async def authorize(request: AuthorizationRequest) -> str:
        await session.aclose()
        return service.new_code()

    session = service.session(service.oauth_credentials(authorize=authorize))
    async with asyncio.timeout(60):
        with pytest.raises(SessionClosedError):
            await session.members.me()
        await session.aclose()
    await _steps(3)
    assert (len(service.calls), tasks_left()) == (0, [])
