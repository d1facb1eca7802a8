"""The example web application, by the framework's test client, over a running service."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from waiting import wait_until
from webapp_helpers import COOKIE_SECRET, environment, load_app

from boardclient.testing import BoardService, assert_no_secrets, faults

PAGE = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JSON = {"accept": "application/json"}
CALLBACK = "https://testserver/callback"


@pytest.fixture(scope="module")
def webapp() -> ModuleType:
    return load_app()


@pytest.fixture
def service() -> Iterator[BoardService]:
    with BoardService(members=["Ada Lovelace", "Alan Turing"], redirect_uri=CALLBACK) as running:
        yield running


OpenClient = Callable[[], TestClient]


@pytest.fixture
def open_client(webapp: ModuleType, service: BoardService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenClient:
    """Return a function that makes a browser of the application; entered, it starts the application."""
    tmp_path.chmod(0o700)
    for name, value in environment(service, tmp_path / "tokens").items():
        monkeypatch.setenv(name, value)
    return lambda: TestClient(webapp.app, "https://testserver", headers=PAGE, follow_redirects=False)


@pytest.fixture
def client(open_client: OpenClient) -> Iterator[TestClient]:
    with open_client() as opened:
        yield opened


def begin(client: TestClient, return_to: str = "/") -> str:
    """Begin a sign-in; return its state."""
    response = client.get("/login", params={"return_to": return_to})
    assert response.status_code == 303
    return parse_qs(urlsplit(response.headers["location"]).query)["state"][0]


def sign_in(client: TestClient, service: BoardService, member: int = 0, return_to: str = "/"):
    code = service.new_code(member=service.members[member].id)
    return client.get("/callback", params={"code": code, "state": begin(client, return_to)})


def upload(client: TestClient, board, content: bytes = b"name,desc\nOne,first\nTwo,\nThree,\n"):
    return client.post(
        f"/boards/{board.id}/uploads", data={"list_id": board.lists["To Do"]}, files={"file": ("cards.csv", content)}
    )


def states(client: TestClient, path: str, last: str = "") -> list[dict]:
    response = client.get(f"{path}/events", headers={"accept": "text/event-stream", "last-event-id": last})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in response.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.splitlines())
        found.append(json.loads(fields["data"]))
        assert int(fields["id"]) == found[-1]["number"]
    return found


def test_a_user_signs_in_and_out(client: TestClient, service: BoardService) -> None:
    """The user is known from the sign-in to the sign-out, to people and to programs; nothing secret is shown."""
    assert client.get("/").status_code == 200
    assert 'href="/login?return_to=/"' in client.get("/").text
    done = sign_in(client, service, return_to="/me?x=1")
    assert (done.status_code, done.headers["location"]) == (303, "/me?x=1")
    assert client.get("/me", headers=JSON).json() == {"id": service.members[0].id}
    page = client.get("/me")
    assert service.members[0].id in page.text
    assert page.headers["cache-control"] == "no-store"
    shown = [page.text, *(str(value) for value in [*page.headers.values(), *client.cookies.values(), done.headers])]
    assert_no_secrets(shown, secrets=[service.client_secret, service.key, COOKIE_SECRET])
    out = client.post("/logout")
    assert (out.status_code, out.headers["location"]) == (303, "/")
    assert client.get("/me", headers=JSON).status_code == 401
    assert client.get("/logout").status_code == 405


def test_the_browser_forgets_the_boards_with_the_log_out(client: TestClient, service: BoardService) -> None:
    """The next user of the browser, or who looks into it, does not learn which boards were opened."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    client.get(f"/boards/{board.id}")
    assert client.cookies.get("boards")
    client.post("/logout")
    assert client.cookies.get("boards") is None


def test_a_board_is_a_page_or_json(client: TestClient, service: BoardService) -> None:
    board = service.seed({"To Do": ["Book <b>the</b> hall", "Invite"], "Done": ["Plan"]})
    sign_in(client, service)
    page = client.get(f"/boards/{board.id}")
    assert "Book &lt;b&gt;the&lt;/b&gt; hall" in page.text
    assert {"To Do", "Done", "Invite", "Plan"} <= set(page.text.replace("<", ">").split(">"))
    found = client.get(f"/boards/{board.id}", headers=JSON).json()
    assert [card["name"] for card in found["cards"]] == ["Book <b>the</b> hall", "Invite", "Plan"]
    assert board.id in client.get("/").text


@pytest.mark.parametrize("known", [{"b": "\ud83d"}, {"\ud83d": "Board"}, ["b"], "b"])
def test_boards_that_no_page_can_show_are_forgotten(client: TestClient, service: BoardService, known: Any) -> None:
    """A cookie of boards that the application did not write counts as none."""
    sign_in(client, service)
    client.cookies.set("boards", base64.urlsafe_b64encode(json.dumps([service.members[0].id, known]).encode()).decode())
    page = client.get("/")
    assert (page.status_code, "/boards/" in page.text) == (200, False)


