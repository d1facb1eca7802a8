"""Jobs whose parts Dask carries: by the command line, and with workers and coordinators that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pickle
import socket
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import attrs
import distributed
import psutil
import pytest
from waiting import SECONDS

from boardclient import AsyncSession, BoardClientError, BulkProgress, CardDraft, JournalError
from boardclient.distributed import Job, SqlTokenStore, drain, plan, status
from boardclient.integrations import dask as dask_runs
from boardclient.integrations.dask import DaskRun
from boardclient.testing import BoardService, faults


@attrs.define
class World:
    """A service in this process, and the environment that leads other processes to it."""

    service: BoardService
    session: AsyncSession
    board_id: str
    list_id: str
    other: tuple[str, str]
    """Another board, and its list."""
    environment: dict[str, str]

    @property
    def places(self) -> str:
        return f"{self.board_id}:{self.list_id},{':'.join(self.other)}"

    async def start(self, *line: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(sys.executable, *line, env=self.environment, stdout=pipe, stderr=pipe)

    async def boardclient(self, *line: str) -> tuple[int | None, str, str]:
        """Run the program to its end."""
        process = await self.start("-m", "boardclient", *line)
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
        assert self.service.token.encode() not in out + err
        return process.returncode, out.decode(), err.decode()

    async def cards(self) -> Counter[str | None]:
        boards = (self.board_id, self.other[0])
        return Counter([card.name for board_id in boards for card in await self.session.boards.cards(board_id)])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with BoardService() as service, service.session() as session:
        board = await session.boards.create("Board")
        to_do = await session.lists.create("To Do", board_id=board.id)
        other = service.seed({"To Do": []}, "Other")
        yield World(service, session, board.id, to_do.id, (other.id, other.lists["To Do"]), {**os.environ, **service.environment})


async def test_an_import_by_the_workers_of_a_cluster(world: World, tmp_path: Path) -> None:
    """Report and exit code are those of an import without an engine, and the same line again creates nothing."""
    file = tmp_path / "cards.csv"
    file.write_text("name,list,reference\n" + "".join(f"card {n},To Do,r{n}\n" for n in range(120)))
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=[20, 90])
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask", "--workers", "2", "--parts", "3"]
    line += ["--settle", "0.3", "--json"]
    for created in (120, 0):
        code, out, err = await world.boardclient(*line)
        assert code == 0, err
        found = json.loads(out.splitlines()[-1])
        assert [found[name] for name in ("created", "already", "failed", "unknown", "not_reached")] == [
            created,
            120 - created,
            0,
            0,
            0,
        ]
    assert await world.cards() == Counter(f"card {n}" for n in range(120))
    ledger = f"{file}.ledger"
    code, out, _ = await world.boardclient("ledger", "status", "--ledger", ledger)
    assert (code, out.splitlines()[0], len(out.splitlines())) == (0, "120 of 120 done, 0 failed, 0 in doubt", 4)
    _, out, _ = await world.boardclient("ledger", "status", "--ledger", ledger, "--json", "done")
    assert json.loads(out) == {"done": 120}
    for words, said in ((["--json"], '{"draining": true}'), ([], "draining\ttrue")):
        code, out, _ = await world.boardclient("ledger", "drain", "--ledger", ledger, *words)
        assert code == 0
        assert said in out
    code, _, err = await world.boardclient("ledger", "status", "--ledger", str(tmp_path / "none"))
    assert (code, "there is no ledger" in err) == (2, True)


class Losing:
    """A fault: the first request of one card is lost."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name, self._is_lost = world, name, False

    async def play(self, stage: Any) -> None:
        body = self._world.service.calls[-1].body
        if isinstance(body, dict) and body["name"] == self._name and not self._is_lost:
            self._is_lost = True
            stage.abort()
        else:
            await stage.reply_answer()


