"""SignIn: return addresses, cookies of others, PKCE, names of users, and sign-ins that fail midway."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from random import Random
from string import ascii_letters
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_web import MEMBER_ID, SECRET, Browser, Clock, exchanges, refused, sign_in_of

from boardclient import Member, MemoryTokenStore, SessionClosedError, StaticCredentials, Token
from boardclient._sign_in._browser import cookie_of, keys_of, local_address, parameters
from boardclient._sign_in._flows import Flow, Flows, Signer, challenge_of
from boardclient.testing import BoardService, assert_no_secrets, faults
from boardclient.web import SignIn, SignInError

# --- return addresses


@pytest.mark.parametrize("address", ["/", "/boards/1", "/a?b=//c&d=%2F#//e", "/a%20b/ü", "/@user", "/a:b"])
def test_local_addresses(address: str) -> None:
    """A path of the site is kept, with query and fragment; what is not ASCII is percent-encoded."""
    assert unquote(local_address(address)) == unquote(address)
    assert local_address(address).isascii()


@settings(max_examples=500)
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


def test_an_address_that_is_no_text_becomes_the_root() -> None:
    """A return address that is no text becomes "/"."""
    assert [local_address(one) for one in (None, 3, b"/x", "")] == ["/"] * 4


# --- queries and cookies


class MultiItems(dict[str, str]):
    def multi_items(self) -> list[tuple[str, str]]:
        return [("a", "1"), ("a", "2")]


class GetList(dict[str, str]):
    def getlist(self, name: str) -> list[str]:
        return [self[name]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?a=1&b=%20", {"a": "1", "b": " "}),
        (b"a=1&b=", {"a": "1", "b": ""}),
        (bytearray(b"a=1"), {"a": "1"}),
        ({"a": "1"}, {"a": "1"}),
        ({"a": ["1"]}, {"a": "1"}),
        (GetList(a="1"), {"a": "1"}),
        (MultiItems(a="1"), None),
        ("a=1&a=1", None),
        ({"a": ["1", "2"]}, None),
        ({"a": 1}, None),
        ({1: "a"}, None),
        (None, None),
        ([("a", "1")], None),
    ],
)
def test_queries(query: object, expected: dict[str, str] | None) -> None:
    """A query comes in the forms that frameworks have, and names each parameter once."""
    assert parameters(query) == expected


@pytest.mark.parametrize(
    ("cookies", "expected"),
    [
        ("x=1; n=v; y=2", "v"),
        (b'n="v"', "v"),
        ({"n": "v"}, "v"),
        ({"n": 3}, None),
        ({}, None),
        ("", None),
        ("n", ""),
        ("xn=v", None),
        (None, None),
        (3, None),
    ],
)
def test_cookies(cookies: object, expected: str | None) -> None:
    """Cookies come as a mapping or as the raw header."""
    assert cookie_of(cookies, "n") == expected


def test_an_invalid_cookie_secret_is_refused() -> None:
    """The cookie secret is one or more non-empty texts."""
    assert keys_of("a", "s") == (b"a",)
    assert keys_of([b"a", "b"], "s") == (b"a", b"b")
    for secret in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="s must not be empty"):
            keys_of(secret, "s")
    with pytest.raises(TypeError, match="s must be a text, or several"):
        keys_of([3], "s")  # type: ignore[list-item]  # -- what a test gives


@settings(max_examples=200)
@given(data=st.data())
def test_tampered_cookies_hold_no_flow(data: st.DataObject) -> None:
    """A cookie that was changed, or signed with another secret, is refused."""
    signer = Signer([b"secret"])
    text = signer.write_flows(Flows((Flow("state", 1, "/x"),)))
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("abcXYZ012-_.").filter(lambda character: character != text[at]))
    tampered = text[:at] + other + text[at + 1 :]
    found = signer.read_flows(tampered)
    assert found in (Flows(), Flows((Flow("state", 1, "/x"),)))  # the last character has bits that count for nothing
    if found.flows:
        assert at == len(text) - 1
    assert Signer([b"other"]).read_flows(text) == Flows()
    assert signer.read_account(text, 1, 10) is None  # signed for something else


@given(text=st.text(st.characters() | st.sampled_from(".\udcff\ud83d")))
@example("\udcff")
def test_cookies_of_any_text_hold_nothing(text: str) -> None:
    """A cookie of any text, also of bytes that are not UTF-8, holds no flow and no account, and raises nothing."""
    signer = Signer([b"secret"])
    assert signer.read_flows(text) == Flows()
    assert signer.read_account(text, 1, 10) is None


def test_flows_fit_into_a_cookie() -> None:
    """Where long addresses don't fit, the oldest flows are left out."""
    signer, flows, random = Signer([b"secret"]), Flows(), Random(7)
    for number in range(5):
        flows = flows.add(Flow(f"state {number}", 1, "/" + "".join(random.choices(ascii_letters, k=1500))), 1)
    text = signer.write_flows(flows)
    assert len(text) <= 3800
    assert signer.read_flows(text).flows[-1].state == "state 4"
    many = Flows(tuple(Flow(f"{number}", 1, "/", is_over=True) for number in range(30)))
    assert len(many.add(Flow("new", 1, "/"), 2).flows) == 6
    assert many.add(Flow("new", 9999, "/"), 9999).flows == (Flow("new", 9999, "/"),)


