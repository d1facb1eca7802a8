"""Errors of constructors and exchanges carry no frame that holds a secret."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from code_base import package
from oauth_helpers import OPTIONS, SECRETS, FakeSession, lost, token_response, virtual, waiting_provider

from boardclient import (
    Credentials,
    EncryptedTokenStore,
    MemoryTokenStore,
    OAuthCredentials,
    Response,
    SessionClosedError,
    StaticCredentials,
    Token,
)
from boardclient.testing import assert_no_secrets
from boardclient.web import SignIn

CANARY = "canary-secret7"
CODE, VERIFIER = "canary-code7", "canary-verifier7"
KEY = "canary-key7" + "A" * 32 + "="


def frames_of(error: BaseException) -> str:
    """Return every local of the package's frames."""
    shown = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(str(package())):
            for name, value in frame.f_locals.items():
                shown.append(f"{name} = {value!r}")
    return "\n".join(shown)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Credentials(CANARY, ""),
        lambda: Credentials(CANARY, 3),  # type: ignore[arg-type]  # -- what is refused
        lambda: Credentials("", CANARY),
        lambda: Credentials(CANARY + "\ud800"),
        lambda: StaticCredentials(CANARY, ""),
        lambda: Token(CANARY, "soon"),  # type: ignore[arg-type]  # -- what is refused
        lambda: Token(value=CANARY + "\ud800"),
        lambda: OAuthCredentials(**{**OPTIONS, "client_id": ""}),
        lambda: OAuthCredentials(**{**OPTIONS, "auth_url": "nowhere"}),
        lambda: OAuthCredentials(**OPTIONS, key=3),  # type: ignore[arg-type]  # -- what is refused
        lambda: OAuthCredentials(**OPTIONS, account=""),
        lambda: OAuthCredentials(**OPTIONS).for_account(""),
        lambda: OAuthCredentials(**OPTIONS).for_account("\ud800"),
        lambda: OAuthCredentials(**OPTIONS).for_account(None),  # type: ignore[arg-type]  # -- what is refused
        lambda: EncryptedTokenStore(MemoryTokenStore(), ["canary-secret7", "no key"]),
        lambda: SignIn(None, **{**OPTIONS, "authorize_url": "x"}, cookie_secret=CANARY),  # type: ignore[arg-type]  # -- no session
    ],
)
def test_a_constructor_that_refuses_one_secret_shows_no_other(make: Callable[[], object]) -> None:
    """The error's frames hold neither the arguments nor the half-built object."""
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        make()
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]  # -- this test's frame
    assert_no_secrets(caught.value, secrets=SECRETS)
    assert "canary" not in frames_of(caught.value)


@pytest.mark.parametrize("how", ["exchange_code", "request_token"])
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (SessionClosedError("closed"), CODE),
        ("closed session", CODE),
        ("used code", CODE),
        (ValueError("auth_url is plain http"), CODE),
        (LookupError("of a session of one's own"), CODE),
        (lost(), CODE),
        (Response(400, {}, b'{"error":"invalid_grant"}'), CODE),
        (token_response(), CODE + "\ud800"),
    ],
)
@virtual
async def test_an_exchange_that_fails_shows_no_code(how: str, answer: Any, code: str) -> None:
    """Whatever ends an exchange, no frame of the error holds the code, the verifier or the client's secret."""
    provider, session = waiting_provider(), FakeSession(lost() if answer == "used code" else answer)
    exchange: Callable[..., Awaitable[object]] = getattr(provider, how)
    if answer == "closed session":
        session.close()
    if answer == "used code":
        with pytest.raises(Exception, match="unknown effect"):
            await exchange(code, session, code_verifier=VERIFIER)
    try:
        await exchange(code, session, code_verifier=VERIFIER)
    except Exception as error:
        caught = error
    elsewhere = [*SECRETS, CODE, VERIFIER]
    assert_no_secrets(caught, secrets=elsewhere)
    shown = frames_of(caught)
    assert not [secret for secret in (CODE, VERIFIER) if secret in shown]
