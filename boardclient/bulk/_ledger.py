"""The ledger of a run, in memory or in a journal.

It knows which rows were sent and what became of them.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from boardclient._statuses import is_final
from boardclient.bulk._content import digest
from boardclient.bulk._results import ResultState
from boardclient.bulk._rows import Row
from boardclient.bulk.journal._journal import Journal
from boardclient.bulk.reconciliation._listing import IdSet
from boardclient.errors import BoardClientError
from boardclient.models import Card


class Ledger(Protocol):
    """A record of which rows were sent and what became of them."""

    @property
    def secret(self) -> bytes:
        """The secret from which markers are derived."""
        ...

    @property
    def batch(self) -> int:
        """How many rows to pass to one `admit`. 0 if nothing is logged, so that rows need not be taken ahead."""
        ...

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        ...

    async def admit(self, rows: Sequence[Row]) -> None:
        """Decide what to do with rows. Those to be sent are logged on return."""
        ...

    released: int
    """The number up to which rows may be sent."""

    def release(self, row: Row) -> None:
        """Note that a row may be sent from now on. Called before its first request, if its number is above `released`."""
        ...

    def settle(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row."""
        ...

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Record that rows were not sent."""
        ...

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, None if not known."""
        ...

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the identifiers of the cards that existed before the first row."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """What was learned until now, as texts by name."""
        ...

    async def set_fact(self, name: str, value: str) -> None:
        """Keep a text for later runs, in place of an earlier one of this name."""
        ...

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows."""
        ...

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds."""
        ...

    async def has_other_doubts(self) -> bool:
        """Return whether earlier runs left rows in doubt that this one did not get."""
        ...

    async def aclose(self) -> None:
        """Close the ledger."""
        ...


class MemoryLedger:
    """A ledger in memory, for a run without a journal."""

    batch = 0
    is_new = True

    def __init__(self, *, keeps_cards: bool = True) -> None:
        self.secret = secrets.token_bytes(16)
        self.released = sys.maxsize
        self._keeps_cards = keeps_cards
        self._confirmed = IdSet()
        self._baseline: IdSet | None = None
        self.facts: dict[str, str] = {}

    async def admit(self, rows: Sequence[Row]) -> None:
        """Leave all rows to be sent."""

    def release(self, row: Row) -> None:
        """Do nothing: no later run needs it."""

    def settle(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Remember the card if the board may be read."""
        if self._keeps_cards and card is not None:
            self._confirmed.add(card.id)

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Do nothing: nothing was logged."""

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, or None."""
        return self._baseline

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Remember the cards that existed before the first row."""
        self._baseline = IdSet(ids)

    async def set_fact(self, name: str, value: str) -> None:
        """Keep a text, in place of an earlier one of this name."""
        self.facts[name] = value

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows."""
        return self._confirmed

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return nothing: only hashes are kept."""
        return set()

    async def has_other_doubts(self) -> bool:
        """Return False: there are no earlier runs."""
        return False

    async def aclose(self) -> None:
        """Do nothing."""


class JournalLedger:
    """A ledger in a journal, from which a later run resumes."""

    def __init__(self, journal: Journal, batch: int) -> None:
        self.batch = batch
        self.released = journal.released
        self._journal = journal
        self._doubtful: set[int] = set()
        """The numbers of the rows of this run that earlier runs left in doubt."""

    @classmethod
    async def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], batch: int) -> JournalLedger:
        """Open the journal of a run.

        Raises:
            JournalError: the journal can't be used. Nothing was sent.
        """
        return cls(await Journal.open(path, identity), batch)

    @property
    def secret(self) -> bytes:
        """The secret from which markers are derived."""
        return self._journal.secret

    @property
    def is_new(self) -> bool:
        """Whether no row was ever logged."""
        return self._journal.is_new

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log the rows to be sent, and set on the others what earlier runs did.

        Raises:
            JournalError: the journal can't be written, a reference comes twice, or a row that was sent has other content now.
        """
        decisions = await self._journal.admit([(row.key, digest(row.draft)) for row in rows])
        for row, (seq, action, detail) in zip(rows, decisions, strict=True):
            row.seq = seq
            if action != "send":
                row.action, row.detail, row.is_earlier = action, detail, action == "doubtful"
                if row.is_earlier:
                    self._doubtful.add(seq)

    def release(self, row: Row) -> None:
        """Note that a row may be sent. A row that was logged and never released was certainly not sent.

        Raises:
            JournalError: the journal was moved or removed. The row must not be sent.
        """
        self._journal.release(row.seq)
        self.released = self._journal.released

    def settle(self, row: Row, state: ResultState, card: Card | None = None, error: BoardClientError | None = None) -> None:
        """Record the result of a row, unless the journal has it already."""
        if row.action in {"done", "failed"}:
            return
        if card is not None:
            self._journal.note(row.seq, "done", card.id)
        elif state == "unknown":
            self._journal.note(row.seq, "unknown", str(error))
        else:
            self._journal.note(row.seq, "failed" if is_final(error) else "waiting", str(error))

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Record that rows were logged and not sent."""
        for row in rows:
            self._journal.note(row.seq, "waiting", "not sent")

    async def baseline(self) -> IdSet | None:
        """Return the cards that existed before the first row, None if not known."""
        return None if self._journal.baseline is None else IdSet(await self._journal.baseline_ids())

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the identifiers of the cards that existed before the first row."""
        await self._journal.set_baseline(ids)

    @property
    def facts(self) -> Mapping[str, str]:
        """What earlier runs and this one have learned, as texts by name."""
        return self._journal.facts

    async def set_fact(self, name: str, value: str) -> None:
        """Keep a text for later runs, in place of an earlier one of this name.

        It is on the disk on return.

        Raises:
            JournalError: the journal can't be written.
        """
        await self._journal.set_fact(name, value)

    async def confirmed(self) -> IdSet:
        """Return the identifiers of the cards that are known to belong to rows."""
        ids = IdSet()
        async for row in self._journal.rows("done"):
            if row.detail is not None:
                ids.add(row.detail)
        return ids

    async def find_confirmed(self, condition: Callable[[str], bool], most: int) -> set[str]:
        """Return up to `most` of these identifiers for which a condition holds."""
        found: set[str] = set()
        async with aclosing(self._journal.rows("done")) as rows:
            async for row in rows:
                if row.detail is not None and condition(row.detail):
                    found.add(row.detail)
                if len(found) >= most:
                    break
        return found

    async def has_other_doubts(self) -> bool:
        """Return whether earlier runs left rows in doubt that this one did not get."""
        if self._journal.run == 1:
            return False
        async with aclosing(self._journal.rows("logged", "unknown")) as rows:
            async for row in rows:
                if row.run < self._journal.run and row.seq not in self._doubtful:
                    return True
        return False

    async def aclose(self) -> None:
        """Write what was recorded, and close the journal so that another run can open it."""
        await self._journal.aclose()
