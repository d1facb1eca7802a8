"""What the adapters read from requests, and what errors become: tables, with Starlette's adapter and without a server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from web_apps import FETCH, PAGE, Browser, MakeSignIn, asynchronous_client, starlette_app

from boardclient import (
    ApiError,
    AuthenticationError,
    BoardClientError,
    ConsentRequired,
    CredentialError,
    DeadlineError,
    InvalidIdentifierError,
    JournalError,
    NotFoundError,
    RateLimitError,
    ServerError,
    SessionClosedError,
    TransportError,
)
from boardclient.integrations.asgi import OriginGuard, Problem
from boardclient.integrations.starlette import StarletteBoards
from boardclient.testing import BoardService
from boardclient.web import SignInError

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
BOARDS = StarletteBoards(lambda: pytest.fail("no session is needed"))
CONSENT = ConsentRequired("m", "ada", "/login")


def scope_of(method: str, headers: Mapping[str, str], path: str = "/boards/1", query: bytes = b"x=1", **more: Any) -> Any:
    given = [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "query_string": query, "headers": given, **more}


def answered(error: Exception, headers: Mapping[str, str] = FETCH, method: str = "GET", **scope: Any) -> Response:
    return asyncio.run(BOARDS.handle(Request(scope_of(method, headers, **scope)), error))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Mode": "navigate"}, 303),
        ({"Sec-Fetch-Mode": "navigate", "HX-Request": "true", "HX-Boosted": "true"}, 401),
        ({"Sec-Fetch-Mode": "cors", "Accept": HTML}, 401),
        ({"Sec-Fetch-Mode": "same-origin", "Accept": HTML}, 401),
        ({"Accept": HTML}, 303),
        ({"Accept": "application/json, TEXT/HTML ;level=1"}, 303),
        ({"Accept": HTML, "X-Requested-With": "XMLHttpRequest"}, 401),
        ({"Accept": "text/event-stream"}, 401),
        ({"Accept": "*/*"}, 401),
        ({}, 401),
    ],
)
def test_only_a_navigation_of_a_browser_is_led_to_the_login(headers: dict[str, str], status: int) -> None:
    """Old browsers, and plain http, are recognised by `Accept`."""
    assert answered(CONSENT, headers).status_code == status


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, False),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}, True),
        ({"Origin": "https://app.example"}, False),
        ({"Origin": "https://app.example:8443"}, True),
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "http://["}, True),
        ({"Origin": "null"}, True),
    ],
)
async def test_which_requests_of_other_origins_are_refused(headers: dict[str, str], is_refused: bool) -> None:
    """Sec-Fetch-Site decides where a browser sends it, otherwise Origin; programs send neither. Reading is safe."""

    async def status(method: str, boards: StarletteBoards = BOARDS, **more: Any) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        guard = OriginGuard(PlainTextResponse("inner"), boards)
        await guard(scope_of(method, {"Host": "app.example", **headers}, **more), None, send)  # type: ignore[arg-type]  # -- unread
        return int(sent[0]["status"])

    for method in ("POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        assert await status(method) == (403 if is_refused else 200)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert await status(method) == 200
    headers["Upgrade"] = "WebSocket"  # as servers without ASGI's websockets pass it on
    assert await status("GET") == (403 if is_refused else 200)
    if "Origin" in headers:
        assert await status("POST", StarletteBoards(BOARDS.app_session, origins=[headers["Origin"]])) == 200


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ({"path": "/me", "query": b""}, "/me"),
        ({"path": "/me", "query": b"a=%2F&b"}, "/me?a=%2F&b"),
        ({"path": "/app/me", "root_path": "/app"}, "/app/me?x=1"),
        ({"path": "/me", "root_path": "/app/"}, "/app/me?x=1"),
        ({"path": "/application", "root_path": "/app"}, "/app/application?x=1"),
        ({"path": "/app", "root_path": "/app"}, "/app?x=1"),
        ({"path": "/ä b\r\n?#", "query": b""}, "/%C3%A4%20b%0D%0A%3F%23"),
        ({"path": "/\udcff", "query": b""}, "/%3F"),
    ],
)
def test_the_login_leads_back_to_the_page(scope: dict[str, Any], target: str) -> None:
    """Mounted applications and servers of both readings of ASGI give the whole path, percent-encoded."""
    below = scope.get("root_path", "").rstrip("/")
    assert answered(CONSENT, PAGE, **scope).headers["Location"] == f"{below}/login?return_to={quote(target, safe='/')}"


@pytest.mark.parametrize(
    ("referer", "page"),
    [
        ("http://app.example/form?a=b#c", "/form%3Fa%3Db"),
        ("http://app.example/form", "/form"),
        ("http://evil.example/form", "/"),
        ("", "/"),
        ("http://[broken", "/"),
    ],
)
def test_a_form_leads_back_to_its_page(referer: str, page: str) -> None:
    """After a sign-in, a browser asks with GET: for what the form stood on, not for what it was sent to."""
    response = answered(CONSENT, {**PAGE, "Host": "app.example", "Referer": referer}, "POST")
    assert response.headers["Location"] == f"/login?return_to={page}"


async def test_a_server_may_split_cookies(consenting: BoardService, make: MakeSignIn) -> None:
    """HTTP/2 allows a header for each cookie."""
    async with asynchronous_client(starlette_app(make)) as send:
        browser = Browser(send)
        await browser.sign_in(consenting.members[0].id)
        split = [("Cookie", "a=1"), *(("Cookie", f"{name}={value}") for name, value in browser.cookies.items())]
        assert (await send("GET", "/me", split)).status == 200  # type: ignore[arg-type]  # -- httpx takes pairs


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConsentRequired("m", "ada"), 401),
        (InvalidIdentifierError("card_id must not be empty"), 404),
        (NotFoundError("m", 404), 404),
        (AuthenticationError("m", 401), 502),
        (RateLimitError("m", 429), 503),
        (ServerError("m", 503), 502),
        (ApiError("m", 418), 502),
        (TransportError("m"), 502),
        (DeadlineError("m"), 504),
        (CredentialError("m"), 503),
        (SessionClosedError("m"), 503),
        (JournalError("m"), 500),
        (BoardClientError("m"), 500),
        (SignInError("m", "expired"), 400),
    ],
)
@pytest.mark.parametrize("headers", [PAGE, FETCH], ids=["page", "fetch"])
def test_status_and_document(error: BoardClientError, status: int, headers: Mapping[str, str]) -> None:
    """Each error becomes a page or a problem document with its suggested status, also consent without a login."""
    response = answered(error, headers)
    assert (response.status_code, error.suggested_status) == (status, status)
    assert response.headers["Content-Length"] == str(len(response.body))
    if headers is PAGE:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert (b"<p>M.</p>" in response.body) is isinstance(error, SignInError)
        return
    document = json.loads(response.body)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"] != "m" or isinstance(error, SignInError)
    assert Problem.of(error).document == document


def test_what_failed_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Messages name hosts and paths of the service: they are for the operator. What a user typed is no failure."""
    caplog.set_level(logging.INFO, "boardclient")
    assert b"internal" not in answered(TransportError("no connection to internal.example:443")).body
    assert "responded to GET /boards/1 with 502: no connection to internal.example:443" in caplog.text
    assert "x=1" not in caplog.text
    caplog.clear()
    answered(NotFoundError("m", 404))
    answered(ConsentRequired("m"))
    assert caplog.records == []


