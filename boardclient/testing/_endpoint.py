"""The addresses and credentials of a service, and sessions for it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials
    from boardclient.session import SessionOptions
    from boardclient.testing._options import OAuthOptions


class ServiceEndpoint(Protocol):
    """The addresses and credentials of a service, and sessions for it."""

    @property
    @abstractmethod
    def base_url(self) -> str:
        """The address of the resource operations. Its port is known once the service runs."""

    @property
    @abstractmethod
    def auth_url(self) -> str:
        """The address of the token exchange."""

    @property
    def authorize_url(self) -> str:
        """The address of the page on which a user gives consent.

        It takes the parameters of RFC 6749, section 4.1.1, and RFC 7636. The interface does not describe this page (5.10).
        """
        return f"{self.auth_url}/authorize"

    @property
    @abstractmethod
    def key(self) -> str:
        """The API key."""

    @property
    @abstractmethod
    def token(self) -> str:
        """An access token that the service accepts."""

    @property
    @abstractmethod
    def client_id(self) -> str:
        """The client identifier for the token exchange."""

    @property
    @abstractmethod
    def client_secret(self) -> str:
        """The client secret for the token exchange."""

    @property
    @abstractmethod
    def redirect_uri(self) -> str:
        """The redirect URI for the token exchange."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which an application uses this service.

        `BOARDCLIENT_COOKIE_SECRET` is not among them.
        """
        return {
            "BOARDCLIENT_BASE_URL": self.base_url,
            "BOARDCLIENT_AUTH_URL": self.auth_url,
            "BOARDCLIENT_KEY": self.key,
            "BOARDCLIENT_TOKEN": self.token,
            "BOARDCLIENT_CLIENT_ID": self.client_id,
            "BOARDCLIENT_CLIENT_SECRET": self.client_secret,
            "BOARDCLIENT_REDIRECT_URI": self.redirect_uri,
            "BOARDCLIENT_AUTHORIZE_URL": self.authorize_url,
        }

    @abstractmethod
    def new_code(self) -> str:
        """Return an authorization code for one token exchange."""

    async def authorize(self, request: AuthorizationRequest) -> str:
        """Return a code at once, as the `authorize` callback of `OAuthCredentials`."""
        return self.new_code()

    def oauth_credentials(self, **options: Unpack[OAuthOptions]) -> OAuthCredentials:
        """Return OAuth credentials of the client that is registered with this service.

        Args:
            options: The options of `OAuthCredentials`. They replace those that the service knows.
        """
        from boardclient import OAuthCredentials

        given = {
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "redirect_uri": self.redirect_uri,
            "auth_url": self.auth_url,
            "authorize": self.authorize,
            "key": self.key,
        }
        return OAuthCredentials(**{**given, **options})  # type: ignore[arg-type]  # -- OAuthCredentials checks them

    def session(self, credentials: CredentialProvider | None = None, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Return a session for this service. The caller closes it.

        Args:
            credentials: The credentials. By default the service's key and the first member's token.
            options: The options of `AsyncSession`.
        """
        from boardclient import AsyncSession, StaticCredentials

        given = StaticCredentials(token=self.token, key=self.key) if credentials is None else credentials
        return AsyncSession(given, **{"base_url": self.base_url, **options})  # type: ignore[arg-type]  # -- AsyncSession checks them
