"""Services with a hidden limit, and tasks with enough to do on a loop whose clock is its own.

Used by the tests and by `benchmarks/pace.py`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
from virtual_loop import VirtualLoop

from boardclient import Pace
from boardclient._pipeline._pace._permits import Permits


def pace_of(rate: float, max_in_flight: int = 1000, clock: Callable[[], float] | None = None) -> Pace:
    """Return a pace that begins with a rate, in starts a second. A clock of its own needs a running loop."""
    pace = Pace(max_in_flight=max_in_flight)
    pace._permits = Permits.begin(rate, max_in_flight)
    if clock is not None:
        pace._move(asyncio.get_running_loop())
        pace._clock = clock
    return pace


class Service(Protocol):
    """What decides whether a request is accepted."""

    def change(self, now: float, limit: float) -> None:
        """Have another limit from now on."""
        ...

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        ...


class Open:
    """Accepts everything."""

    def change(self, now: float, limit: float) -> None:
        """Have no limit either way."""

    def refuse(self, now: float) -> float | None:
        """Return None."""
        return None


class Bucket:
    """Accepts as long as tokens are there; they come at the limit and gather up to `burst` seconds' worth."""

    def __init__(self, limit: float, burst: float = 1.0) -> None:
        self.limit, self._burst = limit, burst
        self._tokens, self._at = limit * burst, 0.0

    def change(self, now: float, limit: float) -> None:
        """Have another limit from now on."""
        self._fill(now)
        self.limit = limit
        self._tokens = min(self._tokens, limit * self._burst)

    def _fill(self, now: float) -> None:
        self._tokens = min(max(1.0, self.limit * self._burst), self._tokens + (now - self._at) * self.limit)
        self._at = now

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        self._fill(now)
        if self._tokens >= 1:
            self._tokens -= 1
            return None
        return (1 - self._tokens) / self.limit


class Window:
    """Accepts so many in each window of `seconds`, the first of which began `phase` before the clock did."""

    def __init__(self, limit: float, seconds: float = 1.0, phase: float = 0.37) -> None:
        self.limit, self._seconds, self._phase = limit, seconds, phase
        self._window, self._used = -1, 0

    def change(self, now: float, limit: float) -> None:
        """Have another limit from now on."""
        self.limit = limit

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        position = (now + self._phase) / self._seconds
        if int(position) != self._window:
            self._window, self._used = int(position), 0
        if self._used < round(self.limit * self._seconds):
            self._used += 1
            return None
        return (1 - position % 1) * self._seconds


@attrs.define
class Outcome:
    """What the service saw: the moment of each request and whether it was accepted; and what the client did and felt."""

    arrivals: list[tuple[float, bool]] = attrs.Factory(list)
    rates: list[tuple[float, float]] = attrs.Factory(list)
    latencies: list[tuple[float, float]] = attrs.Factory(list)
    answers: list[tuple[float, int | None]] = attrs.Factory(list)

    def accepted(self, begin: float, end: float) -> float:
        """Return the accepted requests a second."""
        return sum(ok for at, ok in self.arrivals if begin <= at < end) / (end - begin)

    def succeeded(self, begin: float, end: float) -> float:
        """Return the responses a second that are a success."""
        return sum(status == 200 for at, status in self.answers if begin <= at < end) / (end - begin)

    def refused(self, begin: float, end: float) -> float:
        """Return the part of the requests that was refused."""
        sent = [ok for at, ok in self.arrivals if begin <= at < end]
        return sent.count(False) / max(1, len(sent))

    def silence(self, begin: float, end: float) -> float:
        """Return the longest time in seconds in which nothing was accepted."""
        moments = [begin, *(at for at, ok in self.arrivals if ok and begin <= at < end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))


class SlidingWindow:
    """Accepts so many in any time of `seconds`."""

    def __init__(self, limit: float, seconds: float = 1.0) -> None:
        self.limit, self._seconds = limit, seconds
        self._accepted: deque[float] = deque()

    def change(self, now: float, limit: float) -> None:
        """Have another limit from now on."""
        self.limit = limit

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        while self._accepted and self._accepted[0] <= now - self._seconds:
            self._accepted.popleft()
        if len(self._accepted) < self.limit * self._seconds:
            self._accepted.append(now)
            return None
        return self._accepted[0] + self._seconds - now


