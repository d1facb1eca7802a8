"""What a session asks of whoever supplies its credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from boardclient._operations import Response
from boardclient.credentials._values import Credentials


class Exchange(Protocol):
    """The session's way to POST a form on its own pool, once, with its own TLS, proxy and limits."""

    async def post_form(self, url: str, fields: Mapping[str, str]) -> Response:
        """Send the form to an absolute URL and return the answer, whatever its status.

        Raises:
            TransportError: no whole answer came; `effect` says whether it was sent.
            ValueError: the URL is not https, nor plain http that the session allows.
        """
        ...


class CredentialProvider(Protocol):
    """What signs requests. Both methods may be called by many tasks at once.

    What they raise reaches the caller as `CredentialError`, with it as the cause.
    """

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return what to sign the next request with."""
        ...

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return what replaces the credentials that the service answered with 401; equal ones mean that the 401 is final."""
        ...
