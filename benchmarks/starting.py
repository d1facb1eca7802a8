"""Measures the time to the first card, and bulk runs so short that the search for the limit matters.

Each measurement is a process of its own against a canned server on the loopback interface: a whole process with one card, the
first card on a fresh session, plain and over TLS, runs of a few hundred rows, by default and at a fixed concurrency, and the help
of each command.
`--limits` adds servers that refuse, and shows how many requests were refused.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import platform
import resource
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _certificate
import _environment
from _arguments import count, positive

_FIXED = 16
_COMMANDS = ("card", "import", "export", "undo", "journal", "ledger", "login", "doctor", "demo", "card create", "journal resolve")


@contextlib.contextmanager
def _server(script: str, *arguments: str, scheme: str = "http") -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"{scheme}://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


# --- the process that measures


async def _first(base_url: str, certificate: str | None) -> dict[str, float]:
    """Create a card on a fresh session, and another one after it; return the seconds of both."""
    from boardclient import AsyncSession, StaticCredentials

    context = ssl.create_default_context(cafile=certificate) if certificate else None
    begun = time.perf_counter()
    async with AsyncSession(StaticCredentials("t", "k"), base_url, ssl=context) as session:
        await session.cards.create("Card", list_id="l1")
        first = time.perf_counter()
        await session.cards.create("Card", list_id="l1")
        return {"session": first - begun, "second": time.perf_counter() - first}


async def _rows(base_url: str, rows: int, concurrency: int | None) -> dict[str, float]:
    """Create rows on a fresh session; return the seconds and what was refused."""
    from boardclient import AsyncSession, CardDraft, StaticCredentials

    async with AsyncSession(StaticCredentials("t", "k"), base_url) as session:
        begun = time.perf_counter()
        drafts = [CardDraft(f"Card {number}", "l1") for number in range(rows)]
        async with session.cards.create_many(drafts, concurrency=concurrency) as run:
            await run.wait()
        seconds = time.perf_counter() - begun
    report = run.report
    if report.created != rows:
        raise RuntimeError(report)
    return {"seconds": seconds, "refused": report.rejected, "requests": report.requests}


def _one(text: str) -> None:
    task = json.loads(text)
    work = _rows if "rows" in task else _first
    print(json.dumps(asyncio.run(work(**task))))


def _measure(rounds: int, **task: Any) -> dict[str, float]:
    """Run a task in fresh processes; return the medians, with the whole time of the process as `process`."""
    samples = []
    for _ in range(rounds):
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, "--one", json.dumps(task)], stdout=subprocess.PIPE, text=True, check=True
        )
        samples.append({**json.loads(done.stdout), "process": time.perf_counter() - begun})
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


# --- the tables


def _pages(rounds: int) -> dict[str, float]:
    """Print what the help of each command costs in processor time, as a multiple of Python's own start."""
    own = _processor_seconds(rounds, "-c", "pass")
    table = {}
    print(f"{'the help of a command':<24}{'x of python -c pass':>20}")
    for name in ("", *_COMMANDS):
        table[name] = _processor_seconds(rounds, "-m", "boardclient", *name.split(), "--help") / own
        print(f"{name or 'boardclient':<24}{table[name]:>20.1f}")
    return table


def _processor_seconds(rounds: int, *arguments: str) -> float:
    samples = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        samples.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(samples)  # the first one compiles what it imports


def _first_cards(rounds: int) -> dict[str, dict[str, float]]:
    print(f"{'the first card, ms':<24}{'fresh process':>15}{'fresh session':>15}{'second card':>13}")
    table = {}
    with _certificate.certificate() as folder:
        cases: list[tuple[str, list[str], str, str | None]] = [
            ("http", [], "http", None),
            ("https", ["--tls", str(folder)], "https", str(folder / "cert.pem")),
        ]
        for name, arguments, scheme, pem in cases:
            with _server("_server.py", *arguments, scheme=scheme) as base_url:
                table[name] = row = _measure(rounds, base_url=base_url, certificate=pem)
            print(f"{name:<24}{row['process'] * 1e3:>15.1f}{row['session'] * 1e3:>15.1f}{row['second'] * 1e3:>13.2f}")
    return table


def _runs(title: str, base_url: str, rows: list[int], rounds: int) -> list[dict[str, Any]]:
    table = []
    for number, concurrency in itertools.product(rows, (None, _FIXED)):
        row = _measure(rounds, base_url=base_url, rows=number, concurrency=concurrency)
        table.append({"service": title, "rows": number, "concurrency": concurrency, **row})
        refused = row["refused"] / row["requests"] * 100
        print(f"{title:<24}{number:>8}{concurrency or 'found':>14}{row['seconds']:>10.3f}{refused:>11.1f}")
    return table


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=count, nargs="+", default=[20, 100, 500])
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument(
        "--limits", type=positive, nargs="*", default=[50.0, 300.0], help="servers with a bucket of a second's worth"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing")
    parser.add_argument("--one", metavar="TASK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _one(options.one)
        return
    if options.smoke:
        options.rows, options.rounds, options.limits = [20], 1, [50.0]
    print(f"Python {platform.python_version()}, {platform.system()}, medians of {options.rounds} processes")
    first = _first_cards(options.rounds)
    print(f"\n{'a bulk run':<24}{'rows':>8}{'concurrency':>14}{'seconds':>10}{'refused %':>11}")
    with _server("_server.py") as base_url:
        runs = _runs("no limit", base_url, options.rows, options.rounds)
    for limit in options.limits:
        with _server("_limited.py", "--limit", str(limit)) as base_url:
            runs += _runs(f"bucket, {limit:g}/s", base_url, options.rows, 1)
            time.sleep(1.0)
    print()
    with _environment.bytecode():
        pages = _pages(options.rounds)
    if options.json:
        options.json.write_text(json.dumps({"first": first, "runs": runs, "help": pages}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
