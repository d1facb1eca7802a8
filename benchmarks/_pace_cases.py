"""The services that `pace.py` lets a Pace meet, as discrete events, and what is measured there."""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pace_simulation import AtATime, Bucket, Erratic, Open, Outcome, Part, Service, Shut, SlidingWindow, Together, Window

from boardclient import Pace

if TYPE_CHECKING:  # the benchmark also runs with versions of the package that have these elsewhere
    from boardclient._pipeline._pace._permits import Permits
    from boardclient._pipeline._pace._timing import PacedAttempt

_LATENCIES = (0.02, 0.05, 0.2)
"""The seconds there and back, one for each seed in turn, where a case has none of its own."""


def simulate(permits: Permits, service: Service, seconds: float, **options: Any) -> Outcome:
    """Run one permits with an endless backlog against a service; the options are those of `simulate_shared`."""
    (outcome,) = simulate_shared([permits], service, seconds, **options)
    return outcome


def simulate_shared(
    paces: Sequence[Permits],
    service: Service,
    seconds: float,
    *,
    begins: Sequence[float] = (0.0,),
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
) -> list[Outcome]:
    """Run paces with endless backlogs against one service.

    `begins` are the moments at which they begin. `latency` is there and back, each half with a jitter of that part of it, and
    another one from a moment on in `slower`; `tells` sends Retry-After, in whole seconds as HTTP has it, and `lie` that number
    with each refusal; `changes` are moments and new limits; in `rests` the backlog is empty but for a request a second. With
    `servers`, each serves one request at a time, for half the latency on average, and the others wait. `refusal` is the status
    of what is refused.
    """
    chance = random.Random(seed)
    outcomes = [Outcome() for _ in paces]
    numbers = iter(range(2**40))
    events: list[tuple[float, int, PacedAttempt | None, int, str, Any]] = [
        (at, next(numbers), None, 0, "change", new) for at, new in changes
    ]
    free = [0.0] * servers
    now = sampled = 0.0

    def way() -> float:
        whole = slower[1] if now >= slower[0] else latency
        return whole / 2 * (1 + jitter * chance.uniform(-1, 1))

    def wish(number: int) -> float:
        due = max(paces[number].next_start(), begins[number])
        return max(due, math.floor(now) + 1.0) if rests[0] <= now < rests[1] and due < math.inf else due

    def serve() -> float:
        done = max(now, heapq.heappop(free)) + latency / 2 * chance.expovariate(1)
        heapq.heappush(free, done)
        return done + latency / 2

    heapq.heapify(events)
    while now < seconds:
        due, number = min((wish(number), number) for number in range(len(paces)))
        if due <= now:
            attempt = paces[number].start(now)
            heapq.heappush(events, (now + way(), next(numbers), attempt, number, "arrive", None))
            continue
        if now >= sampled:
            for permits, outcome in zip(paces, outcomes, strict=True):
                outcome.rates.append((now, permits.rate))
            sampled = now + 0.1
        if not events or due < events[0][0]:
            assert due < math.inf, "nobody may start and nobody is under way"
            now = due
            continue
        now, _, begun, number, kind, what = heapq.heappop(events)
        if begun is None:
            service.change(now, what)
        elif kind == "arrive":
            wait = service.refuse(now)
            outcomes[number].arrivals.append((now, wait is None))
            told = lie if lie is not None else float(math.ceil(wait or 0.0)) if tells else None
            answer = (status(now), None) if wait is None else (refusal, told)
            back = serve() if servers and wait is None else now + way()
            heapq.heappush(events, (back, next(numbers), begun, number, "answer", answer))
        else:
            outcomes[number].latencies.append((now, now - begun.started_at))
            paces[number].report(begun, now, *what, now - begun.started_at)
            paces[number].end(begun)
    return outcomes


