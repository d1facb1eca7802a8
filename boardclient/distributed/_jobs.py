"""Jobs: the rows for one board, planned at once or delivered in batches."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Sized
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import attrs

from boardclient._base._redaction import takes_secrets
from boardclient.bulk._content import IdSet
from boardclient.bulk._run import check_count, check_settle
from boardclient.distributed._batches import check_rows, check_text, store_batch
from boardclient.errors import JournalError
from boardclient.models import CardDraft, DraftLike, as_draft, check_identifier, check_yields_rows
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._location import checked_location, takes_location
from boardclient.store._rows import digest_rows, open_part
from boardclient.store._tables import LEDGER

CLOSING: Final = -1
"""The part of a plan without rows. It only completes and reconciles the job."""
_PART_ROWS: Final = 5000


def _numbers(given: Iterable[int]) -> tuple[int, ...]:
    return tuple(given)


def _checked_name(name: str) -> str:
    return check_text(name, "name")


@takes_secrets  # a URL with a password is refused
@attrs.frozen(kw_only=True)
class Job:
    """A job that was planned or opened. It can be pickled or passed as `attrs.asdict(job)`, and holds no credential.

    Attributes:
        ledger: The path of the ledger's file, or its URL.
        name: The name of the job in the ledger.
        board_id: The board of all rows.
        parts: The numbers of the parts to pass to `import_part`, `()` if its rows come in batches.
        rows: The number of rows that the job had when it was planned, or that `open_job(rows=…)` has announced.
        already: How many of them had a card when it was planned.
        since: Not used any more.
        account: The account that creates the cards, None for that of the environment.
        requests: How many requests to create cards had been sent when it was planned.
        rejected: How many of those were refused with status 429.
        planned_at: When it was planned or opened, or its rows were announced, on the clock of the database.
    """

    ledger: str = attrs.field(converter=checked_location)
    name: str = attrs.field(converter=_checked_name)
    board_id: str
    parts: tuple[int, ...] = attrs.field(default=(), converter=_numbers)
    rows: int = 0
    already: int = 0
    since: int = 0
    account: str | None = None
    requests: int = attrs.field(default=0, eq=False)
    rejected: int = attrs.field(default=0, eq=False)
    planned_at: float = attrs.field(default=0.0, eq=False)


def check_job(job: object) -> Job:
    """Return a job.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(job, Job):
        raise TypeError(f"job must be a Job, as plan or open_job returned it, not {type(job).__name__}")
    return job


@takes_location
async def plan(
    rows: Iterable[DraftLike],
    board_id: str,
    ledger: str | os.PathLike[str],
    *,
    name: str | None = None,
    account: str | None = None,
    parts: int | None = None,
    marker: bool | None = None,
    settle: float | None = None,
) -> Job:
    """Split rows into parts on a ledger, or resume the job planned with them.

    Each part is a batch whose key is its number. The same call completes a plan that was interrupted. If the job has ended, rows
    that failed or are unknown are opened again. No other process waits while the rows are read.

    ```python
    job = await plan(drafts, board.id, "cards.ledger")
    for part in job.parts:
        await import_part(job, part, session=session)  # in a task of your engine
    ```

    Args:
        rows: The cards to create, as in `create_many`, in the same order each time. They are read once, and stored.
        board_id: The board of all rows.
        ledger: The path of a file for the workers of one host, or `postgresql://…` without a password (PGPASSWORD gives it).
        name: The name of the job in the ledger. By default it is made from the board and the account.
        account: The account that creates the cards, None for that of the environment.
        parts: How many parts to make, of rows that have a length. By default each has 5,000 rows.
        marker: Whether descriptions get codes, as with `marker=True` of `create_many`. They prove whose a card is, also while
            others create cards on the board. None (default): as the job was planned before, and True for a new one.
        settle: As in `create_many`. It may differ from call to call.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has another board, account, marker or other rows under this name.
    """
    job, size = _job(ledger, board_id, account, name), _size(rows, parts)
    check_yields_rows(rows, "rows")
    given = ((board_id, account, row) for row in rows)
    (job,) = await _store_plan([job], given, ledger, size, marker=marker, settle=settle)
    return job