def test_a_failed_sign_in_has_a_reason() -> None:
    """The reason is a separate member; only mistakes of the user are explained. Its cookies are sent along."""
    refused = answered(SignInError("the user refused", "refused", ("a=1; Path=/", "b=2; Path=/")))
    assert refused.headers.getlist("Set-Cookie") == ["a=1; Path=/", "b=2; Path=/"]
    document = json.loads(refused.body)
    assert (document["reason"], document["detail"]) == ("refused", "the user refused")
    assert b"internal" not in answered(SignInError("POST https://internal.example: status 500", "failed")).body


def test_consent_names_the_login_and_not_the_account() -> None:
    """A login path may have a query of its own."""
    themed = ConsentRequired("m", "ada", "/login?theme=dark")
    assert answered(themed, PAGE).headers["Location"] == "/login?theme=dark&return_to=/boards/1%3Fx%3D1"
    fetched = answered(themed)
    assert (fetched.status_code, json.loads(fetched.body)["login_url"]) == (401, "/login?theme=dark")
    assert "Location" not in fetched.headers
    assert b"ada" not in fetched.body


def test_a_group_of_errors_gets_one_response() -> None:
    """Consent comes first, then the gravest; a group with errors of others is the application's own affair."""
    group = ExceptionGroup("", [NotFoundError("m", 404), ExceptionGroup("", [TransportError("m")])])
    assert answered(group).status_code == 502
    assert json.loads(answered(group).body)["effect"] == "unknown"
    assert answered(ExceptionGroup("", [group, CONSENT]), PAGE).status_code == 303
    for error in (ExceptionGroup("", [group, ValueError()]), ValueError()):
        with pytest.raises(type(error)) as raised:
            answered(error)
        assert raised.value is error


@given(st.text(), st.text(), st.binary(), st.text(st.characters() | st.sampled_from("/?\udcff\ud83d")))
@example("/", "", b"", "\udcff")
def test_nothing_breaks_out_of_a_header(path: str, root: str, query: bytes, text: str) -> None:
    """Whatever a request holds, the redirect is one line of ASCII, and the return address one parameter of it."""
    kept = text.encode("utf-8", "replace").decode()
    headers = {**PAGE, "Host": "a.example", "Referer": f"http://a.example/{kept}", "Cookie": kept}
    for method in ("GET", "POST"):
        response = answered(CONSENT, headers, method, path=path, root_path=root, query=query)
        location = response.headers["Location"]
        assert response.status_code == 303
        assert location.isascii()
        assert location.isprintable()
        assert (location.count("?"), location.count("&")) == (1, 0)
