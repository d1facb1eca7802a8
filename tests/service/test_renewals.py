"""Renewals over real sockets: one for everybody, whoever cancels, hangs, fails, closes or comes late."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from boardclient import (
    AsyncSession,
    AuthenticationError,
    AuthorizationRequest,
    CardDraft,
    CredentialError,
    DeadlineError,
    Effect,
    LeaseState,
    MemoryTokenStore,
    OAuthCredentials,
    Pace,
    PermissionDeniedError,
    SessionClosedError,
    StoredToken,
    Token,
    TransportError,
)
from boardclient.credentials import _code_exchange, _renewal, _token_state
from boardclient.events import CredentialsRenewed, RequestSent
from boardclient.testing import BoardService, assert_no_secrets, faults


class Clock:
    """A clock that goes on when the test says so."""

    def __init__(self) -> None:
        self.now = time.monotonic() // 1 + 1000.0

    def __call__(self) -> float:
        return self.now


class Consent:
    """An application's `authorize`, which the test may hold up or let fail, and which keeps what it was asked and gave."""

    def __init__(self, service: BoardService) -> None:
        self.service = service
        self.asked: list[AuthorizationRequest] = []
        self.codes: list[str] = []
        self.began, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.error: BaseException | None = None
        self.cancelled = 0

    async def __call__(self, request: AuthorizationRequest) -> str:
        self.asked.append(request)
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        self.codes.append(self.service.new_code())
        return self.codes[-1]

    async def reached(self) -> None:
        """Wait until somebody asks."""
        async with asyncio.timeout(20):
            await self.began.wait()

    def hold_up(self) -> None:
        """Let the next one who asks wait for `open`."""
        self.began.clear()
        self.open.clear()


class Held:
    """A fault: the answer is made and sent when the test says so."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def play(self, stage: faults.Stage) -> None:
        await self.opened.wait()
        await stage.reply_answer()


class SteppingStore(MemoryTokenStore):
    """A store each of whose steps takes a few steps of the event loop, before and after."""

    async def read(self, account: str) -> StoredToken | None:
        await _steps(2)
        found = await super().read(account)
        await _steps(2)
        return found

    async def publish(self, account: str, token: Token, after: int) -> bool:
        await _steps(2)
        is_done = await super().publish(account, token, after)
        await _steps(2)
        return is_done

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        await _steps(2)
        state = await super().lease(account, holder, seconds)
        await _steps(2)
        return state

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await _steps(2)
        await super().release(account, holder, cooldown)
        await _steps(2)


async def _steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def tasks_left() -> list[str]:
    """Name the tasks under way that are neither the running one nor the service's."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks() if task is not asyncio.current_task()]  # type: ignore[union-attr]  # -- tasks run coroutines
    return [name for name in names if not name.startswith("RequestHandler")]


def exchanges(service: BoardService) -> int:
    return len(service.calls_of("token.exchange"))


def refusals(service: BoardService) -> int:
    return [call.status for call in service.calls].count(401)


def is_sent(service: BoardService) -> tuple[int, int]:
    """Count what the service got, exchanges apart."""
    return service.requests - exchanges(service), exchanges(service)


def timed(service: BoardService, consent: Any, clock: Clock, **options: Any) -> OAuthCredentials:
    """Build credentials whose cool-downs and leases are on the test's clock."""
    provider = service.oauth_credentials(authorize=consent, store=MemoryTokenStore(clock=clock), **options)
    provider._token_state.clock = clock
    return provider


def secrets_of(service: BoardService, *more: str) -> list[str]:
    return [service.key, service.token, service.client_secret, service.client_id, *service.rules.tokens, *more]


