"""OAuthCredentials and one renewal, over fake sessions and stores, on a loop whose time passes as soon as everybody waits."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import json
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_loop import VirtualLoop

from boardclient import (
    AsyncSession,
    AuthorizationRequest,
    CredentialError,
    Credentials,
    DeadlineError,
    MemoryTokenStore,
    OAuthCredentials,
    Response,
    SessionClosedError,
    StaticCredentials,
    StoredToken,
    Token,
    TransportError,
)
from boardclient import _urls as urls
from boardclient._operations import build_request
from boardclient._pipeline._in_flight import InFlightCalls
from boardclient._pipeline._options import CallOptions
from boardclient.credentials import _token_state
from boardclient.credentials._failure import without_frames
from boardclient.credentials._token_state import TokenState
from boardclient.credentials._waiting import is_within_renewal
from boardclient.errors import Effect
from boardclient.testing import assert_no_secrets

SECRETS = ["canary-secret7", "canary-id7", "canary-redirect7", "canary-key7"]
OPTIONS: dict[str, Any] = {
    "client_id": "canary-id7",
    "client_secret": "canary-secret7",
    "redirect_uri": "https://app.example/canary-redirect7",
    "auth_url": "https://auth.example/root",
}


def virtual(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test that runs on a virtual loop, where every task must have ended in the end and nothing was left unseen."""

    @functools.wraps(body)
    def test(*args: Any, **options: Any) -> None:
        problems: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: problems.append(context))
            await body(*args, **options)
            await asyncio.sleep(0.001)  # of the virtual time: all that is ready has run by then
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(watched())
        assert problems == []

    return test


def token_answer(value: str = "t1", **more: object) -> Response:
    return Response(200, {}, json.dumps({"access_token": value, **more}).encode())


def lost(effect: Effect = Effect.UNKNOWN) -> TransportError:
    return TransportError("no answer", "receive", "POST", effect)


