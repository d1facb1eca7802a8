"""Measure what each part of a call costs while all is well, and what importing the package costs.

Sessions with a part and without it create cards on a transport that responds at once, and take turns in many short rounds of one
process; what a part costs is the difference within a round. What counts is processor time, of all threads.
"""

import argparse
import asyncio
import itertools
import json
import logging
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import _environment
import _plot
from _arguments import count
from _contenders import DESC, LIST_ID

_TOKEN = "a-token-of-usual-length-0123456789abcdef"  # a made-up one


class Part(NamedTuple):
    """A way to create cards, and the one with which it is compared."""

    create: Callable[[int], Awaitable[object]]
    without: str


# --- calls


def _parts(folder: Path) -> dict[str, Part]:
    from _following import logged, traced
    from _instant import instant_session, oauth

    from boardclient import AsyncSession, CardDraft, Pace, StaticCredentials

    static = StaticCredentials(_TOKEN, "key")
    events: list[object] = []

    def observe(event: object) -> None:
        events[:] = [event]

    def calls(session: AsyncSession) -> Callable[[int], Awaitable[object]]:
        async def create(count: int) -> None:
            for _ in range(count):
                await session.cards.create("Card", list_id=LIST_ID, desc=DESC)

        return create

    def run(session: AsyncSession, *, is_journaled: bool) -> Callable[[int], Awaitable[object]]:
        numbers = itertools.count()

        async def create(count: int) -> None:
            drafts = (CardDraft("Card", LIST_ID, desc=DESC, reference=f"row-{number}") for number in range(count))
            journal = folder / f"{next(numbers)}.journal" if is_journaled else None
            async with session.cards.create_many(drafts, concurrency=32, journal=journal) as bulk:
                await bulk.wait()
            if bulk.report.created != count:
                raise RuntimeError(bulk.report)

        return create

    bare = {"retry": None, "timeout": None}
    plain = calls(instant_session(static, **bare))
    both = traced(plain)
    otel = {} if both is None else {"OpenTelemetry": Part(both[0], "a bare call"), "OpenTelemetry's SDK alone": Part(both[1], "")}
    return {
        "a bare call": Part(plain, ""),
        "retry policy": Part(calls(instant_session(static, timeout=None)), "a bare call"),
        "deadline": Part(calls(instant_session(static, retry=None)), "a bare call"),
        "OAuth credentials": Part(calls(instant_session(oauth(), **bare)), "a bare call"),
        "one observer": Part(calls(instant_session(static, **bare, observers=[observe])), "a bare call"),
        "three observers": Part(calls(instant_session(static, **bare, observers=[observe] * 3)), "a bare call"),
        "logs at INFO": Part(logged(plain, logging.INFO), "a bare call"),
        "logs at DEBUG": Part(logged(plain, logging.DEBUG), "a bare call"),
        **otel,
        "pace": Part(calls(instant_session(static, **bare, limiter=Pace())), "a bare call"),
        "the defaults": Part(calls(instant_session(static)), "a bare call"),
        "all of it": Part(calls(instant_session(oauth(), observers=[observe], limiter=Pace())), "a bare call"),
        "a card of a bulk run": Part(run(instant_session(static), is_journaled=False), ""),
        "journal": Part(run(instant_session(static), is_journaled=True), "a card of a bulk run"),
    }


