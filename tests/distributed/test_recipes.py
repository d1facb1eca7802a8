"""The recipes of docs/distributed.md: programs as they stand there, whose workers are killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from boardclient.distributed import report, status
from boardclient.testing import BoardService

if TYPE_CHECKING:
    from conftest import Server

PAGE = Path(__file__).parents[2].joinpath("docs", "distributed.md").read_text(encoding="utf-8")
ROWS = 160
START = f"""
import asyncio, sys, tasks
from boardclient import CardDraft
board_id, list_id, ledger = sys.argv[1:]
rows = [CardDraft(f"card {{n}}", list_id, reference=f"r{{n}}") for n in range({ROWS})]
asyncio.run(tasks.start(rows, board_id, ledger))
"""


@attrs.define
class Engine:
    """A recipe in a folder, and its workers."""

    folder: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    def write(self, title: str, more: str = "") -> None:
        """Write the program of the recipe, with a short lease and `settle`."""
        section = PAGE.partition(f"## From {title}\n")[2]
        code = section.partition("```python\n")[2].partition("```")[0]
        code = re.sub(r"(import_part\w*\(Job\(\*\*job\), part)\)", r"\1, lease=2.0, concurrency=2)", code)
        code = code.replace("plan(rows, board_id, ledger)", "plan(rows, board_id, ledger, parts=4, settle=0.5)")
        assert "lease=2.0" in code
        assert "settle=0.5" in code
        self.folder.joinpath("tasks.py").write_text(code + more, encoding="utf-8")

    def run(self, *line: str) -> None:
        subprocess.run([sys.executable, *line], cwd=self.folder, env=self.environment, check=True)

    def start_worker(self, *line: str) -> None:
        log = self.folder.joinpath("log").open("ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, *line], cwd=self.folder, env=self.environment, start_new_session=True, stdout=log, stderr=log
            )
        self.workers.append(process)

    def kill_workers(self) -> None:
        """Kill the workers with all of their processes."""
        for worker in self.workers:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.workers.clear()

    async def create(self, service: BoardService, ledger: str, worker: list[str]) -> None:
        """Create the cards by workers that are killed in the middle, and check that each exists once."""
        async with service.session() as session:
            board = await session.boards.create("Board")
            to_do = await session.lists.create("To Do", board_id=board.id)
            start = ["-c", START, board.id, to_do.id, ledger]
            async with asyncio.timeout(120):
                for mark in (ROWS // 4, ROWS // 2, None):
                    await asyncio.to_thread(self.run, *start)
                    self.start_worker(*worker)
                    self.start_worker(*worker)
                    while mark and len(service.calls_of("cards.create")) < mark:
                        await asyncio.sleep(0.05)
                    if mark:
                        self.kill_workers()
                while any(part.state != "done" for part in await status(ledger)):
                    await asyncio.sleep(0.2)
            cards = Counter(card.name for card in await session.boards.cards(board.id))
        assert cards == Counter(f"card {n}" for n in range(ROWS))
        found = await report(ledger)
        assert found.audit is not None
        assert (found.failed, found.unknown, found.audit.lost, found.audit.duplicated) == (0, 0, 0, ())
        assert service.token.encode() not in self.folder.joinpath("log").read_bytes()


@pytest.fixture
def service() -> Iterator[BoardService]:
    with BoardService(latency=0.03) as running:
        yield running


@pytest.fixture
def engine(tmp_path: Path, service: BoardService) -> Iterator[Engine]:
    engine = Engine(tmp_path, {**os.environ, **service.environment, "PYTHONPATH": str(tmp_path)})
    try:
        yield engine
    finally:
        engine.kill_workers()


async def test_celery_creates_each_card_once(engine: Engine, service: BoardService) -> None:
    """Its broker loses what killed workers had, and `start` again resumes the job."""
    folders = [engine.folder / name for name in ("queue", "control")]
    for folder in folders:
        folder.mkdir()
    options = {"data_folder_in": str(folders[0]), "data_folder_out": str(folders[0]), "control_folder": str(folders[1])}
    engine.write("Celery", f"\napp.conf.update(broker_url='filesystem://', broker_transport_options={options})\n")
    worker = ["-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--without-gossip", "--without-mingle"]
    await engine.create(service, str(engine.folder / "cards.ledger"), worker)


async def test_procrastinate_creates_each_card_once(engine: Engine, service: BoardService, postgresql: Server) -> None:
    """Its jobs and the ledger are in one database."""
    ledger = postgresql.new_database()
    place = urlsplit(ledger)
    names = {"PGHOST": "127.0.0.1", "PGPORT": str(place.port), "PGUSER": "postgres", "PGDATABASE": place.path[1:]}
    engine.environment.update(names)
    engine.write("Procrastinate")
    engine.run("-m", "procrastinate", "--app=tasks.app", "schema", "--apply")
    await engine.create(service, ledger, ["-m", "procrastinate", "--app=tasks.app", "worker", "--concurrency=2"])
