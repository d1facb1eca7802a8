"""Undo a bulk run: delete the cards of its journal that were not changed since."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import attrs

from boardclient._base._guards import wait_to_end
from boardclient._interface import _operations as operations
from boardclient._pipeline._calls import CallOptions
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._content import REMOVABLE, Content, shown_fields
from boardclient.bulk._journal._file import JournalFile
from boardclient.bulk._map import map_calls
from boardclient.bulk.journal import JournalRow, read_rows, record_undone
from boardclient.errors import (
    AuthenticationError,
    BoardClientError,
    CredentialError,
    JournalError,
    NotFoundError,
    SessionClosedError,
)
from boardclient.models import BoardList, Card

__all__ = ["KeptCard", "Undo"]

_BATCH: Final = 64
"""How many cards are deleted before the journal notes it, and before the board is read again, if it is small."""
_MOST_VIEWS: Final = 100
"""How often the board is read for its cards at most while these are deleted, but for the time that this takes."""
_VIEW_SECONDS: Final = 5.0
"""How old a reading of the board may be when a card is taken for its deletion."""
_MARKED: Final = re.compile(r"\[([^\s\[\]]+)\](?:\s+(.*?)\s+\[\1\])?", re.DOTALL | re.IGNORECASE)
"""A description with the marker of its row before and behind what the row says."""
_ENDING: Final = (AuthenticationError, CredentialError, JournalError, SessionClosedError)
"""The errors after which no further card can be deleted."""


@attrs.frozen
class KeptCard:
    """A card that an undo keeps, and why, such as "was moved"."""

    card: Card
    why: str


@attrs.frozen
class _View:
    """A board as people see it: the cards and the lists that it shows, with those of its lists that are archived."""

    cards: Mapping[str, Card]
    lists: frozenset[str]
    archived: frozenset[str]

    def why_hidden(self, card_id: str, card: Card, sent_to: str) -> str:
        """Return why people don't see a card, in words, and "" if they do. `sent_to` is its list if it shows none."""
        list_id = card.list_id or sent_to
        if card.extra.get("closed") is True:  # as archived lists are: that cards have this field is not documented
            return "is archived"
        if list_id in self.archived:
            return "is in an archived list"
        if card_id not in self.cards:
            return "is not listed any more"
        return "" if list_id in self.lists else "is in a list that the board does not show"


