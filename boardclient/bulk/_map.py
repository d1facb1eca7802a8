"""Calls in bulk: a function for each of many items, with bounded concurrency and the pace."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from boardclient._guards import wait_to_end
from boardclient._interface._responses import status_of
from boardclient._pace import Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._source import open_source
from boardclient.bulk._waiting import Workers
from boardclient.errors import ApiError

T = TypeVar("T")
R = TypeVar("R")


@attrs.frozen(kw_only=True)
class MapSuccess(Generic[T, R]):
    """The result of an item of `AsyncSession.map` whose function returned.

    Attributes:
        index: The position of the item in the input, from 0.
        item: The item.
        value: What the function returned.
        error: None.
    """

    index: int
    item: T
    value: R
    error: None = None


@attrs.frozen(kw_only=True)
class MapFailure(Generic[T]):
    """The result of an item of `AsyncSession.map` whose function raised.

    Attributes:
        index: The position of the item in the input, from 0.
        item: The item.
        value: None.
        error: What the function raised.
    """

    index: int
    item: T
    value: None = None
    error: Exception


MapResult: TypeAlias = MapSuccess[T, R] | MapFailure[T]
"""The result of one item of `AsyncSession.map`. Where its `error` is None, `value` is what the function returned."""


def check_mapped(function: object, items: object) -> None:
    """Check the arguments of a map, as far as they tell without a call.

    Raises:
        TypeError: the function can't return what is awaited, or the items can't be iterated.
    """
    if not callable(function):
        hint = ": pass the function itself, which is called for each item" if inspect.isawaitable(function) else ""
        raise TypeError(f"function must be a function of an item, not {type(function).__name__}{hint}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError("function must return what is awaited: a generator function does not")
    if not isinstance(items, Iterable | AsyncIterable) and not hasattr(type(items), "__getitem__"):
        raise TypeError(f"items must be an iterable or asynchronous iterable, not {type(items).__name__}")


class MapResults(AsyncGenerator[MapResult[T, R], None]):
    """The results of one map. It warns if none of them is ever asked for, since no call is made then."""

    def __init__(self, results: AsyncGenerator[MapResult[T, R], None]) -> None:
        self._results = results
        self._is_used = False

    def asend(self, value: None) -> Coroutine[Any, Any, MapResult[T, R]]:
        self._is_used = True
        return self._results.asend(value)

    def athrow(self, *arguments: Any) -> Coroutine[Any, Any, MapResult[T, R]]:
        self._is_used = True
        return self._results.athrow(*arguments)

    def aclose(self) -> Coroutine[Any, Any, None]:
        self._is_used = True
        return self._results.aclose()

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(
                "the results of a map were never asked for, so no call was made: use `async for`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


async def map_calls(
    pipeline: Pipeline, function: Callable[[T], Awaitable[R]], items: Iterable[T] | AsyncIterable[T], concurrency: int | None
) -> AsyncGenerator[MapResult[T, R], None]:
    """Yield a result for each item, in the order of completion."""
    calls = _Calls(pipeline, function, items, concurrency)
    calls.start()
    try:
        while calls.tasks or not calls.results.empty():
            result = await calls.results.get()
            if result is not None:
                yield result
        if calls.errors:
            raise calls.errors.pop(0)
    finally:
        await calls.aclose()


class _Calls(Generic[T, R]):
    """The calls of one map. A worker is started once there is an item for it."""

    def __init__(
        self,
        pipeline: Pipeline,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        concurrency: int | None,
    ) -> None:
        most = concurrency or pipeline.max_connections
        self.results: asyncio.Queue[MapResult[T, R] | None] = asyncio.Queue(most)
        """The results that were not taken yet. None wakes the one who waits for them, at the end."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []
        self._function = function
        self._source = open_source(items, _numbered)
        self._turn = asyncio.Lock()
        self._workers = Workers(pipeline.limiter, most, grows=concurrency is None)
        self._finds_pace = concurrency is None
        self._ended = 0

    def start(self) -> None:
        task = asyncio.create_task(self._work(), name="boardclient map")
        self.tasks.add(task)
        task.add_done_callback(self._end)

    async def _work(self) -> None:
        while True:
            async with self._turn:
                taken = await self._source.take(1)
            if not taken:
                return
            if len(self.tasks) < self._workers.workers_needed(self._ended):
                self.start()
            ((index, item),) = taken
            pace, call = self._workers.pace, (self._function, index, item)
            result = await (_call(*call) if pace is None else _call_at_pace(*call, pace))
            self._ended += 1
            error = result.error
            if self._finds_pace and isinstance(error, ApiError) and status_of(error.status).is_overload:
                self._workers.record_refusal(self._ended, error)
            await self.results.put(result)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if task.cancelled():
            self.errors.append(RuntimeError("a call was cancelled by something other than its map, which has no result for it"))
        elif (error := task.exception()) is not None:  # that of the input, which each worker meets
            self.errors.append(error)
        if self.results.empty():
            self.results.put_nowait(None)

    async def aclose(self) -> None:
        for task in self.tasks:
            task.cancel()
        self._source.stop()
        try:
            await wait_to_end(asyncio.gather(*self.tasks, return_exceptions=True), cancels=True)
        finally:
            await self._source.aclose()


def _numbered(index: int, item: object) -> tuple[int, Any]:
    return index, item


async def _call_at_pace(function: Callable[[T], Awaitable[R]], index: int, item: T, pace: Pace) -> MapResult[T, R]:
    async with pace:
        began = asyncio.get_running_loop().time()
        result = await _call(function, index, item)
        error = result.error
        status, asked = (
            (error.status, error.retry_after) if isinstance(error, ApiError) else (200 if error is None else None, None)
        )
        pace.report(status, asked, asyncio.get_running_loop().time() - began)
    return result


async def _call(function: Callable[[T], Awaitable[R]], index: int, item: T) -> MapResult[T, R]:
    task, value = asyncio.current_task(), None
    try:
        value = function(item)
        if inspect.isawaitable(value):
            return MapSuccess(index=index, item=item, value=await value)
    except Exception as error:
        return MapFailure(index=index, item=item, error=error)
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raised = RuntimeError("the function was cancelled by something other than its run")
        raised.__cause__ = error
        return MapFailure(index=index, item=item, error=raised)
    raise TypeError(f"function must return what is awaited, not {type(value).__name__}")