class FakeSession:
    """What a provider sees of a session; `answers` are given to one form after another."""

    def __init__(self, *answers: object, timeout: float | None = 30.0, refusal: str = "") -> None:
        self.answers = list(answers)
        self.timeout = timeout
        self.refusal = refusal
        self.forms: list[tuple[str, dict[str, str], float | None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_closed = False

    def check_url(self, url: str, name: str) -> str:
        if self.refusal:
            raise ValueError(self.refusal.format(name=name))
        return url

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self.is_closed:
            work.close()
            raise SessionClosedError("the session is closed")
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        self.forms.append((url, dict(fields), timeout))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Response) else await answer  # type: ignore[no-any-return, misc]  # -- whatever a test gives

    def close(self) -> None:
        self.is_closed = True
        for task in self.tasks:
            task.cancel()


class Application:
    """The callback: `codes` are what it does one time after another; then it gives new codes."""

    def __init__(self, *codes: object) -> None:
        self.codes = list(codes)
        self.requests: list[AuthorizationRequest] = []

    async def __call__(self, request: AuthorizationRequest) -> str:
        self.requests.append(request)
        code = self.codes.pop(0) if self.codes else f"code {len(self.requests)}"
        if isinstance(code, BaseException):
            raise code
        if callable(code):
            code = await code()
        return code  # type: ignore[return-value]  # -- whatever a test gives


def provider_of(authorize: Any = None, **options: Any) -> OAuthCredentials:
    """Make a provider whose clock is the running loop's."""
    loop = asyncio.get_running_loop()
    options.setdefault("store", MemoryTokenStore(clock=loop.time))
    provider = OAuthCredentials(**{**OPTIONS, "authorize": authorize or Application(), **options})
    provider._token_state = TokenState(
        options.get("key"), options.get("cooldown", 1.0), options.get("renew_before_expiry"), clock=loop.time
    )
    return provider


async def error_of(awaitable: Awaitable[object]) -> CredentialError:
    with pytest.raises(CredentialError) as caught:
        await awaitable
    return caught.value


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
        ({"store": MemoryTokenStore}, None, ""),
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
        *[({"renew_before_expiry": value}, ValueError, "^renew_before_expiry must be more") for value in (0, -1.0, float("nan"))],
        *[
            ({"auth_url": url}, ValueError, f"^auth_url {words}")
            for url, words in {
                "https://user@auth.example": "must hold no user",
                "https://:word@auth.example": "must hold no user",
                "https://auth.example/?x=canary": "must hold no user, password, query",
                "https://auth.example/#x": "must hold no user, password, query or fragment$",
                "https://auth.example/1": 'must not end in "/1"',
                "https://auth.example/1/": 'must not end in "/1"',
                "https://auth.example/x/1": 'must not end in "/1"',
                "/relative": "must be an absolute http or https URL$",
                "auth.example": "must be an absolute",
                "https://": "must be an absolute",
                "ftp://auth.example": "must be an absolute",
                "": "must be an absolute",
                "https://auth.example/\n": "must be an absolute",
                "https://[::1": "must be an absolute",
                None: "must be an absolute",
                b"https://auth.example": "must be an absolute",
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
    for shown in (repr(provider), repr(provider._config)):
        assert_no_secrets(shown, secrets=SECRETS)


@pytest.mark.parametrize(
    ("url", "allow_insecure", "expected"),
    [
        ("https://a.example/x/", False, "https://a.example/x/"),
        ("https://a.example/ü", False, "https://a.example/%C3%BC"),
        ("http://localhost:8080/x", False, "http://localhost:8080/x"),
        ("http://127.3.2.1", False, "http://127.3.2.1"),
        ("http://[::1]:1/", False, "http://[::1]:1/"),
        ("http://10.0.0.1/", False, None),
        ("http://localhost.example/", False, None),
        ("http://a.example/", False, None),
        ("http://a.example/", True, "http://a.example/"),
    ],
)
def test_addresses(url: str, allow_insecure: bool, expected: str | None) -> None:
    """Plain http is for loopback, or for who allows it; a root ends without a slash."""
    if expected is None:
        with pytest.raises(ValueError, match=r"^it is plain http"):
            urls.check_url(url, "it", allow_insecure=allow_insecure)
        return
    assert urls.check_url(url, "it", allow_insecure=allow_insecure) == expected
    assert urls.check_root(url, "it", allow_insecure=allow_insecure) == expected.rstrip("/")


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
    """What can't be sent, or ends at no known moment, is no token."""
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


# --- first use and renewals


@pytest.mark.parametrize(("timeout", "expected"), [(30.0, 10.0), (None, 30.0)])
@virtual
async def test_first_use(timeout: float | None, expected: float) -> None:
    """A code is asked for and exchanged once; the token signs from then on, and is in the store."""
    application, store = Application("a code"), MemoryTokenStore()
    provider = provider_of(application, store=store, key="k", account="mine")
    session = FakeSession(token_answer(), timeout=timeout)
    given = await asyncio.gather(*(provider.acquire(session) for _ in range(20)))
    assert set(given) == {Credentials("t1", "k")}
    fields = {
        "client_id": "canary-id7",
        "client_secret": "canary-secret7",
        "code": "a code",
        "redirect_uri": "https://app.example/canary-redirect7",
    }
    assert session.forms == [("https://auth.example/root/1/OAuthGetAccessToken", fields, expected)]
    assert application.requests == [AuthorizationRequest(account="mine", first_time=True, attempt=1)]
    assert await provider.acquire(FakeSession()) is given[0]
    assert await store.read("mine") == StoredToken(Token("t1"), 1)
    assert await store.lease("mine", "another", 1.0) == "granted"


@virtual
async def test_a_token_in_the_store_is_used() -> None:
    """What the store holds signs, and nobody is asked."""
    store = MemoryTokenStore()
    await store.publish("default", Token("kept"), 0)
    application, session = Application(), FakeSession()
    assert await provider_of(application, store=store).acquire(session) == Credentials("kept")
    assert (application.requests, session.forms) == ([], [])


@virtual
async def test_what_the_application_is_told() -> None:
    """`first_time` holds until a token was kept, `attempt` counts until one is accepted."""
    application = Application(LookupError("no"), "code a", "code b", LookupError("no"), "code c", "code d")
    provider = provider_of(application)
    session = FakeSession(Response(400, {}, b""), *[token_answer(f"t{number}") for number in range(1, 4)])
    await error_of(provider.acquire(session))
    await asyncio.sleep(1.1)
    await error_of(provider.acquire(session))  # the exchange refuses
    await asyncio.sleep(2.1)
    first = await provider.acquire(session)
    provider.note_accepted(first)
    error = await error_of(provider.renew(first, session))
    await asyncio.sleep(1.1)
    second = await provider.acquire(session)
    third = await provider.renew(second, session)  # refused as soon as it was new
    assert (first.token, second.token, third.token) == ("t1", "t2", "t2")
    await asyncio.sleep(61)
    assert (await provider.acquire(session)).token == "t3"
    told = [(request.first_time, request.attempt) for request in application.requests]
    assert told == [(True, 1), (True, 2), (True, 3), (False, 1), (False, 2), (False, 3)]
    assert isinstance(error.__cause__, LookupError)


@virtual
async def test_a_401_for_an_older_token() -> None:
    """Who comes late with a 401 gets the newer token at once."""
    provider, session = provider_of(), FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    provider.note_accepted(first)
    renewed = await asyncio.gather(*(provider.renew(first, session) for _ in range(10)))
    assert set(renewed) == {Credentials("t2")}
    assert await provider.renew(first, session) is renewed[0]
    await provider.note_refused(first, session)
    assert await provider.acquire(session) is renewed[0]
    assert len(session.forms) == 2


@virtual
async def test_a_new_token_that_is_refused() -> None:
    """A token refused as soon as it was new is final, and begins a rest for all of the store."""
    store = MemoryTokenStore(clock=asyncio.get_running_loop().time)
    provider, other = provider_of(store=store), provider_of(store=store)
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    assert await other.acquire(session) == first
    assert await provider.renew(first, session) is first
    assert await provider.renew(first, session) is first
    error = await error_of(provider.acquire(session))
    assert str(error) == "the service refused a token as soon as it was new; the next renewal is possible in 1.0 s"
    assert "another holder of the account has just failed" in str(await error_of(other.renew(first, session)))
    await asyncio.sleep(2.1)
    assert (await other.acquire(session)).token == "t2"
    assert (await provider.acquire(session)).token == "t2"


@virtual
async def test_a_second_401_in_one_call() -> None:
    """What the session tells of a replay that was refused counts like any other 401."""
    provider, session = provider_of(), FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    provider.note_accepted(first)
    second = await provider.renew(first, session)
    await provider.note_refused(second, session)
    assert "as soon as it was new" in str(await error_of(provider.acquire(session)))


@pytest.mark.parametrize("state", ["held", "cooling", OSError("no disk")])
@virtual
async def test_a_rest_that_can_not_be_shared(state: object) -> None:
    """Where the store gives no lease for the rest, its others are left to find out."""

    class Store(MemoryTokenStore):
        is_failing = False

        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            if self.is_failing and isinstance(state, Exception):
                raise state
            return state if self.is_failing else await super().lease(account, holder, seconds)

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            assert not self.is_failing
            await super().release(account, holder, cooldown)

    store = Store()
    provider, session = provider_of(store=store), FakeSession(token_answer())
    first = await provider.acquire(session)
    store.is_failing = True
    assert await provider.renew(first, session) is first
    assert provider._token_state.rest_seconds == 1.0


# --- failures


@virtual
async def test_a_failure_is_everybodys() -> None:
    """Each who waits gets an error of its own with the one cause; nobody is asked during the rest, then somebody is."""
    application = Application(LookupError("mine"), LookupError("mine"))
    provider, session = provider_of(application), FakeSession(token_answer())
    errors = await asyncio.gather(*(error_of(provider.acquire(session)) for _ in range(5)))
    assert {str(error) for error in errors} == {"authorize raised LookupError; the next renewal is possible in 1.0 s"}
    assert len({id(error) for error in errors}) == 5
    assert len({id(error.__cause__) for error in errors}) == 1
    await asyncio.sleep(0.6)
    assert "possible in 0.4 s" in str(await error_of(provider.acquire(session)))
    assert len(application.requests) == 1
    await asyncio.sleep(0.5)
    assert "possible in 2.0 s" in str(await error_of(provider.acquire(session)))
    await asyncio.sleep(2.1)
    assert (await provider.acquire(session)).token == "t1"
    assert_no_secrets(errors, secrets=SECRETS)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "authorize gave no code: the code must be a string, not NoneType"),
        (b"code", "authorize gave no code: the code must be a string, not bytes"),
        ("canary7\ud800", "authorize gave no code: the code holds a lone surrogate, which can't be sent"),
        ("", "authorize gave an empty code"),
        (LookupError("canary7"), "authorize raised LookupError"),
        (asyncio.CancelledError(), "authorize was cancelled"),
        (asyncio.Event().wait, "authorize gave no code within 300 s"),
    ],
)
@virtual
async def test_codes_that_are_none(code: object, words: str) -> None:
    """What the application does instead of giving a code is told in words that show nothing of it; nothing is sent."""
    session = FakeSession()
    error = await error_of(provider_of(Application(code)).acquire(session))
    assert str(error) == f"{words}; the next renewal is possible in 1.0 s"
    assert error.__cause__ is (code if isinstance(code, LookupError) else None)
    assert session.forms == []


