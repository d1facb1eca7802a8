"""Renewing before the end of a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from renewal_helpers import Consent, refusals, timed
from virtual_loop import Clock
from waiting import until

from boardclient.testing import BoardService


@pytest.fixture
async def expiring(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[BoardService]:
    """Run a service whose tokens live for 100 s of a clock that the client's time of day is on, too."""
    clock.now = time.time() // 1
    monkeypatch.setattr(time, "time", clock)
    async with BoardService(clock=clock, token_lifetime=100.0) as running:
        yield running


async def test_renewed_before_the_end(expiring: BoardService, clock: Clock) -> None:
    """A token whose end is known is renewed unasked, by one call for all, and the service never has to say 401."""
    consent = Consent(expiring)
    provider = timed(expiring, consent, clock, renew_before_expiry=10.0)
    async with expiring.session(provider) as session:
        for renewals in range(1, 4):
            await asyncio.gather(*(session.members.me() for _ in range(20)))
            clock.now += 89.9
            await asyncio.gather(*(session.members.me() for _ in range(20)))
            assert len(consent.asked) == renewals
            clock.now += 0.2
        await asyncio.gather(*(session.members.me() for _ in range(20)))
    assert (len(consent.asked), refusals(expiring)) == (4, 0)


async def test_an_early_renewal_that_fails(expiring: BoardService, clock: Clock) -> None:
    """Where an early renewal fails the old token stays in use, and the next one comes after the cool-down."""
    consent = Consent(expiring)
    provider = timed(expiring, consent, clock, renew_before_expiry=10.0)
    async with expiring.session(provider) as session:
        await session.members.me()
        clock.now += 91
        consent.error = LookupError("no consent")
        for _ in range(3):
            await session.members.me()
        assert len(consent.asked) == 2
        consent.error = None
        clock.now += 1
        await session.members.me()
        assert len(consent.asked) == 3
        clock.now += 50
        await session.members.me()
    assert (len(consent.asked), refusals(expiring)) == (3, 0)


async def test_an_early_renewal_that_outlasts_its_token(expiring: BoardService, clock: Clock) -> None:
    """A token that ends while it is renewed early is waited for by all that are refused: there is one callback."""
    consent = Consent(expiring)
    async with expiring.session(timed(expiring, consent, clock, renew_before_expiry=10.0)) as session:
        await session.members.me()
        clock.now += 95
        consent.hold_up()
        first = asyncio.ensure_future(session.members.me())
        await consent.reached()
        clock.now += 10
        others = [asyncio.ensure_future(session.members.me()) for _ in range(5)]
        await until(lambda: refusals(expiring) == 5)
        consent.open.set()
        await asyncio.gather(first, *others)
    assert (len(consent.asked), refusals(expiring)) == (2, 5)
