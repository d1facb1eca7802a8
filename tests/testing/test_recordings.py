"""Recordings: what `record` writes holds no credential, and `replay` serves it to the same code, without the service."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from boardclient import ApiError, AsyncSession, BoardClientError, Effect, NotFoundError, StaticCredentials, TransportError
from boardclient.testing import BoardService, assert_no_secrets, faults, record, replay

pytest_plugins = ["pytester"]

KEYS = [
    ("plain-key-1234", "plain-token-5678"),
    ('quoted"key\\1', "a%2Fb%zz+ c=&d?"),
    ("schlüssel-ß-☃", "token/+=\U0001f511<b>"),
]


def _forms(secret: str) -> list[str]:
    escaped = json.dumps(secret)[1:-1]
    return [secret, quote(secret, safe=""), escaped, quote(escaped, safe=""), secret.replace("<", "&lt;").replace('"', "&quot;")]


class Server:
    """A server that responds as a test says."""

    def __init__(self) -> None:
        self.status, self.headers, self.body, self.base_url = 200, {}, b"{}", ""

    async def respond(self, request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@pytest.fixture
async def server():
    made = Server()
    runner = web.ServerRunner(web.Server(made.respond))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def _entries(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["log"]["entries"]


def _body(content: dict[str, Any]) -> bytes:
    text = content.get("text", "")
    return base64.b64decode(text) if content.get("encoding") == "base64" else text.encode()


@pytest.mark.parametrize("kind", ["json", "html", "bytes"])
@pytest.mark.parametrize(("key", "token"), KEYS)
async def test_no_credential_is_written(tmp_path: Path, server: Server, kind: str, key: str, token: str) -> None:
    """Not from queries and bodies, nor from what the service repeats in any form, whatever it responds."""
    texts = [form for secret in (key, token) for form in _forms(secret)]
    server.headers = {
        "X-Echo": quote(key + token),
        "Content-Type": f"text/{quote(token)}",
        "Location": f"/?token={quote(token)}",
        "Set-Cookie": "s=1",
        "X-Token": "never",
    }
    server.body = {
        "json": json.dumps({"id": "c1", "name": texts, "desc": dict.fromkeys(texts, 1)}).encode(),
        "html": f"<p>{' '.join(texts)}</p>".encode(),
        "bytes": f"{key} {token}".encode() + b"\xff",
    }[kind]
    path = tmp_path / "new" / "calls.har"
    async with AsyncSession(StaticCredentials(token, key), server.base_url, retry=None) as session:
        with record(path, session):
            for server.status in (200, 302, 400, 401, 403, 404, 429, 500):
                for call in (lambda: session.cards.create(f"x {token} {key}", list_id="l"), session.members.me):
                    with contextlib.suppress(BoardClientError):
                        await call()
    text = path.read_text(encoding="utf-8")
    assert_no_secrets([text, [_body(entry["response"]["content"]) for entry in _entries(path)]], secrets=[key, token])
    assert "never" not in text
    assert "Set-Cookie" not in text
    assert len(_entries(path)) == 16


async def test_secrets_of_the_session_and_further_ones_are_not_written(tmp_path: Path, server: Server) -> None:
    """A credential for a gateway may be repeated as well. A body that carries no credential keeps its order and its numbers."""
    server.body, server.headers = b'{"id": "c1", "name": "gateway-secret-77 other-secret-88"}', {"X-further-99": "1"}
    headers = {"Authorization": "Bearer gateway-secret-77", "X-Plain": "a"}
    credentials = StaticCredentials("t0ken-1234", "k3y-1234")
    async with AsyncSession(credentials, server.base_url, headers=headers, credentials_in="query") as session:
        with record(tmp_path / "calls.har", session, secrets=["other-secret-88", "further-99"]):
            await session.request("POST", "/1/other", json={"b": 1.5, "a": "k3y-1234"})
    (entry,) = _entries(tmp_path / "calls.har")
    assert json.loads(entry["response"]["content"]["text"])["name"] == "*** ***"
    assert {"name": "X-***", "value": "1"} in entry["response"]["headers"]
    assert entry["request"]["postData"]["text"] == '{"b":1.5,"a":"***"}'
    assert {"name": "token", "value": "***"} in entry["request"]["queryString"]


async def test_short_credentials_are_replaced_where_requests_carry_them(tmp_path: Path, server: Server) -> None:
    """A key of one character stands in every text by chance, so that responses keep it."""
    server.body = b'{"id": "c1", "name": "kt"}'
    async with AsyncSession(StaticCredentials("t", "k"), server.base_url) as session:
        with record(tmp_path / "calls.har", session):
            await session.cards.create("kt", list_id="l")
    (entry,) = _entries(tmp_path / "calls.har")
    assert json.loads(entry["request"]["postData"]["text"]) == {"name": "kt", "idList": "l", "key": "***", "token": "***"}
    assert entry["response"]["content"]["text"] == server.body.decode()


async def test_a_sign_in_and_a_renewal_are_recorded_without_secrets_and_replayed(tmp_path: Path) -> None:
    """Codes, client secrets, old and new tokens are not in the file. A replayed exchange gives tokens that differ."""
    path = tmp_path / "calls.har"
    async with BoardService() as service, service.session(service.oauth_credentials()) as session:
        with record(path):
            await session.boards.create("Party")
            service.rules.expire_tokens()
            await session.boards.create("Party")
    exchanges = service.calls_of("token.exchange")
    secrets = [service.key, service.client_secret, *service.rules.tokens, *(call.body["code"] for call in exchanges)]
    assert_no_secrets(path.read_text(encoding="utf-8"), secrets=secrets)
    async with replay(path) as replayed, replayed.session(replayed.oauth_credentials()) as session:
        assert [(await session.boards.create("Party")).name for _ in range(2)] == ["Party", "Party"]


@pytest.mark.parametrize(
    ("body", "status", "kept"),
    [
        (b"bare-token-123456==", 200, "replayed-token-1"),
        (b"access_token=bare-token-123456&token_type=bearer", 200, "access_token=replayed-token-1&token_type=bearer"),
        (b'{"data": {"access_token": "bare-token-123456"}, "ok": ["bare-token-123456", 1]}', 200, '["replayed-token-1", 1]'),
        (b'{"detail": "no such client s3cret-s3cret"}', 400, "no such client ***"),
        (b'{"token_type": "bearer"}', 200, '{"token_type": "bearer"}'),
        (b"null", 200, "null"),
        (b"", 200, ""),
    ],
)
async def test_an_exchange_of_another_shape_is_not_written(
    tmp_path: Path, server: Server, body: bytes, status: int, kept: str
) -> None:
    """What may be a token is replaced, wherever it stands. A refusal keeps its words, since they may matter to the test."""
    server.body, server.status, path = body, status, tmp_path / "calls.har"
    async with BoardService() as service:
        credentials = service.oauth_credentials(auth_url=f"{server.base_url}/auth", client_secret="s3cret-s3cret")
        async with AsyncSession(credentials, server.base_url, retry=None) as session:
            with record(path, session), contextlib.suppress(BoardClientError):
                await session.members.me()
    written = _entries(path)[0]["response"]["content"]["text"]
    assert kept in written if kept else not written
    assert_no_secrets(path.read_text(encoding="utf-8"), secrets=["bare-token-123456", "s3cret-s3cret"])


async def test_only_the_session_and_its_views_are_recorded_until_the_block_ends(service: BoardService, tmp_path: Path) -> None:
    """Without a session, all are recorded. The file is written also when the block fails, and replaces an earlier one."""
    of_one, of_all = tmp_path / "one.har", tmp_path / "all.har"
    of_one.write_text("earlier")
    async with service.session() as one, service.session() as other:
        with pytest.raises(ZeroDivisionError), record(of_all), record(of_one, one):
            for session in (one, one.with_options(retry=None), other):
                await session.members.me()
            raise ZeroDivisionError
        await one.members.me()
    assert [len(_entries(path)) for path in (of_one, of_all)] == [2, 3]


async def test_a_cancelled_call_shows_nothing_of_the_recorder(service: BoardService, tmp_path: Path) -> None:
    """The frames of a cancelled call hold no credential, and the request is recorded without a response."""
    service.faults.add(faults.hang(), "members.me")
    async with service.session(timeout=None) as session:
        with record(tmp_path / "calls.har", session):
            call = asyncio.create_task(session.members.me())
            await service.received("members.me")
            call.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await call
            assert_no_secrets(caught.value, secrets=[service.key, service.token])
    response = _entries(tmp_path / "calls.har")[0]["response"]
    assert (response["status"], response["_error"]) == (0, "the caller gave the request up")


async def test_an_archive_has_all_that_its_format_requires(service: BoardService, tmp_path: Path) -> None:
    """Each field that HAR 1.2 requires is there, times are milliseconds, and failures have status 0."""
    async with service.session(retry=None) as session:
        with record(tmp_path / "calls.har", session):
            await session.boards.create("Party")
            service.faults.add(faults.drop())
            with pytest.raises(TransportError):
                await session.members.me()
    log = json.loads((tmp_path / "calls.har").read_text())["log"]
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
    assert [(one["response"]["status"], one["response"]["statusText"]) for one in log["entries"]] == [(200, "OK"), (0, "")]


async def _invite(session: AsyncSession) -> list[str]:
    """Run the code under test."""
    board = await session.boards.create("Party", default_lists=True)
    home = (await session.boards.lists(board.id))[0]
    for name in ("Ada", "Grace", "Ada"):
        await session.cards.create(name, list_id=home.id)
    with pytest.raises(NotFoundError):
        await session.cards.get("nope")
    return [card.id for card in await session.boards.cards(board.id)]


async def test_the_same_code_runs_without_the_service(service: BoardService, tmp_path: Path) -> None:
    """The same code gets the same responses from a recording, with other credentials, any number of times."""
    path = tmp_path / "calls.har"
    async with service.session() as session:
        with record(path, session):
            live = await _invite(session)
    async with replay(path) as replayed:
        for _ in range(2):
            async with replayed.session(StaticCredentials("only-a-token"), credentials_in="query") as session:
                assert await _invite(session) == live
    assert repr(replayed) == f"<ReplayService of {path}>"


@pytest.mark.parametrize("prefix", ["/api", "/v/1/proxy"])
async def test_a_recording_fits_wherever_the_service_is(tmp_path: Path, server: Server, prefix: str) -> None:
    """The base URL of the recorded service may have a path."""
    server.body = b'{"id": "c1"}'
    async with AsyncSession(StaticCredentials("t0ken-1234"), server.base_url + prefix) as session:
        with record(tmp_path / "calls.har", session):
            await session.request("GET", "/1/cards/c1", params={"a": ["b", "c"]})
    async with replay(tmp_path / "calls.har") as replayed, replayed.session() as session:
        assert (await session.request("GET", "/1/cards/c1", params={"a": ["b", "c"]})).json() == {"id": "c1"}


async def test_a_parameter_of_the_query_and_a_field_of_one_name_both_count(service: BoardService, tmp_path: Path) -> None:
    """Requests differ if the query does, also in a parameter that has the name of a field of the body."""

    async def create(session: AsyncSession, parameter: str, name: str) -> str:
        return (await session.request("POST", "/1/boards", params={"name": parameter}, json={"name": name})).json()["id"]

    pairs = [("draft", "B"), ("final", "B"), ("draft", "C")]
    async with service.session() as session:
        with record(tmp_path / "calls.har", session):
            live = [await create(session, *pair) for pair in pairs]
    async with replay(tmp_path / "calls.har") as replayed, replayed.session() as session:
        assert [await create(session, *pair) for pair in reversed(pairs)] == live[::-1]


async def test_a_request_without_a_response_gets_none_again(service: BoardService, tmp_path: Path) -> None:
    service.faults.add(faults.drop(), "boards.create")
    async with service.session(retry=None) as session:
        with record(tmp_path / "calls.har", session), pytest.raises(TransportError):
            await session.boards.create("Party")
    async with replay(tmp_path / "calls.har") as replayed, replayed.session(retry=None) as session:
        with pytest.raises(TransportError) as again:
            await session.boards.create("Party")
    assert again.value.effect is Effect.UNKNOWN


BODIES = st.one_of(st.binary(), st.text().map(lambda text: json.dumps([text]).encode()), st.just(b"[1e999, 1.50, 1]"))


@given(BODIES, BODIES)
def test_a_body_loses_nothing(tmp_path_factory: pytest.TempPathFactory, posted: bytes, responded: bytes) -> None:
    """What was recorded is found by its own request, and is sent again byte by byte."""
    path = tmp_path_factory.mktemp("recordings") / "calls.har"

    async def ask(session: AsyncSession) -> bytes:
        body = posted.decode("latin-1")
        return (await session.request("POST", "/1/other", params={"a": posted.hex()}, json={"b": body})).body

    async def exchange() -> None:
        async with BoardService() as service, service.session() as session:
            service.faults.add(faults.foreign_body(responded))
            with record(path, session):
                await ask(session)
        async with replay(path) as replayed, replayed.session(retry=None) as session:
            assert await ask(session) == responded

    asyncio.run(exchange())


def _write(path: Path, *entries: tuple[dict[str, Any], dict[str, Any]]) -> Path:
    archive = {"log": {"version": "1.2", "entries": [{"request": asked, "response": got} for asked, got in entries]}}
    path.write_text(json.dumps(archive))
    return path


def _posted(name: str) -> dict[str, Any]:
    body = json.dumps({"name": name, "token": "***"})
    return {"method": "POST", "url": "https://h/1/cards?a=b", "postData": {"mimeType": "application/json", "text": body}}


async def _ask(base_url: str, **body: object) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(f"{base_url}/1/cards?a=b", json=body) as response:
        return response.status, await response.text()


def test_any_client_is_served_in_any_style(tmp_path: Path) -> None:
    """A client of another library or process is served too, by a service in a thread. Equal requests keep their order."""
    responses = [{"status": 201, "content": {"text": str(number)}} for number in (1, 2)]
    path = _write(tmp_path / "calls.har", *((_posted("a"), response) for response in responses))
    with replay(path, ignoring=["due"]) as service:
        assert [asyncio.run(_ask(service.base_url, name="a", due=due)) for due in "xyz"] == [(201, "1"), (201, "2"), (201, "2")]
    assert service.environment["BOARDCLIENT_AUTH_URL"] == service.auth_url


async def test_a_request_that_is_not_recorded_fails_the_call_and_the_block(tmp_path: Path) -> None:
    """The words name the nearest recorded request. An error of the block's own stays, with a note."""
    path = _write(tmp_path / "calls.har", (_posted("a"), {"status": 200}))
    words = (
        r'POST /1/cards [{"a": ["b"]}, {"name": "b"}] is not in the recording; '
        r'the nearest is POST /1/cards [{"a": ["b"]}, {"name": "a"}]'
    )
    with pytest.raises(AssertionError) as caught:
        async with replay(path) as service:
            assert await _ask(service.base_url, name="b") == (421, words)
    assert str(caught.value) == f"{path} does not fit: {words}"
    with pytest.raises(ApiError, match="421") as error:
        async with replay(_write(tmp_path / "empty.har")) as service, service.session() as session:
            await session.members.me()
    assert error.value.__notes__[-1].endswith("does not fit: GET /1/members/me is not in the recording")


