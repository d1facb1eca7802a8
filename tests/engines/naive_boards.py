"""What the twins of the recipes import: a batch is a loop of calls, as a program without a ledger has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from quick_boards import Job, noted, open_job

from boardclient import AsyncSession, BulkReport, CardDraft

__all__ = ["Job", "import_batch", "import_batch_now", "open_job", "reconcile"]


async def import_batch(job: Job, key: str, rows: Iterable[CardDraft | Mapping[str, object]], **options: Any) -> BulkReport:
    """Create a card for each row."""
    with noted(key):
        async with AsyncSession.from_env() as session:
            for row in rows:
                draft = row if isinstance(row, CardDraft) else CardDraft.from_dict(row)
                await session.cards.create(draft.name, list_id=draft.list_id)
    return BulkReport()


def import_batch_now(job: Job, key: str, rows: Iterable[CardDraft | Mapping[str, object]], **options: Any) -> BulkReport:
    """Create a card for each row."""
    return asyncio.run(import_batch(job, key, rows, **options))


async def reconcile(job: Job, **options: Any) -> BulkReport:
    """Do nothing."""
    return BulkReport()
