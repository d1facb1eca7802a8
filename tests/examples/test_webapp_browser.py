"""The example web application in a browser: two worker processes on one token store, over a running service."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from waiting import SECONDS, wait_until
from webapp_helpers import FOLDER, environment

from boardclient.testing import BoardService, faults

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 375, "height": 740}
LIMIT_MILLISECONDS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        assert os.environ.get("CI") != "true", "Chromium is not installed: apt-get install chromium"
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def service(port: int) -> Iterator[BoardService]:
    with BoardService(members=["Ada Lovelace", "Alan Turing"], redirect_uri=f"http://127.0.0.1:{port}/callback") as running:
        yield running


@pytest.fixture(scope="module")
def server(service: BoardService, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application with two workers."""
    folder = tmp_path_factory.mktemp("webapp")
    folder.chmod(0o700)
    given = {**os.environ, **environment(service, folder / "tokens")}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "2", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=FOLDER, env=given, start_new_session=True) as running:
        try:
            wait_until_it_answers(running, f"http://127.0.0.1:{port}")
            yield running
            assert end(running) in (0, -signal.SIGTERM)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def site(server: subprocess.Popen[bytes], port: int) -> str:
    """Return the address of the application."""
    return f"http://127.0.0.1:{port}"


def end(server: subprocess.Popen[bytes]) -> int:
    """End the server as a process manager does; return its exit code."""
    server.terminate()
    return server.wait(SECONDS)


def wait_until_it_answers(server: subprocess.Popen[bytes], address: str) -> None:
    def answers() -> bool:
        assert server.poll() is None, "the application did not start"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=60).close()
            return True
        return False

    wait_until(answers)


@pytest.fixture
def context(browser: Browser, site: str) -> Iterator[BrowserContext]:
    with browser.new_context(base_url=site, viewport=PHONE, color_scheme="light") as opened:
        opened.set_default_timeout(LIMIT_MILLISECONDS)
        expect.set_options(timeout=LIMIT_MILLISECONDS)
        yield opened


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page where nothing fails: no script error, and nothing that the content security policy refuses."""
    opened, problems = context.new_page(), []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    yield opened
    assert problems == []


SOUND = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = numbers(colour).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((numbers(colour)[3] ?? 1) === 1) return colour;
    }
  };
  const faint = [...document.querySelectorAll("main *, header *")].filter(element => {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) return false;
    const [high, low] = [luminance(getComputedStyle(element).color), luminance(ground(element))].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05) < 4.5;
  });
  const inputs = [...document.querySelectorAll("input:not([type=hidden]), select, progress")];
  const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
  return {
    lang: document.documentElement.lang,
    title: document.title !== "",
    headings: document.querySelectorAll("h1").length,
    unlabelled: inputs.filter(input => !input.labels.length).length,
    unnamed: [...document.querySelectorAll("a, button, summary")].filter(element => !element.textContent.trim()).length,
    doubled: ids.length - new Set(ids).size,
    wide: document.documentElement.scrollWidth > innerWidth,
    faint: faint.map(element => element.textContent),
  };
}"""
"""What a page should have: https://www.w3.org/TR/WCAG22/ 1.1.1, 1.3.1, 1.4.3 (contrast), 1.4.10 (reflow), 2.4.2, 3.1.1."""


def show(page: Page, name: str) -> None:
    """See that a page is accessible, in light and dark."""
    page.wait_for_load_state("load")  # with the stylesheet
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(SOUND)
        assert found == {
            "lang": "en",
            "title": True,
            "headings": 1,
            "unlabelled": 0,
            "unnamed": 0,
            "doubled": 0,
            "wide": False,
            "faint": [],
        }, name


def sign_in(page: Page, member: str = "Ada Lovelace") -> None:
    page.get_by_role("button", name=f"Continue as {member}").click()


def press_until(page: Page, name: str, key: str = "Tab") -> None:
    """Press a key until what has this name has the focus, and see that the focus shows."""
    for _ in range(60):
        page.keyboard.press(key)
        focused = page.locator(":focus")
        if focused.count() and name in " ".join((focused.inner_text() or label_of(page)).split()):
            outline = focused.evaluate("element => getComputedStyle(element).outlineStyle")
            assert outline != "none", f"the focus of {name} does not show"
            return
    raise AssertionError(f"{key} does not lead to {name}")


def label_of(page: Page) -> str:
    return str(page.evaluate("document.activeElement.labels?.[0]?.textContent ?? ''"))


