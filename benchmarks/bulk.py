"""Compare bulk creation and reading with other clients: processor time, cards a second, latencies and memory.

Every measurement is a process of its own, the contenders take turns within each round, and the canned server is one more
process on another core. What counts is user and system time of the client process between its warm-up and its end.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _certificate
import _contenders
import _environment
import _plot
from _arguments import count, count_or_none
from _contenders import Contender, Service
from _peak import peak_mib

_BASELINE = "hand-written"


class Case(NamedTuple):
    """One table: what is done, and with how many calls in flight (when creating) or cards on the board (when reading)."""

    kind: str
    size: int

    @property
    def title(self) -> str:
        if self.kind == "read":
            return f"read {self.size:,} {'card' if self.size == 1 else 'cards'}"
        return f"create, {self.size} in flight"

    def contenders(self, with_rivals: bool) -> dict[str, Contender]:
        """Return the programs that can do it."""
        table = _contenders.READING if self.kind == "read" else _contenders.CREATING
        return {
            name: it
            for name, it in table.items()
            if (with_rivals or not it.is_rival) and (self.size == 1 or not it.is_sequential)
        }


class Task(NamedTuple):
    """What one process does: `calls` of one contender for one case, after `warm_up` of them."""

    case: Case
    contender: str
    calls: int
    warm_up: int
    service: Service
    loop: str
    core: int | None
    server_id: int


class Sample(NamedTuple):
    """What one process needed; None where it can't be told."""

    cpu_us: float
    cards_per_second: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    peak_mib: float | None
    server_share: float | None


# --- the process that measures


async def _measure(task: Task) -> Sample:
    contender = task.case.contenders(with_rivals=True)[task.contender]
    latencies: list[float] = []
    async with contender.open(task.service, task.case.size) as work:
        await work(task.warm_up, [])
        server = _server_seconds(task.server_id)
        cpu, wall = time.process_time(), time.perf_counter()
        seen = await work(task.calls, latencies)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        server_after = _server_seconds(task.server_id)
    expected = task.calls * (task.case.size if task.case.kind == "read" else 1)
    if seen != expected:
        raise RuntimeError(f"{task.contender} handled {seen} cards instead of {expected}")
    share = None if server is None or server_after is None else (server_after - server) / wall
    return Sample(cpu / seen * 1e6, seen / wall, *_percentiles(latencies), peak_mib(), share)


def _percentiles(seconds: list[float]) -> tuple[float | None, float | None, float | None]:
    if len(seconds) < 2:
        return None, None, None
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3


def _server_seconds(process_id: int) -> float | None:
    """Return the processor time of the server, whose only thread it is, to the nanosecond; None where the system doesn't tell."""
    try:
        return int(Path(f"/proc/{process_id}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:
        return None


def _one(text: str) -> None:
    """Be the client process: measure one contender once and print the sample."""
    task = Task(*json.loads(text))
    task = task._replace(case=Case(*task.case), service=Service(*task.service))
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    factory = None if task.loop == "asyncio" else importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(_measure(task))))


# --- the process that compares


class Setting(NamedTuple):
    """What holds for all measurements of a run."""

    python: str
    service: Service
    server_id: int
    core: int | None
    options: argparse.Namespace


