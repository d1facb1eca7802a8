"""Jobs on a ledger: each row exists once, whatever happens to workers and databases."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from waiting import SECONDS, until

from boardclient import (
    AsyncSession,
    AuthenticationError,
    CardDraft,
    ConsentRequired,
    CredentialError,
    JournalError,
    Pace,
    Token,
)
from boardclient.credentials import Credentials, Exchange
from boardclient.distributed import (
    Job,
    SqlTokenStore,
    drain,
    import_batch_now,
    import_part,
    import_part_now,
    open_job,
    plan,
    plan_many,
    report,
    results,
    resume,
    status,
)
from boardclient.distributed import _leases as leases
from boardclient.distributed import _worker_process as workers
from boardclient.integrations.dask import DaskRun
from boardclient.store import _sqlite
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.testing import BoardService, faults

if TYPE_CHECKING:
    from ledger_places import Server


@attrs.define
class Board:
    """A board of a real service, and a ledger."""

    service: BoardService
    session: AsyncSession
    ledger: str
    board_id: str
    list_id: str

    @property
    def sent(self) -> int:
        """How many cards the service was asked to create."""
        return sum(call.operation == "cards.create" for call in self.service.calls)

    def drafts(self, count: int) -> list[CardDraft]:
        return [CardDraft(f"card {n}", self.list_id, desc="text", reference=f"r{n}") for n in range(count)]

    async def plan(self, drafts: Sequence[CardDraft], **options: Any) -> Job:
        return await plan(drafts, self.board_id, self.ledger, **{"parts": 4, "settle": 0.3, **options})

    async def run(self, job: Job, **options: Any) -> None:
        """Run all parts at once."""
        options = {"session": self.session, "concurrency": 4, "lease": 3.0, **options}
        await asyncio.gather(*(import_part(job, part, **options) for part in job.parts))

    async def is_run(self, job: Job, **options: Any) -> bool:
        """Run all parts, and return False if the credentials were refused."""
        with contextlib.suppress(AuthenticationError, CredentialError):
            await self.run(job, **options)
            return True
        return False

    async def cards(self) -> Counter[str | None]:
        return Counter(card.name for card in await self.session.boards.cards(self.board_id))


async def change(ledger: str, statement: str) -> None:
    """Change a ledger as no worker does."""
    async with contextlib.aclosing(Database(ledger)) as database:
        await database.change(lambda connection: connection.run(statement))


@pytest.fixture
async def board(ledger: str, request: pytest.FixtureRequest) -> AsyncIterator[Board]:
    async with BoardService(latency=getattr(request, "param", 0.0)) as service, service.session() as session:
        made = await session.boards.create("Board")
        board_list = await session.lists.create("To Do", board_id=made.id)
        yield Board(service, session, ledger, made.id, board_list.id)


# --- jobs


async def test_the_parts_of_a_job_make_each_card_once(board: Board) -> None:
    """Lost responses are settled once for all parts, and there is one audit."""
    board.service.faults.add(faults.drop(commit=True), "cards.create", call=[20, 130])
    board.service.faults.add(faults.drop(), "cards.create", call=[50, 131])
    job = await board.plan(board.drafts(200))
    assert (job.rows, job.already, len(job.parts)) == (200, 0, 4)
    await board.run(job)
    found = await report(job)
    assert found.problems == ()
    assert (found.created, found.already, found.failed, found.unknown, found.requests) == (200, 0, 0, 0, board.sent)
    assert found.audit is not None
    assert (found.audit.confirmed, found.audit.lost, found.audit.unexpected) == (200, 0, ())
    assert await board.cards() == Counter(f"card {n}" for n in range(200))
    assert len(board.service.calls_of("boards.cards")) < 16  # not one for each part and doubt


async def test_the_same_job_again_creates_nothing(board: Board) -> None:
    """A job is resumed by planning it again, and calls for parts that are done return at once."""
    drafts = board.drafts(20)
    for already in (0, 20, 20):
        job = await board.plan(drafts)
        assert job.already == already
        await board.run(job)
        found = await report(job)
        assert (found.created, found.already) == (20 - already, already)
    assert len(board.service.calls_of("cards.create")) == 20


async def test_rows_that_failed_are_sent_when_the_job_is_planned_again(board: Board) -> None:
    """Whatever they were refused for, the report counts them."""
    for call, status_code in ((3, 400), (7, 403)):
        board.service.faults.add(faults.status(status_code), "cards.create", call=call)
    drafts = board.drafts(20)
    job = await board.plan(drafts)
    await board.run(job)
    assert [part.failed for part in await status(board.ledger)].count(0) < 5
    found = await report(job)
    assert (found.created, found.failed) == (18, 2)
    job = await board.plan(drafts)
    await board.run(job)
    assert (await report(job)).created == 2
    assert await board.cards() == Counter(draft.name for draft in drafts)


async def test_rows_that_were_refused_are_sent_after_all_others(board: Board) -> None:
    """Rows that are always refused would otherwise end each run of their part before the rows behind them.

    The last row waits for all others: its card shows whether those in doubt were created.
    """
    for call, status_code in ((1, 400), (2, 403), (3, 401)):
        board.service.faults.add(faults.status(status_code), "cards.create", call=call)
    drafts = board.drafts(6)
    assert not await board.is_run(await board.plan(drafts, parts=1), concurrency=1)
    await board.run(await board.plan(drafts, parts=1), concurrency=1)
    created = [card.name for card in sorted(await board.session.boards.cards(board.board_id), key=lambda card: card.id)]
    assert [name for name in created if name != "card 5"] == ["card 3", "card 4", "card 0", "card 1", "card 2"]


async def test_small_jobs_and_no_rows(board: Board) -> None:
    """One call does all of them."""
    for count in (0, 1, 3):
        job = await board.plan(board.drafts(count), name=f"job {count}", parts=1)
        await board.run(job)
        assert (await report(job)).created == count
    assert (await report(board.ledger)).created == 4
    with pytest.raises(JournalError, match="has no job 'job 4'"):
        await status(board.ledger, name="job 4")
    assert (await report(board.ledger, name="job 3")).created == 3


async def test_dates_and_positions_survive_the_ledger(board: Board) -> None:
    """What is sent is what was planned."""
    from datetime import UTC, datetime

    due = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    drafts = [CardDraft("a", board.list_id, desc="", due=due, pos="top"), CardDraft("b", board.list_id)]
    await board.run(await board.plan(drafts, marker=False))
    sent: dict[str, Any] = {call.body["name"]: call.body for call in board.service.calls_of("cards.create")}  # type: ignore[index,call-overload]  # -- it is an object
    assert (sent["a"]["due"], sent["a"]["pos"], sent["a"]["desc"]) == ("2027-01-02T03:04:05Z", "top", "")
    assert not {"desc", "due", "pos"} & set(sent["b"])


async def test_what_does_not_fit_the_ledger_is_refused(board: Board, tmp_path: Path) -> None:
    """Nothing is sent then."""
    drafts = board.drafts(10)
    job = await board.plan(drafts)
    other_board = (await board.session.boards.create("Other")).id
    for use, what in (
        (lambda: board.plan(drafts, marker=False), "marker"),
        (lambda: board.plan(drafts, name=job.name, account="ada"), "account"),
        (lambda: plan(drafts, other_board, board.ledger, name=job.name), "board"),
    ):
        with pytest.raises(JournalError, match=f"with another {what}: give this one another name"):
            await use()
    places = [(board.board_id, account, draft) for account in (None, "ada") for draft in drafts]
    with pytest.raises(ValueError, match="need a marker, to tell them apart"):
        await plan_many(places, tmp_path / "other", marker=False)
    plain = [attrs.evolve(draft, reference=None) for draft in drafts]
    await board.plan(plain, name="plain")
    for others in (plain[1:], [*plain, *drafts], [attrs.evolve(plain[0], reference="r"), *plain[1:]]):
        with pytest.raises(JournalError, match=r"other rows"):
            await board.plan(others, name="plain")
    assert await plan_many([], board.ledger) == []
    with pytest.raises(JournalError, match="has no part 99"):
        await board.run(attrs.evolve(job, parts=(99,)))
    for part in (10, 2**70, -2, -(2**70), True):
        with pytest.raises(JournalError, match=f"has no part {part}"):
            await import_part(job, part, session=board.session)
    with pytest.raises(JournalError, match="has no job 'other'"):
        await board.run(attrs.evolve(job, name="other"))
    for url, why in (("postgresql://user:secret@host/db", "can't hold a password"), ("mysql://host/db", "postgresql://")):
        with pytest.raises(ValueError, match=why) as caught:
            await plan(drafts, board.board_id, url)
        assert "secret" not in str(caught.value)
    with pytest.raises(JournalError, match="there is no ledger"):
        await status(tmp_path / "none")
    with pytest.raises(ValueError, match="no job was given"):
        await status([])
    async with BoardService() as other, other.session() as session:
        await board.run(job)
        again = await board.plan(drafts, name="x")
        await board.run(again)
        with pytest.raises(JournalError, match="belongs to another import"):
            await import_part(job, 0, session=session)
    await import_part(job, 0, session=board.session.with_options(limiter=Pace()))  # its own in place of the shared one


NO_SECONDS: list[object] = [-1, float("nan"), float("inf"), "soon"]
NO_NUMBERS: list[object] = [0, -1, 1.5, float("nan"), "many", True]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("settle", value) for value in NO_SECONDS),
        *(("parts", value) for value in NO_NUMBERS),
        *(("marker", value) for value in ("yes", lambda draft: "x")),
    ],
)
async def test_a_job_that_could_never_be_run_is_not_planned(option: str, value: object, tmp_path: Path) -> None:
    """An option that workers would refuse is refused before anything is stored."""
    ledger, draft, options = tmp_path / "ledger", CardDraft("card", "l1"), dict[str, Any]({option: value})
    with pytest.raises((TypeError, ValueError), match=f"{option} must be"):
        await plan([draft], "b1", ledger, **options)
    with pytest.raises((TypeError, ValueError), match=f"{option} must be"):
        await plan_many([("b1", None, draft)], ledger, **options)
    with pytest.raises(ValueError, match="board_id must not hold"):
        await plan([draft], "b/1", ledger)
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("lease", value) for value in [0, *NO_SECONDS]),
        *(("concurrency", value) for value in NO_NUMBERS),
    ],
)
async def test_a_worker_that_could_never_run_a_part_claims_none(option: str, value: object, tmp_path: Path) -> None:
    """Nor does a cluster that would have such workers begin. A lease of no seconds ended before each request, without end."""
    job = await plan([CardDraft("card", "l1")], "b1", tmp_path / "ledger")
    options: dict[str, Any] = {option: value}
    with pytest.raises((TypeError, ValueError), match=f"{option} must be"):
        await import_part(job, 0, **options)
    with pytest.raises((TypeError, ValueError), match=f"{option} must be"):
        DaskRun(job, **options)
    with pytest.raises(ValueError, match="workers must be"):
        DaskRun(job, workers=0)


async def test_another_settle_time_is_that_of_the_job_from_now_on(board: Board) -> None:
    """It says how long to wait, and not what to create: planning the rows with another one resumes their job."""
    board.service.faults.add(faults.drop(commit=True), "cards.create", call=3)
    drafts = board.drafts(20)
    first = await board.plan(drafts, settle=10_000.0)
    job = await board.plan(drafts, settle=0.3)
    assert job == first
    await asyncio.wait_for(board.run(job), SECONDS)
    assert (await report(job)).created == 20


@pytest.mark.parametrize("name", ["my%20app", "what?1#2"])
async def test_the_file_of_a_ledger_is_the_one_that_its_path_names(name: str, tmp_path: Path) -> None:
    """Whatever characters the path has, workers, their pace and tokens use that file, which only its owner can read."""
    async with BoardService() as service, service.session() as session:
        board, ledger = service.seed({"To Do": []}), tmp_path / name
        job = await plan([CardDraft("card", board.lists["To Do"])], board.id, ledger, settle=0.3)
        assert await SqlTokenStore(ledger).publish("ada", Token("t"), 0)
        await import_part(job, job.parts[0], session=session)
    assert (await report(ledger)).created == 1
    found = {file.name.removesuffix("-wal").removesuffix("-shm"): file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert found == {name: 0o600}


async def test_a_ledger_of_another_format_is_refused(board: Board) -> None:
    """Old and new code can't write one ledger."""
    job = await board.plan(board.drafts(3))
    await change(board.ledger, "UPDATE boardclient_format SET format = 99")
    for use in (lambda: board.plan(board.drafts(3)), lambda: board.run(job), lambda: status(board.ledger)):
        with pytest.raises(JournalError, match="has format 99, not"):
            await use()


