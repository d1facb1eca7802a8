"""What instruments see of responses, without I/O."""

from __future__ import annotations

import pytest

from boardclient._transport._client_session import FORM_TYPE, secrets_of, shown_headers, shown_response

URL = "https://board.example/1/members/me"


@pytest.mark.parametrize(
    ("url", "body", "content_type", "secrets"),
    [
        (URL, None, "", []),
        (f"{URL}?fields=a&key=k%2F1&TOKEN=t+1", None, "", ["k/1", "t 1"]),
        (URL, b'{"key": "k", "token": "t", "name": "n"}', "application/json", ["k", "t"]),
        (URL, b'["token"]', "application/json", []),
        (URL, b"\xff{", "application/json", []),
        (URL, b"client_id=i&client_secret=s%20s&code=c", FORM_TYPE, ["s s", "c"]),
    ],
)
def test_secrets_are_found_in_requests(url: str, body: bytes | None, content_type: str, secrets: list[str]) -> None:
    """Credentials are taken from query, form and JSON body; what is none of these holds no credential."""
    assert secrets_of(url, body, content_type) == secrets


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            b'{"access_token": "t0", "expires_in": 60, "more": [{"t": "t1"}, ""]}',
            b'{"access_token": "***", "expires_in": 60, "more": [{"t": "***"}, ""]}',
        ),
        (b"access_token=t0", b"null"),
        (b"\xff", b"null"),
        (b'"t0"', b'"***"'),
    ],
)
def test_a_token_is_not_shown(body: bytes, shown: bytes) -> None:
    """Of the response to a token exchange names and numbers are left."""
    headers, kept = shown_response({"X-Copy": "t0", "Content-Encoding": "gzip"}, body, ["t0"], is_token=True)
    assert kept == shown
    assert dict(headers) == {"X-Copy": "***", "Content-Length": str(len(shown))}


def test_a_token_in_headers_is_not_shown() -> None:
    """A header that repeats the token of the body has it redacted."""
    headers, _ = shown_response({"X-Copy": "bearer t0"}, b'{"access_token": "t0"}', [], is_token=True)
    assert headers["X-Copy"] == "bearer ***"


def test_responses_without_credentials_stay() -> None:
    """Where a request held no credential, its response is shown as it is."""
    headers, body = shown_response({"X-Kind": "a"}, b"a body", [], is_token=False)
    assert (dict(headers), body) == ({"X-Kind": "a", "Content-Length": "6"}, b"a body")
    assert dict(shown_headers({"X-Echo": "a secret", "X-secret": "1"}, ["secret"])) == {"X-Echo": "a ***", "X-***": "1"}
