"""The input of a bulk run. It numbers drafts, takes no more of them than needed, and checks them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable
from contextvars import copy_context
from itertools import chain, count, islice
from typing import Final, Protocol, TypeAlias

from boardclient.bulk._rows import Row
from boardclient.models import CardDraft

Drafts: TypeAlias = "Iterable[CardDraft] | AsyncIterable[CardDraft]"

_END: Final = object()


class Input(Protocol):
    """Numbered rows, in the order of the drafts. Owned by a run, which closes it."""

    is_waiting: bool
    """Whether the next row is being waited for."""
    was_interrupted: bool
    """Whether the last `take` returned nothing because it was interrupted."""

    def next_at_once(self) -> Row | None:
        """Return the next row if it is available without waiting, otherwise None."""
        ...

    async def take(self, most: int) -> list[Row]:
        """Return the next rows, from 1 to `most`. An empty result means the end of the input, or an interruption."""
        ...

    def interrupt(self) -> None:
        """Let a `take` that waits return nothing. A later one waits for the same row."""
        ...

    def give_up(self) -> None:
        """Request no further rows."""
        ...

    async def aclose(self) -> None:
        """Close the input if it is a generator."""
        ...


def open_input(drafts: Drafts) -> Input:
    """Return an input for drafts. They are not iterated before the first row is requested."""
    return AsyncInput(drafts) if isinstance(drafts, AsyncIterable) else SyncInput(drafts)


class SyncInput:
    """The rows of an iterable. It runs with the context variables that were current when the run began."""

    is_waiting = was_interrupted = False

    def __init__(self, drafts: Iterable[CardDraft]) -> None:
        self._drafts = drafts
        # `chain` calls the iterable's __iter__ only when the first row is requested.
        self._rows = map(Row, count(), chain(drafts))
        self._run = copy_context().run
        self._error: BaseException | None = None

    def next_at_once(self) -> Row | None:
        """Return the next row, or None at the end.

        Raises:
            TypeError: a draft is not a CardDraft.
            RuntimeError: the input raised CancelledError, GeneratorExit or StopAsyncIteration.
            Exception: any other error that the input raises.
        """
        try:
            return self._run(next, self._rows, None)
        except _CONTROL_EXCEPTIONS as error:
            raise _runtime_error_of(error) from error

    async def take(self, most: int) -> list[Row]:
        """Return the next rows. An empty result means the end.

        An error of the input is raised after the rows before it have been returned.
        """
        if self._error is not None:
            raise self._error
        rows: list[Row] = []
        try:
            self._run(self._move, most, rows)
        except BaseException as error:
            if not rows:
                raise
            self._error = error
        return rows

    def _move(self, most: int, rows: list[Row]) -> None:
        try:
            for row in islice(self._rows, most):
                rows.append(row)  # noqa: PERF402 -- those before an error are kept
        except _CONTROL_EXCEPTIONS as error:
            raise _runtime_error_of(error) from error

    def interrupt(self) -> None:
        """Do nothing: nothing waits in a synchronous input."""

    def give_up(self) -> None:
        """Do nothing: nothing waits in a synchronous input."""

    async def aclose(self) -> None:
        """Close a generator."""
        if isinstance(self._drafts, Generator):
            self._run(self._drafts.close)


class AsyncInput:
    """The rows of an asynchronous iterable. One task runs it from the first step to the end of its cleanup.

    A generator's timeouts, cancel scopes and context variables belong to the task that runs it, so every step runs in the same
    task. A cancellation that does not come from the run is thrown into the generator, because the generator's own
    `asyncio.timeout` may have caused it.
    """

    def __init__(self, drafts: AsyncIterable[CardDraft]) -> None:
        self._drafts = drafts
        self._rows: deque[Row] = deque()
        self._wanted = 0
        """How many more rows the input's task is to take."""
        self._asked = asyncio.Event()
        self._given = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stepping = False
        self._is_closing = False
        self._is_over = False
        self.is_waiting = self.was_interrupted = False
        self._error: BaseException | None = None
        self._cleanup_error: BaseException | None = None

    def next_at_once(self) -> Row | None:
        """Return None: each row has to be awaited."""
        return None

    async def take(self, most: int) -> list[Row]:
        """Wait for one row, and return it with those available without further waiting.

        An empty result means the end, or an interruption. An error is raised after the rows before it have been returned.

        Raises:
            TypeError: a draft is not a CardDraft.
            RuntimeError: the input was cancelled by something other than the run.
            Exception: any other error that the input raises.
        """
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._iterate(), name="boardclient bulk input")
        self._wanted = most - len(self._rows)
        self._asked.set()
        self.was_interrupted = False
        try:
            while not (self._rows or self._is_over or self.was_interrupted):
                self._given.clear()
                self.is_waiting = True
                await self._given.wait()
        finally:
            self._wanted = 0
            self.is_waiting = False
        if self._rows:
            self.was_interrupted = False
        elif self._error is not None:
            raise self._error
        return [self._rows.popleft() for _ in range(min(most, len(self._rows)))]

    def interrupt(self) -> None:
        """Let a `take` that waits return nothing. The step of the input continues."""
        self.was_interrupted = self.is_waiting
        self._given.set()

    def give_up(self) -> None:
        """Make the input's task close it. A step that is being awaited is cancelled."""
        if self._is_closing:
            return
        self._is_closing = self._is_over = True
        self._asked.set()
        if self._is_stepping and self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Close a generator in the task that ran it. A cancellation of the caller cancels that task.

        Raises:
            Exception: any error that the generator's cleanup raises.
        """
        self.give_up()
        if self._task is None:
            if isinstance(self._drafts, AsyncGenerator):
                await self._drafts.aclose()  # it was never started, so this runs none of its code
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
        """Iterate over the drafts. The body of the input's task."""
        iterator: AsyncIterator[object] | None = None
        try:
            iterator = aiter(self._drafts)
            index = 0
            while (draft := await self._step(iterator)) is not _END:
                self._rows.append(Row(index, draft))
                index += 1
                self._wanted -= 1
                self._given.set()
        except _CONTROL_EXCEPTIONS as error:
            if not self._is_closing:
                self._error = _runtime_error_of(error)
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
        """Wait until a row is requested, and return the next draft.

        Return _END if there is none, or the run closes the input.
        """
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
            self._cleanup_error = _runtime_error_of(error)


_CONTROL_EXCEPTIONS: Final = (asyncio.CancelledError, GeneratorExit, StopAsyncIteration)
"""Exceptions that would end a task or a loop silently if an input's were passed on unchanged."""


def _runtime_error_of(error: BaseException) -> RuntimeError:
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the input was cancelled by something other than its run")
    return RuntimeError(f"the input raised {type(error).__name__}")
