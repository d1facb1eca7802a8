"""The application at the top of docs/web.md loses no row, whatever it is sent and whenever it is ended."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_apps import HOST, Browser, Reply

from boardclient.testing import BoardService, faults

_GUIDE = (Path(__file__).parents[2] / "docs/web.md").read_text(encoding="utf-8")
_SOURCE = next(block for block in re.findall(r"^```python\n(.*?)^```$", _GUIDE, re.MULTILINE | re.DOTALL) if "csv" in block)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, consenting: BoardService) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDCLIENT_TOKENS", str(tmp_path / "tokens"))
    names: dict[str, Any] = {}
    exec(compile(_SOURCE, "app.py", "exec", dont_inherit=True), names)
    return names["app"]


def sending(client: TestClient) -> Any:
    async def send(method: str, target: str, headers: Mapping[str, str], **options: Any) -> Reply:
        client.cookies.clear()
        answer = await asyncio.to_thread(client.request, method, target, headers=headers, **options)
        return Reply(answer.status_code, answer.headers.multi_items(), answer.text)

    return send


def cookie_of(browser: Browser) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}


async def test_the_application_signs_in_uploads_and_shows_progress(app: Any, consenting: BoardService) -> None:
    """A user's upload is created in the background, quoted lines included, and only that user sees how far it is."""
    seeded = consenting.seed({"To Do": []})
    page = f"/boards/{seeded.id}"
    with TestClient(app, HOST, follow_redirects=False) as client:
        send = sending(client)
        ada, alan = Browser(send), Browser(send)
        for browser, member in zip((ada, alan), consenting.members, strict=True):
            assert (await browser.sign_in(member.id, page)).json() == []
        content = b'\xef\xbb\xbfname\r\n"Book\r\nthe hall"\r\n"Pay, ""now"""\r\n'
        started = await send("POST", f"{page}/lists/{seeded.lists['To Do']}/cards", cookie_of(ada), content=content)
        assert started.status == 202
        watched = await ada.fetch(started.json()["progress"], headers={"Accept": "text/event-stream"})
        assert watched.header("Content-Type") == "text/event-stream; charset=utf-8"
        last = json.loads(watched.text.rpartition("event: end\ndata: ")[2])
        assert (last["progress"]["created"], last["progress"]["total"]) == (2, 2)
        assert (await alan.fetch(started.json()["progress"])).status == 404
        assert sorted(card["name"] for card in (await ada.open(page)).json()) == ["Book\r\nthe hall", 'Pay, "now"']
        assert (await Browser(send).fetch(started.json()["progress"])).json()["login_url"] == "/login"
        for bad in (b"", b"title\nx\n", b"name\n\xff\n", b'name\n"open\n', b"name,desc\n,x\n"):
            refused = await send("POST", f"{page}/lists/1/cards", cookie_of(ada), content=bad)
            assert refused.status == (202 if not bad else 400), bad


async def test_a_file_that_is_too_large_is_refused_while_it_arrives(app: Any, consenting: BoardService) -> None:
    """The rest of the file is not read."""
    sent = 0

    def endless() -> Any:
        nonlocal sent
        yield b"name\n"
        while True:
            sent += 1
            yield b"x" * 2**20

    with TestClient(app, HOST, follow_redirects=False) as client:
        browser = Browser(sending(client))
        await browser.sign_in(consenting.members[0].id, f"/boards/{consenting.seed({'To Do': []}).id}")
        body = iter(endless())
        scope_body = b"".join(next(body) for _ in range(13))
        reply = await sending(client)("POST", "/boards/1/lists/1/cards", cookie_of(browser), content=scope_body)
    assert reply.status == 413
    assert not Path("uploads").exists()


async def test_an_upload_survives_the_end_of_the_server(consenting: BoardService, tmp_path: Path) -> None:
    """SIGTERM amid an upload loses no row and doubles none: the next start creates the rest."""
    (tmp_path / "app.py").write_text(_SOURCE)
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {**os.environ, "BOARDCLIENT_TOKENS": str(tmp_path / "tokens")}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    seeded = consenting.seed({"To Do": []})
    consenting.faults.rate_limit = faults.rate_limit(40, burst=10)

    async def send(method: str, target: str, headers: Mapping[str, str], content: bytes | None = None) -> Reply:
        address = f"http://127.0.0.1:{port}{target.removeprefix(HOST)}"
        request = urllib.request.Request(address, content, dict(headers), method=method)
        opener = urllib.request.build_opener(_NoRedirect)
        for _ in range(600):
            try:
                with await asyncio.to_thread(opener.open, request) as answer:
                    return Reply(answer.status, list(answer.headers.items()), answer.read().decode())
            except urllib.error.HTTPError as error:
                return Reply(error.code, list(error.headers.items()), error.read().decode())
            except OSError:
                await asyncio.sleep(0.05)
        raise AssertionError("the application did not start")

    rows = [f"Card {number}" for number in range(120)]
    text = io.StringIO()
    csv.writer(text).writerows([["name"], *([row] for row in rows)])
    for part in range(2):
        with subprocess.Popen(command, cwd=tmp_path, env=environment) as server_process:
            if part == 0:
                browser = Browser(send)
                await browser.sign_in(consenting.members[0].id, f"/boards/{seeded.id}")
                target = f"/boards/{seeded.id}/lists/{seeded.lists['To Do']}/cards"
                started = await send("POST", target, cookie_of(browser), text.getvalue().encode())
                assert started.status == 202
                await asyncio.to_thread(_wait_for, lambda: len(consenting.rules.cards) >= 20)
            else:
                consenting.faults.rate_limit = None
                await asyncio.to_thread(_wait_for, lambda: [*tmp_path.glob("uploads/*/end.json")])
            server_process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server_process.wait, 60) in (0, -signal.SIGTERM)
        if part == 0:
            assert 20 <= len(consenting.rules.cards) < 120
    assert sorted(card.name for card in consenting.rules.cards.values()) == sorted(rows)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


def _wait_for(condition: Any) -> None:
    import time

    end = time.monotonic() + 120
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")