@pytest.fixture
def consent(service: BoardService) -> Consent:
    return Consent(service)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who wait for another holder look again soon."""
    monkeypatch.setattr(_renewal, "_POLL_SECONDS", (0.001, 0.002))


# --- one for everybody


async def test_a_thousand_in_flight(service: BoardService, consent: Consent) -> None:
    """Of 1,000 requests in flight when the token expires one asks for a code, one exchanges it, and all are answered."""
    async with service.session(service.oauth_credentials(authorize=consent), max_connections=200, timeout=None) as session:
        await session.members.me()
        held = Held()
        service.faults.add(held, "members.me", call=range(2, 202))
        tasks = [asyncio.ensure_future(session.members.me()) for _ in range(1000)]
        await service.received("members.me", 201)
        service.rules.expire_tokens()
        held.opened.set()
        members = await asyncio.gather(*tasks)
    assert {member.id for member in members} == {"0" * 24}
    assert len(members) == 1000
    assert refusals(service) == 1000
    assert (len(consent.asked), exchanges(service)) == (2, 2)  # each once at first use


async def test_a_thousand_at_first_use(service: BoardService, consent: Consent) -> None:
    """1,000 calls that begin without a token share the first one as well, and nothing is sent before it is there."""
    consent.hold_up()
    async with service.session(service.oauth_credentials(authorize=consent), timeout=None) as session:
        tasks = [asyncio.ensure_future(session.members.me()) for _ in range(1000)]
        await consent.reached()
        await _steps(5)
        assert service.requests == 0
        consent.open.set()
        await asyncio.gather(*tasks)
    assert (len(consent.asked), exchanges(service), refusals(service)) == (1, 1, 0)
    assert consent.asked == [AuthorizationRequest(account="default", first_time=True, attempt=1)]


async def test_staggered_refusals(service: BoardService, consent: Consent) -> None:
    """Of 200 answers 401 that come before, during and after the renewal only the first leads to a callback."""
    async with service.session(service.oauth_credentials(authorize=consent), max_connections=250, timeout=None) as session:
        await session.members.me()
        before, during, after = Held(), Held(), Held()
        for fault, numbers in ((before, range(2, 62)), (during, range(62, 132)), (after, range(132, 202))):
            service.faults.add(fault, "members.me", call=numbers)
        tasks = [asyncio.ensure_future(session.members.me()) for _ in range(200)]
        await service.received("members.me", 201)
        service.rules.expire_tokens()
        consent.hold_up()
        before.opened.set()
        await consent.reached()
        during.opened.set()
        await until(lambda: refusals(service) == 130)
        assert not any(task.done() for task in tasks)
        consent.open.set()
        await until(lambda: sum(task.done() for task in tasks) == 130)
        after.opened.set()
        await asyncio.gather(*tasks)
    assert refusals(service) == 200
    assert (len(consent.asked), exchanges(service)) == (2, 2)


@pytest.mark.parametrize("renewals", [1, 2])
async def test_a_late_refusal_of_an_older_token(service: BoardService, consent: Consent, renewals: int) -> None:
    """A 401 for a token that was renewed meanwhile, also twice, never discards the newer one: its call is replayed with it."""
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
        late = Held()
        service.faults.add(late, "members.me", call=2)
        task = asyncio.ensure_future(session.members.me())
        await service.received("members.me", 2)
        for _ in range(renewals):
            service.rules.expire_tokens()
            await session.members.me()
        late.opened.set()
        await task
        await session.members.me()
    assert len(consent.asked) == exchanges(service) == 1 + renewals
    assert refusals(service) == renewals + 1
    assert service.calls_of("members.me")[-1].query["token"] == [*service.rules.tokens][-1]


async def test_a_second_refusal_is_raised(service: BoardService, consent: Consent) -> None:
    """A call is replayed once: where a token that was good is refused to its replay as well, the 401 is raised."""
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
        service.faults.add(faults.status(401), "members.me", call=[2, 3])
        with pytest.raises(AuthenticationError) as caught:
            await session.members.me()
    assert [attempt.status for attempt in caught.value.attempts] == [401, 401]
    assert len(consent.asked) == 2


async def test_no_other_refusal_renews(service: BoardService, consent: Consent) -> None:
    """A 403 and other errors leave the token alone: the application isn't asked again."""
    provider = service.oauth_credentials(authorize=lambda request: _given(service.new_code(scopes=["read"]), consent, request))
    async with service.session(provider, retry=None) as session:
        with pytest.raises(PermissionDeniedError):
            await session.boards.create("plans")
        for code in (400, 403, 407, 429, 500):
            service.faults.add(faults.status(code, {"WWW-Authenticate": "Bearer"}), "members.me", times=1)
            with pytest.raises(Exception, match=str(code)):
                await session.members.me()
        await session.members.me()
    assert (len(consent.asked), exchanges(service)) == (1, 1)


async def _given(code: str, consent: Consent, request: AuthorizationRequest) -> str:
    consent.asked.append(request)
    return code


# --- cancellation


@pytest.mark.parametrize("when", ["first use", "expired"])
async def test_a_leader_cancelled_at_any_step(service: BoardService, when: str) -> None:
    """Whichever step the call that began the renewal is cancelled at, the others go on with it, and nobody waits on."""
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
            async with asyncio.timeout(10):
                await asyncio.gather(*others)
                await session.members.me()
            assert (len(consent.asked) - asked, exchanges(service) - exchanged) == (1, 1), steps
            await until(lambda: provider._renewals == {})  # noqa: B023 -- used at once
            assert await store.lease("default", "whoever", 1) == "granted"
            assert len(session._core.in_flight) == 0
        assert tasks_left() == []
        if isinstance(outcome, asyncio.CancelledError):
            cancelled += 1
        else:
            finished += 1
        if finished == 3:
            break
    assert finished == 3
    assert cancelled > 20


async def test_all_cancelled(service: BoardService, consent: Consent) -> None:
    """A renewal goes on when nobody waits for it any more, and the next call uses what it got."""
    consent.hold_up()
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        tasks = [asyncio.ensure_future(session.members.me()) for _ in range(5)]
        await consent.reached()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        consent.open.set()
        await session.members.me()
    assert (len(consent.asked), consent.cancelled, exchanges(service)) == (1, 0, 1)


# --- closing


async def test_closing_ends_the_renewal(service: BoardService, consent: Consent) -> None:
    """A session that closes cancels the callback of its renewal, and leaves neither a task nor a lease behind."""
    consent.hold_up()
    store = MemoryTokenStore()
    session = service.session(service.oauth_credentials(authorize=consent, store=store))
    task = asyncio.ensure_future(session.members.me())
    await consent.reached()
    async with asyncio.timeout(5):
        await session.aclose()
    with pytest.raises(SessionClosedError) as caught:
        await task
    assert caught.value.effect is Effect.NOT_SENT
    await _steps(3)
    assert (consent.cancelled, tasks_left()) == (1, [])
    assert await store.lease("default", "another", 1) == "granted"


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
    async with asyncio.timeout(5):
        await session.aclose()
        with pytest.raises(SessionClosedError):
            await task
    ended.set()
    await _steps(3)
    assert (service.requests, tasks_left()) == (0, [])