@pytest.mark.parametrize(
    ("authorize", "words"),
    [
        (lambda request: "canary7", "authorize must be an async function: it returned no awaitable"),
        (lambda request, more: None, "authorize raised TypeError"),
    ],
)
@virtual
async def test_callbacks_that_are_none(authorize: Any, words: str) -> None:
    """A callback that is no async function is told so."""
    error = await error_of(provider_of(authorize).acquire(FakeSession()))
    assert str(error).startswith(words)
    assert "canary7" not in str(error)


@pytest.mark.parametrize("later", [LookupError("late"), None])
@virtual
async def test_a_callback_that_does_not_end_when_told(later: Exception | None) -> None:
    """A callback that holds out against its end is left behind, and however it ends is nobody's error."""
    ended = asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(100)
            ended.set()
            if later is not None:
                raise later from None
        return "too late"

    provider, session = provider_of(Application(stubborn), authorize_timeout=10.0), FakeSession()
    assert "within 10 s" in str(await error_of(provider.acquire(session)))
    assert asyncio.get_running_loop().time() < 11
    await ended.wait()
    assert session.forms == []


@virtual
async def test_an_exchange_with_unknown_effect() -> None:
    """A second code is asked for, once; a code whose exchange was lost is never sent again."""
    application = Application("first", "second", "first", "third")
    provider = provider_of(application)
    session = FakeSession(lost(), lost(), token_answer())
    error = await error_of(provider.acquire(session))
    assert str(error).startswith("the token exchange failed, with unknown effect: no answer")
    assert isinstance(error.__cause__, TransportError)
    assert error.__cause__.__traceback__ is None
    await asyncio.sleep(1.1)
    error = await error_of(provider.acquire(session))
    assert str(error).startswith("authorize gave a code that was sent before, with unknown effect")
    await asyncio.sleep(2.1)
    assert (await provider.acquire(session)).token == "t1"
    assert [fields["code"] for _, fields, _ in session.forms] == ["first", "second", "third"]
    assert [request.attempt for request in application.requests] == [1, 2, 3, 4]


