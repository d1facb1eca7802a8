"""The journal of a bulk run: a SQLite file of its rows and their results.

Applications and the command line read it with `read_journal` and `read_rows`. Only a run writes it. The design is described in
docs/design/journal.md.
"""

from boardclient.bulk.journal._format import JournalRow, RowKey, RowState
from boardclient.bulk.journal._lock import was_used
from boardclient.bulk.journal._opening import check_identity
from boardclient.bulk.journal._view import STATES, JournalSummary, read_journal, read_rows

__all__ = [
    "STATES",
    "JournalRow",
    "JournalSummary",
    "RowKey",
    "RowState",
    "check_identity",
    "read_journal",
    "read_rows",
    "was_used",
]
