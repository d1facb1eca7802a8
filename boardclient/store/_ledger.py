"""The ledger of a run in a database, from which a later run resumes, in this process or another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import attrs

from boardclient.bulk._content import Content, IdSet, secret_marker
from boardclient.bulk._ledger import Doubt, DurableLedger, Note, Others
from boardclient.bulk._life import UNSENT, Outcome, Row
from boardclient.bulk._results import BulkReport, ResultState
from boardclient.errors import BoardClientError, JournalError
from boardclient.models import Card
from boardclient.store._by_hand import doubts_of
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._rows import DONE, LOGGED, PLACES, StoredRow, close_part, dump_cards, put_outcomes

T = TypeVar("T")

MOST_STALLS: Final = 2
"""How many workers may die with a part before its rows are sent one by one, which shows the row that kills them."""


class Right(Protocol):
    """The right of a run to send and record its rows, which `Lease` implements."""

    parts: dict[int, Any]
    """The parts of the rows by their numbers, as they were when the right was taken."""
    is_returned: bool

    @property
    def commit_size(self) -> int:
        """How many rows to log together."""
        ...

    def is_held(self) -> bool:
        """Return False if a request must not begin now."""
        ...

    def check(self) -> None:
        """Raise a JournalError if a request must not begin now."""

    def renew(self, connection: Connection) -> None:
        """Renew it within a transaction, or raise a JournalError if it is lost."""

    def end(self, connection: Connection) -> None:
        """Give it back within a transaction."""


@attrs.define
class StoredJob:
    """A job, which belongs to one service and account.

    Attributes:
        job: Its number.
        baseline: The cards that existed before its first row.
        listed_before: How many of them the board listed.
        lists: The known lists of its board.
        reading: Set once a run has read them that reads them now.
    """

    job: int
    secret: bytes = attrs.field(repr=False)
    marker: bool
    identity: str
    baseline: IdSet = attrs.field(repr=False)
    listed_before: int
    lists: frozenset[str] = frozenset()
    reading: asyncio.Event | None = attrs.field(default=None, repr=False, eq=False)


async def unrecorded(database: Database, job: StoredJob, markers: Collection[str]) -> set[str]:
    """Return those of these secret markers of a job that no row has which was sent. They are looked for in all its rows."""
    statement = (
        "SELECT r.seq, r.marker FROM boardclient_rows AS r JOIN boardclient_parts AS p ON p.part = r.seq / 4294967296"
        " LEFT JOIN boardclient_outcomes AS o ON o.seq = r.seq WHERE r.job = ? AND {state} <> 'waiting'"
    )

    def read(connection: Connection) -> set[str]:
        found = connection.fetch(statement, job.job)
        return {secret_marker(job.secret, row.seq if row.marker is None else row.marker) for row in found}

    return {*markers} - await database.query(read)


def replaced(ledger: str) -> JournalError:
    """Return the error of a ledger that is not the one which this process has used."""
    return JournalError(
        f"the ledger {ledger} was emptied or replaced while it was in use: nothing more is sent."
        " Put it back, and reconcile the job before anything else"
    )


class StoredLedger(DurableLedger):
    """The ledger of a run whose rows are in a database. The run owns and closes it.

    Rows to be sent are logged in the database when `admit` returns. Each transaction renews the right of the run, and is rolled
    back if the right is lost. It is also checked before each request.
    """

    note_seconds = 0.5
    released = -1  # another worker may take the rows at any time, so the right is checked before each request
    is_new = False  # other workers may have sent rows; the cards from before are known since the job was bound to its service

    def __init__(
        self,
        database: Database,
        right: Right,
        job: StoredJob,
        rows: Sequence[StoredRow],
        *,
        is_fresh: bool = False,
        since: float = 0.0,
    ) -> None:
        super().__init__(job.secret)
        self.commit_size = self.largest_commit = right.commit_size
        self.may_send = right.is_held
        self.report: Callable[[], BulkReport] = BulkReport
        """The run's report so far."""
        self.rows: Sequence[StoredRow] = rows
        """The rows of the input, in its order."""
        self._baseline, self.listed_before = job.baseline, job.listed_before
        self.older.append(job.baseline)
        self._database, self._right, self._job = database, right, job
        self._logged = {part: found.logged for part, found in right.parts.items()}
        """How many rows of each part are logged from its beginning on."""
        self._has_outcome = {row.seq for row in rows if row.age is not None}
        # Those that were logged when the rows were stored, and not taken yet. None was sent.
        self._ahead = {row.seq for row in rows if row.state == "logged"} if is_fresh else set[int]()
        self._resembling: dict[int, str] = {}
        self._doubted_at: dict[int, float] = {}
        """When the last requests of unknown rows ended, and of those that were found, on the loop's clock."""
        self._uncounted: dict[int, float] = {}
        """When the rows of workers that died were logged, or a little later, on the clock of the database: those whose cards were
        found."""
        self._since = since
        """When the job was planned or opened, on the clock of the database."""
        self._told: BulkReport = BulkReport()
        """The last report that was written to the database."""
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set the outcomes of the others.

        Raises:
            LeaseLostError: another worker has the part now.
            JournalError: the database can't be used. None of the rows may be sent.
        """
        sent: list[int] = []
        now = self._loop.time()
        for row in rows:
            stored = self.rows[row.index]
            row.seq, row.first_seq = stored.seq, stored.marker
            if stored.seq in self._ahead:
                self._ahead.remove(stored.seq)
            elif row.outcome is not None or stored.state in UNSENT:  # refused ones are sent again
                sent.append(stored.seq)
            else:
                row.outcome, row.doubted_at = stored.outcome, now - (stored.age or 0.0)
        if sent or self._noted:
            await self._write(sent)
        for row in rows:
            if row.seq in sent:
                row.outcome = None

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row. If this ledger kept it from being sent, it waits for the next run."""
        if isinstance(error, JournalError) and state == "failed":
            self.withdraw([row])
            return
        if state == "unknown" and row.doubted_at:  # `settle` counts from the end of its request, whichever call waits for it
            self._doubted_at[row.seq] = row.doubted_at
        if card is not None and row.is_earlier and row.outcome is not None and row.outcome.state != "done":
            self._record_found(row, row.outcome)
        super().add_outcome(row, state, card, error)

    def _record_found(self, row: Row, known: Outcome) -> None:
        """Note when a row was sent whose card was found, and that its request is counted by nobody if its worker died."""
        self._doubted_at[row.seq] = row.doubted_at
        stored = self.rows[row.index]
        if known.detail.startswith(LOGGED.detail) and stored.at is not None:
            # It is in doubt since the end of a lease, which was renewed when the row was logged or later.
            self._uncounted[row.seq] = stored.at - self._right.parts[stored.part].lost_lease

    def release(self, row: Row) -> None:
        """Check right before a request that this worker still has the rows.

        Raises:
            LeaseLostError: another worker may have them. The row must not be sent.
        """
        self._right.check()

    async def _of_confirmed(self, work: Callable[[Iterable[str]], T]) -> T:
        async with self._writing:  # what is being written is neither noted nor in the database
            noted = [detail for _, state, detail in self._noted.values() if state == "done"]
            found = [row.detail for row in await self._database.read(DONE, self._job.job)]
        return work([*found, *noted])

    async def unrecorded(self, markers: Collection[str]) -> set[str]:
        """Return those of these secret markers of the job that no row has which was sent."""
        return await unrecorded(self._database, self._job, markers)

    async def others(self) -> Others:
        """Return the rows in doubt of other runs, and the cards of all rows."""
        own = {row.seq for row in self.rows}
        found = await self._database.query(lambda connection: doubts_of(connection, self._job.job))
        doubts = [Doubt(row.number, Content.of(row.draft, None)) for row in found if row.seq not in own]
        return Others(doubts, await self._of_confirmed(set))

    async def record_resembling(self, cards: Mapping[int, Sequence[Card]]) -> None:
        """Keep the cards that may belong to rows, by the rows' numbers. They are written with the rows' outcomes."""
        for seq, found in cards.items():
            self._resembling[seq] = dump_cards(found)

    async def finish(self, *, audit: str | None = None) -> None:
        """Record the end of the run, close the parts, and give them back."""

        def close(connection: Connection) -> None:
            for part in self._right.parts:
                close_part(connection, part)
            if audit is not None:
                connection.run("UPDATE boardclient_jobs SET audit = ? WHERE job = ?", audit, self._job.job)
            self._right.end(connection)

        await self._write(then=close)
        self._right.is_returned = True

    async def aclose(self) -> None:
        """Write the recorded outcomes.

        Raises:
            LeaseLostError: another worker has the part now.
            JournalError: the database can't be written. The rows without outcome are in doubt.
        """
        self._is_closed = True
        if self._writer is not None:
            await asyncio.wait({self._writer})
        self._noted |= {seq: (seq, "waiting", "") for seq in self._ahead}
        self._ahead = set()
        is_told = self.report().requests == self._told.requests
        if self._noted or self._failure is not None or not (is_told or self._right.is_returned):
            await self._write()

    def _write_soon(self) -> None:
        self._writer = asyncio.ensure_future(self._try_to_write())

    async def _try_to_write(self) -> None:
        try:
            await self._write()
        except Exception as error:  # the next write raises it
            self._failure = self._failure or error

    async def _write(self, sent: Sequence[int] = (), *, then: Callable[[Connection], None] | None = None) -> None:
        """Write outcomes, log the rows to be sent, and renew the right of the run, in one transaction."""
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            if self._right.is_returned:  # while this waited, the last write was made: another one would take the rows again
                return
            noted = self._take_noted()
            again, logged = self._split(sent)
            report, is_written, now = self.report(), False, self._loop.time()
            uncounted = dict(self._uncounted)

            def store(connection: Connection) -> None:
                self._right.renew(connection)
                self._store(connection, noted.values(), again, logged, report, now, uncounted)
                if then is not None:
                    then(connection)

            def note_written(_: None) -> None:
                nonlocal is_written
                is_written, self._told = True, report
                self._logged |= logged
                self._has_outcome.update(noted, again)

            try:
                await self._database.change(store, on_commit=note_written)
            except BaseException:
                if is_written:  # a cancellation, after which they are not sent
                    self._ahead.update(sent)
                else:
                    self._noted = {**noted, **self._noted}
                raise

    def _split(self, sent: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """Return the rows to be logged that need an outcome of their own, and the new value of `logged` of each part."""
        again: list[int] = []
        logged: dict[int, int] = {}
        for seq in sorted(sent):
            part, position = divmod(seq, PLACES)
            if position == logged.get(part, self._logged[part]) and seq not in self._has_outcome:
                logged[part] = position + 1
            else:
                again.append(seq)
        return again, logged

    def _store(
        self,
        connection: Connection,
        noted: Collection[Note],
        again: Iterable[int],
        logged: Mapping[int, int],
        report: BulkReport,
        now: float,
        uncounted: Mapping[int, float],
    ) -> None:
        """Write outcomes and logged rows within a transaction. `now` is the time on the loop's clock."""
        job, at = self._job.job, connection.now()
        known: dict[int, tuple[object, ...]] = {}
        for seq, state, detail in noted:
            age = max(0.0, now - self._doubted_at.get(seq, now))  # it is in doubt since its request ended
            resembling = self._resembling.get(seq) if state == "unknown" else None
            known[seq] = seq, job, state, detail, uncounted.get(seq, at - age), resembling
        known |= {seq: (seq, job, *LOGGED, at, None) for seq in again}
        if known:  # in one order, or two transactions could wait for each other
            put_outcomes(connection, [known[seq] for seq in sorted(known)])
        for part, number in sorted(logged.items()):
            connection.run("UPDATE boardclient_parts SET logged = ? WHERE part = ?", number, part)
        first = min(self._right.parts, default=None)
        if first is not None and (report != self._told or noted):
            before = self._right.parts[first]
            earlier = sum(sent_at < self._since for sent_at in uncounted.values())
            requests = before.requests + report.requests + len(uncounted) - earlier
            values = requests, before.rejected + report.rejected, before.earlier + earlier, before.seconds + report.seconds
            statement = "UPDATE boardclient_parts SET requests = ?, rejected = ?, earlier = ?, seconds = ? WHERE part = ?"
            connection.run(statement, *values, first)
            if 0 < before.stalls < MOST_STALLS and any(state == "done" for _, state, _ in noted):
                connection.run("UPDATE boardclient_parts SET stalls = 0 WHERE part = ?", first)
