"""What earlier runs of an import did, read from its journal. It takes eight bytes for each row and set."""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Literal

import attrs

from boardclient import CardDraft
from boardclient.bulk import IdSet, digest
from boardclient.bulk.journal import RowKey, check_identity, read_journal, read_rows
from boardclient.cli._signals import in_steps

RowPlan = Literal["new", "done", "failed", "doubtful", "changed"]
"""What a run does with a row: create the card; report that it exists or failed for good; look for it; refuse changed content."""


def key_of(index: int, draft: CardDraft) -> RowKey:
    """Return the key of a row in a journal."""
    return index if draft.reference is None else draft.reference


@attrs.define
class Earlier:
    """What a journal says about rows. Owned by one check of a file. Without a journal all rows are new."""

    done: IdSet = attrs.field(factory=IdSet)
    failed: IdSet = attrs.field(factory=IdSet)
    doubtful: IdSet = attrs.field(factory=IdSet)
    contents: IdSet = attrs.field(factory=IdSet)
    exists: bool = False

    def plan_for(self, index: int, draft: CardDraft) -> RowPlan:
        """Return what a run with this journal would do with a row."""
        if not self.exists:
            return "new"
        key = repr(key_of(index, draft))
        is_same = f"{key} {digest(draft).hex()}" in self.contents
        if key in self.failed:
            return "failed" if is_same else "new"
        state: RowPlan = "done" if key in self.done else "doubtful" if key in self.doubtful else "new"
        return state if state == "new" or is_same else "changed"


async def read_earlier(path: Path | None, identity: Mapping[str, str]) -> Earlier:
    """Read a journal, if there is one.

    Raises:
        JournalError: it can't be read, or belongs to another import.
    """
    earlier = Earlier()
    if path is None or not _is_there(path):
        return earlier
    check_identity(path, read_journal(path).identity, identity)
    earlier.exists = True
    sets = {"done": earlier.done, "failed": earlier.failed, "logged": earlier.doubtful, "unknown": earlier.doubtful}
    with closing(read_rows(path, "done", "failed", "logged", "unknown")) as rows:
        async for row in in_steps(rows):
            sets[row.state].add(repr(row.key))
            earlier.contents.add(f"{row.key!r} {row.digest.hex()}")
    return earlier


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # unlike Path.exists it does not raise without permission


def doubtful_keys(path: Path) -> set[RowKey]:
    """Return the keys of the rows whose cards may or may not exist.

    Raises:
        JournalError: it can't be read.
    """
    with closing(read_rows(path, "logged", "unknown")) as rows:
        return {row.key for row in rows}
