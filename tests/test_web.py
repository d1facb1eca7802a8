"""SignIn: sign-ins in cookies, redirects that sign no user in, return addresses, accounts, and sessions of users."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual_loop import Clock
from waiting import until

from boardclient import (
    AsyncSession,
    ConsentRequired,
    Effect,
    FileTokenStore,
    Member,
    MemoryTokenStore,
    SessionClosedError,
    StaticCredentials,
    StoredToken,
    Token,
)
from boardclient.testing import BoardService, assert_no_secrets, faults
from boardclient.web import SignIn, SignInError, local_address

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

    async def sign_in(self, sign_in: SignIn, service: BoardService, return_to: str = "/") -> Any:
        """Begin a sign-in, and complete it with a code of the service."""
        state = self.begin(sign_in, return_to)["state"]
        return await self.complete(sign_in, code=service.new_code(), state=state)


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


@pytest.fixture
def browser() -> Browser:
    return Browser()


@pytest.fixture
def sign_in(service: BoardService, session: AsyncSession) -> SignIn:
    return sign_in_of(service, session)


async def test_sign_in(service: BoardService, session: AsyncSession) -> None:
    """A user signs in, is known by the cookie from then on, and calls are made with the new token until the sign-out."""
    browser, store = Browser(), MemoryTokenStore()
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
async def test_five_tabs_finish_in_any_order(
    service: BoardService, order: list[int], session: AsyncSession, browser: Browser
) -> None:
    """Five sign-ins of one browser are open at a time, each with its own return address, at two workers."""
    workers = [sign_in_of(service, session) for _ in range(2)]
    states = [browser.begin(workers[tab % 2], f"/tab/{tab}" + "x" * 500)["state"] for tab in range(5)]
    for tab in order:
        done = await browser.complete(workers[(tab + 1) % 2], code=service.new_code(), state=states[tab])
        assert done.return_to.startswith(f"/tab/{tab}")
    assert exchanges(service) == 5


async def test_failed_redirects_sign_no_user_in(service: BoardService, session: AsyncSession) -> None:
    """Replay, expiry, another browser, a refusal and a malformed redirect have each their reason, and no exchange."""
    browser, other, clock = Browser(), Browser(), Clock(1_800_000_000.0)
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
    signed_in, browser.cookies = browser.cookies, old
    await refused(browser, sign_in, "replayed", code="c", state=state)
    browser.cookies = signed_in
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


# --- return addresses


@pytest.mark.parametrize("address", ["/", "/boards/1", "/a?b=//c&d=%2F#//e", "/a%20b/ü", "/@user", "/a:b"])
def test_local_addresses(address: str) -> None:
    """A path of the site is kept, with query and fragment; what is not ASCII is percent-encoded."""
    assert unquote(local_address(address)) == unquote(address)
    assert local_address(address).isascii()
    assert local_address(address.encode()) == "/"


@settings(max_examples=5 * settings.default.max_examples)
@given(address=st.text(st.sampled_from("/\\%2f5cC0aAe.:@?#\t\r\n \x00xü\udcff")) | st.text())
@example("//evil.example")
@example("/\\evil.example")
@example("/%2Fevil.example")
@example("/%255C/evil.example")
@example("/\t/evil.example")
@example("https://evil.example")
@example("javascript:alert(1)")
@example("//user@evil.example")
@example("/..//evil.example")
@example("/." + "x" * 2001)
@example("/\udcff")
def test_addresses_stay_local(address: str) -> None:
    """Whatever is given, the browser stays on the site, also after servers have decoded the address, and no header is split."""
    found = local_address(address)
    assert found.isascii()
    for _ in range(4):
        assert found.startswith("/")
        joined = urlsplit(urljoin("https://app.example/login", found.replace("\\", "/").replace("\t", "")))
        assert (joined.scheme, joined.netloc) == ("https", "app.example")
        assert not set(urlsplit(found).path) & set("\\\r\n\t\x00")
        found = unquote(found)


# --- queries and cookies


def raw(pairs: Mapping[str, str]) -> str:
    return "; ".join(f"{name}={value}" for name, value in pairs.items())


@pytest.mark.parametrize(
    "cookies", [dict, raw, lambda given: raw(given).encode(), lambda given: f"x=1; y; {raw(given)}; {raw(given)}"]
)
@pytest.mark.parametrize(
    "query",
    [
        lambda given: urlencode(given),
        lambda given: f"?{urlencode(given)}".encode(),
        lambda given: bytearray(urlencode(given).encode()),
        dict,
    ],
)
async def test_queries_and_cookies_of_every_framework(
    service: BoardService, query: Any, cookies: Any, sign_in: SignIn, browser: Browser
) -> None:
    """A redirect is completed with the query and the cookies in the forms that frameworks have."""
    state = browser.begin(sign_in)["state"]
    done = await sign_in.complete(query({"code": service.new_code(), "state": state}), cookies(browser.cookies))
    browser.take(done.set_cookies)
    assert sign_in.account_of_request(cookies(browser.cookies)) == MEMBER_ID
    assert await sign_in.signed_in_account(cookies(browser.cookies)) == MEMBER_ID


@pytest.mark.parametrize("cookies", [None, 3, "", "n", {}, {"__Host-ours-account": 3}, b"\xff"])
async def test_requests_without_a_cookie(service: BoardService, session: AsyncSession, cookies: Any) -> None:
    """Whatever else stands in place of cookies names no user."""
    sign_in = sign_in_of(service, session, cookie_name="ours")
    assert sign_in.account_of_request(cookies) is None
    assert await sign_in.signed_in_account(cookies) is None
    with pytest.raises(SignInError) as caught:
        await sign_in.complete("state=aaaaaaaaaaaaaaaaaaaaaa&code=c", cookies)
    assert caught.value.reason == "foreign"


class Given:
    """A browser and a sign-in, without a service."""

    def __init__(self) -> None:
        self.session = AsyncSession(StaticCredentials("t"), "https://board.example")
        self.sign_in = self.make()
        self.browser = Browser()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.session._discard()

    def make(self, **options: Any) -> SignIn:
        given = {
            "client_id": "id",
            "client_secret": "secret",
            "redirect_uri": "https://app.example/callback",
            "auth_url": "https://board.example/auth",
            "authorize_url": "https://board.example/authorize",
            "cookie_secret": SECRET,
        }
        return SignIn(self.session, **{**given, **options})


@settings(max_examples=2 * settings.default.max_examples)
@given(data=st.data(), text=st.text(st.characters() | st.sampled_from(".\udcff\ud83d")))
def test_forged_cookies_hold_nothing(data: st.DataObject, text: str) -> None:
    """A cookie that was changed or made up, of any text, is no sign-in of this browser, and raises nothing."""
    with Given() as given:
        state = given.browser.begin(given.sign_in)["state"]
        ((name, signed),) = given.browser.cookies.items()
        account = re.sub("flow-.*", "account", name)
        at = data.draw(st.integers(0, len(signed) - 2))  # the last character has bits that count for nothing
        other = data.draw(st.sampled_from("abcXYZ012-_.").filter(lambda character: character != signed[at]))
        for forged in (text, signed[:at] + other + signed[at + 1 :]):
            with pytest.raises(SignInError, match="was not begun in this browser"):
                asyncio.run(given.sign_in.complete({"state": state, "code": "c"}, {name: forged}))
            assert given.sign_in.account_of_request({account: forged}) is None
        assert given.sign_in.account_of_request({account: signed}) is None  # signed for something else


@pytest.mark.parametrize(
    "options",
    [
        {"cookie_secret": "another secret of a worker"},
        {"client_id": "staging"},
        {"cookie_name": "other"},
        {"base_url": "/staging"},
    ],
)
async def test_cookies_are_of_one_client_at_one_service(service: BoardService, options: dict[str, str]) -> None:
    """The cookies of staging are worth nothing in production, though both have the same secret and the same member."""
    browser, store = Browser(), MemoryTokenStore()
    async with service.session() as session, AsyncSession(StaticCredentials("t"), service.base_url + "/x") as staging:
        sign_in = sign_in_of(service, session, store=store)
        await browser.sign_in(sign_in, service)
        other = sign_in_of(service, staging if options.pop("base_url", "") else session, **{"store": store, **options})
        assert other.account_of_request(browser.cookies) is None
        assert await other.signed_in_account(browser.cookies) is None
        state = browser.begin(sign_in)["state"]
        await refused(browser, other, "foreign", code="c", state=state)


# --- open sign-ins


async def test_cookies_are_few_and_short(service: BoardService, session: AsyncSession) -> None:
    """However many sign-ins a browser begins, and with whatever addresses, its cookies stay below what servers accept."""
    browser, random, clock = Browser(), Random(7), Clock(1_800_000_000.0)
    sign_in = sign_in_of(service, session, clock=clock)
    for length in (10, 1990, 30, 700, 1990, 900, 1990):
        for _ in range(4):
            address = "/" + "".join(random.choices(ascii_letters + "äöü€😀", k=length))
            state = browser.begin(sign_in, address)["state"]
            assert len(raw(browser.cookies)) < 6000
            if random.random() < 0.5:
                await browser.complete(sign_in, code=service.new_code(), state=state)
    await browser.sign_in(sign_in, service, "/" + "ü" * 1990)
    longest = "/" + "".join(random.choices([chr(number) for number in range(0x4E00, 0x9FFF)], k=1990))
    done = await browser.sign_in(sign_in, service, longest)
    assert done.return_to == "/"  # no cookie is long enough
    clock.now += 3601
    browser.begin(sign_in)
    assert len(browser.cookies) == 2  # what is an hour old was dropped


@pytest.mark.parametrize("rest", ["x", "(", "a,b", "ü b", "x" * 22, "x" * 23, "x" * 21 + "\r"])
def test_cookies_of_others_stay(service: BoardService, session: AsyncSession, rest: str) -> None:
    """A cookie that is named as that of a sign-in, and can't be opened, may be another application's, and is not dropped."""
    sign_in = sign_in_of(service, session, cookie_name="ours")
    others = {f"__Host-ours-flow-{rest}{number}"[: 17 + len(rest)]: "not signed" for number in range(9)}
    assert len(sign_in.begin("/", others).set_cookies) == 1


async def test_sign_ins_on_one_host_leave_each_other_alone() -> None:
    """Signing in at one of two services in one application, or at an application on another port, does nothing to the other."""
    async with (
        BoardService(redirect_uri="http://localhost/a") as one,
        BoardService(redirect_uri="http://localhost/b") as two,
        one.session() as first,
        two.session() as second,
    ):
        browser = Browser()
        sign_ins = [(service, sign_in_of(service, session)) for service, session in ((one, first), (two, second))]
        states = [browser.begin(sign_in)["state"] for _ in range(6) for _, sign_in in sign_ins]
        for (service, sign_in), state in zip(sign_ins, states[-2:], strict=True):
            await browser.complete(sign_in, code=service.new_code(), state=state)
        for service, sign_in in sign_ins:
            assert await sign_in.signed_in_account(browser.cookies) == MEMBER_ID
            assert exchanges(service) == 1


# --- redirects that are opened again


async def test_a_redirect_that_is_opened_again_leads_on(service: BoardService, session: AsyncSession) -> None:
    """It leads the user whom it has signed in at this browser to the same page, at any worker, without an exchange."""
    browser, store = Browser(), MemoryTokenStore()
    workers = [sign_in_of(service, session, store=store) for _ in range(2)]
    state = browser.begin(workers[0], "/boards/1?x=1")["state"]
    first = await browser.complete(workers[0], code=service.new_code(), state=state)
    for worker in workers:
        again = await browser.complete(worker, code="used", state=state)
        assert (again.account, again.member, again.return_to) == (first.account, first.member, "/boards/1?x=1")
        assert await worker.signed_in_account(browser.cookies) == MEMBER_ID
    assert exchanges(service) == 1
    await workers[0].sign_out(MEMBER_ID)
    await refused(browser, workers[1], "replayed", code="used", state=state)


async def test_a_redirect_of_an_earlier_sign_in_is_replayed(service: BoardService, sign_in: SignIn, browser: Browser) -> None:
    """Where another sign-in has signed the user in since, the earlier redirect says nothing about them."""
    state = browser.begin(sign_in)["state"]
    for opened in (state, browser.begin(sign_in)["state"]):
        await browser.complete(sign_in, code=service.new_code(), state=opened)
    await refused(browser, sign_in, "replayed", code="c", state=state)


async def test_a_second_click_gets_the_result_of_the_first(service: BoardService, sign_in: SignIn, browser: Browser) -> None:
    """A browser that sends the redirect twice waits for the second response: both are that of one exchange, also if it fails."""
    for fault, expected in ((None, [MEMBER_ID] * 2), (faults.status(400), ["failed"] * 2)):
        if fault is not None:
            service.faults.add(fault, "token.exchange")
        query = {"code": service.new_code(), "state": browser.begin(sign_in)["state"]}
        before, cookies = exchanges(service), dict(browser.cookies)
        found = await asyncio.gather(*(sign_in.complete(query, cookies) for _ in range(2)), return_exceptions=True)
        ends = [one.reason if isinstance(one, SignInError) else getattr(one, "account", one) for one in found]
        assert ends == expected
        assert exchanges(service) == before + 1
        assert found[0] is not found[1] or fault is None


async def test_a_redirect_is_opened_again_while_the_service_is_down(
    service: BoardService, session: AsyncSession, browser: Browser
) -> None:
    """The sign-in is not lost: the page can be loaded again. A token that the service refuses now takes a new sign-in."""
    sign_in = sign_in_of(service, session.with_options(retry=None))
    state = browser.begin(sign_in)["state"]
    await browser.complete(sign_in, code=service.new_code(), state=state)
    service.faults.add(faults.status(503), "members.me", times=1)
    error = await refused(browser, sign_in, "failed", 502, code="used", state=state)
    assert error.set_cookies == ()
    await browser.complete(sign_in, code="used", state=state)
    service.rules.expire_tokens()
    await refused(browser, sign_in, "replayed", code="used", state=state)


@pytest.mark.parametrize("cookies", [dict, raw])
async def test_the_newest_tabs_can_finish(sign_in: SignIn, service: BoardService, browser: Browser, cookies: Any) -> None:
    """Of more than five tabs, which a browser may open within a second, the last five can finish."""
    states = []
    for _ in range(8):
        begun = sign_in.begin("/", cookies(browser.cookies))
        browser.take(begun.set_cookies)
        states.append(dict(parse_qsl(urlsplit(begun.location).query))["state"])
    for state in states[:3]:
        await refused(browser, sign_in, "foreign", code="c", state=state)
    for state in states[3:]:
        await browser.complete(sign_in, code=service.new_code(), state=state)


async def test_clocks_of_workers_may_differ_by_a_minute(service: BoardService, session: AsyncSession) -> None:
    """What another worker signed a minute in the future is good, and what it signed later is not."""
    for ahead, reason in ((60, ""), (62, "expired")):
        browser, clock = Browser(), Clock(1_800_000_000.0)
        other = sign_in_of(service, session, clock=lambda: clock.now + ahead)  # noqa: B023 -- used at once
        sign_in = sign_in_of(service, session, clock=clock)
        state = browser.begin(other)["state"]
        if reason:
            await refused(browser, sign_in, reason, code="c", state=state)
        else:
            await browser.complete(sign_in, code=service.new_code(), state=state)
        browser.begin(other)
        await browser.sign_in(other, service)
        assert sign_in.account_of_request(browser.cookies) == (None if reason else MEMBER_ID)


# --- signing out


async def test_signing_out_ends_the_account_at_every_browser(service: BoardService, session: AsyncSession) -> None:
    """After a sign-out at one browser, and the next sign-in there, the cookie of the other browser is worth nothing."""
    store = MemoryTokenStore()
    workers = [sign_in_of(service, session, store=store) for _ in range(2)]
    laptop, phone = Browser(), Browser()
    for browser in (laptop, phone):
        await browser.sign_in(workers[0], service)
    for browser in (laptop, phone):  # a second sign-in ends no other
        assert await workers[1].signed_in_account(browser.cookies) == MEMBER_ID
    await workers[0].sign_out(MEMBER_ID)
    for worker in workers:
        for browser in (laptop, phone):
            assert await worker.signed_in_account(browser.cookies) is None
    await phone.sign_in(workers[1], service)
    assert await workers[0].signed_in_account(phone.cookies) == MEMBER_ID
    assert await workers[0].signed_in_account(laptop.cookies) is None


async def test_a_store_that_was_lost_ends_all_cookies(service: BoardService, session: AsyncSession) -> None:
    """A cookie that is ahead of the store names no user: its account has to sign in again."""
    sign_in, browser = sign_in_of(service, session), Browser()
    await browser.sign_in(sign_in, service)
    assert await sign_in_of(service, session).signed_in_account(browser.cookies) is None


# --- options


async def test_options(service: BoardService, session: AsyncSession) -> None:
    """What can't work is refused when the object is made."""
    for options, error in (
        ({"account_of": "name"}, TypeError),
        ({"cookie_secret": ""}, ValueError),
        ({"cookie_secret": []}, ValueError),
        ({"cookie_secret": [SECRET, "too short"]}, ValueError),
        ({"cookie_secret": b"15 bytes, no mo"}, ValueError),
        ({"cookie_secret": [3]}, TypeError),
        ({"cookie_name": "a b"}, ValueError),
        ({"authorize_url": None}, TypeError),
        ({"authorize_url": "/relative"}, ValueError),
        ({"authorize_url": "https://board.example/authorize?a=b#c"}, ValueError),
        ({"authorize_url": "https://board.example/authorize?a=b\r\nX: y"}, ValueError),
        ({"authorize_url": "http://board.example/authorize"}, ValueError),
        ({"auth_url": "http://board.example"}, ValueError),
        ({"client_id": ""}, ValueError),
        ({"account_seconds": math.nan}, ValueError),
        ({"account_seconds": math.inf}, ValueError),
        ({"account_seconds": 0}, ValueError),
        ({"account_seconds": "day"}, TypeError),
    ):
        with pytest.raises(error):
            sign_in_of(service, session, **options)


