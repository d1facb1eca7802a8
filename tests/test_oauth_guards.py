"""Stores and callbacks that raise anything, cancel themselves, hang, return anything or lose what they held."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from oauth_helpers import Application, FakeSession, error_of, provider_of, token_response, virtual

from boardclient import (
    AuthorizationRequest,
    CredentialError,
    Credentials,
    MemoryTokenStore,
    SessionClosedError,
    StoredToken,
    Token,
)
from boardclient.testing import BoardService


class Odd(BaseException):
    """What no application should raise."""


class Scripted(MemoryTokenStore):
    """A store one of whose methods does what the test says."""

    def __init__(self, method: str, step: Callable[[], Any]) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self.method, self.step, self.calls = method, step, 0

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name in {"read", "generation", "publish", "lease", "release", "delete"} and name == get("method"):

            async def scripted(*arguments: Any) -> Any:
                self.calls += 1
                return await get("step")()

            return scripted
        return get(name)


async def _cancelled() -> None:
    raise asyncio.CancelledError


async def _odd() -> None:
    raise Odd


async def _junk() -> object:
    return ["canary7"]


@pytest.mark.parametrize("method", ["read", "lease", "publish", "generation"])
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (_cancelled, "the token store failed: {} raised CancelledError"),
        (_odd, "the token store failed: {} raised Odd"),
        (lambda: asyncio.Event().wait(), "the token store failed: {} did not return within 30 s"),
        (_junk, "the token store failed: {} returned list, not"),
    ],
)
@virtual
async def test_a_step_that_fails(method: str, step: Callable[[], Any], words: str) -> None:
    """Each caller gets one clear error, and the store is not asked in a loop."""
    if method == "publish" and step is _junk:
        return  # whatever is true counts as taken
    store = Scripted(method, step)
    provider = provider_of(Application(lambda: asyncio.sleep(0.01, "code")), store=store)
    session = FakeSession(token_response(), token_response())
    errors = await asyncio.gather(*(error_of(provider.acquire(session)) for _ in range(5)))
    assert {str(error) for error in errors} == {str(errors[0])}
    assert str(errors[0]).startswith(words.format(method))
    assert "canary7" not in str(errors[0])
    assert store.calls <= 3


@virtual
async def test_steps_that_are_no_async_methods() -> None:
    """A plain method of a store serves as well, and what it raises is reported clearly."""

    class Plain(MemoryTokenStore):
        error: BaseException | None = None

        def read(self, account: str) -> Any:
            if self.error is not None:
                raise self.error
            return StoredToken(Token("t"), 1)

    store = Plain()
    provider = provider_of(store=store)
    assert (await provider.acquire(FakeSession())).token == "t"
    for error in (asyncio.CancelledError(), Odd(), LookupError()):
        store.error = error
        words = f"the token store failed: read raised {type(error).__name__}"
        assert str(await error_of(provider_of(store=store).acquire(FakeSession()))).startswith(words)


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


@pytest.mark.parametrize("raised", [Odd(), asyncio.CancelledError(), LookupError()])
@pytest.mark.parametrize("is_at_once", [True, False])
@virtual
async def test_callbacks_that_raise_anything(raised: BaseException, is_at_once: bool) -> None:
    """Whatever a callback raises, within its call or later, fails the renewal and nothing else."""

    def at_once(request: AuthorizationRequest) -> Any:
        raise raised

    provider = provider_of(at_once if is_at_once else Application(raised))
    error = await error_of(provider.acquire(FakeSession()))
    assert str(error).startswith(f"authorize raised {type(raised).__name__}")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["authorize", "awaited", "read"])
def test_an_interrupt_in_a_callback_ends_the_program(kind: type[BaseException], place: str) -> None:
    """KeyboardInterrupt and SystemExit are not taken for failures."""

    async def program() -> None:
        def interrupt(*arguments: object) -> Any:
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
    assert await store.lease("default", "x", 1.0) == "granted"


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
async def test_a_store_that_lost_its_file_prompts_once() -> None:
    """Whatever generation was held, the first token of the new file is used, and early renewals do not ask again and again."""
    now = datetime.now(UTC)
    store = MemoryTokenStore()
    application = Application()
    ends = iter([now + timedelta(seconds=1)] + [now + timedelta(hours=1)] * 20)
    provider = provider_of(
        application,
        store=store,
        renew_before_expiry=60.0,
        parse_token=lambda fields: Token(str(fields["access_token"]), next(ends)),
    )
    for generation in range(9):
        await store.publish("default", Token(f"old {generation}"), generation)
    session = FakeSession(*(token_response(f"t{number}") for number in range(20)))
    provider.note_accepted(await provider.acquire(session))
    provider._state.refuse(Credentials("old 8"))
    provider.note_accepted(await provider.acquire(session))  # generation 10, which is soon to be renewed
    assert provider._state.held is not None
    provider._state.held.renew_at = 0.0
    store._accounts.clear()
    for _ in range(10):
        await provider.acquire(session)
    assert len(application.requests) == 2
    assert provider.current() == Credentials("t1")
    assert await store.read("default") == StoredToken(Token("t1", now + timedelta(hours=1)), 1)


@pytest.mark.parametrize("restored", [None, 3])
@virtual
async def test_a_store_that_is_lost_during_consent_does_not_waste_the_code(restored: int | None) -> None:
    """The user's consent is not wasted: the token is published after what the store holds now."""
    store = MemoryTokenStore()
    for generation in range(5):
        await store.publish("default", Token(f"old {generation}"), generation)

    async def losing() -> str:
        store._accounts.clear()
        for generation in range(restored or 0):
            await store.publish("default", Token(f"old {generation}"), generation)
        return "code"

    provider, session = provider_of(Application(losing), store=store), FakeSession(token_response("mine"))
    old = await provider.acquire(session)
    assert (await provider.renew(old, session)).token == "mine"
    assert await store.read("default") == StoredToken(Token("mine"), (restored or 0) + 1)


