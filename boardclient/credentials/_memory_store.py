"""The token store of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from boardclient.credentials._accounts import Account, AccountStore, Change, T


class MemoryTokenStore(AccountStore):
    """Keep tokens in memory, for all threads and event loops of one process.

    Sessions that share the store share renewals. A forked process has a copy of its own.

    Args:
        clock: A function that returns seconds, by default `time.time`. Only differences count.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._lock = threading.Lock()

    async def _look(self, account: str) -> Account:
        with self._lock:
            return self._accounts.get(account, Account())

    async def _change(self, account: str, change: Change[T]) -> T:
        with self._lock:
            result, self._accounts[account] = change(self._accounts.get(account, Account()), self._clock())
        return result

    def __repr__(self) -> str:
        return f"MemoryTokenStore(accounts={len(self._accounts)})"
