"""Leases: the right of one worker to send and settle the rows of some parts, and to reconcile a job.

A worker that takes a part over reads its rows after that, and the earlier worker can't renew its lease.
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

from boardclient.errors import BoardClientError, JournalError
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._ledger import MOST_STALLS
from boardclient.store._rows import LOGGED, StoredRow, first_of

T = TypeVar("T")

SHORTEST_SECONDS: float = 10.0
"""The shortest lease. It is renewed every quarter of its length, so an event loop may be blocked for 6 s."""
LEASE_SECONDS: Final = 30.0
COMMIT_SIZE: Final = 64
"""How many rows are logged together. After a kill, at most twice as many are in doubt."""
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""This clock also counts while the process or the machine is suspended (clock_gettime(2))."""
_IS_DRAINING: Final = "SELECT is_draining FROM boardclient_jobs WHERE job = ?"
_MARGIN: Final = 0.1
"""The share of a lease that is not used, since a request is sent a moment after the check."""


class LeaseLostError(JournalError):
    """Another worker may have the part now. Nothing more is sent or recorded."""


class HeldElsewhereError(JournalError):
    """Another worker holds the part for longer than the call may wait."""


class GivenBackError(BoardClientError):
    """The service accepts nothing for longer than the call may wait."""


def now() -> float:
    return time.clock_gettime(_CLOCK)


def worker_name() -> str:
    """Return a name that no other worker, and no other lease, ever has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@attrs.define(kw_only=True, eq=False)
class Lease:
    """The right to send and settle rows, for `seconds` after each renewal. Owned by a call, which ends it."""

    job: int
    owner: str
    seconds: float
    deadline: float
    """Until when requests may begin, on the clock of `now`."""
    parts: dict[int, Any]
    """The parts by their numbers, as they were when they were taken."""
    is_of_job: bool = False
    """Whether it includes the right to reconcile the job."""
    is_fresh: bool = False
    """Whether its part is new, and its first rows were logged when they were stored."""
    is_draining: bool = False
    is_returned: bool = False
    """Whether its owner has ended it."""
    on_drain: Callable[[], object] = lambda: None
    _is_lost: bool = False

    @property
    def stalls(self) -> int:
        """How many workers in a row have died with one of its parts."""
        return max((part.stalls for part in self.parts.values()), default=0)

    @property
    def commit_size(self) -> int:
        """How many rows to log together."""
        return COMMIT_SIZE if self.stalls < MOST_STALLS else 1

    def log_first(self, connection: Connection, rows: Sequence[StoredRow]) -> bool:
        """Log the first rows of a part that no worker has taken before, so that they can be sent at once.

        Return False if some were sent before, or if `rows` are not all rows of the part.
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
        """Renew the lease within a transaction. This locks its parts until the transaction ends.

        Raises:
            LeaseLostError: another worker has taken over.
        """
        self._set(connection, is_kept=True)

    def _set(self, connection: Connection, *, is_kept: bool, least: float = 0.0) -> None:
        began, numbers = now(), sorted(self.parts)
        if self.is_of_job:
            statement = (
                "UPDATE boardclient_jobs SET lease_until = ({clock} + ?) * ? WHERE job = ? AND owner = ? AND lease_until >= ?"
            )
            if connection.run(statement, self.seconds, float(is_kept), self.job, self.owner, least) != 1:
                self._lose()
        statement = (
            "UPDATE boardclient_parts SET lease_until = ({clock} + ?) * ? WHERE part {in ?} AND owner = ? AND lease_until >= ?"
        )
        if numbers and connection.run(statement, self.seconds, float(is_kept), numbers, self.owner, least) != len(numbers):
            self._lose()
        self.deadline = max(self.deadline, began + self.seconds * (1 - _MARGIN))

    def _lose(self) -> None:
        self._is_lost = True
        raise self._lost()

    def end(self, connection: Connection) -> None:
        """End the lease within a transaction, so that another worker can take the parts at once.

        Raises:
            LeaseLostError: another worker has taken them already.
        """
        self._set(connection, is_kept=False)

    async def give_back(self, database: Database) -> None:
        """End the lease, so that another worker can take the parts at once.

        Raises:
            LeaseLostError: another worker has taken them already.
            JournalError: the database can't be written. The lease runs out.
        """
        if not self.is_returned:
            await database.change(self.end)
            self.is_returned = True

    @contextlib.asynccontextmanager
    async def kept(self, database: Database) -> AsyncGenerator[None, None]:
        """Renew the lease within the block, and check whether the job is drained. A blocked event loop renews nothing."""
        keeper = asyncio.create_task(self._keep(database), name="boardclient lease")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})

    async def _keep(self, database: Database) -> None:
        while True:
            # Three tries before the lease ends, for a database that is away or a loop that is blocked for a moment.
            await asyncio.sleep(self.seconds / 4)
            with contextlib.suppress(JournalError):  # the run's next write raises it, or the deadline passes
                if await database.change(self._renew_and_look) and not self.is_draining:
                    self.is_draining = True
                    self.on_drain()

    def _renew_and_look(self, connection: Connection) -> bool:
        # The run may end the lease, which sets it to 0, while this waits for the database: if it began again, nobody could take
        # the parts. The run's own writes renew it in any case, since one that ended it may come again after a lost connection.
        self._set(connection, is_kept=True, least=1.0)
        return bool(connection.value(_IS_DRAINING, self.job))


