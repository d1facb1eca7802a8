"""Measure what a ledger costs. Only --processes sends requests.

PLACE is the path of a file that does not exist, or postgresql://…; by default a temporary file. For each commit of rows it shows
processor time, time and bytes. --references shows what a call for one reference costs in a ledger that has many, against the same
call in an empty one. The processor time of a server is that of its processes on this host.
"""

import argparse
import asyncio
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from boardclient import Card, CardDraft, Pace
from boardclient.bulk._content import IdSet
from boardclient.bulk._life import Row
from boardclient.distributed import import_batch, open_job, plan
from boardclient.distributed._leases import COMMIT_SIZE, lease_parts
from boardclient.store._connection import Connection
from boardclient.store._database import Database
from boardclient.store._ledger import StoredJob, StoredLedger
from boardclient.store._rows import dump_content, rows_of
from boardclient.testing import BoardService, faults

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


async def _server_seconds(database: Database) -> float:
    """Return the processor time of the server's processes for this database so far, 0 for a file."""
    if database.is_file:
        return 0.0
    found = await database.read("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    paths = [Path(f"/proc/{row.pid}/schedstat") for row in found]
    return sum(int(path.read_text().split()[0]) for path in paths if path.exists()) / 1e9


async def _measure(place: str, rows: int) -> None:
    """Plan rows, commit those of a part, and print what that takes."""
    drafts = _drafts(rows)
    began = time.process_time()
    job = await plan(drafts, "board", place, parts=4)
    print(f"plan: {(time.process_time() - began) / rows * 1e6:.1f} us of CPU a row")
    database = Database(job.ledger)
    try:
        (part,) = await database.read("SELECT job, part FROM boardclient_parts WHERE key = '0'")
        lease = await database.change(lambda connection: lease_parts(connection, part.job, [part.part], "benchmark", 300.0))
        assert lease is not None
        stored = await database.query(lambda connection: rows_of(connection, part.part))
        known = StoredJob(job=part.job, secret=b"", marker=True, identity="", baseline=IdSet(), listed_before=0)
        ledger, count = StoredLedger(database, lease, known, stored), len(stored) // COMMIT_SIZE
        cpu, wall, server = time.process_time(), time.perf_counter(), await _server_seconds(database)
        for start in range(0, count * COMMIT_SIZE, COMMIT_SIZE):
            some = [Row(n, drafts[n]) for n in range(start, start + COMMIT_SIZE)]
            await ledger.admit(some)
            for row in some:
                ledger.add_outcome(row, "created", Card(f"5f3c7a9e1b2d4c6a{row.index:08x}"))
        await ledger.aclose()
        cpu, wall, server = time.process_time() - cpu, time.perf_counter() - wall, await _server_seconds(database) - server
        print(f"commit of {COMMIT_SIZE}: {cpu / count * 1e3:.2f} ms of CPU, {wall / count * 1e3:.2f} ms")
        a_row = 1e6 / count / COMMIT_SIZE
        print(f"a row: {cpu * a_row:.1f} us of CPU here, {server * a_row:.1f} us of the server")
    finally:
        await database.aclose()
    if database.is_file:
        size = sum(path.stat().st_size for path in Path(place).parent.glob(f"{Path(place).name}*"))
        print(f"file: {size / rows:.0f} bytes a row of the input")


def _fill(connection: Connection, first: int, count: int) -> None:
    """Add references that have cards, each as a batch of its own."""
    numbers = range(first, first + count)
    parts = [(n, 1, f"rows {n}", "", 1, "done", 1, 0, 0) for n in numbers]
    columns = [(name, int) for name in ("part", "job")] + [("key", str), ("digest", str), ("size", int), ("state", str)]
    connection.insert("INSERT INTO boardclient_parts", [*columns, ("done", int), ("failed", int), ("in_doubt", int)], parts)
    content = dump_content(_drafts(1)[0])
    rows = [(n << 32, 1, f"reference {n}", content) for n in numbers]
    connection.insert("INSERT INTO boardclient_rows", [("seq", int), ("job", int), ("ref", str), ("content", str)], rows)
    done = [(n << 32, 1, "done", f"5f3c7a9e1b2d4c6a{n:08x}") for n in numbers]
    outcome = [("seq", int), ("job", int), ("state", str), ("detail", str), ("at", "{clock}")]
    connection.insert("INSERT INTO boardclient_outcomes", outcome, done)


async def _calls(place: str, references: int, count: int) -> float:
    """Return the processor time of a batch of one row in a ledger that has many references, in seconds."""
    async with BoardService() as service, service.session(limiter=Pace()) as session:
        board = service.seed({"To Do": []})
        job = await open_job(board.id, place, settle=0.1)
        database = Database(place)
        for first in range(1, references + 1, 5000):
            number = min(5000, references + 1 - first)
            await database.change(lambda connection, first=first, number=number: _fill(connection, first, number))  # type: ignore[misc]  # -- both are bound at once
        await database.aclose()
        spent = 0.0
        for n in range(count + 20):
            began = time.process_time()
            row = CardDraft(f"Card {n}", board.lists["To Do"], reference=f"new {n}")
            await import_batch(job, None, [row], session=session)
            spent += time.process_time() - began if n >= 20 else 0.0
        return spent / count


async def _compare(place: str, references: int, count: int) -> None:
    few, many = await _calls(f"{place} few", 0, count), await _calls(f"{place} many", references, count)
    print(f"a batch of one: {few * 1e3:.2f} ms of CPU, with {references:,} references {many * 1e3:.2f} ms ({many / few:.2f})")


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
    parser.add_argument("--references", type=int, help="how many references a ledger has, for a call that adds one")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    options = parser.parse_args()
    rows = 600 if options.smoke else options.rows
    with tempfile.TemporaryDirectory() as folder:
        place = options.place or str(Path(folder) / "ledger")
        if options.processes:
            asyncio.run(_scale(Path(folder), rows, options.limit, options.latency / 1e3))
        elif options.references:
            asyncio.run(_compare(place, options.references, 200))
        else:
            asyncio.run(_measure(place, rows))
        if options.smoke:
            asyncio.run(_compare(place, 20, 3))


if __name__ == "__main__":
    main()