async def test_closing_is_no_failure(service: BoardService, consent: Consent) -> None:
    """After a renewal that ended with its session another session begins one at once: there is no cool-down."""
    consent.hold_up()
    provider = service.oauth_credentials(authorize=consent)
    session = service.session(provider)
    task = asyncio.ensure_future(session.members.me())
    await consent.reached()
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await task
    consent.open.set()
    async with service.session(provider) as another:
        await another.members.me()
    assert [request.first_time for request in consent.asked] == [True, True]


async def test_closing_at_any_step(service: BoardService) -> None:
    """Whichever step of its renewal a session is closed at, another one that shares the provider goes on by itself."""
    ended_early = 0
    for steps in range(500):
        consent = Consent(service)
        provider = service.oauth_credentials(authorize=consent, store=SteppingStore(), lease_seconds=0.05)
        closing, going_on = service.session(provider), service.session(provider)
        exchanged = exchanges(service)
        mine = asyncio.ensure_future(closing.members.me())
        other = asyncio.ensure_future(going_on.members.me())
        await _steps(steps)
        is_over = mine.done()
        async with asyncio.timeout(10):
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


@pytest.mark.parametrize("step", ["read", "lease", "release"])
async def test_closing_amid_a_step_at_the_store(service: BoardService, consent: Consent, step: str) -> None:
    """A session that closes while its renewal is at the store leaves no lease for which others would have to wait."""
    amid = asyncio.Event()

    class Watched(MemoryTokenStore):
        """A store that does a step and takes a while to say so, as one that works in a thread."""

        async def _pause(self, name: str) -> None:
            if name == step:
                amid.set()
                await _steps(3)

        async def read(self, account: str) -> StoredToken | None:
            found = await super().read(account)
            await self._pause("read")
            return found

        async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
            state = await super().lease(account, holder, seconds)
            await self._pause("lease")
            return state

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            await super().release(account, holder, cooldown)
            await self._pause("release")

    store = Watched()
    session = service.session(service.oauth_credentials(authorize=consent, store=store, lease_seconds=60.0))
    task = asyncio.ensure_future(session.members.me())
    await amid.wait()
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await task
    assert tasks_left() == []
    assert await store.lease("default", "another", 1) == "granted"


async def test_a_callback_that_closes_the_session(service: BoardService) -> None:
    """A callback may close the session that waits for it: the call ends with SessionClosedError, and nothing hangs."""

    async def authorize(request: AuthorizationRequest) -> str:
        await session.aclose()
        return service.new_code()

    session = service.session(service.oauth_credentials(authorize=authorize))
    async with asyncio.timeout(5):
        with pytest.raises(SessionClosedError):
            await session.members.me()
        await session.aclose()
    await _steps(3)
    assert (service.requests, tasks_left()) == (0, [])


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
            with pytest.raises(CredentialError):
                await session.members.me()
            seconds = provider._token_state.rest_seconds
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
    service: BoardService, consent: Consent, clock: Clock, cooldown: float
) -> None:
    """`cooldown` sets the first of them; without one each call may ask."""
    consent.error = LookupError("no consent")
    provider = timed(service, consent, clock, cooldown=cooldown)
    async with service.session(provider, timeout=1.0) as session:
        for _ in range(3):
            with pytest.raises(CredentialError):
                await session.members.me()
    assert provider._token_state.rest_seconds == cooldown
    assert len(consent.asked) == (1 if cooldown else 3)


async def test_waiters_fail_with_their_renewal(service: BoardService, consent: Consent, clock: Clock) -> None:
    """Whoever waited for a renewal that failed fails with it, also when they learn of it after the cool-down."""

    class Slow(MemoryTokenStore):
        """A store whose `release` takes longer than the cool-down."""

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            await super().release(account, holder, cooldown)
            clock.now += 61

    consent.error = LookupError("no consent")
    provider = service.oauth_credentials(authorize=consent, store=Slow(clock=clock))
    provider._token_state.clock = clock
    async with service.session(provider, timeout=1.0) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in errors} == {CredentialError}
    assert len(consent.asked) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "authorize gave an empty code"),
        (None, "authorize gave no code: the code must be a string, not NoneType"),
        (b"code", "authorize gave no code: the code must be a string, not bytes"),
        ("c\ud800", "authorize gave no code: the code holds a lone surrogate"),
        (asyncio.CancelledError(), "authorize was cancelled"),
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
    """A plain function is told so; one that raises at once is a failure like any other, one that returns an awaitable will do."""

    def plain(request: AuthorizationRequest) -> Any:
        return service.new_code()

    def raising(request: AuthorizationRequest) -> Any:
        raise LookupError

    def awaitable(request: AuthorizationRequest) -> Awaitable[str]:
        return asyncio.ensure_future(service.authorize(request))

    for authorize, words in ((plain, "must be an async function"), (raising, "authorize raised LookupError")):
        async with service.session(service.oauth_credentials(authorize=authorize)) as session:
            with pytest.raises(CredentialError, match=words) as caught:
                await session.members.me()
        assert isinstance(caught.value.__cause__, LookupError) is (authorize is raising)
    assert service.requests == 0
    async with service.session(service.oauth_credentials(authorize=awaitable)) as session:
        await session.members.me()


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
        async with asyncio.timeout(5):
            errors = await asyncio.gather(*(session.members.me() for _ in range(10)), return_exceptions=True)
        assert {type(error) for error in errors} == {CredentialError}
        assert "authorize gave no code within 0.05 s" in str(errors[0])
        assert (asked, service.requests) == (1, 0)
        clock.now += 1
        await session.members.me()
        assert asked == 2
        ended.set()
        await _steps(3)
        await session.members.me()
    assert tasks_left() == []
    assert exchanges(service) == 1


