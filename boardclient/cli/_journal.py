"""The commands on the journal of an import: show, export, and the undoing of the import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._app import Group, json_option
from boardclient.cli._output import show

if TYPE_CHECKING:
    from boardclient.bulk.journal import JournalRow

commands = Group("journal")

_STATES = ("logged", "done", "failed", "waiting", "unknown", "undone")
_SUMMARY = ("path", "service", "board", "created_at", "runs", "rows", *_STATES)
_LINES = 20

_journal_argument = click.argument("file", type=click.Path(path_type=Path), metavar="FILE", help="The journal of an import.")


@commands.group("journal")
def journal() -> None:
    """Show the journal of an import, and settle its unknown rows."""


@journal.command("show")
@_journal_argument
@json_option()
def journal_show(file: Path, fields: tuple[str, ...] | None) -> None:
    """Show a summary of a journal, also while an import runs: its service and board, its runs, and its rows by state.

    \b
    States:
      done     the card exists
      failed   refused; the next run sends it again
      waiting  not sent, or refused for a temporary reason
      logged   sent or about to be sent, result not known yet
      unknown  the card may exist or not
      undone   the card was deleted again; the next run sends the row

    Example:  boardclient journal show cards.csv.journal
    """
    from boardclient.bulk.journal import read_journal
    from boardclient.cli._running import reported

    with reported():
        summary = read_journal(file)
    record: dict[str, object] = {
        "path": str(summary.path),
        **{name.replace(" ", "_"): value for name, value in summary.identity.items()},
        "created_at": summary.created_at.astimezone(),
        "runs": summary.runs,
        "rows": summary.rows,
        **{str(state): count for state, count in summary.counts.items()},
    }
    show("journal", record, fields)


@journal.command("export")
@_journal_argument
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only rows in this state. Repeatable.",
    show_default="all",
)
def journal_export(file: Path, states: tuple[Any, ...]) -> None:
    """Print the rows of a journal as JSON Lines: reference or position (from 0), state, card id or reason.

    Example:  boardclient journal export cards.csv.journal --state failed --state unknown
    """
    from contextlib import closing

    from boardclient.bulk.journal import read_rows
    from boardclient.cli._running import in_steps, reported, run_until_signal

    async def work() -> None:
        with closing(read_rows(file, *states)) as rows:
            async for row in in_steps(rows):
                sys.stdout.write(json.dumps(_values(row)) + "\n")

    with reported():
        run_until_signal(work)


def _values(row: JournalRow) -> dict[str, str | int]:
    values: dict[str, str | int] = {"reference" if isinstance(row.key, str) else "position": row.key, "state": row.state}
    if row.detail is not None:
        values["card" if row.state in {"done", "undone"} else "reason"] = row.detail
    return values
