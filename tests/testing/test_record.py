"""What `record` writes: everything that was asked, in order, as an HTTP Archive, and no credential."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from boardclient import AsyncSession, BoardClientError, StaticCredentials
from boardclient.testing import BoardService, Recording, assert_no_secrets, faults, record

KEYS = [
    ("plain-key-1234", "plain-token-5678"),
    ('quoted"key\\1', "a%2Fb%zz+ c=&d?"),
    ("schlüssel-ß-☃", "token/+=\U0001f511<b>"),
]


def _forms(secret: str) -> list[str]:
    return [
        secret,
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        quote(json.dumps(secret), safe=""),
        secret.replace("<", "&lt;").replace('"', "&quot;"),
        base64.b64encode(f"user:{secret}".encode()).decode(),
        secret.encode().hex(),
    ]


class Server:
    """A server that responds as a test says, and the base URL of which may have a path."""

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
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def _entries(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["log"]["entries"]


@pytest.mark.parametrize("kind", ["json", "html", "utf-16"])
@pytest.mark.parametrize(("key", "token"), KEYS)
async def test_no_credential_is_written(tmp_path: Path, server: Server, kind: str, key: str, token: str) -> None:
    """Not from queries and bodies, nor from what the service repeats in any form, whatever it responds."""
    texts = [form for secret in (key, token) for form in _forms(secret)]
    server.headers = {
        "X-Echo": quote(key + token),
        "Location": f"/?token={quote(token)}",
        "Set-Cookie": "s=1",
        "X-Token": "never",
    }
    server.headers["Retry-After"] = "0"
    server.body = {
        "json": json.dumps({"id": "c1", "name": texts, "desc": dict.fromkeys(texts, 1)}).encode(),
        "html": f"<p>{' '.join(texts)}</p>".encode(),
        "utf-16": f"{key} {token}".encode("utf-16"),
    }[kind]
    path = tmp_path / "calls.har"
    async with AsyncSession(StaticCredentials(token, key), server.base_url, retry=None) as session, record(path, session):
        for server.status in (200, 302, 400, 401, 403, 404, 429, 500):
            for call in (lambda: session.cards.create(f"x {token} {key}", list_id="l"), session.members.me):
                with contextlib.suppress(BoardClientError):
                    await call()
    text = path.read_text(encoding="utf-8")
    assert_no_secrets([text, [_body(entry["response"]["content"]) for entry in _entries(path)]], secrets=[key, token])
    assert "never" not in text
    assert "Set-Cookie" not in text
    assert len(_entries(path)) == 16


def _body(content: dict[str, Any]) -> bytes:
    text = content.get("text", "")
    return base64.b64decode(text) if content.get("encoding") == "base64" else text.encode()


async def test_a_short_credential_changes_no_names_and_numbers(server: Server) -> None:
    """A key of one character stands in every name by chance: values lose it, and the response can still be read."""
    server.body = b'{"id": "c1", "name": "kt", "kt": 17, "desc": "x"}'
    async with AsyncSession(StaticCredentials("t", "k"), server.base_url) as session, record(target=session) as recorder:
        await session.cards.get("1")
    (entry,) = recorder.recording.entries
    assert json.loads(entry["response"]["content"]["text"]) == {"id": "c1", "name": "******", "kt": 17, "desc": "x"}


async def test_a_body_without_credentials_is_recorded_as_it_is(server: Server) -> None:
    """A body that carries none, since they are in the query, keeps the order of its fields and its numbers."""
    server.body = b'{"id": "c1"}'
    credentials = StaticCredentials("t0ken-1234", "k3y-1234")
    async with AsyncSession(credentials, server.base_url, credentials_in="query") as session, record(target=session) as recorder:
        await session.request("POST", "/1/other", json={"b": 1.5, "a": "k3y-1234"})
    (entry,) = recorder.recording.entries
    assert json.loads(entry["request"]["postData"]["text"]) == {"b": 1.5, "a": "***"}


async def test_headers_of_the_session_are_not_written(tmp_path: Path, server: Server) -> None:
    """A credential for a proxy or gateway may be repeated as well, and further texts can be named."""
    server.body = b'{"id": "c1", "name": "gateway-secret-77 other-secret-88"}'
    options: dict[str, Any] = {"headers": {"Authorization": "Bearer gateway-secret-77", "X-Plain": "a"}}
    session = AsyncSession(StaticCredentials("t0ken-1234", "k3y-1234"), server.base_url, **options)
    async with session, record(tmp_path / "calls.har", session, secrets=["other-secret-88"]):
        await session.cards.get("c1")
    (entry,) = _entries(tmp_path / "calls.har")
    assert json.loads(entry["response"]["content"]["text"])["name"] == "*** ***"


async def _renew(service: BoardService) -> list[str]:
    """Sign in, let the token expire, and be refused at last."""
    secrets = [service.key, service.client_secret, service.token]
    async with service.session(service.oauth_credentials(), retry=None) as session:
        await session.boards.create("Party")
        service.rules.expire_tokens()
        await session.boards.create("Again")
    refused = service.oauth_credentials(client_secret="another-client-secret")
    async with service.session(refused, retry=None) as session:
        with pytest.raises(BoardClientError):
            await session.boards.create("Never")
    return [*secrets, "another-client-secret", *service.rules.tokens]


@pytest.mark.parametrize("answer", ["rfc6749", "token", "form"])
async def test_no_secret_of_the_exchange_is_written(tmp_path: Path, answer: Any) -> None:
    """Codes, client secrets, old and new tokens are not in the file, and the tokens have placeholders that differ."""
    path = tmp_path / "calls.har"
    async with BoardService(exchange_answer=answer) as service, record(path, service):
        secrets = await _renew(service)
    secrets += [call.body["code"] for call in service.calls_of("token.exchange")]
    secrets += [call.query["token"] for call in service.calls if "token" in call.query]
    text = path.read_text(encoding="utf-8")
    assert_no_secrets(text, secrets=secrets)
    assert "replayed-token-1" in text
    assert "replayed-token-2" in text


@pytest.mark.parametrize(
    ("body", "status", "kept"),
    [
        (b"bare-token-123456==", 200, "replayed-token-1"),
        (b'"bare-token-123456"', 200, '"replayed-token-1"'),
        (b'{"data": {"access_token": "bare-token-123456"}, "ok": ["bare-token-123456", 1]}', 200, "replayed-token-1"),
        (b"[" * 200 + b'"bare-token-123456"' + b"]" * 200, 200, "replayed-token-1"),
        (b'{"detail": "no such client s3cret-s3cret"}', 400, "no such client ***"),
        (b'{"token_type": "bearer"}', 200, '{"token_type": "bearer"}'),
        (b'{"t": "abc"}', 200, '{"t": "replayed-token-1"}'),
    ],
)
async def test_an_exchange_of_another_shape_is_not_written(server: Server, body: bytes, status: int, kept: str) -> None:
    """What may be a token is replaced, wherever it stands; a refusal keeps its words, since they may matter to the test."""
    server.body, server.status = body, status
    async with BoardService() as service:
        credentials = service.oauth_credentials(auth_url=f"{server.base_url}/auth", client_secret="s3cret-s3cret")
        async with AsyncSession(credentials, server.base_url, retry=None) as session, record(target=session) as recorder:
            with contextlib.suppress(BoardClientError):
                await session.members.me()
    found = recorder.recording.entries[0]
    assert found["comment"] == "token.exchange"
    assert kept in found["response"]["content"]["text"]
    assert_no_secrets([*recorder.recording.entries], secrets=["bare-token-123456", "s3cret-s3cret"])


async def test_a_long_body_is_left_out(server: Server) -> None:
    """The recording says how long a body was, of a request and of a response."""
    server.body = b'{"id": "bcdefgh"}'
    async with AsyncSession(StaticCredentials("t", "k"), server.base_url) as session:
        with record(target=session, max_body_bytes=10) as recorder:
            await session.cards.create("a long name", list_id="l")
    (entry,) = recorder.recording.entries
    assert entry["response"]["content"]["comment"] == "17 bytes, more than max_body_bytes (10)"
    assert entry["response"]["content"]["text"] == entry["request"]["postData"]["text"] == ""


@pytest.mark.parametrize(
    ("base", "path", "recorded"),
    [
        ("", "/1/cards/1", "/1/cards/1"),
        ("/v/1/proxy", "/1/cards/1", "/1/cards/1"),
        ("", "/1/other/x", "/1/other/x?a=b&a=c"),
    ],
)
async def test_a_path_begins_behind_the_base_url(server: Server, base: str, path: str, recorded: str) -> None:
    """A recording fits wherever the service is, and credentials in a query are stars."""
    async with AsyncSession(StaticCredentials("t0ken-t0ken", "k3y-k3y-k3y"), server.base_url + base) as session:
        with record(target=session) as recorder:
            await session.request("GET", path, params={"a": ["b", "c"]} if "other" in path else None)
    (entry,) = recorder.recording.entries
    assert entry["request"]["url"].startswith(f"{server.base_url}{base}{recorded}")
    assert {"name": "token", "value": "***"} in entry["request"]["queryString"]


async def test_only_the_target_is_recorded(service: BoardService) -> None:
    """A session with its views, a service, or everything; and nothing once the block has ended."""
    async with service.session() as one, service.session() as other, BoardService() as second, second.session() as third:
        with record() as everything, record(target=one) as of_one, record(target=service) as of_service:
            for session in (one, one.with_options(retry=None), other, third):
                await session.members.me()
            assert len(of_one.recording.entries) == 2
        await one.members.me()
    assert [len(each.recording.entries) for each in (everything, of_one, of_service)] == [4, 2, 3]
    assert repr(everything) == "<Recorder of 0 requests>"


async def test_the_file_is_written_when_the_block_fails(service: BoardService, tmp_path: Path) -> None:
    """What was recorded until then is what one wants to look at. The folder is made."""
    path = tmp_path / "new" / "calls.har"
    async with service.session() as session:
        with pytest.raises(ZeroDivisionError):
            async with record(path, session):
                await session.members.me()
                raise ZeroDivisionError
    assert [one["comment"] for one in Recording.load(path).entries] == ["members.me"]
    assert [one.name for one in path.parent.iterdir()] == ["calls.har"]


def test_a_folder_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """A test must not run for nothing."""
    with pytest.raises(IsADirectoryError, match="name a file"):
        record(tmp_path).__enter__()


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier recording is not lost, and nothing lies beside it."""
    path = tmp_path / "calls.har"
    path.write_text("earlier")
    monkeypatch.setattr(Path, "replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        Recording([]).save(path)
    assert [one.read_text() for one in tmp_path.iterdir()] == ["earlier"]


async def test_a_cancelled_call_shows_nothing_of_the_recorder(service: BoardService) -> None:
    """The frames of a cancelled call hold no credential, and the request counts as unanswered."""
    service.faults.add(faults.hang(), "members.me")
    async with service.session(timeout=None) as session, record(target=session) as recorder:
        call = asyncio.create_task(session.members.me())
        await service.received("members.me")
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await call
        assert_no_secrets(caught.value, secrets=[service.key, service.token])
    assert recorder.recording.entries[0]["response"]["_boardclient"] == {"unanswered": {"stage": "send"}}


async def test_an_archive_has_all_that_its_format_requires(service: BoardService, tmp_path: Path) -> None:
    """Each field that HAR 1.2 requires is there, times are milliseconds, and failures have status 0."""
    async with service.session(retry=None) as session, record(tmp_path / "calls.har", session):
        await session.boards.create("Party")
        service.faults.add(faults.drop())
        with pytest.raises(BoardClientError):
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
    posted = json.loads(log["entries"][0]["request"]["postData"]["text"])
    assert posted == {"name": "Party", "key": "***", "token": "***"}
    assert [(one["response"]["status"], one["response"]["statusText"]) for one in log["entries"]] == [(200, "OK"), (0, "")]
