"""A part of a ledger: the lease of who may send its rows, the heartbeat that renews leases, and the ledger of the part's run.

To a run it is a `Ledger`, as a journal is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar, cast

import attrs
import sqlalchemy as sa

from boardclient.bulk import BulkReport
from boardclient.bulk._content import Content, IdSet
from boardclient.bulk._ledger import Doubt, DurableLedger, Others
from boardclient.bulk._life import IN_DOUBT, Outcome, Row, RowState
from boardclient.distributed._tables import (
    CLOSING,
    COUNTS,
    LOGGED,
    State,
    count_of,
    insert_event,
    jobs,
    load_rows,
    parts,
    read_states,
)
from boardclient.errors import JournalError
from boardclient.models import CardDraft
from boardclient.store._alchemy import Database

T = TypeVar("T")

COMMIT_SIZE: Final = 64
"""How many rows are logged together. After a kill, at most twice as many are in doubt."""
_MOST_STALLS: Final = 2
"""How many workers may die with a part before its rows are sent one by one, so that the row which kills them is known."""
_NOTE_SECONDS: Final = 0.5
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs on while a process, or the machine, is suspended (clock_gettime(2))."""
_MARGIN: Final = 0.1
"""The share of a lease that is left unused: a request that was checked leaves a moment later."""

# What is asked for with each part is built once: SQLAlchemy takes longer to build a statement than to run it.
of_part: Final = (parts.c.job == sa.bindparam("of_job")) & (parts.c.part == sa.bindparam("of_part"))
_of_epoch: Final = of_part & (parts.c.epoch == sa.bindparam("of_epoch"))
is_open: Final = parts.c.state != "done"
is_free: Final = parts.c.lease_until < Database.clock


class LeaseLostError(JournalError):
    """Another worker may have the part now. Nothing more is sent or recorded."""

    part: int | None = None


class HeldElsewhereError(JournalError):
    """Another worker has the part for longer than the call may wait."""


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def worker_name() -> str:
    """Return a name that no other worker ever has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@attrs.define(kw_only=True)
class PartLease:
    """The right to send the rows of a part, for `seconds` after each renewal. Owned by the run of the part."""

    job: str
    part: int
    epoch: int
    seconds: float
    deadline: float
    """Until when requests may begin, on a clock that counts suspension."""
    first: int
    size: int
    rows: bytes = attrs.field(repr=False)
    stalls: int = 0
    failed: int = 0
    before: tuple[int, int, float] = (0, 0, 0.0)
    """The requests, the refusals and the seconds of earlier runs."""
    logged: Sequence[int] = ()
    """The rows that were logged when the part was taken, until a run of them has ended."""
    is_draining: bool = False
    is_returned: bool = False
    """Whether the part is no longer this worker's, at its own wish."""
    on_drain: Callable[[], object] = attrs.field(default=lambda: None, repr=False)
    _is_lost: bool = False

    @classmethod
    def of(cls, job: str, found: sa.Row[Any], began: float, seconds: float, logged: Sequence[int] = ()) -> PartLease:
        """Return the lease that a statement has taken, which was begun at a time."""
        names = ("part", "epoch", "first", "size", "rows", "stalls", "failed")
        values: dict[str, Any] = {name: getattr(found, name) for name in names}
        before = (found.requests, found.rejected, found.seconds)
        deadline = began + seconds * (1 - _MARGIN)
        return cls(job=job, seconds=seconds, deadline=deadline, before=before, logged=logged, **values)

    @property
    def numbers(self) -> range:
        return range(self.first + 1, self.first + self.size + 1)

    @property
    def commit_size(self) -> int:
        """How many rows to log together."""
        return COMMIT_SIZE if self.stalls < _MOST_STALLS else 1

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
        error = LeaseLostError(f"the lease of part {self.part} has ended: another worker takes over, or this one again")
        error.part = self.part
        return error

    def renew(self, connection: sa.Connection, **changes: Any) -> None:
        """Renew the lease within a transaction, and change other columns of the part. Those that count are added to.

        Raises:
            LeaseLostError: another worker has taken over.
        """
        began, values = _now(), {f"new_{name}": value for name, value in changes.items()}
        if "lease_until" not in changes:
            values["for_seconds"] = self.seconds
        values |= {"of_job": self.job, "of_part": self.part, "of_epoch": self.epoch}
        if connection.execute(_renewal(*changes), values).rowcount != 1:
            self._is_lost = True
            raise self._lost()
        self.deadline = max(self.deadline, began + self.seconds * (1 - _MARGIN))

    def drain(self) -> None:
        """Let the run of the part end."""
        self.is_draining = True
        self.on_drain()

    async def give_back(self, database: Database) -> None:
        """Let another worker take the part at once. The rows that are still logged with it were not sent.

        Raises:
            LeaseLostError: one has it already.
            JournalError: the database can't be written. The lease ends by itself.
        """
        if self.logged:
            await PartLedger(database, self, [], {}, secret=b"", baseline=IdSet()).aclose()
        await database.change(lambda connection: self.renew(connection, lease_until=0.0))