class Figures(NamedTuple):
    """What one run shows.

    `use` is the part of the limit that was accepted, `refused` the part of the requests that was refused, `first` the use in the
    time before, and `silence` the longest time in seconds in which nothing was accepted. `found` is the number of seconds from a
    change of the limit until the new one is found.
    """

    use: float
    refused: float
    first: float
    silence: float
    found: float | None = None


class Case(NamedTuple):
    """A kind of service, and a run against it with a seed. `share` is refused at any rate."""

    group: str
    name: str
    run: Callable[[int], Figures]
    share: float = 0.0


def pace_at(service: Service, seconds: float, places: int = 1000, **options: Any) -> Outcome:
    """Run a Pace against a service."""
    return simulate(Pace(max_in_flight=places)._permits, service, seconds, **options)


def _figures(outcome: Outcome, limit: float, warm: float, end: float) -> Figures:
    return Figures(
        outcome.accepted(warm, end) / limit,
        outcome.refused(warm, end),
        outcome.accepted(0.0, warm) / limit,
        outcome.silence(0.0, end),
    )


def _steady(
    group: str,
    name: str,
    build: Callable[[int], Service],
    limit: float,
    *,
    share: float = 0.0,
    warm: float = 15.0,
    end: float = 75.0,
    **options: Any,
) -> Case:
    def run(seed: int) -> Figures:
        settings = {"latency": _LATENCIES[seed % 3], **options}
        return _figures(pace_at(build(seed), end, seed=seed, **settings), limit, warm, end)

    return Case(group, name, run, share)


def _window(limit: float, seconds: float) -> Callable[[int], Service]:
    return lambda seed: Window(limit, seconds, phase=0.37 * seed % 1 * seconds)


def _told(name: str, tells: bool) -> str:
    return f"{name}, Retry-After" if tells else name


def _plain() -> Iterator[Case]:
    for tells in (False, True):
        for limit in (5, 20, 100, 1000):
            yield _steady("1 s", _told(f"bucket of 1 s, {limit}/s", tells), lambda _, x=limit: Bucket(x), limit, tells=tells)
            yield _steady("1 s", _told(f"window of 1 s, {limit}/s", tells), _window(limit, 1.0), limit, tells=tells)
        for limit in (5, 20, 100):
            for burst in (5.0, 0.1):
                yield _steady(
                    "bucket",
                    _told(f"bucket of {burst:g} s, {limit}/s", tells),
                    lambda _, x=limit, y=burst: Bucket(x, y),
                    limit,
                    tells=tells,
                )
        for limit in (10, 100, 1000):
            for seconds in (3.0, 10.0):
                name = _told(f"window of {seconds:g} s, {limit}/s", tells)
                yield _steady("window", name, _window(limit, seconds), limit, tells=tells)
        slow = {"warm": 120.0, "end": 300.0}
        yield _steady("window", _told("window of 60 s, 5/s", tells), _window(5, 60.0), 5, **slow, tells=tells)
        yield _steady("window", _told("window of 7 s, 20/s", tells), _window(20, 7.0), 20, tells=tells)
    for limit, seconds in ((20, 1.0), (20, 10.0), (5, 10.0)):
        name = f"sliding window of {seconds:g} s, {limit}/s"
        yield _steady("window", name, lambda _, x=limit, y=seconds: SlidingWindow(x, y), limit)


def _few() -> Iterator[Case]:
    long = {"warm": 15.0, "end": 135.0, "places": 8}
    for tells in (False, True):
        for limit in (1, 2):
            name = _told(f"bucket of 1 s, {limit}/s, 8 workers", tells)
            yield _steady("few", name, lambda _, x=limit: Bucket(x), limit, **long, tells=tells)
            name = _told(f"window of 1 s, {limit}/s, 8 workers", tells)
            yield _steady("few", name, _window(limit, 1.0), limit, **long, tells=tells)
        name = _told("bucket of 5 s, 0.2/s, 8 workers", tells)
        slower = {"warm": 60.0, "end": 300.0, "places": 8}
        yield _steady("few", name, lambda _: Bucket(0.2, 5.0), 0.2, **slower, tells=tells)


