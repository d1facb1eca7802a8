"""What a session sends again: by its default policy, and by policies of applications."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
import tenacity
from code_base import package
from session_helpers import ANY, TOKEN, Provider, counted, session_of
from tenacity import AsyncRetrying, retry_if_exception, retry_if_result, stop_after_attempt, wait_fixed, wait_none

import boardclient.retry
from boardclient import (
    AsyncSession,
    BoardClientError,
    CredentialError,
    Effect,
    NotFoundError,
    RateLimitError,
    ServerError,
    TransportError,
)

# --- repeats


def _get(session: AsyncSession) -> Any:
    return session.request("GET", "/1/x")


def _put(session: AsyncSession) -> Any:
    return session.request("PUT", "/1/x", json={"a": 1})


def _delete(session: AsyncSession) -> Any:
    return session.request("DELETE", "/1/x")


def _post(session: AsyncSession) -> Any:
    return session.request("POST", "/1/x", json={"a": 1})


VERBS = {"GET": _get, "PUT": _put, "DELETE": _delete, "POST": _post}


async def test_a_ping_is_sent_once(wire: Any, policy: Any) -> None:
    """A ping measures one request, whatever the policy of the session repeats."""
    wire.get(ANY, status=503)
    wire.get(ANY, payload={"id": "m1"})
    async with session_of(retry=policy) as session:
        with pytest.raises(ServerError):
            await session.ping()
        assert counted(wire) == 1
        assert await session.ping() > 0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("failure", [500, "drop", 429, "refused"])
async def test_the_default_repeats_only_what_is_safe_to_repeat(
    wire: Any, policy: Any, pauses: Any, verb: str, failure: Any
) -> None:
    """NOT_SENT and 429 are repeated for every method, 5xx and an unknown effect for GET, PUT and DELETE only."""
    refused = aiohttp.ClientConnectorError(None, OSError(111, "refused"))  # type: ignore[arg-type]  # -- its key is not read
    kinds = {"drop": {"exception": aiohttp.ServerDisconnectedError()}, "refused": {"exception": refused}}
    wire.add(ANY, method=verb, **kinds.get(failure, {"status": failure}))
    wire.add(ANY, method=verb, payload={})
    async with session_of(retry=policy) as session:
        if verb == "POST" and failure in {500, "drop"}:
            with pytest.raises(BoardClientError) as caught:
                await VERBS[verb](session)
            assert (caught.value.effect, counted(wire), pauses) == (Effect.UNKNOWN, 1, [])
        else:
            assert (await VERBS[verb](session)).status == 200
            assert (counted(wire), pauses) == (2, [1.0 if failure == 429 else 0.05])


@pytest.mark.parametrize(("verb", "repeatable", "attempts"), [("POST", True, 3), ("GET", False, 1)])
async def test_repeatable_overrules_the_method(wire: Any, policy: Any, verb: str, repeatable: bool, attempts: int) -> None:
    """`repeatable=` decides whether a request may be repeated, whatever its method."""
    wire.add(ANY, method=verb, status=502, repeat=True)
    async with session_of(retry=policy) as session:
        with pytest.raises(ServerError) as caught:
            await session.request(verb, "/1/x", repeatable=repeatable)
    assert len(caught.value.attempts) == counted(wire) == attempts


async def test_retry_after_is_waited(wire: Any, policy: Any, pauses: Any) -> None:
    """The pause is what Retry-After asks for, and is in the history of the call."""
    wire.post(ANY, status=429, headers={"Retry-After": "7"}, repeat=True)
    async with session_of(retry=policy) as session:
        with pytest.raises(RateLimitError) as caught:
            await session.boards.create("plans")
    assert pauses == [7.0, 7.0]
    assert [attempt.pause_seconds for attempt in caught.value.attempts] == [7.0, 7.0, None]
    assert caught.value.retry_after == 7.0


async def test_a_pause_past_the_deadline_is_not_begun(wire: Any, policy: Any, pauses: Any) -> None:
    """A pause that would pass the deadline is not begun: the error is raised at once."""
    wire.post(ANY, status=429, headers={"Retry-After": "15"}, repeat=True)
    async with session_of(retry=policy, timeout=10) as session:
        with pytest.raises(RateLimitError) as caught:
            await session.boards.create("plans")
    assert (pauses, counted(wire), len(caught.value.attempts)) == ([], 1, 1)
    assert caught.value.attempts[0].pause_seconds is None


@pytest.mark.parametrize(
    ("pause", "timeout", "is_begun"),
    [(5, None, True), (math.inf, None, True), (9, 10, True), (10.1, 10, False), (math.inf, 10, False), (math.nan, 10, False)],
)
async def test_a_pause_must_end_before_the_deadline(
    wire: Any, pauses: Any, pause: float, timeout: float | None, is_begun: bool
) -> None:
    """Whatever a policy's wait returns, a pause is begun only if it ends before the deadline; nan never is."""
    wire.get(ANY, status=503)
    wire.get(ANY, payload={})
    policy = AsyncRetrying(
        retry=boardclient.retry.when_safe,
        wait=lambda state: pause,  # type: ignore[arg-type]  # -- tenacity takes functions too
        sleep=lambda seconds: _noted(pauses, seconds),
        stop=stop_after_attempt(2),
    )
    async with session_of(retry=policy, timeout=timeout) as session:
        if is_begun:
            await session.members.me()
        else:
            words = "returned nan, which is no pause" if math.isnan(pause) else "the timeout of 10 s leaves"
            with pytest.raises(ServerError, match=words):
                await session.members.me()
    assert pauses == ([pause] if is_begun else [])