@pytest.mark.parametrize("text", ["{", "[]", '{"log": {}}', '{"log": {"entries": 1}}', '{"log": {"entries": [{}]}}'])
def test_another_file_is_refused_before_a_test_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "calls.har").write_text(text)
    with pytest.raises(ValueError, match=r"calls\.har is no HTTP Archive"):
        replay(tmp_path / "calls.har")


async def test_the_archive_of_a_browser_is_replayed(tmp_path: Path) -> None:
    """Headers of its connection are left out, forms have secrets, and a body may be in base64 or no JSON."""
    kept = [(":status", "200"), ("Content-Encoding", "br"), ("X-A", "b"), ("X-A", "c")]
    response = {"status": 200, "content": {"text": "WzFd", "encoding": "base64"}}
    response["headers"] = [{"name": name, "value": value} for name, value in kept]
    form = {"mimeType": "application/x-www-form-urlencoded", "text": "code=c"}
    path = _write(
        tmp_path / "calls.har",
        ({"method": "GET", "url": "https://h/1/cards/c?token=t"}, response),
        ({"method": "POST", "url": "https://h/1/x", "postData": form}, {"status": 204}),
        ({"method": "PUT", "url": "https://h/1/x", "postData": {"text": "{anything"}}, {"status": 201}),
    )
    async with replay(path) as service, aiohttp.ClientSession() as http:
        async with http.get(f"{service.base_url}/1/cards/c") as got:
            assert (await got.read(), got.headers.getall("X-A")) == (b"[1]", ["b", "c"])
        async with http.post(f"{service.base_url}/1/x", data={"code": "another"}) as got:
            assert got.status == 204
        async with http.put(f"{service.base_url}/1/x", data=b"{anything") as got:
            assert got.status == 201