def _noise() -> Iterator[Case]:
    for share in (0.01, 0.02, 0.05, 0.1, 0.2):
        part = f"1 in {round(1 / share)}"

        def among(inner: Callable[[int], Service], share: float = share) -> Callable[[int], Service]:
            return lambda seed: Erratic(share, inner(seed), seed)

        for limit in (50, 500):
            service = among(lambda _, x=limit: Bucket(x))
            yield _steady("noise", f"{part} + bucket of 1 s, {limit}/s", service, limit, share=share)
        service = among(lambda _: Bucket(5))
        yield _steady("noise", f"{part} + bucket of 1 s, 5/s", service, 5, share=share, warm=30.0, end=135.0)
        yield _steady("noise", f"{part} + window of 1 s, 50/s", among(_window(50, 1.0)), 50, share=share)
        for tells in (False, True):
            name = _told(f"{part}, no limit, 10 workers", tells)
            yield _steady("noise", name, among(lambda _: Open()), 50, share=share, places=10, latency=0.2, tells=tells)


def _found_after(outcome: Outcome, changed_at: float, limit: float, factor: float) -> float:
    """Return the seconds from a change until the rate reaches a higher limit, or stays below a lower one for 5 s."""
    rates = [rate for at, rate in outcome.rates if at >= changed_at]
    moments = [at for at, _ in outcome.rates if at >= changed_at]
    for position, moment in enumerate(moments):
        if (factor > 1 and rates[position] >= 0.95 * limit) or (
            factor < 1 and max(rates[position : position + 50]) <= 1.1 * limit
        ):
            return moment - changed_at
    return math.inf


def _changing(kind: str, build: Callable[[float, int], Service], limit: float, factor: float) -> Case:
    new = factor * limit

    def run(seed: int) -> Figures:
        changed_at = 30.0 + 3 * (seed % 5) + 0.41 * seed
        end = changed_at + 45.0
        outcome = pace_at(build(limit, seed), end, latency=_LATENCIES[seed % 3], seed=seed, changes=[(changed_at, new)])
        figures = _figures(outcome, new, changed_at + 20, end)
        return figures._replace(first=math.nan, found=_found_after(outcome, changed_at, new, factor))

    return Case("change", f"{kind}, {limit:g} to {new:g}/s", run)


def _changes() -> Iterator[Case]:
    for limit, factor in (
        (5, 0.5),
        (20, 0.5),
        (100, 0.5),
        (100, 0.25),
        (300, 0.5),
        (5, 2),
        (20, 2),
        (100, 2),
        (100, 5),
        (300, 2),
    ):
        yield _changing("bucket of 1 s", lambda x, _: Bucket(x), limit, factor)
        if factor * limit % 1 == 0:
            yield _changing("window of 1 s", lambda x, seed: _window(x, 1.0)(seed), limit, factor)


def _shared(kind: str, build: Callable[[float, int], Service], limit: float) -> Case:
    def run(seed: int) -> Figures:
        paces = [Pace()._permits, Pace()._permits]
        begins, settings = [0.0, 20.0], {"latency": _LATENCIES[seed % 3], "seed": seed}
        outcomes = simulate_shared(paces, build(limit, seed), 120.0, begins=begins, **settings)
        least = min(outcomes, key=lambda outcome: outcome.accepted(45, 120))
        total = Outcome(arrivals=sorted(arrival for outcome in outcomes for arrival in outcome.arrivals))
        return Figures(
            total.accepted(45, 120) / limit,
            total.refused(45, 120),
            math.nan,
            least.silence(45, 120),
            2 * least.accepted(45, 120) / limit,
        )

    return Case("shared", f"{kind}, {limit:g}/s", run)


