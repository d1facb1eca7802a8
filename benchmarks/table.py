"""Take the figures of docs/performance.md in one run: `python benchmarks/table.py --json FILE --markdown FILE --svg FILE`.

Each measurement is a process of its own. In every round all contenders of all columns take turns, TLS and uvloop included, so
that other work of the machine affects all alike; rounds are begun until the time is up. What fails is named and left out; what is
not installed is "not installed" in the table: `pip install --group benchmarks` installs the other clients.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _contenders
import _environment
import _plot
from _arguments import count, positive
from _measure import Case, NotInstalledError, Sample, Task, measured
from _serving import Serving, serving

_BASELINE = "hand-written"
_LONGEST_SECONDS = 120.0
_SLOW_EVERY = 2
"""Clients that take milliseconds for a card are measured in every second round."""
_ROW_NAMES = {"cards.create, public": "cards.create, through ClientSession", "create_many, journal": "cards.create_many, journal"}


class Column(NamedTuple):
    """One column of a table: what is done, and how."""

    title: str
    case: Case
    tls: bool = False
    loop: str = "asyncio"


def _columns(kind: str) -> list[Column]:
    sizes = {1: "1 in flight", 32: "32", 256: "256"}
    plain = [Column(title, Case(kind, size)) for size, title in sizes.items()]
    return plain + [Column(f"{title}, uvloop", Case(kind, size), loop="uvloop") for size, title in sizes.items()]


_CREATING = [*_columns("create"), Column("32, TLS", Case("create", 32), tls=True)]
_GETTING = _columns("get")
_READING = [Column("one card" if not size else f"{size:,}", Case("read", size)) for size in (0, 1, 100, 1_000, 10_000)]
_STARTS = {
    "python": ["-c", "pass"],
    "`boardclient --version`": ["-m", "boardclient", "--version"],
    "`boardclient --help`": ["-m", "boardclient", "--help"],
    "its libraries": ["-c", "import aiohttp, attrs, httptools, msgspec, cattrs, tenacity.asyncio"],
    "boardclient.AsyncSession": ["-c", "import boardclient; boardclient.AsyncSession"],
}


class Run:
    """The measurements of a run so far."""

    def __init__(self, python: str, options: argparse.Namespace) -> None:
        self.samples: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        """By the column's title and the contender."""
        self.starts: dict[str, list[float]] = defaultdict(list)
        """Milliseconds of processor time of whole processes."""
        self.failed: dict[str, str] = {}
        """The contenders that can't be measured here, and why."""
        self.missing: dict[str, str] = {}
        """The contenders that need a package which is not installed, and its name."""
        self.rounds = 0
        self._python = python
        self._options = options

    def measure(self, servers: dict[bool, Serving], columns: list[Column], until: float) -> None:
        """Run rounds until the time is up, at least one."""
        for arguments in _STARTS.values():
            _start_ms(self._python, arguments)
        while not self.rounds or (time.monotonic() < until and self.rounds < self._options.rounds):
            begun = time.monotonic()
            for column in columns:
                self._measure_column(servers[column.tls], column)
            for name, arguments in _STARTS.items():
                self.starts[name].append(_start_ms(self._python, arguments))
            self.rounds += 1
            print(f"round {self.rounds}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    def _measure_column(self, server: Serving, column: Column) -> None:
        contenders = column.case.contenders(with_rivals=True, tls=column.tls, loop=column.loop)
        names = list(contenders)
        # Each round begins with another contender, so that none is always first on a cold or a warm processor.
        for name in [names[(position + self.rounds) % len(names)] for position in range(len(names))]:
            key = f"{_key(column)}: {name}"
            is_slow = contenders[name].is_slow
            if name in self.missing or key in self.failed or (is_slow and self.rounds % _SLOW_EVERY):
                continue
            calls, warm_up = self._calls(column.case, is_slow=is_slow)
            task = Task(column.case, name, calls, warm_up, server.service, column.loop, server.core, server.process_id)
            try:
                sample = measured(self._python, task, _LONGEST_SECONDS)
            except NotInstalledError as error:
                self.missing[name] = str(error)
            except (subprocess.SubprocessError, ValueError) as error:
                self.failed[key] = type(error).__name__
                print(f"left out: {key}: {type(error).__name__}", file=sys.stderr, flush=True)
            else:
                self.samples[_key(column)][name].append(sample)

    def _calls(self, case: Case, *, is_slow: bool) -> tuple[int, int]:
        if case.kind == "read":
            calls = max(3, min(300, self._options.cards * 5 // (case.size or 1)))
            return calls, max(1, calls // 10)
        calls = max(case.size, self._options.cards // (20 if is_slow else 2 if case.size == 1 else 1))
        return calls, max(case.size, calls // 10)


def _key(column: Column) -> str:
    return f"{column.case.kind}, {column.title}"


def _start_ms(python: str, arguments: list[str]) -> float:
    """Return the processor time of a process in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


# --- what is made of it


class Figure(NamedTuple):
    """The processor time of one contender in one column: microseconds a card."""

    median: float
    low: float
    high: float
    cold: float
    less: float
    """How many times less that is than the baseline of its round, the median over the rounds."""


def _figures(found: dict[str, list[Sample]], baseline: str) -> dict[str, Figure]:
    base = [sample.cpu_us for sample in found.get(baseline, [])]
    figures = {}
    for name, samples in found.items():
        cpu = [sample.cpu_us for sample in samples]
        rounds = base[:: max(1, round(len(base) / len(cpu)))]  # a slow one is measured in every second round
        low, _, high = statistics.quantiles(cpu, n=4, method="inclusive") if len(cpu) > 1 else cpu * 3
        less = statistics.median(theirs / ours for theirs, ours in zip(rounds, cpu, strict=False)) if base else float("nan")
        figures[name] = Figure(statistics.median(cpu), low, high, statistics.median(sample.cold_us for sample in samples), less)
    return figures


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _times(value: float) -> str:
    return f"{value:.2g}" if value < 0.095 else f"{value:.2f}"


def _with_ratio(figure: Figure) -> str:
    return f"{_number(figure.median)} ({_times(figure.less)} \u00d7)"


def _table(
    heading: str, columns: list[Column], run: Run, figures: dict[str, dict[str, Figure]], cell: Callable[[Figure], str]
) -> list[str]:
    columns = [column for column in columns if figures.get(_key(column))]
    order = list(_contenders.TABLES[columns[0].case.kind])
    names = {name for column in columns for name in figures[_key(column)]} | run.missing.keys() & set(order)
    lines = ["| " + " | ".join([heading, *(column.title for column in columns)]) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in sorted(names, key=order.index):
        cells = [figures[_key(column)].get(name) for column in columns]
        shown = _ROW_NAMES.get(name, name)
        label = f"**`{shown}`**" if name in _contenders.OURS else shown
        empty = "not installed" if name in run.missing else ""
        lines.append("| " + " | ".join([label, *(empty if figure is None else cell(figure) for figure in cells)]) + " |")
    return [*lines, ""]


def _markdown(run: Run, figures: dict[str, dict[str, Figure]], facts: dict[str, Any]) -> str:
    spread = [(it.high - it.low) / it.median * 100 for found in figures.values() for name, it in found.items()]
    starts = {name: statistics.median(values) for name, values in run.starts.items()}
    pinned = ", client and server on a core each" if facts["pinned"] else ""
    lines = [
        "Processor microseconds of the client for each card created. In brackets: how many times less that is than hand-written",
        "aiohttp (`session.post(json=…)` under a semaphore) needs in the same round.",
        "",
        *_table("", _CREATING, run, figures, _with_ratio),
        "The same for reading one card by its identifier:",
        "",
        *_table("", _GETTING, run, figures, _with_ratio),
        "Reading cards of 1.7 KB through a socket, in processor microseconds for each card, unknown fields kept. In brackets:",
        f"how many times less that is than {_reading_baseline(run)} needs in the same round.",
        "",
        *_table("cards", _READING, run, figures, _with_ratio),
        "The same for the first reading of a fresh process, connecting included:",
        "",
        *_table("cards", _READING, run, figures, lambda figure: _number(figure.cold)),
        "| start, processor time of a whole process | ms | times Python's own |",
        "|---|---|---|",
        *(f"| {name} | {value:.0f} | {value / starts['python']:.1f} |" for name, value in starts.items()),
        "",
        f"Python {facts['python']} on {facts['system']}, {facts['processor']}{pinned}; medians of {run.rounds} rounds",
        f"in one run, with {facts['cards']:,} cards each (1 in flight: half of them; slow clients: a twentieth, in every",
        f"second round). The middle half of the rounds spans {statistics.median(spread):.0f} % of the median typically,",
        f"{max(spread):.0f} % at worst.",
        ", ".join(f"{name} {version}" for name, version in facts["versions"].items()) + ".",
        *([f"Not measured: {', '.join(run.failed)}."] if run.failed else []),
    ]
    return "\n".join(lines) + "\n"


def _reading_baseline(run: Run) -> str:
    """Return the contender with which reading is compared."""
    return _BASELINE if "aiohttp and pydantic" in run.missing else "aiohttp and pydantic"


def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or "an unknown processor"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=positive, default=10.0, help="rounds are begun until then")
    parser.add_argument("--rounds", type=count, default=15, help="at most so many rounds")
    parser.add_argument("--cards", type=count, default=4_000, help="cards that each contender creates in each round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to this file as well")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the processor time per card created")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    options = parser.parse_args()
    if options.smoke:
        options.cards, options.rounds = 64, 1
    return options


def main() -> int:
    """Measure, and write the figures and the tables. Return 1 if a measurement failed."""
    options = _options()
    python = sys.executable
    with contextlib.ExitStack() as stack:
        until = time.monotonic() + options.minutes * 60
        versions = _environment.versions(python)
        has_tls = shutil.which("openssl") is not None
        servers = {tls: stack.enter_context(serving(python, tls=tls)) for tls in (False, True) if has_tls or not tls}
        wanted = [_CREATING[0], _CREATING[-1], _GETTING[1], *_READING[:2]] if options.smoke else _CREATING + _GETTING + _READING
        columns = [it for it in wanted if it.tls in servers and (it.loop == "asyncio" or it.loop in versions)]
        facts = {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "processor": _processor(),
            "pinned": servers[False].core is not None,
            "cards": options.cards,
            "versions": versions,
            "load before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        }
        run = Run(python, options)
        stack.enter_context(_environment.bytecode())
        run.measure(servers, columns, until)
    figures = {
        _key(column): _figures(run.samples[_key(column)], _reading_baseline(run) if column.case.kind == "read" else _BASELINE)
        for column in columns
    }
    text = _markdown(run, figures, facts)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        document = {
            **facts,
            "rounds": run.rounds,
            "failed": run.failed,
            "not installed": run.missing,
            "figures": {title: {name: it._asdict() for name, it in found.items()} for title, found in figures.items()},
            "starts_ms": run.starts,
            "samples": {t: {name: [one._asdict() for one in them] for name, them in f.items()} for t, f in run.samples.items()},
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.svg:
        drawn = [*_CREATING[:3], *_GETTING[:3]]
        panels = {it.case.title: {name: one.median for name, one in figures[_key(it)].items()} for it in columns if it in drawn}
        _plot.draw_bars(options.svg, "CPU microseconds per call", panels, ours=_contenders.OURS)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
