"""The operations of the service by resource, as one method each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from boardclient._interface import _operations as operations
from boardclient._interface._operations import Parameters, extended
from boardclient._pipeline._pipeline import Pipeline
from boardclient.models import Board, BoardList, Card, CardDraft, DraftLike, JsonValue, Member, Pos, check_card

if TYPE_CHECKING:
    from boardclient.bulk import BulkRun
    from boardclient.bulk._engine._places import BulkOptions
    from boardclient.bulk.undo import Undo
    from boardclient.events import BulkProgress

# The bulk package is imported when it is first used: it is a third of what importing this package takes.


class _Resource:
    """A group of operations of a session.

    Each call also takes `extra_query`, `extra_headers` and, if it has a body, `extra_body`: mappings that are sent with it, for
    what the interface does not show. Credentials, documented fields and headers that frame a message are a ValueError there.
    """

    __slots__ = ("_pipeline",)

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline


class Boards(_Resource):
    """Boards (interface 4.1, 4.4, 4.5)."""

    async def create(
        self,
        name: str,
        *,
        default_lists: bool | None = None,
        organization_id: str | None = None,
        extra_query: Parameters | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> Board:
        """Create a board (interface 4.1).

        Args:
            name: The name of the board.
            default_lists: True to create the lists To Do, Doing and Done with it. None (default): the service decides.
            organization_id: The organization that the board belongs to. None (default): no organization.

        Raises:
            NotFoundError: the organization does not exist or is not accessible.
            BoardClientError: the call failed in another way.
            TypeError, ValueError: a value can't be sent.
        """
        request = operations.CREATE_BOARD.request(name=name, default_lists=default_lists, organization_id=organization_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers, extra_body))

    async def lists(
        self, board_id: str, *, extra_query: Parameters | None = None, extra_headers: Mapping[str, str] | None = None
    ) -> list[BoardList]:
        """Read the lists of a board (interface 4.5), in the order of the response.

        Args:
            board_id: The board to read.

        Raises:
            NotFoundError: the board does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.BOARD_LISTS.request(board_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers))

    async def cards(
        self, board_id: str, *, extra_query: Parameters | None = None, extra_headers: Mapping[str, str] | None = None
    ) -> list[Card]:
        """Read the cards of a board (interface 4.4), in the order of the response.

        Args:
            board_id: The board to read.

        Raises:
            NotFoundError: the board does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.BOARD_CARDS.request(board_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers))


class Lists(_Resource):
    """Lists (interface 4.2, 4.9)."""

    async def create(
        self,
        name: str,
        *,
        board_id: str,
        pos: Pos | None = None,
        unknown: Literal["reconcile"] | None = None,
        settle: float | None = None,
        extra_query: Parameters | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> BoardList:
        """Add a list to a board (interface 4.2).

        With `unknown="reconcile"` the lists of the board are read before, and, if the effect is unknown, again `settle` seconds
        later. The new list is returned if exactly one has the name, and otherwise the error names the new lists. It is never sent
        twice. If the lists can't be read before, nothing is sent, and the effect of the error is NOT_SENT.

        Args:
            name: The name of the list.
            board_id: The board that gets the list.
            pos: "top" or "bottom" of the board, or a text or number that the service takes besides. None (default): the service
                decides.
            unknown: "reconcile" to look for the list if the effect is unknown. None (default): the error is raised at once.
            settle: How many seconds the service may take to carry out a request whose response was lost. None (default): twice
                the timeout, at least 10, or 60 without a timeout.

        Raises:
            NotFoundError: the board does not exist or is not accessible.
            BoardClientError: the call failed in another way.
            TypeError, ValueError: a value can't be sent.
        """
        request = operations.ADD_LIST.request(name=name, board_id=board_id, pos=pos)
        request = extended(request, extra_query, extra_headers, extra_body)
        if unknown is None and settle is None:
            return await self._pipeline.call(request)
        if unknown != "reconcile":
            raise ValueError('unknown must be "reconcile", which settle= needs, or None')
        from boardclient.bulk._single import create_list

        return await create_list(self._pipeline, request, name, board_id, settle)

    async def archive(
        self,
        list_id: str,
        *,
        extra_query: Parameters | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> BoardList:
        """Archive a list (interface 4.9). Fields that the response does not show are None.

        Args:
            list_id: The list to archive.

        Raises:
            NotFoundError: the list does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.ARCHIVE_LIST.request(list_id, closed=True)
        return await self._pipeline.call(extended(request, extra_query, extra_headers, extra_body))


