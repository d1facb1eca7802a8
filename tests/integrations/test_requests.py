"""What is read from requests, and what errors become, without a framework."""

from __future__ import annotations

import json
import logging
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boardclient import (
    ApiError,
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
from boardclient.errors import Effect
from boardclient.integrations._http import IncomingRequest, OutgoingResponse, response_to
from boardclient.web import SignInError

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
PAGE = IncomingRequest.of("GET", "/boards/1?x=1", [("Sec-Fetch-Mode", "navigate")])
FETCH = IncomingRequest.of("GET", "/boards/1?x=1", [])


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"Sec-Fetch-Mode": "navigate"}, True),
        ({"Sec-Fetch-Mode": "navigate", "HX-Request": "true"}, False),
        ({"Sec-Fetch-Mode": "navigate", "HX-Request": "true", "HX-Boosted": "true"}, False),
        ({"Sec-Fetch-Mode": "cors", "Accept": HTML}, False),
        ({"Sec-Fetch-Mode": "same-origin", "Accept": HTML}, False),
        ({"Sec-Fetch-Mode": "no-cors", "Accept": HTML}, False),
        ({"Accept": HTML}, True),
        ({"Accept": "application/json, TEXT/HTML ;level=1"}, True),
        ({"Accept": "text/html;q=0.5"}, True),
        ({"Accept": HTML, "X-Requested-With": "XMLHttpRequest"}, False),
        ({"Accept": "text/event-stream"}, False),
        ({"Accept": "*/*"}, False),
        ({"Accept": ""}, False),
        ({}, False),
    ],
)
def test_only_a_navigation_of_a_browser_gets_a_page(headers: dict[str, str], wanted: bool) -> None:
    """Only a browser that navigates gets a page; old browsers, and plain http, are recognised by `Accept`."""
    assert IncomingRequest.of("GET", "/", headers.items()).wants_page is wanted


@pytest.mark.parametrize(
    ("headers", "is_cross_origin"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, False),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}, True),
        ({"Origin": "https://app.example"}, False),
        ({"Origin": "https://app.example:8443"}, True),
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "null"}, True),
    ],
)
def test_which_origin_sent_a_request(headers: dict[str, str], is_cross_origin: bool) -> None:
    """Sec-Fetch-Site decides where a browser sends it, otherwise Origin; programs send neither. Reading is safe."""
    given = {"Host": "app.example", **headers}.items()
    for method in ("POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        assert IncomingRequest.of(method, "/logout", given).is_forged(()) is is_cross_origin
    for method in ("GET", "HEAD", "OPTIONS"):
        assert not IncomingRequest.of(method, "/logout", given).is_forged(())
    websocket = IncomingRequest.of("GET", "/socket", given, is_websocket=True)
    assert websocket.is_forged(()) is is_cross_origin
    assert IncomingRequest.of("GET", "/socket", [*given, ("Upgrade", "WebSocket")]) == attrs.evolve(
        websocket, headers={**websocket.headers, "upgrade": "WebSocket"}
    )
    assert not IncomingRequest.of("POST", "/", [*given]).is_forged({headers.get("Origin")}) or "Origin" not in headers


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ({"path": "/me"}, "/me"),
        ({"path": "/me", "query_string": b"a=%2F&b"}, "/me?a=%2F&b"),
        ({"path": "/app/me", "root_path": "/app"}, "/app/me"),
        ({"path": "/me", "root_path": "/app/"}, "/app/me"),
        ({"path": "/application", "root_path": "/app"}, "/app/application"),
        ({"path": "/app", "root_path": "/app"}, "/app"),
        ({"path": "/ä b\r\n?#", "root_path": ""}, "/%C3%A4%20b%0D%0A%3F%23"),
        ({"path": "/\udcff"}, "/%3F"),
    ],
)
def test_the_target_of_a_scope(scope: dict[str, Any], target: str) -> None:
    """Mounted applications and servers of both readings of ASGI give the whole path, percent-encoded."""
    request = IncomingRequest.of_scope(
        {"headers": [(b"Cookie", b"a=1"), (b"cookie", b"b=2"), (b"X", b"1"), (b"x", b"2")], **scope}
    )
    assert (request.method, request.target) == ("GET", target)
    assert (request.path, request.query) == (target.partition("?")[0], target.partition("?")[2])
    assert (request.cookies, request.headers["x"]) == ("a=1; b=2", "1, 2")


@pytest.mark.parametrize(
    ("referer", "page"),
    [
        ("http://app.example/form?a=b#c", "/form?a=b"),
        ("http://app.example/form", "/form"),
        ("http://evil.example/form", "/"),
        ("", "/"),
        ("http://[broken", "/"),
    ],
)
def test_a_form_leads_back_to_its_page(referer: str, page: str) -> None:
    """After a sign-in, a browser asks with GET: for what the form stood on, not for what it was sent to."""
    headers = [("Host", "app.example"), ("Referer", referer)]
    assert IncomingRequest.of("POST", "/send", headers).page == page
    assert IncomingRequest.of("GET", "/seen?x", headers).page == "/seen?x"


def answered(error: Exception, request: IncomingRequest = FETCH) -> OutgoingResponse:
    answer = response_to(error, request)
    assert answer is not None
    return answer


