"""Measures one contender once, in a separate process: `python _measure.py TASK`, with the task as JSON."""

import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import _contenders
from _contenders import Contender, Service
from _peak import peak_mib


class Case(NamedTuple):
    """One table: what is done, and with how many calls in flight (when creating) or cards on the board (when reading)."""

    kind: str
    size: int

    @property
    def title(self) -> str:
        if self.kind == "read" and not self.size:
            return "read one card"
        if self.kind == "read":
            return f"read {self.size:,} {'card' if self.size == 1 else 'cards'}"
        return f"{self.kind}, {self.size} in flight"

    def contenders(self, with_rivals: bool, *, tls: bool = False, loop: str = "asyncio") -> dict[str, Contender]:
        """Return the programs that can do it."""
        return {
            name: it
            for name, it in _contenders.TABLES[self.kind].items()
            if (with_rivals or not it.is_rival)
            and (self.size == 1 or not it.is_sequential)
            and (self.size or not it.reads_lists)
            and not (tls and it.is_plain)
            and (it.has_loop or loop == "asyncio")
        }


class NotInstalledError(Exception):
    """What a contender needs is not installed."""


class Task(NamedTuple):
    """What one process does: `calls` of one contender for one case, after `warm_up` of them."""

    case: Case
    contender: str
    calls: int
    warm_up: int
    service: Service
    loop: str
    core: int | None
    server_id: int


class Sample(NamedTuple):
    """What one process needed; None if unknown. `cold_us` is for each card of the first call, including connecting."""

    cpu_us: float
    cold_us: float
    cards_per_second: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    peak_mib: float | None
    server_share: float | None


_NOT_INSTALLED = 3
"""The exit code of a process whose contender needs a package that is not installed."""


async def _measure(task: Task) -> Sample:
    contender = task.case.contenders(with_rivals=True)[task.contender]
    latencies: list[float] = []
    async with contender.open(task.service, task.case.size) as work:
        cold = time.process_time()
        await work(1, [])
        cold = time.process_time() - cold
        await work(task.warm_up, [])
        server = _server_seconds(task.server_id)
        cpu, wall = time.process_time(), time.perf_counter()
        seen = await work(task.calls, latencies)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        server_after = _server_seconds(task.server_id)
    cards = task.case.size or 1 if task.case.kind == "read" else 1
    expected = task.calls * cards
    if seen != expected:
        raise RuntimeError(f"{task.contender} handled {seen} cards instead of {expected}")
    share = None if server is None or server_after is None else (server_after - server) / wall
    return Sample(cpu / seen * 1e6, cold / cards * 1e6, seen / wall, *_percentiles(latencies), peak_mib(), share)


def _percentiles(seconds: list[float]) -> tuple[float | None, float | None, float | None]:
    if len(seconds) < 2:
        return None, None, None
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3


def _server_seconds(process_id: int) -> float | None:
    """Return the processor time of the server's only thread in seconds, or None if the system does not show it."""
    try:
        return int(Path(f"/proc/{process_id}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:
        return None


def measured(python: str, task: Task, seconds: float | None = None) -> Sample:
    """Measure in a fresh process, which gets so many seconds.

    Raises:
        NotInstalledError: the contender needs a package that this Python does not have.
        subprocess.SubprocessError: it failed, or took longer.
    """
    command = [python, __file__, json.dumps(task)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=seconds)
    if done.returncode == _NOT_INSTALLED:
        raise NotInstalledError(done.stdout.strip())
    done.check_returncode()
    return Sample(*json.loads(done.stdout))


def _main(text: str) -> None:
    task = Task(*json.loads(text))
    task = task._replace(case=Case(*task.case), service=Service(*task.service))
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    factory = None if task.loop == "asyncio" else importlib.import_module("uvloop").new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            print(json.dumps(runner.run(_measure(task))), flush=True)
    except ModuleNotFoundError as error:
        print(error.name)
        sys.exit(_NOT_INSTALLED)
    os._exit(0)  # the threads of a client may crash while the interpreter ends, after all was measured


if __name__ == "__main__":
    _main(sys.argv[1])
