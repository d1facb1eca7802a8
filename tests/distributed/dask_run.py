"""A coordinator that a test can kill: it imports rows by the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import sys

from boardclient import CardDraft
from boardclient.integrations.dask import DaskRun


async def main(board_id: str, list_id: str, ledger: str, count: int, scheduler: str | None = None) -> None:
    drafts = [CardDraft(f"card {n}", list_id, reference=f"r{n}") for n in range(count)]
    options = {"parts": 4, "workers": 2, "settle": 0.5, "lease": 1.5, "concurrency": 2, "scheduler": scheduler}
    async with DaskRun(drafts, board_id, ledger, **options) as run:  # type: ignore[arg-type]  # -- a table of options
        states = [result.state async for result in run]
    sys.stdout.write(
        f"{len(states)} {set(states) <= {'created', 'already'}} {run.report.audit.lost if run.report.audit else None}\n"
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:]))
