"""Renewals at stores that fail, hang, are shared or lose what they held; callbacks that do anything."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from oauth_helpers import Application, FakeSession, Scripted, error_of, provider_of, raising, token_response, virtual

from boardclient import (
    AuthorizationRequest,
    ConsentRequired,
    CredentialError,
    LeaseRecord,
    MemoryTokenStore,
    Response,
    SessionClosedError,
    StoredToken,
    Token,
)
from boardclient.testing import BoardService

# --- stores


@virtual
async def test_a_store_s_own_credential_error_is_raised() -> None:
    """A store's own CredentialError keeps its words and its cause."""
    told, cause = CredentialError("the disk is full; make room on it"), OSError("full")
    told.__cause__ = cause
    error = await error_of(provider_of(store=Scripted("publish", raising(told))).acquire(FakeSession(token_response())))
    assert error is not told
    assert str(error) == "the disk is full; make room on it; the next renewal is possible in 1.0 s"
    assert error.__cause__ is cause


@virtual
async def test_a_store_that_hangs_when_the_lease_is_given_back() -> None:
    """The token is there: no call waits long for a step that none of them needs."""
    began = asyncio.get_running_loop().time()
    store = Scripted("release", asyncio.Event().wait)
    assert (await provider_of(store=store).acquire(FakeSession(token_response()))).token == "t1"
    assert asyncio.get_running_loop().time() - began < 2


@virtual
async def test_a_newer_token_that_comes_while_one_is_published() -> None:
    """A token that the user consented to meanwhile is newer, and stays."""

    async def overtaken() -> bool:
        if store.calls == 1:
            await provider.keep_token(Token("newer"))
        return True

    store = Scripted("publish", overtaken, is_after=True)
    provider = provider_of(store=store)
    assert (await provider.acquire(FakeSession(token_response("ours")))).token == "newer"


@virtual
async def test_another_holder_that_was_done_before() -> None:
    """A token that was published between the read and the lease is used; the user is not asked."""

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> Any:
            await self.publish(account, Token("theirs"), 0, **at)
            return await super().lease(account, holder, seconds, **at)

    application, store = Application(), Store()
    assert (await provider_of(application, store=store).acquire(FakeSession())).token == "theirs"
    assert application.requests == []
    assert (await store.lease("default", "next", 1.0)).state == "granted"


@virtual
async def test_waiting_for_another_holder() -> None:
    """Who doesn't get the lease looks again every 50 to 200 ms, until the token is there."""
    looks: list[float] = []
    loop = asyncio.get_running_loop()

    class Store(MemoryTokenStore):
        async def read(self, account: str, **at: Any) -> StoredToken | None:
            looks.append(loop.time())
            return StoredToken(Token("theirs"), 1) if loop.time() > 30 else None

        async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> Any:
            return LeaseRecord("held", None, 0)

        async def release(self, account: str, holder: str, cooldown: float = 0.0, **at: Any) -> None:
            raise AssertionError("who has no lease releases none")

    application = Application()
    given = await asyncio.gather(*(provider.acquire(FakeSession()) for provider in [provider_of(application, store=Store())] * 9))
    assert {credentials.token for credentials in given} == {"theirs"}
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert 0.049 < min(pauses) < max(pauses) < 0.201
    assert len({round(pause, 4) for pause in pauses}) > 50
    assert application.requests == []


@virtual
async def test_another_holder_that_fails() -> None:
    """A provider that waits for a holder whose renewal fails, fails too and rests; then any may renew."""
    store = MemoryTokenStore(clock=asyncio.get_running_loop().time)
    applications = Application(LookupError("no")), Application()
    one, two = (provider_of(application, store=store) for application in applications)
    session = FakeSession(token_response())
    errors = await asyncio.gather(error_of(one.acquire(session)), error_of(two.acquire(session)))
    assert str(errors[1]).startswith("a renewal by another holder of the account has just failed")
    assert applications[1].requests == []
    await asyncio.sleep(1.3)
    assert (await two.acquire(session)).token == (await one.acquire(session)).token == "t1"
    assert len(applications[0].requests) == len(applications[1].requests) == 1


@virtual
async def test_the_cool_down_of_another_holder_ends_at_one_moment_for_all() -> None:
    """It is as long as the service has asked for, and no worker asks the user or the service before."""
    store = MemoryTokenStore(clock=asyncio.get_running_loop().time)
    applications = Application(), Application()
    one, two = (provider_of(application, store=store) for application in applications)
    busy = FakeSession(Response(429, {"Retry-After": "90"}, b""))
    for provider, left in ((one, 90.0), (two, 60.0), (two, 60.0)):
        error = await error_of(provider.acquire(busy))
        assert error.retry_at is not None
        assert (error.retry_at - datetime.now(UTC)).total_seconds() == pytest.approx(left, abs=5.0)
        if provider is one:
            await asyncio.sleep(30.0)
    assert (len(applications[0].requests), len(applications[1].requests)) == (1, 0)
    await asyncio.sleep(61.0)
    assert (await two.acquire(FakeSession(token_response()))).token == "t1"


