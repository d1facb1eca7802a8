"""The application of docs/web.md does what the guide says, with as little between the framework and the service."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from web_apps import HOST, Browser, Reply

from boardclient.testing import BoardService

_GUIDE = (Path(__file__).parents[2] / "docs/web.md").read_text(encoding="utf-8")
_SOURCE = re.findall(r"^```python\n(.*?)^```$", _GUIDE, re.MULTILINE | re.DOTALL)[0]
_MOST_LINES = 25


def test_the_guide_needs_few_lines_of_code() -> None:
    """Sign-in, errors, life, background uploads and their progress take few lines of code, imports aside."""
    glue = _SOURCE.split("# --- between FastAPI and the board service\n")[1].split("# --- the application\n")[0]
    assert len([line for line in glue.splitlines() if line.strip()]) <= _MOST_LINES


async def test_the_application_signs_in_uploads_and_shows_progress(consenting: BoardService) -> None:
    """A user's upload is created in the background, and only that user sees how far it is."""
    names: dict[str, Any] = {}
    exec(compile(_SOURCE, "app.py", "exec", dont_inherit=True), names)
    seeded = consenting.seed({"To Do": []})
    page = f"/boards/{seeded.id}"
    with TestClient(names["app"], HOST, follow_redirects=False) as client:

        async def send(method: str, target: str, headers: Mapping[str, str], **options: Any) -> Reply:
            client.cookies.clear()
            answer = await asyncio.to_thread(client.request, method, target, headers=headers, **options)
            return Reply(answer.status_code, answer.headers.multi_items(), answer.text)

        ada, alan = Browser(send), Browser(send)
        for browser, member in zip((ada, alan), consenting.members, strict=True):
            assert (await browser.sign_in(member.id, page)).json() == {"cards": []}
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in ada.cookies.items())}
        files = {"file": ("cards.csv", b"name\nBook the hall\nPay\n")}
        started = await send("POST", f"{page}/lists/{seeded.lists['To Do']}/cards", cookie, files=files)
        assert started.status == 202
        watched = await ada.fetch(started.json()["progress"], headers={"Accept": "text/event-stream"})
        assert watched.header("Content-Type") == "text/event-stream; charset=utf-8"
        last = watched.text.rpartition("event: end\ndata: ")[2]
        assert (json.loads(last)["created"], json.loads(last)["total"]) == (2, 2)
        assert (await alan.fetch(started.json()["progress"])).status == 404
        assert sorted((await ada.open(page)).json()["cards"]) == ["Book the hall", "Pay"]
        assert (await Browser(send).fetch(started.json()["progress"])).json()["login_url"] == "/login"
