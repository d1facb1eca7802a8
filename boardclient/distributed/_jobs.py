"""A job on a ledger: its plan, the run of one of its parts, and the report of the whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import secrets
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Sized
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import attrs
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from boardclient._database import Database, checked_place, takes_place
from boardclient._environment import optional, required
from boardclient._pace import Pace
from boardclient._redaction import takes_secrets
from boardclient.bulk import BulkReport, BulkRun, CardResult, digest, journal_identity
from boardclient.bulk._options import check_count, check_settle, make_options
from boardclient.credentials._oauth import OAuthCredentials
from boardclient.distributed._ledger import (
    CLOSING,
    State,
    dump_audit,
    dump_drafts,
    events,
    jobs,
    load_audit,
    load_drafts,
    parts,
    read_states,
)
from boardclient.distributed._parts import LeaseLostError, PartLease, PartLedger, claim, worker_name
from boardclient.distributed._token_store import SqlTokenStore
from boardclient.errors import BoardClientError, ConsentRequired, Effect, JournalError
from boardclient.events import BulkProgress
from boardclient.models import Card, CardDraft, check_identifier, check_seconds
from boardclient.session import AsyncSession

_PART_ROWS: Final = 5000
_RESERVED: Final = 8
"""How many rows the closing part sends: their cards show that a listing without those of rows in doubt was complete."""
_AT_ONCE: Final = 2
"""How many of them are sent while rows are in doubt. A worker that is killed then leaves them in doubt, and others are needed."""
_POLL_SECONDS: Final = 0.5


@takes_secrets  # a URL with a password is refused
@attrs.frozen(kw_only=True)
class Job:
    """A job that was planned. It can be pickled or passed as `attrs.asdict(job)`, and holds no credential.

    Attributes:
        ledger: The path of the ledger's file, or its URL.
        name: The name of the job in the ledger.
        board_id: The board of all rows.
        parts: The numbers of the parts to pass to `import_part`.
        rows: The number of rows.
        already: How many of them had a card when the job was planned.
        since: The last event in the ledger at that time.
        account: The account that creates the cards, None for that of the environment.
    """

    ledger: str = attrs.field(converter=checked_place)
    name: str
    board_id: str
    parts: tuple[int, ...] = attrs.field(converter=tuple)
    rows: int
    already: int = 0
    since: int = 0
    account: str | None = None


@attrs.frozen(kw_only=True)
class PartStatus:
    """How far a part is. `part` is -1 for the closing part, which reconciles what the others left in doubt.

    Attributes:
        part: The number of the part.
        job: The name of its job.
        state: "open", "held" by a worker, "consent" if it waits until the account's user signs in, or "done".
        owner: The worker that holds it, or held it last.
        rows: How many rows it has.
        done, failed, in_doubt: How many of them exist, were not created, or may exist.
        seconds, rate: How long its runs took, and how many cards they made in a second.
    """

    job: str
    part: int
    state: str
    owner: str | None
    rows: int
    done: int
    failed: int
    in_doubt: int
    seconds: float
    rate: float


@takes_place
async def plan(
    rows: Iterable[CardDraft],
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

    In a job that has ended, the rows that failed or are unknown are opened again.

    Args:
        rows: The cards to create, in an order that stays. They are read once, and stored.
        board_id: The board of all rows.
        ledger: The path of a file for the workers of one host, or `postgresql://…` without a password (PGPASSWORD gives it).
        name: The name of the job in the ledger. By default it is made from the board and the account.
        account: The account that creates the cards, None for that of the environment.
        parts: How many parts to make. By default each has 5,000 rows.
        marker: Whether descriptions get codes, as with `marker=True` of `create_many`.
        settle: As in `create_many`. It may be another one each time.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has other rows under this name.
    """
    job = _job(ledger, board_id, account, name)
    (job,) = await _planned([job], ((board_id, account, row) for row in rows), ledger, _size(rows, parts), marker, settle)
    return job


