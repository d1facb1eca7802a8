"""A part of a ledger: the lease, which says who may send its rows and until when, and the ledger of the run that holds it.

A run knows no other difference between a part and a journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from boardclient._database import Database
from boardclient.bulk import IdSet
from boardclient.bulk._ledger import DurableLedger, RowState
from boardclient.bulk._life import Row
from boardclient.distributed._ledger import CLOSING, State, events, jobs, parts, read_states
from boardclient.errors import JournalError
from boardclient.models import CardDraft

BATCH: Final = 64
"""How many rows are logged together. After a kill, at most twice as many are in doubt."""
_NOTE_SECONDS: Final = 0.5
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
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@attrs.define
class PartLease:
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


async def claim(database: Database, job: str, part: int, owner: str, seconds: float) -> PartLease | None:
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
    return None if epoch is None else PartLease(job, part, epoch, owner, seconds, began + seconds * (1 - _MARGIN))


class Heartbeat:
    """Renews a lease from a thread of its own, which a busy event loop can't starve. Owned by the ledger of the part.

    It gives up when the event loop stands still: a worker that does nothing should lose its part.
    """

    def __init__(self, where: str, lease: PartLease, on_drain: Callable[[], object]) -> None:
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


class PartLedger(DurableLedger):
    """The ledger of a run of one part. It holds the lease, and is owned by the run, which closes it.

    Rows to be sent are in the database when `admit` returns. Outcomes are written with the next rows, or soon. Each transaction
    renews the lease, and holds only if the part is still this worker's. The lease is checked right before each request.
    """

    batch = largest_batch = BATCH
    released = -1  # so that each row is passed to `release`
    is_new = False  # the cards that were there before are read before the first part is run

    def __init__(
        self, database: Database, lease: PartLease, entries: Sequence[tuple[int, CardDraft]], states: dict[int, State]
    ) -> None:
        super().__init__()
        self.entries = entries
        """The rows of the input, with their numbers in the job."""
        self.may_send = lease.is_held
        self.on_drain: Callable[[], object] = lambda: None
        self._database = database
        self._lease = lease
        self._states = states
        self._pending: dict[int, State] = {}
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._heartbeat = Heartbeat(database.where, lease, lambda: self.on_drain())

    async def load(self) -> None:
        """Read what the whole job knows."""
        async with self._database.begin() as connection:
            self.secret = (await connection.execute(sa.select(jobs.c.secret).where(jobs.c.job == self._lease.job))).scalar_one()

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set on the others what became of them.

        Raises:
            LeaseLostError: another worker has the part now.
            JournalError: the database can't be used. None of the rows may be sent.
        """
        sent: list[int] = []
        for row in rows:
            row.seq = self.entries[row.index][0]
            state, detail = self._states.get(row.seq, ("", ""))
            if state == "done":
                row.action, row.detail = "done", detail
            elif state in {"logged", "unknown"}:
                row.action, row.detail, row.is_earlier = "in doubt", detail, True
            elif state == "failed":
                row.detail = detail  # logged by `log_refused`
            else:
                sent.append(row.seq)
        await self._write(sent)

    async def log_refused(self, rows: Sequence[Row]) -> None:
        """Log rows that an earlier run saw refused, right before they are sent."""
        await self._write([row.seq for row in rows])

    def release(self, row: Row) -> None:
        """Check right before a request that the part is still this worker's.

        Raises:
            LeaseLostError: it may not be. The row must not be sent.
        """
        self._lease.check()

    async def baseline(self) -> IdSet:
        """Return the cards that existed before the job."""
        async with self._database.begin() as connection:
            found = await connection.execute(sa.select(jobs.c.baseline).where(jobs.c.job == self._lease.job))
        ids = json.loads(zlib.decompress(found.scalar_one()))
        self.listed_before = len(ids)
        return IdSet(ids)

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that belong to rows of the job."""
        return IdSet(await self._confirmed())

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds."""
        return set(islice(filter(condition, await self._confirmed()), most))

    async def _confirmed(self) -> list[str]:
        await self._write()
        states = await read_states(self._database, self._lease.job)
        return [detail for state, detail in states.values() if state == "done"]

    async def finish(self, report: Any, audit: str | None, *, state: str = "done") -> None:
        """Record the end of a run, after which the part is done or open. Called before `aclose`."""
        await self._write(state=state, report=report, changes={"audit": audit} if self._lease.part == CLOSING else None)

    async def aclose(self) -> None:
        """Write what was recorded, and give the part back.

        Raises:
            LeaseLostError: another worker has the part now.
            JournalError: the database can't be written. The rows without outcome are in doubt.
        """
        try:
            if self._writer is not None:
                await asyncio.wait({self._writer})
            await self._write()
        finally:
            await self._heartbeat.aclose()

    def _note(self, seq: int, state: RowState, detail: str) -> None:
        self._pending[seq] = (state, detail)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTE_SECONDS, self._write_soon)

    def _write_soon(self) -> None:
        self._writer = asyncio.ensure_future(self._written())

    async def _written(self) -> None:
        try:
            await self._write()
        except Exception as error:  # the run meets it at its next write
            self._failure = self._failure or error

    async def _write(
        self, sent: Sequence[int] = (), *, state: str = "open", report: Any = None, changes: Mapping[str, Any] | None = None
    ) -> None:
        """Write outcomes, then which rows are sent, and renew the lease, all in one."""
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            lease, noted, self._pending = self._lease, self._pending, {}
            try:
                async with self._database.begin() as connection:
                    await lease.renew(self._database, connection)
                    if noted or sent:
                        outcomes = json.dumps([(seq, *known) for seq, known in noted.items()])
                        await connection.execute(
                            events.insert().values(
                                job=lease.job, part=lease.part, epoch=lease.epoch, outcomes=outcomes, sent=json.dumps([*sent])
                            )
                        )
                    if changes is not None:
                        await connection.execute(jobs.update().where(jobs.c.job == lease.job).values(**changes))
                    if report is not None:
                        await connection.execute(
                            parts.update()
                            .where(parts.c.job == lease.job, parts.c.part == lease.part)
                            .values(
                                state=state,
                                requests=parts.c.requests + report.requests,
                                rejected=parts.c.rejected + report.rejected,
                                seconds=parts.c.seconds + report.seconds,
                            )
                        )
            except BaseException:
                self._pending = {**noted, **self._pending}
                raise
            self._states.update(noted)