class AtATime(Open):
    """Accepts so many at a time, each of which takes `seconds`."""

    def __init__(self, limit: int, seconds: float = 0.05) -> None:
        self.limit, self._seconds = limit, seconds
        self._ends: deque[float] = deque()

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        while self._ends and self._ends[0] <= now:
            self._ends.popleft()
        if len(self._ends) < self.limit:
            self._ends.append(now + self._seconds)
            return None
        return self._ends[0] - now


class Erratic(Open):
    """Refuses a share of the requests whatever their rate, besides what another service refuses."""

    def __init__(self, share: float, inner: Service | None = None, seed: int = 1) -> None:
        self._share, self._inner, self._chance = share, inner or Open(), random.Random(seed)

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        return 0.5 if self._chance.random() < self._share else self._inner.refuse(now)


class Part(Open):
    """Passes a share of the requests to another service, as those of one list, and accepts the others."""

    def __init__(self, share: float, inner: Service, seed: int = 1) -> None:
        self._share, self._inner, self._chance = share, inner, random.Random(seed)

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        return self._inner.refuse(now) if self._chance.random() < self._share else None


class Shut(Open):
    """Refuses everything from one moment until another, and acts like another service before and after."""

    def __init__(self, until: float, inner: Service | None = None, *, begin: float = 0.0) -> None:
        self._begin, self._until, self._inner = begin, until, inner or Open()

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        return self._until - now if self._begin <= now < self._until else self._inner.refuse(now)


class Together(Open):
    """Has several limits at once, any of which refuses."""

    def __init__(self, *parts: Service) -> None:
        self._parts = parts

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        return next((wait for part in self._parts if (wait := part.refuse(now)) is not None), None)


def served(
    service: Service,
    seconds: float,
    *,
    workers: int = 150,
    latency: float = 0.05,
    jitter: float = 0.1,
    tells: bool = False,
    lie: float | None = None,
    changes: Sequence[tuple[float, float]] = (),
    rests: tuple[float, float] = (math.inf, math.inf),
    slower: tuple[float, float] = (math.inf, 0.0),
    servers: int = 0,
    refusal: int = 429,
    status: Callable[[float], int | None] = lambda now: 200,
    seed: int = 1,
    shared: Sequence[float] = (),
) -> Outcome:
    """Let so many tasks send requests to a service, each inside one Pace.

    `latency` is there and back, each half with a jitter of that part of it, and another one from a moment on in `slower`; `tells`
    sends Retry-After, in whole seconds as HTTP has it, and `lie` that number with each refusal; `changes` are moments and new
    limits; in `rests` there is a request a second. With `servers`, each serves one request at a time, for half the latency on
    average, and the others wait. `refusal` is the status of what is refused. `shared` are the moments at which processes die that
    share a pace, among which the tasks are divided.
    """
    loop, chance, outcome = VirtualLoop(), random.Random(seed), Outcome()
    paces = [Pace(max_in_flight=workers, shared=f"/process {number}") for number in range(len(shared))]
    paces = paces or [Pace(max_in_flight=workers)]
    free = [0.0] * servers

    async def way() -> None:
        whole = slower[1] if loop.time() >= slower[0] else latency
        await asyncio.sleep(whole / 2 * (1 + jitter * chance.uniform(-1, 1)))

    async def request(pace: Pace) -> None:
        begun = loop.time()
        await way()
        wait = service.refuse(loop.time())
        answer = status(loop.time()) if wait is None else refusal
        outcome.arrivals.append((loop.time(), wait is None))
        if wait is None and servers:
            done = max(loop.time(), heapq.heappop(free)) + latency / 2 * chance.expovariate(1)
            heapq.heappush(free, done)
            await asyncio.sleep(done - loop.time())
        await way()
        told = None if wait is None else lie if lie is not None else float(math.ceil(wait)) if tells else None
        outcome.latencies.append((loop.time(), loop.time() - begun))
        outcome.answers.append((loop.time(), answer))
        pace.report(answer, told, loop.time() - begun)

    async def work(number: int) -> None:
        pace, end = paces[number % len(paces)], shared[number % len(paces)] if shared else math.inf
        while loop.time() < end:
            if rests[0] <= loop.time() < rests[1]:
                await asyncio.sleep(1.0 if number == 0 else rests[1] - loop.time())
            async with pace:
                await request(pace)

    async def run() -> None:
        for at, limit in changes:
            loop.call_at(at, lambda limit=limit: service.change(loop.time(), limit))  # type: ignore[misc]  # -- bound now
        tasks = [asyncio.create_task(work(number)) for number in range(workers)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    return outcome
