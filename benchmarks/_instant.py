"""A transport that responds without a network, so that only the client is measured."""

import itertools
from typing import Any

from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials
from boardclient._transport._values import RawResponse

_CARD = b'{"id": "%024x", "name": "Card", "desc": "", "url": "https://board.example/c/1"}'
_NUMBERS = itertools.count()  # each card has an identifier of its own
_TOKEN = RawResponse(200, {}, b'{"access_token": "a-token-of-usual-length-0123456789abcdef"}')


class _InstantPool:
    """Responds with success to each request."""

    max_connections = 100

    async def send(self, method: str, url: str, *rest: object, **more: object) -> RawResponse:
        return _TOKEN if url.endswith("/1/OAuthGetAccessToken") else RawResponse(200, {}, _CARD % next(_NUMBERS))

    async def aclose(self) -> None: ...

    def abandon(self) -> None: ...


def instant_session(credentials: CredentialProvider, **options: Any) -> AsyncSession:
    """Return a session on such a transport."""
    session = AsyncSession(credentials, base_url="https://board.example", **options)
    session._parts.transport = _InstantPool()  # type: ignore[assignment]  # -- all that a call asks of it
    return session


async def _authorize(request: AuthorizationRequest) -> str:
    return "code"


def oauth(**options: Any) -> OAuthCredentials:
    """Return credentials that the transport exchanges a token for."""
    return OAuthCredentials(
        client_id="client",
        client_secret="secret",
        redirect_uri="https://app.example/back",
        auth_url="https://auth.example",
        authorize=_authorize,
        key="key",
        **options,
    )
