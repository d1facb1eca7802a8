"""Jobs, and how their rows come into a ledger: all at once as parts, or as batches with keys of their own."""

from __future__ import annotations

import json
import os
import pickle
import secrets
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import aclosing
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any, Final

import attrs
import sqlalchemy as sa

from boardclient._redaction import takes_secrets
from boardclient.bulk._run import check_count, check_settle
from boardclient.distributed._tables import CLOSING, digest_rows, dump_drafts, events, jobs, parts
from boardclient.errors import JournalError
from boardclient.models import CardDraft, DraftLike, as_draft, check_identifier
from boardclient.store._alchemy import Database, checked_location, takes_location

_PART_ROWS: Final = 5000
_RESERVED: Final = 8
"""How many rows the closing part sends: their cards show that a listing without those of rows in doubt was complete."""


def _numbers(given: Iterable[int]) -> tuple[int, ...]:
    return tuple(given)


def _checked_name(name: str) -> str:
    return check_text(name, "name")


def check_text(text: object, name: str) -> str:
    """Check a name or a key, which both kinds of databases have to store.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, or holds a NUL or half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, not {type(text).__name__}")
    if not text or "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"{name} must not be empty, and can't hold NUL or half of a surrogate pair")
    return text


@takes_secrets  # a URL with a password is refused
@attrs.frozen(kw_only=True)
class Job:
    """A job that was planned or opened. It can be pickled or passed as `attrs.asdict(job)`, and holds no credential.

    Attributes:
        ledger: The path of the ledger's file, or its URL.
        name: The name of the job in the ledger.
        board_id: The board of all rows.
        parts: The numbers of the parts to pass to `import_part`, `()` if its rows come in batches.
        rows: The number of rows.
        already: How many of them had a card when the job was planned.
        since: The last event in the ledger at that time.
        account: The account that creates the cards, None for that of the environment.
        planned_at: When it was planned, on the clock of the database.
    """

    ledger: str = attrs.field(converter=checked_location)
    name: str = attrs.field(converter=_checked_name)
    board_id: str
    parts: tuple[int, ...] = attrs.field(default=(), converter=_numbers)
    rows: int = 0
    already: int = 0
    since: int = 0
    account: str | None = None
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
    marker: bool = False,
    settle: float | None = None,
) -> Job:
    """Split rows into parts on a ledger, or resume the job planned with them.

    In a job that has ended, the rows that failed or are unknown are opened again. Nobody waits while the rows are read.

    Args:
        rows: The cards to create, as in `create_many`, in an order that stays. They are read once, and stored.
        board_id: The board of all rows.
        ledger: The path of a file for the workers of one host, or `postgresql://…` without a password (PGPASSWORD gives it).
        name: The name of the job in the ledger. By default it is made from the board and the account.
        account: The account that creates the cards, None for that of the environment.
        parts: How many parts to make, of rows that have a length. By default each has 5,000 rows.
        marker: Whether descriptions get codes, as with `marker=True` of `create_many`. With several jobs on one board nothing
            else tells their cards apart: rows in doubt may stay unknown without it.
        settle: As in `create_many`. It may be another one each time.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has another board, account, marker or other rows under this name.
    """
    job = _job(ledger, board_id, account, name)
    (job,) = await _store_jobs([job], ((board_id, account, row) for row in rows), ledger, _size(rows, parts), marker, settle)
    return job


@takes_location
async def plan_many(
    rows: Iterable[tuple[str, str | None, DraftLike]],
    ledger: str | os.PathLike[str],
    *,
    parts: int | None = None,
    marker: bool = False,
    settle: float | None = None,
) -> list[Job]:
    """Split rows for several boards and accounts into jobs, one for each board and account, or resume those planned with them.

    Args:
        rows: The board, the account and the card of each row, in an order that stays. The account is None for that of the
            environment. They are read once, and stored.
        ledger: As in `plan`.
        parts: About how many parts to make in all, of rows that have a length. By default each has 5,000 rows.
        marker: Whether descriptions get codes, as with `marker=True` of `create_many`. It is needed if several accounts create
            cards on one board, to tell them apart.
        settle: As in `plan`.

    Returns:
        The jobs, in the order in which the rows first name them.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has other rows for a board and account.
    """
    return await _store_jobs([], rows, ledger, _size(rows, parts), marker, settle)


@takes_location
async def open_job(
    board_id: str,
    ledger: str | os.PathLike[str],
    *,
    name: str | None = None,
    account: str | None = None,
    marker: bool = True,
    settle: float | None = None,
) -> Job:
    """Open a job whose rows come in batches, for `import_batch`. The same arguments open the same job.

    A job that was drained is open again.

    Args:
        board_id: The board of all rows.
        ledger: The path of a file for the workers of one host, or `postgresql://…` without a password (PGPASSWORD gives it).
        name: The name of the job in the ledger. By default it is made from the board and the account.
        account: The account that creates the cards, None for that of the environment.
        marker: Whether descriptions get codes, as with `marker=True` of `create_many`. They prove whose a card is, also while
            others create cards on the board.
        settle: As in `create_many`. It may be another one each time.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has another board, account or marker under this name.
    """
    job, options = job_for_batches(board_id, ledger, name, account, marker=marker, settle=settle)
    async with aclosing(Database(ledger)) as database:
        await database.create()
        await enter_job(database, job, options)
    return job


def job_for_batches(
    board_id: str,
    ledger: str | os.PathLike[str],
    name: str | None = None,
    account: str | None = None,
    *,
    marker: bool = True,
    settle: float | None = None,
) -> tuple[Job, str]:
    """Return a job that is to be opened, and its options as they are stored."""
    name = f"batches for {_name(board_id, account)}" if name is None else name
    return _job(ledger, board_id, account, name), _options(marker, settle)


async def enter_job(database: Database, job: Job, options: str) -> None:
    """Enter a job for batches, if it is not there.

    Raises:
        JournalError: another one has its name.
    """
    await database.change(partial(_enter, _Plan(job), database, options, is_planned=False))


def _name(board_id: str, account: str | None) -> str:
    return f"board {board_id}" + (f", account {account}" if account else "")


def _job(ledger: str | os.PathLike[str], board_id: str, account: str | None, name: str | None = None) -> Job:
    check_identifier(board_id, "board_id")
    if account is not None:
        check_text(account, "account")
    return Job(ledger=ledger, name=_name(board_id, account) if name is None else name, board_id=board_id, account=account)


def _options(marker: bool, settle: float | None) -> str:
    if not isinstance(marker, bool):
        raise TypeError(f"marker must be True or False, not {type(marker).__name__}")
    check_settle(settle)
    return json.dumps({"marker": marker, "settle": settle})


def _size(rows: Iterable[object], parts: int | None) -> int:
    """Return how many rows a part gets."""
    check_count(parts, "parts")
    if parts is None:
        return _PART_ROWS
    if not isinstance(rows, Sized):
        raise TypeError("parts needs rows that have a length, such as a list: a generator can't be split into so many")
    return max(1, -(-len(rows) // parts))


async def _store_jobs(
    given: Iterable[Job],
    rows: Iterable[tuple[str, str | None, DraftLike]],
    ledger: str | os.PathLike[str],
    size: int,
    marker: bool,
    settle: float | None,
) -> list[Job]:
    """Store rows, all or none, and return their jobs: those that are given, and one for each other board and account."""
    options = _options(marker, settle)
    plans = {(job.board_id, job.account): _Plan(job) for job in given}
    async with aclosing(Database(ledger)) as database:
        await database.create()
        # The parts are kept in a file until all rows were read: the input may be slow, and no transaction waits for it.
        with TemporaryFile() as spool:
            for index, (board_id, account, row) in enumerate(rows):
                if (one := plans.get((board_id, account))) is None:
                    if not marker and any(board_id == board for board, _ in plans):
                        raise ValueError(f"rows of several accounts on the board {board_id} need a marker, to tell them apart")
                    one = plans[board_id, account] = _Plan(_job(ledger, board_id, account))
                one.rows.append(as_draft(row, f"row {index}"))
                if len(one.rows) == size + _RESERVED:
                    one.dump(spool, size)
            for one in plans.values():
                if len(one.rows) > _RESERVED:
                    one.dump(spool, len(one.rows) - _RESERVED)
                one.dump(spool, _RESERVED, CLOSING)

            def store(connection: sa.Connection) -> None:
                new = {one.job.name for one in plans.values() if _enter(one, database, options, connection)}
                spool.seek(0)
                for values in _loaded(spool):
                    if values["job"] in new:
                        connection.execute(parts.insert().values(values))

            await database.change(store)
        return [await _open_again(database, one.job) for one in plans.values()]


def _loaded(spool: IO[bytes]) -> Iterator[dict[str, Any]]:
    try:
        while True:
            yield pickle.load(spool)  # noqa: S301 -- of this process, and of nobody else's
    except EOFError:
        return


@attrs.define
class _Plan:
    """A job while its rows are read."""

    job: Job
    rows: list[CardDraft] = attrs.field(factory=list)
    """Those that are not kept yet. The last ones of all are the closing part's."""
    digest: Any = attrs.field(factory=lambda: digest_rows(()))
    _first: int = 0
    _number: int = 0

    def dump(self, spool: IO[bytes], count: int, part: int | None = None) -> None:
        """Keep the next rows as a part."""
        drafts, self.rows = self.rows[:count], self.rows[count:]
        number = self._number if part is None else part
        digest = digest_rows(drafts, self.digest).hexdigest()
        values = {"job": self.job.name, "part": number, "key": str(number), "digest": digest}
        pickle.dump({**values, "first": self._first, "size": len(drafts), "rows": dump_drafts(drafts)}, spool)
        self._first, self._number = self._first + len(drafts), self._number + 1


