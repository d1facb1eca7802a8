"""The input of a run. It numbers items, takes no more of them than needed, and runs generators as they expect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from contextvars import copy_context
from itertools import chain, count, islice
from typing import Final, Generic, TypeAlias, TypeVar

from boardclient._base._guards import wait_to_end

T = TypeVar("T")

Made: TypeAlias = Callable[[int, object], T]
"""Makes what a source gives of an item's position, from 0, and the item."""

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

    def stop(self) -> None:
        """Do nothing: nothing waits in a synchronous input."""

    async def aclose(self) -> None:
        """Close a generator."""
        if isinstance(self._items, Generator):
            self._run(self._items.close)


class AsyncSource(Generic[T]):
    """The items of an asynchronous iterable. One task runs it from the first step to the end of its cleanup.

    A generator's timeouts, cancel scopes and context variables belong to the task that runs it.
    """

    def __init__(self, items: AsyncIterable[object], make: Made[T]) -> None:
        self._items = items
        self._make = make
        self._made: deque[T] = deque()
        self._wanted = 0
        """How many items the task is to make before it waits."""
        self._asked = asyncio.Event()
        self._given = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_over = False
        self._error: BaseException | None = None
        self.is_waiting = False
        self.on_wait: Callable[[], object] = lambda: None
        """Called when an item has to be waited for."""

    async def take(self, most: int) -> list[T]:
        """Wait for one item, and return it with those available without further waiting.

        The list is empty at the end. An error is raised after the items before it have been returned.

        Raises:
            RuntimeError: the input was cancelled by something other than the run.
            Exception: any other error that the input raises.
        """
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._iterate(), name="boardclient bulk input")
        self._wanted = most
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

    def stop(self) -> None:
        """Make the input's task close it, by a cancellation."""
        if self._task is not None and not (self._is_closing or self._is_over):
            self._task.cancel()
        self._is_closing = self._is_over = True

    async def aclose(self) -> None:
        """Close a generator in the task that ran it. A cancellation of the caller cancels that task.

        Raises:
            Exception: any error that the generator's cleanup raises.
        """
        self.stop()
        if self._task is not None:  # otherwise the input was never started, and has nothing to close
            await wait_to_end(self._task, cancels=True)

    def _add(self, index: int, item: object) -> None:
        if self._is_closing:
            raise asyncio.CancelledError  # again: the generator has swallowed it
        self._made.append(self._make(index, item))
        self._given.set()

    async def _iterate(self) -> None:
        """Iterate over the items, as the body of the input's task. It raises what the cleanup of a generator raises."""
        iterator: AsyncIterator[object] | None = None
        index = count()
        try:
            iterator = aiter(self._items)
            async for item in iterator:
                self._add(next(index), item)
                while len(self._made) >= self._wanted:
                    self._asked.clear()
                    await self._asked.wait()
        except _CONTROL_EXCEPTIONS as error:
            if not self._is_closing:
                self._error = _runtime_error_of(error)
        except BaseException as error:
            self._error = error
        self._is_over = True
        self._given.set()
        if isinstance(iterator, AsyncGenerator):
            try:
                await iterator.aclose()
            except asyncio.CancelledError as error:
                raise _runtime_error_of(error) from error


def _runtime_error_of(error: BaseException) -> RuntimeError:
    is_cancelled = isinstance(error, asyncio.CancelledError)
    why = "was cancelled by something other than its run" if is_cancelled else f"raised {type(error).__name__}"
    raised = RuntimeError(f"the input {why}")
    raised.__cause__ = error
    return raised