async def test_a_part_that_is_damaged_is_named_with_the_remedy(board: Board) -> None:
    """Nothing is sent, and the same again is not advised."""
    job = await board.plan(board.drafts(3), parts=1)
    await change(job.ledger, "UPDATE boardclient_rows SET content = 'no row'")
    with pytest.raises(JournalError, match=r"row \d+ is damaged \(JSONDecodeError\): put back a copy of the ledger"):
        await board.run(job)
    assert board.sent == 0


async def test_a_process_that_was_forked_leaves_the_event_loop_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a thread of its own for plain functions. That of the parent continues when the child ends."""
    used = workers.run_here(_thread_name())
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        of_child, parent = workers._Loop(), workers._loop
        assert parent is not None
        parent._close()
        assert of_child.run(_thread_name()) != used
        of_child._close()
    assert workers.run_here(_thread_name()) == used


async def _thread_name() -> int:
    return threading.get_ident()


async def test_a_drained_job_stops_and_resumes(board: Board) -> None:
    """Requests in flight are completed, and the rest is left to the next time."""
    board.service.latency = 0.1
    drafts = board.drafts(300)
    job = await board.plan(drafts, parts=2)
    running = asyncio.ensure_future(board.run(job, lease=4.0, concurrency=2))
    await until(lambda: board.sent >= 20, running)
    assert {part.state for part in await status(board.ledger)} == {"held"}
    await drain(board.ledger)
    await asyncio.wait_for(running, SECONDS)
    created = len(await board.cards())
    assert created < 300
    found = await report(job)
    assert (found.created, found.failed, found.unknown) == (created, 0, 0)  # what was not sent did not fail
    assert sum(part.failed for part in await status(job)) == 0
    assert {result.state async for result in results(job)} == {"created"}
    board.service.latency = 0.0
    await resume(board.ledger)
    job = await board.plan(drafts, parts=2)
    assert job.already == created
    await board.run(job)
    assert await board.cards() == Counter(draft.name for draft in drafts)


async def test_a_drained_job_begins_no_part(board: Board) -> None:
    """Calls that begin later, or wait for a worker, return and leave their parts open until the job is resumed."""
    drafts = board.drafts(40)
    job = await board.plan(drafts)
    board.service.faults.add(faults.hang(), "cards.create", call=1)
    first, others = (attrs.evolve(job, parts=numbers) for numbers in (job.parts[:1], job.parts[1:]))
    calls = {asyncio.ensure_future(board.run(first, lease=600.0)) for _ in range(2)}
    await until(lambda: board.sent >= 10)
    await drain(job)
    await board.run(others)
    ended, running = await asyncio.wait(calls, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
    assert [call.result() for call in ended] == [None]
    for call in running:
        call.cancel()
    await asyncio.wait(running)
    assert {part.state for part in await status(job)} == {"open"}
    assert set(await board.cards()) <= {draft.name for draft in drafts[:10]}
    await board.run(await board.plan(drafts))
    assert set(await board.cards()) <= {draft.name for draft in drafts[:10]}  # planning it again resumes nothing
    await resume(job)
    await board.run(job)
    assert await board.cards() == Counter(draft.name for draft in drafts)


async def test_few_rows_are_in_doubt_after_a_kill(board: Board) -> None:
    """Rows are logged 64 at a time, also if the workers are faster than the ledger."""
    job = await board.plan(board.drafts(1500), parts=1)
    board.service.faults.add(faults.hang(), "cards.create", call=range(1000, 1500))
    session = board.session.with_options(timeout=600.0)
    running = asyncio.ensure_future(board.run(job, session=session, concurrency=32, lease=600.0))
    await until(lambda: board.sent >= 1000, running)
    assert sum(part.in_doubt for part in await status(board.ledger)) <= 128
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("is_planned_again", [True, False])
async def test_the_requests_of_a_worker_that_died_are_counted_in_its_own_run(board: Board, is_planned_again: bool) -> None:
    """If the job was planned again since, the ledger has them, and the report of that plan has not."""
    job = await board.plan(board.drafts(8), parts=1, settle=0.01)
    board.service.faults.add(faults.hang(commit=True), "cards.create", call=3)
    running = asyncio.ensure_future(board.run(job, concurrency=1))
    await until(lambda: board.sent == 3, running)
    await change(board.ledger, "UPDATE boardclient_parts SET owner = 'died', lease_until = lease_until - lease")
    running.cancel()
    await asyncio.wait({running})
    assert (running.cancelled(), board.sent) == (True, 3)  # it does not take the part again, though its lease is lost as well
    if is_planned_again:
        job = await board.plan(board.drafts(8), parts=1, settle=0.01)
    else:  # long before the worker has logged its rows
        job = attrs.evolve(job, planned_at=job.planned_at - 10 * SECONDS)
    await board.run(job, lease=100 * SECONDS)  # how long its own lease is says nothing about the worker that died
    found = await report(job)
    assert (found.created, found.already, found.unknown) == ((5, 3, 0) if is_planned_again else (8, 0, 0))
    assert (found.requests, (await report(board.ledger)).requests) == (board.sent - 3 * is_planned_again, board.sent)
    assert await board.cards() == Counter(f"card {n}" for n in range(8))


async def test_a_run_that_ends_early_leaves_a_part_that_resumes(board: Board) -> None:
    """Refused credentials end the call, and the next one needs not wait for the lease."""
    drafts = board.drafts(40)
    job = await board.plan(drafts)
    board.service.faults.add(faults.status(401), "cards.create", call=range(10, 400))
    with pytest.raises(Exception, match="401"):
        await board.run(job, lease=10 * SECONDS)
    board.service.faults.clear()
    await asyncio.wait_for(board.run(job, lease=10 * SECONDS), SECONDS)
    assert await board.cards() == Counter(draft.name for draft in drafts)


@attrs.define
class Renewing:
    """Credentials whose first token is refused. During the renewal something happens to the worker."""

    good: Credentials
    during: Callable[[], object]

    async def acquire(self, exchange: Exchange) -> Credentials:
        return Credentials("refused", None)

    async def renew(self, rejected: Credentials, exchange: Exchange) -> Credentials:
        self.during()
        return self.good


@pytest.mark.parametrize("is_renewing", [False, True])
async def test_a_worker_that_was_suspended_sends_nothing(
    board: Board, monkeypatch: pytest.MonkeyPatch, is_renewing: bool
) -> None:
    """Neither the next row nor, after a renewal, the same one again. The part is taken over, here by the same worker."""
    job, service = await board.plan(board.drafts(60), parts=1), board.service
    now, behind = leases.now, [0.0]
    monkeypatch.setattr(leases, "now", lambda: now() + behind[0])
    lost: list[int] = []
    check = leases.Lease.check

    def checked(self: leases.Lease) -> None:
        try:
            check(self)
        except JournalError:
            lost.append(sum(call.status == 200 for call in service.calls_of("cards.create")))
            behind[0] = 0.0
            raise

    def suspend() -> None:
        behind[0] = 600.0 if not lost and service.calls_of("cards.create") else 0.0

    monkeypatch.setattr(leases.Lease, "check", checked)
    session = board.session
    if is_renewing:
        session = session.with_credentials(Renewing(Credentials(service.token, service.key), suspend))
        session = session.with_options(retry=None)
    running = asyncio.ensure_future(board.run(job, session=session, lease=60.0, concurrency=1))
    await until(lambda: is_renewing or board.sent >= 5, running)
    sent = sum(call.status == 200 for call in service.calls_of("cards.create"))
    suspend()
    await asyncio.wait_for(running, SECONDS)
    assert sent <= lost[0] <= sent + (not is_renewing)  # one may have been on its way
    assert await board.cards() == Counter(f"card {n}" for n in range(60))


async def test_a_plain_function_runs_a_part_with_a_session_of_its_own(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines without an event loop call it; service and credentials come from the environment."""
    service = board.service
    for name, value in {"BASE_URL": service.base_url, "TOKEN": service.token, "KEY": service.key}.items():
        monkeypatch.setenv(f"BOARDCLIENT_{name}", value)
    job = await board.plan(board.drafts(20), parts=1)
    await asyncio.to_thread(import_part_now, job, 0, concurrency=2)
    assert await board.cards() == Counter(f"card {n}" for n in range(20))


