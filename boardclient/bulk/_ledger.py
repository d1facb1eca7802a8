"""What a run knows of its rows.

A ledger says which rows may be sent, and keeps what became of them.
"""

from __future__ import annotations

import abc
import asyncio
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from boardclient.bulk._content import Content, IdSet
from boardclient.bulk._life import Row, RowState
from boardclient.bulk._results import ResultState
from boardclient.errors import BoardClientError, JournalError
from boardclient.models import Card

T = TypeVar("T")

Note: TypeAlias = tuple[int, RowState, str]
"""The outcome of a row as it is written: its number, its state, and the card's identifier if it is done, otherwise the reason."""

_MOST_NAMED: Final = 10


class Doubt(NamedTuple):
    """A row of an earlier run in doubt, by the number of its marker. Its content is without a marker."""

    seq: int
    content: Content


class Others(NamedTuple):
    """What other runs and workers have recorded by now."""

    doubts: Sequence[Doubt] = ()
    """The rows that other workers are sending, or that earlier runs left in doubt and this one did not get."""
    cards: Collection[str] = ()
    """The cards of rows. They may be newer than what `confirmed` returned."""


class UnrecordedError(JournalError):
    """The board shows cards of the job that the ledger does not have: it is an older copy."""

    def __init__(self, cards: Sequence[str]) -> None:
        more = f" and {len(cards) - _MOST_NAMED:,} more" if len(cards) > _MOST_NAMED else ""
        super().__init__(
            f"the board shows {len(cards):,} card{'s' * (len(cards) > 1)} of this job that the ledger does not have:"
            f" {', '.join(cards[:_MOST_NAMED])}{more}. It is an older copy of the ledger, which would create them again: put back"
            " the newest one, or delete these cards before their rows are delivered again"
        )
        self.candidates = tuple(cards)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.candidates,), self.__dict__.copy()


class Ledger:
    """A record of which rows were sent and what became of them. This one is in memory, for a run without a journal."""

    is_durable: bool = False
    """Whether a later run finds what is logged. If not, nothing is, and rows need not be taken ahead."""
    commit_size: int = 0
    """How many rows to pass to one `admit` at first."""
    largest_commit: int = 0
    """How many to pass to one `admit` at most, if workers have to wait for rows. After a kill these may be in doubt."""
    is_new: bool = True
    """Whether it is sure that no row was sent before this run. Then all cards on the board are from before."""
    listed_before: int = 0
    """How many cards the board listed before the first row."""
    released: int = sys.maxsize
    """The number up to which rows may be sent at any time. Those above it are passed to `release` before."""
    may_send: Callable[[], bool] | None = None
    """Asked right before each request is written. None if nothing can prevent it."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret: bytes = secret or secrets.token_bytes(16)
        """The secret from which markers are derived."""
        self.seen: IdSet = IdSet()
        """The identifiers that responses to this run have named, and those of cards that it knows. The engine adds them."""
        self.older: list[IdSet] = []
        """The identifiers of cards that were there before this run."""
        self._baseline: IdSet | None = None

    def take_card(self, card_id: str) -> bool:
        """Note the card that a response names. Return False if it is another row's or an older one."""
        # A service may give the identifier of a deleted card again, so a response proves nothing by a card that is known.
        for ids in self.older:
            if card_id in ids:
                return False
        return self.seen.add(card_id)

    def knows(self, card_id: str) -> bool:
        """Return True for the card of a row, or an older one."""
        return card_id in self.seen or any(card_id in ids for ids in self.older)

    def is_in_input(self, card_id: str) -> bool:
        """Return False if the row of a confirmed card is not in the input any more."""
        return True

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set on each which number it has and what the ledger has of it, as `row.outcome`.

        They are rows of the input or, after that, some of which it has that they were refused. On return the latter are logged
        as well, and of the former those that wait.
        """

    def release(self, row: Row) -> None:
        """Note that a row may be sent from now on. Called before its first request, if its number is above `released`."""

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row."""

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Record that rows were not sent."""

    def record_shown(self, cards: Iterable[Card]) -> None:
        """Record which fields responses show of cards."""

    async def record_resembling(self, cards: Mapping[int, Sequence[Card]]) -> None:
        """Keep the cards that may be those of unknown rows, by the rows' numbers."""

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, None if not known."""
        return self._baseline

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the identifiers of the cards that existed before the first row."""
        self._baseline, self.listed_before = IdSet(ids), len(ids)

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows. Its `repeated` counts those named twice."""
        return self.seen

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds, as far as more than their hashes is kept."""
        return set()

    async def count_earlier(self, condition: Callable[[str], bool]) -> int:
        """Return for how many of the identifiers that earlier runs have confirmed a condition holds."""
        return 0

    async def unrecorded(self, markers: Collection[str]) -> set[str]:
        """Return those of these secret markers of the job that no row has which was sent."""
        return set()

    async def others(self) -> Others:
        """Return what others have. Called after the board was read, since they continue meanwhile."""
        return Others()

    async def aclose(self) -> None:
        """Close the ledger."""


class DurableLedger(Ledger, abc.ABC):
    """A ledger that keeps the states of rows for later runs. A subclass has a place for them: a file, or a database.

    Outcomes are noted without waiting, and written together: with the next rows, or soon. A row whose outcome is lost in a kill
    is in doubt.
    """

    is_durable = True
    note_seconds: float
    """How long an outcome may wait to be written together with others or the next rows."""

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)
        self._loop = asyncio.get_running_loop()
        self._noted: dict[int, Note] = {}
        """The outcomes that are not written yet, by the numbers of their rows: of each row the last one counts."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @abc.abstractmethod
    def _write_soon(self) -> None:
        """Begin to write what is noted. If it can't be written, what is called next raises."""
        ...

    @abc.abstractmethod
    async def _of_confirmed(self, work: Callable[[Iterable[str]], T]) -> T:
        """Return what `work` makes of the identifiers of all cards of rows, also of those that are just being written."""
        ...

    def _note(self, seq: int, state: RowState, detail: str) -> None:
        """Note the state of a row, and its card's identifier if it is done, otherwise the reason."""
        # One timer for all that is noted until it fires: a run with a fast service writes with its next rows anyway.
        self._noted[seq] = seq, state, storable(detail)
        if self._timer is None:
            self._check_open()
            self._timer = self._loop.call_later(self.note_seconds, self._write_soon)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the journal is closed")

    def _take_noted(self) -> dict[int, Note]:
        """Return what is noted, which the caller writes."""
        noted, self._noted = self._noted, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return noted

    async def confirmed(self) -> IdSet:
        return await self._of_confirmed(IdSet)

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        return await self._of_confirmed(lambda ids: set(islice(filter(condition, ids), most)))

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, without waiting, unless the ledger has it already."""
        if row.outcome is not None and row.outcome.state == ("done" if card is not None else state) != "unknown":
            # The ledger has it, and another worker may have recorded more about the row meanwhile.
            return
        if card is None:
            self._note(row.seq, "unknown" if state == "unknown" else "failed", str(error))
        else:
            self._note(row.seq, "done", card.id)

    def withdraw(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._note(row.seq, "waiting", "not sent")


def storable(text: str) -> str:
    """Return a text as every database takes it: a service may send half of a pair of surrogates, or a NUL."""
    if "\0" in text:  # PostgreSQL has none
        text = text.replace("\0", "\\x00")
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
