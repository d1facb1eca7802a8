"""What a bulk run needs of a session, without sockets: the base of the fakes of these tests, and the simplest of them."""

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

from boardclient import ApiError, AsyncSession, BoardClientError, BulkProgress, BulkRun, Card, CardDraft, StaticCredentials
from boardclient._transport._values import RawResponse


def drafts(list_id: str, number: int, note: Callable[[int], object] = lambda index: None) -> Iterator[CardDraft]:
    for index in range(number):
        note(index)
        yield CardDraft(f"card {index}", list_id)


async def adrafts(list_id: str, number: int) -> AsyncIterator[CardDraft]:
    for index in range(number):
        await asyncio.sleep(0)
        yield CardDraft(f"card {index}", list_id)


class Closing:
    """Inputs that note in `is_closed` that they were closed."""

    is_closed = False

    def rows(self) -> Iterator[CardDraft]:
        try:
            yield from drafts("list", 100)
        finally:
            self.is_closed = True

    async def arows(self) -> AsyncIterator[CardDraft]:
        try:
            async for draft in adrafts("list", 100):
                yield draft
        finally:
            await asyncio.sleep(0)
            self.is_closed = True

    async def one_and_wait(self) -> AsyncIterator[CardDraft]:
        """Yield one row, and wait for another that never comes."""
        try:
            yield CardDraft("first", "list")
            await asyncio.Event().wait()
        finally:
            self.is_closed = True


class _Session(AsyncSession):
    """A session that needs no closing: it has no connections."""

    def __del__(self) -> None: ...


class Core:
    """A session on a service in memory; a subclass adds `call`, which returns the value of a request or raises its error."""

    max_connections = 16

    def __init__(self, timeout: float | None = 30.0, **options: Any) -> None:
        credentials = StaticCredentials(token="token", key="key")
        self.session = _Session(
            credentials,
            base_url="https://board.example",
            timeout=timeout,
            max_connections=self.max_connections,
            **{"retry": None, **options},
        )
        self.pipeline: Any = self.session._pipeline
        self.pipeline._send = self._send

    async def call(self, request: Any) -> Any:
        raise NotImplementedError

    async def _send(self, request: Any, context: Any, credentials: Any) -> Any:
        """Do what the pipeline does with a response, without one."""
        context.credentials, context.started, context.stage = credentials, time.perf_counter(), "send"
        response: Any = RawResponse(200, {}, b"")
        try:
            outcome = await self.call(request)
        except BoardClientError as error:
            outcome = copy.copy(error)
            response = RawResponse(error.status, {}, b"") if isinstance(error, ApiError) else SimpleNamespace(effect=error.effect)
        except Exception:
            context.stage = "idle"  # as where a limiter raises it
            raise
        context.stage = "idle"
        is_failed = isinstance(outcome, BoardClientError)
        return self.pipeline._record(context, response, outcome) if is_failed or context.notes_success else outcome

    def open_run(self, source: Any, *listeners: Callable[[BulkProgress], object], **options: Any) -> BulkRun:
        """Return a run that tells listeners of its progress."""

        def tell(progress: BulkProgress) -> None:
            for listener in listeners:
                listener(progress)

        return self.session.cards.create_many(source, on_progress=tell if listeners else None, **options)


class Service(Core):
    """A service in memory, for what needs no socket: it creates a card when the test says so, and counts."""

    def __init__(self, *, waits: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.waits = waits
        self.running = self.most = 0
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.may_end = asyncio.Event()
        self.errors: dict[str, BaseException] = {}
        self.reported: list[BulkProgress] = []

    async def call(self, request: Any) -> Any:
        name = json.loads(request.body or b"")["name"]
        self.begun.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.waits:
                await self.may_end.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.running -= 1
        if name in self.errors:
            raise self.errors[name]
        return Card(name)

    def run(self, source: Any, concurrency: int | None = None, on_progress: Any = None) -> BulkRun:
        listeners = [self.reported.append] if on_progress is None else [on_progress, self.reported.append]
        return self.open_run(source, *listeners, concurrency=concurrency)


async def let_run() -> None:
    """Let every task go as far as it can."""
    for _ in range(200):
        await asyncio.sleep(0)
