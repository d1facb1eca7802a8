"""What is known of rows and cards, in a journal or while the run lasts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from boardclient._statuses import is_final
from boardclient.bulk._listing import IdSet
from boardclient.bulk._matching import digest
from boardclient.bulk._results import CardResult
from boardclient.bulk._rows import Row
from boardclient.bulk.journal._format import Entry
from boardclient.bulk.journal._journal import Journal


class Ledger(Protocol):
    """Who knows which rows were sent, and what became of them."""

    @property
    def secret(self) -> bytes:
        """What markers are made from."""
        ...

    @property
    def batch(self) -> int:
        """How many rows are best admitted together."""
        ...

    @property
    def is_new(self) -> bool:
        """Return True if no row was ever on record."""
        ...

    async def admit(self, rows: Sequence[Row]) -> None:
        """Say what is to be done with rows. Those to be sent are on record when this returns."""
        ...

    def release(self, row: Row) -> None:
        """Put on record that a row may be sent from now on, before its first request."""
        ...

    def settle(self, row: Row, result: CardResult) -> None:
        """Take note of what became of a row."""
        ...

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Take note that rows were not sent after all."""
        ...

    async def baseline(self) -> IdSet | None:
        """Return the cards that were there before the first row. It is None where nobody has looked yet."""
        ...

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the cards that were there before the first row."""
        ...

    async def confirmed(self) -> IdSet:
        """Return the cards that are known to be rows'."""
        ...

    async def aclose(self) -> None:
        """End the record."""
        ...


class MemoryLedger:
    """What is known in one run, which nothing outlives."""

    batch = 1
    is_new = True

    def __init__(self, *, keeps_cards: bool = True) -> None:
        self.secret = secrets.token_bytes(16)
        self._keeps_cards = keeps_cards
        self._confirmed = IdSet()
        self._baseline: IdSet | None = None

    async def admit(self, rows: Sequence[Row]) -> None:
        """Let all be sent."""

    def release(self, row: Row) -> None:
        """Do nothing: no later run asks."""

    def settle(self, row: Row, result: CardResult) -> None:
        """Remember the card, if anybody is going to ask."""
        if self._keeps_cards and result.card is not None:
            self._confirmed.add(result.card.id)

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Do nothing: nothing was written."""

    async def baseline(self) -> IdSet | None:
        """Return the cards that were there before the first row."""
        return self._baseline

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Remember the cards that were there before the first row."""
        self._baseline = IdSet(ids)

    async def confirmed(self) -> IdSet:
        """Return the cards that are known to be rows'."""
        return self._confirmed

    async def aclose(self) -> None:
        """Do nothing."""


class JournalLedger:
    """What is known in a journal, which the next run resumes."""

    def __init__(self, journal: Journal, batch: int) -> None:
        self.batch = batch
        self._journal = journal

    @classmethod
    async def open(cls, path: str | os.PathLike[str], identity: Mapping[str, str], batch: int) -> JournalLedger:
        """Open the journal of a run.

        Raises:
            JournalError: it can't be used; nothing was sent.
        """
        return cls(await Journal.open(path, identity), batch)

    @property
    def secret(self) -> bytes:
        """What markers are made from."""
        return self._journal.secret

    @property
    def is_new(self) -> bool:
        """Return True if no row was ever on record."""
        return self._journal.is_new

    async def admit(self, rows: Sequence[Row]) -> None:
        """Log what is to be sent, and say what earlier runs did of the rest.

        Raises:
            JournalError: the journal can't be written, or a row is not what it was.
        """
        decisions = await self._journal.admit([Entry(row.key, digest(row.draft)) for row in rows])
        for row, decision in zip(rows, decisions, strict=True):
            row.seq, row.standing, row.detail = decision.seq, decision.action, decision.detail
            row.is_earlier = decision.action == "doubtful"

    def release(self, row: Row) -> None:
        """Note that a row may be sent. One that was logged and not released is known to be unsent.

        Raises:
            JournalError: the journal is no longer where it was. The row may not be sent.
        """
        self._journal.release(row.seq)

    def settle(self, row: Row, result: CardResult) -> None:
        """Note what became of a row, unless it is what the journal says."""
        if row.standing in {"done", "failed"} or (row.standing == "doubtful" and result.state == "unknown" and not row.sends):
            return
        if result.card is not None:
            self._journal.note(row.seq, "done", result.card.id)
        elif result.state == "unknown":
            self._journal.note(row.seq, "unknown", str(result.error))
        else:
            self._journal.note(row.seq, "failed" if is_final(result.error) else "waiting", str(result.error))

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Note that rows were logged and not sent."""
        for row in rows:
            self._journal.note(row.seq, "waiting", "not sent")

    async def baseline(self) -> IdSet | None:
        """Return the cards that were there before the first row. It is None where nobody has looked."""
        return None if self._journal.baseline is None else IdSet(await self._journal.baseline_ids())

    async def set_baseline(self, ids: Sequence[str]) -> None:
        """Keep the cards that were there before the first row."""
        await self._journal.set_baseline(ids)

    async def confirmed(self) -> IdSet:
        """Return the cards that are known to be rows'."""
        ids = IdSet()
        async for row in self._journal.rows("done"):
            if row.detail is not None:
                ids.add(row.detail)
        return ids

    async def aclose(self) -> None:
        """Write what was noted, and let the next run have the journal."""
        await self._journal.aclose()
