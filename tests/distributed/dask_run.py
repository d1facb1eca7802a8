"""A coordinator that a test can kill: it imports rows by the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import sys

from boardclient import CardDraft
from boardclient.distributed import plan_many
from boardclient.integrations.dask import DaskRun


async def main(places: str, ledger: str, count: int, scheduler: str | None = None) -> None:
    boards = [place.split(":") for place in places.split(",")]
    drafts = [(boards[n % len(boards)], f"card {n}") for n in range(count)]
    rows = [(board_id, None, CardDraft(name, list_id)) for (board_id, list_id), name in drafts]
    jobs = await plan_many(rows, ledger, parts=4, settle=0.5)
    async with DaskRun(jobs, workers=2, scheduler=scheduler, concurrency=2, lease=1.5) as run:
        found = [result async for result in run]
    states, numbers = {result.state for result in found}, {result.index for result in found}
    sys.stdout.write(f"{len(numbers)} {states <= {'created', 'already'}} {run.report.audit.lost if run.report.audit else None}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
