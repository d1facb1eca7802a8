"""The run: workers pull drafts, create cards and hand out results, no faster than they are taken."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sized
from types import TracebackType
from typing import Final, Self

from boardclient.bulk._results import BulkReport, CardResult, State
from boardclient.errors import AuthenticationError, BoardClientError, CredentialError, SessionClosedError
from boardclient.events import BulkProgress
from boardclient.models import Card, CardDraft

DEFAULT_CONCURRENCY: Final = 16
_FATAL: Final = (AuthenticationError, CredentialError, SessionClosedError)

Create = Callable[[CardDraft], Awaitable[Card]]


class BulkRun:
    """A bulk creation under way: an asynchronous context manager and a stream of `CardResult` in the order of completion.

    Leaving the block cancels what is in flight. A credential that is refused, a closed session and a faulty input end the run:
    the error is raised from the iteration, after the results that were ready. Owned by whoever called `create_many`.
    """

    def __init__(
        self,
        create: Create,
        drafts: Iterable[CardDraft] | AsyncIterable[CardDraft],
        concurrency: int | None,
        unknown: str | None,
        on_progress: Callable[[BulkProgress], object] | None,
        notify: Callable[[BulkProgress], object],
    ) -> None:
        if concurrency is not None and (not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1):
            raise ValueError("concurrency must be a whole number from 1 on, or None")
        if unknown not in {None, "report"}:
            raise ValueError('unknown must be "report" or None')
        if not isinstance(drafts, Iterable | AsyncIterable):
            raise TypeError("drafts must be an iterable or asynchronous iterable of CardDraft")
        self._create = create
        self._drafts = drafts
        self._workers = concurrency or DEFAULT_CONCURRENCY
        self._total = len(drafts) if isinstance(drafts, Sized) else None
        self._listeners = [notify] if on_progress is None else [on_progress, notify]
        self._states: Counter[State] = Counter()
        self._requests = self._rejected = 0
        self._started = self._ended = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._fatal: BaseException | None = None

    async def __aenter__(self) -> Self:
        if self._tasks:
            raise RuntimeError("a BulkRun runs once")
        self._started = self._ended = time.monotonic()
        # As many results as there are workers may wait: a consumer that is slow slows the workers down.
        self._results: asyncio.Queue[CardResult | None] = asyncio.Queue(self._workers)
        self._source = _numbered(self._drafts)
        self._pulling = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        self._working = self._workers
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._source.aclose()

    def __aiter__(self) -> AsyncIterator[CardResult]:
        return self._stream()

    async def _stream(self) -> AsyncIterator[CardResult]:
        if not self._tasks:
            raise RuntimeError("a BulkRun is used within its `async with` block")
        while self._working or not self._results.empty():
            result = await self._results.get()
            if result is not None:
                yield result
        if self._fatal is not None:
            raise self._fatal

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
        try:
            while self._fatal is None:
                async with self._pulling:
                    numbered = None if self._fatal is not None else await anext(self._source, None)
                if numbered is None:
                    break
                result = await self._result(*numbered)
                self._note(result)
                await self._results.put(result)
        except Exception as error:  # a faulty input, limiter or listener ends the run and is raised to its owner
            self._fatal = self._fatal or error
        finally:
            self._working -= 1
        if not self._working:
            await self._results.put(None)

    async def _result(self, index: int, draft: CardDraft) -> CardResult:
        """Create one card and say what became of it."""
        try:
            card = await self._create(draft)
        except BoardClientError as error:
            failure = error
        else:
            self._requests += 1
            return CardResult(index=index, draft=draft, card=card)
        self._requests += len(failure.attempts)
        self._rejected += sum(attempt.status == 429 for attempt in failure.attempts)
        if isinstance(failure, _FATAL):
            self._fatal = self._fatal or failure
        return CardResult.of_error(index, draft, failure)

    def _note(self, result: CardResult) -> None:
        """Count a result and tell whoever listens."""
        self._states[result.state] += 1
        self._ended = time.monotonic()
        progress = self.progress
        for listener in self._listeners:
            listener(progress)


async def _numbered(drafts: Iterable[CardDraft] | AsyncIterable[CardDraft]) -> AsyncGenerator[tuple[int, CardDraft], None]:
    """Yield the drafts with their positions, one at a time."""
    index = 0
    if isinstance(drafts, AsyncIterable):
        async for draft in drafts:
            yield index, _checked(index, draft)
            index += 1
    else:
        for draft in drafts:
            yield index, _checked(index, draft)
            index += 1


def _checked(index: int, draft: object) -> CardDraft:
    if not isinstance(draft, CardDraft):
        raise TypeError(f"draft {index} must be a CardDraft, not {type(draft).__name__}")
    return draft
