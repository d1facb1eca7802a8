"""What errors say: the host, the cause in the words of the library that found it, what was waited for, and what to do."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_loop import Clock

from boardclient import (
    AsyncSession,
    BoardClientError,
    CardDraft,
    CredentialError,
    DecodeError,
    Effect,
    InvalidIdentifierError,
    OAuthCredentials,
    StaticCredentials,
)
from boardclient.testing import BoardService, assert_no_secrets, faults

OPTIONS_OF_CURL = subprocess.run(["/bin/sh", "-c", "curl --help all"], capture_output=True, text=True).stdout
KEY, TOKEN = "the-k3y'of-the-application", 'the t0ken"of$the-user'


async def error_of(call: Any) -> BoardClientError:
    with pytest.raises(BoardClientError) as caught:
        await call
    return caught.value


MAY_BE_DONE = "; the service may have done it: check before you send it again (docs/errors.md)"
IS_DONE = "; the status says that it was done: check before you send it again (docs/errors.md)"


async def test_a_creation_that_may_have_been_done_says_so(service: BoardService, loop_clock: Clock) -> None:
    """An error after which the creation may exist warns of repeating, unless a second request does no more than the first."""
    service.sleep = loop_clock.sleep
    faults_of_posts = (
        faults.drop(),
        faults.status(503),
        faults.hang(seconds=1),
        faults.foreign_body(b"<html>"),
        faults.status(404),
    )
    texts = []
    async with service.session(timeout=0.2, retry=None) as session:
        for fault in faults_of_posts:
            service.faults.add(fault)
            created = await error_of(session.boards.create("Party"))
            read = await error_of(session.cards.get("c"))
            service.faults.clear()
            assert (created.repeatable, read.repeatable) == (False, True)
            assert "check before" not in str(read)
            assert str(pickle.loads(pickle.dumps(created))) == created.args[0] == str(created)
            texts.append(str(created))
    async with service.session(retry=None) as session:
        service.faults.add(faults.drop(), times=1)
        card = await error_of(session.cards.create("Party", list_id="list"))
    assert str(card).endswith(MAY_BE_DONE)
    endings = [next((end for end in (MAY_BE_DONE, IS_DONE) if text.endswith(end)), "") for text in texts]
    assert endings == [MAY_BE_DONE, MAY_BE_DONE, MAY_BE_DONE, IS_DONE, ""]


async def test_no_error_advises_what_the_call_has_done(service: BoardService, tmp_path: Path) -> None:
    """A call that reads the board names the doubt and what it has found, and does not send the caller to check before."""
    board = service.seed({"To Do": []})
    place = {"list_id": board.lists["To Do"], "board_id": board.id}
    service.faults.add(faults.drop(), "cards.create")
    service.faults.add(faults.drop(), "lists.create")
    async with service.session(retry=None) as session:
        cards, lists = session.cards, session.lists
        calls = [
            cards.create("Party", **place, settle=0, probe=False),
            cards.create("Party", **place, unknown="report"),
            cards.create("Party", **place, reference="r", ledger=tmp_path / "a.ledger", settle=0, probe=False, patience=5),
            lists.create("Party", board_id=board.id, unknown="reconcile", settle=0),
        ]
        errors = [await error_of(call) for call in calls]
        (row,) = (await cards.create_many([CardDraft("Party", place["list_id"])])).problems
    assert row.error
    errors.append(row.error)
    assert {error.effect for error in errors} == {Effect.UNKNOWN}
    assert [str(error) for error in errors if "check before" in str(error) or "board_id=" in str(error)] == []


async def test_a_foreign_body_shows_its_beginning(service: BoardService) -> None:
    """A page in place of a response is shown with status and type, without the credentials that it echoes."""
    page = f"<html><title>Sign in to the hotel</title>{service.token}".encode()
    html = {"Content-Type": "text/html; charset=utf-8"}
    service.faults.add(faults.status(200, body=page, headers=html), "cards.get", times=1)
    service.faults.add(faults.status(502, body=page, headers=html), "cards.get", times=1)
    async with service.session(retry=None) as session:
        read = await error_of(session.cards.get("c"))
        failed = await error_of(session.cards.get("c"))
    assert isinstance(read, DecodeError)
    host = service.base_url[7:]
    shown = "text/html: <html><title>Sign in to the hotel</title>***"
    assert str(read).endswith(f"the body is not JSON (status 200 from {host}: {shown}); check base_url")
    assert str(failed) == f"GET /1/cards/c: status 502 from {host}: the service failed: {shown}"


async def test_a_refused_exchange_has_the_service_s_words(raw_server: Any) -> None:
    """A token exchange that is refused says where it was sent, and the service's own words without secrets."""
    secret = "the-s3cret-of-the-client"

    async def handler(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"error_description": f"The redirect address of {secret} is not registered, see abc123def."}).encode()
        writer.write(b"HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def authorize(request: object) -> str:
        return "the-c0de"

    async with raw_server.run(handler) as url:
        options = {"client_id": "i", "client_secret": secret, "redirect_uri": "https://a/b", "auth_url": url}
        async with AsyncSession(OAuthCredentials(**options, authorize=authorize), url) as session:  # type: ignore[arg-type]  # -- all texts
            error = await error_of(session.members.me())
    assert isinstance(error, CredentialError)
    assert (
        f"the service says: The redirect address of *** is not registered, see *** (sent to {url}/1/OAuthGetAccessToken)"
        in str(error)
    )
    assert_no_secrets(error, secrets=[secret, "the-c0de"])


# --- as_curl


def words_of(command: str) -> tuple[list[str], str]:
    """Return what a shell would start, with the credentials of this test, and what curl would read."""
    script = f'curl() {{ for word; do printf "%s\\0" "$word"; done; cat; }}; {command}'
    environment = {"BOARDCLIENT_KEY": KEY, "BOARDCLIENT_TOKEN": TOKEN}
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, env=environment)
    *words, read = done.stdout.decode().split("\0")
    assert not [word for word in words if KEY in word or TOKEN in word]
    return words, read


