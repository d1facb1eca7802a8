"""Which renewals wait for which: callbacks that use accounts must not deadlock."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, TypeAlias

from boardclient.credentials._tokens import TokenStore
from boardclient.errors import CredentialError

AccountKey: TypeAlias = tuple[int, str]
"""An account of a store: the store's identity, and the account's name."""

_chain: Final[ContextVar[tuple[RenewalScope, ...]]] = ContextVar("boardclient_renewals", default=())
"""The renewals that the running task belongs to, outermost first."""
_waits: Final[list[tuple[AccountKey, AccountKey]]] = []
"""Pairs of an account under renewal and an account that its callback waits for, in all threads of the process."""
_lock: Final = threading.Lock()


class RenewalScope:
    """The tasks of one renewal, those of its callback included."""

    def __init__(self, store: TokenStore, account: str) -> None:
        self.key: AccountKey = (id(store), account)
        self.is_over = False

    def enter(self) -> None:
        """Add the running task to this scope, and the tasks that it starts from now on."""
        _chain.set((*_chain.get(), self))


@contextlib.contextmanager
def waiting_for(store: TokenStore, account: str) -> Iterator[None]:
    """Note that the running task waits for a renewal, within the block.

    Raises:
        CredentialError: the renewal waits for the running task, directly or through callbacks of other accounts.
    """
    awaited = (id(store), account)
    waiters = [scope.key for scope in _chain.get() if not scope.is_over]
    pairs = [(waiter, awaited) for waiter in waiters]
    with _lock:
        if _leads_to(awaited, waiters):
            raise CredentialError(
                f"authorize waits for itself: it used a session whose credentials, those of account {account!r}, it is to renew"
            )
        _waits.extend(pairs)
    try:
        yield
    finally:
        with _lock:
            for pair in pairs:
                _waits.remove(pair)


def is_within_renewal(store: TokenStore, account: str) -> bool:
    """Return True if the running task belongs to a renewal of the account."""
    return any(scope.key == (id(store), account) for scope in _chain.get() if not scope.is_over)


def _leads_to(start: AccountKey, goals: list[AccountKey]) -> bool:
    """Return True if a goal is `start`, or an account that `start` waits for."""
    reached = {start}
    while not reached.intersection(goals):
        further = {awaited for waiter, awaited in _waits if waiter in reached} - reached
        if not further:
            return False
        reached |= further
    return True
