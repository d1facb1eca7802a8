"""Credentials of a session's calls: one renewal for each call, and providers that raise."""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
from typing import Any
from urllib.parse import quote

import pytest
from session_helpers import ANY, BOARD, KEY, TOKEN, Provider, body_of, counted, session_of
from virtual_loop import Clock

from boardclient import (
    AuthenticationError,
    CredentialError,
    Credentials,
    DeadlineError,
    Effect,
    InvalidIdentifierError,
    NotFoundError,
    StaticCredentials,
)
from boardclient.events import CredentialsRenewed

# --- credentials


async def test_a_401_is_renewed_once_and_replayed_once(wire: Any) -> None:
    """After a 401 the credentials are renewed and the request is replayed once with the new ones."""
    wire.post(ANY, status=401)
    wire.post(ANY, payload=BOARD)
    old, new = Credentials("old-token", KEY), Credentials("new-token", KEY)
    provider = Provider(old, new)
    events: list[object] = []
    async with session_of(provider, observers=[events.append]) as session:
        assert (await session.boards.create("plans")).id == "b1"
        stats = session.stats()
    assert (stats.calls, stats.attempts, stats.retries, stats.renewals) == (1, 2, 0, 1)
    assert (provider.rejected, counted(wire)) == ([old], 2)
    assert (body_of(wire, 0)["token"], body_of(wire, 1)["token"]) == ("old-token", "new-token")
    assert [event for event in events if isinstance(event, CredentialsRenewed)] == [CredentialsRenewed(operation="boards.create")]


async def test_a_second_401_is_raised(wire: Any) -> None:
    """A 401 to the renewed credentials is raised: no second renewal in a call."""
    wire.get(ANY, status=401, repeat=True)
    provider = Provider(Credentials("one-t"), Credentials("two-t"), Credentials("three-t"))
    async with session_of(provider) as session:
        with pytest.raises(AuthenticationError) as caught:
            await session.members.me()
    assert (len(provider.rejected), counted(wire), len(caught.value.attempts)) == (1, 2, 2)


async def test_credentials_of_earlier_attempts_are_redacted(wire: Any, policy: Any) -> None:
    """What a later response repeats of them is in no error, history or event, whatever has replaced them."""
    old, new = Credentials("old-token", "old-key"), Credentials("new-token", "new-key")
    provider = Provider(old)

    def replace(*_: Any, **__: Any) -> None:
        provider.held = new

    wire.get(ANY, status=503, callback=replace)
    wire.get(ANY, status=404, body=b"old-token of old-key is new-token now", headers={"X-Old": "old-token"})
    events: list[Any] = []
    async with session_of(provider, retry=policy, observers=[events.append]) as session:
        with pytest.raises(NotFoundError) as caught:
            await session.request("GET", "/1/things", params={"of": "old-key"})
    error = caught.value
    assert (error.body, error.headers["X-Old"]) == (b"*** of *** is *** now", "***")
    shown = [str(error), error.attempts, error.as_curl(), events, [getattr(event, "headers", None) for event in events]]
    assert not {"old-token", "old-key", "new-token", "new-key"} & {*re.findall(r"[a-z-]+", str(shown))}


SECRET = "a+secret/of=the~user"
ENCODED = quote(SECRET, safe="")


@pytest.mark.parametrize("provider", [StaticCredentials("other-token", SECRET), Provider(Credentials(SECRET))])
@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.request("GET", f"/1/tokens/{SECRET}"),
        lambda session: session.request("DELETE", f"/1/tokens/{ENCODED}:all", params={"a": "b"}),
        lambda session: session.cards.get(f"t-{ENCODED}"),
        lambda session: session.cards.delete("".join(f"%{ord(letter):02x}" for letter in SECRET)),
    ],
)
async def test_a_path_that_holds_a_credential_is_refused(
    wire: Any, caplog: pytest.LogCaptureFixture, call: Any, provider: Any
) -> None:
    """Nothing is sent, nor waited for, and neither the error nor logs and events show the path."""
    caplog.set_level(logging.DEBUG)
    events: list[object] = []
    async with session_of(provider, observers=[events.append], limiter=asyncio.Semaphore(0)) as session:
        with pytest.raises(InvalidIdentifierError, match="the path holds the key or the token") as caught:
            await call(session)
    error = caught.value
    assert (counted(wire), error.effect, error.attempts, events) == (0, Effect.NOT_SENT, (), [])
    shown = [str(error), repr(error), error.as_curl(), str(pickle.dumps(error)), caplog.text]
    assert not [text for text in shown for form in (SECRET, ENCODED) if form in str(text)]


