"""Codes and tokens that an application hands to its provider, and what they end."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, urlsplit

import pytest
from oauth_helpers import (
    OPTIONS,
    SECRETS,
    Application,
    FakeSession,
    error_of,
    lost,
    provider_of,
    token_in,
    token_response,
    virtual,
    waiting_provider,
)

from boardclient import (
    CredentialError,
    Credentials,
    MemoryTokenStore,
    OAuthCredentials,
    Response,
    SessionClosedError,
    StoredToken,
    Token,
)
from boardclient.errors import Effect
from boardclient.testing import assert_no_secrets

VERIFIER, CHALLENGE = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
"""RFC 7636, appendix B."""


@pytest.mark.parametrize("page", ["https://board.example/authorize", "https://board.example/authorize?theme=dark"])
def test_the_address_of_the_consent_page_has_what_oauth_names(page: str) -> None:
    """It keeps the query of the page, encodes each value once, and leaves out what is not given."""
    credentials = OAuthCredentials(**{**OPTIONS, "client_id": "a client&", "redirect_uri": "https://app.example/cb?x=1"})
    plain = {"response_type": "code", "client_id": "a client&", "redirect_uri": "https://app.example/cb?x=1", "state": "s t&"}
    of_page = dict(parse_qsl(urlsplit(page).query))
    address = credentials.consent_address(page, "s t&")
    assert address.startswith(page)
    assert dict(parse_qsl(urlsplit(address).query)) == {**of_page, **plain}
    more = {"scope": "read write", "code_challenge": CHALLENGE, "code_challenge_method": "S256"}
    address = credentials.consent_address(page, "s t&", scope="read write", code_verifier=VERIFIER)
    assert dict(parse_qsl(urlsplit(address).query)) == {**of_page, **plain, **more}
    assert "read%20write" in address  # some servers take a plus for one


@virtual
async def test_a_code_ends_cool_downs_and_waiting() -> None:
    """A code ends a cool-down here and in the store, and a callback that another worker waits for."""
    loop, store = asyncio.get_running_loop(), MemoryTokenStore(clock=asyncio.get_running_loop().time)
    failing = provider_of(Application(LookupError("no")), store=store, cooldown=60.0)
    session = FakeSession(token_response("t1"), token_response("t2"))
    await error_of(failing.acquire(session))
    waiting = waiting_provider(store=store)
    assert (await store.lease("default", "x", 1.0)).state == "cooling"
    await waiting.exchange_code("code", session)
    assert (await store.lease("default", "x", 0.0)).state == "granted"
    await asyncio.sleep(0.06)
    assert (await failing.acquire(session)).token == "t1"
    hanging = provider_of(Application(asyncio.Event().wait), store=store)
    first = await hanging.acquire(session)
    call = asyncio.create_task(hanging.renew(first, session))
    await asyncio.sleep(20)
    began = loop.time()
    await waiting.exchange_code("code 2", session)
    assert (await call).token == "t2"
    assert loop.time() - began < 0.5
    await failing.exchange_code("code 3", FakeSession(token_response("t3")))
    assert failing._state.failure is None


@virtual
async def test_a_callback_that_fails_beside_a_published_token() -> None:
    """A failure does not count where another worker has published a token meanwhile."""
    store = MemoryTokenStore()

    async def outdone() -> str:
        await store.publish("default", Token("theirs"), 0)
        raise LookupError("mine")

    provider = provider_of(Application(outdone), store=store)
    assert (await provider.acquire(FakeSession())).token == "theirs"
    assert provider._state.failure is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lost(), "the token exchange failed, with unknown effect: no answer"),
        (lost(Effect.NOT_SENT), "the token exchange was not sent: no answer"),
        (Response(400, {}, b'{"error":"invalid_grant"}'), "the token exchange failed with status 400 (invalid_grant)"),
    ],
)
@virtual
async def test_a_code_that_gives_no_token(answer: object, words: str) -> None:
    """The error says why, no cool-down begins, and a code whose effect is unknown is not sent again."""
    provider, session = waiting_provider(), FakeSession(answer, token_response())
    error = await error_of(provider.exchange_code("canary-code-7", session))
    assert str(error).startswith(words)
    assert_no_secrets(error, secrets=[*SECRETS, "canary-code-7"])
    if "unknown" in words:
        assert "send each code once" in str(await error_of(provider.exchange_code("canary-code-7", session)))
    else:
        await provider.exchange_code("canary-code-7", session)
    assert (provider.current() is None) is ("unknown" in words)


@virtual
async def test_a_code_and_a_session_that_closes() -> None:
    """The exchange ends with its session, before it began, amid it and from within it."""
    provider, session = waiting_provider(), FakeSession(asyncio.get_running_loop().create_future())
    exchanging = asyncio.create_task(provider.exchange_code("code", session))
    await asyncio.sleep(1)
    session.close()
    for awaited in (
        exchanging,
        provider.exchange_code("code", session),
        provider.exchange_code("code", FakeSession(SessionClosedError("closed"))),
    ):
        with pytest.raises(SessionClosedError):
            await awaited


@virtual
async def test_invalid_codes_tokens_and_accounts_are_refused() -> None:
    """Codes, tokens and accounts that can't be are refused before anything is sent."""
    provider, session = waiting_provider(), FakeSession()
    for code, error in (("", ValueError), (None, TypeError), ("\ud800", ValueError)):
        with pytest.raises(error):
            await provider.exchange_code(code, session)  # type: ignore[arg-type]  # -- what a test gives
    with pytest.raises(TypeError, match="token must be a Token, not str"):
        await provider.keep_token("token")  # type: ignore[arg-type]  # -- what a test gives
    with pytest.raises(ValueError, match="account must not be empty"):
        provider.for_account("")
    with pytest.raises(ValueError, match="login_url must not be empty"):
        OAuthCredentials(**OPTIONS, login_url="")
    assert session.forms == []


@virtual
async def test_a_token_for_whom_it_may_be() -> None:
    """A token can be had before it is known whose it is, and be kept for another account of the store."""
    store = MemoryTokenStore()
    provider, session = waiting_provider(store=store, key="k"), FakeSession(token_response("t1"))
    token = await provider.request_token("code", session)
    assert (provider.current(), await store.read("default")) == (None, None)
    ann = provider.for_account("ann")
    assert (ann.account, provider.account) == ("ann", "default")
    await ann.keep_token(token)
    assert ann.current() == Credentials("t1", "k")
    assert (await provider.state(), await ann.state()) == ("never", "good")


@virtual
async def test_a_store_that_never_accepts_a_token_is_an_error() -> None:
    """A store that accepts no token is an error after a few attempts; another worker's token in between is replaced."""

    class Store(MemoryTokenStore):
        refusals = 3

        async def publish(self, account: str, token: Token, after: int, **at: str) -> StoredToken | None:
            if self.refusals:
                self.refusals -= 1
                await super().publish(account, Token("another's"), after, **at)
                return None
            return await super().publish(account, token, after, **at)

    store = Store()
    provider = waiting_provider(store=store)
    await provider.keep_token(Token("mine"))
    assert await token_in(store, "default") == Token("mine")
    store.refusals = 100
    with pytest.raises(CredentialError, match="took no new token"):
        await provider.keep_token(Token("other"))
    store.refusals = 100
    with pytest.raises(CredentialError, match="took no new token"):
        await provider.exchange_code("code", FakeSession(token_response()))