def test_half_an_emoji_in_a_name_is_shown(client: TestClient, service: BoardService) -> None:
    """A name that the service has cut within a character is shown with a replacement character."""
    board = service.seed({"To Do": ["Invite"]})
    service.rules.cards[board.cards["Invite"]].name = "Invite \ud83d"
    sign_in(client, service)
    assert "Invite \ufffd" in client.get(f"/boards/{board.id}").text
    assert client.get(f"/boards/{board.id}", headers=JSON).json()["cards"][0]["name"] == "Invite \ufffd"


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (faults.status(503, {"Retry-After": "30"}), 502),
        (faults.status(429, {"Retry-After": "30"}), 503),
        (faults.foreign_body(b"<p>Away</p>", "text/html"), 502),
    ],
)
def test_a_service_that_fails_is_shown_as_an_error_page(
    client: TestClient, service: BoardService, fault: faults.status, status: int
) -> None:
    """An error of the service is a page for people and problem+json for programs, with its Retry-After."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    service.faults.add(fault, operation="boards.cards")
    page = client.get(f"/boards/{board.id}")
    assert (page.status_code, "<h1>" in page.text) == (status, True)
    assert page.headers.get("retry-after") == fault.headers.get("Retry-After")
    service.faults.add(fault, operation="boards.cards")
    problem = client.get(f"/boards/{board.id}", headers=JSON)
    assert problem.headers["content-type"] == "application/problem+json"
    assert (problem.status_code, problem.json()["status"]) == (status, status)


@pytest.mark.parametrize("headers", [{"hx-request": "true"}, {"sec-fetch-mode": "cors"}, {"x-requested-with": "XMLHttpRequest"}])
def test_a_script_gets_a_document_and_no_error_page(client: TestClient, headers: dict[str, str]) -> None:
    """A script is led to the login by the document, also if it accepts HTML. A browser is by a redirect."""
    refused = client.get("/me", headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")
    assert refused.json()["login_url"] == "/login"
    assert client.get("/me").headers["location"] == "/login?return_to=/me"


def test_a_service_that_does_not_answer_is_a_504(
    client: TestClient, service: BoardService, webapp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that the service keeps waiting ends with 504."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    monkeypatch.setattr(webapp, "PAGE_SECONDS", 0.1)
    service.faults.add(faults.hang(), operation="boards.cards")
    assert client.get(f"/boards/{board.id}").status_code == 504


@pytest.mark.parametrize(
    "path",
    ["/boards/unknown", "/boards/%0A", "/boards/a%5Cb", "/uploads/0", "/uploads/" + "a" * 400, "/uploads/..%2E", "/nowhere"],
)
def test_what_does_not_exist_has_an_error_page(client: TestClient, service: BoardService, path: str) -> None:
    """Unknown boards, uploads and pages are 404, and paths that cannot be one are 400, for people and programs."""
    sign_in(client, service)
    page = client.get(path)
    assert (page.status_code, "<h1>" in page.text) in {(404, True), (400, True)}
    assert client.get(path, headers=JSON).status_code == page.status_code


def test_failed_redirects_sign_no_user_in(client: TestClient, service: BoardService, open_client: OpenClient) -> None:
    """Replayed, foreign, refused and malformed redirects get a 400, and exchange nothing."""
    code, state = service.new_code(), begin(client)
    query = {"code": code, "state": state}
    bad = [
        client.get("/callback", params={**query, "state": "other"}),
        client.get("/callback", params={"error": "access_denied", "state": begin(client)}),
        client.get("/callback", params={"state": begin(client)}),
        client.get("/callback"),
        client.get(f"/callback?code={code}&code={code}&state={state}"),
    ]
    assert {response.status_code for response in bad} == {400}
    assert all("You are not signed in" in response.text for response in bad)
    assert service.calls_of("token.exchange") == []
    assert client.get("/callback", params=query).status_code == 303
    again = client.get("/callback", params=query)
    assert (again.status_code, again.headers["location"]) == (303, "/")
    other = client.get("/callback", params={**query, "state": "other"})
    assert (other.status_code, "You are signed in already" in other.text) == (400, True)
    client.post("/logout")
    assert client.get("/callback", params=query).status_code == 400
    assert len(service.calls_of("token.exchange")) == 1


def test_an_upload_is_watched(client: TestClient, service: BoardService) -> None:
    """Events report the progress; a browser that reconnects gets the events it missed, and is let go at the end."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    response = upload(client, board)
    path = response.headers["location"]
    assert (response.status_code, path.startswith("/uploads/")) == (303, True)
    seen = states(client, path)
    assert {"done": 3, "total": 3, "failed": [], "ended": "finished"}.items() <= seen[-1].items()
    assert sorted(card.name for card in service.rules.cards_of(board.id)) == ["One", "Three", "Two"]  # sent at the same time
    number = seen[-1]["number"]
    assert [state["number"] for state in states(client, path, str(number - 1))] == [number]
    for rubbish in ("rubbish", "-1", "9" * 5000):
        assert states(client, path, rubbish) == [seen[-1]]
    gone = client.get(f"{path}/events", headers={"last-event-id": str(number)})
    assert (gone.status_code, gone.content) == (204, b"")
    page = client.get(path)
    assert "3 of 3" in page.text
    assert "upload.js" not in page.text
    sign_in(client, service, member=1)
    assert client.get(path).status_code == client.get(f"{path}/events").status_code == 404


