"""The options of OAuth credentials: the client, the callbacks and the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs

from boardclient._urls import check_root
from boardclient.credentials._guards import StoreSteps
from boardclient.credentials._tokens import Consent, ParseToken, RenewalFailure, TokenStore
from boardclient.models import check_filled, check_seconds


@attrs.frozen(kw_only=True)
class AuthorizationRequest:
    """Say why the application is asked for an authorization code. Nothing in it is secret.

    Args:
        account: the account that the code is for.
        first_time: True if no token is stored for the account.
        attempt: how often a code was asked for since the service last accepted a token, from 1.
    """

    account: str
    first_time: bool
    attempt: int


Authorize: TypeAlias = Callable[[AuthorizationRequest], Awaitable[str]]


def _checked_address(url: str) -> str:
    return check_root(url, "auth_url", allow_insecure=True)  # the session says whether forms may go over plain http


@attrs.frozen(kw_only=True)
class OAuthClientConfig:
    """The options of `OAuthCredentials`, which describes them, checked.

    Raises:
        ValueError, TypeError: an option can't work.
    """

    client_id: str = attrs.field(repr=False)
    client_secret: str = attrs.field(repr=False)
    redirect_uri: str = attrs.field(repr=False)
    auth_url: str = attrs.field(converter=_checked_address)
    authorize: Authorize | None
    key: str | None = attrs.field(repr=False)
    store: TokenStore
    account: str
    authorize_timeout: float
    cooldown: float
    renew_before_expiry: float | None
    parse_token: ParseToken | None
    lease_seconds: float
    login_url: str | None
    steps: StoreSteps = attrs.field(init=False, repr=False)
    """The steps at the store for this account."""

    def __attrs_post_init__(self) -> None:
        for name in ("client_id", "client_secret", "redirect_uri", "account"):
            check_filled(getattr(self, name), name)
        for name in ("key", "login_url"):
            if getattr(self, name) is not None:
                check_filled(getattr(self, name), name)
        if not all(function is None or callable(function) for function in (self.authorize, self.parse_token)):
            raise TypeError("authorize must be an async function or None, and parse_token a function")
        steps = ("read", "publish", "lease", "release")
        if isinstance(self.store, type) or not all(callable(getattr(self.store, name, None)) for name in steps):
            raise TypeError("store must be a TokenStore, such as MemoryTokenStore() or FileTokenStore(path)")
        for name in ("authorize_timeout", "lease_seconds", "cooldown"):
            check_seconds(getattr(self, name), name)
        if self.renew_before_expiry is not None:
            check_seconds(self.renew_before_expiry, "renew_before_expiry")
        if not self.authorize_timeout > 0 or not self.lease_seconds > 0 or not self.cooldown >= 0:
            raise ValueError("authorize_timeout and lease_seconds must be more than 0 seconds, cooldown at least 0")
        if self.renew_before_expiry is not None and not self.renew_before_expiry > 0:
            raise ValueError("renew_before_expiry must be more than 0 seconds, or None")
        object.__setattr__(self, "steps", StoreSteps(self.store, self.account))

    def consent_needed(self, login_url: str | None = None, cause: BaseException | None = None) -> RenewalFailure:
        """Return the failure of calls whose user has to sign in. The callback's `login_url` replaces the configured one."""
        consent = Consent(self.account, login_url or self.login_url)
        return RenewalFailure(f"the user of account {self.account!r} has to sign in", cause, consent=consent)
