"""Calls in bulk: a function for each of many items, with bounded concurrency and the pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from boardclient._guards import wait_to_end
from boardclient._pace import Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient._responses import is_throttling
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


async def map_calls(
    pipeline: Pipeline,
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    concurrency: int | None,
) -> AsyncGenerator[MapResult[T, R], None]:
    """Yield a result for each item, in the order of completion. A worker is started once there is an item for it."""
    most = concurrency or pipeline.max_connections
    needed = Workers(pipeline.limiter, most, grows=concurrency is None)
    ended = 0
    source = open_source(items, _numbered)
    results: asyncio.Queue[MapResult[T, R] | None] = asyncio.Queue(most)
    turn = asyncio.Lock()
    workers: set[asyncio.Task[None]] = set()
    errors: list[BaseException] = []

    async def work() -> None:
        nonlocal ended
        while True:
            async with turn:
                taken = await source.take(1)
            if not taken:
                return
            if len(workers) < needed.workers_needed(ended):
                start()
            ((index, item),) = taken
            result = await _call_at_pace(function, index, item, needed.pace)
            ended += 1
            if concurrency is None and is_throttling(result.error):
                needed.note_refusal(ended, result.error)
            await results.put(result)

    def start() -> None:
        worker = asyncio.create_task(work(), name="boardclient map")
        workers.add(worker)
        worker.add_done_callback(end)

    def end(worker: asyncio.Task[None]) -> None:
        workers.discard(worker)
        if worker.cancelled():
            errors.append(RuntimeError("a call was cancelled by something other than its map, which has no result for it"))
        elif (error := worker.exception()) is not None:  # that of the input, which each worker meets
            errors.append(error)
        if results.empty():
            results.put_nowait(None)

    start()
    try:
        while workers or not results.empty():
            result = await results.get()
            if result is not None:
                yield result
        if errors:
            raise errors.pop(0)
    finally:
        for worker in workers:
            worker.cancel()
        source.stop()
        try:
            await wait_to_end(asyncio.gather(*workers, return_exceptions=True), cancels=True)
        finally:
            await source.aclose()


def _numbered(index: int, item: object) -> tuple[int, Any]:
    return index, item


async def _call_at_pace(function: Callable[[T], Awaitable[R]], index: int, item: T, pace: Pace | None) -> MapResult[T, R]:
    """Wait for the pace, and call the function for an item."""
    if pace is None:
        return await _call(function, index, item)
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
    task = asyncio.current_task()
    try:
        return MapSuccess(index=index, item=item, value=await function(item))
    except Exception as error:
        return MapFailure(index=index, item=item, error=error)
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raised = RuntimeError("the function was cancelled by something other than its run")
        raised.__cause__ = error
        return MapFailure(index=index, item=item, error=raised)
