"""The board of a run, read with patience (4.4 to 4.6), and what a listing of it shows."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import attrs

from boardclient._interface import _operations as operations
from boardclient._interface._operations import Request
from boardclient._interface._responses import ends_run, is_throttling
from boardclient._pipeline._calls import CallOptions
from boardclient._pipeline._pipeline import Pipeline
from boardclient._transport._values import UsedConnection
from boardclient.bulk._concurrency import PATIENCE_SECONDS, Hold, retry_after_of
from boardclient.bulk._content import FIELDS, IdSet, shown_fields
from boardclient.bulk._ledger import Ledger
from boardclient.bulk._life import Extent, Row
from boardclient.errors import (
    AuthenticationError,
    BoardClientError,
    DecodeError,
    Effect,
    NotFoundError,
    PermissionDeniedError,
)
from boardclient.models import Card, CardDraft

T = TypeVar("T")
R = TypeVar("R")

_PAUSE_SECONDS: Final = 1.0
"""The pause before the board is read again after a 429 that names none."""
CHANGED: Final = "it was changed"
"""Why a card is not deleted that people have changed."""
NO_BOARD: Final = (AuthenticationError, PermissionDeniedError, NotFoundError)
"""What the reading of a board says that does not exist, or not for this account. It ends a run."""
_OF_BOARD: Final = (operations.BOARD_LISTS, operations.CARDS_IN_SLICES)
_BUSY_SECONDS: Final = 0.05
"""The pause before a connection is tried again that another request has."""
_MOST_ASKED: Final = 100
"""How many missing cards are read, each time the board is read."""


# --- a listing


class Missing(NamedTuple):
    """The confirmed cards that a listing lacks.

    `deleted` are the identifiers of those that are deleted, `hidden` the number of those that exist, or may. `is_incomplete` says
    that one of them may be on the board, in a list that is open, so that the listing may be cut off.
    """

    deleted: frozenset[str] = frozenset()
    hidden: int = 0
    is_incomplete: bool = False


class Listing:
    """A listing of a board, read card by card. Owned by one reading.

    `baseline` are the cards that existed before the run, or None if unknown, and `confirmed` those known to belong to rows.
    `samples` are the identifiers of cards to keep as they are listed. `is_recycled` tells which cards with known identifiers to
    keep: a service may give the identifier of a deleted card again. `probes` are the cards of probes, which are nobody's.
    """

    def __init__(
        self,
        baseline: IdSet | None,
        confirmed: IdSet,
        samples: Container[str] = (),
        is_recycled: Callable[[Card], bool] | None = None,
        probes: IdSet | None = None,
    ) -> None:
        self.has_baseline = baseline is not None
        self.count = 0
        """How many cards are listed."""
        self.confirmed = 0
        """How many confirmed cards are listed."""
        self.reused = confirmed.repeated
        """How many rows were confirmed with a card that is another row's."""
        self.unaccounted: list[Card] = []
        """The cards that are neither in the baseline nor confirmed, nor those of probes."""
        self.recycled: list[Card] = []
        """The cards that `is_recycled` keeps."""
        self.samples: dict[str, Card] = {}
        """The listed cards that were asked for as samples, by identifier."""
        self.fields: set[str] = set()
        """The fields that at least one card shows."""
        self._baseline = IdSet() if baseline is None else baseline
        self._all_confirmed = confirmed
        self._wanted = samples
        self._is_recycled = is_recycled
        self._probes = IdSet() if probes is None else probes
        self._seen = IdSet()
        self._by_list: Counter[str] = Counter()
        self._appearances = array("q")
        """What the confirmed cards look like."""

    def add(self, card: Card) -> None:
        """Take note of a card of the board; a listing may show a card twice."""
        if not self._seen.add(card.id):
            return
        self.count += 1
        if card.list_id is not None:
            self._by_list[card.list_id] += 1
        # Only until all were seen, which a few cards show: a listing may have a million.
        if len(self.fields) < len(FIELDS):
            self.fields |= shown_fields([card])
        if card.id in self._wanted:
            # Without what is not documented, since cards are kept until the next listing.
            self.samples[card.id] = attrs.evolve(card, extra={})
        if card.id in self._all_confirmed:
            self.confirmed += 1
            self._appearances.append(appearance(card))
        elif card.id not in self._baseline and card.id not in self._probes:
            self.unaccounted.append(attrs.evolve(card, extra={}))
            return
        if self._is_recycled is not None and self._is_recycled(card):
            self.recycled.append(attrs.evolve(card, extra={}))

    def is_confirmed(self, card_id: str) -> bool:
        """Return True for a card that was known to belong to a row."""
        return card_id in self._all_confirmed

    def lacks(self, card_id: str) -> bool:
        """Return True for a confirmed card that is not listed."""
        return card_id in self._all_confirmed and card_id not in self._seen

    def shows(self, card_id: str) -> bool:
        """Return True for a card that is listed."""
        return card_id in self._seen

    @property
    def missing(self) -> int:
        """How many confirmed cards are not listed."""
        return len(self._all_confirmed) - self.confirmed

    def extent(self, list_id: str) -> Extent:
        """Return how many cards are listed, and how many of them in a list."""
        return Extent(self.count, self._by_list.get(list_id, -1))

    def has_grown(self, earlier: Extent) -> bool:
        """Return True if this listing proves that an earlier one was not cut off.

        `earlier` is the size of that one. A service that cuts listings, or each list, off there would show no more now.
        """
        return self.count > earlier.total and max(self._by_list.values(), default=0) > earlier.of_list

    def copies(self) -> dict[str, int]:
        """Return how many confirmed cards look like each unaccounted one, by its id, if any does.

        Cards without names look like no other.
        """
        appearances = {card.id: appearance(card) for card in self.unaccounted if card.name is not None}
        counts = Counter(filter(set(appearances.values()).__contains__, self._appearances))
        return {card_id: counts[seen] for card_id, seen in appearances.items() if seen in counts}


