"""The exchange of an authorization code for a token (interface 4.12)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import attrs

from boardclient.credentials._config import OAuthClientConfig
from boardclient.credentials._exchange_response import read_token
from boardclient.credentials._failure import RenewalFailure
from boardclient.credentials._protocol import Exchange
from boardclient.credentials._tokens import Token
from boardclient.errors import Effect, TransportError

EXCHANGE_PATH: Final = "/1/OAuthGetAccessToken"
EXCHANGE_SECONDS: Final = 30.0
"""The time limit of an exchange on a session whose calls have no deadline. A renewal must end."""


async def exchange_code(
    config: OAuthClientConfig, code: str, exchange: Exchange, timeout: float | None, extra: Mapping[str, str] = {}
) -> Token | RenewalFailure:
    """Send the code once, and return the token of the response.

    The exchange ends after `timeout` seconds, by default `EXCHANGE_SECONDS`. `extra` are further fields of the form.
    """
    fields = {
        "client_id": config.client_id,
        "client_secret": config.client_secret,
        "code": code,
        "redirect_uri": config.redirect_uri,
        **extra,
    }
    secrets = [config.client_secret, code, *extra.values()]
    try:
        response = await exchange.post_form(config.auth_url + EXCHANGE_PATH, fields, timeout or EXCHANGE_SECONDS)
    except TransportError as error:
        lost = error.with_traceback(None)
    else:
        token = read_token(response, time.time(), config.parse_token, secrets)
        if isinstance(token, Token):
            return token
        return attrs.evolve(token, why=f"{token.why} (sent to {config.auth_url}{EXCHANGE_PATH})")
    if lost.effect is Effect.NOT_SENT:
        return RenewalFailure(f"the token exchange was not sent: {lost.message}", lost)
    return RenewalFailure(f"the token exchange failed, with unknown effect: {lost.message}", lost, is_in_doubt=True)
