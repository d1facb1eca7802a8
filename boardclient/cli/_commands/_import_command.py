"""The command `import`. `_import_check` has what is checked before anything is sent, `_import_run` the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from boardclient.cli._app import Command, Group, parameters_of
from boardclient.cli._commands._import_options import ImportOptions

if TYPE_CHECKING:
    from boardclient.cli._running import Client

commands = Group("import")


class _ImportCommand(Command):
    """The command, which prints the counts with `--json` even if it is called wrongly."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError:
            from boardclient.cli._commands._import_run import show_nothing_sent

            if any(arg == "--json" or arg.startswith("--json=") for arg in given):
                show_nothing_sent(ImportOptions(fields=(), preview="--preview" in given))
            raise


@commands.command("import", cls=_ImportCommand, params=parameters_of(ImportOptions))
def import_(**given: Any) -> None:
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
    only if it is proven not to be there: for the last rows of a list by a temporary card, which is deleted at once.

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
    from boardclient.cli._commands._import_run import show_nothing_sent
    from boardclient.cli._running import run_with_session

    chosen = ImportOptions(**given)

    async def work(client: Client) -> None:
        try:
            await import_file(client, file, chosen)
        except BaseException as error:
            chosen.note_error(error)
            raise

    try:
        chosen.check()
        with copied(chosen.file) as file:
            run_with_session(work, board=chosen.board)
    except BaseException:
        show_nothing_sent(chosen)
        raise
