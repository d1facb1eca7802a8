"""The response of the token exchange: every shape it may have, and that no value of it gets into a message."""

from __future__ import annotations

import asyncio
import base64
import json
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oauth_helpers import OPTIONS, FakeSession, waiting_provider
from virtual_loop import VirtualLoop

from boardclient import CredentialError, Effect, JsonValue, Response, Token, TransportError
from boardclient.testing import assert_no_secrets

NOW = 1_700_000_000.0
CANARY = "canary7t3zX"


def read(body: object, status: int = 200, parse: Any = None, content_type: str = "") -> Token | CredentialError:
    """Exchange a code for which the service gives this response, and return the token or the error."""
    encoded = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    response = Response(status, {"Content-Type": content_type} if content_type else {}, encoded)

    async def exchanged() -> Token | CredentialError:
        try:
            return await waiting_provider(parse_token=parse).request_token("code", FakeSession(response))
        except CredentialError as error:
            return error

    with patch("time.time", lambda: NOW), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(exchanged())


def why_not(*arguments: Any, **options: Any) -> str:
    """Return the message of the error, without the address."""
    error = read(*arguments, **options)
    assert isinstance(error, CredentialError)
    return error.message.removesuffix(" (sent to https://auth.example/root/1/OAuthGetAccessToken)")


def ends(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=seconds)


# --- tokens

TOKENS: list[tuple[object, Token]] = [
    ({"access_token": "t"}, Token("t")),
    ({"access_token": "t", "token_type": "bearer", "expires_in": 3600, "scope": "read,write"}, Token("t", ends(3600))),
    ({"token": "t"}, Token("t")),
    ({"token": "second", "access_token": "first"}, Token("first")),
    ({"access_token": {"value": "no"}, "token": "t"}, Token("t")),
    ({"access_token": "tö😀 令牌"}, Token("tö😀 令牌")),
    ({"access_token": " t\n"}, Token(" t\n")),
    ({"error": "invalid_grant", "access_token": "t"}, Token("t")),
    (b'{"access_token":"t\\ud83d\\ude00"}', Token("t😀")),
    (b'{"token":"first","token":"last"}', Token("last")),
    (b"access_token=t&token_type=bearer&expires_in=60", Token("t", ends(60))),
    (b"token=t", Token("t")),
    (b"access_token=first&access_token=second", Token("first")),
    (b"access_token=&token=t", Token("t")),
    (b"access_token=a%20b+c%3D%26=", Token("a b c=&=")),
    (b"access_token=t%C3%B6%F0%9F%98%80", Token("tö😀")),
    (b"\naccess_token=t\r\n", Token("t")),
]


@pytest.mark.parametrize("content_type", ["", "application/json", "application/x-www-form-urlencoded", "text/html; charset=x"])
@pytest.mark.parametrize(("body", "token"), TOKENS)
def test_tokens(body: object, token: Token, content_type: str) -> None:
    """A token is found in either shape, whatever the content type says, under any status of success."""
    for status in (200, 201, 204, 299):
        assert read(body, status, content_type=content_type) == token