@takes_location
async def plan_many(
    rows: Iterable[tuple[str, str | None, DraftLike]],
    ledger: str | os.PathLike[str],
    *,
    parts: int | None = None,
    marker: bool | None = None,
    settle: float | None = None,
) -> list[Job]:
    """Split rows for several boards and accounts into jobs, one for each board and account, or resume those planned with them.

    Args:
        rows: The board, the account and the card of each row, in the same order each time. The account is None for that of the
            environment. They are read once, and stored.
        ledger: As in `plan`.
        parts: About how many parts to make in all, of rows that have a length. By default each has 5,000 rows.
        marker: As in `plan`. It is needed if several accounts create cards on one board, to tell them apart.
        settle: As in `plan`.

    Returns:
        The jobs, in the order in which the rows first name them.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has other rows for a board and account.
    """
    return await _store_plan([], rows, ledger, _size(rows, parts), marker=marker, settle=settle)


@takes_location
async def open_job(
    board_id: str,
    ledger: str | os.PathLike[str],
    *,
    name: str | None = None,
    account: str | None = None,
    marker: bool = True,
    settle: float | None = None,
    rows: int | None = None,
) -> Job:
    """Open a job whose rows come in batches, for `import_batch`. The same arguments open the same job.

    Without a name, it is the job to which `plan` and `cards.create(reference=)` add the rows of this board and account.

    ```python
    job = await open_job(board.id, "cards.ledger", name="May")
    await import_batch(job, "batch 1", drafts, session=session)
    report = await reconcile(job, session=session)
    ```

    Args:
        board_id: The board of all rows.
        ledger: The path of a file for the workers of one host, or `postgresql://…` without a password (PGPASSWORD gives it).
        name: The name of the job in the ledger. By default it is made from the board and the account.
        account: The account that creates the cards, None for that of the environment.
        marker: As in `plan`.
        settle: As in `create_many`. It may differ from call to call.
        rows: How many rows a run brings, which begins with this call. `reconcile` compares it with those that came since: see
            `BulkReport.missing`. Their cards are "created", and those from before are "already". None (default): what an earlier
            call has said, or if none has, cards from before this call are "already".

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has another board, account or marker under this name.
    """
    check_count(rows, "rows")
    job, options = new_job(board_id, ledger, name, account, marker=marker, settle=settle, rows=rows)
    async with aclosing(Database(ledger)) as database:
        await database.create(LEDGER)
        return (await enter_job(database, job, options, takes_batches=True))[0]


def new_job(
    board_id: str,
    ledger: str | os.PathLike[str],
    name: str | None = None,
    account: str | None = None,
    *,
    marker: bool = True,
    settle: float | None = None,
    rows: int | None = None,
) -> tuple[Job, str]:
    """Return a job to enter, and its options as they are stored."""
    return _job(ledger, board_id, account, name), _options(marker, settle, rows)


async def enter_job(database: Database, job: Job, options: str, *, takes_batches: bool = False) -> tuple[Job, int]:
    """Enter a job unless the ledger has it, and return it with its number.

    Raises:
        JournalError: another job has its name.
    """
    return await database.change(partial(_enter, job, database.where, options, takes_batches=takes_batches))


