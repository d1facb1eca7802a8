"""Callbacks that use sessions, where secrets go, accounts, loops and bulk runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from renewal_helpers import Consent, exchanges, is_sent, refusals
from waiting import SECONDS

from boardclient import AuthorizationRequest, CardDraft, CredentialError, LeaseRecord, MemoryTokenStore, OAuthCredentials
from boardclient.events import RequestSent
from boardclient.testing import BoardService, assert_no_secrets, faults

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
    async with session, second, third, asyncio.timeout(60):
        await session.members.me()
        await third.members.me()
    (error,) = inner
    assert "authorize waits for itself" in str(error)
    assert is_sent(service) == (2, 1)


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
        assert [call.path for call in (*boards.calls, *auth.calls) if call.body is not None and call.query] == []
        assert_no_secrets(boards.calls, secrets=[auth.client_secret, auth.client_id, auth.redirect_uri, *consent.codes])
        assert_no_secrets(auth.calls, secrets=[auth.key, *auth.rules.tokens])


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


class WatchedStore(MemoryTokenStore):
    """A store with an event that is set when a lease was refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Event()

    async def lease(self, account: str, holder: str, seconds: float, **at: Any) -> LeaseRecord:
        leased = await super().lease(account, holder, seconds, **at)
        if leased.state == "held":
            self.refused.set()
        return leased


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
                await asyncio.to_thread(starts.wait, SECONDS)
                outcomes.extend(await asyncio.gather(*(session.members.me() for _ in range(20)), return_exceptions=True))
                await asyncio.to_thread(starts.wait, SECONDS)
                service.rules.expire_tokens()
                store.refused.clear()

    threads = [threading.Thread(target=asyncio.run, args=(use(),), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
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


async def test_calls_that_wait_for_a_limiter_are_signed_with_the_new_token(service: BoardService, consent: Consent) -> None:
    """Requests that waited behind the one that got the 401 are signed with the new token."""
    async with service.session(service.oauth_credentials(authorize=consent), limiter=asyncio.Semaphore(1)) as session:
        await session.members.me()
        service.rules.expire_tokens()
        await asyncio.gather(*(session.members.me() for _ in range(50)))
    assert (len(consent.asked), refusals(service)) == (2, 1)
