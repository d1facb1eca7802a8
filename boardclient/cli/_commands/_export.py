"""The command `export`: writes the cards of a board in the format that an import reads.

Cards that an import could not read back unchanged are named instead.
"""

from __future__ import annotations

import sys
from datetime import tzinfo
from typing import TYPE_CHECKING

import click

from boardclient.cli._app import FilePath, Group, board_argument, option, timezone_option
from boardclient.cli._output import CommandError, UsageError, note, out, plural

if TYPE_CHECKING:
    from pathlib import Path

    from boardclient.cli._running import Client

commands = Group("export")


@commands.runs("export", board=board_argument)
async def export(
    client: Client,
    output: Path | None = option(type=FilePath(), metavar="PATH", show_default="stdout"),
    delimiter: str = option(type=click.Choice([",", ";", "\t", "|"]), default=",", metavar="CHAR", show_default=True),
    bom: bool = option(is_flag=True),
    date_format: str | None = option(metavar="FORMAT", show_default="ISO 8601"),
    zone: tzinfo | None = timezone_option,
) -> None:
    """Write the cards of a board as CSV in UTF-8, which import reads.

    The columns are name, desc, due, pos, list, reference. list is the list's name if it is unique on the board, otherwise its
    identifier, which is of no use on another board. reference is the card's identifier: an import takes it for the name of the
    row in its journal, and does not send it. pos is written if it is top or bottom, not if it is a number, which can't be set.

    due has the offset of --timezone, by default that of this machine, so the moment stays the same wherever it is read. With
    --date-format, give import the same format and zone. Dates of which it leaves a part out, such as the time, are counted.

    A text that a spreadsheet would take for a formula begins with an apostrophe, which import takes away.

    Left out are cards of archived lists, and cards that import could not read back, which are named on stderr: those whose list
    is not shown, without a name, or with a due date or description of another type than documented.

    The file is either complete or unchanged: the cards are written to a new file beside it, which then replaces it.

    \b
    Exit codes:
      0  every card was written
      1  some cards were left out and named, or the service failed
      2  bad usage, or the file can't be written
      4  no credentials, or the service refuses them

    \b
    Examples:
      boardclient export Roadmap --output cards.csv
      boardclient export Roadmap --output for-excel.csv --delimiter ";" --bom --date-format "%d.%m.%Y %H:%M"
      boardclient export Roadmap | wc -l

    Args:
        output: The file to write or replace.
        delimiter: The separator of the cells: comma, semicolon, tab or bar.
        bom: Begin with the mark by which Excel recognises UTF-8.
        date_format: The form of due dates as for strftime, such as %d.%m.%Y.
    """
    from boardclient._environment import reason_of
    from boardclient._profiles import replace_file
    from boardclient.cli._file._layout import Layout
    from boardclient.cli._file._rows import CardFile
    from boardclient.cli._names import of_lists

    board_id = client.board_id()
    cards = await client.session.boards.cards(board_id)
    lists = await client.session.boards.lists(board_id)  # last, so that the list of each card is known
    archived = {item.id for item in lists if item.closed}
    written, strays = CardFile(of_lists(lists), Layout(zone=zone, date_format=date_format), delimiter), list[str]()
    for card in cards:
        if card.list_id not in archived and (problem := written.add(card)):
            strays.append(f"card {card.name!r} ({card.id}): left out: {problem}")
    data = ("\ufeff" * bom + written.text).encode()
    if output is not None:
        try:
            replace_file(output, data)
        except OSError as error:
            raise UsageError(f"can't write {output}: {reason_of(error)}") from None
    elif sys.stdout.isatty():  # which a name could steer
        for line in data.decode().replace("\r\n", "\n").rstrip("\n").split("\n"):
            out(line)
    else:
        click.echo(data, nl=False)
    for stray in strays:
        note(stray, fg="red")
    if left := len(cards) - written.number - len(strays):
        note(f"cards of archived lists that are left out: {left}")
    if written.shortened:
        note(f"due dates of which {date_format} leaves a part out: {written.shortened}")
    if strays:
        raise CommandError(f"{plural(len(strays), 'card')} could not be written as import reads them")
