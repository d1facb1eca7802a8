"""The commands that read or write many cards at once: import, export, and what the journal of an import says."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from boardclient import AsyncSession
from boardclient.bulk.journal._format import RowState
from boardclient.bulk.journal._view import STATES
from boardclient.cli import _export, _journal
from boardclient.cli._import_view import ImportOptions, import_file
from boardclient.cli._rows import Format
from boardclient.cli._running import reported, with_session
from boardclient.cli._signals import Brake, run_until_signal

# Each paragraph is one line: typer wraps it to the terminal, and a newline of ours would break it elsewhere.
_IMPORT_EPILOG = "\n\n".join(
    (
        (
            "[bold]Columns[/bold], in any order: name (required), desc, due (ISO 8601 with an offset), pos (top or bottom), "
            "list (an identifier, or the name of an open list), reference (your own id of the row, never sent). "
            "An empty cell, a missing one and null are not sent."
        ),
        (
            "[bold]Rows[/bold] are counted as they are seen: in CSV the header is row 1, in JSON Lines the row is the line. "
            "Every row is checked before the first card is sent. "
            "A card whose answer was lost is looked for on the board, and sent again only if it is not there."
        ),
        (
            "[bold]Journal[/bold]: what became of each row is kept in a file beside the input. "
            "However an import ended, the same command line goes on with it and creates no card twice. "
            "A row is known by its reference, or by its place among the rows: with references, rows may be added anywhere. "
            "The journal goes with the file; delete it (and what lies beside it) to import the whole file once more."
        ),
        "[bold]SIGINT, SIGTERM[/bold]: the first lets the cards under way come to their end; the second stops at once.",
        (
            "[bold]Exit codes[/bold]: 0 every row exists exactly once; 1 some failed or are unknown, each named on stderr; "
            "2 bad usage, file or journal, nothing was sent; 130, 143 ended by SIGINT, SIGTERM, after the counts so far."
        ),
        "[bold]Examples[/bold]:",
        "boardclient import cards.csv --board BOARD_ID --dry-run",
        "boardclient import cards.csv --board BOARD_ID",
        'boardclient import cards.jsonl --board BOARD_ID --list "To Do" --json | tail -n 1',
    )
)
_EXPORT_EPILOG = "\n\n".join(
    (
        (
            "[bold]Columns[/bold]: name, desc, due, pos, list, reference, as import reads them, in UTF-8; "
            "JSON Lines leave out what a card does not have. "
            "list is the list's name where that means this list only, otherwise its identifier, which no other board knows. "
            "reference is the card's identifier. "
            "pos is written where it is top or bottom; a number is not, since it can't be set: the order is the listing's."
        ),
        (
            "[bold]Left out[/bold]: cards of archived lists, unless --archived is given (then by the list's identifier); "
            "and, named on stderr, cards that import could not read back: whose list is not shown, that have no name, "
            "or whose due date or description is of another kind than documented."
        ),
        "[bold]Exit codes[/bold]: 0 every card was written; 1 some were left out and named, or the service failed; 2 bad usage.",
        "[bold]Examples[/bold]:",
        "boardclient export BOARD_ID --output cards.csv",
        "boardclient export BOARD_ID --format jsonl | wc -l",
    )
)


class FormatName(enum.StrEnum):
    """Name a format as `--format` does."""

    CSV = "csv"
    JSON_LINES = "jsonl"


class StateName(enum.StrEnum):
    """Name a state as `--state` does."""

    ARMED = "armed"
    DONE = "done"
    FAILED = "failed"
    WAITING = "waiting"
    UNKNOWN = "unknown"


JournalArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The journal of an import.")]

journal_app = typer.Typer(no_args_is_help=True, help="Show what the journal of an import holds; it is never changed.")


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command("import", epilog=_IMPORT_EPILOG)(import_)
    app.command("export", epilog=_EXPORT_EPILOG)(export)
    app.add_typer(journal_app, name="journal")


def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .jsonl or .ndjson file, in UTF-8.")],
    board: Annotated[str, typer.Option("--board", metavar="BOARD_ID", help="The board's identifier.")],
    list_: Annotated[
        str | None, typer.Option("--list", metavar="LIST", help="The list of rows that name none: an identifier or a name.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(metavar="PATH", help="What this import is resumed from.", show_default="FILE.journal")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cards at a time; chosen for you if not given.")
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long the service may take to commit a request whose answer was lost.",
            show_default="twice the timeout, at least 10",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every row, send nothing, change no journal.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, the last line on stdout.")
    ] = False,
) -> None:
    """Create a card for each row of a CSV or JSON Lines file, each exactly once."""
    brake = Brake()
    options = ImportOptions(
        board_id=board,
        default_list=list_,
        journal=journal or Path(f"{file}.journal"),
        concurrency=concurrency,
        settle=settle,
        is_dry_run=dry_run,
        as_json=as_json,
    )

    async def work(session: AsyncSession) -> None:
        await import_file(session, file, options, brake)

    # What is under way when it ends is named row by row: there is nothing to add but how to go on.
    with_session(context, work, writes=False, brake=brake, when_stopped="the same command line goes on")


def export(
    context: typer.Context,
    board_id: Annotated[str, typer.Argument(metavar="BOARD_ID", help="The board's identifier.")],
    form: Annotated[
        FormatName | None, typer.Option("--format", help="The form.", show_default="by the extension of --output, otherwise csv")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The file to write, in place of what it holds.", show_default="stdout")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Write the cards of archived lists, too.")] = False,
) -> None:
    """Write the cards of a board in the form that import reads."""

    async def work(session: AsyncSession) -> None:
        await _export.export(session, options)

    with reported():
        chosen = _export.choose_format(None if form is None else Format[form.name], output)
    options = _export.ExportOptions(board_id=board_id, form=chosen, output=output, with_archived=archived)
    with_session(context, work, writes=False)


@journal_app.command("show", epilog="[bold]Example[/bold]: boardclient journal show cards.csv.journal")
def journal_show(file: JournalArgument) -> None:
    """Sum a journal up: whose it is, how many runs used it, its rows by state.

    States: done; failed (refused for good); waiting (not sent, or refused for a passing reason); armed (sent or about to be, and
    nothing is known); unknown (reported as such).
    """
    with reported():
        _journal.show(file)


@journal_app.command(
    "export",
    epilog="[bold]Example[/bold]: boardclient journal export cards.csv.journal --state failed --state unknown",
)
def journal_export(
    file: JournalArgument,
    state: Annotated[
        list[StateName] | None, typer.Option(help="Only rows in this state; give it again for more.", show_default="all")
    ] = None,
) -> None:
    """Print the rows of a journal as JSON Lines: reference or position (from 0), state, card id or reason."""
    asked = {str(name) for name in state or ()}
    states: list[RowState] = [name for name in STATES if name in asked]
    with reported():
        run_until_signal(lambda: _journal.export(file, states))
