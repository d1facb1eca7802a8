"""Measure what the ledger of several workers costs. Only --processes sends requests.

PLACE is the path of a file that does not exist, or postgresql://…; by default a temporary file. For each commit of rows it shows
processor time, time and bytes. --simulate plans all parts of a job of 100 million cards, with few rows each, and lets all workers
write as fast as they can, then some beside a transaction that is held open, which keeps a vacuum from removing anything. Each has
two connections, which a server's `max_connections` has to allow. The processor time is that of the server's processes on this
host.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from boardclient.distributed._parts import COMMIT_SIZE, PartLease, PartLedger, claim
from boardclient.distributed._tables import events, insert_event, parts, read_states
from boardclient.store._alchemy import Database
from sqlalchemy.ext.asyncio import AsyncEngine

from boardclient import Card, CardDraft
from boardclient._pace._shared import Message, Store
from boardclient.bulk._content import IdSet
from boardclient.bulk._life import Row
from boardclient.distributed import plan
from boardclient.testing import BoardService, faults

_CARDS, _WORKERS, _RATE, _LEASE, _PART = 100_000_000, 200, 10.0, 30.0, 5000
_PROGRAM = """
import asyncio, pickle, sys, time
from boardclient import AsyncSession
from boardclient.distributed import import_part

async def main(job, drafts, first, step):
    began = time.process_time()
    if step:
        for part in job.parts[first::step]:
            await import_part(job, part, concurrency=8)
    else:
        async with AsyncSession.from_env() as session:
            await session.cards.create_many(drafts, board_id=job.board_id, concurrency=8, settle=0.1).wait()
    print(time.process_time() - began)

asyncio.run(main(*pickle.load(open(sys.argv[1], "rb")), int(sys.argv[2]), int(sys.argv[3])))
"""
"""A worker that takes each `step`th part, or, with a step of 0, a plain process without a ledger."""


def _drafts(rows: int, list_id: str = "5f3c7a9e1b2d4c6a00000000") -> list[CardDraft]:
    text = "What is to be done, in a sentence or two"
    return [CardDraft(f"Card {n}", list_id, desc=text, reference=f"r{n}") for n in range(rows)]


@contextlib.asynccontextmanager
async def _held_open(place: str) -> AsyncIterator[None]:
    """Keep a transaction open that has read something."""
    database = Database(place)
    try:
        if database.is_file:
            yield  # a reader does not hinder the writers of a file in WAL mode
            return
        assert isinstance(database._engine, AsyncEngine)
        async with database._engine.begin() as connection:
            await connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            await connection.execute(sa.select(parts.c.part))
            yield
    finally:
        await database.aclose()


async def _commits(database: Database, lease: PartLease, drafts: list[CardDraft]) -> None:
    """Commit rows until they end, and print what one takes."""
    entries = list(enumerate(drafts, 1))
    ledger = PartLedger(database, lease, entries, {}, secret=b"", baseline=IdSet())
    count = max(1, len(drafts) // COMMIT_SIZE)
    cpu, wall = time.process_time(), time.perf_counter()
    for start in range(0, count * COMMIT_SIZE, COMMIT_SIZE):
        some = [Row(n, drafts[n]) for n in range(start, min(start + COMMIT_SIZE, len(drafts)))]
        await ledger.admit(some)
        for row in some:
            ledger.add_outcome(row, "created", Card(f"5f3c7a9e1b2d4c6a{row.index:08x}"))
    await ledger.aclose()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"commit of {COMMIT_SIZE}: {cpu / count * 1e3:.1f} ms of CPU, {wall / count * 1e3:.1f} ms")


async def _measure(place: str, rows: int) -> None:
    drafts = _drafts(rows)
    began = time.process_time()
    job = await plan(drafts, "board", place, parts=4)
    print(f"plan: {(time.process_time() - began) / rows * 1e6:.1f} us of CPU per row")
    database = Database(job.ledger)
    lease = await claim(database, job.name, 0, "benchmark", 30.0)
    assert lease is not None
    await _commits(database, lease, drafts[: rows // 4])
    size = sa.func.avg(sa.func.length(events.c.outcomes) + sa.func.length(events.c.sent))
    ((event,),) = await database.read(sa.select(size))
    ((part,),) = await database.read(sa.select(sa.func.max(sa.func.length(parts.c.rows))))
    await database.aclose()
    print(f"event: {(event or 0) / 1e3:.1f} KB, stored row of the input: {(part or 0) / (rows // 4):.0f} bytes")


# --- the traffic of all workers


class _Rows(Sized, Iterable[CardDraft]):
    """Rows that are made while they are read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[CardDraft]:
        return (CardDraft(f"Card {n}", "5f3c7a9e1b2d4c6a00000000", reference=f"r{n}") for n in range(self._count))


class _Worker:
    """A worker with a connection of its own, which holds a part."""

    commits = itertools.count()

    def __init__(self, place: str, lease: PartLease) -> None:
        self.database = Database(place)
        self.store = Store(place, f"account {lease.part}")
        self._lease = lease
        self._ended: dict[int, Any] = {}

    async def renew(self) -> None:
        await self.database.change(self._lease.renew)

    async def write(self) -> None:
        number, lease = next(self.commits), self._lease
        rows = range(COMMIT_SIZE * number, COMMIT_SIZE * (number + 1))
        outcomes = {row: ("done", f"5f3c7a9e1b2d4c6a{row:08x}") for row in rows}

        def append(connection: sa.Connection) -> None:
            insert_event(connection, lease.job, lease.part, lease.epoch, number, outcomes, rows)
            lease.renew(connection)

        await self.database.change(append)

    async def exchange(self) -> None:
        answer = await self.store.exchange("worker", Message(refused=1, wanted=2, ended=self._ended))
        self._ended = {attempt.serial: (200, None, 0.05) for attempt in answer.granted}