def _enter(job: Job, where: str, options: str, connection: Connection, *, takes_batches: bool) -> tuple[Job, int]:
    if takes_batches and job.name == _default_name(job.board_id, job.account):
        # Before 0.4 batches had a default job of their own, which has their rows.
        earlier = f"batches for {job.name}"
        if connection.value("SELECT job FROM boardclient_jobs WHERE name = ?", earlier) is not None:
            job = attrs.evolve(job, name=earlier)
    find = "SELECT job, board_id, account, options FROM boardclient_jobs WHERE name = ?"
    known = connection.one(find, job.name)
    now = connection.now()
    given = _completed(options, "{}" if known is None else known.options, now)
    options, job = json.dumps(given), attrs.evolve(job, rows=given["rows"] or 0, planned_at=given["since"] or now)
    if known is None:
        connection.run(
            "INSERT INTO boardclient_jobs (name, board_id, account, options, secret) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            job.name,
            job.board_id,
            job.account,
            options,
            secrets.token_bytes(32),
        )
        known = connection.one(find, job.name)
    is_same = {
        "board": known.board_id == job.board_id,
        "account": known.account == job.account,
        "marker": json.loads(known.options)["marker"] == given["marker"],
    }
    if not all(is_same.values()):
        others = " and ".join(name for name, same in is_same.items() if not same)
        raise JournalError(f"the ledger {where} has a job {job.name!r} with another {others}: give this one another name")
    # Only the time to settle and the announced rows can differ here, which may change from call to call.
    if known.options != options:
        connection.run("UPDATE boardclient_jobs SET options = ? WHERE job = ?", options, known.job)
    return job, int(known.job)


def _completed(options: str, stored: str, now: float) -> dict[str, Any]:
    """Return the options of a call, with those stored that it does not give. `settle` may differ from call to call.

    "since" is when the rows were announced that it has.
    """
    given, before = json.loads(options), json.loads(stored)
    given["since"] = before.get("since") if given["rows"] is None else now
    # A job keeps the marker that it was planned with: the cards of its earlier rows show it, or lack it.
    for name, otherwise in (("marker", True), ("rows", None)):
        if given[name] is None:
            given[name] = before.get(name, otherwise)
    return dict(given)


def _default_name(board_id: str, account: str | None) -> str:
    return f"board {board_id}" + (f", account {account}" if account else "")


def _job(ledger: str | os.PathLike[str], board_id: str, account: str | None, name: str | None = None) -> Job:
    check_identifier(board_id, "board_id")
    if account is not None:
        check_text(account, "account")
    name = _default_name(board_id, account) if name is None else name
    return Job(ledger=ledger, name=name, board_id=board_id, account=account)


def _options(marker: bool | None, settle: float | None, rows: int | None = None) -> str:
    if not isinstance(marker, bool | None):
        raise TypeError(f"marker must be True or False, not {type(marker).__name__}")
    check_settle(settle)
    return json.dumps({"marker": marker, "settle": settle, "rows": rows})


