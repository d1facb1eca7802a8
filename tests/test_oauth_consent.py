"""Users who sign in elsewhere: ConsentRequired, codes at hand, tokens of other workers, states, and signing out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from oauth_helpers import Application, FakeSession, error_of, provider_of, token_in, token_response, virtual, waiting_provider

from boardclient import ConsentRequired, Credentials, MemoryTokenStore, StoredToken, Token


class CountingStore(MemoryTokenStore):
    """A store that counts its steps."""

    def __init__(self) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self.steps: list[str] = []

    async def read(self, account: str, **at: Any) -> StoredToken | None:
        self.steps.append("read")
        return await super().read(account, **at)

    async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> Any:
        self.steps.append("lease")
        return await super().lease(account, holder, seconds, **at)


# --- consent is needed


@virtual
async def test_a_call_without_a_token_raises_at_once() -> None:
    """A call without a token takes no lease and begins no cool-down; of many calls one reads the store, every 50 ms at most."""
    store = CountingStore()
    provider = waiting_provider(store=store, account="ann", login_url="/login")
    session, loop = FakeSession(), asyncio.get_running_loop()
    errors = await asyncio.gather(*(error_of(provider.acquire(session)) for _ in range(100)))
    assert loop.time() == 0
    assert store.steps == ["read"]
    assert {(type(error), error.account, error.login_url) for error in errors if isinstance(error, ConsentRequired)} == {
        (ConsentRequired, "ann", "/login")
    }
    assert len({id(error) for error in errors}) == 100
    assert str(errors[0]) == "the user of account 'ann' has to sign in"
    for _ in range(100):
        await error_of(provider.acquire(session))
        await asyncio.sleep(0.01)
    assert len(store.steps) <= 21
    assert set(store.steps) == {"read"}
    assert session.forms == []


@virtual
async def test_an_authorize_that_raises_it() -> None:
    """ConsentRequiredError from the callback is no failure: no cool-down follows, and the callback's login URL is used."""
    store = CountingStore()
    application = Application(*[ConsentRequired("x", "", "/from-callback")] * 3, "code")
    provider = provider_of(application, store=store, account="ann", login_url="/login")
    session = FakeSession(token_response())
    for _ in range(3):
        error = await error_of(provider.acquire(session))
        assert isinstance(error, ConsentRequired)
        assert (error.account, error.login_url) == ("ann", "/from-callback")
        assert (await store.lease("ann", "another", 0.0)).state == "granted"
        await asyncio.sleep(0.06)
    assert (await provider.acquire(session)).token == "t1"
    assert len(application.requests) == 4


@pytest.mark.parametrize("change", ["replaced", "deleted"])
@virtual
async def test_a_good_token_that_another_worker_changes(change: str) -> None:
    """A token that is replaced, as for more scopes, or deleted is noticed within 0.5 s, though it was never refused."""
    store = CountingStore()
    await store.publish("default", Token("first"), 0)
    provider, session = waiting_provider(store=store), FakeSession()
    await provider.acquire(session)
    assert provider.current() == Credentials("first")
    assert provider.is_current(Credentials("first"))
    if change == "replaced":
        await store.publish("default", Token("second"), await store.generation("default"))
    else:
        await store.delete("default")
    await asyncio.sleep(0.26)
    assert provider.current() is None
    if change == "replaced":
        assert await provider.acquire(session) == Credentials("second")
    else:
        assert isinstance(await error_of(provider.acquire(session)), ConsentRequired)
    assert store.steps.count("read") == 2


@virtual
async def test_a_store_that_fails_keeps_a_good_token() -> None:
    """A look at the store that fails or hangs does not fail calls that have a token."""

    class Store(MemoryTokenStore):
        step: Any = None

        async def read(self, account: str, **at: Any) -> StoredToken | None:
            if self.step is not None:
                await self.step()
            return await super().read(account, **at)

    async def fail() -> None:
        raise OSError("no disk")

    store = Store()
    await store.publish("default", Token("first"), 0)
    provider, session = waiting_provider(store=store), FakeSession()
    first = await provider.acquire(session)
    store.step = fail
    await asyncio.sleep(0.3)
    assert await provider.acquire(session) is first
    store.step = asyncio.Event().wait
    await asyncio.sleep(0.3)
    assert await provider.acquire(session) is first
    session.close()


@virtual
async def test_a_store_that_fails_is_no_consent() -> None:
    """Without a token the store's failure is the error, and its next success is used without a cool-down."""

    class Store(MemoryTokenStore):
        is_broken = True

        async def read(self, account: str, **at: Any) -> StoredToken | None:
            if self.is_broken:
                raise OSError("no disk")
            return await super().read(account, **at)

    store = Store()
    await store.publish("default", Token("first"), 0)
    provider, session = waiting_provider(store=store), FakeSession()
    error = await error_of(provider.acquire(session))
    assert not isinstance(error, ConsentRequired)
    assert isinstance(error.__cause__, OSError)
    assert "the next renewal" not in str(error)
    store.is_broken = False
    await asyncio.sleep(0.06)
    assert (await provider.acquire(session)).token == "first"


# --- states and signing out


@virtual
async def test_states() -> None:
    """An account is "never", "good" or "needs consent" by its store and what this process has seen."""
    store = MemoryTokenStore()
    provider = waiting_provider(store=store)
    assert await provider.state() == "never"
    await store.publish("default", Token("t"), 0)
    assert await provider.state() == "good"
    provider._state.refuse(Credentials("t"))
    assert await provider.state() == "needs consent"
    await store.publish("default", Token("over", datetime(2020, 1, 1, tzinfo=UTC)), await store.generation("default"))
    assert await provider.state() == "needs consent"
    await provider.forget()
    assert await provider.state() == "never"


@virtual
async def test_a_store_that_lost_a_good_token() -> None:
    """A token that is held stays good where the store has lost its file."""
    store = MemoryTokenStore()
    await store.publish("default", Token("t"), 0)
    provider = waiting_provider(store=store)
    await provider.acquire(FakeSession())
    store._accounts.clear()
    assert await provider.state() == "good"


@virtual
async def test_forgetting() -> None:
    """The token is gone here, in the store and at other workers; a renewal that is running does not bring it back."""
    store = MemoryTokenStore(clock=asyncio.get_running_loop().time)
    await store.publish("default", Token("t"), 0)
    provider, other, session = waiting_provider(store=store), waiting_provider(store=store), FakeSession(token_response("late"))
    first = await provider.acquire(session)
    await other.acquire(session)
    late = provider_of(Application(lambda: asyncio.sleep(10, "code")), store=store)
    await late.acquire(session)
    renewing = asyncio.create_task(error_of(late.renew(first, session)))
    await asyncio.sleep(1)
    await provider.forget()
    assert provider.current() is None
    assert isinstance(await error_of(provider.acquire(session)), ConsentRequired)
    await asyncio.sleep(0.3)
    assert isinstance(await error_of(other.acquire(session)), ConsentRequired)
    assert "took no new token" in str(await renewing)
    assert await store.read("default") is None
    await provider.keep_token(Token("again"))
    assert await token_in(store, "default") == Token("again")
