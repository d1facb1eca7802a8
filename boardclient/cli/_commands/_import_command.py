"""The command `import` and its options. `_import_check` has what is checked before anything is sent, `_import_run` the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._app import FilePath, Group, Number, WholeNumber, board_option, json_option, timezone_option

if TYPE_CHECKING:
    from boardclient.cli._running import Client

commands = Group("import")


RESULT = ("created", "already", "failed", "unknown", "not_reached", "seconds", "rate", "requests", "rejected", "rows", "audit")
"""The fields of the result. `audit_error` joins them if the board could not be read at the end, and `probes` if some stay."""


def _renamed(value: str) -> tuple[str, str]:
    """Return a name in the file, and its column."""
    from boardclient.cli._file._layout import IMPORTED

    column, _, name = value.partition("=")
    if column not in IMPORTED or not name.strip():
        raise click.BadParameter(f"{value!r} must be COLUMN=NAME, where COLUMN is one of {', '.join(IMPORTED)}")
    return name.strip(), column


def _encoding(value: str) -> str:
    from boardclient.cli._file._encodings import named

    return named(value)


@commands.command("import")
@click.argument(
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="A file of CSV or JSON Lines; - is standard input.",
)
@board_option("The board that gets the cards of rows that name none.")
@click.option("--list", "default_list", metavar="LIST", help="The list of rows that name none: an identifier or a name.")
@click.option(
    "--journal",
    type=FilePath(dir_okay=False),
    metavar="PATH",
    help="The file from which this import can be resumed.",
    show_default="FILE.journal; none for standard input",
)
@click.option(
    "--existing",
    type=click.Choice(["refuse", "skip", "create"]),
    default="refuse",
    show_default=True,
    help="With a new journal: what to do with rows that equal cards which are on the board already.",
)
@click.option(
    "--marker", is_flag=True, help="Put a code into each description. It proves whose card is whose where others change cards."
)
@click.option(
    "--probe",
    is_flag=True,
    help="Prove by a temporary card, which is deleted, that lost rows are absent which no card of the import can prove absent.",
)
@click.option("--preview", is_flag=True, help="Show what would be done. Nothing is sent, and no journal is changed.")
@click.option(
    "--concurrency", type=WholeNumber(min=1), metavar="N", help="How many cards to create at a time.", show_default="adaptive"
)
@click.option(
    "--rate", type=Number(min=0, min_open=True), metavar="N", help="The most requests per second.", show_default="adaptive"
)
@click.option(
    "--settle",
    type=Number(min=0),
    metavar="SECONDS",
    help="How long the service may take to commit a request whose response was lost.",
    show_default="twice the timeout, at least 10",
)
@click.option(
    "--map", "renamed", type=_renamed, multiple=True, metavar="COLUMN=NAME", help="Read COLUMN from column NAME. Repeatable."
)
@click.option(
    "--skip", "left_out", multiple=True, metavar="NAME", help="Ignore the file's column NAME; '*' all others. Repeatable."
)
@click.option(
    "--encoding",
    type=_encoding,
    metavar="NAME",
    help="The file's encoding, as Python names it.",
    show_default="UTF-8 or UTF-16",
)
@click.option(
    "--date-format", metavar="FORMAT", help="The form of due dates as for strptime, such as %d.%m.%Y.", show_default="ISO 8601"
)
@timezone_option
@click.option("--engine", type=click.Choice(["dask"]), help="Let several workers create the cards; needs the extra dask.")
@click.option(
    "--workers", type=WholeNumber(min=1), metavar="N", help="With --engine: the processes to start.", show_default="processors"
)
@click.option(
    "--parts", type=WholeNumber(min=1), metavar="N", help="With --engine: how many parts to make.", show_default="5,000 rows each"
)
@click.option("--scheduler", metavar="ADDRESS", help="With --engine: use this cluster instead of processes of this host.")
@click.option(
    "--ledger",
    metavar="PATH_OR_URL",
    help="With --engine: what the workers share, a file or postgresql://… without a password.",
    show_default="FILE.ledger",
)
@json_option(*RESULT, "preview", "would_create")
def import_(**options: Any) -> None:
    """Create a card for each row of a CSV or JSON Lines file, each exactly once.

    What spreadsheets write is recognised: commas, semicolons or tabs, UTF-8 or UTF-16. A file in another encoding needs
    --encoding: without it, the first names are shown as likely ones would read them, and nothing is sent.

    \b
    Columns, in any order:
      name       required
      desc       the description
      due        a date or date-time, without an offset in --timezone
      pos        top or bottom
      list       an identifier, or the name of an open list
      reference  your own identifier of the row, never sent
      board      with --engine: an identifier, or a name that is known here
      account    with --engine: whose token in the ledger creates the card
    An empty cell, a missing one and null are not sent.

    Rows are numbered as a spreadsheet or an editor shows them: in CSV the header is row 1, in JSON Lines a row is a line. Every
    row is checked before the first card is created. If a response is lost, the card is looked up on the board, and sent again
    only if it is proven not to be there. With --probe this is proven for the last rows of a list as well.

    The result of each row is kept in a journal beside the file. However an import ended, the same command line resumes it and
    creates no card twice. A row is identified by its reference or, without one, by its position. Failed rows may be changed or
    taken out of the file, and rows added at its end; with references anywhere. boardclient undo deletes what an import has
    created.

    After the first SIGINT or SIGTERM the cards in flight are completed. The second stops at once.

    \b
    Exit codes:
      0         every row exists exactly once
      1         rows failed or were not sent, or have two cards or none any more
      2         bad usage, file or journal, or rows equal cards that existed;
                no card was created
      3         nothing failed, but some rows are not proven to exist
      4         no credentials, or the service refuses them
      130, 143  ended by SIGINT, SIGTERM; the counts so far are printed

    \b
    Examples:
      boardclient import cards.csv --board Roadmap --preview
      boardclient import cards.csv --board Roadmap --marker
      boardclient import tasks.csv --board Roadmap --list "To Do" \\
        --map name=Title --skip '*' --date-format %d.%m.%Y --encoding windows-1252
      psql -c "copy (select name from tasks) to stdout csv header" |
        boardclient import - --board Roadmap --list "To Do"
    """
    from boardclient.cli._commands._import_check import copied, import_file
    from boardclient.cli._commands._import_run import ImportOptions
    from boardclient.cli._running import run_with_session

    chosen = ImportOptions(**options).checked()
    is_resumable = chosen.journal is not None or chosen.engine is not None
    with copied(chosen) as file:

        async def work(client: Client) -> None:
            client.stopping.hint = "the same command line resumes it" if is_resumable else "without a journal it can't be resumed"
            await import_file(client, file, chosen)

        run_with_session(work, board=chosen.board)
