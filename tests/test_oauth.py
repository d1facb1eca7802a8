"""OAuthCredentials and one renewal: first use, 401s, and what fails."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest
from oauth_helpers import (
    OPTIONS,
    SECRETS,
    Application,
    FakeSession,
    error_of,
    lost,
    provider_of,
    token_in,
    token_response,
    virtual,
)

from boardclient import (
    AsyncSession,
    AuthorizationRequest,
    CredentialError,
    Credentials,
    MemoryTokenStore,
    OAuthCredentials,
    Response,
    Token,
    TransportError,
)
from boardclient.errors import Effect
from boardclient.testing import assert_no_secrets

# --- first use and renewals


@pytest.mark.parametrize(("timeout", "expected"), [(30.0, 10.0), (None, 30.0)])
@virtual
async def test_first_use(timeout: float | None, expected: float) -> None:
    """A code is asked for and exchanged once; the token signs from then on, and is in the store."""
    application, store = Application("a code"), MemoryTokenStore()
    provider = provider_of(application, store=store, key="k", account="mine")
    session = FakeSession(token_response(), timeout=timeout)
    given = await asyncio.gather(*(provider.acquire(session) for _ in range(20)))
    assert set(given) == {Credentials("t1", "k")}
    fields = {
        "client_id": "canary-id7",
        "client_secret": "canary-secret7",
        "code": "a code",
        "redirect_uri": "https://app.example/canary-redirect7",
    }
    assert session.forms == [("https://auth.example/root/1/OAuthGetAccessToken", fields, expected)]
    assert application.requests == [AuthorizationRequest(account="mine", first_time=True, attempt=1)]
    assert await provider.acquire(FakeSession()) is given[0]
    assert await token_in(store, "mine") == Token("t1")
    assert (await store.lease("mine", "another", 1.0)).state == "granted"


@virtual
async def test_an_acceptance_that_comes_late() -> None:
    """Neither an older token nor one that is refused already is proven by a response that comes late."""
    provider, session = provider_of(), FakeSession(token_response("t1"))
    first = await provider.acquire(session)
    provider.note_accepted(Credentials("older"))
    assert await provider.renew(first, session) is first  # refused as soon as it was new
    provider.note_accepted(first)
    assert "as soon as it was new" in str(await error_of(provider.acquire(session)))


@pytest.mark.parametrize("state", ["held", "cooling", OSError("no disk")])
@virtual
async def test_a_rest_that_can_not_be_shared(state: object) -> None:
    """Where the store gives no lease for the rest, its others are left to find out."""

    class Store(MemoryTokenStore):
        is_failing = False

        async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> Any:
            if self.is_failing and isinstance(state, Exception):
                raise state
            leased = await super().lease(account, holder, seconds, **at)
            return attrs.evolve(leased, state=state) if self.is_failing else leased

        async def release(self, account: str, holder: str, cooldown: float = 0.0, **at: Any) -> None:
            assert not self.is_failing
            await super().release(account, holder, cooldown, **at)

    store = Store()
    provider, session = provider_of(store=store), FakeSession(token_response())
    first = await provider.acquire(session)
    store.is_failing = True
    assert await provider.renew(first, session) is first
    assert provider._state.cooldown_left == 1.0


@virtual
async def test_workers_are_told_once_of_a_token_that_was_refused_as_new() -> None:
    """Twenty calls get 401 for it. The other workers of the store receive the whole cool-down, also if the store is slow."""
    told: list[float] = []

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> Any:
            await asyncio.sleep(0.4)
            return await super().lease(account, holder, seconds, **at)

        async def release(self, account: str, holder: str, cooldown: float = 0.0, **at: Any) -> None:
            told.append(cooldown)
            await super().release(account, holder, cooldown, **at)

    store = Store()
    provider, session = provider_of(store=store), FakeSession(token_response())
    first = await provider.acquire(session)
    refused = [provider.renew(first, session), *(provider.note_refused(first, session) for _ in range(19))]
    await asyncio.gather(*refused)
    assert told == [0.0, 1.0]
    assert (await MemoryTokenStore.lease(store, "default", "another", 1.0)).state == "cooling"


@virtual
async def test_a_call_that_is_cancelled_while_it_tells_other_workers_leaves_no_lease() -> None:
    store = MemoryTokenStore()
    provider, session = provider_of(store=store), FakeSession(token_response())
    first = await provider.acquire(session)
    call = asyncio.ensure_future(provider.renew(first, session))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call, *session.tasks})
    assert (await store.lease("default", "another", 1.0)).state == "cooling"


# --- failures


@virtual
async def test_a_failure_is_everybodys() -> None:
    """Each waiting call gets its own error with the same cause; the user is not asked during the rest, and is asked after it."""
    application = Application(LookupError("mine"), LookupError("mine"))
    provider, session = provider_of(application), FakeSession(token_response())
    errors = await asyncio.gather(*(error_of(provider.acquire(session)) for _ in range(5)))
    assert {str(error) for error in errors} == {"authorize raised LookupError; the next renewal is possible in 1.0 s"}
    assert len({id(error) for error in errors}) == 5
    assert len({id(error.__cause__) for error in errors}) == 1
    await asyncio.sleep(0.6)
    assert "possible in 0.4 s" in str(await error_of(provider.acquire(session)))
    assert len(application.requests) == 1
    await asyncio.sleep(0.5)
    assert "possible in 2.0 s" in str(await error_of(provider.acquire(session)))
    await asyncio.sleep(2.1)
    assert (await provider.acquire(session)).token == "t1"
    assert_no_secrets(errors, secrets=SECRETS)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "authorize returned NoneType, not a code that can be sent"),
        (b"code", "authorize returned bytes, not a code that can be sent"),
        ("canary7\ud800", "authorize returned str, not a code that can be sent"),
        ("", "authorize returned str, not a code that can be sent"),
        (LookupError("canary7"), "authorize raised LookupError"),
        (asyncio.CancelledError(), "authorize raised CancelledError"),
        (GeneratorExit(), "authorize raised GeneratorExit"),
        (asyncio.Event().wait, "authorize did not return within 300 s"),
    ],
)
@virtual
async def test_a_callback_without_a_code_fails(code: object, words: str) -> None:
    """The error for a callback that returns no code shows no part of what it returned; nothing is sent."""
    session = FakeSession()
    error = await error_of(provider_of(Application(code)).acquire(session))
    assert str(error) == f"{words}; the next renewal is possible in 1.0 s"
    assert error.__cause__ is (code if isinstance(code, BaseException) else None)
    assert session.forms == []


@virtual
async def test_a_callback_that_is_no_coroutine_function() -> None:
    """A plain function that returns a code serves as well, and one with other parameters is a clear error."""
    assert (await provider_of(lambda request: "code").acquire(FakeSession(token_response()))).token == "t1"
    error = await error_of(provider_of(lambda request, more: None).acquire(FakeSession()))
    assert str(error).startswith("authorize raised TypeError")

    def cancels(request: AuthorizationRequest) -> str:
        raise asyncio.CancelledError

    assert str(await error_of(provider_of(cancels).acquire(FakeSession()))).startswith("authorize raised CancelledError")


@pytest.mark.parametrize("later", [LookupError("late"), None])
@virtual
async def test_a_callback_that_swallows_its_cancellation_is_abandoned(later: Exception | None) -> None:
    """A callback that does not end when cancelled is abandoned, and its result is ignored."""
    ended = asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(100)
            ended.set()
            if later is not None:
                raise later from None
        return "too late"

    provider, session = provider_of(Application(stubborn), authorize_timeout=10.0), FakeSession()
    assert "did not return within 10 s" in str(await error_of(provider.acquire(session)))
    assert asyncio.get_running_loop().time() < 11
    await ended.wait()
    assert session.forms == []


@virtual
async def test_an_exchange_with_unknown_effect() -> None:
    """A second code is asked for, once; a code whose exchange was lost is never sent again."""
    application = Application("first", "second", "first", "third")
    provider = provider_of(application)
    session = FakeSession(lost(), lost(), token_response())
    error = await error_of(provider.acquire(session))
    assert str(error).startswith("the token exchange failed, with unknown effect: no answer")
    assert isinstance(error.__cause__, TransportError)
    assert error.__cause__.__traceback__ is None
    await asyncio.sleep(1.1)
    error = await error_of(provider.acquire(session))
    assert str(error).startswith("the code was sent before, with unknown effect")
    await asyncio.sleep(2.1)
    assert (await provider.acquire(session)).token == "t1"
    assert [fields["code"] for _, fields, _ in session.forms] == ["first", "second", "third"]
    assert [request.attempt for request in application.requests] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lost(Effect.NOT_SENT), "the token exchange was not sent: no answer"),
        (Response(400, {}, b'{"error":"invalid_grant"}'), "the token exchange failed with status 400 (invalid_grant)"),
        (Response(200, {}, b"canary7"), "the token exchange gave no token"),
        (ValueError("the URL of the form must be…"), "the URL of the form must be…"),
    ],
)
@virtual
async def test_an_exchange_that_fails(answer: object, words: str) -> None:
    """What fails for sure is not tried again: the code is asked for once."""
    application = Application("canary7")
    error = await error_of(provider_of(application).acquire(FakeSession(answer)))
    assert str(error).startswith(words)
    assert "canary7" not in str(error)
    assert len(application.requests) == 1


async def test_plain_http_is_refused_before_the_callback_runs() -> None:
    """A real session refuses plain http to anything but loopback in the same way."""
    application = Application()
    provider = OAuthCredentials(**{**OPTIONS, "auth_url": "http://auth.example"}, authorize=application)
    async with AsyncSession(provider, "https://board.example") as session:
        with pytest.raises(CredentialError, match="auth_url is plain http"):
            await session.members.me()
    assert application.requests == []
