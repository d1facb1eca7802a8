"""Calls in bulk: a function for each of many items, with bounded concurrency and the pace."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from boardclient._base._guards import GuardedLimiter, wait_to_end
from boardclient._interface._responses import is_throttling, status_of
from boardclient._pipeline._calls import PACED, CallContext
from boardclient._pipeline._pace import Pace
from boardclient._pipeline._pipeline import Pipeline
from boardclient.bulk._concurrency import PATIENCE_SECONDS, Concurrency
from boardclient.bulk._engine._source import open_source
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

    # A generator that was never begun runs no line of its own, so only an object around it can notice.
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
            # The queue may be empty while tasks run, and tasks may be gone while results wait: neither alone is the end.
            result = await calls.results.get()
            if result is not None:
                yield result
        if calls.errors:
            # After the results that were had before: an input that raises costs none of them.
            raise calls.errors.pop(0)
    finally:
        await calls.aclose()


class _Calls(Generic[T, R]):
    """The calls of one map. A worker is started once there is an item for it.

    What a function is refused with 429 was not done. A call of the session is repeated at the pace, within the function. A
    function that makes no call is repeated itself.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        concurrency: int | None,
    ) -> None:
        most = concurrency or pipeline.max_connections
        # Bounded, so that a consumer who is slow slows the calls down, and does not fill the memory.
        self.results: asyncio.Queue[MapResult[T, R] | None] = asyncio.Queue(most)
        """The results that were not taken yet. None wakes the one who waits for them, at the end."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []
        self.parts = pipeline.parts
        self.workers = Concurrency(pipeline.limiter, most, grows=concurrency is None)
        self.running: set[object] = set()
        """The calls in flight, and the functions that have made none."""
        self.ended = 0
        """How many of them have ended."""
        self.paces_functions = False
        """Whether a function was refused that had made no call, so that each waits for the pace itself."""
        self._function = function
        self._source = open_source(items, _numbered)
        # A generator that is running can't be asked for another item, so one task at a time asks.
        self._turn = asyncio.Lock()
        self._done = 0

    def start(self) -> None:
        task = asyncio.create_task(self._work(), name="boardclient map")
        self.tasks.add(task)
        task.add_done_callback(self._end)

    async def _work(self) -> None:
        worker = _Worker(self)
        # By context: a call finds its worker however deep in the function it is made, and in tasks that the function starts.
        PACED.set(worker)
        while True:
            async with self._turn:
                taken = await self._source.take(1)
            if not taken:
                return
            if len(self.tasks) < self.workers.workers_needed(self._done):
                self.start()
            ((index, item),) = taken
            result = await worker.call(self._function, index, item)
            self._done += 1
            await self.results.put(result)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if task.cancelled():
            self.errors.append(RuntimeError("a call was cancelled by something other than its map, which has no result for it"))
        elif (error := task.exception()) is not None:  # that of the input, which each worker meets
            self.errors.append(error)
        # The map may wait for a result that no task is left to bring.
        if self.results.empty():
            self.results.put_nowait(None)

    def record_refusal(self, refusal: ApiError, seconds: float) -> float | None:
        """Record a refusal, `seconds` after the first one of the same call. Return the pause before it may be repeated."""
        # At least the refused one has ended: the pace divides by this number.
        self.workers.record_refusal(max(1, self.ended), refusal, self.running)
        pause = refusal.retry_after or 0.0
        return pause if is_throttling(refusal) and pause + seconds < PATIENCE_SECONDS else None

    async def aclose(self) -> None:
        for task in self.tasks:
            task.cancel()
        self._source.stop()
        try:
            await wait_to_end(asyncio.gather(*self.tasks, return_exceptions=True), cancels=True)
        finally:
            await self._source.aclose()


class _Worker:
    """Makes the calls of one worker of a map, and gives them the pace."""

    def __init__(self, calls: _Calls[Any, Any]) -> None:
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._has_called = False
        """Whether the function that runs has made a call, of any session."""

    # --- a function

    async def call(self, function: Callable[[T], Awaitable[R]], index: int, item: T) -> MapResult[T, R]:
        """Return the result of an item, whose function is repeated if it was refused without having made a call."""
        calls, refused_at = self._calls, None
        while True:
            self._has_called = False
            calls.running.add(self)
            try:
                pace = calls.workers.pace if calls.paces_functions else None
                result = await (_call(function, index, item) if pace is None else self._at_pace(pace, function, index, item))
            finally:
                calls.running.discard(self)
            error = result.error
            calls.workers.end_earlier(self, error, None if self._has_called else 200)
            # Its calls repeat themselves, each alone. Repeating the function would repeat those of them that succeeded.
            if self._has_called:
                return result
            calls.ended += 1
            if not (isinstance(error, ApiError) and status_of(error.status).is_overload):
                return result
            calls.paces_functions = True
            refused_at = self._loop.time() if refused_at is None else refused_at
            pause = calls.record_refusal(error, self._loop.time() - refused_at)
            if pause is None:
                return result
            await asyncio.sleep(pause)

    async def _at_pace(self, pace: Pace, function: Callable[[T], Awaitable[R]], index: int, item: T) -> MapResult[T, R]:
        async with pace:
            began = self._loop.time()
            result = await _call(function, index, item)
            if not self._has_called:  # its calls have reported theirs
                error = result.error
                status, asked = (
                    (error.status, error.retry_after) if isinstance(error, ApiError) else (200 if error is None else None, None)
                )
                pace.report(status, asked, self._loop.time() - began)
        return result

    # --- the calls of a function

    def begin(self, call: CallContext, parts: object) -> bool:
        if not self._has_called:
            self._has_called = True
            self._calls.running.discard(self)
            self._calls.workers.end_earlier(self, None)
        # Another session has a service of its own, and a bulk run its own pace.
        if parts is not self._calls.parts or call.options.is_of_run:
            return False
        self._calls.running.add(call)
        return True

    def end(self, call: object, error: BaseException | None) -> None:
        self._calls.running.discard(call)
        self._calls.ended += 1
        self._calls.workers.end_earlier(call, error, 200 if error is None else None)

    def limiter(self, call: object, inner: GuardedLimiter | None) -> GuardedLimiter | None:
        workers = self._calls.workers
        if workers.pace is None or self._calls.paces_functions or call in workers.earlier:
            return inner
        return GuardedLimiter(_Both(workers.pace, inner))

    def record_refusal(self, call: object, refusal: ApiError, seconds: float) -> float | None:
        self._calls.running.discard(call)
        self._calls.workers.end_earlier(call, refusal)
        return self._calls.record_refusal(refusal, seconds)


class _Both(AbstractAsyncContextManager[None, None]):
    """Enters a pace, and then the session's limiter, if any."""

    def __init__(self, pace: Pace, inner: GuardedLimiter | None) -> None:
        self._pace, self._inner = pace, inner

    def report(self, status: int | None, retry_after: float | None, seconds: float) -> None:
        self._pace.report(status, retry_after, seconds)
        if self._inner is not None:
            self._inner.report(status, retry_after, seconds)

    async def __aenter__(self) -> None:
        async with AsyncExitStack() as entered:
            # The pace comes first: who waits for it takes no place in the session's limiter, where other calls queue.
            await entered.enter_async_context(self._pace)
            if self._inner is not None:
                await entered.enter_async_context(self._inner)
            self._entered = entered.pop_all()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._entered.__aexit__(exc_type, exc, traceback)


def _numbered(index: int, item: object) -> tuple[int, Any]:
    return index, item


async def _call(function: Callable[[T], Awaitable[R]], index: int, item: T) -> MapResult[T, R]:
    task, value = asyncio.current_task(), None
    try:
        value = function(item)
        if inspect.isawaitable(value):
            return MapSuccess(index=index, item=item, value=await value)
    except Exception as error:
        return MapFailure(index=index, item=item, error=error)
    except asyncio.CancelledError as error:
        # Cancelled from outside, by the map or its caller. Otherwise the function has cancelled itself, which is its result.
        if task is None or task.cancelling():
            raise
        raised = RuntimeError("the function was cancelled by something other than its run")
        raised.__cause__ = error
        return MapFailure(index=index, item=item, error=raised)
    raise TypeError(f"function must return what is awaited, not {type(value).__name__}")
