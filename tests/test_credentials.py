"""Credentials: values, signing, redaction, providers, and the form that a provider may send."""

import asyncio
import copy
import html
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boardclient import (
    AsyncSession,
    AuthenticationError,
    ConsentRequired,
    CredentialError,
    Credentials,
    SessionClosedError,
    StaticCredentials,
    TransportError,
)
from boardclient._operations import Request, build_request
from boardclient._responses import BODY_KEPT_BYTES
from boardclient._transport import RawResponse
from boardclient.credentials import Exchange, SignedRequest
from boardclient.errors import Effect
from boardclient.testing import BoardService, faults

AWKWARD = ["plain", 'quo"te', "sl/ash", "per%2fcent", "back\\slash\\\\", "tö😀n", "a b+c=&?#", "tab\tline\n\r\b\f", "(dots.)*[x]"]


def request(json_body: Any = None, **options: Any) -> Request[Any]:
    return build_request("POST" if json_body is not None else "GET", "/1/things", json=json_body, **options)


# --- values


def test_values() -> None:
    """Credentials are equal by token and key, hashable, copied as themselves, and unchangeable."""
    credentials = Credentials("token", "key")
    assert credentials == Credentials(token="token", key="key")
    assert len({credentials, Credentials("token", "key"), Credentials("token")}) == 2
    assert Credentials("token").key is None
    assert copy.copy(credentials) is copy.deepcopy(credentials) is credentials
    assert repr(credentials) == "Credentials()"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        credentials.token = "another"  # type: ignore[misc]  # -- what is refused


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("",), ValueError, "token must not be empty"),
        (("token", ""), ValueError, "key must not be empty"),
        ((None,), TypeError, "token must be a string, not NoneType"),
        ((b"token",), TypeError, "token must be a string, not bytes"),
        (("token", 3), TypeError, "key must be a string, not int"),
        (("a\ud800",), ValueError, "token holds a lone surrogate"),
    ],
)
def test_bad_values(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    """What can't be sent is refused when the credentials are made, by the static provider as well."""
    for kind in (Credentials, StaticCredentials):
        with pytest.raises(error, match=words):
            kind(*arguments)


# --- signing


@pytest.mark.parametrize("token", AWKWARD)
@pytest.mark.parametrize("key", [*AWKWARD, None])
def test_sign(token: str, key: str | None) -> None:
    """Key and token go into a JSON object, otherwise into the query; whatever they hold arrives as it was."""
    credentials = Credentials(token, key)
    expected = {"token": token} if key is None else {"key": key, "token": token}
    bodies: list[tuple[Any, Any]] = [({"name": "ä"}, "body"), ({}, "body"), ({"a": 1}, "query"), ([1], "body"), ("x", "body")]
    for body, place in [*bodies, (None, "body")]:
        signed = credentials.sign(request(body), place)
        path, _, query = signed.target.partition("?")
        assert path == "/1/things"
        decoded = None if signed.body is None else json.loads(signed.body)
        if key is not None and place == "body" and isinstance(body, dict):
            assert (query, decoded) == ("", {**expected, **body})
        else:
            assert (dict(parse_qsl(query, strict_parsing=True)), decoded) == (expected, body)
        assert signed.target.isascii()


def test_sign_with_a_query() -> None:
    """A query of the request's own is kept, before the credentials."""
    both = Credentials("t", "k")
    assert both.sign(request(params={"a": "1"})).target == "/1/things?a=1&key=k&token=t"
    assert both.sign(request({"b": 2}, params={"a": "1"})) == SignedRequest("/1/things?a=1", b'{"key":"k","token":"t","b":2}')
    assert both.sign(request({}, params={"a": "1"})).body == b'{"key":"k","token":"t"}'
    assert repr(both.sign(request())) == "SignedRequest()"


# --- redaction


def written(secret: str) -> list[str]:
    """Give the ways in which services write what they were sent."""
    once = [
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote(secret, safe="").lower() if secret == secret.lower() else quote(secret),
        quote_plus(secret),
        quote(secret, safe="!$&'()*+,;=:@/?"),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(secret)[1:-1].replace("/", "\\/"),
        "".join(f"%{byte:02X}" for byte in secret.encode()),
    ]
    twice = [json.dumps(once[6])[1:-1], quote(once[2], safe=""), quote(once[6], safe=""), json.dumps(once[7])[1:-1]]
    return once + twice


@pytest.mark.parametrize("secret", AWKWARD)
def test_redact(secret: str) -> None:
    """A credential becomes `***` however it is written, in body and headers; what is beside it stays."""
    for credentials in (Credentials(secret), Credentials("another token", secret)):
        for form in written(secret):
            headers = {"X-Echo": f"<{form}>"} if form.isprintable() else {}
            answer = credentials.redact(RawResponse(400, headers, f"before <{form}> after ü \\ %".encode() + b"\xff"))
            assert answer.body == "before <***> after ü \\ %".encode() + b"\xff", form
            assert dict(answer.headers) == dict.fromkeys(headers, "<***>")
            assert answer.status == 400


def test_redact_keeps_headers_and_prefers_the_longer() -> None:
    """A key that begins the token does not leave the token's rest; headers keep their order and their doubles."""
    answer = Credentials("secret-and-more", "secret").redact(
        RawResponse(400, {"Date": "x", "x-a": "secret\udcff"}, b"secret-and-more secret")
    )
    assert answer.body == b"*** ***"
    assert list(answer.headers.items()) == [("Date", "x"), ("x-a", "***\udcff")]
    assert answer.headers["DATE"] == "x"


def test_redact_keeps_the_beginning_of_a_large_body() -> None:
    """Of a body beyond what an error keeps the beginning is left, and no half of a credential at its end."""
    credentials = Credentials("0123456789secret")
    for length in range(BODY_KEPT_BYTES - 20, BODY_KEPT_BYTES + 16 * 128 + 20, 7):
        body = credentials.redact(RawResponse(500, {}, b"." * length + b"0123456789secret" * 300)).body
        assert b"01" not in body
        assert len(body) >= BODY_KEPT_BYTES - 16 * 128


def test_redact_cuts_after_the_last_of_several_credentials() -> None:
    """A body full of one credential is not cut within another one: half of that would be left, pulled into what is kept."""
    new, old = Credentials("n" * 55), Credentials("0123456789" * 5 + "abcde")
    for shift in range(0, 56, 3):
        body = b"." * shift + b"n" * 55 * 1300 + old.token.encode() * 60
        kept = new.redact(RawResponse(401, {}, body), old).body
        assert b"0123" not in kept
        assert b"nn" not in kept
        assert len(kept) <= BODY_KEPT_BYTES


@pytest.mark.parametrize(
    "form",
    ["a&amp;b/&lt;c", "a&#38;b&#x2F;&#x3c;c", "a%26amp;b/&lt;c", "a\\u0026b\\/\\u003cc", "a%5Cu0026b%252F%253Cc", "%25a&b/<c%"],
)
def test_redact_finds_mixed_and_nested_forms(form: str) -> None:
    """HTML references and nested escapes are found; the text around the credential stays unchanged."""
    assert Credentials("a&b/<c").redact(RawResponse(400, {}, f"&lt;{form}%41\\n".encode())).body in (
        b"&lt;***%41\\n",
        b"&lt;%25***%%41\\n",
    )


@settings(max_examples=200, deadline=None)
@given(
    secret=st.lists(
        st.sampled_from(["%2f", "\\n", "&amp;", "\\u0041", "+", "é", "😀", '"', "/"]) | st.characters(exclude_categories=["Cs"]),
        min_size=4,
    ).map("".join),
    ways=st.lists(st.sampled_from(["quote", "quote_plus", "json", "json_ascii", "html"]), max_size=3),
    before=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="%\\&"), max_size=30),
)
def test_redact_finds_what_any_usual_encoder_makes(secret: str, ways: list[str], before: str) -> None:
    """Credentials are redacted in every form that the usual encoders make, also one after another."""
    encoders: dict[str, Callable[[str], str]] = {
        "quote": lambda text: quote(text, safe=""),
        "quote_plus": quote_plus,
        "json": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
        "json_ascii": lambda text: json.dumps(text)[1:-1],
        "html": html.escape,
    }
    written = secret
    for way in ways:
        written = encoders[way](written)
    if "quote_plus" in ways[1:] and " " in secret:
        return  # a space of a text that was encoded before: no service does that to a credential
    if (before + written).find(written) < len(before):
        return  # the text before ends as the secret begins: of the two places the first is replaced
    assert Credentials(secret).redact(RawResponse(400, {}, (before + written).encode())).body.endswith(b"***")