@virtual
async def test_a_second_code_that_is_good() -> None:
    """A lost exchange is nobody's error where the second one succeeds."""
    session = FakeSession(lost(), token_answer())
    assert (await provider_of().acquire(session)).token == "t1"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lost(Effect.NOT_SENT), "the token exchange was not sent: no answer"),
        (Response(400, {}, b'{"error":"invalid_grant"}'), "the token exchange answered 400 (invalid_grant)"),
        (Response(200, {}, b"canary7"), "the token exchange gave no token"),
        (ValueError("the URL of the form must be…"), "the URL of the form must be…"),
    ],
)
@virtual
async def test_an_exchange_that_fails(answer: object, words: str) -> None:
    """What fails for sure is not tried again: the code is asked for once."""
    application = Application("canary7")
    error = await error_of(provider_of(application).acquire(FakeSession(answer)))
    assert str(error).startswith(words)
    assert "canary7" not in str(error)
    assert len(application.requests) == 1


@virtual
async def test_parse_token_takes_the_token() -> None:
    """An answer of another shape is read by the application."""
    provider = provider_of(parse_token=lambda fields: Token(str(fields["mine"])))
    assert await provider.acquire(FakeSession(Response(200, {}, b'{"mine":"x"}'))) == Credentials("x")


@virtual
async def test_an_address_that_the_session_refuses() -> None:
    """The application is not asked for a code that must not be sent."""
    application, session = Application(), FakeSession(refusal="{name} is plain http")
    error = await error_of(provider_of(application).acquire(session))
    assert str(error).startswith("auth_url is plain http; the next renewal")
    assert (application.requests, session.forms) == ([], [])


async def test_plain_http_before_the_application_is_asked() -> None:
    """A real session refuses plain http to anything but loopback in the same way."""
    application = Application()
    provider = OAuthCredentials(**{**OPTIONS, "auth_url": "http://auth.example"}, authorize=application)
    async with AsyncSession(provider, "https://board.example") as session:
        with pytest.raises(CredentialError, match="auth_url is plain http"):
            await session.members.me()
    assert application.requests == []


# --- stores


class Broken(MemoryTokenStore):
    """A store one of whose methods raises."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self.method, self.error = method, error

    async def _step(self, method: str) -> None:
        canary = "canary7"
        if method == self.method:
            assert canary
            raise self.error

    async def read(self, account: str) -> StoredToken | None:
        await self._step("read")
        return await super().read(account)

    async def publish(self, account: str, token: Token, after: int) -> bool:
        await self._step("publish")
        return await super().publish(account, token, after)

    async def lease(self, account: str, holder: str, seconds: float) -> Any:
        await self._step("lease")
        return await super().lease(account, holder, seconds)

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        await super().release(account, holder, cooldown)
        await self._step("release")


@pytest.mark.parametrize("method", ["read", "publish", "lease"])
@virtual
async def test_a_store_that_raises(method: str) -> None:
    """What a store raises is the cause, without the frames that may hold a token."""
    broken = OSError("no disk")
    error = await error_of(provider_of(store=Broken(method, broken)).acquire(FakeSession(token_answer("canary7"))))
    assert str(error) == "the token store failed: OSError; the next renewal is possible in 1.0 s"
    assert error.__cause__ is broken
    assert broken.__traceback__ is None
    assert_no_secrets(error, secrets=["canary7"])


@virtual
async def test_a_store_that_says_what_to_do() -> None:
    """A store's own CredentialError is told in its words, with its own cause."""
    told, cause = CredentialError("the disk is full; make room on it"), OSError("full")
    told.__cause__ = cause
    error = await error_of(provider_of(store=Broken("publish", told)).acquire(FakeSession(token_answer())))
    assert error is not told
    assert str(error) == "the disk is full; make room on it; the next renewal is possible in 1.0 s"
    assert error.__cause__ is cause


@virtual
async def test_a_lease_that_can_not_be_given_back() -> None:
    """The token is there: that the lease could not be released fails nobody, and the next renewal has to rest."""
    provider = provider_of(store=Broken("release", OSError("no disk")))
    credentials = await provider.acquire(FakeSession(token_answer()))
    assert credentials.token == "t1"
    assert provider._token_state.failure is not None
    assert provider._token_state.failure.why == "the token store failed: OSError"


