"""Measure what the journal costs: processor time per row, both threads together, and the memory that a long run needs.

Every measurement is a separate process. A row is admitted, which logs it, and noted as done; nothing is sent.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _arguments import count, count_or_none
from _peak import peak_mib

from boardclient import Card, CardDraft
from boardclient.bulk._journal._journal_ledger import JournalLedger
from boardclient.bulk._life import Row

_BITS = random.Random(1)
KEYS: dict[str, Callable[[int], str | None]] = {
    "positions": lambda n: None,
    "ordered references": lambda n: f"import-2027/{n:08d}",
    "random references": lambda n: f"{_BITS.getrandbits(128):032x}",
}


class Sample(NamedTuple):
    """What one process needed."""

    cpu_us: float
    rows_per_second: float
    growth_mib: float
    file_mib: float


class Task(NamedTuple):
    """What one process does: `before` rows, of which only the memory counts, and then `rows` that are measured."""

    keys: str
    batch: int
    before: int
    rows: int
    folder: str


async def _work(journal: JournalLedger, task: Task, first: int, rows: int) -> float:
    """Pass rows through the journal, and return the processor time of making the rows."""
    making = 0.0
    key_of = KEYS[task.keys]
    for start in range(first, first + rows, task.batch):
        began = time.thread_time()
        batch = [
            Row(n, CardDraft(f"Card {n}", "5f3c7a9e1b2d4c6a00000000", desc="What is to be done", reference=key_of(n)))
            for n in range(start, start + task.batch)
        ]
        cards = [Card(f"5f3c7a9e1b2d4c6a{row.index:08x}") for row in batch]
        making += time.thread_time() - began
        await journal.admit(batch)
        for row, card in zip(batch, cards, strict=True):
            journal.add_outcome(row, "created", card)
    await journal.confirmed()
    return making


async def _measure(task: Task) -> Sample:
    with tempfile.TemporaryDirectory(dir=task.folder or None) as folder:
        path = Path(folder) / "cards.journal"
        journal = await JournalLedger.open(path, {"board": "benchmark"}, task.batch)
        await _work(journal, task, 0, task.before)
        peak, cpu, wall = (peak_mib() or 0.0), time.process_time(), time.perf_counter()
        making = await _work(journal, task, task.before, task.rows)
        cpu, wall = time.process_time() - cpu - making, time.perf_counter() - wall
        growth = (peak_mib() or 0.0) - peak
        await journal.aclose()
        return Sample(cpu / task.rows * 1e6, task.rows / wall, growth, path.stat().st_size / 2**20)


def _in_a_process(task: Task) -> Sample:
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(task)], stdout=subprocess.PIPE, text=True, check=True)
    return Sample(*json.loads(done.stdout))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=count, nargs="+", default=[1, 16, 64, 256], help="rows logged at a time")
    parser.add_argument("--commits", type=count, default=1000, help="batches of each size that are measured in each round")
    parser.add_argument("--rows", type=count_or_none, default=1_000_000, help="rows of a long run; 0 leaves it out")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--folder", default="", help="where the journals are put, on the disk that is to be measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.batches, options.commits, options.rows, options.rounds = [64], 5, 1280, 1
    return options


def _by_batch(options: argparse.Namespace) -> dict[str, Sample]:
    """Measure each kind of key at each batch size."""
    figures: dict[str, Sample] = {}
    print(f"\n{'':<24}{'batch':>6}{'CPU us/row':>12}{'rows/s':>10}")
    for keys in KEYS:
        for batch in options.batches:
            task = Task(keys, batch, 2 * batch, options.commits * batch, options.folder)
            samples = [_in_a_process(task) for _ in range(options.rounds)]
            median = Sample(*(statistics.median(values) for values in zip(*samples, strict=True)))
            figures[f"{keys}, batch {batch}"] = median
            print(f"{keys:<24}{batch:>6}{median.cpu_us:>12.1f}{median.rows_per_second:>10.0f}", flush=True)
    return figures


def _long_run(options: argparse.Namespace) -> dict[str, Sample]:
    """Measure each kind of key in a run of many rows, and the memory that it needs beyond its beginning."""
    figures: dict[str, Sample] = {}
    batch = 64
    before = min(20_000, options.rows // 2) // batch * batch
    rows = (options.rows - before) // batch * batch
    print(f"\nfrom {before} to {before + rows} rows")
    print(f"{'':<24}{'batch':>6}{'CPU us/row':>12}{'rows/s':>10}{'peak MiB':>10}{'file MiB':>10}")
    for keys in KEYS:
        sample = _in_a_process(Task(keys, batch, before, rows, options.folder))
        figures[f"{keys}, long run"] = sample
        print(
            f"{keys:<24}{batch:>6}{sample.cpu_us:>12.1f}{sample.rows_per_second:>10.0f}{sample.growth_mib:>+10.1f}"
            f"{sample.file_mib:>10.1f}",
            flush=True,
        )
    return figures


def main() -> None:
    """Measure every case and print two tables."""
    options = _options()
    if options.one:
        print(json.dumps(asyncio.run(_measure(Task(*json.loads(options.one))))))
        return
    print(f"Python {platform.python_version()}, {platform.system()}, median of {options.rounds} rounds")
    figures = _by_batch(options)
    if options.rows:
        figures |= _long_run(options)
    if options.json:
        document = {"python": platform.python_version(), "figures": {name: sample._asdict() for name, sample in figures.items()}}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
