"""What the recipes import in place of `boardclient.distributed`: the same with short waits, which notes each delivery."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from boardclient import BoardClientError, BulkReport, CardDraft, distributed
from boardclient.distributed import Job, _leases, reconcile

__all__ = ["Job", "import_batch", "import_batch_now", "noted", "open_job", "reconcile"]

_leases.SHORTEST_SECONDS = 1.0  # so that a batch whose worker was killed is soon free
open_job = partial(distributed.open_job, settle=0.5)
_OPTIONS: dict[str, Any] = {"lease": 2.0, "concurrency": 2}
if "RECIPE_PATIENCE" in os.environ:
    _OPTIONS["patience"] = float(os.environ["RECIPE_PATIENCE"])


def note(word: str, key: str, at: float | None = None) -> None:
    """Append a line to the file that the test reads."""
    with open(os.environ["RECIPE_NOTES"], "a", encoding="utf-8") as notes:
        notes.write(f"{word} {os.getpid()} {time.time() if at is None else at} {key}\n")


@contextlib.contextmanager
def noted(key: str) -> Iterator[None]:
    """Note when a batch begins and ends, or from when on it may be delivered again."""
    note("begin", key)
    try:
        yield
    except BoardClientError as error:
        note("again", key, error.retry_at.timestamp() if error.retry_at else 0.0)
        raise
    note("end", key)


async def import_batch(job: Job, key: str, rows: Iterable[CardDraft | Mapping[str, object]], **options: Any) -> BulkReport:
    """Create the cards of a batch."""
    with noted(key):
        return await distributed.import_batch(job, key, rows, **options | _OPTIONS)


def import_batch_now(job: Job, key: str, rows: Iterable[CardDraft | Mapping[str, object]], **options: Any) -> BulkReport:
    """Create the cards of a batch."""
    with noted(key):
        return distributed.import_batch_now(job, key, rows, **options | _OPTIONS)
