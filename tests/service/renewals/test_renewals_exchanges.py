"""Exchanges of a code that are refused, lost, slow or of an odd shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from renewal_helpers import Consent, exchanges, is_sent, secrets_of, timed
from virtual_loop import Clock

from boardclient import (
    AuthorizationRequest,
    CredentialError,
    DeadlineError,
    Effect,
    MemoryTokenStore,
    Token,
    TransportError,
)
from boardclient.testing import BoardService, assert_no_secrets, faults


@pytest.mark.parametrize("code", [302, 307, 308, 400, 401, 403, 404, 429, 500, 503])
async def test_a_refused_exchange(service: BoardService, consent: Consent, clock: Clock, code: int) -> None:
    """Whatever the exchange is refused with is a CredentialError: it is sent once, nothing is followed, the cool-down begins."""
    headers = {"Location": service.base_url + "/1/members/me", "Retry-After": "0"}
    service.faults.add(faults.status(code, headers, b'{"error": "invalid_grant", "hint": "canary"}'), "token.exchange", call=1)
    async with service.session(timed(service, consent, clock)) as session:
        errors = await asyncio.gather(*(session.members.me() for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in errors} == {CredentialError}
        assert f"the token exchange failed with status {code} (invalid_grant)" in str(errors[0])
        assert (is_sent(service), len(consent.asked)) == ((0, 1), 1)
        assert_no_secrets(errors, secrets=secrets_of(service, *consent.codes, "canary"))
        clock.now += 1
        await session.members.me()
    assert (is_sent(service), len(consent.asked)) == ((1, 2), 2)


async def test_a_used_code(service: BoardService, clock: Clock) -> None:
    """A code that was exchanged before is refused by the service, and the error says so."""
    code = service.new_code()

    async def authorize(request: AuthorizationRequest) -> str:
        return code

    async with service.session(timed(service, authorize, clock)) as session:
        await session.members.me()
        service.rules.expire_tokens()
        with pytest.raises(CredentialError, match=r"status 400.*the code is not good") as caught:
            await session.members.me()
    assert_no_secrets(caught.value, secrets=secrets_of(service, code))


async def test_a_refused_connection_to_the_auth_url_sends_nothing(service: BoardService, consent: Consent, clock: Clock) -> None:
    """An exchange that is refused a connection was not sent: the cause says so, and no second code is requested."""
    async with BoardService() as dead:
        url = dead.auth_url
    async with service.session(timed(service, consent, clock, auth_url=url)) as session:
        with pytest.raises(CredentialError, match="the token exchange was not sent") as caught:
            await session.members.me()
    cause = caught.value.__cause__
    assert isinstance(cause, TransportError)
    assert cause.effect is Effect.NOT_SENT
    assert (len(consent.asked), service.requests) == (1, 0)
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))


@pytest.mark.parametrize("fault", [faults.drop(commit=True), faults.drop(), faults.drop(reset=True), faults.truncated()])
async def test_an_exchange_with_unknown_effect(service: BoardService, consent: Consent, fault: faults.Fault) -> None:
    """If it is not known whether a code was used, another one is requested, and the call continues."""
    service.faults.add(fault, "token.exchange", call=1)
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
    assert [call.body["code"] for call in service.calls_of("token.exchange")] == consent.codes
    assert len(set(consent.codes)) == 2
    assert [request.attempt for request in consent.asked] == [1, 2]


@pytest.mark.parametrize("fault", [faults.drop(commit=True), faults.truncated()])
async def test_every_exchange_with_unknown_effect(
    service: BoardService, consent: Consent, clock: Clock, fault: faults.Fault
) -> None:
    """Two codes are all that one renewal asks for; then it has failed, and says that the effect is unknown."""
    planned = service.faults.add(fault, "token.exchange")
    async with service.session(timed(service, consent, clock)) as session:
        with pytest.raises(CredentialError, match="with unknown effect") as caught:
            await session.members.me()
        assert isinstance(caught.value.__cause__, TransportError)
        assert (len(consent.asked), exchanges(service)) == (2, 2)
        assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))
        service.faults.remove(planned)
        clock.now += 1
        await session.members.me()
    assert len(consent.asked) == 3


async def test_no_code_is_sent_twice(service: BoardService, clock: Clock) -> None:
    """A code whose exchange had an unknown effect is never sent again, in the same renewal nor in a later one."""
    service.faults.add(faults.drop(commit=True), "token.exchange", call=1)
    code = service.new_code()
    codes = iter([code, code, code, service.new_code()])

    async def authorize(request: AuthorizationRequest) -> str:
        return next(codes)

    async with service.session(timed(service, authorize, clock)) as session:
        for _ in range(2):
            with pytest.raises(CredentialError, match="a code that was sent before") as caught:
                await session.members.me()
            assert_no_secrets(caught.value, secrets=secrets_of(service, code))
            clock.now += 5
        assert exchanges(service) == 1
        await session.members.me()
    assert exchanges(service) == 2


async def test_an_exchange_that_hangs(service: BoardService, consent: Consent, loop_clock: Clock) -> None:
    """An exchange without a response ends before the deadline of the calls that wait, so that they learn why."""
    service.sleep = loop_clock.sleep
    service.faults.add(faults.hang(seconds=0.6), "token.exchange")
    async with service.session(service.oauth_credentials(authorize=consent), timeout=1.5) as session:
        with pytest.raises(CredentialError, match=r"with unknown effect.*deadline of 0\.5 s") as caught:
            await session.members.me()
    assert isinstance(caught.value.__cause__, DeadlineError)
    assert (len(consent.asked), exchanges(service)) == (2, 2)
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))


@pytest.mark.parametrize("shape", ["rfc6749", "token", "form"])
async def test_each_shape_of_a_token_response_is_read(shape: Any) -> None:
    """A token is found in a response as of RFC 6749, in one with a field `token`, and in a form."""
    async with BoardService(exchange_answer=shape, token_lifetime=3600.0) as service:
        store = MemoryTokenStore()
        async with service.session(service.oauth_credentials(store=store)) as session:
            await session.members.me()
        stored = await store.read("default")
        assert stored is not None
        assert stored.token.value == [*service.rules.tokens][-1]
        assert (stored.token.expires_at is None) is (shape == "token")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"access": "canary-1", "data": {"token": "canary-2"}}', "the names in its response are access, data; parse_token"),
        (b"access=canary-1&canary-2=x9", "the names in its response are access and 1 not shown"),
        (b'{"access_token": 7, "token": null}', "the names in its response are access_token, token;"),
        (b'{"access_token": ""}', "the names in its response are none and 1 not shown"),
        (b'["canary-1"]', "neither a JSON object nor form-encoded"),
        (b"<html>canary-1</html>", "neither a JSON object nor form-encoded"),
        (b"canary-1", "neither a JSON object nor form-encoded"),
        (b"", "gave no token"),
        (b'{"access_token": "canary-1\\ud800"}', "gave no token|can't be sent"),
    ],
)
async def test_a_response_without_a_token_shows_names_only(
    service: BoardService, consent: Consent, body: bytes, words: str
) -> None:
    """A response without a token shows the names in it and never a value."""
    service.faults.add(faults.foreign_body(body), "token.exchange")
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        with pytest.raises(CredentialError, match=words) as caught:
            await session.members.me()
    assert is_sent(service) == (0, 1)
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes, "canary-1", "canary-2"))


async def test_parse_token(service: BoardService, consent: Consent, clock: Clock) -> None:
    """`parse_token` takes the token from a response of another shape; where it can't, its error is the cause."""

    def parse(fields: Any) -> Token:
        return Token(fields["data"]["secret"])

    token = service.rules.issue_token()
    for body in (b'{"data": {}}', json.dumps({"data": {"secret": token}}).encode()):
        service.faults.add(faults.foreign_body(body), "token.exchange", times=1)
    async with service.session(timed(service, consent, clock, parse_token=parse)) as session:
        with pytest.raises(CredentialError, match="parse_token raised KeyError: the names in its response are data") as caught:
            await session.members.me()
        assert isinstance(caught.value.__cause__, KeyError)
        clock.now += 1
        await session.members.me()
    assert service.calls_of("members.me")[0].query["token"] == token
    assert_no_secrets(caught.value, secrets=secrets_of(service, *consent.codes))
