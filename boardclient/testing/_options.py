"""The options of `BoardService.oauth_credentials`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boardclient import AuthorizationRequest, Token, TokenStore


class OAuthOptions(TypedDict, total=False):
    """The options of `OAuthCredentials`. The service has defaults for those that it knows."""

    client_id: str
    client_secret: str
    redirect_uri: str
    auth_url: str
    authorize: Callable[[AuthorizationRequest], Awaitable[str]] | None
    key: str | None
    store: TokenStore | None
    account: str
    login_url: str | None
    authorize_timeout: float
    cooldown: float
    renew_before_expiry: float | None
    parse_token: Callable[[Mapping[str, object]], Token] | None
