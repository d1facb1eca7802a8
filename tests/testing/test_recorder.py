"""What `record` writes: everything that was asked, in order, and no credential."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web
from multidict import CIMultiDict

from boardclient import AsyncSession, BoardClientError, StaticCredentials
from boardclient._transport import RawResponse
from boardclient._transport._pool import Pool
from boardclient.testing import BoardService, Recording, assert_no_secrets, faults, record
from boardclient.testing._loopback import LoopbackServer
from boardclient.testing._parsing import path_of
from boardclient.testing._recording import Body, RecordedResponse, Unanswered
from boardclient.testing._redacting import Captured, interactions_of

KEYS = [
    ("plain-key-1234", "plain-token-5678"),
    ('quoted"key\\1', "a%2Fb%zz+ c=&d?"),
    ("schlüssel-ß-☃", "token/+=\U0001f511<b>"),
    ("kk-9", "t'tt"),
]


def _forms(secret: str) -> list[str]:
    return [
        secret,
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        quote(json.dumps(secret), safe=""),
        secret.replace("<", "&lt;").replace('"', "&quot;"),
    ]


class Echo(LoopbackServer):
    """Writes what it was sent into bodies and headers, in several forms."""

    secrets: tuple[str, ...] = ()
    status = 200
    kind = "json"

    async def _respond(self, request) -> web.StreamResponse:
        await request.read()
        texts = [form for secret in self.secrets for form in _forms(secret)]
        headers = {"X-Echo": quote(" ".join(self.secrets)), "Location": f"/?token={quote(self.secrets[1])}", "Set-Cookie": "s=1"}
        headers |= {"X-Token": "never-shown", "Retry-After": "0"}
        if self.kind == "json":
            body = json.dumps(
                {"id": "c1", "name": texts, "desc": dict.fromkeys(texts, 1)}, ensure_ascii=len(texts) % 2 == 0
            ).encode()
        elif self.kind == "utf-16":
            body = " ".join(self.secrets).encode("utf-16")
        else:
            body = f"<p>{' '.join(texts)}</p>".encode()
        return web.Response(status=self.status, body=body, headers=headers, content_type="text/plain")


def _searched(path: Path, secrets: list[str]) -> None:
    text = path.read_text(encoding="utf-8")
    assert_no_secrets(text, secrets=secrets)
    assert "never-shown" not in text
    assert "Set-Cookie" not in text


@pytest.mark.parametrize("kind", ["json", "html", "utf-16"])
@pytest.mark.parametrize(("key", "token"), KEYS)
async def test_no_credential_is_written(tmp_path: Path, kind: str, key: str, token: str) -> None:
    """Not from queries and bodies, nor from what the service echoes in any form, whatever it responds."""
    server = Echo()
    server.secrets, server.kind = (key, token), kind
    path = tmp_path / "calls.json"
    async with server, AsyncSession(StaticCredentials(token, key), server.base_url, retry=None) as session:
        async with record(path, session) as recorder:
            for server.status in (200, 302, 400, 401, 403, 404, 429, 500):
                for call in (
                    lambda: session.cards.create(f"x {token} {key}", list_id="l"),
                    lambda: session.cards.get("c1"),
                    lambda: session.members.me(),
                ):
                    with contextlib.suppress(BoardClientError):
                        await call()
        recorder.recording.save(tmp_path / "calls.har")
    distinct = [secret for secret in (key, token) if len(secret) > 4]
    searched = distinct or [key, token]
    if kind == "json" and not distinct:  # a short secret stays in the names of fields
        text = json.dumps(
            [one.get("response", {}).get("json", {}).get("name") for one in json.loads(path.read_text())["interactions"]]
        )
        assert_no_secrets(text, secrets=searched)
        return
    _searched(path, searched)
    _searched(tmp_path / "calls.har", searched)


async def test_headers_of_the_session_are_not_written(tmp_path: Path) -> None:
    """A credential for a proxy or gateway may be echoed as well."""
    server = Echo()
    server.secrets = ("gateway-secret-77", "other-secret-88")
    options = {"headers": {"Authorization": "Bearer gateway-secret-77"}}
    async with server:
        session = AsyncSession(StaticCredentials("t0ken-1234", "k3y-1234"), server.base_url, **options)
        async with session, record(tmp_path / "calls.json", session, secrets=["other-secret-88"]):
            await session.cards.get("c1")
    _searched(tmp_path / "calls.json", list(server.secrets))


async def _renew(service: BoardService) -> list[str]:
    """Sign in, let the token expire, and be refused at last."""
    secrets = [service.key, service.client_secret, service.token]
    credentials = service.oauth_credentials()
    async with service.session(credentials, retry=None) as session:
        await session.boards.create("Party")
        service.rules.expire_tokens()
        await session.boards.create("Again")
    refused = service.oauth_credentials(client_secret="another-client-secret")
    async with service.session(refused, retry=None) as session:
        with pytest.raises(BoardClientError):
            await session.boards.create("Never")
    return [*secrets, "another-client-secret", *service.rules.tokens]


@pytest.mark.parametrize("answer", ["rfc6749", "token", "form"])
async def test_no_secret_of_the_exchange_is_written(tmp_path: Path, answer: str) -> None:
    """Codes, client secrets, old and new tokens are not in the file, and the tokens have placeholders that differ."""
    async with BoardService(exchange_answer=answer) as service, record(tmp_path / "calls.json", service):
        secrets = await _renew(service)
    secrets += [call.body["code"] for call in service.calls_of("token.exchange")]
    secrets += [call.query["token"] for call in service.calls if "token" in call.query]
    _searched(tmp_path / "calls.json", secrets)
    text = (tmp_path / "calls.json").read_text()
    assert "replayed-token-1" in text
    assert "replayed-token-2" in text


def _captured(outcome: object, **changes: object) -> Captured:
    given: dict = {
        "method": "POST",
        "url": "https://h/auth/1/OAuthGetAccessToken",
        "body": b"client_id=app&client_secret=s3cret-s3cret&code=c0de-c0de&redirect_uri=u",
        "content_type": "application/x-www-form-urlencoded",
        "own_headers": {},
        "started": 0.0,
        "outcome": outcome,
    }
    return Captured(**{**given, **changes})


@pytest.mark.parametrize(
    "body",
    [
        b"bare-token-123456==",
        b'"bare-token-123456"',
        b'{"data": {"access_token": "bare-token-123456"}, "ok": ["bare-token-123456", 1]}',
        b"[" * 200 + b'"bare-token-123456"' + b"]" * 200,
    ],
)
def test_an_exchange_of_another_shape_is_not_written(body: bytes) -> None:
    """What may be a token is replaced, wherever it stands in the response."""
    found = [*interactions_of([_captured(RawResponse(200, {}, body))], [], 2**20)]
    assert "bare-token-123456" not in repr(found)
    assert "replayed-token-1" in repr(found[0])
    assert "s3cret" not in repr(found)


def test_nothing_is_changed_where_there_is_no_secret() -> None:
    """A request without credentials is recorded as it is, whatever the session adds to it."""
    one = _captured(
        RawResponse(200, {"X-A": "b"}, b"[1]"), method="GET", url="https://h/1/x", body=None, own_headers={"X-Plain": "a"}
    )
    (found,) = interactions_of([one], [], 2**20)
    assert found.outcome == RecordedResponse(status=200, headers={"X-A": "b"}, body=Body("json", [1]))


def test_a_refused_exchange_keeps_its_words() -> None:
    """A refusal is no token: what it says may matter to the test."""
    found = [*interactions_of([_captured(RawResponse(400, {}, b'{"detail": "no such client s3cret-s3cret"}'))], [], 2**20)]
    assert found[0].outcome.body == Body("json", {"detail": "no such client ***"})


def test_several_values_of_a_name_are_kept() -> None:
    """Several values of a parameter or header are recorded, none of them with a secret."""
    headers = CIMultiDict([("X-A", "1"), ("X-A", "two s3cret-s3cret"), ("Content-Type", "text/plain")])
    one = _captured(
        RawResponse(200, headers, b"\xff s3cret-s3cret"), url="https://h/1/x?a=1&a=s3cret-s3cret", body=b"text", content_type=""
    )
    (found,) = interactions_of([one], ["s3cret-s3cret"], 2**20)
    assert found.request.query == {"a": ["1", "***"]}
    assert found.request.body == Body("text", "text")
    assert found.outcome.headers == {"Content-Type": "text/plain", "X-A": ["1", "two ***"]}
    assert found.outcome.body.encode() == b"\xff ***"


def test_a_long_body_is_left_out() -> None:
    """The recording says how long it was."""
    one = _captured(
        RawResponse(200, {}, b'{"a": "bcdefgh"}'), url="https://h/x", body=b'{"token": "t", "a": "bcdefgh"}', content_type=""
    )
    (found,) = interactions_of([one], [], 10)
    assert found.outcome.body.kind == found.request.body.kind == "left_out"
    assert "16 bytes" in found.outcome.body.value


def test_credentials_in_a_query_or_body_that_is_not_theirs() -> None:
    """A key alone, a body that is a list, and a form without fields are recorded as they are."""
    listed = _captured(
        None, url="https://h/1/cards/t0ken-t0ken?token=t0ken-t0ken", body=b'["t0ken-t0ken"]', content_type="application/json"
    )
    (found,) = interactions_of([listed], [], 2**20)
    assert found.request.path == "/1/cards/***"
    assert found.request.body == Body("json", ["***"])
    assert found.outcome == Unanswered(stage="idle")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://h/1/boards/1/cards?a=b", "/1/boards/1/cards?a=b"),
        ("https://h/v/1/proxy/1/cards/1", "/1/cards/1"),
        ("https://h/auth/1/OAuthGetAccessToken", "/1/OAuthGetAccessToken"),
        ("https://h/x/1/other", "/1/other"),
        ("https://h/x", "/x"),
        ("https://h", "/"),
    ],
)
def test_a_path_begins_behind_the_base_url(url: str, path: str) -> None:
    """A recording fits wherever the service is."""
    assert path_of(url) == path


async def test_only_the_target_is_recorded(service: BoardService) -> None:
    """A session with its views, a service, or everything; and nothing once the block has ended."""
    async with service.session() as one, service.session() as other, BoardService() as second, second.session() as third:
        with record() as everything, record(target=one) as of_one, record(target=service) as of_service:
            for session in (one, one.with_options(retry=None), other, third):
                await session.members.me()
            assert len(of_one.recording.interactions) == 2
        await one.members.me()
    assert Pool.relay is None
    assert [len(each.recording.interactions) for each in (everything, of_one, of_service)] == [4, 2, 3]
    assert repr(everything) == "<Recorder of 0 requests>"


async def test_the_file_is_written_when_the_block_fails(service: BoardService, tmp_path: Path) -> None:
    """What was recorded until then is what one wants to look at. The folder is made."""
    path = tmp_path / "new" / "calls.json"
    async with service.session() as session:
        with pytest.raises(ZeroDivisionError):
            async with record(path, session):
                await session.members.me()
                raise ZeroDivisionError
    assert [one.request.operation for one in Recording.load(path).interactions] == ["members.me"]
    assert [one.name for one in path.parent.iterdir()] == ["calls.json"]


def test_a_folder_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """A test must not run for nothing."""
    with pytest.raises(IsADirectoryError, match="name a file"):
        record(tmp_path).__enter__()


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
    assert recorder.recording.interactions[0].outcome == Unanswered(stage="send")