async def test_a_plain_function_delivers_a_batch(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again it creates nothing."""
    for name, value in board.service.environment.items():
        monkeypatch.setenv(name, value)
    job = await open_job(board.board_id, board.ledger)
    found = [await asyncio.to_thread(import_batch_now, job, "a", board.drafts(5), concurrency=2) for _ in range(2)]
    assert [(one.created, one.already) for one in found] == [(5, 0), (0, 5)]
    assert await board.cards() == Counter(f"card {n}" for n in range(5))


async def test_a_plain_function_says_what_to_await_where_a_loop_runs(board: Board) -> None:
    job = await board.plan(board.drafts(1), parts=1)
    with pytest.raises(RuntimeError, match=r"await import_part\(…\) instead"):
        import_part_now(job, 0)
    with pytest.raises(RuntimeError, match=r"await import_batch\(…\) instead"):
        import_batch_now(job, "a", board.drafts(1))
    assert await board.cards() == Counter()


async def test_a_program_of_plain_functions_ends_in_silence(board: Board) -> None:
    """What the process has kept for its next part is closed when the interpreter ends."""
    job = base64.b64encode(pickle.dumps(await board.plan(board.drafts(20), parts=1))).decode()
    code = "import base64, pickle, sys; from boardclient.distributed import import_part_now as run\n"
    code += "run(pickle.loads(base64.b64decode(sys.argv[1])), 0, concurrency=2)"
    environment = {**os.environ, **board.service.environment}
    line = [sys.executable, "-W", "error", "-c", code, job]
    ended = await asyncio.to_thread(subprocess.run, line, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert await board.cards() == Counter(f"card {n}" for n in range(20))


# --- campaigns


@attrs.define
class Campaign:
    """Workers in processes of their own, some of which meet misfortune."""

    board: Board
    job: Job
    random: random.Random
    lease: float
    concurrency: int = 2
    workers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    def start(self) -> None:
        service = self.board.service
        job = base64.b64encode(pickle.dumps(self.job)).decode()
        line = [sys.executable, str(Path(__file__).with_name("worker.py")), job]
        line += [str(self.random.randrange(len(self.job.parts))), str(self.lease), str(self.concurrency)]
        environment = {**os.environ, "BOARDCLIENT_BASE_URL": service.base_url, "BOARDCLIENT_TOKEN": service.token}
        self.workers.append(subprocess.Popen(line, env={**environment, "BOARDCLIENT_KEY": service.key}, stderr=subprocess.PIPE))

    def alive(self) -> list[subprocess.Popen[bytes]]:
        return [worker for worker in self.workers if worker.poll() is None]

    async def run(self, workers: int, misfortunes: Sequence[Callable[[], Any]]) -> None:
        """Let something happen at even distances of progress, and keep the number of workers until all is done."""
        calls = self.board.service.calls_of
        marks = [self.job.rows * (n + 1) // (len(misfortunes) + 1) for n in range(len(misfortunes))]
        waiting = list(zip(marks, misfortunes, strict=True))
        try:
            async with asyncio.timeout(SECONDS):
                while any(part.state != "done" for part in await status(self.board.ledger)):
                    while waiting and len(calls("cards.create")) >= waiting[0][0]:
                        done = waiting.pop(0)[1]()
                        if done is not None:
                            await done
                    while len(self.alive()) < workers:
                        self.start()
                    await asyncio.sleep(0.05)
            for worker in self.alive():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(worker.wait, 20)
        finally:
            for worker in self.alive():
                worker.kill()
            for worker in self.workers:
                assert worker.stderr is not None
                said = worker.stderr.read().decode()
                worker.stderr.close()
                worker.wait()
                assert self.board.service.token not in said

    def kill(self) -> None:
        if self.alive():
            self.random.choice(self.alive()).kill()

    def suspend(self) -> None:
        """Stop a worker for longer than its lease."""
        if self.alive():
            worker = self.random.choice(self.alive())
            worker.send_signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(1.7 * self.lease, worker.send_signal, signal.SIGCONT)

    async def check(self) -> None:
        """Compare what the service has with what the ledger says."""
        cards = await self.board.cards()
        assert [name for name, count in cards.items() if count > 1] == []
        found = await report(self.job)
        assert len(cards) + found.unknown >= self.job.rows
        assert found.created + found.already + found.failed + found.unknown == self.job.rows
        reasons = Counter([str(result.error) async for result in results(self.job) if result.error is not None])
        assert (found.failed, found.unknown, reasons) == (0, 0, {})
        assert found.audit is not None
        assert (found.audit.lost, found.audit.duplicated, found.audit.unexpected) == (0, (), ())


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
async def test_a_disk_that_is_full(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent that was not logged. With room the same job resumes, and what was not written is settled."""
    drafts = board.drafts(600)
    job = await board.plan(drafts, parts=2)
    begin, pages = _sqlite.FileConnection.begin, [Path(board.ledger).stat().st_size // 4096 + 3]

    def begin_on_disk(self: Connection, *, is_read: bool) -> None:
        assert isinstance(self, _sqlite.FileConnection)
        begin(self, is_read=is_read)
        self.raw.execute(f"PRAGMA max_page_count = {pages[0]}")

    monkeypatch.setattr(_sqlite.FileConnection, "begin", begin_on_disk)
    with pytest.raises(JournalError, match="database or disk is full"):
        await board.run(job)
    pages[0] = 2**30
    sent = len(await board.cards())
    assert 0 < sent < 600
    job = await board.plan(drafts, parts=2)
    await asyncio.wait_for(board.run(job), SECONDS)
    assert await board.cards() == Counter(draft.name for draft in drafts)
    found = await report(job)
    assert (found.created + found.already, found.unknown) == (600, 0)


async def test_a_token_that_expires_every_300_requests(board: Board) -> None:
    """Workers with a store in the ledger's database renew it once for all of them."""
    service = board.service
    job = await board.plan(board.drafts(700))

    async def work(part: int) -> None:
        """Be a host of its own, with credentials and connections of its own."""
        credentials = service.oauth_credentials(store=SqlTokenStore(board.ledger))
        async with service.session(credentials) as session:
            # A worker may be slower than 300 requests of the others. The next token then ends before it was used, and the run
            # with it, as for any token that is refused when it is new. An engine calls again.
            await until(lambda: board.is_run(attrs.evolve(job, parts=(part,)), session=session))

    running = asyncio.gather(*(work(part) for part in job.parts))
    for expiries in (1, 2):
        await until(lambda: board.sent >= 300 * expiries, running)  # noqa: B023 -- used at once
        service.rules.expire_tokens()
    await asyncio.wait_for(running, SECONDS)
    async with service.session(service.oauth_credentials(store=SqlTokenStore(board.ledger))) as session:
        cards = await attrs.evolve(board, session=session).cards()
    assert cards == Counter(f"card {n}" for n in range(700))
    assert len(service.calls_of("token.exchange")) == 1 + 2  # the first token, and one for each expiry


@pytest.mark.parametrize("board", [0.02], indirect=True)
@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)
async def test_a_database_that_is_killed_and_started_again(board: Board, postgresql: Server) -> None:
    """In mid-run, with its connections cut, and again while a part is taken over."""
    job = await board.plan(board.drafts(300), settle=0.5)
    campaign = Campaign(board, job, random.Random(1), lease=2.0)

    async def restart() -> None:
        await asyncio.to_thread(postgresql.restart)

    async def restart_while_a_part_is_taken_over() -> None:
        campaign.kill()
        await asyncio.sleep(2.2)
        await restart()

    await campaign.run(3, [restart, restart_while_a_part_is_taken_over])
    await campaign.check()


@pytest.mark.parametrize("board", [0.01], indirect=True)
async def test_workers_that_are_killed(board: Board) -> None:
    """Four of them, with SIGKILL: no row is lost and none has two cards."""
    job = await board.plan(board.drafts(400), settle=0.5)
    campaign = Campaign(board, job, random.Random(0), lease=1.5)
    await campaign.run(3, [campaign.kill] * 4)
    await campaign.check()


@pytest.mark.parametrize("board", [0.03], indirect=True)
async def test_workers_that_are_suspended_for_longer_than_their_lease(board: Board) -> None:
    """Workers wake up, and send nothing that another worker has taken over."""
    job = await board.plan(board.drafts(300), settle=0.5)
    campaign = Campaign(board, job, random.Random(0), lease=1.2, concurrency=4)
    await campaign.run(3, [campaign.suspend] * 3)
    await campaign.check()


async def test_boards_and_accounts_of_one_ledger(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account whose user has to sign in parks its parts, others continue, and each board has an audit of its own."""
    # The store is looked at by each call: a sign-in that comes within 50 ms of the last look would be noticed by the next one.
    monkeypatch.setattr("boardclient.credentials._oauth.LOOK_SECONDS", 0.0)
    service = board.service
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    other = service.seed({"To Do": []}, "Other")
    rows = [(other.id, "bob", CardDraft(f"card {n}", other.lists["To Do"])) for n in range(20)]
    rows[9:9] = [(board.board_id, "ada", draft) for draft in board.drafts(30)]
    bob, ada = await plan_many(rows, board.ledger, parts=6, settle=0.3)
    assert (len(bob.parts), bob.rows, len(ada.parts), ada.rows) == (3, 20, 4, 30)
    store = SqlTokenStore(board.ledger)
    await service.oauth_credentials(store=store, account="ada").exchange_code(service.new_code(), board.session)

    async def run(job: Job) -> list[object]:
        calls = (import_part(job, part, lease=3.0) for part in job.parts)
        return await asyncio.gather(*calls, return_exceptions=True)

    ended = await asyncio.gather(run(ada), run(bob))
    assert ended[0] == [None] * len(ada.parts)
    assert {type(error) for error in ended[1]} == {ConsentRequired}
    states = {(part.job, part.state) for part in await status(board.ledger)}
    assert states == {(ada.name, "done"), (bob.name, "consent")}
    service.faults.add(faults.status(401), "cards.create", call=range(35, 400))  # the next token is good for a few cards only
    for is_good in (False, True):
        await service.oauth_credentials(store=store, account="bob").exchange_code(service.new_code(), board.session)
        assert any(isinstance(error, ConsentRequired) for error in await run(bob)) is not is_good
        assert ("consent" in {part.state for part in await status(board.ledger, name=bob.name)}) is not is_good
        service.faults.clear()
    assert [(await report(job)).created for job in (ada, bob)] == [30, 20]
    whole = await report([ada, bob])
    assert whole.audit is not None
    assert (whole.created, whole.audit.confirmed, whole.audit.unexpected) == (50, 50, ())
    assert len(await board.session.boards.cards(other.id)) == 20
