"""Credentials that never change."""

from __future__ import annotations

from boardclient.credentials._protocol import CredentialObserver, Exchange
from boardclient.credentials._values import Credentials


class StaticCredentials(CredentialObserver):
    """Sign with one token that never changes. A 401 is final (interface section 5).

    Args:
        token: The access token.
        key: The API key. None (default): only the token is sent.

    Raises:
        ValueError, TypeError: one of them is empty or can't be sent.
    """

    def __init__(self, token: str, key: str | None = None) -> None:
        self._credentials = Credentials(token, key)

    def current(self) -> Credentials:
        """Return the credentials."""
        return self._credentials

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return the credentials."""
        return self._credentials

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return the same credentials: there are no others."""
        return self._credentials

    def __repr__(self) -> str:
        return "StaticCredentials(***)"