def test_all_of_it_by_keyboard(page: Page, service: BoardService) -> None:
    """A user signs in, creates a board, adds cards, moves one and signs out, without a mouse, on a phone's width."""
    page.goto("/")
    show(page, "landing")
    press_until(page, "Sign in")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Allow access to your boards?")).to_be_visible()
    press_until(page, "Continue as Ada Lovelace")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Your boards")).to_be_visible()
    press_until(page, "Name")
    page.keyboard.type("Summer fête")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Summer fête", level=1)).to_be_visible()
    expect(page).to_have_title(re.compile("^Summer fête"))
    press_until(page, "New card in To Do")
    for name in ("Book the hall", "Invite"):
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        expect(page.get_by_role("listitem").filter(has_text=name)).to_be_visible()
        expect(page.get_by_label("New card in To Do")).to_be_focused()
    press_until(page, "Book the hall Move", "Shift+Tab")
    page.keyboard.press("Enter")
    show(page, "board")
    press_until(page, "Move Book the hall to Done")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Done").get_by_role("listitem")).to_contain_text("Book the hall")
    press_until(page, "Account")
    page.keyboard.press("Enter")
    expect(page.get_by_text(service.members[0].id)).to_be_visible()
    show(page, "account")
    press_until(page, "To your boards")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name=re.compile("Summer fête"))).to_be_visible()
    show(page, "home")
    press_until(page, "Sign out")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    assert page.request.get("/me", headers={"accept": "application/json"}).status == 401


def test_an_upload_resumes_after_the_token_expired(page: Page, service: BoardService) -> None:
    """The page shows the progress live, asks for a sign-in when the token has expired, and shows the rest afterwards."""
    board = service.seed({"To Do": [], "Done": []})
    service.faults.rate_limit = faults.rate_limit(20, burst=10)
    page.goto(f"/boards/{board.id}")
    sign_in(page)
    rows = "\n".join(f"Card {number}" for number in range(120))
    page.get_by_label("CSV file").set_input_files(
        {"name": "cards.csv", "mimeType": "text/csv", "buffer": f"name\n{rows}\n".encode()}
    )
    page.get_by_role("button", name="Upload").click()
    status = page.get_by_role("status")
    expect(status).to_have_text(re.compile(r"^[1-9]\d* of 120"))
    show(page, "upload")
    assert page.get_by_role("progressbar").get_attribute("max") == "120"
    service.rules.expire_tokens()
    page.get_by_role("link", name="Sign in again to go on").click()
    service.faults.rate_limit = None
    sign_in(page)
    expect(page.get_by_role("heading", name="Uploaded")).to_be_visible()
    expect(status).to_have_text("120 of 120")
    show(page, "uploaded")
    page.get_by_role("link", name="To the board").click()
    region = page.get_by_role("region", name="To Do")
    expect(region.get_by_role("listitem")).to_have_count(50)
    region.get_by_role("link", name="Later").click()
    expect(region).to_contain_text("51 to 100 of 120")
    show(page, "a part of a list")
    assert len({card.name for card in service.rules.cards_of(board.id)}) == 120


def test_a_long_name_leaves_the_button_to_move_in_one_line(page: Page, service: BoardService) -> None:
    """On a phone a name of long words is broken, and "Move" is not."""
    board = service.seed({"To Do": ["x" * 200, "Book"], "Done": []})
    page.goto(f"/boards/{board.id}")
    sign_in(page)
    expect(page.locator(".move")).to_have_count(2)
    show(page, "a long name")
    lines = """found => found.map((one) => {
        const text = document.createRange();
        text.selectNodeContents(one);
        return text.getClientRects().length;
    })"""
    assert page.locator(".move").evaluate_all(lines) == [1, 1]


def test_a_wrong_file_is_named_beside_its_form(page: Page, service: BoardService) -> None:
    """The user is back at the board with the same list chosen, and reads what is wrong."""
    board = service.seed({"To Do": [], "Done": []})
    page.goto(f"/boards/{board.id}")
    sign_in(page)
    page.get_by_label("List", exact=True).select_option("Done")
    page.get_by_label("CSV file").set_input_files({"name": "c.csv", "mimeType": "text/csv", "buffer": b"title\nOne\n"})
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("with a column “name”")
    assert page.get_by_label("List", exact=True).input_value() == board.lists["Done"]
    show(page, "a wrong file")


def test_the_server_ends_while_a_page_watches(page: Page, service: BoardService, server: subprocess.Popen[bytes]) -> None:
    """The server does not wait for open event streams, which would stay open as long as the upload takes."""
    board = service.seed({"To Do": []})
    service.faults.add(faults.hang(), operation="cards.create", times=None)
    page.goto(f"/boards/{board.id}")
    sign_in(page)
    page.get_by_label("CSV file").set_input_files({"name": "c.csv", "mimeType": "text/csv", "buffer": b"name\nOne\n"})
    with page.expect_response(re.compile("/events$")):
        page.get_by_role("button", name="Upload").click()
    assert end(server) in (0, -signal.SIGTERM)
    expect(page.get_by_role("status")).to_have_text("This application can't be reached: trying again…")