@pytest.mark.parametrize(
    ("expires_in", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (" 3600 ", 3600),
        ("1e3", 1000),
        (1e-3, 0.001),
        (0, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("1e400", None),
        (10**15, None),
        (True, None),
        (None, None),
        ([3600], None),
        ({"seconds": 3600}, None),
    ],
)
def test_lifetimes(expires_in: object, seconds: float | None) -> None:
    """A lifetime is a positive number of seconds, as a number or as text; whatever else is said, the token counts without one."""
    body = {"access_token": "t", "expires_in": expires_in}
    assert read(body) == Token("t", None if seconds is None else ends(seconds))
    if isinstance(expires_in, str):
        assert read(f"token=t&expires_in={quote_plus(expires_in)}") == Token("t", None if seconds is None else ends(seconds))


# --- no token

INVALID = "the client identifier or secret is invalid, or the code is invalid, used or expired"
NEITHER = "the token exchange gave no token: its response is neither a JSON object nor form-encoded"


def named(names: str) -> str:
    return f"the token exchange gave no token: the names in its response are {names}; parse_token can take it from another shape"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", named("none")),
        ({}, named("none")),
        ({"token": ""}, named("none and 1 not shown")),
        ({"token": None, "access_token": 5}, named("access_token, token")),
        ({"data": {"token": "t"}, "Success-Code.2": 1, "ok": True}, named("data, ok and 1 not shown")),
        ({"a" * 24: 1, "b" * 25: 1, "": 1, "_x": 1, "ä": 1, "a b": 1}, named("a" * 24 + " and 5 not shown")),
        ({"error": "", "errors": [], "error_description": "x"}, named("error_description, errors and 1 not shown")),
        (b"accessToken=t&Token=t", named("Token, accessToken")),
        (b"dG9rZW4==", named("none and 1 not shown")),
        (b"abcdefgh==", named("none and 1 not shown")),
        ([{"access_token": "t"}], NEITHER),
        (b'"access_token=t"', NEITHER),
        (b"null", NEITHER),
        (b"<html>no</html>", NEITHER),
        (b"a=b&c", NEITHER),
        (b"\xff\xfe{\x00}\x00", NEITHER),
        (b"token=\xff", NEITHER),
        (b"[" * 100_000, NEITHER),
        (b'{"access_token": "t"}' + b" " * 2**22, NEITHER),
        (
            b'{"access_token": "half of an emoji \\ud83d"}',
            "the token exchange gave no token: it holds U+FFFD or half of an emoji",
        ),
    ],
)
def test_no_token(body: object, why: str) -> None:
    """The error for a response without a token shows its field names, except those that may be tokens."""
    assert why_not(body) == why


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (400, b"", f"400: {INVALID}"),
        (400, {"error": "invalid_grant"}, f"400 (invalid_grant): {INVALID}"),
        (400, b"error=invalid_client", f"400 (invalid_client): {INVALID}"),
        (400, {"error": CANARY}, f"400: {INVALID}"),
        (401, {"error": "unauthorized_client"}, "401 (unauthorized_client)"),
        (429, {"error": ["invalid_grant"]}, "429; the service says: invalid_grant"),
        (503, b"error=temporarily_unavailable&x=y", "503 (temporarily_unavailable)"),
        (302, {"access_token": CANARY}, "302"),
        (199, {"access_token": CANARY}, "199"),
        (599, b"\xff", "599"),
    ],
)
def test_refusals(status: int, body: object, why: str) -> None:
    """The error for another status than a success shows the error code, if it can be no token; no token is taken."""

    def parse(fields: Mapping[str, JsonValue]) -> Token:
        raise AssertionError("an answer that is no success is not parsed")

    assert why_not(body, status) == why_not(body, status, parse) == f"the token exchange failed with status {why}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"error": "bad_grant", "error_description": "it has expired"}, " (bad_grant); the service says: it has expired"),
        (b"error=bad_grant&error_description=it+has+expired", " (bad_grant); the service says: it has expired"),
        ({"ok": False, "error": "invalid_auth"}, f" (invalid_auth): {INVALID}"),
        ({"error": "it is bad"}, "; the service says: it is bad"),
        ({"error": {"message": "it is bad", "code": 190}}, "; the service says: it is bad"),
        ({"errors": [{"detail": "it is bad"}, 3]}, "; the service says: it is bad"),
        ({"errors": ["it is bad"]}, "; the service says: it is bad"),
        ({"error": True, "reason": "it is bad"}, "; the service says: it is bad"),
        ({"error": {"token": CANARY}, "errors": [CANARY, {"message": ""}]}, f": {INVALID}"),
        ({"error": CANARY, "message": f"no {CANARY} here"}, "; the service says: no *** here"),
    ],
)
def test_a_refusal_with_status_200(body: object, why: str) -> None:
    """Services refuse with status 200 too: the error says so in their words, in any shape, as for 400, and shows no secret."""

    def parse(fields: Mapping[str, JsonValue]) -> Token:
        return Token(str(fields["access_token"]))

    for taken in (None, parse):
        error = read(body, 200, taken)
        assert isinstance(error, CredentialError)
        assert why_not(body, 200, taken) == f"the token exchange failed with status 200{why}"
        assert (error.effect, error.suggested_status) == (Effect.DONE, 400)
    assert why_not(body, 400) == f"the token exchange failed with status 400{why}"


