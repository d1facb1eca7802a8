"""Cards that may be renamed ones of rows that were sent again.

People may have renamed them before the board was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from boardclient.bulk._ledger import Ledger
from boardclient.bulk.reconciliation._matching import find_renamed
from boardclient.bulk.reconciliation._shown import Content, Shown
from boardclient.errors import JournalError
from boardclient.models import Card

FACT: Final = "cards that may be renamed ones of rows that were sent again"
"""The name under which the ledger keeps their identifiers."""
_MOST: Final = 1000
"""How many of them are kept."""


class RenamedCards:
    """The identifiers of cards that may be those of rows that were sent again. Owned by a reconciler.

    The ledger keeps them, since the run may end before its audit names them.

    Raises:
        JournalError: what earlier runs have kept can't be read.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ids = _load(ledger.facts.get(FACT))

    async def note(self, rows: Iterable[Content], cards: Iterable[Card], shown: Shown) -> None:
        """Note the cards that equal one of the rows in everything but the name. They are kept on return.

        Raises:
            JournalError: the journal can't be written. The rows must not be sent.
        """
        new = find_renamed(rows, cards, shown) - self.ids
        new = set(sorted(new)[: _MOST - len(self.ids)])
        if new:
            self.ids |= new
            await self._ledger.set_fact(FACT, json.dumps(sorted(self.ids)))


def _load(text: str | None) -> set[str]:
    try:
        return set(json.loads(text or "[]"))
    except (TypeError, ValueError) as error:
        raise JournalError("the journal is damaged (the cards that may be renamed ones): restore it from a copy") from error