def _enter(one: _Plan, database: Database, options: str, connection: sa.Connection, *, is_planned: bool = True) -> bool:
    """Enter a job, and return whether it is new. One that is there must be the same, and is no longer drained.

    Raises:
        JournalError: it is another one.
    """
    job, digest = one.job, one.digest.hexdigest() if is_planned else None
    of_job = jobs.c.job == job.name
    known = connection.execute(sa.select(jobs).where(of_job)).one_or_none()
    if known is None:
        values = {"job": job.name, "digest": digest, "board_id": job.board_id, "account": job.account, "options": options}
        connection.execute(jobs.insert().values(**values, secret=secrets.token_bytes(32), is_draining=False))
        if not is_planned:
            nothing = {"key": "", "digest": "", "first": 0, "size": 0, "rows": dump_drafts([])}
            connection.execute(parts.insert().values(job=job.name, part=CLOSING, **nothing))
        return True
    is_same = {
        "board": known.board_id == job.board_id,
        "account": known.account == job.account,
        "marker": json.loads(known.options)["marker"] == json.loads(options)["marker"],
        "rows": digest in {known.digest, None},
    }
    if not all(is_same.values()):
        others = " and ".join(name for name, same in is_same.items() if not same)
        raise JournalError(f"the ledger {database.where} has a job {job.name!r} with other {others}: give this one another name")
    connection.execute(jobs.update().where(of_job).values(is_draining=False, options=options))
    return False