async def test_without_itsdangerous(service: BoardService, monkeypatch: pytest.MonkeyPatch, session: AsyncSession) -> None:
    """Without the extra the error says what to install."""
    monkeypatch.setitem(sys.modules, "itsdangerous", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'boardclient\[web\]'"):
        sign_in_of(service, session)


async def test_scopes_and_plain_http(service: BoardService, session: AsyncSession, browser: Browser) -> None:
    """Scopes are asked for where they are named; on plain http the cookies have neither prefix nor `Secure`."""
    plain = {"redirect_uri": "http://127.0.0.1:8000/callback", "authorize_url": "https://board.example/authorize"}
    sign_in = sign_in_of(service, session, scope="read", **plain)
    assert browser.begin(sign_in)["scope"] == "read"
    assert browser.begin(sign_in, scope="read write")["scope"] == "read write"
    assert all(re.fullmatch("boardclient-[0-9a-f]{8}-flow-.*", name) for name in browser.cookies)


# --- the log


async def test_each_sign_in_that_fails_is_a_line_in_the_log(
    service: BoardService, caplog: pytest.LogCaptureFixture, sign_in: SignIn, browser: Browser
) -> None:
    """It says why, and where the browser was at another host than the redirect URI's, it names both."""
    state = browser.begin(sign_in)["state"]
    await refused(browser, sign_in, "refused", error="access_denied", state=state)
    begun = sign_in.begin("/", host="localhost:8000")
    state = dict(parse_qsl(urlsplit(begun.location).query))["state"]
    await refused(browser, sign_in, "foreign", code="c", state=state)
    await refused(
        browser, sign_in, "foreign", code="c", state=sign_in.begin("/", host=urlsplit(service.redirect_uri).netloc).location[-22:]
    )
    with pytest.raises(SignInError):
        await sign_in.complete("a=1&a=2", {})
    host = urlsplit(service.redirect_uri).netloc
    lines = [
        record.getMessage().removeprefix("a sign-in failed ") for record in caplog.records if record.name == "boardclient.web"
    ]
    assert lines == [
        "(refused): the user or the service refused access",
        f"(foreign): it began at localhost:8000, and its redirect leads to {host}: browsers keep the cookies of each host apart",
        f"(foreign): it was not begun in this browser, or at another host than {host}, where its redirect leads",
        "(failed): the redirect is malformed: its query names a parameter twice, or is no query",
    ]


# --- secrets and verifiers


OLD, NEW = "the old secret of the workers", "the new secret of the workers"


def _challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


async def test_pkce_and_rotation(service: BoardService, session: AsyncSession) -> None:
    """The verifier comes from the secret that made its challenge, also after a new one was put before it."""
    browser, clock = Browser(), Clock()
    before = sign_in_of(service, session, pkce=True, cookie_secret=OLD, clock=clock)
    after = sign_in_of(service, session, pkce=True, cookie_secret=[NEW, OLD], clock=clock)
    for beginning, completing in ((before, after), (after, after)):
        asked = browser.begin(beginning)
        assert asked["code_challenge_method"] == "S256"
        with pytest.raises(SignInError):
            await browser.complete(completing, code="unknown", state=asked["state"])
        verifier = service.calls_of("token.exchange")[-1].body["code_verifier"]  # type: ignore[index, call-overload]  # -- a form
        assert _challenge_of(str(verifier)) == asked["code_challenge"]
    asked = browser.begin(before)
    dropped = sign_in_of(service, session, pkce=True, cookie_secret=NEW, clock=clock)
    await refused(browser, dropped, "foreign", code="c", state=asked["state"])


async def test_the_account_cookie_lasts_for_its_time(service: BoardService, session: AsyncSession) -> None:
    """Every worker with the secret recognises a signed-in user for the given time, but not from a changed cookie."""
    browser, clock = Browser(), Clock()
    sign_in = sign_in_of(service, session, clock=clock, account_seconds=100)
    await browser.sign_in(sign_in, service)
    clock.now += 100
    assert sign_in_of(service, session, clock=clock, account_seconds=100).account_of_request(browser.cookies) == MEMBER_ID
    assert sign_in_of(service, session, cookie_secret=NEW).account_of_request(browser.cookies) is None
    clock.now += 1
    assert sign_in.account_of_request(browser.cookies) is None


# --- who the user is


async def _async_name(member: Member) -> str:
    return f"async {member.id}"


@pytest.mark.parametrize("account_of", [lambda member: f"sync {member.id}", _async_name])
async def test_names_by_the_applications_function(service: BoardService, account_of: Any, session: AsyncSession) -> None:
    """A function, sync or async, says who the user is, and the token is stored under that name."""
    browser, store = Browser(), MemoryTokenStore()
    sign_in = sign_in_of(service, session, account_of=account_of, store=store)
    done = await browser.sign_in(sign_in, service)
    assert done.account.split() in (["sync", MEMBER_ID], ["async", MEMBER_ID])
    assert await store.read(done.account) is not None


async def _cancelled(member: Member) -> str:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("account_of", "words"),
    [
        (lambda member: None, "account_of returned NoneType, not the name of an account"),
        (lambda member: 3, "account_of returned int, not"),
        (lambda member: "", "account_of returned str, not"),
        (lambda member: {}["x"], "account_of raised KeyError"),
        (_cancelled, "account_of raised CancelledError"),
        (lambda member: "\ud800", "a lone surrogate"),
        (None, "the member record holds no id: give SignIn account_of="),
    ],
)
async def test_a_name_function_without_a_name_fails_the_sign_in(
    service: BoardService, account_of: Any, words: str, session: AsyncSession, browser: Browser
) -> None:
    """A function that gives no name fails the sign-in with a clear error, and nothing is stored."""
    service.faults.add(faults.status(200, body=b'{"username":"ann"}'), "members.me")
    sign_in = sign_in_of(service, session, account_of=account_of)
    state = browser.begin(sign_in)["state"]
    status = 503 if "account_of" in words else 400
    error = await refused(browser, sign_in, "failed", status, code=service.new_code(), state=state)
    assert (words in str(error), error.effect) == (True, Effect.DONE)
    await refused(browser, sign_in, "replayed", code="c", state=state)