def test_a_token_beside_an_error_counts() -> None:
    """A response of success that holds a token is one, also where `parse_token` takes it."""
    body = {"error": "none", "access_token": "t", "own": "o"}
    assert (read(body), read(body, parse=lambda fields: Token(str(fields["own"])))) == (Token("t"), Token("o"))


LETTERS = "CorrectHorseBattery"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": LETTERS}, 400),
        ({"error_description": f"no client {LETTERS}, MDkwMDkwOWEwMDlh"}, 400),
        ({LETTERS: 1, "id": 2}, 200),
        ({"error": "code"}, 400),
        ({"message": f"bad key {LETTERS[::-1]}"}, 403),
    ],
)
def test_secrets_of_letters_are_not_shown(body: object, status: int) -> None:
    """A response may repeat what was sent, where its own words and names are shown."""
    with patch.dict(OPTIONS, {"client_secret": LETTERS, "key": LETTERS[::-1]}):
        why = why_not(body, status)
    assert not {LETTERS, LETTERS[::-1], "MDkwMDkwOWEwMDlh", "(code)"} & {*why.replace(",", " ").replace(";", " ").split()}
    assert LETTERS not in why


def test_a_refusal_in_plain_text() -> None:
    """The service's own words are shown, without what may be a secret."""
    words = "the token exchange failed with status 403; the service says: not for *** today"
    assert why_not(b"not for abc123 today", 403, content_type="text/plain") == words


def test_a_refusal_in_the_words_of_the_service() -> None:
    """Where the service says why it refuses, the error does not list what a 400 can mean."""
    body = {"error": "invalid_grant", "error_description": "this was used before"}
    words = "the service says: this was used before"
    assert why_not(body, 400) == f"the token exchange failed with status 400 (invalid_grant); {words}"


# --- parse_token


def test_parse_token() -> None:
    """The application takes the token from any JSON object or form, also one that has a known shape."""
    seen: list[Mapping[str, JsonValue]] = []

    def parse(fields: Mapping[str, JsonValue]) -> Token:
        seen.append(fields)
        return Token("parsed", ends(1))

    bodies: list[object] = [{"data": {"token": "t"}}, {"access_token": "known"}, b"x=1&x=2&y=z", b""]
    assert [read(body, parse=parse) for body in bodies] == [Token("parsed", ends(1))] * 4
    assert seen == [{"data": {"token": "t"}}, {"access_token": "known"}, {"x": "1", "y": "z"}, {}]
    assert why_not([1], parse=parse) == why_not(b"plain", parse=parse) == NEITHER
    assert len(seen) == 4


@pytest.mark.parametrize("returned", [None, CANARY, {"token": CANARY}, Token, 3])
def test_parse_token_that_returns_something_else(returned: Any) -> None:
    """The error for a value that is not a Token shows its type."""
    why = f"the token exchange gave no token: parse_token returned {type(returned).__name__}, not a Token"
    assert why_not({"a": 1}, parse=lambda _: returned) == f"{why}: the names in its response are a"