def test_redact_takes_a_few_passes() -> None:
    """A body made of escapes alone is searched in a few passes, for credentials of escapes as well."""
    credentials = Credentials("\\" * 40 + "%" * 20 + "x", "%5c" * 20)
    started = time.process_time()
    credentials.redact(RawResponse(400, {}, b"\\" * 20000 + b"%5c" * 10000))
    assert time.process_time() - started < 20


# --- providers


async def test_static_provider(service: BoardService) -> None:
    """The static provider gives the same credentials always, so that a 401 is final after one request."""
    provider = StaticCredentials(service.token, service.key)
    assert repr(provider) == "StaticCredentials(***)"
    service.faults.add(faults.status(401), "members.me")
    async with service.session(provider) as session:
        with pytest.raises(AuthenticationError):
            await session.members.me()
    assert len(service.calls) == 1


class Renewing:
    """A provider as an application writes one: a first token that is refused, then a good one."""

    def __init__(self, service: BoardService) -> None:
        self.service = service
        self.current = Credentials("stale", service.key)
        self.acquired = self.renewed = 0
        self.lock = asyncio.Lock()

    async def acquire(self, exchange: Exchange) -> Credentials:
        self.acquired += 1
        return self.current

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        async with self.lock:
            if self.current == rejected:
                self.renewed += 1
                fields = {
                    "client_id": self.service.client_id,
                    "client_secret": self.service.client_secret,
                    "redirect_uri": self.service.redirect_uri,
                    "code": self.service.new_code(),
                }
                answer = await exchange.post_form(self.service.auth_url + "/1/OAuthGetAccessToken", fields)
                self.current = Credentials(json.loads(answer.body)["access_token"], self.service.key)
            return self.current