class Cards(_Resource):
    """Cards (interface 4.3, 4.6, 4.7, 4.8, 4.10)."""

    async def create(
        self,
        name: str,
        *,
        list_id: str,
        desc: str | None = None,
        due: datetime | None = None,
        pos: Pos | None = None,
        board_id: str | None = None,
        unknown: Literal["reconcile", "report"] | None = None,
        settle: float | None = None,
        probe: bool = True,
        patience: float | None = None,
        reference: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        extra_query: Parameters | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> Card:
        """Add a card to a list (interface 4.3).

        With `reference` and `ledger` the card is created once, however often and in whatever process this is called. Later calls
        return the same card as it is by then, or only its identifier if it can't be read. If it was deleted, they raise a
        `NotFoundError` with the effect DONE that names it. A code in the description proves which card it is. After an error
        whose effect is UNKNOWN the next call continues, and sends the card again only if it is proven absent.

        If the response does not show `list_id` and `due`, the returned card has the values that were sent. After an error whose
        `effect` is UNKNOWN the card may exist. With `board_id` the board is read before the card is sent, and again after such an
        error. A card that is found is returned, one that is proven absent is sent again, and otherwise the error names the cards
        that may be it. This takes at most the timeout and `settle` together. The effect of an error says what became of the card,
        even if the board could not be read. The call does not wait until a user signs in.

        Args:
            name: The name of the card.
            list_id: The list that gets the card.
            desc: The description. None (default): no description.
            due: An aware date-time, which is sent in UTC. None (default): no date.
            pos: "top" or "bottom" of the list, or a text or number that the service takes besides. None (default): the service
                decides.
            board_id: The board that holds the list. None (default): no board is read.
            unknown: What to do if the effect is unknown. "reconcile" reads the board; "report" raises the error at once. None
                (default): "reconcile" with a `board_id`, otherwise "report".
            settle: How many seconds the service may take to carry out a request and list its card. None (default): twice the
                timeout, at least 10, or 60 without a timeout.
            probe: Whether a temporary card at the end of the list may prove that a lost card is absent, so that it is sent again
                (default). It is deleted afterwards. False: no temporary card, and a lost card that is not listed stays unknown.
            patience: How many seconds the call may take in all. None (default): the timeout, and `settle` after the request has
                ended. The error of a call that took too long has `retry_at`, and with a `reference` the next call continues.
            reference: Your own name for the card, such as "ticket-4711". It needs `board_id` and `ledger`. None (default): each
                call creates a card.
            ledger: Where references are kept: the path of a file, or `postgresql://…` without a password. The latter needs
                the extra `postgres`. None (default): nowhere.

        Raises:
            NotFoundError: the list does not exist or is not accessible.
            JournalError: the ledger can't be used, or has other content for the reference.
            BoardClientError: the call failed in another way.
            TypeError, ValueError: a value can't be sent, or an option can't work.
        """
        # Three ways: one call, as nearly always; a card with a reference, which its ledger keeps; and a bulk run of one row.
        is_extended = not (extra_query is None and extra_headers is None and extra_body is None)
        if board_id is None and unknown is None and settle is None and patience is None and reference is ledger is None:
            check_card(name, list_id, desc, due, pos)  # and no draft, which would cost more than all that the pipeline does
            request = operations.card_request(name, list_id, desc, due, pos)
            if is_extended:  # asked here, since calling a function costs 0.4 % of a creation
                request = extended(request, extra_query, extra_headers, extra_body)
            return await self._pipeline.call(request)
        if is_extended:
            raise ValueError("board_id, unknown and settle can't be used with extra_query, extra_headers and extra_body")
        draft = CardDraft(name, list_id, desc, due, pos)
        if reference is not None or ledger is not None:
            return await self._create_once(draft, board_id, reference, ledger, unknown, (settle, patience), probe=probe)
        # Imported where they are used: few calls look for their card, and bulk runs are a fifth of the package.
        from boardclient.bulk._run import make_options
        from boardclient.bulk._single import create_card

        options = make_options(
            self._pipeline,
            # One row, so that what holds for lost rows of a run holds for a single card, without a second mechanism.
            concurrency=1,
            journal=None,
            board_id=board_id,
            unknown=unknown,
            marker=None,
            settle=settle,
            probe=probe,
            # A call returns to its caller, who can send the user to the sign-in. A run would wait.
            waits_for_consent=False,
            patience=patience,
        )
        return await create_card(self._pipeline, draft, options)

    async def _create_once(
        self,
        draft: CardDraft,
        board_id: str | None,
        reference: str | None,
        ledger: str | os.PathLike[str] | None,
        unknown: str | None,
        times: tuple[float | None, float | None],
        *,
        probe: bool,
    ) -> Card:
        # All three or none: a reference without a place to keep it would be forgotten, and without a board not looked for.
        if reference is None or ledger is None or board_id is None or unknown == "report":
            raise ValueError('reference, ledger and board_id go together, and not with unknown="report"')
        # Imported here, since it opens a database, which most programs never do.
        from boardclient.distributed._references import create_once

        return await create_once(self._pipeline, draft, board_id, reference, ledger, times, probe=probe)

    async def get(
        self, card_id: str, *, extra_query: Parameters | None = None, extra_headers: Mapping[str, str] | None = None
    ) -> Card:
        """Read a card (interface 4.6).

        Args:
            card_id: The card to read.

        Raises:
            NotFoundError: the card does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.READ_CARD.request(card_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers))

    async def move(
        self,
        card_id: str,
        *,
        list_id: str,
        extra_query: Parameters | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> Card:
        """Move a card to another list (interface 4.7). Fields that the response does not show are None.

        Args:
            card_id: The card to move.
            list_id: The list that gets the card.

        Raises:
            NotFoundError: the card or the list does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.MOVE_CARD.request(card_id, list_id=list_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers, extra_body))

    async def add_label(
        self,
        card_id: str,
        label_id: str,
        *,
        extra_query: Parameters | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Attach a label to a card (interface 4.8).

        Args:
            card_id: The card that gets the label.
            label_id: The label to attach.

        Raises:
            NotFoundError: the card does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.ADD_LABEL.request(card_id, label_id=label_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers, extra_body))

    async def delete(
        self, card_id: str, *, extra_query: Parameters | None = None, extra_headers: Mapping[str, str] | None = None
    ) -> None:
        """Delete a card for good (interface 4.10).

        A 404 after an attempt of unknown effect counts as success: that attempt may have deleted the card.

        Args:
            card_id: The card to delete.

        Raises:
            NotFoundError: the card does not exist or is not accessible.
            BoardClientError: the call failed in another way.
        """
        request = operations.DELETE_CARD.request(card_id)
        return await self._pipeline.call(extended(request, extra_query, extra_headers))

    def create_many(
        self,
        drafts: Iterable[DraftLike] | AsyncIterable[DraftLike],
        *,
        concurrency: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        board_id: str | None = None,
        unknown: Literal["reconcile", "report", "resend"] | None = None,
        marker: bool | Callable[[CardDraft], str] | None = None,
        settle: float | None = None,
        probe: bool = True,
        ordered: bool = False,
        patience: float | None = None,
        on_progress: Callable[[BulkProgress], object] | None = None,
    ) -> BulkRun:
        """Return a bulk run that creates many cards (interface 4.3).

        Nothing is sent until the run is entered or waited for. The drafts are consumed as workers need them.

        Args:
            drafts: The cards to create, in any iterable: drafts, or mappings for `CardDraft.from_dict`.
            concurrency: How many cards to send at a time. None (default): as many as the service is found to accept.
            journal: The path of a file from which a later run with the same drafts resumes; it leaves out rows with cards. Its
                `reference` identifies a row, or else its position. None (default): no journal.
            board_id: The board that holds the lists. It is read for cards whose effect is unknown. None (default): no
                board is read.
            unknown: What to do with a card whose effect is unknown. "reconcile" reads the board, counts a listed card as
                created, and sends a card again only once a later listing proves that it does not exist. "report" sends each card
                at most once and reports it as unknown. "resend" sends it up to five times in all, which may create it more than
                once. None (default): "reconcile" with a `board_id`, otherwise "report".
            marker: What proves which card belongs to which row. None (default): the identifier in a response, and equality if
                only one card can be meant. True: also a code at both ends of the description, whatever else is changed. A
                function takes the draft and returns the code. Others may know that one, so the name of the card must match, too.
            settle: How many seconds the service may take to carry out a request and list its card. The board is read that long
                after the last response was lost. None (default): twice the timeout, at least 10, or 60 without a timeout.
            probe: Whether a temporary card at the end of a list may prove that lost rows are absent, if no card of the run can
                (default). It is created only if the board is read, and deleted at the end; if that fails, `report.probes` has
                it. False: no temporary card, and such rows stay unknown.
            ordered: Whether each card of a list is written after the one before it, so that a service which keeps the order of
                requests shows them in the order of the drafts. A card that is sent again, for a refusal or a lost response,
                comes later. Requests may have to wait while connections are opened. False (default): cards that are sent at
                the same time may overtake each other.
            patience: How many seconds in a row the run may wait for a service that accepts nothing, for a pause that the service
                asks for, or for a user who has to sign in. After that it ends with an error, whose `retry_at` says when to try
                again, if that is known. Rows that were not sent are left to the next run. None (default): some minutes in an
                outage, and until the user has signed in.
            on_progress: A function that is called with a `BulkProgress` after each result, and when the run begins to wait or
                resumes. None (default): no function.

        Raises:
            TypeError, ValueError: an option can't work.
        """
        from boardclient.bulk._run import make_options

        options = make_options(
            self._pipeline,
            concurrency=concurrency,
            journal=journal,
            board_id=board_id,
            unknown=unknown,
            marker=marker,
            settle=settle,
            probe=probe,
            ordered=ordered,
            patience=patience,
        )
        return self._run(drafts, options, *([] if on_progress is None else [on_progress]))

    async def plan_undo(self, journal: str | os.PathLike[str]) -> Undo:
        """Compare the cards of a journal with their board (interface 4.4).

        Nothing is changed yet. `run` of the result deletes the cards that the bulk run created, except those that were moved or
        changed since.

        ```python
        undo = await session.cards.plan_undo("cards.journal")
        print(len(undo.unchanged), "to delete,", [(kept.card.name, kept.why) for kept in undo.kept])
        await undo.run()
        ```

        Args:
            journal: The path of the journal. No run may be using it.

        Raises:
            JournalError: there is no journal, it is in use or can't be read, names no board, or is that of another service.
            BoardClientError: the board could not be read.
        """
        # Few programs undo.
        from boardclient.bulk.undo import Undo

        undo = Undo(self._pipeline, journal)
        # Here and not in the constructor, which can't await: nobody gets an undo that has compared nothing.
        await undo._prepare()
        return undo

    def _run(
        self,
        drafts: Iterable[DraftLike] | AsyncIterable[DraftLike],
        options: BulkOptions,
        *listeners: Callable[[BulkProgress], object],
    ) -> BulkRun:
        from boardclient.bulk import BulkRun

        return BulkRun(self._pipeline, drafts, options, listeners)


class Members(_Resource):
    """Members (interface 4.11)."""

    async def me(self, *, extra_query: Parameters | None = None, extra_headers: Mapping[str, str] | None = None) -> Member:
        """Read the member whose token it is (interface 4.11). Its fields are in `extra`.

        Raises:
            AuthenticationError: the key or token is invalid.
            BoardClientError: the call failed in another way.
        """
        request = operations.READ_MEMBER.request()
        return await self._pipeline.call(extended(request, extra_query, extra_headers))
