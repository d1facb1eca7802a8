"""A worker of an engine that delivers each batch, in an order of its own, and again until it was taken."""

from __future__ import annotations

import asyncio
import random
import sys

from boardclient import AsyncSession, BoardClientError, CardDraft
from boardclient.distributed import _leases, import_batch, open_job

_leases.SHORTEST_SECONDS = 1.0  # so that a part whose worker was killed is soon free


async def main(board_id: str, list_id: str, ledger: str, keys: int, rows: int, seed: int) -> None:
    order = [*range(keys)]
    random.Random(seed).shuffle(order)
    job = await open_job(board_id, ledger, settle=0.5) if ledger else None
    async with AsyncSession.from_env(timeout=5.0) as session:
        for key in order:
            drafts = [CardDraft(f"card {key}-{n}", list_id) for n in range(rows)]
            for _ in range(60):  # an engine's retries
                try:
                    if job is None:  # the naive twin
                        await session.cards.create_many(drafts, concurrency=2).wait()
                    else:
                        await import_batch(job, f"topic/{key}", drafts, session=session, concurrency=2, lease=1.5)
                    break
                except BoardClientError as error:
                    sys.stderr.write(f"{key}: {type(error).__name__}: {error}\n")
                    await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:])))  # type: ignore[arg-type]  # -- three texts, three numbers