TEST = """
import os
import pytest
from boardclient import AsyncSession

@pytest.fixture(autouse=True)
def before():
    yield
    assert os.environ["BOARDCLIENT_BASE_URL"] == "ADDRESS"

@pytest.mark.parametrize("name", ["a/b", "a:b", "c"])
async def test_invite(board_recording, name):
    async with AsyncSession.from_env() as session:
        board = await session.boards.create(name, default_lists=True)
        assert [one.name for one in await session.boards.lists(board.id)] == ["To Do", "Doing", "Done"]

class TestOptions:
    @pytest.fixture
    def board_recording_options(self):
        return {"ignoring": ["name"], "secrets": ["a secret name"]}

    async def test_invite(self, board_recording):
        async with AsyncSession.from_env() as session:
            await session.boards.create("a secret name")
"""


@pytest.mark.full
def test_a_test_is_recorded_and_replayed_from_then_on(
    pytester: pytest.Pytester, board_service: BoardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test has a file of its own, whatever is in its name. The service sees the runs with --board-record only."""
    for name, value in board_service.environment.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile(test_it=TEST.replace("ADDRESS", board_service.base_url))
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]

    def outcomes(*more: str) -> tuple[dict[str, int], int]:
        done = pytester.runpytest_inprocess(*options, *more)
        outcomes.text = "\n".join(done.outlines)
        return done.parseoutcomes(), len(board_service.calls)

    assert outcomes() == ({"errors": 4}, 0)
    assert "does not exist: run the test with --board-record to record it" in outcomes.text
    assert outcomes("--board-record") == ({"passed": 4}, 7)
    assert outcomes() == ({"passed": 4}, 7)
    files = [*pytester.path.glob("recordings/test_it/*.har")]
    assert len(files) == 4
    assert not any("a secret name" in path.read_text() for path in files)
    path = pytester.path / "test_it.py"
    path.write_text(path.read_text().replace("create(name", "create(name + '!'"))
    assert outcomes() == ({"passed": 1, "failed": 3, "errors": 3}, 7)
    assert "test_invite[c].har does not fit: POST /1/boards" in outcomes.text
    recorded = {path: path.read_bytes() for path in files}
    monkeypatch.setenv("BOARDCLIENT_TOKEN", "")
    assert outcomes("--board-record") == ({"failed": 4}, 7)  # a test that fails leaves its recording as it was
    assert {path: path.read_bytes() for path in pytester.path.glob("recordings/test_it/*")} == recorded
