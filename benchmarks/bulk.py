"""Compare bulk creation and reading with hand-written aiohttp: client processor time and cards a second.

Every measurement is a process of its own, the contenders take turns within each round, and the canned server is one more
process on another core. What counts is user and system time of the client process between its warm-up and its end.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _contenders

_BASELINE = "hand-written"


class Case(NamedTuple):
    """One column of the comparison: what is done, how often, and with how many calls at a time."""

    kind: str
    calls: int
    concurrency: int
    cards: int

    @property
    def title(self) -> str:
        if self.kind == "read":
            return f"read {self.calls} x {self.cards // self.calls} cards"
        return f"create {self.cards} cards, concurrency {self.concurrency}"


class Sample(NamedTuple):
    """What one process needed."""

    cpu_us: float
    cards_per_second: float


async def _measure(case: Case, contender: str, base_url: str) -> Sample:
    contenders = _contenders.READING if case.kind == "read" else _contenders.CREATING
    async with contenders[contender](base_url, case.concurrency) as work:
        await work(max(1, case.calls // 10) if case.kind == "read" else max(case.concurrency * 2, case.calls // 10))
        cpu, wall = time.process_time(), time.perf_counter()
        seen = await work(case.calls)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if seen != case.cards:
        raise RuntimeError(f"{contender} handled {seen} cards instead of {case.cards}")
    return Sample(cpu / seen * 1e6, seen / wall)


def _cores() -> tuple[int | None, int | None]:
    """Return a core for the client and another for the server, where the system can pin."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[-1]) if len(cores) > 1 else (None, None)


@contextlib.contextmanager
def _server(cards: int, core: int | None) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("_server.py")), "--cards", str(cards)]
    if core is not None:
        command += ["--core", str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _in_a_process(case: Case, contender: str, base_url: str, core: int | None) -> Sample:
    task = json.dumps({"case": case, "contender": contender, "base_url": base_url, "core": core})
    done = subprocess.run([sys.executable, __file__, "--one", task], stdout=subprocess.PIPE, text=True, check=True)
    return Sample(*json.loads(done.stdout))


def _one(task: str) -> None:
    """Be the client process: measure one contender once and print the sample."""
    asked = json.loads(task)
    if asked["core"] is not None:
        os.sched_setaffinity(0, {asked["core"]})
    print(json.dumps(asyncio.run(_measure(Case(*asked["case"]), asked["contender"], asked["base_url"]))))


def _compare(case: Case, base_url: str, rounds: int, core: int | None) -> dict[str, list[Sample]]:
    names = list(_contenders.READING if case.kind == "read" else _contenders.CREATING)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(rounds):
        # Each round begins with another contender: none is always the first on a cold or a warm processor.
        for position in range(len(names)):
            name = names[(position + number) % len(names)]
            samples[name].append(_in_a_process(case, name, base_url, core))
    return samples


def _summary(samples: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    baseline = statistics.median(sample.cpu_us for sample in samples[_BASELINE])
    rows: dict[str, dict[str, float]] = {}
    for name, found in samples.items():
        cpu = sorted(sample.cpu_us for sample in found)
        median = statistics.median(cpu)
        rows[name] = {
            "cpu_us": median,
            "cpu_us_min": cpu[0],
            "cpu_us_max": cpu[-1],
            "ratio": median / baseline,
            "cards_per_second": statistics.median(sample.cards_per_second for sample in found),
        }
    return rows


def _show(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{'':<24}{'CPU us/card':>12}{'min':>9}{'max':>9}{'ratio':>8}{'cards/s':>10}")
    for name, row in rows.items():
        print(
            f"{name:<24}{row['cpu_us']:>12.1f}{row['cpu_us_min']:>9.1f}{row['cpu_us_max']:>9.1f}"
            f"{row['ratio']:>8.2f}{row['cards_per_second']:>10.0f}"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=10_000, help="cards that each contender creates in each round")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32, 128], help="calls at a time when creating")
    parser.add_argument(
        "--read", type=int, default=10_000, metavar="N", help="cards on the board that is read; 0 leaves reading out"
    )
    parser.add_argument("--reads", type=int, default=10, help="times that each contender reads it in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.cards, options.concurrency, options.read, options.reads, options.rounds = 64, [4], 50, 2, 1
    if options.read < 0 or min(options.cards, options.reads, options.rounds, *options.concurrency) < 1:
        parser.error("counts start at 1")
    return options


def main() -> None:
    """Run every case and print a table for each."""
    options = _options()
    if options.one:
        _one(options.one)
        return
    client_core, server_core = _cores()
    cases = [Case("create", options.cards, concurrency, options.cards) for concurrency in options.concurrency]
    if options.read:
        cases.append(Case("read", options.reads, 1, options.reads * options.read))
    pinned = "client and server on a core each" if client_core is not None else "not pinned"
    print(f"Python {platform.python_version()}, {platform.system()}, {pinned}, median of {options.rounds} rounds")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with _server(options.read, server_core) as base_url:
        for case in cases:
            figures[case.title] = _summary(_compare(case, base_url, options.rounds, client_core))
            _show(case.title, figures[case.title])
    if options.json:
        document = {
            "python": platform.python_version(),
            "pinned": client_core is not None,
            "rounds": options.rounds,
            "cases": figures,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
