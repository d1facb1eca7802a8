"""Callbacks, tokens and stores that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from renewal_helpers import Consent, _steps, exchanges, is_sent, refusals, secrets_of, tasks_left, timed, until
from virtual_loop import Clock

from boardclient import (
    AsyncSession,
    AuthenticationError,
    AuthorizationRequest,
    CredentialError,
    DeadlineError,
    Effect,
    LeaseState,
    MemoryTokenStore,
    SessionClosedError,
    StoredToken,
    Token,
)
from boardclient.testing import BoardService, assert_no_secrets, faults

# --- a callback that fails


async def test_a_failing_callback(service: BoardService, consent: Consent, clock: Clock) -> None:
    """All who wait get a CredentialError of their own with what the application raised; so do all in the cool-down."""
    consent.hold_up()
    consent.error = LookupError("no consent")
    async with service.session(timed(service, consent, clock)) as session:
        tasks = [asyncio.ensure_future(session.members.me()) for _ in range(50)]
        await consent.reached()
        await until(lambda: len(session._core.in_flight) == 50)
        consent.open.set()
        errors: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        clock.now += 0.875
        errors += await asyncio.gather(*(session.members.me() for _ in range(50)), return_exceptions=True)
        assert {type(error) for error in errors} == {CredentialError}
        assert len({id(error) for error in errors}) == 100
        assert all(error.__cause__ is consent.error and error.effect is Effect.NOT_SENT for error in errors)
        assert "authorize raised LookupError; the next renewal is possible in 1.0 s" in str(errors[0])
        assert (len(consent.asked), service.requests) == (1, 0)
        consent.error = None
        clock.now += 0.125
        await session.members.me()
    assert [request.attempt for request in consent.asked] == [1, 2]
    assert_no_secrets(errors, secrets=secrets_of(service, *consent.codes))


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


@pytest.mark.parametrize("cooldown", [0.0, 7.0])
async def test_a_cooldown_of_the_applications_choice(
    service: BoardService, consent: Consent, clock: Clock, loop_clock: Clock, cooldown: float
) -> None:
    """`cooldown` sets the first of them; without one each call may ask."""
    consent.error = LookupError("no consent")
    provider = timed(service, consent, clock, cooldown=cooldown)
    async with service.session(provider, timeout=1.0) as session:
        for _ in range(3):
            with pytest.raises(CredentialError):
                await session.members.me()
    assert len(consent.asked) == (1 if cooldown else 3)


async def test_waiters_fail_with_their_renewal(service: BoardService, consent: Consent, clock: Clock, loop_clock: Clock) -> None:
    """All that waited for a renewal that failed fail with it, also when they learn of it after the cool-down."""

    class Slow(MemoryTokenStore):
        """A store whose `release` takes longer than the cool-down."""

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            await super().release(account, holder, cooldown)
            clock.now += 61

    consent.error = LookupError("no consent")
    provider = timed(service, consent, clock, store=Slow(clock=clock))
    async with service.session(provider, timeout=1.0) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in errors} == {CredentialError}
    assert len(consent.asked) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "authorize returned str, not a code that can be sent"),
        (None, "authorize returned NoneType, not a code"),
        (b"code", "authorize returned bytes, not a code"),
        ("c\ud800", "authorize returned str, not a code that can be sent"),
        (asyncio.CancelledError(), "authorize raised CancelledError"),
        (TimeoutError(), "authorize raised TimeoutError"),
    ],
)
async def test_a_callback_without_a_code(service: BoardService, answer: Any, words: str) -> None:
    """A callback that gives nothing usable fails the renewal in clear words, and nothing is sent."""

    async def authorize(request: AuthorizationRequest) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async with service.session(service.oauth_credentials(authorize=authorize)) as session:
        with pytest.raises(CredentialError, match=words):
            await session.members.me()
    assert service.requests == 0
    assert tasks_left() == []


async def test_a_callback_that_is_no_coroutine_function(service: BoardService) -> None:
    """A plain function serves as well, whether it returns a code or an awaitable; one that raises fails as any other."""

    def plain(request: AuthorizationRequest) -> Any:
        return service.new_code()

    def raising(request: AuthorizationRequest) -> Any:
        raise LookupError

    def awaitable(request: AuthorizationRequest) -> Awaitable[str]:
        return asyncio.ensure_future(service.authorize(request))

    for authorize in (plain, awaitable):
        async with service.session(service.oauth_credentials(authorize=authorize)) as session:
            await session.members.me()
    async with service.session(service.oauth_credentials(authorize=raising)) as session:
        with pytest.raises(CredentialError, match="authorize raised LookupError") as caught:
            await session.members.me()
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_callback_that_hangs(service: BoardService, clock: Clock, is_stubborn: bool) -> None:
    """A callback has `authorize_timeout` seconds, also where it swallows its cancellation; later ones may succeed."""
    ended = asyncio.Event()
    asked = 0

    async def authorize(request: AuthorizationRequest) -> str:
        nonlocal asked
        asked += 1
        while asked == 1 and not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                if not is_stubborn:
                    raise
        return service.new_code()

    async with service.session(timed(service, authorize, clock, authorize_timeout=0.05)) as session:
        async with asyncio.timeout(60):
            errors = await asyncio.gather(*(session.members.me() for _ in range(10)), return_exceptions=True)
        assert {type(error) for error in errors} == {CredentialError}
        assert "authorize did not return within 0.05 s" in str(errors[0])
        assert (asked, service.requests) == (1, 0)
        clock.now += 1
        await session.members.me()
        assert asked == 2
        ended.set()
        await _steps(3)
        await session.members.me()
    assert tasks_left() == []
    assert exchanges(service) == 1


async def test_a_shorter_deadline(service: BoardService, consent: Consent, loop_clock: Clock) -> None:
    """A call that can't wait for the callback ends with DeadlineError; the renewal continues, and serves the next call."""
    consent.hold_up()
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        patient = asyncio.ensure_future(session.members.me())
        hasty = asyncio.ensure_future(session.with_options(timeout=0.05).members.me())
        await consent.reached()
        loop_clock.advance(0.05)
        with pytest.raises(DeadlineError) as caught:
            await hasty
        assert caught.value.effect is Effect.NOT_SENT
        consent.open.set()
        await patient
        await session.members.me()
    assert (len(consent.asked), consent.cancelled, exchanges(service)) == (1, 0, 1)


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


