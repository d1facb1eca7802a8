"""The commands that read or write many cards at once, and their parameters."""

from __future__ import annotations

import click

from boardclient.cli._declare import Argument, Command, Group, Number, Option, WholeNumber

STATES = ("logged", "done", "failed", "waiting", "unknown")

_board = Option("--board", "board_id", metavar="BOARD_ID", required=True, help="The board's identifier.")

import_ = Command(
    "import",
    "_file_commands.import_",
    "Create a card for each row of a CSV or JSON Lines file, each exactly once.",
    Argument("file", metavar="FILE", help="A .csv, .jsonl or .ndjson file, in UTF-8."),
    _board,
    Option("--list", "default_list", metavar="LIST", help="The list of rows that name none: an identifier or a name."),
    Option("--journal", metavar="PATH", help="The file from which this import can be resumed.", otherwise="FILE.journal"),
    Option(
        "--concurrency", type=WholeNumber(min=1), metavar="N", help="How many cards to create at a time.", otherwise="adaptive"
    ),
    Option(
        "--settle",
        type=Number(min=0),
        metavar="SECONDS",
        help="How long the service may take to commit a request whose response was lost.",
        otherwise="twice the timeout, at least 10",
    ),
    Option("--delimiter", default=",", show_default=True, metavar="CHAR", help="The separator of the cells in a CSV file."),
    Option("--map", "renamed", multiple=True, metavar="COLUMN=NAME", help="Read COLUMN from the file's column NAME."),
    Option("--skip", "left_out", multiple=True, metavar="NAME", help="Ignore the file's column NAME."),
    Option("--timezone", metavar="ZONE", help="The time zone of due dates without an offset, such as Europe/Berlin."),
    Option("--dry-run", "is_dry_run", is_flag=True, help="Check every row, but create no card and change no journal."),
    Option("--json", "as_json", is_flag=True, help="Print the result as one JSON object, the last line on stdout."),
    notes={
        "Columns, in any order": [
            "name       required",
            "desc       the description",
            "due        ISO 8601 with an offset; with --timezone also without, and a plain date means midnight",
            "pos        top or bottom",
            "list       an identifier, or the name of an open list",
            "reference  your own identifier of the row, never sent",
            "An empty cell, a missing one and null are not sent.",
        ],
        "Rows": (
            "Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a "
            "line. Every row is checked before the first card is created. If a response is lost, the card is looked up on the "
            "board, and sent again only if it is not there."
        ),
        "Journal": (
            "The result of each row is kept in a file beside the input. However an import ended, the same command line resumes "
            "it and creates no card twice. A row is identified by its reference or, without one, by its position: with "
            "references, rows may be added anywhere. To import the whole file again, delete the journal and the files beside it "
            "whose names begin with its name."
        ),
        "Signals": "After the first SIGINT or SIGTERM the cards in flight are completed. The second stops at once.",
        "Exit codes": [
            "0         every row exists exactly once",
            "1         some failed or are unknown, each named on stderr",
            "2         bad usage, file or journal; no card was created",
            "130, 143  ended by SIGINT, SIGTERM; the counts so far are printed",
        ],
        "Examples": [
            "boardclient import cards.csv --board BOARD_ID --dry-run",
            "boardclient import cards.csv --board BOARD_ID",
            'boardclient import cards.jsonl --board BOARD_ID --list "To Do" --json | tail -n 1',
            'boardclient import tasks.csv --board BOARD_ID --delimiter ";" --map name=Title --skip Notes --timezone UTC',
        ],
    },
)
export = Command(
    "export",
    "_file_commands.export",
    "Write the cards of a board in the format that import reads.",
    Argument("board_id", metavar="BOARD_ID", help="The board's identifier."),
    Option(
        "--format",
        "form",
        type=click.Choice(["csv", "jsonl"]),
        help="The file format.",
        otherwise="the extension of --output, or csv",
    ),
    Option("--output", metavar="PATH", help="The file to write. An existing file is replaced.", otherwise="stdout"),
    Option("--archived", "with_archived", is_flag=True, help="Also write the cards of archived lists."),
    notes={
        "Columns": (
            "name, desc, due, pos, list, reference, as import reads them, in UTF-8. JSON Lines omit fields that a card does not "
            "have. list is the list's name if it is unique on the board, otherwise its identifier, which is of no use on "
            "another board. reference is the card's identifier. pos is written if it is top or bottom, not if it is a number, "
            "which can't be set. The cards are in the order of the listing."
        ),
        "Left out": (
            "Cards of archived lists, unless --archived is given, which writes the list's identifier. Also cards that import "
            "could not read back, which are named on stderr: those whose list is not shown, without a name, or with a due date "
            "or description of another type than documented."
        ),
        "Output": (
            "The file is either complete or unchanged: the cards are written to a new file beside it, which then replaces it. If "
            "the disk is full, the old file stays."
        ),
        "Exit codes": [
            "0  every card was written",
            "1  some cards were left out and named, or the service failed, or the disk is full",
            "2  bad usage",
        ],
        "Examples": [
            "boardclient export BOARD_ID --output cards.csv",
            "boardclient export BOARD_ID --format jsonl | wc -l",
        ],
    },
)
_journal_file = Argument("file", metavar="FILE", help="The journal of an import.")
journal = Group(
    "journal",
    "Show the journal of an import, without changing it.",
    Command(
        "show",
        "_file_commands.journal_show",
        "Show a summary of a journal: its service and board, its runs, and its rows by state.",
        _journal_file,
        Option("--json", "as_json", is_flag=True, help="Print it as JSON, on one line."),
        notes={
            "States": [
                "done     the card exists",
                "failed   refused; not sent again unless its content changes",
                "waiting  not sent, or refused for a temporary reason",
                "logged   sent or about to be sent, result not known yet",
                "unknown  reported as unknown: the card may exist",
            ],
            "Example": ["boardclient journal show cards.csv.journal"],
        },
    ),
    Command(
        "export",
        "_file_commands.journal_export",
        "Print the rows of a journal as JSON Lines: reference or position (from 0), state, card id or reason.",
        _journal_file,
        Option(
            "--state",
            "states",
            type=click.Choice(STATES),
            multiple=True,
            help="Only rows in this state. Repeat the option for more states.",
            otherwise="all",
        ),
        notes={"Example": ["boardclient journal export cards.csv.journal --state failed --state unknown"]},
    ),
)
