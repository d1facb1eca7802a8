"""How many requests a run sends at a time while nothing is refused."""

import asyncio
import itertools
from typing import Any

import pytest
from bulk_service import Core
from virtual_loop import virtually

from boardclient import Card, CardDraft


class Service(Core):
    """A service that responds after `latency`, and to no more than `rate` requests a second. It counts those in flight."""

    def __init__(self, latency: float, rate: float = 1e9, max_connections: int = 100) -> None:
        self.max_connections = max_connections
        super().__init__()
        self.latency, self.rate = latency, rate
        self.free_at = self.began = asyncio.get_running_loop().time()
        self.running = self.most = self.first = 0
        self.ended: list[float] = []

    async def call(self, request: Any) -> Any:
        now = asyncio.get_running_loop().time()
        self.running += 1
        self.most = max(self.most, self.running)
        if now == self.began:
            self.first = self.most
        self.free_at = max(now, self.free_at) + 1 / self.rate
        await asyncio.sleep(max(self.latency, self.free_at - now))
        self.running -= 1
        self.ended.append(asyncio.get_running_loop().time())
        return Card(f"c{len(self.ended)}")

    async def created_in(self, seconds: float, concurrency: int | None = None) -> int:
        """Return how many cards a run creates in so many seconds."""
        loop, end = asyncio.get_running_loop(), self.began + seconds
        rows = (CardDraft("card", "list") for _ in itertools.takewhile(lambda _: loop.time() < end, itertools.count()))
        await self.open_run(rows, concurrency=concurrency).wait()
        return sum(at <= end for at in self.ended)


@pytest.mark.parametrize("latency", [0.02, 0.05, 0.15])
@virtually
async def test_a_fast_service_gets_what_the_best_fixed_number_gives(latency: float) -> None:
    """In two seconds the default creates at least 85 in 100 of the cards that as many requests as connections create."""
    best = await Service(latency).created_in(2.0, 100)
    service = Service(latency)
    assert await service.created_in(2.0) >= 0.85 * best
    assert (service.first, service.most) == (32, 100)


@virtually
async def test_no_more_are_sent_at_a_time_than_make_it_faster() -> None:
    """At a service where more requests at a time only wait, their number stays."""
    service = Service(0.05, rate=200.0)
    assert await service.created_in(60.0) >= 0.95 * 200 * 60
    assert service.most == 64


@pytest.mark.parametrize("most", [1, 10])
@virtually
async def test_there_are_no_more_than_connections(most: int) -> None:
    """A pool of few connections is all that is used."""
    service = Service(0.05, max_connections=most)
    await service.created_in(2.0)
    assert service.most == most
