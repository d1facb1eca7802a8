"""Renewals at stores that fail, are slow, or are shared; callbacks that use credentials themselves."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from oauth_helpers import Application, FakeSession, error_of, provider_of, token_response, virtual

from boardclient import (
    CredentialError,
    Credentials,
    MemoryTokenStore,
    StoredToken,
    Token,
)

# --- stores


class Broken(MemoryTokenStore):
    """A store one of whose methods raises."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self.method, self.error = method, error

    async def _step(self, method: str) -> None:
        canary = "canary7"
        if method == self.method:
            assert canary
            raise self.error

    async def read(self, account: str) -> StoredToken | None:
        await self._step("read")
        return await super().read(account)

    async def publish(self, account: str, token: Token, after: int) -> bool:
        await self._step("publish")
        return await super().publish(account, token, after)

    async def lease(self, account: str, holder: str, seconds: float) -> Any:
        await self._step("lease")
        return await super().lease(account, holder, seconds)

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await super().release(account, holder, cooldown)
        await self._step("release")


@virtual
async def test_a_store_s_own_credential_error_is_raised() -> None:
    """A store's own CredentialError keeps its words and its cause."""
    told, cause = CredentialError("the disk is full; make room on it"), OSError("full")
    told.__cause__ = cause
    error = await error_of(provider_of(store=Broken("publish", told)).acquire(FakeSession(token_response())))
    assert error is not told
    assert str(error) == "the disk is full; make room on it; the next renewal is possible in 1.0 s"
    assert error.__cause__ is cause


@virtual
async def test_a_lease_that_can_not_be_given_back() -> None:
    """If the lease can't be released after a renewal, no call fails: the lease runs out by itself."""
    provider = provider_of(store=Broken("release", OSError("no disk")))
    credentials = await provider.acquire(FakeSession(token_response()))
    assert credentials.token == "t1"


@virtual
async def test_a_store_that_hangs_when_the_lease_is_given_back() -> None:
    """The token is there: no call waits long for a step that none of them needs."""

    class Store(MemoryTokenStore):
        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            await asyncio.Event().wait()

    began = asyncio.get_running_loop().time()
    credentials = await provider_of(store=Store()).acquire(FakeSession(token_response()))
    assert credentials.token == "t1"
    assert asyncio.get_running_loop().time() - began < 2


@virtual
async def test_a_store_that_keeps_nothing() -> None:
    """Where nothing can be published and nothing is, the renewal has failed."""

    class Store(MemoryTokenStore):
        async def publish(self, account: str, token: Token, after: int) -> bool:
            return False

    error = await error_of(provider_of(store=Store()).acquire(FakeSession(token_response())))
    assert str(error).startswith("the token store took no new token, and holds no other")


@virtual
async def test_another_holder_that_was_faster() -> None:
    """The second one to publish uses the token of the first."""
    store = MemoryTokenStore()

    async def overtaken() -> str:
        await store.publish("default", Token("theirs"), 0)
        return "code"

    provider = provider_of(Application(overtaken), store=store)
    assert (await provider.acquire(FakeSession(token_response("ours")))).token == "theirs"
    assert await store.read("default") == StoredToken(Token("theirs"), 1)


@virtual
async def test_another_holder_that_was_done_before() -> None:
    """A token that was published between the read and the lease is used; the user is not asked."""

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            await self.publish(account, Token("theirs"), 0)
            return await super().lease(account, holder, seconds)

    application, store = Application(), Store()
    assert (await provider_of(application, store=store).acquire(FakeSession())).token == "theirs"
    assert application.requests == []
    assert await store.lease("default", "next", 1.0) == "granted"


@virtual
async def test_waiting_for_another_holder() -> None:
    """Who doesn't get the lease looks again every 50 to 200 ms, until the token is there."""
    looks: list[float] = []
    loop = asyncio.get_running_loop()

    class Store(MemoryTokenStore):
        async def read(self, account: str) -> StoredToken | None:
            looks.append(loop.time())
            return StoredToken(Token("theirs"), 1) if loop.time() > 30 else None

        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            return "held"

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
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
async def test_a_lease_is_kept_as_long_as_it_takes() -> None:
    """While the application takes its time the lease is extended, three times within its length, and then given back."""
    loop, asked = asyncio.get_running_loop(), []

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            asked.append((loop.time(), holder, seconds))
            if len(asked) == 3:
                raise OSError("for once")
            return await super().lease(account, holder, seconds)

    store = Store(clock=loop.time)
    provider = provider_of(Application(lambda: asyncio.sleep(19, "code")), store=store, lease_seconds=6.0)
    await provider.acquire(FakeSession(token_response()))
    assert [round(moment) for moment, _, _ in asked] == list(range(0, 20, 2))
    assert len({holder for _, holder, _ in asked}) == 1
    assert {seconds for _, _, seconds in asked} == {6.0}
    assert await store.lease("default", "next", 1.0) == "granted"


@virtual
async def test_a_lease_that_hangs() -> None:
    """A step at the store that has begun is awaited for the length of a lease, not longer."""
    loop, steps = asyncio.get_running_loop(), 0

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            nonlocal steps
            steps += 1
            if steps > 1:
                await asyncio.Event().wait()
            return await super().lease(account, holder, seconds)

    provider = provider_of(Application(lambda: asyncio.sleep(3, "code")), store=Store(clock=loop.time), lease_seconds=6.0)
    assert (await provider.acquire(FakeSession(token_response()))).token == "t1"
    assert loop.time() == pytest.approx(9.0, abs=0.01)
    assert steps == 2


@virtual
async def test_a_step_at_the_store_is_awaited_before_the_lease_is_released() -> None:
    """An extension that has begun when the renewal ends is over before the lease is given back."""
    steps: list[str] = []

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            if steps:
                await asyncio.sleep(1.5)
            steps.append("lease")
            return "granted"

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            steps.append("release")

    provider = provider_of(Application(lambda: asyncio.sleep(3, "code")), store=Store(), lease_seconds=6.0)
    await provider.acquire(FakeSession(token_response()))
    assert steps == ["lease", "lease", "release"]


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


@virtual
async def test_a_task_that_outlives_its_renewal() -> None:
    """What a callback leaves running is within the renewal only as long as that lasts."""
    tasks: list[asyncio.Task[Credentials]] = []
    given: list[Credentials] = []

    async def later() -> Credentials:
        await asyncio.sleep(5)
        return await provider.renew(given[0], session)

    async def leaving() -> str:
        tasks.append(asyncio.create_task(later()))
        return "code"

    provider = provider_of(Application(leaving))
    session = FakeSession(token_response("t1"), token_response("t2"))
    given.append(await provider.acquire(session))
    provider.note_accepted(given[0])
    assert (await tasks[0]).token == "t2"
