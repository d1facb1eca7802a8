"""Guarded calls of an application's coroutines and of its token store.

They may raise anything, cancel themselves, hang, or return anything. Each call has a time limit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import attrs

from boardclient.credentials._tokens import LeaseState, StoredToken, Token, TokenStore
from boardclient.errors import CredentialError

_STEP_SECONDS: Final = 30.0
_RELEASE_SECONDS: Final = 1.0
"""The limit for releasing the lease while calls wait for the renewal. If the store hangs, the lease runs out by itself."""
_GRACE_SECONDS: Final = 0.5
"""The limit for a step that is running when the session closes: it should end, but a store that hangs must not delay closing."""


@attrs.define(eq=False)
class Outcome:
    """What application code returned or raised in time; otherwise `is_late` is True.

    It is not the result of the task, since asyncio prints results of tasks in debug mode, and this one may be a token.
    """

    value: Any = attrs.field(default=None, repr=False)
    error: BaseException | None = attrs.field(default=None, repr=False)
    is_late: bool = False


def begin(awaitable: Awaitable[object]) -> tuple[asyncio.Task[None], Outcome]:
    """Await in a task that never fails and returns None. Return it, and the outcome that it fills in."""
    outcome = Outcome()
    return asyncio.create_task(_fill(awaitable, outcome)), outcome


async def _fill(awaitable: Awaitable[object], outcome: Outcome) -> None:
    try:
        outcome.value = await awaitable
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a CancelledError that the application raised itself
        outcome.error = error


async def outcome_of(awaitable: Awaitable[object], seconds: float, grace_seconds: float = 0.0) -> Outcome:
    """Await at most so many seconds, and return the outcome.

    A task that takes longer is cancelled and not waited for. If the caller is cancelled, the task has `grace_seconds` to end.
    """
    task, outcome = begin(awaitable)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=grace_seconds)
        raise
    finally:
        task.cancel()
    return outcome if task.done() else Outcome(is_late=True)


def without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks of an error, its causes and its groups. Their frames may hold secrets."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in seen:
            seen.append(one.with_traceback(None))
            waiting += [one.__cause__, one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return error


@attrs.frozen
class StoreSteps:
    """The methods of a `TokenStore` for one account.

    Raises:
        CredentialError: from each method, if the store raised, did not return in time, or returned something of another type.
    """

    store: TokenStore
    account: str

    async def read(self) -> StoredToken | None:
        """Return the stored token, None if there is none."""
        stored = await self._step("read")
        if stored is None or (isinstance(stored, StoredToken) and isinstance(stored.token, Token)):
            return stored
        raise CredentialError(f"the token store failed: read returned {type(stored).__name__}, not a StoredToken or None")

    async def generation(self) -> int:
        """Return the generation. If the store has no such method, return that of its token."""
        if not callable(getattr(self.store, "generation", None)):
            stored = await self.read()
            return 0 if stored is None else stored.generation
        generation = await self._step("generation")
        if isinstance(generation, int):
            return generation
        raise CredentialError(f"the token store failed: generation returned {type(generation).__name__}, not an int")

    async def publish(self, token: Token, after: int) -> bool:
        """Publish the token, and return whether the store took it."""
        try:
            return bool(await self._step("publish", token, after, grace_seconds=_GRACE_SECONDS))
        finally:
            del token  # the frame stays with an error

    async def delete(self) -> None:
        """Delete the token.

        Raises:
            CredentialError: the store has no such method.
        """
        if not callable(getattr(self.store, "delete", None)):
            raise CredentialError(
                f"{type(self.store).__name__} can't forget a token: a store needs the methods delete and generation for that"
            )
        await self._step("delete")

    async def lease(self, holder: str, seconds: float, *, grace_seconds: float = _GRACE_SECONDS) -> LeaseState:
        """Ask for the lease, and return whether it was granted."""
        state = await self._step("lease", holder, seconds, grace_seconds=grace_seconds)
        if isinstance(state, str) and state in {"granted", "held", "cooling"}:
            return cast("LeaseState", state)
        raise CredentialError(f"the token store failed: lease returned {type(state).__name__}, not a LeaseState")

    async def release(self, holder: str, cooldown: float = 0.0, *, at_most: float = _RELEASE_SECONDS) -> None:
        """Release the lease, within `at_most` seconds."""
        await self._step("release", holder, cooldown, seconds=at_most, grace_seconds=_GRACE_SECONDS)

    async def release_at_once(self, holder: str) -> None:
        """Release the lease while the session closes, within half a second."""
        await self.release(holder, at_most=_GRACE_SECONDS)

    async def _step(self, name: str, *arguments: Any, seconds: float = _STEP_SECONDS, grace_seconds: float = 0.0) -> Any:
        method: Callable[..., object] = getattr(self.store, name)
        try:
            begun = method(self.account, *arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # an application's store may raise anything
            failure = error
        else:
            if not inspect.isawaitable(begun):
                raise CredentialError(f"the token store failed: {name} is not an async method")
            outcome = await outcome_of(begun, seconds, grace_seconds)
            if outcome.is_late:
                raise CredentialError(f"the token store failed: {name} did not return within {seconds:g} s")
            if outcome.error is None:
                return outcome.value
            failure = outcome.error
        finally:
            del arguments  # one may be a token, and the frame stays with an error
        raise _error_of(failure)


def _error_of(failure: BaseException) -> CredentialError:
    """Return the error for what a store raised. The message of a `CredentialError` is kept, anything else is the cause."""
    if isinstance(failure, CredentialError):
        error = CredentialError(str(failure))
        error.__cause__ = failure.__cause__
        return error
    error = CredentialError(f"the token store failed: {type(failure).__name__}")
    error.__cause__ = without_frames(failure)
    return error
