"""The run: workers pull drafts, create cards and hand out results, no faster than they are taken."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Sequence,
    Sized,
)
from types import TracebackType
from typing import Final, Literal, Self, cast

from boardclient.bulk._results import BulkReport, CardResult, State
from boardclient.errors import Attempt, AuthenticationError, BoardClientError, CredentialError, Effect, SessionClosedError
from boardclient.events import BulkProgress
from boardclient.models import Card, CardDraft

DEFAULT_CONCURRENCY: Final = 16
_FATAL: Final = (AuthenticationError, CredentialError, SessionClosedError)

Create = Callable[[CardDraft, list[Attempt]], Awaitable[Card]]
Listener = Callable[[BulkProgress], object]


class BulkRun:
    """A bulk creation under way: an asynchronous context manager and a stream of `CardResult` in the order of completion.

    Leaving the block cancels what is in flight and closes the input, where that is a generator. A credential that is refused, a
    closed session and a faulty input end the run: no further card is begun, those in flight come to their end, and the error is
    raised from the iteration after the last result. Owned by whoever called `create_many`.
    """

    def __init__(
        self,
        create: Create,
        drafts: Iterable[CardDraft] | AsyncIterable[CardDraft],
        concurrency: int | None,
        unknown: str | None,
        listeners: Sequence[Listener],
    ) -> None:
        if concurrency is not None and (not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1):
            raise ValueError("concurrency must be a whole number from 1 on, or None")
        if unknown not in (None, "report"):
            raise ValueError('unknown must be "report" or None')
        if not isinstance(drafts, Iterable | AsyncIterable):
            raise TypeError("drafts must be an iterable or asynchronous iterable of CardDraft")
        if not all(map(callable, listeners)):
            raise TypeError("on_progress must be callable")
        self._create = create
        self._drafts = drafts
        self._workers = concurrency or DEFAULT_CONCURRENCY
        self._total = len(drafts) if isinstance(drafts, Sized) else None
        self._listeners = tuple(listeners)
        self._states: Counter[State] = Counter()
        self._requests = self._rejected = 0
        self._started = self._ended = time.monotonic()
        self._working: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._fatal: Exception | None = None
        self._life: Literal["new", "open", "left"] = "new"

    async def __aenter__(self) -> Self:
        if self._life != "new":
            raise RuntimeError("a BulkRun runs once")
        self._life = "open"
        self._started = self._ended = time.monotonic()
        self._results: asyncio.Queue[CardResult | None] = asyncio.Queue()
        # A draft takes its place before it is pulled and gives it back when its result is taken: as many results as there are
        # workers may wait, and a consumer that is slow slows the workers down. Handing a result out never waits.
        self._places = asyncio.Semaphore(2 * self._workers)
        self._source = _numbered(self._drafts)
        self._pulling = asyncio.Lock()
        for _ in range(self._workers):
            task = asyncio.create_task(self._work())
            self._working.add(task)
            task.add_done_callback(self._part)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._life = "left"
        for task in self._working:
            task.cancel()
        try:
            await asyncio.gather(*self._working, return_exceptions=True)
        finally:
            await self._source.aclose()

    def __aiter__(self) -> AsyncIterator[CardResult]:
        return self

    async def __anext__(self) -> CardResult:
        self._check_open()
        result = await self._results.get()
        if result is not None:
            self._places.release()
            return result
        self._results.put_nowait(None)  # whoever else asks, now or later, meets the end as well
        self._check_open()
        if self._fatal is not None:
            raise self._fatal
        raise StopAsyncIteration

    def take_ready(self) -> list[CardResult]:
        """Take the results that wait to be taken, and wait for none: what is known when a run is about to be left early."""
        ready = []
        while not self._results.empty():
            result = self._results.get_nowait()
            if result is None:
                self._results.put_nowait(None)
                break
            self._places.release()
            ready.append(result)
        return ready

    def _check_open(self) -> None:
        if self._life != "open":
            raise RuntimeError("a BulkRun is used within its `async with` block")

    async def wait(self) -> BulkReport:
        """Run to the end without looking at the results, and return the report.

        Raises:
            BoardClientError: the run ended early, as the iteration would say.
        """
        async for _ in self:
            pass
        return self.report

    @property
    def report(self) -> BulkReport:
        """The sum of the results so far."""
        seconds = self._ended - self._started
        return BulkReport(
            created=self._states["created"],
            already=self._states["already"],
            failed=self._states["failed"],
            unknown=self._states["unknown"],
            seconds=seconds,
            rate=self._states["created"] / seconds if seconds else 0.0,
            requests=self._requests,
            rejected=self._rejected,
        )

    @property
    def progress(self) -> BulkProgress:
        """How far the run is."""
        report = self.report
        return BulkProgress(
            done=self._states.total(),
            created=report.created,
            failed=report.failed,
            unknown=report.unknown,
            rate=report.rate,
            seconds=report.seconds,
            total=self._total,
        )

    async def _work(self) -> None:
        """Create card after card until the input or the run is at its end."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            while (numbered := await self._pull()) is not None:
                self._sending.add(task)
                try:
                    result = await self._result(*numbered)
                finally:
                    self._sending.discard(task)
                self._results.put_nowait(result)
                self._note(result)
        except asyncio.CancelledError:
            if not self._is_ending:
                self._fail(RuntimeError("a card was cancelled by something other than its run"))
            raise
        except Exception as error:  # a faulty input, limiter or listener ends the run and is raised to its owner
            self._fail(error)

    async def _pull(self) -> tuple[int, CardDraft] | None:
        """Return the next draft, None at the end of the input or of the run."""
        if self._is_ending:
            return None
        await self._places.acquire()
        async with self._pulling:
            numbered = await anext(self._source, None)
        # An input may swallow the cancellation that ends its waiting.
        return None if self._is_ending else numbered

    @property
    def _is_ending(self) -> bool:
        return self._fatal is not None or self._life == "left"

    def _fail(self, error: Exception) -> None:
        """End the run: whoever waits for a draft stops waiting, what is in flight comes to its end."""
        if self._fatal is None:
            self._fatal = error
            for task in self._working - self._sending - {asyncio.current_task()}:
                task.cancel()

    def _part(self, task: asyncio.Task[None]) -> None:
        """Take note of a worker that is done, however it ended; the last one marks the end of the results."""
        self._working.discard(task)
        if not self._working:
            self._results.put_nowait(None)

    async def _result(self, index: int, draft: CardDraft) -> CardResult:
        """Create one card and say what became of it."""
        history: list[Attempt] = []
        try:
            card = await self._create(draft, history)
        except BoardClientError as error:
            failure = error
        else:
            self._count(history or (None,))
            return CardResult(index=index, draft=draft, card=card)
        self._count(failure.attempts)
        if isinstance(failure, _FATAL):
            self._fail(failure)
        return CardResult.of_error(index, draft, failure)

    def _count(self, attempts: Iterable[Attempt | None]) -> None:
        """Count the attempts that left; None stands for one that succeeded at once, which has no history."""
        for attempt in attempts:
            self._requests += attempt is None or attempt.effect is not Effect.NOT_SENT
            self._rejected += attempt is not None and attempt.status == 429

    def _note(self, result: CardResult) -> None:
        """Count a result and tell whoever listens."""
        self._states[result.state] += 1
        self._ended = time.monotonic()
        if self._listeners:
            progress = self.progress
            for listener in self._listeners:
                listener(progress)


async def _numbered(drafts: Iterable[CardDraft] | AsyncIterable[CardDraft]) -> AsyncGenerator[tuple[int, CardDraft], None]:
    """Yield the drafts with their positions, one at a time; a generator is closed with this one."""
    index = 0
    try:
        if isinstance(drafts, AsyncIterable):
            async for draft in drafts:
                yield index, _checked(index, draft)
                index += 1
        else:
            for draft in drafts:
                yield index, _checked(index, draft)
                index += 1
    finally:
        if isinstance(drafts, AsyncGenerator):
            await drafts.aclose()
        elif isinstance(drafts, Generator):
            drafts.close()


def _checked(index: int, draft: object) -> CardDraft:
    if not isinstance(draft, CardDraft):
        raise TypeError(f"draft {index} must be a CardDraft, not {type(draft).__name__}")
    return draft
