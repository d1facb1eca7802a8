"""Confirmed cards that a listing lacks. Some are read, one by one (4.6)."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import attrs

from boardclient import _operations as operations
from boardclient._statuses import RUN_ENDING_ERRORS
from boardclient.bulk._ledger import Ledger
from boardclient.bulk.reconciliation._listing import Listing
from boardclient.bulk.reconciliation._reader import Reader
from boardclient.errors import BoardClientError, NotFoundError

_MOST_ASKED: Final = 100
"""How many cards are read, each time the board is read."""


@attrs.frozen
class Missing:
    """How many confirmed cards a listing lacks.

    Attributes:
        deleted: Those that are deleted.
        hidden: Those that exist, or may.
        is_incomplete: Whether one of them may be on the board, in a list that is open. So the listing may be cut off.
    """

    deleted: int = 0
    hidden: int = 0
    is_incomplete: bool = False


class MissingCards:
    """Finds out why confirmed cards are not listed. Owned by a reconciler."""

    def __init__(self, reader: Reader, ledger: Ledger) -> None:
        self._reader = reader
        self._ledger = ledger
        self._deleted: set[str] = set()
        self._moved: set[str] = set()

    async def look(self, listing: Listing, known: Iterable[str], open_lists: Container[str] | None) -> Missing:
        """Read some of the missing cards, until one shows that the listing is incomplete. The rest are taken to be like them.

        Args:
            listing: The listing that lacks them.
            known: The identifiers of confirmed cards of this run.
            open_lists: The lists of the board whose cards are listed, or None if they are not known. A card in another one was
                moved away, or its list was archived.

        Raises:
            BoardClientError: an error that ends the run.
        """
        if not listing.missing:
            return Missing()
        unlisted = {card_id for card_id in known if listing.lacks(card_id)}
        if not unlisted:  # their rows are not in the input
            unlisted = await self._ledger.find_confirmed(listing.lacks, _MOST_ASKED)
        is_incomplete = not unlisted
        for card_id in sorted(unlisted - self._deleted - self._moved)[:_MOST_ASKED]:
            if await self._may_be_there(card_id, open_lists):
                is_incomplete = True
                break
        deleted = len(unlisted & self._deleted) if is_incomplete or unlisted & self._moved else listing.missing
        return Missing(deleted, listing.missing - deleted, is_incomplete)

    async def _may_be_there(self, card_id: str, open_lists: Container[str] | None) -> bool:
        """Return False if a card is deleted, or in a list whose cards are not listed."""
        try:
            card = await self._reader.call(operations.READ_CARD.request(card_id))
        except NotFoundError:
            self._deleted.add(card_id)
            return False
        except RUN_ENDING_ERRORS:
            raise
        except BoardClientError:
            return True
        if open_lists is None or card.list_id is None or card.list_id in open_lists:
            return True
        self._moved.add(card_id)
        return False
