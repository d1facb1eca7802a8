"""The commands `journal show` and `journal export`. The journal may be in use."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from boardclient import JournalError
from boardclient.bulk.journal import STATES, JournalRow, RowState, read_journal, read_rows
from boardclient.cli._errors import FileError
from boardclient.cli._signals import in_steps
from boardclient.cli._text import details, out_json


def show(path: Path, *, as_json: bool = False) -> None:
    """Print a summary of a journal, as lines or as one JSON object.

    Raises:
        FileError: there is no journal, or it can't be read.
    """
    try:
        summary = read_journal(path)
    except JournalError as error:
        raise FileError(str(error)) from None
    fields: dict[str, object] = {
        "path": summary.path,
        **summary.identity,
        "created at": summary.created_at.isoformat(),
        "runs": summary.runs,
        "rows": summary.rows,
        **{state: summary.counts[state] for state in STATES},
    }
    if as_json:
        out_json({name.replace(" ", "_"): value if isinstance(value, int) else str(value) for name, value in fields.items()})
    else:
        details("journal", fields)


async def export(path: Path, states: Sequence[RowState]) -> None:
    """Print the rows in these states, or all rows, as JSON Lines.

    Raises:
        FileError: there is no journal, or it can't be read.
    """
    try:
        with closing(read_rows(path, *states)) as rows:
            async for row in in_steps(rows):
                sys.stdout.write(json.dumps(_values(row)) + "\n")
    except JournalError as error:
        raise FileError(str(error)) from None


def _values(row: JournalRow) -> dict[str, str | int]:
    values: dict[str, str | int] = {"reference" if isinstance(row.key, str) else "position": row.key, "state": row.state}
    if row.detail is not None:
        values["card" if row.state == "done" else "reason"] = row.detail
    return values
