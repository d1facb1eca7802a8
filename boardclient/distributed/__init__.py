"""Bulk creation by several workers: processes of one host, or of many. The ledger decides, and an engine only carries parts.

```python
job = await plan(drafts, board_id, "cards.ledger")
for part in job.parts:            # each as a task of any engine, any number of times
    await import_part(job, part)
print(await report(job))
```

A ledger in a file needs no extra, one on PostgreSQL needs the extra `postgres`. docs/distributed.md is the guide.
"""

from boardclient.distributed._import_calls import import_batch, import_batch_now, import_part, import_part_now, reconcile
from boardclient.distributed._jobs import Job, open_job, plan, plan_many
from boardclient.distributed._status import (
    PartStatus,
    accept_suggestions,
    drain,
    report,
    resolve,
    results,
    resume,
    status,
    unknown_rows,
)
from boardclient.distributed._token_store import SqlTokenStore

__all__ = [
    "Job",
    "PartStatus",
    "SqlTokenStore",
    "accept_suggestions",
    "drain",
    "import_batch",
    "import_batch_now",
    "import_part",
    "import_part_now",
    "open_job",
    "plan",
    "plan_many",
    "reconcile",
    "report",
    "resolve",
    "results",
    "resume",
    "status",
    "unknown_rows",
]