@virtual
async def test_a_lease_is_kept_as_long_as_it_takes() -> None:
    """While the application takes its time the lease is extended, three times within its length, and then given back."""
    loop, asked = asyncio.get_running_loop(), []

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> Any:
            asked.append((loop.time(), holder, seconds))
            if len(asked) == 3:
                raise OSError("for once")
            return await super().lease(account, holder, seconds, **at)

    store = Store(clock=loop.time)
    provider = provider_of(Application(lambda: asyncio.sleep(19, "code")), store=store, lease_seconds=6.0)
    await provider.acquire(FakeSession(token_response()))
    assert [round(moment) for moment, _, _ in asked] == list(range(0, 20, 2))
    assert len({holder for _, holder, _ in asked}) == 1
    assert {seconds for _, _, seconds in asked} == {6.0}
    assert (await store.lease("default", "next", 1.0)).state == "granted"


# --- within a renewal


@pytest.mark.parametrize("options", [{"account": "another"}, {"store": MemoryTokenStore()}])
@virtual
async def test_authorize_that_uses_another_account(options: dict[str, Any]) -> None:
    """A callback may get its code by another account's credentials."""
    store = MemoryTokenStore()
    session = FakeSession(token_response("inner"), token_response("outer"))

    async def nested() -> str:
        credentials = await inner.acquire(session)
        return credentials.token

    inner = provider_of(**{"store": store, **options})
    outer = provider_of(Application(nested), store=store)
    assert (await outer.acquire(session)).token == "outer"
    assert [fields["code"] for _, fields, _ in session.forms] == ["code 1", "inner"]


# --- whatever a store or a callback does


class Odd(BaseException):
    """What no application should raise."""


async def _junk() -> object:
    return ["canary7"]


@virtual
async def test_a_renewal_takes_four_steps_at_the_store() -> None:
    """The lease shows the record, so nothing is read twice. A file is opened for each step."""
    steps: list[str] = []

    class Store(MemoryTokenStore):
        async def _change(self, account: str, service: str | None, change: Any) -> Any:
            steps.append(getattr(change, "func", change).__name__)
            return await super()._change(account, service, change)

    provider, session = provider_of(store=Store()), FakeSession(token_response(), token_response("second"))
    first = await provider.acquire(session)
    assert steps == ["unchanged", "request_lease", "publish", "release"]
    provider.note_accepted(first)
    steps.clear()
    assert (await provider.renew(first, session)).token == "second"
    assert steps == ["unchanged", "request_lease", "publish", "release"]


@pytest.mark.parametrize("method", ["read", "lease", "publish"])
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (raising(asyncio.CancelledError()), "the token store failed: {} raised CancelledError"),
        (raising(Odd()), "the token store failed: {} raised Odd"),
        (lambda: asyncio.Event().wait(), "the token store failed: {} did not return within 30 s"),
        (_junk, "the token store failed: {} returned list, not"),
    ],
)
@virtual
async def test_a_step_that_fails(method: str, step: Callable[[], Any], words: str) -> None:
    """Each caller gets one clear error, and the store is not asked in a loop."""
    store = Scripted(method, step)
    provider = provider_of(Application(lambda: asyncio.sleep(0.01, "code")), store=store)
    session = FakeSession(token_response(), token_response())
    errors = await asyncio.gather(*(error_of(provider.acquire(session)) for _ in range(5)))
    assert {str(error) for error in errors} == {str(errors[0])}
    assert str(errors[0]).startswith(words.format(method))
    assert "canary7" not in str(errors[0])
    assert store.calls <= 3


@virtual
async def test_a_store_that_takes_no_token_and_has_none_is_named() -> None:
    """No caller gets a token that no other worker would find."""

    async def refused() -> None:
        return None

    error = await error_of(provider_of(store=Scripted("publish", refused)).acquire(FakeSession(token_response())))
    assert str(error).startswith("the token store took no new token, and holds no other")


@virtual
async def test_a_store_that_can_not_tell_whether_a_user_has_signed_out() -> None:
    """The user is asked to sign in, as if there had been no token before."""
    store = Scripted("generation", raising(CredentialError("the disk is gone")))
    error = await error_of(provider_of(None, store=store).acquire(FakeSession()))
    assert isinstance(error, ConsentRequired)
    assert not error.is_signed_out


