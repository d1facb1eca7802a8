"""The input of a bulk run. Drafts become numbered rows, no more than are asked for. Here stands what an input may do wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable
from contextvars import copy_context
from itertools import chain, count
from typing import Final, Protocol, TypeAlias

from boardclient.bulk._rows import Row
from boardclient.models import CardDraft

Drafts: TypeAlias = "Iterable[CardDraft] | AsyncIterable[CardDraft]"

_END: Final = object()


class Input(Protocol):
    """Numbered rows, in the order of the drafts. Owned by a run, which closes it."""

    def next_at_once(self) -> Row | None:
        """Return the next row if that needs no waiting, otherwise None."""
        ...

    async def take(self, most: int) -> list[Row]:
        """Return the next rows, from 1 to `most`; none at the end of the input."""
        ...

    def give_up(self) -> None:
        """Take note that no further row is wanted."""
        ...

    async def aclose(self) -> None:
        """Close the input where it is a generator."""
        ...


def open_input(drafts: Drafts) -> Input:
    """Return the rows of the drafts. Nothing is asked of them before the first row is wanted."""
    return AsyncInput(drafts) if isinstance(drafts, AsyncIterable) else SyncInput(drafts)


class SyncInput:
    """The rows of an iterable. It runs in the context variables of the run's beginning."""

    def __init__(self, drafts: Iterable[CardDraft]) -> None:
        self._drafts = drafts
        # A chain calls the iterable's __iter__ when the first row is wanted.
        self._rows = map(_row, count(), chain(drafts))
        self._run = copy_context().run
        self._error: BaseException | None = None

    def next_at_once(self) -> Row | None:
        """Return the next row, None at the end.

        Raises:
            TypeError: a draft is not a CardDraft.
            RuntimeError: the input raised something that would end a task or a loop in silence.
            Exception: whatever else the input raises.
        """
        try:
            return self._run(next, self._rows, None)
        except _ODD as error:
            raise _odd(error) from error

    async def take(self, most: int) -> list[Row]:
        """Return the next rows, none at the end. An error is raised after the rows before it were taken."""
        if self._error is not None:
            raise self._error
        rows: list[Row] = []
        try:
            while len(rows) < most and (row := self.next_at_once()) is not None:
                rows.append(row)
        except Exception as error:
            if not rows:
                raise
            self._error = error
        return rows

    def give_up(self) -> None:
        """Do nothing: nothing waits in a synchronous input."""

    async def aclose(self) -> None:
        """Close a generator."""
        if isinstance(self._drafts, Generator):
            self._run(self._drafts.close)


class AsyncInput:
    """The rows of an asynchronous iterable. One task runs it from the first step to the end of its cleanup.

    Timeouts, cancel scopes and context variables of a generator belong to the task that runs it, so each step has to be run by
    the same one. A cancellation that is not the run's is thrown into the generator, whose own timeout may be its cause.
    """

    def __init__(self, drafts: AsyncIterable[CardDraft]) -> None:
        self._drafts = drafts
        self._rows: deque[Row] = deque()
        self._wanted = 0
        """How many more rows to take from the input without being asked again."""
        self._asked = asyncio.Event()
        self._given = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stepping = False
        self._is_closing = False
        self._is_over = False
        self._error: BaseException | None = None
        self._cleanup_error: BaseException | None = None

    def next_at_once(self) -> Row | None:
        """Return None: a row has to be waited for."""
        return None

    async def take(self, most: int) -> list[Row]:
        """Wait for a row, and return it with those that need no further waiting. None at the end.

        Raises:
            TypeError: a draft is not a CardDraft.
            RuntimeError: the input was cancelled by something other than the run.
            Exception: whatever else the input raises, after the rows before it were taken.
        """
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._iterate(), name="boardclient bulk input")
        self._wanted = most - len(self._rows)
        self._asked.set()
        try:
            while not (self._rows or self._is_over):
                self._given.clear()
                await self._given.wait()
        finally:
            self._wanted = 0
        if not self._rows and self._error is not None:
            raise self._error
        return [self._rows.popleft() for _ in range(min(most, len(self._rows)))]

    def give_up(self) -> None:
        """Let the input's task close it; a step that waits is cancelled."""
        if self._is_closing:
            return
        self._is_closing = self._is_over = True
        self._asked.set()
        if self._is_stepping and self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Close a generator, in the task that ran it. Cancellations of the caller are passed on to it.

        Raises:
            BaseException: what the generator's cleanup raised.
        """
        self.give_up()
        if self._task is None:
            if isinstance(self._drafts, AsyncGenerator):
                await self._drafts.aclose()  # it was never begun, so that nothing of it runs
            return
        cancellation: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait({self._task})
            except asyncio.CancelledError as error:
                cancellation = error
                self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._task.exception()  # retrieved, so that asyncio does not log it
        if cancellation is not None:
            raise cancellation
        if self._cleanup_error is not None:
            raise self._cleanup_error

    async def _iterate(self) -> None:
        """Run the input."""
        iterator: AsyncIterator[object] | None = None
        try:
            iterator = aiter(self._drafts)
            index = 0
            while (draft := await self._step(iterator)) is not _END:
                self._rows.append(_row(index, draft))
                index += 1
                self._wanted -= 1
                self._given.set()
        except _ODD as error:
            if not self._is_closing:
                self._error = _odd(error)
                self._error.__cause__ = error
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_over = True
            self._given.set()
            if isinstance(iterator, AsyncGenerator):
                await self._close(iterator)

    async def _step(self, iterator: AsyncIterator[object]) -> object:
        """Wait until a row is wanted, and return the next draft. _END where there is none, or the run closes the input."""
        try:
            while not (self._wanted > 0 or self._is_closing):
                self._asked.clear()
                await self._asked.wait()
            if self._is_closing:
                return _END
            following = anext(iterator, _END)
        except asyncio.CancelledError as error:
            if not isinstance(iterator, AsyncGenerator):
                raise
            following = iterator.athrow(error)
        self._is_stepping = True
        try:
            return await following
        except StopAsyncIteration:
            return _END
        finally:
            self._is_stepping = False

    async def _close(self, generator: AsyncGenerator[object, object]) -> None:
        try:
            await generator.aclose()
        except Exception as error:
            self._cleanup_error = error
        except asyncio.CancelledError as error:
            self._cleanup_error = _odd(error)


_ODD: Final = (asyncio.CancelledError, GeneratorExit, StopAsyncIteration)
"""What means something to the task or loop that it is raised in, and nothing that an input may mean by it."""


def _odd(error: BaseException) -> RuntimeError:
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the input was cancelled by something other than its run")
    return RuntimeError(f"the input raised {type(error).__name__}")


def _row(index: int, draft: object) -> Row:
    if not isinstance(draft, CardDraft):
        raise TypeError(f"draft {index} must be a CardDraft, not {type(draft).__name__}")
    return Row(index, draft)
