"""Calls in bulk: a function for each of many items, with bounded concurrency and the pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

import attrs

from boardclient._pace import Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._source import open_source
from boardclient.errors import ApiError

T = TypeVar("T")
R = TypeVar("R")


@attrs.frozen(kw_only=True)
class MapResult(Generic[T, R]):
    """The result of one item of `AsyncSession.map`.

    Attributes:
        index: The position of the item in the input, from 0.
        item: The item.
        value: What the function returned, None if it raised.
        error: What the function raised, otherwise None.
    """

    index: int
    item: T
    value: R | None = None
    error: Exception | None = None


async def map_calls(
    caller: Pipeline,
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    concurrency: int | None,
) -> AsyncGenerator[MapResult[T, R], None]:
    """Yield a result for each item, in the order of completion."""
    workers = concurrency or caller.max_connections
    has_pace = concurrency is None and not isinstance(caller.limiter, Pace)
    pace = Pace(max_in_flight=workers, clock=asyncio.get_running_loop().time) if has_pace else None
    source = open_source(items, _numbered)
    results: asyncio.Queue[MapResult[T, R] | None] = asyncio.Queue(workers)
    turn = asyncio.Lock()

    async def work() -> None:
        while True:
            async with turn:
                taken = await source.take(1)
            if not taken:
                return
            ((index, item),) = taken
            await results.put(await _result(function, index, item, pace))

    async def run() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work()) for _ in range(workers)]
            if any(task.cancelled() for task in tasks):  # a task group says nothing of it
                raise RuntimeError("a call was cancelled by something other than its map, which has no result for it")
        finally:
            over.append(True)
            if results.empty():
                results.put_nowait(None)

    over: list[bool] = []
    running = asyncio.create_task(run(), name="boardclient map")
    try:
        while not (over and results.empty()):
            result = await results.get()
            if result is not None:
                yield result
        await _raise_error_of(running)
    finally:
        running.cancel()
        source.stop()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # retrieved, so that asyncio does not log it
        await source.aclose()


def _numbered(index: int, item: object) -> tuple[int, Any]:
    return index, item


async def _result(function: Callable[[T], Awaitable[R]], index: int, item: T, pace: Pace | None) -> MapResult[T, R]:
    """Wait for the pace, and call the function for an item."""
    if pace is None:
        return await _outcome(function, index, item)
    async with pace:
        began = asyncio.get_running_loop().time()
        result = await _outcome(function, index, item)
        error = result.error
        status, asked = (
            (error.status, error.retry_after) if isinstance(error, ApiError) else (200 if error is None else None, None)
        )
        pace.report(status, asked, asyncio.get_running_loop().time() - began)
    return result


async def _outcome(function: Callable[[T], Awaitable[R]], index: int, item: T) -> MapResult[T, R]:
    task = asyncio.current_task()
    try:
        return MapResult(index=index, item=item, value=await function(item))
    except Exception as error:
        return MapResult(index=index, item=item, error=error)
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raised = RuntimeError("the function was cancelled by something other than its run")
        raised.__cause__ = error
        return MapResult(index=index, item=item, error=raised)


async def _raise_error_of(running: asyncio.Task[None]) -> None:
    """Raise the error of the input, if it raised one."""
    await asyncio.wait({running})
    error = running.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
