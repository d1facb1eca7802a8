"""Guarded calls of what applications supply: limiters and credential providers.

Such code may raise, hang or return anything. Its errors are logged and do not change the result of a call. Those that come before
anything is sent are raised: a limiter's on entering, and a provider's without credentials.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, cast

from boardclient._activities import guarded, log_failure
from boardclient.credentials import CredentialObserver, CredentialProvider, Credentials, Exchange
from boardclient.errors import AuthenticationError, CredentialError

if TYPE_CHECKING:
    from boardclient._pace import Limiter


class GuardedLimiter:
    """Wraps an application's limiter, and logs what it raises on leaving and in its `report`."""

    def __init__(self, limiter: Limiter) -> None:
        if not hasattr(type(limiter), "__aenter__"):
            raise TypeError(f"limiter must be an async context manager, such as Pace(), not {type(limiter).__name__}")
        self._limiter = limiter
        self._report = getattr(limiter, "report", None)

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        """Pass the result of an attempt to the limiter's `report`, if it has one."""
        if self._report is not None:
            guarded("a limiter's report", self._report, status, retry_after, seconds)

    async def __aenter__(self) -> None:
        await type(self._limiter).__aenter__(self._limiter)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The return value is ignored: True would swallow a cancellation.
        task = cast("asyncio.Task[object]", asyncio.current_task())  # a call always runs in a task
        cancelling = task.cancelling()
        try:
            await type(self._limiter).__aexit__(self._limiter, exc_type, exc, traceback)
        except asyncio.CancelledError:
            if task.cancelling() > cancelling:
                raise
            log_failure("leaving a limiter")  # the limiter raised it: this task was not cancelled meanwhile
        except Exception:
            log_failure("leaving a limiter")


class GuardedProvider:
    """Wraps a credential provider, and logs what its optional methods raise."""

    def __init__(self, provider: CredentialProvider, exchange: Exchange) -> None:
        if isinstance(provider, type):
            raise TypeError(f"credentials must be a CredentialProvider, not the class {provider.__name__}")
        if not all(callable(getattr(provider, name, None)) for name in ("acquire", "renew")):
            raise TypeError("credentials must be a CredentialProvider, such as StaticCredentials(token=…)")
        self._provider = provider
        self._exchange = exchange
        self._optional = provider if isinstance(provider, CredentialObserver) else CredentialObserver()
        self.accepted: Credentials | None = None
        """The credentials that the service accepted last."""

    def current(self) -> Credentials | None:
        """Return the credentials if they are available without waiting, otherwise None."""
        try:
            given = self._optional.current()
        except (Exception, asyncio.CancelledError):  # a plain function can't be cancelled
            log_failure("current of the credentials")
            return None
        if given is None or isinstance(given, Credentials):
            return given
        raise CredentialError(f"current of the credentials returned {type(given).__name__}, not Credentials or None")

    def waiting_for(self) -> str:
        """Return what `obtain` waits for, in words."""
        return guarded("waiting_for of the credentials", self._optional.waiting_for) or "credentials"

    async def obtain(
        self, line: str, rejected: Credentials | None, is_cancelled: Callable[[], bool]
    ) -> Credentials | CredentialError:
        """Ask the provider for credentials, other than the rejected ones if any."""
        try:
            exchange = self._exchange
            given = await (self._provider.acquire(exchange) if rejected is None else self._provider.renew(rejected, exchange))
            if isinstance(given, Credentials):
                return given
            return CredentialError(f"{line}: the provider returned {type(given).__name__}, not Credentials")
        except CredentialError as error:
            return _own_error(error)
        except (Exception, asyncio.CancelledError) as error:  # any other exception becomes the cause of a CredentialError
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            failure = CredentialError(f"{line}: no credentials: the provider raised {type(error).__name__}")
            failure.__cause__ = error
            return failure

    def is_outdated(self, credentials: Credentials) -> bool:
        """Return True if the provider says that the credentials were replaced."""
        return guarded("is_current of the credentials", lambda: not self._optional.is_current(credentials)) is True

    def note_accepted(self, credentials: Credentials) -> None:
        """Notify the provider, once, that the service accepted its credentials."""
        self.accepted = credentials
        guarded("note_accepted of the credentials", self._optional.note_accepted, credentials)

    async def note_refused(
        self, credentials: Credentials, error: AuthenticationError, is_cancelled: Callable[[], bool]
    ) -> AuthenticationError:
        """Notify the provider of a 401 that ends its call, and return its error."""
        try:
            await self._optional.note_refused(credentials, self._exchange)
        except (Exception, asyncio.CancelledError) as raised:
            if isinstance(raised, asyncio.CancelledError) and is_cancelled():
                raise
            log_failure("note_refused of the credentials")
        return error


def _own_error(error: CredentialError) -> CredentialError:
    """Return a copy of a provider's error, which calls may share: each call writes its history into its own."""
    own = copy.copy(error)
    own.message, own.attempts, own.__cause__ = str(error), (), error.__cause__
    return own