async def test_an_import_with_a_probe(world: World, tmp_path: Path) -> None:
    """The row of one board that no other proves absent is settled at the end. The board without such a row needs nothing."""
    file = tmp_path / "cards.csv"
    boards = [world.board_id, world.other[0]]
    file.write_text("name,list,board\n" + "".join(f"card {n},To Do,{board}\n" for n, board in enumerate(boards)))

    world.service.faults.add(Losing(world, "card 0"), "cards.create")
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask", "--workers", "1", "--settle", "0.3", "--json"]
    code, out, err = await world.boardclient(*line, "--probe", "--marker")
    assert (code, json.loads(out.splitlines()[-1])["unknown"]) == (0, 0), err
    assert await world.cards() == Counter(["card 0", "card 1"])


async def test_an_unknown_row_is_named_as_the_ledger_resolves_it(world: World, tmp_path: Path) -> None:
    """Its position is that among the rows of its board, and not that in a file whose rows name several."""
    file = tmp_path / "cards.csv"
    boards = [world.board_id, world.other[0]] * 2
    file.write_text("name,list,board\n" + "".join(f"card {n},To Do,{board}\n" for n, board in enumerate(boards)))
    world.service.faults.add(Losing(world, "card 3"), "cards.create")
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask", "--workers", "1", "--settle", "0.3", "--no-probe"]
    code, _, err = await world.boardclient(*line)
    assert (code, "row 5 (--position 1): unknown" in err) == (3, True), err
    job = next(part.job for part in await status(f"{file}.ledger") if part.in_doubt)
    resolve = ["ledger", "resolve", "--ledger", f"{file}.ledger", "--job", job, "--position", "1", "--absent"]
    assert await world.boardclient(*resolve) == (
        0,
        "position 1, 'card 3', is settled as absent: the next import sends it\n",
        "",
    )
    assert (await world.boardclient(*line))[0] == 0
    assert await world.cards() == Counter(f"card {n}" for n in range(4))


async def test_an_import_that_is_drained(world: World, tmp_path: Path) -> None:
    """The rows of parts that are not begun are not sent, the exit code says so, and once resumed the same line sends them."""
    file = tmp_path / "cards.csv"
    file.write_text("name,list\n" + "".join(f"card {n},To Do\n" for n in range(40)))
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask", "--workers", "1", "--parts", "20"]
    line += ["--settle", "0.3", "--json"]
    world.service.latency = 0.3
    importing = asyncio.create_task(world.boardclient(*line))
    await world.service.received("cards.create")
    await drain(f"{file}.ledger")
    code, out, err = await importing
    found = json.loads(out.splitlines()[-1])
    assert code == 1, err
    assert 1 <= found["not_reached"] == 40 - found["created"] < 40
    assert f"{found['not_reached']} rows not sent; the same command line sends them" in err
    world.service.latency = 0.0
    assert (await world.boardclient("ledger", "resume", "--ledger", f"{file}.ledger"))[0] == 0
    code, out, err = await world.boardclient(*line)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["created"] == found["not_reached"]
    assert await world.cards() == Counter(f"card {n}" for n in range(40))


async def test_rows_that_name_boards_and_accounts(world: World, ledger: str, tmp_path: Path) -> None:
    """An account whose user has to sign in holds up its own rows alone. Afterwards the same line creates them, and no others."""
    other, file = world.other[0], tmp_path / "cards.csv"
    places = [("", ""), (other, "ada"), (other, "bob")] * 10
    file.write_text("name,list,board,account\n" + "".join(f"card {n},To Do,{b},{a}\n" for n, (b, a) in enumerate(places)))
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask", "--workers", "1", "--ledger", ledger]
    line += ["--settle", "0.3", "--marker", "--json"]
    store = SqlTokenStore(ledger)
    for account, created, already, exit_code in (("ada", 20, 0, 4), ("bob", 10, 20, 0)):
        credentials = world.service.oauth_credentials(store=store, account=account)
        await credentials.exchange_code(world.service.new_code(), world.session)
        code, out, err = await world.boardclient(*line)
        assert code == exit_code, err
        found = json.loads(out.splitlines()[-1])
        counts = [found[name] for name in ("created", "already", "failed", "not_reached")]
        assert counts == [created, already, 0, 30 - created - already]
        states = {part.job.rpartition(" ")[2]: part.state for part in await status(ledger)}
        assert states == {world.board_id: "done", "ada": "done", "bob": "done" if code == 0 else "consent"}
        assert ("account 'bob' has to sign in" in err) is bool(code)
    assert found["audit"]["confirmed"] == 30
    assert await world.cards() == Counter(f"card {n}" for n in range(30))


