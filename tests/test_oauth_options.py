"""The options of OAuthCredentials, and tokens as values."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from oauth_helpers import OPTIONS, SECRETS, Application

from boardclient import MemoryTokenStore, OAuthCredentials, StoredToken, Token
from boardclient.testing import assert_no_secrets

# --- options


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *[
            case
            for name in ("client_id", "client_secret", "redirect_uri", "account", "key")
            for case in (
                ({name: ""}, ValueError, f"^{name} must not be empty$"),
                ({name: 3}, TypeError, f"^{name} must be a string, not int$"),
                ({name: "\ud800"}, ValueError, f"^{name} holds a lone surrogate"),
            )
        ],
        ({"client_id": None}, TypeError, "^client_id must be a string, not NoneType$"),
        ({"authorize": None}, None, ""),
        ({"authorize": "code"}, TypeError, "^authorize must be an async function"),
        ({"parse_token": "token"}, TypeError, "parse_token a function$"),
        ({"store": object()}, TypeError, "^store must be a TokenStore"),
        ({"store": MemoryTokenStore()}, None, ""),
        ({"store": MemoryTokenStore}, TypeError, r"^store must be a TokenStore, such as MemoryTokenStore\(\)"),
        ({"store": SimpleNamespace(read=len, publish=len, lease=len)}, TypeError, "^store must be a TokenStore"),
        ({"store": SimpleNamespace(read=len, publish=len, lease=len, release=3)}, TypeError, "^store must be a TokenStore"),
        *[
            ({name: value}, ValueError, "^authorize_timeout and lease_seconds must be more than 0 seconds, cooldown at least 0$")
            for name, values in {
                "authorize_timeout": (0, -1.0, float("nan")),
                "lease_seconds": (0, -1.0, float("nan")),
                "cooldown": (-0.1, float("nan")),
            }.items()
            for value in values
        ],
        *[
            ({name: value}, TypeError, f"^{name} must be a number of seconds, not {type(value).__name__}$")
            for name in ("authorize_timeout", "lease_seconds", "cooldown", "renew_before_expiry")
            for value in ("3", Decimal(3), timedelta(seconds=3))
        ],
        *[({"renew_before_expiry": value}, ValueError, "^renew_before_expiry must be more") for value in (0, -1.0, float("nan"))],
        *[
            ({"auth_url": url}, ValueError, f"^auth_url {words}")
            for url, words in {
                "https://user@auth.example": "must hold no user",
                "https://auth.example/#x": "must hold no user, password, query or fragment$",
                "https://auth.example/1/": 'must not end in "/1"',
                "/relative": "must be an absolute http or https URL, such as https://board.example$",
                None: "must be an absolute",
            }.items()
        ],
        ({"auth_url": "http://auth.example"}, None, ""),
        ({"cooldown": 0, "authorize_timeout": 0.001, "renew_before_expiry": 0.5, "parse_token": Token}, None, ""),
    ],
)
def test_options(options: dict[str, Any], error: type[Exception] | None, words: str) -> None:
    """What can't work is refused when the provider is made, before anything else, in words that hold no secret."""
    if error is None:
        OAuthCredentials(**{**OPTIONS, "authorize": Application(), **options})
        return
    with pytest.raises(error, match=words) as caught:
        OAuthCredentials(**{**OPTIONS, "authorize": Application(), **options})
    assert "canary" not in str(caught.value)


def test_shows_no_secret() -> None:
    """Neither the provider nor what it holds shows a secret."""
    provider = OAuthCredentials(**OPTIONS, authorize=Application(), key="canary-key7", account="mine")
    assert repr(provider) == "OAuthCredentials(account='mine', auth_url='https://auth.example/root', ***)"
    for shown in (repr(provider), str(provider)):
        assert_no_secrets(shown, secrets=SECRETS)


# --- tokens


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("",), ValueError, "value must not be empty"),
        ((None,), TypeError, "value must be a string, not NoneType"),
        ((b"t",), TypeError, "value must be a string, not bytes"),
        (("canary7\ud800",), ValueError, "value holds a lone surrogate"),
        (("t", datetime(2030, 1, 1)), ValueError, "expires_at must be an aware datetime, or None"),
        (("t", 3600), ValueError, "expires_at must be an aware datetime, or None"),
        (("t", "2030-01-01T00:00:00Z"), ValueError, "expires_at must be an aware datetime, or None"),
    ],
)
def test_bad_tokens(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    """A text that can't be sent, or an end without a time zone, is not a token."""
    with pytest.raises(error, match=words) as caught:
        Token(*arguments)
    assert "canary7" not in str(caught.value)


def test_tokens() -> None:
    """Tokens are equal by their values, and neither shown nor pickled nor copied, also as a store keeps them."""
    end = datetime(2030, 1, 1, tzinfo=UTC)
    token = Token("canary7", end)
    assert (token.value, token.expires_at, Token("t").expires_at) == ("canary7", end, None)
    assert token == Token("canary7", end) != Token("canary7")
    assert StoredToken(token, 3) == StoredToken(token, generation=3)
    for thing in (token, StoredToken(token, 3)):
        assert "canary7" not in f"{thing!r} {thing}"
        for copied in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="tokens are not pickled: store the value"):
                copied(thing)