def header(answer: OutgoingResponse, name: str) -> str | None:
    return dict(answer.headers).get(name)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConsentRequired("m", "ada"), 401),
        (InvalidIdentifierError("card_id must not be empty"), 404),
        (NotFoundError("m", 404), 404),
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
@pytest.mark.parametrize("request_", [PAGE, FETCH], ids=["page", "fetch"])
def test_status_and_document(error: BoardClientError, status: int, request_: IncomingRequest) -> None:
    """Each error becomes a problem document with its suggested status; without a login, consent does so for pages as well."""
    answer = answered(error, request_)
    document = json.loads(answer.body)
    assert (answer.status, document["status"], error.suggested_status) == (status, status, status)
    assert header(answer, "Content-Type") == "application/problem+json"
    assert header(answer, "Content-Length") == str(len(answer.body))
    assert document["title"]
    assert document["detail"] != "m" or isinstance(error, SignInError)


@pytest.mark.parametrize(("seconds", "text"), [(None, None), (0.2, "1"), (30.0, "30"), (-5.0, "0")])
def test_retry_after_is_passed_on(seconds: float | None, text: str | None) -> None:
    """In whole seconds, never too early."""
    assert header(answered(RateLimitError("m", 429, retry_after=seconds)), "Retry-After") == text


def test_what_failed_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Messages name hosts and paths of the service: they are for the operator. What a user typed is no failure."""
    caplog.set_level(logging.INFO)
    answer = answered(TransportError("no connection to internal.example:443"))
    assert b"internal" not in answer.body
    assert "responded to GET /boards/1 with 502: no connection to internal.example:443" in caplog.text
    assert "x=1" not in caplog.text
    caplog.clear()
    answered(NotFoundError("m", 404))
    answered(ConsentRequired("m"))
    assert caplog.records == []


def test_a_failed_sign_in_has_a_reason() -> None:
    """The reason is a separate member; only mistakes of the user are explained. Its cookies are sent along."""
    refused = answered(SignInError("the user refused", "refused", ("a=1; Path=/", "b=2; Path=/")))
    assert [value for name, value in refused.headers if name == "Set-Cookie"] == ["a=1; Path=/", "b=2; Path=/"]
    assert json.loads(refused.body)["reason"] == "refused"
    assert json.loads(refused.body)["detail"] == "the user refused"
    failed = answered(SignInError("POST https://internal.example: status 500", "failed"))
    assert b"internal" not in failed.body


@pytest.mark.parametrize("login_url", ["/login", "/login?theme=dark"])
def test_consent_leads_a_page_to_the_login(login_url: str) -> None:
    """A page is redirected there, any other request gets an error."""
    error = ConsentRequired("m", "ada", login_url)
    joint = "&" if "?" in login_url else "?"
    page = answered(error, PAGE)
    assert (page.status, header(page, "Location")) == (303, f"{login_url}{joint}return_to=/boards/1%3Fx%3D1")
    fetched = answered(error)
    assert (fetched.status, json.loads(fetched.body)["login_url"], header(fetched, "Location")) == (401, login_url, None)
    assert b"ada" not in fetched.body


def test_a_group_of_errors_gets_one_response() -> None:
    """Consent comes first, then the gravest; a group with errors of others is the application's own affair."""
    consent, lost, missing = ConsentRequired("m", "ada", "/login"), TransportError("m"), NotFoundError("m", 404)
    group = ExceptionGroup("", [missing, ExceptionGroup("", [lost])])
    assert answered(group).status == 502
    assert answered(ExceptionGroup("", [group, consent]), PAGE).status == 303
    assert response_to(ExceptionGroup("", [group, ValueError()]), FETCH) is None
    assert response_to(ValueError(), FETCH) is None
    assert json.loads(answered(lost).body)["effect"] == Effect.UNKNOWN.value


@given(st.text(), st.text(), st.binary(), st.binary())
def test_nothing_breaks_out_of_a_header(path: str, root: str, query: bytes, referer: bytes) -> None:
    """Whatever a request holds, the redirect is one line of ASCII, and the return address one parameter of it."""
    scope = {"path": path, "root_path": root, "query_string": query, "headers": [(b"referer", referer)], "method": "POST"}
    for method in ("GET", "POST"):
        request = IncomingRequest.of_scope({**scope, "method": method})
        group = ConsentRequired("m", "", "/login")
        location = header(
            answered(group, IncomingRequest(method, request.target, {**request.headers, "sec-fetch-mode": "navigate"})),
            "Location",
        )
        assert location is not None
        assert location.isascii()
        assert location.isprintable()
        assert location.count("?") == 1
        assert "&" not in location
        assert request.return_to().startswith("/")


@given(value=st.text(st.characters() | st.sampled_from("/?\udcff\ud83d")))
@example("\udcff")
def test_any_header_can_be_read(value: str) -> None:
    """A header of any text, also of bytes that are not UTF-8, leads to a response whose headers can be sent."""
    headers = [("Sec-Fetch-Mode", "navigate"), ("Host", "a.example"), ("Referer", f"http://a.example/{value}"), ("Cookie", value)]
    request = IncomingRequest.of("POST", "/move", headers)
    response = response_to(ConsentRequired(login_url="/login"), request)
    assert response is not None
    assert response.status == 303
    assert all(value.isascii() for _, value in response.headers)
    request.cookies.encode()
