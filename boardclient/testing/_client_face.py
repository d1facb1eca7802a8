"""What clients of a service need: addresses, credentials, sessions."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from boardclient import AsyncSession, AuthorizationRequest, CredentialProvider, OAuthCredentials
    from boardclient.session import SessionOptions
    from boardclient.testing._options import OAuthOptions


class ClientFace(Protocol):
    """The part of a service for tests that its clients are made with."""

    @property
    @abstractmethod
    def base_url(self) -> str:
        """Where the resource operations are; known once the service runs."""

    @property
    @abstractmethod
    def auth_url(self) -> str:
        """Where the token exchange is."""

    @property
    def authorize_url(self) -> str:
        """The page where a user consents.

        It takes the parameters of RFC 6749 and RFC 7636. The interface shows no such page (5.10): it is the service's choice.
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
        """The environment variables that lead an application here. `BOARDCLIENT_COOKIE_SECRET` is not among them."""
        return {
            "BOARDCLIENT_BASE_URL": self.base_url,
            "BOARDCLIENT_AUTH_URL": self.auth_url,
            "BOARDCLIENT_AUTHORIZE_URL": self.authorize_url,
            "BOARDCLIENT_CLIENT_ID": self.client_id,
            "BOARDCLIENT_CLIENT_SECRET": self.client_secret,
            "BOARDCLIENT_REDIRECT_URI": self.redirect_uri,
            "BOARDCLIENT_KEY": self.key,
            "BOARDCLIENT_TOKEN": self.token,
        }

    @abstractmethod
    def new_code(self) -> str:
        """Return an authorization code for one token exchange."""

    async def authorize(self, request: AuthorizationRequest) -> str:
        """Give a code, as the `authorize` of an application whose user consents at once."""
        return self.new_code()

    def oauth_credentials(self, **options: Unpack[OAuthOptions]) -> OAuthCredentials:
        """Build the credentials of this service's registered client.

        The options are those of `OAuthCredentials`.
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
        """Build a session for this service, which the caller closes.

        Args:
            credentials: by default the service's key and the first member's token.
            options: those of `AsyncSession`.
        """
        from boardclient import AsyncSession, StaticCredentials

        given = StaticCredentials(token=self.token, key=self.key) if credentials is None else credentials
        return AsyncSession(given, **{"base_url": self.base_url, **options})  # type: ignore[arg-type]  # -- AsyncSession checks them