@virtual
async def test_a_store_that_keeps_nothing() -> None:
    """Where nothing can be published and nothing is, the renewal has failed."""

    class Store(MemoryTokenStore):
        async def publish(self, account: str, token: Token, after: int) -> bool:
            return False

    error = await error_of(provider_of(store=Store()).acquire(FakeSession(token_answer())))
    assert str(error).startswith("the token store took no new token, and holds no other")


@virtual
async def test_another_holder_that_was_faster() -> None:
    """Whoever publishes second uses the token of the first."""
    store = MemoryTokenStore()

    async def overtaken() -> str:
        await store.publish("default", Token("theirs"), 0)
        return "code"

    provider = provider_of(Application(overtaken), store=store)
    assert (await provider.acquire(FakeSession(token_answer("ours")))).token == "theirs"
    assert await store.read("default") == StoredToken(Token("theirs"), 1)


@virtual
async def test_another_holder_that_was_done_before() -> None:
    """A token that was published between the look at the store and the lease is used; nobody is asked."""

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            await self.publish(account, Token("theirs"), 0)
            return await super().lease(account, holder, seconds)

    application, store = Application(), Store()
    assert (await provider_of(application, store=store).acquire(FakeSession())).token == "theirs"
    assert application.requests == []
    assert await store.lease("default", "next", 1.0) == "granted"


@virtual
async def test_waiting_for_another_holder() -> None:
    """Who doesn't get the lease looks again every 50 to 200 ms, until the token is there."""
    looks: list[float] = []
    loop = asyncio.get_running_loop()

    class Store(MemoryTokenStore):
        async def read(self, account: str) -> StoredToken | None:
            looks.append(loop.time())
            return StoredToken(Token("theirs"), 1) if loop.time() > 30 else None

        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            return "held"

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            raise AssertionError("who has no lease releases none")

    application = Application()
    given = await asyncio.gather(*(provider.acquire(FakeSession()) for provider in [provider_of(application, store=Store())] * 9))
    assert {credentials.token for credentials in given} == {"theirs"}
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert 0.049 < min(pauses) < max(pauses) < 0.201
    assert len({round(pause, 4) for pause in pauses}) > 50
    assert application.requests == []


@virtual
async def test_another_holder_that_fails() -> None:
    """Who waits for a holder whose renewal fails, fails too and rests; the next is anybody's."""
    store = MemoryTokenStore(clock=asyncio.get_running_loop().time)
    applications = Application(LookupError("no")), Application()
    one, two = (provider_of(application, store=store) for application in applications)
    session = FakeSession(token_answer())
    errors = await asyncio.gather(error_of(one.acquire(session)), error_of(two.acquire(session)))
    assert str(errors[1]).startswith("a renewal by another holder of the account has just failed")
    assert applications[1].requests == []
    await asyncio.sleep(1.3)
    assert (await two.acquire(session)).token == (await one.acquire(session)).token == "t1"
    assert len(applications[0].requests) == len(applications[1].requests) == 1


@virtual
async def test_a_lease_is_kept_as_long_as_it_takes() -> None:
    """While the application takes its time the lease is extended, three times within its length, and then given back."""
    loop, asked = asyncio.get_running_loop(), []

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            asked.append((loop.time(), holder, seconds))
            if len(asked) == 3:
                raise OSError("for once")
            return await super().lease(account, holder, seconds)

    store = Store(clock=loop.time)
    provider = provider_of(Application(lambda: asyncio.sleep(19, "code")), store=store, lease_seconds=6.0)
    await provider.acquire(FakeSession(token_answer()))
    assert [round(moment) for moment, _, _ in asked] == list(range(0, 20, 2))
    assert len({holder for _, holder, _ in asked}) == 1
    assert {seconds for _, _, seconds in asked} == {6.0}
    assert await store.lease("default", "next", 1.0) == "granted"


@virtual
async def test_a_lease_that_hangs() -> None:
    """A step at the store that is under way is awaited for the length of a lease, not longer."""
    loop, steps = asyncio.get_running_loop(), 0

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            nonlocal steps
            steps += 1
            if steps > 1:
                await asyncio.Event().wait()
            return await super().lease(account, holder, seconds)

    provider = provider_of(Application(lambda: asyncio.sleep(3, "code")), store=Store(clock=loop.time), lease_seconds=6.0)
    assert (await provider.acquire(FakeSession(token_answer()))).token == "t1"
    assert loop.time() == pytest.approx(9.0, abs=0.01)
    assert steps == 2


@virtual
async def test_a_step_under_way_is_awaited() -> None:
    """An extension that is under way when the renewal ends is over before the lease is given back."""
    steps: list[str] = []

    class Store(MemoryTokenStore):
        async def lease(self, account: str, holder: str, seconds: float) -> Any:
            if steps:
                await asyncio.sleep(1.5)
            steps.append("lease")
            return "granted"

        async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
            steps.append("release")

    provider = provider_of(Application(lambda: asyncio.sleep(3, "code")), store=Store(), lease_seconds=6.0)
    await provider.acquire(FakeSession(token_answer()))
    assert steps == ["lease", "lease", "release"]


# --- within a renewal