def test_parse_token_that_fails_to_reach_something() -> None:
    """Its error is no loss of the exchange's response: the code is used up, and no other is asked for."""

    def parse(fields: Mapping[str, JsonValue]) -> Token:
        raise TransportError("no connection to the application's own service")

    error = read({"a": 1}, parse=parse)
    assert isinstance(error, CredentialError)
    assert error.message.startswith("the token exchange gave no token: parse_token raised TransportError")
    assert error.effect is Effect.DONE
    assert error.args == (error.message,)


def _frames(error: BaseException | None) -> Iterator[object]:
    while error is not None:
        yield from traceback.walk_tb(error.__traceback__)
        error = error.__cause__ or error.__context__


def test_parse_token_that_raises() -> None:
    """What parse_token raises is the cause, with its own causes, and none of them keeps a frame that holds the response."""

    def parse(fields: Mapping[str, JsonValue]) -> Token:
        try:
            return Token(str(fields["data"]["token"]))  # type: ignore[call-overload, index]  # -- what fails
        except KeyError as missing:
            try:
                raise LookupError("within")
            except LookupError:
                raise ValueError("mine") from missing

    error = read({"data": {"x": CANARY}, "status": 1}, parse=parse)
    assert isinstance(error, CredentialError)
    assert "parse_token raised ValueError: the names in its response are data, status" in error.message
    cause = error.__cause__
    assert isinstance(cause, ValueError)
    assert isinstance(cause.__cause__, KeyError)
    assert isinstance(cause.__context__, LookupError)
    assert list(_frames(cause)) == []
    assert_no_secrets(error, secrets=[CANARY], frames=lambda _: True)


# --- whatever comes


_names = st.sampled_from(["access_token", "token", "error", "data", "expires_in", CANARY]) | st.text(max_size=8)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=12) | st.just(CANARY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner),
    max_leaves=8,
)


@st.composite
def _bodies(draw: st.DrawFn) -> bytes:
    """Make bodies that hold the canary somewhere."""
    padded = draw(st.sampled_from([CANARY, CANARY + "!", CANARY + "??"]))
    spellings = [
        CANARY,
        base64.b64encode(padded.encode()).decode(),
        base64.urlsafe_b64encode(padded.encode()).decode(),
        f"Bearer {CANARY}",
        f"{CANARY}={CANARY}",
        quote(f"<{CANARY}>"),
    ]
    text = draw(st.sampled_from(spellings))
    name = draw(st.sampled_from(["access_token", "error", "expires_in", "x"]))
    shapes = [
        text,
        f" {text}\n",
        json.dumps(text),
        json.dumps([text]),
        json.dumps({name: text}),
        json.dumps({text: name}),
        json.dumps({text: None, name: {text: [text]}}),
        json.dumps({"access_token": 1, "error": text}),
        json.dumps({name: text})[: draw(st.integers(0, 60))],
        f"\ufeff{json.dumps({name: text})}",
        f"{name}={text}",
        f"{text}={name}",
        f"{quote(text, safe='')}={name}&{name}",
        f"{name}&{text}={text}",
        f"<p>{name}: {text}</p>",
        json.dumps(draw(_json)),
    ]
    return draw(st.sampled_from(shapes)).encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-16", "utf-8-sig"])))


def _returning(value: object) -> Any:
    return lambda fields: value


def _raising(fields: Mapping[str, JsonValue]) -> Token:
    raise LookupError("mine")


_parses = st.sampled_from([None, None, _returning(CANARY), _returning({CANARY: 1}), _raising])


@settings(deadline=None)
@given(_bodies(), st.sampled_from([199, 200, 201, 302, 400, 401, 500]), _parses)
def test_no_failure_shows_a_value(body: bytes, status: int, parse: Any) -> None:
    """Wherever the response holds a token, a failure and its error show nothing of it, nor of its base64 form."""
    found = read(body, status, parse)
    if isinstance(found, CredentialError):
        hidden = [base64.b64encode((CANARY + more).encode()).decode()[:12] for more in ("", "!", "??")]
        assert_no_secrets(found, secrets=[CANARY, *hidden])