async def test_a_shorter_deadline(service: BoardService, consent: Consent) -> None:
    """Who can't wait for the callback ends with DeadlineError; the renewal goes on, and its token serves the next call."""
    consent.hold_up()
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        patient = asyncio.ensure_future(session.members.me())
        with pytest.raises(DeadlineError) as caught:
            await session.with_options(timeout=0.05).members.me()
        assert caught.value.effect is Effect.NOT_SENT
        consent.open.set()
        await patient
        await session.members.me()
    assert (len(consent.asked), consent.cancelled, exchanges(service)) == (1, 0, 1)


async def test_the_deadline_of_the_one_who_began(service: BoardService, consent: Consent) -> None:
    """A renewal outlives the deadline of the call that began it, after a 401 as well."""
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
        service.rules.expire_tokens()
        consent.hold_up()
        with pytest.raises(DeadlineError) as caught:
            await session.with_options(timeout=0.4).boards.create("plans")
        assert caught.value.effect is Effect.REJECTED
        consent.open.set()
        await session.members.me()
    assert (len(consent.asked), consent.cancelled, exchanges(service), refusals(service)) == (2, 0, 2, 1)


# --- an exchange that fails


@pytest.mark.parametrize("code", [302, 307, 308, 400, 401, 403, 404, 429, 500, 503])
async def test_a_refused_exchange(service: BoardService, consent: Consent, clock: Clock, code: int) -> None:
    """Whatever the exchange is refused with is a CredentialError: it is sent once, nothing is followed, the cool-down begins."""
    headers = {"Location": service.base_url + "/1/members/me", "Retry-After": "0"}
    service.faults.add(faults.status(code, headers, b'{"error": "invalid_grant", "hint": "canary"}'), "token.exchange", call=1)
    async with service.session(timed(service, consent, clock)) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in errors} == {CredentialError}
        assert f"the token exchange answered {code} (invalid_grant)" in str(errors[0])
        assert (is_sent(service), len(consent.asked)) == ((0, 1), 1)
        assert_no_secrets(errors, secrets=secrets_of(service, *consent.codes, "canary"))
        clock.now += 1
        await session.members.me()
    assert (is_sent(service), len(consent.asked)) == ((1, 2), 2)


async def test_a_used_code(service: BoardService, clock: Clock) -> None:
    """A code that was exchanged before is refused by the service, and that is told."""
    code = service.new_code()

    async def authorize(request: AuthorizationRequest) -> str:
        return code

    async with service.session(timed(service, authorize, clock)) as session:
        await session.members.me()
        service.rules.expire_tokens()
        with pytest.raises(CredentialError, match=r"answered 400.*the code is not good") as caught:
            await session.members.me()
    assert_no_secrets(caught.value, secrets=secrets_of(service, code))


async def test_nobody_at_the_auth_url(service: BoardService, consent: Consent, clock: Clock) -> None:
    """An exchange that is refused a connection was not sent: the cause says so, and no second code is asked for."""
    async with BoardService() as dead:
        url = dead.auth_url
    async with service.session(timed(service, consent, clock, auth_url=url)) as session:
        with pytest.raises(CredentialError, match="the token exchange was not sent") as caught:
            await session.members.me()
    cause = caught.value.__cause__
    assert isinstance(cause, TransportError)
    assert cause.effect is Effect.NOT_SENT
    assert (len(consent.asked), service.requests) == (1, 0)
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))


@pytest.mark.parametrize("fault", [faults.drop(commit=True), faults.drop(), faults.drop(reset=True), faults.truncated()])
async def test_an_exchange_with_unknown_effect(service: BoardService, consent: Consent, fault: faults.Fault) -> None:
    """Where nobody knows whether a code was used another one is asked for, and the call goes on."""
    service.faults.add(fault, "token.exchange", call=1)
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
    assert [call.body["code"] for call in service.calls_of("token.exchange")] == consent.codes
    assert len(set(consent.codes)) == 2
    assert [request.attempt for request in consent.asked] == [1, 2]


@pytest.mark.parametrize("fault", [faults.drop(commit=True), faults.truncated()])
async def test_every_exchange_with_unknown_effect(
    service: BoardService, consent: Consent, clock: Clock, fault: faults.Fault
) -> None:
    """Two codes are all that one renewal asks for; then it has failed, and says that the effect is unknown."""
    planned = service.faults.add(fault, "token.exchange")
    async with service.session(timed(service, consent, clock)) as session:
        with pytest.raises(CredentialError, match="with unknown effect") as caught:
            await session.members.me()
        assert isinstance(caught.value.__cause__, TransportError)
        assert (len(consent.asked), exchanges(service)) == (2, 2)
        assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))
        service.faults.remove(planned)
        clock.now += 1
        await session.members.me()
    assert len(consent.asked) == 3


