"""What a run with a journal would do with rows.

Nothing is sent. It says which rows equal cards that were on the board before.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from boardclient.bulk._content import REMOVABLE, Content, EqualCards
from boardclient.bulk._life import RowKey
from boardclient.bulk._run import journal_identity
from boardclient.bulk.journal import Rehearsal, RowAction, adopt, read_rows, rehearsed
from boardclient.models import Card, CardDraft

__all__ = ["Plan", "PlannedRow", "planned_run"]


class PlannedRow(NamedTuple):
    """What a run would do with a row.

    Attributes:
        action: "send", or nothing, since it is "done" or "in doubt".
        card: A card that was there before, and equals the row that would be sent. None: there is none, or another row has it.
    """

    action: RowAction
    card: Card | None = None


class Plan:
    """What a run would do with rows. Each card equals one row at most.

    `planned_run` makes it.

    Attributes:
        cards: The cards with which the rows are compared: those of earlier runs are none of them.
        actions: How many rows would be sent ("send"), are "done" or "in doubt".
        existing: How many of those that would be sent equal a card.
        unclear: How many of these have a description or a date that their card does not show, and no other card either.
    """

    def __init__(self, journal: Path | None, identity: Mapping[str, str], decide: Rehearsal, cards: list[Card]) -> None:
        self.cards = cards
        self.actions: Counter[RowAction] = Counter()
        self.unclear: int = 0
        self._journal, self._identity, self._decide = journal, identity, decide
        self._added = 0
        self._equal, self._same = EqualCards(cards), EqualCards(cards, {"name", *REMOVABLE})
        self._existing: dict[str, tuple[RowKey, CardDraft, str]] = {}
        """The rows that equal a card, by its identifier."""

    @property
    def existing(self) -> int:
        """How many of the rows that would be sent equal a card."""
        return len(self._existing)

    def add(self, draft: CardDraft) -> PlannedRow:
        """Add the next row of the input.

        One that is refused counts as a row, too.

        Raises:
            JournalError: a run would refuse the row.
            OSError: the copy of the journal, on which rows are tried, can't be written.
        """
        index, self._added = self._added, self._added + 1
        key = index if draft.reference is None else draft.reference
        ((_, action, _),) = self._decide([(key, draft)])
        self.actions[action] += 1
        content = Content.of(draft)
        equal = self._equal.to(content) if action == "send" else ()
        card = next((card for card in equal if card.id not in self._existing), None)
        if card is not None:
            self._existing[card.id] = key, draft, card.id
            self.unclear += card not in self._same.to(content)
        return PlannedRow(action, card)

    def adopt(self) -> None:
        """Note in the journal that the rows which equal a card have it. Runs report them as "already".

        The journal may be new. Call it after the block of `planned_run`, if no row is unclear or in doubt.

        Raises:
            ValueError: the plan has no journal.
            JournalError: the journal is in use or can't be written, or a row may have another card.
        """
        if self._journal is None:
            raise ValueError("the plan has no journal that could note the cards: give one to planned_run")
        adopt(self._journal, self._identity, list(self._existing.values()), before=[card.id for card in self.cards])


@contextlib.contextmanager
def planned_run(
    journal: str | os.PathLike[str] | None,
    account: Mapping[str, str],
    cards: Iterable[Card] = (),
    *,
    board_id: str | None = None,
    marker: bool | None = None,
) -> Iterator[Plan]:
    """Give a plan, to which the rows of a run are added as they are read.

    It tries them on a copy of the journal.

    Args:
        journal: The path of the journal, which may not exist yet. No run may be using it. None: the run has none.
        account: The service and the account, as `AsyncSession.identity` has them.
        cards: The cards on the board, with which rows that would be sent are compared.
        board_id: As in `create_many`.
        marker: As in `create_many`.

    Raises:
        JournalError: the journal is in use or can't be read, or belongs to another import.
        OSError: temporary files can't be written.
    """
    identity = journal_identity(account, board_id, marker)
    path = None if journal is None else Path(journal)
    with contextlib.ExitStack() as opened:
        # unlike Path.exists it does not raise without permission
        is_there = path is not None and os.path.exists(path)
        tried = path if path is not None and is_there else Path(opened.enter_context(tempfile.TemporaryDirectory())) / "journal"
        own = {row.detail for row in read_rows(tried, "done")} if is_there else set()
        decide = opened.enter_context(rehearsed(tried, identity))
        yield Plan(path, identity, decide, [card for card in cards if card.id not in own])