async def test_a_cluster_or_an_account_that_can_not_be_used_is_refused(world: World, tmp_path: Path) -> None:
    """Nothing is sent, and exit code 2 says that the line is wrong."""
    file = tmp_path / "cards.csv"
    file.write_text("name,list\nA,To Do\n")
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask"]
    code, _, err = await world.boardclient(*line, "--scheduler", "tcp://far:8786")
    assert (code, "use tls://" in err) == (2, True)
    file.write_text("name,list,account\nA,To Do,ada\n")
    del world.environment["BOARDCLIENT_CLIENT_ID"]
    code, _, err = await world.boardclient(*line)
    assert (code, "needs BOARDCLIENT_CLIENT_ID" in err) == (2, True)
    assert not world.service.calls_of("cards.create")


async def test_workers_and_the_coordinator_are_killed(world: World, tmp_path: Path) -> None:
    """Dask replaces workers. The same program again resumes what the coordinator left, whose scheduler died with it."""
    world.service.latency = 0.02
    line = [str(Path(__file__).with_name("dask_run.py")), world.places, str(tmp_path / "ledger"), "300"]
    coordinator = await world.start(*line)
    children = psutil.Process(coordinator.pid).children
    try:
        async with asyncio.timeout(SECONDS):
            for mark in (40, 100):
                await world.service.received("cards.create", mark)
                workers = [child for child in children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
                with contextlib.suppress(psutil.NoSuchProcess):
                    workers[0].kill()
            await world.service.received("cards.create", 120)  # before a closing part, whose last rows no others could prove
            coordinator.kill()
            await coordinator.communicate()
            coordinator = await world.start(*line)
            out, err = await coordinator.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            coordinator.kill()
    assert out.decode() == "300 True 0\n", err.decode()
    assert world.service.token.encode() not in err
    assert await world.cards() == Counter(f"card {n}" for n in range(300))


@attrs.define
class Cluster:
    """A scheduler and workers in processes of their own, and a coordinator that imports 300 rows."""

    world: World
    folder: Path
    address: str = attrs.field(init=False)
    running: list[asyncio.subprocess.Process] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    async def start(self, *line: str) -> asyncio.subprocess.Process:
        self.running.append(await self.world.start(*line))
        return self.running[-1]

    async def scheduler(self) -> asyncio.subprocess.Process:
        line = ["--host", "127.0.0.1", "--port", self.address.rpartition(":")[2], "--no-dashboard"]
        return await self.start("-m", "distributed.cli.dask_scheduler", *line)

    async def worker(self) -> asyncio.subprocess.Process:
        line = ["--no-nanny", "--no-dashboard", "--nthreads", "1", "--host", "127.0.0.1", "--local-directory", str(self.folder)]
        return await self.start("-m", "distributed.cli.dask_worker", self.address, *line)

    async def coordinator(self) -> asyncio.subprocess.Process:
        line = [str(Path(__file__).with_name("dask_run.py")), self.world.places, str(self.folder / "ledger"), "300"]
        return await self.start(*line, self.address)

    async def until_sent(self, count: int) -> None:
        await self.world.service.received("cards.create", count)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def test_the_scheduler_of_a_cluster_is_killed(world: World, tmp_path: Path) -> None:
    """The run ends with an error. With another scheduler, the same program resumes it."""
    world.service.latency = 0.02
    async with Cluster(world, tmp_path) as cluster, asyncio.timeout(SECONDS):
        for is_killed in (True, False):
            scheduler = await cluster.scheduler()
            await cluster.worker()
            await cluster.worker()
            coordinator = await cluster.coordinator()
            if is_killed:
                await cluster.until_sent(100)
                scheduler.kill()
            out, err = await coordinator.communicate()
            assert (coordinator.returncode == 0) is not is_killed, err.decode()
            assert (b"BoardClientError: " in err and b"the same jobs again resume" in err) is is_killed, err.decode()
    assert out.decode() == "300 True 0\n", err.decode()
    assert await world.cards() == Counter(f"card {n}" for n in range(300))


async def test_a_part_that_the_scheduler_gives_up_is_submitted_again(world: World, tmp_path: Path) -> None:
    """How many workers may be killed with it is a setting of a cluster that serves others too. Here it is none."""
    world.service.latency = 0.02
    world.environment["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"] = "0"
    async with Cluster(world, tmp_path) as cluster, asyncio.timeout(SECONDS):
        await cluster.scheduler()
        workers = [await cluster.worker()]
        coordinator = await cluster.coordinator()
        for count in (40, 150):
            await cluster.until_sent(count)
            workers.append(await cluster.worker())
            workers.pop(0).kill()
        out, err = await coordinator.communicate()
    assert out.decode() == "300 True 0\n", err.decode()
    assert await world.cards() == Counter(f"card {n}" for n in range(300))


async def test_a_run_in_this_process_shows_progress_and_stops(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers complete their requests, and the same job again does the rest. No credential is in a task."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    world.service.latency = 0.1
    drafts = [CardDraft(f"card {n}", world.list_id) for n in range(300)]
    seen: list[BulkProgress] = []

    async def run(**options: Any) -> DaskRun:
        job = await plan(drafts, world.board_id, tmp_path / "ledger", parts=2, settle=0.3)
        assert world.service.token.encode() not in pickle.dumps(job)
        return DaskRun(job, **{"workers": 2, "lease": 2.0, "concurrency": 1, "on_progress": seen.append, **options})

    with pytest.raises(RuntimeError, match="within its `async with` block"):
        async for _ in await run():
            pass

    def stop_early(progress: BulkProgress) -> None:
        seen.append(progress)
        if progress.done:
            first.stop()

    async with await run(on_progress=stop_early) as first:
        early = [result.state async for result in first]
    assert len(early) < 300
    world.service.latency = 0.0
    async with await run(concurrency=8, on_progress=None) as second:
        late = Counter([result.state async for result in second])
    assert late == Counter(created=300 - second.report.already, already=second.report.already)
    assert seen[-1].total == 300
    assert await world.cards() == Counter(draft.name for draft in drafts)


async def test_imports_at_once_on_one_cluster(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each creates its own rows, though their boards, and so their jobs, have the same name."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    world.service.latency = 0.02
    options: dict[str, Any] = {"n_workers": 2, "processes": False, "protocol": "tcp", "asynchronous": True}
    cluster: Any = distributed.LocalCluster  # its package has no annotations

    async def imported(word: str, address: str) -> Counter[str]:
        drafts = [CardDraft(f"{word} {n}", world.list_id) for n in range(20)]
        job = await plan(drafts, world.board_id, tmp_path / word, parts=2, settle=0.3)
        async with DaskRun(job, scheduler=address, concurrency=1, lease=5.0) as run:
            return Counter([result.state async for result in run])

    async with cluster(**options, host="127.0.0.1", dashboard_address="127.0.0.1:0") as made:
        counts = await asyncio.gather(*(imported(word, made.scheduler_address) for word in ("first", "second")))
    assert counts == [{"created": 20}, {"created": 20}]
    assert await world.cards() == Counter(f"{word} {n}" for word in ("first", "second") for n in range(20))


LOCAL: dict[str, Any] = {"n_workers": 1, "processes": False, "protocol": "tcp", "asynchronous": True, "host": "127.0.0.1"}


@contextlib.asynccontextmanager
async def on_a_cluster(job: Job, **options: Any) -> AsyncIterator[DaskRun]:
    """Give a run of a job on a cluster in this process."""
    cluster: Any = distributed.LocalCluster  # its package has no annotations
    async with (
        cluster(**LOCAL, dashboard_address="127.0.0.1:0") as made,
        DaskRun(job, scheduler=made.scheduler_address, **options) as run,
    ):
        yield run


async def test_a_part_that_always_kills_its_worker_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was submitted again and again."""

    def killing(job: object, part: int, **options: object) -> None:
        raise distributed.KilledWorker("task", SimpleNamespace(address="tcp://gone"), 4)

    monkeypatch.setattr(dask_runs, "import_part_now", killing)
    monkeypatch.setattr(dask_runs, "_MOST_ROUNDS", 3)
    job = await plan([CardDraft("card", "l1")], "b1", tmp_path / "ledger")
    async with on_a_cluster(job) as run:
        with pytest.raises(BoardClientError, match="1 parts have killed each worker that began them"):
            await anext(aiter(run))


async def test_errors_of_a_cluster_are_those_of_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say that the same jobs again resume."""

    def failing(job: object, part: int, **options: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(dask_runs, "import_part_now", failing)
    job = await plan([CardDraft("card", "l1")], "b1", tmp_path / "ledger")
    async with on_a_cluster(job) as run:
        with pytest.raises(BoardClientError, match="Dask: OSError: no network: the same jobs again resume"):
            await anext(aiter(run))


TEST_HAS_ENDED = threading.Event()


def wait_for_test(job: object, part: int, **options: object) -> None:
    TEST_HAS_ENDED.wait(SECONDS)


async def test_a_scheduler_that_is_gone_ends_the_run_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be out of reach for a while."""
    monkeypatch.setattr(dask_runs, "import_part_now", wait_for_test)
    monkeypatch.setattr(dask_runs, "_LOST_SECONDS", -1.0)
    monkeypatch.setattr(dask_runs, "_POLL_SECONDS", 0.0)
    job = await plan([CardDraft("card", "l1")], "b1", tmp_path / "ledger")
    async with on_a_cluster(job) as run:
        try:
            with pytest.raises(BoardClientError, match="the scheduler is gone: the same jobs again resume"):
                await anext(aiter(run))
        finally:
            TEST_HAS_ENDED.set()


async def test_progress_of_a_cluster_has_its_time_and_its_phase(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away for a moment costs nothing but a look."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    seen: list[BulkProgress] = []
    failures = [JournalError("away")]
    look = dask_runs.status

    async def status_at_times(jobs: Any) -> Any:
        if failures:
            raise failures.pop()
        return await look(jobs)

    monkeypatch.setattr(dask_runs, "status", status_at_times)
    monkeypatch.setattr(dask_runs, "_POLL_SECONDS", 0.01)
    world.service.faults.add(faults.drop(commit=True), "cards.create", call=2)
    drafts = [CardDraft(f"card {n}", world.list_id) for n in range(20)]
    job = await plan(drafts, world.board_id, tmp_path / "ledger", settle=2.0)
    async with on_a_cluster(job, on_progress=seen.append) as run:
        assert {result.state async for result in run} == {"created"}
    assert not failures
    assert max(progress.seconds for progress in seen) > 0
    assert max(progress.rate for progress in seen) > 0
    phases = {progress.status for progress in seen}
    assert "creating" in phases
    assert "waiting for 1 row in doubt" in phases


async def test_rows_that_their_parts_leave_unknown_are_settled_at_the_end(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without a part under way can do what a part beside others could not."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dask_runs, "import_part_now", functools.partial(_import_without_probe, dask_runs.import_part_now))
    world.service.faults.add(Losing(world, "card"), "cards.create")
    job = await plan([CardDraft("card", world.list_id)], world.board_id, tmp_path / "ledger", marker=True, settle=0.1)
    async with on_a_cluster(job) as run:
        states = [result.state async for result in run]
    assert (states, await world.cards()) == (["created"], Counter(["card"]))


def _import_without_probe(work: Any, job: Job, part: int, **options: Any) -> Any:
    return work(job, part, **{**options, "probe": False})
