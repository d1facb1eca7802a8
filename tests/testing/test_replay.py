"""What `replay` serves: what was recorded, to the same code, without the service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boardclient import ApiError, AsyncSession, BoardClientError, DeadlineError, Effect, NotFoundError, StaticCredentials
from boardclient.testing import BoardService, Recording, faults, record, replay


async def invite(session: AsyncSession) -> list[str]:
    """The code under test."""
    board = await session.boards.create("Party", default_lists=True)
    home = (await session.boards.lists(board.id))[0]
    for name in ("Ada", "Grace", "Ada"):
        await session.cards.create(name, list_id=home.id)
    with pytest.raises(NotFoundError):
        await session.cards.get("nope")
    return [card.id for card in await session.boards.cards(board.id)]


async def test_the_same_code_runs_without_the_service(service: BoardService, tmp_path: Path) -> None:
    """The same code gets the same responses from a recording, with other credentials and another address."""
    async with service.session() as session, record(tmp_path / "calls.har", session):
        live = await invite(session)
    async with replay(tmp_path / "calls.har") as replayed:
        session = replayed.session(StaticCredentials("only-a-token"), credentials_in="query")
        assert await invite(session) == live
        await session.aclose()
    assert repr(replayed) == f"<ReplayService of {tmp_path / 'calls.har'}>"


async def test_other_services_are_reached_while_one_is_replayed(service: BoardService) -> None:
    """A replay concerns its own address, until it is stopped."""
    async with replay(Recording([])) as replayed, service.session() as session:
        await session.members.me()
        await replayed.stop()
    assert service.requests == 1


@pytest.mark.parametrize("answer", ["rfc6749", "token", "form"])
async def test_a_sign_in_and_a_renewal_are_replayed(answer: Any) -> None:
    """A replayed exchange gives tokens that differ, so a renewal is one."""
    async with BoardService(exchange_answer=answer) as service, service.session(service.oauth_credentials()) as session:
        with record(target=service) as recorder:
            await session.boards.create("Party")
            service.rules.expire_tokens()
            await session.boards.create("Party")
    assert len(service.calls_of("token.exchange")) == 2
    async with replay(recorder.recording) as replayed, replayed.session(replayed.oauth_credentials()) as session:
        assert [(await session.boards.create("Party")).name for _ in range(2)] == ["Party", "Party"]


def _shown_of(error: BoardClientError) -> tuple:
    return type(error), error.effect, getattr(error, "phase", None), str(error).partition(" (127")[0].partition(" to 127")[0]


@pytest.mark.parametrize("fault", [faults.drop(), faults.truncated(), faults.drop(reset=True), None])
async def test_failures_are_replayed(fault: faults.Fault | None) -> None:
    """The error is the same, and says as much of what the service may have done. None stands for a refused connection."""
    service = BoardService()
    async with service:
        if fault is not None:
            service.faults.add(fault, "boards.create")
    async with service.session(retry=None) as session, record(target=session) as recorder:
        if fault is not None:
            await service.start()
        with pytest.raises(BoardClientError) as live:
            await session.boards.create("Party")
        await service.stop()
    async with replay(recorder.recording) as replayed, replayed.session(retry=None) as session:
        with pytest.raises(BoardClientError) as again:
            await session.boards.create("Party")
    assert _shown_of(again.value) == _shown_of(live.value)


async def test_a_deadline_passes_again(service: BoardService, loop_clock) -> None:
    """A request that was given up gets no response, and need not be made again."""
    service.faults.add(faults.hang(), "members.me")
    async with service.session(timeout=5) as session, record(target=session) as recorder:
        call = asyncio.create_task(session.members.me())
        await service.received("members.me")
        loop_clock.advance(10)
        with pytest.raises(DeadlineError) as live:
            await call
    async with replay(recorder.recording) as replayed, replayed.session(timeout=5) as session:
        call = asyncio.create_task(session.members.me())
        for _ in range(20):
            await asyncio.sleep(0)
        loop_clock.advance(10)
        with pytest.raises(DeadlineError) as again:
            await call
    assert live.value.effect is again.value.effect is Effect.UNKNOWN
    async with replay(recorder.recording):
        pass


def _entry(name: str, path: str = "/1/cards?a=b", status: int = 200, **response: Any) -> dict[str, Any]:
    body = json.dumps({"name": name, "token": "***"})
    return {
        "request": {
            "method": "POST",
            "url": f"https://h{path}",
            "postData": {"mimeType": "application/json", "text": body},
        },
        "response": {"status": status, "headers": [], "content": {"size": 0, "text": json.dumps({"id": name})}, **response},
    }


def _own(**why: Any) -> dict[str, Any]:
    return {"status": 0, "_boardclient": why}


async def _ask(base_url: str, path: str = "/1/cards?a=b", **body: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(f"{base_url}{path}", json=body) as response:
        return response.status, await response.text()


def test_any_client_is_served_in_any_style() -> None:
    """A client of another library or process is served too, by a service in a thread."""
    recording = Recording(
        [
            _entry("a", status=204, headers=[{"name": "X-A", "value": "1"}, {"name": "X-A", "value": "2"}]),
            _entry("a", content={"size": 11, "text": "", "comment": "11 bytes"}),
            _entry("a", **_own(failure={"phase": "connect", "effect": "not sent", "why": "no connection"})),
        ]
    )
    with pytest.raises(AssertionError, match="left out of the recording: 11 bytes"), replay(recording) as service:
        assert asyncio.run(_ask(service.base_url, name="a")) == (204, "")
        assert asyncio.run(_ask(service.base_url, name="a"))[0] == 421
        with pytest.raises(aiohttp.ClientError):
            asyncio.run(_ask(service.base_url, name="a"))
    assert service.environment["BOARDCLIENT_AUTH_URL"] == service.auth_url


async def test_a_request_that_was_given_up_when_recorded_hangs_for_another_process() -> None:
    """A client in another process waits for such a response until the service ends."""
    async with replay(Recording([_entry("a", **_own(unanswered={"stage": "receive"}))])) as service:
        arrived = asyncio.Event()
        service.on_request = lambda *_: arrived.set()
        call = asyncio.create_task(_ask(service.base_url, name="a"))
        await arrived.wait()
    with pytest.raises(aiohttp.ClientError):
        await call


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"name": "b"},
            r'POST /1/cards \{"a": "b", "name": "b"\} is not in the recording; the nearest is .*, where name is "a"',
        ),
        ({"name": "a"}, "was recorded 1 times and is asked once more"),
        ({"name": "a", "due": None}, "where due is absent"),
        ({"name": "a", "path": "/1/cards"}, 'where a is "b"'),
        ({"name": "n" * 999}, "n…"),
        ({"name": "\ud800"}, "not in the recording"),
    ],
)
async def test_what_is_not_recorded_is_named(asked: dict[str, Any], words: str) -> None:
    """The call fails at once, and so does the block, though the code under test swallows the error."""
    with pytest.raises(AssertionError, match=words):
        async with replay(Recording([_entry("a")])) as service:
            await _ask(service.base_url, name="a")
            assert (await _ask(service.base_url, **asked))[0] == 421


async def test_the_own_error_of_a_block_stays() -> None:
    """What did not fit is a note on it."""
    with pytest.raises(ApiError, match="421") as caught:
        async with replay(Recording([]), strict=False) as service, service.session() as session:
            await session.members.me()
    assert "does not fit: GET /1/members/me is not in the recording, nor is anything like it" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError) as plain:
        async with replay(Recording([_entry("a")])):
            raise ZeroDivisionError
    assert not hasattr(plain.value, "__notes__")


async def test_a_recording_that_is_not_used_up_fails_where_it_is_strict() -> None:
    """A strict recording with entries that were not replayed fails the test."""
    async with replay(Recording([_entry("a")]), strict=False) as service:
        pass
    with pytest.raises(AssertionError, match=r'1 recorded requests of the recording were not made: POST /1/cards .*"a"'):
        service.assert_all_used()
    with pytest.raises(AssertionError, match="not made"):
        async with replay(Recording([_entry("a")])):
            pass


@pytest.mark.parametrize(
    ("names", "asked", "expected"),
    [
        (["a *** b *** c", "a x b y c"], ["a x b y c", "a x d y c", "a c", "b x b y c", "a 1 b 2 c"], [1, None, None, None, 0]),
        (["a *** b *** b c"], ["a x b c"], [None]),  # a text between stars counts once
        (["a", "a"], ["a", "a", "a"], [0, 1, None]),
    ],
)
async def test_stars_stand_for_any_text(names: list[str], asked: list[str], expected: list[int | None]) -> None:
    """A recording with secrets in names and paths can be replayed; what is alike goes first, equal requests in their order."""
    entries = [_entry(name, content={"text": str(number)}) for number, name in enumerate(names)]
    service = replay(Recording(entries), strict=False)
    await service.start()
    got = [await _ask(service.base_url, name=name) for name in asked]
    await service.stop()
    assert [int(text) if status == 200 else None for status, text in got] == expected


async def test_fields_can_be_ignored_and_the_last_response_repeated() -> None:
    """Fields whose value differs in each run, such as a date, can be ignored."""
    async with replay(Recording([_entry("a")]), ignoring=["due"], repeats=True) as service:
        for due in ("today", "tomorrow"):
            assert (await _ask(service.base_url, name="a", due=due, token="x"))[0] == 200


BODIES = st.one_of(st.binary(), st.text().map(lambda text: json.dumps([text]).encode()), st.just(b"[1e999, 1.50, 1]"))


@given(BODIES, BODIES)
def test_a_body_loses_nothing(posted: bytes, responded: bytes) -> None:
    """What was recorded is found by its own request, and is sent again byte by byte."""

    async def exchange() -> None:
        async with BoardService() as service, service.session() as session:
            service.faults.add(faults.foreign_body(responded))
            with record(target=session) as recorder:
                await session.request("POST", "/1/other", params={"a": posted.hex()}, json={"b": posted.decode("latin-1")})
        recording = Recording(json.loads(json.dumps(recorder.recording.entries)))
        async with replay(recording) as replayed, replayed.session(retry=None) as session:
            again = await session.request("POST", "/1/other", params={"a": posted.hex()}, json={"b": posted.decode("latin-1")})
        assert again.body == responded

    asyncio.run(exchange())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "can't be replayed: it is not JSON: Expecting"),
        ("[]", "it is no HTTP Archive"),
        ('{"log": {}}', "it is no HTTP Archive"),
        ('{"log": {"entries": 1}}', "it is no HTTP Archive"),
        ('{"log": {"entries": [{}]}}', "entry 1 is incomplete or wrong"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Before a test runs, with what is wrong."""
    (tmp_path / "calls.har").write_text(text)
    with pytest.raises(ValueError, match=words):
        replay(tmp_path / "calls.har")