CALLS: list[Callable[[AsyncSession], Any]] = [
    lambda session: session.boards.create("a"),
    lambda session: session.boards.lists("b1"),
    lambda session: session.boards.cards("b1"),
    lambda session: session.lists.create("a", board_id="b1"),
    lambda session: session.lists.archive("l1"),
    lambda session: session.cards.create("a", list_id="l1", due=datetime(2027, 1, 1, tzinfo=UTC)),
    lambda session: session.cards.get("c1"),
    lambda session: session.cards.move("c1", list_id="l1"),
    lambda session: session.cards.add_label("c1", "label"),
    lambda session: session.cards.delete("c1"),
    lambda session: session.members.me(),
    lambda session: session.request("GET", "/1/x"),
]


@pytest.mark.parametrize("value", [None, "a text", {"a": 1}, ValueError("as a value"), ServerError("as a value", 503)], ids=repr)
async def test_what_a_policys_callback_returns_is_the_value_of_every_call(wire: Any, value: object) -> None:
    """`retry_error_callback` decides the value of a call that failed, an exception too, as with tenacity itself."""
    for method in ("GET", "POST", "PUT", "DELETE"):
        wire.add(ANY, method=method, status=503, repeat=True)
    policy = AsyncRetrying(
        retry=retry_if_exception(lambda _: True), stop=stop_after_attempt(2), retry_error_callback=lambda state: value
    )
    async with session_of(retry=policy) as session:
        for call in CALLS:
            assert await call(session) is value
    assert counted(wire) == 2 * len(CALLS)


async def test_the_effect_is_the_worst_of_the_attempts(wire: Any, policy: Any) -> None:
    """An attempt that was never sent does not make an earlier unknown effect milder."""
    wire.get(ANY, status=500)
    wire.get(ANY, status=404)
    async with session_of(retry=policy) as session:
        with pytest.raises(NotFoundError) as caught:
            await session.cards.get("c1")
    assert caught.value.effect is Effect.UNKNOWN
    assert [attempt.effect for attempt in caught.value.attempts] == [Effect.UNKNOWN, Effect.REJECTED]


@pytest.mark.parametrize("failure", [{"status": 500}, {"exception": aiohttp.ServerDisconnectedError()}])
async def test_delete_then_404_is_done(wire: Any, policy: Any, failure: Any) -> None:
    """A DELETE that is repeated after an unknown effect and then meets 404 counts as done."""
    wire.delete(ANY, **failure)
    wire.delete(ANY, status=404)
    async with session_of(retry=policy) as session:
        assert await session.cards.delete("c1") is None
    assert counted(wire) == 2


async def test_delete_then_404_without_an_unknown_effect_is_not_found(wire: Any, policy: Any) -> None:
    """A DELETE whose first attempt was refused for certain and then meets 404 is NotFoundError, as is a first 404."""
    wire.delete(ANY, status=429)
    wire.delete(ANY, status=404, repeat=True)
    async with session_of(retry=policy) as session:
        for _ in range(2):
            with pytest.raises(NotFoundError):
                await session.cards.delete("c1")


