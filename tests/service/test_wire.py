"""One attempt is one request: what goes over real connections, when they fail, and how much of a response is taken."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import pickle
import tracemalloc
import zlib
from typing import Any

import aiohttp
import pytest
from virtual_loop import Clock

from boardclient import ApiError, DeadlineError, Effect, RateLimitError, StaticCredentials, TransportError, retry
from boardclient.testing import BoardService, faults
from boardclient.testing.faults import Stage


async def test_a_raw_response_can_be_pickled_and_copied(service: BoardService) -> None:
    """A free request's response, and the one to a form, can be pickled and copied, its headers without regard to case."""
    async with service.session() as session:
        answers = [
            await session.request("GET", "/1/members/me"),
            await session._parts.post_form(service.base_url + "/1/OAuthGetAccessToken", {"code": "none"}),
        ]
    for answer in answers:
        for clone in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
            assert clone == answer
            assert clone.headers["CONTENT-TYPE"] == answer.headers["content-type"]


# --- one attempt is one request


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(service: BoardService, code: int) -> None:
    """A redirect is an ApiError, and makes no second request. 307 and 308 alone say that nothing was done."""
    service.faults.add(service.faults.redirect(service.base_url + "/1/members/me", code))
    async with service.session() as session:
        for call in (session.boards.create("plans"), session.members.me()):
            with pytest.raises(ApiError) as caught:
                await call
            assert (caught.value.status, caught.value.effect) == (code, Effect.UNKNOWN if code < 307 else Effect.REJECTED)
    assert len(service.calls) == 2


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_no_repeat_is_hidden_below(service: BoardService, method: str) -> None:
    """On a broken kept-alive connection one attempt is one request, where aiohttp by itself makes two."""
    service.faults.add(service.faults.drop(), "unknown", call=[2, 4])
    async with aiohttp.ClientSession() as plain:
        for _ in range(2):
            async with plain.request(method, service.base_url + "/1/x") as response:
                await response.read()
    assert [call.number for call in service.calls] == [1, 2, 3]
    service.calls.clear()
    service.faults.clear()
    service.faults.add(service.faults.drop(), "unknown", call=5)
    async with service.session(retry=None) as session:
        with pytest.raises(ApiError):
            await session.request(method, "/1/x")
        with pytest.raises(TransportError) as caught:
            await session.request(method, "/1/x")
    assert (caught.value.phase, caught.value.effect, len(caught.value.attempts)) == ("receive", Effect.UNKNOWN, 1)
    assert [call.number for call in service.calls] == [4, 5]
    assert len({call.connection for call in service.calls}) == 1


async def test_an_idle_connection_is_not_reused(service: BoardService) -> None:
    """A connection that was idle for longer than 4 s is not used again, a fresher one is."""
    async with service.session() as session:
        await session.members.me()
        connector = session._parts.transport._connector

        def age(seconds: float) -> None:
            for idle in connector._conns.values():
                for index, (protocol, since) in enumerate(idle):
                    idle[index] = (protocol, since - seconds)

        age(3.0)
        await session.members.me()
        age(4.1)
        await session.members.me()
    ports = [call.connection for call in service.calls]
    assert ports[0] == ports[1]
    assert ports[1] != ports[2]


# --- how much of a response is taken


