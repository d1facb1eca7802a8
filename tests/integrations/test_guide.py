"""The applications of the pages: the upload of docs/web-uploads.md loses no row, and the tutorial's serves guests and users."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from waiting import until
from web_apps import HOST, Browser, Reply

from boardclient.testing import BoardService, faults

_DOCS = Path(__file__).parents[2] / "docs"


def program(page: str, word: str) -> Any:
    """Return the application of a page, the first whose program has the word."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    source = next(block for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if word in block)
    names: dict[str, Any] = {}
    exec(compile(source, "app.py", "exec", dont_inherit=True), names)
    return names["app"]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, consenting: BoardService) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOARDCLIENT_TOKENS", str(tmp_path / "tokens"))
    return program("web-uploads.md", "csv")


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


async def test_an_upload_survives_the_end_of_the_server(app: Any, consenting: BoardService, tmp_path: Path) -> None:
    """An application that ends amid an upload loses no row and doubles none: its next start creates the rest."""
    seeded = consenting.seed({"To Do": []})
    rows = [f"Card {number}" for number in range(60)]
    consenting.faults.add(faults.status(429, {"Retry-After": "60"}), "cards.create", call=range(20, 1000))
    with TestClient(app, HOST, follow_redirects=False) as client:
        browser = Browser(sending(client))
        await browser.sign_in(consenting.members[0].id, f"/boards/{seeded.id}")
        target = f"/boards/{seeded.id}/lists/{seeded.lists['To Do']}/cards"
        content = "\n".join(["name", *rows]).encode()
        started = await sending(client)("POST", target, cookie_of(browser), content=content)
        await consenting.received("cards.create", 20)

        async def has_responded() -> bool:
            await browser.fetch(f"/boards/{seeded.id}")
            return all(call.status is not None for call in consenting.calls_of("cards.create"))

        await until(has_responded)
        await browser.fetch(f"/boards/{seeded.id}")  # by now the application has read all responses
    assert 0 < len(consenting.rules.cards) < 20
    consenting.faults.clear()
    with TestClient(app, HOST) as client:
        browser.send = sending(client)
        watched = (await browser.fetch(started.json()["progress"])).text
    assert "event: end" in watched
    assert sorted(card.name for card in consenting.rules.cards.values()) == sorted(rows)


async def test_the_tutorial_ends_with_an_application_for_guests_and_users(consenting: BoardService) -> None:
    """A user signs in, makes a board, sees a card that was made, and signs out to a page that needs no sign-in."""
    with TestClient(program("tutorials/web-application.md", "app"), HOST, follow_redirects=False) as client:
        send = sending(client)
        browser = Browser(send)
        assert "Sign in" in (await browser.open("/")).text
        assert (await browser.sign_in(consenting.members[0].id, "/boards/none")).status == 404
        page = await browser.open("/")
        assert ("New board" in page.text, "Sign out" in page.text) == (True, True)
        made = await send("POST", "/boards", cookie_of(browser), data={"name": "Launch"})
        address = made.header("Location") or ""
        shown = await browser.open(address)
        list_id = re.findall('name="list_id" value="([^"]+)"', shown.text)[0]
        added = await send("POST", address, cookie_of(browser), data={"name": "<Book>", "list_id": list_id})
        assert (added.status, added.header("Location")) == (303, address)
        assert "<li>&lt;Book&gt;</li>" in (await browser.open(address)).text
        left = await browser.open("/logout", "POST")
        assert "Sign in" in (await browser.open(left.header("Location") or "")).text
