"""The session's walk through one call: signing, statuses, renewal, repeats, history, observers, limiter, views."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import re
import time
from typing import Any

import aiohttp
import pytest
import tenacity
from tenacity import AsyncRetrying, retry_if_exception, retry_if_result, stop_after_attempt, wait_fixed, wait_none
from virtual_loop import Clock

import boardclient.retry
from boardclient import (
    ApiError,
    AsyncSession,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    CredentialError,
    Credentials,
    DeadlineError,
    Effect,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    SessionClosedError,
    StaticCredentials,
    TransportError,
)
from boardclient._pipeline._in_flight import CallContext
from boardclient.events import AnswerReceived, CredentialsRenewed, RequestSent, RetryScheduled
from boardclient.testing import faults

BASE = "https://boards.example"
ANY = re.compile(r"https://boards\.example/1/.*")
KEY, TOKEN = "key-k3y", "token-t0ken"
BOARD = {"id": "b1", "name": "plans"}


class Provider:
    """A provider that returns `held`, and on renewal the next of `renewals`."""

    def __init__(self, held: Any, *renewals: Any) -> None:
        self.held, self.renewals, self.rejected = held, list(renewals), []

    async def acquire(self, exchange: Any) -> Credentials:
        """Return the credentials, or raise the error in their place."""
        if isinstance(self.held, BaseException):
            raise self.held
        return self.held

    async def renew(self, rejected: Credentials, exchange: Any) -> Credentials:
        """Take the next of the renewals."""
        self.rejected.append(rejected)
        self.held = self.renewals.pop(0)
        return await self.acquire(exchange)


def session_of(credentials: Any = None, **options: Any) -> AsyncSession:
    return AsyncSession(StaticCredentials(TOKEN, KEY) if credentials is None else credentials, BASE, **options)


def requests(wire: Any) -> list[tuple[str, Any, Any]]:
    return [(method, url, call.kwargs) for (method, url), calls in wire.requests.items() for call in calls]


def body_of(wire: Any, index: int = 0) -> Any:
    return json.loads(requests(wire)[index][2]["data"])


def counted(wire: Any) -> int:
    return len(requests(wire))


# --- signing and headers


async def test_key_and_token_travel_in_the_body(wire: Any) -> None:
    """Key and token together are in the JSON body where there is one, and nothing of them in the address."""
    wire.post(ANY, payload=BOARD)
    async with session_of() as session:
        await session.boards.create("plans", default_lists=False)
    ((_, url, _),) = requests(wire)
    assert not url.query_string
    assert body_of(wire) == {"key": KEY, "token": TOKEN, "name": "plans", "defaultLists": False}


async def test_without_a_body_they_travel_in_the_query(wire: Any) -> None:
    """A request without a body is signed in its query string, after its own parameters."""
    wire.get(ANY, payload={})
    async with session_of() as session:
        await session.request("GET", "/1/search", params={"query": "a b", "closed": False})
    ((_, url, kwargs),) = requests(wire)
    assert dict(url.query) == {"query": "a b", "closed": "false", "key": KEY, "token": TOKEN}
    assert kwargs["data"] is None


async def test_credentials_in_query(wire: Any) -> None:
    """With credentials_in="query" the body holds no credential."""
    wire.post(ANY, payload=BOARD)
    async with session_of(credentials_in="query") as session:
        await session.boards.create("plans")
    ((_, url, _),) = requests(wire)
    assert dict(url.query) == {"key": KEY, "token": TOKEN}
    assert body_of(wire) == {"name": "plans"}


@pytest.mark.parametrize("place", ["body", "query"])
async def test_a_token_alone_is_the_query_parameter(wire: Any, place: Any) -> None:
    """A token without a key is always the query parameter `token`, also where there is a body."""
    wire.post(ANY, payload=BOARD)
    async with session_of(StaticCredentials(TOKEN), credentials_in=place) as session:
        await session.boards.create("plans")
    ((_, url, _),) = requests(wire)
    assert dict(url.query) == {"token": TOKEN}
    assert body_of(wire) == {"name": "plans"}


@pytest.mark.parametrize(("key", "query"), [(KEY, {"key": KEY, "token": TOKEN}), (None, {"token": TOKEN})])
async def test_members_me_sends_what_the_credentials_hold(wire: Any, key: str | None, query: dict[str, str]) -> None:
    """members.me() sends key and token, or the token alone."""
    wire.get(ANY, payload={"id": "m1"})
    async with session_of(StaticCredentials(TOKEN, key)) as session:
        assert (await session.members.me()).id == "m1"
    assert dict(requests(wire)[0][1].query) == query


async def test_headers_go_with_every_request(wire: Any) -> None:
    """Own headers are sent with every request, and the user agent is appended to the package's."""
    wire.post(ANY, payload=BOARD)
    wire.get(ANY, payload={})
    async with session_of(headers={"X-Team": "blue"}, user_agent="planner/2") as session:
        await session.boards.create("plans")
        await session.members.me()
    first, second = (kwargs["headers"] for _, _, kwargs in requests(wire))
    assert first["X-Team"] == second["X-Team"] == "blue"
    assert re.fullmatch(r"boardclient/\S+ planner/2", first["User-Agent"])
    assert (first["Content-Type"], second.get("Content-Type")) == ("application/json", None)


