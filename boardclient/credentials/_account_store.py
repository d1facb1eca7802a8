"""Stores over records of accounts: their base class, and the one in memory."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import attrs

from boardclient.credentials._tokens import LeaseState, StoredToken, Token

T = TypeVar("T")


@attrs.frozen
class Lease:
    """The right to renew, from `since` until just before `until`. Without a holder it is a cool-down, or none."""

    holder: str | None = None
    since: float = 0.0
    until: float = 0.0

    def is_running(self, now: float) -> bool:
        """Return True if it runs now. A clock that is set back to before `since` ends it too."""
        return self.since <= now < self.until


@attrs.frozen
class AccountRecord:
    """The record of one account.

    Each method returns the result of a step and the record after it, which is the record itself if nothing changed.

    `deletion` is the generation of the last deletion while no token is stored. It keeps generations from repeating, so a renewal
    that began before the deletion can't publish after it.
    """

    stored: StoredToken | None = None
    lease: Lease = Lease()
    deletion: int = 0

    @property
    def generation(self) -> int:
        """The number of tokens and deletions so far."""
        return self.deletion if self.stored is None else self.stored.generation

    def publish(self, now: float, token: Token, after: int) -> tuple[bool, AccountRecord]:
        """Keep the token if the generation is `after`, whatever the lease. This ends a cool-down."""
        if after != self.generation:
            return False, self
        return True, AccountRecord(StoredToken(token, after + 1), Lease() if self.lease.holder is None else self.lease)

    def delete(self, now: float) -> tuple[None, AccountRecord]:
        """Drop the token, and end the lease or cool-down."""
        return None, AccountRecord(deletion=self.generation + 1)

    def request_lease(self, now: float, holder: str, seconds: float) -> tuple[LeaseState, AccountRecord]:
        """Grant the lease unless another holder has it, or a cool-down runs."""
        if self.lease.is_running(now) and self.lease.holder != holder:
            return "cooling" if self.lease.holder is None else "held", self
        return "granted", attrs.evolve(self, lease=Lease(holder, now, now + seconds))

    def release(self, now: float, holder: str, cooldown: float) -> tuple[None, AccountRecord]:
        """End the holder's lease, even one that ran out, and begin a cool-down."""
        if self.lease.holder != holder:
            return None, self
        return None, attrs.evolve(self, lease=Lease(None, now, now + cooldown))


Change: TypeAlias = Callable[[AccountRecord, float], tuple[T, AccountRecord]]
"""A step on a record at a time. The time is taken when no other step can change the record."""


class AccountStore(abc.ABC):
    """The methods of a `TokenStore` over records of accounts. Subclasses read and change a record."""

    @abc.abstractmethod
    async def _look(self, account: str) -> AccountRecord:
        """Return the record of the account, an empty one if there is none."""
        ...

    @abc.abstractmethod
    async def _change(self, account: str, change: Change[T]) -> T:
        """Change the record of the account in one atomic step."""
        ...

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account, None if none is stored."""
        return (await self._look(account)).stored

    async def generation(self, account: str) -> int:
        """Return how many tokens and deletions the account has had."""
        return (await self._look(account)).generation

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1`. Return False if the generation is not `after`."""
        try:
            return await self._change(account, partial(AccountRecord.publish, token=token, after=after))
        finally:
            del token  # the frame stays with an error

    async def delete(self, account: str) -> None:
        """Delete the token of the account. A renewal that began before does not bring it back."""
        await self._change(account, AccountRecord.delete)

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Grant `holder` the right to renew for so many seconds, unless another has it."""
        return await self._change(account, partial(AccountRecord.request_lease, holder=holder, seconds=seconds))

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, and begin a cool-down of so many seconds.

        Another holder's lease stays as it is.
        """
        await self._change(account, partial(AccountRecord.release, holder=holder, cooldown=cooldown))


class MemoryTokenStore(AccountStore):
    """Keep tokens in memory, for all threads and event loops of one process.

    Sessions that share the store share renewals. A forked process has a copy of its own.

    Args:
        clock: A function that returns seconds, by default `time.time`. Only differences count.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: dict[str, AccountRecord] = {}
        self._lock = threading.Lock()

    async def _look(self, account: str) -> AccountRecord:
        with self._lock:
            return self._accounts.get(account, AccountRecord())

    async def _change(self, account: str, change: Change[T]) -> T:
        with self._lock:
            result, self._accounts[account] = change(self._accounts.get(account, AccountRecord()), self._clock())
        return result

    def __repr__(self) -> str:
        return f"MemoryTokenStore(accounts={len(self._accounts)})"
