"""Jobs whose parts Dask carries: by the command line, and with workers and coordinators that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import distributed
import psutil
import pytest

from boardclient import AsyncSession, BulkProgress, CardDraft
from boardclient.distributed import SqlTokenStore, drain, plan, status
from boardclient.integrations.dask import DaskRun
from boardclient.testing import BoardService, faults

SECONDS = 240.0


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
    assert (code, out.splitlines()[0], len(out.splitlines())) == (0, "120 of 120 done, 0 failed, 0 in doubt", 5)
    _, out, _ = await world.boardclient("ledger", "status", "--ledger", ledger, "--json", "done")
    assert json.loads(out) == {"done": 120}
    for words, said in ((["--json"], '{"draining": true}'), ([], "draining\ttrue")):
        code, out, _ = await world.boardclient("ledger", "drain", "--ledger", ledger, *words)
        assert code == 0
        assert said in out
    code, _, err = await world.boardclient("ledger", "status", "--ledger", str(tmp_path / "none"))
    assert (code, "there is no ledger" in err) == (2, True)


async def test_an_import_with_a_probe(world: World, tmp_path: Path) -> None:
    """The row of one board that no other proves absent is settled at the end. The board without such a row needs nothing."""
    file = tmp_path / "cards.csv"
    boards = [world.board_id, world.other[0]]
    file.write_text("name,list,board\n" + "".join(f"card {n},To Do,{board}\n" for n, board in enumerate(boards)))

    class Losing:
        """Loses the first request of one card."""

        is_lost = False

        async def play(self, stage: Any) -> None:
            body = world.service.calls[-1].body
            if isinstance(body, dict) and body["name"] == "card 0" and not self.is_lost:
                self.is_lost = True
                stage.abort()
            else:
                await stage.reply_answer()

    world.service.faults.add(Losing(), "cards.create")
    line = ["import", str(file), "--board", world.board_id, "--engine", "dask", "--workers", "1", "--settle", "0.3", "--json"]
    code, out, err = await world.boardclient(*line, "--probe", "--marker")
    assert (code, json.loads(out.splitlines()[-1])["unknown"]) == (0, 0), err
    assert await world.cards() == Counter(["card 0", "card 1"])


async def test_an_import_that_is_drained(world: World, tmp_path: Path) -> None:
    """The rows of parts that are not begun are not sent, the exit code says so, and the same line again sends them."""
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
    sent = world.service.calls_of
    coordinator = await world.start(*line)
    children = psutil.Process(coordinator.pid).children
    try:
        async with asyncio.timeout(SECONDS):
            for mark in (40, 100):
                while len(sent("cards.create")) < mark:
                    await asyncio.sleep(0.05)
                workers = [child for child in children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
                with contextlib.suppress(psutil.NoSuchProcess):
                    workers[0].kill()
            while len(sent("cards.create")) < 160:
                await asyncio.sleep(0.05)
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


async def test_the_scheduler_of_a_cluster_is_killed(world: World, tmp_path: Path) -> None:
    """The run ends with an error. With another scheduler, the same program resumes it."""
    world.service.latency = 0.02
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = f"tcp://127.0.0.1:{port}"
    line = [str(Path(__file__).with_name("dask_run.py")), world.places, str(tmp_path / "ledger"), "300", address]
    worker = ["-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard", "--nthreads", "1"]
    worker += ["--host", "127.0.0.1", "--local-directory", str(tmp_path)]
    running: list[asyncio.subprocess.Process] = []
    try:
        async with asyncio.timeout(SECONDS):
            for is_killed in (True, False):
                options = ["--host", "127.0.0.1", "--port", port, "--no-dashboard"]
                scheduler = await world.start("-m", "distributed.cli.dask_scheduler", *options)
                running += [scheduler, await world.start(*worker), await world.start(*worker)]
                coordinator = await world.start(*line)
                running.append(coordinator)
                while is_killed and len(world.service.calls_of("cards.create")) < 100:
                    await asyncio.sleep(0.05)
                if is_killed:
                    scheduler.kill()
                out, err = await coordinator.communicate()
                assert (coordinator.returncode == 0) is not is_killed, err.decode()
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    assert out.decode() == "300 True 0\n", err.decode()
    assert await world.cards() == Counter(f"card {n}" for n in range(300))


async def test_a_run_in_this_process_shows_progress_and_stops(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers complete their requests, and the same job again does the rest. No credential is in a task."""
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    world.service.latency = 0.02
    drafts = [CardDraft(f"card {n}", world.list_id) for n in range(300)]
    seen: list[BulkProgress] = []

    async def run(**options: Any) -> DaskRun:
        job = await plan(drafts, world.board_id, tmp_path / "ledger", parts=2, settle=0.3)
        assert world.service.token.encode() not in pickle.dumps(job)
        return DaskRun(job, **{"workers": 2, "lease": 2.0, "concurrency": 1, "on_progress": seen.append, **options})

    with pytest.raises(RuntimeError, match="within its `async with` block"):
        async for _ in await run():
            pass
    async with await run() as first:
        asyncio.get_running_loop().call_later(2.5, first.stop)
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
