"""Credentials: values, signing, redaction, providers, and the form that a provider may send."""

import json
from typing import Any, Literal

import attrs
import pytest
from session_helpers import ANY, requests, session_of

from boardclient import (
    AuthenticationError,
    ConsentRequired,
    CredentialError,
    Credentials,
    StaticCredentials,
    Token,
    TransportError,
)
from boardclient.credentials import Exchange
from boardclient.errors import Effect
from boardclient.testing import BoardService, faults

AWKWARD = ["plain", 'quo"te', "sl/ash", "per%2fcent", "back\\slash\\\\", "tö😀n", "a b+c=&?#", "tab\tline\n\r\b\f", "(dots.)*[x]"]


# --- values


def test_values() -> None:
    """Credentials are equal by token and key, hashable, and unchangeable."""
    credentials = Credentials("token", "key")
    assert credentials == Credentials(token="token", key="key")
    assert len({credentials, Credentials("token", "key"), Credentials("token")}) == 2
    assert Credentials("token").key is None
    assert repr(credentials) == "Credentials()"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        credentials.token = "another"  # type: ignore[misc]  # -- what is refused
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Token("token").value = "another"  # type: ignore[misc]  # -- what is refused


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


@pytest.mark.parametrize("place", ["body", "query"])
@pytest.mark.parametrize("key", [*AWKWARD, None])
@pytest.mark.parametrize("token", AWKWARD)
async def test_credentials_arrive_as_they_were(wire: Any, token: str, key: str | None, place: Literal["body", "query"]) -> None:
    """Key and token go into a JSON object, otherwise into the query after its own parameters, whatever they hold."""
    expected = {"token": token} if key is None else {"key": key, "token": token}
    wire.post(ANY, payload={}, repeat=True)
    async with session_of(StaticCredentials(token, key), credentials_in=place) as session:
        for body in ({"name": "ä"}, {}, [1], "x", None):
            wire.requests.clear()
            await session.request("POST", "/1/things", params={"a": "1"}, json=body)
            ((_, url, options),) = requests(wire)
            sent = None if options["data"] is None else json.loads(options["data"])
            if key is not None and place == "body" and isinstance(body, dict):
                assert (dict(url.query), sent) == ({"a": "1"}, {**expected, **body})
            else:
                assert (dict(url.query), sent) == ({"a": "1", **expected}, body)


# --- providers


async def test_static_provider(service: BoardService) -> None:
    """The static provider gives the same credentials always, so that a 401 is final after one request."""
    provider = StaticCredentials(service.token, service.key)
    assert repr(provider) == "StaticCredentials(***)"
    assert provider.waiting_for() == "credentials"
    service.faults.add(faults.status(401), "members.me")
    async with service.session(provider) as session:
        assert await provider.acquire(session.exchange) is provider.current()
        with pytest.raises(AuthenticationError):
            await session.members.me()
    assert len(service.calls) == 1


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
    assert len(service.calls) == (0 if when == "acquire" else 1)


async def test_provider_that_raises_one_error_to_several_calls(service: BoardService) -> None:
    """Each call raises an object of its own, with its own history, of the same type and with the same cause."""
    cause = LookupError("the cause")
    for error in (ConsentRequired("mine", "ann", "/login"), CredentialError("mine")):
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


@pytest.mark.parametrize("timeout", [float("nan"), 0, -1.0, "1"])
async def test_a_form_with_a_timeout_that_can_not_be_is_refused(service: BoardService, timeout: Any) -> None:
    """What is no number of more than 0 seconds is refused as the session refuses it, and nothing is sent."""
    async with service.session() as session:
        with pytest.raises((TypeError, ValueError), match="timeout must be"):
            await session.exchange.post_form(service.auth_url, {"client_secret": "s"}, timeout)
    assert service.calls == []


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
    assert len(service.calls) == 0


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
