"""Measure how much of an unknown limit a Pace uses, how often it is refused, and how it follows a limit that changes.

The table is a simulation of discrete events on a clock of its own: the same seeds give the same figures. `starting.py` runs
against limited servers on the loopback interface, in real time.
"""

import argparse
import asyncio
import json
import math
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from _arguments import count
from _pace_cases import Case, Figures, cases, pace_at
from pace_simulation import Bucket, Window

from boardclient import Pace

_STYLE = """<style>
text { fill: #444 } .axis { stroke: #999; fill: none } .rate { stroke: #2563eb; fill: none; stroke-width: 1.5 }
.limit { stroke: #c2410c; fill: none; stroke-width: 1.5; stroke-dasharray: 5 3 } .refused { fill: #dc2626 }
@media (prefers-color-scheme: dark) {
text { fill: #ccc } .axis { stroke: #777 } .rate { stroke: #60a5fa } .limit { stroke: #fb923c } .refused { fill: #f87171 } }
</style>"""


def _run_case(name: str, seeds: range) -> list[Figures]:
    case = next(case for case in cases() if case.name == name)
    return [case.run(seed) for seed in seeds]


def _summary(case: Case, runs: list[Figures]) -> dict[str, Any]:
    """Return the median and the worst of each figure, in parts of one and seconds."""
    found = [run.found for run in runs if run.found is not None]
    less_found = min if case.group == "shared" else max
    return {
        "group": case.group,
        "name": case.name,
        "use": statistics.median(run.use for run in runs),
        "worst_use": min(run.use for run in runs),
        "refused": statistics.median(run.refused for run in runs),
        "worst_refused": max(run.refused for run in runs),
        "first": statistics.median(run.first for run in runs),
        "silence": max(run.silence for run in runs),
        "found": statistics.median(found) if found else None,
        "worst_found": less_found(found) if found else None,
    }


def _percent(median: float, worst: float, digits: int = 0) -> str:
    return f"{median * 100:.{digits}f} / {worst * 100:.{digits}f}"


def _cells(row: dict[str, Any]) -> list[str]:
    first = "" if math.isnan(row["first"]) else f"{row['first'] * 100:.0f}"
    found = "" if row["found"] is None else f"{row['found']:.1f} / {row['worst_found']:.1f}"
    used, refused = _percent(row["use"], row["worst_use"]), _percent(row["refused"], row["worst_refused"], 1)
    return [used, refused, first, f"{row['silence']:.1f}", found]


_HEADS = ("use %", "refused %", "first %", "silence s", "found")
_LEGEND = """median / worst of {seeds} runs. first: use in the time before. silence: the longest time without an accepted request.
found: seconds until a changed limit is found; for a limit that two runs share, the part that the weaker one gets of its half;
for queues, the median latency as a multiple of the one without a queue."""


def _table(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the cases and print a line for each, beside that of earlier figures if there are any."""
    known = {row["name"]: row for row in json.loads(options.against.read_text("utf-8"))["table"]} if options.against else {}
    chosen = [case for case in cases() if options.only in f"{case.group}: {case.name}"]
    print(_LEGEND.format(seeds=options.seeds))
    print(f"{'':<50}" + "".join(f"{head:>{13 if known else 14}}" for head in _HEADS))
    seeds, table = range(1, 1 + options.seeds), []
    with ProcessPoolExecutor(options.processes) as pool:
        waiting = [(case, pool.submit(_run_case, case.name, seeds)) for case in chosen]
        for case, future in waiting:
            row = _summary(case, future.result())
            table.append(row)
            for title, shown in ((case.name, known.get(case.name)), ("" if case.name in known else case.name, row)):
                if shown is not None:
                    print(f"{title:<50}" + "".join(f"{cell:>14}" for cell in _cells(shown)), flush=True)
    return table


def _cost_us(rounds: int) -> float:
    """Return the microseconds of entering, reporting and leaving when no wait is needed."""

    async def measure() -> float:
        pace = Pace()
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
    for panel, (kind, service) in enumerate((("bucket, 1 s", Bucket(100)), ("window, 1 s", Window(100)))):
        top = 30 + 250 * panel
        outcome = pace_at(service, seconds, changes=changes)

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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=count, default=6, help="runs of each case")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this text in `group: name`")
    parser.add_argument("--processes", type=count, default=1, help="how many cases run at the same time")
    parser.add_argument("--against", type=Path, metavar="FILE", help="show the figures of an earlier --json file above each line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the rate against a limit that changes")
    parser.add_argument("--smoke", action="store_true", help="a few cases: shows that it runs")
    options = parser.parse_args()
    if options.smoke:
        options.only, options.seeds = "/s, 8 workers", 1
    return options


def main() -> None:
    """Run what was asked for and print a table of it."""
    options = _options()
    print(f"Python {platform.python_version()}, {platform.system()}")
    figures: dict[str, Any] = {"python": platform.python_version()}
    figures["table"] = _table(options)
    figures["cost_us"] = _cost_us(2_000 if options.smoke else 50_000)
    print(f"\nentering, reporting and leaving without a wait: {figures['cost_us']:.2f} us")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.svg:
        _plot(options.svg)


if __name__ == "__main__":
    main()