async def test_the_archive_of_a_browser_is_replayed(tmp_path: Path) -> None:
    """Headers of its connection are left out, and what it does not hold is named. A request without a response has failed."""

    def entry(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
        return {"request": {"method": "GET", "url": "https://h/1/cards/c?token=t&a=1", **request}, "response": response}

    kept = [{"name": ":status", "value": "200"}, {"name": "Content-Encoding", "value": "br"}, {"name": "X-A", "value": "b"}]
    form = {"mimeType": "application/x-www-form-urlencoded; charset=utf-8", "params": [{"name": "code", "value": "c d"}]}
    entries = [
        entry({}, {"status": 200, "headers": kept, "content": {"size": 4, "text": "WzFd", "encoding": "base64"}}),
        entry({"method": "POST", "postData": form}, {"status": 204, "content": {"size": 0}}),
        entry({}, {"status": 0}),
        entry({}, {"status": 0, "_error": "net::ERR_FAILED"}),
        entry({}, {"status": 200, "content": {"size": 9, "mimeType": "image/png"}}),
        entry({"method": "PUT", "postData": {"mimeType": "a/b", "text": "", "comment": "long"}}, {"status": 201}),
    ]
    (tmp_path / "calls.har").write_text("\ufeff" + json.dumps({"log": {"version": "1.2", "entries": entries}}))
    service = replay(tmp_path / "calls.har", strict=False)
    await service.start()
    url = f"{service.base_url}/1/cards/c?a=1"
    async with aiohttp.ClientSession() as http, service.session(retry=None) as session:
        async with http.get(url) as response:
            assert (await response.read(), response.headers["X-A"]) == (b"[1]", "b")
        async with http.post(url, data={"code": "another"}) as response:
            assert response.status == 204
        for words in ("no response", "net::ERR_FAILED"):
            with pytest.raises(BoardClientError, match=words) as caught:
                await session.request("GET", "/1/cards/c", params={"a": "1"})
            assert caught.value.effect is Effect.UNKNOWN
        async with http.get(url) as response:
            assert (response.status, await response.text()) == (421, "the response was left out of the recording: its text")
        async with http.put(url, data=b"{anything") as response:
            assert response.status == 201
    await service.stop()