def _queue(servers: int, latency: float) -> Case:
    def run(seed: int) -> Figures:
        outcome = pace_at(Open(), 60.0, latency=latency, servers=servers, seed=seed)
        waited = sorted(seconds for at, seconds in outcome.latencies if at > 15)
        figures = _figures(outcome, servers / (latency / 2), 15, 60)
        return figures._replace(found=waited[len(waited) // 2] / latency)

    return Case("queue", f"{servers} at a time wait, {latency * 1000:g} ms", run)


def _others() -> Iterator[Case]:
    for share in (0.25, 0.5):
        name = f"{share:.0%} of requests in a list of 20/s, 20 workers"
        part = {"places": 20, "latency": 0.1, "warm": 30.0, "end": 90.0}
        yield _steady("other", name, lambda seed, x=share: Part(x, Bucket(20), seed), 20 / share, **part)
    for tells in (False, True):
        for places in (1, 2, 5, 20, 100):
            name = _told(f"{places} at a time, others refused", tells)
            yield _steady("other", name, lambda _, x=places: AtATime(x, 0.05), places / 0.06, latency=0.06, tells=tells)
    for latency in (0.005, 2.0):
        for name, build in (("bucket", lambda _: Bucket(50)), ("window", _window(50, 1.0))):
            yield _steady("other", f"{name} of 1 s, 50/s, {latency:g} s away", build, 50, latency=latency, warm=30.0, end=90.0)
    yield _steady("other", "bucket of 1 s, 50/s, latency 0.05 to 0.4 s at 20 s", lambda _: Bucket(50), 50, slower=(20.0, 0.4))
    yield _steady("other", "bucket of 1 s, 50/s, refused with 503", lambda _: Bucket(50), 50, refusal=503)
    yield _steady("other", "window of 1 s, 20/s, refused with 503", _window(20, 1.0), 20, refusal=503)
    for lie in (0.0, 60.0):
        yield _steady("other", f"bucket of 1 s, 20/s, Retry-After: {lie:g}", lambda _: Bucket(20), 20, lie=lie, end=300.0)
        yield _steady("other", f"window of 1 s, 20/s, Retry-After: {lie:g}", _window(20, 1.0), 20, lie=lie, end=300.0)
    for places, latency in ((10, 0.1), (100, 0.05)):
        for period in (1.0, 4.0):
            name = f"503 for 0.5 s in every {period:g} s, {places} workers"
            flaps = {"places": places, "latency": latency, "warm": 2.0, "end": 32.0}
            most = places / latency * (1 - 0.5 / period)
            yield _steady(
                "other", name, lambda _: Open(), most, **flaps, status=lambda now, x=period: 503 if now % x > x - 0.5 else 200
            )
    both = {"warm": 120.0, "end": 300.0}
    yield _steady(
        "other", "bucket of 50/s and 1200 a minute", lambda seed: Together(Bucket(50), _window(20, 60.0)(seed)), 20, **both
    )
    quota = {"warm": 600.0, "end": 1200.0, "latency": 0.05}
    yield _steady("other", "quota of 500 an hour", lambda _: Window(500 / 3600, 3600.0, 0.0), 500 / 3600, **quota)
    yield _steady(
        "other", "shut from 30 s to 210 s, then 50/s", lambda _: Shut(210.0, Bucket(50), begin=30.0), 50, warm=225.0, end=300.0
    )
    for servers, latency in ((1, 0.05), (4, 0.05), (40, 0.2)):
        yield _queue(servers, latency)


def cases() -> list[Case]:
    """Return all cases, by group."""
    shared = [_shared("bucket of 1 s", lambda x, _: Bucket(x), limit) for limit in (10, 50, 200)]
    shared += [_shared("window of 1 s", lambda x, seed: _window(x, 1.0)(seed), limit) for limit in (10, 50, 200)]
    found = [*_plain(), *_few(), *_noise(), *_changes(), *shared, *_others()]
    return sorted(found, key=lambda case: [*dict.fromkeys(other.group for other in found)].index(case.group))
