"""Leases: the right of one worker to send and settle the rows of some parts, and to reconcile a job.

A lease protects the rows of its parts: who takes a part over reads its rows after that, and the worker that had it can't renew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import attrs

from boardclient.errors import JournalError
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._ledger import MOST_STALLS
from boardclient.store._rows import LOGGED, StoredRow, first_of

T = TypeVar("T")

SHORTEST_SECONDS: float = 10.0
"""The shortest lease. It is renewed four times in its length, so an event loop may stand still for 6 s."""
LEASE_SECONDS: Final = 30.0
COMMIT_SIZE: Final = 64
"""How many rows are logged together. After a kill, at most twice as many are in doubt."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs on while a process, or the machine, is suspended (clock_gettime(2))."""
_IS_DRAINING: Final = "SELECT is_draining FROM boardclient_jobs WHERE job = ?"
_MARGIN: Final = 0.1
"""The share of a lease that is left unused: a request that was checked leaves a moment later."""


class LeaseLostError(JournalError):
    """Another worker may have the part now. Nothing more is sent or recorded."""


class HeldElsewhereError(JournalError):
    """Another worker has the part for longer than the call may wait."""


def now() -> float:
    return time.clock_gettime(_CLOCK)


def worker_name() -> str:
    """Return a name that no other worker, and no other lease, ever has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@attrs.define(kw_only=True, eq=False)
class Lease:
    """The right to send and settle rows, for `seconds` after each renewal. Owned by a call, which gives it back."""

    job: int
    owner: str
    seconds: float
    deadline: float
    """Until when requests may begin, on a clock that counts suspension."""
    parts: dict[int, Any]
    """The parts, as they were when they were taken, by their numbers."""
    is_of_job: bool = False
    """Whether it is the right to reconcile the job as well."""
    is_fresh: bool = False
    """Whether its part is new, and its first rows were logged when they were stored."""
    is_draining: bool = False
    is_returned: bool = False
    """Whether it has ended at the wish of its owner."""
    on_drain: Callable[[], object] = lambda: None
    _is_lost: bool = False

    @property
    def stalls(self) -> int:
        """How many workers have died with one of its parts in a row."""
        return max((part.stalls for part in self.parts.values()), default=0)

    @property
    def commit_size(self) -> int:
        """How many rows to log together."""
        return COMMIT_SIZE if self.stalls < MOST_STALLS else 1

    def log_first(self, connection: Connection, rows: Sequence[StoredRow]) -> bool:
        """Log the first rows of a part that nobody has taken before, so that none of them waits for that. `rows` are all of it.

        Return False if some were sent before, or `rows` are not all.
        """
        if self.is_fresh:
            return True
        ((number, part),) = self.parts.items()
        if part.epoch > 1 or part.logged or len(rows) < part.size or any(row.at is not None for row in rows):
            return False
        statement = "UPDATE boardclient_parts SET logged = ? WHERE part = ? RETURNING *"
        logged = min(COMMIT_SIZE, rows[-1].seq - first_of(number) + 1)
        self.parts[number], self.is_fresh = connection.one(statement, logged, number), True
        return True

    def is_held(self) -> bool:
        """Return False if another worker may have taken over."""
        return not (self._is_lost or self.is_returned) and now() < self.deadline

    def check(self) -> None:
        """Check that a request may begin now.

        Raises:
            LeaseLostError: it may not: another worker may have taken over.
        """
        if not self.is_held():
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError("the lease has ended: another worker takes over, or this one again")

    def renew(self, connection: Connection) -> None:
        """Renew the lease within a transaction, which locks its parts for what the transaction writes.

        Raises:
            LeaseLostError: another worker has taken over.
        """
        self._set(connection, is_kept=True)

    def _set(self, connection: Connection, *, is_kept: bool) -> None:
        began, numbers = now(), sorted(self.parts)
        if self.is_of_job:
            statement = "UPDATE boardclient_jobs SET lease_until = ({clock} + ?) * ? WHERE job = ? AND owner = ?"
            if connection.run(statement, self.seconds, float(is_kept), self.job, self.owner) != 1:
                self._lose()
        statement = "UPDATE boardclient_parts SET lease_until = ({clock} + ?) * ? WHERE part {in ?} AND owner = ?"
        if numbers and connection.run(statement, self.seconds, float(is_kept), numbers, self.owner) != len(numbers):
            self._lose()
        self.deadline = max(self.deadline, began + self.seconds * (1 - _MARGIN))

    def _lose(self) -> None:
        self._is_lost = True
        raise self._lost()

    def end(self, connection: Connection) -> None:
        """Let another worker take the parts at once, within a transaction.

        Raises:
            LeaseLostError: one has taken them already.
        """
        self._set(connection, is_kept=False)

    async def give_back(self, database: Database) -> None:
        """Let another worker take the parts at once.

        Raises:
            LeaseLostError: one has taken them already.
            JournalError: the database can't be written. The lease ends by itself.
        """
        if not self.is_returned:
            await database.change(self.end)
            self.is_returned = True

    @contextlib.asynccontextmanager
    async def kept(self, database: Database) -> AsyncGenerator[None, None]:
        """Renew it within the block, unless the event loop stands still, and look whether the job is drained."""
        keeper = asyncio.create_task(self._keep(database), name="boardclient lease")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})

    async def _keep(self, database: Database) -> None:
        while True:
            await asyncio.sleep(self.seconds / 4)
            with contextlib.suppress(JournalError):  # the run meets it when it writes, or its deadline
                if await database.change(self._renew_and_look) and not self.is_draining:
                    self.is_draining = True
                    self.on_drain()

    def _renew_and_look(self, connection: Connection) -> bool:
        self.renew(connection)
        return bool(connection.value(_IS_DRAINING, self.job))


def claim(
    connection: Connection, job: int, parts: Iterable[int], owner: str, seconds: float, *, is_of_job: bool = False
) -> Lease | None:
    """Take those of some parts that no other worker holds, within a transaction, and the right to reconcile the job.

    The parts are locked in the order of their numbers. What their rows are has to be read after that. Return None if there is
    nothing to take, or the job is drained.
    """
    began = now()
    if connection.value(_IS_DRAINING, job):
        return None
    if is_of_job:
        statement = (
            "UPDATE boardclient_jobs SET owner = ?, lease_until = {clock} + ?, lease = ?"
            " WHERE job = ? AND (NOT {held} OR owner = ?)"  # the end of an earlier transaction may have been lost
        )
        if connection.run(statement, owner, seconds, seconds, job, owner) != 1:
            return None
    free = connection.fetch(
        "SELECT part, logged, in_doubt, owner, CASE WHEN lease_until > 0 THEN {clock} - lease_until ELSE 0 END AS ended_ago"
        " FROM boardclient_parts WHERE part {in ?} AND (NOT {held} OR owner = ?) ORDER BY part {for update}",
        sorted(parts),
        owner,
    )
    taken = connection.fetch(
        "UPDATE boardclient_parts SET epoch = CASE WHEN owner = ? THEN epoch ELSE epoch + 1 END, owner = ?,"
        " lease_until = {clock} + ?, lease = ?, began_at = coalesce(began_at, {clock}),"
        " stalls = CASE WHEN lease_until > 0 AND owner <> ? THEN stalls + 1 ELSE stalls END WHERE part {in ?} RETURNING *",
        owner,
        owner,
        seconds,
        seconds,
        owner,
        [part.part for part in free],
    )
    is_repeated = any(part.owner == owner for part in free)  # the end of an earlier transaction was lost
    for part in free:
        if part.logged and part.in_doubt is None and not is_repeated:
            _note_logged(connection, part.part, max(0.0, float(part.ended_ago)))
    if not (taken or is_of_job):
        return None
    return Lease(
        job=job,
        owner=owner,
        seconds=seconds,
        deadline=began + seconds * (1 - _MARGIN),
        parts={part.part: part for part in taken},
        is_of_job=is_of_job,
        is_fresh=is_repeated and all(part.epoch == 1 and part.logged for part in taken),
    )


def _note_logged(connection: Connection, part: int, seconds: float) -> None:
    """Note of the rows that a worker had when it lost the part that they are in doubt since so many seconds ago."""
    connection.run(
        "INSERT INTO boardclient_outcomes (seq, job, state, detail, at)"
        " SELECT r.seq, r.job, 'logged', ?, {clock} - ? FROM boardclient_rows AS r"
        " JOIN boardclient_parts AS p ON p.part = ? LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq"
        " WHERE r.seq >= ? AND r.seq < ? + p.logged AND o.seq IS NULL ON CONFLICT DO NOTHING",
        LOGGED.detail,
        seconds,
        part,
        first_of(part),
        first_of(part),
    )


def lease_of(job: int, part: Any, seconds: float) -> Lease:
    """Return the lease of a part that was stored and taken in one statement."""
    deadline = now() + seconds * (1 - _MARGIN)
    return Lease(job=job, owner=part.owner, seconds=seconds, deadline=deadline, parts={part.part: part}, is_fresh=True)