def _bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    block = bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(size // 2**20)) + packer.flush()


@pytest.mark.full
async def test_a_gzip_bomb_is_refused(service: BoardService) -> None:
    """A response that unpacks beyond max_answer_bytes is refused, and never takes much more memory than that."""
    bomb = _bomb(256 * 2**20)
    bound = 8 * 2**20
    service.faults.add(service.faults.foreign_body(bomb, headers={"Content-Encoding": "gzip"}), "boards.create")
    async with service.session(retry=None, max_answer_bytes=bound, max_connections=1) as session:
        await session.members.me()
        tracemalloc.start()
        try:
            with pytest.raises(TransportError, match="larger than 8388608 bytes") as caught:
                await session.boards.create("plans")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (caught.value.phase, caught.value.effect) == ("receive", Effect.DONE)
        assert peak < bound + 16 * 2**20
        await session.members.me()


@pytest.mark.parametrize("size", [999, 1000, 1001, 100_000])
@pytest.mark.parametrize("packed", [False, True])
async def test_the_bound_counts_unpacked_bytes(service: BoardService, size: int, packed: bool) -> None:
    """Exactly max_answer_bytes are taken, one more is refused, packed or not; the connection serves on."""
    body = json.dumps("x" * (size - 2)).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    fault = service.faults.foreign_body(gzip.compress(body) if packed else body, headers=headers)
    service.faults.add(fault, "unknown")
    async with service.session(retry=None, max_answer_bytes=1000, max_connections=1) as session:
        if size > 1000:
            with pytest.raises(TransportError, match="larger than 1000 bytes"):
                await session.request("GET", "/1/x")
        else:
            answer = await session.request("GET", "/1/x")
            assert answer.body == body
        await session.members.me()


class Unfinished:
    """A fault: the body of the response never ends."""

    async def play(self, stage: Stage) -> None:
        """Commit, and send half of the body."""
        body, headers = stage.encode(stage.commit())
        await stage.begin(200, 2 * len(body), headers)
        await stage.write(body)
        await stage.hang()


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        faults.truncated(),
        faults.foreign_body(b"no gzip", headers={"Content-Encoding": "gzip"}),
        faults.foreign_body(b"too large" * 1000),
        Unfinished(),
    ],
)
async def test_a_body_that_is_not_needed_is_never_an_error(
    service: BoardService, monkeypatch: pytest.MonkeyPatch, passing_time: Clock, fault: faults.Fault, is_watched: bool
) -> None:
    """What moves, labels, archives and deletes has been done by its status, whatever the body is, and is sent once."""
    if is_watched:  # a wrapper, which may read the response
        original = aiohttp.ClientSession._request
        monkeypatch.setattr(aiohttp.ClientSession, "_request", lambda *args, **options: original(*args, **options))
    board = service.seed({"Inbox": ["Card"], "Done": []})
    card_id, list_id = board.cards["Card"], board.lists["Done"]
    async with service.session(max_answer_bytes=5000) as session:
        service.faults.add(fault)
        moved = await session.cards.move(card_id, list_id=list_id)
        await session.cards.add_label(card_id, "label")
        archived = await session.lists.archive(list_id)
        await session.cards.delete(card_id)
        assert len(service.calls) == 4
        assert ((moved.id, archived.id), card_id in service.rules.cards) == ((card_id, list_id), False)
        with pytest.raises((TransportError, DeadlineError)):  # whose body is its value
            await session.boards.create("plans")


async def test_large_errors_do_not_hold_the_pool(service: BoardService, policy: Any) -> None:
    """Repeats after large error bodies do not wait for the connection of the attempt before."""
    service.faults.add(service.faults.status(429, body=b"z" * 2**20), "boards.create")
    async with service.session(retry=policy, max_connections=1) as session:
        async with asyncio.timeout(60):
            with pytest.raises(RateLimitError) as caught:
                await session.boards.create("plans")
    assert (len(caught.value.attempts), len(caught.value.body)) == (3, 64 * 2**10)


# --- deadlines


async def test_waiting_for_the_pool_is_not_sent(service: BoardService, loop_clock: Clock) -> None:
    """A deadline that passes while a call waits for a connection is NOT_SENT; once it was sent it is UNKNOWN."""
    service.faults.add(service.faults.hang(), "members.me")
    async with service.session(retry=None, max_connections=1) as session:
        first = asyncio.ensure_future(session.with_options(timeout=0.2).members.me())
        await service.received("members.me")
        second = asyncio.ensure_future(session.with_options(timeout=0.05).boards.create("plans"))
        await asyncio.sleep(0)
        loop_clock.advance(0.05)
        with pytest.raises(DeadlineError) as waited:
            await second
        loop_clock.advance(0.2)
        with pytest.raises(DeadlineError) as sent:
            await first
        assert isinstance(waited.value, TimeoutError)
        assert (waited.value.phase, waited.value.effect) == ("deadline", Effect.NOT_SENT)
        assert (sent.value.phase, sent.value.effect) == ("deadline", Effect.UNKNOWN)
        assert service.calls_of("boards.create") == []
        await session.boards.create("plans")