async def test_a_path_that_holds_a_renewed_credential_is_refused(wire: Any) -> None:
    """A request is not repeated with credentials that its path holds. Texts of a few letters may be in a path by chance."""
    wire.get(ANY, status=401)
    provider = Provider(Credentials("t", "1"), Credentials(SECRET))
    async with session_of(provider) as session:
        with pytest.raises(InvalidIdentifierError):
            await session.request("GET", f"/1/tokens/{ENCODED}")
    assert counted(wire) == 1


async def test_a_call_renews_once_over_all_its_attempts(wire: Any, policy: Any) -> None:
    """A 401 in a later attempt of a call that has renewed is final too."""
    wire.get(ANY, status=401)
    wire.get(ANY, status=503)
    wire.get(ANY, status=401, repeat=True)
    provider = Provider(Credentials("one-t"), Credentials("two-t"), Credentials("three-t"))
    async with session_of(provider, retry=policy) as session:
        with pytest.raises(AuthenticationError):
            await session.members.me()
    assert (len(provider.rejected), counted(wire)) == (1, 3)


async def test_the_own_acquire_of_a_subclass_is_called(wire: Any) -> None:
    """An inherited `current`, which is asked first, would bypass it."""

    class Rotating(StaticCredentials):
        async def acquire(self, exchange: Any) -> Credentials:
            return Credentials("rotated-token", KEY)

    wire.post(ANY, payload=BOARD)
    async with session_of(Rotating("first-token", KEY)) as session:
        await session.boards.create("plans")
    assert body_of(wire, 0)["token"] == "rotated-token"


class Scoped(Credentials):
    """Credentials of an application, without a hash."""

    __hash__ = None  # type: ignore[assignment]  # -- as a class of attrs with a list has none


async def test_credentials_of_a_subclass_need_no_hash(wire: Any) -> None:
    """An application may add a list to its own."""
    wire.get(ANY, status=404)
    async with session_of(Provider(Scoped(TOKEN, KEY))) as session:
        with pytest.raises(NotFoundError):
            await session.cards.get("card-1")


async def test_what_a_renewal_raises_is_the_cause(wire: Any) -> None:
    """What renew raises is the cause of a CredentialError whose effect is that of the refused request."""
    wire.get(ANY, status=401)
    raised = ValueError("vault is shut")
    async with session_of(Provider(Credentials(TOKEN), raised)) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert (caught.value.__cause__, caught.value.effect) == (raised, Effect.REJECTED)


async def test_a_cancellation_of_the_providers_own_is_a_credential_error() -> None:
    """A CancelledError that a provider raises, as from a renewal that it cancelled, does not end a task silently."""
    async with session_of(Provider(asyncio.CancelledError())) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert [attempt.effect for attempt in caught.value.attempts] == [Effect.NOT_SENT]


async def test_a_cancellation_of_the_caller_ends_the_provider() -> None:
    """Cancelling the task of a call that waits for its provider cancels the call."""

    class Waiting(Provider):
        async def acquire(self, exchange: Any) -> Credentials:
            await asyncio.Event().wait()
            raise AssertionError

    async with session_of(Waiting(None)) as session:
        call = asyncio.create_task(session.members.me())
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_passed_deadline_is_a_deadline_error_whatever_the_provider_raises(loop_clock: Clock) -> None:
    """A call whose deadline passed is a DeadlineError whatever the provider makes of it, and leaves no cancellation behind."""

    class Stubborn(Provider):
        async def acquire(self, exchange: Any) -> Credentials:
            try:
                loop_clock.advance(30)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("I was disturbed") from None
            raise AssertionError

    async with session_of(Stubborn(None), timeout=30) as session:
        with pytest.raises(DeadlineError) as caught:
            await session.members.me()
    task = asyncio.current_task()
    assert task is not None
    assert (task.cancelling(), caught.value.effect) == (0, Effect.NOT_SENT)
