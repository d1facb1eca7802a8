"""What a bulk run needs of a session, without sockets: the base of the fakes of these tests, and the simplest of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import Any

from boardclient import (
    BulkProgress,
    BulkRun,
    Card,
    CardDraft,
)
from boardclient._operations import Request
from boardclient._pipeline._calls import CallOptions, ConnectionSlots
from boardclient.bulk._options import make_options


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

    async def one_and_wait(self, name: str = "first") -> AsyncIterator[CardDraft]:
        """Yield one row, and wait for another that never comes."""
        try:
            yield CardDraft(name, "list")
            await asyncio.Event().wait()
        finally:
            self.is_closed = True


class Core:
    """What a bulk run needs of a session; a subclass adds `call`."""

    max_connections = 16
    limiter: object = None
    is_observed = False
    identity: Mapping[str, str] = {}

    def __init__(self, timeout: float | None = 30.0) -> None:
        self.timeout = timeout
        self.slots = ConnectionSlots(self.max_connections)

    def notify(self, event: object) -> None: ...

    def withdraw(self, options: Collection[CallOptions]) -> None: ...

    async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
        raise NotImplementedError

    def open_run(self, source: Any, *listeners: Callable[[BulkProgress], object], **options: Any) -> BulkRun:
        """Return a run as `create_many` does; options have its defaults."""
        given = {"concurrency": None, "journal": None, "board_id": None, "unknown": None, "marker": None, "settle": None}
        return BulkRun(self, source, make_options(self, source, **{**given, **options}), [*listeners])


class Service(Core):
    """A service in memory, for what needs no socket: it creates a card when the test says so, and counts."""

    def __init__(self, *, waits: bool = False) -> None:
        super().__init__()
        self.waits = waits
        self.running = self.most = 0
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.may_end = asyncio.Event()
        self.errors: dict[str, BaseException] = {}
        self.reported: list[BulkProgress] = []

    async def call(self, request: Request[Any], options: CallOptions | None = None) -> Any:
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