async def test_custom_provider_serves_many_tasks(service: BoardService) -> None:
    """Fifty tasks that meet a 401 at once share one renewal, and each call is replayed once."""
    provider = Renewing(service)
    async with service.session(provider) as session:
        members = await asyncio.gather(*(session.members.me() for _ in range(50)))
    assert len(members) == 50
    assert provider.renewed == len(service.calls_of("token.exchange")) == 1
    assert len(service.calls_of("members.me")) <= 100


@pytest.mark.parametrize("junk", [None, "token", {"token": "canary"}, ("token", "key"), 3])
@pytest.mark.parametrize("when", ["acquire", "renew"])
async def test_provider_that_returns_junk(junk: object, when: str, service: BoardService) -> None:
    """A value that is not Credentials is a CredentialError that shows its type, not its value; nothing is sent."""

    class Junk:
        async def acquire(self, exchange: Exchange) -> Any:
            return junk if when == "acquire" else Credentials("stale")

        async def renew(self, rejected: Credentials, exchange: Exchange) -> Any:
            return junk

    async with service.session(Junk()) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert "canary" not in str(caught.value)
    assert service.requests == (0 if when == "acquire" else 1)


@pytest.mark.parametrize("error", [LookupError("mine"), CredentialError("mine"), TimeoutError()])
async def test_provider_that_raises(error: Exception, service: BoardService) -> None:
    """What a provider raises reaches the caller as CredentialError, with it as the cause."""

    class Failing:
        async def acquire(self, exchange: Exchange) -> Credentials:
            raise error

        async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials: ...  # type: ignore[empty-body]  # -- unused

    async with service.session(Failing()) as session:
        with pytest.raises(CredentialError) as caught:
            await session.members.me()
    assert error in (caught.value, caught.value.__cause__)
    assert caught.value.effect is Effect.NOT_SENT


async def test_provider_that_raises_one_error_to_several_calls(service: BoardService) -> None:
    """Each call raises an object of its own, with its own history, of the same type and with the same cause."""

    class Mine(CredentialError):
        def __copy__(self) -> CredentialError:
            raise TypeError("no copies")

    cause = LookupError("the cause")
    for error in (ConsentRequired("mine", "ann", "/login"), Mine("mine")):
        error.__cause__ = cause
        errors: list[CredentialError] = []

        class Failing:
            async def acquire(self, exchange: Exchange) -> Credentials:
                raise error  # noqa: B023 -- it is called within the loop

            async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials: ...  # type: ignore[empty-body]  # -- unused

        async with service.session(Failing()) as session:
            for _ in range(3):
                with pytest.raises(CredentialError) as caught:
                    await session.members.me()
                errors.append(caught.value)
        assert len({id(raised) for raised in errors}) == 3
        assert [len(raised.attempts) for raised in errors] == [1, 1, 1]
        assert {raised.__cause__ for raised in errors} == {cause}
        if isinstance(error, ConsentRequired):
            assert {(type(raised), str(raised), raised.account) for raised in errors} == {(ConsentRequired, "mine", "ann")}
        else:
            assert str(errors[2]) == "the provider raised Mine"


