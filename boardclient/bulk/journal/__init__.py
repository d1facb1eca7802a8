"""The journal of a bulk run. One SQLite file that says which rows were logged for sending, and what became of them.

Applications and the command line read one with `read_journal` and `read_rows`. Only a run writes it.
"""

from boardclient.bulk.journal._format import JournalRow, RowKey, RowState
from boardclient.bulk.journal._view import STATES, JournalSummary, read_journal, read_rows

__all__ = ["STATES", "JournalRow", "JournalSummary", "RowKey", "RowState", "read_journal", "read_rows"]