# --- statuses


@pytest.mark.parametrize(
    ("status", "kind", "effect"),
    [
        (301, ApiError, Effect.REJECTED),
        (400, BadRequestError, Effect.REJECTED),
        (401, AuthenticationError, Effect.REJECTED),
        (403, PermissionDeniedError, Effect.REJECTED),
        (404, NotFoundError, Effect.REJECTED),
        (408, ApiError, Effect.UNKNOWN),
        (418, ApiError, Effect.REJECTED),
        (429, RateLimitError, Effect.REJECTED),
        (500, ServerError, Effect.UNKNOWN),
        (503, ServerError, Effect.UNKNOWN),
    ],
)
async def test_each_status_is_its_error(wire: Any, status: int, kind: type[ApiError], effect: Effect) -> None:
    """Each status that is no success raises its error, with the effect, the request and a history of one attempt."""
    wire.post(ANY, status=status, body=b"no", headers={"X-Id": "7"})
    async with session_of(retry=None) as session:
        with pytest.raises(kind) as caught:
            await session.boards.create("plans")
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.effect, error.request, error.body) == (status, effect, "POST /1/boards", b"no")
    assert error.headers["x-id"] == "7"
    (attempt,) = error.attempts
    assert (attempt.number, attempt.status, attempt.effect, attempt.pause_seconds) == (1, status, effect, None)
    assert counted(wire) == 1


async def test_credentials_are_taken_out_of_an_error(wire: Any) -> None:
    """Whatever equals a credential of the call, the rejected ones included, is *** in body, headers and pickle."""
    wire.get(ANY, status=401)
    echo = f"{TOKEN} and {KEY} and new-t0ken"
    wire.get(ANY, status=403, body=echo, headers={"X-Echo": echo})
    async with session_of(Provider(Credentials(TOKEN, KEY), Credentials("new-t0ken", KEY))) as session:
        with pytest.raises(PermissionDeniedError) as caught:
            await session.members.me()
    assert caught.value.body == b"*** and *** and ***"
    assert caught.value.headers["X-Echo"] == "*** and *** and ***"
    for secret in (TOKEN, KEY, "new-t0ken"):
        assert secret.encode() not in pickle.dumps(caught.value)


async def test_errors_survive_pickle_and_copy(wire: Any, policy: Any) -> None:
    """An error that a session raised keeps class, effect and history through pickle and copy."""
    wire.get(ANY, status=503, repeat=True)
    async with session_of(retry=policy) as session:
        with pytest.raises(ServerError) as caught:
            await session.members.me()
    for clone in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert (type(clone), clone.effect, clone.attempts) == (ServerError, Effect.UNKNOWN, caught.value.attempts)


async def test_a_success_that_cannot_be_used_is_done(wire: Any) -> None:
    """A success whose body is not what is documented is a DecodeError whose effect is DONE, and is not repeated."""
    wire.post(ANY, payload=[1])
    async with session_of() as session:
        with pytest.raises(BoardClientError) as caught:
            await session.boards.create("plans")
    assert (type(caught.value).__name__, caught.value.effect, counted(wire)) == ("DecodeError", Effect.DONE, 1)


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
        if "boardclient" in traceback.tb_frame.f_code.co_filename and "tests" not in traceback.tb_frame.f_code.co_filename:
            assert TOKEN not in repr({**traceback.tb_frame.f_locals, "self": None})
        traceback = traceback.tb_next


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


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("failure", [500, "drop", 429, "refused"])
async def test_the_default_repeats_only_what_does_no_harm(wire: Any, policy: Any, pauses: Any, verb: str, failure: Any) -> None:
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
async def test_repeatable_says_otherwise(wire: Any, policy: Any, verb: str, repeatable: bool, attempts: int) -> None:
    """repeatable= overrules what the method says about a second time."""
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


