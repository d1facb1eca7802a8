"""The lease of a part: who may send its rows, and until when. It is kept alive by a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from boardclient._database import Database
from boardclient.distributed._tables import jobs, parts
from boardclient.errors import JournalError

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs on while a process, or the machine, is suspended (clock_gettime(2))."""
_MARGIN: Final = 0.1
"""The share of a lease that is left unused: a request that was checked leaves a moment later."""


class LeaseLostError(JournalError):
    """Another worker may have the part now. Nothing more is sent or recorded."""


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def worker_name() -> str:
    """Return a name that no other worker ever has."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        return f"{socket.gethostname()}-{boot}-{os.getpid()}-{secrets.token_hex(4)}"
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@attrs.define
class Lease:
    """The right to send the rows of a part, for `seconds` after each renewal. Owned by the ledger of the part."""

    job: str
    part: int
    epoch: int
    owner: str
    seconds: float
    deadline: float
    """Until when requests may begin, on a clock that counts suspension."""
    is_draining: bool = False
    _is_lost: bool = False

    def is_held(self) -> bool:
        """Return False if another worker may have taken over."""
        return not self._is_lost and _now() < self.deadline

    def check(self) -> None:
        """Check that a request may begin now.

        Raises:
            LeaseLostError: it may not: another worker may have taken over.
        """
        if not self.is_held():
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(f"the lease of part {self.part} has ended: another worker takes over, or this one again")

    async def renew(self, database: Database, connection: AsyncConnection) -> None:
        """Renew the lease within a transaction.

        Raises:
            LeaseLostError: another worker has taken over.
        """
        began = _now()
        renewed = await connection.execute(
            parts.update()
            .where(parts.c.job == self.job, parts.c.part == self.part, parts.c.epoch == self.epoch)
            .values(lease_until=database.clock + self.seconds)
        )
        if renewed.rowcount != 1:
            self._is_lost = True
            raise self._lost()
        self.deadline = max(self.deadline, began + self.seconds * (1 - _MARGIN))


async def claim(database: Database, job: str, part: int, owner: str, seconds: float) -> Lease | None:
    """Take a part that is open and that no other worker holds. Return None if there is nothing to take."""
    began = _now()
    free = sa.or_(parts.c.lease_until < database.clock, parts.c.owner == owner)
    async with database.begin() as connection:
        epoch = await connection.scalar(
            parts.update()
            .where(parts.c.job == job, parts.c.part == part, parts.c.state != "done", free)
            .values(state="open", epoch=parts.c.epoch + 1, owner=owner, lease_until=database.clock + seconds)
            .returning(parts.c.epoch)
        )
    return None if epoch is None else Lease(job, part, epoch, owner, seconds, began + seconds * (1 - _MARGIN))


class Heartbeat:
    """Renews a lease from a thread of its own, which a busy event loop can't starve. Owned by the ledger of the part.

    It gives up when the event loop stands still: a worker that does nothing should lose its part.
    """

    def __init__(self, where: str, lease: Lease, on_drain: Callable[[], object]) -> None:
        self._where = where
        self._lease = lease
        self._on_drain = on_drain
        self._loop = asyncio.get_running_loop()
        self._alive_at = time.monotonic()
        self._stopped = threading.Event()
        self._tick()
        self._thread = threading.Thread(target=asyncio.run, args=(self._beat(),), name="boardclient-lease", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """Stop renewing, and wait for the thread."""
        self._timer.cancel()
        self._stopped.set()
        await asyncio.to_thread(self._thread.join)

    def _tick(self) -> None:
        self._alive_at = time.monotonic()
        self._timer = self._loop.call_later(self._lease.seconds / 6, self._tick)

    async def _beat(self) -> None:
        database, lease = Database(self._where), self._lease
        try:
            while not self._stopped.wait(lease.seconds / 4):
                if time.monotonic() - self._alive_at > lease.seconds / 2:
                    continue
                with contextlib.suppress(JournalError):  # the run meets it when it writes, or its deadline
                    async with database.begin() as connection:
                        await lease.renew(database, connection)
                        drains = await connection.scalar(sa.select(jobs.c.is_draining).where(jobs.c.job == lease.job))
                    if drains and not lease.is_draining:
                        lease.is_draining = True
                        self._loop.call_soon_threadsafe(self._on_drain)
        finally:
            await database.aclose()