def _cores() -> tuple[int | None, int | None]:
    """Return a core for the client and another for the server, where the system can pin."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[-1]) if len(cores) > 1 else (None, None)


@contextlib.contextmanager
def _set_up(options: argparse.Namespace) -> Iterator[Setting]:
    """Install what is asked for and start the server."""
    client_core, server_core = _cores()
    with contextlib.ExitStack() as stack:
        python = stack.enter_context(_environment.python_of(options))
        command = [python, str(Path(__file__).with_name("_server.py"))]
        certificate = None
        if server_core is not None:
            command += ["--core", str(server_core)]
        if options.tls:
            folder = stack.enter_context(_certificate.certificate())
            command += ["--tls", str(folder)]
            certificate = str(folder / "cert.pem")
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        base_url = f"{'https' if options.tls else 'http'}://127.0.0.1:{int(process.stdout.readline())}"
        yield Setting(python, Service(base_url, certificate), process.pid, client_core, options)


def _in_a_process(setting: Setting, case: Case, name: str, contender: Contender) -> Sample:
    options = setting.options
    if case.kind == "read":
        calls = options.reads or max(5, min(500, 100_000 // case.size))
        warm_up = max(1, calls // 10)
    else:
        calls = min(options.cards, options.slow_cards) if contender.is_slow else options.cards
        warm_up = max(case.size * 2, calls // 10)
    task = Task(case, name, calls, warm_up, setting.service, options.loop, setting.core, setting.server_id)
    done = subprocess.run([setting.python, __file__, "--one", json.dumps(task)], stdout=subprocess.PIPE, text=True, check=True)
    return Sample(*json.loads(done.stdout))


def _compare(setting: Setting, case: Case) -> dict[str, list[Sample]]:
    contenders = case.contenders(setting.options.rivals)
    if setting.options.only:
        contenders = {name: it for name, it in contenders.items() if name in {_BASELINE, *setting.options.only}}
    names = list(contenders)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(setting.options.rounds):
        # Each round begins with another contender: none is always the first on a cold or a warm processor.
        for position in range(len(names)):
            name = names[(position + number) % len(names)]
            samples[name].append(_in_a_process(setting, case, name, contenders[name]))
    return samples


def _summary(samples: dict[str, list[Sample]]) -> dict[str, dict[str, float | None]]:
    baseline = statistics.median(sample.cpu_us for sample in samples[_BASELINE])
    rows: dict[str, dict[str, float | None]] = {}
    for name, found in samples.items():
        medians = {
            field: None if None in values else statistics.median(values)
            for field, values in zip(Sample._fields, zip(*found, strict=True), strict=True)
        }
        cpu = [sample.cpu_us for sample in found]
        rows[name] = {**medians, "cpu_us_min": min(cpu), "cpu_us_max": max(cpu), "ratio": statistics.median(cpu) / baseline}
    return rows


_COLUMNS = {
    "CPU us/card": ("cpu_us", 13, ".1f"),
    "min": ("cpu_us_min", 9, ".1f"),
    "max": ("cpu_us_max", 9, ".1f"),
    "ratio": ("ratio", 8, ".2f"),
    "cards/s": ("cards_per_second", 10, ".0f"),
    "p50 ms": ("p50_ms", 9, ".2f"),
    "p95 ms": ("p95_ms", 9, ".2f"),
    "p99 ms": ("p99_ms", 9, ".2f"),
    "peak MiB": ("peak_mib", 10, ".1f"),
    "server": ("server_share", 8, ".0%"),
}


def _show(title: str, rows: dict[str, dict[str, float | None]]) -> None:
    print(f"\n{title}\n{'':<24}" + "".join(f"{heading:>{wide}}" for heading, (_, wide, _) in _COLUMNS.items()))
    for name, row in rows.items():
        cells = ((row[field], wide, form) for field, wide, form in _COLUMNS.values())
        print(f"{name:<24}" + "".join(f"{'-':>{wide}}" if it is None else f"{it:>{wide}{form}}" for it, wide, form in cells))
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=count, default=10_000, help="cards that each contender creates in each round")
    parser.add_argument("--slow-cards", type=count, default=1_000, help="the same, for clients that take milliseconds for each")
    parser.add_argument("--concurrency", type=count, nargs="*", default=[1, 32, 128], help="calls in flight when creating")
    parser.add_argument(
        "--read",
        type=count,
        nargs="*",
        default=[1, 100, 1_000, 10_000],
        metavar="N",
        help="cards on the boards that are read",
    )
    parser.add_argument(
        "--reads", type=count_or_none, default=0, help="times that each is read in each round; 0 depends on its length"
    )
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"leave out others, but {_BASELINE}")
    parser.add_argument("--tls", action="store_true", help="https, with a certificate made by openssl; checked by all")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio", help="the clients' event loop")
    _environment.add_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the processor time per card")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.cards, options.slow_cards, options.concurrency = 64, 16, options.concurrency and [4]
        options.read, options.reads, options.rounds = options.read and [50], 2, 1
    if unknown := set(options.only) - _contenders.CREATING.keys() - _contenders.READING.keys():
        parser.error(f"there is no contender {', '.join(sorted(unknown))}")
    return options


def main() -> None:
    """Run every case and print a table for each."""
    options = _options()
    if options.one:
        _one(options.one)
        return
    cases = [Case("create", size) for size in options.concurrency] + [Case("read", size) for size in options.read]
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    load_before = _load()
    with _set_up(options) as setting:
        facts: dict[str, Any] = {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "loop": options.loop,
            "scheme": "https" if options.tls else "http",
            "pinned": setting.core is not None,
            "rounds": options.rounds,
            "versions": _environment.versions(setting.python),
        }
        pinned = "client and server on a core each" if facts["pinned"] else "not pinned"
        print(
            f"Python {facts['python']}, {facts['system']}, {facts['loop']}, {facts['scheme']}, {pinned}, "
            f"median of {options.rounds} rounds"
        )
        print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
        for case in cases:
            figures[case.title] = _summary(_compare(setting, case))
            _show(case.title, figures[case.title])
    facts["load"] = [load_before, _load()]
    print(f"\nload of the machine: {load_before} before, {facts['load'][1]} after")
    if options.json:
        options.json.write_text(json.dumps({**facts, "cases": figures}, indent=2) + "\n", encoding="utf-8")
    if options.svg:
        panels = {title: {name: row["cpu_us"] or 0.0 for name, row in rows.items()} for title, rows in figures.items()}
        _plot.draw_bars(options.svg, "CPU microseconds per card", panels, ours=_contenders.OURS)


def _load() -> float | None:
    """Return how many processes wanted a core during the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    main()