def _size(rows: Iterable[object], parts: int | None) -> int:
    """Return how many rows a part gets."""
    check_count(parts, "parts")
    if parts is None:
        return _PART_ROWS
    if not isinstance(rows, Sized):
        raise TypeError("parts needs rows that have a length, such as a list: a generator can't be split into so many")
    # Rounded up, so that there are never more parts than were asked for.
    return max(1, -(-len(rows) // parts))


@attrs.define
class _PlannedJob:
    """A job while its rows are read."""

    job: Job
    number: int
    rows: list[CardDraft] = attrs.field(factory=list)
    """Those that are not stored yet."""
    digest: Any = attrs.field(factory=lambda: digest_rows(()))
    has_references: bool = True
    seen: IdSet = attrs.field(factory=IdSet)
    parts: int = 0
    """How many parts were stored."""

    def add(self, draft: CardDraft) -> None:
        if draft.reference is None:
            self.has_references = False
        elif not self.seen.add(draft.reference):
            raise ValueError(f"the reference {draft.reference!r} comes twice: give each row one of its own")
        self.rows.append(draft)

    async def store(self, database: Database) -> None:
        """Store the next rows as a part."""
        drafts, self.rows = check_rows(self.rows), []
        digest_rows(drafts, self.digest)
        await database.change(lambda connection: store_batch(connection, self.number, str(self.parts), drafts))
        self.parts += 1

    def close(self, where: str, connection: Connection) -> Job:
        """Record that the plan is complete, so that its parts can be run, and open parts again that have rows without a card.

        Raises:
            JournalError: the job was planned with other rows.
        """
        digest, number = self.digest.hexdigest(), self.number
        known = connection.one("SELECT digest, planned, audit FROM boardclient_jobs WHERE job = ?", number)
        assert known is not None  # noqa: S101 -- it was entered
        # Rows with references are known by these, so others may have come or gone. Without them the places must be the same.
        if known.digest not in {None, digest} and not self.has_references:
            raise JournalError(
                f"the ledger {where} has a job {self.job.name!r} with other rows: give this one another name,"
                " or each row a reference"
            )
        # A new plan is a new try: rows that failed are sent again, and the deaths of earlier workers no longer count.
        for key in map(str, range(self.parts)):
            statement = "SELECT part FROM boardclient_parts WHERE job = ? AND key = ? AND done + in_doubt < size"
            again = connection.value(statement, number, key)
            if again is not None:
                open_part(connection, again)
                connection.run("UPDATE boardclient_parts SET began_at = NULL, stalls = 0 WHERE part = ?", again)
        unfinished = "SELECT count(*) FROM boardclient_parts WHERE job = ? AND (in_doubt IS NULL OR in_doubt > 0)"
        # An audit stays only where nothing was opened again. Otherwise the job is reconciled once more at its end.
        is_settled = known.audit is not None and "audit_error" not in json.loads(known.audit)
        audit = known.audit if is_settled and not connection.value(unfinished, number) else None
        statement = "UPDATE boardclient_jobs SET digest = ?, planned = ?, audit = ? WHERE job = ?"
        connection.run(statement, digest, self.parts, audit, number)
        found = connection.one(
            "SELECT coalesce(sum(p.size), 0) AS size, coalesce(sum(p.requests), 0) AS requests,"
            " coalesce(sum(p.rejected), 0) AS rejected, {clock} AS now,"
            " (SELECT count(*) FROM boardclient_outcomes WHERE job = ? AND state = 'done') AS done"
            " FROM boardclient_parts AS p WHERE p.job = ?",
            number,
            number,
        )
        assert found is not None  # noqa: S101 -- it counts
        # Also a plan without rows has a part, since engines map a task over the parts, and one of them ends the job.
        parts = tuple(range(self.parts)) or (CLOSING,)
        rows, done = int(found.size), int(found.done)
        sent, rejected = int(found.requests), int(found.rejected)
        job = attrs.evolve(self.job, parts=parts, rows=rows, already=done, requests=sent, rejected=rejected)
        return attrs.evolve(job, planned_at=float(found.now))


async def _store_plan(
    given: Iterable[Job],
    rows: Iterable[tuple[str, str | None, DraftLike]],
    ledger: str | os.PathLike[str],
    size: int,
    *,
    marker: bool | None,
    settle: float | None,
) -> list[Job]:
    """Store rows, and return their jobs: those that are given, and one for each other board and account."""
    options = _options(marker, settle)
    async with aclosing(Database(ledger)) as database:
        await database.create(LEDGER)
        plans: dict[tuple[str, str | None], _PlannedJob] = {}
        for job in given:
            plans[job.board_id, job.account] = _PlannedJob(*await enter_job(database, job, options))
        for index, (board_id, account, row) in enumerate(rows):
            one = plans.get((board_id, account))
            if one is None:
                if marker is False and any(board_id == board for board, _ in plans):
                    raise ValueError(f"rows of several accounts on the board {board_id} need a marker, to tell them apart")
                job = _job(ledger, board_id, account)
                one = plans[board_id, account] = _PlannedJob(*await enter_job(database, job, options))
            one.add(as_draft(row, f"row {index}"))
            if len(one.rows) == size:
                await one.store(database)
        for one in plans.values():
            if one.rows:
                await one.store(database)
        return [await database.change(partial(one.close, database.where)) for one in plans.values()]