def configuration(option: str, *names: str) -> str:
    """Return what curl reads with -K."""
    values = {"key": KEY, "token": TOKEN}
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in values.items()}
    return "".join(f'{option} = "{name}={escaped[name]}"\n' for name in names)


async def command_of(method: str, path: str, key: str | None = KEY, place: Any = "body", **content: Any) -> str:
    """Return the command for a call that nothing listens to."""
    async with AsyncSession(StaticCredentials(TOKEN, key), "http://127.0.0.1:1", retry=None, credentials_in=place) as session:
        error = await error_of(session.request(method, path, **content))
    command = error.as_curl()
    assert command is not None
    return command


@pytest.mark.parametrize(
    ("key", "place", "query", "body"),
    [
        (KEY, "body", [], f'{{"key":"{KEY}","token":"{TOKEN}","name":"it\'s"}}'),
        (KEY, "query", ["key", "token"], '{"name":"it\'s"}'),
        (None, "body", ["token"], '{"name":"it\'s"}'),
    ],
)
async def test_a_command_puts_credentials_where_the_call_does(key: str | None, place: str, query: list[str], body: str) -> None:
    """The command has the credentials in the body or in the query, as the call had."""
    command = await command_of("POST", "/1/cards", key, place, params={"a": "b"}, json={"name": "it's"})
    words, read = words_of(command)
    content = ["-H", "Content-Type: application/json", "--data-binary", body if query else "@-", *(["-K", "-"] if query else [])]
    assert words[1:] == ["-X", "POST", "-H", "Accept: application/json", *content, "http://127.0.0.1:1/1/cards?a=b"]
    assert read == (configuration("url-query", *query) if query else body)