async def test_an_account_that_fits_in_no_cookie_is_refused(
    service: BoardService, session: AsyncSession, browser: Browser
) -> None:
    """An account whose cookie browsers would drop fails the sign-in, which says so, and no token is stored."""
    names, store = [base64.b64encode(os.urandom(length)).decode() for length in (2500, 3000)], MemoryTokenStore()
    sign_in = sign_in_of(service, session, account_of=lambda member: names[0], store=store)
    await browser.sign_in(sign_in, service)
    assert sign_in.account_of_request(browser.cookies) == names.pop(0)
    state = browser.begin(sign_in)["state"]
    error = await refused(browser, sign_in, "failed", code=service.new_code(), state=state)
    assert re.search(
        r"the cookie __Host-boardclient-[0-9a-f]{8}-account has [45],\d\d\d bytes, and browsers keep at most 4,096$", str(error)
    )
    assert error.effect is Effect.DONE
    assert await store.read(names[0]) is None
    await refused(browser, sign_in, "replayed", code="c", state=state)


# --- sign-ins that fail midway


@pytest.mark.parametrize(
    ("fault", "operation", "status", "words", "effect"),
    [
        (faults.status(400), "token.exchange", 400, "status 400", Effect.REJECTED),
        (faults.status(400, body=b'{"error":"invalid_grant"}'), "token.exchange", 400, "(invalid_grant)", Effect.REJECTED),
        (faults.status(400, body=b'{"error":"invalid_client"}'), "token.exchange", 502, "(invalid_client)", Effect.REJECTED),
        (faults.status(401, body=b'{"error":"invalid_client"}'), "token.exchange", 502, "(invalid_client)", Effect.REJECTED),
        (faults.status(503), "token.exchange", 502, "status 503", Effect.UNKNOWN),
        (faults.drop(), "token.exchange", 502, "unknown effect", Effect.UNKNOWN),
        (faults.status(401), "members.me", 502, "status 401", Effect.DONE),
        (faults.drop(), "members.me", 502, "closed before the response", Effect.DONE),
        (faults.status(500), "members.me", 502, "status 500", Effect.DONE),
    ],
)
async def test_failures_midway(
    service: BoardService,
    caplog: pytest.LogCaptureFixture,
    fault: Any,
    operation: str,
    status: int,
    words: str,
    effect: Effect,
    browser: Browser,
) -> None:
    """A bad code is 400, and a client or a service that fails 502. It is logged in the service's words, without a secret."""
    async with service.session(retry=None) as session:
        sign_in = sign_in_of(service, session)
        state = browser.begin(sign_in)["state"]
        service.faults.add(fault, operation, times=1)
        error = await refused(browser, sign_in, "failed", status, code=service.new_code(), state=state)
        assert error.effect is effect
        assert_no_secrets(error, secrets=[service.client_secret, SECRET])
        (record,) = [record for record in caplog.records if record.name == "boardclient.web"]
        assert record.getMessage() == f"a sign-in failed (failed): {error}"
        assert words in record.getMessage()
        await refused(browser, sign_in, "replayed", code="c", state=state)


