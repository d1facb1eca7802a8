"""What a store knows of an account, what each step makes of it, and the methods of the stores that keep such records. No I/O."""

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
    """The right to renew, from `since` until just before `until`; without a holder it is a cool-down, or long over."""

    holder: str | None = None
    since: float = 0.0
    until: float = 0.0

    def is_running(self, now: float) -> bool:
        """Say whether it runs now: a clock that was set back to before its beginning ends it too."""
        return self.since <= now < self.until


@attrs.frozen
class Account:
    """The record of one account: each method returns what the step answers, and the record after it (this one: no change)."""

    stored: StoredToken | None = None
    lease: Lease = Lease()

    def publish(self, now: float, token: Token, after: int) -> tuple[bool, Account]:
        """Keep the token if `after` is the generation; the time and the lease make no difference."""
        if after != (0 if self.stored is None else self.stored.generation):
            return False, self
        return True, attrs.evolve(self, stored=StoredToken(token, after + 1))

    def ask(self, now: float, holder: str, seconds: float) -> tuple[LeaseState, Account]:
        """Grant the lease unless it runs for another, or for nobody."""
        if self.lease.is_running(now) and self.lease.holder != holder:
            return "cooling" if self.lease.holder is None else "held", self
        return "granted", attrs.evolve(self, lease=Lease(holder, now, now + seconds))

    def release(self, now: float, holder: str, cooldown: float) -> tuple[None, Account]:
        """End the lease of the holder, also one that ran out, with a cool-down."""
        if self.lease.holder != holder:
            return None, self
        return None, attrs.evolve(self, lease=Lease(None, now, now + cooldown))


Change: TypeAlias = Callable[[Account, float], tuple[T, Account]]
"""What is done with a record, at a time that is taken when nobody else can change it any more."""


class AccountStore(abc.ABC):
    """The methods of a `TokenStore` that keeps records of accounts; what a store of them adds is to read and change one."""

    @abc.abstractmethod
    async def _look(self, account: str) -> Account:
        """Return the record of the account, an empty one where there is none."""
        ...

    @abc.abstractmethod
    async def _change(self, account: str, change: Change[T]) -> T:
        """Change the record of the account in one atomic step."""
        ...

    async def read(self, account: str) -> StoredToken | None:
        """Return what was published last for the account, None where nothing was."""
        return (await self._look(account)).stored

    async def publish(self, account: str, token: Token, after: int) -> bool:
        """Keep the token as generation `after + 1` if the generation now is `after` (0: none yet); tell whether it was."""
        try:
            return await self._change(account, partial(Account.publish, token=token, after=after))
        finally:
            del token  # it doesn't stay in the frame that an error carries

    async def lease(self, account: str, holder: str, seconds: float) -> LeaseState:
        """Give the right to renew to `holder` for so many seconds from now, where nobody else has it."""
        return await self._change(account, partial(Account.ask, holder=holder, seconds=seconds))

    async def release(self, account: str, holder: str, cooldown: float = 0.0) -> None:
        """End the lease of `holder`, and let nobody have it for `cooldown` seconds; nothing happens where it is another's."""
        await self._change(account, partial(Account.release, holder=holder, cooldown=cooldown))
