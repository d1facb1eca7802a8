"""Callbacks, tokens and stores that fail."""

from __future__ import annotations

import asyncio

import pytest
from renewal_helpers import Consent, exchanges, is_sent, refusals, timed
from virtual_loop import Clock

from boardclient import (
    AsyncSession,
    AuthenticationError,
    CredentialError,
    DeadlineError,
    Effect,
    MemoryTokenStore,
    SessionClosedError,
)
from boardclient.testing import BoardService, faults

# --- a callback that fails


async def test_cooldowns_double(service: BoardService, consent: Consent, clock: Clock) -> None:
    """The cool-down doubles with each failure up to 60 s, and begins anew once a token was accepted."""
    consent.error = LookupError("no consent")
    provider = timed(service, consent, clock)
    async with service.session(provider) as session:

        async def rest() -> float:
            """Fail, and say how long renewals rest: no sooner does another one begin."""
            with pytest.raises(CredentialError, match="the next renewal is possible in") as caught:
                await session.members.me()
            seconds = float(str(caught.value).split()[-2])
            clock.now += seconds - 0.125
            asked = len(consent.asked)
            with pytest.raises(CredentialError):
                await session.members.me()
            assert len(consent.asked) == asked
            clock.now += 0.125
            return seconds

        assert [await rest() for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert [request.attempt for request in consent.asked] == [*range(1, 10)]
        consent.error = None
        await session.members.me()
        service.rules.expire_tokens()
        consent.error = LookupError("no consent")
        consent.asked.clear()
        assert [await rest() for _ in range(2)] == [1, 2]
    assert [(request.first_time, request.attempt) for request in consent.asked] == [(False, 1), (False, 2)]


async def test_a_renewal_outlives_the_deadline_of_the_call_that_began_it(
    service: BoardService, consent: Consent, loop_clock: Clock
) -> None:
    """A renewal outlives the deadline of the call that began it, after a 401 as well."""
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
        service.rules.expire_tokens()
        consent.hold_up()
        call = asyncio.ensure_future(session.with_options(timeout=0.4).boards.create("plans"))
        await consent.reached()
        loop_clock.advance(0.4)
        with pytest.raises(DeadlineError) as caught:
            await call
        assert caught.value.effect is Effect.REJECTED
        consent.open.set()
        await session.members.me()
    assert (len(consent.asked), consent.cancelled, exchanges(service), refusals(service)) == (2, 0, 2, 1)


# --- tokens that are no good


async def test_every_token_is_refused(service: BoardService, consent: Consent, clock: Clock) -> None:
    """A token that is refused as soon as it is new begins the cool-down, in which calls send nothing."""
    service.faults.add(faults.status(401), "members.me")
    async with service.session(timed(service, consent, clock)) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(20)), return_exceptions=True)
        assert {type(error) for error in errors} == {AuthenticationError}
        assert is_sent(service) == (20, 1)
        for _ in range(3):
            with pytest.raises(CredentialError, match="refused a token as soon as it was new"):
                await session.members.me()
        assert (is_sent(service), len(consent.asked)) == ((20, 1), 1)
        clock.now += 1
        with pytest.raises(AuthenticationError):
            await session.members.me()
        clock.now += 1.9
        with pytest.raises(CredentialError):
            await session.members.me()
        assert (is_sent(service), len(consent.asked)) == ((21, 2), 2)
        service.faults.clear()
        clock.now += 0.2
        await session.members.me()
    assert [request.attempt for request in consent.asked] == [1, 2, 3]


# --- stores that fail


async def test_closing_two_sessions_of_two_providers(service: BoardService, consent: Consent) -> None:
    """Where the holder's session closes amid its callback, another provider of the store takes the lease over at once."""
    consent.hold_up()
    store = MemoryTokenStore()
    first: AsyncSession = service.session(service.oauth_credentials(authorize=consent, store=store, lease_seconds=60.0))
    async with service.session(service.oauth_credentials(authorize=consent, store=store)) as second:
        mine = asyncio.ensure_future(first.members.me())
        await consent.reached()
        other = asyncio.ensure_future(second.members.me())
        consent.open.clear()
        await first.aclose()
        consent.open.set()
        async with asyncio.timeout(60):
            await other
        with pytest.raises(SessionClosedError):
            await mine
    assert (len(consent.asked), consent.cancelled, exchanges(service)) == (2, 1, 1)