async def _server_seconds(database: Database) -> float:
    """Return the processor time of the server's processes for this database so far, for a file that of this process."""
    if database.is_file:
        return time.process_time()
    ours = sa.select(sa.text("pid FROM pg_stat_activity WHERE datname = current_database()"))
    paths = [Path(f"/proc/{row[0]}/schedstat") for row in await database.read(ours)]
    return sum(int(path.read_text().split()[0]) for path in paths if path.exists()) / 1e9


async def _traffic(
    database: Database, name: str, needed: float, steps: list[Callable[[], Awaitable[object]]], seconds: float
) -> float:
    """Let each worker repeat its step, and return the server's processor time for one."""
    for step in steps:  # connections are made one after the other
        await step()
    count, cpu, began = 0, await _server_seconds(database), time.perf_counter()

    async def repeat(step: Callable[[], Awaitable[object]]) -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await step()
            count += 1

    await asyncio.gather(*map(repeat, steps))
    rate = count / (time.perf_counter() - began)
    each = (await _server_seconds(database) - cpu) / max(1, count)
    print(
        f"{name}: {rate:.0f} a second of {needed:.0f}; {each * 1e3:.2f} ms of CPU each, so {100 * each * needed:.0f} % of a core"
    )
    return each


async def _simulate(place: str, count: int, workers: int, seconds: float) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    job = await plan(_Rows(8 * count), "board", place, parts=count)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(f"{len(job.parts):,} parts: planned in {time.perf_counter() - began:.0f} s with {grown:.0f} MB more memory")
    database, everyone = Database(place), list[_Worker]()
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(database.aclose)
        for part in job.parts[:workers]:
            lease = await claim(database, job.name, part, "simulated", 1e5)
            assert lease is not None
            everyone.append(_Worker(place, lease))
            opened.push_async_callback(everyone[-1].database.aclose)
            opened.push_async_callback(everyone[-1].store.aclose)
        writes, renewals = _WORKERS * _RATE / COMMIT_SIZE, _WORKERS * 4 / _LEASE
        await _traffic(database, "renewals", renewals, [each.renew for each in everyone], seconds)
        await _traffic(database, "commits", writes, [each.write for each in everyone], seconds)
        few = [each.write for each in everyone[:8]]  # so that a row has as many versions as a part's at its end
        alone = await _traffic(database, "commits of eight", writes, few, seconds)
        async with _held_open(place):
            beside = await _traffic(database, "commits of eight beside an open transaction", writes, few, seconds)
        print(f"loss beside an open transaction: {100 * (beside / alone - 1):.0f} %")
        await _traffic(database, "exchanges of paces", 5 * _WORKERS, [each.exchange for each in everyone], seconds)
        rows = COMMIT_SIZE * next(_Worker.commits)
        tracemalloc.start()
        began = time.perf_counter()
        await read_states(database, job.name)
        kept = tracemalloc.get_traced_memory()[1] / rows
        print(f"the state of a row: {kept:.0f} bytes in the closing part, {kept * _CARDS / 1e9:.0f} GB for {_CARDS:,} rows")


async def _scale(folder: Path, rows: int, limit: float | None, latency: float) -> None:
    """Create cards by a plain process, then by workers, at a service with a latency in seconds."""
    for processes in (0, 1, 2, 4, 8) if limit else (0, 1, 2, 4):
        async with BoardService(latency=latency) as service:
            if limit:
                service.faults.rate_limit = faults.rate_limit(per_second=limit, burst=max(1, round(limit / 10)))
            board = service.seed({"To Do": []})
            drafts = _drafts(rows, board.lists["To Do"])
            job = await plan(drafts, board.id, folder / f"scale {processes}", parts=32, settle=0.1)
            (folder / "job").write_bytes(pickle.dumps((job, drafts)))
            environment = {**os.environ, **service.environment}
            line = [sys.executable, "-c", _PROGRAM, str(folder / "job")]
            lines = [[*line, str(number), str(processes)] for number in range(max(1, processes))]
            running = [subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, text=True) for each in lines]
            while not service.calls_of("cards.create"):
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            while sum(call.status == 200 for call in service.calls_of("cards.create")) < 0.98 * rows:
                await asyncio.sleep(0.05)
            rate = 0.98 * rows / (time.perf_counter() - began)
            ended = [await asyncio.to_thread(one.communicate) for one in running]
            cpu = sum(float(output) for output, _ in ended) / rows * 1e3
            print(f"{f'{processes} workers' if processes else 'no ledger':>10}: {rate:.0f} cards/s, {cpu:.2f} ms of CPU a card")


def main() -> None:
    """Measure one ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", nargs="?", metavar="PLACE")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processes", action="store_true", help="compare processes, over a service on this host")
    parser.add_argument("--limit", type=float, help="how many requests a second that service accepts")
    parser.add_argument("--latency", type=float, default=20.0, help="after how many milliseconds that service responds")
    parser.add_argument("--simulate", action="store_true", help="plan all parts, and let all workers write: minutes")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    options = parser.parse_args()
    rows = 600 if options.smoke else options.rows
    with tempfile.TemporaryDirectory() as folder:
        place = options.place or str(Path(folder) / "ledger")
        if options.processes:
            asyncio.run(_scale(Path(folder), rows, options.limit, options.latency / 1e3))
        elif options.simulate:
            asyncio.run(_simulate(place, _CARDS // _PART, _WORKERS, 15.0))
        else:
            asyncio.run(_measure(place, rows))
        if options.smoke:
            asyncio.run(_simulate(f"{place} of all", 20, 4, 0.1))


if __name__ == "__main__":
    main()