async def test_no_code_is_sent_twice(service: BoardService, clock: Clock) -> None:
    """A code whose exchange had an unknown effect is never sent again, in the same renewal nor in a later one."""
    service.faults.add(faults.drop(commit=True), "token.exchange", call=1)
    code = service.new_code()
    codes = iter([code, code, code, service.new_code()])

    async def authorize(request: AuthorizationRequest) -> str:
        return next(codes)

    async with service.session(timed(service, authorize, clock)) as session:
        for _ in range(2):
            with pytest.raises(CredentialError, match="a code that was sent before") as caught:
                await session.members.me()
            assert_no_secrets(caught.value, secrets=secrets_of(service, code))
            clock.now += 5
        assert exchanges(service) == 1
        await session.members.me()
    assert exchanges(service) == 2


async def test_an_exchange_that_hangs(service: BoardService, consent: Consent) -> None:
    """An exchange without an answer ends before the deadline of whoever waits, so that they learn why."""
    service.faults.add(faults.hang(), "token.exchange")
    async with service.session(service.oauth_credentials(authorize=consent), timeout=1.5) as session:
        with pytest.raises(CredentialError, match=r"with unknown effect.*deadline of 0\.5 s") as caught:
            await session.members.me()
    assert isinstance(caught.value.__cause__, DeadlineError)
    assert (len(consent.asked), exchanges(service)) == (2, 2)
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))


@pytest.mark.parametrize("shape", ["rfc6749", "token", "form"])
async def test_shapes_of_the_answer(shape: Any) -> None:
    """A token is found in an answer as of RFC 6749, in one with a field `token`, and in a form."""
    async with BoardService(exchange_answer=shape, token_lifetime=3600.0) as service:
        store = MemoryTokenStore()
        async with service.session(service.oauth_credentials(store=store)) as session:
            await session.members.me()
        stored = await store.read("default")
        assert stored is not None
        assert stored.token.value == [*service.rules.tokens][-1]
        assert (stored.token.expires_at is None) is (shape == "token")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"access": "canary-1", "data": {"token": "canary-2"}}', "the names in its answer are access, data; parse_token"),
        (b"access=canary-1&canary-2=x9", "the names in its answer are access and 1 not shown"),
        (b'{"access_token": 7, "token": null}', "the names in its answer are access_token, token;"),
        (b'{"access_token": ""}', "the names in its answer are none and 1 not shown"),
        (b'["canary-1"]', "neither a JSON object nor form-encoded"),
        (b"<html>canary-1</html>", "neither a JSON object nor form-encoded"),
        (b"canary-1", "neither a JSON object nor form-encoded"),
        (b"", "gave no token"),
        (b'{"access_token": "canary-1\\ud800"}', "gave no token|can't be sent"),
    ],
)
async def test_an_answer_without_a_token(service: BoardService, consent: Consent, body: bytes, words: str) -> None:
    """An answer without a token shows the names in it and never a value."""
    service.faults.add(faults.foreign_body(body), "token.exchange")
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        with pytest.raises(CredentialError, match=words) as caught:
            await session.members.me()
    assert is_sent(service) == (0, 1)
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes, "canary-1", "canary-2"))


async def test_parse_token(service: BoardService, consent: Consent, clock: Clock) -> None:
    """`parse_token` takes the token from an answer of another shape; where it can't, its error is the cause."""

    def parse(fields: Any) -> Token:
        return Token(fields["data"]["secret"])

    token = service.rules.issue_token()
    for body in (b'{"data": {}}', json.dumps({"data": {"secret": token}}).encode()):
        service.faults.add(faults.foreign_body(body), "token.exchange", times=1)
    async with service.session(timed(service, consent, clock, parse_token=parse)) as session:
        with pytest.raises(CredentialError, match="parse_token raised KeyError: the names in its answer are data") as caught:
            await session.members.me()
        assert isinstance(caught.value.__cause__, KeyError)
        clock.now += 1
        await session.members.me()
    assert service.calls_of("members.me")[0].query["token"] == token
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))


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


# --- a callback that uses the session


@pytest.mark.parametrize("who", ["session", "view", "task", "another session", "another provider"])
async def test_a_callback_that_waits_for_itself(service: BoardService, who: str) -> None:
    """A callback that uses what it is to renew gets a clear error instead of a deadlock, its tasks as well."""
    inner: list[BaseException] = []

    async def authorize(request: AuthorizationRequest) -> str:
        users = {"view": session.with_options(timeout=3), "another session": second, "another provider": third}
        call = users.get(who, session).members.me()
        try:
            await (asyncio.ensure_future(call) if who == "task" else call)
        except CredentialError as error:
            inner.append(error)
        return service.new_code()

    store = MemoryTokenStore()
    provider = service.oauth_credentials(authorize=authorize, store=store)
    session, second = service.session(provider), service.session(provider)
    third = service.session(service.oauth_credentials(authorize=authorize, store=store))
    async with session, second, third, asyncio.timeout(5):
        await session.members.me()
        await third.members.me()
    (error,) = inner
    assert "authorize waits for itself" in str(error)
    assert is_sent(service) == (2, 1)


async def test_an_error_of_its_own_waiting_is_the_cause(service: BoardService) -> None:
    """A callback that lets that error out fails the renewal with it as the cause."""

    async def authorize(request: AuthorizationRequest) -> str:
        await session.members.me()
        return service.new_code()

    async with service.session(service.oauth_credentials(authorize=authorize)) as session, asyncio.timeout(5):
        with pytest.raises(CredentialError, match="authorize raised CredentialError") as caught:
            await session.members.me()
    assert "authorize waits for itself" in str(caught.value.__cause__)
    assert service.requests == 0


