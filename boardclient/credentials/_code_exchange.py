"""The exchange of a code for a token, and a client's settings (interface 4.12)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs

from boardclient.credentials._exchange_answer import ParseToken, read_token
from boardclient.credentials._failure import RenewalFailure, consent_needed
from boardclient.credentials._protocol import Exchange
from boardclient.credentials._store_steps import StoreSteps
from boardclient.credentials._tokens import Token, TokenStore
from boardclient.errors import Effect, TransportError

EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
EXCHANGE_SECONDS: Final = 30.0
"""For an exchange of a session whose calls have no deadline: a renewal must end."""


@attrs.frozen(kw_only=True)
class AuthorizationRequest:
    """Tell the application why it is asked for an authorization code. Nothing in it is secret.

    `first_time` is True if no token is stored for `account`; `attempt` counts from 1 how often a code was asked for since the
    service last accepted a token.
    """

    account: str
    first_time: bool
    attempt: int


Authorize = Callable[[AuthorizationRequest], Awaitable[str]]


@attrs.frozen(kw_only=True)
class OAuthClientConfig:
    """The registered client, the application's callbacks, and where tokens are kept."""

    client_id: str = attrs.field(repr=False)
    client_secret: str = attrs.field(repr=False)
    redirect_uri: str = attrs.field(repr=False)
    auth_url: str
    authorize: Authorize | None
    login_url: str | None
    parse_token: ParseToken | None
    store: TokenStore
    account: str
    key: str | None = attrs.field(repr=False)
    authorize_timeout: float
    cooldown: float
    renew_before_expiry: float | None
    lease_seconds: float

    @property
    def steps(self) -> StoreSteps:
        """The steps at the store for this account."""
        return StoreSteps(self.store, self.account)

    def consent_needed(self, login_url: str | None = None, cause: BaseException | None = None) -> RenewalFailure:
        """Return the reason of calls while the user has to sign in."""
        return consent_needed(self.account, login_url or self.login_url, cause)


async def exchange_code(
    config: OAuthClientConfig, code: str, exchange: Exchange, timeout: float | None, extra: Mapping[str, str] = {}
) -> Token | RenewalFailure:
    """Send the code once, within `timeout` seconds. Return the token of the answer; `extra` are further form fields."""
    fields = {
        "client_id": config.client_id,
        "client_secret": config.client_secret,
        "code": code,
        "redirect_uri": config.redirect_uri,
        **extra,
    }
    secrets = [config.client_secret, code, *extra.values()]
    try:
        answer = await exchange.post_form(config.auth_url + EXCHANGE_PATH, fields, timeout or EXCHANGE_SECONDS)
    except TransportError as error:
        lost = error.with_traceback(None)
    else:
        token = read_token(answer, time.time(), config.parse_token, secrets)
        return (
            token
            if isinstance(token, Token)
            else attrs.evolve(token, why=f"{token.why} (sent to {config.auth_url}{EXCHANGE_PATH})")
        )
    if lost.effect is Effect.NOT_SENT:
        return RenewalFailure(f"the token exchange was not sent: {lost.message}", lost)
    return RenewalFailure(f"the token exchange failed, with unknown effect: {lost.message}", lost, is_in_doubt=True)
