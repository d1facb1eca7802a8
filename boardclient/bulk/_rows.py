"""The rows of a bulk run: drafts as they are numbered, taken from the input in batches, and kept until they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from typing import Final, Literal, TypeAlias, cast

from boardclient.errors import BoardClientError
from boardclient.models import CardDraft

Standing: TypeAlias = Literal["send", "done", "failed", "doubtful"]
"""What is to be done with a row: send it, report what an earlier run did or was refused, or find out whether it was done."""

_END: Final = object()


class Row:
    """A draft on its way. Owned by its run; slotted, for there is one for each card."""

    __slots__ = (
        "detail",
        "draft",
        "error",
        "has_place",
        "index",
        "is_earlier",
        "marker",
        "refused_at",
        "sends",
        "seq",
        "standing",
    )

    def __init__(self, index: int, draft: CardDraft) -> None:
        self.index = index
        self.draft = draft
        self.seq = index
        """The number that the ledger knows it by."""
        self.standing: Standing = "send"
        self.detail: str | None = None
        """The id of the card of a row that is done, the reason of one that failed earlier."""
        self.is_earlier = False
        """Whether an earlier run may have sent it."""
        self.has_place = True
        """Whether it keeps a place among the rows under way."""
        self.error: BoardClientError | None = None
        """Why it is in doubt, None where it is not."""
        self.marker: str | None = None
        """What its card's description holds, once that was asked for."""
        self.sends = 0
        self.refused_at: float | None = None
        """When it was first answered with 429, on the loop's clock."""

    @property
    def key(self) -> int | str:
        """What the caller knows the row by."""
        return self.index if self.draft.reference is None else self.draft.reference


class Source:
    """The input: numbered rows, a few at a time, no more than were asked for. Owned by its run, which closes it."""

    def __init__(self, drafts: Iterable[CardDraft] | AsyncIterable[CardDraft]) -> None:
        self._drafts = drafts
        self._steps: Iterator[CardDraft] | None = None
        self._waits: AsyncIterator[CardDraft] | None = None
        self._begun: asyncio.Task[object] | None = None
        self._error: Exception | None = None
        self._count = 0

    @property
    def is_synchronous(self) -> bool:
        """Tell whether rows can be taken without awaiting."""
        return not isinstance(self._drafts, AsyncIterable)

    def take_one(self) -> Row | None:
        """Return the next row of a synchronous input, None at the end.

        Raises:
            TypeError: a draft is no CardDraft; any error of the input itself.
        """
        steps = self._steps
        if steps is None:
            steps = self._steps = iter(cast("Iterable[CardDraft]", self._drafts))
        draft = next(steps, _END)
        return None if draft is _END else self._row(draft)

    async def take(self, most: int) -> list[Row]:
        """Return the next rows, none at the end: up to `most`, of an asynchronous input those that are there after the first.

        Raises:
            TypeError: a draft is no CardDraft; any error of the input itself, after the rows before it were taken.
        """
        if self._error is not None:
            raise self._error
        rows: list[Row] = []
        try:
            if isinstance(self._drafts, AsyncIterable):
                await self._take_awaited(self._drafts, rows, most)
            else:
                self._take(self._drafts, rows, most)
        except Exception as error:  # whatever the input raises is for whoever comes next
            if not rows:
                raise
            self._error = error
        return rows

    def _take(self, drafts: Iterable[CardDraft], rows: list[Row], most: int) -> None:
        if self._steps is None:
            self._steps = iter(drafts)
        for draft in self._steps:
            rows.append(self._row(draft))
            if len(rows) == most:
                return

    async def _take_awaited(self, drafts: AsyncIterable[CardDraft], rows: list[Row], most: int) -> None:
        if self._waits is None:
            self._waits = aiter(drafts)
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
            rows.append(self._row(draft))

    def _row(self, draft: object) -> Row:
        if not isinstance(draft, CardDraft):
            raise TypeError(f"draft {self._count} must be a CardDraft, not {type(draft).__name__}")
        row = Row(self._count, draft)
        self._count += 1
        return row

    async def aclose(self) -> None:
        """Close the input where it is a generator."""
        if self._begun is not None:
            self._begun.cancel()
            await asyncio.wait({self._begun})
        if isinstance(self._drafts, AsyncGenerator):
            await self._drafts.aclose()
        elif isinstance(self._drafts, Generator):
            self._drafts.close()


async def _step(drafts: AsyncIterator[CardDraft]) -> object:
    return await anext(drafts, _END)