async def test_a_task_born_in_the_callback(service: BoardService) -> None:
    """A task that the callback began may use the session once the renewal is over, and renew by itself then."""
    over = asyncio.Event()
    born: list[asyncio.Task[Any]] = []

    async def later() -> None:
        await over.wait()
        await session.members.me()
        service.rules.expire_tokens()
        await session.members.me()

    async def authorize(request: AuthorizationRequest) -> str:
        if not born:
            born.append(asyncio.ensure_future(later()))
        return service.new_code()

    async with service.session(service.oauth_credentials(authorize=authorize)) as session, asyncio.timeout(5):
        await session.members.me()
        over.set()
        await born[0]
    assert exchanges(service) == 2


# --- where secrets go


@pytest.mark.parametrize("redirect", [None, 302, 307, 308])
async def test_secrets_go_to_their_own_place(redirect: int | None) -> None:
    """The client secret and the codes go to auth_url only, key and token to base_url only, whatever redirects are offered."""
    async with BoardService() as boards, BoardService() as auth:
        boards.rules.tokens = auth.rules.tokens
        consent = Consent(auth)
        provider = auth.oauth_credentials(authorize=consent)
        async with boards.session(provider, retry=None) as session:
            await session.members.me()
            await session.boards.create("plans")
            auth.rules.expire_tokens()
            await session.members.me()
            if redirect is not None:
                boards.faults.add(faults.redirect(auth.auth_url + "/1/OAuthGetAccessToken", redirect))
                for call in (session.members.me, lambda: session.boards.create("plans")):
                    with pytest.raises(Exception, match=str(redirect)):
                        await call()
                boards.faults.clear()
                auth.rules.expire_tokens()
                auth.faults.add(faults.redirect(boards.base_url + "/1/boards", redirect))
                with pytest.raises(CredentialError, match=str(redirect)):
                    await session.members.me()
        assert [call.operation for call in auth.calls] == ["token.exchange"] * (2 if redirect is None else 3)
        assert boards.calls_of("token.exchange") == []
        boards.assert_no_credential_in_url_with_body()
        auth.assert_no_credential_in_url_with_body()
        assert_no_secrets(boards.calls, secrets=[auth.client_secret, auth.client_id, auth.redirect_uri, *consent.codes])
        assert_no_secrets(auth.calls, secrets=[auth.key, *auth.rules.tokens])


async def test_the_secret_does_not_go_in_the_open(service: BoardService, consent: Consent) -> None:
    """A plain http auth_url beyond this machine is refused before the application is asked."""
    provider = service.oauth_credentials(authorize=consent, auth_url="http://board.example/auth")
    async with service.session(provider) as session:
        with pytest.raises(CredentialError, match="auth_url"):
            await session.members.me()
    assert (consent.asked, service.requests) == ([], 0)


async def test_nothing_secret_is_told(service: BoardService, consent: Consent, caplog: pytest.LogCaptureFixture) -> None:
    """Observers learn of each renewal once, and neither they nor the logs nor any repr shows a secret."""
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    logging.getLogger("asyncio").setLevel(logging.DEBUG)
    events: list[object] = []
    store = MemoryTokenStore()
    provider = service.oauth_credentials(authorize=consent, store=store)
    async with service.session(provider, observers=[events.append]) as session:
        await asyncio.gather(*(session.members.me() for _ in range(30)))
        assert sum(isinstance(event, CredentialsRenewed) for event in events) == 0  # the first ones replace none
        for renewals in (1, 2):
            service.rules.expire_tokens()
            await asyncio.gather(*(session.members.me() for _ in range(30)))
            await asyncio.gather(*(session.boards.create("plans") for _ in range(3)))
            assert sum(isinstance(event, CredentialsRenewed) for event in events) == renewals
        secrets = secrets_of(service, *consent.codes)
        shown = [repr(thing) for thing in (provider, store, session, provider._token_state.held, provider._config, consent.asked)]
        shown += [str(await store.read("default"))]
    assert_no_secrets(events, secrets=secrets)
    assert_no_secrets(caplog.records, secrets=secrets)
    assert_no_secrets(shown, secrets=secrets)


async def test_views_announce_a_renewal_once(service: BoardService, consent: Consent) -> None:
    """Views share the observers, which are told of a renewal once however many views use what it got."""
    events: list[object] = []
    async with service.session(service.oauth_credentials(authorize=consent), observers=[events.append]) as session:
        views = [session, session.with_options(timeout=20), session.with_options(retry=None)]
        await asyncio.gather(*(view.members.me() for view in views))
        service.rules.expire_tokens()
        await asyncio.gather(*(view.members.me() for view in views for _ in range(5)))
    assert len(consent.asked) == 2
    assert sum(isinstance(event, CredentialsRenewed) for event in events) == 1


# --- accounts, sessions, loops


async def test_accounts_do_not_wait_for_each_other(service: BoardService) -> None:
    """In one store and on one pool each account has a renewal of its own, which no other one waits for."""
    store = MemoryTokenStore()
    consents = {name: Consent(service) for name in ("ann", "bob", "eve")}
    consents["ann"].hold_up()
    consents["eve"].error = LookupError("no consent")
    async with service.session() as session:
        ann, bob, eve = (
            session.with_credentials(service.oauth_credentials(authorize=consent, store=store, account=name))
            for name, consent in consents.items()
        )
        waiting = asyncio.ensure_future(ann.members.me())
        await consents["ann"].reached()
        await bob.members.me()
        with pytest.raises(CredentialError):
            await eve.members.me()
        await bob.members.me()
        assert not waiting.done()
        consents["ann"].open.set()
        await waiting
    assert [[request.account for request in consent.asked] for consent in consents.values()] == [["ann"], ["bob"], ["eve"]]
    tokens = {await store.read(name) for name in ("ann", "bob")}
    assert len(tokens) == 2
    assert await store.read("eve") is None


