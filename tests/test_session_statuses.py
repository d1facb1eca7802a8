"""How a session signs requests, and what it makes of statuses."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import aiohttp
import pytest
from session_helpers import ANY, BOARD, KEY, TOKEN, Provider, body_of, counted, requests, session_of

from boardclient import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    BoardClientError,
    Credentials,
    Effect,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    StaticCredentials,
    TransportError,
)

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
    wire.get(ANY, status=403, body=echo, headers={"X-Echo": echo, f"X-{TOKEN}": "1"})
    async with session_of(Provider(Credentials(TOKEN, KEY), Credentials("new-t0ken", KEY))) as session:
        with pytest.raises(PermissionDeniedError) as caught:
            await session.members.me()
    assert caught.value.body == b"*** and *** and ***"
    assert caught.value.headers["X-Echo"] == "*** and *** and ***"
    assert caught.value.headers["X-***"] == "1"
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
