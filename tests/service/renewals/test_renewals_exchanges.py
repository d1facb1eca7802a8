"""Exchanges of a code that are refused, lost, slow or of an odd shape."""

from __future__ import annotations

import pytest
from renewal_helpers import Consent, exchanges, secrets_of, timed
from virtual_loop import Clock

from boardclient import (
    CredentialError,
    DeadlineError,
    Effect,
    TransportError,
)
from boardclient.testing import BoardService, assert_no_secrets, faults


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
    assert (len(consent.asked), len(service.calls)) == (1, 0)
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
