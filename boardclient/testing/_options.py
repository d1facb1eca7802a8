"""The options of `BoardService.session` and `BoardService.oauth_credentials`, for type checkers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ssl import SSLContext
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    import aiohttp
    from tenacity import AsyncRetrying

    from boardclient import AuthorizationRequest, Token, TokenStore
    from boardclient.events import Event


class SessionOptions(TypedDict, total=False):
    """What `AsyncSession` takes besides credentials.

    The base URL is the service's by default.
    """

    base_url: str
    retry: AsyncRetrying | None
    timeout: float | None
    max_connections: int
    limiter: AbstractAsyncContextManager[object] | None
    http: aiohttp.ClientSession | None
    trust_env: bool
    ssl: SSLContext | bool | aiohttp.Fingerprint | None
    proxy: str | None
    headers: Mapping[str, str] | None
    user_agent: str | None
    observers: Iterable[Callable[[Event], object]]
    credentials_in: Literal["body", "query"]
    allow_insecure: bool
    max_answer_bytes: int


class OAuthOptions(TypedDict, total=False):
    """What `OAuthCredentials` takes.

    What the service knows is the service's by default.
    """

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
