"""Compare bulk creation and reading with other clients: processor time, cards a second, latencies and memory.

Every measurement is a process of its own, the contenders take turns within each round, and the canned server is one more
process on another core. What counts is user and system time of the client process between its warm-up and its end.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _contenders
import _environment
import _plot
from _arguments import count, count_or_none
from _contenders import Contender
from _measure import Case, NotInstalledError, Sample, Task, measured
from _serving import Serving, serving

_BASELINE = "hand-written"


class Setting(NamedTuple):
    """The settings of all measurements of a run."""

    python: str
    serving: Serving
    options: argparse.Namespace


@contextlib.contextmanager
def _set_up(options: argparse.Namespace) -> Iterator[Setting]:
    """Install what is asked for and start the server."""
    with _environment.python_of(options) as python, serving(python, tls=options.tls) as server:
        yield Setting(python, server, options)


def _in_a_process(setting: Setting, case: Case, name: str, contender: Contender) -> Sample:
    options, server = setting.options, setting.serving
    if case.kind == "read":
        calls = options.reads or max(5, min(500, 100_000 // (case.size or 1)))
        warm_up = max(1, calls // 10)
    else:
        calls = min(options.cards, options.slow_cards) if contender.is_slow else options.cards
        warm_up = max(case.size * 2, calls // 10)
    task = Task(case, name, calls, warm_up, server.service, options.loop, server.core, server.process_id)
    return measured(setting.python, task)


def _compare(setting: Setting, case: Case) -> dict[str, list[Sample]]:
    options = setting.options
    contenders = case.contenders(options.rivals, tls=options.tls, loop=options.loop)
    if options.only:
        contenders = {name: it for name, it in contenders.items() if name in {_BASELINE, *options.only}}
    names = list(contenders)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(options.rounds):
        # Each round begins with another contender, so that none is always first on a cold or a warm processor.
        for position in range(len(names)):
            name = names[(position + number) % len(names)]
            with contextlib.suppress(NotInstalledError):
                samples[name].append(_in_a_process(setting, case, name, contenders[name]))
    return {name: found for name, found in samples.items() if found}


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
    "cold": ("cold_us", 10, ".1f"),
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
        type=count_or_none,
        nargs="*",
        default=[0, 1, 100, 1_000, 10_000],
        metavar="N",
        help="cards on the boards that are read; 0 reads a single card",
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
    options = parser.parse_args()
    if options.smoke:
        options.cards, options.slow_cards, options.concurrency = 64, 16, options.concurrency and [4]
        options.read, options.reads, options.rounds = options.read and [0, 50], 2, 1
    if unknown := set(options.only) - {name for table in _contenders.TABLES.values() for name in table}:
        parser.error(f"there is no contender {', '.join(sorted(unknown))}")
    return options


def main() -> None:
    """Run every case and print a table for each."""
    options = _options()
    cases = [Case(kind, size) for kind in ("create", "get") for size in options.concurrency]
    cases += [Case("read", size) for size in options.read]
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    load_before = _load()
    with _set_up(options) as setting:
        facts: dict[str, Any] = {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "loop": options.loop,
            "scheme": "https" if options.tls else "http",
            "pinned": setting.serving.core is not None,
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
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    main()
