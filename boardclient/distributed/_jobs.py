"""A job on a ledger: its plan, the run of one of its parts, and the report of the whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Sized
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import attrs
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from boardclient._database import Database, checked_place, takes_place
from boardclient._environment import optional, required
from boardclient._pace import Pace
from boardclient._redaction import takes_secrets
from boardclient.bulk import BulkAudit, BulkReport, BulkRun, CardResult, digest, journal_identity
from boardclient.bulk._options import make_options
from boardclient.credentials._oauth import OAuthCredentials
from boardclient.distributed._lease import Lease, LeaseLostError, claim, worker_name
from boardclient.distributed._parts import CLOSING, PartLedger, State, dump_drafts, dump_ids, load_drafts, read_states
from boardclient.distributed._tables import events, jobs, parts
from boardclient.distributed._token_store import SqlTokenStore
from boardclient.errors import BoardClientError, ConsentRequired, Effect, JournalError
from boardclient.events import BulkProgress
from boardclient.models import Card, CardDraft, utc_timestamp
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
        account: The account that creates the cards, None for that of the environment. A ledger holds any number of jobs: one for
            each board and account.
        parts: How many parts to make. By default each has 5,000 rows.
        marker: As in `create_many`.
        settle: As in `create_many`.

    Raises:
        ValueError: an argument can't be used.
        JournalError: the ledger can't be used, or has other rows under this name.
    """
    place = checked_place(ledger)
    job = name or f"board {board_id}" + (f", account {account}" if account else "")
    if parts is not None and parts < 1:
        raise ValueError("parts must be at least 1")
    size = _PART_ROWS if parts is None or not isinstance(rows, Sized) else max(1, -(-len(rows) // parts))
    async with contextlib.aclosing(Database(place)) as database:
        await database.create()
        async with database.begin() as connection:
            known = (await connection.execute(sa.select(jobs.c.digest, jobs.c.options).where(jobs.c.job == job))).one_or_none()
            options = json.dumps({"marker": marker, "settle": settle})
            found = await _store(connection, job, rows, size, is_new=known is None)
            if known is None:
                values = {"job": job, "digest": found, "board_id": board_id, "options": options}
                await connection.execute(jobs.insert().values(**values, secret=secrets.token_bytes(32), is_draining=False))
            elif tuple(known) != (found, options):
                raise JournalError(f"the ledger {place} has a job {job!r} with other rows or options: give this one another name")
            else:
                await connection.execute(jobs.update().where(jobs.c.job == job).values(is_draining=False))
        states = await read_states(database, job)
        return await _opened_again(
            database, Job(ledger=place, name=job, board_id=board_id, parts=(), rows=0, account=account), states
        )


async def _store(connection: AsyncConnection, job: str, rows: Iterable[CardDraft], size: int, *, is_new: bool) -> str:
    """Store rows in parts if they are new, and return their digest. The last ones are the closing part's."""
    whole, kept, batch, first, number = blake2b(digest_size=16), deque[CardDraft](), list[CardDraft](), 0, 0

    async def insert(part: int, drafts: Sequence[CardDraft]) -> None:
        if is_new:
            values = {"job": job, "part": part, "first": first, "size": len(drafts), "rows": dump_drafts(drafts)}
            zeros = {"epoch": 0, "lease_until": 0.0, "requests": 0, "rejected": 0, "seconds": 0.0}
            await connection.execute(parts.insert().values(**values, **zeros, state="open"))

    for draft in rows:
        whole.update(digest(draft) + (draft.reference or "").encode() + b"\0")
        kept.append(draft)
        if len(kept) > _RESERVED:
            batch.append(kept.popleft())
        if len(batch) == size:
            await insert(number, batch)
            first, number, batch = first + len(batch), number + 1, []
    if batch:
        await insert(number, batch)
        first += len(batch)
    await insert(CLOSING, [*kept])
    return whole.hexdigest()


async def _opened_again(database: Database, job: Job, states: dict[int, State]) -> Job:
    """Return a job with its parts. If it has ended, open those that have rows without a card."""
    async with database.begin() as connection:
        columns = (parts.c.part, parts.c.first, parts.c.size, parts.c.state)
        found = (await connection.execute(sa.select(*columns).where(parts.c.job == job.name).order_by(parts.c.part))).all()
        if all(part.state == "done" for part in found):
            again = [
                part.part
                for part in found
                if any(states.get(seq, ("",))[0] in {"", "failed", "waiting"} for seq in _numbers(part.first, part.size))
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
        JournalError: the ledger can't be used, or belongs to another service or account.
        ConsentRequired: the account's user has to sign in. The part is given back, and another call resumes it.
        BoardClientError: the run of the part ended early. Another call resumes it.
    """
    owner = worker_name()
    async with contextlib.AsyncExitStack() as opened:
        database = await opened.enter_async_context(contextlib.aclosing(Database(job.ledger)))
        await database.check()
        if session is None:
            session = await opened.enter_async_context(AsyncSession.from_env(_credentials(job)))
        if session.cards._runner.limiter is None:
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
                if held.is_draining:
                    return


def _credentials(job: Job) -> OAuthCredentials | None:
    if job.account is None:
        return None
    names = ("client_id", "client_secret", "redirect_uri", "auth_url")
    values: dict[str, Any] = {name: required(f"BOARDCLIENT_{name.upper()}") for name in names}
    store = SqlTokenStore(job.ledger)
    return OAuthCredentials(**values, key=optional("BOARDCLIENT_KEY"), store=store, account=job.account)


async def _park(database: Database, job: Job, kind: object, error: BaseException | None, trace: object) -> None:
    """Note that all parts of a job wait for its user. The next call that runs one opens it."""
    if isinstance(error, ConsentRequired):
        waiting = (parts.c.job == job.name) & (parts.c.state == "open") & (parts.c.lease_until < database.clock)
        async with database.begin() as connection:
            await connection.execute(parts.update().where(waiting).values(state="consent"))


def import_part_now(job: Job, part: int, **options: Any) -> None:
    """Create the cards of a part, as `import_part` does, from a plain function."""
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
        before = dump_ids(card.id for card in await session.boards.cards(job.board_id))
        async with database.begin() as connection:
            unset = of_job & jobs.c.baseline.is_(None)
            await connection.execute(jobs.update().where(unset).values(baseline=before, identity=identity))
    return options


async def _is_open(database: Database, job: str, part: int) -> bool:
    """Return True if a part is open; the closing part, if all others are done."""
    is_other = (parts.c.job == job) & (parts.c.part != CLOSING) & (parts.c.state != "done")
    others = sa.select(sa.func.count()).select_from(parts).where(is_other).scalar_subquery()
    async with database.begin() as connection:
        wanted = sa.select(parts.c.state, others).where(parts.c.job == job, parts.c.part == part)
        found = (await connection.execute(wanted)).one_or_none()
    if found is None:
        raise JournalError(f"the job {job!r} has no part {part}")
    state, waiting = found
    return bool(state != "done" and (part != CLOSING or not waiting))


async def _run(
    database: Database,
    job: Job,
    lease: Lease,
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
            session.cards._runner,
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
        run = BulkRun(session.cards._runner, drafts, attrs.evolve(checked, ledger=ledger), listeners)
        ledger.on_drain = run.stop
        async with run:
            await run.wait()
            if parked:
                raise ConsentRequired(f"the account of {job.name} has to sign in", job.account or "")
            if not lease.is_draining:
                state = "open" if kept else "done"
                await ledger.finish(run.report, _dump_audit(run.report), state=state)
    finally:
        await ledger.aclose()
        with contextlib.suppress(JournalError):  # then it ends by itself
            await _give_back(database, lease)


async def _give_back(database: Database, lease: Lease) -> None:
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


@takes_place
async def report(ledger: Job | str | os.PathLike[str], *, name: str | None = None) -> BulkReport:
    """Return the report and the audit of a whole job.

    Args:
        ledger: The job, or its ledger. Only a job knows which cards existed when it was planned: for a ledger all are "created".
        name: The name of the job, if the ledger holds several.

    Raises:
        JournalError: the ledger can't be read, or has no such job.
    """
    async with _of(ledger, name) as (database, names):
        if len(names) != 1:
            raise JournalError(f"the ledger {database.where} has the jobs {', '.join(map(repr, names))}: name one of them")
        job = names[0]
        states = await read_states(database, job)
        async with database.begin() as connection:
            sums = sa.select(*(sa.func.coalesce(sa.func.sum(column), 0) for column in (parts.c.requests, parts.c.rejected)))
            requests, rejected = tuple((await connection.execute(sums.where(parts.c.job == job))).one())
            seconds = await connection.scalar(sa.select(sa.func.max(parts.c.seconds)).where(parts.c.job == job))
            audit = await connection.scalar(sa.select(jobs.c.audit).where(jobs.c.job == job))
    counts = Counter(state for state, _ in states.values())
    already = ledger.already if isinstance(ledger, Job) else 0
    values: dict[str, Any] = json.loads(audit or "{}")
    failure = values.pop("audit_error", None)
    return BulkReport(
        created=counts["done"] - already,
        already=already,
        failed=counts["failed"] + counts["waiting"],
        unknown=counts["logged"] + counts["unknown"],
        seconds=seconds or 0.0,
        rate=(counts["done"] - already) / seconds if seconds else 0.0,
        requests=int(requests),
        rejected=int(rejected),
        audit=_load_audit(values) if values else None,
        audit_error=None if failure is None else BoardClientError(failure),
    )


@takes_place
async def reports(ledger: str | os.PathLike[str]) -> dict[str, BulkReport]:
    """Return the report of each job of a ledger, by their names: one baseline and one audit for each board and account.

    Raises:
        JournalError: the ledger can't be read.
    """
    async with _of(ledger, None) as (_, names):
        return {name: await report(ledger, name=name) for name in names}


@takes_place
async def status(ledger: str | os.PathLike[str], *, name: str | None = None) -> list[PartStatus]:
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
                failed=counts["failed"] + counts["waiting"],
                in_doubt=counts["logged"] + counts["unknown"],
                seconds=part.seconds,
                rate=counts["done"] / part.seconds if part.seconds else 0.0,
            )
        )
    return result


@takes_place
async def drain(ledger: str | os.PathLike[str], *, name: str | None = None) -> None:
    """Let the workers of a job, or of all jobs of the ledger, end once their requests are completed.

    `plan` opens a job again.

    Raises:
        JournalError: the ledger can't be written, or has no such job.
    """
    async with _of(ledger, name) as (database, names), database.begin() as connection:
        await connection.execute(jobs.update().where(jobs.c.job.in_(names)).values(is_draining=True))


@contextlib.asynccontextmanager
async def _of(ledger: Job | str | os.PathLike[str], name: str | None) -> AsyncGenerator[tuple[Database, list[str]], None]:
    """Open a ledger, and find a job in it, or all."""
    if isinstance(ledger, Job):
        name, ledger = ledger.name, ledger.ledger
    place = checked_place(ledger)
    if "://" not in place and not _exists(place):
        raise JournalError(f"there is no ledger {place}: check the path")
    async with contextlib.aclosing(Database(place)) as database:
        await database.check()
        async with database.begin() as connection:
            names = list((await connection.execute(sa.select(jobs.c.job))).scalars())
        if name is not None and name not in names:
            raise JournalError(f"the ledger {place} has no job {name!r}, but {', '.join(map(repr, names)) or 'none'}")
        yield database, names if name is None else [name]


def _exists(place: str) -> bool:
    return os.path.exists(place)


async def results(job: Job) -> AsyncGenerator[CardResult, None]:
    """Yield what became of each row of a job that a worker has taken up, part by part.

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


def _dump_audit(of_run: BulkReport) -> str | None:
    """Return an audit as it is stored, with cards and drafts as lists."""
    if of_run.audit is None:
        return None if of_run.audit_error is None else json.dumps({"audit_error": of_run.audit_error.message})
    return json.dumps(attrs.asdict(of_run.audit, recurse=False), default=_fields)


def _fields(value: Any) -> list[Any]:
    due = None if value.due is None else utc_timestamp(value.due)
    return [type(value).__name__, getattr(value, "id", None), value.name, value.list_id, value.desc, due]


def _load_audit(stored: dict[str, Any]) -> BulkAudit:
    values: dict[str, Any] = {name: tuple(map(_loaded, one)) if isinstance(one, list) else one for name, one in stored.items()}
    return BulkAudit(**values)


def _loaded(values: list[Any]) -> Card | CardDraft:
    kind, card_id, name, list_id, desc, due = values
    when = None if due is None else datetime.fromisoformat(due)
    if kind == "Card":
        return Card(card_id, name=name, list_id=list_id, desc=desc, due=when)
    return CardDraft(name, list_id, desc=desc, due=when)
