"""SignIn: flows in cookies, redirects that sign no user in, accounts, and the sessions of users."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from virtual_loop import Clock

from boardclient import (
    AsyncSession,
    ConsentRequired,
    MemoryTokenStore,
)
from boardclient.testing import BoardService, assert_no_secrets
from boardclient.web import SignIn, SignInError

SECRET = "cookie-secret-canary-7"
CONSENT = "https://board.example/authorize?theme=dark"
MEMBER_ID = f"{0:024x}"


class Browser:
    """A browser's cookies: what `Set-Cookie` headers put there, and no more."""

    def __init__(self) -> None:
        self.cookies: dict[str, str] = {}

    def take(self, set_cookies: tuple[str, ...]) -> None:
        for header in set_cookies:
            pair, *attributes = header.split("; ")
            name, _, value = pair.partition("=")
            assert {"Path=/", "HttpOnly", "SameSite=Lax"} <= set(attributes)
            assert name.startswith("__Host-") is ("Secure" in attributes)
            assert len(header) < 4096
            self.cookies[name] = value
            if "Max-Age=0" in attributes:
                del self.cookies[name]

    def begin(self, sign_in: SignIn, return_to: str = "/", **options: Any) -> dict[str, str]:
        """Begin a sign-in in this browser; return the parameters that the consent page gets."""
        begun = sign_in.begin(return_to, self.cookies, **options)
        self.take(begun.set_cookies)
        return dict(parse_qsl(urlsplit(begun.location).query))

    async def complete(self, sign_in: SignIn, **query: str) -> Any:
        try:
            done = await sign_in.complete(query, self.cookies)
        except SignInError as error:
            self.take(error.set_cookies)
            raise
        self.take(done.set_cookies)
        return done


def sign_in_of(service: BoardService, session: AsyncSession, **options: Any) -> SignIn:
    given = {
        "client_id": service.client_id,
        "client_secret": service.client_secret,
        "redirect_uri": service.redirect_uri,
        "auth_url": service.auth_url,
        "authorize_url": CONSENT,
        "cookie_secret": SECRET,
        "key": service.key,
    }
    return SignIn(session, **{**given, **options})


def exchanges(service: BoardService) -> int:
    return len(service.calls_of("token.exchange"))


async def refused(browser: Browser, sign_in: SignIn, reason: str, status: int = 400, **query: str) -> SignInError:
    with pytest.raises(SignInError) as caught:
        await browser.complete(sign_in, **query)
    assert (caught.value.reason, caught.value.suggested_status) == (reason, status)
    assert_no_secrets(caught.value, secrets=[SECRET])
    return caught.value