def test_cards_that_fail_are_named(client: TestClient, service: BoardService) -> None:
    """The events and the page of an upload name each card that failed."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    service.faults.add(faults.status(400), operation="cards.create", times=1)
    path = upload(client, board).headers["location"]
    (failed,) = states(client, path)[-1]["failed"]
    assert failed["state"] == "failed"
    assert failed["name"] in client.get(path).text


def test_another_worker_resumes_an_upload(open_client: OpenClient, service: BoardService) -> None:
    """The worker that gets the request for the progress runs it; each card is created once."""
    board = service.seed({"To Do": []})
    busy = service.faults.add(faults.status(429, {"Retry-After": "60"}), operation="cards.create", call=[2, 3])
    with open_client() as client:
        sign_in(client, service)
        path = upload(client, board).headers["location"]
        wait_until(lambda: "1 of 3" in client.get(path).text)
        cookies = client.cookies
    service.faults.remove(busy)
    with open_client() as client:
        client.cookies = cookies
        assert states(client, path)[-1]["ended"] == "finished"
    assert sorted(card.name for card in service.rules.cards_of(board.id)) == ["One", "Three", "Two"]


def test_files_without_valid_rows_are_refused(client: TestClient, service: BoardService) -> None:
    board = service.seed({"To Do": []})
    sign_in(client, service)
    for content in (b"", b"name\n", b"title\nOne\n", b"name\n\xff\n", b"name,desc\n,x\n", b'name\n"One'):
        assert upload(client, board, content).status_code == 400
    assert upload(client, board, b"name\n" + b"x" * 2**20).status_code == 413
    assert service.calls_of("cards.create") == []


@pytest.mark.parametrize(
    "content",
    [
        "sep=;\r\nName;Desc\r\nBücher;a\r\n;;\r\n".encode("utf-8-sig"),
        "name\tdesc\r\nBücher\ta\r\n".encode("utf-16"),
        "other|NAME|desc\nx|Bücher|a\n".encode(),
    ],
)
def test_files_of_spreadsheets_are_read(client: TestClient, service: BoardService, content: bytes) -> None:
    """Separators, UTF-16 and a line for Excel are read as the command line reads them."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    assert states(client, upload(client, board, content).headers["location"])[-1]["ended"] == "finished"
    assert [(card.name, card.desc) for card in service.rules.cards_of(board.id)] == [("Bücher", "a")]


def test_a_wrong_file_leads_back_to_the_board(client: TestClient, service: BoardService) -> None:
    """The page of the board says what is wrong with the file, and the list is still chosen. Programs get a document."""
    board = service.seed({"To Do": [], "Done": []})
    sign_in(client, service)
    sent = {"data": {"list_id": board.lists["Done"]}, "files": {"file": ("cards.csv", b"title\nOne\n")}}
    refused = client.post(f"/boards/{board.id}/uploads", **sent)
    assert (refused.status_code, "with a column “name”" in refused.text) == (400, True)
    assert f'<option value="{board.lists["Done"]}" selected>' in refused.text
    told = client.post(f"/boards/{board.id}/uploads", **sent, headers=JSON)
    assert (told.status_code, "with a column “name”" in told.json()["detail"]) == (400, True)
    large = client.post(f"/boards/{board.id}/uploads", data=sent["data"], files={"file": ("c.csv", b"x" * 2**20)})
    assert (large.status_code, f'href="/boards/{board.id}">Back to the board' in large.text) == (413, True)


def test_a_long_list_is_shown_in_parts(client: TestClient, service: BoardService) -> None:
    """A board of many cards is a small page, and leads to the rest of each list."""
    board = service.seed({"To Do": [f"Card {number:05}" for number in range(3000)], "Done": ["One"]})
    sign_in(client, service)
    first = client.get(f"/boards/{board.id}").text
    assert len(first) < 60_000
    assert ("1 to 50 of 3000" in first, "Card 00049" in first, "Card 00050" in first, "One" in first) == (True, True, False, True)
    link = re.findall(r'href="(\?list_id=[^"]+)">Later', first)[0].replace("&amp;", "&")
    second = client.get(f"/boards/{board.id}{link}").text
    assert ("51 to 100 of 3000" in second, "Card 00050" in second, ">One" in second) == (True, True, False)
    assert "Earlier" in second
    last = client.get(f"/boards/{board.id}", params={"list_id": board.lists["To Do"], "start": 2980}).text
    assert ("2981 to 3000 of 3000" in last, "Later" in last) == (True, False)