async def _open_again(database: Database, job: Job) -> Job:
    """Return a job with its parts. If it has ended, open those that have rows without a card."""
    of_job = parts.c.job == job.name

    def open_again(connection: sa.Connection) -> Job:
        columns = (parts.c.part, parts.c.size, parts.c.state, parts.c.done, parts.c.failed, parts.c.in_doubt)
        found: Sequence[Any] = connection.execute(sa.select(*columns).where(of_job).order_by(parts.c.part)).all()
        if all(part.state == "done" for part in found):
            audit = connection.scalar(sa.select(jobs.c.audit).where(jobs.c.job == job.name))
            again = {part.part for part in found if part.done + part.in_doubt < part.size}
            if again or "audit_error" in json.loads(audit or "{}") or any(part.in_doubt for part in found):
                again.add(CLOSING)
            opened = {"state": "open", "lease_until": 0.0, "began_at": None, "stalls": 0}
            connection.execute(parts.update().where(of_job, parts.c.part.in_(again)).values(opened))
        since = connection.scalar(sa.select(sa.func.coalesce(sa.func.max(events.c.id), 0)))
        now = connection.scalar(sa.select(database.clock))
        numbers = tuple(part.part for part in found if part.part != CLOSING) or (CLOSING,)
        rows, done = sum(part.size for part in found), sum(part.done for part in found)
        return attrs.evolve(job, parts=numbers, rows=rows, already=done, since=since or 0, planned_at=float(now or 0.0))

    return await database.change(open_again)