@pytest.mark.parametrize("is_other", [False, True])
@virtual
async def test_authorize_that_waits_for_itself(is_other: bool) -> None:
    """A callback that uses credentials of its own account, also by another provider of the store, is told so at once."""
    store = MemoryTokenStore()

    async def reentrant() -> str:
        return (await (other if is_other else provider).acquire(session)).token

    provider, other, session = provider_of(Application(reentrant), store=store), provider_of(store=store), FakeSession()
    error = await error_of(provider.acquire(session))
    assert str(error).startswith("authorize raised CredentialError")
    assert "authorize waits for itself" in str(error.__cause__)
    assert not is_within_renewal(provider._config.store, provider.account)


@pytest.mark.parametrize("options", [{"account": "another"}, {"store": MemoryTokenStore()}])
@virtual
async def test_authorize_that_uses_another_account(options: dict[str, Any]) -> None:
    """A callback may get its code by another account's credentials."""
    store = MemoryTokenStore()
    session = FakeSession(token_answer("inner"), token_answer("outer"))

    async def nested() -> str:
        credentials = await inner.acquire(session)
        assert is_within_renewal(outer._config.store, outer.account)
        assert not is_within_renewal(inner._config.store, inner.account)
        return credentials.token

    inner = provider_of(**{"store": store, **options})
    outer = provider_of(Application(nested), store=store)
    assert (await outer.acquire(session)).token == "outer"
    assert [fields["code"] for _, fields, _ in session.forms] == ["code 1", "inner"]


@virtual
async def test_a_task_that_outlives_its_renewal() -> None:
    """What a callback leaves running is within the renewal only as long as that lasts."""
    tasks: list[asyncio.Task[Credentials]] = []

    async def later() -> Credentials:
        await asyncio.sleep(5)
        assert not is_within_renewal(provider._config.store, provider.account)
        return await provider.renew(provider._token_state.held.credentials, session)  # type: ignore[union-attr]  # -- one is held

    async def leaving() -> str:
        tasks.append(asyncio.create_task(later()))
        return "code"

    provider = provider_of(Application(leaving))
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    provider.note_accepted(await provider.acquire(session))
    assert (await tasks[0]).token == "t2"


