"""The record that a store keeps of an account, its steps, and store methods. No I/O."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import attrs

from boardclient.credentials._tokens import LeaseState, StoredToken, Token

T = TypeVar("T")


@attrs.frozen
class Lease:
    """The right to renew, from `since` until just before `until`. Without a holder it is a cool-down, or over."""

    holder: str | None = None
    since: float = 0.0
    until: float = 0.0

    def is_running(self, now: float) -> bool:
        """Return True if it runs now. A clock that was set back to before its beginning ends it too."""
        return self.since <= now < self.until


@attrs.frozen
class Account:
    """The record of one account. Each method returns the result of a step and the record after it (itself: no change).

    `deletion` is the generation of the last deletion, where no token is stored. It keeps generations from repeating: a renewal
    that began before the deletion can't publish after it.
    """

    stored: StoredToken | None = None
    lease: Lease = Lease()
    deletion: int = 0

    @property
    def generation(self) -> int:
        """The number of tokens and deletions so far."""
        return self.deletion if self.stored is None else self.stored.generation

    def publish(self, now: float, token: Token, after: int) -> tuple[bool, Account]:
        """Keep the token if `after` is the generation, whatever the lease. It ends a cool-down."""
        if after != self.generation:
            return False, self
        return True, Account(StoredToken(token, after + 1), Lease() if self.lease.holder is None else self.lease)

    def delete(self, now: float) -> tuple[None, Account]:
        """Drop the token, and end the lease or cool-down."""
        return None, Account(deletion=self.generation + 1)

    def ask(self, now: float, holder: str, seconds: float) -> tuple[LeaseState, Account]:
        """Grant the lease unless another holder has it, or a cool-down runs."""
        if self.lease.is_running(now) and self.lease.holder != holder:
            return "cooling" if self.lease.holder is None else "held", self
        return "granted", attrs.evolve(self, lease=Lease(holder, now, now + seconds))

    def release(self, now: float, holder: str, cooldown: float) -> tuple[None, Account]:
        """End the lease of the holder, also one that ran out, with a cool-down."""
        if self.lease.holder != holder:
            return None, self
        return None, attrs.evolve(self, lease=Lease(None, now, now + cooldown))


Change: TypeAlias = Callable[[Account, float], tuple[T, Account]]
"""A step on a record. The time is taken once no other step can change the record any more."""


class AccountStore(abc.ABC):
    """The methods of a `TokenStore` that keeps records of accounts. A subclass reads and changes one record."""

    @abc.abstractmethod
    async def _look(self, account: str) -> Account:
        """Return the record of the account, an empty one where there is none."""
        ...

    @abc.abstractmethod
    async def _change(self, account: str, change: Change[T]) -> T:
        """Change the record of the account in one atomic step."""
        ...

    async def read(self, account: str) -> StoredToken | None:
        """Return the token of the account, None where none is stored."""
        return (await self._look(account)).stored

    async def generation(self, account: str) -> int:
        """Return the number of tokens and deletions that the account has had."""
        return (await self._look(account)).generation

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1` if the generation now is `after`. Return whether it was."""
        try:
            return await self._change(account, partial(Account.publish, token=token, after=after))
        finally:
            del token  # it doesn't stay in the frame that an error carries

    async def delete(self, account: str) -> None:
        """Drop the token of the account. A publish that began before does not bring it back."""
        await self._change(account, Account.delete)

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Grant `holder` the right to renew for so many seconds, unless another has it."""
        return await self._change(account, partial(Account.ask, holder=holder, seconds=seconds))

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder` and begin a cool-down of so many seconds. Another holder's lease stays as it is."""
        await self._change(account, partial(Account.release, holder=holder, cooldown=cooldown))