@takes_place
async def plan_many(
    rows: Iterable[tuple[str, str | None, CardDraft]],
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
        parts: About how many parts to make in all. By default each has 5,000 rows.
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
    return await _planned([], rows, ledger, _size(rows, parts), marker, settle)


def _job(ledger: str | os.PathLike[str], board_id: str, account: str | None, name: str | None = None) -> Job:
    check_identifier(board_id, "board_id")
    name = name or f"board {board_id}" + (f", account {account}" if account else "")
    return Job(ledger=ledger, name=name, board_id=board_id, account=account, parts=(), rows=0)


def _size(rows: Iterable[object], parts: int | None) -> int:
    """Return how many rows a part gets."""
    check_count(parts, "parts")
    return _PART_ROWS if parts is None or not isinstance(rows, Sized) else max(1, -(-len(rows) // parts))


async def _planned(
    given: Iterable[Job],
    rows: Iterable[tuple[str, str | None, CardDraft]],
    ledger: str | os.PathLike[str],
    size: int,
    marker: bool,
    settle: float | None,
) -> list[Job]:
    """Store rows, all or none, and return their jobs: those that are given, and one for each other board and account."""
    if not isinstance(marker, bool):
        raise TypeError(f"marker must be True or False, not {type(marker).__name__}")
    check_settle(settle)
    options = json.dumps({"marker": marker, "settle": settle})
    async with contextlib.aclosing(Database(ledger)) as database:
        await database.create()
        async with database.begin() as connection:
            found = await connection.execute(sa.select(jobs.c.job, jobs.c.digest, jobs.c.options))
            known = {name: (of_rows, json.loads(stored)["marker"]) for name, of_rows, stored in found}
            plans = {(job.board_id, job.account): _Plan(job, is_new=job.name not in known) for job in given}
            for board_id, account, draft in rows:
                if (one := plans.get((board_id, account))) is None:
                    if not marker and any(board_id == board for board, _ in plans):
                        raise ValueError(f"rows of several accounts on the board {board_id} need a marker, to tell them apart")
                    job = _job(ledger, board_id, account)
                    one = plans[board_id, account] = _Plan(job, is_new=job.name not in known)
                one.add(draft)
                if len(one.rows) == size + _RESERVED:
                    await one.store(connection, size)
            for one in plans.values():
                if len(one.rows) > _RESERVED:
                    await one.store(connection, len(one.rows) - _RESERVED)
                await one.store(connection, _RESERVED, CLOSING)
                name, of_rows = one.job.name, one.digest.hexdigest()
                if one.is_new:
                    values = {"job": name, "digest": of_rows, "board_id": one.job.board_id, "options": options}
                    await connection.execute(jobs.insert().values(**values, secret=secrets.token_bytes(32), is_draining=False))
                elif known[name] != (of_rows, marker):
                    raise JournalError(
                        f"the ledger {database.where} has a job {name!r} with other rows or marker: give this one another name"
                    )
                await connection.execute(jobs.update().where(jobs.c.job == name).values(is_draining=False, options=options))
        return [await _opened_again(database, one.job) for one in plans.values()]


@attrs.define
class _Plan:
    """A job while its rows are read."""

    job: Job
    is_new: bool
    digest: Any = attrs.field(factory=partial(blake2b, digest_size=16))
    rows: list[CardDraft] = attrs.field(factory=list)
    """Those that are not stored yet. The last ones of all are the closing part's."""
    _first: int = 0
    _number: int = 0

    def add(self, draft: CardDraft) -> None:
        """Read a row."""
        self.digest.update(digest(draft) + (draft.reference or "").encode() + b"\0")
        self.rows.append(draft)

    async def store(self, connection: AsyncConnection, count: int, part: int | None = None) -> None:
        """Store the next rows as a part, if the job is new."""
        drafts, self.rows = self.rows[:count], self.rows[count:]
        if self.is_new:
            number = self._number if part is None else part
            values = {
                "job": self.job.name,
                "part": number,
                "first": self._first,
                "size": len(drafts),
                "rows": dump_drafts(drafts),
            }
            zeros = {"epoch": 0, "lease_until": 0.0, "requests": 0, "rejected": 0, "seconds": 0.0}
            await connection.execute(parts.insert().values(**values, **zeros, state="open"))
        self._first, self._number = self._first + len(drafts), self._number + 1


async def _opened_again(database: Database, job: Job) -> Job:
    """Return a job with its parts. If it has ended, open those that have rows without a card."""
    states = await read_states(database, job.name)
    async with database.begin() as connection:
        columns = (parts.c.part, parts.c.first, parts.c.size, parts.c.state)
        found = (await connection.execute(sa.select(*columns).where(parts.c.job == job.name).order_by(parts.c.part))).all()
        if all(part.state == "done" for part in found):
            again = [
                part.part
                for part in found
                if any(states.get(seq, ("",))[0] in {"", "failed"} for seq in _numbers(part.first, part.size))
            ]
            if again or any(state in {"logged", "unknown"} for state, _ in states.values()):
                again.append(CLOSING)
            await connection.execute(
                parts.update().where(parts.c.job == job.name, parts.c.part.in_(again)).values(state="open", lease_until=0.0)
            )
        since = await connection.scalar(sa.select(sa.func.coalesce(sa.func.max(events.c.id), 0)))
    done = sum(state == "done" for state, _ in states.values())
    numbers = tuple(part.part for part in found if part.part != CLOSING) or (CLOSING,)
    return attrs.evolve(job, parts=numbers, rows=sum(part.size for part in found), already=done, since=since or 0)


def _numbers(first: int, count: int) -> range:
    """Return the numbers of a part's rows."""
    return range(first + 1, first + count + 1)


async def import_part(
    job: Job,
    part: int,
    *,
    session: AsyncSession | None = None,
    concurrency: int | None = None,
    lease: float = 30.0,
    on_progress: Callable[[BulkProgress], object] | None = None,
) -> None:
    """Create the cards of a part, and settle the whole job if it is the last one.

    It can be called any number of times, anywhere and at once: one worker holds a part, others wait until it is done or its
    lease has ended. A worker that is suspended for longer sends nothing when it wakes up.

    Args:
        job: The job, as `plan` returned it.
        part: One of `job.parts`.
        session: The session to use. By default one is made by `AsyncSession.from_env()`, so that no credential travels. For a job
            with an account it signs with the token that `SqlTokenStore` has for it in the ledger's database, and renews it as
            `BOARDCLIENT_CLIENT_ID` and the other variables of `SignIn.from_env` say. If it has no limiter, all workers with this
            account share one pace.
        concurrency: As in `create_many`.
        lease: The seconds after which the part of a worker that has died is taken over.
        on_progress: Called with the progress of the part.

    Raises:
        TypeError: `lease` is no number.
        ValueError: `concurrency` or `lease` is out of range.
        JournalError: the ledger can't be used, or belongs to another service or account.
        ConsentRequired: the account's user has to sign in. The part is given back, and another call resumes it.
        BoardClientError: the run of the part ended early. Another call resumes it.
    """
    check_worker(concurrency, lease)
    owner = worker_name()
    async with contextlib.AsyncExitStack() as opened:
        database = await opened.enter_async_context(contextlib.aclosing(Database(job.ledger)))
        await database.check()
        if session is None:
            session = await opened.enter_async_context(AsyncSession.from_env(_credentials(job)))
        if session.cards._pipeline.limiter is None:
            pace = Pace(shared=job.ledger, account=json.dumps(dict(session.identity), sort_keys=True))
            session = session.with_options(limiter=pace)
        opened.push_async_exit(partial(_park, database, job))
        options = await _prepare(database, job, session)
        for number in dict.fromkeys((part, CLOSING)):
            while await _is_open(database, job.name, number):
                held = await claim(database, job.name, number, owner, lease)
                if held is None:
                    await asyncio.sleep(min(_POLL_SECONDS, lease / 4))
                    continue
                with contextlib.suppress(LeaseLostError):  # another worker may have it now, or this one takes it again
                    await _run(database, job, held, session, {**options, "concurrency": concurrency}, on_progress)


def check_worker(concurrency: int | None, lease: float) -> None:
    """Check the options of `import_part`.

    Raises:
        TypeError: `lease` is no number.
        ValueError: an option is out of range.
    """
    check_count(concurrency, "concurrency")
    if not 0 < check_seconds(lease, "lease") < math.inf:
        raise ValueError("lease must be more than 0 seconds, and finite")


def _credentials(job: Job) -> OAuthCredentials | None:
    if job.account is None:
        return None
    names = ("client_id", "client_secret", "redirect_uri", "auth_url")
    values: dict[str, Any] = dict(zip(names, required(*(f"BOARDCLIENT_{name.upper()}" for name in names)), strict=True))
    store = SqlTokenStore(job.ledger)
    return OAuthCredentials(**values, key=optional("BOARDCLIENT_KEY"), store=store, account=job.account)


async def _park(database: Database, job: Job, kind: object, error: BaseException | None, trace: object) -> None:
    """Note that all parts of a job wait for its user. The next call that runs one opens it."""
    if isinstance(error, ConsentRequired):
        waiting = (parts.c.job == job.name) & (parts.c.state == "open") & (parts.c.lease_until < database.clock)
        async with database.begin() as connection:
            await connection.execute(parts.update().where(waiting).values(state="consent"))


def import_part_now(job: Job, part: int, **options: Any) -> None:
    """Create the cards of a part, as `import_part` does, from a plain function.

    Raises:
        RuntimeError: an event loop runs in this thread.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("import_part_now can't run where an event loop runs: await import_part(job, part) instead")
    asyncio.run(import_part(job, part, **options))


async def _prepare(database: Database, job: Job, session: AsyncSession) -> dict[str, Any]:
    """Bind a job to a service and account, and read the cards before it."""
    of_job = jobs.c.job == job.name
    async with database.begin() as connection:
        found = (
            await connection.execute(sa.select(jobs.c.options, jobs.c.identity, jobs.c.baseline).where(of_job))
        ).one_or_none()
    if found is None:
        raise JournalError(f"the ledger {job.ledger} has no job {job.name!r}")
    options: dict[str, Any] = json.loads(found.options)
    identity = json.dumps(journal_identity(session.identity, job.board_id, options["marker"] or None), sort_keys=True)
    if found.identity not in {None, identity}:
        raise JournalError(f"the ledger {job.ledger} belongs to another import: {found.identity} (now {identity})")
    if found.baseline is None:
        # Whatever another worker has stored meanwhile stays: it was read before that worker sent anything.
        ids = {card.id for card in await session.boards.cards(job.board_id)}
        before = zlib.compress(json.dumps(sorted(ids)).encode(), 1)
        async with database.begin() as connection:
            unset = of_job & jobs.c.baseline.is_(None)
            await connection.execute(jobs.update().where(unset).values(baseline=before, identity=identity))
    return options


async def _is_open(database: Database, job: str, part: int) -> bool:
    """Return True if a part is open and its job not drained; the closing part, if all others are done."""
    is_other = (parts.c.job == job) & (parts.c.part != CLOSING) & (parts.c.state != "done")
    others = sa.select(sa.func.count()).select_from(parts).where(is_other).scalar_subquery()
    async with database.begin() as connection:
        wanted = sa.select(parts.c.state, jobs.c.is_draining, others).join_from(parts, jobs, parts.c.job == jobs.c.job)
        found = (await connection.execute(wanted.where(parts.c.job == job, parts.c.part == part))).one_or_none()
    if found is None:
        raise JournalError(f"the job {job!r} has no part {part}")
    state, is_draining, waiting = found
    return bool(state != "done" and not is_draining and (part != CLOSING or not waiting))


async def _run(
    database: Database,
    job: Job,
    lease: PartLease,
    session: AsyncSession,
    options: dict[str, Any],
    on_progress: Callable[[BulkProgress], object] | None,
) -> None:
    """Run a part that this worker holds, and close it. Rows in doubt are left to the closing part.

    The closing part keeps rows back for another run while there are rows in doubt.
    """
    states = await read_states(database, job.name, lease.part)
    entries = await _entries(database, job.name, lease.part, states)
    new = [seq for seq, _ in entries if seq not in states]
    kept = {*new[_AT_ONCE:]} if lease.part == CLOSING and len(new) < len(entries) else set()
    entries = [entry for entry in entries if entry[0] not in kept]
    drafts = [draft for _, draft in entries]
    ledger = PartLedger(database, lease, entries, states)
    try:
        await ledger.load()
        checked = make_options(
            session.cards._pipeline,
            drafts,
            journal=None,
            board_id=job.board_id,
            unknown="reconcile" if lease.part == CLOSING else "report",
            **options,
        )
        parked: list[BulkProgress] = []

        def park(progress: BulkProgress) -> None:
            if progress.waiting_for == "consent" and not parked:
                parked.append(progress)
                run.stop()

        listeners = [park] if on_progress is None else [park, on_progress]
        run = BulkRun(session.cards._pipeline, drafts, attrs.evolve(checked, ledger=ledger), listeners)
        ledger.on_drain = run.stop
        async with run:
            await run.wait()
            if parked:
                raise ConsentRequired(f"the account of {job.name} has to sign in", job.account or "")
            if not lease.is_draining:
                state = "open" if kept else "done"
                await ledger.finish(run.report, dump_audit(run.report), state=state)
    finally:
        await ledger.aclose()
        with contextlib.suppress(JournalError):  # then it ends by itself
            await _give_back(database, lease)


async def _give_back(database: Database, lease: PartLease) -> None:
    async with database.begin() as connection:
        held = (parts.c.job == lease.job) & (parts.c.part == lease.part) & (parts.c.epoch == lease.epoch)
        await connection.execute(parts.update().where(held).values(lease_until=0.0))


async def _entries(database: Database, job: str, part: int, states: dict[int, State]) -> list[tuple[int, CardDraft]]:
    """Return the rows of a part; of the closing part also all that are in doubt."""
    wanted = parts.c.job == job if part == CLOSING else (parts.c.job == job) & (parts.c.part == part)
    found: list[tuple[int, CardDraft]] = []
    async with database.begin() as connection:
        columns = (parts.c.part, parts.c.first, parts.c.size, parts.c.rows)
        async for row in await connection.stream(sa.select(*columns).where(wanted).order_by(parts.c.first)):
            numbers = _numbers(row.first, row.size)
            is_own = row.part == part
            in_doubt = {seq for seq in numbers if states.get(seq, ("",))[0] in {"logged", "unknown"}}
            if is_own or in_doubt:
                drafts = load_drafts(row.rows)
                found += [pair for pair in zip(numbers, drafts, strict=True) if is_own or pair[0] in in_doubt]
    return found


# --- the whole


Jobs: TypeAlias = Job | Sequence[Job] | str | os.PathLike[str]
"""A job, several, or all of a ledger."""


@takes_place
async def report(ledger: Jobs, *, name: str | None = None) -> BulkReport:
    """Return the report and the audit of a job, or of several together.

    Args:
        ledger: A job, several of one ledger, or a ledger. Only jobs know which cards existed when they were planned: for a ledger
            all are "created".
        name: The name of a job of the ledger. None (default) stands for all.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    given = [ledger] if isinstance(ledger, Job) else [] if isinstance(ledger, str | os.PathLike) else ledger
    counts, already = Counter[str](), sum(job.already for job in given)
    async with _of(ledger, name) as (database, names):
        for job in names:
            counts.update(state for state, _ in (await read_states(database, job)).values())
        async with database.begin() as connection:
            columns = (sa.func.sum(parts.c.requests), sa.func.sum(parts.c.rejected), sa.func.max(parts.c.seconds))
            wanted = sa.select(*(sa.func.coalesce(column, 0) for column in columns)).where(parts.c.job.in_(names))
            requests, rejected, seconds = tuple((await connection.execute(wanted)).one())
            stored = (await connection.execute(sa.select(jobs.c.audit).where(jobs.c.job.in_(names)))).scalars().all()
    audits: list[dict[str, Any]] = [json.loads(audit or "{}") for audit in stored]
    failures = [values.pop("audit_error") for values in audits if "audit_error" in values]
    return BulkReport(
        created=counts["done"] - already,
        already=already,
        failed=counts["failed"],
        unknown=counts["logged"] + counts["unknown"],
        seconds=float(seconds),
        rate=(counts["done"] - already) / seconds if seconds else 0.0,
        requests=int(requests),
        rejected=int(rejected),
        audit=load_audit(audits) if audits and all(audits) else None,
        audit_error=BoardClientError(failures[0]) if failures else None,
    )


@takes_place
async def status(ledger: Jobs, *, name: str | None = None) -> list[PartStatus]:
    """Return how far each part of a job is, or of all jobs of the ledger, and who holds it.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    async with _of(ledger, name) as (database, names):
        states = {job: await read_states(database, job) for job in names}
        async with database.begin() as connection:
            is_held = (parts.c.lease_until > database.clock).label("is_held")
            wanted = sa.select(parts, is_held).where(parts.c.job.in_(names)).order_by(parts.c.job, parts.c.first)
            found = (await connection.execute(wanted)).all()
    result: list[PartStatus] = []
    for part in found:
        counts = Counter(states[part.job].get(seq, ("",))[0] for seq in _numbers(part.first, part.size))
        result.append(
            PartStatus(
                job=part.job,
                part=part.part,
                state="held" if part.state == "open" and part.is_held else part.state,
                owner=part.owner,
                rows=part.size,
                done=counts["done"],
                failed=counts["failed"],
                in_doubt=counts["logged"] + counts["unknown"],
                seconds=part.seconds,
                rate=counts["done"] / part.seconds if part.seconds else 0.0,
            )
        )
    return result


@takes_place
async def drain(ledger: Jobs, *, name: str | None = None) -> None:
    """Let the workers of a job, or of all jobs of the ledger, end once their requests are completed.

    They learn of it within a quarter of their lease. No part is begun any more: `import_part` returns. `plan` opens a job again.

    Raises:
        JournalError: the ledger can't be written, or has no such job.
    """
    async with _of(ledger, name) as (database, names), database.begin() as connection:
        await connection.execute(jobs.update().where(jobs.c.job.in_(names)).values(is_draining=True))


@contextlib.asynccontextmanager
async def _of(ledger: Jobs, name: str | None) -> AsyncGenerator[tuple[Database, list[str]], None]:
    """Open a ledger, and find jobs in it, or all."""
    wanted = [] if name is None else [name]
    if not isinstance(ledger, str | os.PathLike):
        first, *others = [ledger] if isinstance(ledger, Job) else ledger
        ledger, wanted = first.ledger, [job.name for job in (first, *others)]
    place = checked_place(ledger)
    if "://" not in place and not _exists(place):
        raise JournalError(f"there is no ledger {place}: check the path")
    async with contextlib.aclosing(Database(place)) as database:
        await database.check()
        async with database.begin() as connection:
            names = list((await connection.execute(sa.select(jobs.c.job))).scalars())
        for one in set(wanted).difference(names):
            raise JournalError(f"the ledger {place} has no job {one!r}, but {', '.join(map(repr, names)) or 'none'}")
        yield database, wanted or names


def _exists(place: str) -> bool:
    return os.path.exists(place)  # in a function, since this one is not asynchronous


async def results(job: Job) -> AsyncGenerator[CardResult, None]:
    """Yield what became of each row of a job that a worker has taken up and not given back, part by part.

    Raises:
        JournalError: the ledger can't be read.
    """
    async with contextlib.aclosing(Database(job.ledger)) as database:
        states = await read_states(database, job.name)
        before = await read_states(database, job.name, until=job.since)
        async with database.begin() as connection:
            found = await connection.stream(sa.select(parts).where(parts.c.job == job.name).order_by(parts.c.first))
            async for part in found:
                for seq, draft in zip(_numbers(part.first, part.size), load_drafts(part.rows), strict=True):
                    if seq in states:
                        yield _result(seq, draft, states[seq], is_earlier=before.get(seq, ("",))[0] == "done")


def _result(seq: int, draft: CardDraft, known: State, *, is_earlier: bool) -> CardResult:
    state, detail = known
    if state == "done":
        return CardResult(index=seq - 1, draft=draft, card=Card(detail), state="already" if is_earlier else "created")
    is_unknown = state in {"logged", "unknown"}
    error = BoardClientError(detail, Effect.UNKNOWN if is_unknown else Effect.REJECTED)
    return CardResult(index=seq - 1, draft=draft, error=error, state="unknown" if is_unknown else "failed")