def lease_parts(
    connection: Connection, job: int, parts: Iterable[int], owner: str, seconds: float, *, is_of_job: bool = False
) -> Lease | None:
    """Take the parts that no other worker holds, within a transaction, and if asked the right to reconcile the job.

    The parts are locked in the order of their numbers, and their rows have to be read after that. Return None if there is nothing
    to take, or the job is drained.
    """
    # Before the statements, so that the deadline of this process is never after the one that the database notes.
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
    # A lease that its worker has ended is 0. Any other one that is taken over belonged to a worker that died, so it is counted.
    taken = connection.fetch(
        "UPDATE boardclient_parts SET epoch = CASE WHEN owner = ? THEN epoch ELSE epoch + 1 END, owner = ?,"
        " lease_until = {clock} + ?, lease = ?, began_at = coalesce(began_at, {clock}),"
        " stalls = CASE WHEN lease_until > 0 AND owner <> ? THEN stalls + 1 ELSE stalls END,"
        " lost_lease = CASE WHEN lease_until > 0 AND owner <> ? THEN lease ELSE lost_lease END WHERE part {in ?} RETURNING *",
        owner,
        owner,
        seconds,
        seconds,
        owner,
        owner,
        [part.part for part in free],
    )
    is_repeated = any(part.owner == owner for part in free)  # the end of an earlier transaction was lost
    if not is_repeated:
        _note_logged(connection, free)
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


def _note_logged(connection: Connection, parts: Iterable[Any]) -> None:
    """Record that the logged rows of workers that lost parts have been in doubt since their leases ended."""
    for part in parts:
        if not part.logged or part.in_doubt is not None:
            continue
        first, seconds = first_of(part.part), max(0.0, float(part.ended_ago))
        connection.run(
            "INSERT INTO boardclient_outcomes (seq, job, state, detail, at)"
            " SELECT r.seq, r.job, 'logged', ?, {clock} - ? FROM boardclient_rows AS r"
            " JOIN boardclient_parts AS p ON p.part = ? LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq"
            " WHERE r.seq >= ? AND r.seq < ? + p.logged AND o.seq IS NULL ON CONFLICT DO NOTHING",
            LOGGED.detail,
            seconds,
            part.part,
            first,
            first,
        )


def lease_of(job: int, part: Any, seconds: float) -> Lease:
    """Return the lease of a part that was stored and taken in one statement."""
    deadline = now() + seconds * (1 - _MARGIN)
    return Lease(job=job, owner=part.owner, seconds=seconds, deadline=deadline, parts={part.part: part}, is_fresh=True)