class Undo:
    """The cards that a bulk run has created, compared with what was sent for them.

    `AsyncSession.cards.plan_undo` makes it, and `run` deletes. Use it once. Killed at any moment and planned again, it leaves
    exactly the same cards.

    Attributes:
        unchanged: The identifiers of the cards that people see as they were sent. `run` deletes them.
        kept: The cards that were there before the run, those that were changed since, and those that nobody sees, with the
            reason: they are archived, in an archived list, or not listed. `run` adds what has happened meanwhile.
        gone: The identifiers of the cards that do not exist any more: two reads of each got 404, and the board does not list it.
        deleted: The identifiers of the cards that `run` has deleted.
        failed: Why cards could not be deleted, by their identifiers.
    """

    def __init__(self, pipeline: Pipeline, journal: str | os.PathLike[str]) -> None:
        self.unchanged: list[str] = []
        self.kept: list[KeptCard] = []
        self.gone: list[str] = []
        self.has_begun: bool = False
        """Whether a deletion was begun: it may be done, although `deleted` does not have it."""
        self.deleted: list[str] = []
        self.failed: dict[str, Exception] = {}
        self._pipeline = pipeline
        self._journal = journal
        self._secret = b""
        self._board_id = ""
        self._rows: dict[str, JournalRow] = {}
        self._seqs: defaultdict[str, list[int]] = defaultdict(list)
        self._over: list[str] = []
        """The cards that do not exist any more, in the order in which they are noted."""
        self._missing: list[str] = []
        """The cards that could not be read any more."""
        self._shown: set[str] = set()
        """The fields that are compared when a card is read by itself: those that such reads have shown. A description or a date
        that the listing of the plan or a response to the runs has shown was removed if a card does not show it."""
        self._marked_runs: set[int] = set()
        """The runs of which the board lists a card with its marker. A card of theirs without one was changed."""
        self._view = _View({}, frozenset(), frozenset())
        """The board as it was read last."""

    @property
    def planned(self) -> list[tuple[str, str]]:
        """The identifiers of the cards that `run` deletes, and their names."""
        return [(card_id, self._rows[card_id].content.name) for card_id in self.unchanged]

    async def _prepare(self) -> None:
        # A journal of another service or board would name cards that are not those of this session.
        with contextlib.closing(JournalFile.open(self._journal, None)) as file:  # no run uses it meanwhile
            identity, self._secret, self._shown = file.meta.identity, file.meta.secret, set(file.meta.shown.split())
            if identity["service"] != self._pipeline.identity["service"]:
                raise JournalError(f"{self._journal} is the journal of {identity['service']}, not of this session's service")
            if "board" not in identity:
                raise JournalError(f"{self._journal} names no board: its cards can't be compared")
            self._board_id = identity["board"]
            cards = await self._look()
            # In a thread, since it reads the whole journal: the other tasks of the loop continue.
            unclear, unlisted = await asyncio.to_thread(self._compare, cards)
            async with contextlib.aclosing(map_calls(self._pipeline, self._read, [*unclear, *unlisted], None)) as results:
                async for result in results:
                    if result.error is not None:
                        raise result.error
                    self._record_read(result.item, result.value, is_listed=result.item in unclear)

    async def _look(self) -> list[Card]:
        """Read the board as people see it, and return its cards."""
        cards: list[Card] = await self._pipeline.call(operations.BOARD_CARDS.request(self._board_id))
        lists: list[BoardList] = await self._pipeline.call(operations.BOARD_LISTS.request(self._board_id))
        archived = frozenset(item.id for item in lists if item.closed)
        self._view = _View({card.id: card for card in cards}, frozenset(item.id for item in lists), archived)
        return cards

    async def _taken(self) -> AsyncIterator[str]:
        """Yield the cards to delete. The board is read before, and again before it may have changed for many of them."""
        # In proportion to the number of cards: a fixed number would read a board of 50,000 cards almost 800 times.
        batch, stale_at = max(_BATCH, len(self.unchanged) // _MOST_VIEWS), 0.0
        for number, card_id in enumerate(self.unchanged):
            if number % batch == 0 or time.monotonic() >= stale_at:
                await self._look()
                stale_at = time.monotonic() + _VIEW_SECONDS
            yield card_id

    def _record_read(self, card_id: str, card: Card | None, *, is_listed: bool) -> None:
        """Note what the plan does with a card that was read by itself, since the listing does not suffice."""
        if card is None and not is_listed:
            self._add(self.gone, card_id)
        elif card is None or self._is_unchanged(card_id, card, self._shown):
            self.unchanged.append(card_id)

    async def run(self) -> None:
        """Delete the cards that are unchanged, and note it in the journal.

        The board is read once more before, and then again and again. Each card is read and compared right before it is deleted.
        A later bulk run with the journal creates the cards again. No run can use the journal meanwhile.

        Raises:
            AuthenticationError, CredentialError, SessionClosedError: the session can't be used any more.
            BoardClientError: the board could not be read. What was deleted before is noted.
            JournalError: the journal is in use or can't be written, or it or its lock was moved, removed or replaced.
        """
        with contextlib.closing(JournalFile.open(self._journal, None)) as file:
            # The secret is that of one journal: a copy has it too, a new journal of the same name does not.
            if file.meta.secret != self._secret:
                raise JournalError(f"{self._journal} was replaced after the plan was made: plan again")
            noted = 0
            remove = functools.partial(self._remove, file)
            try:
                async with contextlib.aclosing(map_calls(self._pipeline, remove, self._taken(), None)) as results:
                    async for result in results:
                        file.check_lock()
                        if isinstance(result.error, _ENDING):
                            raise result.error
                        if result.error is not None:
                            self.failed[result.item] = result.error
                        if len(self._over) >= noted + _BATCH:
                            noted, batch = len(self._over), self._over[noted:]
                            await self._record(file, batch)
                await self._look_for_missing()
            finally:
                await self._record(file, self._over[noted:])

    async def _look_for_missing(self) -> None:
        """Find out which of the cards that could not be read are gone. Others may be listed, but can't be read."""
        if not self._missing:
            return
        try:
            cards: list[Card] = await self._pipeline.call(operations.BOARD_CARDS.request(self._board_id))
        except _ENDING:
            raise
        except BoardClientError as error:
            self.failed |= dict.fromkeys(self._missing, error)
            return
        listed = {card.id for card in cards}
        for card_id in self._missing:
            if card_id in listed:
                self.failed[card_id] = BoardClientError("the board lists the card, and the service says that there is none")
            else:
                self._add(self.gone, card_id)

    async def _record(self, file: JournalFile, card_ids: Sequence[str]) -> None:
        rows = [(seq, card_id) for card_id in card_ids for seq in self._seqs[card_id]]
        await wait_to_end(asyncio.ensure_future(asyncio.to_thread(record_undone, file, rows)))

    async def _read(self, card_id: str) -> Card | None:
        """Return a card, or None if it does not exist. A proxy may respond with 404 to everything for a while."""
        for is_sure in (False, True):
            try:
                card: Card = await self._pipeline.call(operations.READ_CARD.request(card_id))
            except NotFoundError:
                # The lists can be read, so that the 404 was not a proxy's for everything: then the second one is believed.
                if not is_sure:
                    await self._pipeline.call(operations.BOARD_LISTS.request(self._board_id))
            else:
                self._shown |= shown_fields((card,))
                return card
        return None

    async def _remove(self, file: JournalFile, card_id: str) -> None:
        """Delete a card, unless it was changed meanwhile."""
        card = await self._read(card_id)
        if card is None:
            self._missing.append(card_id)
        elif self._is_unchanged(card_id, card, self._shown):
            file.check_lock()  # what is begun is completed, so that it can be noted
            await wait_to_end(asyncio.ensure_future(self._delete(file, card_id)))

    async def _delete(self, file: JournalFile, card_id: str) -> None:
        """Delete a card, as long as no other process may have got the journal."""
        # Before the request: a caller that is cancelled here has to know that cards may be gone.
        self.has_begun = True
        try:
            await self._pipeline.call(operations.DELETE_CARD.request(card_id), CallOptions(may_send=file.has_lock))
        except NotFoundError:
            # A 404 may answer a deletion that was repeated after its first response was lost. A card that is there contradicts
            # it.
            if await self._read(card_id) is not None:
                raise
            self._missing.append(card_id)
        else:
            self._add(self.deleted, card_id)

    def _add(self, ids: list[str], card_id: str) -> None:
        ids.append(card_id)
        self._over.append(card_id)

    # --- comparing

    def _compare(self, cards: Sequence[Card]) -> tuple[dict[str, None], list[str]]:
        """Compare the cards of rows as the board lists them. Return the identifiers of those to be read one by one.

        The first result are those that the board lists without a field that responses to the runs have shown: it was removed, or
        listings do not show it. The second are those that the board does not list.
        """
        by_id, shown = self._view.cards, shown_fields(cards)
        for row in read_rows(self._journal, "done"):
            card_id = row.detail or ""
            self._rows[card_id] = row
            self._seqs[card_id].append(row.seq)
        listed = [(row, by_id[card_id]) for card_id, row in self._rows.items() if card_id in by_id]
        self._marked_runs = {row.run for row, card in listed if _without_marker(row, card) is not None}
        # A card is no evidence about itself: only others that were sent with a field show that the listing leaves it out.
        shown |= _fields_sent_once(row for row, _ in listed)
        self._shown |= shown & REMOVABLE
        unclear: dict[str, None] = {}
        for _, card in listed:
            if self._differences(card.id, card, shown):
                self._is_unchanged(card.id, card, shown)
            elif self._differences(card.id, card, shown | self._shown):
                unclear[card.id] = None
            else:
                self.unchanged.append(card.id)
        return unclear, [card_id for card_id in self._rows if card_id not in by_id]

    def _is_unchanged(self, card_id: str, card: Card, shown: set[str]) -> bool:
        """Return True if a card is as it was sent for its row. Otherwise note that it is kept, and why."""
        why = self._differences(card_id, card, shown)
        if why:
            self.kept.append(KeptCard(card, why))
        return not why

    def _differences(self, card_id: str, card: Card, shown: set[str]) -> str:
        """Return why a card is kept, in words, and "" if it is as it was sent. Fields that are not shown are not compared."""
        row = self._rows[card_id]
        desc, sent = _without_marker(row, card), row.content
        # Only if other cards of the run show theirs: otherwise the service shows markers of none.
        has_lost_marker = desc is None and row.run in self._marked_runs
        now = Content.of_card(card if desc is None else attrs.evolve(card, desc=desc))
        why_hidden = self._view.why_hidden(card_id, card, sent.list_id)
        reasons = {
            "was there before": row.run == 0,
            why_hidden: bool(why_hidden),
            "is shown without a name": card.name is None,
            "was renamed": card.name is not None and now.name != sent.name,
            "was moved": "list_id" in shown and now.list_id != sent.list_id,
            "has another description": "desc" in shown and (has_lost_marker or now.desc != (sent.desc or "")),
            "has another due date": "due" in shown and now.due != sent.due,
        }
        return " and ".join(words for words, is_so in reasons.items() if is_so)

    def __repr__(self) -> str:
        return f"<Undo {len(self.unchanged)} unchanged, {len(self.kept)} kept, {len(self.deleted)} deleted>"


def _fields_sent_once(rows: Iterable[JournalRow]) -> set[str]:
    """Return the fields that can be removed and that only one of these rows was sent with."""
    sent = Counter(field for row in rows for field in ("desc", "due") if getattr(row.content, field))
    return {field for field, number in sent.items() if number == 1}


def _without_marker(row: JournalRow, card: Card) -> str | None:
    """Return what a card's description says besides the marker of its row, None without one."""
    marked = _MARKED.fullmatch((card.desc or "").strip())
    return (marked[2] or "") if marked and marked[1].casefold() == row.marker else None