async def test_a_command_without_fields() -> None:
    """A reading has its credentials in the query, and names no content; an empty body holds the credentials alone."""
    url = "http://127.0.0.1:1/1/cards/c"
    words, read = words_of(await command_of("GET", "/1/cards/c"))
    assert words[1:] == ["-X", "GET", "-H", "Accept: application/json", "-G", "-K", "-", url]
    assert read == configuration("data-urlencode", "key", "token")
    assert words_of(await command_of("PUT", "/1/cards/c", json={}))[1] == f'{{"key":"{KEY}","token":"{TOKEN}"}}'


async def test_the_command_of_a_large_request_names_a_file() -> None:
    """A body of more than 64 KiB is that of a file, with the credentials in the query, and a long query is cut."""
    command = await command_of("POST", "/1/cards", json={"name": "n" * 2**16})
    words, read = words_of(command)
    assert words[-5:] == ["--data-binary", "@body.json", "-K", "-", "http://127.0.0.1:1/1/cards"]
    assert read == configuration("url-query", "key", "token")
    assert len(await command_of("GET", "/1/cards", params={"name": "n" * 2**17})) < 2**16 + 400
    command = await command_of("POST", "/1/cards", json={"name": "n" * 2**15})
    assert words_of(command)[0][-1] == "http://127.0.0.1:1/1/cards"


@pytest.mark.skipif("--url-query" not in OPTIONS_OF_CURL, reason="needs curl 7.87")
@pytest.mark.parametrize("place", ["body", "query"])
@pytest.mark.parametrize(
    ("method", "content"),
    [
        ("HEAD", {"params": {"fields[]": "{a},[1-3]"}}),
        ("GET", {"params": {"a": "b c"}}),
        ("DELETE", {}),
        ("POST", {"json": {"name": "it's $HOME `id`"}}),
        ("PUT", {"json": {}, "params": {"a": "b"}}),
    ],
)
async def test_curl_sends_what_the_call_sent(service: BoardService, method: str, content: Any, place: Any) -> None:
    """What curl sends by the command is the call's method, query and body, with whatever the credentials are made of."""
    key, token = "@k+ e%y", "t+%2B&k=1#[]{a,b}?é $@"
    service.faults.add(faults.status(503))
    async with service.session(StaticCredentials(token, key), retry=None, credentials_in=place) as session:
        error = await error_of(session.request(method, "/1/things", **content))
    environment = {**os.environ, "BOARDCLIENT_KEY": key, "BOARDCLIENT_TOKEN": token}
    command = f"{error.as_curl()} --max-time 60"
    curl = await asyncio.create_subprocess_shell(command, env=environment, stdout=subprocess.DEVNULL)
    assert await curl.wait() == 0
    called, repeated = [(call.method, call.query, call.body) for call in service.calls]
    assert repeated == called


@settings(max_examples=settings.default.max_examples * 30 // 100)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_name_can_be_part_of_a_shell_command(name: str) -> None:
    """Whatever a name holds, the shell passes it on as it is and runs nothing of it."""
    command = asyncio.run(command_of("POST", "/1/cards", json={"name": name}))
    assert json.loads(shlex.split(command)[2])["name"] == name


async def test_errors_show_their_request(service: BoardService) -> None:
    """An error of a call gives its request as a command that holds no secret; one before any request gives none."""
    async with service.session(retry=None) as session:
        error = await error_of(session.cards.create(f"n {service.token}", list_id="no-such-list"))
        unsent = await error_of(session.cards.get("c/d"))
    command = error.as_curl()
    assert command is not None
    assert command == pickle.loads(pickle.dumps(error)).as_curl() == copy.deepcopy(error).as_curl()
    assert " | curl -sS -X POST -H 'Accept: application/json' -H 'Content-Type: application/json' --data-binary @- " in command
    assert '"$BOARDCLIENT_KEY"' in command
    assert '"name":"n ***"' in command
    assert_no_secrets(command, secrets=[service.key, service.token])
    assert isinstance(unsent, InvalidIdentifierError)
    assert unsent.as_curl() is None
