"""The commands on the journal of an import: show, export, resolve and undo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import boardclient
from boardclient.cli._app import Group, json_option, yes_option
from boardclient.cli._output import note, out, out_columns, out_json, plural, quoted, show

if TYPE_CHECKING:
    from boardclient.bulk.journal import JournalRow, UnknownRow
    from boardclient.cli._running import Client

commands = Group("journal")

_STATES = ("logged", "done", "failed", "waiting", "unknown", "undone")
_UNKNOWN = ("row", "name", "reason", "suggestion", "cards")
_UNDONE = ("deleted", "kept", "gone", "failed", "cards")
_CANDIDATES = 3

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


@journal.command("resolve")
@_journal_argument
@click.argument("row", required=False, metavar="[ROW]", help="A row to settle: its reference, or its position from 0.")
@click.option("--card", "card_id", metavar="CARD_ID", help="ROW has this card.")
@click.option("--absent", is_flag=True, help="ROW has no card. The next run sends it again.")
@click.option("--accept", is_flag=True, help="Take all suggestions. Look at them first: they are made by resemblance.")
@json_option(*_UNKNOWN)
def journal_resolve(
    file: Path, row: str | None, card_id: str | None, absent: bool, accept: bool, fields: tuple[str, ...] | None
) -> None:
    """Show the rows whose cards may exist, beside the cards that may be theirs, or settle rows by hand.

    The next run of the import continues from there. Exit code 3 if --accept leaves rows unknown.

    \b
    Examples:
      boardclient journal resolve cards.csv.journal
      boardclient journal resolve cards.csv.journal --accept
      boardclient journal resolve cards.csv.journal r-17 --card CARD_ID
      boardclient journal resolve cards.csv.journal 5 --absent
    """
    from boardclient.bulk.journal import read_unknown, resolve
    from boardclient.cli._output import NotProvenError
    from boardclient.cli._running import reported

    if row is None and (card_id is not None or absent):
        raise click.UsageError("--card and --absent settle one row: give ROW")
    if row is not None and ((card_id is None) is not absent or accept):
        raise click.UsageError("ROW needs either --card or --absent")
    with reported():
        unknown = read_unknown(file)
        if row is not None:
            key = row if not row.isdecimal() or any(item.row.key == row for item in unknown) else int(row)
            resolve(file, key, card_id=card_id, absent=absent)
            return
        left = 0
        for item in unknown:
            suggestion = item.suggestion
            record = {
                "row": item.row.key,
                "name": item.row.content.name,
                "reason": item.row.detail,
                "suggestion": None if suggestion is None else suggestion.card_id,
                "cards": [
                    {"id": card.card_id, "name": card.content.name, "likeness": round(card.likeness, 2)}
                    for card in item.candidates[:_CANDIDATES]
                ],
            }
            if accept:
                left += not _accepted(file, item)
            elif fields is not None:
                out_json({name: record[name] for name in fields or _UNKNOWN})
            else:
                _print_unknown(item)
        if left:
            raise NotProvenError(f"{plural(left, 'row')} of {len(unknown)} remain unknown")


def _accepted(file: Path, item: UnknownRow) -> bool:
    """Settle a row by its suggestion. Return False if there is none, or if the card is another row's."""
    from boardclient.bulk.journal import resolve

    if item.suggestion is None:
        note(f"row {item.row.key!r} ({quoted(item.row.content.name)}): no suggestion")
        return False
    try:
        resolve(file, item.row.key, card_id=item.suggestion.card_id)
    except boardclient.JournalError as error:
        note(str(error))
        return False
    out(f"row {item.row.key!r} ({quoted(item.row.content.name)}) has the card {item.suggestion.card_id}")
    return True


def _print_unknown(item: UnknownRow) -> None:
    """Print a row and the cards that may be its: for a person, or with tabs into a pipe."""
    if not sys.stdout.isatty():
        for card in item.candidates[:_CANDIDATES] or [None]:
            values = ("", "", "") if card is None else (card.card_id, card.content.name, f"{card.likeness:.2f}")
            out_columns(str(item.row.key), item.row.content.name, *values)
        return
    out(f"row {item.row.key!r}: {quoted(item.row.content.name)}", bold=True)
    for card in item.candidates[:_CANDIDATES]:
        mark = "suggested" if card is item.suggestion else ""
        out(f"  {card.card_id}  {card.likeness:4.0%}  {quoted(card.content.name)}  {mark}")
    if not item.candidates:
        out("  no card that may be its is known: look at the board, then --absent or --card")


@commands.command("undo")
@_journal_argument
@yes_option
@json_option(*_UNDONE)
def undo(file: Path, yes: bool, fields: tuple[str, ...] | None) -> None:
    """Delete the cards that an import has created, for good. It asks first.

    Cards that were moved or changed since are kept and named. If it is ended, the same command line continues. The journal
    remembers what was deleted: importing the file again creates these cards again.

    Example:  boardclient undo cards.csv.journal
    """
    from boardclient.cli import _undoing
    from boardclient.cli._running import with_session

    async def work(client: Client) -> None:
        await _undoing.undo(client.session, file, fields, yes=yes)

    with_session(work, writes=True, when_stopped="the same command line does the rest")