@pytest.mark.parametrize("error", ["server_error", "temporarily_unavailable", "unauthorized_client"])
async def test_a_consent_page_that_fails(
    service: BoardService, caplog: pytest.LogCaptureFixture, error: str, sign_in: SignIn, browser: Browser
) -> None:
    """An error of the service or the client at the consent page is not the user's."""
    await refused(browser, sign_in, "failed", 502, error=error, state=browser.begin(sign_in)["state"])
    assert f"the service's consent page failed ({error})" in caplog.text


async def test_a_store_that_fails(service: BoardService, session: AsyncSession, browser: Browser) -> None:
    """A store that fails, and a code that can't be sent, fail the sign-in."""

    class Broken(MemoryTokenStore):
        async def publish(self, account: str, token: Token, after: int, **at: Any) -> StoredToken | None:
            raise OSError("no disk")

    sign_in = sign_in_of(service, session, store=Broken())
    error = await refused(browser, sign_in, "failed", 503, code=service.new_code(), state=browser.begin(sign_in)["state"])
    assert "the token store failed: publish raised OSError" in str(error)
    await refused(browser, sign_in, "failed", code="\udcff", state=browser.begin(sign_in)["state"])


async def test_a_service_that_asks_to_wait_says_so_of_the_sign_in(
    service: BoardService, sign_in: SignIn, browser: Browser
) -> None:
    """The user begins again then."""
    service.faults.add(faults.status(503, {"Retry-After": "3600"}), "token.exchange")
    error = await refused(browser, sign_in, "failed", 502, code=service.new_code(), state=browser.begin(sign_in)["state"])
    assert error.retry_at is not None
    assert 3500 < (error.retry_at - datetime.now(UTC)).total_seconds() <= 3600