@virtual
async def test_another_holder_that_rests_without_a_time() -> None:
    """A store that does not say how long: nothing is said that is not known."""

    async def resting() -> LeaseRecord:
        return LeaseRecord("cooling", None, 0)

    error = await error_of(provider_of(store=Scripted("lease", resting)).acquire(FakeSession()))
    assert str(error).startswith("a renewal by another holder of the account has just failed")


@pytest.mark.parametrize("method", ["read", "lease", "publish", "release"])
@virtual
async def test_closing_does_not_wait_for_a_step_that_hangs(method: str) -> None:
    """A session that closes amid a step of a store that hangs waits for it a second at most."""
    loop, hanging = asyncio.get_running_loop(), asyncio.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    provider = provider_of(store=Scripted(method, hang))
    session = FakeSession(token_response())
    call = asyncio.create_task(provider.acquire(session))
    await hanging.wait()
    began = loop.time()
    session.close()
    await asyncio.wait(session.tasks)
    assert loop.time() - began <= 1.01
    if method == "release":  # by then the token is there
        assert (await call).token == "t1"
        return
    with pytest.raises(SessionClosedError):
        await call


@pytest.mark.full
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["authorize", "awaited", "read"])
def test_an_interrupt_in_a_callback_ends_the_program(kind: type[BaseException], place: str) -> None:
    """KeyboardInterrupt and SystemExit are not taken for failures."""

    async def program() -> None:
        def interrupt(*arguments: object, **at: object) -> Any:
            raise kind

        store = MemoryTokenStore()
        if place == "read":
            store.read = interrupt  # type: ignore[method-assign]  # -- as a subclass would

        async def awaited(request: AuthorizationRequest) -> str:
            raise kind

        provider = provider_of({"authorize": interrupt, "awaited": awaited}.get(place), store=store)
        await provider.acquire(FakeSession())

    with pytest.raises(kind):
        asyncio.run(program())
    gc.collect()


@virtual
async def test_an_exchange_that_raises_anything() -> None:
    """An exchange that is no session's fails the renewal, and the lease is released."""
    store = MemoryTokenStore(clock=asyncio.get_running_loop().time)
    error = await error_of(provider_of(store=store).acquire(FakeSession(LookupError("mine"))))
    assert str(error).startswith("the renewal failed: LookupError")
    await asyncio.sleep(1.1)
    assert (await store.lease("default", "x", 1.0)).state == "granted"


async def test_no_task_has_the_code_as_its_result(service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asyncio prints the results of tasks in debug mode: none of them is a code or a token."""
    results: list[str] = []

    class Task(asyncio.Task[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.add_done_callback(lambda task: results.append(repr(task)))

    loop = asyncio.get_running_loop()
    codes: list[str] = []

    async def authorize(request: AuthorizationRequest) -> str:
        codes.append(service.new_code())
        return codes[-1]

    provider = service.oauth_credentials(authorize=authorize)
    async with service.session(provider) as session:
        loop.set_task_factory(lambda loop, coroutine, **options: Task(coroutine, loop=loop, **options))
        try:
            await session.members.me()
            codes.append(service.new_code())
            await provider.exchange_code(codes[-1], session)
            token = await provider.request_token(service.new_code(), session)
        finally:
            loop.set_task_factory(None)
    await asyncio.sleep(0)
    assert len(results) > 5
    assert not [text for text in results for secret in (*codes, token.value) if secret in text]


# --- stores that lose what they held


@virtual
async def test_a_store_that_fails_during_a_cool_down() -> None:
    """The looks at the store neither end nor lengthen the cool-down, and the error stays the renewal's."""
    store = MemoryTokenStore()
    provider = provider_of(Application(LookupError("no")), store=store, cooldown=10.0)
    await error_of(provider.acquire(FakeSession()))
    store.read = raising(Odd())  # type: ignore[method-assign]  # -- as a subclass would
    for _ in range(3):
        await asyncio.sleep(1)
        assert str(await error_of(provider.acquire(FakeSession()))).startswith("authorize raised LookupError")
    assert provider._state.cooldown_left == pytest.approx(7.0)


# --- callbacks that wait for each other


@pytest.mark.parametrize("number", [1, 2, 3])
@virtual
async def test_callbacks_that_wait_for_each_other_in_a_circle(number: int) -> None:
    """A callback that waits for its own renewal, directly or by way of other accounts, fails at once with a clear error."""
    store, session = MemoryTokenStore(clock=asyncio.get_running_loop().time), FakeSession()

    def authorize_of(own: int) -> Any:
        async def authorize(request: AuthorizationRequest) -> str:
            return (await providers[(own + 1) % number].acquire(session)).token

        return authorize

    providers = [provider_of(authorize_of(own), store=store, account=f"account {own}") for own in range(number)]
    error = await error_of(providers[0].acquire(session))
    assert "authorize waits for itself: it used a session with the credentials of account 'account 0'" in str(error)
    assert asyncio.get_running_loop().time() < 1