# --- the exchange


class Posting:
    """A provider that sends one form with the test's values, and keeps the result."""

    def __init__(self, url: str, fields: dict[str, str] | None = None) -> None:
        self.url, self.fields = url, fields or {"client_secret": "a b&c=d/ü"}
        self.answer: Any = None
        self.error: BaseException | None = None

    async def acquire(self, exchange: Exchange) -> Credentials:
        try:
            self.answer = await exchange.post_form(self.url, self.fields)
        except BaseException as error:
            self.error = error
            raise
        return Credentials("token")

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        return rejected


async def post(service: BoardService, provider: Posting, **options: Any) -> None:
    async with service.session(provider, **options) as session:
        await session.members.me()


@pytest.mark.parametrize("code", [200, 204, 302, 400, 401, 429, 500, 503])
async def test_form_is_posted_once_and_any_status_returned(code: int, service: BoardService) -> None:
    """The form is sent once, encoded as a form, and its answer given back whatever its status; nothing is retried or followed."""
    body = b"" if code == 204 else b"the answer"
    headers = {"Location": "/1/members/me", "Retry-After": "0"}
    service.faults.add(faults.status(code, headers, body), "token.exchange")
    provider = Posting(service.auth_url + "/1/OAuthGetAccessToken")
    with pytest.raises(AuthenticationError):
        await post(service, provider)
    (call,) = service.calls_of("token.exchange")
    assert (call.method, call.query, call.body) == ("POST", {}, {"client_secret": "a b&c=d/ü"})
    assert call.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert (provider.answer.status, provider.answer.body) == (code, body)
    assert provider.answer.headers["location"] == "/1/members/me"


@pytest.mark.parametrize(
    "url",
    [
        "http://board.example/x",
        "ftp://board.example/x",
        "/relative",
        "",
        "https://user@board.example/x",
        "https://board.example/?a=b",
    ],
)
async def test_a_form_is_sent_only_over_https_or_to_loopback(url: str, service: BoardService) -> None:
    """A form to anything but https, or plain http to loopback, is a ValueError before anything is sent."""
    provider = Posting(url)
    with pytest.raises(CredentialError) as caught:
        await post(service, provider)
    assert isinstance(provider.error, ValueError)
    assert caught.value.__cause__ is provider.error
    assert service.requests == 0


async def test_form_may_go_in_the_open_where_allowed(service: BoardService, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `allow_insecure` plain http is a matter of the network, not of the check."""

    async def getaddrinfo(*args: object, **options: object) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    provider = Posting("http://board.example/x")
    with pytest.raises(CredentialError):
        await post(service, provider, allow_insecure=True)
    assert isinstance(provider.error, TransportError)
    assert provider.error.effect is Effect.NOT_SENT


@pytest.mark.parametrize("fault", [faults.drop(), faults.drop(commit=True)])
async def test_a_form_without_a_whole_response_is_not_sent_again(fault: faults.Fault, service: BoardService) -> None:
    """Without a whole response the provider gets a TransportError, and the form is not sent again."""
    service.faults.add(fault, "token.exchange")
    provider = Posting(service.auth_url + "/1/OAuthGetAccessToken")
    with pytest.raises(CredentialError):
        await post(service, provider)
    assert isinstance(provider.error, TransportError)
    assert provider.error.effect is Effect.UNKNOWN
    assert len(service.calls) == 1


async def test_a_form_that_is_refused_in_half_a_response_is_refused(service: BoardService) -> None:
    """A status that came is a response, though its body breaks off, and the form is not sent again."""
    service.faults.add(faults.truncated(), "token.exchange")
    provider = Posting(service.auth_url + "/1/OAuthGetAccessToken")
    with pytest.raises(AuthenticationError):  # of the token that this provider makes up
        await post(service, provider)
    assert (provider.error, provider.answer.status, len(service.calls_of("token.exchange"))) == (None, 400, 1)


async def test_closing_the_session_ends_the_form(service: BoardService) -> None:
    """A form that is being sent ends when the session is closed, for the provider and for the call."""
    service.faults.add(faults.hang(), "token.exchange")
    provider = Posting(service.auth_url + "/1/OAuthGetAccessToken")
    session: AsyncSession = service.session(provider)
    task = asyncio.create_task(session.members.me())
    await service.received("token.exchange")
    await session.aclose()
    with pytest.raises((SessionClosedError, CredentialError)):
        await task
    assert provider.error is not None