@virtual
async def test_a_store_that_was_restored_with_a_token_of_another_worker() -> None:
    """In place of the token that is to be replaced, one of an earlier generation is used, unless it is over itself."""
    past, later = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (-1, 7200))
    for ends, expected in ((later, "restored"), (past, "new")):
        store = MemoryTokenStore()
        application = Application()
        provider = provider_of(application, store=store, renew_before_expiry=60.0)
        for generation in range(3):
            await store.publish("default", Token(f"old {generation}", later), generation)
        session = FakeSession(token_response("new"))
        await provider.acquire(session)
        assert provider._state.held is not None
        provider._state.held.renew_at = 0.0
        store._accounts.clear()
        await store.publish("default", Token("restored", ends), 0)
        assert (await provider.acquire(session)).token == expected
        assert len(application.requests) == (expected == "new")


@virtual
async def test_a_store_that_keeps_going_back_fails_the_renewal() -> None:
    """After three attempts to publish the renewal fails."""
    store = MemoryTokenStore()

    class Shrinking(MemoryTokenStore):
        generations = iter([9, 6, 3, 1])

        async def generation(self, account: str) -> int:
            return next(self.generations)

        async def publish(self, account: str, token: Token, after: int) -> bool:
            return False

    store = Shrinking()
    assert "took no new token" in str(await error_of(provider_of(store=store).acquire(FakeSession(token_response()))))
    assert list(store.generations) == []


@virtual
async def test_a_store_that_fails_during_a_cool_down() -> None:
    """The looks at the store neither end nor lengthen the cool-down, and the error stays the renewal's."""
    store = MemoryTokenStore()
    provider = provider_of(Application(LookupError("no")), store=store, cooldown=10.0)
    await error_of(provider.acquire(FakeSession()))
    store.read = _odd  # type: ignore[method-assign, assignment]  # -- as a subclass would
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


@virtual
async def test_two_renewals_that_wait_for_each_other_end_in_time() -> None:
    """Renewals that begin apart and then wait for each other end when their callbacks' time is over."""
    store, session = MemoryTokenStore(clock=asyncio.get_running_loop().time), FakeSession()
    began = [asyncio.Event(), asyncio.Event()]

    def authorize_of(own: int) -> Any:
        async def authorize(request: AuthorizationRequest) -> str:
            began[own].set()
            await began[1 - own].wait()
            return (await providers[1 - own].acquire(session)).token

        return authorize

    providers = [provider_of(authorize_of(own), store=store, account=f"account {own}") for own in range(2)]
    errors = await asyncio.gather(*(error_of(provider.acquire(session)) for provider in providers))
    assert any("authorize did not return within 300 s" in str(error) for error in errors)


@virtual
async def test_accounts_that_wait_in_a_row() -> None:
    """One account's callback may wait for another's, and that one for a third: this is no circle."""
    store = MemoryTokenStore()
    session = FakeSession(*(token_response(f"t{number}") for number in range(3)))

    async def nested(provider: Any) -> str:
        return (await provider.acquire(session)).token

    third = provider_of(store=store, account="third")
    second = provider_of(Application(lambda: nested(third)), store=store, account="second")
    first = provider_of(Application(lambda: nested(second)), store=store, account="first")
    given = await asyncio.gather(*(provider.acquire(session) for provider in (third, second, first)))
    assert [credentials.token for credentials in given] == ["t0", "t1", "t2"]


@virtual
async def test_junk_of_other_methods() -> None:
    """A step of no account's renewal is guarded too."""
    provider = provider_of(store=Scripted("delete", _odd))
    with pytest.raises(CredentialError, match="the token store failed: delete raised Odd"):
        await provider.forget()