@cache
def _renewal(*names: str) -> sa.Update:
    values: dict[str, Any] = {"lease_until": Database.clock + sa.bindparam("for_seconds")}
    if "seconds" in names:
        values["ended_at"] = Database.clock
    for name in names:
        new = sa.bindparam(f"new_{name}", type_=parts.c[name].type)
        values[name] = parts.c[name] + new if name in COUNTS else new
    return parts.update().where(_of_epoch).values(values)


async def take(database: Database, work: Callable[[sa.Connection], T], lease_of: Callable[[T], PartLease | None]) -> T:
    """Take a part by some work in a transaction, and return its result. A caller that is cancelled meanwhile gives it back."""
    taken: list[T] = []
    try:
        return await database.change(work, on_commit=taken.append)
    except asyncio.CancelledError:
        for lease in filter(None, map(lease_of, taken)):
            with contextlib.suppress(JournalError):  # then it ends by itself
                await lease.give_back(database)
        raise


async def claim(
    database: Database, job: str, part: int, owner: str, seconds: float, *, condition: sa.ColumnElement[bool] = is_open
) -> PartLease | None:
    """Take a part that no other worker holds, and log its first rows if it is new. Return None if there is nothing to take.

    It has to be open, or to fulfil another condition.
    """
    began = _now()
    values = {"of_job": job, "of_part": part, "new_owner": owner, "for_seconds": seconds}
    taken: PartLease | None = None

    def claimed(connection: sa.Connection) -> PartLease | None:
        nonlocal taken
        known = sa.select(parts.c.owner, parts.c.epoch).where(of_part)
        # The end of an earlier transaction may have been lost.
        if taken is None or connection.execute(known, values).one() != (owner, taken.epoch):
            found = connection.execute(_claim(condition), values).one_or_none()
            taken = None if found is None else PartLease.of(job, found, began, seconds, log_first(connection, found))
        return taken

    return await take(database, claimed, lambda lease: lease)


@cache
def _claim(condition: sa.ColumnElement[bool]) -> sa.Executable:
    clock, owner = Database.clock, sa.bindparam("new_owner", type_=sa.Text)
    may_take = is_free | (parts.c.owner == owner)
    is_draining = sa.exists().where(jobs.c.job == parts.c.job, jobs.c.is_draining)
    values: dict[str, Any] = {"state": "open", "epoch": parts.c.epoch + 1, "owner": owner}
    values |= {"lease_until": clock + sa.bindparam("for_seconds"), "began_at": sa.func.coalesce(parts.c.began_at, clock)}
    values["stalls"] = sa.case((parts.c.lease_until > 0, parts.c.stalls + 1), else_=parts.c.stalls)
    is_known = (parts.c.epoch > 0) | (parts.c.part == CLOSING)
    values["in_doubt"] = sa.case((is_known, parts.c.in_doubt), (parts.c.size < COMMIT_SIZE, parts.c.size), else_=COMMIT_SIZE)
    return parts.update().where(of_part, condition, may_take, sa.not_(is_draining)).values(values).returning(parts)