def test_a_flow_is_open_for_ten_minutes_and_not_before_it_began() -> None:
    """A flow of the future, beyond a second between clocks of two workers, is expired as an old one is."""
    flow = Flow("state", 1000, "/me")
    found = {now: Flows((flow,)).find("state", now) for now in (998.0, 999.0, 1000.0, 1600.0, 1601.0)}
    assert found == {998.0: "expired", 999.0: flow, 1000.0: flow, 1600.0: flow, 1601.0: "expired"}


def test_a_completed_flow_keeps_no_return_address() -> None:
    """A flow that is over takes little of the cookie: its state, for replays, and nothing of the page."""
    ended = Flows((Flow("state", 1000, "/" + "x" * 1000),)).end(Flow("state", 1000, "/" + "x" * 1000))
    assert ended.flows == (Flow("state", 1000, "", is_over=True),)
    assert ended.find("state", 1000.0) == "replayed"


# --- options


async def test_options(service: BoardService) -> None:
    """What can't work is refused when the object is made."""
    async with service.session() as session:
        for options, error in (
            ({"account_of": "name"}, TypeError),
            ({"cookie_secret": ""}, ValueError),
            ({"authorize_url": None}, TypeError),
            ({"authorize_url": "/relative"}, ValueError),
            ({"authorize_url": "https://board.example/authorize?a=b#c"}, ValueError),
            ({"authorize_url": "https://board.example/authorize?a=b\r\nX: y"}, ValueError),
            ({"authorize_url": "http://board.example/authorize"}, ValueError),
            ({"auth_url": "http://board.example"}, ValueError),
            ({"client_id": ""}, ValueError),
        ):
            with pytest.raises(error):
                sign_in_of(service, session, **options)


