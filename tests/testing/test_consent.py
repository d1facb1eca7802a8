"""The consent page and what follows from it: codes of a member, refusals, requests that can't be granted, PKCE."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qsl, urlsplit

import pytest

from boardclient.testing import BoardRules, BoardService

PATH = "/auth/authorize"
VERIFIER, CHALLENGE = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
"""RFC 7636, appendix B."""


class Browser:
    """Asks for consent as an application's redirect makes a browser ask, and presses a button of the page."""

    def __init__(self, **options) -> None:
        self.now = 100.0
        self.rules = BoardRules(clock=lambda: self.now, members=["Ada Lovelace", "Alan Turing"], **options)

    def query(self, **changes):
        given = {
            "response_type": "code",
            "client_id": self.rules.client_id,
            "redirect_uri": self.rules.redirect_uri,
            "state": "s t&",
        }
        return {name: value for name, value in {**given, **changes}.items() if value is not None}

    def open(self, **changes):
        return self.rules.answer("GET", PATH, self.query(**changes))

    def press(self, page, label):
        """Send the page's form, as it is, with the button that has this label."""
        fields = dict(re.findall(r'<input type=hidden name="([^"]+)" value="([^"]*)">', page.body))
        buttons = re.findall(r'<button name=member value="([^"]+)"[^>]*>(.*?)</button>', page.body)
        (value,) = [value for value, text in buttons if label in text]
        form = {html.unescape(name): html.unescape(text) for name, text in fields.items()}
        return self.rules.answer("POST", PATH, {}, {**form, "member": value})

    def exchange(self, code, **more):
        form = {
            "client_id": self.rules.client_id,
            "client_secret": self.rules.client_secret,
            "code": code,
            "redirect_uri": self.rules.redirect_uri,
            **more,
        }
        return self.rules.answer("POST", "/auth/1/OAuthGetAccessToken", {}, form)


def sent_back(answer) -> dict[str, str]:
    assert answer.status == 303
    return dict(parse_qsl(urlsplit(answer.headers["Location"]).query))


@pytest.fixture
def browser() -> Browser:
    return Browser()


def test_the_token_is_of_the_member_who_accepts(browser: Browser) -> None:
    page = browser.open()
    assert (page.status, page.content_type) == (200, "text/html")
    assert "application.example" in page.body
    back = sent_back(browser.press(page, "Alan Turing"))
    assert back["state"] == "s t&"
    token = browser.exchange(back["code"]).body["access_token"]
    member = browser.rules.answer("GET", "/1/members/me", {"token": token}).body
    assert (member["fullName"], member["id"]) == ("Alan Turing", browser.rules.members[1].id)


def test_a_refusal_redirects_without_a_code(browser: Browser) -> None:
    back = sent_back(browser.press(browser.open(), "Refuse"))
    assert back == {"error": "access_denied", "error_description": "the user refused", "state": "s t&"}


def test_the_token_may_do_only_what_the_page_named(browser: Browser) -> None:
    page = browser.open(scope="read")
    assert "See boards" in page.body
    assert "archive" not in page.body
    token = browser.exchange(sent_back(browser.press(page, "Ada"))["code"]).body["access_token"]
    assert browser.rules.answer("POST", "/1/boards", {"token": token}, {"name": "B"}).status == 403


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "unsupported_response_type"),
        ({"scope": "read everything"}, "invalid_scope"),
        ({"code_challenge": CHALLENGE}, "invalid_request"),
        ({"code_challenge": CHALLENGE, "code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge": "short", "code_challenge_method": "S256"}, "invalid_request"),
        ({"code_challenge_method": "S256"}, "invalid_request"),
    ],
)
def test_what_can_t_be_granted_redirects_with_an_error(browser: Browser, changes, error: str) -> None:
    back = sent_back(browser.open(**changes))
    assert (back["error"], back["state"]) == (error, "s t&")
    assert "code" not in back


@pytest.mark.parametrize("changes", [{"client_id": "other"}, {"client_id": None}, {"redirect_uri": "https://evil.example/"}])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_client_or_address_is_never_redirected_to(browser: Browser, changes, method: str) -> None:
    query = browser.query(**changes, member=browser.rules.members[0].id)
    answer = browser.rules.answer(method, PATH, query if method == "GET" else {}, query if method == "POST" else None)
    assert (answer.status, answer.content_type) == (400, "text/html")
    assert "Location" not in answer.headers


def test_a_decision_without_a_form_or_a_member_is_refused(browser: Browser) -> None:
    for body in (None, b"x", browser.query(member="nobody")):
        assert browser.rules.answer("POST", PATH, {}, body).status == 400


def test_markup_in_names_and_addresses_is_escaped() -> None:
    browser = Browser(redirect_uri="https://<b>x</b>.example/")
    browser.rules.members = ['<script>alert("x")</script>']
    page = browser.open(state='"><script>')
    assert "<script>" not in page.body
    assert "<b>x</b>" not in page.body


@pytest.mark.parametrize(
    ("challenge", "verifier", "status"),
    [
        (CHALLENGE, VERIFIER, 200),
        (CHALLENGE, "w" * 43, 400),
        (CHALLENGE, None, 400),
        (None, VERIFIER, 400),
        (None, None, 200),
    ],
)
def test_a_verifier_has_to_fit_the_challenge(browser: Browser, challenge, verifier, status: int) -> None:
    """RFC 7636, 4.6; a verifier without a challenge is refused as RFC 9700, 2.1.1 asks."""
    changes = {} if challenge is None else {"code_challenge": challenge, "code_challenge_method": "S256"}
    code = sent_back(browser.press(browser.open(**changes), "Ada"))["code"]
    answer = browser.exchange(code, **({} if verifier is None else {"code_verifier": verifier}))
    assert answer.status == status
    assert status == 200 or answer.body["error"] == "invalid_grant"


def test_a_code_expires_after_ten_minutes(browser: Browser) -> None:
    first, second = browser.rules.new_code(), browser.rules.new_code()
    browser.now += 599
    assert browser.exchange(first).status == 200
    browser.now += 1
    assert browser.exchange(second).body["error"] == "invalid_grant"


@pytest.mark.parametrize("values", ["Ada", [b"Ada"], ["Ada", None], None])
@pytest.mark.parametrize("option", ["members", "organizations", "scopes"])
def test_what_has_several_names_takes_a_list_of_them(option: str, values) -> None:
    """One name is not taken for a list of letters, nor is anything else for a name."""
    with pytest.raises(TypeError):
        BoardService(**{option: values})
    with pytest.raises(TypeError):
        BoardService().new_code(scopes=values or "read")


def test_a_service_has_a_member() -> None:
    with pytest.raises(ValueError, match="one member at least"):
        BoardService(members=[])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client_id": "wrong"}, "invalid_client"),
        ({"client_secret": "wrong"}, "invalid_client"),
        ({"code": "wrong"}, "invalid_grant"),
        ({"redirect_uri": "https://elsewhere.example"}, "invalid_grant"),
        *(({name: None}, "invalid_request") for name in ("client_id", "client_secret", "code", "redirect_uri")),
        ({"code_verifier": 7}, "invalid_request"),
    ],
)
def test_errors_of_the_exchange_are_those_of_the_standard(browser: Browser, changes, error: str) -> None:
    """RFC 6749, 5.2, where the response has its form; the status is that of the interface, 4.12."""
    answer = browser.exchange(**{"code": browser.rules.new_code(), **changes})
    assert (answer.status, answer.body["error"]) == (400, error)
    assert answer.body["error_description"] == answer.body["message"]
