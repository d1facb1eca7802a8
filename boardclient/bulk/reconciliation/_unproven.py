"""The rows that are sent again without proof that their cards are absent.

The ledger keeps them until a listing shows that they exist only once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from boardclient.bulk._ledger import Ledger
from boardclient.bulk._rows import Row
from boardclient.bulk.reconciliation._listing import Extent, Listing
from boardclient.errors import JournalError
from boardclient.models import CardDraft, utc_timestamp

FACT: Final = "rows sent again without proof"
"""The name under which the ledger keeps them."""
_MOST_SENDS: Final = 2
"""How often a row is sent without proof, in all runs of a journal."""
_NOT_GROWN: Final = "the listing shows no more cards than before another one was created"
_NOT_AGAIN: Final = (
    "it was sent again twice without proof, and the listing shows no more cards since: create any card in its list by hand, and"
    " the next run with the same journal knows"
)


@attrs.frozen
class UnprovenRow:
    """A row that was sent again without proof.

    `extent` is the size of the listing that lacked its card.
    """

    seq: int
    draft: CardDraft
    extent: Extent


class UnprovenRows:
    """Chooses rows to be sent without proof, and remembers them. Owned by a reconciler.

    So at most two surplus cards are created in all runs of a journal, both for the same row, and only if the listing was cut off
    at exactly its length.

    Raises:
        JournalError: what earlier runs have kept can't be read.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows = _load(ledger.facts.get(FACT))

    def __iter__(self) -> Iterator[CardDraft]:
        """Yield the draft of each row once."""
        return iter({row.seq: row.draft for row in self._rows}.values())

    def choose(self, rows: Sequence[Row], limit: str | None, is_outside: Callable[[Row], bool]) -> Row | str:
        """Choose the row to send again without proof, or say why none may be sent.

        It is always the same row until the listing grows. So no other row is created twice if the listing is cut
        off at exactly its length.

        Args:
            rows: The rows of the last reconciliation that are still open.
            limit: Why the listing may be cut off at its length, or None.
            is_outside: Returns True for a row that a listing of the oldest or newest cards lacks first.
        """
        if self._rows:
            last = self._rows[-1]
            again = [row for row in rows if row.seq == last.seq]
            if not again:
                return _NOT_GROWN
            if len(self._rows) >= _MOST_SENDS:
                return _NOT_AGAIN
            row = again[0]
        else:
            row = min(rows, key=lambda row: (is_outside(row), row.doubted_at))
        return limit if limit is not None and is_outside(row) else row

    async def add(self, row: Row) -> None:
        """Note that a row is sent again now without proof. It is kept on return.

        Raises:
            JournalError: the journal can't be written. The row must not be sent.
        """
        assert row.absent_at is not None  # noqa: S101 -- it is open
        self._rows.append(UnprovenRow(row.seq, row.draft, row.absent_at))
        row.absent_at = None
        await self._keep()

    async def review(self, listing: Listing) -> None:
        """Remove the rows that a listing proves to exist only once."""
        left = [row for row in self._rows if not listing.has_grown(row.extent)]
        if len(left) < len(self._rows):
            self._rows = left
            await self._keep()

    async def _keep(self) -> None:
        await self._ledger.set_fact(FACT, json.dumps([_values(row) for row in self._rows]))


def _values(row: UnprovenRow) -> dict[str, Any]:
    draft = {field.name: getattr(row.draft, field.name) for field in attrs.fields(CardDraft)}  # not those of a subclass
    if row.draft.due is not None:
        draft["due"] = utc_timestamp(row.draft.due)
    return {"seq": row.seq, "draft": draft, "extent": row.extent}


def _load(text: str | None) -> list[UnprovenRow]:
    try:
        return [_row(values) for values in json.loads(text or "[]")]
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError("the journal is damaged (the rows sent again without proof): restore it from a copy") from error


def _row(values: Any) -> UnprovenRow:
    draft = dict(values["draft"])
    if draft["due"] is not None:
        draft["due"] = datetime.fromisoformat(draft["due"])
    return UnprovenRow(values["seq"], CardDraft(**draft), Extent(*values["extent"]))