async def test_one_deadline_over_attempts_and_pauses(service: BoardService, loop_clock: Clock) -> None:
    """The deadline spans all attempts: a repeat that hangs ends at the deadline of the call, with the whole history."""
    service.faults.add(service.faults.status(503), "members.me", call=1)
    service.faults.add(service.faults.hang(), "members.me", call=2)
    events: list[Any] = []
    policy = retry.default(sleep=loop_clock.sleep)
    async with service.session(timeout=20, observers=[events.append], retry=policy) as session:
        started = loop_clock()
        call = asyncio.ensure_future(session.members.me())
        await service.received("members.me", 2)
        loop_clock.now = started + 19.9
        await session.with_options(timeout=None).boards.create("plans")
        assert not call.done()
        loop_clock.now = started + 20
        with pytest.raises(DeadlineError) as caught:
            await call
    assert [(attempt.status, attempt.effect) for attempt in caught.value.attempts] == [
        (503, Effect.UNKNOWN),
        (None, Effect.UNKNOWN),
    ]
    assert caught.value.attempts[0].pause_seconds is not None
    assert caught.value.effect is Effect.UNKNOWN
    assert len(service.calls_of("members.me")) == 2


async def test_the_deadline_ends_a_pause_that_overruns(service: BoardService, loop_clock: Clock) -> None:
    """A pause that overruns ends at the deadline."""

    async def sleep(seconds: float) -> None:
        loop_clock.advance(20)
        await asyncio.Event().wait()

    service.faults.add(service.faults.status(429), "boards.create")
    policy = retry.default(sleep=sleep)
    async with service.session(timeout=20, retry=policy) as session:
        with pytest.raises(DeadlineError) as caught:
            await session.boards.create("plans")
    assert caught.value.effect is Effect.REJECTED


async def test_the_deadline_spans_the_provider(service: BoardService, loop_clock: Clock) -> None:
    """A provider that does not come back is ended by the call's deadline, and nothing was sent."""

    class Slow(StaticCredentials):
        async def acquire(self, exchange: Any) -> Any:
            loop_clock.advance(20)
            await asyncio.Event().wait()

    async with service.session(Slow("t"), timeout=20) as session:
        with pytest.raises(DeadlineError) as caught:
            await session.members.me()
    assert (caught.value.effect, len(service.calls)) == (Effect.NOT_SENT, 0)


async def test_the_deadline_spans_an_exchange(service: BoardService, loop_clock: Clock) -> None:
    """A form that is posted on behalf of a call ends at the call's deadline, and at the session's end."""
    service.sleep = loop_clock.sleep
    service.faults.add(service.faults.hang(seconds=20), "token.exchange", call=1)
    service.faults.add(service.faults.hang(), "token.exchange", call=[2, 3])

    class Exchanging(StaticCredentials):
        async def acquire(self, exchange: Any) -> Any:
            await exchange.post_form(service.auth_url + "/1/OAuthGetAccessToken", {"code": "c"})

    async with service.session(Exchanging("t"), timeout=20) as session:
        with pytest.raises(DeadlineError):
            await session.members.me()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        form = asyncio.ensure_future(session._parts.post_form(service.auth_url + "/1/OAuthGetAccessToken", {}))
        call = asyncio.ensure_future(session.with_options(timeout=None).members.me())
        await service.received("token.exchange", 3)
    for task in (form, call):
        assert type(task.exception()).__name__ == "SessionClosedError"


async def test_a_cancelled_form_is_cancelled(service: BoardService) -> None:
    """A form whose caller is cancelled ends with CancelledError."""
    service.faults.add(service.faults.hang(), "token.exchange")
    async with service.session() as session:
        form = asyncio.ensure_future(session._parts.post_form(service.auth_url + "/1/OAuthGetAccessToken", {}))
        await service.received("token.exchange")
        form.cancel()
        with pytest.raises(asyncio.CancelledError):
            await form


async def test_a_trickle_ends_at_the_deadline(service: BoardService, loop_clock: Clock) -> None:
    """A response that trickles ends at the deadline however steadily it comes, and its connection is not lost."""
    service.sleep = loop_clock.sleep
    service.faults.add(service.faults.slow_body(1), "boards.create")
    async with service.session(timeout=10, max_connections=1) as session:
        with pytest.raises(DeadlineError) as caught:
            await session.boards.create("plans" * 100)
        assert caught.value.effect is Effect.UNKNOWN
        await session.with_options(timeout=None).members.me()
