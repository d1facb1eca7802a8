"""The cards of a board as the file of an export, which an import reads back."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from datetime import timedelta

from boardclient import Card
from boardclient.cli._files._cells import UNSAFE, Cells, defused
from boardclient.cli._files._encodings import flaw
from boardclient.cli._files._layout import COLUMNS, EXPORTED_ID, Layout, Problem
from boardclient.cli._files._rows import ImportBoard, check
from boardclient.cli._names import Names
from boardclient.cli._output import local
from boardclient.models import is_visible

_DAY = timedelta(days=1)


class CardFile:
    """The cards of a board that an import reads back unchanged. Owned by an export."""

    def __init__(self, lists: Names, layout: Layout, delimiter: str) -> None:
        self.number = 0
        """How many cards were written."""
        self.shortened = 0
        """Of how many the date leaves a part out."""
        self._lists, self._layout = lists, layout
        self._list_names = dict[str, str]()
        self._boards: Mapping[str | None, ImportBoard] = {None: ImportBoard("", lists)}
        self._text = io.StringIO(newline="")
        self._table = csv.writer(self._text, delimiter=delimiter)  # rows end in \r\n, so cells with \r or \n are quoted
        self._table.writerow([*COLUMNS[:-1], EXPORTED_ID])

    def add(self, card: Card) -> str | None:
        """Write a card, or return why an import would not read it as the same one."""
        if card.list_id not in self._lists.names:
            return "the service does not show which of the board's lists it is in"
        for column, value in (("desc", card.desc), ("due", card.due)):  # the names are the same in the service's JSON
            if value is None and card.extra.get(column) is not None:
                return f"its {column} has a type that can't be written"
        # A pattern may leave a part of a date out, so with one each row is read back before it is written.
        if not self._layout.date_formats and self._add_at_once(card):
            return None
        cells = self._cells(card)
        found = check(0, cells, self._boards, self._layout)[0]
        if isinstance(found, Problem):
            return f"its {found.column} {found.message}"
        if card.due is not None and found.draft.due is not None and abs(found.draft.due - card.due) > _DAY:
            return f"its due is of a year that {self._layout.date_formats[0]} does not tell"
        self.number += 1
        self.shortened += found.draft.due != card.due
        self._table.writerow([defused(cells.get(column, "")) for column in COLUMNS])
        return None

    def _add_at_once(self, card: Card) -> bool:
        """Write a card with its date in ISO 8601, and return True, if nothing in it could be read back as another one."""
        due = "" if card.due is None else local(card.due, self._layout.zone).isoformat()
        name = card.name or ""
        row = [name, card.desc or "", due, self._pos_of(card), self._list_name(card.list_id or ""), card.id]
        if not is_visible(name) or flaw("".join(row)):
            return False
        self.number += 1
        self._table.writerow([cell if cell[:1] not in UNSAFE else defused(cell) for cell in row])
        return True

    def _pos_of(self, card: Card) -> str:
        """Return the position of a card if it is one that can be set."""
        return str(card.pos) if card.pos in ("top", "bottom") else ""

    def _list_name(self, list_id: str) -> str:
        if list_id not in self._list_names:
            self._list_names[list_id] = self._lists.name_of(list_id)
        return self._list_names[list_id]

    def _cells(self, card: Card) -> Cells:
        cells = {"name": card.name, "desc": card.desc, "list": self._list_name(card.list_id or ""), "reference": card.id}
        if card.due is not None:
            moment, forms = local(card.due, self._layout.zone), self._layout.date_formats
            cells["due"] = moment.strftime(forms[0]) if forms else moment.isoformat()
        if pos := self._pos_of(card):
            cells["pos"] = pos
        return {column: cell for column, cell in cells.items() if cell is not None}

    @property
    def text(self) -> str:
        return self._text.getvalue()
