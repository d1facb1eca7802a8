"""The protocols between sessions and credential providers (interface section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from boardclient._messages import Response
from boardclient.credentials._values import Credentials

T = TypeVar("T")


class Exchange(Protocol):
    """Send forms on the session's pool, and run tasks that end with the session."""

    @property
    def timeout(self) -> float | None:
        """The timeout of a call in seconds, None for no timeout."""
        ...

    def check_url(self, url: str, name: str) -> str:
        """Return the URL if a form may be sent to it. Errors call it `name`.

        Raises:
            ValueError: it is neither https nor plain http that the session allows.
        """
        ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the coroutine in its own task, which the session cancels when it closes.

        Raises:
            SessionClosedError: the session is closed.
        """
        ...

    async def post_form(self, url: str, fields: Mapping[str, str], timeout: float | None = None) -> Response:
        """Send a form once, and return the response, whatever its status.

        Args:
            url: The absolute URL.
            fields: The fields of the form.
            timeout: The seconds until the exchange ends with a `DeadlineError`. None (default): no limit.

        Raises:
            TransportError: no whole response came. Its `effect` says whether the form was sent.
            ValueError: the URL is neither https nor plain http that the session allows.
        """
        ...


class CredentialProvider(Protocol):
    """Supply the credentials that sign requests. Many tasks may call both methods at once.

    An exception of theirs reaches the caller as the cause of a `CredentialError`. Subclass `CredentialObserver` as well for the
    optional methods.
    """

    async def acquire(self, exchange: Exchange) -> Credentials:
        """Return the credentials for the next request."""
        ...

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        """Return the credentials that replace those which the service refused with 401.

        Return equal ones if there are no others: then the 401 is final.
        """
        ...


class CredentialObserver:
    """The base class of providers that have optional methods.

    An exception of theirs is logged, and does not change the result of the call.
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Drop an inherited `current`, which would bypass a subclass's own `acquire`."""
        super().__init_subclass__(**options)
        if "acquire" in vars(cls) and "current" not in vars(cls):
            cls.current = CredentialObserver.current  # type: ignore[method-assign]  # -- the class has none of its own

    def current(self) -> Credentials | None:
        """Return the credentials if no waiting is needed. After None the call awaits `acquire`."""
        return None

    def waiting_for(self) -> str:
        """Return what `acquire` and `renew` wait for, for the text of `DeadlineError`."""
        return "credentials"

    def is_current(self, credentials: Credentials) -> bool:
        """Return True if credentials that were returned earlier may still sign a request."""
        return True

    def note_accepted(self, credentials: Credentials) -> None:
        """Note that the service accepted the credentials. It is called once for each object."""

    async def note_refused(self, credentials: Credentials, exchange: Exchange) -> None:
        """Note a 401 that ends its call. `renew` is called at most once in a call."""