@pytest.mark.parametrize("is_configured", [False, True])
def test_warnings_are_shown_where_logging_is_not_configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_configured: bool
) -> None:
    """Warnings go to standard error, unless the application has a handler of its own."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(io.StringIO())] if is_configured else [])
    logging.getLogger("boardclient.web").warning("the sign-in failed")
    assert capsys.readouterr().err == ("" if is_configured else "the sign-in failed\n")


async def test_an_exchange_that_was_not_sent_may_be_repeated(
    service: BoardService, session: AsyncSession, sign_in: SignIn, browser: Browser
) -> None:
    """Where the service can't be reached, the code is still good: the browser may send the redirect again."""
    unreachable = sign_in_of(service, session, auth_url="http://127.0.0.1:9")
    state = browser.begin(sign_in)["state"]
    code = service.new_code()
    for _ in range(2):
        error = await refused(browser, unreachable, "failed", 502, code=code, state=state)
        assert (error.set_cookies, error.effect) == ((), Effect.NOT_SENT)
    assert (await browser.complete(sign_in, code=code, state=state)).account == MEMBER_ID


async def test_a_request_that_ends_early_does_not_lose_the_token(
    service: BoardService, sign_in: SignIn, browser: Browser
) -> None:
    """A browser that goes away amid the exchange is signed in all the same."""
    state = browser.begin(sign_in)["state"]
    completing = asyncio.create_task(sign_in.complete({"code": service.new_code(), "state": state}, browser.cookies))
    await service.received("token.exchange")
    completing.cancel()

    async def is_signed_in() -> bool:
        return await sign_in.state(MEMBER_ID) == "good"

    await until(is_signed_in)


