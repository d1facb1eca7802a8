"""What `replay` serves: what was recorded, to the same code, without the service."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boardclient import ApiError, AsyncSession, BoardClientError, DeadlineError, Effect, NotFoundError, StaticCredentials
from boardclient.testing import BoardService, Recording, faults, record, replay
from boardclient.testing._parsing import body_of, request_of
from boardclient.testing._playlist import Playlist
from boardclient.testing._recording import (
    Body,
    Interaction,
    RecordedFailure,
    RecordedRequest,
    RecordedResponse,
    Unanswered,
)


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
    async with service.session() as session, record(tmp_path / "calls.json", session):
        live = await invite(session)
    async with replay(tmp_path / "calls.json") as replayed:
        session = replayed.session(StaticCredentials("only-a-token"), credentials_in="query")
        assert await invite(session) == live
        await session.aclose()
    assert repr(replayed) == f"<ReplayService of {tmp_path / 'calls.json'}>"


async def test_other_services_are_reached_while_one_is_replayed(service: BoardService) -> None:
    """A replay concerns its own address, until it is stopped."""
    async with replay(Recording([])) as replayed, service.session() as session:
        await session.members.me()
        await replayed.stop()
    assert service.requests == 1


async def test_a_sign_in_and_a_renewal_are_replayed(service: BoardService) -> None:
    """A replayed exchange gives tokens that differ, so a renewal is one."""
    async with service.session(service.oauth_credentials()) as session, record(target=service) as recorder:
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
        while replayed.playlist._unused["GET /1/members/me"]:
            await asyncio.sleep(0)
        loop_clock.advance(10)
        with pytest.raises(DeadlineError) as again:
            await call
    assert live.value.effect is again.value.effect is Effect.UNKNOWN
    async with replay(recorder.recording):
        pass


def _interaction(name: str, outcome: object = None, path: str = "/1/cards") -> Interaction:
    request = RecordedRequest(method="POST", path=path, query={"a": "b"}, body=Body("json", {"name": name, "token": "***"}))
    return Interaction(request=request, outcome=outcome or RecordedResponse(status=200, body=Body("json", {"id": name})))


async def _ask(base_url: str, **body: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(f"{base_url}/1/cards?a=b", json=body) as response:
        return response.status, await response.text()


def test_any_client_is_served_in_any_style() -> None:
    """A client of another library or process is served too, by a service in a thread."""
    outcomes = [
        RecordedResponse(status=204, headers={"X-A": ["1", "2"]}),
        RecordedResponse(status=200, body=Body("left_out", "11 bytes")),
        RecordedFailure(phase="connect", effect=Effect.NOT_SENT, why="no connection"),
    ]
    recording = Recording([_interaction("a", outcome) for outcome in outcomes])
    with pytest.raises(AssertionError, match="left out of the recording: 11 bytes"), replay(recording) as service:
        assert asyncio.run(_ask(service.base_url, name="a")) == (204, "")
        assert asyncio.run(_ask(service.base_url, name="a"))[0] == 421
        with pytest.raises(aiohttp.ClientError):
            asyncio.run(_ask(service.base_url, name="a"))
    assert service.environment["BOARDCLIENT_AUTH_URL"] == service.auth_url


async def test_a_request_that_was_given_up_when_recorded_hangs_for_another_process() -> None:
    """A client in another process waits for such a response until the service ends."""
    async with replay(Recording([_interaction("a", Unanswered(stage="receive"))])) as service:
        call = asyncio.create_task(_ask(service.base_url, name="a"))
        while service.playlist._unused[next(iter(service.playlist._unused))]:
            await asyncio.sleep(0)
    with pytest.raises(aiohttp.ClientError):
        await call


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("b", r'POST /1/cards \{"a": "b", "name": "b"\} is not in the recording; the nearest is .*, where name is "a"'),
        ("a", "was recorded 1 times and is asked once more"),
    ],
)
async def test_what_is_not_recorded_is_named(name: str, words: str) -> None:
    """The call fails at once, and so does the block, though the code under test swallows the error."""
    with pytest.raises(AssertionError, match=words):
        async with replay(Recording([_interaction("a")])) as service:
            await _ask(service.base_url, name="a")
            assert (await _ask(service.base_url, name=name))[0] == 421


async def test_the_own_error_of_a_block_stays() -> None:
    """What did not fit is a note on it."""
    with pytest.raises(ApiError, match="421") as caught:
        async with replay(Recording([]), strict=False) as service, service.session() as session:
            await session.members.me()
    assert "does not fit: GET /1/members/me is not in the recording, nor is anything like it" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError) as plain:
        async with replay(Recording([_interaction("a")])):
            raise ZeroDivisionError
    assert not hasattr(plain.value, "__notes__")


async def test_a_recording_that_is_not_used_up_fails_where_it_is_strict() -> None:
    """A strict recording with interactions that were not replayed fails the test."""
    async with replay(Recording([_interaction("a")]), strict=False) as service:
        pass
    with pytest.raises(AssertionError, match=r'1 recorded requests of the recording were not made: POST /1/cards .*"a"'):
        service.assert_all_used()
    with pytest.raises(AssertionError, match="not made"):
        async with replay(Recording([_interaction("a")])):
            pass


def _asked(**body: object):
    return request_of("POST", "/1/cards?a=b&token=x", json.dumps(body).encode(), "application/json")


def test_stars_stand_for_any_text() -> None:
    """A recording with secrets in names and paths can be replayed; what is alike goes first."""
    playlist = Playlist([_interaction("a *** b *** c"), _interaction("a x b y c")], [])
    assert playlist.take(_asked(name="a x b y c")) == 1
    assert playlist.take(_asked(name="a x d y c")) is None
    assert playlist.take(_asked(name="a c")) is None
    assert playlist.take(_asked(name="b x b y c")) is None
    assert playlist.take(_asked(name="a 1 b 2 c")) == 0
    doubled = Playlist([_interaction("a *** b *** b c")], [])
    assert doubled.take(_asked(name="a x b c")) is None  # a text between stars counts once


def test_only_the_last_of_equal_requests_repeats() -> None:
    """Equal requests are used up in their order, and with `repeats` the last of them stays."""
    playlist = Playlist([_interaction("a"), _interaction("a")], [], repeats=True)
    assert [playlist.take(_asked(name="a")) for _ in range(4)] == [0, 1, 1, 1]


def test_fields_can_be_ignored() -> None:
    """Fields whose value differs in each run, such as a date, can be ignored; true is not 1."""
    playlist = Playlist([_interaction("a"), _interaction("b")], ["due"])
    assert playlist.take(_asked(name="a", due="today", token="y")) == 0
    assert Playlist([_interaction("a")], []).take(_asked(name="a", due=None)) is None
    assert "due is absent" in Playlist([_interaction("a")], []).explain(_asked(name="a", due=None))
    assert "where" not in Playlist([_interaction("a", path="/1/lists")], []).explain(_asked(name="a"))
    other = request_of("PUT", "/x", b"text", "")
    assert "where a is" in Playlist([_interaction("n" * 999)], []).explain(other)
    form = request_of("POST", "/1/OAuthGetAccessToken", b"code=1", "application/x-www-form-urlencoded")
    assert Playlist([Interaction(request=form, outcome=Unanswered(stage="send"))], []).take(form) == 0


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
WRITTEN = st.dictionaries(TEXT, JSON).map(lambda value: json.dumps(value).encode())
BODIES = st.one_of(st.binary(), TEXT.map(str.encode), WRITTEN).map(body_of)
FIELDS = st.dictionaries(TEXT, TEXT | st.lists(TEXT, min_size=2))
HEADERS = st.dictionaries(st.from_regex("X-[a-z]{1,3}", fullmatch=True), TEXT | st.lists(TEXT, min_size=2))
REQUESTS = st.builds(
    RecordedRequest, method=st.sampled_from(["GET", "POST"]), path=st.just("/1/cards"), query=FIELDS, body=BODIES
)
OUTCOMES = st.one_of(
    st.builds(RecordedResponse, status=st.integers(200, 599), headers=HEADERS, body=BODIES),
    st.builds(RecordedFailure, phase=st.sampled_from(["connect", "send"]), effect=st.sampled_from(Effect), why=TEXT),
    st.builds(Unanswered, stage=st.sampled_from(["send", "receive"])),
)


@pytest.mark.parametrize("name", ["calls.json", "calls.har"])
@given(st.lists(st.builds(Interaction, request=REQUESTS, outcome=OUTCOMES)))
def test_what_is_written_is_read_again(name: str, interactions: list[Interaction]) -> None:
    """Each interaction, in its order, and each is found by its own request."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        Recording(interactions).save(path)
        loaded = Recording.load(path)
    assert list(loaded.interactions) == interactions
    playlist = Playlist(loaded.interactions, [])
    taken = [playlist.take(one.request) for one in interactions]
    assert sorted(number for number in taken if number is not None) == list(range(len(interactions)))
    assert playlist.unused() == []