async def test_retry_none_is_one_attempt(wire: Any) -> None:
    """With retry=None there is one attempt, whatever the failure."""
    wire.get(ANY, status=429, repeat=True)
    async with session_of(retry=None) as session:
        with pytest.raises(RateLimitError):
            await session.members.me()
    assert counted(wire) == 1


async def test_a_disabled_policy_is_one_attempt(wire: Any) -> None:
    """A policy of tenacity's that is not enabled makes one attempt."""
    wire.get(ANY, status=429, repeat=True)
    async with session_of(retry=AsyncRetrying(enabled=False, stop=stop_after_attempt(3))) as session:
        with pytest.raises(RateLimitError):
            await session.members.me()
    assert counted(wire) == 1


async def test_a_success_does_not_enter_tenacity(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that succeeds at once never touches tenacity."""
    wire.get(ANY, payload={})
    entered: list[object] = []
    monkeypatch.setattr(boardclient.retry.Policy, "drive", lambda *a: entered.append(a))
    async with session_of() as session:
        await session.members.me()
    assert entered == []


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


async def test_equal_credentials_are_final(wire: Any) -> None:
    """A renewal that gives equal credentials means that the 401 is final, as with static ones."""
    wire.get(ANY, status=401, repeat=True)
    async with session_of() as session:
        with pytest.raises(AuthenticationError):
            await session.members.me()
    assert counted(wire) == 1


async def test_what_a_provider_raises_is_the_cause(wire: Any) -> None:
    """What acquire raises is the cause of a CredentialError, and nothing was sent."""
    raised = ValueError("vault is shut")
    async with session_of(Provider(raised)) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert (caught.value.__cause__, caught.value.effect, counted(wire)) == (raised, Effect.NOT_SENT, 0)


async def test_what_a_renewal_raises_is_the_cause(wire: Any) -> None:
    """What renew raises is the cause of a CredentialError whose effect is that of the refused request."""
    wire.get(ANY, status=401)
    raised = ValueError("vault is shut")
    async with session_of(Provider(Credentials(TOKEN), raised)) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert (caught.value.__cause__, caught.value.effect) == (raised, Effect.REJECTED)


async def test_a_credential_error_of_the_provider_stays_itself(wire: Any) -> None:
    """A CredentialError that the provider raises is not wrapped in another."""
    raised = CredentialError("ask again tomorrow")
    async with session_of(Provider(raised)) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert caught.value is raised


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


async def test_a_provider_that_turns_the_deadline_into_an_error_of_its_own(loop_clock: Clock) -> None:
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


# --- the token exchange


async def test_a_form_is_posted_on_the_pool(wire: Any) -> None:
    """post_form sends a form once and returns the response, whatever its status."""
    wire.post("https://auth.example/token", status=400, body=b"no")
    async with session_of() as session:
        answer = await session._core.post_form("https://auth.example/token", {"code": "a b&c", "client_id": "i"})
    ((_, _, kwargs),) = requests(wire)
    assert (answer.status, answer.body) == (400, b"no")
    assert kwargs["data"] == b"code=a+b%26c&client_id=i"
    assert kwargs["headers"]["Content-Type"] == "application/x-www-form-urlencoded"


async def test_a_form_without_an_answer(wire: Any) -> None:
    """A form that met no answer is a TransportError in whose frames no field is left."""
    wire.post("https://auth.example/token", exception=aiohttp.ServerDisconnectedError())
    async with session_of() as session:
        with pytest.raises(TransportError) as caught:
            await session._core.post_form("https://auth.example/token", {"code": "s3cret-code"})
    assert caught.value.effect is Effect.UNKNOWN
    traceback = caught.value.__traceback__
    assert traceback is not None
    assert traceback.tb_next is not None
    assert "s3cret-code" not in repr(traceback.tb_next.tb_frame.f_locals)


async def test_a_form_never_goes_over_plain_http() -> None:
    """The session's rules about plain http apply to the token exchange."""
    async with session_of() as session:
        with pytest.raises(ValueError, match="plain http"):
            await session._core.post_form("http://auth.example/token", {})


# --- observers and limiter


async def test_observers_see_the_call(wire: Any, policy: Any) -> None:
    """Observers receive requests, responses and pauses in order, without secrets."""
    wire.get(ANY, status=503)
    wire.get(ANY, payload={})
    events: list[Any] = []
    async with session_of(retry=policy, observers=[events.append]) as session:
        await session.members.me()
    assert [type(event) for event in events] == [RequestSent, AnswerReceived, RetryScheduled, RequestSent, AnswerReceived]
    assert {(event.operation, event.method, event.path) for event in events} == {("members.me", "GET", "/1/members/me")}
    assert [event.attempt for event in events] == [1, 1, 1, 2, 2]
    assert [(event.status, event.effect) for event in events if isinstance(event, AnswerReceived)] == [
        (503, Effect.UNKNOWN),
        (200, Effect.DONE),
    ]
    assert events[2].pause_seconds == 0.05
    assert events[4].why == "success"
    assert TOKEN not in repr(events)


async def test_an_observer_that_raises_does_no_harm(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What an observer raises is logged, and neither the call nor the other observers notice."""
    wire.get(ANY, payload={})
    events: list[object] = []

    def broken(event: object) -> None:
        raise ValueError("broken observer")

    with caplog.at_level(logging.ERROR, "boardclient"):
        async with session_of(observers=[broken, events.append]) as session:
            await session.members.me()
    assert (len(events), len(caplog.records)) == (2, 2)


class Limiter:
    """A limiter that counts how often it was entered and left, and keeps the reports."""

    def __init__(self) -> None:
        self.entered = self.left = 0
        self.reports: list[tuple[int | None, float | None]] = []

    async def __aenter__(self) -> None:
        self.entered += 1

    async def __aexit__(self, *error: object) -> None:
        self.left += 1

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Take note of a response."""
        assert seconds >= 0
        self.reports.append((status, retry_after))


async def test_the_limiter_is_entered_around_each_attempt(wire: Any, policy: Any) -> None:
    """The limiter is entered and left for each attempt, not for pauses, and receives every result."""
    wire.get(ANY, status=429, headers={"Retry-After": "3"})
    wire.get(ANY, exception=aiohttp.ServerDisconnectedError())
    wire.get(ANY, payload={})
    limiter = Limiter()
    async with session_of(retry=policy, limiter=limiter) as session:
        await session.members.me()
    assert (limiter.entered, limiter.left) == (3, 3)
    assert limiter.reports == [(429, 3.0), (None, None), (200, None)]


async def test_a_limiter_without_report(wire: Any) -> None:
    """Any asynchronous context manager is a limiter."""
    wire.get(ANY, payload={})
    async with session_of(limiter=asyncio.Semaphore(1)) as session:
        await session.members.me()


# --- views


async def test_a_view_for_other_credentials(wire: Any) -> None:
    """with_credentials signs with others on the same pool; closing the view closes nothing."""
    wire.get(ANY, payload={}, repeat=True)
    async with session_of() as session:
        async with session.with_credentials(StaticCredentials("other-t")) as view:
            await view.members.me()
        assert "view" in repr(view)
        await view.aclose()
        await session.members.me()
        assert view._core is session._core
    assert [dict(url.query)["token"] for _, url, _ in requests(wire)] == ["other-t", TOKEN]
    with pytest.raises(SessionClosedError):
        await view.members.me()


async def test_a_view_with_other_options(wire: Any, policy: Any) -> None:
    """with_options changes the given options, including those given as None, and keeps the others."""
    wire.get(ANY, status=503, repeat=True)
    limiter = Limiter()
    async with session_of(retry=policy, limiter=limiter, timeout=5) as session:
        view = session.with_options(retry=None)
        with pytest.raises(ServerError):
            await view.members.me()
        assert (counted(wire), limiter.entered, view._pipeline.timeout) == (1, 1, 5)
        free = session.with_options(timeout=None, limiter=None)
        with pytest.raises(ServerError):
            await free.members.me()
        assert (counted(wire), limiter.entered, free._pipeline.timeout) == (4, 1, None)


# --- construction and life


@pytest.mark.parametrize(
    "url",
    [
        "",
        "boards.example",
        "ftp://boards.example",
        "https://",
        "https://user@boards.example",
        "https://:secret@boards.example",
        "https://boards.example?a=1",
        "https://boards.example#x",
        "https://boards.example/1",
        "https://boards.example/1/",
        "https://boards.example/\n",
        "https://boards.example:port",
        "http://boards.example",
        "http://10.0.0.1",
        None,
    ],
)
def test_a_base_url_that_is_refused(url: Any) -> None:
    """A base URL that is not absolute, carries more than scheme, host and path, ends in /1 or is plain http is a ValueError."""
    with pytest.raises(ValueError, match="base_url"):
        AsyncSession(StaticCredentials(TOKEN), url)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://boards.example/", "https://boards.example"),
        ("https://boards.example/api/", "https://boards.example/api"),
        ("https://boards.example:8443", "https://boards.example:8443"),
        ("http://localhost:80/x", "http://localhost/x"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
async def test_a_base_url_that_is_taken(url: str, kept: str) -> None:
    """Https anywhere and plain http to a loopback host are taken, without the trailing slash."""
    async with AsyncSession(StaticCredentials(TOKEN), url) as session:
        assert session._core.base_url == kept


async def test_plain_http_with_allow_insecure(wire: Any) -> None:
    """allow_insecure lets plain http through to any host."""
    wire.get(re.compile("http://boards.example/1/.*"), payload={})
    async with AsyncSession(StaticCredentials(TOKEN), "http://boards.example", allow_insecure=True) as session:
        await session.members.me()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ssl": False}, ValueError),
        ({"max_connections": 0}, ValueError),
        ({"max_answer_bytes": 0}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"credentials_in": "header"}, ValueError),
        ({"headers": {"X": "a\r\nb"}}, ValueError),
        ({"headers": {"X": 1}}, ValueError),
        ({"headers": {1: "x"}}, ValueError),
        ({"user_agent": "a\nb"}, ValueError),
        ({"retry": "often"}, TypeError),
        ({"credentials": TOKEN}, TypeError),
    ],
)
def test_options_out_of_range(options: dict[str, Any], error: type[Exception]) -> None:
    """An option out of its range is refused at once, by an error without the credential, and without a ResourceWarning."""
    with pytest.raises(error) as caught:
        session_of(**options)
    assert TOKEN not in str(caught.value)