def appearance(card: Card | CardDraft) -> int:
    """Return a hash of what a card shows, or of what a draft sends."""
    return hash((card.name, card.desc or None, card.list_id, card.due))


# --- reading


def _is_answer(error: BoardClientError, operation: object) -> bool:
    """Return True for an error that says what was asked, or that there is no such board: waiting would not mend it."""
    if operation is operations.READ_CARD:
        return isinstance(error, NotFoundError)
    if operation is operations.DELETE_CARD:
        return error.effect is Effect.REJECTED and not is_throttling(error)
    return operation in _OF_BOARD and isinstance(error, NO_BOARD)


@attrs.define(eq=False, repr=False)
class RunBoard:
    """Reads the board of a run. Owned by the run.

    `board_id` is None if the run has no board: then nothing is read. `settle_seconds` is how long a created card may be
    missing from the listing. A read that fails for a reason that may pass is repeated for as long as a hold of the run lasts.
    `on_wait` is called with the seconds of a wait for cards that are not listed yet, and with None after it.
    """

    _pipeline: Pipeline
    _hold: Hold
    board_id: str | None
    _ledger: Ledger
    _settle_seconds: float
    _on_wait: Callable[[float | None], object]
    lists: frozenset[str] | None = attrs.field(init=False, default=None)
    """Its lists, None if they are not known."""
    open_lists: frozenset[str] | None = attrs.field(init=False, default=None)
    """Those whose cards are listed."""
    created_at: float = attrs.field(init=False, default=-math.inf)
    """When the run last created a card, on the loop's clock. Minus infinity if it has created none."""
    probes: IdSet = attrs.field(init=False, factory=IdSet)
    """The cards of probes, also of those that are deleted: a response that names one of them is no row's."""
    held_until: float | None = attrs.field(init=False, default=None)
    """When, on the loop's clock, the pause ends that follows a refusal with 429, or None."""
    is_asked: bool = attrs.field(init=False, default=False)
    """Whether the service has asked for it."""
    failure: BoardClientError | None = attrs.field(init=False, default=None)
    """Why it could not be read when that was tried last, None if it could."""
    _baseline: IdSet | None = attrs.field(init=False, default=None)
    _listed_before: Counter[str] | None = attrs.field(init=False, default=None)
    """How many cards each list had before the first row, if this run has read them."""
    _deleted: set[str] = attrs.field(init=False, factory=set)
    _moved: set[str] = attrs.field(init=False, factory=set)

    async def prepare(self, note: Callable[[str, Card], object] | None) -> None:
        """Read the lists, and the cards that exist before the first row.

        The cards are read only if the ledger is new and `note` is set, which is called with each of them.

        Raises:
            BoardClientError: the board could not be read.
        """
        if self.board_id is None:
            return
        await self.read_lists()
        if note is not None and self._ledger.is_new:  # also if an earlier run has read them: it has sent nothing
            request = operations.CARDS_IN_SLICES.request(self.board_id)
            await self._ledger.set_baseline(await self._read(request, partial(self._read_ids, note)))
        self._baseline = await self._ledger.baseline()
        if self._baseline is not None:
            self._ledger.older.append(self._baseline)

    async def _read_ids(self, note: Callable[[str, Card], object], slices: Iterator[list[Card]]) -> list[str]:
        ids: list[str] = []
        # Of this attempt alone: a reading that fails is repeated from its beginning.
        lists = self._listed_before = Counter[str]()
        for cards in slices:
            self._ledger.record_shown(cards)
            for card in cards:
                ids.append(card.id)
                if card.list_id is not None:
                    lists[card.list_id] += 1
                note(card.id, card)
            # A large board takes long to decode, and the other tasks of the loop have to continue.
            await asyncio.sleep(0)
        return ids

    def extent_before(self, list_id: str) -> Extent:
        """Return how many cards were listed before the first row."""
        lists = self._listed_before
        return Extent(self._ledger.listed_before, -1 if lists is None else lists.get(list_id, -1))

    def problem(self, row: Row) -> BoardClientError | None:
        """Return why a row can't be sent, or None if it can or was sent before."""
        lists, list_id = self.lists, row.draft.list_id
        if lists is None or list_id in lists or row.sends or row.sent_as:
            return None
        return BoardClientError(f"the list {list_id} is not on the board {self.board_id}: nothing was sent")

    async def read_lists(self) -> None:
        """Read the lists: one may have been archived.

        Raises:
            BoardClientError: they could not be read.
        """
        lists = await self._read(operations.BOARD_LISTS.request(self.board_id or ""), _itself)
        self.lists = frozenset(item.id for item in lists)
        self.open_lists = frozenset(item.id for item in lists if not item.closed)

    async def read_listing(
        self, samples: Container[str], is_recycled: Callable[[Card], bool] | None, probes: Iterable[str] = ()
    ) -> Listing:
        """Read the cards. If some of this run are missing that may be too new to be listed, wait and read them again.

        The arguments are those of `Listing`; `probes` are those that are on the board.

        Raises:
            BoardClientError: the board could not be read.
        """
        # Before the request: a card that is confirmed while it is under way may not be in the response.
        confirmed = await self._ledger.confirmed()
        listing = await self._list(confirmed, samples, is_recycled)
        wait = self.created_at + self._settle_seconds - asyncio.get_running_loop().time()
        # Only cards of this run may be too new to be listed: those of earlier ones are not waited for.
        is_late = wait > 0 and (
            not all(map(listing.shows, probes))
            or (listing.missing and await self._ledger.count_earlier(listing.lacks) < listing.missing)
        )
        # Once only: what a service does not show after `settle` may never be listed.
        if is_late:
            self._on_wait(wait)
            await asyncio.sleep(wait)
            self._on_wait(None)
            listing = await self._list(confirmed, samples, is_recycled)
        return listing

    async def _list(self, confirmed: IdSet, samples: Container[str], is_recycled: Callable[[Card], bool] | None) -> Listing:
        async def take(slices: Iterator[list[Card]]) -> Listing:
            listing = Listing(self._baseline, confirmed, samples, is_recycled, self.probes)
            for cards in slices:
                self._ledger.record_shown(cards)
                for card in cards:
                    listing.add(card)
                await asyncio.sleep(0)  # a large board lets other tasks run
            return listing

        return await self._read(operations.CARDS_IN_SLICES.request(self.board_id or ""), take)

    async def _read(self, request: Request[T], take: Callable[[T], Awaitable[R]]) -> R:
        """Make a call, and return what `take` makes of its value, which may not be decoded before: a proxy's page, half a body.

        Raises:
            BoardClientError: it failed for a reason that waiting does not cure, or for too long. A note says how often.
        """
        clock = asyncio.get_running_loop().time
        began, number = clock(), 0
        while True:
            number += 1
            await self._hold.acquire()
            try:
                value = await take(await self._pipeline.call(request, CallOptions(is_of_run=True)))
            except BoardClientError as error:
                # What was asked is known, so that no repetition and no wait would say more.
                if _is_answer(error, request.operation):
                    raise
                self.failure = error
                # For others the hold makes it wait.
                asked = retry_after_of(error)
                pause = (asked or _PAUSE_SECONDS) if is_throttling(error) else 0.0
                is_late = pause > 0 and clock() + pause - began >= PATIENCE_SECONDS
                if not self._hold.record_failure(error, is_read=True) or is_late:
                    if number > 1:
                        error.add_note(f"the board was read {number} times in {clock() - began:.1f} s")
                    raise
            else:
                self._hold.record_success(is_read=True)
                self.failure = None
                return value
            finally:
                self._hold.release()
            if pause:
                self.held_until, self.is_asked = clock() + pause, bool(asked)
            try:
                await asyncio.sleep(pause)
            finally:
                self.held_until = None

    async def _read_once(self, request: Request[T], take: Callable[[T], Awaitable[R]]) -> R:
        return await take(await self._pipeline.call(request, CallOptions(is_of_run=True)))

    async def remove(self, card_id: str, is_as_sent: Callable[[Card], bool], *, is_patient: bool) -> str | None:
        """Delete a card, unless it was changed. Return why it stays, or None if it does not exist any more."""
        call = self._read if is_patient else self._read_once
        try:
            try:
                # Read right before: each moment between gives people time to change what is then deleted.
                if not is_as_sent(await call(operations.READ_CARD.request(card_id), _itself)):
                    return CHANGED
                await call(operations.DELETE_CARD.request(card_id), _itself)
            except NotFoundError:
                # A proxy may respond with 404 to everything: only a second look, and lists that can be read, show that it is
                # gone.
                if not is_patient or await self._is_one_there([card_id]):
                    return "the service does not find it"
        except BoardClientError as error:
            return error.message
        return None

    async def look_for_missing(self, listing: Listing, known: Iterable[str]) -> Missing:
        """Read confirmed cards that a listing lacks, until one shows that the listing is incomplete.

        `known` are identifiers of confirmed cards of this run.

        Raises:
            BoardClientError: an error that ends the run.
        """
        if not listing.missing:
            return Missing()
        unlisted = {card_id for card_id in known if listing.lacks(card_id)}
        if len(unlisted) < listing.missing:
            # The cards of earlier runs are only asked for if those of this one do not explain what is missing.
            unlisted |= await self._ledger.find_confirmed(listing.lacks, _MOST_ASKED)
        # Sorted and cut, so that each reading asks about the same cards, and adds what it learns to what is known.
        is_there = await self._is_one_there(sorted(unlisted - self._deleted - self._moved)[:_MOST_ASKED])
        deleted = unlisted & self._deleted
        is_unexplained = len(unlisted) < min(listing.missing, _MOST_ASKED)
        return Missing(frozenset(deleted), listing.missing - len(deleted), is_incomplete=is_there or is_unexplained)

    async def _is_one_there(self, card_ids: Sequence[str]) -> bool:
        """Return True if a card may be on the board, in a list that is open."""
        gone = []
        for card_id in card_ids:
            if await self.is_gone(card_id):
                gone.append(card_id)
            elif card_id not in self._moved:
                return True
        if gone:
            await self.read_lists()  # a proxy may respond with 404 to everything for a while
        for card_id in gone:
            if not await self.is_gone(card_id):
                return True
            self._deleted.add(card_id)
        return False

    async def _ask(self, request: Request[Any], options: CallOptions, asked: str) -> tuple[str, str]:
        """Make a request. Return whether its "own" response came, an "other" one, or it was "refused", and what was shown.

        `asked` is what was asked for before. What can't be decoded is taken for the response to that.
        """
        try:
            value = await self._pipeline.call(request, options)
        except BoardClientError as error:
            # The run has read the lists already, so a response that can't be decoded as lists is one to another request.
            is_other = request.operation is operations.BOARD_LISTS and isinstance(error, DecodeError)
            return ("other", asked) if is_other else ("refused", "")
        shown = request.identifier if isinstance(value, list) else "" if value is None else value.id
        return "own" if shown == request.identifier else "other", shown

    async def ask_connection(self, connection: UsedConnection, card_ids: Iterable[str]) -> bool | None:
        """Ask over a connection. Return False if it has more responses than requests, and None if that was not found out.

        The response to the next request shows it: if one was left, the card of another comes, or a refusal. A service
        may respond so to everything. Then the response to a second question is like the first, and no answer to the first one.
        A connection that is closed is in step if nothing was left by then.
        """
        lists = [] if self.board_id is None else [operations.BOARD_LISTS.request(self.board_id)]
        asked, before = "", ""
        for request in chain[Request[Any]](map(operations.READ_CARD.request, card_ids), lists):
            if connection.has_surplus:
                return False
            if (is_next := connection.use_next()) is None:
                return True
            number, options = connection.responses, CallOptions(is_of_run=True, is_single=True)
            kind, shown = await self._ask(request, options, asked) if is_next else ("other", "")
            # A response over another connection says nothing about this one.
            if options.connection is connection and options.response_number == number + 1:
                # Two alike that do not answer each other's question: the service responds so to everything.
                if kind == "own" or (kind == before and shown != asked):
                    return True
                if before:
                    return False
                asked, before = request.identifier, kind
            await asyncio.sleep(0.0 if is_next else _BUSY_SECONDS)
        return False if connection.has_surplus or before == "other" else None

    async def is_gone(self, card_id: str) -> bool:
        """Return True if a card can't be found, and note it if it is in a list whose cards are not listed."""
        try:
            card = await self._read(operations.READ_CARD.request(card_id), _itself)
        except NotFoundError:
            return True
        except BoardClientError as error:
            if ends_run(error):
                raise
            return False
        # Listings leave out what is in archived lists: that such a card is missing shows nothing about the others.
        if self.open_lists is not None and card.list_id is not None and card.list_id not in self.open_lists:
            self._moved.add(card_id)
        return False


async def _itself(value: T) -> T:
    return value
