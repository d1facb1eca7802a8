"""The command `export`: writes the cards of a board in the format that an import reads.

Cards that an import could not read back unchanged are named instead.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING

import click

from boardclient.cli._app import FilePath, Group, board_argument, option, timezone_option
from boardclient.cli._output import CommandError, UsageError, local, note, out, plural

if TYPE_CHECKING:
    from pathlib import Path

    from boardclient import Card
    from boardclient.cli._file._layout import Layout
    from boardclient.cli._names import Names
    from boardclient.cli._running import Client

commands = Group("export")

_Cells = Mapping[str, str | None]


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
    from boardclient.cli._file import _rows
    from boardclient.cli._file._layout import Layout
    from boardclient.cli._names import of_lists

    board_id = client.board_id()
    cards = await client.session.boards.cards(board_id)
    lists = await client.session.boards.lists(board_id)  # last, so that the list of each card is known
    names, archived = of_lists(lists), {item.id for item in lists if item.closed}
    layout, shortened = Layout(zone=zone, date_format=date_format), 0
    written, strays = list[_Cells](), list[str]()
    for card in cards:
        if card.list_id not in archived:
            cells = _cells(card, names, layout)
            if problem := _problem(card, cells, names, layout):
                strays.append(f"card {card.name!r} ({card.id}): left out: {problem}")
            else:
                written.append(cells)
                shortened += cells["due"] is not None and _rows.parse_due(cells["due"], zone, date_format) != card.due
    data = ("\ufeff" * bom + _csv(written, delimiter)).encode()
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
    if left := len(cards) - len(written) - len(strays):
        note(f"cards of archived lists that are left out: {left}")
    if shortened:
        note(f"due dates of which {date_format} leaves a part out: {shortened}")
    if strays:
        raise CommandError(f"{plural(len(strays), 'card')} could not be written as import reads them")


def _cells(card: Card, names: Names, layout: Layout) -> _Cells:
    due = None
    if card.due is not None:
        moment = local(card.due, layout.zone)
        due = moment.isoformat() if layout.date_format is None else moment.strftime(layout.date_format)
    return {
        "name": card.name,
        "desc": card.desc,
        "due": due,
        "pos": str(card.pos) if card.pos in ("top", "bottom") else None,
        "list": names.name_of(card.list_id or ""),
        "reference": card.id,
    }


def _problem(card: Card, cells: _Cells, names: Names, layout: Layout) -> str | None:
    """Return why an import would not read the cells as the same card, or None."""
    from boardclient.cli._file import _layout, _rows

    if card.list_id not in names.names:
        return "the service does not show which of the board's lists it is in"
    for column in ("desc", "due"):  # the names are the same in the service's JSON
        if cells[column] is None and card.extra.get(column) is not None:
            return f"its {column} has a type that can't be written"
    found = next(iter(_rows.check(0, cells, {None: _rows.Board("", names)}, layout)))
    return f"its {found.column} {found.message}" if isinstance(found, _layout.Problem) else None


def _csv(rows: list[_Cells], delimiter: str) -> str:
    import csv

    from boardclient.cli._file._layout import COLUMNS
    from boardclient.cli._file._rows import FORMULA

    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, delimiter=delimiter)  # rows end in \r\n, so cells with \r or \n are quoted
    table.writeheader()
    table.writerows(
        {column: f"'{cell}" if cell and FORMULA.match(cell) else cell for column, cell in row.items()} for row in rows
    )
    return text.getvalue()
