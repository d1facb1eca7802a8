"""How much of a limit that it is not told a Pace uses, how often it is refused, and how it follows a limit that changes.

The matrix is a simulation of discrete events on a clock of its own; `--sockets` runs a session with a Pace against a limited
server on the loopback interface, in real time.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _arguments import count, positive

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pace_simulation import Bucket, Open, Outcome, Service, Window, simulate

from boardclient import AsyncSession, Pace, RateLimitError, StaticCredentials
from boardclient._pace._controller import Controller

_KINDS: dict[str, Callable[[float], Service]] = {
    "bucket, 1 s": Bucket,
    "bucket, 5 s": lambda limit: Bucket(limit, burst=5.0),
    "bucket, 0.1 s": lambda limit: Bucket(limit, burst=0.1),
    "window, 1 s": Window,
    "window, 3 s": lambda limit: Window(limit, seconds=3.0),
    "window, 10 s": lambda limit: Window(limit, seconds=10.0),
}
_WARM, _END = 15.0, 75.0
_CHANGES = (30.0, 33.0, 36.0, 39.0, 42.0)
_FOLLOW = 20.0
_STYLE = """<style>
text { fill: #444 } .axis { stroke: #999; fill: none } .rate { stroke: #2563eb; fill: none; stroke-width: 1.5 }
.limit { stroke: #c2410c; fill: none; stroke-width: 1.5; stroke-dasharray: 5 3 } .refused { fill: #dc2626 }
@media (prefers-color-scheme: dark) {
text { fill: #ccc } .axis { stroke: #777 } .rate { stroke: #60a5fa } .limit { stroke: #fb923c } .refused { fill: #f87171 } }
</style>"""


class Row(NamedTuple):
    """The worst over latencies and seeds, in parts of one."""

    kind: str
    limit: float
    tells: bool
    use: float
    refused: float
    runs: int
    missed: int


class Follow(NamedTuple):
    """A limit that changes: seconds until the new one is found, and how much of it is used from 20 s after on."""

    kind: str
    limit: float
    factor: float
    median_seconds: float
    worst_seconds: float
    worst_use: float


def _run(service: Service, seconds: float, **options: Any) -> Outcome:
    return simulate(Controller(None, 1000), service, seconds, **options)


def _steady(kind: str, limit: float, tells: bool, latencies: list[float], seeds: range) -> Row:
    uses, refusals = [], []
    for latency, seed in itertools.product(latencies, seeds):
        outcome = _run(_KINDS[kind](limit), _END, latency=latency, tells=tells, seed=seed)
        uses.append(outcome.accepted(_WARM, _END) / limit)
        refusals.append(outcome.refused(_WARM, _END))
    missed = sum(use < 0.95 or refused > 0.01 for use, refused in zip(uses, refusals, strict=True))
    return Row(kind, limit, tells, min(uses), max(refusals), len(uses), missed)


def _found_after(outcome: Outcome, changed_at: float, limit: float, factor: float) -> float:
    """Return the seconds from a change until the rate reaches a higher limit, or stays below a lower one for 5 s."""
    rates = [rate for at, rate in outcome.rates if at >= changed_at]
    moments = [at for at, _ in outcome.rates if at >= changed_at]
    for position, moment in enumerate(moments):
        following = rates[position : position + 50]
        if (factor > 1 and rates[position] >= 0.95 * limit) or (factor < 1 and max(following) <= 1.1 * limit):
            return moment - changed_at
    return float("inf")


def _follow(kind: str, limit: float, factor: float, latencies: list[float]) -> Follow:
    seconds, uses = [], []
    for changed_at, latency in itertools.product(_CHANGES, latencies):
        end = changed_at + 45
        outcome = _run(_KINDS[kind](limit), end, latency=latency, changes=[(changed_at, factor * limit)])
        seconds.append(_found_after(outcome, changed_at, factor * limit, factor))
        uses.append(outcome.accepted(changed_at + _FOLLOW, end) / (factor * limit))
    return Follow(kind, limit, factor, statistics.median(seconds), max(seconds), min(uses))


def _queues() -> list[dict[str, float]]:
    rows = []
    for servers, latency in ((1, 0.05), (4, 0.05), (16, 0.05), (4, 0.2), (40, 0.2)):
        outcome = _run(Open(), 60.0, latency=latency, servers=servers)
        waited = sorted(seconds for at, seconds in outcome.latencies if at > _WARM)
        capacity = servers / (latency / 2)
        rows.append(
            {
                "servers": servers,
                "latency": latency,
                "use": outcome.accepted(_WARM, 60) / capacity,
                "latency_ratio": waited[len(waited) // 2] / latency,
            }
        )
    return rows


def _cost_us(rounds: int) -> float:
    """Return the microseconds of entering, reporting and leaving when no wait is needed; the clock moves 2 ms per round."""

    async def measure() -> float:
        pace = Pace(start_rate=400.0, clock=itertools.count(0.0, 0.002).__next__)
        begun = time.perf_counter()
        for _ in range(rounds):
            async with pace:
                pace.report(200, None, 0.05)
        return (time.perf_counter() - begun) / rounds * 1e6

    return min(asyncio.run(measure()) for _ in range(5))


# --- the plot


def _plot(path: Path, seconds: float = 120.0) -> None:
    """Draw the rate and the hidden limit, which is doubled and halved, for a bucket and a window."""
    changes = [(40.0, 200.0), (80.0, 100.0)]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 520" font-family="system-ui, sans-serif" font-size="12">',
        _STYLE,
    ]
    for panel, kind in enumerate(("bucket, 1 s", "window, 1 s")):
        top = 30 + 250 * panel
        outcome = _run(_KINDS[kind](100.0), seconds, changes=changes)

        def place(at: float, rate: float, top: int = top) -> str:
            return f"{50 + at / seconds * 690:.1f},{top + 200 - min(rate, 320.0) / 320 * 200:.1f}"

        steps = [(0.0, 100.0), (40.0, 100.0), (40.0, 200.0), (80.0, 200.0), (80.0, 100.0), (seconds, 100.0)]
        parts.append(f'<text x="50" y="{top - 8}">{kind}: starts a second (line), hidden limit (dashed), refusals (dots)</text>')
        parts.append(f'<path class="axis" d="M50,{top}V{top + 200}H740"/>')
        parts += [f'<text x="44" y="{top + 204 - y / 320 * 200:.0f}" text-anchor="end">{y}</text>' for y in (0, 100, 200, 300)]
        parts += [
            f'<text x="{50 + x / seconds * 690:.0f}" y="{top + 216}" text-anchor="middle">{x} s</text>'
            for x in range(0, int(seconds) + 1, 20)
        ]
        parts.append(f'<polyline class="limit" points="{" ".join(place(*step) for step in steps)}"/>')
        parts.append(f'<polyline class="rate" points="{" ".join(place(*point) for point in outcome.rates)}"/>')
        refused = sorted({round(at, 1) for at, accepted in outcome.arrivals if not accepted and at < seconds})
        parts += [f'<circle class="refused" cx="{50 + at / seconds * 690:.1f}" cy="{top + 196}" r="2"/>' for at in refused]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


# --- real sockets


@contextlib.contextmanager
def _server(*arguments: str) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("_limited.py")), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def _socket_run(base_url: str, seconds: float, tasks: int) -> tuple[list[tuple[float, bool]], Pace]:
    pace, told = Pace(), []
    begun = time.monotonic()
    async with AsyncSession(StaticCredentials("t", "k"), base_url, limiter=pace, retry=None, timeout=None) as session:

        async def work() -> None:
            while True:
                try:
                    await session.cards.create("Card", list_id="l1")
                    told.append((time.monotonic() - begun, True))
                except RateLimitError as error:
                    told.append((time.monotonic() - begun, False))
                    await asyncio.sleep(error.retry_after or 0.5)

        working = [asyncio.create_task(work()) for _ in range(tasks)]
        await asyncio.sleep(seconds)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return told, pace


def _sockets(seconds: float, limits: list[float], kinds: list[str]) -> list[dict[str, Any]]:
    warm = min(15.0, seconds / 2)
    print(f"\nreal sockets, from {warm:g} s to {seconds:g} s\n{'':<28}{'accepted/s':>11}{'use %':>8}{'refused %':>11}")
    rows = []
    for kind, limit, tells in itertools.product(kinds, limits, (False, True)):
        with _server("--kind", kind, "--limit", str(limit), *(["--tells"] if tells else [])) as base_url:
            told, pace = asyncio.run(_socket_run(base_url, seconds, tasks=64))
        sent = [accepted for at, accepted in told if at >= warm]
        rate = sum(sent) / (seconds - warm)
        refused = sent.count(False) / max(1, len(sent))
        name = f"{kind} {limit:g}/s{', Retry-After' if tells else ''}"
        print(f"{name:<28}{rate:>11.1f}{rate / limit * 100:>8.1f}{refused * 100:>11.2f}   {pace!r}")
        rows.append({"kind": kind, "limit": limit, "tells": tells, "rate": rate, "use": rate / limit, "refused": refused})
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=positive, nargs="+", default=[5, 10, 20, 100, 300, 1000])
    parser.add_argument("--latencies", type=positive, nargs="+", default=[0.02, 0.05, 0.2])
    parser.add_argument("--seeds", type=count, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the rate against a limit that changes")
    parser.add_argument("--sockets", action="store_true", help="real sockets and real time instead of the simulation")
    parser.add_argument("--seconds", type=positive, default=35.0, help="length of each run with --sockets")
    parser.add_argument("--socket-limits", type=positive, nargs="+", default=[50, 300])
    parser.add_argument("--smoke", action="store_true", help="a few cases: shows that it runs")
    options = parser.parse_args()
    if options.smoke:
        options.limits, options.latencies, options.seeds = [20.0], [0.05], 1
        options.seconds, options.socket_limits = 1.0, [50.0]
    return options


def _simulated(options: argparse.Namespace) -> dict[str, Any]:
    print(f"after {_WARM:g} s, over {_END - _WARM:g} s, the worst over latencies and {options.seeds} seeds")
    print(f"{'':<15}{'limit/s':>8}{'Retry-After':>13}{'use %':>8}{'refused %':>11}{'missed':>9}")
    steady = []
    for kind, limit, tells in itertools.product(_KINDS, options.limits, (False, True)):
        row = _steady(kind, limit, tells, options.latencies, range(1, 1 + options.seeds))
        steady.append(row)
        told = "yes" if tells else "no"
        print(f"{kind:<15}{limit:>8g}{told:>13}{row.use * 100:>8.1f}{row.refused * 100:>11.2f}{row.missed:>5}/{row.runs}")
    print(
        f"\na limit that changes\n{'':<15}{'limit/s':>8}{'to':>8}{'found: median s':>17}{'worst s':>9}{'use from 20 s on %':>20}"
    )
    follow = []
    for kind, limit, factor in itertools.product(("bucket, 1 s", "window, 1 s"), options.limits, (0.5, 2.0)):
        if factor * limit > 1000 or ("window" in kind and factor * limit % 1):
            continue
        found = _follow(kind, limit, factor, options.latencies)
        follow.append(found)
        print(
            f"{kind:<15}{limit:>8g}{factor * limit:>8g}{found.median_seconds:>17.1f}{found.worst_seconds:>9.1f}"
            f"{found.worst_use * 100:>20.1f}"
        )
    queues = _queues()
    print(f"\nno limit but a queue\n{'':<23}{'use of its capacity %':>22}{'median latency, times':>24}")
    for row in queues:
        title = f"{row['servers']:g} at a time, {row['latency'] * 1000:g} ms"
        print(f"{title:<23}{row['use'] * 100:>22.1f}{row['latency_ratio']:>24.1f}")
    return {"steady": [row._asdict() for row in steady], "follow": [row._asdict() for row in follow], "queues": queues}


def main() -> None:
    """Run what was asked for and print a table of it."""
    options = _options()
    print(f"Python {platform.python_version()}, {platform.system()}")
    figures: dict[str, Any] = {"python": platform.python_version()}
    if not options.sockets or options.smoke:
        figures |= _simulated(options)
        figures["cost_us"] = _cost_us(2_000 if options.smoke else 50_000)
        print(f"\nentering, reporting and leaving without a wait: {figures['cost_us']:.2f} us")
    if options.sockets or options.smoke:
        figures["sockets"] = _sockets(
            options.seconds, options.socket_limits, ["window"] if options.smoke else ["bucket", "window"]
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.svg:
        _plot(options.svg)


if __name__ == "__main__":
    main()