ESCAPED = st.text().map(lambda text: json.dumps([text]).encode())


@given(st.one_of(st.binary(), ESCAPED, WRITTEN))
def test_a_body_loses_nothing(raw: bytes) -> None:
    """A recorded body is sent again byte by byte, or as the same JSON."""
    body = body_of(raw)
    sent = b"" if body is None else body.encode()
    assert sent == raw or json.loads(sent) == json.loads(raw)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"a": 1, "a": 2}', "text"),
        (b"[1e999]", "text"),
        (b"[1e-999]", "text"),
        (b"[1e99999999999999999999999]", "text"),
        (b"[NaN]", "text"),
        (b'["\\ud800"]', "text"),
        (b"[" * 5000 + b"]" * 5000, "text"),
        (b"[0.1, 1.50, 16384.0, true, null]", "json"),
        (b"\xff", "base64"),
    ],
)
def test_what_json_would_change_is_text(text: bytes, kind: str) -> None:
    """Duplicate names, numbers beyond a float, half a surrogate pair, too many levels."""
    body = body_of(text)
    assert body is not None
    assert body.kind == kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "can't be replayed: it is not JSON: Expecting"),
        ("[]", "it is no recording"),
        ('{"log": {}}', "it is no recording"),
        ('{"log": {"entries": [{}]}}', "entry 1 is incomplete or wrong"),
        ('{"boardclient_recording": 2}', "its version is 2"),
        ('{"boardclient_recording": 1, "interactions": [{}]}', "interaction 1 is incomplete or wrong"),
        (
            '{"boardclient_recording": 1, "interactions": [{"request": {"method": "GET", "path": "/", "json": {}, "text": ""}}]}',
            "it has several bodies: json, text",
        ),
        (
            '{"boardclient_recording": 1, "interactions": [{"request": {"method": "GET", "path": "/", "base64": "="}}]}',
            "interaction 1",
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Before a test runs, with what is wrong."""
    (tmp_path / "calls.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        replay(tmp_path / "calls.json")


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier recording is not lost, and nothing lies beside it."""
    path = tmp_path / "calls.json"
    path.write_text("earlier")
    monkeypatch.setattr(Path, "replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        Recording([]).save(path)
    assert [one.read_text() for one in tmp_path.iterdir()] == ["earlier"]


def test_the_archive_of_a_browser_is_read(tmp_path: Path) -> None:
    """Headers of its connection are left out, and what it does not hold is named. A request without a response has failed."""

    def entry(request: dict, response: dict) -> dict:
        return {"request": {"method": "GET", "url": "https://h/1/cards/c?token=t&a=1", **request}, "response": response}

    kept = [{"name": ":status", "value": "200"}, {"name": "Content-Encoding", "value": "br"}, {"name": "X-A", "value": "b"}]
    form = {"mimeType": "application/x-www-form-urlencoded; charset=utf-8", "params": [{"name": "code", "value": "c d"}]}
    entries = [
        entry({}, {"status": 200, "headers": kept, "content": {"size": 4, "text": "WzFd", "encoding": "base64"}}),
        entry({"method": "POST", "postData": form}, {"status": 204, "content": {"size": 0}}),
        entry({}, {"status": 0}),
        entry({}, {"status": 200, "content": {"size": 9, "mimeType": "image/png"}}),
        entry({"postData": {"mimeType": "a/b", "text": "", "comment": "long"}}, {"status": 0, "_error": "net::ERR_FAILED"}),
    ]
    (tmp_path / "calls.har").write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    first, posted, failed, absent, long = Recording.load(tmp_path / "calls.har").interactions
    assert first.request == RecordedRequest(method="GET", path="/1/cards/c", query={"token": "t", "a": "1"})
    assert first.outcome == RecordedResponse(status=200, headers={"X-A": "b"}, body=Body("json", [1]))
    assert posted.request.body == Body("form", {"code": "c d"})
    assert posted.outcome == RecordedResponse(status=204)
    assert failed.outcome == RecordedFailure(phase="receive", effect=Effect.UNKNOWN, why="no response")
    assert absent.outcome == RecordedResponse(status=200, body=Body("left_out", "the archive does not have the body"))
    assert long.request.body == Body("left_out", "long")
    assert long.outcome == RecordedFailure(phase="receive", effect=Effect.UNKNOWN, why="net::ERR_FAILED")


def test_what_is_left_out_of_an_archive_is_read_as_such(tmp_path: Path) -> None:
    """The archive says why, and no body stands in its place."""
    left_out = Body("left_out", "999 bytes, more than max_body_bytes (10)")
    request = RecordedRequest(method="POST", path="/1/cards", body=left_out)
    Recording([Interaction(request=request, outcome=RecordedResponse(status=200, body=left_out))]).save(tmp_path / "calls.har")
    (found,) = Recording.load(tmp_path / "calls.har").interactions
    assert (found.request.body, found.outcome.body) == (left_out, left_out)


def test_an_archive_has_all_that_its_format_requires(tmp_path: Path) -> None:
    """Each field that HAR 1.2 requires is there, times are milliseconds, and failures have status 0."""
    form = RecordedRequest(method="POST", path="/1/OAuthGetAccessToken", body=Body("form", {"code": "***"}))
    answered = RecordedResponse(status=200, headers={"content-TYPE": "image/png"}, body=Body("base64", "/w=="))
    interactions = [
        Interaction(request=form, outcome=answered, started=1.5, seconds=0.25, origin="https://h"),
        _interaction("a"),
        _interaction("a", RecordedFailure(phase="connect", effect=Effect.NOT_SENT, why="no connection")),
        _interaction("a", Unanswered(stage="send")),
        _interaction("a", RecordedResponse(status=599)),
        Interaction(request=RecordedRequest(method="GET", path="/1/x"), outcome=answered),
    ]
    Recording(interactions).save(tmp_path / "calls.har")
    log = json.loads((tmp_path / "calls.har").read_text())["log"]
    Recording(interactions).save(tmp_path / "calls.json")
    assert list(Recording.load(tmp_path / "calls.json").interactions) == interactions
    assert log["version"] == "1.2"
    assert {*log["creator"]} == {"name", "version"}
    for entry in log["entries"]:
        assert {*entry} >= {"startedDateTime", "time", "request", "response", "cache", "timings"}
        assert entry["time"] == sum(entry["timings"].values())
        assert {*entry["timings"]} == {"send", "wait", "receive"}
        shared = {"httpVersion", "cookies", "headers", "headersSize", "bodySize"}
        assert {*entry["request"]} >= {"method", "url", "queryString", *shared}
        assert {*entry["response"]} >= {"status", "statusText", "content", "redirectURL", *shared}
        assert {*entry["response"]["content"]} >= {"size", "mimeType"}
    first = log["entries"][0]
    assert (first["startedDateTime"], first["time"]) == ("1970-01-01T00:00:01.500+00:00", 250)
    posted = {"mimeType": "application/x-www-form-urlencoded", "params": [], "text": "code=%2A%2A%2A"}
    assert first["request"]["postData"] == posted
    assert first["response"]["content"] == {"size": 1, "mimeType": "image/png", "text": "/w==", "encoding": "base64"}
    assert [one["response"]["status"] for one in log["entries"][2:4]] == [0, 0]
    assert log["entries"][1]["request"]["url"] == "http://board.invalid/1/cards?a=b"