@pytest.mark.parametrize("operation", ["token.exchange", "members.me"])
async def test_a_session_that_closes_amid_a_sign_in(service: BoardService, browser: Browser, operation: str) -> None:
    """The sign-in ends with SessionClosedError, before the exchange, amid it and after it."""
    service.faults.add(faults.hang(), operation)
    session = service.session()
    sign_in = sign_in_of(service, session)
    states = [browser.begin(sign_in)["state"] for _ in range(2)]
    completing = asyncio.create_task(sign_in.complete({"code": service.new_code(), "state": states[0]}, browser.cookies))
    await service.received(operation)
    await session.aclose()
    for awaited in (completing, sign_in.complete({"code": "c", "state": states[1]}, browser.cookies)):
        with pytest.raises(SessionClosedError):
            await awaited


async def test_a_session_that_closes_between_two_steps(service: BoardService, browser: Browser) -> None:
    """Another event loop may close the session: the next step finds it closed."""
    session = service.session()

    def parse_token(fields: Mapping[str, object]) -> Token:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, session.aclose()).result()
        return Token(str(fields["access_token"]))

    sign_in = sign_in_of(service, session, parse_token=parse_token)
    with pytest.raises(SessionClosedError):
        await browser.sign_in(sign_in, service)


async def test_many_accounts_and_states(service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker keeps in memory is bounded: the longest unused goes first."""
    monkeypatch.setattr("boardclient.web._MOST_KEPT", 2)
    async with service.session(StaticCredentials("t")) as session:
        sign_in: SignIn = sign_in_of(service, session)
        first = sign_in.credentials_for("a")
        second = sign_in.credentials_for("b")
        assert sign_in.credentials_for("a") is first
        sign_in.credentials_for("c")
        assert sign_in.credentials_for("a") is first
        assert sign_in.credentials_for("b") is not second
        browser = Browser()
        for _ in range(3):
            await browser.sign_in(sign_in, service)
    assert exchanges(service) == 3


# --- what a neighbour can do


@pytest.mark.parametrize("space", ["\u2000", "\u00a0", "\u0085", "\x0b", "\x1f"])
@pytest.mark.parametrize("kind", [str, lambda text: text.encode("utf-8")])
async def test_a_cookie_whose_name_begins_with_unicode_white_space_is_another_one(
    service: BoardService, session: AsyncSession, browser: Browser, space: str, kind: Callable[[str], Any]
) -> None:
    """Browsers let a sibling domain set a cookie named U+2000 and `__Host-…`. It is no cookie of the application."""
    sign_in = sign_in_of(service, session)
    state = browser.begin(sign_in)["state"]
    ((name, value),) = browser.cookies.items()
    with pytest.raises(SignInError) as caught:
        await sign_in.complete({"code": service.new_code(), "state": state}, kind(f"{space}{name}={value}"))
    assert caught.value.reason == "foreign"
    done = await sign_in.complete({"code": service.new_code(), "state": state}, kind(f"a=b;\t {name}={value} ; c=d"))
    own = next(cookie.partition(";")[0] for cookie in done.set_cookies if "-account=" in cookie)
    assert sign_in.account_of_request(kind(f"{space}{own}")) is None
    assert sign_in.account_of_request(kind(f"{own}; x=y")) == MEMBER_ID


async def test_a_cookie_that_was_signed_out_stays_so_when_a_store_begins_anew(
    service: BoardService, session: AsyncSession, tmp_path: Path
) -> None:
    """After a restart of a store in memory, or with a file that was moved away, no cookie is good that was signed out."""
    path = tmp_path / "private" / "tokens"
    for make in (MemoryTokenStore, lambda: FileTokenStore(path)):
        stolen, browser = Browser(), Browser()
        before = sign_in_of(service, session, store=make())
        await stolen.sign_in(before, service)
        await before.sign_out(MEMBER_ID)
        path.unlink(missing_ok=True)
        after = sign_in_of(service, session, store=make())
        await browser.sign_in(after, service)
        assert await after.signed_in_account(browser.cookies) == MEMBER_ID
        assert await after.signed_in_account(stolen.cookies) is None


async def test_two_services_on_one_store_share_nothing(service: BoardService) -> None:
    """Members with equal identifiers have a token at each service, and signing out of one leaves the other."""
    store = MemoryTokenStore()
    async with BoardService() as other, service.session() as here, other.session() as there:
        first, second = sign_in_of(service, here, store=store), sign_in_of(other, there, store=store)
        await Browser().sign_in(first, service)
        await Browser().sign_in(second, other)
        await first.session_for(MEMBER_ID).members.me()
        await second.session_for(MEMBER_ID).members.me()
        await first.sign_out(MEMBER_ID)
        assert [await first.state(MEMBER_ID), await second.state(MEMBER_ID)] == ["never", "good"]
        sent = [str(call) for call in service.calls]
        token = await store.read(MEMBER_ID, service=other.auth_url)
        assert token is not None
        assert not any(token.token.value in text for text in sent)


@pytest.mark.parametrize("issuer", ["https://other.example", "https://board.example.evil.example", "http://board.example", ""])
async def test_a_redirect_of_another_issuer_is_refused(
    service: BoardService, sign_in: SignIn, browser: Browser, issuer: str
) -> None:
    """A response that names its issuer (RFC 9207) must name the service. The right one still completes the sign-in."""
    state = browser.begin(sign_in)["state"]
    await refused(browser, sign_in, "failed", code=service.new_code(), state=state, iss=issuer)
    assert exchanges(service) == 0
    done = await browser.complete(sign_in, code=service.new_code(), state=state, iss="https://board.example/tenant")
    assert done.account == MEMBER_ID


@pytest.mark.parametrize(
    "uri",
    ["http://app.example/cb", "https://user@app.example/cb", "https://app.example/cb#x", "https://app.example/cb?a=b#x", "urn:x"],
)
def test_a_redirect_address_is_checked_like_the_others(service: BoardService, session: AsyncSession, uri: str) -> None:
    """It is https or loopback, without a user and a fragment. A query may be part of it (RFC 6749 3.1.2)."""
    with pytest.raises(ValueError, match="redirect_uri"):
        sign_in_of(service, session, redirect_uri=uri)
    for good in ("https://app.example/cb?a=b", "http://localhost:8000/cb", "http://[::1]/cb"):
        assert sign_in_of(service, session, redirect_uri=good).redirect_uri == good
