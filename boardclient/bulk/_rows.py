"""The rows of a bulk run: drafts as they are numbered, taken from the input in batches, and kept until they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable
from itertools import chain, count, islice
from typing import Final, Literal, TypeAlias, cast

from boardclient.errors import BoardClientError
from boardclient.models import CardDraft

Standing: TypeAlias = Literal["send", "done", "failed", "doubtful"]
"""What is to be done with a row: send it, report what an earlier run did or was refused, or find out whether it was done."""

_END: Final = object()


class Row:
    """A draft on its way. Owned by its run; there are few at a time, and most have no more than the defaults."""

    standing: Standing = "send"
    detail: str | None = None
    """The id of the card of a row that is done, the reason of one that failed earlier."""
    is_earlier = False
    """Whether an earlier run may have sent it."""
    error: BoardClientError | None = None
    """Why it is in doubt, None where it is not."""
    marker: str | None = None
    """What its card's description holds, once that was asked for."""
    sends = 0
    refused_at: float | None = None
    """When it was first answered with 429, on the loop's clock."""

    def __init__(self, index: int, draft: CardDraft) -> None:
        self.index = index
        self.draft = draft
        self.seq = index
        """The number that the ledger knows it by."""

    @property
    def key(self) -> int | str:
        """What the caller knows the row by."""
        return self.index if self.draft.reference is None else self.draft.reference


class Source:
    """The input: numbered rows, a few at a time, no more than were asked for. Owned by its run, which closes it."""

    def __init__(self, drafts: Iterable[CardDraft] | AsyncIterable[CardDraft]) -> None:
        self._drafts = drafts
        # A chain asks the input for its iterator when the first row is wanted, and no earlier.
        self.rows = None if isinstance(drafts, AsyncIterable) else map(_row, count(), chain(drafts))
        """The rows still to be taken, by whoever takes them; None where they are to be awaited."""
        self._waits: AsyncIterator[CardDraft] | None = None
        self._begun: asyncio.Task[object] | None = None
        self._error: Exception | None = None
        self._count = 0

    async def take(self, most: int) -> list[Row]:
        """Return the next rows, none at the end: up to `most`, of an asynchronous input those that are there after the first.

        Raises:
            TypeError: a draft is no CardDraft; any error of the input itself, after the rows before it were taken.
        """
        if self._error is not None:
            raise self._error
        rows: list[Row] = []
        try:
            if self.rows is None:
                await self._take_awaited(rows, most)
            else:
                for row in islice(self.rows, most):
                    rows.append(row)  # noqa: PERF402 -- those before an error are kept
        except Exception as error:  # whatever the input raises is for whoever comes next
            if not rows:
                raise
            self._error = error
        return rows

    async def _take_awaited(self, rows: list[Row], most: int) -> None:
        if self._waits is None:
            self._waits = aiter(cast("AsyncIterable[CardDraft]", self._drafts))
        while len(rows) < most:
            if rows:
                self._begun = self._begun or asyncio.create_task(_step(self._waits))
                await asyncio.sleep(0)  # enough for an input that needs not wait
                if not self._begun.done():
                    return
            begun, self._begun = self._begun, None
            draft = await (_step(self._waits) if begun is None else begun)
            if draft is _END:
                return
            rows.append(_row(self._count, draft))
            self._count += 1

    async def aclose(self) -> None:
        """Close the input where it is a generator."""
        if self._begun is not None:
            self._begun.cancel()
            await asyncio.wait({self._begun})
        if isinstance(self._drafts, AsyncGenerator):
            await self._drafts.aclose()
        elif isinstance(self._drafts, Generator):
            self._drafts.close()


def _row(index: int, draft: object) -> Row:
    if not isinstance(draft, CardDraft):
        raise TypeError(f"draft {index} must be a CardDraft, not {type(draft).__name__}")
    return Row(index, draft)


async def _step(drafts: AsyncIterator[CardDraft]) -> object:
    return await anext(drafts, _END)