async def test_a_renewed_token_is_refused(service: BoardService, consent: Consent, clock: Clock) -> None:
    """Where the service refuses the replays with the new token as well, one callback is all there is."""
    async with service.session(timed(service, consent, clock)) as session:
        await session.members.me()
        service.faults.add(faults.status(401), "members.me")
        errors = await asyncio.gather(*(session.members.me() for _ in range(20)), return_exceptions=True)
        assert {type(error) for error in errors} == {AuthenticationError}
        before = service.requests
        with pytest.raises(CredentialError):
            await session.members.me()
        assert service.requests == before
    assert len(consent.asked) == 2


# --- stores that fail


@pytest.mark.parametrize("step", ["read", "lease", "publish", "release"])
async def test_a_store_that_fails(service: BoardService, consent: Consent, clock: Clock, step: str) -> None:
    """A store that raises fails the renewal with that as the cause, and the session works once the store does."""
    boom = OSError("the disk is gone")

    class Failing(MemoryTokenStore):
        is_broken = True

        def _break(self, name: str) -> None:
            if self.is_broken and name == step:
                raise boom

        async def read(self, account: str) -> StoredToken | None:
            self._break("read")
            return await super().read(account)

        async def publish(self, account: str, token: Token, after: int) -> bool:
            self._break("publish")
            return await super().publish(account, token, after)

        async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
            self._break("lease")
            return await super().lease(account, holder, seconds)

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            self._break("release")
            await super().release(account, holder, cooldown)

    store = Failing(clock=clock)
    provider = timed(service, consent, clock, store=store)
    async with service.session(provider) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(5)), return_exceptions=True)
        failed = [error for error in errors if isinstance(error, BaseException)]
        if step != "release":  # by then the token is there
            assert len(failed) == 5
        assert all(isinstance(error, CredentialError) and error.__cause__ is boom for error in failed)
        store.is_broken = False
        clock.now += 6  # past the cool-down, and past the lease that could not be released
        async with asyncio.timeout(60):
            await session.members.me()
    assert_no_secrets(errors, secrets=secrets_of(service, *consent.codes))
    assert tasks_left() == []


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
