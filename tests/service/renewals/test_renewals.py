"""One renewal for all requests of a session, over real sockets."""

from __future__ import annotations

import asyncio

import pytest
from fault_helpers import Held
from renewal_helpers import Consent, exchanges, refusals

from boardclient import AuthorizationRequest, PermissionDeniedError
from boardclient.testing import BoardService, faults


async def test_a_thousand_in_flight(service: BoardService, consent: Consent) -> None:
    """Of 1,000 requests in flight when the token expires one asks for a code, one exchanges it, and all succeed."""
    async with service.session(service.oauth_credentials(authorize=consent), max_connections=200, timeout=None) as session:
        await session.members.me()
        held = Held()
        service.faults.add(held, "members.me", call=range(2, 202))
        tasks = [asyncio.ensure_future(session.members.me()) for _ in range(1000)]
        await service.received("members.me", 201)
        service.rules.expire_tokens()
        held.open()
        members = await asyncio.gather(*tasks)
    assert {member.id for member in members} == {"0" * 24}
    assert len(members) == 1000
    assert refusals(service) == 1000
    assert (len(consent.asked), exchanges(service)) == (2, 2)  # each once at first use


@pytest.mark.parametrize("renewals", [1, 2])
async def test_a_late_refusal_of_an_older_token(service: BoardService, consent: Consent, renewals: int) -> None:
    """A 401 for a token that was renewed meanwhile, also twice, never discards the newer one: its call is replayed with it."""
    async with service.session(service.oauth_credentials(authorize=consent)) as session:
        await session.members.me()
        late = Held()
        service.faults.add(late, "members.me", call=2)
        task = asyncio.ensure_future(session.members.me())
        await service.received("members.me", 2)
        for _ in range(renewals):
            service.rules.expire_tokens()
            await session.members.me()
        late.open()
        await task
        await session.members.me()
    assert len(consent.asked) == exchanges(service) == 1 + renewals
    assert refusals(service) == renewals + 1
    assert service.calls_of("members.me")[-1].query["token"] == [*service.rules.tokens][-1]


async def test_no_other_refusal_renews(service: BoardService, consent: Consent) -> None:
    """A 403 and other errors leave the token alone: the application isn't asked again."""
    provider = service.oauth_credentials(authorize=lambda request: _given(service.new_code(scopes=["read"]), consent, request))
    async with service.session(provider, retry=None) as session:
        with pytest.raises(PermissionDeniedError):
            await session.boards.create("plans")
        for code in (400, 403, 407, 429, 500):
            service.faults.add(faults.status(code, {"WWW-Authenticate": "Bearer"}), "members.me", times=1)
            with pytest.raises(Exception, match=str(code)):
                await session.members.me()
        await session.members.me()
    assert (len(consent.asked), exchanges(service)) == (1, 1)


async def _given(code: str, consent: Consent, request: AuthorizationRequest) -> str:
    consent.asked.append(request)
    return code