def log_first(connection: sa.Connection, part: sa.Row[Any]) -> Sequence[int]:
    """Log the first rows of a part if it is new, so that none of them has to wait for it. Its counts have them already."""
    is_new = part.epoch == 1 and part.part != CLOSING
    logged = range(part.first + 1, part.first + min(part.size, COMMIT_SIZE) + 1) if is_new else ()
    if logged:
        insert_event(connection, part.job, part.part, part.epoch, 0, {}, logged)
    return logged


@attrs.define(eq=False)
class _Kept:
    lease: PartLease
    on_drain: Callable[[], object]
    due: float


class Heartbeat:
    """Renews leases from a thread of its own, which a busy event loop can't starve. Owned by a worker.

    It gives up when the event loop stands still: a worker that does nothing should lose its parts.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._kept: list[_Kept] = []
        self._changed = threading.Condition()
        self._next = 0.0
        """When the thread looks again."""
        self._is_closed = False
        self._ended = asyncio.Event()
        self._alive_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def keep(self, lease: PartLease, on_drain: Callable[[], object]) -> Iterator[None]:
        """Renew a lease within the block, and call a function on the loop if the job is drained."""
        kept = _Kept(lease, on_drain, time.monotonic() + lease.seconds / 4)
        with self._changed:
            self._kept.append(kept)
            if kept.due < self._next:
                self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="boardclient-lease", daemon=True)
            self._thread.start()
        if self._timer is None or kept.lease.seconds / 6 < self._timer.when() - self._loop.time():
            self._tick()
        try:
            yield
        finally:
            with self._changed:
                self._kept.remove(kept)

    async def aclose(self) -> None:
        """Stop renewing, and wait for the thread."""
        if self._timer is not None:
            self._timer.cancel()
        self.abandon()
        if self._thread is not None:  # not joined by an executor, which takes nothing while the interpreter ends
            await self._ended.wait()
            self._thread.join()

    def abandon(self) -> None:
        """Stop renewing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._alive_at = time.monotonic()
        seconds = min((kept.lease.seconds for kept in self._kept), default=None)
        self._timer = None if seconds is None else self._loop.call_later(seconds / 6, self._tick)

    def _wait(self) -> list[_Kept] | None:
        """Wait until leases have to be renewed, and return them. None at the end."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                due = [kept for kept in self._kept if kept.due <= now]
                for kept in due:
                    kept.due = now + kept.lease.seconds / 4
                if due:
                    return [kept for kept in due if now - self._alive_at <= kept.lease.seconds / 2]
                self._next = min((kept.due for kept in self._kept), default=math.inf)
                self._changed.wait(min(self._next - now, threading.TIMEOUT_MAX))
        return None

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        finally:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits
                self._loop.call_soon_threadsafe(self._ended.set)

    async def _beat(self) -> None:
        database = Database(self._where, is_known=True)
        try:
            while (due := self._wait()) is not None:
                for kept in due:
                    with contextlib.suppress(JournalError):  # the run meets it when it writes, or its deadline
                        await self._renew(database, kept)
        finally:
            await database.aclose()

    async def _renew(self, database: Database, kept: _Kept) -> None:
        lease = kept.lease
        await database.change(lease.renew)
        found = await database.read(sa.select(jobs.c.is_draining).where(jobs.c.job == lease.job))
        if not lease.is_draining and any(row.is_draining for row in found):
            self._loop.call_soon_threadsafe(kept.on_drain)


def _cards_in(states: dict[int, State]) -> list[str]:
    return [detail for state, detail in states.values() if state == "done"]


class PartLedger(DurableLedger):
    """The ledger of a run of one part. It is owned by the run, which closes it.

    Rows to be sent are in the database when `admit` returns. Outcomes are written with the next rows, or soon. Each transaction
    renews the lease, and holds only if the part is still this worker's. The lease is checked right before each request.
    """

    released = -1  # so that each row is passed to `release`
    is_new = False  # the cards that were there before are read before the first part is run

    def __init__(
        self,
        database: Database,
        lease: PartLease,
        entries: Sequence[tuple[int, CardDraft]],
        states: dict[int, State],
        *,
        secret: bytes,
        baseline: IdSet,
        listed_before: int = 0,
    ) -> None:
        super().__init__(secret)
        self.commit_size = self.largest_commit = lease.commit_size
        self.entries = entries
        """The rows of the input, with their numbers in the job."""
        self.owners: dict[int, int] = {}
        """The parts of those rows that are another part's. Whether they are sent again is its affair."""
        self.may_send = lease.is_held
        self.report: Callable[[], BulkReport] = BulkReport
        """The run's report so far."""
        self._baseline, self.listed_before = baseline, listed_before
        self.older.append(baseline)
        self._database, self._lease, self._states = database, lease, states
        self._pending: dict[int, State] = {}
        self._logged = {*lease.logged}
        """Those rows that were logged before, and not taken yet."""
        self._states.update(dict.fromkeys(lease.logged, LOGGED))
        self._number = 1 if lease.logged else 0
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set on the others what became of them.

        Raises:
            LeaseLostError: another worker has the part now.
            JournalError: the database can't be used. None of the rows may be sent.
        """
        sent: list[int] = []
        for row in rows:
            if row.outcome is not None:  # it was refused, and is sent again
                sent.append(row.seq)
                continue
            row.seq = self.entries[row.index][0]
            state, detail = self._states.get(row.seq, ("", ""))
            if row.seq in self._logged:
                self._logged.remove(row.seq)
            elif state:
                row.outcome = Outcome(cast("RowState", state), detail)
            else:
                sent.append(row.seq)
        if sent or self._pending:
            await self._write(sent)

    def release(self, row: Row) -> None:
        """Check right before a request that the part is still this worker's.

        Raises:
            LeaseLostError: it may not be. The row must not be sent.
        """
        self._lease.check()

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that belong to rows of the job."""
        return IdSet(await self._confirmed())

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds."""
        return set(islice(filter(condition, await self._confirmed()), most))

    async def _confirmed(self) -> list[str]:
        return _cards_in(await self._read_states())

    async def _read_states(self) -> dict[int, State]:
        """Return what became of the rows of the job by now."""
        async with self._writing:  # what is being written is neither pending nor in the database
            states = await read_states(self._database, self._lease.job)
        return {**states, **self._pending}

    async def others(self) -> Others:
        """Return the rows in doubt that are not this run's, and all cards that rows have by now."""
        states, own = await self._read_states(), {seq for seq, _ in self.entries}
        doubts = {seq for seq, (state, _) in states.items() if state in IN_DOUBT} - own
        return Others(await self._doubts(doubts), {*_cards_in(states)})

    async def _doubts(self, numbers: set[int]) -> list[Doubt]:
        if not numbers:
            return []
        of_job = parts.c.job == self._lease.job
        found = await self._database.read(sa.select(parts.c.part, parts.c.first, parts.c.size).where(of_job))
        some = [one.part for one in found if not numbers.isdisjoint(range(one.first + 1, one.first + one.size + 1))]
        columns = parts.c.part, parts.c.first, parts.c.rows
        return [
            Doubt(seq, Content.of(draft, None))
            for part in await self._database.read(sa.select(*columns).where(of_job, parts.c.part.in_(some)))
            for seq, draft in load_rows(self._lease.job, part)
            if seq in numbers
        ]

    async def finish(self, *, state: str = "done", audit: str | None = None) -> None:
        """Record the end of a run, after which the part is done or open, and no longer this worker's."""
        await self._write(changes={"state": state, "lease_until": 0.0}, audit=audit)
        self._lease.is_returned = True

    async def settle(self, seq: int, part: int, state: State) -> None:
        """Record what became of a row of any part, and let the job be closed again."""
        self.owners[seq], self._pending[seq] = part, state
        await self.finish(state="open")

    async def aclose(self) -> None:
        """Write what was recorded.

        Raises:
            LeaseLostError: another worker has the part now.
            JournalError: the database can't be written. The rows without outcome are in doubt.
        """
        if self._writer is not None:
            await asyncio.wait({self._writer})
        self._lease.logged = ()
        self._pending.update(dict.fromkeys(self._logged, ("waiting", "")))
        if self._pending or self._failure is not None:
            await self._write()

    def _record(self, seq: int, state: RowState, detail: str) -> None:
        self._pending[seq] = (state, detail)
        self._write_later()

    def _write_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTE_SECONDS, self._write_soon)

    def _write_soon(self) -> None:
        self._writer = asyncio.ensure_future(self._try_to_write())

    async def _try_to_write(self) -> None:
        try:
            await self._write()
        except Exception as error:  # the run meets it at its next write
            self._failure = self._failure or error

    async def _write(self, sent: Sequence[int] = (), *, changes: dict[str, Any] | None = None, audit: str | None = None) -> None:
        """Write outcomes, then which rows are sent, and renew the lease, all in one."""
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            noted, self._pending = self._pending, {}
            after = {**noted, **dict.fromkeys(sent, LOGGED)}
            is_written = False

            def note_written(_: None) -> None:
                nonlocal is_written
                is_written = True
                self._number += bool(after)
                self._states.update(after)

            try:
                values = self._figures(noted) | (changes or {})
                await self._database.change(
                    lambda connection: self._store(connection, noted, sent, after, values, audit), on_commit=note_written
                )
            except BaseException:
                if is_written:  # a cancellation, after which they are not sent
                    self._logged.update(sent)
                else:
                    self._pending = {**noted, **self._pending}
                raise

    def _figures(self, noted: dict[int, State]) -> dict[str, Any]:
        """Return what the part's row says of its runs."""
        lease, report = self._lease, self.report()
        if lease.stalls < _MOST_STALLS and any(state == "done" for state, _ in noted.values()):
            lease.stalls = 0
        requests, rejected, seconds = lease.before
        values = {"requests": requests + report.requests, "rejected": rejected + report.rejected}
        return {**values, "seconds": seconds + report.seconds, "stalls": lease.stalls}

    def _store(
        self,
        connection: sa.Connection,
        noted: dict[int, State],
        sent: Sequence[int],
        after: dict[int, State],
        values: dict[str, Any],
        audit: str | None,
    ) -> None:
        lease = self._lease
        counts: dict[int, Counter[str]] = {}
        # If the end of an earlier transaction was lost, the event may be there, and so is all the rest of it.
        if after and insert_event(connection, lease.job, lease.part, lease.epoch, self._number, noted, sent):
            for seq, state in after.items():
                count = counts.setdefault(self.owners.get(seq, lease.part), Counter())
                count[count_of(self._states.get(seq))] -= 1
                count[count_of(state)] += 1
        own = counts.pop(lease.part, Counter())
        lease.renew(connection, **values, **{name: own[name] for name in COUNTS})
        sendable = {self.owners.get(seq) for seq, (state, _) in noted.items() if state == "waiting"}
        for part, count in counts.items():  # one with a row that is to be sent is open again
            of_other = (parts.c.job == lease.job) & (parts.c.part == part)
            opened = {"state": "open"} if part in sendable else {}
            added = {name: parts.c[name] + count[name] for name in COUNTS}
            connection.execute(parts.update().where(of_other).values(**opened, **added))
        if audit is not None:
            connection.execute(jobs.update().where(jobs.c.job == lease.job).values(audit=audit))