async def test_a_session_is_not_pickled() -> None:
    """A session can't be pickled, and says so."""
    async with session_of() as session:
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(session)


async def test_reprs_hold_no_secret() -> None:
    """The repr shows the state and no credential."""
    session = session_of(proxy="http://user:s3cret@proxy.example", headers={"X": "s3cret"})
    assert "open" in repr(session)
    await session.aclose()
    assert "closed" in repr(session)
    assert TOKEN not in repr(session) + repr(session.__dict__)
    assert "s3cret" not in repr(session) + repr(session._core.settings)
    assert repr(boardclient.session.UNSET) == "…"


async def test_the_clock_of_the_history(wire: Any) -> None:
    """An attempt's start is aware and between the moments before and after the call."""
    wire.get(ANY, status=404)
    before = time.time()
    async with session_of() as session:
        with pytest.raises(NotFoundError) as caught:
            await session.cards.get("c")
    (attempt,) = caught.value.attempts
    assert attempt.started_at.utcoffset() is not None
    assert before - 1 <= attempt.started_at.timestamp() <= time.time() + 1


async def test_a_cancelled_call_keeps_no_credentials(board_service: Any) -> None:
    """The frames of a cancellation hold nothing that the request was signed with."""
    board_service.faults.add(faults.hang(), "members.me")
    async with board_service.session() as session:
        call = asyncio.create_task(session.members.me())
        await board_service.received("members.me")
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await call
    traceback, held = caught.value.__traceback__, []
    while traceback is not None:
        if "tests" not in traceback.tb_frame.f_code.co_filename:
            held += [vars(value) for value in traceback.tb_frame.f_locals.values() if isinstance(value, CallContext)]
        traceback = traceback.tb_next
    assert [context["credentials"] for context in held] == [None]


@pytest.mark.parametrize("proxy", ["http://proxy.example:3128", "proxy.example", "http://\x00"])
async def test_a_proxy_far_away_is_no_way_around_https(proxy: str) -> None:
    """Plain http to this machine does not allow credentials to go unencrypted to a proxy elsewhere."""
    provider, root = StaticCredentials(TOKEN), "http://127.0.0.1:9"
    with pytest.raises(ValueError, match="proxy") as caught:
        AsyncSession(provider, root, proxy=proxy)
    assert proxy not in str(caught.value)
    for options in ({"proxy": proxy, "allow_insecure": True}, {"proxy": "http://user:word@localhost:3128"}):
        await AsyncSession(provider, root, **options).aclose()
    async with AsyncSession(provider, "https://board.example", proxy=proxy) as session:
        with pytest.raises(ValueError, match="proxy"):
            session.exchange.check_url("http://127.0.0.1:9", "auth_url")
