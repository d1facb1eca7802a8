"""Measure what the ledger of several workers costs: processor time and bytes for a batch of rows. Nothing is sent.

PLACE is the path of a file that does not exist, or postgresql://…; by default a temporary file.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from boardclient import Card, CardDraft
from boardclient.bulk._life import Row
from boardclient.distributed import plan
from boardclient.distributed._database import Database, events, parts
from boardclient.distributed._lease import claim
from boardclient.distributed._parts import BATCH, PartLedger


async def _measure(place: str, rows: int) -> None:
    list_id, text = "5f3c7a9e1b2d4c6a00000000", "What is to be done, in a sentence or two"
    drafts = [CardDraft(f"Card {n}", list_id, desc=text, reference=f"r{n}") for n in range(rows)]
    began = time.process_time()
    job = await plan(drafts, "board", place, parts=4)
    print(f"plan: {(time.process_time() - began) / rows * 1e6:.1f} us of CPU per row")
    database = Database(job.ledger)
    lease = await claim(database, job.name, 0, "benchmark", 30.0)
    assert lease is not None
    ledger = PartLedger(database, lease, list(enumerate(drafts, 1)), {})
    count = max(1, rows // 4 // BATCH)
    cpu, wall = time.process_time(), time.perf_counter()
    for start in range(0, count * BATCH, BATCH):
        batch = [Row(n, drafts[n]) for n in range(start, start + BATCH)]
        await ledger.admit(batch)
        for row in batch:
            ledger.release(row)
            ledger.add_outcome(row, "created", Card(f"5f3c7a9e1b2d4c6a{row.index:08x}"))
    await ledger.aclose()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"batch of {BATCH}: {cpu / count * 1e3:.1f} ms of CPU, {wall / count * 1e3:.1f} ms, {count * BATCH / wall:.0f} rows/s")
    async with database.begin() as connection:
        event = await connection.scalar(sa.select(sa.func.avg(sa.func.length(events.c.outcomes) + sa.func.length(events.c.sent))))
        part = await connection.scalar(sa.select(sa.func.max(sa.func.length(parts.c.rows))))
    print(f"event: {float(event or 0) / 1e3:.1f} KB, rows of a part: {(part or 0) / 1e3:.1f} KB for {rows // 4}")
    await database.aclose()


def main() -> None:
    """Measure one ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", nargs="?", metavar="PLACE")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(options.place or str(Path(folder) / "ledger"), 600 if options.smoke else options.rows))


if __name__ == "__main__":
    main()