@pytest.mark.parametrize("retrying", [None, AsyncRetrying(enabled=False, stop=stop_after_attempt(3))])
async def test_without_a_policy_there_is_one_attempt(wire: Any, retrying: AsyncRetrying | None) -> None:
    """With retry=None, and with a policy of tenacity's that is not enabled, there is one attempt, whatever the failure."""
    wire.get(ANY, status=429, repeat=True)
    async with session_of(retry=retrying) as session:
        with pytest.raises(RateLimitError):
            await session.members.me()
    assert counted(wire) == 1


async def test_a_policy_may_repeat_a_success(wire: Any) -> None:
    """A policy that looks at results repeats a success it does not like, and gives up with an error of the package."""
    wire.get(ANY, payload={"state": "pending"})
    wire.get(ANY, payload={"state": "ready"})
    wire.get(ANY, payload={"state": "pending"}, repeat=True)
    pending = retry_if_result(lambda answer: answer.json() == {"state": "pending"})
    events: list[object] = []
    async with session_of(retry=AsyncRetrying(retry=pending, wait=wait_none(), stop=stop_after_attempt(3))) as session:
        assert (await session.request("GET", "/1/x")).json() == {"state": "ready"}
        with pytest.raises(BoardClientError) as caught:
            await session.request("GET", "/1/x")
        assert (caught.value.effect, len(caught.value.attempts), events) == (Effect.DONE, 3, [])


async def test_a_success_whose_repeat_would_pass_the_deadline_gives_up(wire: Any) -> None:
    """Where a policy wants to repeat a success after a pause past the deadline, the call ends with an error that is DONE."""
    wire.get(ANY, payload={})
    retrying = AsyncRetrying(retry=retry_if_result(lambda _: True), wait=wait_fixed(60), stop=stop_after_attempt(3))
    async with session_of(retry=retrying, timeout=5) as session:
        with pytest.raises(BoardClientError, match="pass the deadline") as caught:
            await session.request("GET", "/1/x")
    assert (caught.value.effect, counted(wire)) == (Effect.DONE, 1)


async def test_a_policy_may_repeat_a_credential_error(wire: Any, pauses: Any) -> None:
    """Tenacity's own defaults repeat every error, one of the provider included."""
    provider = Provider(OSError("vault is shut"))
    retrying = AsyncRetrying(stop=stop_after_attempt(3), sleep=lambda seconds: _noted(pauses, seconds), wait=wait_fixed(2))
    async with session_of(provider, retry=retrying) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert (len(pauses), counted(wire)) == (2, 0)
    assert isinstance(caught.value.__cause__, OSError)
    assert [attempt.pause_seconds for attempt in caught.value.attempts] == [2.0, 2.0, None]
    assert caught.value.effect is Effect.NOT_SENT


async def _noted(pauses: list[float], seconds: float) -> None:
    pauses.append(seconds)


async def test_a_policy_sees_the_first_attempt(wire: Any) -> None:
    """A policy with `before` is entered before the first attempt."""
    wire.get(ANY, payload={})
    seen: list[int] = []
    retrying = AsyncRetrying(
        retry=boardclient.retry.when_safe, before=lambda state: seen.append(state.attempt_number), stop=stop_after_attempt(2)
    )
    async with session_of(retry=retrying) as session:
        await session.members.me()
    assert seen == [1]


async def test_a_policy_without_reraise_raises_our_error(wire: Any) -> None:
    """Tenacity's RetryError never escapes."""
    wire.get(ANY, status=500, repeat=True)
    retrying = AsyncRetrying(retry=retry_if_exception(lambda _: True), wait=wait_none(), stop=stop_after_attempt(2))
    async with session_of(retry=retrying) as session:
        with pytest.raises(ServerError) as caught:
            await session.members.me()
    assert not isinstance(caught.value.__context__, tenacity.RetryError)
    assert len(caught.value.attempts) == 2


async def test_no_foreign_exception_in_the_chain(wire: Any, policy: Any) -> None:
    """What aiohttp and tenacity raised is neither cause nor context, and no frame of the traceback holds a credential."""
    wire.get(ANY, exception=aiohttp.ServerDisconnectedError(), repeat=True)
    async with session_of(retry=policy) as session:
        with pytest.raises(TransportError) as caught:
            await session.members.me()
    error = caught.value
    assert (error.__cause__, error.__context__, error.phase, len(error.attempts)) == (None, None, "receive", 3)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(str(package())):
            assert TOKEN not in repr({**traceback.tb_frame.f_locals, "self": None})
        traceback = traceback.tb_next
