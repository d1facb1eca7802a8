"""Guarded calls of an application's credential provider.

It may raise, hang or return anything.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from time import time
from typing import TYPE_CHECKING, Final

from boardclient._activities import PARENT
from boardclient._pipeline._guards import guarded, log_failure
from boardclient._pipeline._in_flight import CallContext
from boardclient.credentials import CredentialObserver, CredentialProvider, Credentials
from boardclient.errors import AuthenticationError, CredentialError, Effect

if TYPE_CHECKING:
    from boardclient._pipeline._core import SessionCore

_raised: Final[weakref.WeakSet[CredentialError]] = weakref.WeakSet()
"""Providers' errors that a call has already raised."""


class GuardedProvider:
    """Wraps a credential provider. Errors of its optional methods are logged.

    Owned by a `Pipeline`.
    """

    def __init__(self, provider: CredentialProvider, core: SessionCore) -> None:
        if not callable(getattr(provider, "acquire", None)) or not callable(getattr(provider, "renew", None)):
            raise TypeError("credentials must be a CredentialProvider, such as StaticCredentials(token=…)")
        self._provider = provider
        self._core = core
        self._optional = provider if isinstance(provider, CredentialObserver) else CredentialObserver()
        self.accepted: Credentials | None = None
        """The credentials that the service accepted last."""

    def current(self) -> Credentials | None:
        """Return the credentials if they are available without waiting, otherwise None."""
        try:
            return self._optional.current()
        except (Exception, asyncio.CancelledError):  # a plain function can't be cancelled
            log_failure("current of the credentials")
        return None

    async def obtain(self, context: CallContext, rejected: Credentials | None) -> Credentials | CredentialError:
        """Ask the provider for credentials, other than the rejected ones if any.

        A failure is recorded in the history.
        """
        core, started = self._core, time()
        core.in_flight.suspend(context)
        context.waits_for = self._optional.waiting_for
        token = None if context.activity is None else PARENT.set(context.activity)
        try:
            given = await (self._provider.acquire(core) if rejected is None else self._provider.renew(rejected, core))
            if isinstance(given, Credentials):
                context.waits_for = None
                return given
            failure = CredentialError(f"{context.line}: the provider returned {type(given).__name__}, not Credentials")
        except CredentialError as error:
            failure = _own_error(error)
        except (Exception, asyncio.CancelledError) as error:  # any other exception becomes the cause of a CredentialError
            if isinstance(error, asyncio.CancelledError) and context.is_cancelled:
                raise
            failure = CredentialError(f"{context.line}: no credentials: the provider raised {type(error).__name__}")
            failure.__cause__ = error
        finally:
            core.in_flight.resume(context)
            if token is not None:
                PARENT.reset(token)
        context.waits_for = None
        context.record(started, failure, None, Effect.NOT_SENT)
        return failure

    def is_outdated(self, credentials: Credentials) -> bool:
        """Return True if the provider says that the credentials were replaced."""
        return guarded("is_current of the credentials", self._optional.is_current, credentials) not in {True, None}

    def note_accepted(self, credentials: Credentials) -> None:
        """Notify the provider, once, that the service accepted its credentials."""
        self.accepted = credentials
        guarded("note_accepted of the credentials", self._optional.note_accepted, credentials)

    async def note_refused(self, credentials: Credentials, outcome: AuthenticationError) -> AuthenticationError:
        """Notify the provider of a 401 that ends its call, and return the error."""
        try:
            await self._optional.note_refused(credentials, self._core)
        except Exception:
            log_failure("note_refused of the credentials")
        return outcome


def _own_error(error: CredentialError) -> CredentialError:
    """Return a provider's error, or a copy if another call has raised it.

    A copy is needed because each call writes its own history into its error.
    """
    if error not in _raised:
        _raised.add(error)
        return error.with_traceback(None)
    try:
        copied = copy.copy(error)
        copied.message, copied.effect, copied.attempts = str(error), error.effect, ()
    except Exception:  # a subclass that can't be copied
        copied = CredentialError(f"the provider raised {type(error).__name__}")
    copied.__cause__ = error.__cause__
    return copied
