"""What a run knows of its rows: the protocol of a ledger, and the one in memory.

A ledger says which rows may be sent, and keeps what became of them.
"""

from __future__ import annotations

import abc
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from boardclient.bulk._life import Row, RowKey
from boardclient.bulk._recognition import Content, IdSet
from boardclient.bulk._results import ResultState
from boardclient.errors import BoardClientError
from boardclient.models import Card

RowState: TypeAlias = Literal["logged", "done", "failed", "waiting", "unknown", "undone"]
"""The state of a row in a durable ledger: "logged" until it has an outcome; then created; not created, with an error; not
sent; reported as unknown; deleted again. The next run sends those that failed or wait."""


class Doubt(NamedTuple):
    """A row of an earlier run in doubt. Its content is without a marker."""

    seq: int
    key: RowKey
    content: Content


class Ledger(Protocol):
    """A record of which rows were sent and what became of them."""

    @property
    def secret(self) -> bytes:
        """The secret from which markers are derived."""
        ...

    @property
    def batch(self) -> int:
        """How many rows to pass to one `admit` at first. 0 if nothing is logged, so that rows need not be taken ahead."""
        ...

    @property
    def largest_batch(self) -> int:
        """How many to pass to one `admit` at most, if workers have to wait for rows. After a kill these may be in doubt."""
        ...

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        ...

    seen: IdSet
    """The identifiers that responses to this run have named, and those of cards that it knows. The engine adds them."""

    def is_in_input(self, card_id: str) -> bool:
        """Return False if the row of a confirmed card is not in the input any more."""
        ...

    async def admit(self, rows: Sequence[Row]) -> None:
        """Decide what to do with rows, and set it on them. Those to be sent are logged on return."""
        ...

    @property
    def may_send(self) -> Callable[[], bool] | None:
        """Asked right before each request is written. None if nothing can prevent it."""
        ...

    released: int
    """The number up to which rows may be sent."""

    def release(self, row: Row) -> None:
        """Note that a row may be sent from now on. Called before its first request, if its number is above `released`."""
        ...

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row."""
        ...

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Record that rows were not sent."""
        ...

    async def note_resembling(self, cards: Mapping[int, Sequence[Card]]) -> None:
        """Keep the cards that may be those of unknown rows, by the rows' numbers."""
        ...

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, None if not known."""
        ...

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the identifiers of the cards that existed before the first row."""
        ...

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows. Its `repeated` counts those named twice."""
        ...

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds."""
        ...

    async def count_earlier(self, condition: Callable[[str], bool]) -> int:
        """Return for how many of the identifiers that earlier runs have confirmed a condition holds."""
        ...

    async def other_doubts(self) -> Sequence[Doubt]:
        """Return the rows that earlier runs left in doubt and that this one did not get."""
        ...

    async def aclose(self) -> None:
        """Close the ledger."""
        ...


class DurableLedger(abc.ABC):
    """The part of a ledger that keeps the states of rows for later runs."""

    @abc.abstractmethod
    def _note(self, seq: int, state: RowState, detail: str) -> None:
        """Keep the state of a row, and its card's identifier if it is done, otherwise the reason, without waiting."""
        ...

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, without waiting, unless the ledger has it already."""
        if card is None:
            self._note(row.seq, "unknown" if state == "unknown" else "failed", str(error))
        elif row.action != "done":
            self._note(row.seq, "done", card.id)

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Record that rows were not sent."""
        for row in rows:
            self._note(row.seq, "waiting", "not sent")


class MemoryLedger:
    """A ledger in memory, for a run without a journal."""

    batch = largest_batch = 0
    is_new = True
    may_send = None

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(16)
        self.released = sys.maxsize
        self.seen = IdSet()
        self._baseline: IdSet | None = None

    def is_in_input(self, card_id: str) -> bool:
        """Return True: there are no earlier runs."""
        return True

    async def admit(self, rows: Sequence[Row]) -> None:
        """Leave all rows to be sent."""

    def release(self, row: Row) -> None:
        """Do nothing: no later run needs it."""

    def add_outcome(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Do nothing: no later run needs it."""

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Do nothing: nothing was logged."""

    async def note_resembling(self, cards: Mapping[int, Sequence[Card]]) -> None:
        """Do nothing: the rows' errors name them."""

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, or None."""
        return self._baseline

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Remember the cards that existed before the first row."""
        self._baseline = IdSet(ids)

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows."""
        return self.seen

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return nothing: only hashes are kept."""
        return set()

    async def count_earlier(self, condition: Callable[[str], bool]) -> int:
        """Return 0: there are no earlier runs."""
        return 0

    async def other_doubts(self) -> Sequence[Doubt]:
        """Return none: there are no earlier runs."""
        return ()

    async def aclose(self) -> None:
        """Do nothing."""