async def test_one_callback_may_use_another_account(service: BoardService) -> None:
    """A callback may make calls for another account of the same store, whose renewal it may begin."""
    store = MemoryTokenStore()

    async def authorize(request: AuthorizationRequest) -> str:
        await helper.members.me()
        return service.new_code()

    async with service.session() as session, asyncio.timeout(5):
        helper = session.with_credentials(service.oauth_credentials(store=store, account="helper"))
        main = session.with_credentials(service.oauth_credentials(store=store, account="main", authorize=authorize))
        await main.members.me()
    assert is_sent(service) == (2, 2)


async def test_providers_share_a_store(service: BoardService, consent: Consent) -> None:
    """Of ten providers of one account and store one renews at first use and at each expiry; the others use its token."""
    store = MemoryTokenStore()
    async with contextlib.AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(service.session(service.oauth_credentials(authorize=consent, store=store)))
            for _ in range(10)
        ]
        for expected in (1, 2, 3):
            await asyncio.gather(*(session.members.me() for session in sessions for _ in range(10)))
            assert (len(consent.asked), exchanges(service)) == (expected, expected)
            service.rules.expire_tokens()


async def test_a_failure_is_everybodys_of_the_store(service: BoardService, consent: Consent, clock: Clock) -> None:
    """Where a renewal fails, another provider of the store rests as well instead of asking the application at once."""
    consent.hold_up()
    consent.error = LookupError("no consent")
    first = timed(service, consent, clock)
    second = timed(service, consent, clock)
    second._config = first._config
    async with service.session(first) as one, service.session(second) as two:
        tasks = [asyncio.ensure_future(session.members.me()) for session in (one, two)]
        await consent.reached()
        consent.open.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in errors} == {CredentialError}
        assert len(consent.asked) == 1
        consent.error = None
        clock.now += 1
        await asyncio.gather(one.members.me(), two.members.me())
    assert len(consent.asked) == 2


async def test_a_refused_token_is_everybodys_of_the_store(service: BoardService, consent: Consent, clock: Clock) -> None:
    """The cool-down after a new token that was refused holds for other providers of the store, which ask nobody either."""
    service.faults.add(faults.status(401), "members.me")
    first = timed(service, consent, clock)
    second = timed(service, consent, clock)
    second._config = first._config
    async with service.session(first) as one, service.session(second) as two:
        with pytest.raises(AuthenticationError):
            await one.members.me()
        with pytest.raises(CredentialError, match="another holder of the account"):
            await two.members.me()
    assert (len(consent.asked), is_sent(service)) == (1, (2, 1))


async def test_a_token_published_before_the_lease_is_used(service: BoardService, consent: Consent) -> None:
    """Who gets the lease just after another holder has published uses that token, and asks nobody."""
    came, go = asyncio.Event(), asyncio.Event()

    class Late(MemoryTokenStore):
        """A store in which the first one that comes for the lease gets it late."""

        async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
            if not came.is_set():
                came.set()
                await go.wait()
            return await super().lease(account, holder, seconds)

    store = Late()
    first, second = (service.session(service.oauth_credentials(authorize=consent, store=store)) for _ in range(2))
    async with first, second, asyncio.timeout(10):
        late = asyncio.ensure_future(first.members.me())
        await came.wait()
        await second.members.me()
        go.set()
        await late
    assert (len(consent.asked), exchanges(service)) == (1, 1)


class WatchedStore(MemoryTokenStore):
    """A store that tells when somebody was refused the lease."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Event()

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        state = await super().lease(account, holder, seconds)
        if state == "held":
            self.refused.set()
        return state


@pytest.mark.parametrize("share", ["store", "provider"])
def test_two_loops(board_service: BoardService, share: str) -> None:
    """Sessions on two loops in two threads, with one provider or only one store, get by with one callback."""
    service, store, asked = board_service, WatchedStore(), itertools.count(1)
    starts = threading.Barrier(2)
    count = 0

    async def authorize(request: AuthorizationRequest) -> str:
        nonlocal count
        count = next(asked)
        assert await asyncio.to_thread(store.refused.wait, 10)  # the other one has come for the lease
        return service.new_code()

    def build() -> OAuthCredentials:
        return service.oauth_credentials(authorize=authorize, store=store)

    shared = build()
    outcomes: list[Any] = []

    async def use() -> None:
        async with service.session(shared if share == "provider" else build()) as session:
            for _ in range(2):
                await asyncio.to_thread(starts.wait, 10)
                outcomes.extend(await asyncio.gather(*(session.members.me() for _ in range(20)), return_exceptions=True))
                await asyncio.to_thread(starts.wait, 10)
                service.rules.expire_tokens()
                store.refused.clear()

    threads = [threading.Thread(target=asyncio.run, args=(use(),), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Member"] * 80
    assert (count, exchanges(service)) == (2, 2)


# --- bulk runs


async def test_a_bulk_run_whose_token_expires(service: BoardService, consent: Consent, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bulk run no more cards are refused than are in flight, nothing leaves during the callback, and no card fails.

    The callback takes longer than the session's timeout: the deadline of a card stands still while it waits for credentials.
    """
    sent, skipped = 0, 0.0
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + skipped)

    def count(event: object) -> None:
        nonlocal sent
        sent += isinstance(event, RequestSent)

    left_meanwhile: list[int] = []

    async def authorize(request: AuthorizationRequest) -> str:
        nonlocal skipped
        before = sent
        if not request.first_time:
            skipped += 100  # seconds, in which every deadline that doesn't stand still passes
            for _ in range(100):  # whatever could leave has left by then
                await asyncio.sleep(0)
        left_meanwhile.append(sent - before)
        return await consent(request)

    async with service.session(service.oauth_credentials(authorize=authorize), timeout=30, observers=[count]) as session:
        board = await session.boards.create("plans")
        home = await session.lists.create("todo", board_id=board.id)

        def drafts() -> Iterator[CardDraft]:
            for index in range(100):
                if index == 50:
                    service.rules.expire_tokens()
                yield CardDraft(name=f"card {index}", list_id=home.id)

        async with session.cards.create_many(drafts(), concurrency=8) as run:
            results = [result async for result in run]
    assert [result.error for result in results if result.error is not None] == []
    assert (run.report.created, run.report.failed, run.report.unknown) == (100, 0, 0)
    assert len(service.rules.cards) == 100
    service.assert_no_duplicates()
    assert 1 <= refusals(service) <= 8
    assert (len(consent.asked), exchanges(service), left_meanwhile) == (2, 2, [0, 0])


