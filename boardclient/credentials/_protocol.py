"""The protocols between a session and its credential provider."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from boardclient._messages import Response
from boardclient.credentials._values import Credentials

T = TypeVar("T")


class Exchange(Protocol):
    """Send forms on the session's pool, and run a provider's tasks beside the calls."""

    @property
    def timeout(self) -> float | None:
        """The seconds of a call's deadline, None for no deadline."""
        ...

    def check_url(self, url: str, name: str) -> str:
        """Return the URL if a form may be sent to it; errors call it `name`.

        Raises:
            ValueError: it is not https, nor plain http that the session allows.
        """
        ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the coroutine in its own task, which the session cancels when it closes.

        Raises:
            SessionClosedError: the session is closed.
        """
        ...

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        """Send the form to an absolute URL once, and return any response. `timeout` is in seconds.

        Raises:
            TransportError: no whole response came; `effect` says whether the form was sent.
            ValueError: the URL is not https, nor plain http that the session allows.
        """
        ...


class CredentialProvider(Protocol):
    """Supply the credentials that sign requests. Many tasks may call both methods at once.

    What they raise reaches the caller as `CredentialError`, with it as the cause.
    """

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return what to sign the next request with."""
        ...

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return what replaces the credentials that the service answered with 401. Equal ones mean that the 401 is final."""
        ...


class CredentialObserver:
    """The optional parts of a provider, a base class for those that have them.

    What they raise is logged and does not disturb the call.
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Drop an inherited `current` where a subclass has its own `acquire`. It would bypass it."""
        super().__init_subclass__(**options)
        if "acquire" in vars(cls) and "current" not in vars(cls):
            cls.current = CredentialObserver.current  # type: ignore[method-assign]  # -- the class has none of its own

    def current(self) -> Credentials | None:
        """Return the credentials if they are known at once. None makes the call await `acquire`."""
        return None

    def waiting_for(self) -> str:
        """Return what `acquire` and `renew` wait for now, in words. An error of the call's deadline says it."""
        return "credentials"

    def is_current(self, credentials: Credentials) -> bool:
        """Return whether a request may still be signed with credentials given earlier."""
        return True

    def note_accepted(self, credentials: Credentials) -> None:
        """Note that the service accepted the credentials. Called once for each object that the provider gave."""

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Note a 401 that is not followed by `renew`, since the call has renewed already."""