async def test_sign_in(service: BoardService) -> None:
    """A user signs in, is known by the cookie from then on, and calls are made with the new token until the sign-out."""
    browser, store = Browser(), MemoryTokenStore()
    async with service.session() as session:
        sign_in = sign_in_of(service, session, store=store)
        assert sign_in.account_of_request(browser.cookies) is None
        assert await sign_in.state(MEMBER_ID) == "never"
        with pytest.raises(ConsentRequired) as caught:
            await sign_in.session_for(MEMBER_ID).members.me()
        assert (caught.value.account, caught.value.login_url) == (MEMBER_ID, "/login")
        asked = browser.begin(sign_in, "/boards/1?x=1#top")
        assert asked == {
            "theme": "dark",
            "response_type": "code",
            "client_id": service.client_id,
            "redirect_uri": service.redirect_uri,
            "state": asked["state"],
        }
        done = await browser.complete(sign_in, code=service.new_code(), state=asked["state"])
        assert (done.account, done.member.id, done.return_to) == (MEMBER_ID, MEMBER_ID, "/boards/1?x=1#top")
        assert exchanges(service) == 1
        assert sign_in.account_of_request(browser.cookies) == MEMBER_ID
        assert await sign_in.state(MEMBER_ID) == "good"
        await sign_in.session_for(MEMBER_ID).members.me()
        stored = await store.read(MEMBER_ID)
        assert stored is not None
        assert_no_secrets(
            [repr(done), repr(sign_in), *browser.cookies.values(), *done.set_cookies],
            secrets=[SECRET, service.client_secret, stored.token.value],
        )
        await sign_in.sign_out(MEMBER_ID)
        browser.take(sign_in.sign_out_cookies)
        assert sign_in.account_of_request(browser.cookies) is None
        assert (await store.read(MEMBER_ID), await sign_in.state(MEMBER_ID)) == (None, "never")
        with pytest.raises(ConsentRequired):
            await sign_in.session_for(MEMBER_ID).members.me()
        assert exchanges(service) == 1


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]])
async def test_five_tabs_finish_in_any_order(service: BoardService, order: list[int]) -> None:
    """Five sign-ins of one browser are open at a time, each with its own return address, at two workers."""
    browser = Browser()
    async with service.session() as session:
        workers = [sign_in_of(service, session) for _ in range(2)]
        states = [browser.begin(workers[tab % 2], f"/tab/{tab}" + "x" * 500)["state"] for tab in range(5)]
        for tab in order:
            done = await browser.complete(workers[(tab + 1) % 2], code=service.new_code(), state=states[tab])
            assert done.return_to.startswith(f"/tab/{tab}")
    assert exchanges(service) == 5


async def test_the_sixth_tab_drops_the_first(service: BoardService) -> None:
    """A flow beyond five drops the oldest one, which is not of this browser any more."""
    browser = Browser()
    async with service.session() as session:
        sign_in = sign_in_of(service, session)
        states = [browser.begin(sign_in)["state"] for _ in range(6)]
        await refused(browser, sign_in, "foreign", code="c", state=states[0])
        for state in states[1:]:
            await browser.complete(sign_in, code=service.new_code(), state=state)


async def test_failed_redirects_sign_no_user_in(service: BoardService) -> None:
    """Replay, expiry, another browser, a refusal and a malformed redirect have each their reason, and no exchange."""
    browser, other, clock = Browser(), Browser(), Clock(1_800_000_000.0)
    async with service.session() as session:
        sign_in = sign_in_of(service, session, clock=clock)
        state = browser.begin(sign_in)["state"]
        old = dict(browser.cookies)
        await refused(other, sign_in, "foreign", code="c", state=state)
        other.begin(sign_in)
        await refused(other, sign_in, "foreign", code="c", state=state)
        await refused(browser, sign_in, "foreign", code="c", state=state + "x")
        await refused(browser, sign_in, "foreign", code="c")
        await refused(browser, sign_in, "foreign", code="c", state="\udcff")
        await browser.complete(sign_in, code=service.new_code(), state=state)
        assert exchanges(service) == 1
        await refused(browser, sign_in, "replayed", code="c", state=state)
        browser.cookies = old
        await refused(browser, sign_in, "replayed", code="c", state=state)
        late = browser.begin(sign_in)["state"]
        clock.now += 601
        await refused(browser, sign_in, "expired", code="c", state=late)
        for query, reason in (
            ({"error": "access_denied"}, "refused"),
            ({"error": "user_cancelled_login"}, "refused"),
            ({"error": "access_denied", "code": "c"}, "refused"),
            ({}, "failed"),
            ({"code": ""}, "failed"),
        ):
            state = browser.begin(sign_in)["state"]
            await refused(browser, sign_in, reason, **query, state=state)
            await refused(browser, sign_in, "replayed", code="c", state=state)
        state = browser.begin(sign_in)["state"]
        for malformed in (f"state={state}&state=x&code=c", f"state={state}&code=a&code=b", {"code": ["a", "b"]}, 3, {"code": 3}):
            with pytest.raises(SignInError) as caught:
                await sign_in.complete(malformed, browser.cookies)  # type: ignore[arg-type]  # -- what a test gives
            assert caught.value.reason == "failed"
    assert exchanges(service) == 1
