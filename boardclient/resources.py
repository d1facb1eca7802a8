"""The operations of the service by resource: one short method each, over whatever can make a call."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from datetime import datetime
from typing import Literal, Protocol, TypeVar

from boardclient import _operations as operations
from boardclient._operations import Request
from boardclient.bulk import BulkRun
from boardclient.errors import Attempt
from boardclient.events import BulkProgress, Event
from boardclient.models import Board, BoardList, Card, CardDraft, Member, Position

T = TypeVar("T")


class Caller(Protocol):
    """What a resource needs of a session."""

    async def call(self, request: Request[T], history: list[Attempt] | None = None) -> T:
        """Sign, send, renew and retry the request, and return the value of its answer; `history` takes its attempts."""
        ...

    @property
    def is_observed(self) -> bool:
        """Tell whether anybody observes the calls."""
        ...

    def notify(self, event: Event) -> None:
        """Hand an event to the observers."""
        ...


class _Resource:
    """A group of operations of a session."""

    __slots__ = ("_caller",)

    def __init__(self, caller: Caller) -> None:
        self._caller = caller


class Boards(_Resource):
    """Boards (interface 4.1, 4.4, 4.5)."""

    async def create(self, name: str, *, default_lists: bool | None = None, organization_id: str | None = None) -> Board:
        """Create a board (interface 4.1).

        Raises:
            BadRequestError, AuthenticationError, NotFoundError: as section 4.1 says; any other `BoardClientError`.
        """
        request = operations.CREATE_BOARD.request(name=name, default_lists=default_lists, organization_id=organization_id)
        return await self._caller.call(request)

    async def lists(self, board_id: str) -> list[BoardList]:
        """Read the lists of a board (interface 4.5), in the order of the answer."""
        return await self._caller.call(operations.BOARD_LISTS.request(board_id))

    async def cards(self, board_id: str) -> list[Card]:
        """Read the cards of a board (interface 4.4), in the order of the answer."""
        return await self._caller.call(operations.BOARD_CARDS.request(board_id))


class Lists(_Resource):
    """Lists (interface 4.2, 4.9)."""

    async def create(self, name: str, *, board_id: str, pos: Position | str | None = None) -> BoardList:
        """Add a list to a board (interface 4.2)."""
        return await self._caller.call(operations.ADD_LIST.request(name=name, board_id=board_id, pos=pos))

    async def archive(self, list_id: str) -> BoardList:
        """Archive a list (interface 4.9); what the answer does not show is None."""
        return await self._caller.call(operations.ARCHIVE_LIST.request(list_id, closed=True))


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

        An error whose `effect` is UNKNOWN means that the card may exist: look for it before creating it again.
        """
        return await self._caller.call(operations.ADD_CARD.request(name=name, list_id=list_id, desc=desc, due=due, pos=pos))

    async def get(self, card_id: str) -> Card:
        """Read a card (interface 4.6)."""
        return await self._caller.call(operations.READ_CARD.request(card_id))

    async def move(self, card_id: str, *, list_id: str) -> Card:
        """Move a card to another list (interface 4.7); what the answer does not show is None."""
        return await self._caller.call(operations.MOVE_CARD.request(card_id, list_id=list_id))

    async def add_label(self, card_id: str, label_id: str) -> None:
        """Attach a label to a card (interface 4.8)."""
        await self._caller.call(operations.ADD_LABEL.request(card_id, label_id=label_id))

    async def delete(self, card_id: str) -> None:
        """Delete a card for good (interface 4.10).

        A 404 that follows an attempt with an unknown effect counts as done.
        """
        await self._caller.call(operations.DELETE_CARD.request(card_id))

    def create_many(
        self,
        drafts: Iterable[CardDraft] | AsyncIterable[CardDraft],
        *,
        concurrency: int | None = None,
        unknown: Literal["report"] | None = None,
        on_progress: Callable[[BulkProgress], object] | None = None,
    ) -> BulkRun:
        """Create many cards with a fixed number of workers (interface 4.3, fanned out).

        The drafts are consumed lazily; `concurrency` is 16 where it is None. A card whose effect is unknown is reported as
        such and never sent again.

        Raises:
            ValueError: `concurrency` is below 1, or `unknown` is not "report".
        """
        listeners = [on_progress] if on_progress is not None else []
        if self._caller.is_observed:
            listeners.append(self._caller.notify)
        return BulkRun(self._create_draft, drafts, concurrency, unknown, listeners)

    async def _create_draft(self, draft: CardDraft, history: list[Attempt]) -> Card:
        request = operations.ADD_CARD.request(
            name=draft.name, list_id=draft.list_id, desc=draft.desc, due=draft.due, pos=draft.pos
        )
        return await self._caller.call(request, history)


class Members(_Resource):
    """Members (interface 4.11)."""

    async def me(self) -> Member:
        """Read the member whose token it is (interface 4.11); its fields are in `extra`."""
        return await self._caller.call(operations.READ_MEMBER.request())