async def test_without_itsdangerous(service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error says what to install."""
    monkeypatch.setitem(sys.modules, "itsdangerous", None)
    async with service.session() as session:
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'boardclient\[web\]'"):
            sign_in_of(service, session)


async def test_scopes_and_plain_http(service: BoardService) -> None:
    """Scopes are asked for where they are named; on plain http the cookies have neither prefix nor `Secure`."""
    browser = Browser()
    async with service.session() as session:
        plain = {"redirect_uri": "http://127.0.0.1:8000/callback", "authorize_url": "https://board.example/authorize"}
        sign_in = sign_in_of(service, session, scope="read", **plain)
        assert browser.begin(sign_in)["scope"] == "read"
        assert browser.begin(sign_in, scope="read write")["scope"] == "read write"
        assert list(browser.cookies) == ["boardclient-flows"]


# --- secrets and verifiers


async def test_pkce_and_rotation(service: BoardService) -> None:
    """The verifier comes from the secret that made its challenge, also after a new one was put before it."""
    browser, clock = Browser(), Clock()
    async with service.session() as session:
        before = sign_in_of(service, session, pkce=True, cookie_secret="old", clock=clock)
        after = sign_in_of(service, session, pkce=True, cookie_secret=["new", "old"], clock=clock)
        for beginning, completing in ((before, after), (after, after)):
            asked = browser.begin(beginning)
            assert asked["code_challenge_method"] == "S256"
            with pytest.raises(SignInError):
                await browser.complete(completing, code="unknown", state=asked["state"])
            verifier = service.calls_of("token.exchange")[-1].body["code_verifier"]  # type: ignore[index, call-overload]  # -- a form
            assert challenge_of(str(verifier)) == asked["code_challenge"]
        asked = browser.begin(before)
        dropped = sign_in_of(service, session, pkce=True, cookie_secret="new", clock=clock)
        await refused(browser, dropped, "foreign", code="c", state=asked["state"])
    assert Signer([b"a"]).verifier("state", "no such") is None


async def test_the_account_cookie_lasts_for_its_time(service: BoardService) -> None:
    """Every worker with the secret recognises a signed-in user for the given time, but not from a changed cookie."""
    browser, clock = Browser(), Clock()
    async with service.session() as session:
        sign_in = sign_in_of(service, session, clock=clock, account_seconds=100)
        state = browser.begin(sign_in)["state"]
        await browser.complete(sign_in, code=service.new_code(), state=state)
        clock.now += 100
        assert sign_in_of(service, session, clock=clock, account_seconds=100).account_of_request(browser.cookies) == MEMBER_ID
        assert sign_in_of(service, session, cookie_secret="other").account_of_request(browser.cookies) is None
        clock.now += 1
        assert sign_in.account_of_request(browser.cookies) is None
        clock.now -= 103  # signed by a worker whose clock is ahead by more than a second
        assert sign_in.account_of_request(browser.cookies) is None


# --- who the user is


async def _async_name(member: Member) -> str:
    return f"async {member.id}"


@pytest.mark.parametrize("account_of", [lambda member: f"sync {member.id}", _async_name])
async def test_names_by_the_applications_function(service: BoardService, account_of: Any) -> None:
    """A function, sync or async, says who the user is, and the token is stored under that name."""
    browser, store = Browser(), MemoryTokenStore()
    async with service.session() as session:
        sign_in = sign_in_of(service, session, account_of=account_of, store=store)
        state = browser.begin(sign_in)["state"]
        done = await browser.complete(sign_in, code=service.new_code(), state=state)
    assert done.account.split() in (["sync", MEMBER_ID], ["async", MEMBER_ID])
    assert await store.read(done.account) is not None


async def _never(member: Member) -> str:
    await asyncio.Event().wait()
    raise AssertionError


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
    ],
)
async def test_a_name_function_without_a_name_fails_the_sign_in(
    service: BoardService, account_of: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that gives no name fails the sign-in with a clear error, and nothing is stored."""
    browser = Browser()
    async with service.session() as session:
        sign_in = sign_in_of(service, session, account_of=account_of)
        state = browser.begin(sign_in)["state"]
        error = await refused(browser, sign_in, "failed", code=service.new_code(), state=state)
        assert words in str(error)
        await refused(browser, sign_in, "replayed", code="c", state=state)


async def test_a_member_without_an_id(service: BoardService) -> None:
    """Where the record has none, the error says what to give."""
    browser = Browser()
    service.faults.add(faults.status(200, body=b'{"username":"ann"}'), "members.me")
    async with service.session() as session:
        sign_in = sign_in_of(service, session)
        state = browser.begin(sign_in)["state"]
        error = await refused(browser, sign_in, "failed", code=service.new_code(), state=state)
    assert "the member record holds no id: give SignIn account_of=" in str(error)


# --- sign-ins that fail midway


async def test_failures_midway(service: BoardService) -> None:
    """A refused exchange, an unreadable member and a broken store are "failed", without a secret, and end the flow."""

    class Broken(MemoryTokenStore):
        async def publish(self, account: str, token: Token, after: int) -> bool:
            raise OSError("no disk")

    browser = Browser()
    async with service.session(retry=None) as session:
        sign_in = sign_in_of(service, session)
        for fault, operation in (
            (faults.status(400), "token.exchange"),
            (faults.drop(), "token.exchange"),
            (faults.drop(), "members.me"),
        ):
            state = browser.begin(sign_in)["state"]
            service.faults.add(fault, operation, times=1)
            error = await refused(browser, sign_in, "failed", code=service.new_code(), state=state)
            assert_no_secrets(error, secrets=[service.client_secret, SECRET])
            await refused(browser, sign_in, "replayed", code="c", state=state)
        sign_in = sign_in_of(service, session, store=Broken())
        state = browser.begin(sign_in)["state"]
        error = await refused(browser, sign_in, "failed", code=service.new_code(), state=state)
        assert "the token store failed: publish raised OSError" in str(error)
        state = browser.begin(sign_in)["state"]
        await refused(browser, sign_in, "failed", code="\udcff", state=state)


@pytest.mark.parametrize("operation", ["token.exchange", "members.me"])
async def test_the_error_of_a_sign_in_is_in_no_reference_cycle(service: BoardService, operation: str) -> None:
    """An error that is no longer referenced is freed at once, without the garbage collector."""
    service.faults.add(faults.status(400), operation)
    browser = Browser()
    async with service.session(retry=None) as session:
        sign_in = sign_in_of(service, session)
        state = browser.begin(sign_in)["state"]

        async def failed() -> weakref.ref[SignInError]:
            try:
                await sign_in.complete({"code": service.new_code(), "state": state}, browser.cookies)
            except SignInError as error:
                return weakref.ref(error)
            raise AssertionError

        gc.collect()
        gc.disable()
        try:
            freed = await failed()
            assert freed() is None
        finally:
            gc.enable()


async def test_an_exchange_that_was_not_sent_may_be_repeated(service: BoardService) -> None:
    """Where the service can't be reached, the code is still good: the browser may send the redirect again."""
    browser = Browser()
    async with service.session() as session:
        sign_in = sign_in_of(service, session)
        unreachable = sign_in_of(service, session, auth_url="http://127.0.0.1:9")
        state = browser.begin(sign_in)["state"]
        code = service.new_code()
        for _ in range(2):
            error = await refused(browser, unreachable, "failed", code=code, state=state)
            assert error.set_cookies == ()
        assert (await browser.complete(sign_in, code=code, state=state)).account == MEMBER_ID


async def test_a_request_that_ends_early_does_not_lose_the_token(service: BoardService) -> None:
    """A browser that goes away amid the exchange is signed in all the same."""
    browser = Browser()
    async with service.session() as session:
        sign_in = sign_in_of(service, session)
        state = browser.begin(sign_in)["state"]
        completing = asyncio.create_task(sign_in.complete({"code": service.new_code(), "state": state}, browser.cookies))
        await service.received("token.exchange")
        completing.cancel()
        await sign_in.credentials_for(MEMBER_ID).wait_for_token()
        assert await sign_in.state(MEMBER_ID) == "good"


async def test_a_session_that_closes_amid_a_sign_in(service: BoardService) -> None:
    """The sign-in ends with SessionClosedError, before the exchange and amid it."""
    browser = Browser()
    service.faults.add(faults.hang(), "token.exchange")
    session = service.session()
    sign_in = sign_in_of(service, session)
    states = [browser.begin(sign_in)["state"] for _ in range(2)]
    completing = asyncio.create_task(sign_in.complete({"code": service.new_code(), "state": states[0]}, browser.cookies))
    await service.received("token.exchange")
    await session.aclose()
    for awaited in (completing, sign_in.complete({"code": "c", "state": states[1]}, browser.cookies)):
        with pytest.raises(SessionClosedError):
            await awaited


async def test_a_session_that_closes_between_two_steps(service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign-in ends with SessionClosedError where a step finds the session closed."""
    browser = Browser()

    async def closed(*arguments: object, **options: object) -> Token:
        raise SessionClosedError("closed")

    async with service.session() as session:
        sign_in = sign_in_of(service, session)
        monkeypatch.setattr(sign_in._credentials, "request_token", closed)
        state = browser.begin(sign_in)["state"]
        with pytest.raises(SessionClosedError, match="during the sign-in"):
            await browser.complete(sign_in, code="c", state=state)


async def test_many_accounts_and_states(service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker keeps in memory is bounded: the longest unused goes first."""
    monkeypatch.setattr("boardclient.web._MOST_KEPT", 2)
    async with service.session(StaticCredentials("t")) as session:
        sign_in: SignIn = sign_in_of(service, session)
        first = sign_in.credentials_for("a")
        sign_in.credentials_for("b")
        assert sign_in.credentials_for("a") is first
        sign_in.credentials_for("c")
        assert list(sign_in._accounts) == ["a", "c"]
        browser = Browser()
        for _ in range(3):
            state = browser.begin(sign_in)["state"]
            await browser.complete(sign_in, code=service.new_code(), state=state)
        assert len(sign_in._used) == 2
    assert exchanges(service) == 3
