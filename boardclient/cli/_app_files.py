"""The commands that read or write many cards at once, and their parameters. What they do is imported when they are called."""

from __future__ import annotations

import click

from boardclient.cli._declare import Argument, Command, Group, Option

STATES = ("logged", "done", "failed", "waiting", "unknown")

_board = Option("--board", "board_id", metavar="BOARD_ID", required=True, help="The board's identifier.")

import_ = Command(
    "import",
    "_file_commands.import_",
    "Create a card for each row of a CSV or JSON Lines file, each exactly once.",
    Argument("file", metavar="FILE", help="A .csv, .jsonl or .ndjson file, in UTF-8."),
    _board,
    Option("--list", "default_list", metavar="LIST", help="The list of rows that name none: an identifier or a name."),
    Option("--journal", metavar="PATH", help="The file that this import is resumed from.", otherwise="FILE.journal"),
    Option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Cards at a time.", otherwise="found by itself"),
    Option(
        "--settle",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="How long the service may take to commit a request whose response was lost.",
        otherwise="twice the timeout, at least 10",
    ),
    Option("--delimiter", default=",", show_default=True, metavar="CHAR", help="What separates the cells of a CSV file."),
    Option("--map", "renamed", multiple=True, metavar="COLUMN=NAME", help="Read COLUMN from what the file calls NAME."),
    Option("--skip", "left_out", multiple=True, metavar="NAME", help="Leave out what the file calls NAME."),
    Option("--timezone", metavar="ZONE", help="Where due dates without an offset are, such as Europe/Berlin."),
    Option("--dry-run", "is_dry_run", is_flag=True, help="Check every row, send nothing, change no journal."),
    Option("--json", "as_json", is_flag=True, help="Print the result as one JSON object, the last line on stdout."),
    notes={
        "Columns, in any order": [
            "name       required",
            "desc       the description",
            "due        ISO 8601 with an offset; with --timezone also without, and a plain date is its midnight",
            "pos        top or bottom",
            "list       an identifier, or the name of an open list",
            "reference  your own identifier of the row, never sent",
            "An empty cell, a missing one and null are not sent.",
        ],
        "Rows": (
            "Rows are counted as they are seen: in CSV the header is row 1, in JSON Lines the row is the line. Every row is "
            "checked before the first card is sent. A card whose response was lost is looked for on the board, and sent again "
            "only if it is not there."
        ),
        "Journal": (
            "What became of each row is kept in a file beside the input. However an import ended, the same command line "
            "resumes it and creates no card twice. A row is known by its reference, or by its place among the rows: with "
            "references, rows may be added anywhere. The journal belongs to the file: delete it (and what lies beside it) to "
            "import the whole file again."
        ),
        "Signals": "The first SIGINT or SIGTERM lets the cards under way come to their end. The second stops at once.",
        "Exit codes": [
            "0         every row exists exactly once",
            "1         some failed or are unknown, each named on stderr",
            "2         bad usage, file or journal; nothing was sent",
            "130, 143  ended by SIGINT, SIGTERM, after the counts so far",
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
    "Write the cards of a board in the form that import reads.",
    Argument("board_id", metavar="BOARD_ID", help="The board's identifier."),
    Option(
        "--format",
        "form",
        type=click.Choice(["csv", "jsonl"]),
        help="The form.",
        otherwise="by the extension of --output, otherwise csv",
    ),
    Option("--output", metavar="PATH", help="The file to write, in place of what it holds.", otherwise="stdout"),
    Option("--archived", "with_archived", is_flag=True, help="Write the cards of archived lists, too."),
    notes={
        "Columns": (
            "name, desc, due, pos, list, reference, as import reads them, in UTF-8. JSON Lines leave out what a card does not "
            "have. list is the list's name where that means this list only, otherwise its identifier, which no other board "
            "knows. reference is the card's identifier. pos is written where it is top or bottom; a number is not, since it "
            "can't be set: the order is the listing's."
        ),
        "Left out": (
            "Cards of archived lists, unless --archived is given (then by the list's identifier). And, named on stderr, cards "
            "that import could not read back: whose list is not shown, that have no name, or whose due date or description is "
            "of another kind than documented."
        ),
        "Output": (
            "The file is complete or untouched: the cards are written to a new file beside it, which then takes its place. A "
            "full disk leaves the old one as it was."
        ),
        "Exit codes": [
            "0  every card was written",
            "1  some were left out and named, or the service failed",
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
    "Show what the journal of an import holds; it is never changed.",
    Command(
        "show",
        "_file_commands.journal_show",
        "Sum a journal up: whose it is, how many runs used it, its rows by state.",
        _journal_file,
        Option("--json", "as_json", is_flag=True, help="Print it as JSON, on one line."),
        notes={
            "States": [
                "done     the card exists",
                "failed   refused for good",
                "waiting  not sent, or refused for a passing reason",
                "logged   sent or about to be, and nothing is known",
                "unknown  reported as such",
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
            help="Only rows in this state; give it again for more.",
            otherwise="all",
        ),
        notes={"Example": ["boardclient journal export cards.csv.journal --state failed --state unknown"]},
    ),
)
