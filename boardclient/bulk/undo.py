"""Undo a bulk run: delete the cards of its journal that were not changed since."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs

from boardclient import _operations as operations
from boardclient._guards import wait_to_end
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._map import map_calls
from boardclient.bulk._recognition import Content
from boardclient.bulk.journal import JournalRow, note_undone, read_journal, read_rows
from boardclient.errors import AuthenticationError, CredentialError, JournalError, NotFoundError, SessionClosedError
from boardclient.models import Card

__all__ = ["KeptCard", "Undo"]

_BATCH: Final = 64
"""How many cards are deleted before the journal notes it."""
_MARKED: Final = re.compile(r"\[([^\s\[\]]+)\](?:\s+(.*?)\s+\[\1\])?", re.DOTALL | re.IGNORECASE)
"""A description with the marker of its row before and behind what the row says."""
_OPTIONAL: Final = ("list_id", "desc", "due")
"""The fields that a service may not show, or not everywhere."""


@attrs.frozen
class KeptCard:
    """A card that an undo keeps, and why, such as "was moved"."""

    card: Card
    why: str


class Undo:
    """The cards that a bulk run has created, compared with what was sent for them.

    `AsyncSession.cards.plan_undo` makes it, and `run` deletes. Use it once. Killed at any moment and planned again, it leaves
    exactly the same cards.

    Attributes:
        unchanged: The identifiers of the cards that are as they were sent. `run` deletes them.
        kept: The cards that were there before the run, and those that were changed since, with the reason. `run` adds what was
            changed meanwhile.
        gone: The identifiers of the cards that do not exist any more: two reads of each got 404.
        deleted: The identifiers of the cards that `run` has deleted.
        failed: Why cards could not be deleted, by their identifiers.
    """

    def __init__(self, pipeline: Pipeline, journal: str | os.PathLike[str]) -> None:
        self.unchanged: list[str] = []
        self.kept: list[KeptCard] = []
        self.gone: list[str] = []
        self.deleted: list[str] = []
        self.failed: dict[str, Exception] = {}
        self._pipeline = pipeline
        self._journal = journal
        self._board_id = ""
        self._rows: dict[str, JournalRow] = {}
        self._over: list[str] = []
        """The cards that do not exist any more, in the order in which they are noted."""
        self._shown: set[str] = set()
        """The fields that cards show when they are read one by one."""

    async def _plan(self) -> None:
        identity = read_journal(self._journal).identity
        if identity["service"] != self._pipeline.identity["service"]:
            raise JournalError(f"{self._journal} is the journal of {identity['service']}, not of this session's service")
        if "board" not in identity:
            raise JournalError(f"{self._journal} names no board: its cards can't be compared")
        self._board_id = identity["board"]
        note_undone(self._journal, ())  # raises while a run uses it
        cards: list[Card] = await self._pipeline.call(operations.BOARD_CARDS.request(self._board_id))
        unlisted = await asyncio.to_thread(self._compare, cards)
        async with contextlib.aclosing(map_calls(self._pipeline, self._read, unlisted, None)) as results:
            async for result in results:
                if result.error is not None:
                    raise result.error
                if result.value is None:
                    self._add(self.gone, result.item)
                elif result.value.list_id is None:  # it may be on another board by now
                    self.kept.append(KeptCard(result.value, "is not listed any more"))
                elif self._is_unchanged(result.item, result.value, self._shown):
                    self.unchanged.append(result.item)

    async def run(self) -> None:
        """Delete the cards that are unchanged, and note it in the journal.

        Each card is read and compared once more right before it is deleted. A later bulk run with the journal creates the cards
        again.

        Raises:
            AuthenticationError, CredentialError, SessionClosedError: the session can't be used any more.
            JournalError: the journal can't be written.
        """
        noted = 0
        try:
            async with contextlib.aclosing(map_calls(self._pipeline, self._remove, self.unchanged, None)) as results:
                async for result in results:
                    if isinstance(result.error, AuthenticationError | CredentialError | SessionClosedError):
                        raise result.error
                    if result.error is not None:
                        self.failed[result.item] = result.error
                    if len(self._over) >= noted + _BATCH:
                        noted, batch = len(self._over), self._over[noted:]
                        await self._note(batch)
        finally:
            await self._note(self._over[noted:])

    async def _note(self, card_ids: Sequence[str]) -> None:
        await wait_to_end(asyncio.ensure_future(asyncio.to_thread(note_undone, self._journal, card_ids)))

    async def _read(self, card_id: str) -> Card | None:
        """Return a card, or None if it does not exist. A proxy may respond with 404 to everything for a while."""
        for is_sure in (False, True):
            try:
                card: Card = await self._pipeline.call(operations.READ_CARD.request(card_id))
            except NotFoundError:
                if not is_sure:
                    await self._pipeline.call(operations.BOARD_LISTS.request(self._board_id))
            else:
                _add_shown(card, self._shown)
                return card
        return None

    async def _remove(self, card_id: str) -> None:
        """Delete a card, unless it was changed meanwhile."""
        card = await self._read(card_id)
        if card is None:
            self._add(self.gone, card_id)
        elif self._is_unchanged(card_id, card, self._shown):
            self._add(self.deleted if await self._delete(card_id) else self.gone, card_id)

    async def _delete(self, card_id: str) -> bool:
        """Delete a card. Return False if it was gone already."""
        try:
            await self._pipeline.call(operations.DELETE_CARD.request(card_id))
        except NotFoundError:
            if await self._read(card_id) is not None:
                raise
            return False
        return True

    def _add(self, ids: list[str], card_id: str) -> None:
        ids.append(card_id)
        self._over.append(card_id)

    # --- comparing

    def _compare(self, cards: Sequence[Card]) -> list[str]:
        """Compare the cards of rows as the board lists them. Return the identifiers of those that it does not list."""
        by_id, shown = {card.id: card for card in cards}, set[str]()
        for card in cards:
            _add_shown(card, shown)
        self._rows = {row.detail or "": row for row in read_rows(self._journal, "done")}
        listed = [(row, by_id[card_id]) for card_id, row in self._rows.items() if card_id in by_id]
        sent = Counter(field for row, _ in listed for field in ("desc", "due") if getattr(row.content, field))
        # A card is no evidence about itself: only others that were sent with a field show that the listing leaves it out.
        shown |= {field for field, number in sent.items() if number == 1}
        self.unchanged = [card.id for _, card in listed if self._is_unchanged(card.id, card, shown)]
        return [card_id for card_id in self._rows if card_id not in by_id]

    def _is_unchanged(self, card_id: str, card: Card, shown: set[str]) -> bool:
        """Return True if a card is as it was sent for its row. Otherwise note that it is kept, and why."""
        row, desc = self._rows[card_id], card.desc or ""
        if (marked := _MARKED.fullmatch(desc.strip())) and marked[1].casefold() == row.marker:
            desc = marked[2] or ""
        now, sent = Content.of_card(attrs.evolve(card, desc=desc)), row.content
        reasons = {
            "was there before": row.run == 0,
            "was renamed": now.name != sent.name,
            "was moved": "list_id" in shown and now.list_id != sent.list_id,
            "has another description": "desc" in shown and now.desc != (sent.desc or ""),
            "has another due date": "due" in shown and now.due != sent.due,
        }
        why = " and ".join(words for words, is_so in reasons.items() if is_so)
        if why:
            self.kept.append(KeptCard(card, why))
        return not why

    def __repr__(self) -> str:
        return f"<Undo {len(self.unchanged)} unchanged, {len(self.kept)} kept, {len(self.deleted)} deleted>"


def _add_shown(card: Card, fields: set[str]) -> None:
    fields.update(name for name in _OPTIONAL if getattr(card, name) is not None)