# --- early renewal


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give the clock that ends of tokens are on."""
    wall = SimpleNamespace(now=1_700_000_000.0)
    monkeypatch.setattr(_token_state, "time", SimpleNamespace(time=lambda: wall.now))
    return wall


def ending(wall: SimpleNamespace, value: str, seconds: float) -> Callable[[Mapping[str, Any]], Token]:
    return lambda fields: Token(str(fields["access_token"]), datetime.fromtimestamp(wall.now, UTC) + timedelta(seconds=seconds))


@virtual
async def test_a_token_is_renewed_before_its_end(wall: SimpleNamespace) -> None:
    """The first to come when it is due renews; others go on with the token meanwhile."""
    application = Application("code", lambda: asyncio.sleep(0.5, "another code"))
    provider = provider_of(application, renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    wall.now += 3539
    assert await provider.acquire(session) is first
    wall.now += 2
    renewing = asyncio.create_task(provider.acquire(session))
    await asyncio.sleep(0.1)
    assert await asyncio.gather(*(provider.acquire(session) for _ in range(5))) == [first] * 5
    assert (await renewing).token == "t2"
    assert (await provider.acquire(session)).token == "t2"
    assert [(request.first_time, request.attempt) for request in application.requests] == [(True, 1), (False, 2)]


@virtual
async def test_an_early_renewal_that_takes_long(wall: SimpleNamespace) -> None:
    """The call that began it goes on with the old token after a second; the renewal goes on as well."""
    application = Application("code", lambda: asyncio.sleep(5, "another code"))
    provider = provider_of(application, renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    wall.now += 3590
    began = asyncio.get_running_loop().time()
    assert await provider.acquire(session) is first
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)
    await asyncio.sleep(5)
    assert (await provider.acquire(session)).token == "t2"
    assert len(application.requests) == 2


@virtual
async def test_an_early_renewal_that_fails(wall: SimpleNamespace) -> None:
    """The token signs on, no other renewal begins during the rest, and the next may succeed."""
    application = Application("code", LookupError("no"))
    provider = provider_of(application, renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    wall.now += 3590
    assert [await provider.acquire(session) for _ in range(3)] == [first] * 3
    assert provider._token_state.rest_seconds == 1.0  # nobody has made it longer
    assert len(application.requests) == 2
    await asyncio.sleep(1.1)
    assert (await provider.acquire(session)).token == "t2"


@virtual
async def test_a_token_refused_during_its_early_renewal(wall: SimpleNamespace) -> None:
    """Who meets a 401 meanwhile waits for the renewal that is under way; where it fails, the old token is all there is."""
    application = Application("code", lambda: asyncio.sleep(0.5, "another code"), lambda: asyncio.sleep(0.5, ""))
    provider = provider_of(application, renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    provider.note_accepted(first)
    wall.now += 3590
    early = asyncio.create_task(provider.acquire(session))
    await asyncio.sleep(0.1)
    assert (await provider.renew(first, session)).token == (await early).token == "t2"
    second = await provider.acquire(session)
    provider.note_accepted(second)
    wall.now += 3590
    early = asyncio.create_task(provider.acquire(session))
    await asyncio.sleep(0.1)
    await error_of(provider.renew(second, session))
    assert await early is second
    assert len(application.requests) == 3


@virtual
async def test_within_an_early_renewal_the_token_is_good(wall: SimpleNamespace) -> None:
    """A callback may sign with the token that it is to replace."""
    seen: list[Credentials] = []

    async def signing() -> str:
        provider._renewals.clear()  # as on another loop
        seen.append(await provider.acquire(session))
        return "another code"

    provider = provider_of(Application("code", signing), renew_before_expiry=60.0, parse_token=ending(wall, "t1", 3600))
    session = FakeSession(token_answer("t1"), token_answer("t2"))
    first = await provider.acquire(session)
    wall.now += 3590
    assert (await provider.acquire(session)).token == "t2"
    assert seen == [first]


# --- sessions that close


@virtual
async def test_a_session_that_closes_leaves_the_renewal_to_another() -> None:
    """The renewal ends with the session that it began on, without a failure; who waits on another session begins the next."""
    application = Application(asyncio.Event().wait)
    provider, one, two = provider_of(application), FakeSession(), FakeSession(token_answer())
    waiting = [asyncio.create_task(provider.acquire(session)) for session in (one, one, two, two)]
    await asyncio.sleep(1)
    one.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    # Those of the closed session find the renewal that another began, or none.
    assert results[2:] == [Credentials("t1")] * 2
    assert all(isinstance(result, SessionClosedError | Credentials) for result in results[:2])
    assert [request.attempt for request in application.requests] == [1, 2]
    assert provider._token_state.failure is None


@virtual
async def test_a_closed_session_renews_nothing() -> None:
    """With a closed session there is no renewal, and nobody is asked."""
    application, session = Application(), FakeSession()
    session.close()
    with pytest.raises(SessionClosedError):
        await provider_of(application).acquire(session)
    assert application.requests == []


@virtual
async def test_a_session_that_closes_amid_the_exchange() -> None:
    """An exchange that ends with its session is no failure, and nobody has to rest."""
    provider, session = provider_of(), FakeSession(SessionClosedError("closed"), token_answer())
    assert (await provider.acquire(session)).token == "t1"
    assert provider._token_state.failure is None


@virtual
async def test_a_renewal_that_begins_as_another_ends() -> None:
    """A renewal that begins before the loop has told that the last one is over is not forgotten with it."""
    begun: list[asyncio.Task[Any]] = []

    class First(FakeSession):
        def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = super().spawn(work)
            task.add_done_callback(lambda _: begun.append(provider._renewal(two)))
            return task

    application = Application(asyncio.Event().wait, lambda: asyncio.sleep(5, "code"))
    provider, one, two = provider_of(application), First(), FakeSession(token_answer())
    first = asyncio.create_task(provider.acquire(one))
    await asyncio.sleep(1)
    first.cancel()
    one.close()
    await asyncio.sleep(1)
    assert list(provider._renewals.values()) == two.tasks == begun
    assert (await provider.acquire(FakeSession())).token == "t1"
    assert provider._renewals == {}
    assert len(application.requests) == 2


@virtual
async def test_a_cancelled_caller_leaves_the_renewal() -> None:
    """Who began a renewal may be cancelled: it goes on for the others."""
    provider = provider_of(Application(lambda: asyncio.sleep(5, "code")))
    session = FakeSession(token_answer())
    first, second = (asyncio.create_task(provider.acquire(session)) for _ in range(2))
    await asyncio.sleep(1)
    first.cancel()
    assert (await second).token == "t1"
    assert first.cancelled()
    assert len(session.forms) == 1


async def test_real_sessions_that_close() -> None:
    """A call that waits for credentials ends with its session; that of another session asks again."""
    asked: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()

    async def authorize(request: AuthorizationRequest) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asked.put_nowait(future)
        return await future

    provider = OAuthCredentials(**OPTIONS, authorize=authorize)
    one, two = (AsyncSession(provider, "https://board.example") for _ in range(2))
    calls = [asyncio.create_task(session.members.me()) for session in (one, two)]
    first = await asked.get()
    await one.aclose()
    with pytest.raises(SessionClosedError):
        await calls[0]
    assert first.cancelled()
    (await asked.get()).set_exception(LookupError("mine"))
    with pytest.raises(CredentialError, match="authorize raised LookupError") as caught:
        await calls[1]
    assert_no_secrets(caught.value, secrets=SECRETS)
    await two.aclose()


@pytest.mark.filterwarnings("error")
async def test_spawn() -> None:
    """A session runs work of its provider until it closes; a closed one runs none, and leaves no coroutine behind."""
    session = AsyncSession(StaticCredentials("t"), "https://board.example")
    session._core.in_flight.end(session._core.in_flight.begin("GET /1/x", None))

    async def answer() -> int:
        return 42

    assert await session._core.spawn(answer()) == 42
    await asyncio.sleep(0)
    assert session._core._background == set()
    hanging = session._core.spawn(asyncio.Event().wait())
    await session.aclose()
    assert hanging.cancelled()
    work = answer()
    with pytest.raises(SessionClosedError, match=r"^the session is closed$"):
        session._core.spawn(work)
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await work


# --- deadlines


def hanging_provider() -> OAuthCredentials:
    return provider_of(Application(lambda: asyncio.sleep(100, "")))


@virtual
async def test_the_deadline_of_a_call_that_waits_for_credentials() -> None:
    """A call ends at its deadline and leaves the renewal to others; a patient one waits as long as the application may."""
    provider = hanging_provider()
    async with AsyncSession(provider, "https://board.example", timeout=5.0, retry=None) as session:
        request = build_request("GET", "/1/x")
        patient = asyncio.create_task(session._pipeline.call(request, CallOptions()))
        with pytest.raises(DeadlineError) as caught:
            await session._pipeline.call(request)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.01)
        assert caught.value.effect is Effect.NOT_SENT
        with pytest.raises(CredentialError, match="authorize gave an empty code"):
            await patient
        assert asyncio.get_running_loop().time() == pytest.approx(100.0, abs=0.1)


async def patient_call(flights: InFlightCalls, seconds: float | None, waits: tuple[float, ...], seen: list[Any]) -> None:
    """Make a call whose deadline stands still in every second of the waits."""
    flight = flights.begin("GET /1/x", seconds, options=CallOptions())
    try:
        for number, wait in enumerate(waits):
            if number % 2:
                flights.suspend(flight)
            await asyncio.sleep(wait)
            if number % 2:
                flights.resume(flight)
        seen.append(flight.remaining_seconds)
    except asyncio.CancelledError:
        seen.append(flight.interruption_error())
    finally:
        flights.end(flight)


@virtual
async def test_a_deadline_that_stands_still_goes_on() -> None:
    """What was left of it when it was made to stand still is left afterwards, and the sweeper keeps it, for each call."""
    flights, seen, loop = InFlightCalls(), [], asyncio.get_running_loop()
    await patient_call(flights, 10.0, (4.0, 1000.0, 5.0), seen)
    assert seen == [pytest.approx(1.0)]
    started = loop.time()
    await patient_call(flights, 10.0, (4.0, 1000.0, 3.0, 1000.0, 50.0), seen)
    assert loop.time() - started == pytest.approx(2010.0, abs=0.01)
    assert isinstance(seen[1], DeadlineError)
    await patient_call(flights, None, (4.0, 1000.0, 5.0), seen)
    assert seen[2] is None
    started = loop.time()
    calls = [patient_call(flights, 10.0, (1.0, wait, 99.0), seen) for wait in (50.0, 20.0, 5.0)]
    await asyncio.gather(*calls)
    assert [type(error) for error in seen[3:]] == [DeadlineError] * 3
    assert loop.time() - started == pytest.approx(60.0, abs=0.01)
    assert flights._timer is None


@virtual
async def test_a_deadline_that_passes_before_it_stands_still() -> None:
    """A call that comes to wait with nothing left ends when it goes on."""
    flights, seen, loop = InFlightCalls(), [], asyncio.get_running_loop()
    flight = flights.begin("GET /1/x", 1.0, options=CallOptions())
    flights.suspend(flight)
    flight.left = -1.0
    flights.resume(flight)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(50)
    seen.append(flight.interruption_error())
    flights.end(flight)
    assert isinstance(seen[0], DeadlineError)
    assert loop.time() < 0.1


@virtual
async def test_a_call_that_is_being_ended_is_not_resumed() -> None:
    """Who is interrupted while the deadline stands still has none any more: the one interruption is all there is."""
    flights = InFlightCalls()
    call = asyncio.current_task()
    assert call is not None
    flight = flights.begin("GET /1/x", 10.0, options=CallOptions())
    flights.suspend(flight)
    asyncio.get_running_loop().call_later(5.0, lambda: asyncio.ensure_future(closing()))

    async def closing() -> None:
        flights.close()

    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        flights.resume(flight)
        assert flight.deadline == float("inf")
        await asyncio.sleep(1000)  # no sweeper comes for it
    error = flight.interruption_error()
    flights.end(flight)
    assert isinstance(error, SessionClosedError)
    assert asyncio.get_running_loop().time() == pytest.approx(1005.0, abs=0.01)
    assert call.cancelling() == 0


def test_the_members_of_a_group_lose_their_frames_too() -> None:
    """An error that an application raised as a group keeps no frame anywhere."""

    def raised() -> ValueError:
        try:
            raise ValueError("inner")
        except ValueError as error:
            return error

    group = ExceptionGroup("group", [raised()])
    without_frames(group)
    assert [one.__traceback__ for one in (group, *group.exceptions)] == [None, None]