async def _calls(count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return what each part costs, in microseconds per call or card."""
    with tempfile.TemporaryDirectory() as folder:
        parts = _parts(Path(folder))
        samples: dict[str, list[float]] = {name: [] for name in parts}
        for number in range(rounds + 1):
            names = list(parts)
            for name in names if number % 2 else reversed(names):
                started = time.process_time()
                await parts[name].create(count)
                if number:  # the first round warms up
                    samples[name].append((time.process_time() - started) / count * 1e6)
    figures: dict[str, dict[str, float]] = {}
    for name, found in samples.items():
        figures[name] = {"cpu_us": statistics.median(found)}
        if without := parts[name].without:
            # Compared within a round: the machine may be slower in one round than in another, but hardly within one.
            costs = sorted(mine - its for mine, its in zip(found, samples[without], strict=True))
            figures[name] |= {"cost_us": statistics.median(costs), "low_us": _at(costs, 0.25), "high_us": _at(costs, 0.75)}
    return figures


def _at(values: list[float], part: float) -> float:
    return values[round(part * (len(values) - 1))]


# --- imports

_IMPORTS = {
    "import aiohttp, attrs, cattrs, msgspec, tenacity": False,
    "import boardclient": False,
    "from boardclient import AsyncSession": False,
    "import httpx, pydantic; pydantic.BaseModel": True,
    "import trellio": True,
    "import trello": True,
    "from slack_sdk.web.async_client import AsyncWebClient": True,
}
"""The statements, and whether they need the rivals' packages."""
_MEASURE = """import time
cpu, wall = time.process_time(), time.perf_counter()
{statement}
print(time.process_time() - cpu, time.perf_counter() - wall)"""


def _imports(python: str, rounds: int, with_rivals: bool) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each import in a fresh process."""
    statements = [statement for statement, needs_rivals in _IMPORTS.items() if with_rivals or not needs_rivals]
    samples: dict[str, list[tuple[float, ...]]] = {statement: [] for statement in statements}
    with _environment.bytecode():
        for number in range(rounds + 1):
            for statement in statements:
                command = [python, "-c", _MEASURE.format(statement=statement)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                if number:  # the first round fills the disk's cache and writes the bytecode
                    samples[statement].append(tuple(float(seconds) * 1e3 for seconds in done.stdout.split()))
    medians = {
        statement: [statistics.median(column) for column in zip(*found, strict=True)] for statement, found in samples.items()
    }
    return {statement: {"cpu_ms": cpu, "wall_ms": wall} for statement, (cpu, wall) in medians.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=count, default=1_000, help="calls of each contender in each round")
    parser.add_argument("--rounds", type=count, default=40)
    parser.add_argument("--imports", type=count, default=15, help="rounds of the imports")
    _environment.add_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw what the parts cost")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.calls, options.rounds, options.imports = 50, 1, 1
    return options


def _show(calls: dict[str, dict[str, float]], imports: dict[str, dict[str, float]]) -> None:
    print(f"\n{'':<28}{'CPU us/call':>12}{'costs':>9}{'middle half':>20}")
    for name, row in calls.items():
        line = f"{name:<28}{row['cpu_us']:>12.2f}"
        if "cost_us" in row:
            line += f"{row['cost_us']:>+9.2f}" + f"{row['low_us']:+.2f} to {row['high_us']:+.2f}".rjust(20)
        print(line)
    print(f"\n{'':<58}{'CPU ms':>8}{'wall ms':>9}")
    for statement, row in imports.items():
        print(f"{statement:<58}{row['cpu_ms']:>8.1f}{row['wall_ms']:>9.1f}")


def main() -> None:
    """Run, and print two tables."""
    options = _options()
    if options.one:
        print(json.dumps(asyncio.run(_calls(options.calls, options.rounds))))
        return
    with _environment.python_of(options) as python:
        command = [python, __file__, "--one", "--calls", str(options.calls), "--rounds", str(options.rounds)]
        calls = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        imports = _imports(python, options.imports, options.rivals)
        versions = _environment.versions(python)
    print(f"Python {platform.python_version()}, {platform.system()}, medians of {options.rounds} and {options.imports} rounds")
    _show(calls, imports)
    if options.json:
        document = {"python": platform.python_version(), "versions": versions, "calls": calls, "imports": imports}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.svg:
        costs = {name: row["cost_us"] for name, row in calls.items() if "cost_us" in row}
        costs = {name: max(0.0, cost) for name, cost in costs.items()}
        _plot.draw_bars(options.svg, "CPU microseconds", {"what it adds to a call, or a card": costs}, ours=costs, most=1000.0)


if __name__ == "__main__":
    main()