def test_the_bar_of_an_upload_never_falls(open_client: OpenClient, service: BoardService, webapp: ModuleType) -> None:
    """A run that resumes counts from its first row again; what was done stays done."""
    board = service.seed({"To Do": []})
    rows = [f"Card {number}" for number in range(30)]
    busy = service.faults.add(faults.status(429, {"Retry-After": "60"}), operation="cards.create", call=range(20, 99))
    with open_client() as client:
        sign_in(client, service)
        path = upload(client, board, "\n".join(["name", *rows]).encode()).headers["location"]
        wait_until(lambda: "19 of 30" in client.get(path).text)
        cookies = client.cookies
    service.faults.remove(busy)
    with open_client() as client:
        client.cookies = cookies
        done = [state["done"] for state in states(client, path)]
    assert (done == sorted(done), done[-1], done[0] >= 19) == (True, 30, True)


def form_of(page: str) -> str:
    """Return the token of the last form of a page."""
    return re.findall(r'name="form" value="([0-9a-f]{32})"', page)[-1]


@pytest.mark.parametrize("button", ["Add", "Upload", "Create"])
def test_two_clicks_on_a_button_are_one(client: TestClient, open_client: OpenClient, service: BoardService, button: str) -> None:
    """Both requests, at two workers, lead to the same place, and the service gets one."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    service.latency = 0.1
    form = form_of(client.get("/" if button == "Create" else f"/boards/{board.id}").text)
    list_id = board.lists["To Do"]

    def click(browser: TestClient) -> str:
        if button == "Create":
            response = browser.post("/boards", data={"form": form, "name": "Plans"})
        elif button == "Add":
            response = browser.post(f"/boards/{board.id}/cards", data={"form": form, "name": "Book", "list_id": list_id})
        else:
            file = {"file": ("cards.csv", b"name\nBook\n")}
            response = browser.post(f"/boards/{board.id}/uploads", data={"form": form, "list_id": list_id}, files=file)
        assert response.status_code == 303
        return response.headers["location"]

    with open_client() as other, ThreadPoolExecutor(2) as pool:
        other.cookies = client.cookies
        first, second = pool.submit(click, client), pool.submit(click, other)
        assert first.result() == second.result()
        if button == "Upload":
            assert states(client, first.result())[-1]["ended"] == "finished"
    service.latency = 0.0
    assert len(service.calls_of("boards.create" if button == "Create" else "cards.create")) == 1


def test_a_form_that_failed_for_certain_may_be_sent_again(client: TestClient, service: BoardService) -> None:
    """What the service refused is tried again. What it may have done is not: the page says so."""
    board = service.seed({"To Do": []})
    sign_in(client, service)
    data = {"form": form_of(client.get(f"/boards/{board.id}").text), "name": "Book", "list_id": board.lists["To Do"]}
    service.faults.add(faults.status(403), "cards.create", times=1)
    assert client.post(f"/boards/{board.id}/cards", data=data).status_code == 403
    assert client.post(f"/boards/{board.id}/cards", data=data).status_code == 303
    data["form"] = "0" * 32
    service.faults.add(faults.drop(commit=True), "cards.create", times=1)
    assert client.post(f"/boards/{board.id}/cards", data=data).status_code == 502
    sys.modules["once"].WAIT_SECONDS = 0.1
    again = client.post(f"/boards/{board.id}/cards", data=data)
    assert (again.status_code, "look before you send it again" in again.text) == (409, True)
    assert len(service.rules.cards_of(board.id)) == 2


def test_uploads_that_were_left_continue_at_the_start(open_client: OpenClient, service: BoardService, tmp_path: Path) -> None:
    """An upload that a worker left is resumed when the application starts, before anyone looks at it."""
    board = service.seed({"To Do": []})
    service.faults.add(faults.hang(), "cards.create")
    with open_client() as client:
        sign_in(client, service)
        upload(client, board)
        (tmp_path / "tokens.uploads" / "rubbish").mkdir()
        (tmp_path / "tokens.uploads" / "rubbish" / "plan.json").write_text("{")
    service.faults.clear()
    with open_client():
        wait_until(lambda: any('"finished"' in path.read_text() for path in tmp_path.glob("*/*/state.json")))
    assert sorted(card.name for card in service.rules.cards_of(board.id)) == ["One", "Three", "Two"]
