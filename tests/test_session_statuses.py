"""How a session signs requests, and what it makes of statuses."""

from __future__ import annotations

import pickle
import re
from typing import Any

import aiohttp
import pytest
from session_helpers import ANY, BOARD, KEY, TOKEN, Provider, counted, requests, session_of

from boardclient import (
    BoardClientError,
    Credentials,
    Effect,
    PermissionDeniedError,
    StaticCredentials,
    TransportError,
)

# --- signing and headers


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
