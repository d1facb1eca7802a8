"""A worker of the campaigns: it runs the parts of a job in an order of its own, as the tasks of an engine would."""

from __future__ import annotations

import asyncio
import base64
import pickle
import sys

from boardclient import AsyncSession, BoardClientError, JournalError
from boardclient.distributed import Job, _leases, import_part

_leases.SHORTEST_SECONDS = 1.0  # so that a part whose worker was killed is soon free


async def main(job: Job, first: int, lease: float, concurrency: int) -> None:
    parts = [*job.parts[first:], *job.parts[:first]]
    async with AsyncSession.from_env(timeout=5.0) as session:
        for part in parts:
            for _ in range(60):  # an engine's retries
                try:
                    await import_part(job, part, session=session, concurrency=concurrency, lease=lease)
                    break
                except (JournalError, BoardClientError) as error:
                    sys.stderr.write(f"part {part}: {type(error).__name__}: {error}\n")
                    await asyncio.sleep(0.3)


if __name__ == "__main__":
    asyncio.run(main(pickle.loads(base64.b64decode(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
