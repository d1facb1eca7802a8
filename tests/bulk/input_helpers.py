"""What the tests of inputs share."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from boardclient import CardDraft
from boardclient.bulk._life import Row
from boardclient.bulk._source import open_source


def draft(index: int, reference: str | None = None) -> CardDraft:
    return CardDraft(f"card {index}", "list", reference=reference)


class Input:
    """Drafts in one form or the other; `pulled` are those that were asked for."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.pulled: list[int] = []
        self.closed = 0

    def _next(self, index: int) -> Any:
        self.pulled.append(index)
        row = self.rows[index]
        if isinstance(row, Exception):
            raise row
        return row

    def generator(self) -> Iterator[Any]:
        try:
            for index in range(len(self.rows)):
                yield self._next(index)
        finally:
            self.closed += 1

    async def agenerator(self) -> AsyncIterator[Any]:
        try:
            for index in range(len(self.rows)):
                yield self._next(index)
        finally:
            self.closed += 1

    def iterable(self) -> Any:
        outer = self

        class Rows:
            def __iter__(self) -> Iterator[Any]:
                return outer.generator()

        return Rows()

    def aiterable(self) -> Any:
        outer = self

        class Rows:
            def __aiter__(self) -> AsyncIterator[Any]:
                return outer.agenerator()

        return Rows()


KINDS = {
    "generator": Input.generator,
    "asynchronous generator": Input.agenerator,
    "iterable": Input.iterable,
    "asynchronous iterable": Input.aiterable,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def given_as(kind: str, rows: list[Any]) -> tuple[Input, Any]:
    given = Input(rows)
    make: Callable[[Input], Any] = KINDS[kind]
    return given, open_source(make(given), Row)


def indices(rows: list[Row]) -> list[int]:
    return [row.index for row in rows]


class Slow:
    """An asynchronous input whose rows come when the test lets them."""

    def __init__(self) -> None:
        self.rows: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False

    async def drafts(self) -> AsyncIterator[CardDraft]:
        try:
            while (row := await self.rows.get()) is not None:
                if isinstance(row, Exception):
                    raise row
                yield row
        finally:
            await asyncio.sleep(0)
            self.closed = True

    def put(self, *rows: object) -> None:
        for row in rows:
            self.rows.put_nowait(row)
