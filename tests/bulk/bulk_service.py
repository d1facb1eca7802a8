"""A service in memory that creates cards when the test says so, and inputs for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from boardclient import (
    BulkProgress,
    BulkRun,
    Card,
    CardDraft,
)
from boardclient._messages import Request
from boardclient._pipeline._options import CallOptions
from boardclient._pipeline._slots import ConnectionSlots
from boardclient.bulk._options import make_options


def drafts(list_id: str, number: int, note: Callable[[int], object] = lambda index: None) -> Iterator[CardDraft]:
    for index in range(number):
        note(index)
        yield CardDraft(f"card {index}", list_id)


async def adrafts(list_id: str, number: int) -> AsyncIterator[CardDraft]:
    for index in range(number):
        await asyncio.sleep(0)
        yield CardDraft(f"card {index}", list_id)


class Service:
    """A service in memory, for what needs no socket: it creates a card when the test says so, and counts."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.under_way = self.most = 0
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.may_end = asyncio.Event()
        self.errors: dict[str, BaseException] = {}
        self.told: list[BulkProgress] = []

    timeout = 30.0
    max_connections = 16
    slots = ConnectionSlots(16)
    limiter = None
    is_observed = False
    identity: Mapping[str, str] = {}

    def notify(self, event: object) -> None: ...

    async def call(self, request: Request[Any], bulk: CallOptions | None = None) -> Any:
        name = json.loads(request.body or b"")["name"]
        self.begun.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.waits:
                await self.may_end.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.under_way -= 1
        if name in self.errors:
            raise self.errors[name]
        return Card(name)

    def run(self, source: Any, concurrency: int | None = None, on_progress: Any = None) -> BulkRun:
        listeners = [self.told.append] if on_progress is None else [on_progress, self.told.append]
        plan = make_options(
            self, source, concurrency=concurrency, journal=None, board_id=None, unknown=None, marker=None, settle=None
        )
        return BulkRun(self, source, plan, listeners)


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(200):
        await asyncio.sleep(0)
