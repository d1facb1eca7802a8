"""The recipes of docs/engines/ as programs, which run while responses are lost and a worker is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
from waiting import until

from boardclient.distributed import report
from boardclient.testing import BoardService, faults

_HERE = Path(__file__).parent
_PAGES = _HERE.parent / "docs"
ROWS = 160
BATCHES = 4
_START = f"""
import asyncio, inspect, sys, tasks
if __name__ == "__main__":
    rows = [{{"name": f"card {{n}}", "list_id": sys.argv[2]}} for n in range({ROWS})]
    given = [rows, sys.argv[1], sys.argv[3], "cards"]
    begun = tasks.start(*given[: len(inspect.signature(tasks.start).parameters)])
    if inspect.iscoroutine(begun):
        asyncio.run(begun)
"""
_FINISH = "import asyncio, sys, tasks; asyncio.run(tasks.finish(sys.argv[1], sys.argv[3], 'cards'))"


def blocks(title: str, language: str) -> list[str]:
    """Return the blocks of the page of an engine."""
    page = _PAGES.joinpath("engines", f"{title.lower()}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def lines_to_come_back() -> list[str]:
    """Return the pieces of code in the table of engines."""
    return re.findall(r"`([^`\n]+)`", _PAGES.joinpath("distributed.md").read_text(encoding="utf-8"))


@attrs.frozen
class Note:
    """What a worker noted of a batch: that it began or ended, or from when on it may be delivered again."""

    word: str
    process: int = attrs.field(converter=int)
    at: float = attrs.field(converter=float)
    key: str


async def _ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, 300)


@attrs.define
class Recipe:
    """A recipe in a folder, as it stands in the page, or its naive twin."""

    title: str
    folder: Path
    service: BoardService
    is_naive: bool
    environment: dict[str, str] = attrs.field(factory=dict)
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    _arguments: list[str] = attrs.field(factory=list)

    def write(self, more: str = "", start: str = _START) -> None:
        """Write the program: all that differs from the page is what it imports the functions from."""
        (code,) = blocks(self.title, "python")
        assert "from boardclient.distributed import" in code
        module = "naive_boards" if self.is_naive else "quick_boards"
        code = code.replace("from boardclient.distributed import", f"from {module} import")
        self.folder.joinpath("tasks.py").write_text(code + more, encoding="utf-8")
        self.folder.joinpath("run.py").write_text(start, encoding="utf-8")
        paths = os.pathsep.join([str(self.folder), str(_HERE / "engines")])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        names = {"RECIPE_NOTES": str(self.folder / "notes"), "PYTHONPATH": paths, "PATH": path}
        self.environment = {**os.environ, **self.service.environment, **names, **self.environment}

    def run(self, *line: str) -> subprocess.Popen[bytes]:
        """Start a program, in a group of its own."""
        with self.folder.joinpath("log").open("ab") as log:
            process = subprocess.Popen(
                line, cwd=self.folder, env=self.environment, start_new_session=True, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    async def complete(self, *line: str) -> None:
        """Run a program until it succeeds, as its user would."""
        for _ in range(3):
            if await _ended(self.run(*line)) == 0:
                return
        raise AssertionError(f"{line}\n{self.log[-6000:]}")

    @property
    def log(self) -> str:
        return self.folder.joinpath("log").read_text(encoding="utf-8", errors="replace")

    def notes(self, *words: str) -> list[Note]:
        """Return what the workers noted, in its order."""
        try:
            lines = self.folder.joinpath("notes").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        notes = [Note(*line.split(" ", 3)) for line in lines]  # type: ignore[arg-type]  # -- converted
        return [note for note in notes if note.word in words or not words]

    async def deliver(self, ledger: str, *worker: str, deliveries: int = 2, state: Path | None = None) -> None:
        """Deliver each batch twice while responses are lost, and kill a process in the middle. The twin is delivered once less.

        Tasks of a queue are run by a worker. A pipeline is set back to its `state` after the kill for each further delivery.
        """
        deliveries -= self.is_naive
        board = self.service.seed({"To Do": []})
        self._arguments = [board.id, board.lists["To Do"], ledger]
        self.service.faults.add(faults.drop(commit=True), "cards.create", call=[15, 40, 110])
        start = [sys.executable, "run.py", *self._arguments]
        working = self.run(*worker) if worker else None
        first = self.run(*start)
        killed = await self._kill_one(first)
        if await _ended(first) != 0:
            if state is not None:
                shutil.copytree(state, self.folder / "state")
            await self.complete(*start)
        if working is not None and working.pid == killed:
            await _ended(working)
            working = self.run(*worker)
        for _ in range(deliveries - 1):
            if state is not None:
                shutil.rmtree(state)
                shutil.copytree(self.folder / "state", state)
            await self.complete(*start)
        if working is not None:
            await self._until(self._is_delivered, working)
            await self.complete(sys.executable, "-c", _FINISH, *self._arguments)

    def _is_delivered(self) -> bool:
        if self.is_naive:
            return len(self.service.calls_of("cards.create")) > ROWS + 5
        return self._count(2) == BATCHES

    def _count(self, times: int) -> int:
        """Return how many batches have ended so many times."""
        return sum(count >= times for count in Counter(note.key for note in self.notes("end")).values())

    async def _until(self, condition: Callable[[], bool], working: subprocess.Popen[bytes] | None) -> None:
        def is_met() -> bool:
            assert working is None or working.poll() is None, self.log[-6000:]
            return condition()

        await until(is_met, pause=0.1)

    async def _kill_one(self, running: subprocess.Popen[bytes]) -> int | None:
        killed: list[int] = []

        def is_over() -> bool:
            if running.poll() and self.is_naive:  # it has lost a response, and nothing tries again
                return True
            assert not running.poll(), self.log[-6000:]
            assert self._count(1) < BATCHES, "no batch was being worked on"
            if len(self.service.calls_of("cards.create")) >= ROWS // 2:  # one batch may have ended, and the next not begun
                # Not one that waits for a task: it may hold the lock of the queue from which all processes of its pool take them.
                last = {(note.process, note.key): note.word for note in self.notes()}
                for process in [process for (process, _), word in last.items() if word == "begin"][::-1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        killed.append(process)
                        break
            return bool(killed)

        await until(is_over, pause=0.02)
        return killed[0] if killed else None

    async def come_back(self, ledger: str, *worker: str) -> None:
        """Deliver each batch once while the service asks for a pause, for which no task has the patience."""
        board = self.service.seed({"To Do": []})
        self._arguments = [board.id, board.lists["To Do"], ledger]
        self.service.faults.add(faults.status(429, {"Retry-After": "8"}), "cards.create", call=60)
        self.environment["RECIPE_PATIENCE"] = "1"
        working = self.run(*worker) if worker else None
        await self.complete(sys.executable, "run.py", *self._arguments)
        await self._until(lambda: self._count(1) == BATCHES, working)
        earliest: dict[str, float] = {}
        for note in self.notes():
            if note.word == "again":
                earliest[note.key] = note.at
            elif note.word == "begin":
                assert note.at >= earliest.get(note.key, 0.0) - 0.1, f"{note.key} came back too early"
        assert any(earliest.values())

    async def check(self, *, once: int = 0) -> None:
        """Check that each row has one card, and that the naive twin makes more cards than rows.

        All batches have been delivered twice, but for `once`, which the engine has stored as done before the kill.
        """
        async with self.service.session() as session:
            cards = Counter(card.name for card in await session.boards.cards(self._arguments[0]))
        assert self.service.token.encode() not in self.folder.joinpath("log").read_bytes()
        if self.is_naive:
            assert cards.total() > ROWS
            return
        for printed in blocks(self.title, "text"):
            assert printed in self.log, "the page shows what its program prints"
        assert self._count(1) == BATCHES
        assert self._count(2) >= BATCHES - once
        assert cards == Counter(f"card {n}" for n in range(ROWS))
        found = await report(self._arguments[2])
        assert found.audit is not None
        assert (found.failed, found.unknown, found.audit.lost, found.audit.duplicated) == (0, 0, 0, ())

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


MakeRecipe = Callable[[str], Recipe]
