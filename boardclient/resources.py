"""The operations of the service by resource, as one short method each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable
from datetime import datetime
from typing import Literal

from boardclient import _operations as operations
from boardclient._convert import with_sent
from boardclient._pipeline._options import CallRunner
from boardclient.bulk import BulkRun
from boardclient.bulk._finding import FoundCards, find_cards
from boardclient.bulk._options import make_options
from boardclient.events import BulkProgress
from boardclient.models import Board, BoardList, Card, CardDraft, Member, Position


class _Resource:
    """A group of operations of a session."""

    __slots__ = ("_runner",)

    def __init__(self, runner: CallRunner) -> None:
        self._runner = runner


class Boards(_Resource):
    """Boards (interface 4.1, 4.4, 4.5)."""

    async def create(self, name: str, *, default_lists: bool | None = None, organization_id: str | None = None) -> Board:
        """Create a board (interface 4.1).

        Raises:
            BadRequestError, AuthenticationError, NotFoundError: as section 4.1 says; any other `BoardClientError`.
        """
        request = operations.CREATE_BOARD.request(name=name, default_lists=default_lists, organization_id=organization_id)
        return await self._runner.call(request)

    async def lists(self, board_id: str) -> list[BoardList]:
        """Read the lists of a board (interface 4.5), in the order of the answer."""
        return await self._runner.call(operations.BOARD_LISTS.request(board_id))

    async def cards(self, board_id: str) -> list[Card]:
        """Read the cards of a board (interface 4.4), in the order of the answer."""
        return await self._runner.call(operations.BOARD_CARDS.request(board_id))


class Lists(_Resource):
    """Lists (interface 4.2, 4.9)."""

    async def create(self, name: str, *, board_id: str, pos: Position | str | None = None) -> BoardList:
        """Add a list to a board (interface 4.2)."""
        return await self._runner.call(operations.ADD_LIST.request(name=name, board_id=board_id, pos=pos))

    async def archive(self, list_id: str) -> BoardList:
        """Archive a list (interface 4.9); what the answer does not show is None."""
        return await self._runner.call(operations.ARCHIVE_LIST.request(list_id, closed=True))


class Cards(_Resource):
    """Cards (interface 4.3, 4.6, 4.7, 4.8, 4.10)."""

    async def create(
        self,
        name: str,
        *,
        list_id: str,
        desc: str | None = None,
        due: datetime | None = None,
        pos: Position | str | None = None,
    ) -> Card:
        """Add a card to a list (interface 4.3); `due` is aware and sent in UTC.

        The card has the `list_id` and `due` that were sent where its response does not show them.

        An error whose `effect` is UNKNOWN means that the card may exist: look for it before creating it again.
        """
        card = await self._runner.call(operations.ADD_CARD.request(name=name, list_id=list_id, desc=desc, due=due, pos=pos))
        return with_sent(card, list_id, due)

    async def get(self, card_id: str) -> Card:
        """Read a card (interface 4.6)."""
        return await self._runner.call(operations.READ_CARD.request(card_id))

    async def move(self, card_id: str, *, list_id: str) -> Card:
        """Move a card to another list (interface 4.7). What the answer does not show is None."""
        return await self._runner.call(operations.MOVE_CARD.request(card_id, list_id=list_id))

    async def add_label(self, card_id: str, label_id: str) -> None:
        """Attach a label to a card (interface 4.8)."""
        await self._runner.call(operations.ADD_LABEL.request(card_id, label_id=label_id))

    async def delete(self, card_id: str) -> None:
        """Delete a card for good (interface 4.10).

        A 404 that follows an attempt with an unknown effect counts as done.
        """
        await self._runner.call(operations.DELETE_CARD.request(card_id))

    async def find(
        self, name: str, *, board_id: str, list_id: str, desc: str | None = None, due: datetime | None = None
    ) -> FoundCards:
        """Look for cards that `create` may have made, after an unknown effect (4.4).

        Returns a list of the cards that show exactly what was sent, in the board's order. Where there are none it holds those
        that may be it in another form: services trim, escape, cut and round, people move and rename. Its `is_exact` says which
        they are, its `alike` holds the second in either case, and its `doubt` says why the card may exist although it is not
        listed, None where nothing speaks for that. Fields that no card of the board shows are not compared. Cards that were
        there before are in the list too.
        """
        draft = CardDraft(name, list_id, desc=desc, due=due)
        cards = await self._runner.call(operations.BOARD_CARDS.request(board_id))
        return find_cards(draft, cards)

    def create_many(
        self,
        drafts: Iterable[CardDraft] | AsyncIterable[CardDraft],
        *,
        concurrency: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        board_id: str | None = None,
        unknown: Literal["reconcile", "report", "resend"] | None = None,
        marker: bool | Callable[[CardDraft], str] | None = None,
        settle: float | None = None,
        on_progress: Callable[[BulkProgress], object] | None = None,
    ) -> BulkRun:
        """Create many cards with a fixed number of workers (interface 4.3, fanned out).

        The drafts are consumed lazily. `concurrency` is how many cards are under way at a time; None finds the service's limit.

        `journal` is the path of a file that a later run with the same drafts resumes from: what is done is skipped. Rows are
        known by their `reference`, or by their position.

        `unknown` says what is done with a card whose effect is unknown: "reconcile" reads the board `board_id` once nothing can
        still be on its way (`settle` seconds after the last of them was sent, by default twice the timeout, at least 10), takes
        those that are there for created and sends the others again; "report" sends each card at most once; "resend" at least
        once. Cards are recognised by their content, or by a `marker` at both ends of their description: True makes one, a
        function gets the draft and returns it.

        Raises:
            TypeError, ValueError: an option can't work.
        """
        listeners = [on_progress] if on_progress is not None else []
        if self._runner.is_observed:
            listeners.append(self._runner.notify)
        options = make_options(
            self._runner,
            drafts,
            concurrency=concurrency,
            journal=journal,
            board_id=board_id,
            unknown=unknown,
            marker=marker,
            settle=settle,
        )
        return BulkRun(self._runner, drafts, options, listeners)


class Members(_Resource):
    """Members (interface 4.11)."""

    async def me(self) -> Member:
        """Read the member whose token it is (interface 4.11); its fields are in `extra`."""
        return await self._runner.call(operations.READ_MEMBER.request())
