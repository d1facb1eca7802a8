"""A service with a hidden limit, and a client that has enough to do, as discrete events on a clock of their own."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence

import attrs

from boardclient.bulk._controller import Attempt, Controller


class Bucket:
    """Accepts as long as tokens are there; they come at the limit and gather up to `burst` seconds' worth."""

    def __init__(self, limit: float, burst: float = 1.0) -> None:
        self.limit, self._burst = limit, burst
        self._tokens, self._at = limit * burst, 0.0

    def change(self, now: float, limit: float) -> None:
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
        self.limit = limit

    def refuse(self, now: float) -> float | None:
        """Return None for a request that is accepted, or the seconds until one would be."""
        position = (now + self._phase) / self._seconds
        if int(position) != self._window:
            self._window, self._used = int(position), 0
        if self._used < self.limit * self._seconds:
            self._used += 1
            return None
        return (1 - position % 1) * self._seconds


@attrs.define
class Outcome:
    """What the service saw: the moment of each request and whether it was accepted; and the rate over time."""

    arrivals: list[tuple[float, bool]] = attrs.Factory(list)
    rates: list[tuple[float, float]] = attrs.Factory(list)
    latencies: list[tuple[float, float]] = attrs.Factory(list)

    def accepted(self, begin: float, end: float) -> float:
        """Return the accepted requests a second."""
        return sum(ok for at, ok in self.arrivals if begin <= at < end) / (end - begin)

    def refused(self, begin: float, end: float) -> float:
        """Return the part of the requests that was refused."""
        sent = [ok for at, ok in self.arrivals if begin <= at < end]
        return sent.count(False) / max(1, len(sent))


def simulate(
    controller: Controller,
    service: Bucket | Window,
    seconds: float,
    *,
    latency: float = 0.05,
    jitter: float = 0.1,
    tells: bool = False,
    changes: Sequence[tuple[float, float]] = (),
    seed: int = 1,
    servers: int | None = None,
    status: Callable[[float], int | None] = lambda now: 200,
) -> Outcome:
    """Let a controller with an endless backlog meet a service.

    `latency` is there and back, each half with a jitter of that part of it, both ways; `tells` sends Retry-After, in whole
    seconds as HTTP has it; `servers` serve one request each at a time, and the others wait.
    """
    chance = random.Random(seed)
    outcome = Outcome()
    events: list[tuple[float, int, str, Attempt | None, tuple[int | None, float | None]]] = []
    number = 0
    for at, limit in changes:
        number += 1
        heapq.heappush(events, (at, number, "change", None, (None, limit)))
    free = [0.0] * (servers or 0)
    heapq.heapify(free)
    now, sampled = 0.0, 0.0
    while now < seconds:
        while controller.next_start() <= now:
            attempt = controller.start(now)
            number += 1
            heapq.heappush(
                events, (now + latency / 2 * (1 + jitter * chance.uniform(-1, 1)), number, "arrive", attempt, (None, None))
            )
        if now >= sampled:
            outcome.rates.append((now, controller.rate))
            sampled = now + 0.1
        wake = controller.next_start()
        if not events or wake < events[0][0]:
            if wake == math.inf:
                raise AssertionError("nobody can start and nobody is under way")
            now = wake
            continue
        now, _, kind, attempt, (code, value) = heapq.heappop(events)
        if kind == "change":
            service.change(now, value or 0.0)
            continue
        assert attempt is not None
        if kind == "arrive":
            wait = service.refuse(now)
            outcome.arrivals.append((now, wait is None))
            back = now + latency / 2 * (1 + jitter * chance.uniform(-1, 1))
            answer: tuple[int | None, float | None] = (
                (429, float(math.ceil(wait)) if tells else None) if wait is not None else (status(now), None)
            )
            if servers and wait is None:
                begun = max(now, heapq.heappop(free))
                done = begun + latency / 2 * chance.expovariate(1)
                heapq.heappush(free, done)
                back = done + latency / 2
            number += 1
            heapq.heappush(events, (back, number, "answer", attempt, answer))
            continue
        took = now - attempt.started_at
        outcome.latencies.append((now, took))
        controller.report(attempt, now, code, value, took)
        controller.end(attempt)
    return outcome
