"""The journal of a bulk run: one SQLite file that says which rows were sent and what became of them.

`read_journal` and `read_rows` read it, while a run is at work or not.
"""

from boardclient.bulk.journal._format import JournalRow, RowState
from boardclient.bulk.journal._view import STATES, JournalSummary, read_journal, read_rows

__all__ = ["STATES", "JournalRow", "JournalSummary", "RowState", "read_journal", "read_rows"]