async def test_calls_that_wait_for_their_turn_meet_no_401(service: BoardService, consent: Consent) -> None:
    """Requests that waited behind the one that met the 401 are signed with the new token when their turn comes."""
    async with service.session(service.oauth_credentials(authorize=consent), limiter=asyncio.Semaphore(1)) as session:
        await session.members.me()
        service.rules.expire_tokens()
        await asyncio.gather(*(session.members.me() for _ in range(50)))
    assert (len(consent.asked), refusals(service)) == (2, 1)


async def test_a_bulk_run_at_its_own_pace_meets_few_401s(service: BoardService, consent: Consent) -> None:
    """No more cards are refused than are in flight, however many workers wait for their turn."""
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        board = await session.boards.create("plans")
        home = await session.lists.create("todo", board_id=board.id)

        def drafts() -> Iterator[CardDraft]:
            for index in range(120):
                if index == 110:
                    service.rules.expire_tokens()
                yield CardDraft(name=f"card {index}", list_id=home.id)

        async with session.with_options(limiter=Pace(start_rate=400.0)).cards.create_many(drafts()) as run:
            report = await run.wait()
    assert (report.created, len(consent.asked)) == (120, 2)
    assert 1 <= refusals(service) <= 30


# --- renewing before the end


@pytest.fixture
async def expiring(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[BoardService]:
    """Run a service whose tokens live for 100 s of a clock that the client's time of day is on, too."""
    clock.now = time.time() // 1
    seen = SimpleNamespace(time=clock, monotonic=clock)
    for module in (_token_state, _code_exchange):
        monkeypatch.setattr(module, "time", seen)
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


async def test_without_the_option_nothing_is_renewed_early(expiring: BoardService, clock: Clock) -> None:
    """Without `renew_before_expiry` the application is asked when the service says 401, and not before."""
    consent = Consent(expiring)
    async with expiring.session(timed(expiring, consent, clock)) as session:
        await session.members.me()
        clock.now += 99.9
        await session.members.me()
        assert (len(consent.asked), refusals(expiring)) == (1, 0)
        clock.now += 0.2
        await session.members.me()
    assert (len(consent.asked), refusals(expiring)) == (2, 1)


async def test_others_go_on_during_an_early_renewal(expiring: BoardService, clock: Clock) -> None:
    """While a good token is being renewed early, calls go on with it."""
    consent = Consent(expiring)
    async with expiring.session(timed(expiring, consent, clock, renew_before_expiry=10.0)) as session:
        await session.members.me()
        clock.now += 95
        consent.hold_up()
        first = asyncio.ensure_future(session.members.me())
        await consent.reached()
        await asyncio.gather(*(session.members.me() for _ in range(5)))
        assert not first.done()
        consent.open.set()
        await first
    assert (len(consent.asked), refusals(expiring)) == (2, 0)


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
        assert provider._token_state.rest_seconds == 1.0
        consent.error = None
        clock.now += 1
        await session.members.me()
        assert len(consent.asked) == 3
        clock.now += 50
        await session.members.me()
    assert (len(consent.asked), refusals(expiring)) == (3, 0)


async def test_an_early_renewal_that_outlasts_its_token(expiring: BoardService, clock: Clock) -> None:
    """A token that ends while it is renewed early is waited for by whoever is refused: there is one callback."""
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
    provider = service.oauth_credentials(authorize=consent, store=store)
    provider._token_state.clock = clock
    async with service.session(provider) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(5)), return_exceptions=True)
        failed = [error for error in errors if isinstance(error, BaseException)]
        if step != "release":  # by then the token is there
            assert len(failed) == 5
        assert all(isinstance(error, CredentialError) and error.__cause__ is boom for error in failed)
        store.is_broken = False
        clock.now += 6  # past the cool-down, and past the lease that could not be released
        async with asyncio.timeout(5):
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
        async with asyncio.timeout(5):
            await other
        with pytest.raises(SessionClosedError):
            await mine
    assert (len(consent.asked), consent.cancelled, exchanges(service)) == (2, 1, 1)
