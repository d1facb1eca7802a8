"""The input of a run. It numbers items, takes no more of them than needed, and runs generators as they expect."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from contextvars import copy_context
from itertools import chain, count, islice
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")

Made: TypeAlias = Callable[[int, object], T]
"""Makes what a source gives of an item's position, from 0, and the item."""

_END: Final = object()
_CONTROL_EXCEPTIONS: Final = (asyncio.CancelledError, GeneratorExit, StopAsyncIteration)
"""Exceptions that would end a task or a loop silently if an input's were passed on unchanged."""


def open_source(items: Iterable[object] | AsyncIterable[object], make: Made[T]) -> SyncSource[T] | AsyncSource[T]:
    """Return a source of items. They are not iterated before the first one is requested."""
    return AsyncSource(items, make) if isinstance(items, AsyncIterable) else SyncSource(items, make)


class SyncSource(Generic[T]):
    """The items of an iterable, which runs with the context variables that are current now. Owned by a run."""

    is_waiting = False
    """Whether the next item is being waited for."""

    def __init__(self, items: Iterable[object], make: Made[T]) -> None:
        self._items = items
        # `chain` calls the iterable's __iter__ only when the first item is requested.
        self._made = map(make, count(), chain(items))
        self._run = copy_context().run
        self._error: BaseException | None = None

    async def take(self, most: int) -> list[T]:
        """Return the next items, none at the end. An error of the input is raised after the items before it.

        Raises:
            RuntimeError: the input raised CancelledError, GeneratorExit or StopAsyncIteration.
            Exception: any other error that the input raises.
        """
        made: list[T] = []
        try:
            if self._error is None:
                self._run(self._take_into, made, most)
        except _CONTROL_EXCEPTIONS as error:
            self._error = _runtime_error_of(error)
        except BaseException as error:
            self._error = error
        if self._error is not None and not made:
            raise self._error
        return made

    def _take_into(self, made: list[T], most: int) -> None:
        for item in islice(self._made, most):
            made.append(item)  # noqa: PERF402 -- those before an error are kept

    def give_up(self) -> None:
        """Do nothing: nothing waits in a synchronous input."""

    async def aclose(self) -> None:
        """Close a generator."""
        if isinstance(self._items, Generator):
            self._run(self._items.close)


class AsyncSource(Generic[T]):
    """The items of an asynchronous iterable. One task runs it from the first step to the end of its cleanup.

    A generator's timeouts, cancel scopes and context variables belong to the task that runs it, so every step runs in the same
    task. A cancellation that does not come from the run is thrown into the generator, because the generator's own
    `asyncio.timeout` may have caused it.
    """

    def __init__(self, items: AsyncIterable[object], make: Made[T]) -> None:
        self._items = items
        self._make = make
        self._made: deque[T] = deque()
        self._wanted = 0
        """How many more items the task is to take."""
        self._asked = asyncio.Event()
        self._given = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stepping = False
        self._is_closing = False
        self._is_over = False
        self.is_waiting = False
        self.on_wait: Callable[[], object] = list
        """Called when an item has to be waited for."""
        self._error: BaseException | None = None
        self._cleanup_error: BaseException | None = None

    async def take(self, most: int) -> list[T]:
        """Wait for one item, and return it with those available without further waiting.

        None are returned at the end. An error is raised after the items before it have been returned.

        Raises:
            RuntimeError: the input was cancelled by something other than the run.
            Exception: any other error that the input raises.
        """
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._iterate(), name="boardclient bulk input")
        self._wanted = most - len(self._made)
        self._asked.set()
        try:
            while not (self._made or self._is_over):
                self._given.clear()
                self.is_waiting = True
                self.on_wait()
                await self._given.wait()
        finally:
            self._wanted = 0
            self.is_waiting = False
        if self._error is not None and not self._made:
            raise self._error
        return [self._made.popleft() for _ in range(min(most, len(self._made)))]

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
            if isinstance(self._items, AsyncGenerator):
                await self._items.aclose()  # it was never started, so this runs none of its code
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
        """Iterate over the items. The body of the input's task."""
        iterator: AsyncIterator[object] | None = None
        index = count()
        try:
            iterator = aiter(self._items)
            while (item := await self._step(iterator)) is not _END:
                self._made.append(self._make(next(index), item))
                self._wanted -= 1
                self._given.set()
        except _CONTROL_EXCEPTIONS as error:
            if not self._is_closing:
                self._error = _runtime_error_of(error)
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
        """Wait until an item is requested, and return the next one, or _END."""
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


def _runtime_error_of(error: BaseException) -> RuntimeError:
    is_cancelled = isinstance(error, asyncio.CancelledError)
    why = "was cancelled by something other than its run" if is_cancelled else f"raised {type(error).__name__}"
    raised = RuntimeError(f"the input {why}")
    raised.__cause__ = error
    return raised
